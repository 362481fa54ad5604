"""Numerically hard programs: the answer is right, or the layer says what it could not do."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy
import pytest
import torch
from ffo_references import drawn, kkt_gradients, relative
from leyden_ffolayer import FFOLayer, FFOQPLayer
from leyden_ffolayer.reduced_kkt import apply, factorise
from torch import Tensor

cp: Any = cvxpy
NAMES = ("Q", "q", "G", "h", "A", "b")
DOUBLE = torch.float64


def gradients_of(
    problem: dict[str, Tensor], c: Tensor, **settings: Any
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    leaves = {name: problem[name].clone().requires_grad_() for name in NAMES}
    y, lam, nu = FFOQPLayer(return_duals=True, **settings)(*leaves.values())
    found = torch.autograd.grad((c * y).sum(), list(leaves.values()))
    return y, lam, nu, dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7])
def test_nearly_dependent_active_rows_keep_the_right_gradient(angle: float) -> None:
    """Two active constraints that differ by a tiny angle; the solution is where they cross."""
    Q = torch.eye(3, dtype=DOUBLE)
    G = torch.tensor([[1.0, 0.0, 0.0], [1.0, angle, 0.0]], dtype=DOUBLE)
    h = torch.tensor([-1.0, -1.0 - angle], dtype=DOUBLE)
    q = torch.tensor([-1 / angle, 0.5, 0.3], dtype=DOUBLE)  # multipliers of the order of 1 / angle
    leaves = [v.clone().requires_grad_() for v in (q, h)]
    y = FFOQPLayer()(Q, leaves[0], G, leaves[1])
    assert y.tolist() == pytest.approx([-1, -1, -0.3], abs=1e-6)
    of_q, of_h = torch.autograd.grad(y[1], leaves)
    assert of_q.tolist() == pytest.approx([0, 0, 0], abs=1e-4)
    assert of_h.tolist() == pytest.approx([-1 / angle, 1 / angle], rel=1e-6)


@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7])
def test_nearly_dependent_rows_that_are_no_bounds_keep_the_right_gradient(angle: float) -> None:
    """The same, turned: no row has a single entry, so that none is eliminated."""
    turn = torch.linalg.qr(torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0], [2.0, 0.3, -1.0]]).double()).Q
    G = torch.tensor([[1.0, 0.0, 0.0], [1.0, angle, 0.0]], dtype=DOUBLE) @ turn.T
    h = torch.tensor([-1.0, -1.0 - angle], dtype=DOUBLE, requires_grad=True)
    q = turn @ torch.tensor([-1 / angle, 0.5, 0.3], dtype=DOUBLE)
    y = turn.T @ FFOQPLayer()(torch.eye(3, dtype=DOUBLE), q, G, h)
    assert y.tolist() == pytest.approx([-1, -1, -0.3], abs=1e-6)
    (of_h,) = torch.autograd.grad(y[1], h)
    assert of_h.tolist() == pytest.approx([-1 / angle, 1 / angle], rel=1e-5)


def test_a_refined_solution_meets_both_equations_where_pivots_lie_far_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.linalg.qr(torch.randn(12, 12, generator=generator, dtype=DOUBLE)).Q
    H = vectors @ torch.diag(torch.logspace(-9, 0, 12, dtype=DOUBLE)) @ vectors.T
    rows = torch.randn(1, 4, 12, generator=generator, dtype=DOUBLE)
    kkt = factorise(H, rows, torch.ones(1, 4, dtype=torch.bool))
    assert not kkt.healthy
    first, second = (torch.randn(1, n, generator=generator, dtype=DOUBLE) for n in (12, 4))
    u, w = kkt.solve(first, second)
    size = float(u.abs().max())
    assert float((apply(rows, u) - second).abs().max()) < 1e-14 * size
    exact = torch.zeros(16, 16, dtype=DOUBLE)
    exact[:12, :12], exact[12:, :12], exact[:12, 12:] = H, rows[0], rows[0].T
    solved = torch.linalg.solve(exact, torch.cat([first[0], second[0]]))
    assert relative(torch.cat([u[0], w[0]]), solved) < 1e-9


@pytest.mark.parametrize(
    ("kind", "decades", "n"),
    [("qp", 6, 6), ("qp", 4, 30), ("cvxpy", 4, 6), ("cvxpy", 6, 6), ("cvxpy weighted", 6, 6)],
)
@pytest.mark.parametrize("seed", [*range(6), 19, 25, 29, 32])
def test_targets_and_bounds_of_very_different_sizes_in_one_program(
    kind: str, decades: int, n: int, seed: int
) -> None:
    """``min ½‖y‖² + qᵀy, |y| <= h``, whose solution is a clamp; small ones must not pass unsolved."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (2 * decades * torch.rand(n, generator=generator, dtype=DOUBLE) - decades)
    signs = torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    q = (sizes * signs * (0.5 + 1.5 * torch.rand(n, generator=generator, dtype=DOUBLE))).requires_grad_()
    h = (sizes * (0.5 + 1.5 * torch.rand(n, generator=generator, dtype=DOUBLE))).requires_grad_()
    if kind == "qp":
        eye = torch.eye(n, dtype=DOUBLE)
        y = FFOQPLayer()(eye, q, torch.cat([eye, -eye]), torch.cat([h, h]))
    else:
        x, cost, most = cp.Variable(n), cp.Parameter(n), cp.Parameter(n, nonneg=True)
        objective = 0.5 * cp.sum_squares(x) + cost @ x
        if kind == "cvxpy weighted":  # the same clamp, of squares of a common size
            objective = cp.sum_squares(cp.multiply(1 / sizes.numpy(), x + cost))
        layer = FFOLayer(cp.Problem(cp.Minimize(objective), [x <= most, x >= -most]), [cost, most], [x])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (y,) = layer(q, h)
    exact = torch.minimum(torch.maximum(-q, -h), h)
    assert float(((y - exact) / sizes).detach().abs().max()) < 1e-9
    found, expected = (torch.autograd.grad(v.sum(), [q, h]) for v in (y, exact))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_balls_of_very_different_sizes_in_one_program(seed: int) -> None:
    """``min ½‖x‖² + qᵀx, ‖x_k‖ <= h_k`` with radii from 1e-6 to 1e6: each block is projected on its ball."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (12 * torch.rand(4, generator=generator, dtype=DOUBLE) - 6)
    q = (sizes[:, None] * torch.randn(4, 3, generator=generator, dtype=DOUBLE)).requires_grad_()
    h = (sizes * (0.5 + 1.5 * torch.rand(4, generator=generator, dtype=DOUBLE))).requires_grad_()
    x, cost, most = cp.Variable((4, 3)), cp.Parameter((4, 3)), cp.Parameter(4, nonneg=True)
    objective = 0.5 * cp.sum_squares(x) + cp.sum(cp.multiply(cost, x))
    balls = [cp.norm(x[block]) <= most[block] for block in range(4)]
    layer = FFOLayer(cp.Problem(cp.Minimize(objective), balls), [cost, most], [x])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*less accurate")
        (y,) = layer(q, h)
    exact = -q * (h / q.norm(dim=1)).clamp(max=1)[:, None]
    assert float(((y - exact) / sizes[:, None]).detach().abs().max()) < 1e-9
    found, expected = (torch.autograd.grad(v.sum(), [q, h]) for v in (y, exact))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-8)


def test_an_inaccurate_solution_of_the_small_part_of_a_program_is_told() -> None:
    """Without polish a solver leaves what is far below its tolerance wherever it likes."""
    x, cost, most = cp.Variable(2), cp.Parameter(2), cp.Parameter(2)
    program = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(x) + cost @ x), [x <= most, x >= -most])
    layer = FFOLayer(program, [cost, most], [x], polish=False)
    with pytest.warns(RuntimeWarning, match="1 of 1 samples are less accurate than tol=1e-09"):
        (y,) = layer(*torch.tensor([[-2e-6, 3e5], [1e-6, 2e5]], dtype=DOUBLE))
    assert abs(float(y[0]) - 1e-6) > 1e-7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(*torch.tensor([[-2.0, 3.0], [1.0, 2.0]], dtype=DOUBLE))


@pytest.mark.parametrize("small", [1e-3, 1e-6, 1e-8])
def test_a_variable_of_little_curvature_at_a_constraint_leaves_the_others_right(small: float) -> None:
    """A small curvature beside an ordinary cost is no small unit."""
    Q = torch.tensor([[1.0, small], [small, 2 * small**2]], dtype=DOUBLE)
    q = torch.tensor([-0.5, 0.3], dtype=DOUBLE)
    G = torch.cat([torch.eye(2), -torch.eye(2)]).double()
    G[0, 1], G[3, 0] = -4e-6, -1e-5
    y, lam, _ = FFOQPLayer(return_duals=True)(Q, q, G, torch.ones(4, dtype=DOUBLE))
    assert float((Q @ y + q + G.T @ lam).abs().max()) < 1e-12
    assert float((G @ y).max()) < 1 + 1e-12
    assert float((lam * (1 - G @ y)).abs().max()) < 1e-12


@pytest.mark.parametrize("length", [1e200, 1e-200, 1e-310])
def test_rows_whose_squares_overflow_or_vanish_are_constraints_all_the_same(length: float) -> None:
    q = torch.tensor([-2.0, 0.5], dtype=DOUBLE)
    eye = torch.eye(2, dtype=DOUBLE)
    assert FFOQPLayer()(eye, q, -length * eye, torch.zeros(2, dtype=DOUBLE)).tolist() == [2.0, 0.0]


@pytest.mark.parametrize("factor", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("what", ["objective", "rows", "decision"])
def test_badly_scaled_data_gives_the_scaled_gradient(what: str, factor: float) -> None:
    problem, c = drawn(0, n=8, m=6, p=2), torch.arange(1, 9, dtype=DOUBLE)
    y, lam, _, expected = gradients_of(problem, c)
    scaled = dict(problem)
    if what == "objective":  # the same solution, multipliers times the factor
        scaled["Q"], scaled["q"] = factor * problem["Q"], factor * problem["q"]
    elif what == "rows":
        for name in "GhAb":
            scaled[name] = factor * problem[name]
    else:  # y = z / factor
        scaled["Q"], scaled["q"] = factor**2 * problem["Q"], factor * problem["q"]
        scaled["G"], scaled["A"] = factor * problem["G"], factor * problem["A"]
        c = factor * c
    again, multipliers, _, found = gradients_of(scaled, c)
    unit = {"objective": 1.0, "rows": 1.0, "decision": 1 / factor}[what]
    assert relative(again, unit * y) < 1e-8
    assert (
        relative(multipliers, {"objective": factor, "rows": 1 / factor, "decision": 1.0}[what] * lam) < 1e-7
    )
    assert relative(found["q"], expected["q"] / (factor if what != "rows" else 1.0)) < 1e-7
    assert relative(found["h"], expected["h"] / (factor if what == "rows" else 1.0)) < 1e-7


def test_rows_of_very_different_lengths_in_one_program() -> None:
    problem, c = drawn(1, n=8, m=6, p=2), torch.arange(1, 9, dtype=DOUBLE)
    y, _, _, expected = gradients_of(problem, c)
    factors = torch.logspace(-6, 6, 6, dtype=DOUBLE)
    scaled = {**problem, "G": factors[:, None] * problem["G"], "h": factors * problem["h"]}
    again, _, _, found = gradients_of(scaled, c)
    assert relative(again, y) < 1e-8
    assert relative(found["h"] * factors, expected["h"]) < 1e-7
    assert relative(found["q"], expected["q"]) < 1e-7


def test_variables_of_very_different_sizes_in_one_program() -> None:
    problem, c = drawn(2, n=8, m=6, p=2), torch.arange(1, 9, dtype=DOUBLE)
    y, _, _, expected = gradients_of(problem, c)
    units = torch.logspace(-3, 3, 8, dtype=DOUBLE)
    scaled = {
        "Q": units[:, None] * problem["Q"] * units,
        "q": units * problem["q"],
        "G": problem["G"] * units,
        "h": problem["h"],
        "A": problem["A"] * units,
        "b": problem["b"],
    }
    again, _, _, found = gradients_of(scaled, c * units)
    assert relative(again * units, y) < 1e-6
    assert relative(found["h"], expected["h"]) < 1e-5


@pytest.mark.parametrize("seed", range(8))
def test_units_from_1e_minus_6_to_1e6_in_variables_rows_and_objective_change_nothing(seed: int) -> None:
    problem = drawn(20 + seed, n=7, m=6, p=seed % 2)
    c = torch.arange(1, 8, dtype=DOUBLE)
    y, lam, _, expected = gradients_of(problem, c)
    generator = torch.Generator().manual_seed(seed)

    def drawn_units(count: int) -> Tensor:
        return 10 ** (12 * torch.rand(count, generator=generator, dtype=DOUBLE) - 6)

    units, rows, equal, force = (drawn_units(count) for count in (7, 6, seed % 2, 1))
    scaled = {
        "Q": force * units[:, None] * problem["Q"] * units,
        "q": force * units * problem["q"],
        "G": rows[:, None] * problem["G"] * units,
        "h": rows * problem["h"],
        "A": equal[:, None] * problem["A"] * units,
        "b": equal * problem["b"],
    }
    again, multipliers, _, found = gradients_of(scaled, c * units)
    assert relative(again * units, y) < 1e-8
    assert relative(multipliers * rows / force, lam) < 1e-7
    assert relative(found["q"] * force * units, expected["q"]) < 1e-7
    assert relative(found["h"] * rows, expected["h"]) < 1e-7
    assert relative(found["G"] * rows[:, None] * units, expected["G"]) < 1e-7


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("kind", ["semidefinite", "entropy"])
def test_a_cone_program_of_small_or_large_numbers_has_the_gradient_of_its_twin(
    kind: str, scale: float
) -> None:
    if kind == "semidefinite":  # projecting a multiple is the multiple of projecting
        X, Y = cp.Variable((3, 3), PSD=True), cp.Parameter((3, 3), symmetric=True)
        layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(X - Y))), [Y], [X])
        value = torch.tensor([[1.0, 2.0, 0.3], [2.0, -1.0, 0.7], [0.3, 0.7, 0.2]], dtype=DOUBLE)
        inner, outer, tolerance = scale, scale, 1e-6
    else:  # a multiple of the objective has the same solution
        y, q = cp.Variable(4), cp.Parameter(4)
        objective = scale * cp.sum(cp.entr(y)) - q @ y
        layer = FFOLayer(cp.Problem(cp.Maximize(objective), [cp.sum(y) == 1]), [q], [y])
        value = torch.tensor([0.1, -0.5, 0.7, 0.2], dtype=DOUBLE)
        inner, outer, tolerance = scale, 1.0, 5e-3
    weights = torch.linspace(1, 2, value.numel(), dtype=DOUBLE).reshape(value.shape)
    leaf = (inner * value).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (z,) = layer(leaf)
    (found,) = torch.autograd.grad((weights * z).sum(), leaf)
    if kind == "semidefinite":
        values, vectors = torch.linalg.eigh(value)
        expected = (vectors * values.clamp(min=0)) @ vectors.T
        above, below = values.clamp(min=0), (-values).clamp(min=0)
        most, least = torch.maximum(above[:, None], above), torch.maximum(below[:, None], below)
        slopes = most / (most + least)
        symmetric = 0.5 * (weights + weights.T)
        gradient = vectors @ (slopes * (vectors.T @ symmetric @ vectors)) @ vectors.T
    else:
        expected = torch.softmax(-value, 0)
        gradient = -expected * (weights - expected @ weights) / scale
    assert relative(z, outer * expected) < tolerance
    assert relative(found, gradient) < tolerance


def test_the_drop_in_stands_badly_scaled_parameters() -> None:
    y, q, h = cp.Variable(3), cp.Parameter(3), cp.Parameter(2)
    rows = drawn(3, n=3, m=2, p=1)["G"].numpy()
    layer = FFOLayer(cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y) + q @ y), [rows @ y <= h]), [q, h], [y])
    base = torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE)
    right = torch.tensor([-0.2, -0.1], dtype=DOUBLE)

    def gradient(factor: float) -> Tensor:
        leaf = (factor * base).requires_grad_()
        (z,) = layer(leaf, factor * right)
        (found,) = torch.autograd.grad(z.sum(), leaf)
        return found

    for factor in (1e-6, 1e6):
        assert relative(gradient(factor), gradient(1.0)) < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_a_degenerate_vertex_of_a_linear_program_gives_a_finite_gradient(seed: int) -> None:
    """Four constraints meet in a vertex of three dimensions: q does not move it."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(3, 3, generator=generator, dtype=DOUBLE)
    G = torch.cat([directions, (directions.sum(dim=0) / 3)[None]])
    vertex = torch.randn(3, generator=generator, dtype=DOUBLE)
    h = (G @ vertex).requires_grad_()
    q = (-directions.T @ torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE)).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        y = FFOQPLayer()(torch.zeros(3, 3, dtype=DOUBLE), q, G, h)
        of_q, of_h = torch.autograd.grad(y.sum(), [q, h])
    assert relative(y, vertex) < 1e-7
    assert of_q.abs().max() < 1e-6
    assert torch.isfinite(of_h).all()
    # along a move of all constraints that moves the vertex alone, every choice of multipliers agrees
    shift = torch.randn(3, generator=generator, dtype=DOUBLE)
    assert float(of_h @ (G @ shift)) == pytest.approx(float(shift.sum()), rel=1e-6)


