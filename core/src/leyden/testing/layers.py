"""What a layer and a loss owe: right gradients, batches, copies, types, and no silent NaN."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from leyden.testing.fitting import quiet, unequal
from leyden.testing.kit import Subject, owed_by
from leyden.testing.outputs import tensors_in
from leyden.testing.saving import DUPLICATES, same_bits, through_file, unreadable
from leyden.testing.trials import as_double
from leyden.testing.values import inputs_of, is_batched, rows_of, take_rows

DOCUMENTS_NAN = re.compile(r"\bNaNs?\b|not finite|non-?finite|infinit", re.IGNORECASE)


@owed_by("layer", "loss")
def forward(subject: Subject) -> Iterator[str]:
    """It gives finite numbers on its trial's inputs, under ``torch.inference_mode`` too."""
    layer, inputs = prepared(subject)
    outputs = [tensor for tensor in tensors_in(layer(*inputs)) if tensor.is_floating_point()]
    if not outputs:
        yield "its output holds no floating tensor"
    if not all(bool(torch.isfinite(tensor).all()) for tensor in outputs):
        yield "its output is not finite on finite inputs"
    with torch.inference_mode():
        layer(*inputs)


@owed_by("layer", "loss")
def gradients(subject: Subject) -> Iterator[str]:
    """Where its output depends on inputs or parameters, ``gradcheck`` in float64 confirms the gradients."""
    layer, inputs = prepared(subject, double=True)
    layer.eval()
    names = [name for name, parameter in layer.named_parameters() if parameter.requires_grad]
    values = [
        parameter.detach().clone().requires_grad_()
        for parameter in layer.parameters()
        if parameter.requires_grad
    ]
    places = [place for place, value in enumerate(inputs) if _floating(value)]
    values += [inputs[place].detach().clone().requires_grad_() for place in places]

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        filled = list(inputs)
        for place, value in zip(places, given[len(names) :], strict=True):
            filled[place] = value
        parameters = dict(zip(names, given[: len(names)], strict=True))
        output = torch.func.functional_call(layer, parameters, tuple(filled))
        return tuple(tensor for tensor in tensors_in(output) if tensor.requires_grad)

    if not values or not function(*values):
        return
    many = sum(value.numel() for value in values) > 500  # then along random directions, not entry by entry
    try:
        torch.autograd.gradcheck(function, values, eps=1e-6, atol=1e-4, rtol=1e-3, fast_mode=many)
    except Exception as error:
        yield f"torch.autograd.gradcheck in float64: {error}"


@owed_by("layer")
def batches(subject: Subject) -> Iterator[str]:
    """A row of a batch gives what it gives alone (in eval mode)."""
    layer, inputs = prepared(subject, double=True)
    layer.eval()
    for row in (0, rows_of(inputs) - 1):
        whole = [tensor[row : row + 1] for tensor in tensors_in(layer(*inputs)) if is_batched(tensor, inputs)]
        alone = list(tensors_in(layer(*take_rows(inputs, slice(row, row + 1)))))
        for one, other in zip(whole, alone, strict=False):
            if one.shape != other.shape or not torch.allclose(
                one, other, rtol=1e-8, atol=1e-8, equal_nan=True
            ):
                yield f"row {row} of the batch and the same row alone give different outputs"
                return


@owed_by("loss")
def row_order(subject: Subject) -> Iterator[str]:
    """The order of a batch's rows does not matter."""
    loss, inputs = prepared(subject, double=True)
    order = torch.arange(rows_of(inputs) - 1, -1, -1)
    for straight, turned in zip(
        tensors_in(loss(*inputs)), tensors_in(loss(*take_rows(inputs, order))), strict=True
    ):
        expected = straight[order] if is_batched(straight, inputs) else straight
        if not torch.allclose(expected, turned, rtol=1e-8, atol=1e-8):
            yield "with the batch's rows in another order the loss differs"
            return


@owed_by("layer", "loss")
def copies(subject: Subject) -> Iterator[str]:
    """A deep copy and a pickled copy give the same output, before and after the first call."""
    for when in ("", " after a call"):
        layer, inputs = prepared(subject)
        layer.eval()
        expected = list(tensors_in(layer(*inputs))) if when else None
        for how, duplicate in DUPLICATES:
            try:
                outputs = list(tensors_in(duplicate(layer)(*inputs)))
            except Exception as error:
                yield f"{how}{when} raises {type(error).__name__}: {error}"
                continue
            if expected and not all(same_bits(a, b) for a, b in zip(expected, outputs, strict=True)):
                yield f"its {how}{when} gives another output"


