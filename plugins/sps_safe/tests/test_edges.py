"""Every edge case: bad arguments, losses and gradients that are not finite, idle parameters."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from leyden_sps_safe import IMASPSSafe, SPSSafe
from leyden_sps_safe.loss_aware import Events, Taken
from torch import Tensor, nn

BOTH = pytest.mark.parametrize("kind", [SPSSafe, IMASPSSafe])
NAN, INF = math.nan, math.inf


def one(value: float = 1.0, gradient: float | None = 1.0) -> nn.Parameter:
    parameter = nn.Parameter(torch.tensor([value]))
    parameter.grad = None if gradient is None else torch.tensor([gradient])
    return parameter


def steps(optimizer: Any, *losses: float) -> None:
    for loss in losses:
        optimizer.step(loss=loss)


@BOTH
@pytest.mark.parametrize("M", [0.0, -1.0, NAN, INF, "automatic", None])
def test_a_safeguard_that_is_not_positive_and_finite_is_refused(kind: Any, M: Any) -> None:
    with pytest.raises(ValueError, match=r'^M must be a finite number above 0, got .*; or "auto"$'):
        kind([one()], M=M)


@BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ell_star", INF),
        ("ell_star", NAN),
        ("weight_decay", -0.1),
        ("weight_decay", NAN),
        ("lr", -1.0),
        ("lr", INF),
    ],
)
def test_an_argument_out_of_range_is_refused_by_name(kind: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a finite number.*, got {value}"):
        kind([one()], **{name: value})


@pytest.mark.parametrize("lambd", [-1.0, NAN, INF, "increasing"])
def test_an_averaging_parameter_out_of_range_is_refused(lambd: Any) -> None:
    with pytest.raises(ValueError, match=r'^lambd must be a finite number of at least 0, got .*; or "t"$'):
        IMASPSSafe([one()], lambd)


@BOTH
def test_gradients_without_a_loss_raise_and_say_what_to_do(kind: Any) -> None:
    for call in (lambda o: o.step(), lambda o: o.step(lambda: None)):
        parameter = one()
        with pytest.raises(RuntimeError, match=r"step\(loss=\.\.\.\).*closure.*LossFeed"):
            call(kind([parameter]))
        assert parameter.item() == 1


@BOTH
@pytest.mark.parametrize(
    "loss", [torch.ones(3), torch.ones(2, 2), torch.ones(0), torch.ones((), dtype=torch.cfloat)]
)
def test_a_loss_that_is_no_single_number_is_refused_with_its_shape(kind: Any, loss: Tensor) -> None:
    parameter = one()
    optimizer = kind([parameter])
    shape = str(tuple(loss.shape)).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(
        ValueError, match=f"^loss must be a single real number, got {loss.dtype} of shape {shape}"
    ):
        optimizer.step(loss=loss)
    with pytest.raises(ValueError, match=r"^loss must be a tensor or a number, got dict"):
        optimizer.step(loss={"loss": 1.0})  # type: ignore[arg-type]
    assert parameter.item() == 1


@BOTH
def test_a_loss_of_one_element_or_of_another_type_is_a_number(kind: Any) -> None:
    for loss in (torch.tensor([2.0]), torch.tensor(2.0, dtype=torch.bfloat16), torch.tensor(2), 2, 2.0):
        parameter = one(0.0)
        kind([parameter]).step(loss=loss)
        assert parameter.item() == (-2.0 if kind is SPSSafe else -1.0)


@BOTH
def test_a_loss_below_its_bound_takes_no_step_and_warns_once(kind: Any) -> None:
    parameter = one()
    optimizer = kind([parameter], ell_star=2.0)
    with pytest.warns(RuntimeWarning, match="below ell_star.*lower ell_star") as caught:
        steps(optimizer, 1.0, 0.5)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert parameter.item() == 1
    assert optimizer.last_step_size == 0
    assert optimizer.skipped_steps == 0


def state_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    tensors = [value for state in optimizer.state.values() for value in state.values()]
    tensors += [
        value for group in optimizer.param_groups for value in group.values() if isinstance(value, Tensor)
    ]
    return [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("arguments", [{}, {"M": "auto"}, {"M": "auto", "weight_decay": 0.1}])
@pytest.mark.parametrize("fault", ["loss nan", "loss inf", "loss -inf", "gradient nan", "gradient inf"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [SPSSafe, IMASPSSafe, "t"])
def test_a_number_that_is_not_finite_skips_the_update_bit_for_bit_and_warns_once(
    kind: Any, fault: str, first: bool, arguments: dict[str, Any]
) -> None:
    def build() -> tuple[list[nn.Parameter], Any]:
        parameters = [nn.Parameter(torch.tensor([1.0, -0.0])), nn.Parameter(torch.tensor([[0.3]]))]
        if kind == "t":
            return parameters, IMASPSSafe(parameters, "t", **arguments)
        return parameters, kind(parameters, **arguments)

    def step(
        parameters: list[nn.Parameter], optimizer: Any, loss: float, gradient: float, times: int = 1
    ) -> None:
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, gradient)
        steps(optimizer, *[loss] * times)

    def bits(parameters: list[nn.Parameter]) -> list[int]:
        return torch.cat([p.detach().reshape(-1) for p in parameters]).view(torch.int32).tolist()

    what, number = fault.split()
    bad = (float(number), 0.5) if what == "loss" else (1.5, float(number))
    harmed, optimizer = build()
    unharmed, twin = build()
    if not first:
        step(harmed, optimizer, 1.0, 0.7)
        step(unharmed, twin, 1.0, 0.7)
    before, state = bits(harmed), state_of(optimizer)
    with pytest.warns(RuntimeWarning, match="skipped an update.*NaN or infinite") as caught:
        step(harmed, optimizer, *bad, times=2)
    assert len(caught) == 1
    assert bits(harmed) == before
    if not first:
        assert all(torch.equal(a, b) for a, b in zip(state, state_of(optimizer), strict=True))
    assert optimizer.skipped_steps == 2
    assert optimizer.last_step_size == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loss in (2.0, 0.4):
            step(harmed, optimizer, loss, 0.9)
            step(unharmed, twin, loss, 0.9)
    assert bits(harmed) == bits(unharmed)
    assert all(torch.equal(a, b) for a, b in zip(state_of(optimizer), state_of(twin), strict=True))


@BOTH
def test_parameters_without_gradient_are_left_alone(kind: Any) -> None:
    moving, still, frozen = one(), one(gradient=None), one(gradient=None).requires_grad_(False)
    optimizer = kind([moving, still, frozen], weight_decay=0.5)
    optimizer.step(loss=1.0)
    assert moving.item() != 1
    assert (still.item(), frozen.item()) == (1, 1)
    assert still not in optimizer.state


@BOTH
def test_a_step_without_any_gradient_changes_nothing(kind: Any) -> None:
    parameter = one(gradient=None)
    optimizer = kind([parameter], weight_decay=0.5, M="auto")
    before = optimizer.state_dict()
    optimizer.step()
    optimizer.step(lambda: None)
    optimizer.step(loss=2.0)
    assert parameter.item() == 1
    assert optimizer.state_dict() == before
    assert optimizer.last_step_size is None


def test_a_parameter_that_gets_its_gradient_later_starts_its_average_then() -> None:
    early, late = one(), one(gradient=None)
    optimizer = IMASPSSafe([early, late], 9.0)
    optimizer.step(loss=1.0)
    late.grad = torch.tensor([1.0])
    optimizer.step(loss=1.0)
    z = optimizer.state[late]["z"]
    assert z.item() < 1
    assert late.item() == pytest.approx((9 + z.item()) / 10)


@BOTH
def test_a_zero_gradient_gives_a_finite_step_and_only_decays(kind: Any) -> None:
    parameter = one(gradient=0.0)
    optimizer = kind([parameter], M=2.0, weight_decay=0.1)
    optimizer.step(loss=3.0)
    assert optimizer.last_step_size == 1.5
    assert parameter.item() == pytest.approx(1 - 0.15)
    parameter = one(gradient=0.0)
    kind([parameter]).step(loss=3.0)
    assert parameter.item() == 1


@BOTH
def test_sparse_gradients_are_refused(kind: Any) -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    loss = embedding(torch.tensor([1])).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="sparse"):
        kind(embedding.parameters()).step(loss=loss)


@BOTH
def test_automatic_safeguard_without_a_gradient_falls_back_to_one_and_warns(kind: Any) -> None:
    parameter = one(gradient=0.0)
    optimizer = kind([parameter], M="auto")
    with pytest.warns(RuntimeWarning, match="became 1.0") as caught:
        steps(optimizer, 1.0, 1.0)
    assert len(caught) == 1
    assert optimizer.param_groups[0]["resolved_M"] == 1
    parameter.grad = torch.tensor([3.0])
    optimizer.step(loss=1.0)
    assert optimizer.param_groups[0]["resolved_M"] == 1


@BOTH
def test_a_skipped_first_step_leaves_the_automatic_safeguard_open(kind: Any) -> None:
    parameter = one(gradient=0.0)
    optimizer = kind([parameter], M="auto")
    with pytest.warns(RuntimeWarning, match="skipped an update") as caught:
        optimizer.step(loss=NAN)
    assert len(caught) == 1
    parameter.grad = torch.tensor([3.0])
    optimizer.step(loss=1.0)
    assert optimizer.param_groups[0]["resolved_M"] == 9


@BOTH
def test_a_step_too_long_for_its_type_is_skipped(kind: Any) -> None:
    parameter = one(gradient=1e-18)
    optimizer = kind([parameter], M=1e-6)
    with pytest.warns(RuntimeWarning, match="skipped an update"):
        optimizer.step(loss=1e35)
    assert parameter.item() == 1
    assert optimizer.skipped_steps == 1


def test_the_lowest_loss_is_remembered_until_it_is_looked_at() -> None:
    events = Events("SPSSafe")
    for loss in (1.0, -2.0, NAN, 3.0):
        events.record(Taken(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(0.0), torch.tensor(loss)))
    with pytest.warns(RuntimeWarning, match="below ell_star"):
        events.look(-1.0)


@BOTH
def test_automatic_safeguard_is_the_first_squared_norm(kind: Any) -> None:
    parameter = one(gradient=3.0)
    optimizer = kind([parameter], M="auto")
    optimizer.step(loss=1.0)
    assert optimizer.last_step_size == pytest.approx(1 / 9)
    parameter.grad = torch.tensor([0.5])
    optimizer.step(loss=1.0)
    assert optimizer.param_groups[0]["resolved_M"] == 9
    assert optimizer.last_safeguard_active


@BOTH
def test_complex_parameters_move_as_their_real_and_imaginary_parts(kind: Any) -> None:
    start = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128)
    whole, parts = nn.Parameter(start.clone()), nn.Parameter(torch.view_as_real(start).clone())
    left, right = kind([whole], M=0.5, weight_decay=0.1), kind([parts], M=0.5, weight_decay=0.1)
    for _ in range(5):
        for parameter, optimizer in ((whole, left), (parts, right)):
            optimizer.zero_grad()
            real = torch.view_as_real(parameter) if parameter.is_complex() else parameter
            loss = (real - torch.tensor([0.5, -1.0])).abs().sum()
            loss.backward()
            optimizer.step(loss=loss)
    assert torch.equal(torch.view_as_real(whole.detach()), parts.detach())
    assert left.last_grad_norm_sq == right.last_grad_norm_sq


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (SPSSafe, "M", 2.0),
        (SPSSafe, "M", "auto"),
        (SPSSafe, "ell_star", 0.5),
        (IMASPSSafe, "M", 2.0),
        (IMASPSSafe, "ell_star", 0.5),
        (IMASPSSafe, "lambd", 2.0),
        (IMASPSSafe, "lambd", "t"),
    ],
)
def test_groups_that_differ_in_what_belongs_to_the_rule_are_refused(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is one number for the whole model"):
        kind([{"params": [one()]}, {"params": [one()], name: value}])
    optimizer = kind([one()])
    with pytest.raises(ValueError, match=f"^{name} is one number for the whole model"):
        optimizer.add_param_group({"params": [one()], name: value})
    assert len(optimizer.param_groups) == 1


@BOTH
def test_a_setting_of_the_rule_changed_in_one_group_alone_is_refused_at_the_step(kind: Any) -> None:
    x = one()
    optimizer = kind([{"params": [x]}, {"params": [one()]}])
    optimizer.param_groups[1]["M"] = 2.0
    with pytest.raises(ValueError, match=r"^M is one number for the whole model"):
        optimizer.step(loss=1.0)
    assert x.item() == 1
    optimizer.param_groups[0]["M"] = 2.0
    optimizer.step(loss=1.0)
    assert x.item() != 1


@BOTH
def test_groups_may_differ_in_weight_decay_and_lr_and_agree_on_another_rule(kind: Any) -> None:
    x, y = one(), one()
    optimizer = kind([{"params": [x], "M": 5.0}, {"params": [y], "M": 5.0, "weight_decay": 0.5, "lr": 0.25}])
    optimizer.step(loss=1.0)
    assert optimizer.last_step_size == pytest.approx(0.2)
    assert x.item() != y.item()


@BOTH
def test_a_group_added_later_takes_part(kind: Any) -> None:
    x, y = one(), one()
    optimizer = kind([x], M="auto", **({} if kind is SPSSafe else {"lambd": "t"}))
    optimizer.step(loss=1.0)
    optimizer.add_param_group({"params": [y]})
    optimizer.step(loss=1.0)
    assert y.item() != 1
    assert optimizer.last_grad_norm_sq == 2
    assert optimizer.param_groups[1]["resolved_M"] == 1


@BOTH
def test_parameters_that_fsdp1_has_cut_are_refused(kind: Any) -> None:
    parameter = one()
    parameter._fsdp_flattened = True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"FSDP1.*FSDP2"):
        kind([parameter])


class SlowCopy:
    """A marker on a device that takes its time: it is reached at the third look."""

    def __init__(self) -> None:
        self.left = 2

    def record(self) -> None:
        pass

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_from_a_gpu_the_warning_comes_once_its_copy_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Events._place

    def elsewhere(self: Events, like: Tensor) -> None:
        place(self, like)
        self._host = torch.zeros(3)
        self._seen = self._host.numpy()

    monkeypatch.setattr(Events, "_place", elsewhere)
    monkeypatch.setattr(torch.cuda, "Event", SlowCopy)
    x = one()
    optimizer = SPSSafe([x])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(optimizer, NAN, 1.0, 1.0)
    with pytest.warns(RuntimeWarning, match="skipped an update"):
        optimizer.step(loss=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(optimizer, *[1.0] * 70)