def test_a_degenerate_linear_program_through_the_drop_in() -> None:
    y, q, h = cp.Variable(2), cp.Parameter(2), cp.Parameter(4)
    rows = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [-1.0, -1.0]]).numpy()
    layer = FFOLayer(cp.Problem(cp.Minimize(q @ y), [rows @ y <= h]), [q, h], [y])
    h_value = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=DOUBLE, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        (z,) = layer(torch.tensor([1.0, 2.0], dtype=DOUBLE), h_value)
        (found,) = torch.autograd.grad(z.sum(), h_value)
    assert z.abs().max() < 1e-8
    assert torch.isfinite(found).all()
    move = torch.tensor(rows, dtype=DOUBLE) @ torch.tensor([0.3, -0.7], dtype=DOUBLE)
    assert float(found @ move) == pytest.approx(-0.4, abs=1e-6)


def test_large_multipliers_do_not_hide_small_ones() -> None:
    """Multipliers of 1e6 and 1e-4 on two active rows; the released rule drops the second."""
    Q, G = torch.eye(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)
    q = torch.tensor([-1e6, -1e-4], dtype=DOUBLE)
    h = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    layer = FFOQPLayer(return_duals=True)
    y, lam, _ = layer(Q, q, G, h)
    assert lam.tolist() == pytest.approx([1e6, 1e-4])
    (found,) = torch.autograd.grad(y.sum(), h)
    assert found.tolist() == pytest.approx([1, 1])


