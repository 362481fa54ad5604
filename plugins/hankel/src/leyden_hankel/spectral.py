"""The spectral start of the predecessors: the dominant part of the zero-filled Hankel matrix, factored."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from leyden_hankel.arguments import check_count
from leyden_hankel.objective import conjugate_gram
from leyden_hankel.operator import HankelOperator


def takagi(
    matrix: Complex[Tensor, "*batch size size"], rank: int
) -> tuple[Float[Tensor, "*batch rank"], Complex[Tensor, "*batch size rank"]]:
    """The leading part of a Takagi factorization, B = V diag(s) V^T (reconstructed for the start).

    It comes from the eigenvectors of a real symmetric matrix of twice the size, and is exact for repeated
    singular values too. (A singular value decomposition whose columns are turned afterwards is not.)

    Args:
        matrix: complex symmetric, B; the part that is not symmetric is left out.
        rank: how many of the singular values.

    Returns:
        The largest singular values, descending, and V, whose columns are orthonormal.

    Raises:
        ValueError: if there are fewer than ``rank``.

    >>> values, vectors = takagi(torch.tensor([[0, 2j], [2j, 0]]), 2)
    >>> values
    tensor([2., 2.])
    >>> bool(torch.allclose(vectors * values @ vectors.mT, torch.tensor([[0, 2j], [2j, 0]]), atol=1e-6))
    True
    """
    size = matrix.shape[-1]
    if not 1 <= rank <= size:
        raise ValueError(f"rank: expected 1 to {size}, the size of the matrix, got {rank}")
    symmetric = (matrix + matrix.mT) / 2
    real, imaginary = symmetric.real, symmetric.imag
    upper = torch.cat([real, imaginary], dim=-1)
    lower = torch.cat([imaginary, -real], dim=-1)
    values, vectors = torch.linalg.eigh(torch.cat([upper, lower], dim=-2))
    values, vectors = values[..., -rank:].flip(-1), vectors[..., -rank:].flip(-1)
    return values.clamp(min=0), torch.complex(vectors[..., :size, :], vectors[..., size:, :])


def spectral_init(
    y: Complex[Tensor, "*batch *shape"],
    mask: Bool[Tensor, "*batch *shape"],
    rank: int,
    oversample: int = 10,
    power: int = 6,
    generator: torch.Generator | None = None,
    *,
    operator: HankelOperator | None = None,
) -> Complex[Tensor, "*batch rows rank"]:
    """The spectral start: Z Z^T is the rank-r truncation of the Hankel matrix of y / p (reconstructed).

    A randomized block iteration: Q becomes an orthonormal basis of H conj(Q), which for a complex symmetric
    matrix is one power step; then the Takagi factorization of Q^H H conj(Q). Where the block would be as wide
    as the matrix, the matrix is formed and factored itself.

    Args:
        y: the observed samples, zero elsewhere; sizes odd. Without ``operator`` all its dimensions are the
            signal's.
        mask: which samples were observed; p is their share.
        rank: r.
        oversample: further columns of the block.
        power: power steps.
        generator: of the block's first columns, on the CPU; None: one of its own, seeded with 0.
        operator: the Hankel structure, where leading dimensions are batches.

    Returns:
        Z, with orthogonal columns whose squared norms are the singular values, descending.

    Raises:
        ValueError: if ``rank`` is not between 1 and the number of rows.
    """
    operator = operator or HankelOperator(y.shape, y.dtype, device=y.device)
    check_count("rank", rank)
    if rank > operator.rows:
        raise ValueError(f"rank: expected at most {operator.rows}, the rows of the matrix, got {rank}")
    places = tuple(range(-len(operator.shape), 0))
    share = mask.to(y.real.dtype).mean(dim=places, keepdim=True)
    signal = y / share
    width = min(rank + oversample, operator.rows)
    if width == operator.rows:
        values, vectors = takagi(operator.dense(signal), rank)
        return _columns(vectors * values.sqrt().unsqueeze(-2))
    basis, image = _dominant_range(operator, signal, width, power, generator)
    values, vectors = takagi(basis.mH @ image, rank)
    weights = vectors * values.sqrt().unsqueeze(-2)
    return (weights.mT @ basis.mT).mT


def clip_rows(
    factor: Complex[Tensor, "*batch rows rank"], values: Float[Tensor, "*batch rank"]
) -> Complex[Tensor, "*batch rows rank"]:
    """Scale long rows back, the incoherence projection of the predecessors (Cai, Wang and Wei, 2018).

    Args:
        factor: Z of `spectral_init`.
        values: the singular values, which are the squared norms of its columns.

    Returns:
        Z with no row longer than sqrt(2 max_i |U_i|^2 sigma_1), U being its columns normalized.
    """
    leverage = (factor.abs().square() / values.unsqueeze(-2)).sum(dim=-1).amax(dim=-1)
    longest = (2 * leverage * values[..., 0]).sqrt()[..., None, None]
    lengths = torch.linalg.vector_norm(factor, dim=-1, keepdim=True)
    clipped: Tensor = factor * (longest / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1)
    return clipped


def orthonormal_basis(vectors: Complex[Tensor, "*batch rows width"]) -> Complex[Tensor, "*batch rows width"]:
    """Orthonormal columns of the same range; directions that rounding has swallowed become zero columns.

    By the Gram matrix, twice: products alone, so that it is as fast as they are on tall matrices, and it
    does not mind dependent columns.

    Args:
        vectors: the columns.

    Returns:
        The basis, in the memory layout of `HankelOperator`.
    """
    return _whitened(_whitened(vectors))


def _dominant_range(
    operator: HankelOperator, signal: Tensor, width: int, power: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """An orthonormal basis Q of the dominant range, and H conj(Q)."""
    generator = generator or torch.Generator().manual_seed(0)
    # The same columns for every signal of a batch, so that each starts as it would alone.
    start = torch.randn(width, operator.rows, dtype=operator.dtype, generator=generator).to(signal.device)
    batch = signal.shape[: signal.dim() - len(operator.shape)]
    image = start.expand(*batch, *start.shape).mT
    for _ in range(power):
        image = operator.matmul_conj(signal, operator.fft(_whitened(image)))
    basis = orthonormal_basis(image)
    return basis, operator.matmul_conj(signal, operator.fft(basis))


def _whitened(vectors: Tensor) -> Tensor:
    wide = vectors.to(torch.complex128)
    gram = conjugate_gram(wide).conj()
    values, turns = torch.linalg.eigh(gram)
    width = vectors.shape[-1]
    own, double = (width * torch.finfo(kind.to_real()).eps for kind in (vectors.dtype, torch.complex128))
    kept = values > max(own**2, 10 * double) * values[..., -1:]
    scales = torch.where(kept, values, torch.inf).rsqrt()
    whitened: Tensor = ((turns * scales.unsqueeze(-2)).to(vectors.dtype).mT @ vectors.mT).mT
    return whitened


def _columns(factor: Tensor) -> Tensor:
    """The factor in the memory layout of `HankelOperator`."""
    return factor.mT.contiguous().mT
