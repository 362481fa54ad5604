"""How many tokens a round of speculative decoding gives, and what that saves; it imports no Lightning.

With k proposals, each accepted with probability α whatever happened before, a round gives 1 + α + … + α^k
tokens: the accepted ones, and one of the target's own.
"""

from __future__ import annotations

import math
from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor


@overload
def expected_tokens(alpha: float, k: int) -> float: ...
@overload
def expected_tokens(alpha: Tensor, k: int) -> Tensor: ...
def expected_tokens(alpha: float | Tensor, k: int) -> float | Tensor:
    """Tokens of a round, (1 - α^(k+1)) / (1 - α), Section 3 of Samarin et al. (2026).

    It is summed as 1 + α (1 + α (1 + …)), so that it is exact at α = 1 too, where it is k + 1.

    Args:
        alpha: acceptance rate of a proposal, from 0 to 1; a tensor of any shape, for each its own number.
        k: proposals of a round, at least 1.

    Returns:
        A number between 1 and k + 1, or a tensor of them.

    Raises:
        ValueError: if ``k`` is below 1, or ``alpha`` is a number that is not from 0 to 1.

    >>> expected_tokens(0.5, 2), expected_tokens(1.0, 4)
    (1.75, 5.0)
    """
    _check(alpha, k)
    total = torch.ones_like(alpha) if isinstance(alpha, Tensor) else 1.0
    for _ in range(k):
        total = 1 + alpha * total
    return total


def expected_tokens_by_depth(alpha: Float[Tensor, "*shape depths"]) -> Float[Tensor, "*shape"]:
    """Tokens of a round whose proposals have acceptance rates of their own, 1 + Σ_j Π_{i≤j} α_i.

    Section 3 of Samarin et al. (2026); a proposal counts only if all before it were accepted.

    Args:
        alpha: the rates, from 0 to 1, those of a round along the last dimension.

    Returns:
        Numbers between 1 and 1 more than there are depths.

    >>> expected_tokens_by_depth(torch.tensor([0.5, 0.5]))
    tensor(1.7500)
    """
    return 1 + alpha.cumprod(dim=-1).sum(dim=-1)


@overload
def speedup(alpha: float, k: int, cost_ratio: float) -> float: ...
@overload
def speedup(alpha: Tensor, k: int, cost_ratio: float) -> Tensor: ...
def speedup(alpha: float | Tensor, k: int, cost_ratio: float) -> float | Tensor:
    """How many times faster than one token a pass, E[τ] / (k κ + 1), Section 3 of Samarin et al. (2026).

    It supposes that a pass of the target costs the same for one token and for k + 1.

    Args:
        alpha: acceptance rate of a proposal, a number or a tensor of any shape.
        k: proposals of a round, at least 1.
        cost_ratio: κ, what a proposal costs of a pass of the target, at least 0.

    Returns:
        The ratio; below 1 the draft costs more than it saves.

    Raises:
        ValueError: as `expected_tokens`, and if ``cost_ratio`` is negative or not finite.

    >>> round(speedup(0.8, 4, 0.05), 3)
    2.801
    """
    if not (math.isfinite(cost_ratio) and cost_ratio >= 0):
        raise ValueError(f"cost_ratio: expected a finite number of at least 0, got {cost_ratio!r}")
    return expected_tokens(alpha, k) / (k * cost_ratio + 1)


def _check(alpha: float | Tensor, k: int) -> None:
    if k < 1:
        raise ValueError(f"k: expected at least 1 proposal, got {k!r}")
    if not isinstance(alpha, Tensor) and not 0 <= alpha <= 1:
        raise ValueError(f"alpha: expected a number from 0 to 1, got {alpha!r}")
