"""What a metric owes: it sums up batches in any grouping, and survives copying and saving."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from leyden.testing.kit import Subject, owed_by
from leyden.testing.outputs import tensors_in
from leyden.testing.saving import DUPLICATES, unreadable
from leyden.testing.values import inputs_of, rows_of, take_rows


@owed_by("metric")
def merging(subject: Subject) -> Iterator[str]:
    """Two halves of the data, in one metric or merged from two, give what the whole gives."""
    inputs = inputs_of(subject)
    middle = rows_of(inputs) // 2
    first, second = take_rows(inputs, slice(0, middle)), take_rows(inputs, slice(middle, None))
    whole = _value(subject, inputs)
    if not _close(whole, _value(subject, first, second)):
        yield "updated with two halves it gives another value than updated with the whole"
    if not _close(whole, _over_two_processes(subject, first, second)):
        yield "gathered from two processes it gives another value than updated with the whole"


@owed_by("metric")
def resetting(subject: Subject) -> Iterator[str]:
    """After ``reset`` it gives what a new one gives."""
    inputs = inputs_of(subject)
    metric = subject.build()
    metric.update(*inputs)
    metric.compute()
    metric.reset()
    metric.update(*take_rows(inputs, slice(0, 2)))
    if not _close(_numbers(metric.compute()), _value(subject, take_rows(inputs, slice(0, 2)))):
        yield "after reset it remembers earlier data"


@owed_by("metric")
def copies(subject: Subject) -> Iterator[str]:
    """A deep copy and a pickled copy give the same value; ``weights_only=True`` reads its state."""
    metric = subject.build()
    metric.update(*inputs_of(subject))
    for how, duplicate in DUPLICATES:
        if not _close(_numbers(metric.compute()), _numbers(duplicate(metric).compute())):
            yield f"its {how} gives another value"
    yield from unreadable(metric.state_dict())


def _value(subject: Subject, *updates: tuple[Any, ...]) -> list[Tensor]:
    metric = subject.build()
    for update in updates:
        metric.update(*update)
    return _numbers(metric.compute())


def _over_two_processes(subject: Subject, first: tuple[Any, ...], second: tuple[Any, ...]) -> list[Tensor]:
    """The value of a metric that gathers its state with that of another process, which is played here."""
    here, there = subject.build(), subject.build()
    here.update(*first)
    there.update(*second)
    sent: list[Tensor] = []

    def send(state: Tensor, group: Any = None) -> list[Tensor]:
        sent.append(state)
        return [state]

    def gather(state: Tensor, group: Any = None) -> list[Tensor]:
        return [state, sent.pop(0)]

    for metric, gathers in ((there, send), (here, gather)):
        metric.dist_sync_fn = gathers
        metric.distributed_available_fn = lambda: True
        value = metric.compute()
    return _numbers(value)


def _numbers(value: Any) -> list[Tensor]:
    return [tensor.double() for tensor in tensors_in(value)]


def _close(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in zip(first, second, strict=True)
    )
