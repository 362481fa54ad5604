"""The plain data that plugins and the core exchange; importing it costs nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

LEYDEN_API = 1
"""Version of the hook contract. A plugin module states the one it was written for under the same name."""

Kind = Literal[
    "optimizer", "lr_scheduler", "callback", "module", "layer", "loss", "metric", "datamodule", "function"
]
KINDS: tuple[str, ...] = get_args(Kind)

Capability = Literal["ddp", "fsdp2", "scaler", "bf16", "compile"]
"""What a component promises beyond the always-owed; the conformance kit checks what is promised."""
CAPABILITIES: tuple[str, ...] = get_args(Capability)

StatementKind = Literal["better", "not worse", "bound", "rate"]
Outcome = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The paper that a plugin implements.

    Attributes:
        title: the paper's full title.
        authors: its authors, in the paper's order.
        venue: where and when it appeared, such as ``"ICML 2026"``.
        url: where to read it.
        summary: one line: what a user gets.
        code: the authors' own code, or an empty string.
        exact: what of the implementation follows the text exactly and what is reconstructed, in a sentence.
    """

    title: str
    authors: tuple[str, ...]
    venue: str
    url: str
    summary: str
    code: str = ""
    exact: str = ""


@dataclass(frozen=True)
class Range:
    """The numbers between two ends, both included, that tuning may try for an argument.

    Attributes:
        low: the smallest.
        high: the largest.
        log: whether numbers are drawn evenly on a logarithmic scale; then ``low`` must be positive.
        integer: whether only whole numbers are meant.

    Raises:
        ValueError: if an end is not finite, the ends are not in order, or they do not fit ``log`` or
            ``integer``.

    >>> Range(0.001, 10), str(Range(1, 8, log=False, integer=True))
    (Range(low=0.001, high=10, log=True, integer=False), '1 to 8, whole numbers')
    """

    low: float
    high: float
    log: bool = True
    integer: bool = False

    def __post_init__(self) -> None:
        for name, end in (("low", self.low), ("high", self.high)):
            if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
                raise ValueError(f"{name} of a range must be a finite number, got {end!r}")
            if self.integer and end != int(end):
                raise ValueError(f"{name} of a range of whole numbers must be one, got {end!r}")
        if not self.low < self.high:
            raise ValueError(f"low of a range must be below high, got {self.low!r} and {self.high!r}")
        if self.log and self.low <= 0:
            raise ValueError(f"low of a logarithmic range must be above 0, got {self.low!r}")

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and (not self.integer or value == int(value))

    def __str__(self) -> str:
        """The range in words."""
        said = [f"{self.low:g} to {self.high:g}", "logarithmic" * self.log, "whole numbers" * self.integer]
        return ", ".join(filter(None, said))


Space = Range | tuple[bool | int | float | str | None, ...]
"""What tuning may try for one argument: a range, or one of several values."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """One thing that a plugin contributes.

    Attributes:
        kind: one of `KINDS`.
        path: dotted path that imports it, such as ``"leyden_sps_safe.SPSSafe"``.
        summary: one line.
        supports: what it promises beyond the always-owed, of `CAPABILITIES`.
        example: dotted path of a function that builds one for the conformance kit. For an optimizer it
            takes ``params``, for a scheduler ``optimizer``, for the rest nothing. Empty: call the component.
        trial: dotted path of a function without arguments that returns the `leyden.testing.Trial` on
            which the conformance kit tries the component. Empty: the kit's own small classifier.
        exempt: checks of the kit that cannot apply to it, by name, each with the reason that its
            documentation gives.
        search: what ``leyden compare`` may try for its arguments, by name: a `Range`, or a tuple of values.
        swap: dotted path of a function that puts it into somebody else's model, for ``leyden compare``. It
            takes the LightningModule and the component's arguments by name, and returns a LightningModule.
            Needed for kinds without a place of their own in a configuration, such as ``"layer"``.
    """

    kind: Kind
    path: str
    summary: str
    supports: tuple[Capability, ...] = ()
    example: str = ""
    trial: str = ""
    exempt: Mapping[str, str] = field(default_factory=dict, hash=False)
    search: Mapping[str, Space] = field(default_factory=dict, hash=False)
    swap: str = ""

    @property
    def name(self) -> str:
        """Short name, the last part of the path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One setting that a plugin reads from ``[plugins.NAME.options]`` of plugins.toml.

    Attributes:
        name: the key.
        type: the Python type a value must have (``bool``, ``int``, ``float`` or ``str``).
        default: the value where the user says nothing.
        summary: one line.
    """

    name: str
    type: type
    default: bool | int | float | str
    summary: str


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of ``leyden doctor``.

    Attributes:
        name: what is checked, in a few words.
        function: dotted path of a function without arguments that returns what it found, in a line, and
            raises an exception whose text says what is wrong and what to do.
    """

    name: str
    function: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """What ``leyden_run_start`` and ``leyden_run_end`` are told.

    Attributes:
        key: identity of the run, unique on every machine.
        name: the run's name in MLflow.
        kind: ``"fit"``, ``"validate"``, ``"test"``, ``"predict"``, ``"claim"`` or ``"compare"``.
        plugin: the plugin whose claim it is, or an empty string.
        settings: the resolved settings.
    """

    key: str
    name: str
    kind: str
    plugin: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended: ``"FINISHED"``, ``"FAILED"`` or ``"KILLED"``, its last metrics, its error's text."""

    status: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the measurements say about one statement.

    Attributes:
        statement: identity of the statement within its claim.
        text: the statement in words.
        kind: the rule that judged it.
        outcome: ``"holds"``, ``"does not hold"`` or ``"undecided"``.
        estimate: the measured quantity (a mean paired difference or ratio, a worst slack or a slope); NaN if
            nothing ran.
        low, high: its 95 % interval (for a bound: smallest and largest slack).
        threshold: what the interval is compared with, in the same unit (for a rate: the range's lower end).
        unit: the unit of all four, such as ``"accuracy"``.
        pairs: how many pairs, cells or points the estimate rests on.
        seeds_needed: for an undecided statement, the number of seeds expected to decide it; else None.
        detail: what was compared with what: the settings chosen, edges of grids, failed cells.
        threshold_high: for a rate, the upper end of the range; else None.
    """

    statement: str
    text: str
    kind: StatementKind
    outcome: Outcome
    estimate: float
    low: float
    high: float
    threshold: float
    unit: str = ""
    pairs: int = 0
    seeds_needed: int | None = None
    detail: str = ""
    threshold_high: float | None = None
