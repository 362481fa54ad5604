"""The weights against a projection by an independent solver, and what must not change them."""

from __future__ import annotations

import clarabel
import numpy as np
import pytest
import torch
from leyden_harm import Update, last_layer_gram, reweight, sample_weights, solve_box_qp, total_harm
from leyden_harm.problems import last_layer
from scipy import sparse
from torch import Tensor


def projected(K: Tensor, weights: Tensor) -> Tensor:
    """Weights of the nearest combination of gradients that harms none: min vᵀKv over v >= weights."""
    size = len(K)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix(np.triu(K.numpy())),
        np.zeros(size),
        -sparse.eye(size).tocsc(),
        -weights.numpy(),
        [clarabel.NonnegativeConeT(size)],
        settings,
    )
    return torch.tensor(solver.solve().x, dtype=K.dtype)


def conflicting(size: int = 12) -> Tensor:
    """A well-conditioned Gram matrix of gradients of which many oppose the mean."""
    generator = torch.Generator().manual_seed(4)
    G = torch.randn(size, size + 4, generator=generator, dtype=torch.float64)
    K = G @ G.T / size
    assert (K.sum(1) < 0).any()
    return K


@pytest.fixture(scope="module")
def dual_weights() -> tuple[Tensor, Tensor]:
    K = conflicting()
    lam, _ = solve_box_qp(K, K.mean(1), 1e6, 20_000)
    return K, sample_weights(lam, 1.0, normalize=False)


def test_without_a_price_it_is_the_projection_onto_updates_that_harm_none(
    dual_weights: tuple[Tensor, Tensor],
) -> None:
    K, weights = dual_weights
    torch.testing.assert_close(
        weights, projected(K, torch.full((12,), 1 / 12, dtype=K.dtype)), rtol=0, atol=1e-6
    )
    assert (K @ weights >= -1e-9).all()


def test_without_history_and_price_it_is_the_dual_projection_of_torchjd(
    dual_weights: tuple[Tensor, Tensor],
) -> None:
    aggregation = pytest.importorskip("torchjd.aggregation", reason="torchjd is a peer")
    linalg = pytest.importorskip("torchjd.linalg")
    pytest.importorskip("quadprog", reason="torchjd projects with quadprog")
    projector = linalg.QuadprogProjector(norm_eps=1e-30, reg_eps=1e-8)
    K, weights = dual_weights
    theirs = aggregation.DualProjWeighting(projector=projector)(K)
    torch.testing.assert_close(weights, theirs, rtol=0, atol=1e-6)


def test_permuting_the_batch_permutes_the_weights() -> None:
    drawn = last_layer(32, 0)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1))
    update = Update(history_W=drawn.history)
    weights = reweight(drawn.h, drawn.delta, update).weights
    permuted = reweight(drawn.h[order], drawn.delta[order], update).weights
    torch.testing.assert_close(permuted, weights[order], rtol=1e-6, atol=0)
    assert weights.std() > 1e-3


@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e4])
def test_scaling_the_losses_changes_no_weight(factor: float) -> None:
    drawn = last_layer(32, 0)
    weights = reweight(drawn.h, drawn.delta, Update(history_W=drawn.history)).weights
    scaled = reweight(drawn.h, factor * drawn.delta, Update(history_W=factor * drawn.history)).weights
    torch.testing.assert_close(scaled, weights, rtol=1e-5, atol=0)


def test_kappa_and_a_uniform_preconditioner_scale_away() -> None:
    drawn = last_layer(24, 2)
    plain = reweight(drawn.h, drawn.delta, Update(history_W=drawn.history), n_iter=200)
    scaled = reweight(
        drawn.h,
        drawn.delta,
        Update(
            0.2 * drawn.history, kappa=0.1, P_W=torch.full((10, 64), 2.0).double(), P_b=2 * torch.ones(10)
        ),
        n_iter=200,
    )
    torch.testing.assert_close(scaled.weights, plain.weights, rtol=1e-6, atol=1e-12)


def test_weights_lie_between_omega_and_its_largest_multiple_and_keep_their_sum() -> None:
    drawn = last_layer(40, 3)
    update = Update(history_W=drawn.history)
    free = reweight(drawn.h, drawn.delta, update, max_upweight=2.0, normalize=False)
    assert (free.weights >= 1 / 40).all()
    assert (free.weights <= 3 / 40 * (1 + 1e-12)).all()
    assert free.factors.max() == pytest.approx(3.0)
    kept = reweight(drawn.h, drawn.delta, update, max_upweight=2.0)
    assert kept.weights.sum() == pytest.approx(1.0)
    torch.testing.assert_close(kept.weights / kept.weights.max(), free.weights / free.weights.max())