def test_weakly_active_rows_among_others_leave_the_rest_right() -> None:
    problem, c = drawn(4, n=6, m=5, p=1), torch.arange(1, 7, dtype=DOUBLE)
    y, lam, nu, _ = gradients_of(problem, c)
    inactive = int(lam.argmin())
    problem["h"][inactive] = problem["G"][inactive] @ y  # now it touches, with multiplier 0
    again, lam, nu, found = gradients_of(problem, c)
    assert relative(again, y) < 1e-9
    without = {**problem, "h": problem["h"].clone()}
    without["h"][inactive] += 1.0
    one_side = kkt_gradients(without, y, lam, nu, c)["q"]
    with_it = dict(problem)
    for mine, given in (("A", "G"), ("b", "h")):
        with_it[mine] = torch.cat([problem[mine], problem[given][inactive : inactive + 1]])
    with_it["h"] = without["h"]
    other_side = kkt_gradients(with_it, y, lam, torch.cat([nu, nu.new_zeros(1)]), c)["q"]
    assert min(relative(found["q"], one_side), relative(found["q"], other_side)) < 1e-6


@pytest.mark.parametrize("solver", ["clarabel", "osqp"])
def test_a_solver_that_stops_early_is_told_with_how_far_it_got(solver: str) -> None:
    problem = drawn(5, n=30, m=40, p=5, batch=2)
    layer = FFOQPLayer(solver=solver, max_iter=2, polish=False)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"sample 0: stopped: .* after \d+ iterations, residual \d\.\de"):
        layer(*(problem[name] for name in NAMES))
    lenient = FFOQPLayer(solver=solver, max_iter=2, polish=False, on_failure="nan")  # type: ignore[arg-type]
    assert torch.isnan(lenient(*(problem[name] for name in NAMES))).all()
    assert lenient.report.failed_solves == 2


