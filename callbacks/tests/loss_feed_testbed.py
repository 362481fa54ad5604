"""What the tests train: losses for which the gradient tells what the matching loss is.

A loss that is linear in the parameters is homogeneous of degree 1, so by Euler's theorem it equals the inner
product of its gradient and the parameters, and so does every sum and mean of such losses. The optimizer below
therefore knows, from the gradient alone, the loss that it should have been given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from leyden_callbacks import LossFeed, window_losses
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

DIMENSION = 5
EXACT: Any = {"rtol": 1e-12, "atol": 1e-12}


@dataclass
class Step:
    """What an optimizer saw in a step."""

    matching: Tensor | None
    mean: Tensor | None
    by_gradient: Tensor


class Recorder(torch.optim.Optimizer):
    """Steps by the Polyak rule, x - lr (loss / |g|²) g, and writes down what it was handed."""

    needs_loss = True

    def __init__(self, params: Any, lr: float = 0.1, evaluations: int = 1) -> None:
        super().__init__(params, {"lr": lr})
        self.evaluations = evaluations
        self.pending_loss: Tensor | None = None
        self.pending_mean_loss: Tensor | None = None
        self.steps: list[Step] = []

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Tensor | None = None) -> Any:  # type: ignore[override]
        result = None
        for _ in range(self.evaluations):
            if closure is not None:
                with torch.enable_grad():
                    result = closure()
            self._update(loss if loss is not None else self.pending_loss)
        self.pending_loss = self.pending_mean_loss = None
        return result

    @torch.no_grad()
    def _update(self, loss: Tensor | None) -> None:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not held:
            return
        inner = torch.stack([(p.grad * p).sum() for p in held]).sum()
        squared = torch.stack([p.grad.square().sum() for p in held]).sum()
        self.steps.append(Step(loss, self.pending_mean_loss, _whole(inner)))
        if loss is None or not torch.isfinite(loss):
            return
        for p in held:
            p -= self.param_groups[0]["lr"] * loss / _whole(squared) * p.grad


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


class LinearLoss(pl.LightningModule):
    """Minimises the mean of <row, x> over the batch.

    Batches counted in ``skip`` return None, those in ``infinite`` an infinite loss.
    """

    def __init__(
        self,
        optimizer: Callable[..., torch.optim.Optimizer] = Recorder,
        *,
        skip: Sequence[int] = (),
        infinite: Sequence[int] = (),
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.x = nn.Parameter(torch.randn(DIMENSION - 2, dtype=dtype))
        self.y = nn.Parameter(torch.randn(2, dtype=dtype))
        self.build = optimizer
        self.skip, self.infinite = skip, infinite
        self.raw: list[Tensor | None] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        loss = (batch[0] @ torch.cat([self.x, self.y])).mean()
        if len(self.raw) in self.infinite:
            loss = loss * torch.inf
        if len(self.raw) in self.skip:
            self.raw.append(None)
            return None
        self.raw.append(loss.detach().clone())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.build([{"params": [self.x]}, {"params": [self.y]}])

    @property
    def optimizer(self) -> Any:
        inner = self.trainer.optimizers[0]
        return inner.optimizer if hasattr(inner, "optimizer") else inner


def rows(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, DIMENSION, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def loader(data: Tensor, batch_size: int = 1, sampler: Any = None) -> DataLoader:
    return DataLoader(TensorDataset(data), batch_size=batch_size, sampler=sampler)


def trainer(callbacks: list[pl.Callback], **options: Any) -> pl.Trainer:
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(callbacks=callbacks, **(defaults | options))


def plain(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """An optimizer that does not need the loss."""
    return torch.optim.SGD(groups, lr=0.1)


def fit(
    module: LinearLoss, batches: int = 10, callbacks: list[pl.Callback] | None = None, **options: Any
) -> Recorder:
    """Train on single rows and return the optimizer."""
    run = trainer([LossFeed()] if callbacks is None else callbacks, **options)
    run.fit(module, loader(rows(batches)))
    return module.optimizer


def windows(raw: list[Tensor | None], size: int, epoch: int) -> list[list[Tensor]]:
    """The losses of each window that has one; an epoch's last window may be short."""
    epochs = [raw[start : start + epoch] for start in range(0, len(raw), epoch)]
    cut = [one[start : start + size] for one in epochs for start in range(0, len(one), size)]
    return [kept for window in cut if (kept := [loss for loss in window if loss is not None])]


@dataclass
class MeanReader(pl.Callback):
    """A callback that needs the mean loss, wherever it stands in the list."""

    needs_loss = True
    read: list[Any] = field(default_factory=list)

    def on_before_optimizer_step(self, trainer: pl.Trainer, *_: Any) -> None:
        self.read.append(window_losses(trainer))

    __hash__ = object.__hash__


def scaled(scaler: torch.amp.GradScaler, monkeypatch: pytest.MonkeyPatch) -> MixedPrecision:
    """16-bit mixed precision on the CPU, where only the scaler is at work and autocast is not."""
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    monkeypatch.setattr(plugin, "autocast_context_manager", nullcontext)
    return plugin


class NoSynchronisation(TorchDispatchMode):
    """Fails where a tensor becomes a Python number, which on an accelerator waits for it."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default, "a tensor became a number"
        return function(*arguments, **(options or {}))


@contextmanager
def counted_reductions() -> Iterator[list[int]]:
    """Count the collective calls of one float64 number, which are those of the loss."""
    counts = [0]
    reduce = torch.distributed.all_reduce

    def counting(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        counts[0] += tensor.numel() == 1 and tensor.dtype == torch.float64
        return reduce(tensor, *arguments, **options)

    torch.distributed.all_reduce = counting
    try:
        yield counts
    finally:
        torch.distributed.all_reduce = reduce