def test_normalized_weights_that_would_harm_more_are_left_as_they_are() -> None:
    # the first sample is beyond help; making room for it harms the second, which its own gradient holds up
    h = torch.tensor([[0.1**0.5, 0.0], [0.0, 1.0]], dtype=torch.float64)
    delta = torch.ones(2, 1, dtype=torch.float64)
    update = Update(history_W=torch.tensor([[-10 / 0.1**0.5, -0.5]], dtype=torch.float64))
    found = reweight(h, delta, update, bias=False)
    torch.testing.assert_close(found.margins_before, torch.tensor([-9.95, 0.0], dtype=torch.float64))
    torch.testing.assert_close(found.weights, torch.tensor([1.0, 0.5], dtype=torch.float64))
    normalized = found.weights / found.weights.sum()
    harm = total_harm(torch.tensor([-10.0, -0.5]).double() + torch.tensor([0.1, 1.0]).double() * normalized)
    assert harm > total_harm(found.margins_before) > total_harm(found.margins_after)


def test_no_harm_means_factors_of_exactly_one() -> None:
    h = torch.rand(9, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    found = reweight(h, torch.ones(9, 1) * 0.3, bias=False, normalize=True)
    assert torch.equal(found.factors, torch.ones(9))
    assert torch.equal(found.weights, torch.full((9,), 1 / 9))
    for size in range(2, 64):  # of which many have a share that does not add up to 1 exactly
        assert torch.equal(reweight(torch.ones(size, 1), torch.ones(size, 1)).factors, torch.ones(size))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_leave_the_weights_alone(bad: float) -> None:
    drawn = last_layer(8, 0)
    for which in range(3):
        h, delta, history = drawn.h.clone(), drawn.delta.clone(), drawn.history.clone()
        (h, delta, history)[which][0, 0] = bad
        found = reweight(h, delta, Update(history_W=history))
        assert not found.finite
        assert torch.equal(found.factors, torch.ones(8, dtype=torch.float64))


def test_one_infinite_margin_leaves_all_weights_alone() -> None:
    delta = torch.ones(3, 1, dtype=torch.float64)
    update = Update(history_W=torch.tensor([[float("inf"), -5.0, 1.0]], dtype=torch.float64))
    h = torch.tensor([[1.0, 1.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 2.0]], dtype=torch.float64)
    found = reweight(h, delta, update)
    assert not found.finite
    assert torch.equal(found.factors, torch.ones(3, dtype=torch.float64))


def test_samples_without_gradient_touch_nobody() -> None:
    drawn = last_layer(16, 5)
    delta = drawn.delta.clone()
    delta[[3, 9]] = 0
    update = Update(history_W=drawn.history)
    masked = reweight(drawn.h, delta, update, normalize=False, omega=1 / 16)
    kept = torch.tensor([place for place in range(16) if place not in (3, 9)])
    alone = reweight(drawn.h[kept], delta[kept], update, normalize=False, omega=1 / 16)
    torch.testing.assert_close(masked.weights[kept], alone.weights)
    assert torch.equal(masked.weights[[3, 9]], torch.full((2,), 1 / 16, dtype=torch.float64))


def test_an_optimizer_without_use_for_the_gradient_gets_it_unchanged() -> None:
    drawn = last_layer(8, 0)
    found = reweight(drawn.h, drawn.delta, Update(history_W=drawn.history, kappa=0.0))
    assert torch.equal(found.factors, torch.ones(8, dtype=torch.float64))


def test_a_larger_price_leaves_less_harm() -> None:
    drawn = last_layer(64, 6)
    update = Update(history_W=drawn.history)
    left = [
        float(
            total_harm(
                reweight(
                    drawn.h, drawn.delta, update, max_upweight=tau, n_iter=500, normalize=False
                ).margins_after
            )
        )
        for tau in (0.25, 1.0, 4.0, 16.0)
    ]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 0.2 * left[0]


def test_the_layers_gram_matrix_is_what_the_weights_rest_on() -> None:
    drawn = last_layer(10, 7)
    K = last_layer_gram(drawn.h, drawn.delta)
    found = reweight(drawn.h, drawn.delta)
    torch.testing.assert_close(found.margins_before, K.mean(1))
    torch.testing.assert_close(found.margins_after, K @ found.weights)
