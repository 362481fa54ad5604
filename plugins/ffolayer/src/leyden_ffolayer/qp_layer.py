"""The quadratic program as a layer: checks and settings around `leyden_ffolayer.quadratic`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from leyden_ffolayer.interior_point import Program
from leyden_ffolayer.quadratic import (
    QP_SOLVERS,
    Failure,
    QPSolver,
    Solution,
    direction,
    gradients,
    solve,
)
from leyden_ffolayer.report import SolveReport

OnFailure = Literal["raise", "nan"]

_NAMES = ("Q", "q", "G", "h", "A", "b")
_SEMIDEFINITE = 1e-9


class FFOQPLayer(nn.Module):
    """Solves ``min ½yᵀQy + qᵀy, Gy <= h, Ay = b``, as a layer.

    Its gradients are those of Section 3.4 of Zhao and others (2025). Order and shapes of the arguments are
    those of qpth. It computes in float64 on the CPU, whatever type and device the arguments have, and returns
    theirs; under autocast too. It has neither parameters nor buffers. What the last calls did is in
    ``report``.

    Gradients exist for all six arguments; that of an argument which is one for the whole batch is the sum
    over the batch, and that of ``Q`` is symmetric, since only the symmetric part of ``Q`` acts. Where active
    rows depend on each other the multipliers are not unique, those of least norm are taken, and one warning
    tells so. Where an active row has multiplier 0, the solution has two one-sided derivatives; one of them is
    given. There is no second derivative.

    Args:
        solver: ``"ipm"``, a batched interior-point method in torch; ``"clarabel"`` or ``"osqp"``, a call for
            each sample.
        tol: accuracy that is asked of the solver.
        polish: whether the active set is then solved to machine precision.
        return_duals: whether ``forward`` returns ``(y, lam, nu)``, the multipliers of inequalities and
            equalities too, with gradients.
        on_failure: whether a sample without solution raises a RuntimeError, or becomes NaN with gradient 0.
        max_iter: iterations that the solver may take for a sample.

    Raises:
        ValueError: if a setting is out of its range.
    """

    def __init__(
        self,
        solver: QPSolver = "ipm",
        tol: float = 1e-10,
        polish: bool = True,
        return_duals: bool = False,
        on_failure: OnFailure = "raise",
        max_iter: int = 100,
    ) -> None:
        super().__init__()
        check_choice("solver", solver, QP_SOLVERS)
        check_choice("on_failure", on_failure, ("raise", "nan"))
        check_tolerance("tol", tol)
        check_count("max_iter", max_iter)
        self.solver = solver
        self.tol = tol
        self.polish = polish
        self.return_duals = return_duals
        self.on_failure = on_failure
        self.max_iter = max_iter
        self.report = SolveReport()
        self._warned_of_dependent_rows = False

    def extra_repr(self) -> str:
        """The settings."""
        return f"solver={self.solver!r}, tol={self.tol:g}, polish={self.polish}"

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        Q: Float[Tensor, "*batch n n"],
        q: Float[Tensor, "*batch n"],
        G: Float[Tensor, "*batch m n"] | None = None,
        h: Float[Tensor, "*batch m"] | None = None,
        A: Float[Tensor, "*batch p n"] | None = None,
        b: Float[Tensor, "*batch p"] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Solve the programs.

        Args:
            Q: symmetric part positive semidefinite, of shape (n, n) or (batch, n, n).
            q: of shape (n,) or (batch, n).
            G: of shape (m, n) or (batch, m, n); None, or without elements: no inequalities.
            h: of shape (m,) or (batch, m).
            A: of shape (p, n) or (batch, p, n); None, or without elements: no equalities.
            b: of shape (p,) or (batch, p).

        Returns:
            The decisions, of shape (batch, n), or (n,) if no argument has a batch; with ``return_duals`` also
            the multipliers, of shapes (batch, m) and (batch, p).

        Raises:
            ValueError: if a shape is wrong, a number is NaN or infinite, or ``Q`` is not positive
                semidefinite; the text names the argument. NaN and infinity never reach a solver.
            RuntimeError: if a sample has no solution or the solver stopped early and ``on_failure`` is
                ``"raise"``; the text has sample, status and how far the solver got.

        >>> layer = FFOQPLayer()
        >>> layer(torch.eye(2), torch.tensor([-2.0, 0.5]), -torch.eye(2), torch.zeros(2))
        tensor([2., 0.])
        """
        given = {n: v for n, v in zip(_NAMES, (Q, q, G, h, A, b), strict=True) if v is not None}
        dtype = common_type(given)
        arguments = _complete(Q, q, G, h, A, b)
        batch = _batch_of(arguments)
        with torch.autocast(q.device.type, enabled=False):
            # Within a Function one cannot know whether gradients are switched off.
            for_gradients = torch.is_grad_enabled() and any(argument.requires_grad for argument in arguments)
            call = _Call(self, batch, for_gradients, torch.finfo(Q.dtype).eps if Q.is_floating_point() else 0)
            doubles = [argument.to("cpu", torch.float64) for argument in arguments]
            outputs: tuple[Tensor, ...] = _SolveQP.apply(call, *doubles)  # type: ignore[no-untyped-call]
        outputs = tuple(output.to(q.device, dtype) for output in outputs)
        if batch is None:
            outputs = tuple(output.squeeze(0) for output in outputs)
        y, lam, nu = outputs
        return (y, lam, nu) if self.return_duals else y

    def _solve(self, program: Program, for_gradients: bool, rounding: float) -> Solution:
        """Check the numbers, solve, and take note of what happened."""
        _check_finite(program)
        program, root = _definite(program, rounding)
        solution = solve(
            program, solver=self.solver, tolerance=self.tol, polish=self.polish,
            max_iterations=self.max_iter, for_gradients=for_gradients, root=root,
        )  # fmt: skip
        report = self.report
        report.samples = len(program.q)
        report.active_rows = solution.active.sum(dim=1).tolist()
        report.polished = int(solution.polished.sum())
        report.failed_solves += len(solution.failures)
        lost = [failure.sample for failure in solution.failures]
        inaccurate = ~solution.polished & (solution.residual > max(10 * self.tol, 1e-9))
        inaccurate[lost] = False
        if bool(inaccurate.any()):
            report.inaccurate_solves += int(inaccurate.sum())
            worst = float(solution.residual[inaccurate].max())
            warnings.warn(
                f"FFOQPLayer: {int(inaccurate.sum())} of {len(program.q)} samples are less accurate than "
                f"tol={self.tol:g}: relative residual up to {worst:.1e}", RuntimeWarning, stacklevel=5,
            )  # fmt: skip
        if solution.failures and self.on_failure == "raise":
            raise RuntimeError(told("FFOQPLayer", solution.failures, self.tol))
        if for_gradients:
            report.backward_systems += len(solution.systems)
            self._tell_dependent_rows(solution)
        return solution

    def _tell_dependent_rows(self, solution: Solution) -> None:
        dependent = any(system.kkt.dependent for system in solution.systems)
        if dependent and not self._warned_of_dependent_rows:
            self._warned_of_dependent_rows = True
            warnings.warn(
                "FFOQPLayer: active rows depend on each other, so their multipliers and the gradients of "
                "their right-hand sides are not unique; those of least norm are taken",
                RuntimeWarning, stacklevel=6,
            )  # fmt: skip


