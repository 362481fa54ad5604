"""The solver for whoever wants the answer: `complete` for an array, `HankelCompletion` for batches."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float, Int, Num
from torch import Tensor, nn

from leyden_hankel.directions import Preconditioner
from leyden_hankel.frequencies import Lines, esprit
from leyden_hankel.objective import Problem
from leyden_hankel.operator import COMPLEX_TYPES, HankelOperator, padded_shape
from leyden_hankel.solver import Settings, State, Step, iterate, start

History = Mapping[str, Float[Tensor, "iterations *batch"]]

_UNROLLED = 50
"""Iterations at most that gradients are taken through."""

_UNDECIDED = 30.0
"""Singular values below so many times the last relative change count as zero: the rank was given too high."""

_SETTLED = 1e-5
"""A relative change from which on that tells anything."""

_SINGULAR = 1e-12
"""The same as `_UNDECIDED`, whatever the last change was."""


@dataclass(frozen=True)
class Completion:
    """A completed signal, or a batch of them.

    Attributes:
        x: the signal, of the shape that was observed; real where that was real.
        Z: the factor of its Hankel matrix, shape ``(*batch, rows, rank)``; even sizes count as one more.
        iters: iterations done, int64, shape ``(*batch,)``.
        converged: whether the tolerance was met, shape ``(*batch,)``.
        history: ``"objective"``, ``"rel_change"``, ``"step_size"`` and, where the true signal was given,
            ``"rel_error"``, each of shape ``(iterations, *batch)``.
        shape: the sizes of one signal.
    """

    x: Num[Tensor, "*batch *shape"]
    Z: Complex[Tensor, "*batch rows rank"]
    iters: Int[Tensor, "*batch"]
    converged: Bool[Tensor, "*batch"]
    history: History
    shape: tuple[int, ...] = field(default=())

    @property
    def rank(self) -> int:
        """The number of lines, r."""
        return self.Z.shape[-1]

    @cached_property
    def singular_values(self) -> Float[Tensor, "*batch rank"]:
        """The singular values of the completed Hankel matrix, descending."""
        return _singular_values(self.Z)

    @cached_property
    def gram_condition(self) -> Float[Tensor, "*batch"]:
        """The condition number of Z^H Z; very large where the rank was given too high."""
        values = torch.linalg.eigvalsh(self.Z.mH @ self.Z)
        smallest = values[..., 0].clamp(min=torch.finfo(values.dtype).tiny)
        condition: Tensor = values[..., -1] / smallest
        return condition

    @cached_property
    def lines(self) -> Lines:
        """Frequencies, damping and amplitudes, by `esprit`.

        Raises:
            ValueError: for a batch; call `esprit` on each signal's factor then.
        """
        if self.Z.dim() != 2:
            raise ValueError(
                f"lines: expected one signal, got a batch of shape {tuple(self.Z.shape[:-2])}; call esprit "
                "on each signal's Z"
            )
        return esprit(self.Z, self.shape)

    @property
    def frequencies(self) -> Float[Tensor, " rank *dimensions"]:
        """The lines' frequencies in cycles a sample, the strongest line first."""
        return self.lines.frequencies

    @property
    def damping(self) -> Float[Tensor, " rank *dimensions"]:
        """The lines' damping a sample."""
        return self.lines.damping

    @property
    def amplitudes(self) -> Complex[Tensor, " rank"]:
        """The lines' complex amplitudes."""
        return self.lines.amplitudes


