"""Answers that share no code with the package: a dense KKT solve in NumPy, and drawn problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Arrays = dict[str, Any]


def drawn(seed: int, *, n: int = 20, m: int = 15, p: int = 3, batch: int | None = None) -> dict[str, Tensor]:
    """A feasible program with a unique solution; vectors have the batch in front, matrices are shared."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    front = () if batch is None else (batch,)
    M, G, A, inside = normal(n, n), normal(m, n), normal(p, n), normal(*front, n)
    return {
        "Q": M @ M.T / n + 0.5 * torch.eye(n, dtype=torch.float64),
        "q": 2 * normal(*front, n),
        "G": G,
        "h": inside @ G.T + torch.rand(*front, m, generator=generator, dtype=torch.float64),
        "A": A,
        "b": inside @ A.T,
    }


def kkt_gradients(problem: dict[str, Tensor], y: Tensor, lam: Tensor, nu: Tensor, c: Tensor) -> Arrays:
    """The six gradients of ``cᵀy`` for one sample, by implicit differentiation of all KKT conditions.

    The system keeps every inequality with its complementarity row, as OptNet does; the package keeps the
    active rows only.
    """
    Q, G, A = (problem[name].detach().numpy() for name in ("Q", "G", "A"))
    n, m, p = len(Q), len(G), len(A)
    y, lam, nu, c = (value.detach().numpy() for value in (y, lam, nu, c))
    slack = problem["h"].detach().numpy() - G @ y
    whole = np.zeros((n + m + p, n + m + p))
    whole[:n, :n], whole[:n, n : n + m], whole[:n, n + m :] = Q, G.T, A.T
    whole[n : n + m, :n], whole[n : n + m, n : n + m] = np.diag(lam) @ G, np.diag(-slack)
    whole[n + m :, :n] = A
    solved = np.linalg.solve(whole.T, np.concatenate([-c, np.zeros(m + p)]))
    u, w, v = solved[:n], lam * solved[n : n + m], solved[n + m :]
    return {
        "q": u,
        "Q": 0.5 * (np.outer(u, y) + np.outer(y, u)),
        "A": np.outer(nu, u) + np.outer(v, y),
        "b": -v,
        "G": np.outer(lam, u) + np.outer(w, y),
        "h": -w,
    }


def relative(found: Any, expected: Any) -> float:
    """The length of the difference as a share of the expected value's."""
    found, expected = (np.asarray(v.detach() if isinstance(v, Tensor) else v) for v in (found, expected))
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-12))
