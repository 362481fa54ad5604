"""What a callback owes: it can be copied and saved, leaves nothing behind, and minds its own business."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from leyden.testing.fitting import (
    Fitted,
    Interrupt,
    InterruptedFit,
    Learner,
    finite,
    fit,
    learner_of,
    quiet,
    quiet_trainer,
    run_stage,
    unequal,
)
from leyden.testing.kit import Subject, owed_by
from leyden.testing.resume import ResumableLoader
from leyden.testing.saving import DUPLICATES, same_values, unreadable
from leyden.testing.trials import mean_cross_entropy, plain_sgd, trial_of


@owed_by("callback")
def training(subject: Subject) -> Iterator[str]:
    """A training with it runs and stays finite, and the same object serves a second training."""
    callback = subject.build()
    for which in ("first", "second"):
        fitted = fit(subject, steps=6, own_callbacks=False, callbacks=[callback])
        if not finite(fitted.final):
            yield f"parameters are not finite after the {which} training"


@owed_by("callback")
def stages(subject: Subject) -> Iterator[str]:
    """It takes part in validation within a training, and in validate, test and predict."""
    trial = trial_of(subject)
    module, callbacks = learner_of(subject, trial)
    loader = ResumableLoader(trial.batches()[:2])
    steps = {"fit": "training_step", "validate": "validation_step", "test": "test_step", "predict": "forward"}
    for stage, step in steps.items():
        if not is_overridden(step, module):
            continue
        trainer = quiet_trainer(callbacks=callbacks, max_steps=2, **trial.trainer)
        try:
            with quiet():
                run_stage(trainer, stage, module, loader)
        except Exception as error:
            yield f"trainer.{stage} with it raises {type(error).__name__}: {error}"


@owed_by("callback")
def copies(subject: Subject) -> Iterator[str]:
    """A deep copy and a pickled copy do what the original does, and it can be copied after a training too."""
    original = fit(subject, steps=4).final
    for how, duplicate in DUPLICATES:
        callback = subject.build()
        try:
            twin = duplicate(callback)
            fit(subject, steps=4, own_callbacks=False, callbacks=[callback])
            for name in ("log", "log_dict"):  # Lightning's, bound to the module, new in every training
                vars(callback).pop(name, None)
            duplicate(callback)
        except Exception as error:
            yield f"{how} raises {type(error).__name__}: {error}"
            continue
        copied = fit(subject, steps=4, own_callbacks=False, callbacks=[twin]).final
        if difference := unequal(original, copied):
            yield f"a training with its {how} differs: {difference}"


@owed_by("callback")
def saved_state(subject: Subject) -> Iterator[str]:
    """Its ``state_dict`` is read with ``torch.load(weights_only=True)`` and restores the same state."""
    callback = subject.build()
    fit(subject, steps=4, own_callbacks=False, callbacks=[callback])
    state = callback.state_dict()
    yield from unreadable(state)
    other = subject.build()
    other.load_state_dict(copy.deepcopy(state))
    if not same_values(state, other.state_dict()):
        yield "state_dict after load_state_dict is not what was loaded"


@owed_by("callback")
def leaves_nothing_behind(subject: Subject) -> Iterator[str]:
    """After a training, also one that an exception ended, the module has no hook or entry of the callback."""
    trial = trial_of(subject)
    untouched = learner_of(subject, trial)[0]
    before = _hooks(untouched), set(untouched.state_dict())
    for how, interruption in (("a training", []), ("a training that an exception ended", [Interrupt(2)])):
        kept: list[LightningModule] = []
        with contextlib.suppress(InterruptedFit):
            fit(subject, steps=4, callbacks=interruption, change=kept.append)
        module = kept[0]
        if _hooks(module) != before[0]:
            yield f"after {how} the module has {_hooks(module)} hooks, before it {before[0]}"
        if set(module.state_dict()) != before[1]:
            names = sorted(set(module.state_dict()) ^ before[1])
            yield f"after {how} the module's state_dict has other names: {names}"


@owed_by("callback")
def self_gating(subject: Subject) -> Iterator[str]:
    """A callback that every Trainer gets changes nothing in a training that it has no business with."""
    if not subject.contributed:
        return
    callback = subject.build()
    without, random_without = _plain([])
    with_it, random_with = _plain([callback])
    if difference := unequal(without.final, with_it.final):
        yield f"a plain training with SGD differs: {difference}"
    if not torch.equal(random_without, random_with):
        yield "a plain training draws other random numbers"
    extra = sorted(set(with_it.trainer.callback_metrics) - set(without.trainer.callback_metrics))
    if extra:
        yield f"a plain training logs {', '.join(extra)}"
    if callback.state_dict():
        yield "after a plain training it has a state, which every checkpoint would hold"


@owed_by("callback")
def idempotence(subject: Subject) -> Iterator[str]:
    """A callback that every Trainer gets acts once where a Trainer holds it twice."""
    if not subject.contributed:
        return
    once = fit(subject, steps=6, contributed=False)
    twice = fit(subject, steps=6, contributed=False, callbacks=[subject.build()])
    if difference := unequal(once.final, twice.final):
        yield f"a training that holds it twice differs: {difference}"
    if set(once.trainer.callback_metrics) != set(twice.trainer.callback_metrics):
        yield "a training that holds it twice logs other metrics"


def _plain(callbacks: list[Callback]) -> tuple[Fitted, torch.Tensor]:
    """A training that no callback has business with, and the random state that it leaves."""
    from leyden.model import Component

    plain = Subject(Component(kind="module", path=f"{__name__}.plain_module", summary="A plain module."))
    return fit(plain, steps=6, contributed=False, callbacks=callbacks), torch.get_rng_state()


def plain_module() -> LightningModule:
    """The kit's classifier with dropout under SGD, a module like any user's."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
    return Learner(model, mean_cross_entropy, lambda model: plain_sgd(model.parameters()))


def _hooks(module: nn.Module) -> int:
    """How many hooks a module, its children and its parameters have."""
    kinds = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_state_dict_hooks",
        "_load_state_dict_pre_hooks",
    )
    own = sum(len(getattr(child, kind)) for child in module.modules() for kind in kinds)
    return own + sum(
        len(parameter._backward_hooks or ())
        + len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
        for parameter in module.parameters()
    )
