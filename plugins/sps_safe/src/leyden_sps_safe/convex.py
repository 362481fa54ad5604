"""A convex, non-smooth problem with a known solution, on which the paper's guarantees become numbers.

The hinge loss of a linear classifier, f(x) = (1/n) Σ max(0, 1 - bᵢ ⟨aᵢ, x⟩) with ℓᵢ* = 0, is solved exactly
by linear programming. With labels flipped it is not interpolated (σ > 0); without, it is, and the nearest
solution is the hard-margin classifier.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linprog, minimize
from torch import Tensor, nn

from leyden_sps_safe.baselines import IMASPS, SPSPlus
from leyden_sps_safe.bounds import descent_slack, momentum_descent_slack
from leyden_sps_safe.ima_sps_safe import IMASPSSafe
from leyden_sps_safe.sps_safe import SPSSafe

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class HingeProblem:
    """A problem and what is known of it.

    Attributes:
        rows: bᵢ aᵢ, of shape (samples, features), float64.
        solution: a minimiser x*, the one of least norm where the optimal value is 0.
        optimal_losses: fᵢ(x*).
        optimal_value: f*.
    """

    rows: Float[Tensor, "samples features"]
    solution: Float[Tensor, " features"]
    optimal_losses: Float[Tensor, " samples"]
    optimal_value: float

    @property
    def squared_gradient_bound(self) -> float:
        """G², the largest squared norm that a subgradient can have."""
        return float(self.rows.square().sum(dim=1).max())

    @property
    def smallest_squared_norm(self) -> float:
        """The smallest squared norm of a subgradient that is not 0; no smaller safeguard ever acts."""
        return float(self.rows.square().sum(dim=1).min())

    @property
    def deviation(self) -> float:
        """σ, the root mean square of fᵢ(x*) - ℓᵢ*."""
        return float(self.optimal_losses.square().mean().sqrt())

    @property
    def distance(self) -> float:
        """‖x₀ - x*‖ for x₀ = 0."""
        return float(self.solution.norm())

    def gap(self, x: Float[Tensor, " features"]) -> float:
        """f(x) - f*."""
        return float((1 - self.rows @ x).clamp(min=0).mean()) - self.optimal_value


@cache
def hinge_problem(flipped: float = 0.15, *, samples: int = 300, features: int = 50) -> HingeProblem:
    """Draw a problem and solve it.

    Args:
        flipped: the fraction of labels to flip; 0 makes the problem interpolated.
        samples: n.
        features: d.

    Returns:
        The problem, the same at every call.

    Raises:
        ValueError: if ``flipped`` is not a fraction.
        RuntimeError: if the solver finds no solution.
    """
    if not 0 <= flipped < 1:
        raise ValueError(f"flipped must be at least 0 and below 1, got {flipped}")
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((samples, features))
    labels = np.sign(inputs @ generator.standard_normal(features))
    labels[generator.random(samples) < flipped] *= -1
    rows = labels[:, None] * inputs
    solution = _least_hinge(rows) if flipped else _hard_margin(rows)
    losses = np.maximum(0.0, 1 - rows @ solution)
    value = float(losses.mean()) if flipped else 0.0
    return HingeProblem(
        rows=torch.from_numpy(rows),
        solution=torch.from_numpy(solution),
        optimal_losses=torch.from_numpy(losses),
        optimal_value=value,
    )


def _least_hinge(rows: Array) -> Array:
    """Minimise the mean hinge loss: the mean of slacks s ≥ 0 with s ≥ 1 - rows x."""
    samples, features = rows.shape
    found = linprog(
        np.r_[np.zeros(features), np.full(samples, 1 / samples)],
        A_ub=np.c_[-rows, -np.eye(samples)],
        b_ub=-np.ones(samples),
        bounds=[(None, None)] * features + [(0, None)] * samples,
        method="highs",
    )
    if not found.success:
        raise RuntimeError(f"the hinge problem was not solved: {found.message}")
    return np.ascontiguousarray(found.x[:features])


def _hard_margin(rows: Array) -> Array:
    """The least ‖x‖ with rows x ≥ 1, by its dual: the least ‖rowsᵀ y‖² / 2 - Σ y over y ≥ 0."""
    gram = rows @ rows.T
    found = minimize(
        lambda y: 0.5 * y @ gram @ y - y.sum(),
        np.zeros(len(rows)),
        jac=lambda y: gram @ y - 1,
        bounds=[(0, None)] * len(rows),
        method="L-BFGS-B",
        options={"maxiter": 100_000, "maxfun": 1_000_000, "ftol": 1e-16, "gtol": 1e-10},
    )
    solution = rows.T @ found.x
    # Scaled so that every margin is at least 1 exactly: then it is a solution, of almost the least norm.
    scaled: Array = solution / (rows @ solution).min()
    return scaled


@dataclass(frozen=True)
class Path:
    """What a run did.

    Attributes:
        average: f - f* at the average of the iterates before each step.
        last: the same at the last iterate.
        least_slack: the smallest slack of the per-step inequality; NaN for a method that has none.
        steps: numbers of steps at which ``averages`` and ``iterates`` were taken, evenly in their logarithm.
        averages: f - f* at the average so far.
        iterates: f - f* at the iterate.
        safeguarded: the fraction of the steps at which the safeguard was active; NaN for a method without.
    """

    average: float
    last: float
    least_slack: float
    steps: tuple[int, ...]
    averages: tuple[float, ...]
    iterates: tuple[float, ...]
    safeguarded: float


def descend(
    problem: HingeProblem,
    build: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    *,
    steps: int = 5000,
    seed: int = 0,
) -> Path:
    """Run an optimizer from 0, one random sample a step.

    Args:
        problem: what to minimise.
        build: makes the optimizer from its parameters; the oracles are told fᵢ(x*).
        steps: T.
        seed: of the samples.

    Returns:
        What it did.
    """
    x = nn.Parameter(torch.zeros(problem.rows.shape[1], dtype=torch.float64))
    optimizer: Any = build([x])
    oracle = isinstance(optimizer, SPSPlus | IMASPS)
    guard = _Guard(problem, optimizer) if isinstance(optimizer, SPSSafe | IMASPSSafe) else None
    total = torch.zeros_like(x.detach())
    rows = problem.rows.unbind()
    marks = sorted({round(steps * 10 ** (-place / 10)) for place in range(round(10 * math.log10(steps)) + 1)})
    averages, iterates = [], []
    for step, sample in enumerate(np.random.default_rng(seed).integers(0, len(problem.rows), steps), start=1):
        total += x.detach()
        row = rows[sample]
        loss = (1 - row @ x.detach()).clamp(min=0)
        x.grad = -row if loss > 0 else torch.zeros_like(row)
        before = guard.before() if guard else None
        if oracle:
            optimizer.step(loss=loss, optimal_loss=problem.optimal_losses[sample])
        elif getattr(optimizer, "needs_loss", False):
            optimizer.step(loss=loss)
        else:
            optimizer.step()
        if guard and before is not None:
            guard.after(before, float(loss), float(problem.optimal_losses[sample]))
        if step in marks:
            averages.append(problem.gap(total / step))
            iterates.append(problem.gap(x.detach()))
    return Path(
        average=averages[-1],
        last=iterates[-1],
        least_slack=guard.least if guard else math.nan,
        steps=tuple(marks),
        averages=tuple(averages),
        iterates=tuple(iterates),
        safeguarded=guard.active / steps if guard else math.nan,
    )


class _Guard:
    """Checks the per-step inequality of a safeguarded optimizer of one parameter."""

    def __init__(self, problem: HingeProblem, optimizer: SPSSafe | IMASPSSafe) -> None:
        self._solution = problem.solution
        self._optimizer = optimizer
        (self._x,) = optimizer.param_groups[0]["params"]
        self.least = math.inf
        self.active = 0

    def before(self) -> tuple[float, float]:
        """The squared distance of x or z from the solution, and ⟨g, z - x⟩."""
        x = self._x.detach()
        z = self._optimizer.state.get(self._x, {}).get("z", x)
        return float((z - self._solution).square().sum()), float(self._x.grad @ (z - x))

    def after(self, before: tuple[float, float], loss: float, optimal_loss: float) -> None:
        """Compare with the distance after the step."""
        distance, product = before
        next_distance, _ = self.before()
        norm = float(self._x.grad.square().sum())
        safeguard = float(self._optimizer.param_groups[0]["M"])
        self.active += norm < safeguard
        known = {"loss": loss, "reference_loss": optimal_loss, "denominator": max(norm, safeguard)}
        if isinstance(self._optimizer, IMASPSSafe):
            slack = momentum_descent_slack(distance, next_distance, inner_product=product, **known)
        else:
            slack = descent_slack(distance, next_distance, **known)
        self.least = min(self.least, slack)
