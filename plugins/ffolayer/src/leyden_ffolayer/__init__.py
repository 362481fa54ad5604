"""Convex programs as layers, with first-order hypergradients (Zhao and others, 2025)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_ffolayer.cone_solver import FFOSolver
    from leyden_ffolayer.cvxpy_layer import FFOLayer
    from leyden_ffolayer.data import SyntheticDFLDataModule, Triage
    from leyden_ffolayer.decision import DecisionFocusedModule, regret
    from leyden_ffolayer.ghost import ghost_hypergradient
    from leyden_ffolayer.monitor import HypergradientMonitor, gradient_error
    from leyden_ffolayer.program import BoxProgram
    from leyden_ffolayer.qp_layer import FFOQPLayer
    from leyden_ffolayer.report import SolveReport

_HOMES = {
    "leyden_ffolayer.cone_solver": ("FFOSolver",),
    "leyden_ffolayer.cvxpy_layer": ("FFOLayer",),
    "leyden_ffolayer.data": ("SyntheticDFLDataModule", "Triage"),
    "leyden_ffolayer.decision": ("DecisionFocusedModule", "regret"),
    "leyden_ffolayer.ghost": ("ghost_hypergradient",),
    "leyden_ffolayer.monitor": ("HypergradientMonitor", "gradient_error"),
    "leyden_ffolayer.program": ("BoxProgram",),
    "leyden_ffolayer.qp_layer": ("FFOQPLayer",),
    "leyden_ffolayer.report": ("SolveReport",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the layers come first
    "FFOLayer",
    "FFOQPLayer",
    "FFOSolver",
    "DecisionFocusedModule",
    "HypergradientMonitor",
    "BoxProgram",
    "SolveReport",
    "SyntheticDFLDataModule",
    "Triage",
    "ghost_hypergradient",
    "gradient_error",
    "regret",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_ffolayer' has no attribute '{name}'")
