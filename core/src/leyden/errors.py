"""The errors a person sees: one line, the argument's name, the nearest valid value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LeydenError(Exception):
    """Something failed while running; the command line shows one line and ends with status 1."""

    exit_status = 1


class UsageError(LeydenError):
    """The user's input is wrong; the command line shows one line and ends with status 2."""

    exit_status = 2


class TrackingError(LeydenError):
    """The tracking store cannot be used: it does not answer, is read-only, full or corrupted."""


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """Build the error for a name that nothing has.

    Args:
        what: what the name should have been, such as ``"plugin"``.
        name: what the user gave.
        known: every valid name.

    Returns:
        An error whose text names the nearest valid names, or all of them where none is near.

    >>> str(unknown("plugin", "sps_saef", ["sps_safe", "harm"]))
    "unknown plugin 'sps_saef'; did you mean 'sps_safe'?"
    """
    return UsageError(f"unknown {what} '{name}'; {hint(name, known)}")


def hint(name: str, known: Iterable[str]) -> str:
    """The half sentence that helps a person who misspelt a name.

    >>> hint("urii", ["uri", "enabled"])
    "did you mean 'uri'?"
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(f"'{choice}'" for choice in near) + "?"
    if names:
        return "there is " + ", ".join(f"'{choice}'" for choice in names)
    return "there is none"


def one_line(error: BaseException) -> str:
    r"""An exception in one line: its type and its text.

    >>> one_line(ValueError("a\n  b"))
    'ValueError: a b'
    """
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
