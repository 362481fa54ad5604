"""The mathematics of the safeguarded Polyak steps, as functions of tensors and of lists of tensors.

Oikonomou and Loizou, *Safeguarded Stochastic Polyak Step Sizes for Non-smooth Optimization* (2026). With the
mini-batch loss f, a lower bound ℓ* of it, its gradient g and a safeguard M > 0, the step of SPS_safe is

    γ = [f - ℓ*]₊ / max(‖g‖², M),                     x ← x - γ g,

and that of IMA_SPS_safe, with a second sequence z (z₀ = x₀) and an averaging parameter λ ≥ 0,

    η = [f - ℓ* + ⟨g, z - x⟩]₊ / max(‖g‖², M),        z ← z - η g,        x ← (λ x + z) / (1 + λ).

Nothing here waits for the device: every number stays a 0-dimensional tensor, and an update that must not
happen is switched off by a tensor as well, so that not even a gradient full of NaN touches the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

Scalar = Float[Tensor, ""]
Tensors = Sequence[Float[Tensor, "..."]]

# Where torch has a kernel that updates a whole list and that a flag on the device switches off. Parameters
# of 16 bits go through float32 copies (on the CPU that kernel gives wrong values for them in torch 2.13); in
# CUDA its float64 form would round the step size.
_FUSED = {("cpu", torch.float32), ("cpu", torch.float64), ("cuda", torch.float32)}

# Where one dot product a tensor is better than torch's norms of a list: on the CPU it is faster, and more
# accurate, since those add one square after another.
_DOTS = {"cpu"}
_PIECE = 65536


def polyak_step_size(
    loss: Scalar, squared_norm: Scalar, *, lower_bound: float = 0.0, safeguard: float | Scalar = 1.0
) -> Scalar:
    """Safeguarded Polyak step size of SPS_safe.

    Args:
        loss: mini-batch loss f at the current iterate.
        squared_norm: squared Euclidean norm of its gradient over all parameters.
        lower_bound: a lower bound ℓ* of the mini-batch loss (0 for cross-entropy).
        safeguard: floor M > 0 of the denominator.

    Returns:
        A step size between 0 and ``(loss - lower_bound) / safeguard``; 0 where the loss is below its bound.

    Raises:
        ValueError: if ``safeguard`` is a number that is not positive.

    >>> polyak_step_size(torch.tensor(2.0), torch.tensor(4.0))
    tensor(0.5000)
    >>> polyak_step_size(torch.tensor(2.0), torch.tensor(4.0), safeguard=8.0)
    tensor(0.2500)
    """
    _check_positive("safeguard", safeguard)
    gap = loss - lower_bound if lower_bound else loss
    return gap.clamp(min=0) / squared_norm.clamp(min=safeguard)


def momentum_step_size(
    loss: Scalar,
    squared_norm: Scalar,
    inner_product: Scalar,
    *,
    lower_bound: float = 0.0,
    safeguard: float | Scalar = 1.0,
) -> Scalar:
    """Safeguarded Polyak step size of IMA_SPS_safe, the form with momentum.

    Args:
        loss: mini-batch loss f at the current iterate x.
        squared_norm: squared Euclidean norm of its gradient g over all parameters.
        inner_product: ⟨g, z - x⟩ over all parameters, which is λₜ ⟨g, xₜ - xₜ₋₁⟩.
        lower_bound: a lower bound ℓ* of the mini-batch loss.
        safeguard: floor M > 0 of the denominator.

    Returns:
        A non-negative step size; with ``inner_product`` 0 it is `polyak_step_size`.

    Raises:
        ValueError: if ``safeguard`` is a number that is not positive.

    >>> momentum_step_size(torch.tensor(2.0), torch.tensor(4.0), torch.tensor(1.0))
    tensor(0.7500)
    >>> momentum_step_size(torch.tensor(2.0), torch.tensor(4.0), torch.tensor(-3.0))
    tensor(0.)
    """
    _check_positive("safeguard", safeguard)
    gap = loss - lower_bound if lower_bound else loss
    return (gap + inner_product).clamp(min=0) / squared_norm.clamp(min=safeguard)


def clipped_step_size(
    loss: Scalar, squared_norm: Scalar, *, threshold: float, lower_bound: float = 0.0
) -> Scalar:
    """The step of SPS_safe read as gradient clipping, Proposition 2.1.

    With M = c² the update of SPS_safe is x ← x - γ̃ min(1, c / ‖g‖) g, a clipped subgradient step of size
    γ̃ = [f - ℓ*]₊ / (c max(c, ‖g‖)).

    Args:
        loss: mini-batch loss f at the current iterate.
        squared_norm: squared Euclidean norm of its gradient over all parameters.
        threshold: the clipping threshold c > 0.
        lower_bound: a lower bound ℓ* of the mini-batch loss.

    Returns:
        The factor of the gradient, γ̃ min(1, c / ‖g‖).

    Raises:
        ValueError: if ``threshold`` is not positive.

    >>> clipped_step_size(torch.tensor(2.0), torch.tensor(4.0), threshold=1.0)
    tensor(0.5000)
    """
    _check_positive("threshold", threshold)
    norm = squared_norm.sqrt()
    step_size = (loss - lower_bound).clamp(min=0) / (threshold * norm.clamp(min=threshold))
    return step_size * (threshold / norm).clamp(max=1)


def heavy_ball_momentum(averaging: float) -> float:
    """The momentum β = λ / (1 + λ) of the heavy-ball form of IMA_SPS_safe with constant λ.

    The iterates satisfy x ← x - (η / (1 + λ)) g + β (x - x₋), x₋ being the iterate before.

    Args:
        averaging: the averaging parameter λ ≥ 0.

    Returns:
        The momentum, in [0, 1).

    Raises:
        ValueError: if ``averaging`` is negative.

    >>> heavy_ball_momentum(9.0)
    0.9
    """
    if not averaging >= 0:
        raise ValueError(f"averaging must be at least 0, got {averaging}")
    return averaging / (1 + averaging)


def resolve_safeguard(safeguard: Scalar, squared_norm: Scalar) -> Scalar:
    """The safeguard of ``M="auto"``: the squared norm of the first gradient, from the first step on.

    Args:
        safeguard: the safeguard found before, or 0 before the first step.
        squared_norm: squared Euclidean norm of the present gradient.

    Returns:
        ``safeguard`` where it is set; else ``squared_norm``, or 1 where that is 0.

    >>> resolve_safeguard(torch.tensor(0.0), torch.tensor(4.0))
    tensor(4.)
    >>> resolve_safeguard(torch.tensor(4.0), torch.tensor(9.0))
    tensor(4.)
    """
    first = torch.where(squared_norm > 0, squared_norm, 1)
    return torch.where(safeguard > 0, safeguard, first)


def nonfinite(*values: Scalar) -> Scalar:
    """A float32 flag on their device: 1 where one of the numbers, or their sum, is NaN or infinite, else 0.

    >>> nonfinite(torch.tensor(1.0), torch.tensor(2.0))
    tensor(0.)
    >>> nonfinite(torch.tensor(1.0), torch.tensor(float("inf")))
    tensor(1.)
    """
    total = values[0]
    for value in values[1:]:
        total = total + value
    return torch.nan_to_num(total - total, nan=1.0).to(torch.float32)


def squared_norm(tensors: Tensors) -> Scalar:
    """Squared Euclidean norm of all the tensors together.

    Args:
        tensors: real tensors of any shapes, floating types and devices; 16 bits are squared in float32.

    Returns:
        The sum of all squares, on the first tensor's device, in float64 if any tensor has that type, else in
        float32.

    Raises:
        ValueError: if there is no tensor.

    >>> squared_norm([torch.tensor([1.0, 2.0]), torch.tensor([[2.0]])])
    tensor(9.)
    """
    return _sum_over_devices(_squared_norm, tensors)


def norm_and_product(gradients: Tensors, ends: Tensors, starts: Tensors) -> Float[Tensor, " sums"]:
    """The squared norm of g, and its inner product with z - x, over all tensors, in one pass over them.

    The difference is formed first: ⟨g, z⟩ - ⟨g, x⟩ would cancel, since z - x is small beside both.

    Args:
        gradients: g, real tensors.
        ends: z, of the same shapes.
        starts: x, of the same shapes.

    Returns:
        ‖g‖² and ⟨g, z - x⟩ as a vector, on the device and of the type that `squared_norm` gives.

    Raises:
        ValueError: if there is no tensor.

    >>> x, z = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 3.0])
    >>> norm_and_product([torch.tensor([1.0, 2.0])], [z], [x])
    tensor([5., 8.])
    """
    return _sum_over_devices(_norm_and_product, gradients, ends, starts)


def descend_(
    parameters: Tensors,
    gradients: Tensors,
    step_size: Scalar,
    *,
    weight_decay: float = 0.0,
    skip: Scalar | None = None,
) -> None:
    """Take the step x ← (1 - wd γ) x - γ g in place.

    Args:
        parameters: x, real tensors; changed.
        gradients: g, of the same shapes.
        step_size: γ.
        weight_decay: wd, decoupled from the gradient and multiplied by the step size.
        skip: where it is 1 nothing is touched, whatever the gradients hold; 0 or None takes the step.

    >>> x = torch.tensor([1.0, 2.0])
    >>> descend_([x], [torch.tensor([1.0, 1.0])], torch.tensor(0.5))
    >>> x
    tensor([0.5000, 1.5000])
    >>> descend_([x], [torch.tensor([float("nan"), 1.0])], torch.tensor(0.5), skip=torch.tensor(1.0))
    >>> x
    tensor([0.5000, 1.5000])
    """
    _move_(parameters, gradients, step_size, weight_decay, skip)


def approach_(
    parameters: Tensors, targets: Tensors, weight: float | Scalar, *, skip: Scalar | None = None
) -> None:
    """Move towards the targets, x ← x + w (z - x), in place.

    With w = 1 / (1 + λ) it is the averaging x ← (λ x + z) / (1 + λ) of IMA_SPS_safe.

    Args:
        parameters: x, real tensors; changed.
        targets: z, of the same shapes.
        weight: w, between 0 and 1.
        skip: where it is 1 nothing is touched; 0 or None moves.

    >>> x = torch.tensor([1.0, 2.0])
    >>> approach_([x], [torch.tensor([3.0, 2.0])], 0.5)
    >>> x
    tensor([2., 2.])
    """
    # x + w (z - x) = x - (-w) (z + (-1) x): a descent along z with step -w and decay -1.
    _move_(parameters, targets, -weight, -1.0, skip)


def scale_(parameters: Tensors, factor: Scalar) -> None:
    """Multiply in place by one number; by 1 it leaves every bit as it is.

    Args:
        parameters: real tensors of one device; changed.
        factor: a 0-dimensional tensor.

    >>> x = torch.tensor([1.0, 2.0])
    >>> scale_([x], torch.tensor(0.5))
    >>> x
    tensor([0.5000, 1.0000])
    """
    for share in _shares(parameters):
        torch._foreach_mul_(list(share[0]), factor.to(share[0][0].device))


def _check_positive(name: str, value: float | Tensor) -> None:
    if not isinstance(value, Tensor) and not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")


def _shares(*lists: Tensors) -> list[tuple[Tensors, ...]]:
    """The lists again, one tuple of them for each device of the first list's tensors."""
    devices = {tensor.device for tensor in lists[0]}
    if len(devices) == 1:
        return [lists]
    found: dict[torch.device, tuple[list[Tensor], ...]] = {}
    for members in zip(*lists, strict=True):
        share = found.setdefault(members[0].device, tuple([] for _ in lists))
        for place, member in zip(share, members, strict=True):
            place.append(member)
    return list(found.values())


