"""Checks of what a user gives: payoffs, starts, numbers; an error names the argument."""

from __future__ import annotations

import logging
import math
from numbers import Real

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_log = logging.getLogger(__name__)


LARGEST = 1e300
"""Payoffs beyond it would overflow on the way."""


def as_payoff(payoff: object) -> Float[Tensor, "... m n"]:
    """A payoff as a float64 tensor of its own, which does not follow what is done to the user's array.

    Args:
        payoff: a matrix or a batch of them.

    Returns:
        The tensor.

    Raises:
        ValueError: if it cannot be a payoff; the text names ``payoff``.
    """
    matrix = as_numbers("payoff", payoff)
    if matrix.ndim not in (2, 3):
        raise ValueError(f"payoff: expected shape (m, n) or (games, m, n), got {tuple(matrix.shape)}")
    if matrix.numel() == 0:
        raise ValueError(f"payoff: expected at least one entry, got shape {tuple(matrix.shape)}")
    if float(matrix.abs().max()) > LARGEST:
        raise ValueError(f"payoff: expected numbers of at most {LARGEST:g} in size")
    return matrix


def as_numbers(name: str, given: object) -> Tensor:
    """What a user gave as a float64 tensor of its own, finite and without a gradient.

    Args:
        name: the argument's name.
        given: a tensor, an array or nested lists of numbers.

    Returns:
        The tensor.

    Raises:
        ValueError: if these are no finite real numbers; the text names the argument.
    """
    if isinstance(given, Tensor):
        whole = given.detach() if given.layout == torch.strided else given.detach().to_dense()
        kind, dtype = "c" if whole.is_complex() else "f", str(whole.dtype)
    else:
        try:
            array = np.asarray(given)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{name}: expected an array of numbers, {error}") from error
        kind, dtype = array.dtype.kind, str(array.dtype)
    if kind == "c":
        raise ValueError(f"{name}: expected real numbers, got {dtype}")
    if kind not in "biuf":
        raise ValueError(f"{name}: expected an array of numbers, got {dtype}")
    # a copy, whatever the strides, the byte order and the rights of the array
    found = (
        whole.to(torch.float64, copy=True)
        if isinstance(given, Tensor)
        else torch.from_numpy(np.array(array, dtype=np.float64, order="C"))
    )
    if not bool(torch.isfinite(found).all()):
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    return found


def admitted(name: str, strategy: object, shape: tuple[int, ...]) -> Tensor:
    """A start as numbers of a given shape.

    Args:
        name: the argument's name.
        strategy: what was given; without the dimension of games it counts for all.
        shape: ``(games, size)``.

    Returns:
        The numbers, of that shape.

    Raises:
        ValueError: if it has another shape or is not finite.
    """
    start = as_numbers(name, strategy)
    if start.shape not in (shape, shape[1:]):
        raise ValueError(f"{name}: expected shape {shape[1:]}, got {tuple(start.shape)}")
    return start.expand(shape)


def tell_if_projected(name: str, start: Tensor, projected: Tensor) -> None:
    """Say at the level of debugging that a start was off the simplex.

    Args:
        name: the argument's name.
        start: what was given.
        projected: what became of it.
    """
    if not torch.allclose(projected, start, rtol=0, atol=1e-12):
        _log.debug("%s is no point of the simplex; its projection is the start", name)


def check_value(value: object) -> float | None:
    """The value of a game as a user gives it.

    Args:
        value: what was given.

    Returns:
        The number, or None.

    Raises:
        ValueError: if it is neither None nor a finite number.
    """
    if value is None:
        return None
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"value: expected a finite number or None, got {value!r}")
    return float(value)


def check_positive(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse what is not a finite number above 0, or at least 0.

    Args:
        name: the argument's name.
        value: what was given.
        zero: whether 0 is allowed.

    Raises:
        ValueError: if the value is another; the text names the argument.
    """
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0 <= number < math.inf or (number == 0 and not zero):
        raise ValueError(
            f"{name}: expected a finite number {'of at least' if zero else 'above'} 0, got {value!r}"
        )


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse everything but a whole number of at least a given size.

    Args:
        name: the argument's name.
        value: what was given.
        least: the smallest number that is allowed.

    Raises:
        ValueError: if the value is another; the text names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def check_side(side: str) -> None:
    """Refuse what is neither ``"x"`` nor ``"y"``.

    Args:
        side: what was given.

    Raises:
        ValueError: if it is another.
    """
    if side not in ("x", "y"):
        raise ValueError(f"side: expected 'x' or 'y', got {side!r}")
