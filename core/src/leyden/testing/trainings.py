"""What everything that takes part in a training owes: it repeats, resumes, and fits the Trainer's options."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.utils._pytree import tree_leaves

from leyden.testing.fitting import (
    Fitted,
    far,
    finite,
    fit,
    fit_and_resume,
    fit_epochs,
    fit_epochs_and_resume,
    in_double,
    tolerance_of,
    unequal,
)
from leyden.testing.kit import Subject, owed_by
from leyden.testing.resume import RestoreRNG


@owed_by("optimizer", "lr_scheduler", "callback", "module")
def reproducible(subject: Subject) -> Iterator[str]:
    """Two trainings from one seed agree bit for bit."""
    if difference := unequal(fit(subject, steps=8).final, fit(subject, steps=8).final):
        yield f"two trainings from one seed differ: {difference}"


@owed_by("optimizer", "lr_scheduler", "callback", "module")
def epoch_resume(subject: Subject) -> Iterator[str]:
    """A training resumed from the checkpoint of an epoch's end equals one that was never interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _differing(fit_epochs(subject), fit_epochs_and_resume(subject, Path(folder)))


@owed_by("optimizer", "lr_scheduler", "callback", "module")
def mid_epoch_resume(subject: Subject) -> Iterator[str]:
    """A training resumed from a checkpoint in mid-epoch equals one that was never interrupted."""
    through = fit(subject, steps=7, shuffle=True, callbacks=[RestoreRNG()])
    with tempfile.TemporaryDirectory() as folder:
        yield from _differing(through, fit_and_resume(subject, Path(folder), stop=3, steps=7))


@owed_by("optimizer", "lr_scheduler", "callback", "module")
def accumulation(subject: Subject) -> Iterator[str]:
    """Accumulating the gradients of 4 batches equals one batch of their rows, in a short last window too."""
    double = in_double(subject)
    try:
        accumulated = fit(subject, steps=6, double=double, accumulate_grad_batches=4).final
    except Exception as error:
        if "accumul" not in str(error):
            raise
        return  # refused in words that help
    joint = fit(subject, steps=6, double=double, joined=4, change=_weigh_short_batches).final
    if difference := far(accumulated, joint, tolerance_of(subject)):
        yield f"6 steps with accumulate_grad_batches=4 and with batches 4 times as large differ: {difference}"


@owed_by("optimizer", "lr_scheduler", "callback", "module")
def clipping(subject: Subject) -> Iterator[str]:
    """Gradient clipping works by norm and by value, or is refused by name."""
    for algorithm in ("norm", "value"):
        try:
            fit(subject, steps=3, gradient_clip_val=0.05, gradient_clip_algorithm=algorithm)
        except Exception as error:
            if "clip" not in str(error):
                yield f"clipping by {algorithm} raises {type(error).__name__}: {error}"


@owed_by("optimizer", "lr_scheduler", "callback", "module")
def bf16_autocast(subject: Subject) -> Iterator[str]:
    """It trains under bf16 autocast."""
    fitted = fit(subject, steps=4, precision="bf16-mixed")
    if not finite(fitted.final):
        yield "parameters are not finite after 4 steps of Trainer(precision='bf16-mixed')"
    if not unequal(fitted.states[0], fitted.final):
        yield "nothing changed in 3 steps of Trainer(precision='bf16-mixed')"


@owed_by("optimizer", "callback", promise="scaler")
def scaler(subject: Subject) -> Iterator[str]:
    """A GradScaler changes nothing, and an infinite loss under it skips that step alone."""
    plain = fit(subject, steps=6)
    if difference := far(plain.final, fit(subject, steps=6, plugins=[_scaled()]).final, 1e-5):
        yield f"6 steps with and without a GradScaler differ: {difference}"
    hit = fit(subject, steps=7, faults={2: "inf"}, plugins=[_scaled()])
    if difference := unequal(hit.states[1], hit.states[2]):
        yield f"parameters change at a step that the scaler skips: {difference}"
    if difference := far(fit(subject, steps=6, leave_out=2).states[5], hit.states[6], 1e-5):
        yield f"after a step that the scaler skipped, later steps differ: {difference}"


def _scaled() -> MixedPrecision:
    """Lightning's 16-bit precision with a real GradScaler on the CPU and without autocast.

    ``Trainer(precision="16-mixed")`` on a CPU silently trains in bf16, so the scaler's path needs this.
    """
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    precision.autocast_context_manager = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    return precision


def _differing(through: Fitted, resumed: Fitted) -> Iterator[str]:
    ends = through.trainer.global_step, resumed.trainer.global_step
    if ends[0] != ends[1]:
        yield f"the uninterrupted training ends at step {ends[0]}, the resumed one at step {ends[1]}"
    if difference := unequal(through.final, resumed.final):
        yield f"the resumed training differs from the uninterrupted one: {difference}"


def _weigh_short_batches(module: LightningModule) -> None:
    """Weigh each batch's loss by its rows, as a window that accumulates fewer batches than the others is."""
    step = module.training_step
    largest = 0

    @functools.wraps(step)
    def training_step(batch: Any, batch_idx: int) -> Any:
        nonlocal largest
        loss = step(batch, batch_idx)
        rows = len(next(leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)))
        largest = max(largest, rows)
        if isinstance(loss, dict):
            return {**loss, "loss": loss["loss"] * (rows / largest)}
        return loss * (rows / largest) if isinstance(loss, torch.Tensor) else loss

    module.training_step = training_step  # type: ignore[method-assign]
