"""What is saved comes back bit for bit, in its own precision, and a step reads nothing from the device."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from leyden_sps_safe import ALIG, IMASPS, SPS, AdaGradNorm, DecSPS, IMASPSSafe, SPSMax, SPSPlus, SPSSafe
from torch import Tensor, nn

METHODS: dict[str, Any] = {
    "SPSSafe": SPSSafe,
    "SPSSafe auto": lambda p: SPSSafe(p, M="auto", weight_decay=0.01),
    "IMASPSSafe": lambda p: IMASPSSafe(p, 9.0, weight_decay=0.01),
    "IMASPSSafe auto t": lambda p: IMASPSSafe(p, "t", M="auto"),
    "IMASPSSafe 0": lambda p: IMASPSSafe(p, 0.0),
    "SPS": SPS,
    "SPSMax": SPSMax,
    "SPSMax smoothed": lambda p: SPSMax(p, growth=0.1),
    "DecSPS": DecSPS,
    "ALIG": ALIG,
    "AdaGradNorm": AdaGradNorm,
    "SPSPlus": SPSPlus,
    "IMASPS": lambda p: IMASPS(p, "t"),
}
ALL = pytest.mark.parametrize("name", METHODS)


class Training:
    """A small classifier in a plain loop, which can be saved, and resumed at any step."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.name = name
        self.model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)
        self.optimizer = METHODS[name](self.model.parameters())
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(20, 8, 6, generator=generator).to(dtype)
        self.labels = torch.randint(3, (20, 8), generator=generator)

    def walk(self, start: int, stop: int) -> Training:
        for step in range(start, stop):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.inputs[step]), self.labels[step])
            loss.backward()
            extra = {"optimal_loss": 0.5 * loss.detach()} if self.name in ("SPSPlus", "IMASPS") else {}
            self.optimizer.step(loss=loss, **extra)
        return self

    @property
    def weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_run_resumed_from_a_file_equals_an_uninterrupted_one_bit_for_bit(
    name: str, dtype: torch.dtype
) -> None:
    through = Training(name, dtype).walk(0, 12)
    first = Training(name, dtype).walk(0, 6)
    file = io.BytesIO()
    torch.save({"model": first.model.state_dict(), "optimizer": first.optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = Training(name, dtype)
    second.model.load_state_dict(saved["model"])
    second.optimizer.load_state_dict(saved["optimizer"])
    assert torch.equal(second.walk(6, 12).weights, through.weights)


@ALL
def test_a_loaded_state_is_a_copy(name: str) -> None:
    first = Training(name).walk(0, 3)
    second = Training(name)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    before = first.weights.clone()
    second.walk(3, 8)
    assert torch.equal(first.weights, before)
    through = Training(name).walk(0, 8)
    assert torch.equal(first.walk(3, 8).weights, through.weights)


@ALL
def test_copies_and_pickles_step_on(name: str) -> None:
    through = Training(name).walk(0, 8)
    for duplicate in (copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))):
        first = Training(name).walk(0, 4)
        first.model, first.optimizer = duplicate((first.model, first.optimizer))
        assert torch.equal(first.walk(4, 8).weights, through.weights)


def test_the_average_of_bfloat16_parameters_is_kept_in_float32_through_a_round_trip() -> None:
    first = Training("IMASPSSafe", torch.bfloat16).walk(0, 6)
    second = Training("IMASPSSafe", torch.bfloat16)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    pairs = zip(first.optimizer.state.values(), second.optimizer.state.values(), strict=True)
    for old, new in pairs:
        assert old["z"].dtype == new["z"].dtype == torch.float32
        assert torch.equal(old["z"], new["z"])
        assert not torch.equal(old["z"], old["z"].to(torch.bfloat16).float())


def test_bfloat16_parameters_take_the_rounded_step_of_float32_ones() -> None:
    low = nn.Parameter(torch.randn(100, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16))
    high = nn.Parameter(low.detach().float())
    low.grad = torch.randn(100, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    high.grad = low.grad.float()
    low_optimizer, high_optimizer = SPSSafe([low]), SPSSafe([high])
    low_optimizer.step(loss=torch.tensor(3.0, dtype=torch.bfloat16))
    high_optimizer.step(loss=3.0)
    assert low_optimizer.last_grad_norm_sq == high_optimizer.last_grad_norm_sq
    assert low_optimizer.last_grad_norm_sq.dtype == torch.float32
    assert torch.equal(low, high.to(torch.bfloat16))


def test_state_holds_what_the_rule_needs() -> None:
    training = Training("IMASPSSafe auto t").walk(0, 5)
    saved = training.optimizer.state_dict()
    assert saved["param_groups"][0]["steps"] == 5
    assert saved["param_groups"][0]["resolved_M"] > 0
    assert saved["param_groups"][0]["M"] == "auto"
    assert all(set(state) == {"z"} for state in saved["state"].values())


def test_the_distributed_checkpoint_saves_and_loads_it() -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    for name in ("SPSSafe auto", "IMASPSSafe auto t"):
        through = Training(name).walk(0, 8)
        first, second = Training(name).walk(0, 4), Training(name)
        before = second.weights.clone()
        saved = copy.deepcopy(get_optimizer_state_dict(first.model, first.optimizer))
        second.model.load_state_dict(first.model.state_dict())
        set_optimizer_state_dict(second.model, second.optimizer, saved)
        assert torch.equal(second.walk(4, 8).weights, through.weights)
        fresh = Training(name)
        get_optimizer_state_dict(fresh.model, fresh.optimizer)
        assert torch.equal(fresh.weights, before)
        assert torch.equal(fresh.walk(0, 8).weights, through.weights)


@ALL
def test_a_step_calls_item_nowhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(name).walk(0, 1)

    def refuse(self: Tensor, *args: Any) -> Any:
        raise AssertionError("a number was read from a tensor")

    def step() -> None:
        training.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(training.model(training.inputs[0]), training.labels[0])
        loss.backward()
        extra = {"optimal_loss": 0.5} if name in ("SPSPlus", "IMASPS") else {}
        with monkeypatch.context() as patch:
            for method in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__"):
                patch.setattr(Tensor, method, refuse)
            training.optimizer.step(loss=loss, **extra)

    before = training.weights.clone()
    step()
    assert not torch.equal(training.weights, before)
