"""The projection onto the feasible set as the best of many: one disjunct chosen for each active rule.

The value of the disjunctive-normal-form relaxation is the smallest of its scenarios' (Section 3.4 of Pal and
Li, 2026, the proposition), so the scenarios are visited in the order of a lower bound until none can be
better. A batch goes through it together: each round takes the next scenarios of every sample and projects
onto all of them at once.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leyden_milp_layer.highs import WarmProjection
from leyden_milp_layer.pivoting import BEYOND, EMPTY, FEASIBLE, OPTIMAL, nearest_points
from leyden_milp_layer.quadratic import nearest_l2
from leyden_milp_layer.rules import Layout

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

TIE = 1e-9
"""Distances that differ by no more are equal, and the lowest scenario wins."""

INSIDE, PROJECTED, CONTRADICTION, TOO_MANY = 0, 1, 2, 3
"""What became of a sample: nothing to correct; projected; no scenario has a point; too many of them."""

_AT_ONCE = 96
"""About how many projections a round holds where the batch is smaller than that."""


@dataclass(frozen=True)
class Problem:
    """Rows and points of a batch, as arrays.

    Attributes:
        A: shape ``(batch or 1, rows, outputs)``.
        b: shape ``(batch or 1, rows)``.
        active: shape ``(batch, rules)``.
        points: what is projected, shape ``(batch, outputs)``.
        varies: whether A and b differ from sample to sample.
    """

    A: Array
    b: Array
    active: Mask
    points: Array
    varies: tuple[bool, bool]

    def rows_of(self, sample: int) -> tuple[Array, Array]:
        """The rows of one sample."""
        return self.A[sample % len(self.A)], self.b[sample % len(self.b)]

    def key(self, sample: int) -> tuple[bytes, ...]:
        """What the scenarios of a sample depend on."""
        A, b = self.rows_of(sample)
        parts = (one.tobytes() if varies else b"" for one, varies in zip((A, b), self.varies, strict=True))
        return (self.active[sample].tobytes(), *parts)


@dataclass(frozen=True)
class Outcome:
    """What a batch was projected to.

    Attributes:
        points: shape ``(batch, outputs)``.
        chosen: for each rule the number of its disjunct, -1 where it is not active; ``(batch, rules)``.
        scenario: the lexicographic index of the choice, -1 where there is none; ``(batch,)``.
        distance: in the norm of the projection; infinite where there is none.
        status: `INSIDE`, `PROJECTED`, `CONTRADICTION` or `TOO_MANY`.
        scenarios: how many there were.
        solved: how many projections onto a polyhedron it took.
    """

    points: Array
    chosen: Integers
    scenario: Integers
    distance: Array
    status: Integers
    scenarios: Integers
    solved: Integers


class Choices:
    """The scenarios of one set of active rules.

    Args:
        layout: where the rows belong.
        active: which rules apply, shape ``(rules,)``.

    Attributes:
        count: how many there are; the arrays are filled only up to a limit.
        chosen: the disjunct of each rule, shape ``(count, rules)``, -1 for a rule that is not active.
        rows: the rows of each, shape ``(count, width)``, filled up with the number of rows.
    """

    def __init__(self, layout: Layout, active: Mask, limit: int) -> None:
        self.rules = np.flatnonzero(active)
        spans = [layout.disjuncts[rule] for rule in self.rules]
        self.count = math.prod(len(one) for one in spans)
        if self.count > limit:
            return
        combinations = list(itertools.product(*(range(len(one)) for one in spans)))
        self.chosen = np.full((self.count, len(active)), -1, dtype=np.int64)
        if self.count:
            self.chosen[:, self.rules] = np.array(combinations, dtype=np.int64).reshape(self.count, -1)
        lists = [scenario_rows(layout, self.rules, one) for one in combinations]
        width = max((len(one) for one in lists), default=0)
        self.rows = np.full((self.count, width), layout.rows, dtype=np.int64)
        for place, one in enumerate(lists):
            self.rows[place, : len(one)] = one


def scenario_rows(layout: Layout, rules: Sequence[int] | Integers, chosen: Sequence[int]) -> list[int]:
    """The rows of a scenario: bounds, global rows, and those of the disjunct chosen for each rule."""
    rows = list(range(layout.common))
    for rule, disjunct in zip(rules, chosen, strict=True):
        rows += range(*layout.disjuncts[int(rule)][int(disjunct)])
    return rows


class Recent(OrderedDict[Hashable, Any]):
    """A dictionary that keeps its most recently used entries.

    Args:
        size: how many.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def recall(self, key: Hashable) -> Any:
        """The entry, or None."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: Hashable, value: Any) -> None:
        """Store an entry."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self.size:
            self.popitem(last=False)

    def __reduce__(self) -> Any:
        return Recent, (self.size,)  # a copy starts empty: what is kept may hold handles of HiGHS


