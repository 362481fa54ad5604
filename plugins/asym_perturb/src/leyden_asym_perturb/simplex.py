"""Euclidean projection onto the probability simplex, the geometric part of the method (Section 3.3)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def project_simplex(v: Float[Tensor, "*batch"], dim: int = -1) -> Float[Tensor, "*batch"]:
    """The nearest point of the probability simplex, Section 3.3.

    With the entries in falling order and S_k the sum of the first k, the threshold is the largest
    (S_k - 1) / k; what lies above it remains. Everything is measured from the largest entry, so that points
    far from the simplex lose no digits.

    Args:
        v: points of any shape, float32 or float64.
        dim: the dimension that holds the coordinates of a point.

    Returns:
        Points of the same shape: not negative, of sum 1. NaN where the point has a NaN.

    Raises:
        ValueError: if ``v`` holds other numbers or no coordinates.

    >>> project_simplex(torch.tensor([0.8, 0.6, -1.0]))
    tensor([0.6000, 0.4000, 0.0000])
    """
    if not v.is_floating_point() or v.ndim == 0 or v.shape[dim] == 0:
        raise ValueError(
            f"v: expected coordinates in floating point, got {v.dtype} of shape {tuple(v.shape)}"
        )
    size = v.shape[dim]
    if size == 2 and dim in (-1, v.ndim - 1):
        return _project_pair(v)
    shifted = v - v.amax(dim, keepdim=True)
    falling = shifted.sort(dim, descending=True).values.cumsum(dim)
    counts = torch.arange(1, size + 1, dtype=v.dtype, device=v.device)
    counts = counts.reshape([-1 if place == dim % v.ndim else 1 for place in range(v.ndim)])
    return (shifted - ((falling - 1) / counts).amax(dim, keepdim=True)).clamp_(min=0)


def _project_pair(v: Float[Tensor, "... 2"]) -> Float[Tensor, "... 2"]:
    """The projection for two coordinates, whose first is (1 + v_0 - v_1) / 2 between 0 and 1."""
    first, second = v.unbind(-1)
    share = (first - second).add_(1).mul_(0.5).clamp_(0, 1)
    return torch.stack((share, 1 - share), -1)
