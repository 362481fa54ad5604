"""The rules of a problem, and their rows at a batch of samples.

Bounds, global constraints and disjunctions (Section 3.1 of Pal and Li, 2026). A `RuleSet` lays all rows out
in one bank: the bounds, the global rows, then the rows of each disjunct of each rule. At a batch,
`RuleSet.at` fills in what depends on the features; everything else reads the bank.
"""

from __future__ import annotations

import functools
import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, EllipsisType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from leyden_milp_layer.constraints import Block, Disjunction, Negative, Polyhedron, Row
from leyden_milp_layer.expressions import Condition, Expression, Key, Names
from leyden_milp_layer.powers import nearest_power


@dataclass(frozen=True, eq=False)
class RowBank:
    """All rows at a batch of samples, in float64: ``A y <= b``, or ``A y = b`` where the layout says so.

    Attributes:
        A: shape ``(batch, rows, outputs)``, or ``(1, rows, outputs)`` where it is the same for all.
        b: shape ``(batch, rows)``, or ``(1, rows)``.
        active: whether each rule applies, shape ``(batch, rules)``.
    """

    A: Float[Tensor, "samples rows outputs"]
    b: Float[Tensor, "samples rows"]
    active: Bool[Tensor, "batch rules"]


@dataclass(frozen=True)
class Layout:
    """Where the rows of a bank belong.

    Attributes:
        bounds: how many rows the bounds have, the first ones: ``-y <= -lower``, then ``y <= upper``.
        common: how many rows bounds and global constraints have together.
        disjuncts: for each rule, the rows ``(start, stop)`` of each of its disjuncts.
        equality: which rows hold with equality.
    """

    bounds: int
    common: int
    disjuncts: tuple[tuple[tuple[int, int], ...], ...]
    equality: NDArray[np.bool_]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.equality)


@dataclass
class PerSample:
    """A callable of one sample's features, run over a batch: at once where torch can, else in a loop.

    Attributes:
        function: takes shape ``(features,)``.
        looped: whether `torch.func.vmap` refused it.
    """

    function: Callable[[Tensor], Any]
    looped: bool = False

    def __call__(self, features: Tensor) -> Tensor:
        """What it returns for every sample, stacked.

        Args:
            features: shape ``(batch, features)``.
        """
        if not len(features):
            return features.new_zeros(0)
        if not self.looped:
            try:
                at_once: Tensor = torch.func.vmap(self.function)(features)
                return at_once
            except Exception:  # whatever vmap refuses; a fault of the callable itself shows in the loop
                self.looped = True
        return torch.stack([torch.as_tensor(self.function(row)) for row in features])


Source = Expression | Tensor | Negative | PerSample
"""Where a part of the bank comes from: the features, or a tensor that may change and carry a gradient."""


