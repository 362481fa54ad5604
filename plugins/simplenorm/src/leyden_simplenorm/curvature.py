"""Curvature of a loss in the input of a linear map; it imports no Lightning and is usable alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def input_hessian_terms(
    x: Float[Tensor, " m"],
    weight: Float[Tensor, "d m"],
    gain: Float[Tensor, " d"],
    gradient: Float[Tensor, " d"],
    hessian: Float[Tensor, "d d"],
) -> tuple[Float[Tensor, "m m"], Float[Tensor, "m m"]]:
    r"""The two terms of a loss's Hessian in the input of SimpleNorm, with RMSNorm and epsilon 0.

    With $y = W x$, $s = \|y\|$, $u = y / s$, $P = I - u u^T$, $D = \mathrm{diag}(\gamma)$ and
    $J = \frac{\sqrt d}{s} D P W$ the Hessian is $J^T H_z J + C$,

    $$C = -\frac{\sqrt d}{s^2} W^T [(P D g) u^T + u (P D g)^T + (u^T D g) P] W.$$

    Both contain W twice and 1 / s² once, so neither changes when W is multiplied by a number. The
    decomposition is reconstructed from the smoothness analysis of Chen et al. (2026).

    Args:
        x: the input, of shape ``(m,)``.
        weight: W, of shape ``(d, m)``.
        gain: the norm's gain, of shape ``(d,)``.
        gradient: g, the loss's gradient in the output, of shape ``(d,)``.
        hessian: H_z, its Hessian there, of shape ``(d, d)``.

    Returns:
        ``J^T H_z J`` and ``C``, each of shape ``(m, m)``.

    >>> one = torch.ones(1)
    >>> input_hessian_terms(one, one[:, None], one, one, one[:, None])  # a sign has no curvature
    (tensor([[0.]]), tensor([[0.]]))
    """
    y = weight @ x
    length = y.norm()
    direction = y / length
    root = y.shape[0] ** 0.5
    projector = torch.diag(torch.ones_like(y)) - torch.outer(direction, direction)
    jacobian = root / length * gain[:, None] * (projector @ weight)
    weighted = gain * gradient
    across = torch.outer(projector @ weighted, direction)
    inner = across + across.T + (direction @ weighted) * projector
    return jacobian.T @ hessian @ jacobian, -root / length.square() * weight.T @ inner @ weight


def spectral_norm(
    product: Callable[[Tensor], Tensor], start: Float[Tensor, "*shape"], *, iterations: int = 10
) -> Float[Tensor, ""]:
    """The spectral norm of a symmetric operator by power iteration; for the monitor, not in the paper.

    The estimate is the length of the last image of a unit vector, so it is never above the true value, and
    two eigenvalues of equal size and opposite sign do no harm.

    Args:
        product: the operator.
        start: where to begin, of the shape that the operator takes; not zero.
        iterations: how often the operator is applied, at least 1.

    Returns:
        A scalar, in float32 where ``start`` is of lower precision; 0 where the operator gave zero.

    Raises:
        ValueError: if ``iterations`` is less than 1.

    >>> spectral_norm(lambda v: v * torch.tensor([1.0, -3.0]), torch.ones(2), iterations=20)
    tensor(3.)
    """
    if iterations < 1:
        raise ValueError(f"iterations: expected at least 1, got {iterations!r}")
    # Lengths of half precision would overflow, or be too small to divide by, before their vectors are.
    high = torch.promote_types(start.dtype, torch.float32)
    vector, length = start, start.to(high).norm()
    for _ in range(iterations):
        unit = vector.to(high) / length.clamp(min=torch.finfo(high).tiny)
        vector = product(unit.to(start.dtype))
        length = vector.to(high).norm()
    found: Tensor = length
    return found
