"""A figure as PNG, for a wide page or a narrow one."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leyden.figures import place_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NARROW = 4.0
"""Width in inches of a figure on a narrow page."""

DOTS = 200
"""Dots an inch: twice what a page shows, so that it is sharp on any screen."""

_LETTER = 0.0083
"""Mean width of a letter in inches, by point of its size."""


def png(figure: Figure, *, narrow: bool = False) -> bytes:
    """Draw a figure; it is afterwards as it was.

    Args:
        figure: any figure of matplotlib.
        narrow: whether the page is narrow: panels are stacked, the title is wrapped, the legend rearranged.
            Panels that are not one row of equals stay as they are.

    Returns:
        The file's content.
    """
    if narrow:
        with _narrowed(figure):
            return _drawn(figure)
    return _drawn(figure)


def _drawn(figure: Figure) -> bytes:
    from PIL import Image

    _wrap_texts(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS, facecolor=figure.get_facecolor())
    # 256 colours take a third of the space, and no eye sees the difference in a plot
    picture = Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")
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


def _is_row(figure: Figure) -> bool:
    """Whether the axes are one row of equal columns, none of them a colour bar or an inset."""
    specs = [ax.get_subplotspec() for ax in figure.axes]
    if len(specs) < 2 or any(spec is None for spec in specs):
        return False
    shapes = {spec.get_gridspec().get_geometry() for spec in specs if spec is not None}
    return shapes == {(1, len(specs))}


def _shares_y(figure: Figure) -> bool:
    first = figure.axes[0]
    return all(first.get_shared_y_axes().joined(first, ax) for ax in figure.axes)


def _wrap_texts(figure: Figure) -> None:
    """Break the title and the labels of the horizontal axes where they would leave the figure."""
    width = figure.get_size_inches()[0] - 0.25
    title = getattr(figure, "_suptitle", None)
    texts = [(title, width)] if title is not None else []
    columns = len(figure.axes) if _is_row(figure) else 1
    texts += [(ax.xaxis.label, 0.85 * width / columns) for ax in figure.axes]
    for text, room in texts:
        letters = int(room / (_LETTER * text.get_fontsize()))
        text.set_text(textwrap.fill(" ".join(text.get_text().split()), max(letters, 12)))


def _rearrange_legend(figure: Figure) -> None:
    for legend in list(figure.legends):
        handles, names = list(legend.legend_handles), [text.get_text() for text in legend.get_texts()]
        legend.remove()
        place_legend(figure, handles, names)
