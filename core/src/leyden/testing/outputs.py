"""Find the tensors in whatever a component returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def tensors_in(output: Any) -> Iterator[Tensor]:
    """The tensors of an output, in order, through tuples, lists, mappings and dataclasses.

    Args:
        output: what a ``forward`` or ``compute`` returned.

    Yields:
        Each tensor.
    """
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from tensors_in(getattr(output, field.name))
