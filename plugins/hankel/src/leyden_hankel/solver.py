"""The iteration of the solver and its state (reconstructed); pure functions, for a batch of signals.

`start` makes the first state, `iterate` the next one, until nothing is `State.running`. `complete` and the
LightningModule call these two and nothing else, so that both compute the same numbers bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from leyden_hankel.arguments import check_count
from leyden_hankel.directions import PRECONDITIONERS, Preconditioner, direction
from leyden_hankel.objective import Problem, conjugate_gram, line, objective, quartic, smallest_minimum
from leyden_hankel.spectral import spectral_init

Step = Literal["auto", "exact", "fixed"]
STEPS = ("auto", "exact", "fixed")

_SEARCHED = 10
"""How many first iterations search for their step with ``step="auto"``, where samples are few."""

_SHORT = 0.8
"""A first step below this says so; a longer one says that the fixed step will do."""

_REFRESH = 20
"""After how many updates in place transform and signal are computed from the factor again."""

_RISES = 3
"""After how many rises of the objective, one after another, a signal counts as diverged."""

_FLOOR = 16
"""How many units of rounding, over the share of observed samples, a change that no longer falls may be."""

_STRETCH, _STRETCH_END, _STRETCH_DECAY = 1.5, 1.05, 0.95
"""How many more samples than the outlier fraction says are set aside: at first, in the end, and the decay."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What determines an iteration.

    Attributes:
        rank: r, at least 1.
        preconditioner: ``"tangent"``, ``"block_jacobi"`` or ``"none"`` (plain gradient descent).
        step: ``"auto"``: the exact minimum along the direction in the first iteration, in nine more if that
            step was below 0.8, and after a rise of the objective in the next one, else the fixed step;
            ``"exact"``, ``"fixed"``, or the number itself. The fixed step is 1 for ``"tangent"`` (0.7 with
            outliers) and 0.5 for the others.
        max_iter: iterations at most.
        tol: relative change of the signal that ends the iteration. So does a change that has come down to
            rounding, 16 units of it over the share of observed samples, and no longer falls; not with 0.
        outlier_fraction: the share of the observed samples that may be grossly wrong, below 0.5.
        damping: the Gram matrix is inverted with this times the root of the objective added.

    Raises:
        ValueError: if one is out of its range; the text names it.
    """

    rank: int
    preconditioner: Preconditioner = "tangent"
    step: Step | float = "auto"
    max_iter: int = 300
    tol: float = 1e-7
    outlier_fraction: float = 0.0
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_count("rank", self.rank)
        check_count("max_iter", self.max_iter)
        if self.preconditioner not in PRECONDITIONERS:
            raise ValueError(
                f"preconditioner: expected one of {', '.join(PRECONDITIONERS)}, got {self.preconditioner!r}"
            )
        if self.step not in STEPS if isinstance(self.step, str) else not _is_number(self.step, above=0):
            raise ValueError(f"step: expected {', '.join(STEPS)} or a number above 0, got {self.step!r}")
        for name, value, below in (
            ("tol", self.tol, math.inf),
            ("damping", self.damping, math.inf),
            ("outlier_fraction", self.outlier_fraction, 0.5),
        ):
            if not (_is_number(value) and 0 <= value < below):
                limit = "finite number of at least 0" if below == math.inf else "number from 0 to below 0.5"
                raise ValueError(f"{name}: expected a {limit}, got {value!r}")
        if self.outlier_fraction and self.searches:
            raise ValueError(
                f"step: expected 'fixed' or a number with outlier_fraction={self.outlier_fraction}, where "
                f"the objective is not monotone, got {self.step!r}"
            )

    @property
    def searches(self) -> bool:
        """Whether any step is searched for."""
        return self.step in ("auto", "exact")

    @property
    def fixed_step(self) -> float:
        """The step where none is searched for."""
        if not isinstance(self.step, str):
            return float(self.step)
        if self.preconditioner == "tangent":
            return 0.7 if self.outlier_fraction else 1.0
        return 0.5


def _is_number(value: object, above: float = -math.inf) -> bool:
    """Whether a value is a finite number above a limit; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and above < value < math.inf


