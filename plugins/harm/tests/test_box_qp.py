"""The solver against an independent one, closed forms and the optimality conditions."""

from __future__ import annotations

from itertools import pairwise

import clarabel
import numpy as np
import pytest
import torch
from leyden_harm import harm_margins, last_layer_gram, solve_box_qp, total_harm
from leyden_harm.problems import box_problem
from leyden_harm.reweighting import reweight
from scipy import sparse
from torch import Tensor

SIZES = (2, 5, 16, 64, 128)
PRICES = (0.5, 1.0, 4.0, 16.0)
PROBLEMS = [(SIZES[k % 5], PRICES[k % 4], k) for k in range(50)]


def exact(K: Tensor, s0: Tensor, upper: float) -> Tensor:
    """The solution by an interior point method."""
    size = len(s0)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    rows = sparse.vstack([sparse.eye(size), -sparse.eye(size)]).tocsc()
    limits = np.concatenate([np.full(size, upper), np.zeros(size)])
    upper_triangle = sparse.csc_matrix(np.triu(K.numpy()))
    solver = clarabel.DefaultSolver(
        upper_triangle, s0.numpy(), rows, limits, [clarabel.NonnegativeConeT(2 * size)], settings
    )
    return torch.tensor(solver.solve().x, dtype=K.dtype).clamp(0, upper)


def dual(K: Tensor, s0: Tensor, lam: Tensor) -> float:
    return float(-(lam @ K @ lam / 2 + s0 @ lam))


@pytest.mark.parametrize(("size", "price", "seed"), PROBLEMS)
def test_after_2000_iterations_it_is_the_minimum_and_satisfies_the_conditions_for_one(
    size: int, price: float, seed: int
) -> None:
    K, s0 = box_problem(size, seed)
    upper = price / size
    lam, info = solve_box_qp(K, s0, upper, 2000)
    best = dual(K, s0, exact(K, s0, upper))
    assert dual(K, s0, lam) >= best - 1e-8 * max(abs(best), 1e-12)
    margins = s0 + K @ lam
    scale = float(s0.abs().max())
    inside = (lam > 1e-9 * upper) & (lam < upper * (1 - 1e-9))
    assert (margins[inside].abs() <= 1e-6 * scale).all()
    assert (margins[lam <= 1e-9 * upper] >= -1e-6 * scale).all()
    assert (margins[lam >= upper * (1 - 1e-9)] <= 1e-6 * scale).all()
    assert (lam >= 0).all()
    assert (lam <= upper).all()
    torch.testing.assert_close(info.margins, margins)


@pytest.mark.parametrize("price", PRICES)
@pytest.mark.parametrize("size", [64, 128])
def test_20_iterations_reach_nine_tenths_of_the_optimum(size: int, price: float) -> None:
    for seed in range(5):
        K, s0 = box_problem(size, 100 + seed)
        lam, _ = solve_box_qp(K, s0, price / size, 20)
        assert dual(K, s0, lam) >= 0.90 * dual(K, s0, exact(K, s0, price / size))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("n_iter", [1, 2, 3, 5, 10, 20])
def test_harm_is_never_above_that_of_the_plain_update(n_iter: int, normalize: bool) -> None:
    from leyden_harm import Update
    from leyden_harm.problems import last_layer

    for seed in range(200):
        size, price = (2, 7, 33)[seed % 3], PRICES[seed % 4]
        drawn = last_layer(size, seed)
        found = reweight(
            drawn.h,
            drawn.delta,
            Update(history_W=drawn.history),
            max_upweight=price,
            n_iter=n_iter,
            normalize=normalize,
        )
        K = last_layer_gram(drawn.h, drawn.delta)
        before = harm_margins(drawn.h, drawn.delta, K, history_W=drawn.history)
        history = before - K.sum(1) / size
        after = history + K @ found.weights  # computed anew, not taken from the solver
        assert total_harm(after) <= total_harm(before) * (1 + 1e-6)
        torch.testing.assert_close(found.margins_after, after)


def test_more_iterations_never_give_a_higher_value() -> None:
    kept = False
    for seed in range(10):
        K, s0 = box_problem(48, seed)
        solved = [solve_box_qp(K, s0, 4 / 48, n)[0] for n in range(1, 31)]
        values = [float(lam @ K @ lam / 2 + 4 / 48 * total_harm(s0 + K @ lam)) for lam in solved]
        assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(values))
        kept = kept or any(torch.equal(earlier, later) for earlier, later in pairwise(solved))
    assert kept  # some iterate was worse than an earlier one, which was kept


