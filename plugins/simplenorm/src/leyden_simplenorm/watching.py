"""What the two monitors share: which modules they watch, at which steps, and how they write it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from leyden_simplenorm.conversion import Patterns, is_map, matches
from leyden_simplenorm.layer import SimpleNormLinear

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

Value = TypeVar("Value")


def watched(model: nn.Module, modules: Patterns) -> dict[str, nn.Module]:
    """The modules that patterns name.

    Args:
        model: where they are looked for.
        modules: patterns of dotted names; one with ``*`` or ``?`` stands for linear maps alone (a map with
            its norm is one), a name without for whatever module has it.

    Returns:
        The modules by name, in the model's order.
    """
    listed = [modules] if isinstance(modules, str) else list(modules)
    inner = {
        id(part)
        for layer in model.modules()
        if isinstance(layer, SimpleNormLinear)
        for part in layer.modules()
        if part is not layer
    }
    return {
        name: module
        for name, module in model.named_modules()
        if name in listed
        or (
            (isinstance(module, SimpleNormLinear) or is_map(module))
            and id(module) not in inner
            and matches(name, listed)
        )
    }


def keep(history: dict[str, list[Value]], found: Mapping[str, Value], steps: int, missing: Value) -> None:
    """Append what was measured at a step, in place.

    Args:
        history: for each module what was measured at each step before.
        found: what was measured now; modules may be missing, and others new.
        steps: how many steps there were before.
        missing: stands for what was not measured.
    """
    for name in found:
        history.setdefault(name, [missing] * steps)
    for name, values in history.items():
        values.append(found.get(name, missing))


def check_patterns(argument: str, modules: object) -> None:
    """Refuse what are no patterns.

    Args:
        argument: the argument's name.
        modules: what was given.

    Raises:
        ValueError: if it is neither a text nor a list of texts.
    """
    listed = [modules] if isinstance(modules, str) else modules
    if not isinstance(listed, Sequence) or not listed or not all(isinstance(one, str) for one in listed):
        raise ValueError(f"{argument}: expected a pattern of names, or a list of them, got {modules!r}")


def is_due(trainer: Trainer, batch_idx: int, every: int) -> bool:
    """Whether a batch is the first of an optimizer step that is watched.

    Args:
        trainer: the Trainer.
        batch_idx: the batch's number in its epoch.
        every: of so many steps one is watched.

    Returns:
        True at steps 0, ``every``, 2 ``every`` …, for the first of the batches that are accumulated.
    """
    return step_of(trainer) % every == 0 and batch_idx % trainer.accumulate_grad_batches == 0


def step_of(trainer: Trainer) -> int:
    """The number of the optimizer step that is under way, from 0."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def write(trainer: Trainer, metrics: Mapping[str, float], step: int) -> None:
    """Log numbers to every logger.

    Args:
        trainer: whose loggers.
        metrics: the numbers.
        step: their step.
    """
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=step)
