from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from leyden_callbacks import LossFeed, window_losses
from leyden_callbacks.loss_feed import _windows
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from lightning.pytorch.strategies import SingleDeviceStrategy
from loss_feed_testbed import (
    EXACT,
    LinearLoss,
    MeanReader,
    Recorder,
    fit,
    loader,
    plain,
    rows,
    trainer,
    windows,
)
from torch import Tensor
from torch.utils.data import DataLoader


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_matching_loss_is_gradient_times_parameters_also_in_a_short_last_window(size: int) -> None:
    optimizer = fit(LinearLoss(), batches=10, max_epochs=2, accumulate_grad_batches=size)
    assert len(optimizer.steps) == 2 * -(-10 // size)
    for step in optimizer.steps:
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)


def test_matching_loss_divides_by_the_window_size_and_mean_loss_by_the_micro_batches_seen() -> None:
    module = LinearLoss()
    optimizer = fit(module, batches=10, max_epochs=2, accumulate_grad_batches=4)
    expected = windows(module.raw, 4, 10)
    assert [len(window) for window in expected] == [4, 4, 2, 4, 4, 2]
    assert len(optimizer.steps) == len(expected)
    for step, window in zip(optimizer.steps, expected, strict=True):
        torch.testing.assert_close(step.matching, torch.stack(window).sum() / 4, **EXACT)
        torch.testing.assert_close(step.mean, torch.stack(window).mean(), **EXACT)


def test_four_accumulated_batches_step_like_the_batch_of_four() -> None:
    parameters = []
    for size, accumulate in ((4, 1), (1, 4)):
        module = LinearLoss()
        run = trainer([LossFeed()], max_epochs=3, accumulate_grad_batches=accumulate)
        run.fit(module, loader(rows(16), batch_size=size))
        assert len(module.optimizer.steps) == 12
        parameters.append(torch.cat([module.x, module.y]).detach())
    torch.testing.assert_close(parameters[0], parameters[1], **EXACT)
    assert not torch.allclose(parameters[0], torch.cat([LinearLoss().x, LinearLoss().y]))


def test_window_size_may_change_between_epochs() -> None:
    module = LinearLoss()
    scheduler = GradientAccumulationScheduler({0: 1, 1: 3})
    optimizer = fit(module, batches=5, max_epochs=2, callbacks=[scheduler, LossFeed()])
    means = [loss.reshape(1) for loss in module.raw[:5]] + [
        torch.stack(module.raw[5:8]).mean().reshape(1),
        torch.stack(module.raw[8:]).mean().reshape(1),
    ]
    torch.testing.assert_close(
        torch.stack([step.mean for step in optimizer.steps]), torch.cat(means), **EXACT
    )
    for step in optimizer.steps:
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)


@pytest.mark.parametrize("skip", [[0], [1], [3], [0, 1], [0, 2, 3, 5], [4, 5, 6, 7]])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.filterwarnings("ignore:.*training_step. returned .None")
def test_skipped_batches_count_neither_in_the_matching_loss_nor_in_the_mean(
    skip: list[int], size: int
) -> None:
    module = LinearLoss(skip=skip)
    optimizer = fit(module, batches=10, accumulate_grad_batches=size)
    expected = windows(module.raw, size, 10)
    assert len(optimizer.steps) == len(expected)
    for step, window in zip(optimizer.steps, expected, strict=True):
        torch.testing.assert_close(step.matching, torch.stack(window).sum() / size, **EXACT)
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)
        torch.testing.assert_close(step.mean, torch.stack(window).mean(), **EXACT)


