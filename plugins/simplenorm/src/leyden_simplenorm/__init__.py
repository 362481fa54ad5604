"""SimpleNorm, a norm right after every linear map (Chen et al., 2026), for PyTorch and Lightning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_simplenorm.activation_monitor import ActivationScaleMonitor
    from leyden_simplenorm.conversion import Change, Conversion, to_simplenorm
    from leyden_simplenorm.curvature import input_hessian_terms, spectral_norm
    from leyden_simplenorm.curvature_monitor import CurvatureMonitor
    from leyden_simplenorm.gpt import SimpleGPT, SimpleGPTBlock, shard_blocks
    from leyden_simplenorm.layer import SimpleNormLinear
    from leyden_simplenorm.module import SimpleGPTModule, learning_rate_factor
    from leyden_simplenorm.rms import RMSNorm, rms_norm
    from leyden_simplenorm.simplenorm import output_norm_bounds, simple_norm
    from leyden_simplenorm.sweep import Tolerance, draw_tolerance, lr_tolerance_sweep

_HOMES = {
    "leyden_simplenorm.activation_monitor": ("ActivationScaleMonitor",),
    "leyden_simplenorm.conversion": ("Change", "Conversion", "to_simplenorm"),
    "leyden_simplenorm.curvature": ("input_hessian_terms", "spectral_norm"),
    "leyden_simplenorm.curvature_monitor": ("CurvatureMonitor",),
    "leyden_simplenorm.gpt": ("SimpleGPT", "SimpleGPTBlock", "shard_blocks"),
    "leyden_simplenorm.layer": ("SimpleNormLinear",),
    "leyden_simplenorm.module": ("SimpleGPTModule", "learning_rate_factor"),
    "leyden_simplenorm.rms": ("RMSNorm", "rms_norm"),
    "leyden_simplenorm.simplenorm": ("output_norm_bounds", "simple_norm"),
    "leyden_simplenorm.sweep": ("Tolerance", "draw_tolerance", "lr_tolerance_sweep"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the paper's method comes first
    "SimpleNormLinear",
    "to_simplenorm",
    "SimpleGPT",
    "SimpleGPTModule",
    "ActivationScaleMonitor",
    "CurvatureMonitor",
    "lr_tolerance_sweep",
    "simple_norm",
    "rms_norm",
    "output_norm_bounds",
    "input_hessian_terms",
    "spectral_norm",
    "shard_blocks",
    "learning_rate_factor",
    "draw_tolerance",
    "RMSNorm",
    "SimpleGPTBlock",
    "Change",
    "Conversion",
    "Tolerance",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_simplenorm' has no attribute '{name}'")
