"""A claim whose cells do as they are told; tests copy it into a working directory. It imports no torch."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from leyden.claims import Cell, Claim, Measured, Scale, Statement, Table
from leyden.model import Verdict


def attempts(cell: Cell) -> int:
    """How often the cell was started in this working directory."""
    return len(list(Path("attempts").glob(f"{cell.digest}-*")))


class Toy(Claim):
    """Its cells are those of the methods ``Good`` and ``Bad``; their numbers follow from the seed."""

    name = "toy"
    title = "the good method is better than the bad one"
    source = "ours"
    statements = (Statement(id="better", text="Good is better than Bad.", kind="better"),)
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 0.1, "paper": 0.1}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 2, "laptop": 4, "paper": 4}
    metric = "accuracy"
    imports = ()

    def cells(self, scale: Scale) -> Sequence[Cell]:
        does = dict(pair.split("=") for pair in os.environ.get("TOY", "").split(",") if pair)
        return [
            Cell(method=method, seed=seed, scale=scale.name, options={"do": does.get(f"{method}{seed}", "")})
            for method in ("Good", "Bad")
            for seed in range(scale.seeds)
        ]

    def run(self, cell: Cell) -> Measured:
        Path("attempts").mkdir(exist_ok=True)
        Path(f"attempts/{cell.digest}-{os.getpid()}-{time.time_ns()}").touch()
        doing = str(cell.options.get("do") or os.environ.get("TOY_ALL", ""))
        if doing:
            getattr(self, doing)(cell)
        base = 0.9 if cell.method == "Good" else 0.5
        curve = [1.0 / (step + 1 + cell.seed) for step in range(4)]
        return {"accuracy": base + 0.001 * cell.seed, "loss": curve}

    def judge(self, table: Table) -> Sequence[Verdict]:
        values = [result.measured["accuracy"] for result in table.done]
        if os.environ.get("TOY_JUDGE") == "raise":
            raise RuntimeError("the judge is ill")
        return [
            Verdict(
                statement="better",
                text="Good is better than Bad.",
                kind="better",
                outcome="holds" if len(values) > 1 else "undecided",
                estimate=0.4,
                low=0.39,
                high=0.41,
                threshold=0.0,
                unit="accuracy",
                pairs=len(values) // 2,
            )
        ]

    def figure(self, table: Table) -> None:
        if os.environ.get("TOY_FIGURE") == "raise":
            raise RuntimeError("the figure is ill")

    # What a cell can be told to do.

    def fail(self, cell: Cell) -> None:
        print("about to fail")
        raise ValueError("told to fail")

    def fail_at_length(self, cell: Cell) -> None:
        raise ValueError("first line\n    second line")

    def leave(self, cell: Cell) -> None:
        raise asyncio.CancelledError("told to leave")

    def interrupt(self, cell: Cell) -> None:
        raise KeyboardInterrupt

    def hear_an_interrupt(self, cell: Cell) -> None:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
        os.kill(os.getpid(), signal.SIGINT)

    def fail_at_first(self, cell: Cell) -> None:
        if cell.name == "Bad seed 1" and attempts(cell) == 1:
            self.fail(cell)

    def exit(self, cell: Cell) -> None:
        sys.exit(3)

    def die(self, cell: Cell) -> None:
        time.sleep(0.3)  # the neighbours are in flight, too
        os.kill(os.getpid(), signal.SIGKILL)

    def die_once(self, cell: Cell) -> None:
        if attempts(cell) == 1:
            self.die(cell)

    def segfault(self, cell: Cell) -> None:
        ctypes.string_at(0)

    def speak(self, cell: Cell) -> None:
        print("spoken in Python", flush=True)
        os.write(2, b"spoken in C\n")

    def rest(self, cell: Cell) -> None:
        time.sleep(0.4)

    def rest_until_told(self, cell: Cell) -> None:
        """Go on once the file ``tell`` says a number of cells that this one is among."""
        while len(list(Path("attempts").iterdir())) > int(Path("tell").read_text()):
            time.sleep(0.05)

    def sleep(self, cell: Cell) -> None:
        time.sleep(300)

    def hold_the_interpreter(self, cell: Cell) -> None:
        ctypes.PyDLL(None).sleep(300)

    def start_processes(self, cell: Cell) -> None:
        with multiprocessing.Pool(2) as pool:
            assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
        process = multiprocessing.Process(target=abs, args=(-1,))
        process.start()
        process.join()
        assert process.exitcode == 0

    def start_a_child(self, cell: Cell) -> None:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(300)"], check=True)


ASKED = int(os.environ.get("OMP_NUM_THREADS", "0"))
"""What libraries that are imported together with this module would read."""


class Threads(Toy):
    """Measures on how many threads torch computes, and how far the process lets others go first."""

    name = "threads"
    imports = ("torch",)

    def run(self, cell: Cell) -> Measured:
        torch = sys.modules["torch"]
        return {"threads": torch.get_num_threads(), "asked": ASKED, "niceness": os.nice(0)}


class Draws(Toy):
    """Draws from the global generators without seeding them."""

    name = "draws"
    imports = ("numpy",)

    def run(self, cell: Cell) -> Measured:
        return {"python": random.random(), "numpy": sys.modules["numpy"].random.random()}


class Words(Toy):
    """Returns what is no number."""

    name = "words"

    def run(self, cell: Cell) -> Measured:
        return {"accuracy": "high"}  # type: ignore[dict-item]


class WhoRan(Toy):
    """Measures which process ran a cell."""

    name = "who-ran"

    def run(self, cell: Cell) -> Measured:
        super().run(cell)
        time.sleep(0.2)
        return {"process": os.getpid()}


def die_before_the_cell(job: object) -> None:
    """Stands for a worker that dies before it runs anything."""
    os._exit(7)
