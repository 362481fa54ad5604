"""The multiplier of the learning rate as a function of the loss, on numbers or tensors, without Lightning.

Section 3.3 of the reconstruction: the practical schedule with one parameter follows from the step size of
(H0, H1)-smooth functions, `leyden_warmup.h0h1_step_size`, with the user's rate for 1 / (10 H0) and C for
2 H1 / H0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

import torch
from jaxtyping import Float
from torch import Tensor

Form = Literal["smooth", "clipped", "rational"]
FORMS: tuple[str, ...] = get_args(Form)


def warmup_multiplier(
    loss: Float[Tensor, "*shape"], *, C: float = 1.0, f_star: float = 0.0, form: Form = "smooth"
) -> Float[Tensor, "*shape"]:
    """The multiplier of the learning rate at a loss, Section 3.3 (reconstructed).

    With the gap x = max(loss - f_star, 0) it is 1 / (1 + C x) (``"smooth"``), min(1, 1 / (C x))
    (``"clipped"``) or, of Riabinin et al. (2026) with K1 = 0, 2 C x / (1 + (C x)²) where C x is above 1 and
    1 below (``"rational"``). The first is never more than half below the second.

    Args:
        loss: losses, of any shape.
        C: the warm-up parameter, above 0, in units of 1 / loss; 1 / C is the gap at which warm-up is half
            done (smooth) or over (the others).
        f_star: a lower bound on the loss, or better the loss that training will reach.
        form: which of the three.

    Returns:
        Multipliers in (0, 1], of the loss's shape; NaN where the loss is NaN, 0 where it is infinite.

    Raises:
        ValueError: if ``C``, ``f_star`` or ``form`` is out of its range.

    >>> warmup_multiplier(torch.tensor([0.0, 1.0, 3.0]))
    tensor([1.0000, 0.5000, 0.2500])
    >>> warmup_multiplier(torch.tensor([0.0, 1.0, 3.0]), form="clipped")
    tensor([1.0000, 1.0000, 0.3333])
    """
    multiplier: Tensor = Schedule(C=C, f_star=f_star, form=form).multiplier(loss)
    return multiplier


Value = float | Tensor
"""A number, or a 0-dim tensor where the learning rate is one, so that nothing waits for the device."""


class WarmupState(NamedTuple):
    """What a warm-up remembers from step to step, as numbers or as 0-dim tensors.

    Attributes:
        steps: optimizer steps taken.
        average: the running average of the loss; NaN before the first finite loss.
        multiplier: the last multiplier; 1 before the first step.
        released_at: the step from which on the multiplier is 1 for good; -1 before.
        lowest: the smallest loss seen; NaN before the first.
        odd: whether a loss was not finite.
    """

    steps: int
    average: Value
    multiplier: Value
    released_at: Value
    lowest: Value
    odd: bool | Tensor

    @classmethod
    def initial(cls, device: torch.device | None = None) -> WarmupState:
        """Nothing seen yet: numbers, or tensors on a device, float64 where it has it."""
        start = cls(0, math.nan, 1.0, -1.0, math.nan, False)
        return start if device is None else start.to(device)

    def to(self, device: torch.device | None) -> WarmupState:
        """The same as tensors on a device, or as numbers; waits for the device that it comes from."""
        return WarmupState.of_numbers(self.numbers(), device)

    def numbers(self) -> dict[str, float]:
        """The state as plain numbers; waits for the device."""
        return {"steps": self.steps, **{name: float(getattr(self, name)) for name in self._fields[1:]}}

    @classmethod
    def of_numbers(cls, numbers: dict[str, float], device: torch.device | None = None) -> WarmupState:
        """The state of which `numbers` gave the numbers, as numbers or as tensors on a device."""
        values: list[Any] = [float(numbers[name]) for name in cls._fields[1:-1]] + [bool(numbers["odd"])]
        if device is not None:
            dtype = torch.float32 if device.type == "mps" else torch.float64
            values = [
                torch.tensor(value, dtype=torch.bool if value is values[-1] else dtype, device=device)
                for value in values
            ]
        return cls(int(numbers["steps"]), *values)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The settings of a warm-up, and its step: Section 3.3, algorithm steps 2 to 4 (reconstructed).

    Args:
        C: the warm-up parameter, above 0.
        f_star: a lower bound on the loss, or the loss that training will reach.
        form: ``"smooth"``, ``"clipped"`` or ``"rational"``, see `warmup_multiplier`.
        ema: weight of the past in the average of the loss, at least 0 and below 1.
        monotone: whether the multiplier never goes down.
        max_steps: the step from which on the multiplier is 1; None: never for that reason.
        release_at: the multiplier, above 0 and at most 1, at which it becomes 1 for good; None: never.

    Raises:
        ValueError: if one is out of its range; the text names it.
    """

    C: float = 1.0
    f_star: float = 0.0
    form: Form = "smooth"
    ema: float = 0.0
    monotone: bool = False
    max_steps: int | None = None
    release_at: float | None = None

    def __post_init__(self) -> None:
        _check("C", self.C, 0 < _number(self.C) < math.inf, "a finite number above 0")
        _check("f_star", self.f_star, math.isfinite(_number(self.f_star)), "a finite number")
        _check("form", self.form, self.form in FORMS, " or ".join(map(repr, FORMS)))
        _check("ema", self.ema, 0 <= _number(self.ema) < 1, "a number of at least 0 and below 1")
        steps, release = self.max_steps, self.release_at
        whole = isinstance(steps, int) and not isinstance(steps, bool)
        _check(
            "max_steps", steps, steps is None or (whole and steps >= 0), "None or a whole number from 0 on"
        )
        fits = release is None or 0 < _number(release) <= 1
        _check("release_at", release, fits, "None or a number above 0 and at most 1")

    def multiplier(self, loss: Any) -> Any:
        """The multiplier at a loss, a number or a tensor of any shape; see `warmup_multiplier`."""
        scaled = self.C * _at_least(loss - self.f_star, 0.0)
        if self.form == "smooth":
            return 1 / (1 + scaled)
        beyond = _at_least(scaled, 1.0)
        if self.form == "clipped":
            return 1 / beyond
        return 2 / (beyond + 1 / beyond)

    def advance(self, state: WarmupState, loss: Value) -> WarmupState:
        """The state after one more loss.

        Where the state holds tensors, nothing waits for the device; where it holds numbers, they are the same
        to the bit, and a loss on a device is waited for.

        Args:
            state: the state before, not changed.
            loss: the loss of the step, a number or 0-dim.

        Returns:
            The state with the multiplier of this step. A loss that is not finite leaves average and
            multiplier as they were.
        """
        loss = torch.as_tensor(loss).to(state.average) if _is_tensor(state.average) else float(loss)
        known = _is_finite(loss)
        fresh = loss
        if self.ema:
            mixed = self.ema * state.average + (1 - self.ema) * loss
            fresh = _where(_is_nan(state.average), loss, mixed)
        multiplier = self.multiplier(fresh)
        if self.monotone:
            least = _where(_is_nan(state.average), 0.0, state.multiplier)
            multiplier = _where(multiplier > least, multiplier, least)
        multiplier = _where(known, multiplier, state.multiplier)
        multiplier, released_at = self._released(state, multiplier)
        return WarmupState(
            steps=state.steps + 1,
            average=_where(known, fresh, state.average),
            multiplier=multiplier,
            released_at=released_at,
            lowest=_where(loss >= state.lowest, state.lowest, _where(_is_nan(loss), state.lowest, loss)),
            odd=_where(known, state.odd, True),
        )

    def _released(self, state: WarmupState, multiplier: Value) -> tuple[Value, Value]:
        """The multiplier, 1 where warm-up is over, and since when it is."""
        if self.max_steps is None and self.release_at is None:
            return multiplier, state.released_at
        released = state.released_at >= 0
        now = released | (self.max_steps is not None and state.steps >= self.max_steps)
        if self.release_at is not None:
            now = now | (multiplier >= self.release_at)
        since = _where(released, state.released_at, _where(now, float(state.steps), state.released_at))
        return _where(now, 1.0, multiplier), since


def _at_least(value: Any, least: float) -> Any:
    return value.clamp(min=least) if isinstance(value, Tensor) else max(value, least)


def _where(condition: Any, one: Any, other: Any) -> Any:
    if isinstance(condition, Tensor):
        return torch.where(condition, one, other)
    return one if condition else other


def _is_finite(value: Value) -> Any:
    return value.isfinite() if isinstance(value, Tensor) else math.isfinite(value)


def _is_nan(value: Value) -> Any:
    return value.isnan() if isinstance(value, Tensor) else math.isnan(value)


def _is_tensor(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor)


def _number(value: object) -> float:
    """The value where it is a number, else NaN, which is in no range."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _check(name: str, value: object, fits: bool, expected: str) -> None:
    if not fits:
        raise ValueError(f"{name}: expected {expected}, got {value!r}")
