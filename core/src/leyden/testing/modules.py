"""What a LightningModule owes: every stage works with defaults, and Lightning's bookkeeping is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.model_helpers import is_overridden

from leyden.testing.fitting import far, finite, fit, quiet, quiet_trainer, run_stage, unequal
from leyden.testing.kit import Subject, owed_by
from leyden.testing.resume import ResumableLoader
from leyden.testing.saving import DUPLICATES, refusal
from leyden.testing.trials import Trial, trial_of

STAGES = {
    "fit": "training_step",
    "validate": "validation_step",
    "test": "test_step",
    "predict": "predict_step",
}


@owed_by("module")
def stages(subject: Subject) -> Iterator[str]:
    """Fit, validate, test and predict work with a Trainer's default settings, inference mode included."""
    for stage, step in STAGES.items():
        module, trial = subject.build(), trial_of(subject)
        if not is_overridden(step, module):
            continue
        trainer = quiet_trainer(
            max_steps=2, limit_val_batches=2, limit_test_batches=2, limit_predict_batches=2
        )
        data: Any = trial.data if trial.data is not None else ResumableLoader(trial.batches())
        try:
            with quiet():
                run_stage(trainer, stage, module, data)
        except Exception as error:
            yield f"trainer.{stage} raises {type(error).__name__}: {error}"


@owed_by("module")
def bookkeeping(subject: Subject) -> Iterator[str]:
    """A ``training_step`` advances ``global_step`` by one; ``max_steps`` and ModelCheckpoint follow it."""
    if not is_overridden("training_step", subject.build()):
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
        fitted = fit(subject, steps=3, callbacks=[checkpoint], limit_train_batches=5, max_epochs=2)
        files = sorted(path.stem for path in Path(folder).iterdir())
    if fitted.trainer.global_step != 3:
        yield f"after max_steps=3, trainer.global_step is {fitted.trainer.global_step}"
    if len(fitted.states) != 3:
        yield f"max_steps=3 ended the training after {len(fitted.states)} batches"
    if files != ["step=1", "step=2", "step=3"]:
        yield f"ModelCheckpoint(every_n_train_steps=1) wrote {files or 'nothing'} in 3 steps"
    if not finite(fitted.final):
        yield "parameters or buffers are not finite after 3 steps"


@owed_by("module")
def weights_only(subject: Subject) -> Iterator[str]:
    """Its checkpoint, hyper-parameters included, is read with ``torch.load(weights_only=True)``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.ckpt"
        with quiet():
            _trained_or_attached(subject).save_checkpoint(path)
        try:
            torch.load(path, weights_only=True)
        except Exception as error:
            yield f"torch.load(weights_only=True) refuses its checkpoint: {refusal(error)}"


@owed_by("module")
def copies(subject: Subject) -> Iterator[str]:
    """A deep copy and a pickled copy have the same state, before and after a training."""
    for when, module in (
        ("", subject.build()),
        (" after a training", _trained_or_attached(subject).lightning_module),
    ):
        for how, duplicate in DUPLICATES:
            try:
                twin = duplicate(module)
            except Exception as error:
                yield f"{how}{when} raises {type(error).__name__}: {error}"
                continue
            if difference := unequal(module.state_dict(), twin.state_dict()):
                yield f"its {how}{when} differs: {difference}"


@owed_by("module", promise="compile")
def compiled(subject: Subject) -> Iterator[str]:
    """``torch.compile`` of it changes nothing."""

    def compile_it(module: LightningModule) -> None:
        module.compile(backend="aot_eager")

    if difference := far(fit(subject, steps=3).final, fit(subject, steps=3, change=compile_it).final, 1e-5):
        yield f"3 steps with and without torch.compile differ: {difference}"


def _trained_or_attached(subject: Subject) -> Trainer:
    """A Trainer that holds the module, trained for two steps where it can be."""
    module = subject.build()
    if is_overridden("training_step", module):
        return fit(subject, steps=2).trainer
    trial: Trial = trial_of(subject)
    trainer = quiet_trainer(limit_test_batches=1, limit_predict_batches=1)
    data: Any = trial.data if trial.data is not None else ResumableLoader(trial.batches())
    with quiet():
        run_stage(trainer, "test" if is_overridden("test_step", module) else "predict", module, data)
    return trainer
