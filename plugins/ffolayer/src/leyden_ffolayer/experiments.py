"""The mathematics of the claims: problems with known gradients, and learning of constraints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from leyden_ffolayer.ghost import Optimum, ghost_hypergradient, solve_smooth
from leyden_ffolayer.qp_layer import FFOQPLayer

_SIZE, _ROWS = 8, 6


@dataclass(frozen=True)
class SmoothProblem:
    """A strongly convex, non-quadratic program whose objective and constraints depend on x (experiment E4).

    ``g = ½‖y‖² + Σ log cosh(Sy) + xᵀy/2 + Σ exp(x/4) y²/8``, ``(G + diag-like x) y <= h(x)``.

    Attributes:
        x: parameters, of shape (8,).
        S: of shape (8, 8).
        G: of shape (6, 8).
        h: of shape (6,).
        c: the upper loss's gradient, of shape (8,).
    """

    x: Float[Tensor, " size"]
    S: Float[Tensor, "size size"]
    G: Float[Tensor, "rows size"]
    h: Float[Tensor, " rows"]
    c: Float[Tensor, " size"]

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        """The objective g."""
        smooth = torch.log(torch.cosh(self.S @ y)).sum()
        return 0.5 * y @ y + smooth + 0.5 * x @ y + (torch.exp(x / 4) * y.square()).sum() / 8

    def matrix(self, x: Tensor) -> Tensor:
        """The constraint matrix at x."""
        return self.G * (1 + 0.1 * x)

    def right(self, x: Tensor) -> Tensor:
        """The right-hand sides at x."""
        return self.h + 0.1 * x[:_ROWS]

    def inequalities(self, x: Tensor, y: Tensor) -> Tensor:
        """The constraints, at most 0."""
        return self.matrix(x) @ y - self.right(x)

    @staticmethod
    def equalities(x: Tensor, y: Tensor) -> Tensor:
        """There are none."""
        return y.new_zeros(0)

    def solved(self, x: Tensor) -> Optimum:
        """The solution at x."""
        return solve_smooth(
            self.objective, x, G=self.matrix(x), h=self.right(x), start=torch.zeros_like(self.c)
        )

    def differences(self, step: float = 1e-5) -> Tensor:
        """The gradient of ``cᵀy*(x)`` by central differences of the solution."""
        moves = step * torch.eye(len(self.x), dtype=self.x.dtype)
        values = [
            (self.c @ self.solved(self.x + move).y - self.c @ self.solved(self.x - move).y) / (2 * step)
            for move in moves
        ]
        return torch.stack(values)

    def gradient(self, delta: float | None) -> Tensor:
        """The gradient of ``cᵀy*(x)`` with a perturbation, or its limit."""
        return ghost_hypergradient(
            self.objective,
            self.inequalities,
            self.equalities,
            self.x,
            self.solved(self.x),
            self.c,
            delta=delta,
        )


def smooth_problem(seed: int) -> SmoothProblem:
    """Draw a problem of experiment E4 (reconstructed).

    Args:
        seed: of everything.

    Returns:
        The problem; some of its constraints are active.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    h = 0.2 + 0.3 * torch.rand(_ROWS, generator=generator, dtype=torch.float64)
    return SmoothProblem(3 * normal(_SIZE), normal(_SIZE, _SIZE) / 2, normal(_ROWS, _SIZE), h, normal(_SIZE))


Formula = Literal["paper", "released"]


class Learned(NamedTuple):
    """Mean squared errors of learning constraints: at first and at last on fresh pairs, and of validation."""

    before: float
    after: float
    validation: float


def learn_constraints(
    seed: int,
    *,
    formula: Formula = "paper",
    steps: int = 250,
    size: int = 10,
    rows: int = 5,
    rate: float = 0.03,
    batch: int = 16,
    pairs: int = 256,
    on_step: Callable[[int, float], None] | None = None,
) -> Learned:
    """Learn G and h of a quadratic program from its solutions (experiment E3).

    Args:
        seed: of the true program, the start and the batches.
        formula: the paper's gradient, or the released code's, which lacks ``λ*uᵀ`` in that of G.
        steps: Adam steps.
        size: number of decisions.
        rows: number of constraints.
        rate: learning rate.
        batch: pairs a step.
        pairs: training pairs; half as many are fresh ones for the test, and as many for validation.
        on_step: called with the step and the test error every tenth step.

    Returns:
        The errors.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    Q = torch.eye(size, dtype=torch.float64)
    true_G = normal(rows, size)
    true_h = torch.rand(rows, generator=generator, dtype=torch.float64)
    layer = FFOQPLayer(return_duals=True)
    costs, fresh = 2 * normal(pairs, size), 2 * normal(pairs // 2, size)
    apart = torch.Generator().manual_seed(10_000 + seed)
    held_out = 2 * torch.randn(pairs // 2, size, generator=apart, dtype=torch.float64)
    solutions, wanted, expected = (layer(Q, q, true_G, true_h)[0] for q in (costs, fresh, held_out))
    G = (true_G + 0.5 * normal(rows, size)).requires_grad_()
    h = (true_h + 0.5 * torch.rand(rows, generator=generator, dtype=torch.float64)).requires_grad_()
    optimizer = torch.optim.Adam([G, h], lr=rate)

    def error(q: Tensor, solution: Tensor) -> float:
        with torch.no_grad():
            return float((layer(Q, q, G, h)[0] - solution).square().mean())

    before = error(fresh, wanted)
    for step in range(1, steps + 1):
        chosen = torch.randperm(pairs, generator=generator)[:batch]
        q = costs[chosen].clone().requires_grad_()
        y, lam, _ = layer(Q, q, G, h)
        optimizer.zero_grad()
        (y - solutions[chosen]).square().mean().backward()
        if formula == "released":
            assert G.grad is not None
            assert q.grad is not None
            G.grad -= lam.detach().T @ q.grad
        optimizer.step()
        if on_step is not None and step % 10 == 0:
            on_step(step, error(fresh, wanted))
    return Learned(before, error(fresh, wanted), error(held_out, expected))
