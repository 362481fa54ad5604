"""The box quadratic program of the harm penalty, in as many unknowns as the batch has samples; batched.

Reconstructed from the abstract of Avranas (2026), which says that the update is reduced to the size of the
batch and found in a few iterations that suit a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class BoxQPInfo(NamedTuple):
    """What is known of a solution; nothing has waited for the device.

    Attributes:
        primal: the value of the penalised problem, ½ λᵀKλ + Σ upper_i [-(s0 + Kλ)_i]₊, shape ``(*problems)``.
        dual: a lower bound of it, -(½ λᵀKλ + s0ᵀλ), shape ``(*problems)``; both meet at the minimum.
        margins: s0 + Kλ, shape ``(*problems, batch)``.
    """

    primal: Tensor
    dual: Tensor
    margins: Tensor

    @property
    def gap(self) -> Tensor:
        """The duality gap, not negative but for rounding, shape ``(*problems)``."""
        return self.primal - self.dual


@torch.no_grad()
def solve_box_qp(
    K: Float[Tensor, "*problems batch batch"],
    s0: Float[Tensor, "*problems batch"],
    upper: float | Tensor,
    n_iter: int = 20,
    *,
    rescale: bool = True,
) -> tuple[Float[Tensor, "*problems batch"], BoxQPInfo]:
    """Minimise ½ λᵀKλ + s0ᵀλ over 0 <= λ <= upper: the dual of the harm penalty (reconstructed).

    Accelerated projected gradient with restarts, in the variables λ_i √K_ii, which make the diagonal 1. Kept
    is the iterate with the lowest primal value, λ = 0 among them, so that for any ``n_iter`` the harm Σ
    upper_i [-(s0 + Kλ)_i]₊ is at most what it is at λ = 0. Every step is one product with K; there is no loop
    over samples or problems, and nothing waits for the device.

    Args:
        K: symmetric positive semi-definite matrices, singular ones too; float32 or float64.
        s0: the margins at λ = 0, of the same dtype.
        upper: the price C of harm, positive: a number, or a tensor that broadcasts to ``s0``.
        n_iter: number of iterations.
        rescale: whether to solve in the variables λ_i √K_ii; False is for comparison alone.

    Returns:
        λ and a `BoxQPInfo`. Where ``K`` or ``s0`` is not finite, λ is of no use.

    Raises:
        ValueError: if ``n_iter`` is below 1 or a shape does not fit.

    >>> K, s0 = torch.tensor([[1.0, -0.5], [-0.5, 0.25]]), torch.tensor([0.25, -0.125])
    >>> lam, info = solve_box_qp(K, s0, 0.25)
    >>> lam, info.margins
    (tensor([0.0000, 0.2500]), tensor([ 0.1250, -0.0625]))
    """
    if n_iter < 1:
        raise ValueError(f"n_iter must be at least 1, got {n_iter!r}")
    if K.shape != (*s0.shape, s0.shape[-1]):
        raise ValueError(
            f"K: expected shape {(*s0.shape, s0.shape[-1])} for s0 of {tuple(s0.shape)}, got {tuple(K.shape)}"
        )
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    tiny = torch.finfo(K.dtype).tiny
    usable = diagonal > (tiny if rescale else torch.inf)
    scale = torch.where(usable, diagonal.clamp_min(tiny).rsqrt(), torch.ones_like(diagonal))
    scaled, linear = scale.unsqueeze(-1) * K * scale.unsqueeze(-2), scale * s0
    limit = (upper / scale).expand_as(s0)
    # both bound the largest eigenvalue; the floor makes a matrix of zeros a step of no length
    curvature = torch.minimum(scaled.abs().sum(-1).amax(-1), scaled.diagonal(dim1=-2, dim2=-1).sum(-1))
    curvature = curvature.clamp_min(tiny).unsqueeze(-1)
    points, slopes = _iterate(scaled / curvature.unsqueeze(-1), linear / curvature, limit, n_iter)

    # the primal values of all iterates at once; the first is that of λ = 0
    products = slopes - linear / curvature
    harm = (limit * (-slopes).clamp_min(0)).sum(-1)
    primal, place = (harm + (points * products).sum(-1) / 2).min(0)
    place = place.expand(s0.shape[-1:] + place.shape).movedim(0, -1).unsqueeze(0)
    best, slope, product = (one.gather(0, place).squeeze(0) for one in (points, slopes, products))
    dual = -((best * product).sum(-1) / 2 + (linear / curvature * best).sum(-1))
    lam = torch.where(best >= limit, upper, scale * best)  # upper itself, and not its rounded product
    size = curvature.squeeze(-1)
    return lam, BoxQPInfo(primal * size, dual * size, slope * curvature / scale)


def _iterate(matrix: Tensor, linear: Tensor, limit: Tensor, n_iter: int) -> tuple[Tensor, Tensor]:
    """The iterates from 0 on and the gradients at them, of a problem whose curvature is at most 1.

    Written for few operations, of which each costs more than its arithmetic: the point where a step starts
    lies on the line through two iterates, and so does its gradient; the values are left for later.
    """
    if matrix.dim() > 3:
        flat = (matrix.flatten(0, -3), linear.flatten(0, -2), limit.flatten(0, -2))
        found = _iterate(*flat, n_iter)
        return found[0].view(-1, *linear.shape), found[1].view(-1, *linear.shape)
    alone, zeros, row = matrix.dim() == 2, torch.zeros_like(linear), linear.unsqueeze(-2)
    point, slope = zeros, linear
    points, slopes = [point], [slope]
    ahead, descended = point, -linear  # where a step starts, and where a step from an iterate itself ends
    target = descended
    since = torch.zeros_like(linear[..., :1])
    for _ in range(n_iter):
        following = target.clamp(zeros, limit)
        change = following - point
        restart = ((ahead - following) * change).sum(-1, keepdim=True) > 0
        since = (since + 1).masked_fill(restart, 0)
        inertia = since / (since + 3)
        if alone:
            slope = torch.addmv(linear, matrix, following)
        else:  # from the left, which for a symmetric matrix is the same, and on a CPU four times as fast
            slope = torch.baddbmm(row, following.unsqueeze(-2), matrix).squeeze(-2)
        ahead = torch.addcmul(following, inertia, change)
        earlier, descended = descended, following - slope
        target = torch.addcmul(descended, inertia, descended - earlier)
        point = following
        points.append(point)
        slopes.append(slope)
    return torch.stack(points), torch.stack(slopes)
