"""Figures, tables and pages of a claim, on a claim small enough to know its numbers."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import scipy.stats
from leyden.claims import Arm, Cell, CellResult, Claim, Scale, Statement, Table
from leyden.errors import LeydenError
from leyden.figures import (
    PALETTE,
    default_figure,
    methods_figure,
    new_figure,
    series_figure,
    setting_figure,
    styles,
)
from leyden.formatting import MINUS, interval_text, number
from leyden.model import Paper, Verdict
from leyden.page import page
from leyden.rendering import png, size
from leyden.report import (
    Report,
    draw,
    markdown_table,
    read_verdicts,
    summary_rows,
    to_markdown,
    to_terminal,
    write_report,
)
from leyden.statistics import best, better, bound, not_worse, rate
from leyden.summary import estimate_text, threshold_text, tuning_tables
from rich.console import Console

GRIDS = {"Polyak": {"M": (0.1, 1.0, 10.0)}, "SGD": {"lr": (0.01, 0.1)}, "Plain": {}}
LEVEL = {
    ("Polyak", 0.1): 0.8,
    ("Polyak", 1.0): 0.95,
    ("Polyak", 10.0): 0.7,
    ("SGD", 0.01): 0.5,
    ("SGD", 0.1): 0.9,
}


class Toy(Claim):
    name = "toy"
    title = "Polyak's step <needs> no tuning"
    source = "Section 5 & Figure 3"
    statements = (
        Statement(
            id="better", text="Polyak beats SGD | tuned.", kind="better", paper="“It does” <Section 5>."
        ),
        Statement(id="bound", text="Every step is short.", kind="bound"),
    )
    minutes = {"laptop": 1.0}  # noqa: RUF012
    seeds = {"laptop": 4}  # noqa: RUF012
    metric = "test_acc"
    unit = "fraction"
    validation = "val_acc"
    reference = "SGD"

    def cells(self, scale):
        return [
            Cell(method=method, seed=seed, setting={key: value for key, value in [(key, value)] if key})
            for method, grid in GRIDS.items()
            for key, values in (grid or {"": (None,)}).items()
            for value in values
            for seed in range(scale.seeds)
        ]

    def run(self, cell):
        level = LEVEL.get((cell.method, next(iter(cell.setting.values()), None)), 0.6)
        shift = 0.01 * math.sin(cell.seed) + 0.002 * math.cos(3 * cell.seed + 10 * level)
        measured = {"test_acc": level + shift, "slack": 0.5, "loss": [3.0 * (1 + shift), 2.0, 1.0 + shift]}
        return measured if cell.method == "Plain" else {**measured, "val_acc": level + 0.5 * shift}

    def judge(self, table):
        arms = {method: best(table, method, "val_acc") for method in ("Polyak", "SGD")}
        first, second = self.statements
        return [
            better(first, table, arms["Polyak"], arms["SGD"], "test_acc", unit="fraction"),
            bound(second, table, "slack", arms=["Polyak"]),
        ]


def table_of(claim, seeds=4, failing=lambda cell: False):
    rows = []
    for cell in claim.cells(Scale("laptop", seeds)):
        if failing(cell):
            trace = "Traceback (most recent call last):\n  File <x>\nRuntimeError: it <broke>"
            rows.append(CellResult(cell=cell, status="failed", error=trace))
        else:
            rows.append(CellResult(cell=cell, status="done", measured=claim.run(cell)))
    return Table(rows)


def report_of(claim=None, table=None, **more):
    claim = claim or Toy()
    table = table if table is not None else table_of(claim)
    paper = Paper(
        title="A <paper>", authors=("A", "B"), venue="V 2026", url="https://example.org/a?b=1&c=2", summary=""
    )
    known = {"plugin": "plug", "scale": "laptop", "paper": paper, **more}
    return Report(claim=claim, table=table, verdicts=claim.judge(table), **known)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    claim = Toy()
    table = table_of(claim, failing=lambda cell: cell.setting.get("M") == 10.0 and cell.seed == 2)
    report = report_of(claim, table, settings={"jobs": 2, "tracking": {"uri": "sqlite:///<x>"}},
                       provenance={"torch": "2.13"}, seconds=75.0)  # fmt: skip
    return report, write_report(tmp_path_factory.mktemp("report") / "a" / "b", report)


def test_a_row_is_the_method_at_its_tuned_setting_with_scipys_interval():
    claim = Toy()
    table = table_of(claim)
    row = next(row for row in summary_rows(claim, table) if row.arm.method == "Polyak")
    values = [table.by_seed(Arm("Polyak", {"M": 1.0}), "test_acc")[seed] for seed in range(4)]
    expected = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (row.arm.setting, row.seeds, row.tried, row.edges) == ({"M": 1.0}, 4, 3, ())
    assert (row.found.low, row.found.high) == pytest.approx((expected.low, expected.high))


def test_the_difference_to_the_reference_is_paired_by_seed():
    claim = Toy()
    table = table_of(claim)
    rows = {row.arm.method: row for row in summary_rows(claim, table)}
    ours, theirs = (list(table.by_seed(rows[m].arm, "test_acc").values()) for m in ("Polyak", "SGD"))
    expected = scipy.stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert rows["Polyak"].difference[1:] == pytest.approx((expected.low, expected.high))
    assert rows["SGD"].difference is None
    assert rows["SGD"].edges == ("lr=0.1 is the largest tried",)


def test_a_seed_that_only_one_side_measured_is_in_no_difference():
    class Gap(Toy):
        def run(self, cell):
            measured = super().run(cell)
            return {**measured, "test_acc": math.nan} if (cell.method, cell.seed) == ("SGD", 1) else measured

    rows = {row.arm.method: row for row in summary_rows(Gap(), table_of(Gap()))}
    assert (rows["Polyak"].seeds, rows["Polyak"].pairs, rows["SGD"].seeds) == (4, 3, 3)
    assert rows["SGD"].lost == ("SGD (lr=0.1) seed 1 measured nan",)


def test_a_method_that_was_not_tuned_has_its_row_without_a_validation_metric():
    claim = Toy()
    row = next(row for row in summary_rows(claim, table_of(claim)) if row.arm.method == "Plain")
    assert row.found.mean == pytest.approx(0.6, abs=0.02)
    assert row.tried == 1


def test_without_tuning_every_setting_has_a_row():
    class Untuned(Toy):
        validation = ""

    assert len(summary_rows(Untuned(), table_of(Untuned()))) == 6


def test_a_method_of_which_every_setting_failed_is_still_in_the_table():
    claim = Toy()
    table = table_of(claim, failing=lambda cell: cell.method == "Polyak")
    row = summary_rows(claim, table)[0]
    assert math.isnan(row.found.mean)
    assert len(row.lost) == 12
    assert "none" in markdown_table(claim, table).splitlines()[2]


def test_the_tuning_table_marks_the_choice_and_tells_lost_cells():
    claim = Toy()
    table = table_of(claim, failing=lambda cell: cell.setting.get("M") == 10.0 and cell.seed == 2)
    grids = {selection.method: grid for selection, grid in tuning_tables(claim, table)}
    assert list(grids) == ["Polyak", "SGD"]
    remarks = dict(zip([row[0] for row in grids["Polyak"].rows], grids["Polyak"].remarks, strict=True))
    assert remarks == {"M=0.1": (), "M=1": ("chosen",), "M=10": ("1 cell without a value",)}
    assert grids["SGD"].remarks[1] == ("chosen", "lr=0.1 is the largest tried")


@pytest.mark.parametrize(
    ("low", "mean", "high", "text"),
    [
        (0.9521, 0.95821, 0.9643, "0.9582 [0.9521, 0.9643]"),
        (-12.3, 100.04, 212.4, "100 [-12, 212]"),
        (1.1e-7, 2.2e-7, 3.3e-7, "2.2e-7 [1.1e-7, 3.3e-7]"),
        (0.5, 0.5, 0.5, "0.5 [0.5, 0.5]"),
        (-math.inf, 0.25, math.inf, "0.25 [no interval]"),
        (-math.inf, math.nan, math.inf, "none"),
    ],
)
def test_numbers_have_the_digits_that_their_interval_warrants(low, mean, high, text):
    assert interval_text(mean, low, high).replace(MINUS, "-") == text


def test_a_number_keeps_its_value_in_words():
    for value in (0.0, -0.0, 1e-300, -1e-9, 0.00012345, 0.5, 123456.7, 9.9e8, -1e300):
        assert float(number(value).replace(MINUS, "-")) == pytest.approx(value, rel=1e-3)
    assert number(-0.0000001, 3) == "0.000"


def verdict(**changes):
    known = {
        "statement": "s",
        "text": "t",
        "kind": "better",
        "outcome": "holds",
        "estimate": 0.02,
        "low": 0.01,
        "high": 0.03,
        "threshold": 0.0,
    }
    return Verdict(**{**known, **changes})


def test_an_end_that_is_not_the_threshold_does_not_look_like_it():
    text = estimate_text(verdict(low=-8.4e-6, estimate=0.008, high=0.016))
    low = re.search(rf"\[{MINUS}([0-9.]+),", text)
    assert float(low.group(1)) > 0


def test_an_estimate_at_the_threshold_needs_no_more_digits():
    at = verdict(estimate=-0.01 + 1e-17, low=-0.0163826, high=-0.00361739, threshold=-0.01)
    assert estimate_text(at) == f"{MINUS}0.0100 [{MINUS}0.0164, {MINUS}0.0036]"


def test_each_end_of_a_ratio_has_three_digits():
    told = verdict(unit="ratio", low=0.00213, estimate=1.234, high=1234.0, threshold=1.0)
    assert estimate_text(told) == "1.23 [0.00213, 1234] ratio"
    assert estimate_text(verdict(unit="ratio", low=0.0, estimate=2.0, high=math.inf)) == "2.00 [0, ∞] ratio"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threshold": 0.01}, "above 0.01"),
        ({"kind": "bound", "threshold": -1e-10}, "at least -1e-10"),
        ({"kind": "rate", "threshold": -0.6, "threshold_high": -0.4}, "between -0.6 and -0.4"),
        ({"kind": "rate", "threshold": -math.inf, "threshold_high": -0.5}, "below -0.5"),
        ({"kind": "rate", "threshold": 2.0, "threshold_high": math.inf}, "above 2"),
    ],
)
def test_a_threshold_in_words(changes, words):
    assert threshold_text(verdict(**changes)).replace(MINUS, "-").endswith(words)


def test_no_two_methods_look_alike_and_none_differ_in_colour_alone():
    looks = list(styles(map(str, range(40))).values())
    assert len(set(map(str, looks))) == 40
    first = looks[: len(PALETTE)]
    assert len({look.color for look in first}) == len({look.marker for look in first}) == len(PALETTE)


def test_the_palette_is_told_apart_without_colour_vision():
    # Machado et al. (2009), protanopia and deuteranopia at full severity, on linear RGB
    protanopia = [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]
    deuteranopia = [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
    colors = [[int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)] for color in PALETTE]
    for matrix in (protanopia, deuteranopia):
        seen = np.clip(np.array(colors) ** 2.2 @ np.array(matrix).T, 0, 1) ** (1 / 2.2)
        apart = [np.linalg.norm(a - b) for k, a in enumerate(seen) for b in seen[:k]]
        assert min(apart) > 0.15


def test_labels_of_close_settings_do_not_touch():
    rates = (0.003, 0.01, 0.015, 0.02, 0.03, 0.05)
    rows = [
        CellResult(
            cell=Cell(method=method, seed=seed, setting={"lr": rate, key: rate * 100}),
            status="done",
            measured={"acc": rate + seed},
        )
        for method, key in (("A", "a"), ("B", "b"), ("C", "c"))
        for rate in rates
        for seed in (0, 1)
    ]
    figure = setting_figure(Table(rows), "acc")
    figure.canvas.draw()
    for panel in figure.axes:
        boxes = [label.get_window_extent() for label in panel.get_xticklabels() if label.get_text()]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
        assert [boxes[0].x0, boxes[-1].x1] == [min(b.x0 for b in boxes), max(b.x1 for b in boxes)]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()][:2] == ["0.003", "0.01"]


def test_the_setting_figure_shows_means_bands_choice_and_failures_at_their_places():
    claim = Toy()
    table = table_of(claim, failing=lambda cell: cell.setting.get("M") == 10.0 and cell.seed == 2)
    chosen = {"Polyak": best(table, "Polyak", "val_acc")}
    figure = setting_figure(table, "test_acc", selections=chosen, unit="fraction")
    panel, other = figure.axes
    assert (panel.get_xscale(), panel.get_xlabel(), other.get_xlabel()) == ("log", "M", "lr")
    assert panel.get_ylabel() == "test accuracy (fraction)"
    lines = {line.get_marker(): line for line in panel.get_lines()}
    line = next(line for line in panel.get_lines() if len(line.get_xdata()) == 2 and line.get_marker() == "o")
    means = [np.mean(list(table.by_seed(Arm("Polyak", {"M": m}), "test_acc").values())) for m in (0.1, 1.0)]
    assert list(line.get_xdata()) == [0.1, 1.0]
    assert list(line.get_ydata()) == pytest.approx(means)
    assert list(lines["x"].get_xdata()) == [10.0]
    ring = next(line for line in panel.get_lines() if line.get_markerfacecolor() == "none")
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([1.0], pytest.approx(means[1:]))
    band = panel.collections[0].get_paths()[0].vertices
    expected = scipy.stats.ttest_1samp(list(table.by_seed(Arm("Polyak", {"M": 1.0}), "test_acc").values()), 0)
    high = expected.confidence_interval(0.95).high
    assert max(y for x, y in band if x == 1.0) == pytest.approx(high)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        "Polyak",
        "SGD",
        "Plain",
        "95 % interval",
        "one seed",
        "chosen by validation accuracy",
        "a cell failed",
    ]


def test_a_seed_gone_astray_does_not_stretch_the_axis_past_what_was_measured():
    values = {0.1: [0.95, 0.96, 0.97, 0.10], 0.2: [0.95, 0.96, 0.95, 0.96]}
    rows = [
        CellResult(
            cell=Cell(method="SGD", seed=s, setting={"lr": lr}), status="done", measured={"acc": value}
        )
        for lr, seeds in values.items()
        for s, value in enumerate(seeds)
    ]
    figure = setting_figure(Table(rows), "acc")
    low, high = figure.axes[0].get_ylim()
    assert 0 < low < 0.10
    assert 0.97 < high < 1.03
    shown = [line.get_ydata() for line in figure.axes[0].get_lines() if line.get_marker() == "_"]
    assert sorted(y for ys in shown for y in ys) == sorted(y for ys in values.values() for y in ys)


@pytest.mark.parametrize("methods", [5, 6, 7, 8])
def test_a_legend_stays_within_its_figure(methods: int):
    rows = [
        CellResult(
            cell=Cell(method=f"Method{n}", seed=s, setting={"lr": lr}), status="done", measured={"acc": s / 9}
        )
        for n in range(methods)
        for lr in (0.1, 1.0)
        for s in (0, 1)
    ]
    table = Table(rows)
    tuned = {"Method0": best(table, "Method0", "acc")}
    figure = setting_figure(table, "acc", selections=tuned)
    png(figure)
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1


def test_the_methods_figure_has_the_best_on_top_and_names_its_numbers_for_those_who_cannot_see_it():
    table = table_of(Toy())
    arms = [Arm("SGD", {"lr": 0.1}), Arm("Polyak", {"M": 1.0}), Arm("Plain")]
    for mode, order in (("max", ["Polyak", "SGD", "Plain"]), ("min", ["Plain", "SGD", "Polyak"])):
        figure = methods_figure(table, "test_acc", arms, mode=mode, unit="fraction", reference="SGD")
        (ax,) = figure.axes
        shown = sorted(
            (text.xy[1], text.get_text())
            for text in ax.texts
            if text.get_text() in ("SGD", "Polyak", "Plain")
        )
        assert [name for _, name in reversed(shown)] == order
    assert "mean of SGD" in [text.get_text() for text in ax.texts]
    assert ax.get_xlabel().startswith("test accuracy (fraction)")
    assert re.search(r"Polyak \(M=1\) 0\.95\d* \[0\.\d+, 0\.\d+\]", figure.get_label())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [0.5, 0.0])
def test_the_methods_figure_of_a_single_value_has_room_around_it(value: float):
    result = CellResult(cell=Cell(method="Only", seed=0), status="done", measured={"test_acc": value})
    (ax,) = methods_figure(Table([result]), "test_acc").axes
    assert ax.get_xlim()[0] < value < ax.get_xlim()[1]


def test_the_series_figure_has_the_mean_and_the_interval_of_each_step():
    table = table_of(Toy())
    arm = Arm("Polyak", {"M": 1.0})
    (ax,) = series_figure(table, "loss", [arm]).axes
    runs = np.array(table.series(arm, "loss"))
    assert ax.get_lines()[0].get_ydata() == pytest.approx(runs.mean(axis=0))
    low = scipy.stats.ttest_1samp(runs[:, 0], 0).confidence_interval(0.95).low
    band = ax.collections[0].get_paths()[0].vertices
    assert min(y for x, y in band if x == 1.0) == pytest.approx(low)
    (logarithmic,) = series_figure(table, "loss", [arm], log_y=True).axes
    assert logarithmic.get_lines()[0].get_ydata() == pytest.approx(scipy.stats.gmean(runs, axis=0))


def test_series_of_unequal_length_and_of_one_seed_are_drawn():
    rows = [
        CellResult(cell=Cell(method="A", seed=s), status="done", measured={"y": [1.0] * n})
        for s, n in ((0, 3), (1, 5))
    ]
    (ax,) = series_figure(Table(rows), "y", [Arm("A")], x=[10, 20, 30, 40, 50], x_label="epoch").axes
    assert list(ax.get_lines()[0].get_xdata()) == [10, 20, 30]
    single = series_figure(Table(rows[:1]), "y", [Arm("A")])
    assert [text.get_text() for text in single.legends[0].get_texts()] == ["A"]


def test_many_untuned_settings_have_one_figure_by_setting():
    class Untuned(Toy):
        validation = ""

        def cells(self, scale):
            return [Cell(method="SGD", seed=s, setting={"lr": 0.1 * k}) for k in range(20) for s in (0, 1)]

    assert list(default_figure(Untuned(), table_of(Untuned()))) == ["settings"]


def test_a_narrow_picture_stacks_the_panels_and_leaves_the_figure_as_it_was():
    figure = default_figure(Toy(), table_of(Toy()))["settings"]
    before = png(figure)
    width, height = size(before)
    slim_width, slim_height = size(png(figure, narrow=True))
    assert slim_width <= 420 < width
    assert slim_height > 1.3 * height
    assert png(figure) == before


def test_a_figure_of_the_claims_own_with_a_colour_bar_is_not_squeezed():
    figure, (ax,) = new_figure(title="own")
    figure.colorbar(ax.imshow([[0.0, 1.0]]))
    assert size(png(figure, narrow=True)) == size(png(figure))


def test_pictures_are_twice_as_sharp_as_the_page_shows_them(written):
    _, files = written
    content = files.figures["methods"].read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20]) == 2 * size(content)[0]


class Page(HTMLParser):
    """Reads a page and keeps what the tests ask for; complains of tags that do not nest."""

    VOID = ("meta", "img", "source", "path", "line", "rect", "circle")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def named(self, *names):
        return [attributes for tag, attributes in self.tags if tag in names]


def test_no_request_leaves_the_page(written):
    _, files = written
    text = files.html.read_text()
    read = Page(text)
    sources = [a[key] for _, a in read.tags for key in ("src", "srcset") if key in a]
    assert len(sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not read.named("script", "link", "iframe", "object", "base")
    assert "url(" not in text
    assert "@import" not in text
    policy = next(
        a["content"] for a in read.named("meta") if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert [a["href"] for a in read.named("a")] == ["https://example.org/a?b=1&c=2"]


def test_the_page_says_what_was_claimed_measured_and_judged(written):
    report, files = written
    words = " ".join("".join(Page(files.html.read_text()).words).split())
    assert "Polyak's step <needs> no tuning" in words
    assert "Claimed in: Section 5 & Figure 3" in words
    assert "“It does” <Section 5>." in words
    assert "Nothing: this is a check of our own." in words
    assert "Measured here, laptop scale, 4 seeds" in words
    for judged in report.verdicts:
        assert judged.text in words
        assert estimate_text(judged) in words
        assert judged.detail in words
    assert "leyden reproduce plug/toy --scale laptop --seeds 4" in words
    assert "RuntimeError: it <broke>" in words
    assert "Polyak (M=10) seed 2: failed" in words
    assert "lr=0.1 is the largest tried" in words
    assert "tracking.uri" in words
    assert "sqlite:///<x>" in words
    assert "1 min 15 s" in words


def test_the_page_can_be_heard(written):
    _, files = written
    read = Page(files.html.read_text())
    assert read.named("html") == [{"lang": "en"}]
    assert all(len(image["alt"]) > 30 for image in read.named("img"))
    assert all(head["scope"] in ("col", "row") for head in read.named("th"))
    assert len(read.named("caption")) == len(read.named("table")) > 2
    levels = [int(tag[1]) for tag, _ in read.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    drawn = read.named("svg")
    assert all(a.get("aria-hidden") == "true" or (a["role"] == "img" and a["aria-label"]) for a in drawn)


@pytest.mark.parametrize("outcome", ["holds", "does not hold", "undecided"])
def test_a_verdict_is_an_icon_and_a_word_not_a_colour_alone(outcome):
    class Judged(Toy):
        def judge(self, table):
            return [verdict(outcome=outcome)]

    assert re.search(rf'class="badge"><svg .*?<path .*?</svg>{outcome}<', page(report_of(Judged()), {}))


def test_the_picture_of_a_verdict_has_its_interval_on_the_right_side_of_the_threshold():
    class Judged(Toy):
        def judge(self, table):
            return [
                verdict(low=0.01, high=0.03, threshold=0.0),
                verdict(low=-0.03, estimate=-0.02, high=-0.01),
            ]

    text = page(report_of(Judged()), {})
    bars = [(float(a), float(b)) for a, b in re.findall(r'class="bar" x1="([\d.]+)" x2="([\d.]+)"', text)]
    thresholds = [float(x) for x in re.findall(r'class="threshold" x1="([\d.]+)"', text)]
    assert thresholds[0] < bars[0][0] < bars[0][1]
    assert bars[1][0] < bars[1][1] < thresholds[1]


def test_verdicts_are_read_back_as_they_were_written(written):
    report, files = written
    record = read_verdicts(files.verdicts.parent)
    judged = record.pop("verdicts")
    assert record.pop("date").endswith("+00:00")
    assert record == {
        "format": 1,
        "plugin": "plug",
        "claim": "toy",
        "scale": "laptop",
        "seeds": [0, 1, 2, 3],
        "cells": 24,
        "failed": 1,
    }
    assert [told["outcome"] for told in judged] == [known.outcome for known in report.verdicts]
    assert judged[0]["estimate"] == report.verdicts[0].estimate
    numbers = {"estimate", "low", "high", "threshold", "threshold_high", "pairs", "seeds_needed"}
    assert set(judged[0]) == {"statement", "kind", "outcome", "unit"} | numbers


def test_a_number_that_is_not_finite_is_null_in_the_verdicts(tmp_path):
    files = write_report(tmp_path, report_of(table=table_of(Toy(), seeds=1)))
    text = files.verdicts.read_text()
    assert "Infinity" not in text
    assert json.loads(text)["verdicts"][0]["low"] is None


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"format": 2}'])
def test_verdicts_that_cannot_be_read_are_none(tmp_path, content):
    if content is not None:
        (tmp_path / "verdicts.json").write_text(content)
    assert read_verdicts(tmp_path) is None


def test_the_verdicts_are_written_last(tmp_path, monkeypatch):
    import leyden.report

    names = []
    write = leyden.report.write_atomic
    monkeypatch.setattr(
        leyden.report, "write_atomic", lambda path, content: names.append(path.name) or write(path, content)
    )
    write_report(tmp_path, report_of())
    assert names[-1] == "verdicts.json"
    assert sorted(names) == ["methods.png", "report.html", "settings.png", "table.md", "verdicts.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LeydenError, match=r"the report cannot be written to .*file"):
        write_report(tmp_path / "file" / "report", report_of())


def test_markdown_tables_have_one_width_and_escape_what_would_split_a_cell(written):
    _, files = written
    lines = files.markdown.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert any("Polyak beats SGD \\| tuned." in row for row in rows)
    blocks = re.findall(r"(?:^\|.*\n)+", files.markdown.read_text(), flags=re.M)
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in block.strip().splitlines()}
        assert len(widths) == 1
    assert "![methods](methods.png)" in lines
    assert (
        "A, B: [A <paper>](https://example.org/a?b=1&c=2), V 2026. Claimed in: Section 5 & Figure 3." in lines
    )


def printed(report, width=80, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    to_terminal(Console(file=file, width=width), report)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_the_terminal_shows_intervals_pairs_and_verdicts_within_its_width(written):
    report, _ = written
    text = printed(report)
    assert max(map(len, text.splitlines())) <= 80
    rows = {row.arm.method: row for row in summary_rows(report.claim, report.table)}
    assert re.search(r"M=1 · best of 3 +\[0\.9\d+, 0\.9\d+\] +\[\+0\.0\d+, \+0\.0\d+\]", text)
    assert f"{rows['Polyak'].difference.mean:+.4f}"[:6] in text
    assert "edge: lr=0.1" in text
    assert "✓ holds" in text
    assert "Polyak (M=10) seed 2 failed: RuntimeError: it <broke>" in text


def test_a_terminal_without_unicode_is_served_too():
    class Worse(Toy):
        def judge(self, table):
            return [
                verdict(outcome="does not hold", low=-0.03, estimate=-0.02, high=-0.01, threshold=-math.inf)
            ]

    text = printed(report_of(Worse()), encoding="ascii")
    assert "x does not hold" in text
    assert "-0.020 [-0.030, -0.010]" in text


def test_a_claim_whose_drawing_raises_still_has_a_report_with_the_default_figures(tmp_path):
    class Broken(Toy):
        def figure(self, table):
            raise ZeroDivisionError("no axis")

    figures, problems = draw(Broken(), table_of(Broken()))
    assert list(figures) == ["methods", "settings"]
    files = write_report(tmp_path, report_of(Broken()))
    assert "ZeroDivisionError: no axis" in files.html.read_text()
    assert files.problems == problems


def test_a_claims_own_figures_go_by_name(tmp_path):
    class Own(Toy):
        def figure(self, table):
            return {"loss": series_figure(table, "loss", [Arm("Plain")])}

    files = write_report(tmp_path, report_of(Own()))
    assert [path.name for path in files.figures.values()] == ["loss.png"]

    class One(Toy):
        def figure(self, table):
            return new_figure()[0]

    assert list(write_report(tmp_path / "one", report_of(One())).figures) == ["toy"]


@pytest.mark.parametrize("seeds", [0, 1, 2])
@pytest.mark.parametrize("failing", [lambda cell: False, lambda cell: True], ids=["done", "failed"])
def test_a_report_is_written_however_little_was_measured(tmp_path, seeds, failing):
    claim = Toy()
    report = report_of(claim, table_of(claim, seeds, failing), paper=None)
    files = write_report(tmp_path, report)
    assert files.problems == ()
    Page(files.html.read_text())
    assert {judged.outcome for judged in report.verdicts} <= {"undecided", "holds"}
    assert printed(report)
    assert to_markdown(report)


def test_numbers_that_are_not_finite_are_shown_as_missing(tmp_path):
    class Diverging(Toy):
        def run(self, cell):
            measured = super().run(cell)
            return {**measured, "test_acc": math.nan, "loss": [math.inf, 1.0]} if cell.seed == 1 else measured

    claim = Diverging()
    files = write_report(tmp_path, report_of(claim))
    assert files.problems == ()
    assert "1 cell without a value" in files.html.read_text()


def test_every_kind_of_verdict_is_told_and_drawn():
    class Every(Toy):
        def judge(self, table):
            arms = best(table, "Polyak", "val_acc"), best(table, "SGD", "val_acc")
            first, second = self.statements
            y = table.series_by_seed(Arm("Polyak", {"M": 1.0}), "loss")
            return [
                better(first, table, *arms, "test_acc", by="ratio", margin=1.01),
                not_worse(first, table, *arms, "test_acc", margin=0.1),
                bound(second, table, "slack"),
                rate(second, [1, 2, 3], y, -2.0, 0.0),
                rate(second, [1, 2, 3], y, -math.inf, 0.0),
            ]

    text = page(report_of(Every()), {})
    assert text.count('class="card verdict holds"') == 5
    assert text.count('class="scale"') == 5


def test_importing_the_report_costs_nothing_heavy():
    heavy = ("numpy", "scipy", "matplotlib", "PIL", "torch", "lightning", "mlflow", "rich")
    code = f"import sys, leyden.report, leyden.figures; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


WRITING = """
import sys
from pathlib import Path
from leyden.claims import *
from leyden.report import *

class C(Claim):
    name = title = source = metric = "x"
    statements = ()
    def cells(self, scale): return []
    def run(self, cell): return {}
    def judge(self, table): return []

rows = [CellResult(cell=Cell(method="A", seed=s), status="done", measured={"x": float(s)}) for s in (0, 1)]
write_report(Path(sys.argv[1]), Report(claim=C(), table=Table(rows), verdicts=[], plugin="p", scale="smoke"))
print([m for m in ("torch", "lightning", "mlflow", "matplotlib.pyplot") if m in sys.modules])
"""


def test_drawing_and_writing_need_neither_torch_nor_lightning_nor_mlflow(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITING, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
