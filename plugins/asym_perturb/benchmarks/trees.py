"""Cost of an iteration on game trees: `OMP_NUM_THREADS=1 python benchmarks/trees.py`."""

from __future__ import annotations

import time

from leyden_asym_perturb import goofspiel, kuhn_poker, leduc_poker
from leyden_asym_perturb.solver import Solver


def main() -> None:
    for name, game in {"Kuhn": kuhn_poker(), "Goofspiel-4": goofspiel(), "Leduc": leduc_poker()}.items():
        solver = Solver(game, eps=1e-30, mu=0.01)
        times = []
        for _ in range(7):
            start = time.process_time()
            solver.advance(100)
            times.append((time.process_time() - start) / 100)
        print(f"{name}: {1e6 * min(times):.0f} us an iteration")


if __name__ == "__main__":
    main()
