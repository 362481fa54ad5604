"""A drop-in for ``cvxpylayers.torch.CvxpyLayer``: change the import, keep the program."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import torch
from cvxpylayers.interfaces.base import SolverInterface
from cvxpylayers.torch.cvxpylayer import CvxpyLayer
from torch import Tensor

from leyden_ffolayer.cone_program import Mode
from leyden_ffolayer.cone_solver import FFOSolver
from leyden_ffolayer.conic import SOLVERS
from leyden_ffolayer.qp_layer import OnFailure, common_type
from leyden_ffolayer.report import SolveReport

_PEERS_OWN = ("diffcp", "moreau", "cuclarabel", "mpax", "ecos")
"""Names that cvxpylayers takes as a solver and that stand for nothing of ours."""

_SIGNS = {
    "nonneg": (1, "nonnegative"),
    "pos": (1, "positive"),
    "nonpos": (-1, "nonpositive"),
    "neg": (-1, "negative"),
}


class FFOLayer(CvxpyLayer):
    """A convex program as a layer, with the gradients of Zhao and others (2025), Sections 3.3 to 3.6.

    Constructor and call are those of ``cvxpylayers.torch.CvxpyLayer``; what comes after ``solver_args`` is
    added. Shapes and types of the outputs are the same. It computes in float64 on the CPU and returns the
    type and device of the parameters. Gradients of symmetric and semidefinite parameters are symmetric (there
    the whole gradient of an off-diagonal pair stands in the upper triangle). Unlike its model it can be
    copied, pickled and used under DDP: it has neither parameters nor buffers. What the last calls did is in
    ``report``.

    Args:
        problem: a DPP-compliant cvxpy problem; a quadratic form whose matrix is a parameter is allowed in
            the objective.
        parameters: its parameters, in the order in which ``forward`` takes their values.
        variables: the variables, or dual variables of constraints, whose values ``forward`` returns.
        solver: ``"CLARABEL"``, ``"OSQP"``, ``"SCS"`` in any case, or an `FFOSolver`; None or a name that only
            cvxpylayers knows, such as ``"DIFFCP"``: Clarabel.
        gp: whether it is a geometric program.
        verbose: whether the solver prints what it does.
        canon_backend: cvxpy's canonicalisation backend.
        solver_args: settings of the solver for every call: ``eps``, ``max_iters``, ``solve_method``; what
            else diffcp takes is accepted and has no effect.
        mode: see `FFOSolver`.
        tol: accuracy that is asked of the solver.
        delta: see `FFOSolver`.
        polish: whether a solution is refined on its active set.
        max_threads: samples that are solved at the same time.
        on_failure: whether a sample without solution raises a RuntimeError, or becomes NaN with gradient 0.
        max_iter: iterations that the solver may take; 0 leaves the solver's own limit.

    Raises:
        ValueError: if the problem is not DPP-compliant or a setting is out of its range.
    """

    def __init__(
        self,
        problem: cp.Problem,
        parameters: list[cp.Parameter],
        variables: list[cp.Variable],
        solver: str | SolverInterface | None = None,
        gp: bool = False,
        verbose: bool = False,
        canon_backend: str | None = None,
        solver_args: dict[str, Any] | None = None,
        *,
        mode: Mode = "auto",
        tol: float = 1e-9,
        delta: float | None = None,
        polish: bool = True,
        max_threads: int = 1,
        on_failure: OnFailure = "raise",
        max_iter: int = 0,
    ) -> None:
        if not isinstance(solver, SolverInterface):
            name = "clarabel" if solver is None or str(solver).lower() in _PEERS_OWN else str(solver).lower()
            if name not in SOLVERS:
                raise ValueError(
                    f"solver: expected one of {', '.join(map(repr, SOLVERS))}, an FFOSolver or None, "
                    f"got {solver!r}"
                )
            solver = FFOSolver(
                mode, name, tol, delta, polish, max_threads, on_failure=on_failure, max_iter=max_iter,  # type: ignore[arg-type]
            )  # fmt: skip
            solver.name = "FFOLayer"
        if not isinstance(solver, FFOSolver):
            raise ValueError(f"solver: expected an FFOSolver, got {type(solver).__name__}")
        given = dict(solver_args or {})
        solver._settings(given)
        super().__init__(problem, parameters, variables, solver, gp, verbose, canon_backend)
        self.ffo = solver
        self._given = given | ({"verbose": True} if verbose else {})
        # Sparse buffers can be neither copied nor sent by DDP; the same numbers are kept for SciPy anyway.
        for name in ("P", "q", "A"):
            buffer = self._buffers.pop(name, None)
            self.__dict__[name] = None if buffer is None else _OnDemand(buffer)
        self._names = [parameter.name() for parameter in parameters]
        self._symmetric = [places is not None for places in self.ctx.param_triu_indices]
        self.register_load_state_dict_pre_hook(_without_matrices)  # type: ignore[no-untyped-call]

    @property
    def report(self) -> SolveReport:
        """What the last calls did."""
        return self.ffo.report

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, *params: Tensor, solver_args: dict[str, Any] | None = None, warm_start: bool = False
    ) -> tuple[Tensor, ...]:
        """Solve the program.

        Args:
            *params: a tensor for each parameter, in the order of ``parameters``, of the parameter's shape or
                with a batch dimension in front; both may be mixed.
            solver_args: settings for this call, before those of the constructor.
            warm_start: as in cvxpylayers, where it needs a solver that this is not: only False.

        Returns:
            The values of the variables, with a batch dimension if a parameter has one.

        Raises:
            ValueError: if a shape is wrong or a number is NaN or infinite; the text names the parameter.
            RuntimeError: if a sample has no solution and ``on_failure`` is ``"raise"``; the text has sample,
                status and how far the solver got.
        """
        if warm_start:
            raise ValueError("warm_start: expected False, which is all that this solver knows, got True")
        dtype = common_type(dict(zip(self._names, params, strict=False))) if params else torch.float64
        device = params[0].device if params else None
        self._check(params)
        empty = _empty_batch(params, self.ctx.parameters)
        with torch.autocast("cpu" if device is None else device.type, enabled=False):
            doubles = [
                _symmetrised(param.to("cpu", torch.float64), symmetric)
                for param, symmetric in zip(params, self._symmetric, strict=True)
            ]
            if empty:
                outputs = self._nothing(doubles)
            else:
                outputs = super().forward(*doubles, solver_args={**self._given, **(solver_args or {})})
        return tuple(output.to(device, dtype) for output in outputs)

    def _check(self, params: tuple[Tensor, ...]) -> None:
        if len(params) != len(self._names):
            raise ValueError(f"params: expected {len(self._names)} tensors, got {len(params)}")
        known = self.ctx.gp_log_mask or [False] * len(params)
        for name, expected, param, positive in zip(
            self._names, self.ctx.parameters, params, known, strict=True
        ):
            shape = tuple(expected.shape)
            if tuple(param.shape) != shape and tuple(param.shape[1:]) != shape:
                batched = ", ".join(["batch", *map(str, shape)])
                raise ValueError(f"{name}: expected shape {shape} or ({batched}), got {tuple(param.shape)}")
            if not bool(torch.isfinite(param).all()):
                raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
            if positive and not bool((param > 0).all()):
                raise ValueError(f"{name}: expected positive numbers in a geometric program, got others")
            check_attributes(name, expected, param)
        sizes = {
            name: len(param)
            for name, expected, param in zip(self._names, self.ctx.parameters, params, strict=True)
            if param.dim() > len(expected.shape)
        }
        for name, size in sizes.items():
            if size != next(iter(sizes.values())):
                first, other = next(iter(sizes.items()))
                raise ValueError(f"{name}: expected a batch of {other}, as {first} has, got {size}")

    def _nothing(self, params: list[Tensor]) -> tuple[Tensor, ...]:
        """Outputs without samples, attached to the parameters so that a backward pass works."""
        anchor = torch.stack([param.sum() for param in params]).sum() * 0
        return tuple(
            anchor * param_zeros
            for param_zeros in (anchor.new_zeros(0, *variable.shape) for variable in self.ctx.var_recover)
        )


def check_attributes(name: str, parameter: cp.Parameter, value: Tensor) -> None:
    """Raise a ValueError unless a value has the sign or the definiteness that its parameter declares.

    Convexity rests on them: without, a solver may return a point that is no solution, and say nothing.

    Args:
        name: of the parameter.
        parameter: with its attributes.
        value: with a batch in front or not; what is wrong within rounding passes.
    """
    declared = parameter.attributes
    double = value.detach().to("cpu", torch.float64)
    if double.numel() == 0 or not any(declared[one] for one in (*_SIGNS, "PSD", "NSD")):
        return
    eps = torch.finfo(value.dtype).eps if value.is_floating_point() else 0.0
    allowed = max(1e-9, 10 * eps) * float(double.abs().max())
    for attribute, (sign, words) in _SIGNS.items():
        if declared[attribute] and float((sign * double).min()) < -allowed:
            raise ValueError(f"{name}: expected {words} numbers, got {float(sign * (sign * double).min()):g}")
    for attribute, sign, words in (("PSD", 1, "positive"), ("NSD", -1, "negative")):
        if declared[attribute]:
            lowest = float(torch.linalg.eigvalsh(sign * 0.5 * (double + double.mT)).min())
            if lowest < -allowed:
                raise ValueError(
                    f"{name}: expected a {words} semidefinite matrix, got one with eigenvalue "
                    f"{sign * lowest:.3g}"
                )


class _OnDemand:
    """A sparse matrix that becomes a tensor when it is moved somewhere, as cvxpylayers does to multiply."""

    def __init__(self, matrix: Tensor) -> None:
        parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values())
        self._parts = tuple(part.numpy() for part in parts)
        self._shape = tuple(matrix.shape)

    def to(self, **where: Any) -> Tensor:
        """The matrix as a tensor of that type on that device."""
        rows, columns, values = (torch.from_numpy(part) for part in self._parts)
        return torch.sparse_csr_tensor(rows, columns, values, self._shape).to(**where)


def _symmetrised(param: Tensor, symmetric: bool) -> Tensor:
    return 0.5 * (param + param.mT) if symmetric else param


def _empty_batch(params: tuple[Tensor, ...], expected: list[cp.Parameter]) -> bool:
    return any(
        param.dim() > len(parameter.shape) and len(param) == 0
        for param, parameter in zip(params, expected, strict=True)
    )


def _without_matrices(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a checkpoint of a model with a CvxpyLayer load: the matrices belong to the problem."""
    for name in ("P", "q", "A"):
        state.pop(prefix + name, None)
