"""The programs of cvxpylayers' documentation run with the import changed, and agree with it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from cvxpylayers.torch import CvxpyLayer
from ffo_programs import PROGRAMS, Written, quadratic_program
from ffo_references import relative
from leyden_ffolayer import FFOLayer, FFOSolver
from leyden_ffolayer.cone_program import ConeProgram
from torch import Tensor, nn

cp: Any = cvxpy
DOUBLE = torch.float64
EXACT = {"mode": "dense", "eps": 1e-10}


def layers(written: Written, **settings: Any) -> tuple[FFOLayer, CvxpyLayer]:
    given = (written.problem, written.parameters, written.variables)
    return FFOLayer(*given, gp=written.gp, **settings), CvxpyLayer(*given, gp=written.gp)


def called(layer: Any, values: list[Tensor], **arguments: Any) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Outputs, and the gradients of a fixed combination of them."""
    leaves = [value.clone().requires_grad_() for value in values]
    outputs = layer(*leaves, **arguments)
    terms = [(o * torch.linspace(1, 3, o.numel()).cos().reshape(o.shape)).sum() for o in outputs]
    found = torch.autograd.grad(torch.stack(terms).sum(), leaves)
    return tuple(output.detach() for output in outputs), list(found)


def agree(found: Any, expected: Any, tolerance: float) -> None:
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours.shape == theirs.shape
        if ours.dtype != torch.float32:  # where cvxpylayers answers in float64
            assert ours.dtype == theirs.dtype
        assert relative(ours, theirs) < tolerance
    scale = max(float(value.norm()) for value in expected[1])
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert float((ours - theirs).norm()) < tolerance * max(float(theirs.norm()), 1e-3 * scale)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_agrees_with_cvxpylayers_in_value_and_gradient(name: str) -> None:
    written = PROGRAMS[name]()
    ours, theirs = layers(written)
    agree(called(ours, written.values), called(theirs, written.values, solver_args=EXACT), written.tolerance)


@pytest.mark.parametrize("name", ["quadratic_program", "markowitz", "constrained_lqr", "geometric_program"])
def test_acceptance_7_batched_mixed_float32_and_changing_batches_keep_shapes_types_and_numbers(
    name: str,
) -> None:
    written = PROGRAMS[name]()
    ours, theirs = layers(written)
    for batch, dtype in ((3, DOUBLE), (2, torch.float32), (1, DOUBLE)):
        factors = torch.linspace(0.9, 1.1, batch, dtype=DOUBLE)
        values = [
            (torch.stack([f * value for f in factors]) if place in written.batched else value).to(dtype)
            for place, value in enumerate(written.values)
        ]
        # cvxpylayers solves in the parameters' own precision
        tolerance = written.tolerance if dtype == DOUBLE else max(2e-3, written.tolerance)
        agree(called(ours, values), called(theirs, values, solver_args=EXACT), tolerance)
    whole = [torch.stack([value, 0.95 * value]) for value in written.values]
    agree(called(ours, whole), called(theirs, whole, solver_args=EXACT), written.tolerance)


def test_transport_agrees_with_cvxpylayers_where_marginals_determine_the_gradient() -> None:
    """Both marginals have one sum, so a multiple of (1, -1) is undetermined; here it is of least norm."""
    n = 3
    C, a, b, P = cp.Parameter((n, n)), cp.Parameter(n), cp.Parameter(n), cp.Variable((n, n))
    strength = cp.Parameter(1, nonneg=True)
    cost = cp.trace(P.T @ C) - strength * (cp.sum(cp.entr(P)) + cp.sum(P))
    limits = [P @ np.ones(n) == a, P.T @ np.ones(n) == b, P >= 0]
    third = torch.full((n,), 1 / n, dtype=DOUBLE)
    x = torch.tensor([-1.8, -1.0, 0.7], dtype=DOUBLE)
    values = [(x[:, None] - x.flip(0) / 2).square(), third, third, torch.ones(1, dtype=DOUBLE)]
    written = Written(cp.Problem(cp.Minimize(cost), limits), [C, a, b, strength], [P], values)
    ours, theirs = layers(written)
    found, expected = called(ours, values), called(theirs, values, solver_args=EXACT)
    assert float(found[1][1].sum()) == pytest.approx(float(found[1][2].sum()), abs=1e-9)
    difference = torch.cat([expected[1][1], -expected[1][2]]).mean()
    expected[1][1:3] = [expected[1][1] - difference, expected[1][2] + difference]
    agree(found, expected, 5e-3)


