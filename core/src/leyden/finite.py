"""A run whose loss is no longer a number ends there, and says at which step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from leyden.errors import LeydenError


class FiniteLoss(Callback):
    """Ends a run with an error when its loss turns NaN or infinite.

    The losses are kept on their device and looked at together every ``every`` batches, before validation and
    at the end of an epoch: watching costs no synchronisation a step, and the step that is named is exact.

    An optimizer that documents to skip such steps says so by the class attribute ``skips_nonfinite = True``;
    a gradient scaler skips them too. Then only a loss that stays not finite for ``every`` batches, or from
    the first to the last, ends the run. A metric with ``loss`` in its name that is NaN after validation or
    testing always does.

    Args:
        every: how many batches pass between two looks.
    """

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self._known_bad: set[str] = set()
        self._forget()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with nothing seen, and find out who may skip a step."""
        self._forget()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        optimizers = trainer.optimizers
        self._tolerant = bool(scaler is not None and scaler.is_enabled()) or (
            bool(optimizers) and all(getattr(optimizer, "skips_nonfinite", False) for optimizer in optimizers)
        )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remember the step that the batch belongs to."""
        self._step = (trainer.global_step, trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the loss; look at what was kept when enough came together."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._kept.append((self._step, loss.detach()))
            if len(self._kept) >= self.every:
                self._look(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the losses of the epoch's end, before a checkpoint is written."""
        self._look(trainer)
        if not self._tolerant:
            _check_metrics(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a run that never had a finite loss, also where steps may be skipped."""
        if self._first_bad is not None and self._bad == self._seen:
            raise _error(trainer, self._first_bad, self._value)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the losses before the time of a validation is spent."""
        self._look(trainer)
        self._known_bad = _bad_metrics(trainer) if self._tolerant else set()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the validation's losses."""
        if not trainer.sanity_checking:
            _check_metrics(trainer, self._known_bad)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the test's losses."""
        _check_metrics(trainer)

    def _forget(self) -> None:
        self._kept: list[tuple[tuple[int, int], torch.Tensor]] = []
        self._tolerant = False
        self._step = (0, 0)
        self._seen = self._bad = 0
        self._first_bad: tuple[int, int] | None = None
        self._value = math.nan

    def _look(self, trainer: Trainer) -> None:
        """Bring the kept losses to the host, at once."""
        if not self._kept:
            return
        steps = [step for step, _ in self._kept]
        values = torch.stack([loss.reshape(()).float() for _, loss in self._kept]).tolist()
        self._kept = []
        for step, value in zip(steps, values, strict=True):
            self._seen += 1
            if math.isfinite(value):
                self._bad, self._first_bad = 0, None
                continue
            self._bad += 1
            if self._first_bad is None:
                self._first_bad, self._value = step, value
            if not self._tolerant or self._bad >= self.every:
                raise _error(trainer, self._first_bad, self._value)


def _error(trainer: Trainer, step: tuple[int, int], value: float) -> LeydenError:
    names = sorted(_bad_metrics(trainer), key=lambda name: "train" not in name)
    metric = f"metric '{names[0]}'" if names else "the loss of training_step, which is not logged"
    return LeydenError(f"loss {value} at step {step[0]}, epoch {step[1]}: {metric}")


def _check_metrics(trainer: Trainer, known: set[str] | frozenset[str] = frozenset()) -> None:
    for name in sorted(_bad_metrics(trainer) - known):
        raise LeydenError(
            f"loss nan at step {trainer.global_step}, epoch {trainer.current_epoch}: metric '{name}'"
        )


def _bad_metrics(trainer: Trainer) -> set[str]:
    """The logged losses that are NaN."""
    return {
        name
        for name, value in trainer.callback_metrics.items()
        if "loss" in name.lower() and math.isnan(float(value))
    }
