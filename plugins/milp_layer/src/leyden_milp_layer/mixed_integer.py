"""The projection as a mixed-integer program: one binary variable for each disjunct, rows with a big M.

For rules with many scenarios (Section 3.4 of Pal and Li, 2026, the second consequence). M is as small as the
bounds allow, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from leyden_milp_layer.highs import Program, minimize, relative
from leyden_milp_layer.rules import Layout

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
INFINITY = float("inf")


def best_choice(
    layout: Layout,
    A: Array,
    b: Array,
    rules: Sequence[int] | Integers,
    lower: Array,
    upper: Array,
    point: Array,
    weights: Array,
) -> tuple[int, ...] | None:
    """The disjuncts of the rules whose scenario is nearest in the weighted l1 norm.

    Args:
        layout: where the rows belong.
        A: shape ``(rows, outputs)``.
        b: shape ``(rows,)``.
        rules: the active rules.
        lower: the bounds of the outputs, shape ``(outputs,)``.
        upper: the same.
        point: what is projected, shape ``(outputs,)``.
        weights: shape ``(outputs,)``; 0 asks for any scenario that has a point.

    Returns:
        A disjunct for each rule, or None where every scenario is empty.
    """
    n = len(point)
    spans = [layout.disjuncts[int(rule)] for rule in rules]
    if any(not one for one in spans):
        return None
    binaries = sum(len(one) for one in spans)
    columns = 2 * n + binaries
    eye = np.eye(n)
    blocks: list[tuple[Array, Array, Array]] = [
        _padded(np.hstack([eye, -eye]), np.full(n, -INFINITY), point, columns),
        _padded(np.hstack([-eye, -eye]), np.full(n, -INFINITY), -point, columns),
    ]
    common = slice(layout.bounds, layout.common)
    low = np.where(layout.equality[common], b[common], -INFINITY)
    blocks.append(_padded(A[common], low, b[common], columns))
    column = 2 * n
    for one in spans:
        choice = np.zeros((1, columns))
        choice[0, column : column + len(one)] = 1.0
        blocks.append((choice, np.ones(1), np.ones(1)))
        for start, stop in one:
            for sign in (1.0, -1.0):
                rows = np.arange(start, stop)
                rows = rows if sign > 0 else rows[layout.equality[start:stop]]
                a, side = sign * A[rows], sign * b[rows]
                slack = np.maximum(np.maximum(a * lower, a * upper).sum(axis=1) - side, 0.0)
                matrix, below, above = _padded(a, np.full(len(rows), -INFINITY), side + slack, columns)
                matrix[:, column] = slack
                blocks.append((matrix, below, above))
            column += 1
    whole = np.zeros(columns, dtype=bool)
    whole[2 * n :] = True
    program = Program(
        np.concatenate([np.zeros(n), relative(weights), np.zeros(binaries)]),
        coo_array(np.vstack([block[0] for block in blocks])),
        np.concatenate([block[1] for block in blocks]),
        np.concatenate([block[2] for block in blocks]),
        np.concatenate([lower, np.zeros(n + binaries)]),
        np.concatenate([upper, np.full(n, INFINITY), np.ones(binaries)]),
        whole,
    )
    found = minimize(program)
    if found is None:
        return None
    chosen, column = [], 2 * n
    for one in spans:
        chosen.append(int(np.argmax(found.values[column : column + len(one)])))
        column += len(one)
    return tuple(chosen)


def irreducible_conflict(
    layout: Layout, A: Array, b: Array, rules: Sequence[int] | Integers, lower: Array, upper: Array
) -> list[int]:
    """Rules that contradict each other (and the global constraints) while any of them less does not.

    Args:
        layout: where the rows belong.
        A: shape ``(rows, outputs)``.
        b: shape ``(rows,)``.
        rules: the active rules, which together have no feasible point.
        lower: the bounds of the outputs, shape ``(outputs,)``.
        upper: the same.

    Returns:
        The rules left by a deletion filter; none where bounds and global constraints alone are empty.
    """
    point = (lower + upper) / 2
    left = [int(rule) for rule in rules]
    for rule in list(left):
        rest = [one for one in left if one != rule]
        if best_choice(layout, A, b, rest, lower, upper, point, np.zeros_like(point)) is None:
            left = rest
    return left


def _padded(a: Array, below: Array, above: Array, columns: int) -> tuple[Array, Array, Array]:
    return np.hstack([a, np.zeros((len(a), columns - a.shape[1]))]), below, above
