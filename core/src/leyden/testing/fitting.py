"""Trainings of the kit: a short fit for every kind of component, with faults and interruptions on demand."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import Optimizer

from leyden.testing.kit import Subject
from leyden.testing.outputs import tensors_in
from leyden.testing.resume import RestoreRNG, ResumableLoader
from leyden.testing.saving import same_bits
from leyden.testing.schedulers import needs_loss
from leyden.testing.trials import Trial, as_double, join, trial_of

Fault = Literal["skip", "nan", "inf"]
"""What happens to a batch: the module returns no loss, a loss that is NaN, or an infinite one."""

State = dict[str, Tensor]


class InterruptedFit(Exception):  # noqa: N818 - it interrupts, nothing is wrong
    """Raised by `Interrupt` to end a training where a user's machine might end it."""


class Learner(LightningModule):
    """The kit's own module: a model, a loss, and the optimizer or scheduler under test.

    Args:
        model: what is trained.
        loss: loss of the model on a batch.
        optimizer: builds the optimizer from the model.
        scheduler: builds the scheduler from the optimizer; None: none.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Tensor],
        optimizer: Callable[[nn.Module], Optimizer],
        scheduler: Callable[[Optimizer], Any] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._sharded = False

    def set_scheduler(self, scheduler: Callable[[Optimizer], Any]) -> None:
        """Train with a scheduler, stepped at every optimizer step."""
        self._scheduler = scheduler

    def configure_model(self) -> None:
        """Shard the model's children and the model, under a strategy that shards."""
        if self.device_mesh is None or self._sharded:
            return
        from torch.distributed.fsdp import fully_shard

        self._sharded = True
        mesh = self.device_mesh["data_parallel"]
        for child in self.model.children():
            if any(True for _ in child.parameters()):
                fully_shard(child, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def forward(self, batch: Any) -> Tensor:
        """The loss."""
        return self._loss(self.model, batch)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """The loss."""
        loss: Tensor = self(batch)
        self._latest = loss.detach()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss."""
        self.log("val_loss", self(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss."""
        self.log("test_loss", self(batch))

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step the scheduler, with the loss where it asks for one."""
        scheduler.step(self._latest) if needs_loss(scheduler) else scheduler.step()

    def configure_optimizers(self) -> Any:
        """The optimizer, with the scheduler stepped at every optimizer step where there is one."""
        optimizer = self._optimizer(self.model)
        if self._scheduler is None:
            return optimizer
        return [optimizer], [{"scheduler": self._scheduler(optimizer), "interval": "step"}]


class Recorder(Callback):
    """Keep a copy of the module's state after every batch."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Copy the state."""
        self.states.append(state_of(pl_module))


class Interrupt(Callback):
    """Raise `InterruptedFit` before the batch that follows a given number of optimizer steps or epochs."""

    def __init__(self, count: int, *, unit: Literal["step", "epoch"] = "step") -> None:
        self.count = count
        self.unit = unit

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Interrupt, when it is time."""
        if (trainer.global_step if self.unit == "step" else trainer.current_epoch) >= self.count:
            raise InterruptedFit


@dataclass(frozen=True)
class Fitted:
    """A finished training.

    Attributes:
        trainer: its Trainer.
        module: its module.
        states: copies of the module's parameters and buffers after every batch.
    """

    trainer: Trainer
    module: LightningModule
    states: list[State]

    @property
    def final(self) -> State:
        """Parameters and buffers at the end."""
        return state_of(self.module)


def learner_of(subject: Subject, trial: Trial) -> tuple[LightningModule, list[Callback]]:
    """The module that trains with the component, and the callbacks that belong to it.

    Args:
        subject: the component.
        trial: what it is tried on.

    Returns:
        A module under automatic optimization where the kit builds it: with the component as optimizer or
        scheduler, or with plain SGD beside the component as callback, or with the component as the layer that
        is trained. A component that is a module, or whose trial brings a module, comes as it is.
    """
    kind = subject.component.kind
    if kind == "module":
        return subject.build(), []
    callbacks = [subject.build()] if kind == "callback" else []
    if trial.module is not None:
        return trial.module, callbacks

    def optimizer(model: nn.Module) -> Optimizer:
        return trial.optimizer(trial.parameters(model))

    if kind == "layer":
        return Learner(subject.build(), lambda model, batch: mean_square(model(*batch)), optimizer), callbacks
    assert trial.model is not None  # trial_of fills it
    if kind == "optimizer":
        return Learner(
            trial.model, trial.loss, lambda model: subject.build(trial.parameters(model))
        ), callbacks
    scheduler = subject.build if kind == "lr_scheduler" else None
    return Learner(trial.model, trial.loss, optimizer, scheduler), callbacks


def mean_square(output: Any) -> Tensor:
    """A scalar of all the floating tensors in an output."""
    terms = [tensor.abs().square().mean() for tensor in tensors_in(output) if tensor.is_floating_point()]
    return torch.stack(terms).sum()


def fit(
    subject: Subject,
    *,
    steps: int = 6,
    joined: int = 1,
    share: tuple[int, int] = (0, 1),
    leave_out: int | None = None,
    double: bool = False,
    faults: Mapping[int, Fault] | None = None,
    shuffle: bool = False,
    change: Callable[[LightningModule], None] | None = None,
    callbacks: Sequence[Callback] = (),
    own_callbacks: bool = True,
    contributed: bool = True,
    resume_from: Path | None = None,
    **trainer_arguments: Any,
) -> Fitted:
    """Train the component's module for some optimizer steps, always from the same seed.

    Args:
        subject: the component.
        steps: optimizer steps, Lightning's ``max_steps``.
        joined: how many batches of the trial make one batch.
        share: this process's number and the number of processes, which take the batches in turn.
        leave_out: place of a batch to leave out of the epoch.
        double: train in float64.
        faults: by batch (counted from 0 over all epochs), what happens to it.
        shuffle: whether each epoch takes the batches in another order.
        change: called with the module before training.
        callbacks: further callbacks.
        own_callbacks: whether a callback component takes part itself.
        contributed: whether the Trainer gets the callbacks that plugins contribute.
        resume_from: a checkpoint to go on from.
        **trainer_arguments: further arguments of the Trainer.

    Returns:
        The finished training.
    """
    trial = trial_of(subject)
    module, own = learner_of(subject, trial)
    batches = [batch for place, batch in enumerate(batches_of(subject, trial)) if place != leave_out]
    batches = batches[share[0] :: share[1]]
    if joined > 1:
        batches = join(batches, joined)
    if double:
        module, batches = module.double(), as_double(batches)
    if change is not None:
        change(module)
    if faults:
        inject(module, faults)
    recorder = Recorder()
    with contributed_callbacks(on=contributed):
        trainer = quiet_trainer(
            max_steps=steps,
            callbacks=[*(own if own_callbacks else []), recorder, *callbacks],
            enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
            **{**trial.trainer, **trainer_arguments},
        )
    torch.manual_seed(1)
    with quiet():
        trainer.fit(module, ResumableLoader(batches, shuffle=shuffle), ckpt_path=resume_from)
    return Fitted(trainer, module, recorder.states)


def fit_and_resume(subject: Subject, folder: Path, *, stop: int, steps: int) -> Fitted:
    """Train, interrupt after some steps, and go on from the checkpoint in a new module and Trainer.

    Args:
        subject: the component.
        folder: where the checkpoints of every step go.
        stop: the optimizer step after which the training is interrupted.
        steps: optimizer steps in all.

    Returns:
        The training that went on.
    """
    checkpoint = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    with contextlib.suppress(InterruptedFit):
        fit(subject, steps=steps, shuffle=True, callbacks=[RestoreRNG(), checkpoint, Interrupt(stop)])
    saved = folder / f"step={stop}.ckpt"
    return fit(subject, steps=steps, shuffle=True, callbacks=[RestoreRNG()], resume_from=saved)


def fit_epochs_and_resume(subject: Subject, folder: Path) -> Fitted:
    """Train for two epochs, interrupted at the end of the first and resumed from the checkpoint made there.

    Args:
        subject: the component.
        folder: where the checkpoint goes.

    Returns:
        The training that went on.
    """
    checkpoint = ModelCheckpoint(dirpath=folder, filename="{epoch}", save_on_train_epoch_end=True)
    with contextlib.suppress(InterruptedFit):
        fit_epochs(subject, callbacks=[checkpoint, Interrupt(1, unit="epoch")])
    return fit_epochs(subject, resume_from=folder / "epoch=0.ckpt")


def fit_epochs(
    subject: Subject, *, callbacks: Sequence[Callback] = (), resume_from: Path | None = None
) -> Fitted:
    """Train for two epochs: Lightning resumes at an epoch's end only where epochs, not steps, end a fit."""
    callbacks = [RestoreRNG(), *callbacks]
    return fit(subject, steps=-1, max_epochs=2, shuffle=True, callbacks=callbacks, resume_from=resume_from)


def batches_of(subject: Subject, trial: Trial) -> list[Any]:
    """The batches of a training; a layer's are made of its inputs."""
    if subject.component.kind != "layer":
        return trial.batches()
    return [trial.inputs] * 10


def run_stage(trainer: Trainer, stage: str, module: LightningModule, data: Any) -> None:
    """Run a stage of a Trainer; ``fit`` validates too, where the module can.

    Args:
        trainer: the Trainer.
        stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        module: the module.
        data: a datamodule, or a loader for whatever it is.
    """
    given: dict[str, Any] = {"verbose": False} if stage in ("validate", "test") else {}
    if isinstance(data, LightningDataModule):
        given["datamodule"] = data
    elif stage == "fit":
        validates = is_overridden("validation_step", module)
        given |= {"train_dataloaders": data, "val_dataloaders": data if validates else None}
    else:
        given["dataloaders"] = data
    getattr(trainer, stage)(module, **given)


def quiet_trainer(**arguments: Any) -> Trainer:
    """A Trainer on the CPU that writes and prints nothing unless asked."""
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": -1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    with quiet():
        return Trainer(**{**settings, **arguments})


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's remarks about the machine and about small loaders."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def contributed_callbacks(on: bool) -> Iterator[None]:
    """Switch the callbacks that plugins contribute to every Trainer."""
    before = os.environ.get("LEYDEN_CALLBACKS")
    os.environ["LEYDEN_CALLBACKS"] = "1" if on else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LEYDEN_CALLBACKS"]
        else:
            os.environ["LEYDEN_CALLBACKS"] = before


def inject(module: LightningModule, faults: Mapping[int, Fault]) -> None:
    """Let the module's ``training_step`` fail at some batches."""
    step = module.training_step

    @functools.wraps(step)
    def training_step(batch: Any, batch_idx: int) -> Any:
        loss = step(batch, batch_idx)
        fault = faults.get(module.trainer.fit_loop.epoch_loop.total_batch_idx)
        if fault is None:
            return loss
        return None if fault == "skip" else loss * float(fault)  # type: ignore[operator]

    module.training_step = training_step  # type: ignore[method-assign]


def state_of(module: nn.Module) -> State:
    """Copies of a module's parameters and buffers, whole where they are sharded."""
    tensors = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()
        for name, tensor in tensors.items()
    }


