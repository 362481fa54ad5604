"""What a rule asks of the outputs: polyhedra, disjunctions of them, and the words that make both.

``C_r = {y: A_1 y <= b_1} or ... or {y: A_m y <= b_m}`` in the notation of Pal and Li (2026). Unions of
polyhedra, intersected, are the mixed-integer linear sets, so bounded integers, products of signs and
implications are rules.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any

import numpy as np
from torch import Tensor

from leyden_milp_layer.expressions import Condition, Expression, Key, Number

Coefficient = Number | Expression
Bound = Number | Expression | Tensor | Callable[[Tensor], Any]
"""A number, an expression of the features, a tensor, or a callable of a sample's features ``(features,)``."""

Array = Sequence[Any] | np.ndarray[Any, Any] | Tensor | Callable[[Tensor], Any]


@dataclass(frozen=True, eq=False)
class Row:
    """One row, ``sum of coefficients * outputs <= bound``; ``...`` as a key stands for every output.

    Attributes:
        coefficients: the factor of each output.
        bound: the right-hand side.
        equality: whether both sides are equal.
    """

    coefficients: Mapping[Key | EllipsisType, Coefficient]
    bound: Bound
    equality: bool = False


@dataclass(frozen=True, eq=False)
class Block:
    """Rows as a matrix, ``A y <= b``; either may be a callable of one sample's features.

    Attributes:
        A: shape ``(rows, outputs)``.
        b: shape ``(rows,)``.
        equality: whether both sides are equal.
        rows: how many rows, where both are callables.
    """

    A: Array
    b: Array
    equality: bool = False
    rows: int | None = None


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear form of the outputs; `output` makes one, arithmetic combines them, comparisons make polyhedra.

    Attributes:
        coefficients: the factor of each output, a number or an expression of the features.
        constant: what is added, of the same kinds.
    """

    coefficients: Mapping[Key | EllipsisType, Coefficient] = field(default_factory=dict)
    constant: Coefficient = 0.0

    def __add__(self, other: Linear | Coefficient) -> Linear:
        if not isinstance(other, Linear):
            return Linear(self.coefficients, self.constant + other)
        merged = dict(self.coefficients)
        for key, value in other.coefficients.items():
            merged[key] = merged[key] + value if key in merged else value
        return Linear(merged, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear | Coefficient) -> Linear:
        return self + (-other)

    def __rsub__(self, other: Coefficient) -> Linear:
        return -self + other

    def __mul__(self, factor: Coefficient) -> Linear:
        scaled = {key: value * factor for key, value in self.coefficients.items()}
        return Linear(scaled, self.constant * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Coefficient) -> Linear:
        return self * (1 / divisor)

    def __le__(self, other: Linear | Coefficient) -> Polyhedron:
        return _row(self - other, equality=False)

    def __ge__(self, other: Linear | Coefficient) -> Polyhedron:
        return _row(other - self if isinstance(other, Linear) else -self + other, equality=False)

    def equals(self, other: Linear | Coefficient) -> Polyhedron:
        """The polyhedron where both are the same; ``==`` keeps its meaning for Python objects."""
        return _row(self - other, equality=True)


class Polyhedron:
    """The set ``{y: A y <= b, A_eq y = b_eq}``.

    Arrays, tensors, or callables of one sample's features ``(features,)`` that return tensors, into which
    gradients flow. ``p & q`` is the intersection, ``p | q`` the union, as a `Disjunction`.

    Args:
        A: shape ``(rows, outputs)``.
        b: shape ``(rows,)``.
        A_eq: shape ``(rows, outputs)``, of the rows that hold with equality.
        b_eq: shape ``(rows,)``.
        rows: how many rows there are, where ``A`` and ``b`` are both callables.

    Raises:
        ValueError: if a matrix comes without its right-hand side, or the number of rows cannot be known.

    >>> corner = Polyhedron([[1.0, 1.0]], [0.8]) & at_least(0, 0.2)
    >>> len(corner.parts)
    2
    """

    parts: tuple[Row | Block, ...]

    def __init__(
        self,
        A: Array | None = None,
        b: Array | None = None,
        *,
        A_eq: Array | None = None,
        b_eq: Array | None = None,
        rows: int | None = None,
    ) -> None:
        parts: list[Row | Block] = []
        for name, matrix, side, equality in (("A", A, b, False), ("A_eq", A_eq, b_eq, True)):
            if (matrix is None) != (side is None):
                raise ValueError(f"{name}: expected the matrix and its right-hand side together, got one")
            if matrix is None or side is None:
                continue
            if callable(matrix) and callable(side) and rows is None:
                raise ValueError(f"rows: expected the number of rows that the callables of {name} return")
            parts.append(Block(matrix, side, equality, rows))
        if not parts:
            raise ValueError("A: expected rows, got none; leave out what does not constrain")
        self.parts = tuple(parts)

    @classmethod
    def of(cls, parts: Iterable[Row | Block]) -> Polyhedron:
        """The polyhedron of given rows."""
        made = cls.__new__(cls)
        made.parts = tuple(parts)
        return made

    def __and__(self, other: Polyhedron | Disjunction) -> Any:
        if isinstance(other, Disjunction):
            return replace(other, disjuncts=tuple(self & one for one in other.disjuncts))
        return Polyhedron.of((*self.parts, *other.parts))

    def __or__(self, other: Polyhedron | Disjunction) -> Disjunction:
        return any_of(self, other)

    def __invert__(self) -> Disjunction:
        return negated(self)


@dataclass(frozen=True, eq=False)
class Disjunction:
    """A rule: where its condition holds, the output lies in one of several polyhedra.

    Attributes:
        disjuncts: the polyhedra, at least one.
        name: how reports call it; None: by its place.
        when: a `Condition`, a callable of one sample's features that returns a truth value, or None: always.

    Raises:
        ValueError: if there is no polyhedron.

    >>> rule = Disjunction([at_most("valve", 0.05), at_least("valve", 0.4)], when=None, name="off or open")
    >>> len(rule.disjuncts)
    2
    """

    disjuncts: Sequence[Polyhedron]
    name: str | None = None
    when: Condition | Callable[[Tensor], Any] | None = None

    def __post_init__(self) -> None:
        if not self.disjuncts:
            raise ValueError("disjuncts: expected at least one polyhedron, got none")
        for one in self.disjuncts:
            if not isinstance(one, Polyhedron):
                raise ValueError(f"disjuncts: expected polyhedra, got {type(one).__name__}")
        if self.when is not None and not isinstance(self.when, Condition) and not callable(self.when):
            raise ValueError(f"when: expected a condition or a callable, got {self.when!r}")

    def __or__(self, other: Polyhedron | Disjunction) -> Disjunction:
        return any_of(self, other)

    def __ror__(self, other: Polyhedron) -> Disjunction:
        return any_of(other, self)

    def __and__(self, other: Polyhedron) -> Disjunction:
        return replace(self, disjuncts=tuple(one & other for one in self.disjuncts))


Constraint = Polyhedron | Disjunction


def output(key: Key) -> Linear:
    """An output, to write linear forms and comparisons with.

    Args:
        key: its name, or its index from 0.

    Returns:
        A linear form; ``<=``, ``>=`` and ``.equals`` make polyhedra of it.

    >>> rule = output("y1") + 2 * output("y2") <= 1.6
    >>> dict(rule.parts[0].coefficients), rule.parts[0].bound
    ({'y1': 1.0, 'y2': 2.0}, 1.6)
    """
    return Linear({key: 1.0})


def total() -> Linear:
    """The sum of all outputs.

    Returns:
        A linear form.
    """
    return Linear({...: 1.0})


def halfspace(a: Mapping[Key, Coefficient] | Sequence[float], b: Bound) -> Polyhedron:
    """The half-space ``a y <= b``.

    Args:
        a: the coefficients: a number for each output, or some outputs with theirs.
        b: a number, an expression of the features, a tensor, or a callable of one sample's features.

    Returns:
        The polyhedron.
    """
    named: dict[Key | EllipsisType, Coefficient] = {}
    named.update(a.items() if isinstance(a, Mapping) else enumerate(a))
    return Polyhedron.of([Row(named, b)])


def at_least(i: Key, v: Bound) -> Polyhedron:
    """The output is at least ``v``.

    Args:
        i: the output's name or index.
        v: a number, an expression of the features, a tensor, or a callable of one sample's features.

    Returns:
        The polyhedron.
    """
    return Polyhedron.of([Row({i: -1.0}, _negative(v))])


def at_most(i: Key, v: Bound) -> Polyhedron:
    """The output is at most ``v``.

    Args:
        i: the output's name or index.
        v: a number, an expression of the features, a tensor, or a callable of one sample's features.

    Returns:
        The polyhedron.
    """
    return Polyhedron.of([Row({i: 1.0}, v)])


def equals(i: Key, v: Bound) -> Polyhedron:
    """The output is ``v``.

    Args:
        i: the output's name or index.
        v: a number, an expression of the features, a tensor, or a callable of one sample's features.

    Returns:
        The polyhedron.
    """
    return Polyhedron.of([Row({i: 1.0}, v, equality=True)])


def box(bounds: Mapping[Key, tuple[Bound, Bound]]) -> Polyhedron:
    """Each of some outputs lies between two bounds.

    Args:
        bounds: for each output the smallest and the largest value.

    Returns:
        The polyhedron.
    """
    rows = [row for key, (low, high) in bounds.items() for row in (at_least(key, low), at_most(key, high))]
    return all_of(*rows)


def wins(k: Key, classes: int | Sequence[Key], margin: float = 0.0) -> Polyhedron:
    """The score of a class exceeds that of every other by a margin.

    Args:
        k: the class that wins.
        classes: how many classes there are, or the classes among which it wins.
        margin: by how much.

    Returns:
        The polyhedron ``y_k >= y_j + margin`` for every other class j.
    """
    others = range(classes) if isinstance(classes, int) else classes
    return Polyhedron.of([Row({j: 1.0, k: -1.0}, -margin) for j in others if j != k])


def binary(i: Key, *, name: str | None = None) -> Disjunction:
    """The output is at most 0 or at least 1; its bounds 0 and 1 make it a binary variable.

    Args:
        i: the output's name or index.
        name: what reports call the rule.

    Returns:
        The rule.
    """
    return Disjunction((at_most(i, 0.0), at_least(i, 1.0)), name)


def integer(i: Key, lo: int, hi: int, *, name: str | None = None) -> Disjunction:
    """The output is a whole number.

    Args:
        i: the output's name or index.
        lo: the smallest.
        hi: the largest.
        name: what reports call the rule.

    Returns:
        The rule, a disjunct for each number.

    Raises:
        ValueError: if ``lo`` is above ``hi``.
    """
    if lo > hi:
        raise ValueError(f"lo: expected at most hi={hi}, got {lo}")
    return Disjunction(tuple(equals(i, float(value)) for value in range(lo, hi + 1)), name)


def all_of(*polyhedra: Polyhedron) -> Polyhedron:
    """The intersection.

    Args:
        polyhedra: at least one.

    Returns:
        The polyhedron of all their rows.
    """
    return Polyhedron.of(part for one in polyhedra for part in one.parts)


def any_of(*choices: Constraint, name: str | None = None) -> Disjunction:
    """The union.

    Args:
        choices: polyhedra, and disjunctions without a condition.
        name: what reports call the rule.

    Returns:
        The rule that is satisfied in any of them.

    Raises:
        ValueError: if one has a condition of its own.
    """
    disjuncts: list[Polyhedron] = []
    for choice in choices:
        if isinstance(choice, Disjunction):
            if choice.when is not None:
                raise ValueError(
                    "choices: a rule with a condition cannot be one of them; use implies outside"
                )
            disjuncts += choice.disjuncts
        else:
            disjuncts.append(choice)
    return Disjunction(tuple(disjuncts), name)


def implies(
    p: Condition | Callable[[Tensor], Any] | Constraint,
    q: Constraint,
    *,
    margin: float = 0.0,
    name: str | None = None,
) -> Disjunction:
    """The rule "if p then q".

    Args:
        p: a condition on the features (or a callable of one sample's features), or a constraint on the
            outputs; then the rule is ``not p or q``, strict inequalities closed.
        q: what is asked of the outputs.
        margin: for a constraint p, how far beyond its boundary p counts as violated.
        name: what reports call the rule.

    Returns:
        The rule.

    Raises:
        ValueError: if both p and q have conditions, p holds an equality, or ``margin`` is negative or comes
            with a condition.

    >>> from leyden_milp_layer import feature
    >>> rule = implies(feature("load") > 0.8, at_least("pressure", 3.0), name="high load")
    >>> str(rule.when)
    'load > 0.8'
    """
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin: expected a finite number of at least 0, got {margin!r}")
    if isinstance(p, Polyhedron | Disjunction):
        if isinstance(p, Disjunction) and p.when is not None:
            raise ValueError("p: expected a constraint without a condition of its own")
        return replace(any_of(negated(p, margin=margin), q), name=name)
    if margin:
        raise ValueError(f"margin: expected 0 where p is a condition on features, got {margin!r}")
    disjuncts = q.disjuncts if isinstance(q, Disjunction) else (q,)
    if isinstance(q, Disjunction) and q.when is not None:
        raise ValueError("q: expected a constraint without a condition; join conditions with &")
    return Disjunction(tuple(disjuncts), name, p)


def negated(p: Constraint, *, margin: float = 0.0) -> Disjunction:
    """The closure of the complement.

    Args:
        p: a polyhedron, or a disjunction without a condition.
        margin: how far beyond the boundary the complement begins.

    Returns:
        A half-space for each row of a polyhedron; of a disjunction one row of every disjunct.

    Raises:
        ValueError: if a row is an equality, or given by a callable.
    """
    polyhedra = p.disjuncts if isinstance(p, Disjunction) else (p,)
    opposite = [[_opposite(row, margin) for row in _rows(one)] for one in polyhedra]
    return Disjunction(tuple(Polyhedron.of(rows) for rows in itertools.product(*opposite)))


def _opposite(row: Row, margin: float) -> Row:
    if row.equality:
        raise ValueError("p: an equality has no closed complement; write the two sides that are meant")
    bound = _negative(row.bound)
    if margin:
        if not isinstance(bound, int | float | Expression):  # what else there is has no value yet
            raise ValueError(
                "margin: expected numbers or expressions as bounds of p, got a tensor or callable"
            )
        bound = bound - margin
    return Row({key: -1 * value for key, value in row.coefficients.items()}, bound)


def _rows(polyhedron: Polyhedron) -> list[Row]:
    rows: list[Row] = []
    for part in polyhedron.parts:
        if isinstance(part, Row):
            rows.append(part)
            continue
        if any(callable(one) or (isinstance(one, Tensor) and one.requires_grad) for one in (part.A, part.b)):
            raise ValueError("p: rows of callables or trained tensors have no complement; use feature()")
        matrix, side = np.atleast_2d(np.asarray(part.A, float)), np.atleast_1d(np.asarray(part.b, float))
        rows += [
            Row(dict(enumerate(map(float, a))), float(b), part.equality)
            for a, b in zip(matrix, side, strict=True)
        ]
    return rows


def _row(form: Linear, *, equality: bool) -> Polyhedron:
    """The polyhedron ``form <= 0``."""
    if not form.coefficients:
        raise ValueError("expected an output on one side of the comparison")
    return Polyhedron.of([Row(dict(form.coefficients), _negative(form.constant), equality)])


def _negative(value: Any) -> Any:
    if isinstance(value, int | float):
        return 0.0 - value
    if isinstance(value, Expression):
        return -value
    if isinstance(value, Negative):
        return value.value
    return Negative(value)


@dataclass(frozen=True)
class Negative:
    """The negative of a tensor, taken when it is used, or of what a callable returns.

    Attributes:
        value: the tensor, or the callable of one sample's features.
    """

    value: Tensor | Callable[[Tensor], Any]

    def __call__(self, features: Tensor) -> Any:
        """The negative for one sample."""
        return -(self.value if isinstance(self.value, Tensor) else self.value(features))
