"""The one linear system of a backward pass: the KKT matrix on equality rows and active inequality rows.

With the multipliers frozen and the active rows linearised, the ghost problem of Section 3.2 of Zhao and
others (2025) is an equality-constrained quadratic program, and its limit for a vanishing perturbation
(Section 3.4) solves ``[H Bᵀ; B 0] [u; w] = [r₁; r₂]``. Everything here is float64 and batched; samples may
keep different numbers of rows, which are padded with rows of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SMALLEST_PIVOT = 1e-11
"""A Schur complement whose squared pivots fall below this share of the largest is not trusted."""

EVEN = 1e-5
"""Squared pivots within this share of the largest lose no more than a few digits."""

RANK_TOLERANCE = 1e-12
"""Singular values below this share of the largest count as zero."""


class NullSpace(NamedTuple):
    """One sample's factors by the null-space method, which stands rows that nearly depend on each other.

    Attributes:
        H: the sample's H.
        pseudo: the pseudo-inverse of B, of shape (variables, rows).
        free: an orthonormal basis of the directions that no row sees.
        reduced: the inverse, or pseudo-inverse, of H on them.
        dependent: whether the rows depend on each other.
    """

    H: Tensor
    pseudo: Tensor
    free: Tensor
    reduced: Tensor
    dependent: bool

    def solve(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for u and the w of least norm."""
        fixed = self.pseudo @ second
        u = fixed + self.free @ (self.reduced @ (self.free.T @ (first - self.H @ fixed)))
        return u, self.pseudo.T @ (first - self.H @ u)


