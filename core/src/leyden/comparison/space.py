"""What is tuned and what is fixed: ``key=value`` and ``key=low..high`` of the command line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import get_loader

from leyden.claims import Scalar
from leyden.configuration import named_class
from leyden.errors import UsageError, hint
from leyden.model import Range, Space

FACTOR = 10.0
"""A learning rate without a declared range is tried from its value over this to its value times this."""

_LEARNING_RATES = ("lr", "learning_rate")
_EDGE = 0.03


def parse_pair(option: str, text: str) -> tuple[str, Any, Space | None]:
    """Read one ``key=...`` of an option.

    Args:
        option: the option, for errors.
        text: ``key=value``, ``key=low..high`` or ``key=a,b,c``.

    Returns:
        The key, the value and None; or the key, None and what may be tried. A range is logarithmic where both
        ends are positive and a decade or more apart, and of whole numbers where both ends are written so.

    Raises:
        UsageError: if it is none of these; the text names the option and what was given.
    """
    key, equals, said = text.partition("=")
    if not equals or not key or not said:
        raise UsageError(f"{option} {text}: expected key=value, key=low..high or key=a,b,c")
    low, dots, high = said.partition("..")
    if dots:
        return key, None, _range(f"{option} {text}", low, high)
    value = _scalar(said)
    if "," in said and isinstance(value, str):
        return key, None, _choices(f"{option} {text}", said.split(","))
    return key, value, None


def _range(given: str, low: str, high: str) -> Range:
    ends = [_scalar(low), _scalar(high)]
    for text, end in zip((low, high), ends, strict=True):
        if isinstance(end, bool) or not isinstance(end, int | float):
            raise UsageError(f"{given}: an end of a range must be a number, got '{text}'")
    first, last = float(ends[0]), float(ends[1])
    whole = all(isinstance(end, int) for end in ends)
    scale = first > 0 and last >= 10 * first
    try:
        return Range(ends[0], ends[1], log=scale, integer=True) if whole else Range(first, last, log=scale)
    except ValueError as error:
        raise UsageError(f"{given}: {error}") from error


def _choices(given: str, texts: Sequence[str]) -> tuple[Scalar, ...]:
    values = [_scalar(text.strip()) for text in texts]
    if any(isinstance(value, list | dict) for value in values) or len(set(values)) < len(values):
        raise UsageError(f"{given}: expected different plain values between the commas")
    return tuple(values)


def _scalar(text: str) -> Any:
    try:
        return get_loader("yaml")(text)
    except Exception:
        return text


def parameters_of(class_path: str) -> dict[str, Any]:
    """The arguments of a class or function by name, with their defaults (``inspect.Parameter.empty``: none).

    Raises:
        LeydenError: if it cannot be imported.
    """
    try:
        signature = inspect.signature(named_class(class_path))
    except (TypeError, ValueError):
        return {}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.kind not in variable
    }


def default_of(class_path: str, name: str) -> Scalar:
    """The default of an argument, where it is a plain value; else None."""
    value = parameters_of(class_path).get(name)
    return value if isinstance(value, bool | int | float | str) else None


def value_at(document: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key of a configuration, or the default of the class whose argument it is.

    Raises:
        UsageError: if the configuration has no such key; the text names the nearest valid one.
        LeydenError: if a class that the key leads to cannot be imported.
    """
    node: Any = document
    parts = key.split(".")
    for place, part in enumerate(parts):
        below = _below(node)
        if part in below:
            node = below[part]
            continue
        if part == "init_args" and "class_path" in below:
            node = {}
            continue
        owner = _owner(document, parts[:place])
        known = list(below) if owner is None else list(parameters_of(owner))
        if owner is not None and part in known and place == len(parts) - 1:
            return parameters_of(owner)[part]
        raise UsageError(
            f"{key}: the configuration has no '{'.'.join(parts[: place + 1])}'; {hint(part, known)}"
        )
    return node


