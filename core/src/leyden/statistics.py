r"""Judging a claim: intervals instead of means, pairs instead of groups, three verdicts instead of two.

Every rule compares an interval with a threshold. A statement *holds* if its 95 % interval lies wholly on
the right side, *does not hold* if it lies wholly on the other, and is *undecided* if it straddles; then
the rule tells how many seeds would be expected to decide. No rule looks at a mean alone.

**Pairs.** Arm $a$ and baseline $b$ run with the same seeds (the same split, the same initial weights, the
same batches), so what is common to both cancels. For seed $s$ the gain is

$$d_s = a_s - b_s \quad\text{(larger is better)}, \qquad d_s = b_s - a_s \quad\text{(smaller is better)},$$

or, compared by ratio, $d_s = \log(a_s / b_s)$ and $d_s = \log(b_s / a_s)$; estimates and thresholds are
then reported as ratios (a geometric mean).

**Interval.** With $n$ pairs, mean $\bar d$ and standard deviation $\sigma = \sqrt{\sum_s (d_s - \bar d)^2
/ (n-1)}$, Student's interval is

$$\bar d \pm t_{0.975,\,n-1}\,\frac{\sigma}{\sqrt n}.$$

It covers the true mean in 95 of 100 repetitions if the gains are about normal. Each statement has its own
interval; nothing is corrected for the number of statements.

**Rules.** With margin $m$ and the interval $[l, h]$:

| rule       | holds                     | does not hold            |
|------------|---------------------------|--------------------------|
| better     | $l > m$                   | $h < m$                  |
| not worse  | $l > -m$                  | $h < -m$                 |
| bound      | every slack $\ge -\tau$   | one slack $< -\tau$      |
| rate       | $r_1 < l$ and $h < r_2$   | $h < r_1$ or $l > r_2$   |

By ratio the thresholds are $m$ (better) and $1/m$ (not worse), $m \ge 1$. The rate is the slope of a
least-squares line of $\log y$ on $\log x$, fitted for each seed by itself; its interval is Student's over
the seeds' slopes, since the points of one run depend on each other.

**Seeds needed.** The smallest $n$ with $t_{0.975,\,n-1}\,\sigma/\sqrt n < |\bar d - \theta|$, the
threshold being $\theta$: an expectation from the mean and the spread seen so far, not a promise. There is
none if the mean stands at the threshold, or if it would take more than `MAX_SEEDS`.

**What is not decided.** Fewer than two pairs. A comparison of which a cell failed or measured NaN or
infinity: the survivors are not a fair sample, so the cells are named and the verdict waits. Equal gains
at every seed: the formula's width is zero, yet two equal numbers do not prove a third; the verdict then
rests on the sign test, which needs `SIGN_TEST_PAIRS` pairs ($2 \cdot 2^{-6} < 0.05$).

**Tuning.** `best` chooses a method's setting by the mean over seeds of a *validation* metric; what is
judged is another metric, on test data. A verdict tells how many settings each side chose from, and when
the choice lies at the edge of its grid, where a wider grid might have found a better one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from leyden.claims import Arm, Claim, Mode, Statement, Table
from leyden.formatting import count, listing, number, words
from leyden.intervals import LEVEL, MAX_SEEDS, Interval, deviation, interval, seeds_needed
from leyden.model import Outcome, StatementKind, Verdict
from leyden.tuning import GridPoint, Reading, Selection, best, check_mode, measured, read_arm

__all__ = [
    "LEVEL",
    "MAX_SEEDS",
    "SIGN_TEST_PAIRS",
    "Comparison",
    "GridPoint",
    "Interval",
    "Judge",
    "Selection",
    "Side",
    "best",
    "better",
    "bound",
    "interval",
    "not_worse",
    "rate",
    "seeds_needed",
]

SIGN_TEST_PAIRS = 6
"""Pairs of equal gains from which the sign test decides at `LEVEL`."""

Comparison = Literal["difference", "ratio"]

_ROUNDING = 1e-12


Side = Arm | Selection | str | float | Mapping[int, float]
"""One side of a comparison: an arm, a tuned method, a method's name, a constant, or a value for each seed."""


