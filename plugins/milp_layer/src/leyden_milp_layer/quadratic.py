"""The l2 projection onto a polyhedron, and the l1 projection with a quadratic term, by least squares.

``min ||z - p||`` over ``A z <= b`` is a least-distance problem, which becomes one of non-negative least
squares (Lawson and Hanson, Solving Least Squares Problems, 1974, Section 23.4); its active set is then
solved for once more. The ``mu ||y - p||^2`` of the smoothed backward pass (Section 3.5 of Pal and Li, 2026)
makes the l1 projection such a problem too, in the positive and the negative part of the move.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_EMPTY = 1e-11


def nearest_l2(A: Array, b: Array, equality: Mask, point: Array) -> tuple[Array, Array] | None:
    """Project a point onto ``{y: A y <= b}`` in the Euclidean norm.

    Args:
        A: shape ``(rows, outputs)``.
        b: shape ``(rows,)``.
        equality: which rows hold with equality, shape ``(rows,)``.
        point: shape ``(outputs,)``.

    Returns:
        The nearest point, and the multiplier of each row in ``y = point - A' multiplier``; None where the
        polyhedron is empty.
    """
    signs = np.concatenate([np.ones(len(b)), -np.ones(int(equality.sum()))])
    rows = np.concatenate([np.arange(len(b)), np.flatnonzero(equality)])
    length = np.linalg.norm(A, axis=1)
    length = np.where(length > 0, length, 1.0)
    over = (A @ point - b) / length
    unit = A / length[:, None]
    scale = max(float(np.abs(over).max(initial=0.0)), 1e-300)
    # min ||move|| over G move >= h, in units in which the largest violation is 1
    G, h = -(signs[:, None] * unit[rows]), signs * over[rows] / scale
    system = np.vstack([G.T, h])
    target = np.zeros(len(system))
    target[-1] = 1.0
    dual, _ = nnls(system, target, maxiter=50 * system.shape[1] + 100)
    rest = target - system @ dual
    if rest[-1] <= _EMPTY:
        return None
    push = np.zeros(len(b))  # how far each row of unit length pushes the point
    np.add.at(push, rows, signs * dual * scale / rest[-1])
    multiplier = push / length
    tight = equality | (push > 1e-12 * push.max(initial=0.0))
    nearest = point.copy()
    if tight.any():
        for _ in range(2):  # the second makes the rows right to rounding, however far the point was
            beyond = unit[tight] @ nearest - b[tight] / length[tight]
            shift, *_ = np.linalg.lstsq(unit[tight], beyond, rcond=None)
            nearest = nearest - shift
        solved, *_ = np.linalg.lstsq(unit[tight].T, point - nearest, rcond=None)
        multiplier = np.zeros(len(b))
        multiplier[tight] = solved / length[tight]
    return nearest, multiplier


def nearest_smoothed(
    A: Array, b: Array, equality: Mask, point: Array, weights: Array, mu: float
) -> tuple[Array, Array] | None:
    """Minimize ``sum w_i |y_i - p_i| + mu ||y - p||^2`` over ``{y: A y <= b}``.

    With ``y - p = up - down`` and both parts non-negative, at most one of them is positive at the optimum,
    so that ``(up - down)^2 = up^2 + down^2`` there and the problem is the projection of ``-w / (2 mu)``
    (twice) onto ``{A (up - down) <= b - A p, up >= 0, down >= 0}``.

    Args:
        A: shape ``(rows, outputs)``.
        b: shape ``(rows,)``.
        equality: which rows hold with equality, shape ``(rows,)``.
        point: shape ``(outputs,)``.
        weights: positive, shape ``(outputs,)``.
        mu: positive.

    Returns:
        The minimizer, and the multiplier of each row of A in the problem as it is written; None where the
        polyhedron is empty.
    """
    n = len(point)
    parts = np.block([[A, -A], [-np.eye(2 * n)]])
    side = np.concatenate([b - A @ point, np.zeros(2 * n)])
    equal = np.concatenate([equality, np.zeros(2 * n, dtype=bool)])
    found = nearest_l2(parts, side, equal, np.tile(-weights / (2 * mu), 2))
    if found is None:
        return None
    moved, multiplier = found
    parts_of_move = np.where(moved > 1e-11 * np.abs(moved).max(initial=0.0), moved, 0.0)
    return point + parts_of_move[:n] - parts_of_move[n:], multiplier[: len(b)] * 2 * mu
