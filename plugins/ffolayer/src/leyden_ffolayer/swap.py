"""Put the layers into somebody else's model, for ``leyden compare``."""

from __future__ import annotations

from typing import Any

from cvxpylayers.torch.cvxpylayer import CvxpyLayer
from lightning.pytorch import LightningModule
from torch import nn

from leyden_ffolayer.cvxpy_layer import FFOLayer


def replace_cvxpy_layers(module: LightningModule, **arguments: Any) -> LightningModule:
    """Replace every ``CvxpyLayer`` of a model by an `FFOLayer` of the same problem (not in the paper).

    Args:
        module: the model; changed.
        **arguments: further arguments of `FFOLayer`, such as ``tol``.

    Returns:
        The model.

    Raises:
        ValueError: if it has none.
    """
    found = 0
    parents: list[nn.Module] = list(module.modules())
    for parent in parents:
        for name, child in list(parent.named_children()):
            if isinstance(child, CvxpyLayer) and not isinstance(child, FFOLayer):
                ctx: Any = child.ctx
                twin = FFOLayer(
                    ctx.problem, list(ctx.parameters), list(ctx.variables), gp=ctx.gp, **arguments
                )
                setattr(parent, name, twin)
                found += 1
    if not found:
        raise ValueError("FFOLayer: expected a model with a cvxpylayers.torch.CvxpyLayer, got one without")
    return module