def test_the_closed_form_of_two_opposed_gradients() -> None:
    g = torch.tensor([1.0, -0.5], dtype=torch.float64)
    K = torch.outer(g, g)
    s0 = K.sum(1) / 2
    torch.testing.assert_close(s0, torch.tensor([0.25, -0.125], dtype=torch.float64))
    for price, lam_expected, update in ((0.5, 0.25, 0.125), (1.0, 0.5, 0.0)):
        lam, _ = solve_box_qp(K, s0, price / 2)
        torch.testing.assert_close(lam, torch.tensor([0.0, lam_expected], dtype=torch.float64))
        torch.testing.assert_close(float(g.mean() + lam @ g), update)


@pytest.mark.parametrize(("s0", "expected"), [(-1.0, 0.5), (-9.0, 2.0), (3.0, 0.0)])
def test_one_sample_has_the_clipped_quotient(s0: float, expected: float) -> None:
    lam, _ = solve_box_qp(torch.tensor([[2.0]]), torch.tensor([s0]), 2.0)
    assert lam.item() == pytest.approx(expected)


def test_problems_are_solved_together_as_they_are_alone() -> None:
    pairs = [box_problem(24, seed) for seed in range(6)]
    K = torch.stack([pair[0] for pair in pairs]).view(2, 3, 24, 24)
    s0 = torch.stack([pair[1] for pair in pairs]).view(2, 3, 24)
    prices = torch.tensor([[0.5, 1.0, 2.0], [4.0, 8.0, 16.0]], dtype=torch.float64).unsqueeze(-1) / 24
    together, info = solve_box_qp(K, s0, prices, 30)
    for place, (one_K, one_s0) in enumerate(pairs):
        row, column = divmod(place, 3)
        alone, alone_info = solve_box_qp(one_K, one_s0, float(prices[row, column]), 30)
        torch.testing.assert_close(together[row, column], alone, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(info.gap[row, column], alone_info.gap, rtol=1e-6, atol=1e-12)


def test_the_gap_is_not_negative_and_closes() -> None:
    K, s0 = box_problem(64, 3)
    gaps = [float(solve_box_qp(K, s0, 4 / 64, n)[1].gap) for n in (1, 5, 20, 100, 1000)]
    assert all(gap >= -1e-12 for gap in gaps)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] <= 1e-10 * gaps[0]


def test_at_the_optimum_harm_falls_by_what_the_update_moves() -> None:
    K, s0 = box_problem(48, 5)
    price = 2 / 48
    lam, info = solve_box_qp(K, s0, price, 3000)
    moved = lam @ K @ lam / 2
    assert price * total_harm(info.margins) + moved <= price * total_harm(s0) * (1 + 1e-12)


def test_a_matrix_of_zeros_and_rows_of_zeros_move_nothing() -> None:
    zeros = torch.zeros(3, 3)
    assert torch.equal(solve_box_qp(zeros, torch.zeros(3), 1.0)[0], torch.zeros(3))
    K, s0 = box_problem(12, 1)
    masked = torch.ones(12, dtype=torch.float64)
    masked[[2, 7]] = 0
    lam, _ = solve_box_qp(K * masked.outer(masked), s0 * masked, 1 / 12, 200)
    assert torch.equal(lam[[2, 7]], torch.zeros(2, dtype=torch.float64))
    kept = masked.bool()
    alone, _ = solve_box_qp(K[kept][:, kept], s0[kept], 1 / 12, 200)
    torch.testing.assert_close(lam[kept], alone, rtol=1e-6, atol=1e-9)


def test_duplicate_rows_share_one_answer() -> None:
    K, s0 = box_problem(10, 2)
    twice = torch.arange(10).repeat(2)
    lam, info = solve_box_qp(K[twice][:, twice], s0[twice], 1.0, 5000)
    assert float(info.gap) <= 1e-9
    torch.testing.assert_close(lam[:10], lam[10:])


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="n_iter must be at least 1, got 0"):
        solve_box_qp(torch.eye(2), torch.zeros(2), 1.0, 0)
    with pytest.raises(ValueError, match=r"K: expected shape \(3, 3\) for s0 of \(3,\), got \(2, 2\)"):
        solve_box_qp(torch.eye(2), torch.zeros(3), 1.0)
