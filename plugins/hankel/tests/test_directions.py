"""The generator identities and the gauge: what makes the two readings what they are."""

from __future__ import annotations

import pytest
import torch
from leyden_hankel import HankelOperator, spectral_signal
from leyden_hankel.directions import Preconditioner, direction, regularized_inverse
from leyden_hankel.objective import Problem, conjugate_gram
from leyden_hankel.solver import Settings, iterate, start, start_at
from torch import Tensor


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))


def setting(seed: int = 0) -> tuple[Problem, Tensor, Tensor, Tensor]:
    """A problem, Z, its residual matrix R, and the pull K, all by dense products."""
    operator = HankelOperator((41,))
    mask = torch.rand(41, generator=torch.Generator().manual_seed(seed)) < 0.6
    y = torch.where(mask, random(41, seed=seed + 1), torch.zeros((), dtype=torch.complex128))
    problem = Problem(operator, y, mask, mask.double().mean())
    factor = random(21, 3, seed=seed + 2)
    x = operator.lift_adjoint(operator.fft(factor))
    z = problem.correction(x, problem.misfit(x))
    residual = factor @ factor.mT + operator.dense(z)
    return problem, factor, residual, operator.dense(z) @ factor.conj()


def projector(factor: Tensor) -> Tensor:
    basis, _ = torch.linalg.qr(factor)
    return basis @ basis.mH


@pytest.mark.parametrize("eta", [1.0, 0.3])
def test_acceptance_3_the_tangent_step_is_the_riemannian_gradient_step(eta: float) -> None:
    _, factor, residual, pull = setting()
    towards = direction(factor, pull, conjugate_gram(factor), "tangent").apply(factor, pull)
    p, matrix = projector(factor), factor @ factor.mT
    after = (factor + eta * towards) @ (factor + eta * towards).mT
    tangent = p @ residual + residual @ p.mT - p @ residual @ p.mT
    expected = matrix - eta * tangent + eta**2 * towards @ towards.mT
    assert (after - expected).abs().max() <= 1e-12 * matrix.abs().max()


@pytest.mark.parametrize("eta", [0.5, 0.3])
def test_acceptance_3_the_block_jacobi_step_counts_the_inner_part_twice(eta: float) -> None:
    _, factor, residual, pull = setting(5)
    towards = direction(factor, pull, conjugate_gram(factor), "block_jacobi").apply(factor, pull)
    p, matrix = projector(factor), factor @ factor.mT
    after = (factor + eta * towards) @ (factor + eta * towards).mT
    expected = matrix - eta * (p @ residual + residual @ p.mT) + eta**2 * towards @ towards.mT
    assert (after - expected).abs().max() <= 1e-12 * matrix.abs().max()


def test_the_retraction_agrees_with_the_one_by_truncation_to_second_order() -> None:
    _, factor, residual, pull = setting(9)
    towards = direction(factor, pull, conjugate_gram(factor), "tangent").apply(factor, pull)
    p, matrix = projector(factor), factor @ factor.mT
    tangent = p @ residual + residual @ p.mT - p @ residual @ p.mT
    differences = []
    for eta in (4e-3, 2e-3, 1e-3):
        u, s, vh = torch.linalg.svd(matrix - eta * tangent)
        truncated = (u[:, :3] * s[:3]) @ vh[:3]
        own = (factor + eta * towards) @ (factor + eta * towards).mT
        differences.append(float((own - truncated).norm()))
    assert differences[0] / differences[1] == pytest.approx(4, rel=0.05)
    assert differences[1] / differences[2] == pytest.approx(4, rel=0.05)


def complex_orthogonal(size: int, seed: int) -> Tensor:
    skew = random(size, size, seed=seed)
    skew = (skew - skew.mT) / 2
    return torch.linalg.matrix_exp(skew / skew.abs().max())


