"""Pictures of a claim: means with their 95 % intervals, in colours that everybody can tell apart.

A claim's ``figure`` draws with `setting_figure`, `series_figure` or `methods_figure`, or on the axes of
`new_figure`. matplotlib is used without pyplot: nothing is global, nothing opens a window. A method has the
same colour, marker and line in every figure (`styles`); no two differ in colour alone. The palette is Okabe
and Ito's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from leyden.claims import Arm, Claim, Mode, Table
from leyden.formatting import axis_label, common_decimals, interval_text, listing, words
from leyden.statistics import GridPoint, Interval, Selection, best, interval
from leyden.summary import selections

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, SURFACE = "#1d2126", "#5b6470", "#e4e7eb", "#ffffff"
"""Text, secondary text, grid lines and background of a figure."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
_MARKERS = ("o", "s", "D", "^", "v", "P", "h", "*")
_MANY = 12
_CROSS: dict[str, Any] = {"marker": "x", "ms": 8, "mew": 2}
_LABEL_INCHES = 0.5
"""Room for a number under an axis."""
_LINES = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)))

LEGEND = "leyden-legend"
"""The identity of a legend that may be arranged anew for another width."""

ROW_NAME = "leyden-row-name"
"""The identity of a row's name, which may be broken into lines."""

WIDTH = 8.4
"""Width of a figure in inches; at 100 dots an inch it fills the report's column."""


@dataclass(frozen=True)
class Style:
    """How a method looks in every figure of a claim."""

    color: str
    marker: str
    line: Any


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """A look for each method, in order; colours repeat after seven, looks after two hundred and eighty.

    >>> styles(["SGD", "Adam"])["Adam"]
    Style(color='#D55E00', marker='s', line='--')
    """
    return {
        method: Style(
            PALETTE[place % len(PALETTE)], _MARKERS[place % len(_MARKERS)], _LINES[place % len(_LINES)]
        )
        for place, method in enumerate(methods)
    }


