"""What a metric or a loss makes of its trial's inputs, in one process or among several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leyden.testing.kit import Subject
from leyden.testing.outputs import tensors_in
from leyden.testing.trials import trial_of


def inputs_of(subject: Subject) -> tuple[Any, ...]:
    """The inputs of the component's trial.

    Args:
        subject: a layer, loss or metric.

    Returns:
        The positional arguments of its ``forward`` or ``update``.

    Raises:
        ValueError: if the component names no trial with inputs.
    """
    inputs = trial_of(subject).inputs
    if not inputs:
        raise ValueError(
            "the kit needs inputs for it: name a function that returns them, Component(trial=...)"
        )
    return inputs


def rows_of(inputs: tuple[Any, ...]) -> int:
    """The size of the batch: the first dimension of the first tensor."""
    return len(next(value for value in inputs if isinstance(value, Tensor)))


def is_batched(value: Any, inputs: tuple[Any, ...]) -> bool:
    """Whether a value is a tensor with a row for each row of the batch."""
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows_of(inputs)


def take_rows(inputs: tuple[Any, ...], which: slice | Tensor) -> tuple[Any, ...]:
    """The inputs with some rows of those that are batched."""
    return tuple(value[which] if is_batched(value, inputs) else value for value in inputs)


def value_of(subject: Subject, *, share: tuple[int, int] = (0, 1)) -> dict[str, Tensor]:
    """The value of a metric, or the mean over the processes of a loss, on this process's share of the rows.

    Args:
        subject: the metric or loss.
        share: this process's number and the number of processes.

    Returns:
        The tensors of the value in float64, by their places.
    """
    rank, ranks = share
    inputs = inputs_of(subject)
    rows = take_rows(inputs, slice(rank, rows_of(inputs) // ranks * ranks, ranks))
    built = subject.build()
    if subject.component.kind == "metric":
        built.update(*rows)
        return {str(place): tensor.double() for place, tensor in enumerate(tensors_in(built.compute()))}
    values = [tensor.detach().double().clone() for tensor in tensors_in(built(*rows))]
    if ranks > 1:
        for value in values:
            torch.distributed.all_reduce(value)
            value /= ranks
    return {str(place): value for place, value in enumerate(values)}
