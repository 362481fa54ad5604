"""Pictures of harm over a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leyden.figures import MUTED, new_figure, place_legend, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from leyden_harm.measuring import Probed
    from leyden_harm.record import Record


def check_picture(name: str, path: str) -> None:
    """Refuse a file that no figure can be written to, before a training rather than after it.

    Args:
        name: the argument's name.
        path: the file; without an ending it becomes a PNG.

    Raises:
        ValueError: if its ending is of no format that figures have.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    ending = Path(path).suffix.lstrip(".").lower()
    if ending and ending not in FigureCanvasBase.get_supported_filetypes():
        raise ValueError(f"{name}: expected a file that ends in .png, .svg or .pdf, got {path!r}")


def draw_reduction(record: Record) -> Figure:
    """Harm on the last layer before and after weighting, against the step.

    Args:
        record: at least two steps.

    Returns:
        The figure: share of the samples on the left, total harm on the right.
    """
    series = record.series()
    figure, axes = new_figure(
        2, title="Harm to the batch, as the optimizer would and as weighted", share_y=False
    )
    panels = (
        (axes[0], "rate", "share of samples made worse"),
        (axes[1], "sum", "total harm, loss per unit of rate"),
    )
    look = styles(["before", "after"])
    handles = []
    for ax, name, label in panels:
        handles = [
            _smooth(ax, record.steps, series[f"{name}_{when}"], style.color) for when, style in look.items()
        ]
        ax.set_xlabel("optimizer step")
        ax.set_ylabel(label)
        ax.set_ylim(bottom=0)
    place_legend(figure, handles, ["as the optimizer would", "as weighted"])
    return figure


def draw_probe(probed: Sequence[Probed], optimizer: str) -> Figure:
    """True harm of the steps that were probed.

    Args:
        probed: at least one step.
        optimizer: its name.

    Returns:
        The figure: rate and mass against the step on the left, every sample's change at the last step on the
        right.
    """
    figure, (left, right) = new_figure(
        2, title=f"{optimizer}: what its steps do to the samples they were made from", share_y=False
    )
    steps = [one.step for one in probed]
    look = styles(["rate", "mass"])
    series = {"rate": [one.rate for one in probed], "mass": [one.mass for one in probed]}
    handles = []
    for name, style in look.items():
        (line,) = left.plot(
            steps, series[name], color=style.color, ls=style.line, marker=style.marker, ms=4, lw=1.6
        )
        handles.append(line)
    left.set_xlabel("optimizer step")
    left.set_ylabel("share")
    left.set_ylim(0, max(0.5, *series["rate"], *series["mass"]) * 1.05)
    changes = sorted(probed[-1].changes)
    colors = [look["rate"].color if change > 0 else MUTED for change in changes]
    right.bar(range(1, len(changes) + 1), changes, width=1.0, color=colors)
    right.axhline(0, color=MUTED, lw=0.8)
    right.set_xlabel(f"samples of step {probed[-1].step}, sorted")
    right.set_ylabel("change of the sample's loss")
    place_legend(figure, handles, ["samples made worse", "increases among all changes of losses"])
    return figure


def _smooth(ax: Axes, steps: Sequence[int], values: Sequence[float], color: str) -> object:
    """Every step faintly, and the mean of a sliding stretch of a fortieth of the run."""
    ax.plot(steps, values, color=color, lw=0.6, alpha=0.25)
    half = max(len(values) // 80, 1)
    means = [
        sum(window) / len(window)
        for place in range(len(values))
        if (window := values[max(place - half, 0) : place + half + 1])
    ]
    (line,) = ax.plot(steps, means, color=color, lw=1.8)
    return line
