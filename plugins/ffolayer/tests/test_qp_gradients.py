"""Gradients of quadratic programs against independent answers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from ffo_references import drawn, kkt_gradients, relative
from leyden_ffolayer import FFOQPLayer
from leyden_ffolayer.problems import box_problem, dense_problem
from torch import Tensor

NAMES = ("Q", "q", "G", "h", "A", "b")


def solved(
    problem: dict[str, Tensor], c: Tensor, **settings: object
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    leaves = {name: value.clone().requires_grad_() for name, value in problem.items()}
    layer = FFOQPLayer(return_duals=True, **settings)  # type: ignore[arg-type]
    y, lam, nu = layer(*(leaves[name] for name in NAMES))
    found = torch.autograd.grad((c * y).sum(), list(leaves.values()))
    return y, lam, nu, dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_acceptance_1_all_six_gradients_match_a_dense_kkt_solve(seed: int) -> None:
    problem = drawn(seed)
    c = torch.randn(20, generator=torch.Generator().manual_seed(99 + seed), dtype=torch.float64)
    y, lam, nu, found = solved(problem, c)
    slack = problem["h"] - problem["G"] @ y
    assert float(torch.maximum(lam, slack).detach().min()) > 1e-4  # strictly complementary
    expected = kkt_gradients(problem, y, lam, nu, c)
    for name in NAMES:
        assert relative(found[name], expected[name]) <= 1e-8, name


@pytest.mark.parametrize("solver", ["ipm", "clarabel", "osqp"])
def test_acceptance_1_gradcheck_passes_for_every_argument(solver: str) -> None:
    problem = drawn(3, n=6, m=5, p=2)
    leaves = [problem[name].clone().requires_grad_() for name in NAMES]
    layer = FFOQPLayer(solver=solver, return_duals=True)  # type: ignore[arg-type]
    # entry by entry for one solver, along random directions for the others
    torch.autograd.gradcheck(layer, leaves, eps=1e-6, atol=1e-5, fast_mode=solver != "ipm")


def test_gradcheck_passes_with_a_batch_in_every_argument_or_in_some() -> None:
    parts = [drawn(seed, n=5, m=4, p=1) for seed in range(3)]
    whole = [torch.stack([part[name] for part in parts]).requires_grad_() for name in NAMES]
    layer = FFOQPLayer(return_duals=True)
    torch.autograd.gradcheck(layer, whole, eps=1e-6, atol=1e-5, fast_mode=True)
    mixed = drawn(4, n=5, m=4, p=1, batch=3)
    leaves = [mixed[name].clone().requires_grad_() for name in NAMES]
    torch.autograd.gradcheck(layer, leaves, eps=1e-6, atol=1e-5, fast_mode=True)


def test_acceptance_2_a_samples_gradient_does_not_depend_on_the_batch() -> None:
    problem = drawn(5, n=12, m=10, p=2, batch=33)
    c = torch.randn(33, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    layer = FFOQPLayer()

    def of_first(batch: int) -> list[Tensor]:
        leaves = [problem[name].clone() if name in "QGA" else problem[name][:batch].clone() for name in NAMES]
        for leaf in leaves:
            leaf.requires_grad_()
        y = layer(*leaves)
        first = torch.autograd.grad((c[0] * y[0]).sum(), leaves)
        return [y[0].detach(), *first[1:2], first[0], first[2], first[4], first[3][0], first[5][0]]

    alone = of_first(1)
    for batch in (2, 8, 33):
        for one, other in zip(alone, of_first(batch), strict=True):
            if one.dim() > other.dim():
                one = one[0]
            if other.dim() > one.dim() or other.shape != one.shape:
                other, one = other[0], one[0]
            assert float((one - other).abs().max()) <= 1e-10


def test_acceptance_15_a_duplicated_row_changes_nothing_but_how_its_gradient_is_shared() -> None:
    problem = drawn(6, n=8, m=6, p=1)
    c = torch.randn(8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y, lam, _, single = solved(problem, c)
    active = int(lam.argmax())
    twice = {**problem}
    for name in "Gh":
        twice[name] = torch.cat([problem[name], problem[name][active : active + 1]])
    with pytest.warns(RuntimeWarning, match="depend on each other"):
        again, doubled, _, found = solved(twice, c)
    assert all(bool(torch.isfinite(value).all()) for value in found.values())
    assert relative(again, y) <= 1e-8
    assert relative(found["q"], single["q"]) <= 1e-8
    assert relative(found["h"][active] + found["h"][-1], single["h"][active]) <= 1e-8
    assert relative(doubled[active] + doubled[-1], lam[active]) <= 1e-8
    assert relative(found["G"][active] + found["G"][-1], single["G"][active]) <= 1e-8


def test_dropping_the_multiplier_term_would_lose_half_of_the_matrix_gradient() -> None:
    problem = drawn(7)
    c = torch.ones(20, dtype=torch.float64)
    y, lam, nu, found = solved(problem, c)
    for name, multipliers, vector in (("G", lam, "h"), ("A", nu, "b")):
        u = found["q"]
        rest = found[name] - torch.outer(-found[vector], y)
        assert relative(rest, torch.outer(multipliers, u)) <= 1e-10
        assert relative(torch.outer(-found[vector], y), found[name]) > 0.1


def test_the_gradient_of_the_objectives_matrix_is_symmetric_whatever_part_of_it_is_not() -> None:
    problem = drawn(8)
    skew = torch.randn(20, 20, dtype=torch.float64)
    c = torch.ones(20, dtype=torch.float64)
    y, _, _, found = solved(problem, c)
    moved, _, _, other = solved({**problem, "Q": problem["Q"] + skew - skew.T}, c)
    assert torch.equal(found["Q"], found["Q"].T)
    assert relative(moved, y) <= 1e-12
    assert relative(other["Q"], found["Q"]) <= 1e-10


def test_gradients_through_the_multipliers_match_finite_differences() -> None:
    problem = drawn(9, n=6, m=5, p=2)
    layer = FFOQPLayer(return_duals=True)
    weights = torch.randn(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(*values: Tensor) -> Tensor:
        _, lam, nu = layer(*values)
        return weights @ torch.cat([lam, nu])

    leaves = [problem[name].clone().requires_grad_() for name in NAMES]
    torch.autograd.gradcheck(loss, leaves, eps=1e-6, atol=1e-5, fast_mode=True)


def test_without_constraints_it_is_newtons_step() -> None:
    problem = drawn(10, n=5)
    Q, q = problem["Q"].requires_grad_(), problem["q"].requires_grad_()
    y = FFOQPLayer()(Q, q)
    assert relative(y, -torch.linalg.solve(problem["Q"], problem["q"])) <= 1e-12
    c = torch.ones(5, dtype=torch.float64)
    (found,) = torch.autograd.grad(y.sum(), q)
    assert relative(found, -torch.linalg.solve(problem["Q"].detach(), c)) <= 1e-12


def test_the_three_solvers_and_no_polish_give_the_same_solution() -> None:
    problem = drawn(11, batch=4)
    arguments = [problem[name] for name in NAMES]
    reference = FFOQPLayer()(*arguments)
    for solver in ("clarabel", "osqp"):
        assert relative(FFOQPLayer(solver=solver)(*arguments), reference) <= 1e-9  # type: ignore[arg-type]
    assert relative(FFOQPLayer(polish=False)(*arguments), reference) <= 1e-7


@pytest.mark.parametrize("polish", [False, True])
def test_the_interior_point_method_needs_no_other_solver_and_few_iterations(
    polish: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leyden_ffolayer import quadratic
    from leyden_ffolayer.interior_point import Program

    def refuse(*arguments: object, **settings: object) -> None:
        raise AssertionError("a sample was handed to another solver")

    monkeypatch.setattr(quadratic, "solve_cone_program", refuse)
    taken = []
    for seed in range(4):
        for problem in (dense_problem(20, 30, 2, batch=4, seed=seed), box_problem(30, batch=4, seed=seed)):
            layer = FFOQPLayer(polish=polish, max_iter=25 if polish else 40)
            layer(problem.Q, problem.q, problem.G, problem.h, problem.A, problem.b)
            if problem.A is not None and problem.b is not None:
                h, b = problem.h.expand(4, -1), problem.b.expand(4, -1)
                program = Program(problem.Q, problem.q, problem.G, h, problem.A, b)
                taken.append(advanced(program))
    assert max(taken) <= 20


def advanced(program: Any) -> int:
    """How many iterations the interior-point method takes to an accuracy of 1e-9."""
    from leyden_ffolayer.interior_point import advance, start, structure_of

    structure = structure_of(program)
    state = start(program, structure)
    assert bool(advance(program, structure, state, tolerance=1e-9, most=60).all())
    return int(state.iterations.max())


def test_the_solution_meets_the_optimality_conditions_to_rounding() -> None:
    for seed in range(5):
        problem = dense_problem(30, 40, 3, batch=6, seed=seed)
        layer = FFOQPLayer(return_duals=True)
        assert problem.A is not None
        y, lam, nu = layer(problem.Q, problem.q, problem.G, problem.h, problem.A, problem.b)
        stationarity = y @ problem.Q + problem.q + lam @ problem.G + nu @ problem.A
        slack = problem.h - y @ problem.G.T
        assert float(stationarity.abs().max()) < 1e-11
        assert float(slack.min()) > -1e-11
        assert float((slack * lam).abs().max()) < 1e-11
        assert float(lam.min()) >= 0
        assert layer.report.polished == 6


def test_shapes_follow_qpth_and_a_program_without_any_batch_has_none() -> None:
    problem = drawn(12, n=4, m=3, p=1, batch=5)
    layer = FFOQPLayer()
    assert layer(*(problem[name] for name in NAMES)).shape == (5, 4)
    single = drawn(12, n=4, m=3, p=1)
    assert layer(*(single[name] for name in NAMES)).shape == (4,)
    assert layer(single["Q"][None], *(single[name] for name in NAMES[1:])).shape == (1, 4)
    empty = torch.tensor([])
    assert layer(single["Q"], single["q"], single["G"], single["h"], empty, empty).shape == (4,)


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_a_box_program_has_the_gradients_of_its_dense_twin(curved: bool, batched: bool) -> None:
    """Bounds are eliminated; hiding them behind a rotation of the decisions makes every row dense."""
    problem = box_problem(12, batch=3, seed=1)
    generator = torch.Generator().manual_seed(0)
    M = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    Q = problem.Q + (M @ M.T / 12 if curved else 0)
    h = problem.h.clone()
    h[-1] = -2.0  # so that the sum's limit acts
    G = problem.G.expand(3, -1, -1) if batched else problem.G
    rotation = torch.linalg.qr(M).Q
    outputs, found = [], []
    for turn in (torch.eye(12, dtype=torch.float64), rotation):
        leaves = [
            (turn.T @ Q @ turn).requires_grad_(),
            (problem.q @ turn).requires_grad_(),
            (G @ turn).requires_grad_(),
            h.clone().requires_grad_(),
        ]
        layer = FFOQPLayer(return_duals=True)
        y, lam, _ = layer(*leaves)
        assert layer.report.polished == 3
        outputs.append((y.detach() @ turn.T, lam.detach()))
        loss = (problem.c @ turn * y).sum() + lam.sum()
        gradient = torch.autograd.grad(loss, leaves)
        found.append((turn @ gradient[0] @ turn.T, gradient[1] @ turn.T, gradient[2] @ turn.T, gradient[3]))
    for group in (outputs, found):
        for one, other in zip(*group, strict=True):
            assert relative(one, other) < 1e-9


def test_a_matrix_of_few_entries_is_not_taken_for_a_diagonal_one() -> None:
    """Two coupled variables of four, without curvature elsewhere."""
    Q = torch.zeros(4, 4, dtype=torch.float64)
    Q[:2, :2] = torch.tensor([[2.0, 1.9], [1.9, 2.0]], dtype=torch.float64)
    eye = torch.eye(4, dtype=torch.float64)
    q = torch.tensor([-0.23, -0.16, 1.0, -1.0], dtype=torch.float64, requires_grad=True)
    layer = FFOQPLayer()
    y = layer(Q, q, torch.cat([eye, -eye]), torch.full((8,), 0.7, dtype=torch.float64))
    assert layer.report.polished == 1
    assert y.tolist() == pytest.approx([0.4, -0.3, -0.7, 0.7], abs=1e-9)
    (found,) = torch.autograd.grad(y[0], q)
    assert found.tolist() == pytest.approx([-2 / 0.39, 1.9 / 0.39, 0, 0], abs=1e-8)


def test_bounds_on_both_sides_that_meet_fix_a_variable_twice() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    G = torch.cat([eye, -eye])
    h = torch.tensor([0.5, 1.0, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([1.0, 0.3], dtype=torch.float64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        y = FFOQPLayer()(eye, q, G, h)
        of_q, of_h = torch.autograd.grad(y.sum(), [q, h])
    assert y.tolist() == pytest.approx([0.5, -0.3], abs=1e-7)
    assert of_q.tolist() == pytest.approx([0, -1], abs=1e-6)
    assert float(of_h[0] - of_h[2]) == pytest.approx(1, abs=1e-6)
