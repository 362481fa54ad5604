"""Feasible sets as modules, which a configuration can spell."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leyden_ffolayer.qp_layer import check_count


class Constants(NamedTuple):
    """What of a quadratic program is the same for all samples, in the order of `FFOQPLayer`."""

    Q: Float[Tensor, "size size"]
    G: Float[Tensor, "inequalities size"]
    h: Float[Tensor, " inequalities"]


class BoxProgram(nn.Module):
    """``½ curvature ‖y‖² + qᵀy`` over a box, with limits on the sum of all decisions.

    The box of the experiments of Zhao and others (2025) is ``lower=-1, upper=0``.

    Args:
        size: number of decisions.
        lower: lower bound of each.
        upper: upper bound of each.
        least_sum: lower limit of their sum; None: none.
        most_sum: upper limit of their sum; None: none.
        curvature: of the objective, above 0.

    Raises:
        ValueError: if a number is out of its range or nothing is feasible; the text names the argument.

    >>> BoxProgram(2, least_sum=-1.0)().h
    tensor([0., 0., 1., 1., 1.])
    """

    Q: Tensor
    G: Tensor
    h: Tensor

    def __init__(
        self,
        size: int,
        *,
        lower: float = -1.0,
        upper: float = 0.0,
        least_sum: float | None = None,
        most_sum: float | None = None,
        curvature: float = 1.0,
    ) -> None:
        super().__init__()
        check_count("size", size)
        for name, value in (("lower", lower), ("upper", upper)):
            if not math.isfinite(value):
                raise ValueError(f"{name}: expected a finite number, got {value!r}")
        if not lower < upper:
            raise ValueError(f"upper: expected a number above lower={lower}, got {upper!r}")
        if not 0 < curvature < math.inf:
            raise ValueError(f"curvature: expected a finite number above 0, got {curvature!r}")
        if least_sum is not None and not -math.inf < least_sum <= size * upper:
            raise ValueError(f"least_sum: expected at most size * upper = {size * upper}, got {least_sum!r}")
        lowest = size * lower if least_sum is None else least_sum
        if most_sum is not None and not lowest <= most_sum < math.inf:
            raise ValueError(f"most_sum: expected at least {lowest}, got {most_sum!r}")
        rows = [torch.eye(size), -torch.eye(size)]
        right = [torch.full((size,), float(upper)), torch.full((size,), -float(lower))]
        for sign, limit in ((-1.0, least_sum), (1.0, most_sum)):
            if limit is not None:
                rows.append(torch.full((1, size), sign))
                right.append(torch.tensor([sign * limit]))
        self.register_buffer("Q", curvature * torch.eye(size), persistent=False)
        self.register_buffer("G", torch.cat(rows), persistent=False)
        self.register_buffer("h", torch.cat(right), persistent=False)

    def forward(self) -> Constants:
        """The matrices, of shapes (size, size), (inequalities, size) and (inequalities,)."""
        return Constants(self.Q, self.G, self.h)
