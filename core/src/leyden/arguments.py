"""Checks of arguments, worded alike: the argument's name, what is expected, what was given."""

from __future__ import annotations


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse everything but a whole number of at least a given size.

    Args:
        name: the argument's name.
        value: what was given.
        least: the smallest number that is allowed.

    Raises:
        ValueError: if the value is another; the text names the argument.

    >>> check_at_least("depth", 0, 1)
    Traceback (most recent call last):
    ValueError: depth: expected a whole number of at least 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