def _sum_over_devices(function: Callable[..., Tensor], *lists: Tensors) -> Tensor:
    if not lists[0]:
        raise ValueError("there is no tensor to sum over")
    total, *others = [function(*share) for share in _shares(*lists)]
    for other in others:
        total = total + other.to(total.device)
    return total


def _squared_norm(tensors: Tensors) -> Tensor:
    if tensors[0].device.type in _DOTS:
        vectors = [_at_least_single(tensor).reshape(-1) for tensor in tensors]
        squares = [torch.dot(vector, vector) for vector in vectors]
        return squares[0] if len(squares) == 1 else torch.stack(squares).sum()
    return torch.stack(torch._foreach_norm([_at_least_single(tensor) for tensor in tensors])).square().sum()


def _norm_and_product(gradients: Tensors, ends: Tensors, starts: Tensors) -> Tensor:
    if gradients[0].device.type in _DOTS:
        squares, products = [], []
        for gradient, end, start in zip(gradients, ends, starts, strict=True):
            for g, difference in _with_differences(gradient, end, start):
                squares.append(torch.dot(g, g))
                products.append(torch.dot(g, difference))
        return torch.stack(squares + products).reshape(2, -1).sum(dim=1)
    singles = [_at_least_single(gradient) for gradient in gradients]
    terms = [_at_least_single(difference) for difference in torch._foreach_sub(list(ends), list(starts))]
    torch._foreach_mul_(terms, singles)
    product = torch.cat([term.reshape(-1) for term in terms]).sum()
    return torch.stack([_squared_norm(singles), product])


