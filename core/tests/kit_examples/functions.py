"""Functions whose documentation is complete, or lacks one thing."""

from __future__ import annotations

import torch
from torch import Tensor


def halved(value: Tensor, *, times: int = 1) -> Tensor:
    """Halve a tensor, Algorithm 1 of Nobody (2026).

    Args:
        value: of any shape.
        times: how often.

    Returns:
        A tensor of the same shape.

    >>> halved(torch.tensor(1.0))
    tensor(0.5000)
    """
    return value / 2**times


def without_docstring(value: Tensor) -> Tensor:
    return value


def without_args(value: Tensor) -> Tensor:
    """Return a tensor of any shape, Eq. (1).

    Returns:
        The tensor.
    """
    return value


def leaves_one_out(value: Tensor, times: int) -> Tensor:
    """Return a tensor of any shape, Eq. (1).

    Args:
        value: the tensor.

    Returns:
        The tensor.
    """
    return value * times


def without_returns(value: Tensor) -> Tensor:
    """Return a tensor of any shape, Eq. (1).

    Args:
        value: the tensor.
    """
    return value


def without_shape(value: Tensor) -> Tensor:
    """Return what is given, Eq. (1).

    Args:
        value: the numbers.

    Returns:
        The numbers.
    """
    return value


def without_types(value, times: int):
    """Return a tensor of any shape, Eq. (1).

    Args:
        value: the tensor.
        times: how often.

    Returns:
        The tensor.
    """
    return value


def wrong_example(value: Tensor) -> Tensor:
    """Return a tensor of any shape, Eq. (1).

    Args:
        value: the tensor.

    Returns:
        The tensor.

    >>> wrong_example(torch.tensor(1))
    tensor(2)
    """
    return value


def of_nobody(value: Tensor) -> Tensor:
    """Return a tensor of any shape.

    Args:
        value: the tensor.

    Returns:
        The tensor.
    """
    return value


__all__ = ["halved", "torch"]
