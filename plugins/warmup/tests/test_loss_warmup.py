"""Under a Trainer: the update takes the multiplied rate, everybody else sees the rate without the warm-up."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from leyden.testing import RecordingLeydenLogger, RecordingLogger
from leyden.testing.host_sync import host_syncs
from leyden_warmup import LossWarmup, LossWarmupLR
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler as schedulers
from warmup_testbed import Classifier, Rates, fit, multipliers, rates, scaled, sgd


def adam(groups: Any, **options: Any) -> optim.Optimizer:
    groups[1]["lr"] = 0.003
    return optim.Adam(groups, lr=0.01, **options)


def lbfgs(groups: Any) -> optim.Optimizer:
    return optim.LBFGS([p for group in groups for p in group["params"]], lr=0.3, max_iter=4)


SCHEDULERS: dict[str, Any] = {
    "none": None,
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 3),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 5]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.1, total_iters=8),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 12),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4, 2),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0, threshold=0.3),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.3, step_size_up=3),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.4, total_steps=20),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=4), schedulers.CosineAnnealingLR(o, 12)], [4]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.LinearLR(o, 0.1, total_iters=4), schedulers.ExponentialLR(o, 0.9)]
    ),
}
OPTIMIZERS = {
    "SGD": sgd,
    "SGD foreach": lambda g: optim.SGD(g, lr=0.2, momentum=0.9, foreach=True),
    "SGD fused": lambda g: optim.SGD(g, lr=0.2, momentum=0.9, fused=True),
    "Adam": adam,
    "Adam fused": lambda g: adam(g, fused=True),
    "AdamW": lambda g: optim.AdamW(g, lr=0.01),
}


def test_the_table_of_schedulers_is_that_of_torch() -> None:
    known = {
        name
        for name, one in vars(schedulers).items()
        if isinstance(one, type) and issubclass(one, schedulers.LRScheduler)
    }
    assert known - {"LRScheduler", "_LRScheduler"} <= set(SCHEDULERS)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_sees_the_rate_as_it_is_without_the_warm_up(name: str) -> None:
    """Its own sequence of rates is the same bit for bit; the update's is that times the multiplier."""
    runs, losses = {}, []
    for key, callbacks in (("without", []), ("with", [LossWarmup(C=1.0)])):
        noted, module = Rates(), Classifier(sgd, SCHEDULERS[name])
        fit(module, *callbacks, noted)
        runs[key] = noted
        losses = module.losses
    between = runs["with"].between
    if name != "ReduceLROnPlateau":  # its rates depend on the losses
        assert between == runs["without"].between
    used = runs["with"].used
    assert len(used) == len(losses) == 16
    for own, multiplied, multiplier in zip(between, used, multipliers(losses), strict=True):
        assert multiplied == [rate * multiplier for rate in own]
        assert multiplier < 1
    if name == "ReduceLROnPlateau":
        assert any(between[0][0] == pytest.approx(10 * one[0]) for one in between)


