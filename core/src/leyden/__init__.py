"""Leyden: plugins for optimization papers on PyTorch Lightning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden.claims import Cell, Claim, Scale, Statement, Table
    from leyden.errors import LeydenError, TrackingError, UsageError
    from leyden.hookspecs import hookimpl
    from leyden.model import (
        LEYDEN_API,
        Check,
        Component,
        Option,
        Paper,
        Range,
        Run,
        RunResult,
        Verdict,
    )

_HOMES = {
    "leyden.claims": ("Cell", "Claim", "Scale", "Statement", "Table"),
    "leyden.errors": ("LeydenError", "TrackingError", "UsageError"),
    "leyden.hookspecs": ("hookimpl",),
    "leyden.model": (
        "LEYDEN_API",
        "Check",
        "Component",
        "Option",
        "Paper",
        "Range",
        "Run",
        "RunResult",
        "Verdict",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the classes a plugin writes come first
    "Claim",
    "Cell",
    "Scale",
    "Statement",
    "Table",
    "Paper",
    "Component",
    "Range",
    "Option",
    "Check",
    "Run",
    "RunResult",
    "Verdict",
    "LEYDEN_API",
    "hookimpl",
    "LeydenError",
    "TrackingError",
    "UsageError",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden' has no attribute '{name}'")