def iterated(preconditioner: Preconditioner, turn: Tensor | None, iterations: int = 20) -> Tensor:
    signal = spectral_signal(63, 4, samples=32, generator=torch.Generator().manual_seed(7))
    problem = Problem(
        HankelOperator((63,)),
        signal.y.unsqueeze(0),
        signal.mask.unsqueeze(0),
        torch.tensor([32 / 63.0]).double(),
    )
    settings = Settings(rank=4, preconditioner=preconditioner, step="fixed", tol=0.0)
    state = start(problem, settings)
    if turn is not None:
        state = start_at(problem, settings, state.factor @ turn)
    for _ in range(iterations):
        state = iterate(problem, settings, state)
    return state.x


@pytest.mark.parametrize("preconditioner", ["tangent", "block_jacobi"])
def test_acceptance_4_a_turned_factor_gives_the_same_iterates(preconditioner: Preconditioner) -> None:
    turn = complex_orthogonal(4, seed=1)
    assert torch.allclose(turn @ turn.mT, torch.eye(4, dtype=turn.dtype), atol=1e-12)
    assert torch.linalg.cond(turn) > 2  # far from unitary
    plain, turned = iterated(preconditioner, None), iterated(preconditioner, turn)
    assert (plain - turned).norm() <= 1e-12 * plain.norm()


def test_acceptance_4_without_preconditioner_a_turned_factor_gives_others() -> None:
    turn = complex_orthogonal(4, seed=1)
    plain, turned = iterated("none", None, 3), iterated("none", turn, 3)
    assert not (plain - turned).norm() <= 1e-3 * plain.norm()


@pytest.mark.parametrize(
    ("preconditioner", "eta", "rate"), [("tangent", 1.0, 0.0), ("block_jacobi", 2 / 3, 1 / 3)]
)
def test_the_local_rates_with_all_samples(preconditioner: Preconditioner, eta: float, rate: float) -> None:
    signal = spectral_signal(63, 3, generator=torch.Generator().manual_seed(2))
    problem = Problem(
        HankelOperator((63,)), signal.y.unsqueeze(0), signal.mask.unsqueeze(0), torch.ones(1).double()
    )
    settings = Settings(rank=3, preconditioner=preconditioner, step=eta, tol=0.0)
    exact = start(problem, settings).factor
    state = start_at(problem, settings, exact + 1e-5 * random(*exact.shape, seed=3))
    errors = []
    for _ in range(6):
        errors.append(float((state.x - signal.truth).norm() / signal.truth.norm()))
        state = iterate(problem, settings, state)
    if rate == 0:
        assert errors[1] <= 1e-4 * errors[0]  # one step, up to the second order
    else:
        assert (errors[5] / errors[2]) ** (1 / 3) == pytest.approx(rate, abs=0.05)


def test_damping_adds_its_multiple_of_the_objectives_root_to_the_gram_matrix() -> None:
    problem, factor, residual, _ = setting()
    batch = Problem(problem.operator, problem.y[None], problem.mask[None], problem.rate[None])
    settings = Settings(rank=3, preconditioner="block_jacobi", step=0.4, damping=0.3, tol=0.0)
    state = start_at(batch, settings, factor[None])
    ridge = 0.3 * state.value.sqrt() * torch.eye(3)
    inverse = torch.linalg.inv(conjugate_gram(factor) + ridge)
    expected = factor - 0.4 * residual @ factor.conj() @ inverse
    after = iterate(batch, settings, state).factor[0]
    torch.testing.assert_close(after, expected, rtol=1e-10, atol=1e-10)


def test_the_inverse_of_a_singular_gram_matrix_is_finite() -> None:
    factor = torch.ones(5, 2, dtype=torch.complex128)
    assert torch.isfinite(torch.view_as_real(regularized_inverse(conjugate_gram(factor)))).all()
    assert torch.isfinite(
        torch.view_as_real(regularized_inverse(torch.zeros(2, 2, dtype=torch.complex128)))
    ).all()