def new_figure(
    panels: int = 1, *, title: str = "", height: float = 4.2, alt: str = "", share_y: bool = True
) -> tuple[Figure, list[Axes]]:
    """An empty figure in the house style.

    Args:
        panels: how many axes, side by side (the report stacks them on a narrow screen).
        title: one line on what is seen; the report wraps it.
        height: in inches.
        alt: what a person who cannot see it should know; the report's ``alt`` text.
        share_y: whether the panels share the vertical axis.

    Returns:
        The figure and its axes.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.09)
    figure = Figure(figsize=(WIDTH, height), layout=layout, facecolor=SURFACE)
    figure.set_label(alt)
    if title:
        figure.suptitle(title, x=0.012, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    axes = list(figure.subplots(1, panels, sharey=share_y, squeeze=False)[0])
    for ax in axes:
        _dress(ax)
    return figure, axes


def methods_figure(
    table: Table,
    metric: str,
    arms: Sequence[Arm | Selection] | None = None,
    *,
    mode: Mode = "max",
    unit: str = "",
    reference: str = "",
    title: str = "",
) -> Figure:
    """A row for each arm: its mean with the 95 % interval, and every seed as a faint dot.

    Args:
        table: the results.
        metric: what is shown.
        arms: the arms, or tuned methods; None: every arm of the table. The best mean stands on top.
        mode: whether a larger or a smaller value is better.
        unit: the metric's unit.
        reference: a method whose mean is drawn as a line through all rows.
        title: one line on what is seen.
    """
    chosen = [arm.arm if isinstance(arm, Selection) else arm for arm in arms or table.arms()]
    rows = [(arm, _finite(table.by_seed(arm, metric))) for arm in chosen if arm is not None]
    rows = [(arm, values) for arm, values in rows if values]
    rows.sort(key=lambda row: interval(row[1]).mean, reverse=mode == "min")
    said = [f"{arm} {interval_text(*interval(values))}" for arm, values in reversed(rows)]
    figure, (ax,) = new_figure(
        title=title or f"{_capital(words(metric))} of each method",
        height=1.3 + 0.56 * max(len(rows), 2),
        alt=f"{_capital(words(metric))}, mean and 95 % interval over seeds. " + listing(said, at_most=20),
    )
    look = styles(table.methods)
    ax.set_xlim(*_limits([values for _, values in rows]))
    ax.set_ylim(-0.55, len(rows) - 0.25)
    decimals = common_decimals(interval(values) for _, values in rows)
    for place, (arm, values) in enumerate(rows):
        found = interval(values)
        _draw_row(ax, place, values, found, look[arm.method])
        _name_row(ax, place, arm, found, decimals)
        if arm.method == reference:
            ax.axvline(found.mean, color=MUTED, lw=1, ls=(0, (4, 3)), zorder=1)
            ax.annotate(f"mean of {reference}", (found.mean, 1), (0, 3), xycoords=ax.get_xaxis_transform(),
                        textcoords="offset points", ha="center", fontsize=8.5, color=MUTED)  # fmt: skip
    ax.set_yticks(range(len(rows)), [""] * len(rows))
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"{axis_label(metric, unit)}: mean, 95 % interval, and each seed as a tick")
    return figure


def setting_figure(
    table: Table,
    metric: str,
    methods: Sequence[str] | None = None,
    *,
    selections: Mapping[str, Selection] | None = None,
    mode: Mode = "max",
    unit: str = "",
    log_y: bool = False,
    title: str = "",
) -> Figure:
    """A metric against the setting of each method, one panel for each kind of setting.

    A setting of which a cell failed is a cross at the bottom; the setting that tuning chose has a ring. A
    method with several varying values shows, at each place, its best setting of the others. A method without
    a varying value is a level line.

    Args:
        table: the results.
        metric: what is shown.
        methods: the methods; None: all.
        selections: tuned methods by name, from `leyden.statistics.best`, for the rings.
        mode: whether a larger or a smaller value is better.
        unit: the metric's unit.
        log_y: whether the vertical axis is logarithmic.
        title: one line on what is seen.
    """
    shown = [method for method in table.methods if methods is None or method in methods]
    keys: dict[str, list[str]] = {}
    for method in shown:
        for key in _varying(table.arms(method)):
            keys.setdefault(key, []).append(method)
    level = [method for method in shown if not _varying(table.arms(method))]
    names = listing(shown, at_most=20)
    figure, axes = new_figure(
        max(len(keys), 1),
        title=title or f"{_capital(words(metric))} against the setting",
        alt=f"{_capital(words(metric))} against {listing(keys, at_most=8)}, mean and 95 % interval over "
        f"seeds, for {names}. The numbers are in the tables of tuning.",
    )
    look, tuned = styles(table.methods), selections or {}
    failed = ringed = False
    values: list[float] = []
    for ax, key in zip(axes, keys, strict=False):
        for method in keys[key]:
            profile = _profile(best(table, method, metric, mode), key, tuned.get(method))
            _draw_profile(ax, profile, look[method], tuned.get(method))
            for x, point in profile:
                seeds = _finite(table.by_seed(point.arm, metric))
                values += seeds
                _draw_seeds(ax, x, seeds, look[method])
            failed = failed or any(point.lost for _, point in profile)
            ringed = ringed or method in tuned
        _scale_x(ax, [x for method in keys[key] for x in _places(table.arms(method), key)])
        ax.set_xlabel(key)
    for method in level:
        values += _finite(table.by_seed(table.arms(method)[0], metric))
    for column, ax in enumerate(axes):
        for method in level:
            _draw_level(ax, interval(_finite(table.by_seed(table.arms(method)[0], metric))), look[method])
        if log_y:
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(_decade)
        else:
            _show_measured(ax, values)
        ax.set_ylabel(axis_label(metric, unit))
        ax.yaxis.label.set_visible(column == 0)
    marks = {}
    if any(math.isfinite(interval(_finite(table.by_seed(arm, metric))).low) for arm in table.arms()):
        marks["95 % interval"] = "band"
        marks["one seed"] = "seed"
    if ringed:
        marks["chosen by " + words(next(iter(tuned.values())).metric)] = "ring"
    if failed:
        marks["a cell failed"] = "cross"
    _legend(figure, shown, look, marks)
    return figure


def series_figure(
    table: Table,
    name: str,
    arms: Sequence[Arm | Selection],
    *,
    x: str | Sequence[float] | None = None,
    x_label: str = "step",
    y_label: str = "",
    unit: str = "",
    log_y: bool = False,
    title: str = "",
) -> Figure:
    """A series against the step, its mean over seeds as a line and its 95 % interval as a band.

    On a logarithmic axis the mean is the geometric one and the interval that of the logarithms.

    Args:
        table: the results.
        name: the series.
        arms: the arms or tuned methods to draw.
        x: the places, or the name of the series that holds them, of which the mean over seeds is taken; None:
            1, 2, 3 …
        x_label: what they are, with their unit.
        y_label: what the series is; empty: its name and unit.
        unit: the series' unit.
        log_y: whether the vertical axis is logarithmic.
        title: one line on what is seen.
    """
    chosen = [arm.arm if isinstance(arm, Selection) else arm for arm in arms]
    drawn = [arm for arm in chosen if arm is not None and table.series(arm, name)]
    figure, (ax,) = new_figure(
        title=title or f"{_capital(words(name))} over the run",
        alt=f"{_capital(y_label or words(name))} against {x_label}, mean and 95 % interval over seeds, for "
        + listing(map(str, drawn), at_most=20),
    )
    looks = _arm_styles(drawn, table)
    lengths = [min(map(len, table.series(arm, name))) for arm in drawn]
    labels: dict[str, Style] = {}
    values: list[float] = []
    seeds = 0
    for place, (arm, length) in enumerate(zip(drawn, lengths, strict=True)):
        runs = [run[:length] for run in table.series(arm, name)]
        values += [value for run in runs for value in run if math.isfinite(value)]
        # dashes only where there is room to see them
        style = looks[place] if max(lengths) < 60 else replace(looks[place], line="-")
        steps = _steps(x, table, arm, length)
        middle, low, high = _bands(runs, log_y)
        ax.fill_between(steps, low, high, color=style.color, alpha=0.16, lw=0)
        every = max(length // 8, 1)
        ax.plot(
            steps, middle, color=style.color, ls=style.line, lw=1.8, marker=style.marker, ms=6, mec=SURFACE,
            mew=0.8, markevery=(every * (place + 1) // (len(drawn) + 1), every),
        )  # fmt: skip
        labels[str(arm)] = style
        seeds = max(seeds, len(runs))
    if log_y:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(_decade)
    else:
        _show_measured(ax, values)
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label or axis_label(name, unit))
    ax.margins(x=0.01)
    middle_word = "geometric mean" if log_y else "mean"
    band = {f"{middle_word} and 95 % interval of {seeds} seeds": "band"} if seeds > 1 else {}
    _legend(figure, list(labels), labels, band)
    return figure


def default_figure(claim: Claim, table: Table) -> dict[str, Figure]:
    """The figures of a claim that draws none itself: its methods at their best, and their settings."""
    chosen = selections(claim, table)
    tuned = f", settings chosen by {words(claim.validation)}" if claim.validation else ""
    varied = any(_varying(table.arms(method)) for method in table.methods)
    figures = {}
    if claim.validation or not varied or len(table.arms()) <= _MANY:
        figures["methods"] = methods_figure(
            table,
            claim.metric,
            list(chosen.values()) if claim.validation else None,
            mode=claim.mode,
            unit=claim.unit,
            reference=claim.reference,
            title=f"{_capital(words(claim.metric))} of each method{tuned}",
        )
    if varied:
        figures["settings"] = setting_figure(
            table,
            claim.metric,
            selections=chosen if claim.validation else None,
            mode=claim.mode,
            unit=claim.unit,
            title=f"How {words(claim.metric)} depends on the setting",
        )
    return figures


def _arm_styles(arms: Sequence[Arm], table: Table) -> list[Style]:
    """The methods' looks; where a method is drawn at several settings, each arm its own."""
    methods = [arm.method for arm in arms]
    if len(set(methods)) < len(methods):
        return list(styles(map(str, arms)).values())
    look = styles(table.methods)
    return [look[method] for method in methods]


