"""Which of the target's distributions each proposal of a draft is compared with."""

from __future__ import annotations

from jaxtyping import Bool, Float, Shaped
from torch import Tensor


def by_depth(
    values: Shaped[Tensor, "batch time *rest"], depths: int
) -> Shaped[Tensor, "batch depths fewer *rest"]:
    """What stands at the places that the depths of a `HiddenDraft` predict (reconstructed).

    At position t, from which the target predicts token t + 1, depth n predicts token t + 1 + n, which the
    target predicts at position t + n.

    Args:
        values: something of every position, such as the target's logits.
        depths: N.

    Returns:
        At ``[:, n - 1, t]`` the value of position t + n, for the positions t that have all N. No copy.

    Raises:
        ValueError: if there are not more than N positions.

    >>> import torch
    >>> by_depth(torch.arange(5).unsqueeze(0), 2)
    tensor([[[1, 2, 3],
             [2, 3, 4]]])
    """
    fewer = values.shape[1] - depths
    if fewer < 1:
        raise ValueError(f"tokens: expected more than {depths} positions, got {values.shape[1]}")
    # unfold puts the windows' own dimension last
    return values[:, 1:].unfold(1, fewer, 1).movedim(-1, 2)


def estimated_tau(
    alpha: Float[Tensor, "batch depths time"],
    k: int | None = None,
    mask: Bool[Tensor, "batch depths time"] | None = None,
) -> Float[Tensor, ""]:
    """Tokens of a round, estimated from acceptance rates under the text's own contexts, Section 3's E[τ].

    It is 1 + the mean over positions of Σ_j Π_{i≤j} α_i, where α_i is the rate of depth i at the position or,
    of a stand-alone draft with its one depth, the rate i - 1 positions on.

    Args:
        alpha: acceptance rates.
        k: tokens that a round proposes, K; None is the number of depths.
        mask: which rates count; a position counts where all K of it do.

    Returns:
        The estimate, from 1 to K + 1; NaN where no position counts.

    Raises:
        ValueError: if there are neither K depths nor one depth and K positions.

    >>> import torch
    >>> estimated_tau(torch.full((1, 1, 9), 0.5), k=2)
    tensor(1.7500)
    """
    return estimated_rounds(alpha, k, mask).mean()


def estimated_rounds(
    alpha: Float[Tensor, "batch depths time"],
    k: int | None = None,
    mask: Bool[Tensor, "batch depths time"] | None = None,
) -> Float[Tensor, " positions"]:
    """What `estimated_tau` is the mean of: a number for each position that counts."""
    depths, time = alpha.shape[1:]
    k = depths if k is None else k
    if depths == 1 < k <= time:
        alpha = alpha[:, 0].unfold(1, k, 1).movedim(-1, 1)
        mask = None if mask is None else mask[:, 0].unfold(1, k, 1).movedim(-1, 1)
    elif not 1 <= k <= depths:
        raise ValueError(f"k: expected 1 to {max(depths, time if depths == 1 else 0)}, got {k}")
    rounds = 1 + alpha[:, :k].cumprod(dim=1).sum(dim=1)
    return rounds.flatten() if mask is None else rounds[mask[:, :k].all(dim=1)]
