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
    maps = [(name, one) for name, one in model.named_modules(remove_duplicate=False) if is_map(one)]
    # By whole names of the others: the head's own, such as `fc`, may be that of maps inside blocks, too.
    others = [name for name, one in maps if one is not maps[-1][1]]
    to_simplenorm(model, include=others, norm=norm, eps=eps)
    return model
