"""The scale of a GradScaler, as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from torch import Tensor


def loss_scale(trainer: Trainer, device: torch.device) -> Tensor | None:
    """The factor by which the precision plugin multiplies the loss before the backward pass.

    Args:
        trainer: the Trainer whose precision plugin is asked.
        device: where the factor is wanted.

    Returns:
        A 0-dim tensor, read without waiting for the device, or None where there is no scaler.
    """
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None:
        return None
    # `get_scale` would wait for the device.
    scale: Tensor = scaler.scale(torch.ones((), device=device))
    return scale
