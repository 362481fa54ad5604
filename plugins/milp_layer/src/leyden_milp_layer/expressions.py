"""When a rule applies: numbers made of a sample's features, and comparisons of them.

The paper (Pal and Li, 2026) writes a condition as membership of the sample in a set; this notation for it,
as a person would say it (``feature("temperature") > 26``), is ours.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Number = int | float
Key = int | str
"""An output or a feature: its name, or its index from 0."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **_ARITHMETIC,
    "abs": torch.abs,
    "min": torch.minimum,
    "max": torch.maximum,
}


@dataclass(frozen=True)
class Names:
    """The names of the outputs or of the features, and how many there are.

    Attributes:
        kind: what they are, for messages: ``"output"`` or ``"feature"``.
        names: the names in order; empty where there are indices alone.
        count: how many there are; None where that is not known.
    """

    kind: str
    names: tuple[str, ...] = ()
    count: int | None = None

    def index(self, key: Key) -> int:
        """The index of a name or index.

        Raises:
            ValueError: if there is none; the text names the nearest.
        """
        if isinstance(key, str):
            if key in self.names:
                return self.names.index(key)
            if not self.names:
                raise ValueError(f"{self.kind} '{key}': the {self.kind}s have no names here, give an index")
            near = difflib.get_close_matches(key, self.names, n=1, cutoff=0.5)
            known = f"did you mean '{near[0]}'?" if near else "there is " + ", ".join(self.names)
            raise ValueError(f"unknown {self.kind} '{key}'; {known}")
        if isinstance(key, bool) or not isinstance(key, int):
            raise ValueError(f"{self.kind}: expected a name or an index, got {key!r}")
        if key < 0 or (self.count is not None and key >= self.count):
            most = "" if self.count is None else f" and below {self.count}"
            raise ValueError(f"{self.kind}: expected an index of at least 0{most}, got {key}")
        return key

    def label(self, key: Key) -> str:
        """How the output or feature is written in a text."""
        if isinstance(key, str):
            return key
        if key < len(self.names):
            return self.names[key]
        return f"{'y' if self.kind == 'output' else 'x'}[{key}]"


@dataclass(frozen=True, eq=False)
class Expression:
    """A number that depends on a sample's features; `feature` makes one, arithmetic combines them.

    Attributes:
        op: ``"feature"``, ``"const"``, or the name of an operation.
        args: the operands; of a feature its key, of a constant the number.
    """

    op: str
    args: tuple[Any, ...]

    def evaluate(self, features: Tensor, names: Names) -> Tensor:
        """The number of every sample.

        Args:
            features: shape ``(batch, features)``.
            names: what the features are called.

        Returns:
            Shape ``(batch,)``, with the gradient of the features.
        """
        value = self._value(features, names)
        return value if isinstance(value, Tensor) else features.new_full((len(features),), value)

    def _value(self, features: Tensor, names: Names) -> Tensor | float:
        """The number of every sample; of what no feature is in, one for all, which costs no tensors."""
        if self.op == "const":
            return float(self.args[0])
        if self.op == "feature":
            index = names.index(self.args[0])
            if index >= features.shape[1]:
                raise ValueError(f"feature {index}: the features have shape {tuple(features.shape)}")
            return features[:, index]
        if self.op in _ARITHMETIC:
            parts = [one._value(features, names) for one in self.args]
            if any(isinstance(one, Tensor) for one in parts):
                combined: Tensor = _ARITHMETIC[self.op](*parts)
                return combined
        return _FUNCTIONS[self.op](*(one.evaluate(features, names) for one in self.args))

    def needs(self) -> set[Key]:
        """The features that it needs."""
        if self.op == "feature":
            return {self.args[0]}
        return {key for one in self.args if isinstance(one, Expression) for key in one.needs()}

    def __str__(self) -> str:
        """The expression as it was written."""
        if self.op == "const":
            short = f"{self.args[0]:g}"
            return short if float(short) == self.args[0] else repr(self.args[0])
        if self.op == "feature":
            return self.args[0] if isinstance(self.args[0], str) else f"x[{self.args[0]}]"
        if self.op in ("abs", "min", "max"):
            return f"{self.op}({', '.join(map(str, self.args))})"
        left, right = self.args
        product = self.op in ("*", "/")
        shown = f"({left})" if left.op in ("+", "-") else str(left)
        enclosed = right.op in ("+", "-") or (product and right.op in ("*", "/"))
        return f"{shown} {self.op} ({right})" if enclosed else f"{shown} {self.op} {right}"

    def __add__(self, other: Expression | Number) -> Expression:
        return _combined("+", self, other)

    def __radd__(self, other: Number) -> Expression:
        return _combined("+", other, self)

    def __sub__(self, other: Expression | Number) -> Expression:
        return _combined("-", self, other)

    def __rsub__(self, other: Number) -> Expression:
        return _combined("-", other, self)

    def __mul__(self, other: Expression | Number) -> Expression:
        return _combined("*", self, other)

    def __rmul__(self, other: Number) -> Expression:
        return _combined("*", other, self)

    def __truediv__(self, other: Expression | Number) -> Expression:
        return _combined("/", self, other)

    def __rtruediv__(self, other: Number) -> Expression:
        return _combined("/", other, self)

    def __neg__(self) -> Expression:
        return _combined("-", 0, self)

    def __abs__(self) -> Expression:
        return Expression("abs", (self,))

    def __lt__(self, other: Expression | Number) -> Condition:
        return Condition("<", (self, as_expression(other)))

    def __le__(self, other: Expression | Number) -> Condition:
        return Condition("<=", (self, as_expression(other)))

    def __gt__(self, other: Expression | Number) -> Condition:
        return Condition(">", (self, as_expression(other)))

    def __ge__(self, other: Expression | Number) -> Condition:
        return Condition(">=", (self, as_expression(other)))

    def equals(self, other: Expression | Number) -> Condition:
        """The condition that both are the same number; ``==`` keeps its meaning for Python objects."""
        return Condition("==", (self, as_expression(other)))


