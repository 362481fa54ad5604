"""The fast products against dense ones, and the formulas built on them."""

from __future__ import annotations

import pytest
import torch
from leyden_hankel import HankelOperator
from leyden_hankel import operator as module
from leyden_hankel.directions import direction
from leyden_hankel.objective import (
    Problem,
    conjugate_gram,
    gradient,
    line,
    objective,
    quartic,
    smallest_minimum,
)
from torch import Tensor

SHAPES = [(31,), (7, 9), (5, 5, 3)]


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))


def problem_of(shape: tuple[int, ...], share: float = 0.5) -> Problem:
    operator = HankelOperator(shape)
    chosen = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < share
    y = torch.where(chosen, random(*shape, seed=2), torch.zeros((), dtype=torch.complex128))
    return Problem(operator, y, chosen, chosen.double().mean())


def averages(operator: HankelOperator, matrix: Tensor) -> Tensor:
    """Antidiagonal averages by brute force."""
    index = operator.dense(torch.arange(operator.weights.numel()).reshape(operator.shape)).real.long()
    sums = torch.zeros(operator.weights.numel(), dtype=matrix.dtype)
    sums.index_add_(0, index.flatten(), matrix.flatten())
    return sums.reshape(operator.shape) / operator.weights


def dense_objective(problem: Problem, factor: Tensor) -> Tensor:
    operator = problem.operator
    matrix = factor @ factor.mT
    x = averages(operator, matrix)
    outside = (matrix - operator.dense(x)).abs().square().sum()
    misfit = torch.where(problem.mask, x - problem.y, torch.zeros((), dtype=x.dtype))
    return (outside + (operator.weights * misfit.abs().square()).sum() / problem.rate) / 2


@pytest.mark.parametrize("shape", SHAPES)
def test_acceptance_1_fast_products_equal_dense_ones(shape: tuple[int, ...]) -> None:
    operator = HankelOperator(shape)
    factor, other = random(operator.rows, 3, seed=3), random(operator.rows, 3, seed=4)
    signal = random(*shape, seed=5)
    spectrum = operator.fft(factor)
    assert (operator.lift_adjoint(spectrum) - averages(operator, factor @ factor.mT)).abs().max() <= 1e-12
    mixed = averages(operator, factor @ other.mT + other @ factor.mT)
    assert (operator.lift_adjoint(spectrum, operator.fft(other)) - mixed).abs().max() <= 1e-12
    product = operator.dense(signal) @ factor.conj()
    assert (operator.matmul_conj(signal, spectrum) - product).abs().max() <= 1e-12


def test_the_weights_count_the_entries_of_every_antidiagonal() -> None:
    operator = HankelOperator((7, 9))
    index = operator.dense(torch.arange(63).reshape(7, 9)).real.long()
    assert torch.equal(operator.weights.flatten().long(), index.flatten().bincount())


def test_products_take_batches_and_any_memory_layout() -> None:
    operator = HankelOperator((31,))
    factors, signals = random(4, 16, 2), random(4, 31, seed=1)
    together = operator.matmul_conj(signals, operator.fft(factors))
    for one, factor, signal in zip(together, factors, signals, strict=True):
        turned = factor.mT.contiguous().mT
        torch.testing.assert_close(
            one, operator.matmul_conj(signal, operator.fft(turned)), rtol=1e-13, atol=1e-13
        )


def test_nothing_of_the_size_of_the_matrix_is_formed() -> None:
    operator = HankelOperator((2**21 - 1,))  # the matrix would take 16 TiB
    factor = torch.zeros(operator.rows, 1, dtype=torch.complex128)
    factor[0] = 1
    x = operator.lift_adjoint(operator.fft(factor))
    assert x[0].real == pytest.approx(1)
    assert x[1:].abs().max() < 1e-12


@pytest.mark.parametrize("shape", [(8,), (7, 4), (), (-3,)])
def test_even_and_missing_sizes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^shape: expected odd sizes"):
        HankelOperator(shape)


def test_half_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^dtype: expected torch\.complex64"):
        HankelOperator((7,), torch.complex32)


@pytest.mark.parametrize("shape", SHAPES)
def test_acceptance_2_the_gradient_is_half_of_autograds(shape: tuple[int, ...]) -> None:
    problem = problem_of(shape)
    factor = random(problem.operator.rows, 3, seed=3).requires_grad_()
    dense_objective(problem, factor).backward()
    own = gradient(problem, factor.detach())
    assert (factor.grad / 2 - own).norm() <= 1e-10 * own.norm()  # type: ignore[operator]


