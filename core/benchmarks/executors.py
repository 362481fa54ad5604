"""Ray against loky on the same cells of six seconds, two at a time; prints the ratio of wall times.

    python core/benchmarks/executors.py            # about two minutes an arm
    python core/benchmarks/executors.py --quick    # some seconds: whether it works, not how fast it is

Each arm starts its workers anew, and Ray its daemons as well; the cells are those of execute.py. The arms
take turns, so that what else the machine does meets both.
"""

from __future__ import annotations

import argparse
import os

from execute import SECONDS_A_CELL, steps_for, wall_time
from leyden.claims import Cell

CELLS, ROUNDS = 12, 3
EXECUTORS = ("loky", "ray")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few small cells")
    quick = parser.parse_args().quick
    os.environ["RAY_ADDRESS"] = "local"
    count, rounds, seconds = (4, 1, 1.0) if quick else (CELLS, ROUNDS, SECONDS_A_CELL)
    steps = steps_for(seconds)
    cells = [Cell(method="SGD", seed=seed, options={"steps": steps}) for seed in range(count)]
    times = dict.fromkeys(EXECUTORS, 0.0)
    print(f"{count} cells of {steps} training steps, two at a time, start of the workers included")
    for number in range(rounds):
        for name in EXECUTORS if number % 2 == 0 else EXECUTORS[::-1]:
            elapsed, mean = wall_time(cells, 2, name)
            times[name] += elapsed
            print(f"{name} {elapsed:.1f} s, a cell {mean:.1f} s", flush=True)
    print(f"Ray {times['ray']:.1f} s, loky {times['loky']:.1f} s, ratio {times['ray'] / times['loky']:.2f}")


if __name__ == "__main__":
    main()
