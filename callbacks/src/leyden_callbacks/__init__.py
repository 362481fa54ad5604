"""Lightning callbacks that more than one Leyden plugin needs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_callbacks._scaler import loss_scale
    from leyden_callbacks.figures import keeps_figures, log_figure
    from leyden_callbacks.gradient_norm import GradientNorm
    from leyden_callbacks.loss_feed import LossFeed, WindowLosses, window_losses
    from leyden_callbacks.provenance import Provenance

_HOME_OF = {
    "GradientNorm": "leyden_callbacks.gradient_norm",
    "LossFeed": "leyden_callbacks.loss_feed",
    "Provenance": "leyden_callbacks.provenance",
    "WindowLosses": "leyden_callbacks.loss_feed",
    "keeps_figures": "leyden_callbacks.figures",
    "log_figure": "leyden_callbacks.figures",
    "loss_scale": "leyden_callbacks._scaler",
    "window_losses": "leyden_callbacks.loss_feed",
}

__all__ = [
    "GradientNorm",
    "LossFeed",
    "Provenance",
    "WindowLosses",
    "__version__",
    "keeps_figures",
    "log_figure",
    "loss_scale",
    "window_losses",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_callbacks' has no attribute '{name}'")
