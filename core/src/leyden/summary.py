"""What a report says of a claim, before it is a table on a terminal, in Markdown or on a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from leyden.claims import Arm, Claim, Table
from leyden.formatting import (
    TIMES,
    axis_label,
    common_decimals,
    count,
    decimals_for,
    duration,
    interval_text,
    number,
    words,
)
from leyden.model import Outcome, Paper, Verdict
from leyden.statistics import GridPoint, Interval, Selection, best, interval

OUTCOMES: tuple[Outcome, ...] = ("holds", "does not hold", "undecided")
NO_QUOTE = "Nothing: this is a check of our own."
ICONS: Mapping[Outcome, str] = {"holds": "✓", "does not hold": "✗", "undecided": "?"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """A claim, what it measured, and where that came from.

    Attributes:
        claim: the claim.
        table: its results.
        verdicts: what `Claim.judge` returned.
        plugin: name of the plugin that makes the claim.
        scale: name of the scale it ran at; empty for what has none.
        paper: the plugin's paper.
        settings: what the run was asked for, such as jobs and executor; nested values get dotted names.
        provenance: versions, platform and commit, from `leyden.provenance`.
        command: what repeats it; empty: the command is put together from the rest.
        seconds: how long it took by the clock; NaN if unknown.
        date: when it ended.
        problems: what went wrong besides failed cells, such as a figure that could not be drawn.
        chosen: what tuning chose, by method, where it did so on other results than those of the table.
        notes: what a reader should know, in sentences.
    """

    claim: Claim
    table: Table
    verdicts: Sequence[Verdict]
    plugin: str
    scale: str
    paper: Paper | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    seconds: float = math.nan
    date: datetime = field(default_factory=lambda: datetime.now(UTC))
    problems: tuple[str, ...] = ()
    chosen: Mapping[str, Selection] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The claim as ``leyden reproduce`` takes it."""
        return f"{self.plugin}/{self.claim.name}"

    @property
    def repeat(self) -> str:
        """The command that repeats it."""
        seeds = self.table.seeds
        first = f" --first-seed {min(seeds)}" if seeds and min(seeds) > 0 else ""
        command = f"leyden reproduce {self.name} --scale {self.scale} --seeds {len(seeds)}{first}"
        return self.command or command

    @property
    def facts(self) -> dict[str, str]:
        """Scale, size, time and date in words."""
        failed = len(self.table.failed)
        cells = f"{len(self.table)}" + (f", {failed} failed" if failed else "")
        seeds = self.table.seeds
        which = f", {min(seeds)} to {max(seeds)}" if seeds and min(seeds) > 0 else ""
        facts = {"Scale": self.scale} if self.scale else {}
        facts |= {"Seeds": f"{len(seeds)}{which}", "Cells": cells}
        if math.isfinite(self.seconds):
            facts["Time"] = duration(self.seconds)
        return {**facts, "Date": self.date.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")}

    @property
    def tally(self) -> dict[Outcome, str]:
        """The verdicts counted, in words such as ``"2 hold"``, for each outcome that occurs."""
        plural: dict[Outcome, str] = {
            "holds": "hold",
            "does not hold": "do not hold",
            "undecided": "undecided",
        }
        amounts = {outcome: sum(v.outcome == outcome for v in self.verdicts) for outcome in OUTCOMES}
        return {o: f"{n} {o if n == 1 else plural[o]}" for o, n in amounts.items() if n}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the summary table.

    Attributes:
        arm: the method at the setting shown.
        found: mean and interval of the claim's metric.
        seeds: how many values it rests on.
        lost: cells that failed or measured nothing finite, in words.
        tried: among how many settings it was chosen; 1 where nothing was tuned.
        edges: where the choice lies at the edge of its grid, in words.
        difference: paired difference to the reference; None for the reference itself and where there is none.
        pairs: how many pairs that rests on.
        ratios: for each of the claim's ``ratios`` the geometric mean of the paired ratios to the reference.
    """

    arm: Arm
    found: Interval
    seeds: int
    lost: tuple[str, ...] = ()
    tried: int = 1
    edges: tuple[str, ...] = ()
    difference: Interval | None = None
    pairs: int = 0
    ratios: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """The setting in words; empty without one."""
        return str(self.arm)[len(self.arm.method) + 2 : -1] if self.arm.setting else ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader should know of this line."""
        edges = tuple(f"edge: {edge}" for edge in self.edges)
        lost = (f"{count(len(self.lost), 'cell')} without a value",) if self.lost else ()
        return edges + lost


def selections(claim: Claim, table: Table) -> dict[str, Selection]:
    """What tuning chose for each method: by the claim's validation metric or, without one, by its metric."""
    metric = claim.validation or claim.metric
    mode = (claim.validation_mode or claim.mode) if claim.validation else claim.mode
    chosen = {method: best(table, method, metric, mode) for method in table.methods}
    # A method with one setting needs no tuning, so it need not have measured the validation metric either.
    return {
        method: replace(selection, arm=selection.grid[0].arm) if len(selection.grid) == 1 else selection
        for method, selection in chosen.items()
    }


def summary_rows(claim: Claim, table: Table, chosen: Mapping[str, Selection] | None = None) -> list[Row]:
    """The lines of the summary table: each method at its tuned setting, or every setting if none is tuned.

    Args:
        claim: the claim.
        table: its results.
        chosen: what tuning chose, by method, where it did so on other results.
    """
    rows = []
    for method, selection in {**selections(claim, table), **(chosen or {})}.items():
        points = best(table, method, claim.metric, claim.mode).grid
        if not claim.validation:
            rows += [_row(point) for point in points]
        elif selection.arm is None:
            lost = tuple(reason for point in selection.grid for reason in point.lost)
            nothing = interval([])
            rows.append(Row(arm=Arm(method), found=nothing, seeds=0, lost=lost, tried=len(selection.grid)))
        else:
            point = next(point for point in points if point.arm == selection.arm)
            rows.append(_row(point, tried=len(selection.grid), edges=selection.edges))
    return _compared(rows, claim, table)


def _row(point: GridPoint, tried: int = 1, edges: tuple[str, ...] = ()) -> Row:
    return Row(
        arm=point.arm, found=point.interval, seeds=point.pairs, lost=point.lost, tried=tried, edges=edges
    )


def _compared(rows: list[Row], claim: Claim, table: Table) -> list[Row]:
    references = [row.arm for row in rows if row.arm.method == claim.reference and row.seeds]
    if len(references) != 1:
        return rows
    base = _finite(table, references[0], claim.metric)
    compared = []
    for row in rows:
        if row.arm == references[0] or not row.seeds:
            compared.append(row)
            continue
        own = _finite(table, row.arm, claim.metric)
        gains = [own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())]
        ratios = {name: _ratio(table, row.arm, references[0], name) for name in claim.ratios}
        compared.append(replace(row, difference=interval(gains), pairs=len(gains), ratios=ratios))
    return compared


