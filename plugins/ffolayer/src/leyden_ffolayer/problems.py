"""The problems of the experiments, drawn from a seed, on tensors in float64."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Problem(NamedTuple):
    """A batch of quadratic programs and a loss's gradient; what is None is not there."""

    Q: Tensor
    q: Float[Tensor, "batch variables"]
    G: Float[Tensor, "inequalities variables"]
    h: Float[Tensor, " inequalities"]
    A: Tensor | None
    b: Tensor | None
    c: Float[Tensor, "batch variables"]


def dense_problem(
    variables: int = 200,
    inequalities: int | None = None,
    equalities: int = 0,
    *,
    batch: int = 8,
    seed: int = 0,
) -> Problem:
    """The dense program of experiment E1, one set of constraints for the whole batch (reconstructed).

    Args:
        variables: n.
        inequalities: m; None: as many as variables.
        equalities: p.
        batch: number of samples.
        seed: of everything.

    Returns:
        The problem, feasible and with a unique solution.

    >>> dense_problem(5, 4, 2, batch=3).G.shape
    torch.Size([4, 5])
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    count = variables if inequalities is None else inequalities
    M = normal(variables, variables)
    Q = M @ M.T / variables + 0.1 * torch.eye(variables, dtype=torch.float64)
    G, inside = normal(count, variables), normal(variables)
    h = G @ inside + torch.rand(count, generator=generator, dtype=torch.float64)
    q = normal(batch, variables)
    A = normal(equalities, variables) if equalities else None
    b = A @ inside if A is not None else None
    c = torch.rand(batch, variables, generator=generator, dtype=torch.float64)
    return Problem(Q, q, G, h, A, b, c)


def box_problem(variables: int = 500, *, batch: int = 8, seed: int = 0) -> Problem:
    """The box program of experiment E1: ``-1 <= y <= 0`` and a limit on the sum, with Q = I.

    Args:
        variables: n.
        batch: number of samples.
        seed: of costs and loss.

    Returns:
        The problem.

    >>> box_problem(3).h
    tensor([0., 0., 0., 1., 1., 1., 3.], dtype=torch.float64)
    """
    generator = torch.Generator().manual_seed(seed)
    identity = torch.eye(variables, dtype=torch.float64)
    G = torch.cat([identity, -identity, identity.new_ones(1, variables)])
    h = torch.cat([identity.new_zeros(variables), identity.new_ones(variables), identity.new_full((1,), 3.0)])
    q = torch.randn(batch, variables, generator=generator, dtype=torch.float64)
    c = torch.rand(batch, variables, generator=generator, dtype=torch.float64)
    return Problem(identity, q, G, h, None, None, c)