@dataclass(frozen=True)
class State:
    """Where the iteration of every signal of a batch stands; batch first.

    Attributes:
        factor: Z, ``(batch, rows, rank)``.
        spectrum: its transform, ``(batch, rank, *lengths)``.
        x: the averages of Z Z^T, ``(batch, *shape)``.
        gram: conj(Z^H Z), ``(batch, rank, rank)``.
        value: the objective, ``(batch,)``.
        change: the last relative change of x, ``(batch,)``.
        step_size: the last step, ``(batch,)``.
        rises: how many times running the objective rose, ``(batch,)``.
        searches: how many of the next steps are searched for, ``(batch,)``.
        active: whether it goes on, ``(batch,)``.
        converged: whether it ended by the tolerance, ``(batch,)``.
        iterations: iterations done, ``(batch,)``.
        best: the lowest objective, and the last Z and x that had it to rounding; with outliers the last ones
            that are finite.
        time: iterations of the batch.
    """

    factor: Complex[Tensor, "batch rows rank"]
    spectrum: Complex[Tensor, "batch rank *lengths"]
    x: Complex[Tensor, batch * shape]
    gram: Complex[Tensor, "batch rank rank"]
    value: Float[Tensor, " batch"]
    change: Float[Tensor, " batch"]
    step_size: Float[Tensor, " batch"]
    rises: Int[Tensor, " batch"]
    searches: Int[Tensor, " batch"]
    active: Bool[Tensor, " batch"]
    converged: Bool[Tensor, " batch"]
    iterations: Int[Tensor, " batch"]
    best: tuple[Float[Tensor, " batch"], Complex[Tensor, "batch rows rank"], Complex[Tensor, batch * shape]]
    time: int = 0

    @property
    def running(self) -> bool:
        """Whether any signal goes on; the host waits for the device."""
        return bool(self.active.any())

    @property
    def result(self) -> tuple[Complex[Tensor, "batch rows rank"], Complex[Tensor, batch * shape]]:
        """Z and x: the last ones, or those of the lowest objective where a signal has ended otherwise."""
        _, factor, x = self.best
        failed = ~self.active & ~self.converged
        return _where(failed, factor, self.factor), _where(failed, x, self.x)


def start(problem: Problem, settings: Settings, *, generator: torch.Generator | None = None) -> State:
    """The state at the spectral start.

    Args:
        problem: the signals, with one batch dimension.
        settings: the settings.
        generator: of the start's random columns; None: one of its own.

    Returns:
        The state before the first iteration.
    """
    with torch.no_grad():
        seen = without_largest(problem, settings.outlier_fraction)
        factor = spectral_init(
            seen, problem.mask, settings.rank, generator=generator, operator=problem.operator
        )
    return start_at(problem, settings, factor)


