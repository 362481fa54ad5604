"""What a run leaves for its pictures: the multiplier and the rates by step, curvature by loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from leyden_warmup.curvature import SmoothnessFit

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor


class History:
    """Numbers by step, thinned out so that a long run keeps no more than a figure can show.

    Args:
        most: how many steps are kept at most.
    """

    def __init__(self, most: int = 2000) -> None:
        self._most = most
        self._stride = 1
        self._rows: dict[int, tuple[float | Tensor, ...]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def steps(self) -> list[int]:
        """The steps that are kept."""
        return list(self._rows)

    def add(self, step: int, values: Sequence[float | Tensor]) -> None:
        """Keep the values of a step, numbers or 0-dim tensors that do not change."""
        if step % self._stride:
            return
        self._rows[step] = tuple(values)
        if len(self._rows) > self._most:
            self._stride *= 2
            self._rows = {kept: row for kept, row in self._rows.items() if kept % self._stride == 0}

    def columns(self) -> list[list[float]]:
        """Each value as a series over `steps`, NaN where a step has fewer; waits for the device."""
        columns = zip_longest(*self._rows.values(), fillvalue=math.nan)
        return [[float(value) for value in column] for column in columns]


def draw_rates(history: History) -> Figure:
    """Draw the learning rate with and without the warm-up, and the multiplier, against the step.

    Args:
        history: for each step the multiplier and the rate of each parameter group; at least two steps.

    Returns:
        The figure.
    """
    from leyden.figures import new_figure, place_legend, styles

    multipliers, *rates = history.columns()
    first, last = (f"{multipliers[place]:.3g} at step {history.steps[place]}" for place in (0, -1))
    figure, (left, right) = new_figure(
        2,
        title="Loss-driven warm-up: learning rate and multiplier",
        alt=f"The multiplier goes from {first} to {last}.",
        share_y=False,
    )
    names = [f"group {place}: " if len(rates) > 1 else "" for place in range(len(rates))]
    handles = []
    for style, own in zip(styles(names).values(), rates, strict=True):
        used = [rate * multiplier for rate, multiplier in zip(own, multipliers, strict=True)]
        (line,) = left.plot(history.steps, used, color=style.color, lw=1.4)
        (without,) = left.plot(history.steps, own, color=style.color, lw=1.0, ls=(0, (4, 3)))
        handles += [line, without]
    right.plot(history.steps, multipliers, color=styles(["multiplier"])["multiplier"].color, lw=1.2)
    right.set_ylim(0, 1.04)
    left.set_ylabel("learning rate")
    right.set_ylabel("multiplier")
    for axes in (left, right):
        axes.set_xlabel("optimizer step")
    labels = [f"{name}{what}" for name in names for what in ("with warm-up", "without")]
    place_legend(figure, handles, labels)
    return figure


def draw_curvature(
    losses: Sequence[float], curvatures: Sequence[float], fit: SmoothnessFit, *, f_star: float = 0.0
) -> Figure:
    """Draw curvature against loss with the fitted line.

    Args:
        losses: the losses.
        curvatures: the curvatures measured there.
        fit: the line, from `fit_h0h1` with the same ``f_star``.
        f_star: the smallest loss.

    Returns:
        The figure.
    """
    from leyden.figures import PALETTE, new_figure, place_legend

    said = (
        "no fit"
        if math.isnan(fit.H0)
        else f"H0 = {fit.H0:.3g}, H1 = {fit.H1:.3g}, C = {fit.C:.3g}, correlation {fit.r:+.2f}"
    )
    title = "Curvature against loss" + (": no warm-up signal" if fit.H1 == 0 else "")
    figure, (axes,) = new_figure(title=title, alt=f"{len(losses)} measurements; {said}.")
    shades: Any = [0.95 - 0.7 * place / max(len(losses) - 1, 1) for place in range(len(losses))]
    handles: list[Any] = [axes.scatter(losses, curvatures, s=22, color=PALETTE[0], alpha=shades, lw=0)]
    names = [f"{len(losses)} measurements, from dark (first) to light (last)"]
    if not math.isnan(fit.H0):
        ends = [min([*losses, f_star]), f_star, max(losses)]
        line = [fit.H0 + fit.H1 * max(end - f_star, 0.0) for end in ends]
        handles += axes.plot(ends, line, color=PALETTE[1], lw=1.8, ls="--")
        names.append(f"H0 + H1 (loss - f*): {said}")
    axes.set_xlabel("loss")
    axes.set_ylabel("curvature along the step")
    axes.set_ylim(bottom=0)
    place_legend(figure, handles, names)
    return figure
