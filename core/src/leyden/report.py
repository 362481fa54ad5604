"""What `leyden reproduce` and `leyden compare` leave: a table on the terminal, Markdown, a page, pictures.

A report's folder holds ``report.html`` (complete in itself: no request leaves the page), ``table.md``, a PNG
for each figure, and ``verdicts.json``, which `leyden claims` reads and which is written last, so that where
it stands the rest does. Its names do not change::

    {"format": 1, "plugin": "sps_safe", "claim": "digits", "scale": "laptop",
     "date": "2026-03-01T12:00:00+00:00", "seeds": [0, 1, 2], "cells": 90, "failed": 0,
     "verdicts": [{"statement": "robust", "kind": "not worse", "outcome": "holds", "estimate": 0.01,
                   "low": 0.004, "high": 0.016, "threshold": -0.01, "threshold_high": null,
                   "unit": "accuracy", "pairs": 3, "seeds_needed": null}]}

Numbers that are not finite are null there.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.claims import Claim, Table
from leyden.errors import LeydenError
from leyden.files import write_atomic
from leyden.formatting import MINUS, TIMES, error_line
from leyden.model import Outcome
from leyden.statistics import Selection
from leyden.summary import (
    ICONS,
    NO_QUOTE,
    Report,
    SummaryTable,
    estimate_text,
    flat,
    summary_rows,
    summary_table,
    threshold_text,
    tuning_tables,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = [
    "Report",
    "ReportFiles",
    "draw",
    "read_verdicts",
    "summary_rows",
    "to_markdown",
    "to_terminal",
    "write_report",
]

VERDICTS = "verdicts.json"
_ASCII = str.maketrans({"✓": "+", "✗": "x", MINUS: "-", "∞": "inf", "·": "-", TIMES: "x"})
_COLOURS: Mapping[Outcome, str] = {"holds": "green", "does not hold": "red", "undecided": "yellow"}


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """The files of a report.

    Attributes:
        html: the page.
        markdown: the tables as Markdown.
        verdicts: the verdicts as JSON.
        figures: the pictures by name.
        problems: figures that could not be drawn, in words.
    """

    html: Path
    markdown: Path
    verdicts: Path
    figures: Mapping[str, Path]
    problems: tuple[str, ...] = ()


def write_report(directory: Path, report: Report) -> ReportFiles:
    """Write every file of a report; each is whole or absent.

    Args:
        directory: the folder; it is created.
        report: what to tell.

    Returns:
        The paths.

    Raises:
        LeydenError: if a file cannot be written (read-only folder, full disk).
    """
    from leyden.page import Picture, page
    from leyden.rendering import png

    figures, problems = draw(report.claim, report.table)
    report = replace(report, problems=(*report.problems, *problems))
    pictures = {}
    for name, figure in figures.items():
        try:
            pictures[name] = Picture(
                wide=png(figure), narrow=png(figure, narrow=True), words=str(figure.get_label() or "")
            )
        except Exception:
            problem = f"The figure '{name}' could not be drawn.\n{traceback.format_exc()}"
            report = replace(report, problems=(*report.problems, problem))
    try:
        paths = {
            name: write_atomic(directory / f"{name}.png", drawn.wide) for name, drawn in pictures.items()
        }
        return ReportFiles(
            html=write_atomic(directory / "report.html", page(report, pictures)),
            markdown=write_atomic(directory / "table.md", to_markdown(report, figures=list(pictures))),
            figures=paths,
            problems=report.problems,
            verdicts=write_atomic(directory / VERDICTS, json.dumps(_record(report), indent=1) + "\n"),
        )
    except OSError as error:
        raise LeydenError(
            f"the report cannot be written to {directory}: {error.strerror or error}"
        ) from error


def draw(claim: Claim, table: Table) -> tuple[dict[str, Figure], tuple[str, ...]]:
    """The claim's figures by name, or the default ones; a claim whose drawing fails still has a report.

    Args:
        claim: the claim.
        table: its results.

    Returns:
        The figures, and what could not be drawn, with tracebacks.
    """
    from leyden.figures import default_figure

    problems = []
    for make in (claim.figure, lambda results: default_figure(claim, results)):
        try:
            drawn = make(table)
        except Exception:
            problems.append(f"The figures could not be drawn.\n{traceback.format_exc()}")
            continue
        if drawn is not None:
            return (dict(drawn) if isinstance(drawn, Mapping) else {claim.name: drawn}), tuple(problems)
    return {}, tuple(problems)


def read_verdicts(directory: Path) -> dict[str, Any] | None:
    """Read the verdicts that a report left; None where there are none that can be read.

    Args:
        directory: the report's folder.
    """
    try:
        record = json.loads((directory / VERDICTS).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("format") == 1 else None


def to_terminal(console: Console, report: Report) -> None:
    """Print the summary table and the verdicts.

    Args:
        console: rich's console.
        report: what to tell.
    """
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    def text(words: str, style: str = "") -> Text:
        return Text(words.translate(_ASCII) if console.options.ascii_only else words, style=style)

    console.print(text(report.claim.title, "bold"))
    console.print(text(" · ".join([report.name, *_facts(report)]), "dim"))
    summary = summary_table(report.claim, report.table, report.chosen)
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    grid.add_column(summary.headings[0], overflow="fold")
    for heading in summary.headings[2:]:
        grid.add_column(text(heading.replace(" [95 %]", "\n[95 %]")), justify="right", overflow="fold")
    for cells, remarks in zip(summary.rows, summary.remarks, strict=True):
        lines = [text(cells[0]), text(cells[1], "dim"), *(text(remark, "yellow") for remark in remarks)]
        name = Text("\n").join(line for line in lines if line)
        grid.add_row(name, *(text(cell.replace(" [", "\n[")) for cell in cells[2:]))
    console.print(grid)
    verdicts = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 1, 0))
    verdicts.add_column(no_wrap=True)
    verdicts.add_column()
    for verdict in report.verdicts:
        measured = f"{estimate_text(verdict)}; {threshold_text(verdict)}"
        told = Text("\n").join([text(verdict.text), text(measured, "bold"), text(verdict.detail, "dim")])
        verdicts.add_row(text(_badge(verdict.outcome), f"bold {_COLOURS[verdict.outcome]}"), told)
    console.print(verdicts)
    for note in report.notes:
        console.print(text(note, "dim"))
    for result in report.table.failed:
        console.print(text(f"{result.cell.name} {result.status}: {error_line(result.error)}", "red"))
    for problem in report.problems:
        what, _, trace = problem.strip().partition("\n")
        console.print(text(f"{what} {error_line(trace)} (traceback in the report)" if trace else what, "red"))


def _facts(report: Report) -> list[str]:
    return [value if key == "Date" else f"{key.lower()} {value}" for key, value in report.facts.items()]


def to_markdown(report: Report, *, figures: list[str] | None = None) -> str:
    """The report as Markdown, for a README or an issue.

    Args:
        report: what to tell.
        figures: names of PNG files beside it.

    Returns:
        The text.
    """
    claim = report.claim
    parts = [
        f"# {claim.title}",
        " · ".join([f"`{report.name}`", *_facts(report)]),
        f"{_citation(report)} Claimed in: {claim.source}.".strip() if claim.source else "",
        "\n".join(f"- {note}" for note in report.notes),
        "## Verdicts",
        _markdown_table(_verdict_table(report)),
        "## Results",
        markdown_table(claim, report.table, report.chosen),
        *(f"![{name}]({name}.png)" for name in figures or []),
    ]
    tuned = list(tuning_tables(claim, report.table, report.chosen))
    if tuned:
        parts.append("## Tuning")
    for selection, grid in tuned:
        parts += [f"### {selection.method}", _markdown_table(_with_remarks(grid))]
    if report.table.failed:
        parts.append("## Failed cells")
    for result in report.table.failed:
        parts.append(
            f"{result.cell.name} {result.status}:\n\n```\n{result.error.strip() or 'no traceback'}\n```"
        )
    for problem in report.problems:
        parts.append(f"```\n{problem.strip()}\n```")
    pairs = [*flat(report.settings), *report.provenance.items()]
    parts += [
        "## Repeat it",
        f"```sh\n{report.repeat}\n```",
        "\n".join(f"- {key}: {value}" for key, value in pairs),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(claim: Claim, table: Table, chosen: Mapping[str, Selection] | None = None) -> str:
    """The summary table alone, as Markdown."""
    return _markdown_table(_with_remarks(summary_table(claim, table, chosen)))


def _verdict_table(report: Report) -> SummaryTable:
    rows = []
    for verdict in report.verdicts:
        told = f"{estimate_text(verdict)}; {threshold_text(verdict)}. {verdict.detail}"
        says = (_paper_says(report.claim, verdict.statement),) if report.claim.source else ()
        rows.append((verdict.text, *says, told, _badge(verdict.outcome)))
    measured = f"Measured here, {report.scale} scale" if report.scale else "Measured here"
    says = ("The paper says",) if report.claim.source else ()
    return SummaryTable(
        headings=("Statement", *says, measured, "Verdict"), rows=tuple(rows), remarks=((),) * len(rows)
    )


def _paper_says(claim: Claim, statement: str) -> str:
    says = next((known.paper for known in claim.statements if known.id == statement), "")
    return says or NO_QUOTE


def _badge(outcome: Outcome) -> str:
    return f"{ICONS[outcome]} {outcome}"


def _citation(report: Report) -> str:
    paper = report.paper
    if paper is None:
        return ""
    return f"{', '.join(paper.authors)}: [{paper.title}]({paper.url}), {paper.venue}."


def _with_remarks(table: SummaryTable) -> SummaryTable:
    if not any(table.remarks):
        return table
    rows = tuple((*row, "; ".join(said)) for row, said in zip(table.rows, table.remarks, strict=True))
    return SummaryTable(headings=(*table.headings, "Remarks"), rows=rows, remarks=((),) * len(rows))


def _markdown_table(table: SummaryTable) -> str:
    lines = [table.headings, ("---",) * len(table.headings), *table.rows]
    return "\n".join("| " + " | ".join(_markdown_cell(cell) for cell in line) + " |" for line in lines)


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _record(report: Report) -> dict[str, Any]:
    verdicts = []
    for verdict in report.verdicts:
        told = asdict(verdict)
        del told["text"], told["detail"]
        numbers = ("estimate", "low", "high", "threshold", "threshold_high")
        for name in numbers:
            value = told[name]
            told[name] = value if value is not None and math.isfinite(value) else None
        verdicts.append(told)
    return {
        "format": 1,
        "plugin": report.plugin,
        "claim": report.claim.name,
        "scale": report.scale,
        "date": report.date.isoformat(timespec="seconds"),
        "seeds": list(report.table.seeds),
        "cells": len(report.table),
        "failed": len(report.table.failed),
        "verdicts": verdicts,
    }
