"""Rules in a YAML file, as a person would write them; an error names the file and the line.

    outputs: [flow, pressure]
    features: [load]
    lower: [0, 0]
    upper: [10, 8]
    globals:
      - flow + pressure <= 15
    rules:
      - name: high load
        when: load > 0.8
        then: pressure >= 3 + 2 * (load - 0.8)
      - name: off or on
        any:
          - flow <= 0
          - [flow >= 2, pressure >= 1]

Expressions are read, not executed: names, numbers, ``+ - * /``, comparisons, ``and``, ``or``, ``not``, and
the functions ``sum``, ``wins``, ``binary``, ``integer``, ``abs``, ``min`` and ``max``. The notation is ours,
not in the paper.
"""

from __future__ import annotations

import ast
import keyword
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from leyden_milp_layer.constraints import (
    Constraint,
    Disjunction,
    Linear,
    Polyhedron,
    any_of,
    binary,
    implies,
    integer,
    negated,
    output,
    total,
    wins,
)
from leyden_milp_layer.expressions import (
    Condition,
    Expression,
    Names,
    feature,
    largest_of,
    least_of,
)
from leyden_milp_layer.rules import RuleSet

_TOP = ("outputs", "features", "lower", "upper", "globals", "rules")
_RULE = ("name", "when", "then", "any", "margin")
_SHIPPED = "milp_layer/"
_LONGEST = 80
"""So much of a text is shown in an error."""
_MOST = 10_000
"""So many outputs or features may be asked for by their number."""


class RuleFileError(ValueError):
    """A rule file is wrong; the text names the file, the line, and what is expected.

    Args:
        message: the text.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


def load_rules(path: str) -> RuleSet:
    """Read a rule file; the notation is ours, not in the paper.

    Args:
        path: the file, or ``milp_layer/NAME`` for one that this package ships (``cooling``, ``wine``).

    Returns:
        The rules.

    Raises:
        RuleFileError: if the file is wrong; the text begins with ``FILE:LINE:``. It is a ValueError.

    >>> load_rules("milp_layer/cooling").outputs.names
    ('y1', 'y2', 'y3', 'y4')
    """
    file = Path(path)
    if str(path).startswith(_SHIPPED) and not file.exists():
        file = Path(__file__).with_name("shipped") / f"{path.removeprefix(_SHIPPED)}.yaml"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise RuleFileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RuleFileError(f"{path}: cannot be read: it is no UTF-8 text") from None
    return parse_rules(text, name=str(path))


def parse_rules(text: str, *, name: str = "rules") -> RuleSet:
    r"""Read the text of a rule file.

    Args:
        text: YAML.
        name: how errors call it.

    Returns:
        The rules.

    Raises:
        RuleFileError: if the text is wrong; the message begins with ``NAME:LINE:``. It is a ValueError.

    >>> parse_rules("outputs: [a, b]\nlower: 0\nupper: 1\nrules:\n  - then: a >= c")
    Traceback (most recent call last):
    leyden_milp_layer.rule_file.RuleFileError: rules:5: then: unknown name 'c'; there is a, b
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RuleFileError(f"{name}{line}: no YAML: {getattr(error, 'problem', error)}") from None
    return _Reader(name).rule_set(node)


