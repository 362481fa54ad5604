"""The forward and backward pass that plugs into cvxpylayers: an argument of its layer changes, no more."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from cvxpylayers.interfaces.base import SolverInterface
from torch import Tensor

from leyden_ffolayer.cone_program import (
    INNER_TOLERANCE,
    MODES,
    ConeProgram,
    Factored,
    Mode,
    Point,
    Resolver,
    central_difference,
    factorise,
    find_active_set,
    forward_difference,
    optimality,
    polish,
)
from leyden_ffolayer.conic import (
    SOLVERS,
    Array,
    Cones,
    ForwardSolver,
    cones_of,
    scs_order,
    solve_cone_program,
)
from leyden_ffolayer.qp_layer import OnFailure, check_choice, check_count, check_tolerance, told
from leyden_ffolayer.quadratic import Failure
from leyden_ffolayer.report import SolveReport

GHOST_DELTA = 0.01
"""The perturbation of ``mode="ghost_fd"`` where none is given, that of the authors' code."""

_ROUGH, _OPTIMAL = 1e-6, 1e-9
_TOLERANCES = frozenset(
    {"eps", "eps_abs", "eps_rel", "tol", "tol_gap_abs", "tol_gap_rel", "tol_feas", "abstol", "reltol",
     "feastol"}
)  # fmt: skip
"""Names of a tolerance in diffcp's solvers; the smallest that is given counts."""

_IGNORED = frozenset(
    {"mode", "n_jobs_forward", "n_jobs_backward", "acceleration_lookback", "acceleration_interval", "scale",
     "normalize", "adaptive_scale", "rho_x", "alpha", "warm_start", "raise_on_error", "lsqr_args",
     "use_indirect", "time_limit_secs"}
)  # fmt: skip
"""Settings of diffcp and its solvers that have no counterpart here."""