def _dress(ax: Axes) -> None:
    # Explicit and not by rcParams: matplotlib makes ticks when it draws, after a context of settings ended.
    ax.set_facecolor(SURFACE)
    ax.set_axisbelow(True)
    ax.grid(visible=True, color=GRID, lw=0.8)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
        spine.set_linewidth(0.8)
    ax.tick_params(which="both", color=MUTED, labelcolor=MUTED, labelsize=9.5, width=0.8)
    ax.tick_params(which="minor", length=2)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_color(INK)
        label.set_fontsize(10)


def _legend(
    figure: Figure, names: Sequence[str], look: Mapping[str, Style], marks: Mapping[str, str] | None = None
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color=s.color, ls=s.line, marker=s.marker, lw=1.8, ms=6.5, mec=SURFACE, mew=0.8)
        for s in (look[name] for name in names)
    ]
    signs = {
        "band": Patch(facecolor=MUTED, alpha=0.2, lw=0),
        "ring": Line2D([], [], color=MUTED, ls="", marker="o", ms=12, mfc="none", mew=1.5),
        "cross": Line2D([], [], color=MUTED, ls="", **_CROSS),
        "seed": Line2D([], [], color=MUTED, ls="", marker="_", ms=7, mew=1.2, alpha=0.6),
    }
    handles += [signs[kind] for kind in (marks or {}).values()]
    if handles:
        place_legend(figure, handles, [*names, *(marks or {})])


