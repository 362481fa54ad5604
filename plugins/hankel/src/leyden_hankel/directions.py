"""The preconditioned directions (reconstructed); both readings of the paper's Jacobi preconditioner.

With G = conj(Z^H Z), K = H(z) conj(Z) and the gradient Z G + K:

- ``block_jacobi``: D = -(Z G + K) G^-1, the block-diagonal part of the Gauss-Newton Hessian inverted;
- ``tangent``: D = -(I - P / 2)(Z G + K) G^-1, P projecting on Z's range: Z D^T + D Z^T is then minus the
  residual's projection on the tangent space of the symmetric matrices of this rank, so that the step is that
  of Riemannian gradient descent.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Complex, Float
from torch import Tensor

Preconditioner = Literal["tangent", "block_jacobi", "none"]
PRECONDITIONERS = ("tangent", "block_jacobi", "none")


def direction(
    factor: Complex[Tensor, "*batch rows rank"],
    pull: Complex[Tensor, "*batch rows rank"],
    gram: Complex[Tensor, "*batch rank rank"],
    preconditioner: Preconditioner = "tangent",
    *,
    ridge: Float[Tensor, "*batch"] | float = 0.0,
) -> Complex[Tensor, "*batch rows rank"]:
    """The direction of a step (reconstructed).

    Args:
        factor: Z.
        pull: K, the gradient without its part Z G.
        gram: G = conj(Z^H Z).
        preconditioner: ``"tangent"``, ``"block_jacobi"`` or ``"none"``, the gradient divided by the largest
            eigenvalue of G.
        ridge: added to the diagonal of G where it is inverted.

    Returns:
        D, to be added to Z.
    """
    if preconditioner == "none":
        largest = torch.linalg.matrix_norm(gram, ord=2)
        identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        scale = -largest.reciprocal()[..., None, None]
        return _combined(factor, scale * gram, pull, scale * identity)
    inverse = regularized_inverse(gram, ridge)
    if preconditioner == "block_jacobi":
        return _combined(factor, -gram @ inverse, pull, -inverse)
    inner = (factor.mT @ pull.conj()).conj() + gram.conj() @ gram  # Z^H (Z G + K)
    half = inverse.conj() @ inner @ inverse / 2
    return _combined(factor, half - gram @ inverse, pull, -inverse)


def regularized_inverse(
    gram: Complex[Tensor, "*batch rank rank"],
    ridge: Float[Tensor, "*batch"] | float = 0.0,
) -> Complex[Tensor, "*batch rank rank"]:
    """The inverse of a Gram matrix with a ridge.

    A matrix that is singular to working precision, as where the rank is given too high, gets a ridge of
    eps^(2/3) of its trace. Its small eigenvalues would else magnify the rounding of what is multiplied to
    steps of any length; at that ridge the products of what rounding leaves with itself and with the small
    columns of Z are about equal, and small.

    Args:
        gram: Hermitian, positive semidefinite.
        ridge: added to its diagonal.

    Returns:
        The inverse; nothing is raised, and no number goes to the host.
    """
    size = gram.shape[-1]
    identity = torch.eye(size, dtype=gram.dtype, device=gram.device)
    lifted = gram + torch.as_tensor(ridge, dtype=gram.dtype, device=gram.device)[..., None, None] * identity
    limits = torch.finfo(gram.dtype)
    floor = limits.eps ** (2 / 3)
    pivots, fault = torch.linalg.cholesky_ex(lifted)
    squares = pivots.diagonal(dim1=-2, dim2=-1).real.square()
    singular = (fault != 0) | ~(squares.amin(dim=-1) > floor * squares.amax(dim=-1))
    lift = floor * lifted.diagonal(dim1=-2, dim2=-1).real.sum(dim=-1) + limits.tiny
    lift = torch.where(singular, lift, torch.zeros_like(lift))
    inverse: Tensor = torch.linalg.inv_ex(lifted + lift[..., None, None] * identity).inverse
    return inverse


def _combined(factor: Tensor, weights: Tensor, pull: Tensor, pull_weights: Tensor) -> Tensor:
    """Z times a small matrix plus K times another, in the factor's memory layout."""
    return (weights.mT @ factor.mT + pull_weights.mT @ pull.mT).mT
