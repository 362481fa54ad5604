"""RMS normalisation whose gradient is one short formula; it imports no Lightning and is usable alone.

On the CPU torch composes the normalisation, and even more so its gradient, of many operations, each with a
new array for its result. There a function of autograd takes their place: it keeps the input and one number a
row, and makes one array forward and one backward. Elsewhere, under ``torch.compile`` and under the transforms
of `torch.func`, `torch.nn.functional.rms_norm` runs, which is fused there.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad


def rms_norm(
    y: Float[Tensor, "*batch d"], gain: Float[Tensor, " d"] | None = None, *, eps: float = 1e-5
) -> Float[Tensor, "*batch d"]:
    r"""RMSNorm over the last dimension, Section 3 (the operator's norm) of Chen et al. (2026).

    The result is $\gamma_i y_i / \sqrt{\frac1d \sum_j y_j^2 + \epsilon}$, computed in float32 for inputs of
    lower precision, and differentiable twice. A NaN makes its row NaN, and an infinite value
    becomes NaN. A row whose mean square is beyond the type's range (in float32, values near 1e19) becomes 0,
    as with torch's function.

    Args:
        y: what is normalised, floating-point of shape ``(..., d)``.
        gain: the learned gain, of shape ``(d,)``; None: all ones.
        eps: added to the mean square, above 0; keeps a row of zeros at 0 with finite gradients.

    Returns:
        Shape and type of ``y``.

    Raises:
        ValueError: if ``y`` has no rows of floating-point numbers, ``eps`` is not a finite number above 0 (in
            float32, too), or ``gain`` has another length than the rows.

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), eps=1e-12)
    tensor([[0.8485, 1.1314]])
    """
    check_eps(eps)
    if y.ndim == 0 or not y.is_floating_point() or y.shape[-1] == 0:
        raise ValueError(
            f"y: expected floating-point rows of at least one number, got {y.dtype} of shape {tuple(y.shape)}"
        )
    if eps < torch.finfo(_single(y)).tiny:
        raise ValueError(f"eps: expected at least the smallest normal number of {_single(y)}, got {eps!r}")
    if gain is not None and gain.shape != y.shape[-1:]:
        raise ValueError(f"gain: expected shape {tuple(y.shape[-1:])}, got {tuple(gain.shape)}")
    if _is_torchs(y):
        return _by_torch(y, gain, eps)
    result: Tensor = _RMSNorm.apply(y, gain, eps)  # type: ignore[no-untyped-call]
    return result


def check_eps(eps: float) -> None:
    """Refuse what could divide by zero.

    Args:
        eps: the norm's epsilon.

    Raises:
        ValueError: if it is not a finite number above 0.
    """
    if not isinstance(eps, int | float) or not 0 < eps < math.inf:
        raise ValueError(f"eps: expected a finite number above 0, got {eps!r}")


class RMSNorm(nn.Module):
    """`torch.nn.RMSNorm` over the last dimension, by `rms_norm`; the norm of Section 3 of Chen et al. (2026).

    A NaN makes its row NaN, and an infinite value becomes NaN.

    Args:
        size: length d of the rows.
        eps: added to the mean square, above 0.
        elementwise_affine: whether there is a learned gain, which starts at 1.
        groups: lengths of the parts of a row that are normalised each for itself, for maps that compute
            several projections at once; None: the row is one part.
        device: where the gain is.
        dtype: type of the gain.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """

    def __init__(
        self,
        size: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        *,
        groups: tuple[int, ...] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_eps(eps)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size: expected a whole number of at least 1, got {size!r}")
        if groups is not None and (sum(groups) != size or min(groups, default=0) < 1):
            raise ValueError(f"groups: expected lengths of at least 1 that sum to {size}, got {groups!r}")
        self.size = size
        self.eps = eps
        self.groups = None if groups is None else tuple(groups)
        gain = nn.Parameter(torch.ones(size, device=device, dtype=dtype)) if elementwise_affine else None
        self.weight: Tensor | None
        self.register_parameter("weight", gain)

    def forward(self, y: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """The normalised rows, of shape ``(..., size)``."""
        if self.groups is None:
            return rms_norm(y, self.weight, eps=self.eps)
        parts = torch.split(y, list(self.groups), dim=-1)
        gains = [None] * len(parts) if self.weight is None else torch.split(self.weight, list(self.groups))
        normalised = [rms_norm(part, gain, eps=self.eps) for part, gain in zip(parts, gains, strict=True)]
        return torch.cat(normalised, dim=-1)

    def extra_repr(self) -> str:
        """Size, epsilon and what differs from the default."""
        said = [str(self.size), f"eps={self.eps:g}"]
        said += [f"groups={self.groups}"] if self.groups else []
        said += ["elementwise_affine=False"] if self.weight is None else []
        return ", ".join(said)


class _RMSNorm(torch.autograd.Function):
    """RMSNorm with a gradient written out, itself differentiable.

    With n = y / rms(y) and h = gain * gradient, the gradient in y is (h - n mean(h n)) / rms(y), and in the
    gain the sum over rows of gradient * n.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, gain: Tensor | None, eps: float) -> Tensor:
        inverse = torch.linalg.vector_norm(y, dim=-1, keepdim=True, dtype=_single(y))
        inverse.square_().div_(y.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(y, gain, inverse)
        ctx.eps = eps
        normalised: Tensor = y * inverse
        if gain is not None:
            normalised.mul_(gain)
        return normalised.to(y.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        y, gain, inverse = ctx.saved_tensors
        # A second derivative is wanted, or a batch of gradients, which `out` does not take.
        if torch.is_grad_enabled() or _is_batched(gradient):
            return (*_differentiable_backward(y, gain, gradient, ctx.eps), None)
        size = y.shape[-1]
        rows, slopes = (tensor.reshape(-1, size).to(inverse.dtype) for tensor in (y, gradient))
        scale = inverse.reshape(-1, 1)
        buffer = rows * slopes
        gain_gradient = None
        if gain is not None and ctx.needs_input_grad[1]:
            gain_gradient = torch.mv(buffer.t(), scale.squeeze(1)).to(gain.dtype)
        if not ctx.needs_input_grad[0]:
            return None, gain_gradient, None
        if gain is None:
            projection = buffer.sum(dim=1, keepdim=True)
            torch.mul(slopes, scale, out=buffer)
        else:
            projection = torch.mv(buffer, gain.to(buffer.dtype)).unsqueeze_(1)
            torch.mul(slopes, gain, out=buffer).mul_(scale)
        # One factor at a time: the cube of the scale alone leaves float32's range from rows of 1e13 on.
        buffer.addcmul_(rows, projection.mul_(scale).mul_(scale).mul_(scale).div_(-size))
        return buffer.reshape(y.shape).to(y.dtype), gain_gradient, None


def _differentiable_backward(
    y: Tensor, gain: Tensor | None, gradient: Tensor, eps: float
) -> tuple[Tensor, Tensor | None]:
    high = torch.promote_types(y.dtype, torch.float32)
    rows, slopes = y.to(high), gradient.to(high)
    inverse = (rows.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    normalised = rows * inverse
    weighted = slopes if gain is None else slopes * gain
    in_y = inverse * (weighted - normalised * (weighted * normalised).mean(dim=-1, keepdim=True))
    if gain is None:
        return in_y.to(y.dtype), None
    in_gain = (slopes * normalised).reshape(-1, gain.shape[0]).sum(dim=0)
    return in_y.to(y.dtype), in_gain.to(gain.dtype)


def _is_batched(gradient: Tensor) -> bool:
    """Whether it stands for several, as with `is_grads_batched` or ``vmap``."""
    functorch = torch._C._functorch
    return bool(
        functorch.is_legacy_batchedtensor(gradient) or functorch.is_functorch_wrapped_tensor(gradient)
    )


def _single(y: Tensor) -> torch.dtype:
    return y.dtype if y.dtype == torch.float64 else torch.float32


def _is_torchs(y: Tensor) -> bool:
    """Whether torch's own function serves better: fused, traced, transformed, or of a kind of its own."""
    return (
        y.device.type != "cpu"
        or torch.compiler.is_compiling()
        or type(y) not in (Tensor, nn.Parameter)
        or torch._C._are_functorch_transforms_active()
        or getattr(forward_ad, "_current_level", -1) >= 0
    )


def _by_torch(y: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    if gain is None or gain.dtype == y.dtype:
        return nn.functional.rms_norm(y, y.shape[-1:], gain, eps)
    high = torch.promote_types(y.dtype, gain.dtype)
    return nn.functional.rms_norm(y.to(high), y.shape[-1:], gain.to(high), eps).to(y.dtype)
