"""Powers of two, by which numbers are scaled without a rounding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def nearest_power(size: Array) -> Array:
    """The power of two nearest to each number; 1 for 0.

    Args:
        size: not negative.

    >>> nearest_power(np.array([0.0, 1.0, 3.0, 1000.0]))
    array([1.000e+00, 1.000e+00, 4.000e+00, 1.024e+03])
    """
    power: Array = np.ldexp(1.0, np.rint(np.log2(np.where(size > 0, size, 1.0))).astype(int))
    return power
