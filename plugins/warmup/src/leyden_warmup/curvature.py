"""How curvature follows the loss: its measurement along a step, and the fit of H0 and H1."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class SmoothnessFit(NamedTuple):
    """The line curvature = H0 + H1 (loss - f*) that fits measurements best.

    Attributes:
        H0: curvature at the smallest loss, at least 0.
        H1: how much it grows with the loss, at least 0; 0 means that there is no signal for a warm-up.
        C: the warm-up parameter that follows, 2 H1 / H0; infinite where only ``H0`` is 0.
        r: Pearson's correlation of curvature and loss.
    """

    H0: float
    H1: float
    C: float
    r: float

    @property
    def max_lr(self) -> float:
        """The learning rate after warm-up that follows, 1 / (10 H0); infinite where ``H0`` is 0."""
        return math.inf if self.H0 == 0 else 1 / (10 * self.H0)


def fit_h0h1(
    losses: Sequence[float] | Float[Tensor, " points"],
    curvatures: Sequence[float] | Float[Tensor, " points"],
    f_star: float = 0.0,
) -> SmoothnessFit:
    """Fit H0 and H1 to measured curvatures by non-negative least squares, Section 3.4.

    Args:
        losses: the losses, shape (points,).
        curvatures: the curvatures measured there, shape (points,). Points that are not finite are left out.
        f_star: the smallest loss; losses below it count as it.

    Returns:
        H0 and H1, both at least 0, C = 2 H1 / H0, and the correlation. All are NaN, with a warning, where
        fewer than 3 finite points are left or all losses are equal.

    Raises:
        ValueError: if there are not as many curvatures as losses, or ``f_star`` is not finite.

    >>> fit = fit_h0h1([0.0, 1.0, 2.0], [2.0, 5.0, 8.0])
    >>> print(f"H0 {fit.H0:.2f}, H1 {fit.H1:.2f}, C {fit.C:.2f}, correlation {fit.r:.2f}")
    H0 2.00, H1 3.00, C 3.00, correlation 1.00
    """
    if not math.isfinite(f_star):
        raise ValueError(f"f_star: expected a finite number, got {f_star!r}")
    x, y = (torch.as_tensor(values, dtype=torch.float64).flatten() for values in (losses, curvatures))
    if len(x) != len(y):
        raise ValueError(f"curvatures: expected {len(x)} of them, as many as losses, got {len(y)}")
    finite = x.isfinite() & y.isfinite()
    x, y = (x[finite] - f_star).clamp(min=0), y[finite]
    if len(x) < 3 or bool(x.max() - x.min() <= 1e-12 * x.abs().max()):
        what = f"{len(x)} finite points" if len(x) < 3 else "one loss at all points"
        warnings.warn(f"no fit of H0 and H1 to {what}; at least 3 that differ are needed", stacklevel=2)
        return SmoothnessFit(math.nan, math.nan, math.nan, math.nan)
    away, up = x - x.mean(), y - y.mean()
    slope = float(away @ up / (away @ away))
    level = float(y.mean() - slope * x.mean())
    # Where the free fit leaves the quadrant, the best one lies on the nearer of its two edges.
    if slope < 0:
        level, slope = max(float(y.mean()), 0.0), 0.0
    elif level < 0:
        level, slope = 0.0, max(float(x @ y / (x @ x)), 0.0)
    steady = math.inf if level == 0 and slope > 0 else (2 * slope / level if level else 0.0)
    spread = float(away.norm() * up.norm())
    return SmoothnessFit(level, slope, steady, float(away @ up) / spread if spread else 0.0)


def secant_curvature(
    gradient_change: Sequence[Tensor], parameter_change: Sequence[Tensor]
) -> Float[Tensor, ""]:
    """Curvature along a step: the length of the gradient's change over that of the parameters', Section 3.4.

    Args:
        gradient_change: the gradient after the step less that before, tensors of any shapes, of one batch.
        parameter_change: the parameters after the step less those before, of the same shapes.

    Returns:
        A 0-dim tensor, at most the largest absolute eigenvalue of the Hessian between the two points; NaN
        where nothing moved.

    >>> secant_curvature([torch.tensor([3.0, 0.0])], [torch.tensor([1.0, 0.0])])
    tensor(3.)
    """
    return _length(gradient_change) / _length(parameter_change)


def _length(tensors: Sequence[Tensor]) -> Tensor:
    each = [torch.linalg.vector_norm(tensor, dtype=_wide(tensor)) for tensor in tensors]
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(each[0]) for norm in each]))
    return total


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
