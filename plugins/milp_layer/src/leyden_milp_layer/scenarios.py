"""The projection onto the feasible set as the best of many: one disjunct chosen for each active rule.

The value of the disjunctive-normal-form relaxation is the smallest of its scenarios' (Section 3.4 of Pal and
Li, 2026, the proposition), so the scenarios are visited in the order of a lower bound until none can be
better. A batch goes through it together: each round takes the next scenarios of every sample and projects
onto all of them at once.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leyden_milp_layer.bounding import Bounding, Known
from leyden_milp_layer.highs import WarmProjection
from leyden_milp_layer.pivoting import BEYOND, EMPTY, OPTIMAL, nearest_points
from leyden_milp_layer.quadratic import nearest_l2
from leyden_milp_layer.rules import Layout

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

TIE = 1e-9
"""Distances that differ by no more (where outputs are about 1) are equal, and the lowest scenario wins."""

_ROUNDING = 1e-13
"""So much of a distance may be rounding."""

INSIDE, PROJECTED, CONTRADICTION, TOO_MANY = 0, 1, 2, 3
"""What became of a sample: nothing to correct; projected; no scenario has a point; too many of them."""

_AT_ONCE = 48
"""About how many projections a round holds where the batch is smaller than that."""

_NUMBERS = 2**22
"""About how many numbers an array of all scenarios may hold; a batch that needs more goes in parts."""


@dataclass(frozen=True)
class Problem:
    """Rows and points of a batch, as arrays, in units in which they are about 1 (see `units`).

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
        solved: how many programs it took.
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
        self._bounding: Bounding | None = None
        cheapest = weights if norm == "l1" else np.sqrt(weights)
        self.tie = TIE * min(1.0, float(cheapest.min()))
        self._turn = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the lock, which no copy shares."""
        return {name: value for name, value in self.__dict__.items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state, with a lock of its own."""
        self.__dict__.update(state)
        self._turn = threading.Lock()

    def bounding(self, problem: Problem) -> Bounding:
        """What bounds the scenarios; made once where the matrix never changes."""
        if problem.varies[0]:
            return Bounding(self.layout, problem.A, self.weights, self.norm)
        if self._bounding is None:
            self._bounding = Bounding(self.layout, problem.A, self.weights, self.norm)
        return self._bounding

    def near(self, least: Any) -> Any:
        """The largest distance that ties with the least; of numbers or arrays."""
        return least * (1 + _ROUNDING) + self.tie

    def choices(self, active: Mask) -> Choices:
        """The scenarios of a set of active rules."""
        key = active.tobytes()
        found: Choices | None = self._choices.recall(key)
        if found is None:
            found = Choices(self.layout, active, self.limit)
            self._choices.keep(key, found)
        return found

    def project(self, problem: Problem) -> Outcome:
        """Project every point of a batch onto its feasible set; threads take turns."""
        with self._turn:  # what is kept from call to call, warm programs above all, is one thread's at a time
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
    boxed: Array
    base: list[float]
    empty: Mask
    found: list[tuple[float, int, Array]]
    least: float
    place: int = 0

    def next(self, count: int, farthest: float) -> list[int]:
        """The next places of the order, as long as their bounds are no farther than that."""
        taken: list[int] = []
        while self.place < len(self.order) and len(taken) < count:
            if self.bounds[self.place] > farthest:
                self.place = len(self.order)
                break
            taken.append(self.place)
            self.place += 1
        return taken