@dataclass(frozen=True)
class _Fill:
    """A part of the bank that is known only at a batch, or that carries a gradient."""

    rows: slice
    columns: int | slice | None
    source: Source
    name: str
    rule: int | None = None  # whose row it is; None: a global constraint's


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule as a `RuleSet` holds it: its name and its condition; its rows are in the layout."""

    name: str
    when: Condition | PerSample | None


class RuleSet:
    """Bounds, global constraints and rules on ``n`` outputs.

    Args:
        n: how many outputs there are.
        lower: the smallest value of every output, or of each.
        upper: the largest.
        globals: polyhedra that hold for every sample.
        rules: the rules; a polyhedron stands for a rule without alternatives that always applies.
        outputs: names of the outputs, for rules that use them.
        features: names of the features, for conditions that use them.

    Attributes:
        rules: the names and conditions.
        layout: where the rows belong.

    Raises:
        ValueError: if a bound is not finite or above its opposite, a name is unknown or used twice, a shape
            is wrong, or a number is not finite; the text names the rule.

    >>> from leyden_milp_layer import at_least, at_most, total
    >>> rules = RuleSet(2, 0, 1, globals=[total() >= 0.8], rules=[at_most(0, 0.25) | at_least(0, 0.75)])
    >>> rules.names
    ('rule 1',)
    """

    def __init__(
        self,
        n: int,
        lower: float | Sequence[float],
        upper: float | Sequence[float],
        globals: Sequence[Polyhedron] = (),
        rules: Sequence[Disjunction | Polyhedron] = (),
        *,
        outputs: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
    ) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"n: expected a whole number of at least 1, got {n!r}")
        self.n = n
        self.outputs = Names("output", _unique("outputs", outputs, n), n)
        self.features = Names("feature", _unique("features", features), len(features) if features else None)
        self.lower, self.upper = _bounds(lower, upper, n)
        builder = _Builder(self)
        builder.bounds()
        for place, held in enumerate(globals):
            builder.polyhedron(held, f"globals[{place}]")
        common = builder.count
        named = [_named(one, place) for place, one in enumerate(rules)]
        self.rules = tuple(Rule(name, _condition(one.when)) for name, one in named)
        _check_unique(self.names)
        spans: list[tuple[tuple[int, int], ...]] = []
        for rule, (name, one) in enumerate(named):
            spans.append(
                tuple(
                    builder.polyhedron(polyhedron, f"rule '{name}', disjunct {place}", rule)
                    for place, polyhedron in enumerate(one.disjuncts)
                )
            )
        self._A, self._b, equality = builder.arrays()
        self._fills = tuple(builder.fills)
        self.layout = Layout(2 * n, common, tuple(spans), equality)
        self.layout = self._without_empty()
        self._needs = _needed_features(self)
        self._asked = self._checked_names()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rules, in order."""
        return tuple(rule.name for rule in self.rules)

    @property
    def depends_on_features(self) -> bool:
        """Whether a condition or a row needs the features."""
        return self._needs

    def at(self, features: Float[Tensor, "batch features"] | None, batch: int) -> RowBank:
        """The rows at a batch of samples, in float64 on the CPU.

        Args:
            features: what conditions and rows are evaluated at; None where nothing depends on it.
            batch: how many samples there are.

        Returns:
            The bank; gradients flow into the features and into what callables return. Rows of a rule that
            does not apply to a sample are not evaluated there.

        Raises:
            ValueError: if features are needed and there are none, their number is not the batch's, one that a
                condition needs is NaN, or a row is not finite; the text names rule and sample.
        """
        if features is None:
            if self._needs:
                raise ValueError("x: expected features, since a rule depends on them, got None")
            features = torch.zeros(batch, 0, dtype=torch.float64)
        if not isinstance(features, Tensor):
            raise ValueError(f"x: expected a tensor, got {type(features).__name__}")
        if features.ndim != 2 or len(features) != batch:
            raise ValueError(f"x: expected shape ({batch}, features), got {tuple(features.shape)}")
        if self.features.names and self._needs and features.shape[1] != len(self.features.names):
            expected = (batch, len(self.features.names))
            raise ValueError(f"x: expected shape {expected}, got {tuple(features.shape)}")
        # Conditions in the features' own type: a threshold is then rounded as the numbers beside it are.
        own = features.detach().to("cpu", None if features.is_floating_point() else torch.float64)
        active = self.active(own)
        features = features.to("cpu", torch.float64)
        A, b = self._A[None], self._b[None]
        for matrix, fills in ((True, self._matrix_fills), (False, self._side_fills)):
            if fills:
                whole = (A if matrix else b).expand(batch, *(A if matrix else b).shape[1:]).clone()
                for fill in fills:
                    self._fill(whole, fill, features, active)
                self._check_finite(whole.detach())
                A, b = (whole, b) if matrix else (A, whole)
        return RowBank(A, b, active)

    def active(self, features: Float[Tensor, "batch features"]) -> Bool[Tensor, "batch rules"]:
        """Which rules apply to each sample.

        Args:
            features: what conditions are evaluated at.

        Returns:
            Booleans.

        Raises:
            ValueError: if a feature that a condition needs is NaN.
        """
        for place in self._asked:
            missing = torch.isnan(features[:, place]) if place < features.shape[1] else None
            if missing is not None and bool(missing.any()):
                sample, name = int(missing.nonzero()[0]), self.features.label(place)
                raise ValueError(f"x: '{name}' is NaN at sample {sample}, and a rule's condition needs it")
        columns = []
        for rule in self.rules:
            if rule.when is None:
                columns.append(torch.ones(len(features), dtype=torch.bool))
            elif isinstance(rule.when, Condition):
                columns.append(rule.when.evaluate(features, self.features))
            else:
                columns.append(rule.when(features).reshape(len(features)).bool())
        return (
            torch.stack(columns, dim=1) if columns else torch.zeros(len(features), 0, dtype=torch.bool)
        ).detach()

    @property
    def varies(self) -> tuple[bool, bool]:
        """Whether the matrix and the sides may differ from sample to sample or from call to call."""
        return bool(self._matrix_fills), bool(self._side_fills)

    def fingerprint(self) -> str:
        """The sha256 of the rules: rows, conditions, names, and the code of callables."""
        digest = hashlib.sha256()
        digest.update(f"{self.n} {self.outputs.names} {self.features.names} {self.layout.disjuncts}".encode())
        for array in (self._A, self._b):
            digest.update(array.detach().numpy().tobytes())
        digest.update(self.layout.equality.tobytes())
        for fill in self._fills:
            digest.update(f"{fill.rows} {fill.columns} {_described(fill.source)}".encode())
        for rule in self.rules:
            digest.update(f"{rule.name} {_described(rule.when)}".encode())
        return digest.hexdigest()

    def row_label(self, row: int) -> str:
        """What a row of the bank belongs to, in words."""
        if row < self.layout.bounds:
            side = "lower" if row < self.n else "upper"
            return f"the {side} bound of {self.outputs.label(row % self.n)}"
        if row < self.layout.common:
            return "a global constraint"
        for name, spans in zip(self.names, self.layout.disjuncts, strict=True):
            for place, (start, stop) in enumerate(spans):
                if start <= row < stop:
                    return f"rule '{name}', disjunct {place}"
        return "a dropped disjunct"

    @property
    def _matrix_fills(self) -> list[_Fill]:
        return [fill for fill in self._fills if fill.columns is not None]

    @property
    def _side_fills(self) -> list[_Fill]:
        return [fill for fill in self._fills if fill.columns is None]

    def _fill(self, whole: Tensor, fill: _Fill, features: Tensor, active: Tensor) -> None:
        """Write what the features of the samples that the rule applies to give into the bank."""
        samples: slice | Tensor = slice(None)
        if fill.rule is not None and self.rules[fill.rule].when is not None:
            applies = active[:, fill.rule]
            if not bool(applies.all()):
                samples = applies.nonzero()[:, 0]
                features = features[samples]
                if not len(samples):
                    return
        place = (samples, fill.rows) if fill.columns is None else (samples, fill.rows, fill.columns)
        shape = whole[place].shape
        if isinstance(fill.source, Expression):
            value = fill.source.evaluate(features, self.features)
        else:
            value = fill.source if isinstance(fill.source, Tensor) else fill.source(features)
        value = value.to("cpu", torch.float64)
        if isinstance(fill.source, Tensor | Negative):
            value = value.expand(shape[1:]) if value.ndim == 0 else value.reshape(shape[1:])
        elif value.numel() != shape.numel():
            expected, given = tuple(shape[1:]), tuple(value.shape[1:])
            raise ValueError(f"{fill.name}: expected shape {expected} for a sample, got {given}")
        else:
            value = value.reshape(shape)
        whole[place] = value

    def _checked_names(self) -> tuple[int, ...]:
        """The features that conditions need, by index; a name or index that cannot be is an error here."""
        asked: set[int] = set()
        for rule in self.rules:
            if isinstance(rule.when, Condition):
                try:
                    asked |= {self.features.index(key) for key in rule.when.needs()}
                except ValueError as error:
                    raise ValueError(f"rule '{rule.name}', condition: {error}") from None
        for fill in self._fills:
            if isinstance(fill.source, Expression):
                try:
                    for key in fill.source.needs():
                        self.features.index(key)
                except ValueError as error:
                    raise ValueError(f"{fill.name}: {error}") from None
        return tuple(sorted(asked))

    def _check_finite(self, whole: Tensor) -> None:
        bad = (~torch.isfinite(whole)).nonzero()
        if len(bad):
            sample, row = (int(one) for one in bad[0][:2])
            raise ValueError(f"{self.row_label(row)} is not finite at sample {sample}")

    def _without_empty(self) -> Layout:
        """The layout without disjuncts that are empty whatever the sample is; each is warned of."""
        from leyden_milp_layer.highs import is_empty

        filled = {row for fill in self._fills for row in range(fill.rows.start, fill.rows.stop)}
        A = self._A.detach().numpy() * nearest_power(np.maximum(np.abs(self.lower), np.abs(self.upper)))
        factor = nearest_power(np.abs(A).max(axis=1))
        A, b, equality = A / factor[:, None], self._b.detach().numpy() / factor, self.layout.equality
        common = [row for row in range(self.layout.common) if row not in filled]
        if is_empty(A[common], b[common], equality[common]):
            warnings.warn(
                "globals: bounds and global constraints have no common point: no sample can be projected",
                stacklevel=4,
            )
            return self.layout
        kept: list[tuple[tuple[int, int], ...]] = []
        for name, spans in zip(self.names, self.layout.disjuncts, strict=True):
            left = []
            for place, (start, stop) in enumerate(spans):
                rows = common + [row for row in range(start, stop) if row not in filled]
                if len(rows) > len(common) and is_empty(A[rows], b[rows], equality[rows]):
                    warnings.warn(f"rule '{name}': disjunct {place} is empty and is dropped", stacklevel=4)
                else:
                    left.append((start, stop))
            if spans and not left:
                warnings.warn(
                    f"rule '{name}' has no disjunct left: it contradicts every sample", stacklevel=4
                )
            kept.append(tuple(left))
        return Layout(self.layout.bounds, self.layout.common, tuple(kept), equality)