@owed_by("layer", "loss")
def saved_state(subject: Subject) -> Iterator[str]:
    """Its ``state_dict`` is read with ``torch.load(weights_only=True)`` and restores the same output."""
    layer, inputs = prepared(subject)
    layer.eval()
    expected = list(tensors_in(layer(*inputs)))
    yield from unreadable(layer.state_dict())
    torch.manual_seed(7)
    other = subject.build()
    other.load_state_dict(through_file(layer.state_dict(), weights_only=False))
    other.eval()
    if difference := unequal(layer.state_dict(), other.state_dict()):
        yield f"after load_state_dict its state is another: {difference}"
    if not all(same_bits(a, b) for a, b in zip(expected, tensors_in(other(*inputs)), strict=True)):
        yield "after load_state_dict it gives another output"


@owed_by("layer", "loss")
def types(subject: Subject) -> Iterator[str]:
    """Inputs in float32 give float32, inputs in float64 give float64."""
    for dtype in (torch.float32, torch.float64):
        layer, inputs = prepared(subject, double=dtype == torch.float64)
        others = {
            str(t.dtype) for t in tensors_in(layer(*inputs)) if t.is_floating_point() and t.dtype != dtype
        }
        if others:
            yield f"inputs in {dtype} give {', '.join(sorted(others))}"


@owed_by("layer", "loss")
def nan_input(subject: Subject) -> Iterator[str]:
    """A NaN in one row raises, or shows in that row's output alone, or the docstring says what happens."""
    layer, inputs = prepared(subject)
    layer.eval()
    place = next((place for place, value in enumerate(inputs) if _floating(value)), None)
    if place is None or _documents_nan(subject.target):
        return
    spoilt = list(inputs)
    spoilt[place] = inputs[place].detach().clone()
    spoilt[place].view(-1)[0] = float("nan")
    try:
        outputs = [tensor for tensor in tensors_in(layer(*spoilt)) if tensor.is_floating_point()]
    except (ValueError, ArithmeticError, RuntimeError):
        return
    if all(bool(torch.isfinite(tensor).all()) for tensor in outputs):
        yield "a NaN in an input vanishes: the output is finite, and no docstring says so"
    if any(is_batched(t, inputs) and not bool(torch.isfinite(t[1:]).all()) for t in outputs):
        yield "a NaN in the first row of the batch makes other rows' outputs NaN, and no docstring says so"


@owed_by("layer", "loss")
def wrong_shape(subject: Subject) -> Iterator[str]:
    """An input of a wrong size, where it is refused, is refused in a text with the size that was given."""
    layer, inputs = prepared(subject)
    place = next((place for place, value in enumerate(inputs) if _floating(value) and value.dim() > 1), None)
    if place is None:
        return
    wrong = list(inputs)
    wrong[place] = torch.cat([inputs[place], inputs[place][..., :1]], dim=-1)
    try:
        with quiet():
            layer(*wrong)
    except Exception as error:
        size = wrong[place].shape[-1]
        if not re.search(rf"(?<!\d){size}(?!\d)", str(error)):
            text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            shape = tuple(wrong[place].shape)
            yield f"an input of shape {shape} is refused without naming the size {size}: {text}"


@owed_by("layer", "loss", promise="bf16")
def bf16_autocast(subject: Subject) -> Iterator[str]:
    """It gives finite numbers and gradients under bf16 autocast."""
    layer, inputs = prepared(subject)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = [tensor for tensor in tensors_in(layer(*inputs)) if tensor.is_floating_point()]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in outputs):
        yield "its output is not finite under torch.autocast('cpu', dtype=torch.bfloat16)"


@owed_by("layer", "loss", promise="compile")
def compiled(subject: Subject) -> Iterator[str]:
    """``torch.compile`` of it changes nothing."""
    layer, inputs = prepared(subject, double=True)
    layer.eval()
    expected = list(tensors_in(layer(*inputs)))
    twin: Any = torch.compile(layer, backend="aot_eager")
    outputs = list(tensors_in(twin(*inputs)))
    if not all(torch.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(expected, outputs, strict=True)):
        yield "its output with and without torch.compile differ"


def prepared(subject: Subject, *, double: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """The layer and its trial's inputs, both from the same seed at every call.

    Args:
        subject: the layer or loss.
        double: both in float64.

    Returns:
        The layer and the inputs, detached.

    Raises:
        ValueError: if the component names no trial with inputs.
    """
    inputs = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, inputs_of(subject))
    torch.manual_seed(0)
    layer = subject.build()
    if not isinstance(layer, nn.Module):
        raise TypeError(f"the kit needs an nn.Module, not {type(layer).__name__}")
    return (layer.double(), as_double(inputs)) if double else (layer, inputs)


def _documents_nan(target: Callable[..., Any]) -> bool:
    module = inspect.getmodule(target)
    texts = (target.__doc__, getattr(target, "forward", target).__doc__, module.__doc__ if module else "")
    return any(DOCUMENTS_NAN.search(text or "") for text in texts)


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
