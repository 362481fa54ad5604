"""Trainings in plain loops: a network from large initial weights, and a small language model."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import Any

import pytest
import torch
from leyden.tasks import CausalTransformer
from leyden_warmup import LossWarmupLR
from leyden_warmup.baselines import LinearWarmup
from leyden_warmup.experiments import MarkovText, scaled_mlp
from sklearn.datasets import load_digits
from torch import Tensor, nn

RATES = (0.1, 0.2, 0.4, 0.8)


@cache
def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


@cache
def accuracy(rate: float, C: float | None) -> float:
    """Mean test accuracy over three seeds of an MLP whose initial weights are 2.5 times torch's."""
    found = []
    for seed in range(3):
        images, labels = digits()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1000 + seed))
        images, labels = images[order], labels[order]
        torch.manual_seed(seed)
        model = scaled_mlp([64, 64, 64, 64, 10], gain=2.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        warmup = None if C is None else LossWarmupLR(optimizer, C=C)
        for _ in range(12):
            for rows in torch.randperm(1000).split(64):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
                loss.backward()
                if warmup is not None:
                    warmup.step(loss)
                optimizer.step()
        with torch.no_grad():
            right = (model(images[1000:]).argmax(dim=1) == labels[1000:]).float().mean()
        found.append(float(right))
    return fmean(found)


def test_at_a_rate_that_is_too_large_the_warm_up_trains_and_nothing_else_does() -> None:
    assert accuracy(0.8, 1.0) >= 0.90
    assert accuracy(0.8, None) <= 0.70


def test_at_a_moderate_rate_it_costs_little() -> None:
    assert accuracy(0.2, 1.0) >= accuracy(0.2, None) - 0.02


def test_its_best_over_the_rates_is_as_good_as_the_best_without() -> None:
    own, plain = (max(accuracy(rate, C) for rate in RATES) for C in (1.0, None))
    assert own >= plain - 0.005


@cache
def cross_entropy(method: str) -> float:
    """Mean test loss over two seeds of a small transformer under AdamW at 0.03 and a cosine of 150 steps."""
    found = []
    for seed in range(2):
        text = MarkovText(seed=seed, batch_size=32)
        torch.manual_seed(seed)
        model = CausalTransformer(32, width=64, depth=2, heads=4, max_length=24)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
        schedule = LinearWarmup(optimizer, warmup=40 if method == "linear" else 1, cosine=150)
        warmup = LossWarmupLR(optimizer, C=0.3) if method == "smooth" else None
        batches = iter(text.train_dataloader())
        for _ in range(150):
            tokens, targets = next(batches)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
            if warmup is not None:
                warmup.step(loss)
            optimizer.step()
            schedule.step()
        tokens, targets = text.test
        with torch.no_grad():
            found.append(float(nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())))
    return fmean(found)


@pytest.mark.slow
def test_a_language_model_at_a_large_rate_gains_from_it_what_it_gains_from_a_linear_warm_up() -> None:
    none, linear, smooth = (cross_entropy(method) for method in ("none", "linear", "smooth"))
    assert smooth <= none - 0.05
    assert smooth <= linear + 0.03


@pytest.mark.parametrize(("warmup", "cosine"), [(1, None), (4, None), (4, 10)])
def test_the_linear_warm_up_is_its_formula(warmup: int, cosine: int | None) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=2.0)
    schedule = LinearWarmup(optimizer, warmup, cosine)
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    rise = [min(1.0, (step + 1) / warmup) for step in range(12)]
    fall = [
        1.0 if cosine is None else (1 + torch.cos(torch.tensor(torch.pi * min(step / cosine, 1)))) / 2
        for step in range(12)
    ]
    assert rates == pytest.approx(
        [2 * float(one * other) for one, other in zip(rise, fall, strict=True)], abs=1e-6
    )


def test_the_text_depends_on_the_two_tokens_before() -> None:
    """Which of two tables is meant cannot be told from one token: pairs predict better than single tokens."""
    text = MarkovText(tokens=4, length=50, train_size=4000, val_size=1, test_size=1, sharpness=3.0)
    tokens, targets = text.train
    assert tokens.shape == targets.shape == (4000, 50)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])

    def entropy(context: Tensor, kinds: int) -> float:
        counts = torch.zeros(kinds, 4).index_put_(
            (context, targets[:, 2:].flatten()), torch.tensor(1.0), True
        )
        chances = counts / counts.sum(dim=1, keepdim=True)
        weights = counts.sum(dim=1) / counts.sum()
        return float((weights * -(chances.clamp(min=1e-9).log() * chances).sum(dim=1)).sum())

    last, before = tokens[:, 2:].flatten(), tokens[:, 1:-1].flatten()
    assert entropy(4 * before + last, 16) < entropy(last, 4) - 0.05


def test_the_scaled_network_is_torchs_times_the_gain() -> None:
    vectors = []
    for gain in (1.0, 2.5):
        torch.manual_seed(0)
        vectors.append(nn.utils.parameters_to_vector(scaled_mlp([4, 3, 2], gain).parameters()))
    torch.testing.assert_close(2.5 * vectors[0], vectors[1])


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: scaled_mlp([4, 2], 0.0), "gain"),
        (lambda: MarkovText(tokens=1), "tokens"),
        (lambda: MarkovText(length=1), "length"),
        (lambda: MarkovText(train_size=0), "train_size"),
    ],
)
def test_a_wrong_argument_is_named(build: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        build()
