"""The warm-up in plain loops, beside torch's schedulers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from leyden_warmup import LossWarmup, LossWarmupLR
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR
from warmup_testbed import Classifier, fit, multipliers


def updating(optimizer: optim.Optimizer) -> list[list[float]]:
    """The rates of each update to come; asked after the warm-up took hold, so that its hook runs first."""
    used: list[list[float]] = []
    optimizer.register_step_pre_hook(
        lambda one, args, kwargs: used.append([float(group["lr"]) for group in one.param_groups])
    )
    return used


class Loop:
    """A plain training loop with the warm-up and a scheduler of torch."""

    def __init__(self, warm: bool = True, *, tensor: bool = False, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 3)
        rates = [torch.tensor(0.3), torch.tensor(0.1)] if tensor else [0.3, 0.1]
        groups = [
            {"params": [parameter], "lr": rate}
            for parameter, rate in zip(self.model.parameters(), rates, strict=True)
        ]
        self.optimizer: optim.Optimizer = optim.SGD(groups, lr=0.3, momentum=0.9, foreach=False)
        self.warmup = LossWarmupLR(self.optimizer, **settings) if warm else None
        self.cosine = CosineAnnealingLR(self.optimizer, 10)
        self.used = updating(self.optimizer)
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(12, 8, 4, generator=generator)
        self.labels = torch.randint(3, (12, 8), generator=generator)
        self.losses: list[Tensor] = []
        self.own: list[list[float]] = []

    def walk(self, start: int, stop: int) -> Loop:
        for place in range(start, stop):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.inputs[place]), self.labels[place])
            loss.backward()
            self.own.append(self.rates)
            if self.warmup is not None:
                self.warmup.step(loss)
            assert self.rates == self.own[-1]
            self.losses.append(loss.detach())
            self.optimizer.step()
            self.cosine.step()
        return self

    @property
    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    @property
    def vector(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()


@pytest.mark.parametrize("form", ["smooth", "clipped", "rational"])
def test_the_update_uses_the_multiplied_rate_and_the_other_scheduler_its_own(form: Any) -> None:
    loop, plain = Loop(C=2.0, form=form).walk(0, 12), Loop(warm=False).walk(0, 12)
    assert loop.own == plain.own
    found = multipliers(loop.losses, C=2.0, form=form)
    for own, used, multiplier in zip(loop.own, loop.used, found, strict=True):
        assert used == [rate * multiplier for rate in own]
    assert loop.warmup is not None
    assert loop.warmup.get_last_lr() == loop.used[-1]
    assert loop.warmup.base_lrs == loop.own[-1]


def test_rates_that_are_tensors_change_in_place() -> None:
    loop = Loop(tensor=True)
    tensors = [group["lr"] for group in loop.optimizer.param_groups]
    loop.walk(0, 5)
    assert all(group["lr"] is rate for group, rate in zip(loop.optimizer.param_groups, tensors, strict=True))
    assert loop.used == [pytest.approx(one, rel=1e-6) for one in Loop().walk(0, 5).used]
    assert loop.warmup is not None
    assert [float(rate) for rate in loop.warmup.get_last_lr()] == loop.used[-1]


def test_the_loss_may_be_a_number_and_the_multiplier_is_that_of_the_callback() -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    warmup = LossWarmupLR(optimizer, ema=0.5, monotone=True)
    losses = [3.0, 1.0, 2.0]
    used = updating(optimizer)
    for loss in losses:
        warmup.step(loss)
        optimizer.step()
    assert used == [[0.5 * m] for m in multipliers([torch.tensor(x) for x in losses], ema=0.5, monotone=True)]


def test_a_second_loss_before_the_update_replaces_the_first() -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    warmup = LossWarmupLR(optimizer)
    used = updating(optimizer)
    warmup.step(4.0)
    warmup.step(1.0)
    optimizer.step()
    assert used == [[0.25]]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_an_update_without_a_loss_takes_the_full_rate() -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    warmup = LossWarmupLR(optimizer)
    used = updating(optimizer)
    warmup.step(4.0)
    optimizer.step()
    optimizer.step()
    assert used == [[0.1], [0.5]]


def test_a_scheduler_sees_its_own_rate_where_a_scaler_skips_the_update() -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    warmup = LossWarmupLR(optimizer)
    halving = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    warmup.step(4.0)
    halving.step()  # the update was skipped
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert warmup.get_last_lr() == [0.1]


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
def test_a_resumed_loop_goes_on_bit_for_bit(waiting: bool, tensor: bool) -> None:
    """Saved after an update, or between ``scheduler.step(loss)`` and the update."""
    settings = {"ema": 0.6, "monotone": True, "max_steps": 9}
    through = Loop(tensor=tensor, **settings).walk(0, 12)
    first, second = Loop(tensor=tensor, **settings).walk(0, 5), Loop(tensor=tensor, **settings)
    assert first.warmup is not None
    assert second.warmup is not None
    if waiting:
        first.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(first.model(first.inputs[5]), first.labels[5])
        loss.backward()
        first.warmup.step(loss)
    saved = copy.deepcopy(
        (first.optimizer.state_dict(), first.warmup.state_dict(), first.cosine.state_dict())
    )
    assert [float(group["lr"]) for group in saved[0]["param_groups"]] == pytest.approx(through.own[5])
    second.model.load_state_dict(first.model.state_dict())
    for one, state in zip((second.optimizer, second.warmup, second.cosine), saved, strict=True):
        one.load_state_dict(state)  # type: ignore[attr-defined]
    assert second.rates == pytest.approx(through.own[5])
    if waiting:
        for mine, other in zip(second.model.parameters(), first.model.parameters(), strict=True):
            mine.grad = other.grad
        second.optimizer.step()
        second.cosine.step()
    second.walk(5 + waiting, 12)
    assert torch.equal(second.vector, through.vector)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("waiting", [False, True])
def test_copies_go_on_as_the_original_does(duplicate: Any, waiting: bool) -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    warmup = LossWarmupLR(optimizer, ema=0.5)
    warmup.step(4.0)
    if not waiting:
        optimizer.step()
    other, twin = duplicate((optimizer, warmup))
    for one, schedule in ((optimizer, warmup), (other, twin)):
        used = updating(one)
        one.step()
        schedule.step(1.0)
        one.step()
        assert used == [[0.1 if waiting else 0.5], [pytest.approx(0.5 / 3.5)]]
        assert one.param_groups[0]["lr"] == 0.5


def test_two_on_one_optimizer_are_refused() -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    LossWarmupLR(optimizer)
    with pytest.raises(ValueError, match="this SGD has a loss-driven warm-up already"):
        LossWarmupLR(optimizer)


def test_a_wrong_setting_is_named_before_the_optimizer_is_touched() -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    with pytest.raises(ValueError, match=r"^C: expected a finite number above 0, got 0"):
        LossWarmupLR(optimizer, C=0)
    LossWarmupLR(optimizer)


class Nameless(optim.Optimizer):
    """An optimizer without a learning rate."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"eta": 0.1})

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return closure()


