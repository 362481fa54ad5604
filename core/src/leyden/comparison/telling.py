"""What a comparison prints and leaves: a plan, a report, the arms' configurations, a tracked run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from leyden.claims import Table
from leyden.comparison.asked import Asked
from leyden.comparison.outcome import Question, chosen_setting, claim_of
from leyden.errors import LeydenError
from leyden.files import write_atomic
from leyden.formatting import count, duration, words
from leyden.listing import search_text
from leyden.progress import say
from leyden.provenance import provenance
from leyden.reproduce import REPORTS, log_report, run_id
from leyden.tracking import RunWriter


def foretell(comparing: Asked, question: Question, fits: Mapping[str, int], expected: float) -> None:
    """Print what a comparison would run.

    Args:
        comparing: the comparison.
        question: what it compares.
        fits: how many fits each arm gets.
        expected: how long all of them take, in seconds; NaN where that is not known.
    """
    console = comparing.console
    say(console, f"{comparing.title}: nothing was run but a few batches of each arm", "bold")
    for arm in question.arms:
        say(console, f"{arm.name}: {arm.place}")
        tuned = comparing.plan.trials and arm.space
        say(console, f"  tunes {search_text(arm.space) if tuned else 'nothing'}", "dim")
        say(console, f"  {count(fits[arm.name], 'fit')}", "dim")
    for refusal in comparing.refusals:
        say(console, str(refusal), "yellow")
    for note in comparing.notes:
        say(console, note, "dim")
    aim = "larger" if question.mode == "max" else "smaller"
    say(console, f"Judged by {words(question.judged)} ({question.judged}), {aim} is better")
    time = f"about {duration(expected)}" if math.isfinite(expected) else "a time that the data do not tell"
    jobs = comparing.plan.jobs
    say(console, f"{sum(fits.values())} fits, {jobs} at a time: {time}, if no fit stops early")


def conclude(
    comparing: Asked, question: Question, table: Table, run: RunWriter | None, seconds: float
) -> tuple[str, ...]:
    """Judge, print and write a comparison.

    Args:
        comparing: the comparison.
        question: what it compared.
        table: the results that judge.
        run: its tracked run; None for none.
        seconds: how long it took.

    Returns:
        What could not be drawn or judged, in words.

    Raises:
        LeydenError: if the report cannot be written.
    """
    from leyden.report import Report, to_terminal, write_report

    claim = claim_of(question)
    report = Report(
        claim=claim,
        table=table,
        verdicts=claim.judge(table),
        plugin="compare",
        scale="",
        settings=comparing.settings(),
        provenance=provenance(),
        command=comparing.plan.command,
        seconds=seconds,
        chosen=question.chosen,
        notes=(*comparing.notes, *map(str, comparing.refusals)),
    )
    folder = REPORTS / "compare" / question.name
    try:
        files = write_report(folder, report)
    except LeydenError:
        to_terminal(comparing.console, report)  # what was measured is shown, though it cannot be kept
        raise
    new = tuple(note for note in report.notes if note not in comparing.said)
    to_terminal(comparing.console, replace(report, problems=files.problems, notes=new))
    configurations = _write_configurations(folder, question)
    if run:
        run.metrics({"fits": len(table), "failed_fits": len(table.failed)})
        log_report(run, report, files)
        for path in configurations:
            run.artifact(path)
        say(comparing.console, f"MLflow run: {run_id(run)}")
    say(comparing.console, f"Report: {files.html}")
    return files.problems


def _write_configurations(folder: Path, question: Question) -> list[Path]:
    """Each arm's configuration at its chosen setting, as ``leyden fit`` takes it."""
    written = []
    for arm in question.arms:
        setting = chosen_setting(question, arm)
        if setting is None:
            continue
        path = folder / f"{arm.slug}.yaml"
        tried = len(question.chosen[arm.name].grid) if arm.name in question.chosen else 0
        best = f", best of {tried} by {question.validation}" if tried > 1 else ""
        text = yaml.safe_dump(arm.configured(setting), sort_keys=False)
        heading = f"# {arm.name}{best}. Run it: leyden fit --config {shlex.quote(str(path))}\n"
        written.append(write_atomic(path, heading + text))
    return written