def test_a_solver_that_stops_early_in_the_drop_in_is_told() -> None:
    y, q = cp.Variable(20), cp.Parameter(20)
    rows = drawn(6, n=20, m=30, p=1)["G"].numpy()
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y) + q @ y), [rows @ y <= 1, cp.norm(y) <= 1])
    values = torch.arange(20, dtype=DOUBLE)
    with pytest.raises(RuntimeError, match=r"FFOLayer: .*sample 0: stopped: MaxIterations after 2 iter"):
        FFOLayer(problem, [q], [y], polish=False, max_iter=2)(values)
    with pytest.raises(RuntimeError, match="stopped: MaxIterations"):
        FFOLayer(problem, [q], [y], polish=False)(values, solver_args={"max_iters": 2})


def test_a_rough_solution_of_the_drop_in_is_counted_and_told_from_ten_times_the_tolerance_on() -> None:
    y, q = cp.Variable(20), cp.Parameter(20)
    rows = drawn(6, n=20, m=30, p=1)["G"].numpy()
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y) + q @ y), [rows @ y <= 1, cp.norm(y) <= 1])
    exact = FFOLayer(problem, [q], [y])(torch.arange(20, dtype=DOUBLE))[0]
    rough = 0
    for most in range(4, 16):
        layer = FFOLayer(problem, [q], [y], polish=False, max_iter=most, on_failure="nan")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (found,) = layer(torch.arange(20, dtype=DOUBLE))
        told = [one for one in caught if "less accurate than tol=1e-09" in str(one.message)]
        assert len(told) == layer.report.inaccurate_solves
        rough += len(told)
        if not told and torch.isfinite(found).all():
            assert relative(found, exact) < 1e-4
    assert rough > 0


