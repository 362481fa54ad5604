"""Safeguarded stochastic Polyak step sizes (Oikonomou and Loizou, 2026) for PyTorch and Lightning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_sps_safe.baselines import ALIG, IMASPS, SPS, AdaGradNorm, DecSPS, SPSMax, SPSPlus
    from leyden_sps_safe.ima_sps_safe import IMASPSSafe
    from leyden_sps_safe.monitor import SPSMonitor
    from leyden_sps_safe.polyak import clipped_step_size, momentum_step_size, polyak_step_size
    from leyden_sps_safe.sps_safe import SPSSafe

_HOMES = {
    "leyden_sps_safe.baselines": ("ALIG", "IMASPS", "SPS", "AdaGradNorm", "DecSPS", "SPSMax", "SPSPlus"),
    "leyden_sps_safe.ima_sps_safe": ("IMASPSSafe",),
    "leyden_sps_safe.monitor": ("SPSMonitor",),
    "leyden_sps_safe.polyak": ("clipped_step_size", "momentum_step_size", "polyak_step_size"),
    "leyden_sps_safe.sps_safe": ("SPSSafe",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the paper's methods come first
    "SPSSafe",
    "IMASPSSafe",
    "SPSMonitor",
    "polyak_step_size",
    "momentum_step_size",
    "clipped_step_size",
    "SPS",
    "SPSMax",
    "SPSPlus",
    "IMASPS",
    "DecSPS",
    "ALIG",
    "AdaGradNorm",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_sps_safe' has no attribute '{name}'")