class _Builder:
    """Collects the rows of a rule set, and what of them is filled in later."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._A: list[NDArray[np.float64]] = []
        self._b: list[NDArray[np.float64]] = []
        self._equality: list[bool] = []
        self.fills: list[_Fill] = []
        self.count = 0
        self._rule: int | None = None

    def bounds(self) -> None:
        """Add the bounds."""
        eye = np.eye(self._rules.n)
        self._add(-eye, -self._rules.lower, equality=False)
        self._add(eye, self._rules.upper, equality=False)

    def polyhedron(self, polyhedron: Polyhedron, where: str, rule: int | None = None) -> tuple[int, int]:
        """Add a polyhedron's rows; returns where they are."""
        if not isinstance(polyhedron, Polyhedron):
            raise ValueError(f"{where}: expected a polyhedron, got {type(polyhedron).__name__}")
        start, self._rule = self.count, rule
        for part in polyhedron.parts:
            try:
                self._row(part, where) if isinstance(part, Row) else self._block(part, where)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        if self.count == start:
            raise ValueError(f"{where}: expected rows, got none; leave out what does not constrain")
        return start, self.count

    def arrays(self) -> tuple[Tensor, Tensor, NDArray[np.bool_]]:
        """The constant part of the bank."""
        A, b = np.concatenate(self._A), np.concatenate(self._b)
        return torch.from_numpy(A), torch.from_numpy(b), np.array(self._equality, dtype=bool)

    def _add(self, A: NDArray[np.float64], b: NDArray[np.float64], *, equality: bool) -> slice:
        self._A.append(A)
        self._b.append(b)
        self._equality += [equality] * len(b)
        self.count += len(b)
        return slice(self.count - len(b), self.count)

    def _row(self, row: Row, where: str) -> None:
        A, b = np.zeros((1, self._rules.n)), np.zeros(1)
        later: list[tuple[int, Expression]] = []
        for key, value in _spread(row.coefficients, self._rules.n).items():
            column = self._rules.outputs.index(key)
            if isinstance(value, Expression):
                later.append((column, value))
            else:
                A[0, column] += _finite("a coefficient", value)
        fixed = isinstance(row.bound, int | float) and not isinstance(row.bound, bool)
        if fixed:
            b[0] = _finite("the bound", row.bound)
        elif not isinstance(row.bound, Expression | Tensor) and not callable(row.bound):
            raise ValueError(f"the bound: expected a number, an expression or a callable, got {row.bound!r}")
        rows = self._add(A, b, equality=row.equality)
        self.fills += [_Fill(rows, column, value, where, self._rule) for column, value in later]
        if not fixed:
            self.fills.append(_Fill(rows, None, _source(row.bound), where, self._rule))

    def _block(self, block: Block, where: str) -> None:
        n = self._rules.n
        count = block.rows
        for name, array, dims in (("A", block.A, 2), ("b", block.b, 1)):
            if not callable(array):
                shape = tuple(array.shape) if hasattr(array, "shape") else np.shape(array)
                if len(shape) != dims or (dims == 2 and shape[1] != n):
                    expected = f"(rows, {n})" if dims == 2 else "(rows,)"
                    raise ValueError(f"{name}: expected shape {expected}, got {shape}")
                if count is not None and shape[0] != count:
                    raise ValueError(f"{name}: expected {count} rows, got {shape[0]}")
                count = shape[0]
        assert count is not None
        A, b = np.zeros((count, n)), np.zeros(count)
        later: list[tuple[int | slice | None, Any]] = []
        for array, target, columns in ((block.A, A, slice(0, n)), (block.b, b, None)):
            if callable(array) or (isinstance(array, Tensor) and array.requires_grad):
                later.append((columns, array))
            else:
                target[:] = np.asarray(array, dtype=float)
                if not np.isfinite(target).all():
                    raise ValueError("expected finite numbers")
        rows = self._add(A, b, equality=block.equality)
        self.fills += [_Fill(rows, columns, _source(array), where, self._rule) for columns, array in later]


