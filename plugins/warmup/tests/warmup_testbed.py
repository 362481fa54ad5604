"""A small network under any optimizer and scheduler, with what each update used written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from leyden_warmup import LossWarmup
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Build = Callable[[Any], torch.optim.Optimizer]
Schedule = Callable[[torch.optim.Optimizer], Any]


class Classifier(pl.LightningModule):
    """Two layers, in two parameter groups, with dropout and batch normalization where asked."""

    def __init__(
        self,
        optimizer: Build,
        scheduler: Schedule | None = None,
        *,
        noisy: bool = False,
        interval: str = "step",
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(8), nn.Dropout(0.3)] if noisy else []
        self.first = nn.Sequential(nn.Linear(6, 8), *middle, nn.ReLU())
        self.second = nn.Linear(8, 3)
        self.build, self.schedule, self.interval = optimizer, scheduler, interval
        self.losses: list[Tensor] = []
        self.no_loss: set[int] = set()
        self.infinite: set[int] = set()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.second(self.first(inputs)), labels)
        place = len(self.losses)
        if place in self.infinite:
            loss = loss * torch.inf
        self.losses.append(loss.detach())
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return None if place in self.no_loss else loss

    def per_sample_loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        outputs = self.second(self.first(inputs))
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self.second(self.first(inputs)), labels))

    def configure_optimizers(self) -> Any:
        groups = [{"params": list(self.first.parameters())}, {"params": list(self.second.parameters())}]
        optimizer = self.build(groups)
        if self.schedule is None:
            return optimizer
        scheduler = {
            "scheduler": self.schedule(optimizer),
            "interval": self.interval,
            "monitor": "train_loss",
        }
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    @property
    def vector(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters()).detach().clone()


class Rates(Callback):
    """Writes down the rate of each group that an update used, and the one that is there before a batch."""

    def __init__(self) -> None:
        self.used: list[list[float]] = []
        self.between: list[list[float]] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        (optimizer,) = trainer.optimizers
        update = optimizer._optimizer_step_code

        def noted() -> Any:  # torch calls it after the update and before the hooks that follow it
            self.used.append(rates(optimizer))
            return update()

        optimizer._optimizer_step_code = noted

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.between.append(rates(trainer.optimizers[0]))


def sgd(groups: Any) -> torch.optim.Optimizer:
    groups[1]["lr"] = 0.05
    return torch.optim.SGD(groups, lr=0.2, momentum=0.9)


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def data(batch: int = 4, rows: int = 64) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 6, generator=generator)
    labels = torch.randint(3, (rows,), generator=generator)
    return DataLoader(TensorDataset(inputs, labels), batch_size=batch)


def fit(
    module: Classifier,
    *callbacks: Callback,
    batch: int = 4,
    rows: int = 64,
    resume_from: Any = None,
    validate: bool = False,
    **trainer: Any,
) -> pl.Trainer:
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    runner = pl.Trainer(callbacks=list(callbacks), **(defaults | trainer))
    torch.manual_seed(2)
    runner.fit(module, data(batch, rows), data(rows=8) if validate else None, ckpt_path=resume_from)
    return runner


def scaled(monkeypatch: Any, **options: Any) -> MixedPrecision:
    """16-bit precision on the CPU with a real GradScaler and without autocast."""
    from contextlib import nullcontext

    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", **options))
    monkeypatch.setattr(plugin, "autocast_context_manager", nullcontext)
    return plugin


def multipliers(losses: list[Tensor], **settings: Any) -> list[float]:
    """What the warm-up does at losses, one after the other."""
    warmup = LossWarmup(**settings)
    state = warmup._state
    found = []
    for loss in losses:
        state = warmup.schedule.advance(state, loss)
        found.append(float(state.multiplier))
    return found