def better(
    statement: Statement,
    table: Table,
    arm: Side,
    baseline: Side,
    metric: str,
    *,
    margin: float | None = None,
    mode: Mode = "max",
    by: Comparison = "difference",
    unit: str = "",
) -> Verdict:
    """Judge that an arm is better than a baseline by more than a margin.

    Args:
        statement: what is judged.
        table: the results.
        arm: what is claimed to be better.
        baseline: what it is compared with, over the same seeds.
        metric: the metric, measured on test data.
        margin: the gain that must be exceeded: 0 or more by difference (default 0), a factor of 1 or more by
            ratio (default 1).
        mode: whether a larger or a smaller value of the metric is better.
        by: whether gains are differences or ratios.
        unit: the unit of the estimate, for the report.

    Raises:
        ValueError: if the margin or the mode is out of its range, or an arm has several cells of one seed.
    """
    least = _checked_margin(margin, by)
    return _compare(statement, "better", table, arm, baseline, metric, least, mode, by, unit)


def not_worse(
    statement: Statement,
    table: Table,
    arm: Side,
    baseline: Side,
    metric: str,
    *,
    margin: float | None = None,
    mode: Mode = "max",
    by: Comparison = "difference",
    unit: str = "",
) -> Verdict:
    """Judge that an arm is at most a margin worse than a baseline.

    Args:
        statement: what is judged.
        table: the results.
        arm: what is claimed to keep up.
        baseline: what it is compared with, over the same seeds.
        metric: the metric, measured on test data.
        margin: the loss that is allowed: 0 or more by difference (default 0), a factor of 1 or more by ratio
            (default 1).
        mode: whether a larger or a smaller value of the metric is better.
        by: whether gains are differences or ratios.
        unit: the unit of the estimate, for the report.

    Raises:
        ValueError: if the margin or the mode is out of its range, or an arm has several cells of one seed.
    """
    allowed = _checked_margin(margin, by)
    threshold = 1 / allowed if by == "ratio" else 0.0 - allowed
    return _compare(statement, "not worse", table, arm, baseline, metric, threshold, mode, by, unit)


class Judge:
    """Compares the arms of a claim's table in the way that most of its statements share.

    A verdict needs a line then::

        judge = Judge(self, table, unit="accuracy")
        return [judge.better("gains", own, tuned["SGD"]), judge.not_worse("keeps-up", own, "Adam", 0.02)]

    Args:
        claim: whose statements are judged, and whose metric and mode are used.
        table: the results.
        metric: the metric, if it is not the claim's.
        mode: whether a larger or a smaller value of it is better, if not as the claim says.
        by: whether gains are differences or ratios.
        unit: the unit of the estimates, for the report.
    """

    def __init__(
        self,
        claim: Claim,
        table: Table,
        metric: str = "",
        *,
        mode: Mode | None = None,
        by: Comparison = "difference",
        unit: str = "",
    ) -> None:
        self.claim = claim
        self.table = table
        self.metric = metric or claim.metric
        self.mode: Mode = mode or claim.mode
        self.by: Comparison = by
        self.unit = unit

    def better(
        self, statement: str, arm: Side, baseline: Side, margin: float | None = None, *, metric: str = ""
    ) -> Verdict:
        """Judge by `better` the statement of that identity, on another metric if one is named."""
        return self._by(better, statement, arm, baseline, margin, metric)

    def not_worse(
        self, statement: str, arm: Side, baseline: Side, margin: float | None = None, *, metric: str = ""
    ) -> Verdict:
        """Judge by `not_worse` the statement of that identity, on another metric if one is named."""
        return self._by(not_worse, statement, arm, baseline, margin, metric)

    def _by(
        self,
        rule: Callable[..., Verdict],
        statement: str,
        arm: Side,
        baseline: Side,
        margin: float | None,
        metric: str,
    ) -> Verdict:
        return rule(
            self.claim.statement(statement),
            self.table,
            arm,
            baseline,
            metric or self.metric,
            margin=margin,
            mode=self.mode,
            by=self.by,
            unit=self.unit,
        )


