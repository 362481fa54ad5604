"""The updates of torch's optimizers as affine functions of the gradient that they are fed.

For every parameter the update per unit of learning rate is P (a + κ ĝ) + drift, with ĝ the gradient, P a
diagonal preconditioner and drift what decoupled weight decay adds; reconstructed for Avranas (2026) from the
code of `torch.optim.SGD`, `Adam` and `AdamW`, for their foreach, fused and capturable forms alike, since they
share one state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from leyden_harm.reweighting import Update


class Affine(NamedTuple):
    """An update P (a + κ ĝ) + drift of one parameter, per unit of learning rate.

    Attributes:
        a: the history, of the parameter's shape; None is 0.
        kappa: the factor κ of the gradient, above 0, a number or a 0-dim tensor.
        P: the diagonal preconditioner, above 0, of the parameter's shape; None is 1.
        drift: what is added outside of P; None is 0.
    """

    a: Tensor | None = None
    kappa: float | Tensor = 1.0
    P: Tensor | None = None
    drift: Tensor | None = None


AffineFunction = Callable[[Optimizer, Tensor], Affine | tuple[Any, ...]]
"""Takes an optimizer and one of its parameters and returns an `Affine`, or the first three of its fields."""

_SGD = ("torch.optim.sgd",)
_ADAM = ("torch.optim.adam", "torch.optim.adamw")


def has_affine_form(optimizer: Optimizer) -> bool:
    """Whether `affine_update` knows the optimizer: its ``step`` is that of torch's SGD, Adam or AdamW.

    Args:
        optimizer: any optimizer.

    Returns:
        False for every other, and for a subclass with a ``step`` of its own.
    """
    return _home(optimizer) in _SGD + _ADAM


@torch.no_grad()
def affine_update(
    optimizer: Optimizer,
    parameter: Tensor,
    group: Mapping[str, Any],
    *,
    include_weight_decay: bool = True,
) -> Affine:
    """The next update of a parameter as an affine function of its gradient (reconstructed).

    It reads the state as it is before the step and changes nothing. Where the group maximises, ĝ is the
    negative gradient, as the optimizer itself takes it. The preconditioner of Adam is that of the previous
    second moment, since the new one depends on the gradient; before its first step it is 1.

    Args:
        optimizer: torch's SGD, Adam or AdamW; every other counts as one without history.
        parameter: the parameter, whatever its shape.
        group: the parameter group that holds it.
        include_weight_decay: whether weight decay counts as part of the update.

    Returns:
        The update; sharded tensors stay sharded.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.5)
    >>> affine_update(optimizer, weight, optimizer.param_groups[0]).a
    tensor([0.5000, 0.5000])
    """
    home = _home(optimizer)
    state = optimizer.state.get(parameter) or {}
    decay = group["weight_decay"] if include_weight_decay and home in _SGD + _ADAM else 0
    decayed = decay * parameter.detach() if decay else None
    if home in _SGD:
        return _sgd(group, state, decayed)
    if home in _ADAM:
        decoupled = bool(group.get("decoupled_weight_decay", home == "torch.optim.adamw"))
        return _adam(group, state, decayed, decoupled)
    return Affine()


def _home(optimizer: Optimizer) -> str:
    """The module that wrote the optimizer's step; torch's and the schedulers' wrappers keep its name."""
    return str(getattr(type(optimizer).step, "__module__", ""))


def _sgd(group: Mapping[str, Any], state: Mapping[str, Any], decayed: Tensor | None) -> Affine:
    momentum, nesterov = group["momentum"], group["nesterov"]
    buffer = state.get("momentum_buffer") if momentum else None
    if buffer is None:
        kappa = 1 + momentum if nesterov else 1.0
        return Affine(_sum((kappa, decayed)), float(kappa))
    fresh = 1 - group["dampening"]
    if nesterov:
        kappa = 1 + momentum * fresh
        return Affine(_sum((momentum**2, buffer), (kappa, decayed)), float(kappa))
    return Affine(_sum((momentum, buffer), (fresh, decayed)), float(fresh))


def _adam(
    group: Mapping[str, Any], state: Mapping[str, Any], decayed: Tensor | None, decoupled: bool
) -> Affine:
    if "exp_avg" not in state:
        return Affine(None if decoupled else decayed)
    beta1, beta2 = group["betas"]
    step = state["step"]
    # On the CPU it is read for nothing; on a device, where it is kept for fused and captured steps, never.
    done: Any = step.item() if step.device.type == "cpu" else step
    correction = 1 - beta1 ** (done + 1)
    kappa = (1 - beta1) / correction
    second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    P = _preconditioner(second, done, beta2, group["eps"])
    a = _sum((beta1 / correction, state["exp_avg"]), (kappa, None if decoupled else decayed))
    return Affine(a, kappa, P, decayed if decoupled else None)