class HankelCompletion(nn.Module):
    """The solver for batches of signals of one shape (reconstructed); it has no parameters.

    NaN at places that were not observed is ignored, and means "not observed" where no mask is given.

    Args:
        shape: the sizes of a signal.
        rank: the number of exponentials.
        preconditioner: ``"tangent"``, ``"block_jacobi"`` or ``"none"``, see `direction`.
        step: ``"auto"``, ``"exact"``, ``"fixed"`` or a number, see `Settings`.
        max_iter: iterations at most.
        tol: relative change of the signal that ends the iteration.
        outlier_fraction: the share of the observed samples that may be grossly wrong, below 0.5.
        damping: see `Settings`.
        consistent: whether the observed samples are put back into the result, where none is an outlier.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        rank: int,
        preconditioner: Preconditioner = "tangent",
        step: Step | float = "auto",
        max_iter: int = 300,
        tol: float = 1e-7,
        outlier_fraction: float = 0.0,
        damping: float = 0.0,
        *,
        consistent: bool = False,
    ) -> None:
        super().__init__()
        self.shape = checked_shape(shape)
        self.settings = Settings(
            rank=rank,
            preconditioner=preconditioner,
            step=step,
            max_iter=max_iter,
            tol=tol,
            outlier_fraction=outlier_fraction,
            damping=damping,
        )
        rows = HankelOperator(padded_shape(self.shape)).rows
        if rank > rows:
            raise ValueError(f"rank: expected at most {rows}, the rows of the Hankel matrix, got {rank}")
        if consistent and outlier_fraction:
            raise ValueError("consistent: expected False with outlier_fraction, or outliers are put back")
        self.consistent = consistent

    def forward(
        self,
        y: Num[Tensor, "*batch *shape"],
        mask: Bool[Tensor, "*batch *shape"] | None = None,
        *,
        truth: Num[Tensor, "*batch *shape"] | None = None,
        differentiable: bool = False,
    ) -> Completion:
        """Complete the signals.

        Args:
            y: the samples; NaN and whatever stands at unobserved places is ignored.
            mask: which were observed; None: those that are not NaN.
            truth: the true signals; the history then tells the relative error.
            differentiable: whether gradients are taken through the iterations, with respect to y; the start
                counts as constant. Needs a fixed step and at most 50 iterations.

        Returns:
            The completed signals.

        Raises:
            ValueError: if an argument is wrong; the text names it.
        """
        if differentiable and (self.settings.searches or self.settings.max_iter > _UNROLLED):
            raise ValueError(
                f"differentiable: expected step='fixed' and at most {_UNROLLED} iterations, got "
                f"step={self.settings.step!r} and max_iter={self.settings.max_iter}"
            )
        y = torch.as_tensor(y)
        with torch.set_grad_enabled(differentiable), torch.autocast(y.device.type, enabled=False):
            return self._solve(prepare(y, mask, self.shape, self.settings), truth)

    def _solve(self, task: Task, truth: Any) -> Completion:
        record = Record(task, truth)
        state = start(task.problem, self.settings)
        while state.running:
            state = iterate(task.problem, self.settings, state)
            record.add(state)
        return finish(task, state, record, consistent=self.consistent)


@dataclass(frozen=True)
class Task:
    """Signals made ready for the solver: one batch dimension, odd sizes, values of about 1.

    Attributes:
        problem: the signals, each divided by a power of 4 near its largest sample.
        scale: those powers, ``(batch,)``.
        batch: the sizes of the batch as it was given.
        shape: the sizes of a signal as it was given.
        real: whether the samples were real.
    """

    problem: Problem
    scale: Float[Tensor, " batch"]
    batch: tuple[int, ...]
    shape: tuple[int, ...]
    real: bool

    def crop(self, x: Tensor) -> Tensor:
        """A signal without what was padded."""
        places: Any = (..., *(slice(size) for size in self.shape))
        return x[places]

    def goal(self, truth: Any) -> Tensor:
        """The true signals as they were given, as ``(batch, *shape)``, divided by their scale.

        Raises:
            ValueError: if their shape is another.
        """
        truth = torch.as_tensor(truth)
        expected = (*self.batch, *self.shape)
        if tuple(truth.shape) != expected:
            raise ValueError(f"truth: expected shape {expected}, got {tuple(truth.shape)}")
        x = truth.to(device=self.scale.device, dtype=self.problem.operator.dtype).reshape(-1, *self.shape)
        scaled: Tensor = x / self.scale.reshape(-1, *(1 for _ in self.shape))
        return scaled


class Record:
    """The numbers of every iteration.

    Args:
        task: the signals.
        truth: the true signals as they were given, or None.
    """

    def __init__(self, task: Task, truth: Any = None) -> None:
        self._task = task
        self._truth: Tensor | None = None
        if truth is not None:
            self._truth = task.goal(truth)
        self.series: dict[str, list[Tensor]] = {"objective": [], "rel_change": [], "step_size": []}
        if self._truth is not None:
            self.series["rel_error"] = []

    def add(self, state: State) -> dict[str, Tensor]:
        """Keep the numbers of an iteration and return them, a value for each signal."""
        numbers = {
            "objective": state.value.detach() * self._task.scale.square(),
            "rel_change": state.change.detach(),
            "step_size": state.step_size.detach(),
        }
        if self._truth is not None:
            difference = self._task.crop(state.x.detach()) - self._truth
            norms = (torch.linalg.vector_norm(t.flatten(1), dim=1) for t in (difference, self._truth))
            numbers["rel_error"] = next(norms) / next(norms)
        for name, value in numbers.items():
            self.series[name].append(value)
        return numbers

    def history(self) -> dict[str, Tensor]:
        """The series, iterations first."""
        return {
            name: torch.stack(values).reshape(-1, *self._task.batch) for name, values in self.series.items()
        }


def prepare(y: Any, mask: Any, shape: Sequence[int], settings: Settings) -> Task:
    """Check signals and make them ready.

    Args:
        y: the samples.
        mask: which were observed; None: those that are not NaN.
        shape: the sizes of a signal.
        settings: the settings.

    Returns:
        The task.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """
    y = torch.as_tensor(y)
    real = not y.is_complex()
    y = _as_complex(y)
    sizes = tuple(shape)
    if tuple(y.shape[y.dim() - len(sizes) :]) != sizes or y.dim() < len(sizes):
        raise ValueError(
            f"observed: expected shape (..., {', '.join(map(str, sizes))}), got {tuple(y.shape)}"
        )
    mask = observed_mask(mask, y)
    batch = tuple(y.shape[: y.dim() - len(sizes)])
    if 0 in batch:
        raise ValueError(f"observed: expected at least one signal, got the shape {tuple(y.shape)}")
    y, mask = y.reshape(-1, *sizes), mask.reshape(-1, *sizes)
    y = torch.where(mask, y, torch.zeros((), dtype=y.dtype, device=y.device))
    _check_samples(y, mask, settings)
    padding = [pad for size in reversed(sizes) for pad in (0, 1 - size % 2)]
    places = tuple(range(1, y.dim()))
    largest = torch.view_as_real(y.detach()).abs().flatten(1).amax(dim=1)
    # From a quarter of the largest sample to all of it: neither it nor its inverse overflows.
    scale = torch.exp2(2 * (largest.log2() / 2).floor())
    rate = mask.to(scale.dtype).mean(dim=places)
    scaled = y / scale.reshape(-1, *(1 for _ in sizes))
    operator = HankelOperator(padded_shape(sizes), y.dtype, device=y.device)
    problem = Problem(
        operator,
        nn.functional.pad(scaled, padding),
        nn.functional.pad(mask, padding),
        rate,
    )
    return Task(problem, scale, batch, sizes, real)


def finish(task: Task, state: State, record: Record, *, consistent: bool = False) -> Completion:
    """The result of the iterations.

    Args:
        task: the signals.
        state: the last state.
        record: the numbers of the iterations.
        consistent: whether the observed samples are put back.

    Returns:
        The completed signals, in the shapes and scales that were given.
    """
    factor, x = state.result
    if consistent:
        x = torch.where(task.problem.mask, task.problem.y, x)
    scale = task.scale.reshape(-1, *(1 for _ in task.shape))
    x = (task.crop(x) * scale).reshape(*task.batch, *task.shape)
    if task.real and is_real(x):
        x = x.real
    columns = factor.mT * task.scale.sqrt()[:, None, None]
    completion = Completion(
        x=x,
        Z=columns.reshape(*task.batch, *columns.shape[1:]).mT,
        iters=state.iterations.reshape(task.batch),
        history=record.history(),
        converged=state.converged.reshape(task.batch),
        shape=task.shape,
    )
    _warn_of_rank(completion, factor)
    return completion


def signal_shape(y: Tensor, signal_dims: int | None) -> tuple[int, ...]:
    """The sizes of a signal among those of a tensor of signals.

    Raises:
        ValueError: if the tensor has no dimension, or not as many.
    """
    if y.dim() == 0:
        raise ValueError("observed: expected a signal, got a single number")
    dims = y.dim() if signal_dims is None else signal_dims
    if isinstance(dims, bool) or not isinstance(dims, int) or not 1 <= dims <= y.dim():
        raise ValueError(f"signal_dims: expected 1 to {y.dim()}, got {signal_dims!r}")
    return tuple(y.shape[y.dim() - dims :])


def checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """The sizes of a signal.

    Raises:
        ValueError: if there is none, or one is below 3.
    """
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not sizes or any(isinstance(n, bool) or not isinstance(n, int) or n < 3 for n in sizes):
        raise ValueError(f"shape: expected sizes of at least 3, got {shape!r}")
    return sizes


def _as_complex(y: Tensor) -> Tensor:
    if y.dtype in COMPLEX_TYPES:
        return y
    if y.dtype in (torch.float32, torch.float64):
        return y.to(y.dtype.to_complex())
    raise ValueError(
        "observed: expected complex64, complex128, float32 or float64 (there is no transform in half "
        f"precision), got {y.dtype}"
    )


def observed_mask(mask: Any, y: Tensor) -> Tensor:
    """The mask of signals as bool: what was given, or where the samples are not NaN.

    Raises:
        ValueError: if it has another shape, or values other than 0 and 1.
    """
    if mask is None:
        return ~torch.isnan(y)
    mask = torch.as_tensor(mask, device=y.device)
    if mask.shape != y.shape:
        if mask.dim() > y.dim() or mask.shape != y.shape[y.dim() - mask.dim() :]:
            raise ValueError(f"mask: expected shape {tuple(y.shape)}, got {tuple(mask.shape)}")
        mask = mask.expand(y.shape)
    if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(f"mask: expected bool, or 0 and 1, got {mask.dtype} with other values")
    seen: Tensor = mask.bool()
    return seen


def _check_samples(y: Tensor, mask: Tensor, settings: Settings) -> None:
    """Refuse what has no answer, and warn of what has a doubtful one."""
    places = tuple(range(1, y.dim()))
    counts = mask.sum(dim=places)
    for fault, text in (
        (counts == 0, "mask: expected observed samples, got none"),
        (~y.isfinite().flatten(1).all(dim=1), "observed: expected finite samples, got NaN or infinity"),
        ((y == 0).flatten(1).all(dim=1), "observed: expected a sample that is not 0, got zeros alone"),
    ):
        if bool(fault.any()):
            where = "" if len(y) == 1 else f" in signal {int(fault.int().argmax())} of the batch"
            raise ValueError(text + where)
    least = int(counts.min())
    if 2 * settings.rank > least:
        raise ValueError(f"rank: expected at most half of the {least} observed samples, got {settings.rank}")
    unknowns = settings.rank * y.dim()
    if least < unknowns:
        _warn(
            f"{least} observed samples for {unknowns} unknowns (rank {settings.rank} in {y.dim() - 1} "
            "dimensions): the answer may not be the only one"
        )
    if ambiguity := next(filter(None, map(_ambiguity, mask.cpu().numpy())), None):
        _warn(f"all observed samples {ambiguity}, and the completed signal is probably wrong")


def _warn(text: str) -> None:
    """Warn at the line that called this package, whatever is called in between."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in ("leyden_hankel", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def _ambiguity(seen: np.ndarray[Any, Any]) -> str | None:
    """How the observed samples of a signal lie, and what that leaves open, where other lines fit as well."""
    places = np.argwhere(seen)
    gaps = places[1:] - places[0]
    for axis, divisor in enumerate(np.gcd.reduce(gaps, axis=0).tolist()):
        if divisor == 0:
            return f"stand at one place along axis {axis}: nothing tells frequencies along it"
        if divisor > 1:
            return (
                f"are multiples of {divisor} apart along axis {axis}: frequencies are known up to multiples "
                f"of 1/{divisor} alone"
            )
    share = _lattice_index(gaps) if seen.ndim > 1 else 1
    if share == 0:
        return "lie on a line or a plane: nothing tells frequencies across it"
    return f"lie on a lattice of one in {share} places: several frequencies fit them" if share > 1 else None


