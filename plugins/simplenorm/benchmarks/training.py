"""A short training with the method and with its baseline, in one process.

The two take turns, so that what else the machine does hits both alike; medians over the rounds, and their
ratio.
"""

from __future__ import annotations

import statistics
import sys
import time

from leyden.claims import Scale
from leyden_simplenorm.claims import Digits

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5


def main() -> None:
    """Print the table."""
    claim = Digits()
    cells = claim.cells(Scale("smoke", 1))
    seconds: dict[str, list[float]] = {cell.method: [] for cell in cells}
    for cell in cells:
        claim.run(cell)  # imports and first calls are not what is measured
    for _ in range(ROUNDS):
        for cell in cells:
            start = time.perf_counter()
            claim.run(cell)
            seconds[cell.method].append(time.perf_counter() - start)
    reference = statistics.median(seconds[claim.reference])
    print(f"one epoch of digits, medians of {ROUNDS} rounds\n")
    print("| method | time, s | ratio |\n|---|---|---|")
    for method, values in seconds.items():
        print(f"| {method} | {statistics.median(values):.3f} | {statistics.median(values) / reference:.2f} |")


main()