def test_momentum_that_a_scheduler_cycles_is_left_alone() -> None:
    found = []
    for callbacks in ([], [LossWarmup()]):
        module = Classifier(sgd, SCHEDULERS["OneCycleLR"])
        runner = fit(module, *callbacks)
        found.append([group["momentum"] for group in runner.optimizers[0].param_groups])
    assert found[0] == found[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheduler", ["CosineAnnealingLR", "OneCycleLR", "LinearLR"])
def test_with_a_vanishing_parameter_the_weights_are_those_without_it(optimizer: str, scheduler: str) -> None:
    vectors = []
    for callbacks in ([], [LossWarmup(C=1e-30)]):
        module = Classifier(OPTIMIZERS[optimizer], SCHEDULERS[scheduler])
        fit(module, *callbacks, max_epochs=4, limit_train_batches=4)
        vectors.append(module.vector)
    assert torch.equal(*vectors)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_update_is_that_of_an_optimizer_whose_rate_is_set_by_hand(optimizer: str) -> None:
    module = Classifier(OPTIMIZERS[optimizer])
    fit(module, LossWarmup(C=0.7))

    class ByHand(Callback):
        def on_before_optimizer_step(self, trainer: pl.Trainer, own: Any, inner: Any) -> None:
            (multiplier,) = multipliers([own.losses[-1]], C=0.7)
            for group in inner.param_groups:
                group["lr"] = group["initial"] * multiplier

        def on_train_start(self, trainer: pl.Trainer, own: Any) -> None:
            for group in trainer.optimizers[0].param_groups:
                group["initial"] = group["lr"]

    other = Classifier(OPTIMIZERS[optimizer])
    fit(other, ByHand())
    assert torch.equal(module.vector, other.vector)
    plain = Classifier(OPTIMIZERS[optimizer])
    fit(plain)
    assert not torch.equal(module.vector, plain.vector)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": False}])
def test_a_rate_that_is_a_tensor_changes_in_place_and_comes_back(options: dict[str, bool]) -> None:
    kept: dict[str, Tensor] = {}

    def build(groups: Any) -> optim.Optimizer:
        kept["rate"] = torch.tensor(0.01)
        return optim.Adam(groups, lr=kept["rate"], **options)

    noted, module = Rates(), Classifier(build)
    runner = fit(module, LossWarmup(), noted)
    for group in runner.optimizers[0].param_groups:
        assert group["lr"] is kept["rate"]
    assert torch.equal(kept["rate"], torch.tensor(0.01))
    # the two groups share the tensor, which is multiplied once
    expected = [0.01 * multiplier for multiplier in multipliers(module.losses)]
    assert [used[0] for used in noted.used] == pytest.approx(expected, rel=1e-6)


def test_a_rate_on_the_device_is_multiplied_without_waiting_for_it() -> None:
    """As a capturable optimizer has it: nothing of a step becomes a number between two logs."""
    found: list[str] = []
    rate = torch.tensor(0.01)

    class Watches(Classifier):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
        ) -> None:
            tensors = [rate, *self.parameters()]
            found.extend(host_syncs(lambda: optimizer.step(closure=optimizer_closure), tensors))

    def build(groups: Any) -> optim.Optimizer:
        return optim.Adam(groups, lr=rate, foreach=False)

    fit(
        Watches(build),
        LossWarmup(ema=0.5, monotone=True, release_at=0.9),
        logger=RecordingLogger(),
        limit_train_batches=5,
    )
    assert [one for one in found if "leyden" in one or "rates.py" in one or "schedule.py" in one] == []


def test_four_accumulated_batches_count_with_the_mean_of_their_losses() -> None:
    noted, module = Rates(), Classifier(sgd)
    fit(module, LossWarmup(), noted, rows=56, accumulate_grad_batches=4)
    losses = torch.stack(module.losses)
    means = [losses[start : start + 4].mean() for start in (0, 4, 8, 12)]
    assert len(losses) == 14
    found = [used[0] / 0.2 for used in noted.used]
    assert found == pytest.approx(multipliers(means), abs=1e-6)


def test_accumulating_four_batches_equals_one_of_four_times_the_size() -> None:
    vectors = []
    for batch, accumulate in ((4, 4), (16, 1)):
        module = Classifier(sgd).double()
        module.training_step = _in_double(module)  # type: ignore[method-assign]
        fit(module, LossWarmup(), batch=batch, accumulate_grad_batches=accumulate, max_epochs=2)
        vectors.append(module.vector)
    torch.testing.assert_close(*vectors, rtol=1e-9, atol=1e-9)


def _in_double(module: Classifier) -> Any:
    step = module.training_step
    return lambda batch, batch_idx: step([batch[0].double(), batch[1]], batch_idx)