def _lattice_index(gaps: np.ndarray[Any, Any]) -> int:
    """Of how many places one can be reached by sums and differences of gaps; 0: gaps do not span the space.

    By Euclid's algorithm on whole columns, as for the Hermite normal form, whose diagonal is multiplied up.
    """
    index = 1
    for axis in range(gaps.shape[1]):
        while len(left := np.flatnonzero(gaps[:, axis])) > 1:
            pivot = left[np.abs(gaps[left, axis]).argmin()]
            quotients = gaps[:, axis] // gaps[pivot, axis]
            quotients[pivot] = 0
            gaps = gaps - quotients[:, None] * gaps[pivot]
        if len(left) == 0:
            return 0
        index *= abs(int(gaps[left[0], axis]))
        gaps = np.delete(gaps, left[0], axis=0)
    return index


def is_real(x: Tensor) -> bool:
    """Whether signals have no imaginary part but what rounding leaves."""
    tolerance = max(1e-8, 100 * torch.finfo(x.real.dtype).eps)
    return bool(torch.linalg.vector_norm(x.imag) <= tolerance * torch.linalg.vector_norm(x))


def _singular_values(factor: Tensor) -> Tensor:
    """The singular values of Z Z^T, descending."""
    squares, turns = torch.linalg.eigh(factor.mH @ factor)
    triangle = squares.clamp(min=0).sqrt().unsqueeze(-1) * turns.mH  # Z is orthonormal columns times it
    values: Tensor = torch.linalg.svdvals(triangle @ triangle.mT)
    return values


def _warn_of_rank(completion: Completion, factor: Tensor) -> None:
    """Warn where singular values, here of the scaled signals, are no larger than what was left undecided."""
    with torch.no_grad():
        values = _singular_values(factor)
        last = completion.history["rel_change"][-1].reshape(-1, 1)
        level = torch.where(last <= _SETTLED, _UNDECIDED * last, torch.zeros_like(last)).clamp(min=_SINGULAR)
        found = (values > level * values[:, :1]).sum(dim=1)
    if bool((found < completion.rank).any()):
        _warn(
            f"rank: {completion.rank} is more than the signal has: the numerical rank is {int(found.min())}, "
            "and convergence is slow"
        )