def _spread(coefficients: Mapping[Key | EllipsisType, Any], n: int) -> dict[Key, Any]:
    """The coefficients by output, with ``...`` written out."""
    spread: dict[Key, Any] = {}
    for key, value in coefficients.items():
        for one in range(n) if key is ... else (key,):
            spread[one] = spread[one] + value if one in spread else value
    return spread


def _source(value: Any) -> Source:
    if isinstance(value, Negative) and isinstance(value.value, Tensor):
        return value
    return value if isinstance(value, Expression | Tensor) else PerSample(value)


def _condition(when: Any) -> Condition | PerSample | None:
    return when if when is None or isinstance(when, Condition) else PerSample(when)


def _named(one: Any, place: int) -> tuple[str, Disjunction]:
    if isinstance(one, Polyhedron):
        one = Disjunction((one,))
    if not isinstance(one, Disjunction):
        raise ValueError(f"rules[{place}]: expected a Disjunction, got {type(one).__name__}")
    return one.name or f"rule {place + 1}", one


def _unique(what: str, names: Sequence[str] | None, count: int | None = None) -> tuple[str, ...]:
    if names is None:
        return ()
    if count is not None and len(names) != count:
        raise ValueError(f"{what}: expected {count} names, got {len(names)}")
    if len(set(names)) < len(names):
        raise ValueError(f"{what}: expected different names, got {', '.join(names)}")
    return tuple(names)


