"""Handwritten digits, in plain loops: what the safeguard is needed for, and how little its value matters."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import torch
from leyden_sps_safe import SPSSafe
from leyden_sps_safe.polyak import squared_norm
from sklearn.datasets import load_digits
from torch import Tensor, nn

SEEDS = range(3)


@cache
def digits() -> tuple[Tensor, Tensor]:
    inputs, labels = load_digits(return_X_y=True)
    return torch.tensor(inputs, dtype=torch.float32) / 16, torch.tensor(labels)


@cache
def train(
    method: str, value: float, seed: int, sizes: tuple[int, ...], noise: float, batch: int, epochs: int
) -> tuple[float, float]:
    """Test accuracy, and the median of ‖g‖² over the last 45 steps.

    The median, because single batches that SGD still gets wrong dominate its mean, which so depends on the
    order of the batches more than on the method.
    """
    inputs, labels = digits()
    generator = torch.Generator().manual_seed(1000 + seed)
    order = torch.randperm(len(inputs), generator=generator)
    inputs, labels = inputs[order], labels[order]
    train_labels = labels[:1000].clone()
    if noise:
        mask = torch.rand(1000, generator=generator) < noise
        train_labels[mask] = torch.randint(0, 10, (1000,), generator=generator)[mask]
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inside, outside in pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    params = list(model.parameters())
    optimizer: Any = (
        SPSSafe(params, M=value) if method == "SPSSafe" else torch.optim.SGD(params, lr=value, momentum=0.9)
    )
    norms = []
    for _ in range(epochs):
        for rows in torch.randperm(1000).split(batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[rows]), train_labels[rows])
            loss.backward()
            norms.append(float(squared_norm([p.grad for p in params if p.grad is not None])))
            optimizer.step(**({"loss": loss} if method == "SPSSafe" else {}))
    with torch.no_grad():
        right = (model(inputs[1000:]).argmax(dim=1) == labels[1000:]).float().mean()
    return float(right), median(norms[-45:])


def noisy(M: float) -> float:
    return fmean(train("SPSSafe", M, seed, (64, 32, 32, 10), 0.4, 500, 150)[0] for seed in SEEDS)


def clean(method: str, value: float) -> tuple[float, float]:
    found = [train(method, value, seed, (64, 64, 64, 10), 0.0, 64, 20) for seed in SEEDS]
    return fmean(accuracy for accuracy, _ in found), fmean(norm for _, norm in found)


def test_label_noise_breaks_the_unsafe_step_and_not_the_safe_one() -> None:
    assert min(noisy(1.0), noisy(3.0), noisy(10.0)) >= 0.85
    assert noisy(1e-6) <= 0.5


def test_three_orders_of_the_safeguard_give_one_accuracy_on_clean_digits() -> None:
    accuracies = [clean("SPSSafe", M)[0] for M in (1e-3, 1e-2, 0.1, 1.0)]
    assert max(accuracies) - min(accuracies) <= 0.02
    assert max(accuracies) >= 0.945


def test_gradients_stay_larger_than_those_of_gradient_descent_with_momentum() -> None:
    _, safe = clean("SPSSafe", 1.0)
    _, plain = clean("SGD", 0.1)
    assert safe >= 3 * plain
