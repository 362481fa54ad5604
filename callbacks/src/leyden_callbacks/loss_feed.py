"""The loss of an optimizer step, handed to the optimizers and callbacks that need it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch.optim import Optimizer

from leyden_callbacks._scaler import loss_scale

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor


class WindowLosses(NamedTuple):
    """The loss of one optimizer step, in two normalisations.

    Both are 0-dim, detached, unscaled, the same on every rank, and float32 (float64 where the loss is). They
    are shared between their readers, so no reader changes them in place.

    Attributes:
        matching: the loss whose gradient the optimizer holds: the sum of the micro-batch losses, each divided
            by ``accumulate_grad_batches``, also in a short last window.
        mean: the mean of the micro-batch losses of the window.
    """

    matching: Tensor
    mean: Tensor


@dataclass
class _Window:
    """What has been backpropagated since the gradients were last zeroed, and who reads it."""

    total: Tensor | None = None
    count: int = 0
    in_backward: bool = False
    handed: bool = False
    reduced: WindowLosses | None = None
    optimizer: Optimizer | None = None
    receivers: tuple[Optimizer, ...] = ()

    def begin(self) -> None:
        """Open a new window: the losses so far no longer have a gradient."""
        self.total, self.count, self.reduced = None, 0, None
        self.in_backward = self.handed = False
        self.hand(None)  # a step that a GradScaler skipped left them unread

    def hand(self, losses: WindowLosses | None) -> None:
        """Hand losses, or none, to the receivers."""
        for receiver in self.receivers:
            receiver.pending_loss, receiver.pending_mean_loss = losses or (None, None)  # type: ignore[attr-defined]


# Kept here and not in the callback: a callback is copied, pickled, listed twice and shared by two Trainers.
_windows: WeakKeyDictionary[Trainer, _Window] = WeakKeyDictionary()


class LossFeed(Callback):
    """Hands the loss of each optimizer step to the optimizers and callbacks that need it.

    An optimizer asks by the class attribute ``needs_loss = True``. In its step it finds two attributes,
    ``pending_loss`` (`WindowLosses.matching`) and ``pending_mean_loss`` (`WindowLosses.mean`), both None if
    no loss was backpropagated; it reads them after it ran its closure and sets both to None. A callback asks
    by the same class attribute and calls `window_losses` in ``on_before_optimizer_step``.

    The two are right under gradient accumulation (short last window too), under distributed strategies that
    average gradients, under a GradScaler, and when an optimizer runs its closure several times in one step.
    Nothing waits for the device, and a loss that is not finite is handed on like any other. The callback acts
    only under automatic optimization (Lightning allows one optimizer there) and only when somebody asks;
    under manual optimization pass ``optimizer.step(loss=...)``.

    It has no state of its own: any number of copies in one Trainer do the work of one.

    Raises:
        MisconfigurationException: when training starts under a strategy that accumulates gradients by itself
            (DeepSpeed), where the loss of a step cannot be known; and in a step whose closure runs more than
            once under ``accumulate_grad_batches > 1``, where Lightning adds up the gradients of all the runs.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget an earlier fit of the same Trainer."""
        _windows.pop(trainer, None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide whether anybody needs the loss."""
        if trainer in _windows or not pl_module.automatic_optimization:
            return
        receivers = [receiver for optimizer in trainer.optimizers for receiver in _receivers(optimizer)]
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        askers = [*receivers, *(callback for callback in callbacks if _needs_loss(callback))]
        if not askers:
            return
        if trainer.strategy.handles_gradient_accumulation:
            raise MisconfigurationException(
                f"{type(askers[0]).__name__} needs the loss of each optimizer step, and"
                f" {type(trainer.strategy).__name__}, which accumulates gradients itself, does not show it;"
                " use a strategy that leaves accumulation to Lightning, such as 'ddp'"
            )
        if receivers and trainer.gradient_clip_val:
            rank_zero_warn(
                f"{type(receivers[0]).__name__} takes its step from the loss and the gradient together, and"
                f" gradient_clip_val={trainer.gradient_clip_val} clips the gradient before it: the two no"
                " longer belong together, and the step is not the method's. Leave gradient_clip_val unset."
            )
        _windows[trainer] = _Window()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note that whatever runs next is not a second run of the last closure."""
        if (window := _windows.get(trainer)) is not None:
            window.handed = False

    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Open a new window."""
        if (window := _windows.get(trainer)) is not None:
            window.begin()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Add a loss to the window."""
        window = _windows.get(trainer)
        if window is None or window.in_backward:
            return
        if window.handed:
            raise MisconfigurationException(
                f"{type(trainer.optimizers[0]).__name__} runs its closure more than once in a step, and under"
                f" accumulate_grad_batches={trainer.accumulate_grad_batches} Lightning zeroes the gradient"
                " only once a window, so that the gradients of all runs add up; set accumulate_grad_batches=1"
            )
        if loss.numel() != 1:
            raise MisconfigurationException(
                f"the loss must be a scalar to be handed to an optimizer; its shape is {tuple(loss.shape)}"
            )
        value = loss.detach().clone()
        if value.dtype not in (torch.float32, torch.float64):
            value = value.float()
        if value.ndim:
            value = value.reshape(())
        if (scale := loss_scale(trainer, loss.device)) is not None:
            value = value / scale
        window.total = value if window.total is None else window.total + value
        window.count += 1
        window.reduced = None
        window.in_backward = True

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the next loss in."""
        if (window := _windows.get(trainer)) is not None:
            window.in_backward = False

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Hand the losses over."""
        if (window := _windows.get(trainer)) is not None:
            if window.optimizer is not optimizer:
                window.optimizer, window.receivers = optimizer, tuple(_receivers(optimizer))
            window.hand(window_losses(trainer))
            window.handed = True


def window_losses(trainer: Trainer) -> WindowLosses | None:
    """The losses backpropagated since the gradients were last zeroed, averaged over the ranks.

    A callback with ``needs_loss = True`` calls this in ``on_before_optimizer_step``, in whatever order the
    callbacks stand. The ranks exchange their losses once a window, in the first call, so every rank must call
    it or none.

    Args:
        trainer: the Trainer that is training.

    Returns:
        The losses, or None if ``training_step`` returned None for the whole window.

    Raises:
        MisconfigurationException: if no `LossFeed` acts in this Trainer; the text says why.
    """
    window = _windows.get(trainer)
    if window is None:
        raise MisconfigurationException(f"the loss of the step is not known: {_why_not(trainer)}")
    if window.total is None:
        return None
    if window.reduced is None:
        matching = _mean_over_ranks(window.total, trainer)
        short = trainer.accumulate_grad_batches / window.count
        mean = matching if short == 1 else matching * short
        window.reduced = WindowLosses(matching, mean)
    return window.reduced


def _needs_loss(asker: Any) -> bool:
    return bool(getattr(asker, "needs_loss", False))


def _receivers(optimizer: Optimizer) -> Iterator[Optimizer]:
    """The optimizers in a chain of wrappers that need the loss.

    Lightning's own wrapper reads through to the optimizer inside; an attribute set on it never arrives there.
    """
    seen: set[int] = set()
    while isinstance(optimizer, Optimizer) and id(optimizer) not in seen:
        seen.add(id(optimizer))
        if _needs_loss(optimizer) and not isinstance(optimizer, LightningOptimizer):
            yield optimizer
        optimizer = getattr(optimizer, "optimizer", None)  # type: ignore[assignment]


def _mean_over_ranks(value: Tensor, trainer: Trainer) -> Tensor:
    if trainer.world_size > 1 and torch.distributed.is_available() and torch.distributed.is_initialized():
        # Strategy.reduce would put a barrier before it, which waits for the device.
        total = value.clone()
        torch.distributed.all_reduce(total)
        return total / trainer.world_size
    if isinstance(trainer.strategy, SingleDeviceStrategy):
        return value
    reduced: Tensor = trainer.strategy.reduce(value.clone(), reduce_op="mean")
    return reduced


def _why_not(trainer: Trainer) -> str:
    if not any(isinstance(callback, LossFeed) for callback in trainer.callbacks):  # type: ignore[attr-defined]
        return "add leyden_callbacks.LossFeed() to the Trainer's callbacks (LEYDEN_CALLBACKS=0 takes it away)"
    if not trainer.lightning_module.automatic_optimization:
        return "under manual optimization Lightning does not show it; pass the loss yourself"
    return "who asks for it must set needs_loss = True, and may ask once training has started"
