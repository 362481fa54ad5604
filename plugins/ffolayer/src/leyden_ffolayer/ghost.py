"""Algorithm 1 of Zhao and others (2025) as it stands, on functions of torch: the ghost problem, step by step.

The layers use its limit for a vanishing perturbation, which is a linear system. Here the perturbation is
finite, any smooth objective will do, and the guarantee that the error is of its order can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import hessian, jacrev

from leyden_ffolayer.interior_point import Program
from leyden_ffolayer.quadratic import solve

Objective = Callable[[Tensor, Tensor], Tensor]
"""A scalar of (x, y)."""

Constraints = Callable[[Tensor, Tensor], Tensor]
"""A vector of (x, y)."""


class Optimum(NamedTuple):
    """A solution of the lower-level problem with its multipliers."""

    y: Float[Tensor, " variables"]
    lam: Float[Tensor, " inequalities"]
    nu: Float[Tensor, " equalities"]


def ghost_hypergradient(
    objective: Objective,
    inequalities: Constraints,
    equalities: Constraints,
    x: Tensor,
    optimum: Optimum,
    c: Float[Tensor, " variables"],
    *,
    delta: float | None = None,
    threshold: float = 1e-9,
) -> Tensor:
    """The gradient of ``cᵀy*(x)`` by first-order calls, Algorithm 1 in the form of Section 3.3.

    With the multipliers frozen and the active rows linearised, the ghost problem is solved once more with its
    objective moved by ``delta * cᵀy``; the difference of two gradients in x, both at fixed y, is the result.
    The terms ``λ*ᵀ[h(x, y_δ) - h(x, y*)]`` and ``ν*ᵀ[e(x, y_δ) - e(x, y*)]`` are part of it.

    Args:
        objective: g, smooth and strongly convex in y.
        inequalities: h, convex in y, ``h(x, y) <= 0``.
        equalities: e, affine in y, ``e(x, y) = 0``.
        x: all parameters, of any shape.
        optimum: y*, λ* and ν* at x.
        c: the upper loss's gradient at y*.
        delta: δ; None is the limit, exact to rounding.
        threshold: a row with a multiplier above it is active.

    Returns:
        The gradient, of the shape of x; its error is O(δ).

    Raises:
        ValueError: if ``delta`` is not positive.
    """
    if delta is not None and not delta > 0:
        raise ValueError(f"delta: expected a number above 0 or None, got {delta!r}")
    y, lam, nu = optimum
    kept = lam > threshold
    base = x.detach()

    def lagrangian(at: Tensor, point: Tensor) -> Tensor:
        return objective(at, point) + lam @ inequalities(at, point) + nu @ equalities(at, point)

    rows = torch.cat([jacrev(equalities, 1)(base, y), jacrev(inequalities, 1)(base, y)[kept]])
    if delta is None:
        moved, eta = _kkt_solve(hessian(lagrangian, 1)(base, y), rows, -c)
    else:
        moved, eta = _ghost_solve(lagrangian, rows, base, y, c, delta)
    leaf = base.clone().requires_grad_()
    active = torch.cat([equalities(leaf, y), inequalities(leaf, y)[kept]])
    if delta is None:
        slope = torch.func.grad(lagrangian, 1)(leaf, y)
        bracket = slope @ moved + eta @ active
    else:
        bracket = (lagrangian(leaf, moved) - lagrangian(leaf, y) + eta @ active) / delta
    (found,) = torch.autograd.grad(bracket, leaf)
    return found


def solve_smooth(
    objective: Objective,
    x: Tensor,
    *,
    G: Float[Tensor, "inequalities variables"],
    h: Float[Tensor, " inequalities"],
    start: Float[Tensor, " variables"],
    steps: int = 60,
) -> Optimum:
    """Minimise a smooth convex objective over ``Gy <= h``, by a sequence of quadratic programs.

    It serves where Algorithm 1 needs a lower-level solution to rounding; it is not in the paper.

    Args:
        objective: strongly convex in y, of (x, y).
        x: parameters.
        G: constraint matrix.
        h: right-hand sides.
        start: a feasible first point.
        steps: quadratic programs at most.

    Returns:
        The solution with its multipliers.
    """
    y, lam = start, torch.zeros_like(h)
    value = objective(x, y)
    for _ in range(steps):
        curvature = hessian(objective, 1)(x, y)
        slope = torch.func.grad(objective, 1)(x, y)
        empty = G.new_zeros(0, len(y))
        program = Program(
            curvature, (slope - curvature @ y)[None], G, h[None], empty, empty[:, 0].expand(1, 0)
        )
        found = solve(program, for_gradients=False)
        step, length = found.y[0] - y, 1.0
        while length > 1e-10 and objective(x, y + length * step) > value + 1e-4 * length * (slope @ step):
            if float(step.abs().max()) < 1e-7:
                break
            length /= 2
        y, lam = y + length * step, found.lam[0]
        value = objective(x, y)
        if float(step.abs().max()) < 1e-13 * (1 + float(y.abs().max())):
            break
    return Optimum(y, lam, h.new_zeros(0))


def _ghost_solve(
    lagrangian: Objective, rows: Tensor, x: Tensor, y: Tensor, c: Tensor, delta: float
) -> tuple[Tensor, Tensor]:
    """Newton's method on the ghost problem, from y* on, which is feasible."""
    point, eta = y, rows.new_zeros(len(rows))
    for _ in range(50):
        slope = torch.func.grad(lagrangian, 1)(x, point) + delta * c
        step, eta = _kkt_solve(hessian(lagrangian, 1)(x, point), rows, -slope)
        point = point + step
        if float(step.abs().max()) < 1e-14 * (1 + float(point.abs().max())):
            break
    return point, eta


def _kkt_solve(curvature: Tensor, rows: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    size, count = len(right), len(rows)
    whole = curvature.new_zeros(size + count, size + count)
    whole[:size, :size] = curvature
    whole[size:, :size] = rows
    whole[:size, size:] = rows.T
    found = torch.linalg.solve(whole, torch.cat([right, right.new_zeros(count)]))
    return found[:size], found[size:]