@pytest.mark.filterwarnings("ignore:train_dataloader yielded None")
def test_an_empty_first_batch_after_which_lightning_zeroes_nothing_adds_to_the_window_before() -> None:
    """Lightning zeroes gradients in the first batch of a window only; without one the old gradient stays."""
    reader = MeanReader()
    module = LinearLoss(lambda groups: Recorder(groups, lr=0.0))
    run = trainer([reader, LossFeed()], accumulate_grad_batches=2)
    first, second, third = ([row] for row in rows(3).split(1))
    run.fit(module, DataLoader([first, second, None, third], batch_size=None, collate_fn=lambda one: one))
    raw = torch.stack(module.raw)
    assert len(raw) == 3
    torch.testing.assert_close(module.optimizer.steps[0].matching, raw[:2].sum() / 2, **EXACT)
    torch.testing.assert_close(module.optimizer.steps[1].matching, raw.sum() / 2, **EXACT)
    torch.testing.assert_close(module.optimizer.steps[1].by_gradient, raw.sum() / 2, **EXACT)
    torch.testing.assert_close(reader.read[1].mean, raw.mean(), **EXACT)


def test_a_window_left_in_the_middle_is_forgotten() -> None:
    class Leaving(LinearLoss):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if self.current_epoch == 0 and batch_idx == 5 else None

    module = Leaving()
    optimizer = fit(module, batches=8, max_epochs=2, accumulate_grad_batches=4)
    assert len(module.raw) == 5 + 8
    assert len(optimizer.steps) == 3
    for step, window in zip(optimizer.steps, (module.raw[:4], module.raw[5:9], module.raw[9:]), strict=True):
        torch.testing.assert_close(step.matching, torch.stack(window).mean(), **EXACT)


def test_a_callback_reads_the_same_losses_wherever_it_stands() -> None:
    before, after = MeanReader(), MeanReader()
    module = LinearLoss(plain)
    fit(module, callbacks=[before, LossFeed(), after], accumulate_grad_batches=4)
    expected = windows(module.raw, 4, 10)
    assert len(before.read) == len(expected) == 3
    for first, second, window in zip(before.read, after.read, expected, strict=True):
        assert first is second
        torch.testing.assert_close(first.mean, torch.stack(window).mean(), **EXACT)
        torch.testing.assert_close(first.matching, torch.stack(window).sum() / 4, **EXACT)
    assert not hasattr(module.optimizer, "pending_loss")


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None")
def test_a_window_without_a_loss_has_no_losses() -> None:
    reader = MeanReader()
    module = LinearLoss(skip=[1])
    optimizer = fit(module, batches=3, callbacks=[LossFeed(), reader])
    assert [losses is None for losses in reader.read] == [False, True, False]
    assert len(optimizer.steps) == 2
    assert optimizer.pending_loss is None


def test_a_closure_run_several_times_is_handed_the_loss_of_each_run() -> None:
    module = LinearLoss(lambda groups: Recorder(groups, evaluations=3))
    optimizer = fit(module, batches=4)
    assert len(module.raw) == len(optimizer.steps) == 12
    for step, raw in zip(optimizer.steps, module.raw, strict=True):
        torch.testing.assert_close(step.matching, raw, **EXACT)
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)
        torch.testing.assert_close(step.mean, raw, **EXACT)


def test_a_closure_run_several_times_in_an_accumulated_window_is_refused() -> None:
    module = LinearLoss(lambda groups: Recorder(groups, evaluations=2))
    with pytest.raises(
        MisconfigurationException, match=r"Recorder runs its closure more than once.*batches=2"
    ):
        fit(module, batches=4, accumulate_grad_batches=2)


def test_lbfgs_with_a_callback_that_needs_the_loss_sees_every_evaluation() -> None:
    reader = MeanReader()
    module = LinearLoss(
        lambda groups: torch.optim.LBFGS([p for g in groups for p in g["params"]], max_iter=3)
    )
    fit(module, batches=2, callbacks=[LossFeed(), reader])
    assert len(module.raw) > 2
    torch.testing.assert_close(
        torch.stack([losses.matching for losses in reader.read]), torch.stack(module.raw), **EXACT
    )