class Enumeration:
    """Sorted enumeration of scenarios over a batch.

    Args:
        layout: where the rows belong.
        lower: the bounds of the outputs, shape ``(outputs,)``.
        upper: the same.
        weights: of the norm, positive, shape ``(outputs,)``.
        norm: ``"l1"`` or ``"l2"``.
        limit: more scenarios than this are left to another strategy.
        cache_size: for how many samples it remembers which scenarios are empty.
        solver: ``"pivoting"``, or ``"highs"`` for a linear program kept warm for each scenario.
    """

    def __init__(
        self,
        layout: Layout,
        lower: Array,
        upper: Array,
        weights: Array,
        *,
        norm: Literal["l1", "l2"],
        limit: int,
        cache_size: int,
        solver: Literal["pivoting", "highs"],
    ) -> None:
        self.layout, self.lower, self.upper, self.weights = layout, lower, upper, weights
        self.norm, self.limit, self.solver = norm, limit, solver
        self._choices = Recent(cache_size)
        self._empty = Recent(cache_size)
        self._warm = Recent(cache_size)

    def choices(self, active: Mask) -> Choices:
        """The scenarios of a set of active rules."""
        key = active.tobytes()
        found: Choices | None = self._choices.recall(key)
        if found is None:
            found = Choices(self.layout, active, self.limit)
            self._choices.keep(key, found)
        return found

    def project(self, problem: Problem) -> Outcome:
        """Project every point of a batch onto its feasible set."""
        run = _Run(self, problem)
        run.begin()
        while run.waiting:
            run.round()
        return run.outcome()

    def known_empty(self, problem: Problem, sample: int, count: int) -> Mask:
        """Which scenarios of a sample have been found empty; the array may be written to."""
        key = problem.key(sample)
        found: Mask | None = self._empty.recall(key)
        if found is None:
            found = np.zeros(count, dtype=bool)
            self._empty.keep(key, found)
        return found

    def warm(self, problem: Problem, sample: int, scenario: int, rows: Integers) -> WarmProjection:
        """The linear program of a scenario, made at its first use."""
        key = (*problem.key(sample), scenario)
        found: WarmProjection | None = self._warm.recall(key)
        if found is None:
            A, b = problem.rows_of(sample)
            rows = rows[rows < self.layout.rows]
            found = WarmProjection(A[rows], b[rows], self.layout.equality[rows], self.weights)
            if self.solver == "highs":
                self._warm.keep(
                    key, found
                )  # else each is new, so that ties do not depend on what came before
        return found


@dataclass
class _Search:
    """What is known of a sample that is not finished."""

    sample: int
    choices: Choices
    order: list[int]
    bounds: list[float]
    empty: Mask
    place: int = 0
    least: float = math.inf
    found: list[tuple[float, int, Array]] | None = None

    def next(self, count: int) -> list[int]:
        """The next scenarios that may be better than, or tie with, the best so far."""
        taken: list[int] = []
        while self.place < len(self.order) and len(taken) < count:
            if self.bounds[self.place] > self.least + TIE:
                self.place = len(self.order)
                break
            taken.append(self.order[self.place])
            self.place += 1
        return taken