def unequal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> str:
    """Name the first tensor that is not bit for bit the same in both; empty where all are."""
    if first.keys() != second.keys():
        return f"names differ: {sorted(first.keys() ^ second.keys())}"
    for name, tensor in first.items():
        if not same_bits(tensor, second[name]):
            return f"'{name}' differs{_by_how_much(tensor, second[name])}"
    return ""


def far(first: Mapping[str, Tensor], second: Mapping[str, Tensor], tolerance: float) -> str:
    """Name the first tensor that differs by more than a relative tolerance; empty where none does."""
    for name, tensor in first.items():
        other = second[name]
        if tensor.shape != other.shape or not torch.allclose(tensor, other, rtol=tolerance, atol=tolerance):
            return f"'{name}' differs{_by_how_much(tensor, other)}"
    return ""


def finite(state: Mapping[str, Tensor]) -> bool:
    """Whether all of a state's numbers are finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.values() if tensor.is_floating_point())


def tolerance_of(subject: Subject) -> float:
    """The tolerance of a comparison: a module trains in its own precision, all else in float64."""
    return 1e-5 if subject.component.kind == "module" else 1e-6


def in_double(subject: Subject) -> bool:
    """Whether the kit may train the component in float64."""
    return subject.component.kind != "module"


def _by_how_much(first: Tensor, second: Tensor) -> str:
    if first.shape != second.shape:
        return f" in shape: {tuple(first.shape)} and {tuple(second.shape)}"
    if first.dtype != second.dtype:
        return f" in type: {first.dtype} and {second.dtype}"
    return f" by {(first - second).abs().max().item():.2g}" if first.is_floating_point() else ""
