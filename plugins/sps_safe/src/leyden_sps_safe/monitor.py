"""What a Polyak step size does during training, logged and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from leyden_callbacks import keeps_figures, log_figure
from lightning.pytorch.callbacks import Callback

from leyden_sps_safe.loss_aware import LossAwareOptimizer

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from matplotlib.figure import Figure
    from torch import Tensor


class SPSMonitor(Callback):
    """Logs the step size, the gradient's squared norm and the safeguard of Oikonomou and Loizou (2026).

    It acts where an optimizer of this package trains and the Trainer has a logger. Every few optimizer steps
    it logs ``sps/step_size`` (before ``lr``), ``sps/grad_norm_sq``, ``sps/loss_used``,
    ``sps/safeguard_active`` (1 where M, and not the squared norm, was the denominator) and ``sps/skipped``
    (the updates skipped so far because a number was not finite); at the end of an epoch
    ``sps/safeguard_fraction``, the fraction of its steps at which the safeguard was active. At the end of
    training it draws step size and squared norm against the step, for `leyden.logger.LeydenLogger` and
    ``MLFlowLogger``. Between the steps that log, nothing waits for the device. Of several in one Trainer, the
    first acts.

    Args:
        every: log at every so many optimizer steps, from the first one on; None: the Trainer's
            ``log_every_n_steps``.
        figure: whether to draw at the end.

    Raises:
        ValueError: if ``every`` is not a positive integer.
    """

    def __init__(self, every: int | None = None, *, figure: bool = True) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"every must be a positive integer or None, got {every!r}")
        self.every = every
        self.figure = figure
        self._history: History | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide whether there is anything to watch."""
        self._history = History() if self._acts(trainer) else None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take note of the step, and log it at the steps that log."""
        optimizer = _watched(trainer)
        if self._history is None or optimizer is None or optimizer.last_step_size is None:
            return
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        if not self._history.add(step, optimizer):
            return
        every: int = self.every or trainer.log_every_n_steps or 1  # type: ignore[attr-defined]
        if step % every == 0:
            metrics = numbers(optimizer)
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log how often the safeguard was active."""
        if self._history is None or (fraction := self._history.safeguard_fraction()) is None:
            return
        step = max(trainer.fit_loop.epoch_loop._batches_that_stepped - 1, 0)
        for logger in trainer.loggers:
            logger.log_metrics({"sps/safeguard_fraction": fraction}, step=step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the run."""
        history, self._history = self._history, None
        optimizer = _watched(trainer)
        if history is None or optimizer is None or not self.figure or len(history.steps) < 2:
            return
        if keeps_figures(trainer):
            log_figure(trainer, "sps", draw(history, type(optimizer).__name__))

    def _acts(self, trainer: Trainer) -> bool:
        others: Sequence[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        first = next((one for one in others if isinstance(one, SPSMonitor)), None)
        return first is self and bool(trainer.loggers) and _watched(trainer) is not None


class History:
    """The steps taken so far, thinned out so that a long run keeps no more than a figure can show.

    Args:
        most: how many steps are kept at most.

    Attributes:
        steps: the steps that are kept.
    """

    def __init__(self, most: int = 2000) -> None:
        self.steps: list[int] = []
        self._most = most
        self._stride = 1
        self._numbers: list[tuple[Tensor, Tensor]] = []
        self._last: Tensor | None = None
        self._active: Tensor | None = None
        self._count = 0

    def add(self, step: int, optimizer: LossAwareOptimizer) -> bool:
        """Take note of the optimizer's last step; returns whether there was a new one."""
        size, norm = optimizer.last_step_size, optimizer.last_grad_norm_sq
        if size is None or norm is None or norm is self._last:
            return False
        self._last = norm
        active = optimizer.last_safeguard_active
        if active is not None:
            flag = active.to(torch.float32)
            self._active = flag if self._active is None else self._active + flag
            self._count += 1
        if step % self._stride == 0:
            self.steps.append(step)
            self._numbers.append((size, norm))
        if len(self.steps) > self._most:
            self._stride *= 2
            kept = [place for place, kept_step in enumerate(self.steps) if kept_step % self._stride == 0]
            self.steps = [self.steps[place] for place in kept]
            self._numbers = [self._numbers[place] for place in kept]
        return True

    def safeguard_fraction(self) -> float | None:
        """The fraction of the steps since it was last asked at which the safeguard was active."""
        if self._active is None:
            return None
        fraction = float(self._active) / self._count
        self._active, self._count = None, 0
        return fraction

    def series(self) -> tuple[list[float], list[float]]:
        """Step sizes and squared norms at `steps`; waits for the device once."""
        sizes, norms = torch.stack([torch.stack(pair) for pair in self._numbers]).double().T.tolist()
        return sizes, norms


def numbers(optimizer: LossAwareOptimizer) -> dict[str, float]:
    """The last step in numbers, by metric; waits for the device.

    Args:
        optimizer: one that has taken a step.

    Returns:
        The metrics that `SPSMonitor` logs.
    """
    named = {
        "sps/step_size": optimizer.last_step_size,
        "sps/grad_norm_sq": optimizer.last_grad_norm_sq,
        "sps/safeguard_active": optimizer.last_safeguard_active,
        "sps/loss_used": optimizer.last_loss,
    }
    known = {name: value for name, value in named.items() if value is not None}
    values = torch.stack([value.double() for value in known.values()]).tolist()
    return {**dict(zip(known, values, strict=True)), "sps/skipped": float(optimizer.skipped_steps)}


def draw(history: History, name: str) -> Figure:
    """Draw step size and squared norm against the step.

    Args:
        history: at least two steps.
        name: the optimizer's name.

    Returns:
        The figure.
    """
    from leyden.figures import new_figure, styles

    figure, axes = new_figure(2, title=f"{name}: step size and gradient", share_y=False)
    look = styles(["step size", "squared gradient norm"])
    for ax, (label, style), values in zip(axes, look.items(), history.series(), strict=True):
        ax.plot(history.steps, values, color=style.color, lw=1.2)
        if any(value > 0 for value in values):
            ax.set_yscale("log")
        ax.set_xlabel("optimizer step")
        ax.set_ylabel(label)
    return figure


def _watched(trainer: Trainer) -> LossAwareOptimizer | None:
    """The Trainer's optimizer of this package."""
    return next((one for one in trainer.optimizers if isinstance(one, LossAwareOptimizer)), None)