def test_their_relu_network_trains_in_float32() -> None:
    """Its linear layer takes the layer's output, so this must be float32 as its weights are."""

    class Relu(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))
            self.layer, _ = layers(PROGRAMS["relu_network"]())

        def forward(self, features: Tensor) -> Tensor:
            decision: Tensor = self.layer(self.weight, self.bias, features)[0]
            return decision

    torch.manual_seed(0)
    first, last = Relu(), nn.Linear(4, 1)
    features = torch.randn(6, 3)
    found = last(first(features))
    expected = last(torch.relu(features @ first.weight.T + first.bias))
    assert relative(found, expected) < 1e-6
    parameters = [first.weight, first.bias, last.weight]
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        assert relative(one, other) < 1e-5


def test_float32_and_float64_together_give_the_wider_type() -> None:
    written = quadratic_program()
    ours, _ = layers(written)
    values = [value.float() if place % 2 else value for place, value in enumerate(written.values)]
    assert ours(*values)[0].dtype == DOUBLE
    assert ours(*(value.float() for value in written.values))[0].dtype == torch.float32


def test_parameters_that_need_no_gradient_get_none() -> None:
    written = quadratic_program()
    ours, _ = layers(written)
    values = list(written.values)
    values[1] = values[1].clone().requires_grad_()
    ours(*values)[0].sum().backward()
    assert values[1].grad is not None
    assert all(value.grad is None for place, value in enumerate(values) if place != 1)


def cone_problem(kind: str) -> Written:
    n, m = 6, 5
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    x, q, G, h = cp.Variable(n), cp.Parameter(n), cp.Parameter((m, n)), cp.Parameter(m)
    R, b, r = cp.Parameter((3, n)), cp.Parameter(3), cp.Parameter(nonneg=True)
    rows, inside = normal(m, n), 0.1 * normal(n)
    linear = [rows, rows @ inside + 0.3]
    ball = [normal(3, n), 0.1 * normal(3), torch.tensor(0.7, dtype=DOUBLE)]
    if kind == "lp":
        problem = cp.Problem(cp.Minimize(q @ x), [G @ x <= h, x <= 1, x >= -1])
        return Written(problem, [q, G, h], [x], [normal(n), *linear])
    if kind == "norm":
        problem = cp.Problem(cp.Minimize(cp.sum_squares(x) + q @ x), [cp.norm(R @ x + b) <= r, G @ x <= h])
        return Written(problem, [q, R, b, r, G, h], [x], [5 * normal(n), *ball, *linear])
    if kind == "soc":
        problem = cp.Problem(cp.Minimize(q @ x), [cp.SOC(r, R @ x + b), x <= 1, x >= -1])
        return Written(problem, [q, R, b, r], [x], [normal(n), *ball])
    if kind == "psd":
        X, Y = cp.Variable((4, 4), PSD=True), cp.Parameter((4, 4), symmetric=True)
        value = normal(4, 4)
        problem = cp.Problem(cp.Minimize(cp.sum_squares(X - Y)))
        return Written(problem, [Y], [X], [value + value.T], tolerance=1e-6)
    assert kind == "exp"
    problem = cp.Problem(cp.Maximize(cp.sum(cp.entr(x)) - q @ x), [cp.sum(x) == 1])
    return Written(problem, [q], [x], [normal(n)], tolerance=5e-3)


@pytest.mark.parametrize("kind", ["lp", "norm", "soc", "psd", "exp"])
def test_acceptance_3_every_cone_agrees_with_cvxpylayers(kind: str) -> None:
    written = cone_problem(kind)
    ours, theirs = layers(written)
    found = called(ours, written.values)
    expected = called(theirs, written.values, solver_args=EXACT)
    if kind == "psd":  # there the whole gradient of a pair stands in the upper triangle
        assert not torch.allclose(expected[1][0], expected[1][0].T)
        expected[1][0] = 0.5 * (expected[1][0] + expected[1][0].T)
        assert torch.equal(found[1][0], found[1][0].T)
    agree(found, expected, written.tolerance)