@dataclass(frozen=True)
class _Call:
    """A call of a layer: its batch size, whether gradients are wanted, and the rounding error of Q."""

    layer: FFOQPLayer
    batch: int | None
    for_gradients: bool
    rounding: float


@dataclass(frozen=True)
class _Kept:
    """What a backward pass needs."""

    solution: Solution
    report: SolveReport
    shared: tuple[str, ...]


class _SolveQP(torch.autograd.Function):
    """Primal and dual solution of a batch of programs, in float64."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *arguments: Tensor) -> tuple[Tensor, ...]:
        count = 1 if call.batch is None else call.batch
        shared = tuple(
            name
            for name, value in zip(_NAMES, arguments, strict=True)
            if value.dim() == (2 if name in "QGA" else 1)
        )
        if count == 0:
            ctx.kept = None
            return _empty(arguments)
        report = call.layer.report
        with report.timed("forward_ms"):
            Q, q, G, h, A, b = arguments
            program = Program(
                0.5 * (Q + Q.mT), q.expand(count, -1), G, h.expand(count, -1), A, b.expand(count, -1)
            )
            solution = call.layer._solve(program, call.for_gradients, call.rounding)
            if call.for_gradients:
                ctx.kept = _Kept(solution, report, shared)
        return solution.y.clone(), solution.lam.clone(), solution.nu.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, c: Tensor, c_lam: Tensor, c_nu: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [name for name, needed in zip(_NAMES, ctx.needs_input_grad[1:], strict=True) if needed]
        kept: _Kept | None = ctx.kept
        if kept is None:
            return (None, *(None for _ in _NAMES))
        with kept.report.timed("backward_ms"):
            solution = kept.solution
            lost = [failure.sample for failure in solution.failures]
            losses = [value.clone() if lost else value for value in (c, c_lam, c_nu)]
            for value in losses if lost else ():
                value[lost] = 0
            if all(not bool(value.any()) for value in losses):
                found = _zeros(solution, wanted, kept.shared)
            else:
                along = direction(solution, *losses)
                found = gradients(solution, along, wanted, kept.shared)._asdict()
        return (None, *(found[name] for name in _NAMES))


def _complete(*arguments: Tensor | None) -> tuple[Tensor, ...]:
    """All six arguments, with their shapes checked; what is not given has no rows."""
    Q, q, G, h, A, b = arguments
    for name, value in (("Q", Q), ("q", q)):
        if _absent(value):
            raise ValueError(f"{name}: expected a tensor with elements, got none")
    assert Q is not None
    assert q is not None
    if q.dim() not in (1, 2):
        raise ValueError(f"q: expected shape (n,) or (batch, n), got {tuple(q.shape)}")
    size = q.shape[-1]
    if size == 0:
        raise ValueError(f"q: expected at least one variable, got shape {tuple(q.shape)}")
    _check_shape("Q", Q, (size, size))
    pairs = []
    for names, matrix, vector in ((("G", "h"), G, h), (("A", "b"), A, b)):
        if _absent(matrix) and _absent(vector):
            pairs += [q.new_zeros(0, size), q.new_zeros(0)]
            continue
        if matrix is None or vector is None or _absent(matrix):
            missing, given = names if _absent(matrix) else names[::-1]
            raise ValueError(f"{missing}: expected a tensor beside {given}, got none")
        if matrix.dim() not in (2, 3):
            raise ValueError(
                f"{names[0]}: expected shape (rows, {size}) or (batch, rows, {size}), "
                f"got {tuple(matrix.shape)}"
            )
        _check_shape(names[0], matrix, (matrix.shape[-2], size))
        _check_shape(names[1], vector, (matrix.shape[-2],))
        pairs += [matrix, vector]
    return (Q, q, *pairs)


def _absent(value: Tensor | None) -> bool:
    """Whether an argument is not there; qpth's way to say so is a tensor without elements."""
    return value is None or (value.dim() < 2 and value.numel() == 0)


