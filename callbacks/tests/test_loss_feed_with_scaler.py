from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from leyden_callbacks import LossFeed
from loss_feed_testbed import EXACT, LinearLoss, NoSynchronisation, loader, rows, scaled, trainer, windows


@pytest.mark.parametrize("size", [1, 3])
def test_losses_are_unscaled_whatever_the_scale(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**7, growth_interval=2)
    module = LinearLoss(dtype=torch.float32)
    run = trainer([LossFeed()], accumulate_grad_batches=size, plugins=scaled(scaler, monkeypatch))
    run.fit(module, loader(rows(10, dtype=torch.float32)))
    expected = windows(module.raw, size, 10)
    assert scaler.get_scale() > 2.0**7
    assert len(module.optimizer.steps) == len(expected)
    for step, window in zip(module.optimizer.steps, expected, strict=True):
        torch.testing.assert_close(step.matching, torch.stack(window).sum() / size)
        torch.testing.assert_close(step.matching, step.by_gradient, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(step.mean, torch.stack(window).mean())


def test_an_infinite_loss_costs_its_own_step_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scaler skips the step; what follows is as if the batch had not been there."""
    parameters = []
    data = rows(8, dtype=torch.float32)
    for infinite, rest in (([3], data), ([], torch.cat([data[:3], data[4:]]))):
        module = LinearLoss(infinite=infinite, dtype=torch.float32)
        plugin = scaled(torch.amp.GradScaler("cpu", init_scale=2.0**10), monkeypatch)
        run = trainer([LossFeed()], plugins=plugin)
        run.fit(module, loader(rest))
        assert len(module.optimizer.steps) == 7
        assert all(torch.isfinite(step.matching) for step in module.optimizer.steps)
        parameters.append(torch.cat([module.x, module.y]).detach())
    torch.testing.assert_close(parameters[0], parameters[1])


def test_a_step_that_the_scaler_skips_leaves_no_loss_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch(pl.Callback):
        seen: list[bool] = []  # noqa: RUF012 - one test

        def on_before_backward(self, trainer: pl.Trainer, *_: Any) -> None:
            self.seen.append(trainer.optimizers[0].pending_loss is None)

    plugin = scaled(torch.amp.GradScaler("cpu"), monkeypatch)
    run = trainer([Watch(), LossFeed()], plugins=plugin)
    run.fit(LinearLoss(infinite=[1], dtype=torch.float32), loader(rows(4, dtype=torch.float32)))
    assert Watch.seen == [True] * 4


def test_a_disabled_scaler_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = LinearLoss()
    run = trainer([LossFeed()], plugins=scaled(torch.amp.GradScaler("cpu", enabled=False), monkeypatch))
    run.fit(module, loader(rows(3)))
    torch.testing.assert_close(
        torch.stack([step.matching for step in module.optimizer.steps]), torch.stack(module.raw), **EXACT
    )


class WatchedFeed(LossFeed):
    def on_before_backward(self, *arguments: Any) -> None:
        with NoSynchronisation():
            super().on_before_backward(*arguments)

    def on_before_optimizer_step(self, *arguments: Any) -> None:
        with NoSynchronisation():
            super().on_before_optimizer_step(*arguments)


def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError), NoSynchronisation():
        torch.ones(()).item()
    module = LinearLoss(dtype=torch.float32)
    plugin = scaled(torch.amp.GradScaler("cpu"), monkeypatch)
    run = trainer([WatchedFeed()], accumulate_grad_batches=2, plugins=plugin)
    run.fit(module, loader(rows(4, dtype=torch.float32)))
    assert len(module.optimizer.steps) == 2