@pytest.mark.parametrize("kind", ["qp", "norm", "soc", "psd"])
def test_dual_variables_and_their_gradients_agree_with_cvxpylayers(kind: str) -> None:
    if kind == "psd":
        X, Y = cp.Variable((3, 3), symmetric=True), cp.Parameter((3, 3), symmetric=True)
        problem = cp.Problem(cp.Minimize(cp.sum_squares(X - Y)), [X >> 0])
        value = torch.tensor([[1.0, 2.0, 0.3], [2.0, -1.0, 0.7], [0.3, 0.7, 0.2]], dtype=DOUBLE)
        written = Written(problem, [Y], [X], [value])
    else:
        written = quadratic_program() if kind == "qp" else cone_problem(kind)
    written.variables = [*written.variables, *written.problem.constraints[0].dual_variables]
    ours, theirs = layers(written)
    found = called(ours, written.values)
    expected = called(theirs, written.values, solver_args=EXACT)
    if kind == "psd":
        expected[1][0] = 0.5 * (expected[1][0] + expected[1][0].T)
    agree(found, expected, 1e-5)


def test_acceptance_8_a_quadratic_form_may_have_a_parameter_as_its_matrix() -> None:
    n = 5
    generator = torch.Generator().manual_seed(3)
    x, P, q = cp.Variable(n), cp.Parameter((n, n), PSD=True), cp.Parameter(n)
    problem = cp.Problem(cp.Minimize(0.5 * cp.quad_form(x, P) + q @ x), [x >= -0.3])
    with pytest.raises(ValueError, match="DPP"):
        CvxpyLayer(problem, [P, q], [x])
    layer = FFOLayer(problem, [P, q], [x])
    M = torch.randn(n, n, generator=generator, dtype=DOUBLE)
    matrix = (M @ M.T + torch.eye(n, dtype=DOUBLE)).requires_grad_()
    costs = torch.randn(n, generator=generator, dtype=DOUBLE)
    c = torch.randn(n, generator=generator, dtype=DOUBLE)
    (found,) = torch.autograd.grad(c @ layer(matrix, costs)[0], matrix)
    assert torch.equal(found, found.T)
    for _ in range(3):
        move = torch.randn(n, n, generator=generator, dtype=DOUBLE)
        move = move + move.T
        ahead, behind = (c @ layer(matrix.detach() + s * 1e-5 * move, costs)[0] for s in (1, -1))
        assert float((found * move).sum()) == pytest.approx(float(ahead - behind) / 2e-5, rel=1e-6)


def test_acceptance_13_without_gradients_nothing_is_factorised_or_solved_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from leyden_ffolayer import cone_solver, quadratic

    calls: list[str] = []

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def spy(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, spy)

    counted(cone_solver, "factorise")
    counted(cone_solver, "solve_cone_program")
    counted(cone_solver, "central_difference")
    written, exponential = quadratic_program(), cone_problem("exp")
    for program in (written, exponential):
        layer, _ = layers(program, polish=False)
        leaves = [value.clone().requires_grad_() for value in program.values]
        with torch.no_grad():
            layer(*leaves)
        assert calls == ["solve_cone_program"]
        assert layer.report.backward_systems == 0
        layer(*leaves)[0].sum().backward()
        assert calls[1] == "solve_cone_program"
        assert len(calls) == 3  # the control: now there is a factorisation, or two more solutions
        calls.clear()

    from leyden_ffolayer import FFOQPLayer

    counted(quadratic, "factorise")
    counted(quadratic, "solve_cone_program")
    _, q, _, _, G, h = written.values
    Q = torch.eye(10, dtype=DOUBLE)
    layer_of_qps = FFOQPLayer(solver="clarabel", polish=False)
    with torch.no_grad():
        layer_of_qps(Q, q.clone().requires_grad_(), G, h)
    assert calls == ["solve_cone_program"]
    assert layer_of_qps.report.backward_systems == 0
    calls.clear()
    layer_of_qps(Q, q.clone().requires_grad_(), G, h)
    assert calls == ["solve_cone_program", "factorise"]


