"""Checks of arguments, worded alike, for the core that imports nothing of Leyden."""

from __future__ import annotations


def check_count(name: str, value: object) -> None:
    """Refuse everything but a whole number of at least 1.

    Raises:
        ValueError: if the value is another; the text names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