class FFOSolver(SolverInterface):
    """A solver for ``cvxpylayers.torch.CvxpyLayer``, with the gradients of Zhao and others (2025), Section 3.

    ``CvxpyLayer(problem, parameters, variables, solver=FFOSolver())`` is all that changes. Programs of linear
    rows and second-order cones get the closed-form gradient on their active set (Sections 3.4 and 3.6),
    others a central difference of two more solutions. A quadratic form with a parameter as its matrix is
    allowed.

    Args:
        mode: ``"auto"`` chooses as said; ``"active_set"`` insists on the closed form; ``"perturb"`` takes
            central differences for every program; ``"ghost_fd"`` is the paper's one-sided difference with a
            finite ``delta``, whose error is of the order of ``delta``.
        solver: ``"clarabel"``, ``"osqp"`` (linear rows only) or ``"scs"``.
        tol: accuracy that is asked of the solver in the forward pass.
        delta: the perturbation; None: 0.01 for ``"ghost_fd"``, and as `central_difference` says.
        polish: whether a solution is then refined on its active set, where there is a closed form.
        max_threads: samples that are solved at the same time.
        on_failure: whether a sample without solution raises a RuntimeError, or becomes NaN with gradient 0.
        max_iter: iterations that the solver may take; 0 leaves the solver's own limit.

    Raises:
        ValueError: if a setting is out of its range.
    """

    canon_solver = "CLARABEL"
    supports_quad_obj = True

    def __init__(
        self,
        mode: Mode = "auto",
        solver: ForwardSolver = "clarabel",
        tol: float = 1e-9,
        delta: float | None = None,
        polish: bool = True,
        max_threads: int = 1,
        *,
        on_failure: OnFailure = "raise",
        max_iter: int = 0,
    ) -> None:
        check_choice("mode", mode, MODES)
        check_choice("solver", solver, SOLVERS)
        check_choice("on_failure", on_failure, ("raise", "nan"))
        check_tolerance("tol", tol)
        if delta is not None and (isinstance(delta, bool) or not (0 < delta < math.inf)):
            raise ValueError(f"delta: expected a number above 0 or None, got {delta!r}")
        check_count("max_threads", max_threads)
        check_count("max_iter", max_iter, least=0)
        self.mode = mode
        self.solver = solver
        self.tol = tol
        self.delta = delta
        self.polish = polish
        self.max_threads = max_threads
        self.on_failure = on_failure
        self.max_iter = max_iter
        self.report = SolveReport()
        self.name = "FFOSolver"
        self._layout: _Layout | None = None
        self._warned_of_dependent_rows = False

    def setup(self, ctx: Any) -> None:
        """Take the sparsity patterns from cvxpylayers' context; called once by its layer."""
        layout = _Layout.of(ctx)
        if self._layout is not None and self._layout is not layout:
            raise ValueError("solver: expected an FFOSolver of its own for each layer, got one in use")
        if self.mode == "active_set" and not layout.cones.has_closed_form:
            raise ValueError(
                "mode: expected 'auto' or 'perturb' for a problem with semidefinite, exponential or power "
                "cones, got 'active_set'"
            )
        if self.solver == "osqp" and not layout.cones.is_polyhedral:
            raise ValueError(
                "solver: expected 'clarabel' or 'scs' for a problem with cones other than linear rows, "
                "got 'osqp'"
            )
        self._layout = layout

    def solve_torch_batch(
        self, P: Tensor | None, q: Tensor, A: Tensor, dims: Any, solver_args: dict[str, Any], needs_grad: bool
    ) -> tuple[Tensor, Tensor, Any]:
        """Solve a batch, as cvxpylayers calls it.

        Args:
            P: values of the objective's matrix, of shape (batch, entries), or None.
            q: the objective's vector with the constant last, of shape (batch, variables + 1).
            A: values of the constraint matrix with the right-hand side as its last column.
            dims: cvxpy's cone dimensions.
            solver_args: settings for this call.
            needs_grad: whether to keep what the backward pass needs.

        Returns:
            Primal and dual solutions, and the state for the backward pass.

        Raises:
            ValueError: if a number is NaN or infinite, or a setting is unknown.
            RuntimeError: if a sample has no solution and ``on_failure`` is ``"raise"``.
        """
        layout = self._ready()
        tolerance, most, verbose, solver = self._settings(solver_args)
        for name, values in (("objective", P), ("objective", q), ("constraints", A)):
            if values is not None and not bool(torch.isfinite(values).all()):
                raise ValueError(f"{self.name}: expected finite numbers in the {name}, got NaN or infinity")
        with self.report.timed("forward_ms"):
            programs = layout.programs(P, q, A)

            def solve(program: ConeProgram) -> _Sample:
                return self._solve_one(program, solver, tolerance, most, verbose, needs_grad)

            samples = self._each(solve, programs)
            self._take_note(samples, tolerance)
            primal = np.stack([sample.point.z for sample in samples])
            dual = np.stack([sample.point.d for sample in samples])
        kept = samples if needs_grad else None
        made = [torch.from_numpy(value).to(q.device, q.dtype) for value in (primal, dual[:, layout.order])]
        return made[0], made[1], kept

    def derivative_torch_batch(
        self, dprimal: Tensor, ddual: Tensor, state: Any
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """The gradients of the program's data, as cvxpylayers calls it.

        Args:
            dprimal: the loss's gradient with respect to the primal solutions.
            ddual: with respect to the dual solutions.
            state: what `solve_torch_batch` kept.

        Returns:
            The gradients of P's, q's and A's values.
        """
        layout = self._ready()
        samples: list[_Sample] = state
        with self.report.timed("backward_ms"):
            c = dprimal.detach().cpu().double().numpy()
            c_dual = np.empty(ddual.shape)
            c_dual[:, layout.order] = ddual.detach().cpu().double().numpy()

            def derive(place: int) -> tuple[Array, Array]:
                return self._derive(place, samples[place], c[place], c_dual[place])

            pairs = self._each(derive, range(len(samples)))
            u, w = (np.stack(column) for column in zip(*pairs, strict=True))
            bend = (self.delta or GHOST_DELTA) if self.mode == "ghost_fd" else 0.0
            found = layout.gradients(samples, u, w, bend)
        dP, dq, dA = (
            None if value is None else torch.from_numpy(value).to(dprimal.device, dprimal.dtype)
            for value in found
        )
        assert dq is not None
        assert dA is not None
        return dP, dq, dA

    def __getstate__(self) -> dict[str, Any]:
        """The settings and patterns; reports start anew in a copy."""
        return {**vars(self), "report": SolveReport()}

    def _ready(self) -> _Layout:
        if self._layout is None:
            raise RuntimeError("FFOSolver is used by a CvxpyLayer or an FFOLayer, which calls its setup")
        return self._layout

    def _settings(self, given: dict[str, Any]) -> tuple[float, int, bool, ForwardSolver]:
        """The settings of a call; those of diffcp are understood where they have a counterpart."""
        most, verbose, solver = self.max_iter, False, self.solver
        tolerances = []
        for name, value in given.items():
            if name in _TOLERANCES:
                check_tolerance(name, value)
                tolerances.append(float(value))
            elif name in ("max_iters", "max_iter"):
                check_count(name, value)
                most = int(value)
            elif name == "verbose":
                verbose = bool(value)
            elif name in ("solver", "solve_method"):
                choice = str(value).lower()
                solver = "clarabel" if choice == "ecos" else choice  # type: ignore[assignment]
                check_choice(name, solver, SOLVERS)
            elif name not in _IGNORED:
                raise ValueError(
                    f"solver_args: expected eps, max_iters, solve_method, verbose or a setting of diffcp, "
                    f"got {name!r}"
                )
        return min(tolerances, default=self.tol), most, verbose, solver

    def _each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if self.max_threads == 1 or len(items) < 2:
            return [function(item) for item in items]
        with ThreadPoolExecutor(self.max_threads) as pool:
            return list(pool.map(function, items))

    def _solve_one(
        self, program: ConeProgram, solver: ForwardSolver, tolerance: float, most: int, verbose: bool,
        needs_grad: bool,
    ) -> _Sample:  # fmt: skip
        cones = program.cones
        if not cones.has_closed_form and needs_grad and self.mode == "ghost_fd":
            tolerance = min(tolerance, INNER_TOLERANCE)
        found = solve_cone_program(
            sp.triu(program.P, format="csc"), program.q, program.A.tocsc(), program.b, cones, solver=solver,
            tolerance=tolerance, max_iterations=most, verbose=verbose,
        )  # fmt: skip
        point = Point(found.primal, found.slack, found.dual)
        failure = Failure(0, found.status, found.iterations, found.residual)
        sample = _Sample(program, point, solver)
        if found.outcome == "impossible" or not np.isfinite(point.z).all():
            return sample.lost(failure)
        if self.polish and cones.has_closed_form:
            better = polish(program, point)
            if better is not None:
                sample.point, factored = better
                sample.polished = True
                sample.factored = factored if needs_grad else None
        sample.residual = optimality(program, sample.point)
        sample.early = found.outcome != "solved" and not sample.polished
        if found.outcome == "stopped" and not sample.polished and not sample.residual <= _ROUGH:
            return sample.lost(failure._replace(status=f"stopped: {found.status}", residual=sample.residual))
        if cones.is_polyhedral:
            sample.active_rows = int((sample.point.d[cones.zero :] > sample.point.s[cones.zero :]).sum())
        return sample

    def _take_note(self, samples: list[_Sample], tolerance: float) -> None:
        report = self.report
        report.samples = len(samples)
        report.active_rows = [sample.active_rows for sample in samples]
        report.polished = sum(sample.polished for sample in samples)
        failures = [
            sample.failure._replace(sample=place)
            for place, sample in enumerate(samples)
            if sample.failure is not None
        ]
        report.failed_solves += len(failures)
        rough = [one for one in samples if one.failure is None and one.is_rough(tolerance)]
        if rough:
            report.inaccurate_solves += len(rough)
            worst = max(sample.residual for sample in rough)
            warnings.warn(
                f"{self.name}: {len(rough)} of {len(samples)} samples are less accurate than "
                f"tol={tolerance:g}: relative residual up to {worst:.1e}", RuntimeWarning, stacklevel=8,
            )  # fmt: skip
        if failures and self.on_failure == "raise":
            raise RuntimeError(told(self.name, failures, tolerance))

    def _derive(self, place: int, sample: _Sample, c: Array, c_dual: Array) -> tuple[Array, Array]:
        """The derivatives u and w of a sample."""
        program = sample.program
        if sample.failure is not None or not (c.any() or c_dual.any()):
            return np.zeros_like(program.q), np.zeros_like(program.b)
        if self.mode != "perturb" and program.cones.has_closed_form:
            if sample.factored is None:
                active = find_active_set(program, sample.point)
                sample.factored = factorise(program, sample.point, active)
            self.report.backward_systems += 1
            u, w = sample.factored.direction(c, c_dual)
            if sample.factored.dependent:
                self._tell_dependent_rows()
            return u, w
        resolve = Resolver(sample.solver)
        self.report.backward_systems += 2
        try:
            if self.mode == "ghost_fd":
                delta = self.delta or GHOST_DELTA
                return forward_difference(program, sample.point, c, c_dual, resolve=resolve, delta=delta)
            return central_difference(program, c, c_dual, resolve=resolve, delta=self.delta)
        except RuntimeError as error:
            raise RuntimeError(f"{self.name}: gradient of sample {place}: {error}") from None

    def _tell_dependent_rows(self) -> None:
        if not self._warned_of_dependent_rows:
            self._warned_of_dependent_rows = True
            warnings.warn(
                f"{self.name}: active rows depend on each other, so their multipliers are not unique; those "
                "of least norm are taken", RuntimeWarning, stacklevel=2,
            )  # fmt: skip


@dataclass
class _Sample:
    """A solved program of a batch."""

    program: ConeProgram
    point: Point
    solver: ForwardSolver
    polished: bool = False
    factored: Factored | None = None
    early: bool = False
    residual: float = 0.0
    active_rows: int = 0
    failure: Failure | None = None

    def is_rough(self, tolerance: float) -> bool:
        """Whether it is less accurate than was asked for; solvers that stop in time measure differently."""
        allowed = max(10 * tolerance, _OPTIMAL) if self.early else max(_ROUGH, 100 * tolerance)
        return self.residual > allowed

    def lost(self, failure: Failure) -> _Sample:
        """The sample without a solution."""
        program = self.program
        self.failure = failure
        nothing = np.full_like(program.b, np.nan)
        self.point = Point(np.full_like(program.q, np.nan), nothing, nothing.copy())
        return self


@dataclass(frozen=True)
class _Layout:
    """Where cvxpylayers' flat values stand in the matrices of a program."""

    cones: Cones
    variables: int
    rows: int
    P_pattern: tuple[Array, Array] | None
    P_places: tuple[Array, Array]
    A_pattern: tuple[Array, Array]
    A_places: tuple[Array, Array]
    b_rows: Array
    order: Array

    @classmethod
    def of(cls, ctx: Any) -> _Layout:
        known = ctx.reduced_A.problem_data_index
        if known is None:  # a problem without constraints
            rows, columns = 0, ctx.q.shape[0]
            indices, indptr = np.zeros(0, dtype=int), np.zeros(columns + 1, dtype=int)
        else:
            indices, indptr, (rows, columns) = known
        variables = int(columns) - 1
        inner = indptr[variables]
        pattern = ctx.reduced_P.problem_data_index if ctx.reduced_P.reduced_mat is not None else None
        empty = np.zeros(0, dtype=int)
        P_places = (empty, empty)
        if pattern is not None:
            P_places = (pattern[0], np.repeat(np.arange(variables), np.diff(pattern[1])))
        cones = cones_of(ctx.cone_dims)
        return cls(
            cones=cones,
            variables=variables,
            rows=int(rows),
            P_pattern=None if pattern is None else (pattern[0], pattern[1]),
            P_places=P_places,
            A_pattern=(indices[:inner], indptr[: variables + 1]),
            A_places=(indices[:inner], np.repeat(np.arange(variables), np.diff(indptr[: variables + 1]))),
            b_rows=indices[inner:],
            order=scs_order(cones, int(rows)),
        )

    def programs(self, P: Tensor | None, q: Tensor, A: Tensor) -> list[ConeProgram]:
        """The programs of a batch."""
        square = (self.variables, self.variables)
        P_values = None if P is None else P.detach().cpu().double().numpy()
        q_values = q.detach().cpu().double().numpy()[:, :-1]
        A_values = A.detach().cpu().double().numpy()
        inner = len(self.A_pattern[0])
        made = []
        for place, own in enumerate(A_values):
            if P_values is None or self.P_pattern is None:
                objective = sp.csr_matrix(square)
            else:
                objective = sp.csc_matrix((P_values[place], *self.P_pattern), shape=square).tocsr()
            shape = (self.rows, self.variables)
            matrix = sp.csc_matrix((-own[:inner], *self.A_pattern), shape=shape).tocsr()
            right = np.zeros(self.rows)
            right[self.b_rows] = own[inner:]
            made.append(ConeProgram(objective, q_values[place].copy(), matrix, right, self.cones))
        return made

    def gradients(
        self, samples: list[_Sample], u: Array, w: Array, bend: float
    ) -> tuple[Array | None, Array, Array]:
        """The table of Section 3.4 at the entries that exist; A is stored with the opposite sign."""
        z, d = (np.stack([getattr(one.point, name) for one in samples]) for name in ("z", "d"))
        z, d = np.nan_to_num(z), np.nan_to_num(d)
        dq = np.concatenate([u, np.zeros((len(u), 1))], axis=1)
        rows, columns = self.A_places
        matrix = d[:, rows] * u[:, columns] + w[:, rows] * z[:, columns]
        dA = np.concatenate([-matrix, -w[:, self.b_rows]], axis=1)
        if self.P_pattern is None:
            return None, dq, dA
        rows, columns = self.P_places
        dP = 0.5 * (u[:, rows] * z[:, columns] + z[:, rows] * u[:, columns])
        if bend:
            dP += 0.5 * bend * u[:, rows] * u[:, columns]
        return dP, dq, dA