def _preconditioner(second: Tensor, done: Any, beta2: Any, eps: float) -> Tensor | None:
    """1 / (√v̂ + ε); 1 where no step was taken, as after steps that a GradScaler has skipped."""
    if not isinstance(done, Tensor):
        if done < 1:
            return None
        P: Tensor = 1 / ((second.detach() / (1 - beta2**done)).sqrt() + eps)
        return P
    corrected = second.detach() / (1 - beta2 ** done.clamp_min(1))
    return torch.where(done < 1, torch.ones_like(corrected), 1 / (corrected.sqrt() + eps))


def _sum(*terms: tuple[float | Tensor, Tensor | None]) -> Tensor | None:
    total: Tensor | None = None
    for factor, tensor in terms:
        if tensor is not None:
            term: Tensor = factor * tensor.detach()
            total = term if total is None else total + term
    return total


class Part(NamedTuple):
    """One parameter of the last layer, as its optimizer is about to treat it.

    Attributes:
        parameter: the parameter; what counts is its shape, dtype and device.
        form: its affine update.
        rate: its learning rate.
        maximize: whether its optimizer climbs.
        pending: the gradient that it has accumulated already for the coming step, unscaled; None is 0.
    """

    parameter: Tensor
    form: Affine = Affine()
    rate: float | Tensor = 1.0
    maximize: bool = False
    pending: Tensor | None = None


@torch.no_grad()
def layer_update(weight: Part, bias: Part | None = None) -> Update:
    """The update of a layer whose weight and bias may be treated differently (reconstructed).

    The weight's κ is the layer's, and what that of the bias differs by goes into the bias's preconditioner.
    Learning rates that differ go into both, relative to the larger one, so that margins are the change of the
    loss per unit of that rate. Equal rates drop out: a schedule that multiplies all of them changes no
    weight.

    Args:
        weight: the layer's weight, of shape ``(classes, features)``.
        bias: its bias, of shape ``(classes,)``; None where it has none.

    Returns:
        The joint update, in the dtype of the parameters.
    """
    kappa = weight.form.kappa
    if bias is None:
        return Update(_history(weight), None, kappa, weight.form.P, None)
    share_W, share_b = _shares(weight, bias)
    ratio = 1.0 if _same(kappa, bias.form.kappa) else bias.form.kappa / kappa
    return Update(
        _times(share_W, _history(weight)),
        _times(share_b, _history(bias)),
        kappa,
        _metric(weight, share_W),
        _metric(bias, share_b if _same(ratio, 1.0) else share_b * ratio),
    )


def _history(part: Part) -> Tensor | None:
    """P (a + κ pending) + drift, turned round where the optimizer climbs."""
    form, sign = part.form, -1.0 if part.maximize else 1.0
    moved = _sum((1.0, form.a), (sign * form.kappa, part.pending))
    if moved is not None and form.P is not None:
        moved = form.P * moved
    return _sum((sign, moved), (sign, form.drift))


def _metric(part: Part, factor: float | Tensor) -> Tensor | None:
    if _same(factor, 1.0):
        return part.form.P
    return factor * (torch.ones_like(part.parameter) if part.form.P is None else part.form.P)


def _times(factor: float | Tensor, tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or _same(factor, 1.0) else factor * tensor


def _shares(weight: Part, bias: Part) -> tuple[float | Tensor, float | Tensor]:
    """Both learning rates relative to the larger one; 1 where they are equal, as where both are 0."""
    first, second = weight.rate, bias.rate
    if first is second or _same(first, second):
        return 1.0, 1.0
    if not isinstance(first, Tensor) and not isinstance(second, Tensor):
        return first / max(first, second), second / max(first, second)
    rates = [
        one if isinstance(one, Tensor) else weight.parameter.new_full((), one) for one in (first, second)
    ]
    largest = torch.maximum(*rates)
    none = largest <= 0
    return tuple(torch.where(none, 1.0, one / largest.masked_fill(none, 1.0)) for one in rates)  # type: ignore[return-value]


def _same(first: float | Tensor, second: float | Tensor) -> bool:
    return not isinstance(first, Tensor) and not isinstance(second, Tensor) and first == second