@pytest.mark.parametrize("kind", ["qp", "norm", "psd"])
def test_the_solver_serves_cvxpylayers_own_layer_too(kind: str) -> None:
    written = quadratic_program() if kind == "qp" else cone_problem(kind)
    given = (written.problem, written.parameters, written.variables)
    plugged = CvxpyLayer(*given, solver=FFOSolver())
    found, expected = called(plugged, written.values), called(FFOLayer(*given), written.values)
    if kind == "psd":
        found[1][0] = 0.5 * (found[1][0] + found[1][0].T)
    agree(found, expected, 1e-12)


def test_a_solver_in_use_is_not_shared() -> None:
    written, solver = quadratic_program(), FFOSolver()
    given = (written.problem, written.parameters, written.variables)
    FFOLayer(*given, solver=solver)
    with pytest.raises(ValueError, match=r"^solver: expected an FFOSolver of its own"):
        FFOLayer(*given, solver=solver)


def test_copies_and_pickles_of_the_layer_work_and_a_checkpoint_of_cvxpylayers_loads() -> None:
    written = quadratic_program()
    ours, theirs = layers(written)
    expected = ours(*written.values)[0]
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(twin(*written.values)[0], expected)
    model, old = nn.ModuleDict({"inner": ours}), nn.ModuleDict({"inner": theirs})
    assert not model.state_dict()
    assert not list(model.buffers())
    assert old.state_dict()
    model.load_state_dict(old.state_dict())


def test_what_diffcp_is_told_is_understood_or_ignored() -> None:
    written = quadratic_program()
    given = (written.problem, written.parameters, written.variables)
    layer = FFOLayer(*given, solver="DIFFCP", solver_args={"mode": "lsqr", "n_jobs_forward": 1, "eps": 1e-6})
    expected = FFOLayer(*given)(*written.values)[0]
    clarabels = {"tol_gap_abs": 1e-8, "tol_gap_rel": 1e-8, "tol_feas": 1e-8, "max_iter": 100}
    for arguments in ({}, {"solve_method": "SCS", "eps": 1e-8}, {"max_iters": 500}, clarabels):
        assert relative(layer(*written.values, solver_args=arguments)[0], expected) < 1e-6
    with pytest.raises(ValueError, match=r"^warm_start"):
        layer(*written.values, warm_start=True)
    with pytest.raises(ValueError, match=r"^solver: expected one of 'clarabel'"):
        FFOLayer(*given, solver="GUROBI")


@pytest.mark.parametrize("solver", ["osqp", "scs"])
def test_other_solvers_give_the_same_solution_and_gradient(solver: str) -> None:
    kinds = ["qp"] if solver == "osqp" else ["qp", "soc", "psd"]
    for kind in kinds:
        written = quadratic_program() if kind == "qp" else cone_problem(kind)
        ours, _ = layers(written, solver=solver, tol=1e-8)
        reference, _ = layers(written)
        agree(called(ours, written.values), called(reference, written.values), 1e-5)


@pytest.mark.parametrize("kind", ["qp", "norm", "soc"])
def test_central_differences_agree_with_the_closed_form(kind: str) -> None:
    written = quadratic_program() if kind == "qp" else cone_problem(kind)
    by_set, _ = layers(written, mode="active_set")
    by_solver, _ = layers(written, mode="perturb")
    agree(called(by_solver, written.values), called(by_set, written.values), 1e-4)
    assert by_solver.report.backward_systems == 2


def test_threads_change_nothing() -> None:
    written = quadratic_program()
    written.values[1] = torch.stack([f * written.values[1] for f in (0.5, 1.0, 1.5, 2.0)])
    one, _ = layers(written)
    two, _ = layers(written, max_threads=2)
    agree(called(two, written.values), called(one, written.values), 1e-13)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "active_set"}, "^mode: expected 'auto' or 'perturb' for a problem with semidefinite"),
        ({"solver": "osqp"}, "^solver: expected 'clarabel' or 'scs'"),
    ],
)
def test_a_setting_that_does_not_fit_the_cones_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        layers(cone_problem("psd"), **settings)


def test_a_ball_whose_tip_is_the_solution_keeps_all_its_rows() -> None:
    """``‖y - a‖ <= t`` with t at 0: y is a, whatever the objective says."""
    y, t, a = cp.Variable(3), cp.Variable(), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(10 * t + cp.sum(y)), [cp.SOC(t, y - a)])
    layer = FFOLayer(problem, [a], [y])
    value = torch.tensor([0.5, -1.0, 2.0], dtype=DOUBLE, requires_grad=True)
    (z,) = layer(value)
    assert relative(z, value) < 1e-8
    (found,) = torch.autograd.grad(z @ torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE), value)
    assert found.tolist() == pytest.approx([1, 2, 3], abs=1e-6)


