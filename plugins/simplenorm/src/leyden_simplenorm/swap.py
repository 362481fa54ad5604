"""SimpleNorm in a model of somebody's own, for comparisons."""

from __future__ import annotations

from lightning.pytorch import LightningModule
from torch import nn

from leyden_simplenorm.conversion import to_simplenorm
from leyden_simplenorm.simplenorm import Norm


def with_simplenorm(model: LightningModule, *, norm: Norm = "rms", eps: float = 1e-5) -> LightningModule:
    """Put a norm after every linear map but the last, the model's output head, and take pre-norms away.

    Args:
        model: it is changed in place.
        norm: ``"rms"`` or ``"layer"``.
        eps: the norms' epsilon.

    Returns:
        The model.

    Raises:
        ValueError: if the model has fewer than two maps, or one that cannot be replaced.
    """
    heads = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1:]
    to_simplenorm(model, exclude=("lm_head", "output", *heads), norm=norm, eps=eps)
    return model
