"""What is known of every scenario before a program is solved: a bound of its distance, often its solution.

Most rows that a person writes concern one output. Those of a scenario make a box, and its distance is a sum
(Section 3.2 of Pal and Li, 2026, for a scenario that is a box). Of the rows that are left, the one that the
nearest point of the box violates most is met by a continuous knapsack: outputs give way in the order of
their cost until the row holds. Where all other rows hold as well, that is the scenario's projection;
otherwise it is a bound of the distance. All scenarios of all samples go through this as one array.

The paper leaves the solver open; this is ours (reconstructed).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leyden_milp_layer.rules import Layout

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""How far a row may be violated: relative to its terms, and in all, where rows and outputs are about 1."""


@dataclass(frozen=True)
class Known:
    """What is known of every scenario of some samples.

    Attributes:
        bound: at most the distance, infinite where the scenario is empty; shape ``(samples, scenarios)``.
        solved: whether ``bound`` is the distance and ``points`` the projection.
        points: where the scenario is solved, its nearest point; shape ``(samples, scenarios, outputs)``.
        boxed: the nearest point of the scenario's box.
        base: the distance of that.
    """

    bound: Array
    solved: Mask
    points: Array
    boxed: Array
    base: Array


@dataclass(frozen=True)
class _Sides:
    """The rows that bound an output from one side, sorted by block and output."""

    rows: Integers
    columns: Integers
    edges: Integers
    blocks: Integers
    outputs: Integers