def place_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Put a legend under the axes, in as few rows as the figure's width allows."""
    room = figure.get_size_inches()[0] - 0.2
    columns = next(c for c in range(len(names), 0, -1) if c == 1 or _legend_width(names, c) < room)
    figure.legend(
        handles, names, loc="outside lower left", ncols=columns, frameon=False, fontsize=9.5, labelcolor=INK,
        handlelength=3.2, columnspacing=1.8,
    ).set_gid(LEGEND)  # fmt: skip


def _legend_width(names: Sequence[str], columns: int) -> float:
    """Width in inches of a legend; matplotlib gives the first columns what does not divide evenly."""
    rows, longer = divmod(len(names), columns)
    ends = [(column + 1) * rows + min(column + 1, longer) for column in range(columns)]
    filled = [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return sum(max(map(len, column)) * 0.078 + 0.8 for column in filled)


def _draw_row(ax: Axes, place: int, values: Sequence[float], found: Interval, style: Style) -> None:
    ax.plot(values, [place] * len(values), ls="", marker="|", ms=11, mew=1.3, color=style.color, alpha=0.5)
    if math.isfinite(found.low):
        ax.plot(found[1:], [place, place], color=style.color, lw=3, solid_capstyle="round")
    ax.plot(found.mean, place, marker=style.marker, ms=9, color=style.color, mec=SURFACE, mew=1.2, zorder=4)


def _name_row(ax: Axes, place: int, arm: Arm, found: Interval, decimals: int | None) -> None:
    beside: dict[str, Any] = {
        "xycoords": ax.get_yaxis_transform(),
        "textcoords": "offset points",
        "ha": "right",
        "gid": ROW_NAME,
    }
    setting = str(arm)[len(arm.method) + 2 : -1]
    ax.annotate(arm.method, (0, place), (-8, 1 if setting else 0), va="bottom" if setting else "center",
                fontsize=10.5, color=INK, **beside)  # fmt: skip
    ax.annotate(setting, (0, place), (-8, -1), va="top", fontsize=8.5, color=MUTED, **beside)
    # The number stands over its bar, shifted inwards near the frame's sides.
    left, right = ax.get_xlim()
    where = (found.mean - left) / (right - left)
    side, x = ("left", max(found.low, left)) if where < 1 / 3 else ("center", found.mean)
    if where > 2 / 3:
        side, x = "right", min(found.high, right)
    if not math.isfinite(found.low):
        side, x = "center", found.mean
    ax.annotate(
        interval_text(*found, decimals=decimals), (x, place), (0, 8), textcoords="offset points", ha=side,
        fontsize=8.5, color=MUTED, zorder=2, bbox={"boxstyle": "square,pad=0.15", "fc": SURFACE, "lw": 0},
    )  # fmt: skip


def _draw_profile(
    ax: Axes, profile: Sequence[tuple[float, GridPoint]], style: Style, selection: Selection | None
) -> None:
    good = [(x, point.interval) for x, point in profile if not point.lost]
    xs = [x for x, _ in good]
    if any(math.isfinite(found.low) for _, found in good):
        ax.fill_between(
            xs, [f.low for _, f in good], [f.high for _, f in good], color=style.color, alpha=0.14, lw=0
        )
    ax.plot(
        xs, [found.mean for _, found in good], color=style.color, ls=style.line, marker=style.marker,
        lw=1.8, ms=6.5, mec=SURFACE, mew=0.8, zorder=3,
    )  # fmt: skip
    for x, point in profile:
        if point.lost:
            floor = ax.get_xaxis_transform()
            ax.plot(x, 0.035, transform=floor, color=style.color, ls="", clip_on=False, zorder=5, **_CROSS)
        elif selection is not None and point.arm == selection.arm:
            ax.plot(x, point.interval.mean, marker="o", ms=14, mfc="none", mec=style.color, mew=1.5, zorder=4,
                    clip_on=False)  # fmt: skip


def _draw_seeds(ax: Axes, x: float, seeds: Sequence[float], style: Style) -> None:
    ax.plot(
        [x] * len(seeds), seeds, ls="", marker="_", ms=7, mew=1.2, color=style.color, alpha=0.45, zorder=2
    )


def _bands(runs: Sequence[Sequence[float]], log: bool) -> tuple[list[float], list[float], list[float]]:
    logarithmic = log and all(value > 0 for run in runs for value in run)
    columns = [[math.log(v) for v in column] if logarithmic else column for column in zip(*runs, strict=True)]
    found = [interval(column) for column in columns]
    # One run has no interval: no band is drawn, rather than one that fills the figure.
    bands = [
        Interval(f.mean, *((f.low, f.high) if math.isfinite(f.low) else (f.mean, f.mean))) for f in found
    ]
    if logarithmic:
        bands = [Interval(*map(math.exp, band)) for band in bands]
    return [b.mean for b in bands], [b.low for b in bands], [b.high for b in bands]


def _profile(grid: Selection, key: str, tuned: Selection | None) -> list[tuple[float, GridPoint]]:
    """For each value of the key the point to draw: the tuned choice, else the best, else one that failed."""
    profile = []
    for x in sorted(set(_places([point.arm for point in grid.grid], key))):
        points = [point for point in grid.grid if (point.arm.setting or {}).get(key) == x]
        good = [point for point in points if not point.lost]
        chosen = [point for point in good if tuned is not None and point.arm == tuned.arm]
        choose = max if grid.mode == "max" else min
        point = (chosen or [choose(good, key=lambda p: p.interval.mean) if good else points[0]])[0]
        profile.append((x, point))
    return profile


def _draw_level(ax: Axes, found: Interval, style: Style) -> None:
    if math.isnan(found.mean):
        return
    ax.axhline(found.mean, color=style.color, ls=style.line, lw=1.8)
    if math.isfinite(found.low):
        ax.axhspan(found.low, found.high, color=style.color, alpha=0.14, lw=0)


def _show_measured(ax: Axes, values: Sequence[float]) -> None:
    """Let the vertical axis end where the values do: a band of few seeds must not dwarf what was measured."""
    if len(set(values)) > 1:
        margin = 0.06 * (max(values) - min(values))
        ax.set_ylim(min(values) - margin, max(values) + margin)


def _varying(arms: Sequence[Arm]) -> list[str]:
    """The numeric values of the setting in which a method's arms differ."""
    keys = dict.fromkeys(key for arm in arms for key in arm.setting or {})
    return [key for key in keys if len(set(_places(arms, key))) > 1]


def _places(arms: Sequence[Arm], key: str) -> list[float]:
    values = [(arm.setting or {}).get(key) for arm in arms]
    return [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


def _scale_x(ax: Axes, places: Sequence[float]) -> None:
    """Make the axis logarithmic if the places span a decade; label decades, or places if they are few."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    ax.margins(x=0.08)
    positive = [x for x in places if x > 0]
    if min(places) < 0 or not positive or max(positive) / min(positive) < 10:
        return
    if len(positive) < len(places):
        ax.set_xscale("symlog", linthresh=min(positive))
    else:
        ax.set_xscale("log")
    if math.floor(math.log10(max(positive))) - math.ceil(math.log10(min(positive))) < 1:
        ax.xaxis.set_major_locator(FixedLocator([*(x for x in places if not x), *_spread(ax, positive)]))
    ax.xaxis.set_major_formatter(_decade)
    ax.xaxis.set_minor_formatter(NullFormatter())


def _spread(ax: Axes, positive: Sequence[float]) -> list[float]:
    """Of the places on a logarithmic axis both ends, and those between whose labels do not touch another."""
    places = sorted(set(positive))
    cell = ax.get_subplotspec()
    panels = cell.get_gridspec().ncols if cell else 1
    figure = ax.get_figure(root=True)
    assert figure is not None
    width = figure.get_figwidth() / panels - 0.5  # without the gap between two panels
    least = _LABEL_INCHES / width * math.log(places[-1] / places[0])
    kept = [places[0]]
    for place in places[1:-1]:
        if math.log(place / kept[-1]) >= least and math.log(places[-1] / place) >= least:
            kept.append(place)
    return [*kept, places[-1]]


def _decade(value: float, _: float) -> str:
    if value == 0 or 1e-3 <= abs(value) <= 1e3:
        return f"{value:g}"
    return f"$10^{{{math.log10(value):g}}}$"


def _steps(x: str | Sequence[float] | None, table: Table, arm: Arm, length: int) -> list[float]:
    if x is None:
        return [float(step) for step in range(1, length + 1)]
    if not isinstance(x, str):
        return list(x)[:length]
    columns = zip(*(places[:length] for places in table.series(arm, x)), strict=True)
    return [math.fsum(column) / len(column) for column in columns]


def _finite(by_seed: Mapping[int, float]) -> list[float]:
    return [value for value in by_seed.values() if math.isfinite(value)]


def _limits(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Limits that show every value and its interval, but no interval wider than the values are apart."""
    if not rows:
        return 0.0, 1.0
    values = [value for row in rows for value in row]
    span = (max(values) - min(values)) or abs(values[0]) or 1.0
    ends = [end for row in rows for end in interval(row)[1:] if math.isfinite(end)]
    low = max(min([*values, *ends]), min(values) - span)
    high = min(max([*values, *ends]), max(values) + span)
    if low == high:
        return low - span, high + span
    return low - 0.06 * (high - low), high + 0.06 * (high - low)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
