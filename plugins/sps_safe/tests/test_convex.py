"""The paper's guarantees on a convex problem whose solution linear programming gives."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from leyden_sps_safe import IMASPS, IMASPSSafe, SPSMax, SPSPlus, SPSSafe
from leyden_sps_safe.bounds import descent_slack, momentum_descent_slack, suboptimality_bound
from leyden_sps_safe.convex import Path, descend, hinge_problem

SEEDS = range(5)
LARGEST = 79.812


@cache
def path(flipped: float, kind: str, *arguments: Any, seed: int = 0, M: float | None = None) -> Path:
    methods: dict[str, Any] = {"SPSSafe": SPSSafe, "IMASPSSafe": IMASPSSafe, "SPSPlus": SPSPlus}
    keywords = {} if M is None else {"M": M}
    return descend(
        hinge_problem(flipped), lambda params: methods[kind](params, *arguments, **keywords), seed=seed
    )


def mean_gaps(flipped: float, M: float) -> tuple[float, float]:
    paths = [path(flipped, "SPSSafe", M=M, seed=seed) for seed in SEEDS]
    return float(np.mean([p.average for p in paths])), float(np.mean([p.last for p in paths]))


def test_the_problem_is_the_one_that_the_figures_are_about() -> None:
    problem = hinge_problem()
    assert problem.optimal_value == pytest.approx(0.490959, abs=1e-6)
    assert problem.squared_gradient_bound == pytest.approx(79.812, abs=1e-3)
    assert problem.deviation**2 == pytest.approx(1.072, abs=1e-3)
    assert problem.distance == pytest.approx(1.976, abs=1e-3)
    assert problem.gap(problem.solution) == pytest.approx(0, abs=1e-12)


def test_the_separable_problem_has_the_hard_margin_solution() -> None:
    problem = hinge_problem(0.0)
    assert problem.distance == pytest.approx(7.479, abs=1e-3)
    assert problem.optimal_losses.max() < 1e-12
    assert (problem.rows @ problem.solution).min() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("flipped", [-0.1, 1.0])
def test_a_fraction_out_of_range_is_refused(flipped: float) -> None:
    with pytest.raises(ValueError, match="flipped must be at least 0 and below 1"):
        hinge_problem(flipped)


@pytest.mark.parametrize("M", [0.1, LARGEST, 1277.0])
@pytest.mark.parametrize(("kind", "arguments"), [("SPSSafe", ()), ("IMASPSSafe", (9.0,))])
def test_the_descent_inequality_holds_at_every_step(kind: str, arguments: tuple[Any, ...], M: float) -> None:
    assert path(0.15, kind, *arguments, M=M).least_slack >= -1e-10


def test_the_descent_inequality_holds_at_every_step_with_increasing_averaging() -> None:
    assert path(0.15, "IMASPSSafe", "t", M=1.0).least_slack >= -1e-10


def test_the_inequality_would_notice_a_step_that_is_too_long() -> None:
    long = descend(hinge_problem(), lambda params: SPSSafe(params, M=1.0, lr=2.5), steps=500)
    assert long.least_slack < -1e-3
    averaged = descend(hinge_problem(), lambda params: IMASPSSafe(params, 9.0, M=1.0, lr=2.5), steps=500)
    assert averaged.least_slack < -1e-3


def test_gaps_stay_below_the_bound_for_every_safeguard() -> None:
    problem = hinge_problem()
    for M in (0.1, 1.0, 50.0, LARGEST, 4 * LARGEST, 1277.0, 64 * LARGEST):
        bound = suboptimality_bound(
            distance=problem.distance,
            deviation=problem.deviation,
            steps=5000,
            safeguard=M,
            squared_gradient_bound=problem.squared_gradient_bound,
        )
        assert 0 <= path(0.15, "SPSSafe", M=M).average <= bound


def test_increasing_averaging_bounds_the_last_iterate_and_constant_averaging_the_average() -> None:
    problem = hinge_problem()
    known = {
        "distance": problem.distance,
        "deviation": problem.deviation,
        "steps": 5000,
        "squared_gradient_bound": problem.squared_gradient_bound,
    }
    assert path(0.15, "IMASPSSafe", "t", M=1.0).last <= suboptimality_bound(**known, safeguard=1.0)
    constant = suboptimality_bound(
        **known, safeguard=LARGEST, averaging=9.0, initial_gap=1 - problem.optimal_value
    )
    assert path(0.15, "IMASPSSafe", 9.0, M=LARGEST).average <= constant


def test_gap_of_the_average_is_the_measured_one() -> None:
    average, _ = mean_gaps(0.15, 0.1)
    assert average == pytest.approx(0.053, abs=0.01)


def test_safeguards_below_every_squared_norm_give_one_path() -> None:
    tiny, small = (
        descend(hinge_problem(), lambda params, M=M: SPSSafe(params, M=M), steps=300) for M in (1e-9, 25.0)
    )
    assert hinge_problem().smallest_squared_norm > 25
    assert tiny.iterates == small.iterates


def test_the_last_iterate_is_nearer_with_a_larger_safeguard() -> None:
    _, small = mean_gaps(0.15, 0.1)
    _, large = mean_gaps(0.15, 4 * LARGEST)
    assert large <= 0.75 * small


def test_an_interpolated_problem_is_solved_within_the_bound_without_noise() -> None:
    problem = hinge_problem(0.0)
    average, _ = mean_gaps(0.0, 1.0)
    bound = suboptimality_bound(
        distance=problem.distance,
        deviation=0.0,
        steps=5000,
        safeguard=1.0,
        squared_gradient_bound=problem.squared_gradient_bound,
    )
    assert bound == pytest.approx(0.945, abs=1e-3)
    assert average <= 0.15 < bound


def test_the_oracle_solves_it() -> None:
    oracle = path(0.15, "SPSPlus")
    assert oracle.last < 1e-3
    averaged = descend(hinge_problem(), lambda params: IMASPS(params, 9.0), steps=2000)
    assert averaged.last < 0.05


def test_a_bound_on_the_step_changes_the_path() -> None:
    bounded = descend(hinge_problem(), lambda params: SPSMax(params, 0.001), steps=300)
    free = descend(hinge_problem(), lambda params: SPSMax(params, 1e6), steps=300)
    plain = descend(hinge_problem(), lambda params: SPSSafe(params, M=1e-9), steps=300)
    assert free.iterates == pytest.approx(plain.iterates, abs=1e-12)
    assert bounded.iterates != free.iterates


def test_slack_of_a_step_of_known_length() -> None:
    # f(x) = |x| from 2 towards 0 with D = 1: a step of 2 lands on the solution.
    assert descent_slack(4.0, 0.0, loss=2.0, reference_loss=0.0, denominator=1.0) == 0.0
    assert descent_slack(4.0, 1.0, loss=2.0, reference_loss=0.0, denominator=1.0) == -1.0
    assert (
        momentum_descent_slack(4.0, 0.0, loss=2.0, inner_product=0.0, reference_loss=0.0, denominator=1.0)
        == 0.0
    )


def test_slack_counts_the_loss_from_its_lower_bound() -> None:
    shifted = {"loss": 12.0, "reference_loss": 11.0, "denominator": 2.0, "lower_bound": 10.0}
    plain = {"loss": 2.0, "reference_loss": 1.0, "denominator": 2.0}
    assert descent_slack(4.0, 1.0, **shifted) == descent_slack(4.0, 1.0, **plain) == 3.0
    for product in (-5.0, 0.0, 3.0):
        found = momentum_descent_slack(4.0, 1.0, inner_product=product, **shifted)
        assert found == momentum_descent_slack(4.0, 1.0, inner_product=product, **plain)
    assert momentum_descent_slack(4.0, 1.0, inner_product=-5.0, **plain) == 3.5


def test_the_bound_is_the_formula_of_the_theorems() -> None:
    known = {"distance": 2.0, "deviation": 3.0, "steps": 100, "squared_gradient_bound": 16.0}
    assert suboptimality_bound(**known, safeguard=4.0) == pytest.approx(4 * (0.2 + 1.5))
    assert suboptimality_bound(**known, safeguard=25.0) == pytest.approx(5 * (0.2 + 0.6))
    with_averaging = suboptimality_bound(**known, safeguard=4.0, averaging=9.0, initial_gap=0.5)
    assert with_averaging == pytest.approx(4 * (0.2 + 1.5) + 0.045)


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("safeguard", 0.0)])
def test_a_bound_without_steps_or_safeguard_is_refused(name: str, value: float) -> None:
    known = {"distance": 1.0, "deviation": 1.0, "steps": 10, "safeguard": 1.0, "squared_gradient_bound": 1.0}
    with pytest.raises(ValueError, match=f"{name} must be positive, got {value}"):
        suboptimality_bound(**{**known, name: value})
