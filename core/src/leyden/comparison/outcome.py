"""What a comparison concludes: the chosen settings, a verdict for each thing tried, figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from leyden.claims import Arm, Claim, Mode, Scalar, Statement, Table
from leyden.comparison.arms import BASELINE, Contender
from leyden.comparison.fits import Fits
from leyden.comparison.space import at_edges
from leyden.formatting import error_line, words
from leyden.model import Verdict
from leyden.statistics import Selection, best, better

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is compared, and by what.

    Attributes:
        name: the comparison's name.
        arms: the arms that run, the baseline first.
        validation: the validation metric, which chooses settings.
        test: the metric that judges; empty where validation has to judge as well.
        mode: whether a larger or a smaller value is better.
        chosen: for each arm that was tuned, what tuning chose.
    """

    name: str
    arms: Sequence[Contender]
    validation: str
    test: str
    mode: Mode
    chosen: Mapping[str, Selection] = field(default_factory=dict)

    @property
    def judged(self) -> str:
        """The metric that judges."""
        return self.test or self.validation


def select(tuning: Table, arm: Contender, validation: str, mode: Mode) -> Selection:
    """The best setting of an arm that was tuned, with a remark where it lies at the end of its range."""
    selection = best(tuning, arm.name, validation, mode)
    setting = selection.arm.setting if selection.arm else None
    return replace(selection, edges=at_edges(setting or {}, arm.space))


def claim_of(question: Question) -> Claim:
    """The comparison as a claim: a statement for each thing tried, judged against the baseline."""
    tried = {arm.slug: arm.name for arm in question.arms if arm.name != BASELINE}
    sentences = tuple(
        Statement(id=slug, text=f"{name} is better than the baseline.", kind="better")
        for slug, name in tried.items()
    )

    class Comparison(Fits):
        name = question.name
        title = f"{', '.join(tried.values())} against the baseline of {question.name}"
        statements: ClassVar[tuple[Statement, ...]] = sentences
        metric = question.judged
        mode = question.mode
        validation = question.validation if question.chosen else ""
        reference = BASELINE
        ratios: ClassVar[Mapping[str, str]] = {
            "training_seconds": "Training time",
            "peak_megabytes": "Peak memory",
        }

        def judge(self, table: Table) -> list[Verdict]:
            return [_verdict(statement, tried[statement.id], question, table) for statement in sentences]

        def figure(self, table: Table) -> dict[str, Figure]:
            return figures(question, table)

    return Comparison()


def _verdict(statement: Statement, arm: str, question: Question, table: Table) -> Verdict:
    sides = [question.chosen.get(name, Arm(name)) for name in (arm, BASELINE)]
    return better(statement, table, sides[0], sides[1], question.judged, mode=question.mode)


def figures(question: Question, table: Table) -> dict[str, Figure]:
    """The final metric with its intervals, and its course against step and training time."""
    from leyden.figures import methods_figure, series_figure

    arms = [arm for arm in table.arms() if table.series(arm, "curve")]
    course = {
        "by-step": ("steps", "optimizer step"),
        "by-time": ("seconds", "training time (s)"),
    }
    drawn = {
        "final": methods_figure(
            table,
            question.judged,
            mode=question.mode,
            reference=BASELINE,
            title=f"{words(question.judged).capitalize()} of each arm",
        )
    }
    for name, (x, label) in course.items() if arms else ():
        drawn[name] = series_figure(
            table,
            "curve",
            arms,
            x=x,
            x_label=label,
            y_label=words(question.validation),
            title=f"{words(question.validation).capitalize()} against {label}",
        )
    return drawn


def tuning_notes(tuning: Table, chosen: Mapping[str, Selection], arms: Sequence[Contender]) -> list[str]:
    """What a reader should know of the tuning: trials that failed, spaces that were too small."""
    notes = []
    for arm in arms:
        results = tuning.of(Arm(arm.name))
        failed = [result for result in results if result.status != "done"]
        if failed:
            first = f"{failed[0].cell.label or 'as it is'}: {error_line(failed[0].error)}"
            notes.append(f"{arm.name}: {len(failed)} of {len(results)} trials failed and lost; {first}")
        if arm.name in chosen and chosen[arm.name].arm is None:
            notes.append(f"{arm.name}: no trial finished, so there is nothing to judge.")
    return notes


def values_of(
    tuning: Table, arm: str, settings: Sequence[Mapping[str, object]], metric: str
) -> list[float | None]:
    """What the settings of a round gave on the validation metric; None for one that failed."""
    found: list[float | None] = []
    for setting in settings:
        (result,) = tuning.of(Arm(arm, dict(setting)))  # type: ignore[arg-type]
        value = result.measured.get(metric) if result.status == "done" else None
        found.append(float(value) if isinstance(value, float) and math.isfinite(value) else None)
    return found


def chosen_setting(question: Question, arm: Contender) -> Mapping[str, Scalar] | None:
    """The setting at which an arm is judged; None if no trial of it finished."""
    if arm.name not in question.chosen:
        return arm.defaults
    chosen: Arm | None = question.chosen[arm.name].arm
    return None if chosen is None else (chosen.setting or {})
