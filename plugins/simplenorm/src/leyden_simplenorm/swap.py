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
    heads = [name for name, one in maps if one is maps[-1][1]]
    others = [name for name, _ in maps if name not in heads]
    # By whole names, since `fc` may be a head and a map in a block. A name without a dot is a pattern of last
    # parts, too: a head `top.fc` has to be left out beside a map `fc`, and of a head `fc` it is enough not to
    # be included.
    dotted = [name for name in heads if "." in name]
    to_simplenorm(model, include=others, exclude=dotted, norm=norm, eps=eps)
    return model
