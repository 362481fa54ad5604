"""Saving and reading back, as Lightning's checkpoints do."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

DUPLICATES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("copy.deepcopy", copy.deepcopy),
    ("pickle", lambda value: pickle.loads(pickle.dumps(value))),
)
"""How EMA, Tuner and spawned processes copy things."""


def through_file(value: Any, *, weights_only: bool) -> Any:
    """What ``torch.load`` makes of what ``torch.save`` wrote.

    Args:
        value: what to save.
        weights_only: as of ``torch.load``.

    Returns:
        What was read.
    """
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def unreadable(state: Any) -> Iterator[str]:
    """Say why a state cannot be read back with ``weights_only=True``, or that reading it back changes it.

    Args:
        state: such as an optimizer's ``state_dict()``.

    Yields:
        What is wrong.
    """
    try:
        loaded = through_file(state, weights_only=True)
    except Exception as error:
        yield f"torch.load(weights_only=True) refuses its state: {refusal(error)}"
        return
    if not same_values(state, loaded):
        yield "its state is not the same after torch.save and torch.load(weights_only=True)"


def refusal(error: Exception) -> str:
    """The line of ``torch.load``'s long text that says what it refuses."""
    lines = str(error).strip().splitlines() or [repr(error)]
    return next((line.strip() for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0])


def same_values(first: Any, second: Any) -> bool:
    """Whether two nested states hold the same numbers, bit for bit, NaN with NaN."""
    before, after = tree_leaves(first), tree_leaves(second)
    return len(before) == len(after) and all(_same(a, b) for a, b in zip(before, after, strict=True))


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors agree in type, shape and every value, NaN with NaN."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and same_bits(first, second)
    return bool(first == second) or bool(first != first and second != second)
