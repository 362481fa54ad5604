"""The spectral start and the small factorizations under it."""

from __future__ import annotations

import pytest
import torch
from leyden_hankel import HankelOperator, spectral_init, spectral_signal, takagi
from leyden_hankel.spectral import clip_rows, orthonormal_basis
from torch import Tensor


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))


def truncated(matrix: Tensor, rank: int) -> Tensor:
    u, s, vh = torch.linalg.svd(matrix)
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


def test_takagi_factors_a_complex_symmetric_matrix() -> None:
    matrix = random(6, 6)
    matrix = matrix + matrix.mT
    values, vectors = takagi(matrix, 6)
    torch.testing.assert_close(values, torch.linalg.svdvals(matrix))
    assert (vectors @ values.diag().to(matrix) @ vectors.mT - matrix).abs().max() < 1e-13
    assert (vectors.mH @ vectors - torch.eye(6)).abs().max() < 1e-13


def test_takagi_leaves_out_what_is_not_symmetric() -> None:
    matrix, other = random(5, 5), random(5, 5, seed=1)
    matrix, skew = matrix + matrix.mT, other - other.mT
    for one, whole in zip(takagi(matrix, 3), takagi(matrix + skew, 3), strict=True):
        torch.testing.assert_close(one, whole)


@pytest.mark.parametrize("frequencies", [(0.25, 0.75), (4 / 16, 9 / 16)])
def test_equal_singular_values_are_factored_exactly(frequencies: tuple[float, float]) -> None:
    t = torch.arange(31, dtype=torch.float64)
    signal = sum(torch.exp(2j * torch.pi * f * t) for f in frequencies) / 2
    matrix = HankelOperator((31,)).dense(signal)
    values, vectors = takagi(matrix, 2)
    assert values.tolist() == pytest.approx([8, 8])
    factor = vectors * values.sqrt()
    assert (factor @ factor.mT - matrix).norm() <= 1e-10 * matrix.norm()
    start = spectral_init(signal, torch.ones(31, dtype=torch.bool), 2, oversample=4)
    assert (start @ start.mT - matrix).norm() <= 1e-10 * matrix.norm()


@pytest.mark.parametrize("oversample", [5, 100])
def test_the_start_is_the_rank_r_truncation_of_the_zero_filled_matrix(oversample: int) -> None:
    signal = spectral_signal(127, 3, samples=80, generator=torch.Generator().manual_seed(0))
    factor = spectral_init(signal.y, signal.mask, 3, oversample=oversample, power=40)
    expected = truncated(HankelOperator((127,)).dense(signal.y / (80 / 127)), 3)
    assert (factor @ factor.mT - expected).norm() <= 1e-6 * expected.norm()
    gram = factor.mH @ factor
    assert (gram - gram.diagonal().diag()).abs().max() <= 1e-8 * gram.abs().max()


def test_a_signal_of_a_batch_starts_as_it_does_alone() -> None:
    operator = HankelOperator((127,))
    signals = [
        spectral_signal(127, 3, samples=60, generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    ]
    y, mask = torch.stack([s.y for s in signals]), torch.stack([s.mask for s in signals])
    together = spectral_init(y, mask, 3, operator=operator)
    for factor, signal in zip(together, signals, strict=True):
        alone = spectral_init(signal.y, signal.mask, 3)
        assert (factor @ factor.mT - alone @ alone.mT).norm() <= 1e-10 * (alone @ alone.mT).norm()


def test_a_small_matrix_is_factored_whole() -> None:
    t = torch.arange(5, dtype=torch.float64)
    signal = torch.exp(0.5j * t) + torch.exp(2j * t)
    factor = spectral_init(signal, torch.ones(5, dtype=torch.bool), 2)
    assert (factor @ factor.mT - HankelOperator((5,)).dense(signal)).abs().max() < 1e-13


def test_the_basis_is_orthonormal_and_drops_what_depends_on_others() -> None:
    columns = random(40, 3)
    basis = orthonormal_basis(torch.cat([columns, columns[:, :1] * 2], dim=1))
    gram = basis.mH @ basis
    assert gram.diagonal().real.round().sum() == 3
    assert (gram - gram.diagonal().real.round().diag()).abs().max() < 1e-13
    inside = basis @ (basis.mH @ columns)
    assert (inside - columns).norm() < 1e-12 * columns.norm()


def test_columns_of_very_different_lengths_give_an_orthonormal_basis() -> None:
    columns = random(40, 4) * torch.tensor([1.0, 1e-2, 1e-4, 1e-6])
    gram = orthonormal_basis(columns).mH @ orthonormal_basis(columns)
    assert (gram - torch.eye(4)).abs().max() < 1e-12


def test_clipping_bounds_every_row() -> None:
    factor = random(30, 2)
    factor[3] *= 50
    values = factor.abs().square().sum(dim=0)
    clipped = clip_rows(factor, values)
    leverage = (factor.abs().square() / values).sum(dim=1).max()
    assert clipped.norm(dim=1).max() <= (2 * leverage * values[0]).sqrt() * (1 + 1e-12)


@pytest.mark.parametrize("rank", [0, 17])
def test_a_rank_that_the_matrix_cannot_have_is_named(rank: int) -> None:
    with pytest.raises(ValueError, match=r"^rank"):
        spectral_init(random(31), torch.ones(31, dtype=torch.bool), rank)