@pytest.mark.parametrize("size", [1, 2])
def test_an_infinite_loss_without_a_scaler_is_handed_on_and_the_next_window_is_finite(size: int) -> None:
    module = LinearLoss(infinite=[2])
    optimizer = fit(module, batches=6, accumulate_grad_batches=size)
    finite = [bool(torch.isfinite(step.matching)) for step in optimizer.steps]
    assert finite == [index != 2 // size for index in range(6 // size)]


@pytest.mark.parametrize(
    ("given", "handed"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
)
def test_losses_are_scalars_in_single_precision_or_better_and_detached(
    given: torch.dtype, handed: torch.dtype
) -> None:
    class Column(LinearLoss):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx).to(given).reshape(1)

    for step in fit(Column(), batches=4, accumulate_grad_batches=2).steps:
        for loss in (step.matching, step.mean):
            assert loss.dtype == handed
            assert loss.shape == ()
            assert not loss.requires_grad


def test_the_loss_handed_over_does_not_change_with_the_users_tensor() -> None:
    class InPlace(LinearLoss):
        def on_after_backward(self) -> None:
            self.kept.detach().zero_()

        def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
            self.kept = loss
            loss.backward()

    optimizer = fit(InPlace(), batches=3)
    for step in optimizer.steps:
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)
        assert step.matching != 0


def test_a_loss_that_is_no_scalar_is_named_with_its_shape() -> None:
    class Vector(LinearLoss):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return torch.cat([self.x, self.y])

    with pytest.raises(MisconfigurationException, match=r"scalar.*\(5,\)"):
        fit(Vector(), batches=1)


def test_nobody_asking_costs_nothing_and_changes_nothing() -> None:
    parameters = []
    for callbacks in ([], [LossFeed()]):
        module = LinearLoss(lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9))
        fit(module, callbacks=callbacks)
        assert module.trainer not in _windows
        assert not hasattr(module.optimizer, "pending_loss")
        parameters.append(torch.cat([module.x, module.y]).detach())
    assert torch.equal(parameters[0], parameters[1])


