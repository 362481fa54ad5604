"""The step size of gradient descent on (H0, H1)-smooth functions, and how many steps it takes.

A function is (H0, H1)-smooth if the norm of its Hessian is at most H0 + H1 (f - f*) everywhere. The
constants of the bounds are reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor


def h0h1_step_size(
    loss: Float[Tensor, "*shape"],
    *,
    H0: float,
    H1: float,
    f_star: float = 0.0,
    a0: float = 10.0,
    a1: float = 20.0,
    theta: float = 1.0,
    max_step: float = 1e6,
) -> Float[Tensor, "*shape"]:
    """The step size theta / (a0 H0 + a1 H1 (loss - f*)) of Section 3.2 of Alimisis et al. (2026).

    Args:
        loss: losses, of any shape.
        H0: smoothness at the minimum, at least 0.
        H1: how much smoothness grows with the loss, at least 0; not both 0.
        f_star: the smallest loss.
        a0: the paper's 10; 1 is the smallest with which descent is still proven, if ``a1`` is 1 too.
        a1: the paper's 20.
        theta: the constant of the aiming condition, above 0 and at most 1; 1 for a convex function. The
            factor is reconstructed.
        max_step: what to return where the denominator is 0 (``H0`` 0 at the minimum), where the step is not
            defined.

    Returns:
        Positive step sizes of the loss's shape; NaN where the loss is.

    Raises:
        ValueError: if a constant is out of its range.

    >>> h0h1_step_size(torch.tensor([0.0, 1.0]), H0=1.0, H1=0.5)
    tensor([0.1000, 0.0500])
    """
    _check_constants(H0, H1)
    _check("f_star", f_star, math.isfinite, "a finite number")
    _check("a0", a0, lambda x: 0 < x < math.inf, "a finite number above 0")
    _check("a1", a1, lambda x: 0 <= x < math.inf, "a finite number of at least 0")
    _check("theta", theta, lambda x: 0 < x <= 1, "a number above 0 and at most 1")
    _check("max_step", max_step, lambda x: 0 < x < math.inf, "a finite number above 0")
    denominator = a0 * H0 + a1 * H1 * (loss - f_star).clamp(min=0)
    return torch.where(denominator == 0, max_step, theta / denominator)


class H0H1StepSize:
    """The step size of Section 3.2 as a function of the loss alone.

    Args:
        H0: smoothness at the minimum, at least 0.
        H1: how much smoothness grows with the loss, at least 0; not both 0.
        f_star: the smallest loss.
        a0: the paper's 10; ``a0=1, a1=1`` is 8 to 20 times faster and descends still (see the README).
        a1: the paper's 20.
        theta: the constant of the aiming condition, above 0 and at most 1; 1 for a convex function.
        max_step: what to return where the step is not defined, at the minimum with ``H0`` 0.

    Raises:
        ValueError: if a constant is out of its range; the text names it.

    >>> H0H1StepSize(H0=1.0, H1=1.0)(0.5)
    0.05
    """

    def __init__(
        self,
        H0: float,
        H1: float,
        f_star: float = 0.0,
        a0: float = 10.0,
        a1: float = 20.0,
        *,
        theta: float = 1.0,
        max_step: float = 1e6,
    ) -> None:
        self.constants = {
            "H0": H0, "H1": H1, "f_star": f_star, "a0": a0, "a1": a1, "theta": theta, "max_step": max_step,
        }  # fmt: skip
        self(0.0)

    @overload
    def __call__(self, loss: float) -> float: ...

    @overload
    def __call__(self, loss: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]: ...

    def __call__(self, loss: float | Tensor) -> float | Tensor:
        """The step size at a loss: a number for a number, a tensor of its shape for a tensor."""
        if isinstance(loss, Tensor):
            return h0h1_step_size(loss, **self.constants)
        return h0h1_step_size(torch.tensor(loss, dtype=torch.float64), **self.constants).item()


def h0h1_bound(H0: float, H1: float, D: float, eps: float) -> float:
    """After how many steps a convex function is below f* + eps, Section 3.5, fact 3 (reconstructed).

    Args:
        H0: smoothness at the minimum.
        H1: how much smoothness grows with the loss.
        D: Euclidean distance of the start to the nearest minimizer, at least 0.
        eps: the gap to reach, above 0.

    Returns:
        At most so many steps of the paper's size have a gap above ``eps``: D² (20 H0 / eps + 40 H1).

    Raises:
        ValueError: if an argument is out of its range.

    >>> h0h1_bound(H0=1.0, H1=1.0, D=1.0, eps=1.0)
    60.0
    """
    _check_constants(H0, H1)
    _check("D", D, lambda x: 0 <= x < math.inf, "a finite number of at least 0")
    _check("eps", eps, lambda x: 0 < x < math.inf, "a finite number above 0")
    return D**2 * (20 * H0 / eps + 40 * H1)


def pl_bound(H0: float, H1: float, mu: float, gap: float, eps: float) -> float:
    """After how many steps a function that satisfies a PL inequality is below f* + eps (Section 3.5, fact 4).

    The number is that of the paper with the guards that its displayed formula lacks (reconstructed).

    Args:
        H0: smoothness at the minimum.
        H1: how much smoothness grows with the loss.
        mu: the PL constant, above 0: ‖∇f‖² is at least 2 mu (f - f*).
        gap: f - f* at the start, at least 0.
        eps: the gap to reach, above 0.

    Returns:
        A whole number of steps of the paper's size.

    Raises:
        ValueError: if an argument is out of its range.

    >>> pl_bound(H0=1.0, H1=0.0, mu=1.0, gap=1.0, eps=0.5)
    14.0
    """
    _check_constants(H0, H1)
    _check("mu", mu, lambda x: 0 < x < math.inf, "a finite number above 0")
    _check("gap", gap, lambda x: 0 <= x < math.inf, "a finite number of at least 0")
    _check("eps", eps, lambda x: 0 < x < math.inf, "a finite number above 0")
    steep = H0 / (2 * H1) if H1 > 0 else math.inf
    first = 0 if gap <= steep else math.ceil(40 * H1 * (gap - steep) / mu)
    return float(first + math.ceil(20 * H0 / mu * math.log(max(1.0, min(gap, steep) / eps))))


def _check_constants(H0: float, H1: float) -> None:
    _check("H0", H0, lambda x: 0 <= x < math.inf, "a finite number of at least 0")
    _check("H1", H1, lambda x: 0 <= x < math.inf, "a finite number of at least 0")
    if H0 == H1 == 0:
        raise ValueError("H0 and H1: expected one of them above 0, got 0 for both")


def _check(name: str, value: Any, fits: Callable[[float], bool], expected: str) -> None:
    if not isinstance(value, Real) or not fits(float(value)):
        raise ValueError(f"{name}: expected {expected}, got {value!r}")
