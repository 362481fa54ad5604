"""A look at a fit's first batches: what trains here, and how long the whole will take."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from leyden.comparison.order import loaders


class Glance(Callback):
    """Stops a fit after some batches and tells what it saw.

    Attributes:
        found: ``automatic`` (1 under automatic optimization), how many ``optimizers`` and ``schedulers``
            there are and parameter ``groups`` in an optimizer at most, ``batches`` and ``validations`` of a
            whole fit (NaN where the data do not tell).

    Args:
        batches: after how many it stops.
        limit_val_batches: what the configuration says; the fit itself has fewer.
    """

    def __init__(self, batches: int, limit_val_batches: float | None) -> None:
        self.batches = batches
        self.limit = 1.0 if limit_val_batches is None else limit_val_batches
        self.found: dict[str, float] = {}
        self._batch_seconds: list[float] = []
        self._validation: list[float] = []
        self._validation_batches = 0
        self._began = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what trains, and how much of it there is."""
        batches = _batches(trainer)
        every = trainer.check_val_every_n_epoch or 1
        epochs = batches / trainer.num_training_batches if trainer.num_training_batches else math.nan
        an_epoch = trainer.num_training_batches / (trainer.val_check_batch or math.inf)
        self.found = {
            "automatic": float(pl_module.automatic_optimization),
            "optimizers": float(len(trainer.optimizers)),
            "schedulers": float(len(trainer.lr_scheduler_configs)),
            "groups": float(max((len(each.param_groups) for each in trainer.optimizers), default=0)),
            "batches": batches,
            "validations": epochs / every * max(an_epoch, 1.0),
        }

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock of a batch."""
        self._began = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop the clock of a batch, and the fit after enough of them."""
        if pl_module.device.type == "cuda":
            import torch

            torch.cuda.synchronize(pl_module.device)
        self._batch_seconds.append(time.perf_counter() - self._began)
        if len(self._batch_seconds) >= self.batches:
            trainer.should_stop = True

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Start the clock of a validation batch."""
        self._began = time.perf_counter()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stop it, and count the batches that a whole validation has."""
        self._validation.append(time.perf_counter() - self._began)
        self._validation_batches = _whole(trainer.val_dataloaders, self.limit)

    def fit_seconds(self, spent: float) -> float:
        """How long the whole fit takes.

        Args:
            spent: seconds that the fit took so far, from the making of its objects on.

        Returns:
            Seconds; NaN where the data do not tell their length.
        """
        outside = max(0.0, spent - sum(self._batch_seconds) - sum(self._validation))
        batch = statistics.median(self._batch_seconds) if self._batch_seconds else math.nan
        evaluation = (
            statistics.median(self._validation) * self._validation_batches if self._validation else 0.0
        )
        return outside + self.found["batches"] * batch + self.found["validations"] * evaluation


def _batches(trainer: Trainer) -> float:
    """The training batches of a whole fit; NaN where only time limits it, or the data have no length."""
    accumulated = trainer.accumulate_grad_batches
    by_steps = trainer.max_steps * accumulated if trainer.max_steps and trainer.max_steps > 0 else math.inf
    epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else math.inf
    total = min(by_steps, epochs * trainer.num_training_batches)
    return total if math.isfinite(total) else math.nan


def _whole(made: Any, limit: float) -> int:
    total = 0.0
    for loader in loaders(made):
        try:
            length = len(loader)
        except TypeError:  # data without a length
            length = 0
        total += min(length, limit) if isinstance(limit, int) else length * limit
    return int(total)
