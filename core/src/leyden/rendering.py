"""A figure as PNG, for a wide page or a narrow one."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from leyden.figures import LEGEND, ROW_NAME, place_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

NARROW = 4.0
"""Width in inches of a figure on a narrow page."""

DOTS = 200
"""Dots an inch: twice what a page shows, so that it is sharp on any screen."""

_NAMES = 0.45
"""Share of a figure's width that the names of its rows may take."""

_LETTER = 0.0083
"""Mean width of a letter in inches, by point of its size."""

_LINE = 0.17
"""Height in inches of another line of a row's name."""


def png(figure: Figure, *, narrow: bool = False) -> bytes:
    """Draw a figure; it is afterwards as it was.

    Args:
        figure: any figure of matplotlib.
        narrow: whether the page is narrow: panels are stacked, titles wrapped, the legend rearranged. A
            figure whose panels are not one row of equals stays as it is.

    Returns:
        The file's content.
    """
    with _narrowed(figure) if narrow and _can_be_narrow(figure) else nullcontext(), _wrapped(figure):
        return _drawn(figure)


def size(content: bytes) -> tuple[int, int]:
    """Width and height of a PNG made by `png`, in the pixels of a page."""
    from PIL import Image

    width, height = Image.open(io.BytesIO(content)).size
    return round(width * 100 / DOTS), round(height * 100 / DOTS)


def _drawn(figure: Figure) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas, dots = figure.canvas, figure.dpi
    agg: Any = FigureCanvasAgg(figure)
    figure.set_dpi(DOTS)
    try:
        agg.draw()
        picture = Image.frombuffer("RGBA", agg.get_width_height(), agg.buffer_rgba()).convert("RGB")
    finally:
        figure.set_dpi(dots)
        figure.set_canvas(canvas)
    # 256 colours take a third of the space, and no eye sees the difference in a plot
    compact = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(compact, format="PNG", optimize=True)
    return compact.getvalue()


@contextmanager
def _narrowed(figure: Figure) -> Iterator[None]:
    width, height = figure.get_size_inches()
    places = [(ax, ax.get_subplotspec()) for ax in figure.axes]
    stacked = _is_row(figure)
    if stacked:
        grid = figure.add_gridspec(len(places), 1)
        for row, (ax, _) in enumerate(places):
            ax.set_subplotspec(grid[row, 0])
            ax.tick_params(labelleft=True)
            ax.yaxis.label.set_visible(True)
    panels = len(places) if stacked else 1
    shrink = min(NARROW / width, 1.0)
    figure.set_size_inches(width * shrink, panels * (height if panels == 1 else 0.72 * height))
    _rearrange_legend(figure)
    try:
        yield
    finally:
        figure.set_size_inches(width, height)
        for column, (ax, place) in enumerate(places):
            if stacked and place is not None:
                ax.set_subplotspec(place)
                ax.tick_params(labelleft=column == 0 or not _shares_y(figure))
                ax.yaxis.label.set_visible(column == 0 or not _shares_y(figure))
        _rearrange_legend(figure)


def _can_be_narrow(figure: Figure) -> bool:
    return len(figure.axes) == 1 or _is_row(figure)


def _is_row(figure: Figure) -> bool:
    """Whether the axes are one row of equal columns, none of them a colour bar or an inset."""
    specs = [ax.get_subplotspec() for ax in figure.axes]
    if len(specs) < 2 or any(spec is None for spec in specs):
        return False
    grids = {spec.get_gridspec() for spec in specs if spec is not None}
    return len(grids) == 1 and grids.pop().get_geometry() == (1, len(specs))


def _shares_y(figure: Figure) -> bool:
    first = figure.axes[0]
    return all(first.get_shared_y_axes().joined(first, ax) for ax in figure.axes)


@contextmanager
def _wrapped(figure: Figure) -> Iterator[None]:
    """Break titles and labels where they would leave the figure, and rows' names where they would fill it."""
    width, height = figure.get_size_inches()
    width -= 0.25
    shapes = [spec.get_gridspec().ncols for ax in figure.axes if (spec := ax.get_subplotspec()) is not None]
    column = 0.85 * width / max(shapes, default=1)
    names = [text for ax in figure.axes for text in ax.texts if text.get_gid() == ROW_NAME]
    title = getattr(figure, "_suptitle", None)
    others = [title] if title is not None else []
    others += [text for ax in figure.axes for text in (ax.xaxis.label, ax.title)]
    before = {text: text.get_text() for text in (*names, *others)}
    for name in names:
        name.set_text(_fill_name(name.get_text(), _letters(name, _NAMES * width)))
    taken = max((_width(name) for name in names), default=0.0)
    for text in others:
        letters = _letters(text, width if text is title else min(column, width - taken))
        text.set_text("\n".join(textwrap.fill(line, letters) for line in text.get_text().split("\n")))
    higher = max((name.get_text().count("\n") for name in names), default=0)
    figure.set_size_inches(width + 0.25, height + higher * _LINE * len(names) / 2)
    try:
        yield
    finally:
        figure.set_size_inches(width + 0.25, height)
        for text, old in before.items():
            text.set_text(old)


def _letters(text: Text, room: float) -> int:
    return max(int(room / (_LETTER * float(text.get_fontsize()))), 12)


def _width(text: Text) -> float:
    return max(len(line) for line in text.get_text().split("\n")) * _LETTER * float(text.get_fontsize())


def _fill_name(name: str, letters: int) -> str:
    r"""Break a name at spaces and, where one word is too long, before its capitals.

    >>> _fill_name("PolyakStepSize of Adam", 12).split("\n")
    ['PolyakStep', 'Size of Adam']
    """
    pieces = [
        piece
        for word in re.split(r"(?<= )", name)
        for piece in (re.split(r"(?<=[a-z])(?=[A-Z])", word) if len(word) > letters else [word])
    ]
    lines = [""]
    for piece in pieces:
        if lines[-1] and len((lines[-1] + piece).rstrip()) > letters:
            lines.append(piece)
        else:
            lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _rearrange_legend(figure: Figure) -> None:
    for legend in [legend for legend in figure.legends if legend.get_gid() == LEGEND]:
        handles, names = list(legend.legend_handles), [text.get_text() for text in legend.get_texts()]
        legend.remove()
        place_legend(figure, handles, names)
