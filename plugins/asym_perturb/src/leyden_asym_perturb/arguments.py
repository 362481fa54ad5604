"""Checks of what a user gives: payoffs, starts, numbers; an error names the argument."""

from __future__ import annotations

import logging

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from leyden_asym_perturb.simplex import project_simplex

_log = logging.getLogger(__name__)


def as_payoff(payoff: object) -> Float[Tensor, "... m n"]:
    """A payoff as a float64 tensor.

    Args:
        payoff: a matrix or a batch of them.

    Returns:
        The tensor.

    Raises:
        ValueError: if it cannot be a payoff; the text names ``payoff``.
    """
    try:
        array = payoff if isinstance(payoff, Tensor) else torch.from_numpy(np.asarray(payoff))
    except (TypeError, ValueError) as error:
        raise ValueError(f"payoff: expected a matrix of numbers, {error}") from error
    if array.is_complex():
        raise ValueError(f"payoff: expected real numbers, got {array.dtype}")
    if array.ndim not in (2, 3):
        raise ValueError(f"payoff: expected shape (m, n) or (games, m, n), got {tuple(array.shape)}")
    if array.numel() == 0:
        raise ValueError(f"payoff: expected at least one entry, got shape {tuple(array.shape)}")
    matrix = array.detach().to(torch.float64)
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("payoff: expected finite numbers, got NaN or infinity")
    return matrix


def admitted(name: str, strategy: object, shape: tuple[int, ...]) -> Tensor:
    """A start as strategies of a given shape, projected onto the simplex where it is off it.

    Args:
        name: the argument's name.
        strategy: what was given; without the dimension of games it counts for all.
        shape: ``(games, size)``.

    Returns:
        Strategies in float64.

    Raises:
        ValueError: if it has another shape or is not finite.
    """
    start = torch.as_tensor(strategy, dtype=torch.float64)
    if start.shape not in (shape, shape[1:]):
        raise ValueError(f"{name}: expected shape {shape[1:]}, got {tuple(start.shape)}")
    if not bool(torch.isfinite(start).all()):
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    projected = project_simplex(start.expand(shape))
    if not torch.allclose(projected, start.expand(shape), rtol=0, atol=1e-12):
        _log.debug("%s is no point of the simplex; its projection is the start", name)
    return projected


def check_positive(name: str, value: float, *, zero: bool = False) -> None:
    """Refuse what is not a finite number above 0, or at least 0.

    Args:
        name: the argument's name.
        value: what was given.
        zero: whether 0 is allowed.

    Raises:
        ValueError: if the value is another; the text names the argument.
    """
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    if not good or (value == 0 and not zero):
        raise ValueError(
            f"{name}: expected a finite number {'of at least' if zero else 'above'} 0, got {value!r}"
        )


def check_side(side: str) -> None:
    """Refuse what is neither ``"x"`` nor ``"y"``.

    Args:
        side: what was given.

    Raises:
        ValueError: if it is another.
    """
    if side not in ("x", "y"):
        raise ValueError(f"side: expected 'x' or 'y', got {side!r}")