class _Run:
    """The projection of one batch."""

    def __init__(self, enumeration: Enumeration, problem: Problem) -> None:
        self.by, self.problem = enumeration, problem
        batch, rules = problem.active.shape
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

    def begin(self) -> None:
        """Bound every scenario, finish the samples that need no program, and queue the others."""
        bounding = self.by.bounding(self.problem)
        boxes = bounding.boxes(self.problem.A, self.problem.b)
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
            columns = bounding.starts[choices.rules] + choices.chosen[:, choices.rules]
            at_once = max(1, _NUMBERS // (choices.count * max(self.problem.A.shape[1:])))
            for some in np.split(members, range(at_once, len(members), at_once)):
                A, b, low, high = (
                    array if len(array) == 1 else array[some]
                    for array in (self.problem.A, self.problem.b, *boxes)
                )
                known = bounding.known(A, b, (low, high), columns, self.start[some])
                self._sort(some, choices, known)

    def _sort(self, members: Integers, choices: Choices, known: Known) -> None:
        """Settle the samples that satisfy a scenario or whose best one is solved; queue the others."""
        inside = known.solved & (known.points == self.problem.points[members][:, None]).all(axis=2)
        solved = known.solved if self.by.solver == "pivoting" or self.by.norm == "l2" else inside
        least = np.where(solved, known.bound, np.inf).min(axis=1)
        near = known.bound <= self.by.near(least)[:, None]
        satisfied = inside.any(axis=1)
        done = satisfied | (np.isfinite(least) & (solved | ~near).all(axis=1))
        first = np.where(satisfied, inside.argmax(axis=1), (near & solved).argmax(axis=1))
        for place in np.flatnonzero(done).tolist():
            status = INSIDE if satisfied[place] else PROJECTED
            scenario = int(first[place])
            self._settle(int(members[place]), choices, scenario, known.points[place, scenario], status)
        for place in np.flatnonzero(~done).tolist():
            sample = int(members[place])
            found = [
                (float(known.bound[place, one]), one, known.points[place, one])
                for one in np.flatnonzero(near[place] & solved[place]).tolist()
            ]
            empty = self.by.known_empty(self.problem, sample, choices.count)
            open_ones = np.flatnonzero(
                near[place] & ~solved[place] & ~empty & np.isfinite(known.bound[place])
            )
            order = open_ones[np.argsort(known.bound[place, open_ones], kind="stable")]
            search = _Search(
                sample,
                choices,
                order.tolist(),
                known.bound[place, order].tolist(),
                known.boxed[place, order],
                known.base[place, order].tolist(),
                empty,
                found,
                float(least[place]),
            )
            if len(order):
                self.waiting.append(search)
            else:
                self._best(search)

    def round(self) -> None:
        """Project every waiting sample onto its next scenarios."""
        many = max(1, _AT_ONCE // len(self.waiting))
        jobs = [
            (search, place)
            for search in self.waiting
            for place in search.next(many, self.by.near(search.least))
        ]
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
            for search, place in jobs:
                self._one(search, place)
            return
        problem = self.problem
        width = max(search.choices.rows.shape[1] for search, _ in jobs)
        rows = np.full((len(jobs), width), self.by.layout.rows, dtype=np.int64)
        for job, (search, place) in enumerate(jobs):
            own = search.choices.rows[search.order[place]]
            rows[job, : len(own)] = own
        filled = rows < self.by.layout.rows
        rows = np.where(filled, rows, 0)
        base = np.array([search.base[place] for search, place in jobs])
        found = nearest_points(
            problem.A[(samples % len(problem.A))[:, None], rows] * filled[:, :, None],
            problem.b[(samples % len(problem.b))[:, None], rows] * filled,
            self.by.layout.equality[rows] & filled,
            np.array([search.boxed[place] for search, place in jobs]),
            self.by.weights,
            cutoff=np.array([self.by.near(search.least) for search, _ in jobs]) - base,
        )
        status, distances = found.status.tolist(), (found.distances + base).tolist()
        for job, (search, place) in enumerate(jobs):
            if status[job] == OPTIMAL:
                self._note(search, place, distances[job], found.points[job])
            elif status[job] == EMPTY:
                search.empty[search.order[place]] = True
            elif status[job] != BEYOND:
                self._one(search, place)

    def _one(self, search: _Search, place: int) -> None:
        """Project one sample onto one scenario, alone."""
        scenario = search.order[place]
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
            self._note(search, place, distance, point)

    def _note(self, search: _Search, place: int, distance: float, point: Array) -> None:
        search.least = min(search.least, distance)
        search.found.append((distance, search.order[place], point))

    def _best(self, search: _Search) -> None:
        near = [one for one in search.found if one[0] <= self.by.near(search.least)]
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
