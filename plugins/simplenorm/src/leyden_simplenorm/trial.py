"""What the conformance kit tries the components on."""

from __future__ import annotations

import torch
from leyden.testing import Trial

from leyden_simplenorm.activation_monitor import ActivationScaleMonitor
from leyden_simplenorm.curvature_monitor import CurvatureMonitor
from leyden_simplenorm.layer import SimpleNormLinear
from leyden_simplenorm.module import SimpleGPTModule
from leyden_simplenorm.rms import RMSNorm


def layer() -> SimpleNormLinear:
    """A layer for the rows below."""
    return SimpleNormLinear(6, 5, bias=True)


def norm() -> RMSNorm:
    """A norm for the rows below."""
    return RMSNorm(6)


def rows() -> Trial:
    """Rows of six numbers."""
    return Trial(inputs=(torch.randn(8, 6, generator=torch.Generator().manual_seed(3)),))


def language_model() -> SimpleGPTModule:
    """A model in float64, in which processes and batches can be compared."""
    return SimpleGPTModule(11, 8, 2, 2, 1, 6, multiple_of=4, lr=1e-3).double()


def tokens() -> Trial:
    """Eighty sequences of six tokens."""
    drawn = torch.randint(11, (80, 7), generator=torch.Generator().manual_seed(4))
    return Trial(rows=(drawn[:, :-1], drawn[:, 1:]))


def scale_monitor() -> ActivationScaleMonitor:
    """A monitor of every second step."""
    return ActivationScaleMonitor(2)


def curvature_monitor() -> CurvatureMonitor:
    """A monitor of every second step."""
    return CurvatureMonitor(2, 3)
