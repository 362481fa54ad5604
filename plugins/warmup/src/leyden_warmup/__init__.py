"""Loss-driven learning-rate warm-up (Alimisis, Islamov and Lucchi, 2026) for PyTorch and Lightning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_warmup.curvature import SmoothnessFit, fit_h0h1, secant_curvature
    from leyden_warmup.loss_warmup import LossWarmup
    from leyden_warmup.loss_warmup_lr import LossWarmupLR
    from leyden_warmup.probe import SmoothnessProbe
    from leyden_warmup.schedule import warmup_multiplier
    from leyden_warmup.step_size import H0H1StepSize, h0h1_bound, h0h1_step_size, pl_bound

_HOMES = {
    "leyden_warmup.curvature": ("SmoothnessFit", "fit_h0h1", "secant_curvature"),
    "leyden_warmup.loss_warmup": ("LossWarmup",),
    "leyden_warmup.loss_warmup_lr": ("LossWarmupLR",),
    "leyden_warmup.probe": ("SmoothnessProbe",),
    "leyden_warmup.schedule": ("warmup_multiplier",),
    "leyden_warmup.step_size": ("H0H1StepSize", "h0h1_bound", "h0h1_step_size", "pl_bound"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the paper's methods come first
    "LossWarmup",
    "LossWarmupLR",
    "SmoothnessProbe",
    "H0H1StepSize",
    "warmup_multiplier",
    "h0h1_step_size",
    "h0h1_bound",
    "pl_bound",
    "fit_h0h1",
    "SmoothnessFit",
    "secant_curvature",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_warmup' has no attribute '{name}'")