def bound(
    statement: Statement,
    slacks: Table | Mapping[str, float],
    metric: str = "",
    *,
    arms: Sequence[Arm | str] | None = None,
    tolerance: float = 0.0,
    unit: str = "",
) -> Verdict:
    """Judge that an inequality holds in every cell; one violation refutes it.

    Args:
        statement: what is judged.
        slacks: the table, or a slack for each cell by name. A slack is the right side minus the left side.
        metric: the slack's name in the table; where a cell measured a series, its smallest value counts.
        arms: whose cells are meant (arms or methods); None: every method of which a cell measured it.
        tolerance: how far below zero rounding may push a slack, not negative.
        unit: the slack's unit, for the report.

    Returns:
        A verdict whose estimate is the smallest slack and whose ends are the smallest and the largest.

    Raises:
        ValueError: if the tolerance is negative.
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance!r}; it must be 0 or more")
    known, lost = _slacks(slacks, metric, arms)
    violated = sorted((name for name in known if known[name] < -tolerance), key=lambda name: known[name])
    outcome: Outcome = "undecided" if lost or not known else "holds"
    parts = []
    if violated:
        outcome = "does not hold"
        parts.append(
            f"violated in {len(violated)} of {count(len(known), 'cell')}, worst: {violated[0]}, "
            f"slack {number(known[violated[0]])}"
        )
    elif known:
        worst = min(known, key=lambda name: known[name])
        parts.append(f"satisfied in {count(len(known), 'cell')}; the tightest is {worst}")
    else:
        parts.append("nothing was measured")
    if lost:
        parts.append("not measured: " + listing(lost))
    low = min(known.values(), default=-math.inf)
    return Verdict(
        statement=statement.id,
        text=statement.text,
        kind="bound",
        outcome=outcome,
        estimate=low if known else math.nan,
        low=low,
        high=max(known.values(), default=math.inf),
        threshold=0.0 - tolerance,
        unit=unit,
        pairs=len(known),
        detail="; ".join(parts),
    )


def rate(
    statement: Statement,
    x: Sequence[float],
    y: Mapping[int, Sequence[float]],
    low: float,
    high: float,
    *,
    unit: str = "slope",
) -> Verdict:
    """Judge that y grows or falls as a power of x whose exponent lies in a range.

    Args:
        statement: what is judged.
        x: the places, positive, such as steps or problem sizes.
        y: for each seed the positive values there, from `Table.series_by_seed` or `Table.along`.
        low: lower end of the range of the exponent; ``-math.inf`` for none.
        high: upper end.
        unit: the estimate's unit, for the report.

    Raises:
        ValueError: if the range is empty.
    """
    if not low < high:
        raise ValueError(f"low is {low!r} and high {high!r}; the range must not be empty")
    slopes: dict[int, float] = {}
    lost = []
    for seed, values in y.items():
        slope = _slope(x, values)
        if isinstance(slope, str):
            lost.append(f"seed {seed}: {slope}")
        else:
            slopes[seed] = slope
    sample = _Sample(slopes, max((abs(slope) for slope in slopes.values()), default=0.0))
    outcome, needed, reasons = _decide(sample, low, high, lost)
    about = f"log-log slope over {count(len(x), 'point')} of {count(len(slopes), 'seed')}"
    return Verdict(
        statement=statement.id,
        text=statement.text,
        kind="rate",
        outcome=outcome,
        estimate=sample.interval.mean,
        low=sample.interval.low,
        high=sample.interval.high,
        threshold=low,
        threshold_high=high,
        unit=unit,
        pairs=len(slopes),
        seeds_needed=needed,
        detail="; ".join([about, *reasons]),
    )


@dataclass(frozen=True)
class _Sample:
    """Values by seed, and how large the numbers were that they are differences of."""

    values: Mapping[int, float]
    magnitude: float

    @property
    def degenerate(self) -> bool:
        """Whether all are equal but for rounding."""
        numbers = list(self.values.values())
        return len(numbers) > 1 and max(numbers) - min(numbers) <= _ROUNDING * self.magnitude

    @property
    def interval(self) -> Interval:
        found = interval(self.values.values())
        return Interval(found.mean, found.mean, found.mean) if self.degenerate else found


def _compare(
    statement: Statement,
    kind: StatementKind,
    table: Table,
    arm: Side,
    baseline: Side,
    metric: str,
    threshold: float,
    mode: Mode,
    by: Comparison,
    unit: str,
) -> Verdict:
    check_mode(mode)
    left, right = _read(arm, table, metric), _read(baseline, table, metric)
    lost = [*left.lost, *right.lost]
    gains: dict[int, float] = {}
    magnitude = 0.0
    for seed in _common_seeds(left, right):
        pair = [left.values.get(seed, left.constant), right.values.get(seed, right.constant)]
        first, second = (float(value) for value in pair if value is not None)
        if by == "ratio":
            if first <= 0 or second <= 0:
                lost.append(f"seed {seed} has no ratio of {number(first)} and {number(second)}")
                continue
            first, second = math.log(first), math.log(second)
        gains[seed] = first - second if mode == "max" else second - first
        magnitude = max(magnitude, abs(first), abs(second))
    sample = _Sample(gains, magnitude)
    bar = math.log(threshold) if by == "ratio" else threshold
    outcome, needed, reasons = _decide(sample, bar, math.inf, lost)
    found = sample.interval
    if by == "ratio":
        found = Interval(*(_exp(value) for value in found))
    return Verdict(
        statement=statement.id,
        text=statement.text,
        kind=kind,
        outcome=outcome,
        estimate=found.mean,
        low=found.low,
        high=found.high,
        threshold=threshold,
        unit=unit or ("ratio" if by == "ratio" else ""),
        pairs=len(gains),
        seeds_needed=needed,
        detail="; ".join(
            [_about(left, right, metric, mode, by, len(gains)), *reasons, *_remarks(left, right)]
        ),
    )


def _decide(
    sample: _Sample, low: float, high: float, lost: Sequence[str]
) -> tuple[Outcome, int | None, list[str]]:
    """Compare the interval with the open range (low, high): outcome, seeds needed, what there is to say."""
    pairs = len(sample.values)
    if lost:
        return "undecided", None, [f"not every cell gave a value: {listing(lost)}"]
    if pairs == 0:
        return "undecided", None, ["nothing was measured on both sides"]
    if pairs == 1:
        return "undecided", None, ["one pair says nothing of the spread; at least 2 seeds are needed"]
    found = sample.interval
    distance = min(abs(found.mean - end) for end in (low, high))
    if distance <= _ROUNDING * max(sample.magnitude, abs(found.mean)):
        return "undecided", None, ["the estimate stands at the threshold; no number of seeds would decide"]
    if sample.degenerate and pairs < SIGN_TEST_PAIRS:
        reason = (
            f"all {pairs} are equal, which shows no spread to judge by; {SIGN_TEST_PAIRS} equal ones would do"
        )
        return "undecided", SIGN_TEST_PAIRS, [reason]
    if low < found.low and found.high < high:
        return "holds", None, []
    if found.high < low or found.low > high:
        return "does not hold", None, []
    needed = seeds_needed(deviation(list(sample.values.values())), distance)
    if needed is None:
        return "undecided", None, [f"at this mean and spread, more than {MAX_SEEDS} seeds would be needed"]
    return "undecided", needed, [f"at this mean and spread, {needed} seeds would be expected to decide"]


def _read(side: Side, table: Table, metric: str) -> Reading:
    if isinstance(side, Selection):
        if side.arm is None:
            missing = f"no setting of {side.method} finished with a finite {words(side.metric)} on every seed"
            return Reading(side.method, lost=[missing], grid=len(side.grid))
        reading = _read(side.arm, table, metric)
        reading.grid = len(side.grid)
        reading.remarks = [f"{side.method}: {edge}" for edge in side.edges]
        if side.metric == metric and len(side.grid) > 1:
            reading.remarks.append(f"{side.method} was chosen by the metric it is judged by")
        return reading
    if isinstance(side, str):
        side = Arm(side)
    if isinstance(side, Arm):
        return read_arm(side, table, metric)
    if isinstance(side, Mapping):
        lost = [
            f"seed {seed} measured {number(value)}"
            for seed, value in side.items()
            if not math.isfinite(value)
        ]
        values = {seed: float(value) for seed, value in side.items() if math.isfinite(value)}
        return Reading("a derived value", values, lost=lost)
    if not math.isfinite(side):
        raise ValueError(f"a constant to compare with must be finite, not {side!r}")
    return Reading(number(float(side)), constant=float(side))


def _common_seeds(left: Reading, right: Reading) -> list[int]:
    if left.constant is not None:
        return sorted(right.values)
    if right.constant is not None:
        return sorted(left.values)
    return sorted(left.values.keys() & right.values.keys())


def _about(left: Reading, right: Reading, metric: str, mode: Mode, by: Comparison, pairs: int) -> str:
    sides = []
    for reading in (left, right):
        tuned = f", best of {count(reading.grid, 'setting')}" if reading.grid and reading.grid > 1 else ""
        sides.append(reading.label + tuned)
    wish = "larger" if mode == "max" else "smaller"
    return (
        f"{sides[0]}, against {sides[1]}: {by} of {words(metric)} ({wish} is better), {count(pairs, 'pair')}"
    )


def _remarks(left: Reading, right: Reading) -> list[str]:
    remarks = [*left.remarks, *right.remarks]
    if left.constant is None and right.constant is None:
        single = set(left.values) ^ set(right.values)
        if single and not left.lost and not right.lost:
            remarks.append(f"{count(len(single), 'seed')} of one side only, left out")
    if left.grid and right.grid and left.grid > right.grid:
        remarks.append("the baseline was tuned over fewer settings")
    return remarks


def _slacks(
    slacks: Table | Mapping[str, float], metric: str, arms: Sequence[Arm | str] | None
) -> tuple[dict[str, float], list[str]]:
    """The known slacks by cell, and what could not be measured."""
    if not isinstance(slacks, Table):
        return _split_finite(slacks)
    if arms is None:
        chosen = [
            Arm(method)
            for method in slacks.methods
            if any(metric in result.measured for result in slacks.select(Arm(method)))
        ]
    else:
        chosen = [Arm(arm) if isinstance(arm, str) else arm for arm in arms]
    found: dict[str, float] = {}
    lost = [f"there is no cell of {arm}" for arm in chosen if not slacks.of(arm)]
    for arm in chosen:
        for result in slacks.of(arm):
            value = result.measured.get(metric)
            if isinstance(value, Sequence) and value:
                found[result.cell.name] = math.nan if any(map(math.isnan, value)) else float(min(value))
            elif isinstance(value, int | float):
                found[result.cell.name] = float(value)
            else:
                lost.append(str(measured(result, metric)))
    known, unknown = _split_finite(found)
    return known, [*lost, *unknown]


def _split_finite(slacks: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    # An infinite violation is a violation; an infinite slack says nothing of the inequality.
    known = {name: float(slack) for name, slack in slacks.items() if slack < math.inf}
    return known, [f"{name} measured {slack}" for name, slack in slacks.items() if name not in known]


def _slope(x: Sequence[float], y: Sequence[float]) -> float | str:
    """The least-squares slope of log y on log x, or why there is none."""
    if len(x) != len(y):
        return f"{len(y)} values at {len(x)} places"
    if not all(0 < value < math.inf for value in [*x, *y]):
        return "a value is not positive and finite"
    places, values = [math.log(value) for value in x], [math.log(value) for value in y]
    if len(set(places)) < 2:
        return "fewer than two places"
    centre, level = math.fsum(places) / len(places), math.fsum(values) / len(values)
    spread = math.fsum((place - centre) ** 2 for place in places)
    return math.fsum((p - centre) * (v - level) for p, v in zip(places, values, strict=True)) / spread


def _checked_margin(margin: float | None, by: Comparison) -> float:
    if by not in ("difference", "ratio"):
        raise ValueError(f"by is {by!r}; it must be 'difference' or 'ratio'")
    least = 1.0 if by == "ratio" else 0.0
    value = least if margin is None else float(margin)
    if not (least <= value < math.inf):
        raise ValueError(f"margin is {margin!r}; by {by} it must be {least:g} or more")
    return value


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
