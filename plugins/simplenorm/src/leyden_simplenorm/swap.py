"""SimpleNorm in a model of somebody's own, for comparisons."""

from __future__ import annotations

from lightning.pytorch import LightningModule

from leyden_simplenorm.conversion import is_map, to_simplenorm
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
    maps = [name for name, one in model.named_modules(remove_duplicate=False) if is_map(one)]
    others, head = maps[:-1], maps[-1:]
    # By whole names, since `fc` may be a head and a map in a block. A name without a dot is a pattern of last
    # parts, too: a head `top.fc` has to be left out beside a map `fc`, and of a head `fc` it is enough not to
    # be included.
    to_simplenorm(model, include=others, exclude=[name for name in head if "." in name], norm=norm, eps=eps)
    return model
