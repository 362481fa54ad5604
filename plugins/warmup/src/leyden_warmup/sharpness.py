"""The largest curvature of the training loss, exactly, for small models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning.pytorch import LightningModule, Trainer


class Sharpness(Callback):
    """Computes, every few steps, a loss and the largest eigenvalue of its Hessian.

    Args:
        every: at every so many optimizer steps, from the first one on.
        loss: the loss of the module, which is given with the batch.

    Attributes:
        losses: the losses.
        values: the eigenvalues of largest size, in the same order.
    """

    def __init__(self, every: int, loss: Callable[[LightningModule, Any], Tensor]) -> None:
        self.every = every
        self.loss = loss
        self.losses: list[float] = []
        self.values: list[float] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Measure before the batch."""
        if trainer.global_step % self.every == 0:
            loss = self.loss(pl_module, batch)
            self.losses.append(loss.item())
            self.values.append(largest_eigenvalue(loss, list(pl_module.parameters())))


def largest_eigenvalue(
    loss: Tensor, parameters: Sequence[Tensor], *, iterations: int = 50, tolerance: float = 3e-3
) -> float:
    """The Hessian's eigenvalue of largest size, by power iteration.

    Args:
        loss: a 0-dim tensor with its graph.
        parameters: with respect to what, of any shapes.
        iterations: at most so many.
        tolerance: the relative change at which to stop.

    Returns:
        The eigenvalue, with its sign.

    >>> w = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> round(largest_eigenvalue((3 * w[0] ** 2 + w[1] ** 2) / 2, [w]), 2)
    3.0
    """
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    generator = torch.Generator(flat.device).manual_seed(0)
    vector = torch.randn(flat.shape, generator=generator, dtype=flat.dtype, device=flat.device)
    value = 0.0
    for _ in range(iterations):
        vector = vector / vector.norm()
        product = torch.autograd.grad(flat @ vector, parameters, retain_graph=True)
        image = torch.cat([part.reshape(-1) for part in product])
        before, value = value, float(vector @ image)
        if abs(value - before) <= tolerance * abs(value):
            break
        vector = image
    return value
