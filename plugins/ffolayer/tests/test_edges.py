"""Bad input and edge cases: every row of the specification's table, for both layers."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from ffo_programs import quadratic_program
from ffo_references import drawn, relative
from leyden_ffolayer import BoxProgram, FFOLayer, FFOQPLayer, FFOSolver
from torch import Tensor

cp: Any = cvxpy
NAMES = ("Q", "q", "G", "h", "A", "b")
DOUBLE = torch.float64


def box_layer(**settings: Any) -> FFOLayer:
    """``min ½‖y‖² + qᵀy`` with ``low <= y <= high``."""
    y, q, low, high = (kind(2, name=name) for kind, name in (
        (cp.Variable, "y"), (cp.Parameter, "q"), (cp.Parameter, "low"), (cp.Parameter, "high")
    ))  # fmt: skip
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y) + q @ y), [y >= low, y <= high])
    return FFOLayer(problem, [q, low, high], [y], **settings)


def interval(low: list[float], high: list[float]) -> tuple[Tensor, Tensor]:
    eye = torch.eye(1, dtype=DOUBLE)
    h = torch.tensor([[top, -bottom] for bottom, top in zip(low, high, strict=True)], dtype=DOUBLE)
    return torch.cat([eye, -eye]), h


@pytest.mark.parametrize("solver", ["ipm", "clarabel", "osqp"])
def test_an_infeasible_sample_is_named_with_its_status(solver: str) -> None:
    G, h = interval([0.0, 2.0, 0.0], [1.0, 1.0, 1.0])
    layer = FFOQPLayer(solver=solver)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"FFOQPLayer.*sample 1: .*[Ii]nfeasible"):
        layer(torch.eye(1, dtype=DOUBLE), torch.zeros(3, 1, dtype=DOUBLE), G, h)
    with pytest.raises(RuntimeError, match=r"FFOLayer.*sample 0: .*[Ii]nfeasible"):
        box_layer()(torch.zeros(2), torch.ones(2), torch.zeros(2))


def test_an_unbounded_sample_is_named_with_its_status() -> None:
    q = torch.tensor([[1.0], [-1.0]], dtype=DOUBLE)
    G, h = torch.ones(1, 1, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)
    with pytest.raises(RuntimeError, match=r"sample 0: DualInfeasible"):
        FFOQPLayer()(torch.zeros(1, 1, dtype=DOUBLE), q, G, h)


def test_with_nan_on_failure_that_sample_alone_is_nan_and_has_gradient_0() -> None:
    G, h = interval([0.0, 2.0, -1.0], [1.0, 1.0, 1.0])
    q = torch.tensor([[-0.5], [0.0], [0.3]], dtype=DOUBLE, requires_grad=True)
    layer = FFOQPLayer(on_failure="nan")
    y = layer(torch.eye(1, dtype=DOUBLE), q, G, h)
    assert torch.isnan(y).flatten().tolist() == [False, True, False]
    y.nansum().backward()
    assert q.grad is not None
    assert q.grad.flatten().tolist() == pytest.approx([-1, 0, -1])
    assert layer.report.failed_solves == 1
    through = box_layer(on_failure="nan")
    costs = torch.zeros(2, 2, dtype=DOUBLE, requires_grad=True)
    (z,) = through(costs, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), torch.zeros(2))
    assert torch.isnan(z[1]).all()
    assert torch.isfinite(z[0]).all()
    z.nansum().backward()
    assert costs.grad is not None
    assert costs.grad[1].tolist() == [0, 0]
    assert torch.isfinite(costs.grad).all()
    assert through.report.failed_solves == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused_by_name(name: str, value: float) -> None:
    problem = drawn(0, n=4, m=3, p=1)
    problem[name].view(-1)[0] = value
    with pytest.raises(ValueError, match=f"^{name}: expected finite numbers"):
        FFOQPLayer()(*(problem[n] for n in NAMES))


def test_nan_is_refused_by_the_parameters_name() -> None:
    with pytest.raises(ValueError, match=r"^low: expected finite numbers"):
        box_layer()(torch.zeros(2), torch.tensor([0.0, float("nan")]), torch.ones(2))


def test_a_matrix_that_is_not_semidefinite_is_refused() -> None:
    q = torch.zeros(2, dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"^Q: expected a positive semidefinite matrix.*-0\.5"):
        FFOQPLayer()(torch.diag(torch.tensor([1.0, -0.5])), q)
    several = torch.stack([torch.eye(2), torch.diag(torch.tensor([1.0, -0.5]))])
    with pytest.raises(ValueError, match=r"^Q: .* in sample 1$"):
        FFOQPLayer()(several, q)
    rounding = torch.diag(torch.tensor([1.0, -1e-10], dtype=DOUBLE))
    bounds = torch.cat([torch.eye(2), -torch.eye(2)]).double()
    assert torch.isfinite(FFOQPLayer()(rounding, q + 1, bounds, torch.ones(4, dtype=DOUBLE))).all()


def test_a_singular_matrix_is_allowed() -> None:
    """A linear program with a unique vertex: the solution does not move with q, it does with h."""
    Q = torch.zeros(2, 2, dtype=DOUBLE)
    q = torch.tensor([-1.0, -2.0], dtype=DOUBLE, requires_grad=True)
    G = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=DOUBLE)
    h = torch.tensor([1.0, 0.0, 0.0], dtype=DOUBLE, requires_grad=True)
    y = FFOQPLayer()(Q, q, G, h)
    assert y.tolist() == pytest.approx([0, 1], abs=1e-12)
    of_q, of_h = torch.autograd.grad(y[1], [q, h])
    assert of_q.tolist() == pytest.approx([0, 0], abs=1e-12)
    assert of_h.tolist() == pytest.approx([1, 1, 0], abs=1e-12)


def test_a_matrix_of_low_rank_is_allowed_where_constraints_make_the_solution_unique() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(2, 5, generator=generator, dtype=DOUBLE)
    problem = drawn(1, n=5, m=12, p=1)
    problem["Q"] = root.T @ root
    # a box around a feasible point, so that it is bounded
    eye = torch.eye(5, dtype=DOUBLE)
    inside = torch.linalg.lstsq(problem["A"], problem["b"]).solution
    problem["G"] = torch.cat([eye, -eye])
    problem["h"] = torch.cat([inside + 1, 1 - inside])
    leaves = [problem[name].clone().requires_grad_() for name in NAMES[1:]]
    torch.autograd.gradcheck(
        lambda *v: FFOQPLayer()(problem["Q"], *v), leaves, eps=1e-6, atol=1e-5, fast_mode=True
    )


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("Q", (4, 5), r"Q: expected shape \(4, 4\) or \(batch, 4, 4\), got \(4, 5\)"),
        ("G", (3, 5), r"G: expected shape \(3, 4\) or \(batch, 3, 4\), got \(3, 5\)"),
        ("h", (2,), r"h: expected shape \(3,\) or \(batch, 3\), got \(2,\)"),
        ("b", (2,), r"b: expected shape \(1,\) or \(batch, 1\), got \(2,\)"),
        ("q", (2, 2, 4), r"q: expected shape \(n,\) or \(batch, n\), got \(2, 2, 4\)"),
    ],
)
def test_a_wrong_shape_is_told_with_the_expected_one(name: str, shape: tuple[int, ...], text: str) -> None:
    problem = {**drawn(0, n=4, m=3, p=1), name: torch.zeros(shape, dtype=DOUBLE)}
    with pytest.raises(ValueError, match=r"^" + text):
        FFOQPLayer()(*(problem[n] for n in NAMES))


def test_a_wrong_shape_of_a_parameter_is_told_by_its_name() -> None:
    layer = box_layer()
    with pytest.raises(ValueError, match=r"^low: expected shape \(2,\) or \(batch, 2\), got \(3,\)"):
        layer(torch.zeros(2), torch.zeros(3), torch.ones(2))
    with pytest.raises(ValueError, match=r"^high: expected a batch of 3, as q has, got 4"):
        layer(torch.zeros(3, 2), -torch.ones(2), torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"^params: expected 3 tensors, got 2"):
        layer(torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("batched", [False, True])
def test_constraints_without_rows_are_no_constraints(batched: bool) -> None:
    problem = drawn(0, n=4, m=3, p=1, batch=2 if batched else None)
    expected = FFOQPLayer()(problem["Q"], problem["q"])
    none, empty = torch.zeros(0, 4, dtype=DOUBLE), torch.zeros(0, dtype=DOUBLE)
    for given in ((none, empty), (empty, empty), (None, empty), (none[None].expand(2, 0, 4), empty)):
        if given[0] is not None and given[0].dim() == 3 and not batched:
            continue
        assert torch.equal(FFOQPLayer()(problem["Q"], problem["q"], *given, *given), expected)
    with pytest.raises(ValueError, match=r"^h: expected shape \(3,\) or \(batch, 3\), got \(0,\)"):
        FFOQPLayer()(problem["Q"], problem["q"], problem["G"], empty)
    with pytest.raises(ValueError, match=r"^G: expected a tensor beside h"):
        FFOQPLayer()(problem["Q"], problem["q"], empty, problem["h"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, dtype=torch.complex64), "expected real numbers, got torch.complex64"),
        (torch.zeros(2).to_sparse(), "expected a dense tensor, got layout torch.sparse_coo"),
        ([0.0, 0.0], "expected a tensor, got list"),
    ],
)
def test_what_is_no_dense_real_tensor_is_named(value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^q: {text}"):
        FFOQPLayer()(torch.eye(2), value)
    with pytest.raises(ValueError, match=f"^q: {text}"):
        box_layer()(value, -torch.ones(2), torch.ones(2))


def test_whole_numbers_give_a_solution_that_is_not_rounded_to_whole_numbers() -> None:
    whole = torch.tensor([-1, -1])
    assert FFOQPLayer()(2 * torch.eye(2, dtype=torch.int64), whole).tolist() == [0.5, 0.5]
    (z,) = box_layer()(torch.tensor([-1, 3]), torch.tensor([-2, -2]), torch.tensor([2, 2]))
    assert z.dtype == torch.float32
    assert z.tolist() == pytest.approx([1, -2])


@pytest.mark.parametrize("kind", ["double", "elsewhere"])
def test_torchs_defaults_do_not_reach_inside(kind: str) -> None:
    program = BoxProgram(8, least_sum=-1.0)()
    q = torch.linspace(-1, 2, 16).reshape(2, 8)
    dense = drawn(2, n=6, m=5, p=2, batch=2)

    def call() -> list[Tensor]:
        leaf = q.clone().requires_grad_()
        y = FFOQPLayer()(program.Q, leaf, program.G, program.h)
        (z,) = through(leaf[:, :2], -low, low)
        (found,) = torch.autograd.grad(y.square().sum() + z.square().sum(), leaf)
        return [y, z, found, FFOQPLayer(solver="clarabel")(*(dense[name] for name in NAMES))]

    through, low = box_layer(), torch.ones(2)
    expected = call()
    if kind == "double":
        torch.set_default_dtype(DOUBLE)
    else:
        torch.set_default_device("meta")
    try:
        found = call()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_multipliers_of_a_sample_without_solution_are_nan_and_spoil_no_gradient() -> None:
    G, h = interval([0.0, 2.0, -1.0], [1.0, 1.0, 1.0])
    G.requires_grad_()
    layer = FFOQPLayer(on_failure="nan", return_duals=True)
    y, lam, _ = layer(torch.eye(1, dtype=DOUBLE), torch.full((3, 1), 0.5, dtype=DOUBLE), G, h)
    assert torch.isnan(lam).all(dim=1).tolist() == [False, True, False]
    (found,) = torch.autograd.grad(y.nansum() + lam.nansum(), G)
    alone = [0, 2]
    again, multipliers, _ = layer(torch.eye(1, dtype=DOUBLE), torch.full((2, 1), 0.5).double(), G, h[alone])
    (expected,) = torch.autograd.grad(again.sum() + multipliers.sum(), G)
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_a_singular_matrix_in_float32_is_semidefinite_within_its_rounding(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(3, 8, generator=generator)
    G, h = torch.cat([torch.eye(8), -torch.eye(8)]), torch.ones(16)
    q = torch.randn(8, generator=generator, requires_grad=True)
    y = FFOQPLayer()(root.T @ root, q, G, h)
    exact = FFOQPLayer()(root.double().T @ root.double(), q.double(), G, h)
    assert relative(y, exact) < 1e-5
    (found,) = torch.autograd.grad(y.sum(), q)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("PSD", [[1.0, 0.0], [0.0, -0.5]], "a positive semidefinite matrix, got one with eigenvalue -0.5"),
        ("NSD", [[-1.0, 0.0], [0.0, 0.5]], "a negative semidefinite matrix, got one with eigenvalue 0.5"),
        ("nonneg", [[1.0, 0.0], [0.0, -0.5]], "nonnegative numbers, got -0.5"),
        ("pos", [[1.0, 1.0], [1.0, -0.5]], "positive numbers, got -0.5"),
        ("nonpos", [[-1.0, 0.0], [0.0, 0.5]], "nonpositive numbers, got 0.5"),
        ("neg", [[-1.0, -1.0], [-1.0, 0.5]], "negative numbers, got 0.5"),
    ],
)
def test_a_value_that_breaks_its_parameters_attribute_is_told(
    attribute: str, value: list[list[float]], text: str
) -> None:
    y, P = cp.Variable(2), cp.Parameter((2, 2), name="P", **{attribute: True})
    objective = cp.sum_squares(y) + cp.sum(cp.multiply(P, np.ones((2, 2)))) * y[0]
    layer = FFOLayer(cp.Problem(cp.Minimize(objective)), [P], [y])
    wrong = torch.tensor(value)
    with pytest.raises(ValueError, match=f"^P: expected {text}"):
        layer(wrong)
    with pytest.raises(ValueError, match=f"^P: expected {text}"):
        layer(torch.stack([torch.zeros(2, 2), wrong]))
    layer(
        torch.zeros(2, 2)
        if attribute not in ("pos", "neg")
        else wrong.sign() * torch.tensor([[1, 1], [1, -1]])
    )


def test_different_batch_sizes_and_half_given_constraints_are_refused() -> None:
    problem = drawn(0, n=4, m=3, p=1, batch=5)
    with pytest.raises(ValueError, match=r"^h: expected a batch of 5, as q has, got 2"):
        FFOQPLayer()(problem["Q"], problem["q"], problem["G"], problem["h"][:2])
    with pytest.raises(ValueError, match=r"^h: expected a tensor beside G"):
        FFOQPLayer()(problem["Q"], problem["q"], problem["G"])


def test_an_empty_batch_gives_an_empty_output_with_a_working_backward_pass() -> None:
    problem = drawn(0, n=4, m=3, p=1, batch=5)
    q = torch.zeros(0, 4, dtype=DOUBLE, requires_grad=True)
    Q = problem["Q"].requires_grad_()
    y = FFOQPLayer()(Q, q)
    assert y.shape == (0, 4)
    y.sum().backward()
    assert q.grad is None or q.grad.shape == (0, 4)
    costs = torch.zeros(0, 2, requires_grad=True)
    (z,) = box_layer()(costs, -torch.ones(2), torch.ones(2))
    assert z.shape == (0, 2)
    assert z.dtype == torch.float32
    z.sum().backward()
    assert costs.grad is not None
    assert costs.grad.shape == (0, 2)


def test_dependent_rows_in_the_drop_in_warn_once_and_share_their_gradient() -> None:
    y, q, h = cp.Variable(2), cp.Parameter(2), cp.Parameter(2)
    problem = cp.Problem(
        cp.Minimize(0.5 * cp.sum_squares(y) + q @ y), [y[0] <= h[0], 2 * y[0] <= h[1], y[1] <= 5]
    )
    layer = FFOLayer(problem, [q, h], [y])
    leaf = torch.tensor([-1.0, -2.0], dtype=DOUBLE, requires_grad=True)

    def called() -> tuple[Tensor, Tensor]:
        (z,) = layer(torch.zeros(2, dtype=DOUBLE), leaf)
        return z, torch.autograd.grad(z.sum(), leaf)[0]

    with pytest.warns(RuntimeWarning, match="depend on each other") as caught:
        z, found = called()
    assert len(caught) == 1
    assert z.tolist() == pytest.approx([-1, 0])
    assert float(found[0] + 2 * found[1]) == pytest.approx(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        called()


@pytest.mark.parametrize("kind", ["qp", "cvxpy"])
def test_batch_sizes_may_change_from_call_to_call(kind: str) -> None:
    written = quadratic_program()
    problem = drawn(2, n=6, m=5, p=2, batch=5)
    layer: Any = FFOQPLayer() if kind == "qp" else FFOLayer(
        written.problem, written.parameters, written.variables
    )  # fmt: skip

    def call(batch: int) -> Tensor:
        if kind == "qp":
            out: Tensor = layer(*(problem[n] if n in "QGA" else problem[n][:batch] for n in NAMES))
        else:
            q = written.values[1] * torch.linspace(0.5, 1, 5, dtype=DOUBLE)[:batch, None]
            out = layer(written.values[0], q, *written.values[2:])[0]
        return out

    whole = call(5)
    for batch in (3, 1, 5, 2):
        assert relative(call(batch), whole[:batch]) <= 1e-9


def test_dependent_active_rows_warn_once_and_leave_u_unique() -> None:
    G = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], dtype=DOUBLE)
    h = torch.tensor([-1.0, -2.0, 5.0], dtype=DOUBLE)
    q = torch.zeros(2, dtype=DOUBLE, requires_grad=True)
    layer = FFOQPLayer(return_duals=True)
    with pytest.warns(RuntimeWarning, match="depend on each other") as caught:
        y, lam, _ = layer(torch.eye(2, dtype=DOUBLE), q, G, h)
    assert len(caught) == 1
    assert y.tolist() == pytest.approx([-1, 0])
    assert float(lam.detach() @ G[:, 0]) == pytest.approx(1)
    (found,) = torch.autograd.grad(y.sum(), q)
    assert found.tolist() == pytest.approx([0, -1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(torch.eye(2, dtype=DOUBLE), q, G, h)


def test_a_weakly_active_row_gives_one_of_the_one_sided_derivatives() -> None:
    """The unconstrained minimum lies exactly on the constraint."""
    Q, G = torch.eye(1, dtype=DOUBLE), torch.ones(1, 1, dtype=DOUBLE)
    q = torch.tensor([-1.0], dtype=DOUBLE, requires_grad=True)
    h = torch.tensor([1.0], dtype=DOUBLE, requires_grad=True)
    y = FFOQPLayer()(Q, q, G, h)
    of_q, of_h = torch.autograd.grad(y.sum(), [q, h])
    pair = (round(float(of_q), 6), round(float(of_h), 6))
    assert pair in ((-1.0, 0.0), (0.0, 1.0))


def test_a_zero_loss_gradient_solves_nothing() -> None:
    problem = drawn(0, n=4, m=3, p=1)
    leaves = [problem[name].requires_grad_() for name in NAMES]
    y = FFOQPLayer()(*leaves)
    for found, leaf in zip(torch.autograd.grad(0 * y.sum(), leaves), leaves, strict=True):
        assert found.shape == leaf.shape
        assert not found.any()
    layer = box_layer()
    costs = torch.tensor([0.5, -0.5], requires_grad=True)
    (z,) = layer(costs, -torch.ones(2), torch.ones(2))
    (0 * z.sum()).backward()
    assert costs.grad is not None
    assert not costs.grad.any()
    assert layer.report.backward_systems == 0


def test_what_needs_no_gradient_gets_none_and_none_is_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    from leyden_ffolayer import qp_layer

    asked: list[list[str]] = []
    real = qp_layer.gradients

    def spied(solution: Any, along: Any, wanted: Any, shared: Any) -> Any:
        asked.append(list(wanted))
        return real(solution, along, wanted, shared)

    monkeypatch.setattr(qp_layer, "gradients", spied)
    problem = drawn(0, n=4, m=3, p=1)
    problem["q"].requires_grad_()
    FFOQPLayer()(*(problem[name] for name in NAMES)).sum().backward()
    assert asked == [["q"]]
    assert all(problem[name].grad is None for name in "QGhAb")


def test_programs_without_inequalities_or_equalities_work() -> None:
    problem = drawn(4, n=5, m=4, p=2)
    c = torch.arange(5, dtype=DOUBLE)
    for given in (("Q", "q"), ("Q", "q", "G", "h"), ("Q", "q", "A", "b")):
        leaves = {name: problem[name].clone().requires_grad_() for name in given}

        def call(*values: Tensor, names: tuple[str, ...] = given) -> Tensor:
            return c @ FFOQPLayer()(**dict(zip(names, values, strict=True)))

        torch.autograd.gradcheck(call, list(leaves.values()), eps=1e-6, atol=1e-5, fast_mode=True)


def test_there_is_no_second_derivative_and_the_error_says_so() -> None:
    problem = drawn(0, n=4, m=3, p=1)
    q = problem["q"].requires_grad_()
    y = FFOQPLayer()(problem["Q"], q)
    (found,) = torch.autograd.grad((y**2).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        found.sum().backward()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"solver": "gurobi"}, "^solver: expected one of"),
        ({"on_failure": "ignore"}, "^on_failure: expected one of"),
        ({"tol": 0.0}, "^tol: expected a number above 0"),
        ({"max_iter": 0}, "^max_iter: expected a whole number"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FFOQPLayer(**arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mode": "exact"}, "^mode: expected one of"),
        ({"solver": "gurobi"}, "^solver: expected one of"),
        ({"delta": -1.0}, "^delta: expected a number above 0"),
        ({"max_threads": 0}, "^max_threads: expected a whole number"),
    ],
)
def test_wrong_settings_of_the_solver_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FFOSolver(**arguments)


def test_a_setting_that_no_solver_has_is_named() -> None:
    with pytest.raises(ValueError, match=r"^solver_args: .*'epsilon'"):
        box_layer(solver_args={"epsilon": 1e-3})
    with pytest.raises(ValueError, match=r"^solver_args: .*'epsilon'"):
        box_layer()(torch.zeros(2), -torch.ones(2), torch.ones(2), solver_args={"epsilon": 1e-3})


def test_a_geometric_program_names_a_parameter_that_is_not_positive() -> None:
    x, a = cp.Variable(pos=True), cp.Parameter(pos=True, name="a")
    layer = FFOLayer(cp.Problem(cp.Minimize(x + a / x)), [a], [x], gp=True)
    assert float(layer(torch.tensor(4.0))[0]) == pytest.approx(2, abs=1e-4)
    with pytest.raises(ValueError, match=r"^a: expected positive numbers"):
        layer(torch.tensor(-1.0))
