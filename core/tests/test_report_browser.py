"""A report is read in a real browser: nothing leaves the file, and it is legible on every screen."""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from browser import CONTRASTS, OUTSIDE, chromium, luminances, pixels, watch
from leyden.claims import Cell, CellResult, Claim, Measured, Scale, Statement, Table
from leyden.figures import default_figure
from leyden.model import Outcome, Paper, Verdict
from leyden.rendering import png
from leyden.report import Report, write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

LONG = "MomentumSafeguardedStochasticPolyakSteps"
SCREENS = list(itertools.product((1200, 400), ("light", "dark")))
SCALE = Scale("laptop", 4)
CONTRAST = 4.5
"""What WCAG 2 asks of text at level AA."""


class Made(Claim):
    """Long words, wide numbers, every outcome, failed cells and two figures."""

    name = "made"
    title = f"{LONG} needs no learning rate, and everything else does"
    source = "Section 5"
    statements = (
        Statement(id="yes", text=f"{LONG} is better than SGD.", kind="better", paper="Better by far."),
        Statement(id="no", text="SGD needs no tuning.", kind="not worse"),
        Statement(id="open", text="Warm-up does not matter.", kind="not worse"),
    )
    minutes: ClassVar[Mapping[str, float]] = {"laptop": 1.0}
    seeds: ClassVar[Mapping[str, int]] = {"laptop": 4}
    metric = "test_loss"
    mode = "min"
    validation = "val_loss"
    reference = "SGD"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        return [
            Cell(method=method, setting={"M": value}, seed=seed)
            for method in (LONG, "SGD", "Adam")
            for value in (0.001, 0.1, 10.0)
            for seed in range(scale.seeds)
        ]

    def run(self, cell: Cell) -> Measured:
        level = 123456.789 * len(cell.method) * (1 + cell.setting["M"])
        loss = level * (1 + 0.1 * math.sin(3 * cell.seed))
        return {"test_loss": loss, "val_loss": 1.1 * loss, "largest_squared_gradient_norm": loss**2}

    def judge(self, table: Table) -> Sequence[Verdict]:
        outcomes: Sequence[tuple[Outcome, float]] = (
            ("holds", 0.3), ("does not hold", -0.3), ("undecided", 0.01),
        )  # fmt: skip
        return [
            Verdict(
                statement=statement.id,
                text=statement.text,
                kind=statement.kind,
                outcome=outcome,
                estimate=estimate,
                low=estimate - 0.1,
                high=estimate + 0.1,
                threshold=0.0,
                unit="fraction",
                detail="paired by seed",
                pairs=4,
            )
            for statement, (outcome, estimate) in zip(self.statements, outcomes, strict=True)
        ]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with all that a report can hold."""
    claim = Made()
    rows = []
    for cell in claim.cells(SCALE):
        lost = (cell.method, cell.setting["M"], cell.seed) == ("Adam", 10.0, 2)
        trace = f"Traceback (most recent call last):\n  File {'long/' * 40}x.py\nRuntimeError: it broke"
        rows.append(
            CellResult(cell=cell, status="failed", error=trace)
            if lost
            else CellResult(cell=cell, status="done", measured=claim.run(cell))
        )
    table = Table(rows)
    paper = Paper(
        title="On steps", authors=("A. Author",), venue="ICML 2026", url="https://example.org/1", summary=""
    )
    report = Report(
        claim=claim,
        table=table,
        verdicts=claim.judge(table),
        plugin="plug",
        scale="laptop",
        paper=paper,
        settings={"tracking": {"uri": "sqlite:///" + "folder/" * 20 + "leyden.db"}},
        provenance={"torch": "2.13"},
        seconds=75.0,
        problems=("The figure 'third' could not be drawn.\nTraceback: none",),
    )
    return write_report(tmp_path_factory.mktemp("report"), report).html


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(params=SCREENS, ids=[f"{width}-{scheme}" for width, scheme in SCREENS])
def page(request: pytest.FixtureRequest, browser: Browser, path: Path) -> Iterator[Page]:
    """The report on a wide and a narrow screen, light and dark, with all that folds open."""
    width, scheme = request.param
    with browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme) as opened:
        opened.goto(path.as_uri())
        opened.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        yield opened


def is_dark(page: Page) -> bool:
    return bool(page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"))


def figures(page: Page) -> list[Locator]:
    found = page.locator("figure img").all()
    assert len(found) == 2
    return found


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
@pytest.mark.parametrize("policy", [True, False], ids=["policy", "no-policy"])
def test_no_request_leaves_the_file(browser: Browser, path: Path, scripts: bool, policy: bool) -> None:
    # Without the page's own policy, too: it forbids requests, but there is none to forbid.
    with browser.new_context(java_script_enabled=scripts, bypass_csp=not policy) as context:
        page = context.new_page()
        traffic = watch(page)
        page.goto(path.as_uri(), wait_until="networkidle")
        page.mouse.wheel(0, 100_000)
        page.wait_for_timeout(200)
        asked = [address for address in traffic.requests if not address.startswith("data:")]
        assert asked == [path.as_uri()]
        assert traffic.complaints == []


def test_the_policy_of_the_page_forbids_what_a_claim_might_smuggle_in(browser: Browser, path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(1.0)
        address = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/x.png"
        smuggled = f'<img src="{address}"><script>document.title = "ran"</script></main>'
        other = path.with_name("smuggled.html")
        other.write_text(path.read_text().replace("</main>", smuggled))
        for policy in (True, False):
            with browser.new_context(bypass_csp=not policy) as context:
                page = context.new_page()
                page.goto(other.as_uri(), wait_until="commit")
                with pytest.raises(TimeoutError) if policy else contextlib.nullcontext():
                    elsewhere.accept()[0].close()
                assert (page.title() == "ran") != policy


def test_nothing_reaches_beyond_the_edge_of_the_page(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert page.evaluate(OUTSIDE, ".card, .badge") == []
    for box in page.locator(".wide").all():  # a table scrolls only where its numbers alone are wider
        assert box.evaluate("(box) => box.scrollWidth - box.clientWidth") == 0


@pytest.mark.parametrize("width", [700, 900])
def test_a_table_that_is_wider_scrolls_in_its_own_box(browser: Browser, path: Path, width: int) -> None:
    with browser.new_page(viewport={"width": width, "height": 800}) as page:
        page.goto(path.as_uri())
        page.add_style_tag(content="th, td { min-width: 260px; }")  # as many columns would
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(OUTSIDE, ".card, .badge") == []
        box = page.locator(".wide").first
        assert box.evaluate("(box) => { box.scrollLeft = 10_000; return box.scrollLeft; }") > 50


def test_all_text_stands_out_from_what_lies_behind_it(page: Page) -> None:
    found = page.evaluate(CONTRASTS)
    faint = [
        (each["what"], each["text"], round(each["ratio"], 2)) for each in found if each["ratio"] < CONTRAST
    ]
    assert faint == []
    seen = {each["what"] for each in found}
    assert {"span.badge", "li.badge holds", "li.badge refuted", "li.badge open", "caption.", "h1."} <= seen
    assert {"span.remark flag", "summary.", "pre.", "text.", "p.note"} <= seen
    assert {each["dark"] for each in found} == {is_dark(page)}


def test_figures_are_seen_and_suit_the_screen(page: Page) -> None:
    for figure in figures(page):
        assert figure.evaluate("(image) => image.complete && image.naturalWidth > 0")
        box = figure.bounding_box()
        assert box is not None
        assert box["width"] > 300
        shades = luminances(pixels(figure))
        ground = shades[len(shades) // 2]
        ink = shades[-1] if is_dark(page) else shades[0]
        high, low = max(ground, ink), min(ground, ink)
        assert (high + 0.05) / (low + 0.05) > 10
        assert (ground < 0.05) == is_dark(page)
        assert (ground > 0.9) == (not is_dark(page))


def test_a_narrow_screen_gets_the_narrow_figure(browser: Browser, path: Path) -> None:
    chosen = {}
    for width in (1200, 400):
        with browser.new_page(viewport={"width": width, "height": 800}) as page:
            page.goto(path.as_uri())
            chosen[width] = [figure.evaluate("(image) => image.naturalWidth") for figure in figures(page)]
    assert max(chosen[400]) < min(chosen[1200])


def test_folded_parts_open_without_scripts(browser: Browser, path: Path) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(path.as_uri())
        folded = page.locator("details").first
        assert not folded.locator("table").is_visible()
        folded.locator("summary").click()
        assert folded.locator("table").is_visible()


def test_a_long_name_is_broken_and_leaves_its_figure_room() -> None:
    claim = Made()
    table = Table(
        CellResult(cell=cell, status="done", measured=claim.run(cell)) for cell in claim.cells(SCALE)
    )
    figure = default_figure(claim, table)["methods"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's, where a label leaves no room for the axes
        before = png(figure)
        assert png(figure, narrow=True) != before
        assert png(figure) == before