@dataclass(frozen=True, eq=False)
class Condition:
    """When a rule applies: a comparison of expressions, or several joined by ``&``, ``|`` and ``~``.

    Attributes:
        op: a comparison, ``"and"``, ``"or"`` or ``"not"``.
        args: what is compared or joined.
    """

    op: str
    args: tuple[Any, ...]

    def evaluate(self, features: Tensor, names: Names) -> Tensor:
        """Whether it holds for every sample.

        Args:
            features: shape ``(batch, features)``.
            names: what the features are called.

        Returns:
            Booleans of shape ``(batch,)``. A comparison with NaN is false.
        """
        if self.op in _COMPARE:
            left, right = (one._value(features, names) for one in self.args)
            held = _COMPARE[self.op](left, right)
            return held if isinstance(held, Tensor) else torch.full((len(features),), bool(held))
        parts = [one.evaluate(features, names) for one in self.args]
        if self.op == "not":
            return torch.logical_not(*parts)
        return (torch.logical_and if self.op == "and" else torch.logical_or)(*parts)

    def needs(self) -> set[Key]:
        """The features that it needs."""
        return {key for one in self.args for key in one.needs()}

    def __str__(self) -> str:
        """The condition as it was written."""
        if self.op == "not":
            return f"not ({self.args[0]})"
        left, right = (f"({one})" if self.op in ("and", "or") else str(one) for one in self.args)
        return f"{left} {self.op} {right}"

    def __and__(self, other: Condition) -> Condition:
        return Condition("and", (self, other))

    def __or__(self, other: Condition) -> Condition:
        return Condition("or", (self, other))

    def __invert__(self) -> Condition:
        if self.op in _OPPOSITE:
            return Condition(_OPPOSITE[self.op], self.args)
        return Condition("not", (self,))

    def __bool__(self) -> bool:
        raise TypeError(
            "a condition has no value before there is a sample; join conditions with & | ~, and write "
            "(a < x) & (x < b) for a < x < b"
        )


def feature(key: Key) -> Expression:
    """A feature of the sample, to write conditions and input-dependent bounds with.

    Args:
        key: its name, or its index from 0.

    Returns:
        An expression; arithmetic gives expressions, comparisons give conditions.

    >>> str((feature("temperature") - 26) * 0.03 + 0.35)
    '(temperature - 26) * 0.03 + 0.35'
    """
    return Expression("feature", (key,))


def as_expression(value: Expression | Number) -> Expression:
    """A number as an expression; expressions as they are.

    Raises:
        TypeError: if it is neither.
    """
    if isinstance(value, Expression):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Expression("const", (float(value),))
    raise TypeError(f"expected a number or an expression of features, got {type(value).__name__}")


def least_of(values: Iterable[Expression | Number]) -> Expression:
    """The smallest of several expressions."""
    return _folded("min", values)


def largest_of(values: Iterable[Expression | Number]) -> Expression:
    """The largest of several expressions."""
    return _folded("max", values)


def _folded(op: str, values: Iterable[Expression | Number]) -> Expression:
    first, *rest = (as_expression(value) for value in values)
    for value in rest:
        first = Expression(op, (first, value))
    return first


def _combined(op: str, left: Expression | Number, right: Expression | Number) -> Expression:
    try:
        return Expression(op, (as_expression(left), as_expression(right)))
    except TypeError:
        return NotImplemented  # type: ignore[no-any-return]
