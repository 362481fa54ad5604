"""The gradient of the projection onto the chosen scenario, Section 3.5 of Pal and Li (2026).

The choice of the scenario is piecewise constant, so only its rows matter. At the optimum some coordinates
follow the projected point (``Fr``), the rest (``D``) are determined by the active rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from leyden_milp_layer.lifted import Relaxed


@dataclass(frozen=True)
class Optimum:
    """A batch of optima and what their gradient needs, in float64.

    Attributes:
        points: the optima, shape ``(batch, outputs)``.
        follows: which coordinates are where the projected point is, ``Fr``; shape ``(batch, outputs)``.
        active: which rows are; shape ``(batch, rows)``.
        unit: about how large each output is, 1 where there is a quadratic term; shape ``(outputs,)``.
        multiplier: of the rows, over twice the factor of the quadratic term; shape ``(batch, rows)``.
            None where there is no such term.
    """

    points: Float[Tensor, "batch outputs"]
    follows: Bool[Tensor, "batch outputs"]
    active: Bool[Tensor, "batch rows"]
    unit: Float[Tensor, " outputs"]
    multiplier: Float[Tensor, "batch rows"] | None = None


def pull_back(
    optimum: Optimum, A: Float[Tensor, "batch rows outputs"], gradient: Float[Tensor, "batch outputs"]
) -> tuple[Float[Tensor, "batch outputs"], Float[Tensor, "batch rows outputs"], Float[Tensor, "batch rows"]]:
    """Gradients with respect to the projected point and to the rows, Section 3.5.

    With ``v`` the pseudo-inverse of the active rows' columns D, transposed, applied to the gradient on D:
    ``c_Fr - A_Fr' v`` for the point, ``v`` for b and ``-v y'`` for A. A quadratic term adds the part of the
    gradient that the rows leave free. The pseudo-inverse gives the shortest ``v`` where rows are dependent.

    Args:
        optimum: the optima.
        A: the rows of the chosen scenarios.
        gradient: of the loss at the optima.

    Returns:
        The gradients with respect to the point, to A and to b.
    """
    widest = max(int(optimum.active.sum(dim=1).max()), 1) if len(A) else 1
    order = torch.argsort((~optimum.active).to(torch.uint8), dim=1, stable=True)[:, :widest]
    chosen = torch.gather(optimum.active, 1, order)
    rows = torch.gather(A, 1, order[:, :, None].expand(-1, -1, A.shape[2])) * chosen[:, :, None]
    fixed = rows * ~optimum.follows[:, None, :]
    on_fixed = gradient * ~optimum.follows
    # in units in which outputs and rows are about 1, or small rows would be taken for dependent ones
    reach = (rows * optimum.unit).abs().amax(dim=2)
    factor = torch.exp2(torch.log2(torch.where(reach > 0, reach, torch.ones_like(reach))).round())
    inverse = torch.linalg.pinv(fixed * optimum.unit / factor[:, :, None], rtol=1e-10)
    v = torch.einsum("bnr,bn->br", inverse, on_fixed * optimum.unit) / factor
    to_point = (gradient - torch.einsum("brn,br->bn", rows, v)) * optimum.follows
    to_b = torch.zeros(A.shape[:2], dtype=A.dtype).scatter(1, order, v)
    to_A = -to_b[:, :, None] * optimum.points[:, None, :]
    if optimum.multiplier is not None:
        free = on_fixed - torch.einsum("brn,br->bn", fixed, v)
        to_point = to_point + free
        to_A = to_A - (optimum.multiplier * optimum.active)[:, :, None] * free[:, None, :]
    return to_point, to_A, to_b


class Selected(torch.autograd.Function):
    """The optimum of the chosen scenario as a function of the point and of the scenario's rows."""

    @staticmethod
    def forward(ctx: Any, point: Tensor, A: Tensor, b: Tensor, value: Tensor, optimum: Optimum) -> Tensor:
        """Give the optimum, which was found before.

        Args:
            ctx: autograd's.
            point: what was projected, shape ``(batch, outputs)``.
            A: rows, shape ``(batch, rows, outputs)``.
            b: shape ``(batch, rows)``.
            value: the output, shape ``(batch, outputs)``.
            optimum: where the gradient is taken, which a smoothed gradient does elsewhere.
        """
        ctx.save_for_backward(A)
        ctx.optimum = optimum
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of `pull_back`."""
        (A,) = ctx.saved_tensors
        to_point, to_A, to_b = pull_back(ctx.optimum, A.detach(), gradient)
        wanted = ctx.needs_input_grad
        return (
            to_point if wanted[0] else None,
            to_A if wanted[1] else None,
            to_b if wanted[2] else None,
            None,
            None,
        )


class StraightThrough(torch.autograd.Function):
    """The output with the identity as gradient, which keeps a signal where an output is clamped."""

    @staticmethod
    def forward(ctx: Any, point: Tensor, value: Tensor) -> Tensor:
        """Give the output."""
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient on."""
        return gradient, None


class RelaxedOptimum(torch.autograd.Function):
    """The optimum of a relaxation as a function of the point, by the active rows of the lifted program."""

    @staticmethod
    def forward(
        ctx: Any, point: Tensor, value: Tensor, relaxed: list[Relaxed | None], inside: Tensor
    ) -> Tensor:
        """Give the optimum; ``inside`` tells which coordinates of the point lie within their bounds."""
        ctx.relaxed, ctx.inside = relaxed, inside
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Solve the transposed system of every sample."""
        rows = gradient.numpy()
        pulled = [
            row if one is None else one.pull_back(row) for one, row in zip(ctx.relaxed, rows, strict=True)
        ]
        back = torch.from_numpy(np.array(pulled).reshape(rows.shape)) * ctx.inside
        return back, None, None, None