def _ratio(table: Table, arm: Arm, reference: Arm, name: str) -> Interval:
    """The geometric mean of the ratios at the seeds where both are positive, with its interval."""
    own, base = _finite(table, arm, name), _finite(table, reference, name)
    logarithms = [
        math.log(own[seed] / base[seed])
        for seed in sorted(own.keys() & base.keys())
        if own[seed] > 0 and base[seed] > 0
    ]
    found = interval(logarithms)
    return Interval(*(math.inf if end > 700 else math.exp(end) for end in found))


def _finite(table: Table, arm: Arm, metric: str) -> dict[int, float]:
    return {seed: value for seed, value in table.by_seed(arm, metric).items() if math.isfinite(value)}


@dataclass(frozen=True, kw_only=True)
class SummaryTable:
    """The summary table in words: headings, and for each row its cells and remarks."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[tuple[str, ...], ...]


def summary_table(claim: Claim, table: Table, chosen: Mapping[str, Selection] | None = None) -> SummaryTable:
    """The summary in words: method, setting, mean with interval, seeds, difference to the reference, ratios.

    Args:
        claim: the claim.
        table: its results.
        chosen: what tuning chose, by method, where it did so on other results.
    """
    rows = summary_rows(claim, table, chosen)
    compared = any(row.difference for row in rows)
    decimals = common_decimals(row.found for row in rows)
    differences = common_decimals(row.difference for row in rows if row.difference)
    headings = ["Method", "Setting", f"{axis_label(claim.metric, claim.unit)} [95 %]", "Seeds"]
    if compared:
        headings.append(f"Difference to {claim.reference} [95 %]")
        headings += [f"{heading} [95 %]" for heading in claim.ratios.values()]
    lines = []
    for row in rows:
        tuned = f"best of {row.tried}" if row.tried > 1 else ""
        setting = " · ".join(part for part in (row.setting, tuned) if part)
        line = [row.arm.method, setting, interval_text(*row.found, decimals=decimals), str(row.seeds)]
        if compared:
            gap = row.difference
            same = "reference" if row.arm.method == claim.reference and row.seeds else "none"
            line.append(interval_text(*gap, sign=True, decimals=differences) if gap else same)
            line += [ratio_text(row.ratios[name]) if row.ratios else same for name in claim.ratios]
        lines.append(tuple(line))
    return SummaryTable(
        headings=tuple(headings), rows=tuple(lines), remarks=tuple(row.remarks for row in rows)
    )


def tuning_tables(
    claim: Claim, table: Table, chosen: Mapping[str, Selection] | None = None
) -> Iterator[tuple[Selection, SummaryTable]]:
    """For each tuned method its choice and its grid: setting, validation metric, claim's metric, seeds.

    Args:
        claim: the claim.
        table: its results.
        chosen: what tuning chose, by method, where it did so on other results; those have no claim's metric.
    """
    if not claim.validation:
        return
    for method, selection in (chosen or selections(claim, table)).items():
        if len(selection.grid) < 2:
            continue
        judged = selection.grid if chosen else best(table, method, claim.metric, claim.mode).grid
        by_validation = common_decimals(point.interval for point in selection.grid)
        by_metric = common_decimals(point.interval for point in judged)
        rows, remarks = [], []
        for point, test in zip(selection.grid, judged, strict=True):
            setting = str(point.arm)[len(method) + 2 : -1]
            tuned = interval_text(*point.interval, decimals=by_validation)
            tested = interval_text(*test.interval, decimals=by_metric)
            rows.append((setting, tuned, *(() if chosen else (tested,)), str(point.pairs)))
            lost = point.lost or test.lost
            said = ["chosen", *(selection.edges)] if point.arm == selection.arm else []
            remarks.append((*said, *([f"{count(len(lost), 'cell')} without a value"] if lost else [])))
        metrics = (claim.validation,) if chosen else (claim.validation, claim.metric)
        headings = ("Setting", *(f"{words(metric)} [95 %]" for metric in metrics), "Seeds")
        yield selection, SummaryTable(headings=headings, rows=tuple(rows), remarks=tuple(remarks))


def every_number(
    claim: Claim, table: Table, chosen: Mapping[str, Selection] | None = None
) -> Iterator[tuple[str, SummaryTable]]:
    """For each number measured its name, and a table of its mean with interval by row of the summary."""
    arms = [row.arm for row in summary_rows(claim, table, chosen) if row.seeds]
    measured = [result.measured for arm in arms for result in table.select(arm)]
    names = dict.fromkeys(
        name for numbers in measured for name, value in numbers.items() if not isinstance(value, Sequence)
    )
    for name in names:
        values = {str(arm): list(_finite(table, arm, name).values()) for arm in arms}
        found = {arm: (interval(known), len(known)) for arm, known in values.items() if known}
        decimals = common_decimals(mean for mean, _ in found.values())
        rows = tuple(
            (arm, interval_text(*mean, decimals=decimals), str(seeds)) for arm, (mean, seeds) in found.items()
        )
        headings = ("Method", f"{words(name)} [95 %]", "Seeds")
        yield words(name), SummaryTable(headings=headings, rows=rows, remarks=((),) * len(rows))


def ratio_text(found: Interval) -> str:
    """A ratio with its interval; its ends are of different size, so each gets its own digits.

    >>> ratio_text(Interval(1.25, 0.9, 12.0)), ratio_text(Interval(2.0, 0.0, math.inf))
    ('×1.25 [0.900, 12.0]', '×2.00 [no interval]')
    """
    if math.isnan(found.mean):
        return "not measured"
    middle, low, high = (number(end, _three_digits(end)) for end in found)
    ends = f"{low}, {high}" if math.isfinite(found.high) else "no interval"
    return f"{TIMES}{middle} [{ends}]"


def estimate_text(verdict: Verdict) -> str:
    """A verdict's estimate with its interval and unit, in digits that keep it apart from the threshold."""
    if math.isnan(verdict.estimate):
        return "nothing measured"
    unit = f" {verdict.unit}" if verdict.unit else ""
    ends = [verdict.estimate, verdict.low, verdict.high]
    if verdict.kind == "bound":
        low, high = number(verdict.low), number(verdict.high)
        return f"slack {low} to {high}{unit}"
    if verdict.unit == "ratio":
        # a ratio's ends are of different size, so each gets its own digits
        middle, low, high = (number(end, _three_digits(end)) for end in ends)
        return f"{middle} [{low}, {high}]{unit}"
    decimals = decimals_for((verdict.high - verdict.low) / 2)
    if decimals is not None:
        # an end that decides must not look like the threshold that it is beside
        gaps = [abs(end - verdict.threshold) for end in (verdict.low, verdict.high)]
        nearest = min((gap for gap in gaps if gap > 1e-9 * abs(verdict.threshold)), default=math.inf)
        while decimals < 8 and nearest < 0.5 * 10**-decimals:
            decimals += 1
    return interval_text(*ends, sign=True, decimals=decimals) + unit


def _three_digits(value: float) -> int | None:
    return max(0, 2 - math.floor(math.log10(value))) if 0 < value < math.inf else None


def threshold_text(verdict: Verdict) -> str:
    """What the interval must do for the statement to hold."""
    if verdict.kind == "bound":
        return f"every slack must be at least {number(verdict.threshold)}"
    if verdict.kind == "rate" and verdict.threshold_high is not None:
        if math.isinf(verdict.threshold):
            return f"the interval must lie below {number(verdict.threshold_high)}"
        if math.isinf(verdict.threshold_high):
            return f"the interval must lie above {number(verdict.threshold)}"
        ends = f"{number(verdict.threshold)} and {number(verdict.threshold_high)}"
        return f"the interval must lie between {ends}"
    return f"the interval must lie above {number(verdict.threshold)}"


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names with their values in words."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{key}", f"{value:g}" if isinstance(value, float) else str(value)
