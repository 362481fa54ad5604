"""Student's interval of a mean, and how many values make it narrow enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

LEVEL = 0.95
"""Confidence of every interval."""

MAX_SEEDS = 1000
"""More seeds than this are not worth naming."""


class Interval(NamedTuple):
    """A mean and the 95 % interval of it."""

    mean: float
    low: float
    high: float


def interval(values: Iterable[float]) -> Interval:
    """Mean and Student's 95 % interval of independent values.

    One value has an infinite interval: it excludes nothing. No value, or one that is not finite, has no mean
    either.

    >>> Interval(*(round(x, 3) for x in interval([1.0, 2.0, 3.0])))
    Interval(mean=2.0, low=-0.484, high=4.484)
    """
    numbers = [float(value) for value in values]
    if not numbers or not all(map(math.isfinite, numbers)):
        return Interval(math.nan, -math.inf, math.inf)
    mean = math.fsum(numbers) / len(numbers)
    if len(numbers) == 1:
        return Interval(mean, -math.inf, math.inf)
    half = _quantile(len(numbers) - 1) * deviation(numbers) / math.sqrt(len(numbers))
    return Interval(mean, mean - half, mean + half)


def seeds_needed(spread: float, distance: float) -> int | None:
    """Smallest number of pairs whose interval is expected to be narrower than the distance to the threshold.

    Args:
        spread: standard deviation of the gains, not negative.
        distance: how far the mean is from the threshold, in the same unit.

    Returns:
        At least 2; None where no number up to `MAX_SEEDS` would do.

    >>> seeds_needed(1.0, 1.0), seeds_needed(1.0, 0.0)
    (7, None)
    """

    def decides(pairs: int) -> bool:
        return _quantile(pairs - 1) * spread / math.sqrt(pairs) < distance

    if not distance > 0 or not decides(MAX_SEEDS):
        return None
    low, high = 1, MAX_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of two or more values, with n - 1 in the denominator."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _quantile(degrees: int) -> float:
    return float(_student()(degrees, (1 + LEVEL) / 2))


def _student() -> Callable[[float, float], float]:
    # Imported late: a claim's module imports this one, and listing claims must cost nothing.
    from scipy.special import stdtrit

    return stdtrit  # type: ignore[no-any-return]