def test_without_the_feed_an_optimizer_is_handed_nothing() -> None:
    assert [step.matching for step in fit(LinearLoss(), batches=2, callbacks=[]).steps] == [None, None]


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another, in the way of Lookahead; it may need the loss too."""

    def __init__(self, optimizer: torch.optim.Optimizer, needs_loss: bool = False) -> None:
        self.optimizer, self.needs_loss = optimizer, needs_loss
        super().__init__(optimizer.param_groups, {})
        self.pending_loss: Tensor | None = None
        self.seen: list[Tensor | None] = []

    def step(self, closure: Any = None) -> Any:
        result = self.optimizer.step(closure)
        self.seen.append(self.pending_loss)
        return result


@pytest.mark.parametrize("outer_needs_it", [False, True])
def test_an_optimizer_inside_a_wrapper_is_handed_the_loss(outer_needs_it: bool) -> None:
    module = LinearLoss(lambda groups: Wrapper(Recorder(groups), needs_loss=outer_needs_it))
    fit(module, batches=3)
    wrapper = module.trainer.optimizers[0]
    for step, outer in zip(wrapper.optimizer.steps, wrapper.seen, strict=True):
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)
        assert outer is (step.matching if outer_needs_it else None)


def test_lightnings_own_wrapper_is_looked_through() -> None:
    from lightning.pytorch.core.optimizer import LightningOptimizer

    module = LinearLoss(lambda groups: LightningOptimizer(Recorder(groups)))
    fit(module, batches=3)
    wrapper = module.trainer.optimizers[0]
    assert isinstance(wrapper, LightningOptimizer)
    assert not {"pending_loss", "pending_mean_loss"} & set(vars(wrapper))
    assert len(wrapper.optimizer.steps) == 3
    for step in wrapper.optimizer.steps:
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)


def test_manual_optimization_with_several_optimizers_is_left_alone() -> None:
    class Manual(LinearLoss):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [Recorder([self.x]), Recorder([self.y])]

        def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                loss = (batch[0] @ torch.cat([self.x, self.y])).mean()
                self.manual_backward(loss)
                assert optimizer.pending_loss is None
                optimizer.step(loss=loss.detach())
                self.raw.append(loss.detach())
                with pytest.raises(MisconfigurationException, match="manual optimization"):
                    window_losses(self.trainer)

    module = Manual()
    fit(module, batches=2)
    first, second = module.trainer.optimizers
    handed = [step.matching for pair in zip(first.steps, second.steps, strict=True) for step in pair]
    torch.testing.assert_close(torch.stack(handed), torch.stack(module.raw), **EXACT)


class SelfAccumulating(SingleDeviceStrategy):
    handles_gradient_accumulation = True


def test_a_strategy_that_accumulates_by_itself_is_refused_only_where_the_loss_is_needed() -> None:
    with pytest.raises(MisconfigurationException, match=r"Recorder needs the loss.*SelfAccumulating"):
        fit(LinearLoss(), strategy=SelfAccumulating())
    with pytest.raises(MisconfigurationException, match=r"MeanReader needs the loss.*SelfAccumulating"):
        fit(
            LinearLoss(plain),
            callbacks=[MeanReader(), LossFeed()],
            strategy=SelfAccumulating(),
        )
    fit(LinearLoss(plain), strategy=SelfAccumulating())


def test_asking_where_nobody_feeds_says_what_to_do() -> None:
    with pytest.raises(MisconfigurationException, match=r"add leyden_callbacks\.LossFeed\(\)"):
        fit(LinearLoss(), callbacks=[MeanReader()])

    class Undeclared(MeanReader):
        needs_loss = False

    with pytest.raises(MisconfigurationException, match="needs_loss = True"):
        fit(LinearLoss(plain), callbacks=[Undeclared(), LossFeed()])


def clipping_warnings(record: Any) -> list[str]:
    return [str(one.message) for one in record if "gradient_clip_val" in str(one.message)]


def test_clipping_is_warned_of_once_a_fit_and_names_the_optimizer() -> None:
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        fit(LinearLoss(), callbacks=[LossFeed(), LossFeed()], gradient_clip_val=0.5, max_epochs=2)
    (text,) = clipping_warnings(record)
    assert "Recorder" in text
    assert "gradient_clip_val=0.5" in text


def test_clipping_is_no_matter_to_a_callback_that_needs_the_loss_or_to_plain_optimizers() -> None:
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for callbacks in ([LossFeed(), MeanReader()], [LossFeed()]):
            module = LinearLoss(plain)
            fit(module, callbacks=callbacks, gradient_clip_val=0.5)
        fit(LinearLoss(), callbacks=[LossFeed()])
    assert not clipping_warnings(record)


@pytest.mark.parametrize("how", ["two", "the same twice"])
def test_two_in_one_trainer_do_the_work_of_one(how: str) -> None:
    feed = LossFeed()
    module = LinearLoss()
    optimizer = fit(
        module, callbacks=[feed, feed if how == "the same twice" else LossFeed()], accumulate_grad_batches=4
    )
    assert len(optimizer.steps) == 3
    for step, window in zip(optimizer.steps, windows(module.raw, 4, 10), strict=True):
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)
        torch.testing.assert_close(step.mean, torch.stack(window).mean(), **EXACT)


def test_a_list_of_callbacks_serves_two_trainers_even_one_inside_the_other() -> None:
    feed = LossFeed()

    class Nesting(LinearLoss):
        inner: list[Recorder] = []  # noqa: RUF012 - one test

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
            if batch_idx == 3:
                self.inner.append(fit(LinearLoss(), batches=5, callbacks=[feed], accumulate_grad_batches=2))
            return super().training_step(batch, batch_idx)

    outer = fit(Nesting(), batches=6, callbacks=[feed], accumulate_grad_batches=3)
    again = fit(LinearLoss(), batches=6, callbacks=[feed])
    assert [len(one.steps) for one in (outer, *Nesting.inner, again)] == [2, 3, 6]
    for optimizer in (outer, *Nesting.inner, again):
        for step in optimizer.steps:
            torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)


class Copying(LinearLoss):
    def __init__(self) -> None:
        super().__init__()
        self.copies: list[LossFeed] = []
        self.build = Recorder

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        feed = self.trainer.callbacks[0]
        kept, self.copies = self.copies, []
        copies = [copy.deepcopy(feed), pickle.loads(pickle.dumps(feed))]
        self.copies = [*kept, *copies]
        copy.deepcopy(optimizer)


def test_copies_and_pickles_made_while_training_work_and_carry_nothing() -> None:
    module = Copying()
    fit(module, batches=2)
    assert len(module.copies) == 4
    for feed in module.copies:
        assert set(vars(feed)) <= {"log", "log_dict"}  # Lightning puts them on every callback
        for step in fit(LinearLoss(), batches=3, callbacks=[feed]).steps:
            torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)


def test_nothing_is_saved(tmp_path: Any) -> None:
    class Saving(LinearLoss):
        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            assert optimizer.pending_loss is not None
            self.trainer.save_checkpoint(tmp_path / "step.ckpt")

    module = Saving()
    optimizer = fit(module, batches=3)
    saved = torch.load(tmp_path / "step.ckpt", weights_only=True)
    assert saved["callbacks"] == {}
    assert set(saved["optimizer_states"][0]) == {"state", "param_groups"}
    assert saved["optimizer_states"][0]["state"] == {}
    assert all(set(group) == {"lr", "params"} for group in optimizer.param_groups)


def test_a_fit_that_failed_leaves_nothing_to_the_next_one() -> None:
    class Failing(LinearLoss):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
            if len(self.raw) == 1:
                self.raw.append(None)
                raise ArithmeticError
            return super().training_step(batch, batch_idx)

    module = Failing()
    run = trainer([LossFeed()], accumulate_grad_batches=2)
    with pytest.raises(ArithmeticError):
        run.fit(module, loader(rows(4)))
    run.fit(module, loader(rows(4)))
    assert len(module.optimizer.steps) == 2
    for step in module.optimizer.steps:
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)


def test_the_next_fit_of_a_trainer_is_judged_afresh() -> None:
    run = trainer([LossFeed()], gradient_clip_val=1.0)
    with pytest.warns(UserWarning, match="Recorder takes its step"):
        run.fit(LinearLoss(), loader(rows(2)))
    assert window_losses(run) is not None
    run.fit_loop.epoch_progress.reset()
    module = LinearLoss(plain)
    run.fit(module, loader(rows(2)))
    assert len(module.raw) == 2
    with pytest.raises(MisconfigurationException, match="needs_loss = True"):
        window_losses(run)


def test_a_backward_that_failed_and_was_caught_does_not_shut_the_feed() -> None:
    class Surviving(LinearLoss):
        def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
            if len(self.raw) == 2:
                raise torch.OutOfMemoryError
            loss.backward()

        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
            try:
                super().optimizer_step(epoch, batch_idx, optimizer, closure)
            except torch.OutOfMemoryError:
                closure._result = closure._step_fn()
                self.raw.pop()

    optimizer = fit(Surviving(), batches=5)
    assert len(optimizer.steps) == 4
    for step in optimizer.steps:
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)


class Replacing(Callback):
    """Gives the training another optimizer after its second epoch."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.strategy.optimizers = [pl_module.configure_optimizers()]


def test_an_optimizer_that_takes_the_place_of_another_is_handed_the_loss() -> None:
    module = LinearLoss()
    run = trainer([LossFeed(), Replacing()], max_epochs=3)
    run.fit(module, loader(rows(4), batch_size=1))
    assert len(module.optimizer.steps) == 4
    for step in module.optimizer.steps:
        torch.testing.assert_close(step.matching, step.by_gradient, **EXACT)
