"""Two jobs against one on a CPU-bound claim, one torch thread in both arms; prints the ratio of wall times.

    python core/benchmarks/execute.py            # at least two minutes of work in the serial arm
    python core/benchmarks/execute.py --quick    # some seconds: whether it works, not how fast it is

Each arm is what `leyden reproduce` does with a claim's cells: fresh workers that import torch and lightning,
and a stored result for each cell. Only the number of workers differs.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from leyden.claims import Cell, Claim, Measured, Scale, Statement, Table
from leyden.execute import run_cells, stop_workers
from leyden.model import Verdict
from leyden.results import Results

CELLS = 24
SECONDS_A_CELL = 6.0


class Training(Claim):
    """Trains a small network for as many steps as the cell says: no input, no waiting, only arithmetic."""

    name = "training"
    title = "training keeps a core busy"
    source = "ours"
    statements: ClassVar[tuple[Statement, ...]] = ()
    minutes: ClassVar[Mapping[str, float]] = {"laptop": 3}
    seeds: ClassVar[Mapping[str, int]] = {"laptop": CELLS}
    metric = "loss"
    imports = ("torch", "lightning")

    def cells(self, scale: Scale) -> Sequence[Cell]:
        return [Cell(method="SGD", seed=seed) for seed in range(scale.seeds)]

    def run(self, cell: Cell) -> Measured:
        return {"loss": train(int(cell.options["steps"] or 0), cell.seed)}

    def judge(self, table: Table) -> Sequence[Verdict]:
        return []


def train(steps: int, seed: int) -> float:
    import torch

    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(1024, 64, generator=generator)
    labels = torch.randint(0, 10, (1024,), generator=generator)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        rows = slice(step % 16 * 64, step % 16 * 64 + 64)
        loss = torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def steps_for(seconds: float) -> int:
    """How many steps take so long on one thread of this machine."""
    import torch

    torch.set_num_threads(1)
    train(200, 0)
    began = time.perf_counter()
    train(2000, 0)
    return int(2000 * seconds / (time.perf_counter() - began))


def wall_time(cells: Sequence[Cell], jobs: int, executor: str = "loky") -> tuple[float, float]:
    """Seconds that all cells took, the start of the workers included, and that one took in the mean."""
    folder = Path(tempfile.mkdtemp())
    results = Results(folder)
    began = time.perf_counter()
    try:
        run_cells("execute.Training", cells, results=results, jobs=jobs, executor=executor)
        elapsed = time.perf_counter() - began
        table = results.table(cells)
        if len(table.done) < len(cells):
            raise SystemExit(f"{len(table.failed)} cells failed: {table.failed[0].error}")
        return elapsed, sum(result.seconds for result in table) / len(table)
    finally:
        stop_workers()
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few small cells")
    quick = parser.parse_args().quick
    count, seconds = (4, 1.0) if quick else (CELLS, SECONDS_A_CELL)
    steps = steps_for(seconds)
    cells = [Cell(method="SGD", seed=seed, options={"steps": steps}) for seed in range(count)]
    serial, _ = wall_time(cells, 1)
    parallel, _ = wall_time(cells, 2)
    print(f"{count} cells of {steps} training steps, one torch thread a worker")
    print(f"1 job {serial:.1f} s, 2 jobs {parallel:.1f} s, ratio {serial / parallel:.2f}")


if __name__ == "__main__":
    main()
