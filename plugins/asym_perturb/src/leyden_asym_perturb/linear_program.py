"""The exact ways: equilibria by linear programming, and the strength up to which a perturbation is harmless.

A matrix game or a game in sequence form is a linear program (Section 3.5). Where it fits into memory, HiGHS
solves it exactly and in one go, and that is what to use for one small game; see the README.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy import sparse
from scipy.optimize import linprog, nnls
from torch import Tensor

from leyden_asym_perturb.arguments import as_payoff, check_side

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MatrixGameSolution:
    """An equilibrium.

    Attributes:
        x: a strategy of the minimising player.
        y: a strategy of the maximising player.
        value: the value of the game, the cost to x.
    """

    x: Tensor
    y: Tensor
    value: float


def solve_matrix_game_lp(A: Float[Tensor, "m n"]) -> MatrixGameSolution:
    """An equilibrium of a matrix game by HiGHS: the least v with Aᵀ x ≤ v (Section 2).

    Args:
        A: the cost to the row player.

    Returns:
        Both strategies in float64, y from the program's multipliers, and the value.

    Raises:
        ValueError: if A is empty, not finite, or no matrix.
        RuntimeError: if the solver fails.

    >>> solve_matrix_game_lp(torch.tensor([[1.0, -1.0], [-1.0, 1.0]])).x
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    matrix, centre, scale = _scaled(_matrix(A))
    m, n = matrix.shape
    found = _solve(
        np.r_[np.zeros(m), 1.0],
        A_ub=np.c_[matrix.T, -np.ones(n)],
        b_ub=np.zeros(n),
        A_eq=np.r_[np.ones(m), 0.0][None],
        b_eq=[1.0],
        bounds=[(0, None)] * m + [(None, None)],
    )
    x, y = np.maximum(found.x[:m], 0), np.maximum(-found.ineqlin.marginals, 0)
    value = centre + scale * float(found.x[m])
    return MatrixGameSolution(torch.from_numpy(x / x.sum()), torch.from_numpy(y / y.sum()), value)


def invariance_threshold(A: Float[Tensor, "m n"], side: Literal["x", "y"] = "x", tol: float = 1e-9) -> float:
    """The largest mu whose perturbation leaves the player's equilibrium strategy as it is, Section 3.2.

    Let x° be the equilibrium strategy of least norm. It minimises g(x) + (mu / 2) |x|² exactly if some
    y on the columns where x° costs the value has A y + mu x° constant on the support of x° and nowhere less;
    the largest such mu is the optimum of a linear program.

    Args:
        A: the cost to the row player.
        side: which player is perturbed.
        tol: what counts as equal, relative to the size of A.

    Returns:
        The threshold, in the unit of A; ``inf`` where every perturbation is harmless.

    Raises:
        ValueError: if ``A`` or ``side`` is wrong.
        RuntimeError: if a solver fails.

    >>> round(invariance_threshold(torch.tensor([[0.0, 1.0, -3.0], [-1.0, 0.0, 1.0], [3.0, -1.0, 0.0]])), 6)
    2.5
    """
    check_side(side)
    matrix, _, scale = _scaled(_matrix(A) if side == "x" else -_matrix(A).T)
    if not matrix.any():
        return math.inf
    strategy, value = _least_norm(matrix, tol)
    costs = strategy @ matrix
    tight = costs >= value - math.sqrt(tol)
    support = strategy > math.sqrt(tol)
    return scale * _largest_mu(matrix[:, tight], strategy, support)


def least_norm_strategy(
    A: Float[Tensor, "m n"], side: Literal["x", "y"] = "x", tol: float = 1e-9
) -> Float[Tensor, " k"]:
    """The player's equilibrium strategy of least norm, which small perturbations select (Section 3.2).

    Args:
        A: the cost to the row player.
        side: the player.
        tol: what counts as equal, relative to the size of A.

    Returns:
        The strategy, float64.
    """
    check_side(side)
    matrix, _, _ = _scaled(_matrix(A) if side == "x" else -_matrix(A).T)
    return torch.from_numpy(_least_norm(matrix, tol)[0])


def _largest_mu(columns: Array, strategy: Array, support: Array) -> float:
    """The linear program of Section 3.2, in y on the tight columns, mu and lambda."""
    m, k = columns.shape
    rows = np.c_[columns, np.where(support, strategy, 0.0), -np.ones(m)]
    equal, above = rows[support], rows[~support]
    found = linprog(
        np.r_[np.zeros(k), -1.0, 0.0],
        A_ub=-above if len(above) else None,
        b_ub=np.zeros(len(above)) if len(above) else None,
        A_eq=np.r_[equal, np.r_[np.ones(k), 0.0, 0.0][None]],
        b_eq=np.r_[np.zeros(len(equal)), 1.0],
        bounds=[(0, None)] * (k + 1) + [(None, None)],
        method="highs",
    )
    if found.status == 3:
        return math.inf
    if not found.success:
        raise RuntimeError(f"the program of the threshold was not solved: {found.message}")
    return float(found.x[k])


