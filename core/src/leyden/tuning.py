"""Choosing a method's setting on a validation metric, and reading what an arm measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from leyden.claims import Arm, CellResult, Mode, Scalar, Table
from leyden.intervals import Interval, interval


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One setting of a tuned method.

    Attributes:
        arm: the method at this setting.
        interval: the tuning metric, mean over seeds with its interval; NaN if nothing was measured.
        pairs: how many seeds it rests on.
        lost: the cells that failed or measured nothing finite, in words; such a setting cannot be chosen.
    """

    arm: Arm
    interval: Interval
    pairs: int
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A method with the setting that tuning chose; the rules take it in place of an arm.

    Attributes:
        method: the method.
        metric: the validation metric that chose.
        mode: whether a larger or a smaller value of it is better.
        grid: every setting tried, in the order of the table.
        arm: the chosen one; None if no setting finished on every seed.
        edges: where the choice lies at an edge of its grid, in words, such as
            ``"M=0.001 is the smallest tried"``.
    """

    method: str
    metric: str
    mode: Mode
    grid: tuple[GridPoint, ...]
    arm: Arm | None
    edges: tuple[str, ...] = ()

    @property
    def at_edge(self) -> bool:
        """Whether a wider grid might have found a better setting."""
        return bool(self.edges)

    @property
    def value(self) -> float:
        """The validation metric of the choice, a mean over seeds; NaN without a choice."""
        return next((point.interval.mean for point in self.grid if point.arm == self.arm), math.nan)


def best(table: Table, method: str, metric: str, mode: Mode = "max") -> Selection:
    """Choose a method's setting by its mean over seeds on a validation metric.

    A setting of which a cell failed or measured nothing finite loses. Of equal settings the first wins.

    Args:
        table: the results.
        method: the method whose settings are compared.
        metric: the validation metric.
        mode: whether a larger or a smaller value is better.

    Returns:
        The choice with its grid; its ``arm`` is None if no setting qualifies.

    Raises:
        ValueError: if the mode is neither, or a setting has several cells of one seed.
    """
    check_mode(mode)
    grid = tuple(_grid_point(table, arm, metric) for arm in table.arms(method))
    qualified = [point for point in grid if not point.lost and point.pairs]
    if not qualified:
        return Selection(method=method, metric=metric, mode=mode, grid=grid, arm=None)
    choose = max if mode == "max" else min
    chosen = choose(qualified, key=lambda point: point.interval.mean).arm
    edges = _edges(chosen, [point.arm for point in grid])
    return Selection(method=method, metric=metric, mode=mode, grid=grid, arm=chosen, edges=edges)


def check_mode(mode: Mode) -> None:
    """Refuse what is neither "max" nor "min"; a misspelt one would turn every verdict round."""
    if mode not in ("max", "min"):
        raise ValueError(f"mode is {mode!r}; it must be 'max' or 'min'")


@dataclass
class Reading:
    """One side of a comparison.

    Attributes:
        label: what it is, in words.
        values: its values by seed.
        constant: the value at every seed, for a side that is a number.
        lost: cells without a finite value, in words.
        remarks: what a verdict should tell of it.
        grid: among how many settings it was chosen.
    """

    label: str
    values: dict[int, float] = field(default_factory=dict)
    constant: float | None = None
    lost: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    grid: int | None = None


def read_arm(arm: Arm, table: Table, metric: str) -> Reading:
    """Read an arm's metric by seed, and which of its cells have no finite value.

    Raises:
        ValueError: if the arm has several cells of one seed (give its setting).
    """
    reading = Reading(str(arm))
    results = table.of(arm)
    if not results:
        reading.lost.append(f"there is no cell of {arm}")
    seen: set[int] = set()
    for result in results:
        if result.cell.seed in seen:
            raise ValueError(f"arm {arm} has several cells of seed {result.cell.seed}; give its setting")
        seen.add(result.cell.seed)
        value = measured(result, metric)
        if isinstance(value, str):
            reading.lost.append(value)
        else:
            reading.values[result.cell.seed] = value
    return reading


def measured(result: CellResult, metric: str) -> float | str:
    """The cell's finite value of a metric, or why there is none."""
    if result.status != "done":
        return f"{result.cell.name} {result.status}"
    value = result.measured.get(metric)
    if value is None:
        return f"{result.cell.name} did not measure {metric}"
    if isinstance(value, Sequence):
        return f"{result.cell.name} measured a series of {metric}"
    return float(value) if math.isfinite(value) else f"{result.cell.name} measured {value}"


def _grid_point(table: Table, arm: Arm, metric: str) -> GridPoint:
    reading = read_arm(arm, table, metric)
    values = reading.values.values()
    return GridPoint(arm=arm, interval=interval(values), pairs=len(values), lost=tuple(reading.lost))


def _edges(chosen: Arm, arms: Sequence[Arm]) -> tuple[str, ...]:
    edges = []
    for key, value in (chosen.setting or {}).items():
        tried = {other for arm in arms if _numeric(other := (arm.setting or {}).get(key))}
        if not _numeric(value) or len(tried) < 2:
            continue
        for extreme, word in ((min(tried), "smallest"), (max(tried), "largest")):  # type: ignore[type-var]
            if value == extreme:
                edges.append(f"{key}={value:g} is the {word} tried")
    return tuple(edges)


def _numeric(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
