"""Gram matrices against per-sample gradients by torch.func, margins against steps of optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from leyden_harm import harm_margins, last_layer_gram
from leyden_harm.affine import Affine, Part, affine_update, layer_update
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

SHAPES = {"rows": (7, 5), "sequences": (7, 3, 5), "images": (7, 2, 2, 5), "wide sequences": (7, 2, 40)}


def layer_and_batch(shape: tuple[int, ...], bias: bool = True) -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    layer = nn.Linear(shape[-1], 4, bias=bias).double()
    h = torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, shape[:-1], generator=generator)
    return layer, h, labels


def sample_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of a sample's cross-entropies over its positions."""
    return nn.functional.cross_entropy(logits.reshape(-1, 4), labels.reshape(-1))


def per_sample_gradients(layer: nn.Linear, h: Tensor, labels: Tensor) -> dict[str, Tensor]:
    def loss(parameters: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return sample_loss(functional_call(layer, parameters, (row,)), label)

    parameters = {name: value.detach() for name, value in layer.named_parameters()}
    return vmap(grad(loss), (None, 0, 0))(parameters, h, labels)


def output_gradients(layer: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    logits = layer(h).detach().requires_grad_()
    total = sum(sample_loss(row, label) for row, label in zip(logits, labels, strict=True))
    (delta,) = torch.autograd.grad(total, logits)  # type: ignore[call-overload]
    return delta


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("preconditioned", [True, False])
@pytest.mark.parametrize("most", [2**26, 60])
def test_the_gram_matrix_is_that_of_per_sample_gradients(
    shape: tuple[int, ...], bias: bool, preconditioned: bool, most: int
) -> None:
    layer, h, labels = layer_and_batch(shape, bias)
    gradients = per_sample_gradients(layer, h, labels)
    generator = torch.Generator().manual_seed(1)
    P = {
        name: torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.1
        if preconditioned
        else torch.ones_like(value)
        for name, value in layer.named_parameters()
    }
    expected = sum(torch.einsum("i...,j...,...->ij", gradients[name], gradients[name], P[name]) for name in P)
    delta = output_gradients(layer, h, labels)
    given = (P["weight"], P.get("bias")) if preconditioned else (None, None)
    K = last_layer_gram(h, delta, *given, bias=bias, max_gram_elements=most)
    torch.testing.assert_close(K, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(K, K.T, rtol=1e-14, atol=0)


def test_only_the_bias_may_have_a_preconditioner() -> None:
    layer, h, labels = layer_and_batch((5, 3))
    delta = output_gradients(layer, h, labels)
    P = torch.rand(4, dtype=torch.float64) + 0.5
    expected = last_layer_gram(h, delta, torch.ones(4, 3, dtype=torch.float64), P)
    torch.testing.assert_close(last_layer_gram(h, delta, None, P), expected)


def test_shapes_that_do_not_fit_are_told() -> None:
    with pytest.raises(ValueError, match=r"h, delta: expected shapes .* got \(3, 2\) and \(4, 2\)"):
        last_layer_gram(torch.zeros(3, 2), torch.zeros(4, 2))


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "dampening": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "weight decay": (torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum, weight decay": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "dampening, weight decay": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    "nesterov, weight decay": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "maximize": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}),
    "SGD fused": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1, "fused": True}),
    "SGD one by one": (torch.optim.SGD, {"momentum": 0.9, "foreach": False}),
    "SGD tensor rate": (torch.optim.SGD, {"momentum": 0.9, "lr": torch.tensor(0.1, dtype=torch.float64)}),
    "Adam": (torch.optim.Adam, {}),
    "Adam, weight decay": (torch.optim.Adam, {"weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "AdamW amsgrad": (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}),
    "AdamW fused": (torch.optim.AdamW, {"weight_decay": 0.1, "fused": True}),
    "AdamW one by one": (torch.optim.AdamW, {"weight_decay": 0.1, "foreach": False}),
    "AdamW capturable": (
        torch.optim.AdamW,
        {"weight_decay": 0.1, "lr": torch.tensor(0.1, dtype=torch.float64), "foreach": False},
    ),
    "AdamW maximize": (torch.optim.AdamW, {"weight_decay": 0.1, "maximize": True}),
}


def preconditioner_after(optimizer: Any, parameter: Tensor) -> Tensor:
    """The preconditioner of the step that was just taken."""
    state, group = optimizer.state[parameter], optimizer.param_groups[0]
    second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    corrected = second / (1 - group["betas"][1] ** float(state["step"]))
    return 1 / (corrected.sqrt() + group["eps"])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("pending", [False, True])
def test_margins_are_what_the_optimizers_own_step_does(name: str, pending: bool) -> None:
    build, settings = OPTIMIZERS[name]
    layer, h, labels = layer_and_batch((7, 5))
    optimizer = build(layer.parameters(), **{"lr": 0.1, **settings})
    climbs = -1 if settings.get("maximize") else 1
    adaptive = build is not torch.optim.SGD
    for step in range(4):
        delta = output_gradients(layer, h, labels)
        gradients = per_sample_gradients(layer, h, labels)
        optimizer.zero_grad()
        if pending:  # half of the window is accumulated already
            (sample_loss(layer(h.flip(0)), labels) / 2).backward()
        earlier = [None if one.grad is None else one.grad.clone() for one in layer.parameters()]
        forms = [affine_update(optimizer, one, optimizer.param_groups[0]) for one in layer.parameters()]
        omega = 1 / 14 if pending else 1 / 7
        (sample_loss(layer(h), labels) * (7 * omega)).backward()
        start = [one.detach().clone() for one in layer.parameters()]
        optimizer.step()
        if adaptive:  # the default takes the previous second moment, which is not the step's own
            forms = [
                form._replace(P=preconditioner_after(optimizer, one))
                for form, one in zip(forms, layer.parameters(), strict=True)
            ]
        if build is torch.optim.AdamW and step == 0:  # where the default has no measure for the decay
            assert all(form.drift is None for form in forms)
            forms = [
                form._replace(drift=settings["weight_decay"] * begun)
                for form, begun in zip(forms, start, strict=True)
            ]
        parts = [
            Part(one, form, 0.1, climbs < 0, grown)
            for one, form, grown in zip(start, forms, earlier, strict=True)
        ]
        update = layer_update(*parts)
        K = last_layer_gram(h, delta, update.P_W, update.P_b)
        margins = harm_margins(
            h,
            delta,
            K,
            history_W=update.history_W,
            history_b=update.history_b,
            kappa=update.kappa,
            omega=omega,
        )
        taken = [(begun - one.detach()) / 0.1 for begun, one in zip(start, layer.parameters(), strict=True)]
        improved = sum(
            torch.einsum("i...,...->i", gradients[key], moved)
            for key, moved in zip(("weight", "bias"), taken, strict=True)
        )
        torch.testing.assert_close(climbs * margins, improved, rtol=1e-6, atol=1e-9)
        assert step == 0 or float(improved.abs().max()) > 1e-4


def test_a_skipped_first_step_leaves_adam_without_a_preconditioner() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter])
    optimizer.state[parameter] = {
        "step": torch.tensor(0.0),
        "exp_avg": torch.zeros(2),
        "exp_avg_sq": torch.zeros(2),
    }
    form = affine_update(optimizer, parameter, optimizer.param_groups[0])
    assert form.P is None
    assert form.kappa == pytest.approx(1.0)


def test_different_groups_of_weight_and_bias_count_with_their_own_rates() -> None:
    layer, h, labels = layer_and_batch((7, 5))
    groups = [
        {"params": [layer.weight], "lr": 0.2, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
        {"params": [layer.bias], "lr": 0.05, "momentum": 0.5, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for _ in range(3):
        delta, gradients = output_gradients(layer, h, labels), per_sample_gradients(layer, h, labels)
        optimizer.zero_grad()
        sample_loss(layer(h), labels).backward()
        forms = [
            Part(one, affine_update(optimizer, one, group), group["lr"])
            for one, group in zip(layer.parameters(), optimizer.param_groups, strict=True)
        ]
        update = layer_update(*forms)
        K = last_layer_gram(h, delta, update.P_W, update.P_b)
        margins = harm_margins(
            h, delta, K, history_W=update.history_W, history_b=update.history_b, kappa=update.kappa
        )
        start = [one.detach().clone() for one in layer.parameters()]
        optimizer.step()
        lost = sum(
            torch.einsum("i...,...->i", gradients[key], begun - one.detach())
            for key, begun, one in zip(("weight", "bias"), start, layer.parameters(), strict=True)
        )
        torch.testing.assert_close(0.2 * margins, lost, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.3, 0.3)])
def test_equal_rates_drop_out_also_where_both_are_zero(rates: tuple[float, float]) -> None:
    weight, bias = torch.ones(2, 3), torch.ones(2)
    form = Affine(torch.ones(2, 3))
    for wrap in (float, torch.tensor):
        update = layer_update(Part(weight, form, wrap(rates[0])), Part(bias, rate=wrap(rates[1])))
        assert update.P_W is None or torch.equal(update.P_W, torch.ones(2, 3))
        assert update.history_W is not None
        torch.testing.assert_close(update.history_W, torch.ones(2, 3))


def test_other_optimizers_have_no_history() -> None:
    parameter = nn.Parameter(torch.ones(2))

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)

    for optimizer in (torch.optim.RMSprop([parameter]), Own([parameter], lr=0.1, momentum=0.9)):
        parameter.grad = torch.ones(2)
        optimizer.step()
        assert affine_update(optimizer, parameter, optimizer.param_groups[0]) == Affine()


def test_asking_leaves_the_state_as_it_is() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], weight_decay=0.1)
    affine_update(optimizer, parameter, optimizer.param_groups[0])
    assert not optimizer.state
