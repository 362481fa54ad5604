"""The preconditioned directions (reconstructed); both readings of the paper's Jacobi preconditioner.

With G = conj(Z^H Z), K = H(z) conj(Z) and the gradient Z G + K:

- ``block_jacobi``: D = -(Z G + K) G^-1, the block-diagonal part of the Gauss-Newton Hessian inverted;
- ``tangent``: D = -(I - P / 2)(Z G + K) G^-1, P projecting on Z's range: Z D^T + D Z^T is then minus the
  residual's projection on the tangent space of the symmetric matrices of this rank, so that the step is that
  of Riemannian gradient descent.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from leyden_hankel.objective import cross_gram

Preconditioner = Literal["tangent", "block_jacobi", "none"]
PRECONDITIONERS = ("tangent", "block_jacobi", "none")


class Combination(NamedTuple):
    """A direction as Z times a small matrix plus K times another.

    Attributes:
        own: what multiplies Z.
        pull: what multiplies K.
    """

    own: Complex[Tensor, "*batch rank rank"]
    pull: Complex[Tensor, "*batch rank rank"]

    def apply(
        self, factor: Complex[Tensor, "*batch rows rank"], pull: Complex[Tensor, "*batch rows rank"]
    ) -> Complex[Tensor, "*batch rows rank"]:
        """The combination of Z and K, in the memory layout of the factor."""
        if factor.dim() == 3 and len(factor) == 1:  # a batch of one is slower than none
            rows = self.own[0].mT @ factor[0].mT
            return rows.addmm_(self.pull[0].mT, pull[0].mT).unsqueeze(0).mT
        return (self.own.mT @ factor.mT + self.pull.mT @ pull.mT).mT

    def moved(self, step: float) -> Combination:
        """The combination that makes Z + step D of Z and K."""
        identity = torch.eye(self.own.shape[-1], dtype=self.own.dtype, device=self.own.device)
        return Combination(identity + step * self.own, step * self.pull)


def direction(
    factor: Complex[Tensor, "*batch rows rank"],
    pull: Complex[Tensor, "*batch rows rank"],
    gram: Complex[Tensor, "*batch rank rank"],
    preconditioner: Preconditioner = "tangent",
    *,
    ridge: Float[Tensor, "*batch"] | float = 0.0,
) -> Combination:
    """The direction of a step (reconstructed).

    Args:
        factor: Z.
        pull: K, the gradient without its part Z G.
        gram: G = conj(Z^H Z).
        preconditioner: ``"tangent"``, ``"block_jacobi"`` or ``"none"``, the gradient divided by the largest
            eigenvalue of G.
        ridge: added to the diagonal of G where it is inverted.

    Returns:
        D, to be added to Z, as a combination of Z and K.
    """
    if preconditioner == "none":
        scale = -torch.linalg.matrix_norm(gram, ord=2).reciprocal()[..., None, None]
        identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return Combination(scale * gram, scale * identity)
    inverse = regularized_inverse(gram, ridge)
    if preconditioner == "block_jacobi":
        return Combination(-gram @ inverse, -inverse)
    inner = cross_gram(factor, pull).conj() + gram.conj() @ gram  # Z^H (Z G + K)
    half = inverse.conj() @ inner @ inverse / 2
    return Combination(half - gram @ inverse, -inverse)


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