def _with_differences(gradient: Tensor, end: Tensor, start: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Gradient and difference, flat, in pieces that stay in the cache; each is good until the next."""
    if gradient.numel() <= _PIECE:
        difference = _at_least_single(end - start).reshape(-1)
        yield gradient.to(difference.dtype).reshape(-1), difference
        return
    dtype = torch.promote_types(torch.promote_types(end.dtype, start.dtype), torch.float32)
    # One piece of memory for all: fresh memory for a large difference costs more than computing it.
    scratch = torch.empty(_PIECE, dtype=dtype)
    pieces = (torch.split(tensor.reshape(-1), _PIECE) for tensor in (gradient, end, start))
    for g, z, x in zip(*pieces, strict=True):
        yield g.to(dtype), torch.sub(z, x, out=scratch[: g.numel()])


def _at_least_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _move_(
    parameters: Tensors,
    directions: Tensors,
    step_size: float | Tensor,
    decay: float,
    skip: Tensor | None,
) -> None:
    """Set x ← x - s (v + d x) in place where ``skip`` is not 1, with one kernel for all tensors of a kind."""
    batches: dict[tuple[torch.device, torch.dtype, bool], tuple[list[Tensor], list[Tensor]]] = {}
    for parameter, direction in zip(parameters, directions, strict=True):
        alike = parameter.dtype == direction.dtype and (
            (parameter.is_contiguous() and direction.is_contiguous())
            or _same_dense_layout(parameter, direction)
        )
        xs, vs = batches.setdefault((parameter.device, parameter.dtype, alike), ([], []))
        xs.append(parameter)
        vs.append(direction)
    for (device, dtype, alike), (xs, vs) in batches.items():
        here, off = _on(step_size, device), _on(skip, device)
        if alike and (device.type, dtype) in _FUSED:
            _fused_move_(xs, vs, here, decay, off)
            continue
        working = torch.promote_types(dtype, torch.float32)
        if (device.type, working) in _FUSED:
            copied_xs, copied_vs = _contiguous(xs, working), _contiguous(vs, working)
            _fused_move_(copied_xs, copied_vs, here, decay, off)
            torch._foreach_copy_(xs, copied_xs)
        else:
            _selected_move_(xs, vs, here, decay, off)


def _on(number: Any, device: torch.device) -> Any:
    return number.to(device) if isinstance(number, Tensor) and number.device != device else number


def _contiguous(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty(tensor.shape, dtype=dtype, device=tensor.device) for tensor in tensors]
    torch._foreach_copy_(copies, tensors)
    return copies


def _fused_move_(
    xs: list[Tensor], vs: list[Tensor], step_size: float | Tensor, decay: float, skip: Tensor | None
) -> None:
    """The kernel of ``torch.optim.SGD(fused=True)`` without momentum; its ``found_inf`` switches it off."""
    if isinstance(step_size, Tensor) and step_size.device.type != "cpu":
        step_size = step_size.float()
    torch._fused_sgd_(
        xs,
        vs,
        [],
        weight_decay=decay,
        momentum=0.0,
        lr=step_size,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        found_inf=skip,
    )
    # The kernel does not tell autograd, which would then miss a backward pass over parameters changed since.
    for x in xs:
        torch.autograd.graph.increment_version(x)


def _selected_move_(
    xs: list[Tensor], vs: list[Tensor], step_size: float | Tensor, decay: float, skip: Tensor | None
) -> None:
    """The same where there is no such kernel: the old value is selected element by element."""
    for x, v in zip(xs, vs, strict=True):
        working = torch.promote_types(x.dtype, torch.float32)
        moved = x.to(working) - step_size * (v.to(working) + decay * x.to(working))
        x.copy_(moved if skip is None else torch.where(skip > 0, x, moved))


def _same_dense_layout(first: Tensor, second: Tensor) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(first.dim())
    return layout is not None and all(
        tensor.is_contiguous(memory_format=layout) for tensor in (first, second)
    )
