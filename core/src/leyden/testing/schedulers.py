"""What a learning-rate scheduler owes beside its part in a training."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from leyden.testing.kit import Subject, owed_by
from leyden.testing.saving import DUPLICATES, through_file, unreadable


@owed_by("lr_scheduler")
def state_dict(subject: Subject) -> Iterator[str]:
    """Steps, a round trip through ``state_dict`` and as many steps equal twice the steps, bit for bit."""
    optimizer, scheduler = _built(subject)
    through = _rates(optimizer, scheduler, 0, 8)
    optimizer, scheduler = _built(subject)
    _rates(optimizer, scheduler, 0, 4)
    other, resumed = _built(subject)
    other.load_state_dict(through_file(optimizer.state_dict(), weights_only=False))
    resumed.load_state_dict(through_file(scheduler.state_dict(), weights_only=False))
    rest = _rates(other, resumed, 4, 8)
    if rest != through[-len(rest) :]:
        yield f"after a round trip through state_dict the rates are {rest}, not {through[-len(rest) :]}"


@owed_by("lr_scheduler")
def weights_only(subject: Subject) -> Iterator[str]:
    """Its ``state_dict`` holds only what ``torch.load(weights_only=True)`` reads."""
    optimizer, scheduler = _built(subject)
    _rates(optimizer, scheduler, 0, 3)
    yield from unreadable(scheduler.state_dict())


@owed_by("lr_scheduler")
def copies(subject: Subject) -> Iterator[str]:
    """A deep copy and a pickled copy, taken with the optimizer, go on as the original does."""
    optimizer, scheduler = _built(subject)
    through = _rates(optimizer, scheduler, 0, 6)
    for how, duplicate in DUPLICATES:
        optimizer, scheduler = _built(subject)
        _rates(optimizer, scheduler, 0, 3)
        optimizer, scheduler = duplicate((optimizer, scheduler))
        rest = _rates(optimizer, scheduler, 3, 6)
        if rest != through[-len(rest) :]:
            yield f"after {how} the rates are {rest}, without it {through[-len(rest) :]}"


def needs_loss(scheduler: Any) -> bool:
    """Whether its ``step`` cannot be called without an argument, as for a schedule of the loss."""
    parameters = inspect.signature(scheduler.step).parameters.values()
    return any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
    )


def _built(subject: Subject) -> tuple[Optimizer, Any]:
    torch.manual_seed(0)
    optimizer = SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    return optimizer, subject.build(optimizer)


def _rates(optimizer: Optimizer, scheduler: Any, start: int, stop: int) -> list[float]:
    rates = []
    for place in range(start, stop):
        optimizer.step()
        if needs_loss(scheduler):
            scheduler.step(torch.tensor(2.0 / (1 + place)))
        else:
            scheduler.step()
        # A schedule may change the rate for the length of the update alone.
        rates += [float(optimizer.param_groups[0]["lr"]), float(scheduler.get_last_lr()[0])]
    return rates
