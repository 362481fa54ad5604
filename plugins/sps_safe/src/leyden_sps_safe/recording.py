"""What the claims measure of a training, whatever optimizer trains."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from leyden_sps_safe.polyak import squared_norm
from leyden_sps_safe.sps_safe import SPSSafe

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

LATE = 45
"""How many of the last steps count as late."""


class Recorder(Callback):
    """Keeps the squared norm of the gradient at every step and, of `SPSSafe`, how long each update was.

    With ``lr`` 1 and without weight decay no update of `SPSSafe` is longer than f / √M, whatever the loss
    (Section 3 of Oikonomou and Loizou, 2026); ``update_slack`` is what is left of that, as a fraction of it.
    """

    def __init__(self) -> None:
        self._norms: list[Tensor] = []
        self._slacks: list[Tensor] = []
        self._before: Tensor | None = None

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Measure the gradient, and remember where the update starts."""
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        self._norms.append(squared_norm(gradients))
        if isinstance(optimizer, SPSSafe):
            self._before = _weights(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure the update."""
        (optimizer,) = trainer.optimizers
        if self._before is None or not isinstance(optimizer, SPSSafe) or optimizer.last_loss is None:
            return
        length = (_weights(pl_module) - self._before).norm()
        limit = optimizer.last_loss / optimizer.param_groups[0]["M"] ** 0.5
        self._slacks.append(1 - length / limit)
        self._before = None

    def measured(self) -> dict[str, float | list[float]]:
        """What was recorded.

        Returns:
            ``late_grad_norm_sq``, the median over the last `LATE` steps; the series ``grad_norm_sq``, medians
            over tenths of an epoch-like stretch of steps, with their places ``steps``; and, of `SPSSafe`,
            ``update_slack``, the smallest.
        """
        norms = torch.stack(self._norms).tolist()
        stretch = max(len(norms) // 40, 1)
        starts = range(0, len(norms) - stretch + 1, stretch)
        found: dict[str, float | list[float]] = {
            "late_grad_norm_sq": median(norms[-LATE:]),
            "grad_norm_sq": [median(norms[start : start + stretch]) for start in starts],
            "steps": [float(start + stretch) for start in starts],
        }
        if self._slacks:
            found["update_slack"] = float(torch.stack(self._slacks).min())
        return found


def _weights(module: LightningModule) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