def _least_norm(matrix: Array, tol: float) -> tuple[Array, float]:
    """The equilibrium strategy of least norm, and the value.

    A least-distance problem: the shortest x with G x ≥ h is the residual of a non-negative least-squares
    problem (Lawson and Hanson), here with x ≥ 0, a sum of 1 and no column above the value. Its answer is
    made exact on the rows that bind.
    """
    m = len(matrix)
    found = solve_matrix_game_lp(torch.from_numpy(np.ascontiguousarray(matrix)))
    ones = np.ones(m)
    left = np.vstack((np.eye(m), -matrix.T, ones, -ones))
    right = np.r_[np.zeros(m), np.full(matrix.shape[1], -found.value - tol), 1.0, -1.0]
    weights, _ = nnls(np.vstack((left.T, right)), np.r_[np.zeros(m), 1.0], maxiter=50 * (m + left.shape[0]))
    residual = np.vstack((left.T, right)) @ weights - np.r_[np.zeros(m), 1.0]
    strategy = -residual[:m] / residual[m] if residual[m] else found.x.numpy()
    binding = np.r_[weights[:-2] > 0]
    return _polished(matrix, strategy, found.value, binding), found.value


def _polished(matrix: Array, strategy: Array, value: float, binding: Array) -> Array:
    """The least-norm solution of the rows that bind, if it is as good as what it polishes."""
    m = len(matrix)
    zero, columns = binding[:m], binding[m:]
    rows = np.vstack((np.eye(m)[zero], matrix.T[columns], np.ones(m)))
    right = np.r_[np.zeros(zero.sum()), np.full(columns.sum(), value), 1.0]
    exact = np.linalg.lstsq(rows, right, rcond=None)[0]
    clean = np.maximum(exact, 0)
    close = np.abs(exact - strategy).max() < 1e-4
    chosen: Array = clean if close else np.maximum(strategy, 0)
    normalised: Array = chosen / chosen.sum()
    return normalised


def solve_sequence_form(
    payoff: sparse.csr_matrix, constraints: tuple[sparse.csr_matrix, sparse.csr_matrix]
) -> tuple[Array, Array, float]:
    """An equilibrium of a game in sequence form by HiGHS: the least q_0 with Fᵀ q ≥ Aᵀ x, Section 3.5.

    Args:
        payoff: A, the cost to x of every pair of sequences.
        constraints: E and F: for the empty sequence and for every information set a row, whose right-hand
            side is 1 in the first row and else 0.

    Returns:
        Realisation plans of both players, and the value.

    Raises:
        RuntimeError: if the solver fails.
    """
    left, right = constraints
    scale = min(float(abs(payoff).max()), 1.0) or 1.0  # as of `_scaled`
    payoff = payoff / scale
    m = payoff.shape[0]
    rows = right.shape[0]
    found = _solve(
        np.r_[np.zeros(m), 1.0, np.zeros(rows - 1)],
        A_ub=sparse.hstack((payoff.T, -right.T)).tocsr(),
        b_ub=np.zeros(payoff.shape[1]),
        A_eq=sparse.hstack((left, sparse.csr_matrix((left.shape[0], rows)))).tocsr(),
        b_eq=np.r_[1.0, np.zeros(left.shape[0] - 1)],
        bounds=[(0, None)] * m + [(None, None)] * rows,
    )
    return np.maximum(found.x[:m], 0), np.maximum(-found.ineqlin.marginals, 0), scale * float(found.x[m])


def _solve(cost: Array, **program: Any) -> Any:
    found = linprog(cost, method="highs", **program)
    if not found.success:
        raise RuntimeError(f"HiGHS did not solve the game: {found.message}")
    return found


def _scaled(matrix: Array) -> tuple[Array, float, float]:
    """A matrix between -1 and 1, and the centre and the scale that were taken out.

    The tolerances of solvers are absolute: of payoffs smaller than 1e-7 they would see nothing.
    """
    low, high = float(matrix.min()), float(matrix.max())
    centre, scale = low / 2 + high / 2, high / 2 - low / 2
    scale = scale if scale > 0 else 1.0
    return (matrix - centre) / scale, centre, scale


def _matrix(A: object) -> Array:
    matrix = as_payoff(A)
    if matrix.ndim != 2:
        raise ValueError(f"payoff: expected shape (m, n), got {tuple(matrix.shape)}")
    return matrix.cpu().numpy()