def _check_shape(name: str, value: Tensor, expected: tuple[int, ...]) -> None:
    own = tuple(value.shape[-len(expected) :])
    if own != expected or value.dim() not in (len(expected), len(expected) + 1):
        words = ", ".join(map(str, expected)) + ("," if len(expected) == 1 else "")
        batched = ", ".join(["batch", *map(str, expected)])
        raise ValueError(f"{name}: expected shape ({words}) or ({batched}), got {tuple(value.shape)}")


def _batch_of(arguments: tuple[Tensor, ...]) -> int | None:
    """The batch size that the arguments agree on; None if none has a batch."""
    sizes = {}
    for name, value in zip(_NAMES, arguments, strict=True):
        if value.dim() == (3 if name in "QGA" else 2):
            sizes[name] = len(value)
    if not sizes:
        return None
    first, size = next(iter(sizes.items()))
    for name, other in sizes.items():
        if other != size:
            raise ValueError(f"{name}: expected a batch of {size}, as {first} has, got {other}")
    return size


def _check_finite(program: Program) -> None:
    for name, value in vars(program).items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")


def _definite(program: Program, rounding: float) -> tuple[Program, Tensor | None]:
    """The Cholesky factor of Q, None where Q is only semidefinite; what is negative by rounding becomes 0."""
    Q = program.Q
    root, failed = torch.linalg.cholesky_ex(Q)
    if not bool(failed.any()):
        pivots = root.diagonal(dim1=-2, dim2=-1).square()
        if bool((pivots > 1e-12 * Q.diagonal(dim1=-2, dim2=-1)).all()):
            return program, root
    values, vectors = torch.linalg.eigh(Q)
    lowest = values[..., 0]
    allowed = -max(_SEMIDEFINITE, 10 * rounding) * torch.linalg.matrix_norm(Q)
    if bool((lowest < allowed).any()):
        where = "" if Q.dim() == 2 else f" in sample {int((lowest - allowed).argmin())}"
        raise ValueError(
            "Q: expected a positive semidefinite matrix, "
            f"got one with eigenvalue {float(lowest.min()):.3g}{where}"
        )
    if bool((lowest < 0).any()):
        Q = (vectors * values.clamp(min=0).unsqueeze(-2)) @ vectors.mT
        program = replace(program, Q=0.5 * (Q + Q.mT))
    return program, None