@pytest.mark.parametrize("written", ["norm", "cone"])
def test_an_inactive_ball_has_no_influence(written: str) -> None:
    y, q, r = cp.Variable(3), cp.Parameter(3), cp.Parameter(nonneg=True)
    ball = cp.norm(y) <= r if written == "norm" else cp.SOC(r, y)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y) + q @ y), [ball])
    layer = FFOLayer(problem, [q, r], [y])
    leaves = [torch.tensor([0.1, 0.2, -0.1], dtype=DOUBLE, requires_grad=True),
              torch.tensor(5.0, dtype=DOUBLE, requires_grad=True)]  # fmt: skip
    of_q, of_r = torch.autograd.grad(layer(*leaves)[0].sum(), leaves)
    assert of_q.tolist() == pytest.approx([-1, -1, -1])
    assert float(of_r) == pytest.approx(0, abs=1e-12)


def test_a_compiled_model_around_the_layer_has_the_same_gradients() -> None:
    written = quadratic_program()
    layer, _ = layers(written)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 10, dtype=DOUBLE)
            self.layer = layer

        def forward(self, features: Tensor) -> Tensor:
            values = written.values
            decision: Tensor = self.layer(values[0], torch.tanh(self.linear(features)), *values[2:])[0]
            return decision.square().sum()

    torch.manual_seed(0)
    model = Model()
    features = torch.randn(3, 4, dtype=DOUBLE)
    model(features).backward()
    expected = model.linear.weight.grad
    model.linear.weight.grad = None
    torch.compile(model, backend="aot_eager")(features).backward()
    assert relative(model.linear.weight.grad, expected) < 1e-10


def test_under_bf16_autocast_the_program_is_solved_in_float64() -> None:
    written = quadratic_program()
    layer, _ = layers(written)
    q = written.values[1].float().requires_grad_()
    expected = layer(written.values[0], q, *written.values[2:])[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(written.values[0], q, *written.values[2:])[0]
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_the_program_of_a_sample_is_what_cvxpy_says() -> None:
    """The layout of cvxpylayers' values, signs included."""
    written = quadratic_program()
    layer, _ = layers(written)
    programs: list[ConeProgram] = []
    layout: Any = layer.ffo._layout
    real = type(layout).programs

    def spied(self: Any, *values: Any) -> list[ConeProgram]:
        programs.extend(real(self, *values))
        return programs

    type(layout).programs = spied
    try:
        (y,) = layer(*written.values)
    finally:
        type(layout).programs = real
    for parameter, value in zip(written.parameters, written.values, strict=True):
        parameter.value = value.numpy()
    data = written.problem.get_problem_data("CLARABEL")[0]
    (program,) = programs
    assert abs(program.A - data["A"]).max() < 1e-12
    assert abs(program.b - data["b"]).max() < 1e-12
    assert abs(program.P - data["P"]).max() < 1e-12 or abs(program.P - data["P"] - data["P"].T).max() < 10
    written.problem.solve(solver="CLARABEL")
    assert relative(y, written.variables[0].value) < 1e-6


@pytest.mark.parametrize("name", ["quadratic_program", "geometric_program"])
def test_every_cvxpy_layer_of_a_model_is_replaced_by_its_twin(name: str) -> None:
    from leyden_ffolayer.swap import replace_cvxpy_layers
    from lightning.pytorch import LightningModule

    written = PROGRAMS[name]()
    ours, theirs = layers(written)

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.others = theirs, nn.ModuleList([nn.Linear(1, 1), layers(written)[1]])

    model = Model()
    with pytest.raises(ValueError, match="expected a model with a cvxpylayers"):
        replace_cvxpy_layers(LightningModule())
    replaced: Any = replace_cvxpy_layers(model, tol=1e-8)
    for twin in (replaced.first, replaced.others[1]):
        assert type(twin) is FFOLayer
        assert twin.ffo.tol == 1e-8
        assert relative(twin(*written.values)[0], ours(*written.values)[0]) < 1e-4