def _check_unique(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"rules: two have the name '{twice[0]}'")


def _bounds(lower: Any, upper: Any, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    arrays = []
    for name, value in (("lower", lower), ("upper", upper)):
        array = np.array(value, dtype=float)
        if array.ndim == 0:
            array = np.full(n, float(array))
        if array.shape != (n,):
            raise ValueError(f"{name}: expected a number, or one for each of {n} outputs, got {array.shape}")
        if not np.isfinite(array).all():
            place = int(np.flatnonzero(~np.isfinite(array))[0])
            raise ValueError(
                f"{name}: expected a finite bound for every output (hulls and big-M rows need them), "
                f"got {array[place]} for output {place}"
            )
        arrays.append(array)
    if (arrays[0] > arrays[1]).any():
        place = int(np.flatnonzero(arrays[0] > arrays[1])[0])
        raise ValueError(f"lower: expected at most upper={arrays[1][place]}, got {arrays[0][place]}")
    return arrays[0], arrays[1]


def _finite(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise ValueError(f"{what}: expected a finite number, got {value!r}")
    return float(value)


def _needed_features(rules: RuleSet) -> bool:
    conditions = any(rule.when is not None for rule in rules.rules)
    return conditions or any(not isinstance(fill.source, Tensor | Negative) for fill in rules._fills)


def _described(source: Any) -> str:
    """A text that is the same in every process, and another for another condition, expression or function."""
    if isinstance(source, Negative):
        return f"-{_described(source.value)}"
    if isinstance(source, PerSample):
        return _described(source.function)
    if isinstance(source, Tensor):  # what is trained may be another number at the next start
        return f"tensor {tuple(source.shape)} {'' if source.requires_grad else source.tolist()}"
    if isinstance(source, functools.partial):
        return f"partial {_described(source.func)} {_described([*source.args, *source.keywords.items()])}"
    if isinstance(source, list | tuple):
        return f"[{', '.join(map(_described, source))}]"
    code = getattr(source, "__code__", None)
    if code is not None:
        held = [cell.cell_contents for cell in source.__closure__ or () if cell.cell_contents is not source]
        return (
            f"{source.__qualname__} {_code_text(code)} {_described(held)} {_described(source.__defaults__)}"
        )
    if source is None or isinstance(source, int | float | str | Expression | Condition):
        return str(source)
    return type(source).__qualname__


def _code_text(code: CodeType) -> str:
    """The instructions and constants of a function, without what differs between processes."""
    constants = [_code_text(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"