def _empty(arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    Q, _, G, _, A, _ = arguments
    return tuple(Q.new_zeros(0, size) for size in (Q.shape[-1], G.shape[-2], A.shape[-2]))


def _zeros(solution: Solution, wanted: list[str], shared: tuple[str, ...]) -> dict[str, Tensor | None]:
    batch, size = solution.y.shape
    rows = {"G": solution.lam.shape[1], "A": solution.nu.shape[1], "Q": size}
    rows |= {"h": rows["G"], "b": rows["A"], "q": size}
    found: dict[str, Tensor | None] = dict.fromkeys(_NAMES)
    for name in wanted:
        shape = (rows[name], size) if name in "QGA" else (rows[name],)
        found[name] = solution.y.new_zeros(shape if name in shared else (batch, *shape))
    return found


def told(layer: str, failures: list[Failure], tolerance: float) -> str:
    """The text of the error about samples without solution.

    Args:
        layer: the layer's name.
        failures: at least one.
        tolerance: what was asked of the solver.

    Returns:
        Which sample, the solver's status and how far it got; of several, the first three.
    """
    parts = []
    for failure in failures[:3]:
        text = f"sample {failure.sample}: {failure.status} after {failure.iterations} iterations"
        if math.isfinite(failure.residual):
            text += f", residual {failure.residual:.1e} (asked: {tolerance:.1e})"
        parts.append(text)
    more = f" and {len(failures) - 3} more" if len(failures) > 3 else ""
    return f"{layer}: no solution of {len(failures)} sample(s): " + "; ".join(parts) + more


def common_type(given: Mapping[str, Tensor]) -> torch.dtype:
    """The type that results of the tensors have; raise a ValueError unless they are dense and real.

    Args:
        given: the tensors by name.

    Returns:
        The type that torch promotes them to; its default type where all hold whole numbers.
    """
    dtype = torch.bool
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name}: expected a tensor, got {type(value).__name__}")
        if value.is_complex():
            raise ValueError(f"{name}: expected real numbers, got {value.dtype}")
        if value.layout != torch.strided:
            raise ValueError(f"{name}: expected a dense tensor, got layout {value.layout}")
        dtype = torch.promote_types(dtype, value.dtype)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise a ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")


def check_tolerance(name: str, value: float) -> None:
    """Raise a ValueError unless the value is a number between 0 and 1, both excluded."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError(f"{name}: expected a number above 0 and below 1, got {value!r}")


def check_count(name: str, value: int, *, least: int = 1) -> None:
    """Raise a ValueError unless the value is a whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