def _owner(document: Mapping[str, Any], parts: Sequence[str]) -> str | None:
    """The class whose arguments stand at a key; None where it holds something else."""
    if list(parts) == ["trainer"]:
        return "lightning.pytorch.Trainer"
    if not parts or parts[-1] != "init_args":
        return None
    node: Any = document
    for part in parts[:-1]:
        node = _below(node).get(part, {})
    named = node.get("class_path") if isinstance(node, Mapping) else node
    return named if isinstance(named, str) else None


def _below(node: Any) -> dict[str, Any]:
    """What lies under a node of a configuration: the values of a mapping, or a list's items by number."""
    if isinstance(node, list):
        return {str(place): item for place, item in enumerate(node)}
    return {str(key): item for key, item in node.items()} if isinstance(node, Mapping) else {}


def around(rate: float) -> Range:
    """What is tried for a learning rate of which only its value is known.

    >>> around(0.1)
    Range(low=0.01, high=1.0, log=True, integer=False)
    """
    return Range(float(f"{rate / FACTOR:.6g}"), float(f"{rate * FACTOR:.6g}"))


def learning_rate(arguments: Mapping[str, Any]) -> tuple[str, float] | None:
    """The argument that is a learning rate, with its value, where that is a positive number."""
    for name in _LEARNING_RATES:
        value = arguments.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return name, float(value)
    return None


def is_learning_rate(key: str) -> bool:
    """Whether a dotted key ends in the name of a learning rate."""
    return key.rpartition(".")[2] in _LEARNING_RATES


def at_edges(setting: Mapping[str, Scalar], space: Mapping[str, Space]) -> tuple[str, ...]:
    """Where a setting lies at an end of its range, in words.

    >>> at_edges({"M": 9.9, "n": 4}, {"M": Range(0.001, 10), "n": Range(1, 8, log=False)})
    ('M=9.9 is at the upper end of its range (0.001 to 10)',)
    """
    found = []
    for name, value in setting.items():
        reach = space.get(name)
        if not isinstance(reach, Range) or value not in reach:
            continue
        place = position(float(value), reach)  # type: ignore[arg-type]
        if place <= _EDGE or place >= 1 - _EDGE:
            end = "lower" if place <= _EDGE else "upper"
            found.append(
                f"{name}={value:g} is at the {end} end of its range ({reach.low:g} to {reach.high:g})"
            )
    return tuple(found)


def position(value: float, reach: Range) -> float:
    """Where a value lies in a range, from 0 to 1, on the range's scale."""
    ends = (value, reach.low, reach.high)
    at, low, high = map(math.log, ends) if reach.log else ends
    return (at - low) / (high - low)


def placed(fraction: float, space: Space) -> Scalar:
    """The value at a fraction of a space, from 0 to 1; of three digits.

    >>> placed(0.5, Range(0.01, 1.0)), placed(0.9, ("a", "b")), placed(0.5, Range(1, 4, integer=True))
    (0.1, 'b', 2)
    """
    if not isinstance(space, Range):
        return space[min(int(fraction * len(space)), len(space) - 1)]
    ends = (space.low, space.high)
    low, high = map(math.log, ends) if space.log else ends
    value = low + fraction * (high - low)
    return rounded(math.exp(value) if space.log else value, space)


def nearest(value: Scalar, space: Space) -> Scalar:
    """A value, or where it is not in a space the nearest that is.

    >>> nearest(0.1, Range(1, 10)), nearest(8, (4, 6)), nearest(6, (4, 6))
    (1.0, 4, 6)
    """
    if not isinstance(space, Range):
        return value if value in space else space[0]
    if value in space or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return rounded(float(value), space)


def rounded(value: float, reach: Range) -> Scalar:
    """A value of a range with three digits, still inside."""
    if reach.integer:
        return int(min(max(round(value), reach.low), reach.high))
    return float(min(max(float(f"{value:.3g}"), reach.low), reach.high))