def start_at(problem: Problem, settings: Settings, factor: Complex[Tensor, "batch rows rank"]) -> State:
    """The state at a factor.

    Args:
        problem: the signals, with one batch dimension.
        settings: the settings.
        factor: Z.

    Returns:
        The state before the first iteration.
    """
    spectrum = problem.operator.fft(factor)
    x = problem.operator.lift_adjoint(spectrum)
    gram = conjugate_gram(factor)
    value, _ = objective(problem, gram, x, problem.misfit(x))
    number, device = value.dtype, value.device
    count = len(value)
    return State(
        factor,
        spectrum,
        x,
        gram,
        value,
        torch.full((count,), torch.inf, dtype=number, device=device),
        torch.zeros(count, dtype=number, device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
        torch.full((count,), int(settings.searches), device=device),
        torch.ones(count, dtype=torch.bool, device=device),
        torch.zeros(count, dtype=torch.bool, device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
        (value, factor, x),
    )


def iterate(problem: Problem, settings: Settings, state: State) -> State:
    """One iteration of every signal that is active; the others keep every bit.

    Args:
        problem: the signals.
        settings: the settings.
        state: the state before it.

    Returns:
        The state after it. Nothing is changed in place, so that autograd can follow.
    """
    if settings.outlier_fraction:
        problem = set_aside(problem, state.x, settings.outlier_fraction, state.time)
    misfit = problem.misfit(state.x)
    pull = problem.operator.matmul_conj(problem.correction(state.x, misfit), state.spectrum)
    ridge = settings.damping * state.value.clamp(min=0).sqrt() if settings.damping else 0.0
    towards = direction(state.factor, pull, state.gram, settings.preconditioner, ridge=ridge)
    if settings.searches and bool(((state.searches > 0) & state.active).any()):
        moved = _search(problem, settings, state, misfit, towards.apply(state.factor, pull))
    else:
        moved = _move(problem, settings, state, towards.moved(settings.fixed_step).apply(state.factor, pull))
    return _settle(problem, settings, state, moved)


def _move(problem: Problem, settings: Settings, state: State, factor: Tensor) -> State:
    """Take the fixed step."""
    spectrum = problem.operator.fft(factor)
    x = problem.operator.lift_adjoint(spectrum)
    step_size = torch.full_like(state.step_size, settings.fixed_step)
    gram = conjugate_gram(factor)
    return replace(state, factor=factor, spectrum=spectrum, x=x, gram=gram, step_size=step_size)


def _search(problem: Problem, settings: Settings, state: State, misfit: Tensor, towards: Tensor) -> State:
    """Take the exact step where it is searched for, the fixed one elsewhere; the transform is updated."""
    operator = problem.operator
    transform = operator.fft(towards)
    along = line(operator, state.factor, state.spectrum, towards, transform)
    coefficients = quartic(problem, state.gram, state.x, misfit, along)
    exact = smallest_minimum(coefficients, settings.fixed_step)
    step_size = torch.where(state.searches > 0, exact, torch.full_like(exact, settings.fixed_step))
    factor = torch.addcmul(state.factor.mT, towards.mT, _over(step_size, towards).to(towards.dtype)).mT
    if (state.time + 1) % _REFRESH == 0:
        spectrum = operator.fft(factor)
        x, gram = operator.lift_adjoint(spectrum), conjugate_gram(factor)
    else:
        a = _over(step_size, transform).to(transform.dtype)
        spectrum = torch.addcmul(state.spectrum, transform, a, out=transform)
        a = _over(step_size, along.first)
        x = state.x + a * (along.first + a * along.second)
        a = _over(step_size, state.gram)
        gram = state.gram + a * (along.cross + along.cross.mH + a * along.square)
    return replace(state, factor=factor, spectrum=spectrum, x=x, gram=gram, step_size=step_size)


def _settle(problem: Problem, settings: Settings, state: State, moved: State) -> State:
    """Judge the step: did the objective rise, has it converged, is it over."""
    value, size = objective(problem, moved.gram, moved.x, problem.misfit(moved.x))
    difference = moved.x - state.x
    change = (_squared_norm(difference) / _squared_norm(state.x)).sqrt()
    rounding = 64 * torch.finfo(value.dtype).eps * size
    rose = ~(value <= state.value + rounding)
    rises = torch.where(rose, state.rises + 1, torch.zeros_like(state.rises))
    failed = ~value.isfinite()
    if not settings.outlier_fraction:
        failed = failed | (rises >= _RISES)
    converged = (change <= settings.tol) & ~failed
    if settings.tol:
        floor = _FLOOR * torch.finfo(change.dtype).eps / problem.rate
        converged = converged | ((change <= floor) & (change >= state.change) & ~failed)
    iterations = state.iterations + 1
    over = converged | failed | (iterations >= settings.max_iter)
    searches = state.searches
    if settings.step == "auto":
        few = (iterations == 1) & (moved.step_size < _SHORT)
        searches = torch.where(few, _SEARCHED - 1, (searches - 1).clamp(min=0)).maximum(
            rose.to(searches.dtype)
        )
    # Below its own rounding the objective tells no iterate from another; the later one is the nearer one.
    lower = value.isfinite() if settings.outlier_fraction else value <= state.best[0] + rounding
    moved = replace(
        moved,
        value=value,
        change=change,
        rises=rises,
        searches=searches,
        active=~over,
        converged=converged,
        iterations=iterations,
        best=_keep(lower, (value.fmin(state.best[0]), moved.factor, moved.x), state.best),
        time=state.time + 1,
    )
    return moved if bool(state.active.all()) else _blend(state.active, moved, state)


def _blend(active: Tensor, moved: State, state: State) -> State:
    """The moved state where a signal was active, the one before elsewhere."""
    names = ("factor", "spectrum", "x", "gram", "value", "change", "step_size", "rises", "searches")
    blended: dict[str, Any] = {
        name: _where(active, getattr(moved, name), getattr(state, name))
        for name in (*names, "converged", "iterations")
    }
    return replace(moved, **blended, active=active & moved.active, best=_keep(active, moved.best, state.best))


def _keep(
    which: Tensor, new: tuple[Tensor, Tensor, Tensor], old: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The new tensors where a signal is meant, the old ones elsewhere; no copy where it is all or none."""
    if bool(which.all()):
        return new
    if not bool(which.any()):
        return old
    return _where(which, new[0], old[0]), _where(which, new[1], old[1]), _where(which, new[2], old[2])


def _where(which: Tensor, new: Tensor, old: Tensor) -> Tensor:
    if new.dim() == 3 and new.stride(-1) > 1:  # factors keep their memory layout
        return torch.where(_over(which, new), new.mT, old.mT).mT
    return torch.where(_over(which, new), new, old)


def _over(values: Tensor, tensor: Tensor) -> Tensor:
    """Values of the signals, with dimensions of size 1 to go with a tensor that has a batch in front."""
    return values.reshape(-1, *(1 for _ in tensor.shape[1:]))


def _squared_norm(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten(1).square().sum(dim=1)


def without_largest(problem: Problem, outlier_fraction: float) -> Complex[Tensor, batch * shape]:
    """The observed samples without the largest ones, for the start, after Cai, Huang, Lu and You (2024).

    Args:
        problem: the signals.
        outlier_fraction: the share of the observed samples to leave out.

    Returns:
        The samples.
    """
    return problem.y - _largest(problem.y, _counts(problem, outlier_fraction))


def set_aside(
    problem: Problem, x: Complex[Tensor, batch * shape], outlier_fraction: float, time: int
) -> Problem:
    """The problem without the samples that fit worst, after Cai, Huang, Lu and You (2024).

    Args:
        problem: the signals.
        x: the iterate.
        outlier_fraction: the share of the observed samples that may be wrong; at first half as many again are
            set aside, in the end a twentieth more.
        time: iterations done.

    Returns:
        A problem whose samples are corrected by their misfit where that is largest.
    """
    stretch = _STRETCH_END + (_STRETCH - _STRETCH_END) * _STRETCH_DECAY ** (time + 1)
    outliers = _largest(-problem.misfit(x), _counts(problem, stretch * outlier_fraction))
    return replace(problem, y=problem.y - outliers)


def _counts(problem: Problem, share: float) -> Tensor:
    observed = problem.mask.flatten(1).sum(dim=1)
    return (share * observed).ceil().to(torch.int64).minimum(observed)


def _largest(values: Tensor, counts: Tensor) -> Tensor:
    """A signal's so many largest entries by modulus, zero elsewhere."""
    moduli = values.abs().flatten(1)
    most = int(counts.max())
    if most == 0:
        return torch.zeros_like(values)
    largest, places = moduli.topk(most, dim=1)
    taken = torch.arange(most, device=counts.device) < counts.unsqueeze(1)
    chosen = torch.zeros_like(moduli, dtype=torch.bool).scatter(1, places, taken & (largest > 0))
    return torch.where(chosen.view_as(values), values, torch.zeros_like(values))