def test_what_has_no_rate_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^optimizer: Nameless has no learning rate \('lr'\)"):
        LossWarmupLR(Nameless([nn.Parameter(torch.ones(1))]))
    with pytest.raises(ValueError, match=r"^optimizer: Nameless has no learning rate \('lr'\)"):
        fit(Classifier(Nameless), LossWarmup())
    with pytest.raises(ValueError, match=r"^optimizer: expected an Optimizer, got Linear"):
        LossWarmupLR(nn.Linear(1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loss", "told"),
    [(None, "None"), ("1", "'1'"), ([1.0], r"\[1.0\]"), (torch.ones(3), r"a tensor of shape \(3,\)")],
)
def test_what_is_no_loss_is_told_and_changes_nothing(loss: Any, told: str) -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    warmup = LossWarmupLR(optimizer)
    warmup.step(4.0)
    with pytest.raises(ValueError, match=f"^loss: LossWarmupLR.step expected .* got {told}"):
        warmup.step(loss)
    used = updating(optimizer)
    optimizer.step()
    assert used == [[0.1]]


class FailsOnce(optim.SGD):
    """Raises in its first update, after the rates were multiplied."""

    failed = False

    def step(self, closure: Any = None) -> Any:
        if self.failed:
            return super().step(closure)
        if closure is not None:
            closure()
        self.failed = True
        raise RuntimeError("broken on purpose")


def test_after_an_update_that_raised_the_next_closure_sees_the_rate_of_the_user() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = FailsOnce([weight], lr=0.5)
    warmup = LossWarmupLR(optimizer, C=1.0)
    seen: list[float] = []

    def closure() -> Tensor:
        seen.append(optimizer.param_groups[0]["lr"])
        weight.grad = torch.ones(1)
        return weight.detach().sum()

    warmup.step(4.0)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        optimizer.step(closure)
    before = weight.item()
    optimizer.step(closure)
    assert seen == [0.5, 0.5]
    assert before - weight.item() == pytest.approx(0.1)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_after_an_update_that_raised_a_loaded_state_brings_the_rates_of_the_user() -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    saved = optim.SGD([weight], lr=0.3).state_dict()
    optimizer = FailsOnce([weight], lr=0.5)
    warmup = LossWarmupLR(optimizer, C=1.0)
    warmup.step(4.0)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        optimizer.step()
    optimizer.load_state_dict(saved)
    warmup.step(1.0)
    assert warmup.base_lrs == [0.3]
    before = weight.item()
    optimizer.step()
    assert before - weight.item() == pytest.approx(0.15)
    assert optimizer.param_groups[0]["lr"] == 0.3
