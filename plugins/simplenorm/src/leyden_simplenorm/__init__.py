"""Replace: the paper in one line, as in "Safeguarded Polyak steps (Oikonomou and Loizou, 2026)"."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_simplenorm.module import Simplenorm
    from leyden_simplenorm.simplenorm import penalized_cross_entropy

_HOME_OF = {
    "Simplenorm": "leyden_simplenorm.module",
    "penalized_cross_entropy": "leyden_simplenorm.simplenorm",
}

__all__ = ["Simplenorm", "__version__", "penalized_cross_entropy"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_simplenorm' has no attribute '{name}'")
