"""The operator: a norm right after a linear map; it imports no Lightning and is usable alone."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from leyden_simplenorm.rms import check_eps, rms_norm

Norm = Literal["rms", "layer"]


def simple_norm(
    x: Float[Tensor, "*batch m"],
    weight: Float[Tensor, "d m"],
    gain: Float[Tensor, " d"] | None = None,
    bias: Float[Tensor, " d"] | None = None,
    *,
    norm: Norm = "rms",
    eps: float = 1e-5,
) -> Float[Tensor, "*batch d"]:
    """SimpleNorm, Norm(W x + b) over the whole output, Section 3 of Chen et al. (2026).

    For ``norm="rms"`` the result does not change when ``x`` or ``weight`` is multiplied by a positive number
    (as far as ``eps`` is small against the mean square).

    Args:
        x: inputs, of shape ``(..., m)``.
        weight: the map W, of shape ``(d, m)``.
        gain: the norm's learned gain, of shape ``(d,)``; None: all ones.
        bias: added before the norm, of shape ``(d,)``.
        norm: ``"rms"``, or ``"layer"`` for a LayerNorm without bias.
        eps: the norm's epsilon, above 0.

    Returns:
        Shape ``(..., d)``.

    Raises:
        ValueError: if ``norm`` or ``eps`` is out of its range.

    >>> simple_norm(torch.tensor([3.0, 4.0]), 100 * torch.eye(2))
    tensor([0.8485, 1.1314])
    """
    check_norm(norm)
    check_eps(eps)
    y = torch.nn.functional.linear(x, weight, bias)
    if norm == "layer":
        return torch.nn.functional.layer_norm(y, y.shape[-1:], gain, None, eps)
    return rms_norm(y, gain, eps=eps)


def output_norm_bounds(
    y: Float[Tensor, "*batch d"], gain: Float[Tensor, " d"], *, eps: float = 1e-5
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""Between what the Euclidean norm of RMSNorm's output lies, the activation bound of Chen et al. (2026).

    With $s = \|y\|$ they are $\min|\gamma| \sqrt d$ and $\max|\gamma| \sqrt d$, both times
    $s / \sqrt{s^2 + d \epsilon}$ (the factor is ours; it is 1 for $\epsilon = 0$).

    Args:
        y: what is normalised, of shape ``(..., d)``.
        gain: of shape ``(d,)``.
        eps: the norm's epsilon.

    Returns:
        The lower and the upper bound, each of shape ``(...,)``.

    >>> output_norm_bounds(torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 3.0]), eps=1e-12)
    (tensor(2.), tensor(6.))
    """
    size = y.shape[-1]
    mean_square = y.square().mean(dim=-1)
    factor = (size * mean_square / (mean_square + eps)).sqrt()
    return factor * gain.abs().min(), factor * gain.abs().max()


def check_norm(norm: str) -> None:
    """Refuse what is no norm.

    Args:
        norm: its name.

    Raises:
        ValueError: if there is none of that name.
    """
    if norm not in get_args(Norm):
        raise ValueError(f"norm: expected 'rms' or 'layer', got {norm!r}")
