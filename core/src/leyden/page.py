"""The report as one page of HTML that needs nothing beside it.

Style and pictures are inside the file and its policy forbids any request. It is for a light and a dark
screen, for a wide and a narrow one (each picture is there for both), and for a screen reader: headings in
order, tables with scopes and captions, texts for what is drawn, verdicts as words.
"""

from __future__ import annotations

import base64
import importlib.resources
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from leyden.formatting import count, number
from leyden.model import Outcome, Verdict
from leyden.rendering import size
from leyden.summary import (
    NO_QUOTE,
    Report,
    SummaryTable,
    estimate_text,
    every_number,
    flat,
    summary_table,
    threshold_text,
    tuning_tables,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_CLASSES: Mapping[Outcome, str] = {"holds": "holds", "does not hold": "refuted", "undecided": "open"}
_ICONS: Mapping[Outcome, str] = {
    "holds": '<path d="M3 8.5 6.5 12 13 4.5"/>',
    "does not hold": '<path d="M4 4l8 8M12 4l-8 8"/>',
    "undecided": '<path d="M5 5.6a3 3 0 1 1 4.6 2.5C8.5 8.9 8 9.3 8 10.4M8 13.2v.1"/>',
}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure as PNG for a wide and for a narrow page, and what it shows in words."""

    wide: bytes
    narrow: bytes
    words: str = ""


def page(report: Report, pictures: Mapping[str, Picture]) -> str:
    """Write the page.

    Args:
        report: what to tell.
        pictures: its figures by name.

    Returns:
        The HTML.
    """
    style = importlib.resources.files("leyden").joinpath("report.css").read_text()
    body = "\n".join(
        [
            *_head(report),
            *_verdicts(report),
            *_results(report),
            *_figures(pictures),
            *_tuning(report),
            *_failures(report),
            *_numbers(report),
            *_origin(report),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.claim.title)} ({escape(report.name)})</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _head(report: Report) -> Iterator[str]:
    claim, paper = report.claim, report.paper
    yield f'<p class="kicker">Leyden report · <code>{escape(report.name)}</code></p>'
    yield f"<h1>{escape(claim.title)}</h1>"
    source = f"Claimed in: {escape(claim.source)}."
    if paper is None and claim.source:
        yield f'<p class="cite">{source}</p>'
    elif paper is not None:
        title = escape(paper.title)
        if paper.url.startswith(("https://", "http://")):
            title = f'<a href="{escape(paper.url)}" rel="noreferrer">{title}</a>'
        authors = escape(", ".join(paper.authors))
        yield f'<p class="cite">{authors}: {title}, {escape(paper.venue)}. {source}</p>'
        if paper.exact:
            yield f'<p class="cite">{escape(paper.exact)}</p>'
    items = "".join(
        f'<li class="badge {_CLASSES[outcome]}">{_icon(outcome)}{escape(words)}</li>'
        for outcome, words in report.tally.items()
    )
    yield f'<ul class="tally" aria-label="Verdicts, counted">{items}</ul>'
    facts = "".join(
        f"<div><dt>{key}</dt><dd>{escape(value)}</dd></div>" for key, value in report.facts.items()
    )
    yield f'<dl class="facts">{facts}</dl>'
    yield from (f'<p class="note">{escape(note)}</p>' for note in report.notes)


def _verdicts(report: Report) -> Iterator[str]:
    yield "<h2>Verdicts</h2>"
    says = {statement.id: statement.paper for statement in report.claim.statements}
    for verdict in report.verdicts:
        yield _verdict(verdict, says.get(verdict.statement, ""), report)
    if report.verdicts:
        yield (
            '<p class="note">In brackets: the 95 % interval over seeds, of paired differences or ratios, '
            "so oriented that larger favours the statement. A statement holds if the interval lies wholly on "
            "the right side of its threshold, does not hold if it lies wholly on the other, and is undecided "
            "in between.</p>"
        )


def _verdict(verdict: Verdict, says: str, report: Report) -> str:
    scale = f", {escape(report.scale)} scale" if report.scale else ""
    measured = f"Measured here{scale}, {count(len(report.table.seeds), 'seed')}"
    paper = (
        f"<div><dt>The paper says</dt><dd>{escape(says or NO_QUOTE)}</dd></div>"
        if report.claim.source
        else ""
    )
    badge = f'<span class="badge">{_icon(verdict.outcome)}{verdict.outcome}</span>'
    return (
        f'<article class="card verdict {_CLASSES[verdict.outcome]}">'
        f"<header><h3>{escape(verdict.text)}</h3>{badge}</header>"
        f'<dl class="sides">{paper}'
        f'<div><dt>{measured}</dt><dd><span class="estimate">{escape(estimate_text(verdict))}</span>'
        f'<span class="must">{escape(threshold_text(verdict))}</span>{_scale(verdict)}'
        f'<p class="detail">{escape(verdict.detail)}.</p></dd></div></dl></article>'
    )


def _results(report: Report) -> Iterator[str]:
    yield "<h2>Results</h2>"
    tuned = ", each method at the setting that tuning chose" if report.claim.validation else ""
    caption = f"Mean over seeds with its 95 % interval{tuned}."
    table = summary_table(report.claim, report.table, report.chosen)
    yield f'<div class="card">{_table(table, caption, setting_column=1, show_caption=True)}</div>'


def _figures(pictures: Mapping[str, Picture]) -> Iterator[str]:
    if pictures:
        yield "<h2>Figures</h2>"
    for name, drawn in pictures.items():
        words = escape(drawn.words or f"Figure {name}; its numbers are in the tables of this page.")
        narrow = f'<source media="(max-width: 640px)" {_source(drawn.narrow, "srcset")}>'
        yield (
            f'<figure class="card"><picture>{narrow}<img {_source(drawn.wide, "src")} alt="{words}">'
            f"</picture><figcaption>{escape(name)}.png</figcaption></figure>"
        )


def _tuning(report: Report) -> Iterator[str]:
    grids = list(tuning_tables(report.claim, report.table, report.chosen))
    if not grids:
        return
    yield "<h2>Tuning</h2>"
    yield '<p class="note">Every setting tried. The best mean of the validation metric was chosen.</p>'
    yield '<div class="card">'
    for selection, grid in grids:
        title = f"{selection.method}: no setting finished on every seed"
        if selection.arm:
            edge = " · at the edge of its grid" if selection.at_edge else ""
            title = f"{selection.arm}, best of {len(selection.grid)}{edge}"
        table = _table(grid, f"Settings of {selection.method}")
        yield f"<details><summary>{escape(title)}</summary>{table}</details>"
    yield "</div>"


def _failures(report: Report) -> Iterator[str]:
    if not report.table.failed and not report.problems:
        return
    yield '<h2>What failed</h2>\n<div class="card">'
    for result in report.table.failed:
        trace = escape(result.error.strip() or "no traceback")
        title = f"{escape(result.cell.name)}: {result.status}"
        yield f"<details><summary>{title}</summary><pre>{trace}</pre></details>"
    for problem in report.problems:
        first, _, rest = problem.strip().partition("\n")
        yield f"<details><summary>{escape(first)}</summary><pre>{escape(rest or first)}</pre></details>"
    yield "</div>"


def _numbers(report: Report) -> Iterator[str]:
    tables = list(every_number(report.claim, report.table, report.chosen))
    if not tables:
        return
    yield '<h2>Every number</h2>\n<div class="card">'
    for name, table in tables:
        yield f"<details><summary>{escape(name)}</summary>{_table(table, name)}</details>"
    yield "</div>"


def _origin(report: Report) -> Iterator[str]:
    yield f'<h2>Repeat it</h2>\n<div class="card"><pre class="command">{_words(report.repeat)}</pre>'
    pairs = [*flat(report.settings), *report.provenance.items()]
    if pairs:
        items = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs)
        yield f'<dl class="list">{items}</dl>'
    yield "</div>"


def _table(
    table: SummaryTable, caption: str, *, setting_column: int | None = None, show_caption: bool = False
) -> str:
    """A table whose first column names the rows; the setting's column, if any, goes below the name.

    The roles say what the elements say already: on a narrow page rows become blocks, and browsers forget it.
    """
    shown = [place for place in range(len(table.headings)) if place != setting_column]
    head = "".join(
        f'<th scope="col" role="columnheader">{escape(table.headings[place])}</th>' for place in shown
    )
    rows = []
    for cells, remarks in zip(table.rows, table.remarks, strict=True):
        below = [cells[setting_column]] if setting_column is not None and cells[setting_column] else []
        said = "".join(_remark(text) for text in [*below, *remarks])
        first = f'<th scope="row" role="rowheader">{escape(cells[shown[0]])}{said}</th>'
        rest = "".join(_cell(table.headings[place], cells[place]) for place in shown[1:])
        mark = ' class="chosen"' if "chosen" in remarks else ""
        rows.append(f'<tr role="row"{mark}>{first}{rest}</tr>')
    quiet = "" if show_caption else ' class="quiet"'
    return (
        f'<div class="wide"><table class="stack" role="table"><caption{quiet}>{escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody></table></div>'
    )


def _remark(text: str) -> str:
    flag = " flag" if text.startswith("edge") or "tried" in text or "without" in text else ""
    return f'<span class="remark{flag}">{escape(text)}</span>'


def _cell(heading: str, text: str) -> str:
    label = escape(heading.removesuffix(" [95 %]"))
    return f'<td role="cell" data-label="{label}" class="number"><span>{escape(text)}</span></td>'


def _words(command: str) -> str:
    """A command that breaks between its words alone, not after the hyphens of an option."""
    return " ".join(f"<span>{escape(word)}</span>" for word in command.split(" "))


def _icon(outcome: Outcome) -> str:
    return (
        '<svg viewBox="0 0 16 16" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="2.2" '
        f'stroke-linecap="round" stroke-linejoin="round">{_ICONS[outcome]}</svg>'
    )


def _scale(verdict: Verdict) -> str:
    """The interval against its threshold, drawn; nothing where there is no interval."""
    ends = [verdict.low, verdict.estimate, verdict.high]
    limits = [verdict.threshold, math.inf if verdict.threshold_high is None else verdict.threshold_high]
    marks = [limit for limit in limits if math.isfinite(limit)]
    if not all(map(math.isfinite, ends)) or not marks:
        return ""
    place = _positions([*ends, *marks], logarithmic=verdict.unit == "ratio")
    low, middle, high = (place(end) for end in ends)
    left = place(limits[0]) if math.isfinite(limits[0]) else 0.0
    right = place(limits[1]) if math.isfinite(limits[1]) else 460.0
    lines = "".join(
        f'<line class="threshold" x1="{place(mark):.1f}" x2="{place(mark):.1f}" y1="4" y2="34"/>'
        f'<text x="{min(max(place(mark), 16), 444):.1f}" y="49" text-anchor="middle">{number(mark)}</text>'
        for mark in marks
    )
    words = f"{estimate_text(verdict)}; {threshold_text(verdict)}"
    return (
        f'<svg class="scale" viewBox="0 0 460 54" role="img" aria-label="{escape(words)}">'
        f'<rect class="zone" x="{left:.1f}" y="4" width="{max(right - left, 0):.1f}" height="30" rx="3"/>'
        f'<line class="axis" x1="0" x2="460" y1="34" y2="34"/>{lines}'
        f'<line class="bar" x1="{low:.1f}" x2="{high:.1f}" y1="19" y2="19"/>'
        f'<circle class="dot" cx="{middle:.1f}" cy="19" r="7"/></svg>'
    )


def _positions(values: Sequence[float], *, logarithmic: bool) -> Callable[[float], float]:
    """A function that gives a value's horizontal place in the drawing, so that all the values are seen."""
    shift: Callable[[float], float] = math.log if logarithmic and min(values) > 0 else float
    shifted = [shift(value) for value in values]
    span = (max(shifted) - min(shifted)) or abs(shifted[0]) or 1.0
    left = min(shifted) - 0.15 * span
    return lambda value: 460 * (shift(value) - left) / (1.3 * span)


def _source(content: bytes, attribute: str) -> str:
    width, height = size(content)
    data = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return f'{attribute}="{data}" width="{width}" height="{height}"'
