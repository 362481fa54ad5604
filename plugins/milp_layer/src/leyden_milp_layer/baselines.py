"""What the layer is compared with, as far as it is not a setting of it: the released formulation.

The authors' code projects in the squared l2 norm onto the convex hull of the feasible set, without the
distances inside the disjuncts. That is not the method of the paper (Section 3.2) and does not give rule
satisfaction; it is here to show so.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import lil_array

from leyden_milp_layer.highs import Program, is_empty, minimize
from leyden_milp_layer.lifted import Sample

Array = NDArray[np.float64]
INFINITY = float("inf")


def hull_l2(sample: Sample, point: Array) -> Array | None:
    """The point of the convex hull of all scenarios that is nearest in the squared Euclidean norm.

    Args:
        sample: the rules; its weights are ignored.
        point: what is projected, shape ``(outputs,)``.

    Returns:
        Shape ``(outputs,)``; None where every scenario is empty.
    """
    n, layout = len(sample.point), sample.layout
    common = list(range(layout.common))
    blocks: list[list[int]] = []
    for choice in itertools.product(*(layout.disjuncts[rule] for rule in sample.rules)):
        rows = common + [row for span in choice for row in range(*span)]
        if not is_empty(sample.A[rows], sample.b[rows], layout.equality[rows]):
            blocks.append(rows)
    if not blocks:
        return None
    columns = n + len(blocks) * (n + 1)
    count = 1 + n + sum(map(len, blocks))
    matrix = lil_array((count, columns))
    low, high = np.zeros(count), np.zeros(count)
    low[0] = high[0] = 1.0
    matrix[1 : n + 1, :n] = np.eye(n)
    row = n + 1
    for place, chosen in enumerate(blocks):
        start = n + place * (n + 1)
        matrix[0, start + n] = 1.0
        matrix[1 : n + 1, start : start + n] = -np.eye(n)
        matrix[row : row + len(chosen), start : start + n] = sample.A[chosen]
        matrix[row : row + len(chosen), start + n] = -sample.b[chosen]
        low[row : row + len(chosen)] = np.where(layout.equality[chosen], 0.0, -INFINITY)
        row += len(chosen)
    cost, square = np.zeros(columns), np.zeros(columns)
    cost[:n], square[:n] = -2 * point, 2.0
    lower = np.full(columns, -INFINITY)
    lower[2 * n :: n + 1] = 0.0
    found = minimize(
        Program(cost, matrix.tocsc(), low, high, lower, np.full(columns, INFINITY), quadratic=square)
    )
    return None if found is None else found.values[:n]