class _Run:
    """The projection of one batch."""

    def __init__(self, enumeration: Enumeration, problem: Problem) -> None:
        self.by, self.problem = enumeration, problem
        batch, rules = problem.active.shape
        layout = enumeration.layout
        self.points = problem.points.copy()
        self.chosen = np.full((batch, rules), -1, dtype=np.int64)
        self.scenario = np.full(batch, -1, dtype=np.int64)
        self.distance = np.full(batch, np.inf)
        self.status = np.full(batch, CONTRADICTION, dtype=np.int64)
        self.scenarios = np.zeros(batch, dtype=np.int64)
        self.solved = np.zeros(batch, dtype=np.int64)
        self.waiting: list[_Search] = []
        # Clipping to the bounds costs the same whatever is chosen later, so that far points cost no digits.
        clipped = np.clip(problem.points, enumeration.lower, enumeration.upper)
        self.start = clipped if enumeration.norm == "l1" else problem.points
        self.A = np.concatenate([problem.A, np.zeros((len(problem.A), 1, problem.A.shape[2]))], axis=1)
        self.b = np.concatenate([problem.b, np.zeros((len(problem.b), 1))], axis=1)
        self.equality = np.concatenate([layout.equality, [False]])

    def begin(self) -> None:
        """Bound every scenario, finish the samples that satisfy one, and queue the others."""
        held, bounds = self._per_disjunct()
        common_held, common_bound = held[:, 0], bounds[:, 0]
        starts = np.cumsum([1, *(len(spans) for spans in self.by.layout.disjuncts)])
        patterns, group = np.unique(self.problem.active, axis=0, return_inverse=True)
        for place, active in enumerate(patterns):
            members = np.flatnonzero(group.reshape(-1) == place)
            choices = self.by.choices(active)
            self.scenarios[members] = choices.count
            if choices.count > self.by.limit:
                self.status[members] = TOO_MANY
                continue
            if not choices.count:
                continue
            columns = starts[choices.rules] + choices.chosen[:, choices.rules]
            inside = held[members[:, None, None], columns[None]].all(axis=2) & common_held[members, None]
            bound = bounds[members[:, None, None], columns[None]].max(axis=2, initial=0.0)
            bound = np.maximum(bound, common_bound[members, None])
            for sample, fits, least in zip(members.tolist(), inside, bound, strict=True):
                if fits.any():
                    self._settle(sample, choices, int(fits.argmax()), self.problem.points[sample], INSIDE)
                else:
                    self._queue(sample, choices, least)

    def _queue(self, sample: int, choices: Choices, least: Array) -> None:
        empty = self.by.known_empty(self.problem, sample, choices.count)
        order = np.argsort(np.where(empty, np.inf, least), kind="stable")
        order = order[: choices.count - int(empty.sum())]
        if len(order):
            search = _Search(sample, choices, order.tolist(), least[order].tolist(), empty, found=[])
            self.waiting.append(search)

    def round(self) -> None:
        """Project every waiting sample onto its next scenarios."""
        many = max(1, _AT_ONCE // len(self.waiting))
        jobs = [(search, scenario) for search in self.waiting for scenario in search.next(many)]
        if jobs:
            self._solve(jobs)
        finished = [one for one in self.waiting if one.place >= len(one.order)]
        self.waiting = [one for one in self.waiting if one.place < len(one.order)]
        for search in finished:
            self._best(search)

    def _solve(self, jobs: list[tuple[_Search, int]]) -> None:
        samples = np.array([search.sample for search, _ in jobs])
        np.add.at(self.solved, samples, 1)
        if self.by.norm == "l2" or self.by.solver == "highs":
            for search, scenario in jobs:
                self._one(search, scenario)
            return
        width = max(search.choices.rows.shape[1] for search, _ in jobs)
        rows = np.full((len(jobs), width), self.by.layout.rows, dtype=np.int64)
        for place, (search, scenario) in enumerate(jobs):
            own = search.choices.rows[scenario]
            rows[place, : len(own)] = own
        found = nearest_points(
            self.A[(samples % len(self.A))[:, None], rows],
            self.b[(samples % len(self.b))[:, None], rows],
            self.equality[rows],
            self.start[samples],
            self.by.weights,
            cutoff=np.array([search.least + TIE for search, _ in jobs]),
        )
        status, distances = found.status.tolist(), found.distances.tolist()
        for place, (search, scenario) in enumerate(jobs):
            if status[place] == OPTIMAL:
                self._note(search, scenario, distances[place], found.points[place])
            elif status[place] == EMPTY:
                search.empty[scenario] = True
            elif status[place] != BEYOND:
                self._one(search, scenario)

    def _one(self, search: _Search, scenario: int) -> None:
        """Project one sample onto one scenario, alone."""
        sample, start, rows = search.sample, self.start[search.sample], search.choices.rows[scenario]
        if self.by.norm == "l1":
            point = self.by.warm(self.problem, sample, scenario, rows).nearest(start)
            distance = math.inf if point is None else float(np.abs(point - start) @ self.by.weights)
        else:
            root = np.sqrt(self.by.weights)
            A, b = self.problem.rows_of(sample)
            rows = rows[rows < self.by.layout.rows]
            found = nearest_l2(A[rows] / root, b[rows], self.by.layout.equality[rows], start * root)
            point = None if found is None else found[0] / root
            distance = math.inf if point is None else float(np.linalg.norm((point - start) * root))
        if point is None:
            search.empty[scenario] = True
        else:
            self._note(search, scenario, distance, point)

    def _note(self, search: _Search, scenario: int, distance: float, point: Array) -> None:
        assert search.found is not None
        search.least = min(search.least, distance)
        search.found.append((distance, scenario, point))

    def _best(self, search: _Search) -> None:
        near = [one for one in search.found or () if one[0] <= search.least + TIE]
        if near:
            _, scenario, point = min(near, key=lambda one: one[1])
            self._settle(search.sample, search.choices, scenario, point, PROJECTED)

    def _settle(self, sample: int, choices: Choices, scenario: int, point: Array, status: int) -> None:
        self.points[sample] = point
        self.chosen[sample] = choices.chosen[scenario]
        self.scenario[sample] = scenario
        self.status[sample] = status
        away = np.abs(point - self.problem.points[sample])
        weights = self.by.weights
        self.distance[sample] = away @ weights if self.by.norm == "l1" else math.sqrt(away**2 @ weights)

    def outcome(self) -> Outcome:
        """What was found."""
        return Outcome(
            self.points, self.chosen, self.scenario, self.distance, self.status, self.scenarios, self.solved
        )

    def _per_disjunct(self) -> tuple[Mask, Array]:
        """For the common rows and every disjunct: whether they hold, and how far the point is at least."""
        over = np.einsum(
            "srn,sn->sr", np.broadcast_to(self.A, (len(self.start), *self.A.shape[1:])), self.start
        )
        over -= self.b
        over = np.where(self.equality, np.abs(over), over)
        size = np.maximum(1.0, np.abs(self.b) + np.abs(self.start).max(axis=1, initial=0.0)[:, None])
        held = over <= FEASIBLE * size
        held &= (self.start == self.problem.points).all(axis=1)[:, None]
        if self.by.norm == "l1":
            length = (np.abs(self.A) / self.by.weights).max(axis=2)
        else:
            length = np.linalg.norm(self.A / np.sqrt(self.by.weights), axis=2)
        bound = over / np.where(length > 0, length, 1.0)
        spans = [(0, self.by.layout.common), *(one for spans in self.by.layout.disjuncts for one in spans)]
        edges = np.array(spans).reshape(-1)
        held = np.logical_and.reduceat(held, edges, axis=1)[:, ::2]
        return held, np.maximum.reduceat(bound, edges, axis=1)[:, ::2]
