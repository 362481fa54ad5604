"""The step sizes that the paper compares with, against their formulas and against each other."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from leyden_sps_safe import ALIG, IMASPS, SPS, AdaGradNorm, DecSPS, IMASPSSafe, SPSMax, SPSPlus, SPSSafe
from torch import Tensor, nn

LOSSES = (2.0, 0.5, 3.0, 0.01)
GRADIENTS = (1.0, 0.1, 4.0, 2.0)


def sizes(optimizer: Any, parameter: nn.Parameter, **extra: Any) -> list[float]:
    """The step sizes at the given losses and gradients, measured on the parameter itself."""
    found = []
    for loss, gradient in zip(LOSSES, GRADIENTS, strict=True):
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        before = parameter.detach().clone()
        optimizer.step(loss=loss, **extra)
        found.append(float(before - parameter.detach()) / gradient)
        assert float(optimizer.last_step_size) == pytest.approx(found[-1], rel=1e-9)
    return found


def at_origin() -> nn.Parameter:
    return nn.Parameter(torch.zeros(1, dtype=torch.float64))


def test_sps_divides_the_loss_by_the_squared_norm() -> None:
    x = at_origin()
    expected = [(f + 0.1) / (0.2 * g * g) for f, g in zip(LOSSES, GRADIENTS, strict=True)]
    assert sizes(SPS([x], c=0.2, ell_star=-0.1), x) == pytest.approx(expected)


def test_sps_max_is_bounded_by_a_constant() -> None:
    x = at_origin()
    expected = [min(f / (0.5 * g * g), 1.5) for f, g in zip(LOSSES, GRADIENTS, strict=True)]
    assert sizes(SPSMax([x], 1.5, c=0.5), x) == pytest.approx(expected)


def test_smoothed_sps_max_is_bounded_by_a_multiple_of_the_step_before() -> None:
    x, before, expected = at_origin(), 1.0, []
    for f, g in zip(LOSSES, GRADIENTS, strict=True):
        before = min(f / g**2, 2**0.25 * before)
        expected.append(before)
    assert sizes(SPSMax([x], growth=0.25), x) == pytest.approx(expected, rel=1e-6)


def test_a_zero_gradient_does_not_stop_the_smoothed_bound_for_good() -> None:
    x = at_origin()
    optimizer = SPSMax([x], growth=0.25)
    x.grad = torch.zeros(1, dtype=torch.float64)
    optimizer.step(loss=1.0)
    x.grad = torch.ones(1, dtype=torch.float64)
    optimizer.step(loss=1.0)
    assert x.item() != 0


def test_dec_sps_decreases() -> None:
    x, bound, expected = at_origin(), 2.0 * 3.0, []
    for t, (f, g) in enumerate(zip(LOSSES, GRADIENTS, strict=True)):
        bound = min(f / g**2, bound)
        expected.append(bound / (2.0 * math.sqrt(t + 1)))
    assert sizes(DecSPS([x], 2.0, gamma_b=3.0), x) == pytest.approx(expected, rel=1e-6)


def test_the_first_step_of_dec_sps_is_at_most_its_bound() -> None:
    assert sizes(DecSPS([x := at_origin()], 2.0, gamma_b=0.01), x)[0] == pytest.approx(0.01)


@pytest.mark.parametrize("build", [SPS, SPSMax, DecSPS, ALIG])
def test_no_step_climbs_where_the_loss_is_below_its_bound(build: Any) -> None:
    x = at_origin()
    x.grad = torch.ones_like(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        build([x]).step(loss=-1.0)
    assert x.item() == 0


def test_ali_g_adds_its_safeguard() -> None:
    x = at_origin()
    expected = [min(f / (g * g + 0.5), 0.7) for f, g in zip(LOSSES, GRADIENTS, strict=True)]
    assert sizes(ALIG([x], 0.7, delta=0.5), x) == pytest.approx(expected)


def test_ada_grad_norm_divides_by_the_root_of_all_squares_and_needs_no_loss() -> None:
    x, total, expected = at_origin(), 0.1**2, []
    for g in GRADIENTS:
        total += g * g
        expected.append(1 / math.sqrt(total))
    assert sizes(AdaGradNorm([x]), x) == pytest.approx(expected, rel=1e-6)
    before = x.item()
    AdaGradNorm([x]).step()
    assert x.item() != before


def test_the_oracle_uses_the_loss_at_the_solution() -> None:
    x = at_origin()
    expected = [max(f - 0.3, 0) / g**2 for f, g in zip(LOSSES, GRADIENTS, strict=True)]
    assert sizes(SPSPlus([x]), x, optimal_loss=0.3) == pytest.approx(expected)


def test_the_oracle_with_momentum_is_the_safeguarded_form_told_the_loss_at_the_solution() -> None:
    ours, reference = at_origin(), at_origin()
    oracle, safe = IMASPS([ours], 9.0), IMASPSSafe([reference], 9.0, M=1e-12)
    for step, (loss, gradient) in enumerate(zip(LOSSES * 5, GRADIENTS * 5, strict=True)):
        for parameter in (ours, reference):
            parameter.grad = torch.tensor([gradient * (-1) ** (step // 3)], dtype=torch.float64)
        oracle.step(loss=loss, optimal_loss=0.001 * loss)
        safe.param_groups[0]["ell_star"] = 0.001 * loss
        safe.step(loss=loss)
    assert ours.item() == pytest.approx(reference.item(), rel=1e-12)
    assert ours.item() != 0


@pytest.mark.parametrize("kind", [SPSPlus, IMASPS])
def test_an_oracle_must_be_told(kind: Any) -> None:
    x = at_origin()
    x.grad = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="optimal_loss must be given"):
        kind([x]).step(loss=1.0)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda p: SPS(p, 0.0), "c"),
        (lambda p: SPS(p, ell_star=math.inf), "ell_star"),
        (lambda p: SPSMax(p, 0.0), "gamma_b"),
        (lambda p: SPSMax(p, c=-1.0), "c"),
        (lambda p: SPSMax(p, growth=-1.0), "growth"),
        (lambda p: DecSPS(p, 0.0), "c"),
        (lambda p: DecSPS(p, gamma_b=0.0), "gamma_b"),
        (lambda p: ALIG(p, 0.0), "max_step"),
        (lambda p: ALIG(p, delta=0.0), "delta"),
        (lambda p: AdaGradNorm(p, initial=0.0), "initial"),
        (lambda p: AdaGradNorm(p, lr=-1.0), "lr"),
        (lambda p: SPSPlus(p, weight_decay=-1.0), "weight_decay"),
        (lambda p: IMASPS(p, -1.0), "lambd"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(build: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a finite number"):
        build([at_origin()])


def test_a_gradient_of_zero_moves_nothing() -> None:
    for build in (SPS, SPSMax, DecSPS, ALIG, AdaGradNorm):
        x = nn.Parameter(torch.ones(2))
        x.grad = torch.zeros(2)
        build([x]).step(loss=1.0)
        assert torch.equal(x.detach(), torch.ones(2))


def test_a_loss_that_is_not_finite_leaves_their_memory_alone() -> None:
    for build in (
        lambda p: SPSMax(p, growth=0.1),
        DecSPS,
        AdaGradNorm,
    ):
        x = at_origin()
        optimizer: Any = build([x])
        x.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step(loss=1.0)
        before = {k: v for k, v in optimizer.param_groups[0].items() if isinstance(v, Tensor)}
        x.grad = torch.full((1,), math.nan, dtype=torch.float64)
        with pytest.warns(RuntimeWarning, match="skipped"):
            optimizer.step(loss=1.0)
        assert all(torch.equal(value, optimizer.param_groups[0][key]) for key, value in before.items())


def test_the_safeguarded_step_lies_between_the_classic_one_and_its_additive_relative() -> None:
    """With the same constant, max(‖g‖², M) ≤ ‖g‖² + M ≤ 2 max(‖g‖², M)."""
    x, y = at_origin(), at_origin()
    floor = sizes(SPSSafe([x], M=0.5), x)
    added = sizes(ALIG([y], 1e9, delta=0.5), y)
    assert all(a <= f <= 2 * a for f, a in zip(floor, added, strict=True))