class Bounding:
    """Bounds and closed forms for the scenarios of one layout and one pattern of coefficients.

    A block is what stands or falls together: the common rows are block 0, then comes each disjunct in order.

    Args:
        layout: where the rows belong.
        A: shape ``(samples or 1, rows, outputs)``; rows and outputs about 1 in size.
        weights: of the norm, positive, shape ``(outputs,)``.
        norm: ``"l1"`` or ``"l2"``.
    """

    def __init__(self, layout: Layout, A: Array, weights: Array, norm: Literal["l1", "l2"]) -> None:
        self.weights, self.norm = weights, norm
        self.starts = np.cumsum([1, *(len(spans) for spans in layout.disjuncts)])
        owner = np.full(layout.rows, -1)
        owner[: layout.common] = 0
        spans = [one for spans in layout.disjuncts for one in spans]
        for block, (start, stop) in enumerate(spans, start=1):
            owner[start:stop] = block
        self.blocks = len(spans) + 1
        nonzero = A != 0
        column = nonzero.argmax(axis=2)
        own = np.take_along_axis(A, column[:, :, None], axis=2)[:, :, 0]
        alike = (column == column[0]).all(axis=0) & ((own > 0).all(axis=0) | (own < 0).all(axis=0))
        single = alike & (nonzero.sum(axis=2) == 1).all(axis=0) & (owner >= 0)
        equality = layout.equality
        n = A.shape[2]
        self._upper = _sides(np.flatnonzero(single & ((own[0] > 0) | equality)), owner, column[0], n)
        self._lower = _sides(np.flatnonzero(single & ((own[0] < 0) | equality)), owner, column[0], n)
        self._general = np.flatnonzero(~single & (owner >= 0))
        self._owner = owner[self._general]
        self._equality = equality[self._general]

    def boxes(self, A: Array, b: Array) -> tuple[Array, Array]:
        """The smallest and the largest value of every output in each block, ``(samples, blocks, outputs)``.

        Args:
            A: shape ``(samples or 1, rows, outputs)``.
            b: shape ``(samples or 1, rows)``.
        """
        tables = []
        for sides, fill, least in ((self._lower, -math.inf, np.maximum), (self._upper, math.inf, np.minimum)):
            samples = len(b) if len(A) == 1 else len(A)
            table = np.full((samples, self.blocks, A.shape[2]), fill)
            if len(sides.rows):
                values = b[:, sides.rows] / A[:, sides.rows, sides.columns]
                table[:, sides.blocks, sides.outputs] = least.reduceat(values, sides.edges, axis=1)
            tables.append(table)
        return tables[0], tables[1]

    def known(self, A: Array, b: Array, boxes: tuple[Array, Array], columns: Integers, start: Array) -> Known:
        """Bound every scenario, and solve those that a box and one row solve.

        Args:
            A: shape ``(samples or 1, rows, outputs)``.
            b: shape ``(samples or 1, rows)``.
            boxes: of `boxes`, for these samples or for all.
            columns: the blocks of each scenario beside the common one, shape ``(scenarios, rules)``.
            start: what is projected, shape ``(samples, outputs)``.
        """
        low, high = (table[:, [0]] for table in boxes)
        for blocks in columns.T:
            low = np.maximum(low, boxes[0][:, blocks])
            high = np.minimum(high, boxes[1][:, blocks])
        point = start[:, None, :]
        boxed = np.minimum(np.maximum(point, low), high)
        shape = (len(start), len(columns), start.shape[1])
        boxed = np.broadcast_to(boxed, shape)
        slack = ABSOLUTE + RELATIVE * np.maximum(np.abs(low), np.abs(high))
        empty = np.broadcast_to((low - high > slack).any(axis=2), shape[:2])
        base = self._length(np.abs(boxed - point))
        rows = _Rows(A[:, self._general], b[:, self._general], self._equality, self._uses(columns))
        if not len(self._general):
            return Known(np.where(empty, np.inf, base), ~empty, boxed, boxed, base)
        over = rows.over(boxed)
        if self.norm == "l2":
            length = np.linalg.norm(rows.A / np.sqrt(self.weights), axis=2)
            bound = np.hypot(base, rows.farthest(over, length)[1])
            solved = (over <= 0.0).all(axis=2) & ~empty
            return Known(np.where(empty, np.inf, bound), solved, boxed, boxed, base)
        length = (np.abs(rows.A) / self.weights).max(axis=2)
        worst, far = rows.farthest(over, length)
        if not (far > 0).any():
            return Known(np.where(empty, np.inf, base), ~empty, boxed, boxed, base)
        points, cost, unmet = self._give_way(rows, worst, far > 0, boxed, low, high)
        empty = empty | unmet
        solved = (rows.over(points) <= 0.0).all(axis=2) & ~empty
        return Known(np.where(empty, np.inf, base + cost), solved, points, boxed, base)

    def _give_way(
        self, rows: _Rows, worst: Integers, violated: Mask, boxed: Array, low: Array, high: Array
    ) -> tuple[Array, Array, Mask]:
        """Meet one row of each scenario, the cheapest outputs first; also the cost, and where it cannot."""
        sample = np.arange(len(worst))[:, None]
        normal = rows.A[sample % len(rows.A), worst]
        side = rows.b[sample % len(rows.b), worst]
        excess = np.einsum("skn,skn->sk", normal, boxed) - side
        turn = np.where(excess < 0, -1.0, 1.0)  # an equality may be violated from below
        excess = np.where(violated, np.abs(excess), 0.0)
        rate = np.abs(normal)
        down = normal * turn[:, :, None] > 0
        target = np.where(down, low, high)
        room = np.abs(boxed - target) * rate
        price = np.where(rate > 0, self.weights / np.where(rate > 0, rate, 1.0), np.inf)
        order = np.argsort(price, axis=2, kind="stable")
        room_in_order = np.take_along_axis(room, order, axis=2)
        before = np.cumsum(room_in_order, axis=2) - room_in_order
        taken_in_order = np.clip(excess[:, :, None] - before, 0.0, room_in_order)
        taken = np.empty_like(room)
        np.put_along_axis(taken, order, taken_in_order, axis=2)
        step = taken / np.where(rate > 0, rate, 1.0)
        moved = np.where(taken >= room, target, boxed + np.where(down, -step, step))
        points = np.where(taken > 0, moved, boxed)
        slack = ABSOLUTE + RELATIVE * np.maximum(np.abs(side), rate.max(axis=2))
        return points, step @ self.weights, excess - room.sum(axis=2) > slack

    def _uses(self, columns: Integers) -> Mask:
        """Which of the general rows each scenario has, shape ``(scenarios, rows)``."""
        has = np.zeros((len(columns), self.blocks), dtype=bool)
        has[:, 0] = True
        has[np.arange(len(columns))[:, None], columns] = True
        return has[:, self._owner]

    def _length(self, moved: Array) -> Array:
        length: Array = moved @ self.weights if self.norm == "l1" else np.sqrt(moved**2 @ self.weights)
        return length


@dataclass(frozen=True)
class _Rows:
    """The rows that no box takes in, and which scenario has which."""

    A: Array
    b: Array
    equality: Mask
    uses: Mask

    def over(self, points: Array) -> Array:
        """How far each row is violated beyond rounding, 0 and less where it holds or is not used."""
        shape = (len(points), *self.A.shape[1:])
        value = np.einsum("srn,skn->skr", np.broadcast_to(self.A, shape), points)
        signed = value - self.b[:, None, :]
        over: Array = np.where(self.equality, np.abs(signed), signed)
        over -= ABSOLUTE + RELATIVE * np.abs(self.b)[:, None, :]
        over[:, ~self.uses] = -np.inf
        return over

    def farthest(self, over: Array, length: Array) -> tuple[Integers, Array]:
        """The row that is violated most, and how far its boundary is; 0 where all hold."""
        distance = over / np.where(length > 0, length, 1.0)[:, None, :]
        worst = distance.argmax(axis=2)
        far = np.take_along_axis(distance, worst[:, :, None], axis=2)[:, :, 0]
        return worst, np.maximum(far, 0.0)


def _sides(rows: Integers, owner: Any, column: Any, n: int) -> _Sides:
    """Rows sorted by block and output, and where each pair of them begins."""
    key = owner[rows] * n + column[rows]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    unique, edges = np.unique(key, return_index=True)
    return _Sides(rows, column[rows], edges, unique // n, unique % n)
