"""A paper's claim as an executable experiment: its cells, its statements and how they are judged.

This module is imported when claims are listed, so it imports nothing heavy; `leyden.statistics` judges.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from leyden.model import StatementKind, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scalar = bool | int | float | str | None
Measured = Mapping[str, float | Sequence[float]]
"""What a cell returns: named numbers, and named series of numbers for the figures."""

Mode = Literal["max", "min"]
"""Whether a larger or a smaller value of a metric is the better one."""

ScaleName = Literal["smoke", "laptop", "paper"]
SCALES: tuple[ScaleName, ...] = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Scale:
    """How large an experiment is run.

    Attributes:
        name: ``"smoke"`` (seconds, for tests), ``"laptop"`` (minutes on two cores) or ``"paper"``.
        seeds: how many seeds; a claim runs seeds 0 to ``seeds - 1``.
    """

    name: ScaleName
    seeds: int

    def pick(self, *, smoke: Any, laptop: Any, paper: Any = None) -> Any:
        """Return the value for this scale; ``paper`` defaults to the laptop's."""
        values = {"smoke": smoke, "laptop": laptop, "paper": laptop if paper is None else paper}
        return values[self.name]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One independent job of a claim: a method, at one setting, with one seed.

    Attributes:
        method: the arm it belongs to, such as ``"SPSSafe"``.
        seed: the seed; cells of the same seed are paired.
        setting: the values that distinguish it from its neighbours on the method's grid, such as
            ``{"M": 1.0}``.
        scale: name of the scale it belongs to; empty for a cell of no claim.
        options: further values that `Claim.run` needs and that are the same for the whole method or scale.
    """

    method: str
    seed: int
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    scale: ScaleName | Literal[""] = "laptop"
    options: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The setting in words, such as ``"M=1, ell_star=0"``."""
        return ", ".join(f"{key}={_short(value)}" for key, value in self.setting.items())

    @property
    def name(self) -> str:
        """The cell in words, such as ``"SPSSafe (M=1) seed 0"``."""
        return f"{Arm(self.method, self.setting)} seed {self.seed}"

    @property
    def digest(self) -> str:
        """A short identity, the same in every process, safe as a file name."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What running a cell gave.

    Attributes:
        cell: the cell.
        status: ``"done"``, ``"failed"`` (it raised) or ``"crashed"`` (its process died twice).
        measured: what `Claim.run` returned; empty unless done.
        seconds: wall time.
        error: the traceback's text; empty when done.
    """

    cell: Cell
    status: Literal["done", "failed", "crashed"]
    measured: Measured = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One sentence of a claim that the measurements can confirm or refute.

    Attributes:
        id: short identity within the claim, such as ``"robust-to-M"``.
        text: what is stated, in a sentence.
        kind: the rule that judges it.
        paper: what the paper says, with its place; empty for a statement of our own.
    """

    id: str
    text: str
    kind: StatementKind
    paper: str = ""


@dataclass(frozen=True)
class Arm:
    """A method at one setting; ``setting=None`` stands for all the cells of the method."""

    method: str
    setting: Mapping[str, Scalar] | None = None

    def __str__(self) -> str:
        """The arm in words."""
        if not self.setting:
            return self.method
        return f"{self.method} ({', '.join(f'{key}={_short(value)}' for key, value in self.setting.items())})"


class Table:
    """The results of a claim's cells, in the order of `Claim.cells`."""

    def __init__(self, results: Iterable[CellResult]) -> None:
        self.results: tuple[CellResult, ...] = tuple(results)

    def __iter__(self) -> Iterator[CellResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def done(self) -> tuple[CellResult, ...]:
        """The results that were measured."""
        return tuple(result for result in self.results if result.status == "done")

    @property
    def failed(self) -> tuple[CellResult, ...]:
        """The results that failed or crashed."""
        return tuple(result for result in self.results if result.status != "done")

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in order of appearance."""
        return tuple(dict.fromkeys(result.cell.method for result in self.results))

    def arms(self, method: str | None = None) -> tuple[Arm, ...]:
        """Every (method, setting) pair, in order of appearance, of one method or of all."""
        seen = {
            (result.cell.method, tuple(result.cell.setting.items()))
            for result in self.results
            if method in (None, result.cell.method)
        }
        ordered = dict.fromkeys(
            (result.cell.method, tuple(result.cell.setting.items())) for result in self.results
        )
        return tuple(Arm(name, dict(setting)) for name, setting in ordered if (name, setting) in seen)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending."""
        return tuple(sorted({result.cell.seed for result in self.results}))

    def of(self, arm: Arm) -> tuple[CellResult, ...]:
        """Every result of an arm, also those that failed."""
        return tuple(
            result
            for result in self.results
            if result.cell.method == arm.method
            and (arm.setting is None or dict(result.cell.setting) == dict(arm.setting))
        )

    def select(self, arm: Arm) -> tuple[CellResult, ...]:
        """The measured results of an arm."""
        return tuple(result for result in self.of(arm) if result.status == "done")

    def by_seed(self, arm: Arm, metric: str) -> dict[int, float]:
        """The metric of an arm, a value for each seed that has it.

        Raises:
            ValueError: if the arm has several cells of one seed (give its setting), or the metric is a
                series.
        """
        values: dict[int, float] = {}
        for result in self.select(arm):
            if metric not in result.measured:
                continue
            if result.cell.seed in values:
                raise ValueError(f"arm {arm} has several cells of seed {result.cell.seed}; give its setting")
            value = result.measured[metric]
            if isinstance(value, Sequence):
                raise ValueError(f"{metric} of {result.cell.name} is a series, not a number")
            values[result.cell.seed] = float(value)
        return values

    def series(self, arm: Arm, name: str) -> list[list[float]]:
        """The series of an arm, one list a cell."""
        found = [result.measured.get(name) for result in self.select(arm)]
        return [list(values) for values in found if isinstance(values, Sequence)]

    def series_by_seed(self, arm: Arm, name: str) -> dict[int, list[float]]:
        """The series of an arm, one list for each seed that has it.

        Raises:
            ValueError: if the arm has several cells of one seed (give its setting).
        """
        found: dict[int, list[float]] = {}
        for result in self.select(arm):
            values = result.measured.get(name)
            if not isinstance(values, Sequence):
                continue
            if result.cell.seed in found:
                raise ValueError(f"arm {arm} has several cells of seed {result.cell.seed}; give its setting")
            found[result.cell.seed] = list(values)
        return found

    def along(self, method: str, key: str, metric: str) -> tuple[list[float], dict[int, list[float]]]:
        """A metric as a function of one numeric value of the setting, such as a problem's size.

        Args:
            method: the method; its cells must differ in nothing but this value and the seed.
            key: the value's name in the setting.
            metric: what was measured.

        Returns:
            The values of the key, ascending, and for each seed the metric at each of them (NaN where it is
            missing), as `leyden.statistics.rate` takes them.
        """
        arms = sorted(
            (arm for arm in self.arms(method) if _is_number((arm.setting or {}).get(key))),
            key=lambda arm: float((arm.setting or {})[key]),  # type: ignore[arg-type]
        )
        columns = [self.by_seed(arm, metric) for arm in arms]
        seeds = sorted({result.cell.seed for result in self.results if result.cell.method == method})
        places = [float((arm.setting or {})[key]) for arm in arms]  # type: ignore[arg-type]
        return places, {seed: [column.get(seed, float("nan")) for column in columns] for seed in seeds}


class Claim(ABC):
    """A claim of a paper as an experiment that anyone can run.

    A plugin subclasses it and names the class in ``leyden_claims``. A claim has no state: it is constructed
    without arguments in every worker. Class attributes describe it without running anything.

    Attributes:
        name: short name, as in ``leyden reproduce PLUGIN/NAME``.
        title: one line.
        source: where the paper makes the claim (section, figure, table) or "ours" for a check of our own.
        statements: what is judged.
        minutes: expected minutes on two cores, by scale.
        seeds: number of seeds by scale, where the user gives none.
        metric: the metric of the summary table, measured on test data.
        unit: its unit, such as ``"s"``; empty for a pure number.
        mode: whether a larger or a smaller value of it is better.
        validation: the metric that chooses each method's setting; empty where nothing is tuned, and then the
            summary table shows every setting.
        validation_mode: whether a larger or a smaller value of that is better; None: as ``mode``.
        reference: the method that the summary table compares the others with; empty for none.
        ratios: further numbers that cells measure, of which the summary table shows the ratio to the
            reference: for each its heading.
        imports: modules that each worker imports once, before the clock of its first cell starts.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    statements: ClassVar[tuple[Statement, ...]]
    minutes: ClassVar[Mapping[str, float]]
    seeds: ClassVar[Mapping[str, int]]
    metric: ClassVar[str]
    unit: ClassVar[str] = ""
    mode: ClassVar[Mode] = "max"
    validation: ClassVar[str] = ""
    validation_mode: ClassVar[Mode | None] = None
    reference: ClassVar[str] = ""
    ratios: ClassVar[Mapping[str, str]] = {}
    imports: ClassVar[tuple[str, ...]] = ("lightning",)

    @abstractmethod
    def cells(self, scale: Scale) -> Sequence[Cell]:
        """The independent jobs at a scale, in the order of the table."""

    @abstractmethod
    def run(self, cell: Cell) -> Measured:
        """Run one cell and return what it measured. Called in a worker; must depend on the cell alone."""

    @abstractmethod
    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement, with the rules of `leyden.statistics`."""

    def figure(self, table: Table) -> Figure | Mapping[str, Figure] | None:
        """Draw the result; several figures go by name. None draws the default one of the summary metric."""
        return None

    def statement(self, id: str) -> Statement:
        """The statement of that identity."""
        for statement in self.statements:
            if statement.id == id:
                return statement
        raise KeyError(id)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Scalar) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
