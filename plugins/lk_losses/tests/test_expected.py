from __future__ import annotations

import math

import pytest
import torch
from leyden_lk_losses import (
    AcceptanceMetric,
    LKLoss,
    acceptance_rate,
    expected_tokens,
    expected_tokens_by_depth,
    speedup,
)


def test_the_closed_form_is_exact_at_both_ends() -> None:
    for k in (1, 4, 7):
        assert expected_tokens(0.0, k) == 1
        assert expected_tokens(1.0, k) == k + 1
        assert expected_tokens(0.7, k) == pytest.approx((1 - 0.7 ** (k + 1)) / 0.3, rel=1e-14)
    ends = expected_tokens(torch.tensor([0.0, 1.0, 1 - 1e-7], dtype=torch.float64), 5)
    assert ends[:2].tolist() == [1.0, 6.0]
    assert float(ends[2]) == pytest.approx(6 - 15e-7, abs=1e-12)


def test_equal_rates_by_depth_give_the_closed_form() -> None:
    rates = torch.full((2, 5), 0.6, dtype=torch.float64)
    torch.testing.assert_close(expected_tokens_by_depth(rates), expected_tokens(rates[:, 0], 5))
    assert float(expected_tokens_by_depth(torch.tensor([0.0, 1.0]))) == 1  # the second is never reached


def test_tokens_counted_in_simulated_rounds_are_what_is_expected() -> None:
    generator = torch.Generator().manual_seed(0)
    accepted = torch.rand(200_000, 4, generator=generator) < 0.7
    counted = (1 + accepted.long().cumprod(dim=1).sum(dim=1)).double().mean()
    assert float(counted) == pytest.approx(expected_tokens(0.7, 4), rel=0.01)


def test_a_draft_that_costs_as_much_as_the_target_gains_nothing() -> None:
    assert speedup(1.0, 4, 1.0) == pytest.approx(1.0)
    assert speedup(0.8, 4, 0.0) == expected_tokens(0.8, 4)
    torch.testing.assert_close(
        speedup(torch.tensor([0.8]), 4, 0.05), torch.tensor([expected_tokens(0.8, 4) / 1.2])
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0.5, 0), "^k: .*got 0"),
        ((1.5, 3), "^alpha: .*got 1.5"),
        ((math.nan, 3), "^alpha: "),
    ],
)
def test_a_wrong_argument_is_named(arguments: tuple[float, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        expected_tokens(*arguments)
    with pytest.raises(ValueError, match=text):
        speedup(*arguments, cost_ratio=0.1)


@pytest.mark.parametrize("ratio", [-0.1, math.inf])
def test_a_wrong_cost_is_named(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"^cost_ratio: "):
        speedup(0.5, 3, ratio)


def test_at_temperature_zero_a_token_is_accepted_if_it_is_the_likeliest() -> None:
    target, draft = (
        torch.tensor([[1.0, 2.0, 0.0]]).repeat(2, 1),
        torch.tensor([[0.0, 3.0, 0.0], [3.0, 0.0, 0.0]]),
    )
    assert acceptance_rate(target, draft, temperature=0.0).tolist() == [1.0, 0.0]
    ids = torch.tensor([1, 2, 0])
    assert acceptance_rate(target, draft, temperature=0.0, draft_vocab=ids).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match=r"^temperature: "):
        acceptance_rate(target, draft, temperature=-0.1)
    with pytest.raises(ValueError, match=r"^draft_vocab: .*from 0 to 2, got 3"):
        acceptance_rate(target, draft, draft_vocab=torch.tensor([0, 1, 3]))


def test_the_metric_is_the_mean_over_tokens_of_all_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    draft, target = (torch.randn(5, 2, 6, 9, generator=generator) for _ in range(2))
    mask = torch.rand(5, 2, 6, generator=generator) < 0.7
    mask[:, 0] = True
    metric = AcceptanceMetric(depths=2)
    for rows in (slice(0, 1), slice(1, 5)):
        metric.update(draft[rows], target[rows], mask[rows])
    whole = LKLoss()(draft, target, mask)
    found = metric.compute()
    torch.testing.assert_close(found["alpha"], whole.alpha)
    torch.testing.assert_close(found["tau"], whole.tau_estimate)
    with pytest.raises(ValueError, match=r"expected 2 depths, got 1"):
        metric.update(draft[:, :1], target[:, :1])


def test_a_metric_of_nothing_is_nan_and_a_batch_of_nothing_changes_nothing() -> None:
    metric = AcceptanceMetric(depths=2)
    draft, target = torch.randn(2, 2, 3, 7), torch.randn(2, 2, 3, 7)
    nothing = torch.zeros(2, 2, 3, dtype=torch.bool)
    metric.update(draft, target, nothing)
    assert all(bool(value.isnan().all()) for value in metric.compute().values())
    metric.update(draft, target)
    before = metric.compute()
    metric.update(draft, target, nothing)
    torch.testing.assert_close(metric.compute(), before)


def test_the_metric_takes_the_settings_and_masks_of_the_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    draft, target = (torch.randn(5, 2, 6, size, generator=generator) for size in (4, 9))
    ids = torch.tensor([7, 0, 3, 5])
    mask = torch.rand(5, 6, generator=generator) < 0.7
    metric = AcceptanceMetric(depths=2, temperature=0.6, draft_vocab=ids)
    metric.update(draft[:2], target[:2], mask[:2])
    metric.update(draft[2:], target[2:], mask[2:])
    rates = acceptance_rate(target, draft, draft_vocab=ids, temperature=0.6)
    found = metric.compute()
    torch.testing.assert_close(found["alpha"], torch.stack([rates[:, n][mask].mean() for n in (0, 1)]))
    torch.testing.assert_close(found["tau"], (1 + rates[:, 0] + rates[:, 0] * rates[:, 1])[mask].mean())


@pytest.mark.parametrize("depths", [0, -1])
def test_a_metric_needs_a_depth(depths: int) -> None:
    with pytest.raises(ValueError, match=r"^depths: "):
        AcceptanceMetric(depths=depths)
