"""Random rule sets for the exactness experiment (reconstructed)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from leyden_milp_layer.constraints import Disjunction, Polyhedron, total
from leyden_milp_layer.projection import DisjunctiveProjection
from leyden_milp_layer.rules import RuleSet


def random_problems(count: int, seed: int) -> Iterator[tuple[RuleSet, Tensor]]:
    """Rule sets that do not contradict themselves, and a point for each.

    Two to five outputs in the unit box whose sum is at least 0.3 times their number, one to four rules of
    two or three disjuncts, each of one or two rows with normal coefficients that a uniform point satisfies
    by 0.02.

    Args:
        count: how many.
        seed: of the draw.

    Yields:
        The rules, and a point of shape ``(1, outputs)`` in float64, normal about 0.5 with deviation 0.7.
    """
    generator = np.random.default_rng(seed)
    found = 0
    while found < count:
        n = int(generator.integers(2, 6))
        drawn = []
        for _ in range(int(generator.integers(1, 5))):
            disjuncts = []
            for _ in range(int(generator.integers(2, 4))):
                A = generator.normal(size=(int(generator.integers(1, 3)), n))
                disjuncts.append(Polyhedron(A, A @ generator.random(n) + 0.02))
            drawn.append(Disjunction(disjuncts))
        point = torch.from_numpy(generator.normal(0.5, 0.7, (1, n)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # empty disjuncts are part of the game
            rules = RuleSet(n, 0, 1, [total() >= 0.3 * n], drawn)
        layer = DisjunctiveProjection(rules, on_infeasible="global_only")
        layer(point)
        if layer.last_info is not None and layer.last_info.status[0] != "global_only":
            found += 1
            yield rules, point
