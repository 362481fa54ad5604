"""What the layer is compared with, as far as it is not a setting of it: the released formulation.

The authors' code projects in the squared l2 norm onto the convex hull of the feasible set, without the
distances inside the disjuncts. That is not the method of the paper (Section 3.2) and does not give rule
satisfaction; it is here to show so.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from leyden_milp_layer.highs import Program, minimize
from leyden_milp_layer.lifted import Sample

Array = NDArray[np.float64]
INFINITY = float("inf")

_SUM = 1e5
"""Weight of the row that makes shares sum to 1, before they are divided by their sum."""


def hull_l2(sample: Sample, point: Array, *, gap: float = 1e-8, steps: int = 100) -> Array | None:
    """The point of the convex hull of all scenarios that is nearest in the squared Euclidean norm.

    Vertices are added one by one, each the best in the direction of the point over all scenarios, and the
    nearest point of their hull is found anew (the fully corrective Frank-Wolfe method).

    Args:
        sample: the rules; its weights are ignored.
        point: what is projected, shape ``(outputs,)``.
        gap: how far the squared distance may be from the smallest.
        steps: how many vertices are added at most.

    Returns:
        Shape ``(outputs,)``; None where every scenario is empty.
    """
    layout = sample.layout
    common = list(range(layout.common))
    scenarios = [
        common + [row for span in choice for row in range(*span)]
        for choice in itertools.product(*(layout.disjuncts[rule] for rule in sample.rules))
    ]
    first = _farthest(sample, scenarios, -point)
    if first is None:
        return None
    vertices, nearest = [first], first
    for _ in range(steps):
        slope = nearest - point
        best = _farthest(sample, scenarios, slope)
        if best is None or slope @ (nearest - best) <= gap:
            break
        if min(np.abs(best - one).max() for one in vertices) <= 1e-9:
            break  # what is left is rounding
        vertices.append(best)
        columns = np.array(vertices).T
        system = np.vstack([columns, np.full(len(vertices), _SUM)])
        shares, _ = nnls(system, np.append(point, _SUM))
        nearest = columns @ (shares / shares.sum())
    return nearest


def _farthest(sample: Sample, scenarios: list[list[int]], slope: Array) -> Array | None:
    """The point with the smallest product with the slope; scenarios that are empty are removed."""
    n = len(slope)
    free = np.full(n, INFINITY)
    found: list[tuple[float, Array]] = []
    for rows in list(scenarios):
        lower = np.where(sample.layout.equality[rows], sample.b[rows], -INFINITY)
        solved = minimize(Program(slope, sample.A[rows], lower, sample.b[rows], -free, free))
        if solved is None:
            scenarios.remove(rows)
        else:
            found.append((solved.objective, solved.values))
    return min(found, key=lambda one: one[0])[1] if found else None