@dataclass(frozen=True)
class ReducedKKT:
    """A factorised reduced KKT matrix.

    Attributes:
        hessian: H, of shape (variables, variables) for all samples, or with the batch in front.
        rows: B, of shape (batch, rows, variables), zero where padded.
        kept: which rows are no padding, of shape (batch, rows).
        root: the Cholesky factor of H; None where H is not positive definite.
        half: the solution of ``root @ half = Bᵀ``; None likewise.
        schur: the Cholesky factor of ``B H⁻¹ Bᵀ``, with ones where padded; None likewise.
        lu: factors and pivots of the whole matrix, where H is not positive definite.
        healthy: whether all pivots are of about one size, so that no refinement is needed.
        unusable: samples that were not factorised because they would have needed care; None: there are none.
        hard: for samples whose rows depend on each other, wholly or nearly, factors that square nothing.
    """

    hessian: Tensor
    rows: Float[Tensor, "batch rows variables"]
    kept: Bool[Tensor, "batch rows"]
    root: Tensor | None = None
    half: Tensor | None = None
    schur: Tensor | None = None
    lu: tuple[Tensor, Tensor] | None = None
    hard: Mapping[int, NullSpace] = field(default_factory=dict)
    unusable: Bool[Tensor, " batch"] | None = None
    healthy: bool = False

    @property
    def dependent(self) -> bool:
        """Whether the rows of a sample depend on each other."""
        return any(factors.dependent for factors in self.hard.values())

    def solve(
        self, first: Float[Tensor, "batch variables"], second: Float[Tensor, "batch rows"]
    ) -> tuple[Float[Tensor, "batch variables"], Float[Tensor, "batch rows"]]:
        """Solve for (u, w), with one step of iterative refinement unless the matrix is well conditioned.

        Dependent rows leave w undetermined; then it is the one of least norm, and u is unique all the same.

        Args:
            first: r₁.
            second: r₂; what it holds at padded rows is ignored.

        Returns:
            u and w, the latter 0 at padded rows.
        """
        u, w = self._solve_once(first, second)
        if self.healthy:
            return u, w * self.kept
        rest = first - apply(self.hessian, u) - combine(self.rows, w)
        more_u, more_w = self._solve_once(rest, second - apply(self.rows, u))
        return u + more_u, (w + more_w) * self.kept

    def take(self, samples: Tensor) -> ReducedKKT:
        """The same for some samples of the batch, given by their places."""
        places = {int(place): new for new, place in enumerate(samples)}

        def pick(tensor: Tensor | None, dimensions: int = 3) -> Tensor | None:
            return tensor if tensor is None or tensor.dim() < dimensions else tensor[samples]

        hessian = pick(self.hessian)
        assert hessian is not None
        return ReducedKKT(
            hessian,
            self.rows[samples],
            self.kept[samples],
            pick(self.root),
            pick(self.half),
            pick(self.schur),
            None if self.lu is None else (self.lu[0][samples], self.lu[1][samples]),
            {places[place]: parts for place, parts in self.hard.items() if place in places},
            healthy=self.healthy,
        )

    def _solve_once(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        if self.lu is not None:
            both = torch.cat([first, second], dim=1)
            both = torch.linalg.lu_solve(*self.lu, both.unsqueeze(-1)).squeeze(-1)
            u, w = both.split([first.shape[1], second.shape[1]], dim=1)
        else:
            assert self.root is not None
            assert self.half is not None
            assert self.schur is not None
            scaled = lower_solve(self.root, first)
            right = apply(self.half.mT, scaled) - second
            w = torch.cholesky_solve(right.unsqueeze(-1), self.schur).squeeze(-1)
            u = lower_solve(self.root, scaled - apply(self.half, w), transposed=True)
        if self.hard:
            u, w = u.clone(), w.clone()
        for sample, factors in self.hard.items():
            kept = self.kept[sample]
            u[sample], own = factors.solve(first[sample], second[sample][kept])
            w[sample] = 0
            w[sample, kept] = own
        return u, w


def factorise(
    hessian: Tensor, rows: Float[Tensor, "batch rows variables"], kept: Bool[Tensor, "batch rows"],
    *, root: Tensor | None = None, careful: bool = True,
) -> ReducedKKT:  # fmt: skip
    """Factorise a reduced KKT matrix, by Cholesky where H is positive definite, else by LU.

    Args:
        hessian: H, symmetric, of shape (variables, variables) or (batch, variables, variables).
        rows: B; rows of about one length give the best numbers.
        kept: which rows are no padding; the others must be 0.
        root: the Cholesky factor of H, where it is known.
        careful: whether samples whose rows depend on each other get the factors of the null-space method,
            which cost many times as much; else they are only marked as unusable.

    Returns:
        The factors.

    >>> kkt = factorise(2 * torch.eye(2), torch.tensor([[[1.0, 1.0]]]), torch.tensor([[True]]))
    >>> u, w = kkt.solve(torch.zeros(1, 2), torch.ones(1, 1))
    >>> u.round(decimals=4), w.round(decimals=4)
    (tensor([[0.5000, 0.5000]]), tensor([[-1.]]))
    """
    if root is None:
        root, failed = torch.linalg.cholesky_ex(hessian)
        if bool(failed.any()):
            root = None
    if root is None:
        return _by_lu(hessian, rows, kept, careful)
    if root.dim() == 2:
        batch, count, size = rows.shape
        flat = torch.linalg.solve_triangular(root, rows.reshape(-1, size).T, upper=False)
        half = flat.reshape(size, batch, count).permute(1, 0, 2)
    else:
        half = torch.linalg.solve_triangular(root, rows.mT, upper=False)
    product = half.mT @ half
    product.diagonal(dim1=1, dim2=2).add_((~kept).to(product.dtype))
    schur, failed = torch.linalg.cholesky_ex(product)
    pivots = schur.diagonal(dim1=1, dim2=2).square()
    largest = product.diagonal(dim1=1, dim2=2)
    suspect = (failed > 0) | (pivots < SMALLEST_PIVOT * largest).any(dim=1)
    hard = _by_null_space(hessian, rows, kept, suspect) if careful else {}
    if bool(suspect.any()):  # what failed may hold NaN
        schur = torch.where(suspect[:, None, None], _identity_like(schur), schur)
    unusable = None if careful else suspect
    healthy = not bool(suspect.any()) and _even(root) and _even(schur)
    return ReducedKKT(hessian, rows, kept, root, half, schur, hard=hard, unusable=unusable, healthy=healthy)


def apply(matrix: Tensor, vectors: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch rows"]:
    """The products of a matrix, one for all samples or one each, with the vectors of a batch."""
    if matrix.dim() == 2:
        return vectors @ matrix.T
    return torch.bmm(matrix, vectors.unsqueeze(-1)).squeeze(-1)


def combine(matrix: Tensor, weights: Float[Tensor, "batch rows"]) -> Float[Tensor, "batch columns"]:
    """The sums of a matrix's rows, one matrix for all samples or one each, weighted by a batch."""
    if matrix.dim() == 2:
        return weights @ matrix
    return torch.bmm(weights.unsqueeze(1), matrix).squeeze(1)


def lower_solve(
    root: Tensor, vectors: Float[Tensor, "batch size"], *, transposed: bool = False
) -> Float[Tensor, "batch size"]:
    """Solve with a lower triangular matrix, or its transpose, one for all samples or one each."""
    matrix = root.mT if transposed else root
    shared = root.dim() == 2
    right = vectors.T if shared else vectors.unsqueeze(-1)
    found: Tensor = torch.linalg.solve_triangular(matrix, right, upper=transposed)
    return found.T if shared else found.squeeze(-1)


def _even(root: Tensor) -> bool:
    """Whether the squared pivots of Cholesky factors are within `EVEN` of each other."""
    pivots = root.diagonal(dim1=-2, dim2=-1).square()
    if pivots.shape[-1] == 0:
        return True
    return bool((pivots.amin(dim=-1) > EVEN * pivots.amax(dim=-1)).all())


def _identity_like(matrices: Tensor) -> Tensor:
    return torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)


def _by_lu(hessian: Tensor, rows: Tensor, kept: Tensor, careful: bool) -> ReducedKKT:
    batch, count, size = rows.shape
    whole = rows.new_zeros(batch, size + count, size + count)
    whole[:, :size, :size] = hessian
    whole[:, size:, :size] = rows
    whole[:, :size, size:] = rows.mT
    whole[:, size:, size:] = torch.diag_embed(-(~kept).to(rows.dtype))
    factors, pivots, failed = torch.linalg.lu_factor_ex(whole)
    diagonal = factors.diagonal(dim1=1, dim2=2).abs()
    suspect = (failed > 0) | (diagonal.amin(dim=1) < SMALLEST_PIVOT * diagonal.amax(dim=1))
    hard = _by_null_space(hessian, rows, kept, suspect) if careful else {}
    if bool(suspect.any()):
        factors = torch.where(suspect[:, None, None], _identity_like(factors), factors)
    unusable = None if careful else suspect
    return ReducedKKT(hessian, rows, kept, lu=(factors, pivots), hard=hard, unusable=unusable)


def _by_null_space(hessian: Tensor, rows: Tensor, kept: Tensor, suspect: Tensor) -> dict[int, NullSpace]:
    """The null-space factors of the suspect samples."""
    found = {}
    for sample in suspect.nonzero().flatten().tolist():
        own = rows[sample, kept[sample]]
        H = hessian if hessian.dim() == 2 else hessian[sample]
        left, values, right = torch.linalg.svd(own, full_matrices=True)
        rank = int((values > RANK_TOLERANCE * values.amax()).sum()) if len(values) else 0
        free = right[rank:].T
        reduced = torch.linalg.pinv(free.T @ H @ free, hermitian=True, rtol=RANK_TOLERANCE)
        pseudo = (right[:rank].T / values[:rank]) @ left[:, :rank].T
        found[sample] = NullSpace(H, pseudo, free, reduced, rank < len(own))
    return found