def test_a_rough_solution_is_counted_and_told() -> None:
    problem = drawn(7, n=30, m=40, p=5)
    rough = 0
    for most in range(4, 16):  # from too early to be a solution to as accurate as was asked for
        layer = FFOQPLayer(solver="clarabel", max_iter=most, polish=False, on_failure="nan")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            layer(*(problem[name] for name in NAMES))
        told = [one for one in caught if "less accurate than tol=1e-10" in str(one.message)]
        assert len(told) == layer.report.inaccurate_solves
        rough += len(told)
    assert rough > 0
    assert layer.report.failed_solves == layer.report.inaccurate_solves == 0


def test_a_low_accuracy_is_a_solution_where_it_was_asked_for() -> None:
    problem = drawn(8, n=20, m=15, p=3)
    reference = FFOQPLayer()(*(problem[name] for name in NAMES))
    loose = FFOQPLayer(solver="clarabel", tol=1e-3, polish=False)
    found = loose(*(problem[name] for name in NAMES))
    assert 1e-11 < relative(found, reference) < 1e-2


def test_polish_repairs_a_rough_solver() -> None:
    problem = drawn(8, n=20, m=15, p=3)
    reference = FFOQPLayer()(*(problem[name] for name in NAMES))
    rough = FFOQPLayer(solver="osqp", tol=1e-4)
    assert relative(rough(*(problem[name] for name in NAMES)), reference) < 1e-9
    assert rough.report.polished == 1
