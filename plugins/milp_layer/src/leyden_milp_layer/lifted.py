"""The relaxations as one linear program: a convex hull for each block of disjuncts, in lifted variables.

Section 3.3 of Pal and Li (2026), in Balas' form. CNF has a block for each rule, DNF one block of all
scenarios, partial DNF one block of the expanded rules' scenarios beside the others' blocks. The outputs and
their distances are put inside every disjunct before it is convexified, which is what makes DNF exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array
from torch import Tensor

from leyden_milp_layer.highs import Program, minimize, relative
from leyden_milp_layer.pivoting import EMPTY, nearest_points
from leyden_milp_layer.rules import Layout, RuleSet

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
INFINITY = float("inf")


@dataclass(frozen=True)
class Relaxed:
    """The optimum of a relaxation, a vertex.

    Attributes:
        point: the outputs, shape ``(outputs,)``.
        distance: the smallest value of the program: at most the distance to the feasible set.
        order: the rules that are expanded, in the order of expansion.
        shares: the weights of each block's disjuncts.
        scenarios: the disjuncts of `order` that each share of the first block belongs to.
        variables: how many columns the program has.
        constraints: how many rows.
        basis: what the gradient needs: the system of active rows, its columns, and the epigraph rows in it.
    """

    point: Array
    distance: float
    order: tuple[int, ...]
    shares: tuple[Array, ...]
    scenarios: tuple[tuple[int, ...], ...]
    variables: int
    constraints: int
    basis: tuple[Array, Integers, Array]

    def pull_back(self, gradient: Array) -> Array:
        """The gradient with respect to the projected point, of a function with this gradient at `point`.

        Args:
            gradient: shape ``(outputs,)``.

        Returns:
            Shape ``(outputs,)``.
        """
        system, columns, epigraph = self.basis
        right = np.where(columns < len(gradient), gradient[np.minimum(columns, len(gradient) - 1)], 0.0)
        pulled: Array = np.linalg.solve(system.T, right) @ epigraph
        return pulled


@dataclass(frozen=True)
class Sample:
    """One sample's rows and what is projected; the point lies within the bounds.

    Attributes:
        layout: where the rows belong.
        A: shape ``(rows, outputs)``.
        b: shape ``(rows,)``.
        rules: the active rules.
        point: shape ``(outputs,)``.
        weights: shape ``(outputs,)``.
    """

    layout: Layout
    A: Array
    b: Array
    rules: Sequence[int]
    point: Array
    weights: Array


def samples_of(
    rules: RuleSet,
    points: Float[Tensor, "batch outputs"],
    features: Float[Tensor, "batch features"] | None = None,
) -> list[Sample]:
    """The samples of a batch, with weights of 1.

    Args:
        rules: the rules.
        points: what is projected; it is clipped to the bounds, which changes every distance alike.
        features: for rules that depend on them.

    Returns:
        A sample for each row.
    """
    bank = rules.at(features, len(points))
    A, b = bank.A.detach().numpy(), bank.b.detach().numpy()
    clipped = np.clip(points.detach().double().numpy(), rules.lower, rules.upper)
    return [
        Sample(
            rules.layout,
            A[place % len(A)],
            b[place % len(b)],
            [int(rule) for rule in np.flatnonzero(bank.active[place].numpy())],
            clipped[place],
            np.ones(rules.n),
        )
        for place in range(len(points))
    ]


def relax(sample: Sample, count: int, order: Sequence[int] | None = None) -> Relaxed | None:
    """The relaxation in which some rules are expanded into scenarios and the others keep a hull each.

    Args:
        sample: the sample.
        count: how many rules are expanded; at least all of them is DNF, 0 is CNF.
        order: which first; None: at each step the rule that the relaxed point violates most, of equals the
            one that shares most outputs with the expanded ones (reconstructed, the paper leaves it open).

    Returns:
        The optimum, or None where the relaxation is empty.
    """
    count = min(count, len(sample.rules))
    if order is not None:
        wanted = [rule for rule in order if rule in sample.rules]
        wanted += [rule for rule in sample.rules if rule not in wanted]
        return solve(sample, wanted[:count])
    if count == len(sample.rules):
        return solve(sample, sample.rules)
    found = None
    for found in itertools.islice(chain(sample), count + 1):  # noqa: B007 - the last one is wanted
        pass
    return found if found is not None and len(found.order) == count else None


def chain(sample: Sample) -> Iterator[Relaxed]:
    """The relaxations from CNF to DNF, one rule more expanded in each.

    Args:
        sample: the sample.

    Yields:
        The optimum of each, as long as the relaxation is not empty.
    """
    expanded: list[int] = []
    found = solve(sample, expanded)
    while found is not None:
        yield found
        if len(expanded) == len(sample.rules):
            return
        expanded.append(_next_rule(sample, expanded, found.point))
        found = solve(sample, expanded)


def solve(sample: Sample, expanded: Sequence[int]) -> Relaxed | None:
    """The relaxation in which exactly these rules are expanded.

    Args:
        sample: the sample.
        expanded: the rules of the block of scenarios.

    Returns:
        The optimum, or None where the relaxation is empty.
    """
    scenarios = _scenarios(sample, expanded)
    layout = sample.layout
    common = list(range(layout.common))
    blocks: list[list[list[int]]] = []
    if expanded or not sample.rules:
        blocks.append([rows for _, rows in scenarios])
    blocks += [
        [common + list(range(*span)) for span in layout.disjuncts[rule]]
        for rule in sample.rules
        if rule not in expanded
    ]
    if any(not block for block in blocks):
        return None
    program, epigraph = _program(sample, blocks)
    found = minimize(program)
    if found is None:
        return None
    n = len(sample.point)
    column, shares = 2 * n, []
    for block in blocks:
        at = column + (2 * n + 1) * np.arange(len(block)) + 2 * n
        shares.append(found.values[at])
        column += (2 * n + 1) * len(block)
    matrix = csc_array(program.matrix)
    rows, columns = np.flatnonzero(~found.basic_rows), np.flatnonzero(found.basic_columns)
    system = matrix[rows][:, columns].toarray()
    share_of = np.array([found.values[one] if one >= 0 else 0.0 for one in epigraph[0]])
    slope = np.zeros((len(rows), n))
    slope[np.arange(len(rows)), epigraph[1][rows]] = epigraph[2][rows] * share_of[rows]
    return Relaxed(
        found.values[:n].copy(),
        float(found.values[n : 2 * n] @ sample.weights),
        tuple(expanded),
        tuple(shares),
        tuple(choice for choice, _ in scenarios) if expanded or not sample.rules else (),
        matrix.shape[1],
        matrix.shape[0],
        (system, columns, slope),
    )


def _program(
    sample: Sample, blocks: list[list[list[int]]]
) -> tuple[Program, tuple[Integers, Integers, Integers]]:
    """The lifted program, and of each row that holds y_hat the column of lambda, the output and the sign."""
    n, point, layout = len(sample.point), sample.point, sample.layout
    rows: list[Any] = []
    columns: list[Any] = []
    values: list[Array] = []
    low: list[float] = []
    high: list[float] = []
    share: list[int] = []
    coordinate: list[int] = []
    sign: list[int] = []

    def add(at: Any, places: Any, numbers: Array, below: Array, above: Array) -> None:
        rows.append(at + len(low))
        columns.append(places)
        values.append(numbers)
        low.extend(below.tolist())
        high.extend(above.tolist())
        share.extend([-1] * len(above))
        coordinate.extend([0] * len(above))
        sign.extend([0] * len(above))

    each = np.arange(n)
    column = 2 * n
    zeros = np.zeros(n)
    for block in blocks:
        first = column + (2 * n + 1) * np.arange(len(block))
        add(np.zeros(len(block), dtype=int), first + 2 * n, np.ones(len(block)), np.ones(1), np.ones(1))
        for offset in (0, n):  # y = sum of w, eta = sum of e
            places = np.concatenate([offset + each, (first[:, None] + offset + each).reshape(-1)])
            at = np.concatenate([each, np.tile(each, len(block))])
            numbers = np.concatenate([np.ones(n), -np.ones(n * len(block))])
            add(at, places, numbers, zeros, zeros)
        for start, chosen in zip(first, block, strict=True):
            A, b = sample.A[chosen], sample.b[chosen]
            at, places = np.nonzero(A)
            count = len(b)
            add(
                np.concatenate([at, np.arange(count)]),
                np.concatenate([start + places, np.full(count, start + 2 * n)]),
                np.concatenate([A[at, places], -b]),
                np.where(layout.equality[chosen], 0.0, -INFINITY),
                np.zeros(count),
            )
            for turn in (1, -1):
                add(
                    np.tile(each, 3),
                    np.concatenate([start + each, start + n + each, np.full(n, start + 2 * n)]),
                    np.concatenate([np.full(n, turn), -np.ones(n), -turn * point]),
                    np.full(n, -INFINITY),
                    zeros,
                )
                share[-n:] = [int(start) + 2 * n] * n
                coordinate[-n:] = each.tolist()
                sign[-n:] = [turn] * n
        column += (2 * n + 1) * len(block)
    cost = np.zeros(column)
    cost[n : 2 * n] = relative(sample.weights)
    lower = np.full(column, -INFINITY)
    lower[4 * n :: 2 * n + 1] = 0.0  # the shares
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    program = Program(
        cost,
        coo_array(entries, shape=(len(low), column)),
        np.array(low),
        np.array(high),
        lower,
        np.full(column, INFINITY),
    )
    return program, (np.array(share), np.array(coordinate), np.array(sign))


def _scenarios(sample: Sample, rules: Sequence[int]) -> list[tuple[tuple[int, ...], list[int]]]:
    """The scenarios of some rules that have a point, each with its rows."""
    layout = sample.layout
    common = list(range(layout.common))
    choices = list(itertools.product(*(range(len(layout.disjuncts[rule])) for rule in rules)))
    lists = [
        common
        + [
            row
            for rule, place in zip(rules, choice, strict=True)
            for row in range(*layout.disjuncts[rule][place])
        ]
        for choice in choices
    ]
    if not lists:
        return []
    width = max(map(len, lists))
    A = np.zeros((len(lists), width, len(sample.point)))
    b = np.zeros((len(lists), width))
    equality = np.zeros((len(lists), width), dtype=bool)
    for place, rows in enumerate(lists):
        A[place, : len(rows)], b[place, : len(rows)] = sample.A[rows], sample.b[rows]
        equality[place, : len(rows)] = layout.equality[rows]
    points = np.broadcast_to(sample.point, (len(lists), len(sample.point)))
    found = nearest_points(A, b, equality, points, sample.weights)
    return [
        (choice, rows)
        for choice, rows, status in zip(choices, lists, found.status.tolist(), strict=True)
        if status != EMPTY
    ]


def _next_rule(sample: Sample, expanded: Sequence[int], point: Array) -> int:
    """The rule to expand next."""
    layout = sample.layout
    over = sample.A @ point - sample.b
    over = np.where(layout.equality, np.abs(over), over)
    touched = _outputs_of(sample, expanded)

    def rank(rule: int) -> tuple[float, int, int]:
        violation = min(
            (float(over[start:stop].max()) for start, stop in layout.disjuncts[rule]), default=0.0
        )
        shared = len(_outputs_of(sample, [rule]) & touched)
        return (-round(max(violation, 0.0), 9), -shared, rule)

    return min((rule for rule in sample.rules if rule not in expanded), key=rank)


def _outputs_of(sample: Sample, rules: Sequence[int]) -> set[int]:
    rows = [row for rule in rules for span in sample.layout.disjuncts[rule] for row in range(*span)]
    return set(np.flatnonzero(np.abs(sample.A[rows]).sum(axis=0)).tolist()) if rows else set()
