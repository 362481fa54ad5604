"""What the paper compares with, as far as configurations cannot spell it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from leyden.arguments import check_at_least
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class LinearWarmup(LambdaLR):
    """A linear warm-up, min(1, (k + 1) / warmup) at step k, by a cosine to 0 where its length is given.

    Of torch's own it is ``SequentialLR`` of ``LinearLR`` and ``CosineAnnealingLR``, which YAML cannot spell.

    Args:
        optimizer: the optimizer, whose ``lr`` is the full rate.
        warmup: steps until the full rate is reached, at least 1; 1 is no warm-up.
        cosine: steps of the cosine, counted from the start; None: no decay.

    Raises:
        ValueError: if a length is below 1.
    """

    def __init__(self, optimizer: Optimizer, warmup: int = 1, cosine: int | None = None) -> None:
        check_at_least("warmup", warmup, 1)
        if cosine is not None:
            check_at_least("cosine", cosine, 1)

        def factor(step: int) -> float:
            rise = min(1.0, (step + 1) / warmup)
            return rise if cosine is None else rise * (1 + math.cos(math.pi * min(step / cosine, 1))) / 2

        super().__init__(optimizer, factor)


class ScheduleFreeMode(Callback):
    """Switches an optimizer of ``schedulefree`` between the weights it trains and their average."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Train."""
        _switch(trainer, "train")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Train."""
        _switch(trainer, "train")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the average."""
        _switch(trainer, "eval")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on."""
        if trainer.state.fn == TrainerFn.FITTING:
            _switch(trainer, "train")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the average."""
        _switch(trainer, "eval")


def _switch(trainer: Trainer, mode: str) -> None:
    for optimizer in trainer.optimizers:
        inner: Any = optimizer
        getattr(inner, mode)()