@pytest.mark.parametrize("form", ["smooth", "clipped", "rational"])
def test_a_resumed_warm_up_gives_the_same_multipliers_bit_for_bit(form: Any, tmp_path: Path) -> None:
    settings = {"C": 0.8, "form": form, "ema": 0.7, "monotone": True, "max_steps": 13}
    through, module = Rates(), Classifier(sgd, SCHEDULERS["CosineAnnealingLR"])
    fit(module, LossWarmup(**settings), through, max_epochs=2, limit_train_batches=8)
    saver = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    first = Classifier(sgd, SCHEDULERS["CosineAnnealingLR"])
    fit(first, LossWarmup(**settings), saver, limit_train_batches=8, enable_checkpointing=True)
    rest, second = Rates(), Classifier(sgd, SCHEDULERS["CosineAnnealingLR"])
    again = LossWarmup(**settings)
    saved = tmp_path / "last.ckpt"
    fit(second, again, rest, max_epochs=2, limit_train_batches=8, resume_from=saved)
    assert rest.used == through.used[8:]
    assert len(rest.used) == 8
    assert rest.used[-1] == rest.between[-1]  # step 15: over since step 13
    assert torch.equal(second.vector, module.vector)


class SavesEverywhere(Callback):
    """Looks at what a checkpoint would hold, in every hook of a step and in the middle of an update."""

    def __init__(self) -> None:
        self.seen: dict[str, list[list[float]]] = {}

    def look(self, hook: str, trainer: pl.Trainer) -> None:
        saved = trainer.optimizers[0].state_dict()["param_groups"]
        self.seen.setdefault(hook, []).append([float(group["lr"]) for group in saved])

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        optimizer = trainer.optimizers[0]
        optimizer._optimizer_step_code = lambda: self.look("update", trainer)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.look("on_train_batch_start", trainer)

    def on_before_zero_grad(self, trainer: pl.Trainer, *_: Any) -> None:
        self.look("on_before_zero_grad", trainer)

    def on_before_backward(self, trainer: pl.Trainer, *_: Any) -> None:
        self.look("on_before_backward", trainer)

    def on_after_backward(self, trainer: pl.Trainer, *_: Any) -> None:
        self.look("on_after_backward", trainer)

    def on_before_optimizer_step(self, trainer: pl.Trainer, *_: Any) -> None:
        self.look("on_before_optimizer_step", trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.look("on_train_batch_end", trainer)

    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.look("on_validation_start", trainer)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("tensors", [True, False])
def test_a_checkpoint_saved_in_any_hook_holds_the_rates_without_the_warm_up(
    first: bool, tensors: bool
) -> None:
    def build(groups: Any) -> optim.Optimizer:
        for group, rate in zip(groups, (0.2, 0.05), strict=True):
            group["lr"] = torch.tensor(rate) if tensors else rate
        return optim.SGD(groups, lr=0.2)

    saver, noted, module = SavesEverywhere(), Rates(), Classifier(build)
    order = [saver, noted, LossWarmup()] if first else [LossWarmup(), saver, noted]
    fit(module, *order, validate=True, val_check_interval=4)
    assert len(saver.seen) == 8
    for hook, seen in saver.seen.items():
        assert all(one == pytest.approx([0.2, 0.05], rel=1e-7) for one in seen), hook
    expected = [[0.2 * m, 0.05 * m] for m in multipliers(module.losses)]
    flat = [rate for used in noted.used for rate in used]
    assert flat == pytest.approx([rate for one in expected for rate in one], rel=1e-6)


def test_a_looked_at_state_does_not_change_afterwards() -> None:
    kept: list[Any] = []

    class Looks(Callback):
        def on_train_start(self, trainer: pl.Trainer, own: Any) -> None:
            optimizer = trainer.optimizers[0]
            optimizer._optimizer_step_code = lambda: kept.append(
                optimizer.state_dict()["param_groups"][0]["lr"]
            )

    fit(Classifier(lambda groups: optim.SGD(groups, lr=torch.tensor(0.2))), LossWarmup(), Looks())
    assert [float(rate) for rate in kept] == pytest.approx([0.2] * 16)


def test_the_monitor_of_learning_rates_logs_those_without_the_warm_up() -> None:
    logger = RecordingLogger()
    fit(Classifier(sgd), LossWarmup(), LearningRateMonitor("step"), logger=logger, log_every_n_steps=1)
    assert set(logger.of("lr-SGD/pg1").values()) == {0.2}
    assert len(logger.of("lr-SGD/pg1")) == 16


class Breaks(Callback):
    """Makes an update raise, after the closure."""

    def on_train_start(self, trainer: pl.Trainer, own: Any) -> None:
        self.optimizer = trainer.optimizers[0]
        self.optimizer._optimizer_step_code = self.breaks
        self.saved: list[float] = []

    def breaks(self) -> None:
        self.inside = rates(self.optimizer)
        raise RuntimeError("broken on purpose")

    def on_exception(self, *_: Any) -> None:
        self.saved = [group["lr"] for group in self.optimizer.state_dict()["param_groups"]]


@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_raises_leaves_the_rates_as_they_were(first: bool) -> None:
    breaks = Breaks()
    callbacks = [breaks, LossWarmup()] if first else [LossWarmup(), breaks]
    with pytest.raises(RuntimeError, match="broken on purpose"):
        fit(Classifier(sgd), *callbacks)
    assert breaks.inside[0] < 0.2
    assert breaks.saved == [0.2, 0.05]
    assert rates(breaks.optimizer) == [0.2, 0.05]
    assert not breaks.optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    """No update, the same rates, the same average: later multipliers are those without that batch.

    A fused optimizer is called all the same, and skips the update itself.
    """

    def build(groups: Any) -> optim.Optimizer:
        groups[1]["lr"] = 0.05
        return optim.SGD(groups, lr=0.2, momentum=0.9, fused=fused)

    found = []
    for hit in (True, False):
        noted, module = Rates(), Classifier(build)
        plugin = scaled(monkeypatch, init_scale=2.0**10, growth_interval=10_000)
        step = module.training_step

        def scaled_step(
            batch: Any, batch_idx: int, step: Any = step, own: Any = module, hit: bool = hit
        ) -> Any:
            loss = step(batch, batch_idx)
            # a finite loss with an infinite gradient
            return (
                loss + 0 * loss if not (hit and batch_idx == 3) else loss + (own.second.bias * 0).sqrt().sum()
            )

        module.training_step = scaled_step  # type: ignore[method-assign]
        warmup = LossWarmup(ema=0.5)
        runner = fit(module, warmup, noted, plugins=[plugin])
        assert rates(runner.optimizers[0]) == [0.2, 0.05]
        found.append((noted, warmup, module))
    (skipped, warmup, module), (plain, _, _) = found
    assert len(skipped.used) == (16 if fused else 15)
    assert len(plain.used) == 16
    taken = [used for place, used in enumerate(skipped.used) if not (fused and place == 3)]
    assert skipped.between == plain.between
    assert warmup.state_dict()["steps"] == 15
    kept = [loss for place, loss in enumerate(module.losses) if place != 3]
    assert [used[0] / 0.2 for used in taken] == pytest.approx(multipliers(kept, ema=0.5), rel=1e-5)


def test_under_a_scaler_the_loss_is_that_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, module = Rates(), Classifier(sgd)
    fit(module, LossWarmup(), noted, plugins=[scaled(monkeypatch)])
    assert [used[0] / 0.2 for used in noted.used] == pytest.approx(multipliers(module.losses), rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None")
def test_a_batch_without_a_loss_leaves_the_rates_alone() -> None:
    noted, module = Rates(), Classifier(sgd)
    module.no_loss = {2, 5}
    warmup = LossWarmup(ema=0.5)
    fit(module, warmup, noted)
    kept = [loss for place, loss in enumerate(module.losses) if place not in (2, 5)]
    found = iter(multipliers(kept, ema=0.5))
    expected = [1.0 if place in (2, 5) else next(found) for place in range(16)]
    assert [used[0] / 0.2 for used in noted.used] == pytest.approx(expected)
    assert warmup.state_dict()["steps"] == 14


def test_an_optimizer_that_runs_its_closure_several_times_takes_the_first_loss_of_the_step() -> None:
    def counted(loss: Tensor) -> float:
        return float(1 / (1 + loss))

    module, warmup = Classifier(lbfgs), LossWarmup()
    looks = SavesEverywhere()
    runner = fit(module, warmup, looks, batch=16)
    steps = warmup.state_dict()["steps"]
    assert steps == 4
    assert len(module.losses) > 8
    assert all(one == [0.3] for seen in looks.seen.values() for one in seen)
    assert rates(runner.optimizers[0]) == [0.3]
    assert isinstance(runner.optimizers[0].param_groups[0]["lr"], float)
    assert float(warmup.multiplier) in {counted(loss.double()) for loss in module.losses}

    class ByHand(Callback):
        """The same by hand: the first evaluation of a step only tells the loss."""

        def on_train_batch_start(self, trainer: pl.Trainer, own: Any, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                loss = nn.functional.cross_entropy(own.second(own.first(batch[0])), batch[1])
            trainer.optimizers[0].param_groups[0]["lr"] = 0.3 * counted(loss.double())

    other, plain = Classifier(lbfgs), Classifier(lbfgs)
    fit(other, ByHand(), batch=16)
    fit(plain, batch=16)
    torch.testing.assert_close(module.vector, other.vector, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(module.vector, plain.vector, rtol=1e-2)


def test_validation_in_the_middle_changes_nothing() -> None:
    vectors = []
    for options in ({}, {"validate": True, "val_check_interval": 3}):
        module = Classifier(sgd)
        fit(module, LossWarmup(), **options)  # type: ignore[arg-type]
        vectors.append(module.vector)
    assert torch.equal(*vectors)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_clipping_is_independent(clip: float | None) -> None:
    noted, module = Rates(), Classifier(sgd)
    fit(module, LossWarmup(), noted, gradient_clip_val=clip)
    assert [used[0] / 0.2 for used in noted.used] == pytest.approx(multipliers(module.losses), rel=1e-6)


def test_it_logs_every_few_steps() -> None:
    logger, module = RecordingLogger(), Classifier(sgd)
    fit(module, LossWarmup(log_every=5, max_steps=7), logger=logger)
    found = multipliers(module.losses, max_steps=7)
    assert logger.of("warmup/multiplier") == {step: found[step] for step in (0, 5, 10, 15)}
    assert logger.of("warmup/loss_used") == {
        step: pytest.approx(float(module.losses[step])) for step in (0, 5, 10, 15)
    }
    assert logger.of("warmup/lr/0") == {step: 0.2 * found[step] for step in (0, 5, 10, 15)}
    assert logger.of("warmup/lr/1") == {step: 0.05 * found[step] for step in (0, 5, 10, 15)}
    assert logger.of("warmup/released_at_step") == {10: 7, 15: 7}


def test_one_parameter_group_logs_one_rate() -> None:
    logger = RecordingLogger()
    fit(Classifier(lambda groups: optim.SGD(groups[0]["params"], lr=0.2)), LossWarmup(), logger=logger)
    assert list(logger.of("warmup/lr")) == [0, 10]


def test_it_draws_the_rates_at_the_end() -> None:
    logger, module = RecordingLeydenLogger(), Classifier(sgd, SCHEDULERS["CosineAnnealingLR"])
    noted = Rates()
    fit(module, LossWarmup(), noted, logger=logger)
    figure = logger.figures["warmup"]
    left, right = figure.axes
    assert [y for _, y in right.lines[0].get_xydata()] == pytest.approx(multipliers(module.losses))
    used, own = (line.get_xydata()[:, 1] for line in left.lines[:2])
    assert list(own) == [between[0] for between in noted.between]
    assert list(used) == pytest.approx(list(own * multipliers(module.losses)))
    silent = RecordingLeydenLogger()
    fit(Classifier(sgd), LossWarmup(figure=False), logger=silent)
    assert not silent.figures


class Another(LossWarmup):
    """A warm-up of somebody's own."""


def test_two_of_them_in_one_trainer_are_refused() -> None:
    with pytest.raises(MisconfigurationException, match="two LossWarmup callbacks"):
        fit(Classifier(sgd), LossWarmup(), Another(C=2.0))
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `LossWarmup`"):
        fit(Classifier(sgd), LossWarmup(), LossWarmup(C=2.0))  # Lightning itself, when the Trainer is made
    with pytest.raises(MisconfigurationException, match=r"SGD has a LossWarmupLR.*a second time"):
        fit(Classifier(sgd, LossWarmupLR, interval="epoch"), LossWarmup())


def test_manual_optimization_is_refused_with_the_name_of_what_to_use() -> None:
    module = Classifier(sgd)
    module.automatic_optimization = False
    with pytest.raises(
        MisconfigurationException, match=r"Classifier, which optimizes manually.*LossWarmupLR"
    ):
        fit(module, LossWarmup())


def test_without_the_loss_feed_it_says_what_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_CALLBACKS", "0")
    with pytest.raises(MisconfigurationException, match=r"add leyden_callbacks.LossFeed"):
        fit(Classifier(sgd), LossWarmup())


def test_a_loss_below_f_star_warns_once_and_says_what_to_set() -> None:
    module = Classifier(sgd)
    noted = Rates()
    with pytest.warns(UserWarning, match=r"is below f_star=100.*set f_star to a lower bound") as found:
        fit(module, LossWarmup(f_star=100.0, log_every=1), noted)
    assert len([one for one in found if "f_star" in str(one.message)]) == 1
    assert all(used == [0.2, 0.05] for used in noted.used)


def test_negative_losses_with_the_default_f_star_are_told() -> None:
    module = Classifier(sgd)
    step = module.training_step
    module.training_step = lambda batch, batch_idx: step(batch, batch_idx) - 10  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match=r"a loss of -\d.* is below f_star=0"):
        fit(module, LossWarmup())


def test_a_loss_that_is_not_finite_keeps_the_multiplier_and_warns_once() -> None:
    noted, module = Rates(), Classifier(lambda groups: optim.SGD(groups, lr=0.2))
    module.infinite = {0, 3}
    with pytest.warns(UserWarning, match="a loss was not finite") as found:
        fit(module, LossWarmup(log_every=1), noted, limit_train_batches=5)
    assert len([one for one in found if "not finite" in str(one.message)]) == 1
    assert noted.used[0] == [0.2, 0.2]
    module.losses[0] = module.losses[3] = torch.tensor(torch.inf)


def test_the_same_callback_serves_a_second_trainer_from_the_start() -> None:
    warmup = LossWarmup(max_steps=10)
    for _ in range(2):
        noted, module = Rates(), Classifier(sgd)
        fit(module, warmup, noted)
        assert [used[0] / 0.2 for used in noted.used] == pytest.approx(
            multipliers(module.losses, max_steps=10)
        )


def test_copies_taken_in_the_middle_of_a_training_are_whole() -> None:
    copies: list[Any] = []

    class Copier(Callback):
        def on_before_optimizer_step(self, trainer: pl.Trainer, own: Any, optimizer: Any) -> None:
            warmup = next(one for one in trainer.callbacks if isinstance(one, LossWarmup))  # type: ignore[attr-defined]
            copies.extend(
                [copy.deepcopy(warmup), pickle.loads(pickle.dumps(warmup)), copy.deepcopy(optimizer)]
            )

    fit(Classifier(sgd), LossWarmup(C=0.3), Copier(), limit_train_batches=3)
    for one in copies:
        if isinstance(one, LossWarmup):
            assert one.schedule == LossWarmup(C=0.3).schedule
            noted, module = Rates(), Classifier(sgd)
            fit(module, one, noted, limit_train_batches=3)
            assert [used[0] / 0.2 for used in noted.used] == pytest.approx(multipliers(module.losses, C=0.3))
        else:
            assert rates(one) == [0.2, 0.05]
            assert not one._optimizer_step_pre_hooks


def test_after_training_the_optimizer_is_free() -> None:
    module = Classifier(sgd)
    runner = fit(module, LossWarmup())
    (optimizer,) = runner.optimizers
    hooks = [value for name, value in vars(optimizer).items() if name.endswith("_hooks")]
    assert hooks
    assert not any(hooks)


@pytest.mark.parametrize("log_every", [0, -1, True, 1.5])
def test_a_wrong_interval_is_named(log_every: Any) -> None:
    with pytest.raises(ValueError, match=r"^log_every: expected a whole number of at least 1"):
        LossWarmup(log_every=log_every)


@pytest.mark.parametrize("name", ["C", "f_star", "form", "ema", "max_steps", "release_at"])
def test_the_settings_are_checked_at_construction(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        LossWarmup(**{name: float("nan")})  # type: ignore[arg-type]
