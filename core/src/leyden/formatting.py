"""Numbers in words: as many digits as their uncertainty warrants, and no more."""

from __future__ import annotations

import math
from collections.abc import Iterable

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"

_LONG = {"val": "validation", "acc": "accuracy", "grad": "gradient", "sq": "squared"}


def decimals_for(uncertainty: float) -> int | None:
    """Decimals that show an uncertainty with two significant digits; None where it says nothing.

    >>> decimals_for(0.0061)
    4
    >>> decimals_for(37.0)
    0
    """
    if not (0 < uncertainty < math.inf):
        return None
    return max(0, 1 - math.floor(math.log10(uncertainty)))


def number(value: float, decimals: int | None = None, *, sign: bool = False) -> str:
    """A number for people; without decimals it gets four significant digits.

    Args:
        value: the number.
        decimals: how many, from `decimals_for`.
        sign: whether a plus sign is written.

    >>> number(0.958213, 4), number(1234567.0), number(1.3e-15), number(float("nan"))
    ('0.9582', '1.235e6', '1.3e−15', 'none')
    """
    if math.isnan(value):
        return "none"
    if math.isinf(value):
        return ("+" if sign and value > 0 else MINUS if value < 0 else "") + "∞"
    plus = "+" if sign and value > 0 else ""
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        if decimals is not None and abs(value) < 1e-4 and decimals <= 6:
            text = f"{value:.{decimals}f}"
        else:
            text = _scientific(value)
    elif decimals is not None and decimals <= 8:
        text = f"{value:.{decimals}f}"
    else:
        text = f"{value:.4g}"
        if "e" in text:
            text = f"{value:.0f}"
    if float(text.replace(MINUS, "-")) == 0:
        return text.replace("-", "")
    return plus + text.replace("-", MINUS)


def interval_text(
    mean: float, low: float, high: float, *, sign: bool = False, decimals: int | None = None
) -> str:
    """A mean with its interval, all with the digits that the interval's width warrants.

    Args:
        mean: the mean.
        low: lower end of its interval.
        high: upper end.
        sign: whether a plus sign is written.
        decimals: how many, where several intervals stand in one column; None: as this one warrants.

    >>> interval_text(0.95821, 0.95212, 0.96431)
    '0.9582 [0.9521, 0.9643]'
    >>> interval_text(0.5, float("-inf"), float("inf"))
    '0.5 [no interval]'
    >>> interval_text(2e-9, 1e-9, 3e-9, decimals=3), interval_text(2e-9, -1e-2, 1e-2, decimals=2)
    ('2e−9 [1e−9, 3e−9]', '0.00 [−0.01, 0.01]')
    """
    if math.isnan(mean):
        return "none"
    if math.isinf(low) and math.isinf(high):
        return f"{number(mean, decimals, sign=sign)} [no interval]"
    own = decimals_for((high - low) / 2)
    if decimals is None or (_vanishes(mean, decimals, own) and not low < 0 < high):
        decimals = own
    low_text, high_text = number(low, decimals, sign=sign), number(high, decimals, sign=sign)
    return f"{number(mean, decimals, sign=sign)} [{low_text}, {high_text}]"


def _vanishes(mean: float, decimals: int, own: int | None) -> bool:
    """Whether a column's decimals would make nearly a zero of a number that is known better than that."""
    return 0 < abs(mean) < 10.0 ** (1 - decimals) and (own is None or own > decimals)


def common_decimals(intervals: Iterable[tuple[float, float, float]]) -> int | None:
    """Decimals for a column of means with intervals: what the middle one of the intervals warrants.

    >>> common_decimals([(0.5, 0.49, 0.51), (0.3, 0.1, 0.5), (0.97, 0.96, 0.98)])
    3
    """
    halves = sorted((high - low) / 2 for _, low, high in intervals if 0 < high - low < math.inf)
    return decimals_for(halves[(len(halves) - 1) // 2]) if halves else None


def words(name: str) -> str:
    """A metric's key as a person reads it.

    >>> words("val_acc"), words("sps/grad_norm_sq")
    ('validation accuracy', 'sps gradient norm squared')
    """
    return " ".join(_LONG.get(word, word) for word in name.replace("_", " ").replace("/", " ").split())


def axis_label(name: str, unit: str = "") -> str:
    """A metric with its unit in brackets, unless its name says it already.

    >>> axis_label("epoch_time", "s"), axis_label("test_accuracy", "accuracy")
    ('epoch time (s)', 'test accuracy')
    """
    label = words(name)
    return label if not unit or unit in label.split() else f"{label} ({unit})"


def duration(seconds: float) -> str:
    """A time span.

    >>> duration(4.21), duration(75), duration(3 * 3600 + 125)
    ('4.2 s', '1 min 15 s', '3 h 2 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count(amount: int, noun: str) -> str:
    """An amount with its noun.

    >>> count(1, "seed"), count(5, "seed")
    ('1 seed', '5 seeds')
    """
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def listing(items: Iterable[str], *, at_most: int = 4) -> str:
    """Some items by name and the rest by number.

    >>> listing(["a", "b", "c"], at_most=2)
    'a; b; and 1 more'
    """
    every = list(items)
    shown = every[:at_most]
    return "; ".join([*shown, f"and {len(every) - at_most} more"] if len(every) > at_most else shown)


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def error_line(text: str, *, at_most: int = 200) -> str:
    r"""What a traceback's text says went wrong, in one line: the last exception, its whole message.

    Args:
        text: the text; one without a traceback is told from its beginning.
        at_most: characters that are kept.

    >>> error_line('Traceback:\n  File "a.py", line 1, in f\n    f()\nValueError: two\n  lines')
    'ValueError: two lines'
    """
    lines = text.strip().splitlines()
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    if frames:
        below = range(frames[-1] + 1, len(lines))
        lines = lines[next((place for place in below if lines[place][:1].strip()), -1) :]
    printable = "".join(letter if letter.isprintable() else " " for letter in " ".join(lines))
    line = " ".join(printable.split()) or "no traceback"
    return line if len(line) <= at_most else line[: at_most - 1] + "…"