@pytest.mark.parametrize("shape", SHAPES)
def test_acceptance_2_the_objective_equals_the_dense_one(shape: tuple[int, ...]) -> None:
    problem = problem_of(shape)
    factor = random(problem.operator.rows, 3, seed=3)
    x = problem.operator.lift_adjoint(problem.operator.fft(factor))
    value, size = objective(problem, conjugate_gram(factor), x, problem.misfit(x))
    expected = dense_objective(problem, factor)
    assert abs(value - expected) <= 1e-12 * expected
    assert size == pytest.approx(float((factor @ factor.mT).abs().square().sum()), rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_acceptance_2_the_quartic_is_the_objective_along_a_line(shape: tuple[int, ...]) -> None:
    problem = problem_of(shape)
    operator = problem.operator
    factor, towards = random(operator.rows, 3, seed=3), random(operator.rows, 3, seed=4)
    spectrum = operator.fft(factor)
    x = operator.lift_adjoint(spectrum)
    along = line(operator, factor, spectrum, towards, operator.fft(towards))
    coefficients = quartic(problem, conjugate_gram(factor), x, problem.misfit(x), along)
    start = dense_objective(problem, factor)
    for a in (-1.5, -0.3, 0.2, 0.9, 2.0):
        expected = dense_objective(problem, factor + a * towards)
        found = start + sum(c * a ** (k + 1) for k, c in enumerate(coefficients))
        assert abs(found - expected) <= 1e-10 * expected


def test_the_searched_step_is_where_the_objective_is_lowest_along_the_direction() -> None:
    problem = problem_of((31,))
    operator = problem.operator
    factor = random(16, 3, seed=3)
    spectrum = operator.fft(factor)
    x = operator.lift_adjoint(spectrum)
    pull = operator.matmul_conj(problem.correction(x, problem.misfit(x)), spectrum)
    towards = direction(factor, pull, conjugate_gram(factor)).apply(factor, pull)
    along = line(operator, factor, spectrum, towards, operator.fft(towards))
    coefficients = quartic(problem, conjugate_gram(factor), x, problem.misfit(x), along)
    assert coefficients[0] < 0
    a = float(smallest_minimum(coefficients))
    values = {
        step: float(dense_objective(problem, factor + step * towards)) for step in (0.9 * a, a, 1.1 * a)
    }
    assert min(values, key=values.__getitem__) == a


@pytest.mark.parametrize(
    ("coefficients", "step"),
    [
        ([-2.0, 1.0, 0.0, 0.0], 1.0),
        ([-4.0, 1.0, 0.0, 0.0], 2.0),
        ([-1.0, 0.0, 0.0, 0.25], 1.0),
        ([-6.0, 5.5, -2.0, 0.25], 1.0),  # derivative (a - 1)(a - 2)(a - 3): the smallest root
        ([1.0, 1.0, 1.0, 1.0], 1.0),  # no descent
        ([0.0, 0.0, 0.0, 0.0], 1.0),
        ([float("nan"), 1.0, 0.0, 0.0], 1.0),
    ],
)
def test_the_searched_step_is_the_smallest_positive_root(coefficients: list[float], step: float) -> None:
    assert float(smallest_minimum(torch.tensor(coefficients, dtype=torch.float64))) == pytest.approx(step)


def test_without_a_descent_to_measure_the_step_is_the_one_given() -> None:
    flat = torch.zeros(2, 4, dtype=torch.float64)
    assert smallest_minimum(flat, 0.5).tolist() == [0.5, 0.5]


def test_columns_transformed_in_parts_are_those_transformed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = HankelOperator((31, 9))
    factors, signals = random(3, operator.rows, 4, seed=1), random(3, 31, 9, seed=2)
    spectrum = operator.fft(factors)
    others = operator.fft(factors.flip(-1))
    at_once = (spectrum, operator.matmul_conj(signals, spectrum), operator.lift_adjoint(spectrum))
    along = operator.lift_adjoint_along(spectrum, others)
    monkeypatch.setattr(module, "_AT_ONCE", 0)
    for cached in (1, 600, 10**6):  # a column, some of a signal's, several signals' at a time
        monkeypatch.setattr(module, "_CACHED", cached)
        parts = (
            operator.fft(factors),
            operator.matmul_conj(signals, spectrum),
            operator.lift_adjoint(spectrum),
        )
        for one, other in zip(at_once, parts, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            along, operator.lift_adjoint_along(spectrum, others), rtol=1e-12, atol=1e-12
        )
    torch.testing.assert_close(along[0], operator.lift_adjoint(spectrum, others), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(along[1], operator.lift_adjoint(others), rtol=1e-12, atol=1e-12)
