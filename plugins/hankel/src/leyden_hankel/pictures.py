"""Pictures of a completion: errors over the iterations, the spectrum with its lines and the residual."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from leyden.figures import INK, MUTED, PALETTE, new_figure
from torch import Tensor

from leyden_hankel.completion import Completion
from leyden_hankel.frequencies import Lines, esprit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELS = {
    "rel_error": "relative error",
    "rel_change": "relative change",
    "objective": "objective over its first value",
}


def iterations_figure(completion: Completion) -> Figure:
    """Error, change and objective over the iterations, on a logarithmic axis; medians over a batch.

    Args:
        completion: the completed signals.

    Returns:
        A matplotlib figure.
    """
    figure, (ax,) = new_figure(
        title="The completion over its iterations",
        alt="Relative error, relative change and objective over the iterations, on a logarithmic axis.",
    )
    for place, (name, label) in enumerate(_LABELS.items()):
        if name not in completion.history:
            continue
        values = completion.history[name].double().cpu().reshape(len(completion.history[name]), -1)
        if name == "objective":
            values = values / values[:1]
        middle = values.median(dim=1).values
        shown = middle.where(middle > 0, torch.nan)
        ax.plot(np.arange(1, len(shown) + 1), shown, color=PALETTE[place], lw=1.8, label=label)
    ax.set_yscale("log")
    ax.set_xlabel("iteration")
    ax.legend(frameon=False, labelcolor=INK, fontsize=9)
    return figure


def spectrum_figure(
    completion: Completion, observed: Tensor | None = None, mask: Tensor | None = None, *, width: int = 2048
) -> Figure:
    """The spectrum of a 1-D completion beside that of the zero-filled samples, its lines, and the residual.

    Args:
        completion: the completed signal; of a batch the first is drawn.
        observed: the samples.
        mask: which were observed; None: those that are not NaN.
        width: points of the spectra, at least; they are zero-filled to that length.

    Returns:
        A matplotlib figure of two panels.

    Raises:
        ValueError: if the signal has more than one dimension.
    """
    if len(completion.shape) != 1:
        raise ValueError(f"completion: expected a signal of one dimension, got the shape {completion.shape}")
    n = completion.shape[0]
    x = completion.x.reshape(-1, n)[0].cpu()
    rows, rank = completion.Z.shape[-2:]
    lines = esprit(completion.Z.reshape(-1, rows, rank)[0].cpu(), n)
    figure, (above, below) = new_figure(
        2,
        title="Spectrum, lines and residual",
        alt=f"Left: the magnitude spectrum of the completed signal with its {rank} lines, above that of the "
        "zero-filled samples. Right: the spectrum of the residual at the observed samples.",
        share_y=False,
    )
    filled = None
    if observed is not None:
        seen = ~torch.isnan(observed) if mask is None else mask.bool()
        filled = torch.where(seen, observed, torch.zeros((), dtype=observed.dtype)).reshape(-1, n)[0].cpu()
        seen = seen.reshape(-1, n)[0].cpu()
        above.plot(*_spectrum(filled, width), color=MUTED, lw=0.8, label="observed, zero-filled", zorder=1)
        residual = torch.where(seen, filled - x, torch.zeros((), dtype=x.dtype))
        below.plot(*_spectrum(residual, width), color=PALETTE[1], lw=0.8)
    above.plot(*_spectrum(x, width), color=PALETTE[0], lw=1.3, label="completed", zorder=2)
    _mark(above, lines)
    above.set_ylabel("magnitude")
    above.set_ylim(None, 12 * above.get_ylim()[1])  # room for the legend
    above.legend(frameon=False, labelcolor=INK, fontsize=9, loc="upper left")
    below.set_ylabel("magnitude of the residual")
    below.set_ylim(0, None)
    for ax in (above, below):
        ax.set_xlabel("frequency, cycles a sample")
    return figure


def _spectrum(x: Tensor, width: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    length = max(width, 2 ** math.ceil(math.log2(len(x))))
    values = torch.fft.fft(x, length).abs().numpy()
    return np.arange(length) / length, values


def _mark(ax: Any, lines: Lines) -> None:
    """A tick at the bottom for each line."""
    ax.set_yscale("log")
    bottom = ax.get_xaxis_transform()
    ax.vlines(
        lines.frequencies.numpy(), 0, 0.06, color=PALETTE[1], lw=1.6, label="lines found", transform=bottom
    )