class _Reader:
    """Reads a composed document; every node knows its line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._outputs: tuple[str, ...] = ()
        self._features: tuple[str, ...] = ()

    def rule_set(self, node: Any) -> RuleSet:
        """The rule set of a document."""
        if node is None:
            raise RuleFileError(f"{self._name}: the file is empty; it needs outputs, lower and upper")
        top = self._mapping(node, _TOP, "the file")
        for key in ("outputs", "lower", "upper"):
            if key not in top:
                raise self._error(node, f"{key} is missing")
        self._outputs = self._names(top["outputs"], "outputs", prefix="y")
        self._features = self._names(top["features"], "features", prefix="x") if "features" in top else ()
        both = set(self._outputs) & set(self._features)
        if both:
            raise self._error(top["features"], f"features: '{min(both)}' is an output too")
        bounds = [self._bound(top[key], key) for key in ("lower", "upper")]
        common = [self._polyhedron(one, "globals") for one in self._sequence(top.get("globals"), "globals")]
        rules: list[Disjunction] = []
        seen: dict[str, Any] = {}
        for place, one in enumerate(self._sequence(top.get("rules"), "rules")):
            rules.append(self._rule(one, place))
            name = str(rules[-1].name)
            if name in seen:
                raise self._error(one, f"name: a rule above is called '{name}' too")
            seen[name] = one
        lines = {f"rule '{name}'": one for name, one in seen.items()} | top
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                made = RuleSet(
                    len(self._outputs),
                    bounds[0],
                    bounds[1],
                    common,
                    rules,
                    outputs=self._outputs,
                    features=self._features or None,
                )
            except ValueError as error:
                raise self._error(self._place(str(error), lines, node), str(error)) from None
        for one in told:
            text = str(one.message)
            place = self._place(text, lines, node)
            warnings.warn(str(self._error(place, text)), one.category, stacklevel=4)
        return made

    @staticmethod
    def _place(text: str, lines: Mapping[str, Any], otherwise: Any) -> Any:
        """The node that a text of a `RuleSet` is about, by the words it begins with."""
        return next((node for words, node in lines.items() if text.startswith(words)), otherwise)

    def _rule(self, node: Any, place: int) -> Disjunction:
        parts = self._mapping(node, _RULE, "a rule")
        name = self._text(parts["name"], "name") if "name" in parts else f"rule {place + 1}"
        if ("then" in parts) == ("any" in parts):
            raise self._error(node, "a rule needs either 'then' or 'any'")
        if "then" in parts:
            asked: Constraint = self._constraint(parts["then"], "then")
        else:
            choices = self._sequence(parts["any"], "any")
            if not choices:
                raise self._error(parts["any"], "any: expected at least one alternative")
            asked = any_of(*(self._constraint(one, "any") for one in choices))
        when = self._evaluated(parts["when"], "when") if "when" in parts else None
        if when is not None and not isinstance(when, Condition | Polyhedron | Disjunction):
            raise self._error(parts["when"], "when: expected a comparison")
        margin = self._number(parts["margin"], "margin") if "margin" in parts else 0.0
        if "margin" in parts and (margin < 0 or when is None or isinstance(when, Condition)):
            what = "a number of at least 0" if margin < 0 else "a 'when' on outputs beside it"
            raise self._error(parts["margin"], f"margin: expected {what}")
        if when is None:
            return any_of(asked, name=name)
        try:
            return implies(when, asked, margin=margin, name=name)
        except ValueError as error:
            raise self._error(parts["when"], f"when: {str(error).removeprefix('p: ')}") from None

    def _constraint(self, node: Any, key: str) -> Constraint:
        """A comparison of outputs, or a list of those that hold together."""
        if isinstance(node, yaml.SequenceNode):
            found = [self._constraint(one, key) for one in node.value]
            if not found:
                raise self._error(node, f"{key}: expected at least one comparison")
            try:
                joined: Constraint = reduce(_both, found)
            except ValueError as error:
                raise self._error(node, f"{key}: {error}") from None
            return joined
        value = self._evaluated(node, key)
        if not isinstance(value, Polyhedron | Disjunction):
            raise self._error(node, f"{key}: expected a comparison of outputs")
        return value

    def _polyhedron(self, node: Any, key: str) -> Polyhedron:
        value = self._constraint(node, key)
        if not isinstance(value, Polyhedron):
            raise self._error(node, f"{key}: expected comparisons without alternatives; those are rules")
        return value

    def _evaluated(self, node: Any, key: str) -> Any:
        """What a text stands for: a number, an expression, a linear form, a condition or a constraint."""
        text = self._text(node, key)
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, RecursionError, MemoryError):
            shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
            raise self._error(node, f"{key}: cannot be read: {shown!r}") from None
        try:
            return _Evaluator(self._outputs, self._features).of(tree)
        except (ValueError, TypeError) as error:
            raise self._error(node, f"{key}: {error}") from None
        except RecursionError:
            raise self._error(node, f"{key}: too long to be read") from None

    def _names(self, node: Any, key: str, *, prefix: str) -> tuple[str, ...]:
        if isinstance(node, yaml.ScalarNode):
            count = self._number(node, key)
            if not 1 <= count <= _MOST or count != int(count):
                expected = f"names, or how many there are, 1 to {_MOST}"
                raise self._error(node, f"{key}: expected {expected}, got {node.value}")
            return tuple(f"{prefix}{place}" for place in range(int(count)))
        names = tuple(self._text(one, key) for one in self._sequence(node, key))
        for one, name in zip(node.value, names, strict=True):
            if not name.isidentifier() or keyword.iskeyword(name) or name in _FUNCTIONS:
                expected = "letters, digits and _, no function's name and no word of Python's"
                raise self._error(one, f"{key}: '{name}' is no name: {expected}")
            if names.count(name) > 1:
                raise self._error(one, f"{key}: '{name}' stands there twice")
        if not names:
            raise self._error(node, f"{key}: expected at least one name")
        return names

    def _bound(self, node: Any, key: str) -> float | list[float]:
        if isinstance(node, yaml.SequenceNode):
            return [self._number(one, key) for one in node.value]
        return self._number(node, key)

    def _number(self, node: Any, key: str) -> float:
        try:
            number = float(self._text(node, key))
        except ValueError:
            raise self._error(node, f"{key}: expected a number, got {node.value!r}") from None
        if not math.isfinite(number):
            raise self._error(node, f"{key}: expected a finite number, got {node.value}")
        return number

    def _text(self, node: Any, key: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, f"{key}: expected one value, got a list or a mapping")
        return str(node.value)

    def _sequence(self, node: Any, key: str) -> Sequence[Any]:
        if node is None or (isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~")):
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, f"{key}: expected a list")
        return list(node.value)

    def _mapping(self, node: Any, known: Sequence[str], what: str) -> dict[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"{what}: expected keys and values ({', '.join(known)})")
        found: dict[str, Any] = {}
        for key, value in node.value:
            if key.value not in known:
                name, names = self._text(key, what), Names("key", tuple(known))
                try:
                    names.index(name)
                except ValueError as error:
                    raise self._error(key, str(error)) from None
            if key.value in found:
                raise self._error(key, f"{key.value} stands there twice")
            found[key.value] = value
        return found

    def _error(self, node: Any, text: str) -> RuleFileError:
        return RuleFileError(f"{self._name}:{node.start_mark.line + 1}: {text}")


class _Evaluator:
    """Builds what an expression stands for from its syntax tree; nothing is executed."""

    def __init__(self, outputs: tuple[str, ...], features: tuple[str, ...]) -> None:
        self._outputs, self._features = outputs, features

    def of(self, tree: ast.AST) -> Any:
        """What the tree stands for."""
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
            if isinstance(tree.value, bool) or not math.isfinite(tree.value):
                raise ValueError(f"expected a finite number, got {tree.value}")
            return float(tree.value)
        if isinstance(tree, ast.Name):
            return self._name(tree.id)
        if isinstance(tree, ast.UnaryOp):
            return self._unary(tree)
        if isinstance(tree, ast.BinOp):
            return self._arithmetic(tree)
        if isinstance(tree, ast.Compare):
            return reduce(_both, self._comparisons(tree))
        if isinstance(tree, ast.BoolOp):
            join = _both if isinstance(tree.op, ast.And) else _either
            return reduce(join, [self.of(one) for one in tree.values])
        if isinstance(tree, ast.Call):
            return self._call(tree)
        raise ValueError(
            f"'{ast.unparse(tree)}' is not understood; write comparisons of outputs and features"
        )

    def _name(self, name: str) -> Any:
        if name in self._outputs:
            return output(name)
        if name in self._features:
            return feature(name)
        known = Names("name", self._outputs + self._features)
        known.index(name)
        raise AssertionError(name)

    def _unary(self, tree: ast.UnaryOp) -> Any:
        value = self.of(tree.operand)
        if isinstance(tree.op, ast.USub):
            return -value
        if isinstance(tree.op, ast.UAdd):
            return value
        if isinstance(tree.op, ast.Not):
            return ~value if isinstance(value, Condition) else negated(value)
        raise ValueError(f"'{ast.unparse(tree)}' is not understood")

    def _arithmetic(self, tree: ast.BinOp) -> Any:
        left, right = self.of(tree.left), self.of(tree.right)
        for one in (left, right):
            if not isinstance(one, float | Expression | Linear):
                raise ValueError(f"'{ast.unparse(tree)}': a comparison is no number")
        if not isinstance(tree.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            raise ValueError(f"'{ast.unparse(tree)}': expected one of + - * /")
        both = isinstance(left, Linear) and isinstance(right, Linear)
        if isinstance(tree.op, ast.Add):
            return right + left if isinstance(right, Linear) else left + right
        if isinstance(tree.op, ast.Sub):
            return -right + left if isinstance(right, Linear) else left - right
        if isinstance(tree.op, ast.Mult) and not both:
            return right * left if isinstance(right, Linear) else left * right
        if isinstance(tree.op, ast.Div) and not isinstance(right, Linear):
            if right == 0.0:
                raise ValueError("division by zero")
            return left / right
        raise ValueError(f"'{ast.unparse(tree)}' is not linear in the outputs")

    def _comparisons(self, tree: ast.Compare) -> Iterator[Condition | Polyhedron]:
        sides = [self.of(one) for one in (tree.left, *tree.comparators)]
        for op, left, right in zip(tree.ops, sides, sides[1:], strict=False):
            yield self._comparison(tree, op, left, right)

    def _comparison(self, tree: ast.Compare, op: ast.cmpop, left: Any, right: Any) -> Condition | Polyhedron:
        for one in (left, right):
            if not isinstance(one, float | Expression | Linear):
                raise ValueError(f"'{ast.unparse(tree)}': expected numbers on both sides")
        if isinstance(left, Linear) or isinstance(right, Linear):
            difference = left - right if isinstance(left, Linear) else -right + left
            if not isinstance(difference, Linear):
                raise AssertionError(difference)
            if isinstance(op, ast.LtE | ast.Lt):
                return difference <= 0
            if isinstance(op, ast.GtE | ast.Gt):
                return difference >= 0
            if isinstance(op, ast.Eq):
                return difference.equals(0)
        elif isinstance(left, float) and isinstance(right, float):
            raise ValueError(f"'{ast.unparse(tree)}' compares two numbers; nothing depends on it")
        else:
            left = _constant(left)
            compare: dict[type[ast.cmpop], Callable[[], Condition]] = {
                ast.Lt: lambda: left < right,
                ast.LtE: lambda: left <= right,
                ast.Gt: lambda: left > right,
                ast.GtE: lambda: left >= right,
                ast.Eq: lambda: left.equals(right),
                ast.NotEq: lambda: ~left.equals(right),
            }
            if type(op) in compare:
                return compare[type(op)]()
        raise ValueError(f"'{ast.unparse(tree)}': expected one of <= >= < > ==")

    def _call(self, tree: ast.Call) -> Any:
        name = tree.func.id if isinstance(tree.func, ast.Name) else ast.unparse(tree.func)
        if tree.keywords:
            raise ValueError(f"{name}: expected arguments without names")
        if name == "sum":
            return self._sum(tree.args)
        if name in ("wins", "binary", "integer"):
            return self._rule(name, tree)
        if name in ("abs", "min", "max"):
            values = [self.of(one) for one in tree.args]
            if not values or any(not isinstance(one, float | Expression) for one in values):
                raise ValueError(f"{name}: expected numbers and features, not outputs")
            if name == "abs":
                if len(values) != 1:
                    raise ValueError("abs: expected one argument")
                return abs(values[0])
            return least_of(values) if name == "min" else largest_of(values)
        Names("function", _FUNCTIONS).index(name)
        raise AssertionError(name)

    def _sum(self, arguments: Sequence[ast.expr]) -> Linear:
        if not arguments:
            return total()
        forms = [self.of(one) for one in arguments]
        if any(not isinstance(one, Linear) for one in forms):
            raise ValueError("sum: expected outputs, or nothing for all of them")
        added: Linear = reduce(lambda left, right: left + right, forms)
        return added

    def _rule(self, name: str, tree: ast.Call) -> Constraint:
        if not tree.args or not isinstance(tree.args[0], ast.Name) or tree.args[0].id not in self._outputs:
            raise ValueError(f"{name}: expected an output first")
        key = tree.args[0].id
        numbers = [self.of(one) for one in tree.args[1:]]
        if any(not isinstance(one, float) for one in numbers):
            raise ValueError(f"{name}: expected numbers after the output")
        if name == "wins" and len(numbers) <= 1:
            return wins(key, self._outputs, *numbers)
        if name == "binary" and not numbers:
            return binary(key)
        if name == "integer" and len(numbers) == 2 and all(one == int(one) for one in numbers):
            return integer(key, int(numbers[0]), int(numbers[1]))
        expected = {"wins": "a margin or nothing", "binary": "nothing", "integer": "two whole numbers"}[name]
        raise ValueError(f"{name}: expected {expected} after the output")


def _both(left: Any, right: Any) -> Any:
    if isinstance(left, Condition) and isinstance(right, Condition):
        return left & right
    if isinstance(left, Polyhedron | Disjunction) and isinstance(right, Polyhedron | Disjunction):
        if isinstance(right, Polyhedron):
            return left & right
        if isinstance(left, Polyhedron):
            return right & left
        raise ValueError("alternatives on both sides of 'and': write two rules")
    raise ValueError(f"'and' {_EITHER_KIND}")


def _either(left: Any, right: Any) -> Any:
    if isinstance(left, Condition) and isinstance(right, Condition):
        return left | right
    if isinstance(left, Polyhedron | Disjunction) and isinstance(right, Polyhedron | Disjunction):
        return any_of(left, right)
    raise ValueError(f"'or' {_EITHER_KIND}")


def _constant(value: Any) -> Any:
    return Expression("const", (value,)) if isinstance(value, float) else value


_EITHER_KIND = (
    "joins conditions on features, or comparisons of outputs, not one of each; put the features into 'when', "
    "and the opposite of what is said of outputs among the alternatives of 'any'"
)
_FUNCTIONS = ("sum", "wins", "binary", "integer", "abs", "min", "max")
