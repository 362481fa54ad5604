"""The l1 projection onto many small polyhedra at once, by a dual simplex method on arrays.

For one polyhedron the problem is ``min sum w_i |y_i - p_i|`` over ``A y <= b`` (Section 3.2 of Pal and Li,
2026). Its dual, ``max (A p - b) u`` over ``|A' u| <= w, u >= 0``, has the feasible point 0, so a dual
simplex method needs no first phase: it starts at ``y = p``, where every coordinate rests on its kink, and
exchanges one kink or row for the most violated row (or a kink that its coordinate has crossed) until nothing
is violated. That is a handful of exchanges here, the same few array operations for all problems of a batch.
What it returns is checked: the rows to rounding, and the objective against the dual one; a problem that
fails the check is left to HiGHS.

The method is ours (reconstructed where the paper leaves the solver open); nothing here is approximate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

OPTIMAL, EMPTY, BEYOND, UNSOLVED = 0, 1, 2, 3
"""What became of a problem: solved; its polyhedron is empty; farther than the cutoff; not to be trusted."""

FEASIBLE = 1e-9
"""How far a row of a solution may be violated, relative to its terms."""

_ROUNDING = 1e-12
"""How far it may be in all, where rows and outputs are about 1 in size."""

_SMALL_PIVOT = 1e-9
_TIE = 1e-12


@dataclass(frozen=True)
class Nearest:
    """The nearest points of a batch of polyhedra.

    Attributes:
        points: shape ``(problems, outputs)``; NaN where the status is not `OPTIMAL`.
        distances: shape ``(problems,)``; infinite where there is none.
        status: `OPTIMAL`, `EMPTY`, `BEYOND` or `UNSOLVED`, shape ``(problems,)``.
        exchanges: how many were made in all.
    """

    points: Array
    distances: Array
    status: Integers
    exchanges: int


def nearest_points(
    A: Array,
    b: Array,
    equality: NDArray[np.bool_],
    points: Array,
    weights: Array,
    *,
    cutoff: Array | None = None,
) -> Nearest:
    """Project each point onto its polyhedron ``{y: A y <= b}`` in the weighted l1 norm.

    Points and the largest coefficient of a row are meant to be about 1 in size.

    Args:
        A: shape ``(problems, rows, outputs)``; a row of zeros is no constraint if its side is not negative.
        b: shape ``(problems, rows)``.
        equality: which rows hold with equality, shape ``(problems, rows)``.
        points: shape ``(problems, outputs)``.
        weights: positive, shape ``(outputs,)``.
        cutoff: for each problem a distance beyond which its solution is not wanted.

    Returns:
        The nearest points, each a vertex: every coordinate either keeps its value bit for bit or is
        determined by rows.
    """
    state = _State(A, b, equality, points, weights, cutoff)
    limit = 20 * (A.shape[1] + A.shape[2]) + 50
    for _ in range(limit):
        if not len(state.live):
            break
        state.exchange()
    return state.result()


class _State:
    """A dual feasible basis of every problem, those not finished in front of the loop."""

    def __init__(
        self,
        A: Array,
        b: Array,
        equality: NDArray[np.bool_],
        points: Array,
        weights: Array,
        cutoff: Array | None,
    ) -> None:
        self.problems, self.rows, self.n = A.shape
        self.whole = (A, b, equality, points)
        self.weights = weights
        self.status = np.full(self.problems, UNSOLVED)
        self.values = np.zeros(self.problems)
        self.final_tight = np.zeros((self.problems, self.n), dtype=np.int64)
        self.exchanges = 0
        self.live = np.arange(self.problems)
        self.A, self.equality = A, equality
        self.slack = b - np.einsum("lrn,ln->lr", A, points)
        largest = (np.abs(A) / weights).max(axis=2)
        self.norm = np.where(largest > 0, largest, 1.0)
        self.scale = _ROUNDING * np.maximum(1.0, np.abs(b))
        self.cutoff = np.full(self.problems, np.inf) if cutoff is None else cutoff
        self.value = np.zeros(self.problems)
        self.move = np.zeros((self.problems, self.n))
        self.inverse = np.broadcast_to(np.eye(self.n), (self.problems, self.n, self.n)).copy()
        self.multiplier = np.zeros((self.problems, self.n))
        self.tight = np.broadcast_to(np.arange(self.n), (self.problems, self.n)).copy()
        self.side = np.zeros((self.problems, self.n))  # +1 or -1 where a coordinate has left its kink

    def exchange(self) -> None:
        """One exchange of every problem that is not finished."""
        entering, violation = self._most_violated()
        done = violation <= 0
        if done.any():
            self._finish(done, OPTIMAL)
            entering, violation = entering[~done], violation[~done]
            if not len(entering):
                return
        self.exchanges += len(entering)
        at = np.arange(len(entering))
        is_row = entering < self.rows
        row = np.where(is_row, entering, 0)
        coordinate = np.where(is_row, 0, entering - self.rows)
        normal = self.A[at, row]
        gap = np.einsum("ln,ln->l", normal, self.move) - self.slack[at, row]
        flip = np.where(gap < 0, -1.0, 1.0)  # an equality may be violated from below
        normal = normal * flip[:, None]
        side = self.side[at, coordinate]
        unit = np.zeros_like(normal)
        unit[at, coordinate] = 1.0
        normal = np.where(is_row[:, None], normal, -side[:, None] * unit)
        gap = np.where(is_row, np.abs(gap), -side * self.move[at, coordinate])

        alpha = np.einsum("li,lij->lj", normal, self.inverse)
        step, leaving = self._ratio_test(alpha)
        own = np.where(is_row, np.inf, 2 * self.weights[coordinate])
        empty = np.isinf(step) & np.isinf(own)
        flips = (own <= step) & ~empty
        step = np.where(flips, own, step)
        length = np.where(empty, 0.0, step)
        self.value += length * gap
        self.multiplier -= length[:, None] * alpha
        self.side[at[flips], coordinate[flips]] *= -1
        swap = ~(empty | flips)
        self._swap(at[swap], leaving[swap], entering[swap], normal[swap], alpha[swap], step[swap], gap[swap])
        beyond = self.value > self.cutoff
        if empty.any() or beyond.any():
            status = np.where(empty, EMPTY, np.where(beyond, BEYOND, UNSOLVED))
            self._finish(status != UNSOLVED, status[status != UNSOLVED])

    def _most_violated(self) -> tuple[Integers, Array]:
        """The row or kink that is violated most, as a distance, and by how much; 0 within tolerance."""
        over = np.einsum("lrn,ln->lr", self.A, self.move) - self.slack
        over = np.where(self.equality, np.abs(over), over)
        over = np.where(over > self.scale, over / self.norm, 0.0)
        at = np.arange(len(over))[:, None]
        rows_tight = self.tight >= self.n
        over[np.broadcast_to(at, self.tight.shape)[rows_tight], self.tight[rows_tight] - self.n] = 0.0
        crossed = -self.side * self.move * self.weights
        crossed = np.where(crossed > _ROUNDING, crossed, 0.0)
        both = np.concatenate([over, crossed], axis=1)
        most = both.max(axis=1)
        # the first of those that are equal but for rounding, so that a batch gives what a row alone gives
        entering = np.argmax(both >= (most * (1 - _TIE))[:, None], axis=1)
        return entering, most

    def _ratio_test(self, alpha: Array) -> tuple[Array, Integers]:
        """How far the entering multiplier may grow, and which tight kink or row then leaves."""
        at = np.arange(len(alpha))[:, None]
        is_kink = self.tight < self.n
        weight = self.weights[np.where(is_kink, self.tight, 0)]
        low = np.where(is_kink, -weight, 0.0)
        row = np.where(is_kink, 0, self.tight - self.n)
        low = np.where(~is_kink & self.equality[at, row], -np.inf, low)
        high = np.where(is_kink, weight, np.inf)
        room = np.where(alpha > 0, self.multiplier - low, high - self.multiplier)
        size = np.abs(alpha)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(size > _SMALL_PIVOT, np.maximum(room, 0.0) / size, np.inf)
        step = ratio.min(axis=1)
        # among equal ratios the largest pivot, which keeps the inverse accurate
        equal = ratio <= (step + _TIE * np.maximum(1.0, step))[:, None]
        leaving = np.argmax(np.where(equal, size, -1.0), axis=1)
        return step, leaving

    def _swap(
        self,
        at: Integers,
        leaving: Integers,
        entering: Integers,
        normal: Array,
        alpha: Array,
        step: Array,
        gap: Array,
    ) -> None:
        """Put the entering row or kink in the place of the leaving one."""
        if not len(at):
            return
        old = self.tight[at, leaving]
        kink = old < self.n
        self.side[at[kink], old[kink]] = np.where(alpha[kink, leaving[kink]] > 0, -1.0, 1.0)
        pivot = alpha[np.arange(len(at)), leaving]
        inverse = self.inverse[at]
        column = np.take_along_axis(inverse, leaving[:, None, None], axis=2)[:, :, 0] / pivot[:, None]
        inverse -= column[:, :, None] * alpha[:, None, :]
        inverse[np.arange(len(at)), :, leaving] = column
        self.move[at] -= column * gap[:, None]
        is_row = entering < self.rows
        # A kink enters as the unit row itself and not as -side times it, so column and multiplier turn.
        coordinate = np.where(is_row, 0, entering - self.rows)
        side = self.side[at, coordinate]
        turn = np.where(is_row, 1.0, -side)
        inverse[np.arange(len(at)), :, leaving] *= turn[:, None]
        self.inverse[at] = inverse
        value = np.where(is_row, step, (self.weights[coordinate] - step) * side)
        self.multiplier[at, leaving] = value
        self.side[at[~is_row], coordinate[~is_row]] = 0.0
        self.move[at[~is_row], coordinate[~is_row]] = 0.0
        # A row enters signed; only equalities enter turned round, and their multiplier has no sign.
        self.tight[at, leaving] = np.where(is_row, entering + self.n, coordinate)
        sign = np.where(
            is_row & (np.einsum("ln,ln->l", normal, self.A[at, np.where(is_row, entering, 0)]) < 0), -1, 1
        )
        self.inverse[at, :, leaving] *= sign[:, None]
        self.multiplier[at, leaving] *= sign

    def _finish(self, done: NDArray[np.bool_], status: Any) -> None:
        """Take problems out of the loop."""
        places = self.live[done]
        self.status[places] = status
        self.values[places] = self.value[done]
        self.final_tight[places] = self.tight[done]
        keep = ~done
        for name in ("live", "A", "equality", "slack", "norm", "scale", "cutoff", "value", "move", "inverse"):
            setattr(self, name, getattr(self, name)[keep])
        for name in ("multiplier", "tight", "side"):
            setattr(self, name, getattr(self, name)[keep])

    def result(self) -> Nearest:
        """Solve for every vertex anew from its tight rows and kinks, and check it."""
        points = np.full((self.problems, self.n), np.nan)
        distances = np.full(self.problems, np.inf)
        solved = np.flatnonzero(self.status == OPTIMAL)
        if len(solved):
            vertex, good = self._vertices(solved)
            self.status[solved[~good]] = UNSOLVED
            points[solved[good]] = vertex[good]
            away = np.abs(vertex - self.whole[3][solved]) @ self.weights
            distances[solved[good]] = away[good]
        return Nearest(points, distances, self.status, self.exchanges)

    def _vertices(self, which: Integers) -> tuple[Array, NDArray[np.bool_]]:
        whole_A, whole_b, whole_equality, whole_start = self.whole
        A, b, equality = whole_A[which], whole_b[which], whole_equality[which]
        start: Array = whole_start[which]
        tight = self.final_tight[which]
        vertex: Array = start.copy()
        moved = (tight >= self.n).any(axis=1)
        good: NDArray[np.bool_] = np.ones(len(which), dtype=bool)
        if moved.any():
            A, b, equality, start, tight = A[moved], b[moved], equality[moved], start[moved], tight[moved]
            at = np.arange(len(tight))[:, None]
            kink = tight < self.n
            row = np.where(kink, 0, tight - self.n)
            coordinate = np.where(kink, tight, 0)
            system = np.where(kink[:, :, None], np.eye(self.n)[coordinate], A[at, row])
            side = np.where(kink, start[at, coordinate], b[at, row])
            try:
                found = np.linalg.solve(system, side[:, :, None])[:, :, 0]
            except np.linalg.LinAlgError:
                found = np.full_like(start, np.nan)
            keeps = np.zeros(found.shape, dtype=bool)
            lines, places = np.nonzero(kink)
            keeps[lines, tight[lines, places]] = True
            found = np.where(keeps, start, found)
            over = np.einsum("lrn,ln->lr", A, found) - b
            over = np.where(equality, np.abs(over), over)
            terms = np.maximum(np.abs(A * found[:, None, :]).max(axis=2), np.abs(b))
            away = np.abs(found - start) @ self.weights
            value = self.values[which][moved]
            right = (over <= FEASIBLE * terms + 2 * _ROUNDING).all(axis=1)
            right &= np.abs(away - value) <= 1e-8 * np.maximum(1.0, value)
            vertex[moved], good[moved] = found, right
        return vertex, good
