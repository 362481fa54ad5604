"""The paper's algorithm with a finite perturbation, and its rate."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from ffo_references import relative
from leyden_ffolayer import FFOLayer, ghost_hypergradient
from leyden_ffolayer.experiments import smooth_problem
from leyden_ffolayer.ghost import Optimum, solve_smooth
from torch import Tensor

cp: Any = cvxpy
DOUBLE = torch.float64


def slope(deltas: list[float], errors: list[float]) -> float:
    return float(np.polyfit(np.log(deltas), np.log(errors), 1)[0])


@pytest.mark.parametrize("seed", range(3))
def test_acceptance_9_the_error_is_of_the_order_of_delta(seed: int) -> None:
    problem = smooth_problem(seed)
    exact = problem.gradient(None)
    deltas = [1e-1, 1e-2, 1e-3, 1e-4]
    errors = [relative(problem.gradient(delta), exact) for delta in deltas]
    assert slope(deltas, errors) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_its_limit_is_the_gradient_by_finite_differences(seed: int) -> None:
    problem = smooth_problem(seed)
    exact = problem.gradient(None)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        move = torch.randn(problem.x.shape, generator=generator, dtype=DOUBLE)
        ahead, behind = (problem.c @ problem.solved(problem.x + s * 1e-6 * move).y for s in (1, -1))
        assert float(exact @ move) == pytest.approx(float(ahead - behind) / 2e-6, rel=1e-5, abs=1e-8)


def test_a_quadratic_form_has_an_error_linear_in_delta_and_its_costs_have_none() -> None:
    x, P, q = cp.Variable(5), cp.Parameter((5, 5), PSD=True), cp.Parameter(5)
    problem = cp.Problem(cp.Minimize(0.5 * cp.quad_form(x, P) + q @ x), [x >= -0.3])
    generator = torch.Generator().manual_seed(3)
    M = torch.randn(5, 5, generator=generator, dtype=DOUBLE)
    leaves = [M @ M.T + torch.eye(5, dtype=DOUBLE), torch.randn(5, generator=generator, dtype=DOUBLE)]
    leaves = [leaf.requires_grad_() for leaf in leaves]

    def gradients(**settings: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(FFOLayer(problem, [P, q], [x], **settings)(*leaves)[0].sum(), leaves)

    exact = gradients()
    deltas = [1e-1, 1e-2, 1e-3]
    found = [gradients(mode="ghost_fd", delta=delta) for delta in deltas]
    assert max(relative(one[1], exact[1]) for one in found) < 1e-9
    assert slope(deltas, [relative(one[0], exact[0]) for one in found]) == pytest.approx(1.0, abs=0.05)


def test_a_finite_difference_on_an_exponential_cone_nears_the_central_one() -> None:
    x, q = cp.Variable(4), cp.Parameter(4)
    problem = cp.Problem(cp.Maximize(cp.sum(cp.entr(x)) - q @ x), [cp.sum(x) == 1])
    value = torch.tensor([0.1, -0.5, 0.7, 0.2], dtype=DOUBLE, requires_grad=True)

    def gradient(**settings: Any) -> Tensor:
        layer = FFOLayer(problem, [q], [x], **settings)
        return torch.autograd.grad(layer(value)[0] @ torch.arange(4, dtype=DOUBLE), value)[0]

    y = torch.softmax(-value.detach(), 0)
    weights = torch.arange(4, dtype=DOUBLE)
    exact = -y * (weights - y @ weights)  # the solution is a softmax
    assert relative(gradient(), exact) < 1e-3
    errors = [relative(gradient(mode="ghost_fd", delta=delta), exact) for delta in (0.1, 0.01)]
    assert errors[1] < 0.3 * errors[0]
    assert errors[1] < 0.02


def test_the_terms_that_the_released_code_drops_are_half_of_a_constraint_matrixs_gradient() -> None:
    problem = smooth_problem(0)

    def bound(x: Tensor, y: Tensor) -> Tensor:
        return x.reshape(2, 4) @ y - 1

    def objective(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (y - 2).square().sum()

    x = torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=DOUBLE).abs()
    ones, start = torch.ones(2, dtype=DOUBLE), torch.zeros(4, dtype=DOUBLE)
    found = solve_smooth(objective, x, G=x.reshape(2, 4), h=ones, start=start)
    c = problem.c[:4]

    def none(x: Tensor, y: Tensor) -> Tensor:
        return y.new_zeros(0)

    exact = ghost_hypergradient(objective, bound, none, x, found, c)
    frozen = Optimum(found.y, torch.zeros_like(found.lam), found.nu)
    assert float(found.lam.max()) > 0.1
    dropped = ghost_hypergradient(objective, bound, none, x, frozen, c)
    assert relative(dropped, exact) > 0.1


def test_a_delta_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^delta: expected a number above 0"):
        smooth_problem(0).gradient(0.0)
