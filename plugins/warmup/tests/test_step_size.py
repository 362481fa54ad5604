"""The step size and the theory: counts that are known exactly, inequalities at every iterate, two bounds."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from leyden_warmup import H0H1StepSize, h0h1_bound, h0h1_step_size, pl_bound
from leyden_warmup.problems import (
    Descent,
    Problem,
    cosh,
    deep_linear,
    descend,
    exponentials,
    logistic,
    signed_digits,
    starts,
)

DISTANCES = (2, 5, 8, 12)
EXACT = exponentials()
POINTS = dict(zip(DISTANCES, starts(EXACT, DISTANCES), strict=True))
PAPER_COUNTS = {2: 330, 5: 571, 8: 915, 12: 1560}
SHORT_COUNTS = {2: 29, 5: 43, 8: 61, 12: 94}


def rule(problem: Problem, a0: float, a1: float) -> Any:
    """The step size in plain numbers, which a hundred thousand steps need."""
    return lambda loss: 1 / (a0 * problem.H0 + a1 * problem.H1 * max(loss - problem.f_star, 0))


@cache
def descent(distance: int, a0: float, a1: float, fixed: bool = False) -> Descent:
    step_size = rule(EXACT, a0, a1)
    if fixed:
        first = step_size(EXACT.evaluate(POINTS[distance])[0])
        step_size = lambda loss: first  # noqa: E731
    return descend(EXACT, POINTS[distance], step_size, gap=1e-6)


def gap(distance: int) -> float:
    return EXACT.evaluate(POINTS[distance])[0] - EXACT.f_star


@pytest.mark.parametrize("loss", [0.0, 0.3, 17.0])
def test_the_step_is_the_formula(loss: float) -> None:
    H0, H1, f_star = 2.3, 1.8, 0.1
    expected = 1 / (10 * H0 + 20 * H1 * max(loss - f_star, 0))
    assert abs(H0H1StepSize(H0, H1, f_star)(loss) - expected) <= 1e-15
    tensor = h0h1_step_size(torch.tensor([loss], dtype=torch.float64), H0=H0, H1=H1, f_star=f_star)
    assert abs(float(tensor) - expected) <= 1e-15
    assert torch.equal(H0H1StepSize(H0, H1, f_star)(torch.tensor([loss], dtype=torch.float64)), tensor)
    assert H0H1StepSize(H0, H1, f_star, theta=0.5)(loss) == pytest.approx(expected / 2, rel=1e-15)


@pytest.mark.parametrize(("start", "paper", "short"), [(2.0, 85, 4), (6.0, 162, 8), (10.0, 242, 12)])
def test_the_hyperbolic_cosine_takes_as_many_steps_as_known(start: float, paper: int, short: int) -> None:
    problem = cosh()
    for (a0, a1), count in (((10.0, 20.0), paper), ((1.0, 1.0), short)):
        run = descend(problem, np.array([start]), H0H1StepSize(1.0, 1.0, a0=a0, a1=a1), gap=1e-6)
        assert run.steps == count


def test_half_a_square_takes_77_steps() -> None:
    square = Problem(lambda w: (float(w @ w) / 2, w), 0.0, 1.0, 1.0, 1.0, np.zeros(1))
    assert descend(square, np.array([math.sqrt(2)]), H0H1StepSize(1.0, 1.0), gap=1e-6).steps == 77


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize(("a0", "a1", "least"), [(10.0, 20.0, 0.94), (1.0, 1.0, 0.5)])
def test_the_facts_hold_at_every_iterate(distance: int, a0: float, a1: float, least: float) -> None:
    run = descent(distance, a0, a1)
    assert run.gradient_slack >= -1e-9
    assert run.decrease >= least - 1e-9
    assert max(np.diff(run.losses)) <= 1e-9


def test_the_cosine_satisfies_the_first_fact_with_equality() -> None:
    problem = cosh()
    loss, gradient = problem.evaluate(np.array([3.0]))
    assert float(gradient @ gradient) == pytest.approx(2 * loss + loss**2, rel=1e-12)


@pytest.mark.parametrize("distance", DISTANCES)
def test_the_exponentials_take_as_many_steps_as_known(distance: int) -> None:
    assert abs(descent(distance, 10.0, 20.0).steps - PAPER_COUNTS[distance]) <= 1
    assert abs(descent(distance, 1.0, 1.0).steps - SHORT_COUNTS[distance]) <= 1


@pytest.mark.parametrize(("distance", "ratio"), [(2, 2.4), (12, 18.0)])
def test_a_fixed_step_that_is_safe_at_the_start_takes_longer(distance: int, ratio: float) -> None:
    fixed = descent(distance, 10.0, 20.0, fixed=True).steps
    assert fixed >= ratio * descent(distance, 10.0, 20.0).steps


@pytest.mark.parametrize("distance", DISTANCES)
def test_every_count_is_below_both_bounds(distance: int) -> None:
    constants = EXACT.H0, EXACT.H1
    for a0, a1 in ((10.0, 20.0), (1.0, 1.0)):
        steps = descent(distance, a0, a1).steps
        assert steps <= pl_bound(*constants, EXACT.mu, gap(distance), 1e-6)
        assert steps <= h0h1_bound(*constants, distance, 1e-6)


def test_the_pl_bound_is_nowhere_negative_and_reaches_its_limits() -> None:
    assert pl_bound(1.0, 1.0, 0.5, 1e-3, 1.0) == 0  # the displayed formula of the paper is negative here
    assert pl_bound(0.0, 1.0, 0.5, 3.0, 1e-6) == 40 * 3 / 0.5
    assert pl_bound(1.0, 0.0, 0.5, 3.0, 1.0) == math.ceil(40 * math.log(3))
    assert pl_bound(1.0, 1.0, 1.0, 2.5, 0.1) == 80 + math.ceil(20 * math.log(5))


@pytest.mark.slow
def test_logistic_regression_on_digits_converges_like_no_fixed_step_does() -> None:
    problem = logistic()
    assert pytest.approx(24.0977, abs=1e-4) == problem.H1
    adaptive = descend(
        problem, np.zeros(65), lambda loss: 1 / (problem.H1 * loss) if loss else 1e6, most=5000
    )
    fixed = descend(problem, np.zeros(65), lambda loss: 4 / problem.H1, most=5000)
    paper = descend(problem, np.zeros(65), rule(problem, 10.0, 20.0), most=5000)
    assert adaptive.losses[5000] <= 1e-20
    assert fixed.losses[5000] >= 1e-3
    assert [fixed.losses[step] for step in (100, 1000, 5000)] == pytest.approx(
        [0.0555, 0.00891, 0.00227], rel=2e-3
    )
    assert [paper.losses[step] for step in (100, 1000, 5000)] == pytest.approx(
        [0.571, 0.0794, 7.4e-4], rel=6e-3
    )
    assert adaptive.losses[100] == pytest.approx(0.0163, rel=4e-3)
    for run in (adaptive, fixed, paper):
        assert max(np.diff(run.losses)) <= 0


@pytest.mark.slow
def test_from_a_bad_start_the_short_step_is_thirty_times_faster_than_the_fixed_one() -> None:
    problem, centre = logistic(), signed_digits().mean(axis=0)
    start = -3 * centre / np.linalg.norm(centre)
    assert problem.evaluate(start)[0] == pytest.approx(3.98, abs=5e-3)
    short = descend(problem, start, rule(problem, 1.0, 1.0), gap=1e-3)
    fixed = descend(problem, start, lambda loss: 4 / problem.H1, gap=1e-3)
    assert (short.steps, fixed.steps) == (374, 12418)
    assert short.steps <= 500
    assert fixed.steps >= 10_000
    assert max(np.diff(short.losses)) <= 0


def test_the_sharpness_of_the_deep_linear_network_is_that_of_its_hessian() -> None:
    from leyden_warmup.problems import _sharpness

    generator = np.random.default_rng(3)
    first, second, target = (generator.normal(size=(4, 4)) for _ in range(3))
    tensors = torch.tensor(np.concatenate([first.ravel(), second.ravel()]))

    def loss(flat: torch.Tensor) -> torch.Tensor:
        one, two = flat[:16].reshape(4, 4), flat[16:].reshape(4, 4)
        return ((two @ one - torch.tensor(target)) ** 2).sum() / 2

    hessian = torch.autograd.functional.hessian(loss, tensors)
    expected = float(torch.linalg.eigvalsh(hessian)[-1])
    assert _sharpness(first, second, second @ first - target) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("scale", "sign"), [(0.3, -1), (1.0, 1), (2.0, 1), (3.0, 1)])
def test_in_a_deep_linear_network_curvature_follows_the_loss_from_a_large_start_alone(
    scale: float, sign: int
) -> None:
    losses, sharpness = deep_linear(scale)
    assert sign * np.corrcoef(losses, sharpness)[0, 1] >= 0.9


def test_where_the_step_is_not_defined_it_is_the_largest_allowed() -> None:
    assert H0H1StepSize(0.0, 1.0)(0.0) == 1e6
    assert H0H1StepSize(0.0, 1.0, max_step=3.0)(-1.0) == 3.0
    assert H0H1StepSize(0.0, 1.0)(1.0) == 0.05


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a0", 0.0),
        ("a0", -1.0),
        ("a1", -1.0),
        ("a1", math.nan),
        ("a1", "20"),
        ("H0", -1.0),
        ("H0", "1"),
        ("H0", None),
        ("H0", math.inf),
        ("H1", -1.0),
        ("f_star", math.nan),
        ("theta", 0.0),
        ("theta", 1.5),
        ("max_step", 0.0),
    ],
)
def test_a_wrong_constant_is_named(name: str, value: Any) -> None:
    constants = {"H0": 1.0, "H1": 1.0, name: value}
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got {value!r}"):
        H0H1StepSize(**constants)
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got {value!r}"):
        h0h1_step_size(torch.ones(1), **constants)


def test_two_constants_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^H0 and H1: expected one of them above 0"):
        H0H1StepSize(0.0, 0.0)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (h0h1_bound, {"D": -1.0}, "D"),
        (h0h1_bound, {"eps": 0.0}, "eps"),
        (pl_bound, {"mu": 0.0}, "mu"),
        (pl_bound, {"gap": -1.0}, "gap"),
        (pl_bound, {"eps": -1.0}, "eps"),
    ],
)
def test_a_wrong_argument_of_a_bound_is_named(function: Any, arguments: dict[str, float], name: str) -> None:
    whole = {"D": 1.0} if function is h0h1_bound else {"mu": 1.0, "gap": 1.0}
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        function(1.0, 1.0, **{"eps": 1.0, **whole, **arguments})
