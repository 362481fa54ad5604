"""Frequencies, damping and amplitudes from a factor, by ESPRIT (not in the paper)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from leyden_hankel.operator import HankelOperator, padded_shape
from leyden_hankel.spectral import orthonormal_basis


class Lines(NamedTuple):
    """The lines of a signal: x_t = sum_k c_k prod_a exp((2 pi i f_ka - d_ka) t_a).

    Attributes:
        frequencies: f in cycles a sample, from 0 to below 1, of shape ``(rank,)``, in several dimensions
            ``(rank, dimensions)``.
        damping: d, a sample, of the same shape; positive where a line decays.
        amplitudes: c, complex, of shape ``(rank,)``; the lines are ordered by its modulus, largest first.
    """

    frequencies: Float[Tensor, " rank *dimensions"]
    damping: Float[Tensor, " rank *dimensions"]
    amplitudes: Complex[Tensor, " rank"]


def esprit(Z: Complex[Tensor, "rows rank"], shape: int | Sequence[int]) -> Lines:
    """The lines whose signal a factor spans, by ESPRIT, in one or more dimensions.

    Shifting the signal by a sample multiplies Z by a small matrix, whose eigenvalues are the poles. In many
    dimensions the shifts commute, and a random combination of them has the eigenvectors of all. Amplitudes
    are the least-squares fit to the averages of Z Z^T.

    Poles of a repeated or defective frequency lose half of the digits.

    Args:
        Z: the factor of one signal; with columns that depend on others there are fewer lines than columns.
        shape: the sizes of the signal, even ones as they are.

    Returns:
        The lines.

    Raises:
        ValueError: if Z has not the rows that a signal of this shape has, or more columns than a shift leaves
            rows, or is not finite.
    """
    sizes = (int(shape),) if isinstance(shape, int) else tuple(int(size) for size in shape)
    operator = HankelOperator(padded_shape(sizes), Z.dtype, device=Z.device)
    rank = Z.shape[-1]
    if Z.dim() != 2 or Z.shape[0] != operator.rows:
        raise ValueError(f"Z: expected shape ({operator.rows}, rank) for {sizes}, got {tuple(Z.shape)}")
    for axis, size in enumerate(operator.block):
        if rank > operator.rows - operator.rows // size:
            raise ValueError(f"Z: expected fewer columns than a shift along axis {axis} leaves rows")
    if not bool(Z.isfinite().all()):
        raise ValueError("Z: expected finite numbers, got NaN or infinity")
    basis = orthonormal_basis(Z)
    basis = basis[:, torch.linalg.vector_norm(basis, dim=0) > 0.5]  # a dependent column is zero there
    shifts = _shifts(basis, operator.block)
    poles = _joint_eigenvalues(shifts)
    x = operator.lift_adjoint(operator.fft(Z))[tuple(slice(size) for size in sizes)]
    amplitudes = fit_amplitudes(x, poles)
    order = amplitudes.abs().argsort(descending=True)
    frequencies = (poles.angle() / (2 * math.pi)).remainder(1.0)
    frequencies = torch.where(frequencies >= 1, torch.zeros_like(frequencies), frequencies)
    damping = -poles.abs().log()
    if len(sizes) == 1:
        frequencies, damping = frequencies.squeeze(-1), damping.squeeze(-1)
    return Lines(frequencies[order], damping[order], amplitudes[order])


def fit_amplitudes(
    x: Complex[Tensor, " *shape"], poles: Complex[Tensor, "rank dimensions"]
) -> Complex[Tensor, " rank"]:
    """The amplitudes that fit a signal best, by least squares.

    Args:
        x: the signal.
        poles: exp(2 pi i f - d) of every line along every dimension.

    Returns:
        The amplitudes.
    """
    columns = exponentials(x.shape, poles)
    # Long columns: the normal equations, refined once, cost one product where a factorization takes many.
    gram, right = columns.mH @ columns, columns.mH @ x.reshape(-1)
    inverse = torch.linalg.pinv(gram, hermitian=True)
    amplitudes: Tensor = inverse @ right
    amplitudes += inverse @ (columns.mH @ (x.reshape(-1) - columns @ amplitudes))
    return amplitudes


def exponentials(
    shape: Sequence[int], poles: Complex[Tensor, "rank dimensions"]
) -> Complex[Tensor, "samples rank"]:
    """The signal of every line with amplitude 1, flattened in C order.

    Args:
        shape: the sizes of the signal.
        poles: exp(2 pi i f - d) of every line along every dimension.

    Returns:
        A column for each line.
    """
    columns = torch.ones(1, len(poles), dtype=poles.dtype, device=poles.device)
    for axis, size in enumerate(shape):
        times = torch.arange(size, dtype=poles.real.dtype, device=poles.device)
        powers = torch.exp(times.unsqueeze(1) * poles[:, axis].log())
        columns = (columns.unsqueeze(1) * powers.unsqueeze(0)).flatten(0, 1)
    return columns


def _shifts(basis: Tensor, block: Sequence[int]) -> Tensor:
    """For every dimension the matrix that shifts the basis by a sample, ``(dimensions, rank, rank)``."""
    cube = basis.reshape(*block, -1)
    found = []
    for axis, size in enumerate(block):
        before = cube.narrow(axis, 0, size - 1).flatten(0, -2)
        after = cube.narrow(axis, 1, size - 1).flatten(0, -2)
        orthonormal, triangle = torch.linalg.qr(before)
        found.append(torch.linalg.solve_triangular(triangle, orthonormal.mH @ after, upper=True))
    return torch.stack(found)


def _joint_eigenvalues(shifts: Tensor) -> Tensor:
    """The eigenvalues of commuting matrices, those of one eigenvector in a row, ``(rank, dimensions)``."""
    if len(shifts) == 1:
        eigenvalues: Tensor = torch.linalg.eigvals(shifts[0])
        return eigenvalues.unsqueeze(-1)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(len(shifts), dtype=torch.float64, generator=generator).to(shifts)
    _, vectors = torch.linalg.eig((weights[:, None, None] * shifts).sum(dim=0))
    turned: Tensor = torch.linalg.solve(vectors, shifts @ vectors)
    return turned.diagonal(dim1=-2, dim2=-1).T
