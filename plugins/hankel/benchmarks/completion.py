"""Time to a relative error of 1e-6 against the length of the signal, every method in one process.

All start from the same spectral start and use the same fast products. They take turns iteration by iteration,
each with its own clock, so that what else the machine does hits all alike; a method is done when its error is
below 1e-6, and gives up after 150 iterations or 10 times the time of the first that was done.

``--quick`` stops at 2^14 samples, ``--figure FILE`` draws the curve.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from leyden_hankel import relative_error
from leyden_hankel.completion import Task, prepare
from leyden_hankel.experiments import draw, signals_of
from leyden_hankel.solver import Settings
from leyden_hankel.spectral import spectral_init
from torch import Tensor

METHODS = ("tangent", "tangent, fixed", "block_jacobi", "FIHT", "HSNLD", "SHGD", "PGD")
RANK, LEVEL, MOST, PATIENCE = 10, 1e-6, 150, 10.0


class Runner:
    """A method on its way, with its clock.

    Args:
        method: its name.
        task: the signal.
        factor: where it starts.
        truth: the true signal, of which the error is measured off the clock.
    """

    def __init__(self, method: str, task: Task, factor: Tensor, truth: Tensor) -> None:
        self.method = method
        self.seconds = 0.0
        self.iterations = -1
        self.error = math.inf
        self._task = task
        self._truth = truth
        self._iterates: Iterator[Tensor] | None = signals_of(method, task, RANK, factor, {})

    @property
    def done(self) -> bool:
        return self.error <= LEVEL

    def advance(self, limit: float) -> bool:
        """Take an iteration; whether there is another one to take."""
        assert self._iterates is not None
        begun = time.process_time()
        x = next(self._iterates)
        self.seconds += time.process_time() - begun
        self.iterations += 1
        self.error = float(relative_error(self._task.crop(x)[0] * self._task.scale, self._truth))
        goes_on = not self.done and self.iterations < MOST and self.seconds < limit and self.error < 1e6
        if not goes_on:
            self._iterates = None  # its memory is free for the others
        return goes_on


def race(size: int, seed: int, methods: tuple[str, ...]) -> tuple[float, list[Runner]]:
    """Run the methods on one signal.

    Returns:
        The processor seconds of the start, and the runners where they ended.
    """
    signal = draw(size, RANK, seed=seed, samples=size // 8, kappa=10, separation=True)
    task = prepare(signal.y, signal.mask, (size,), Settings(rank=RANK))
    begun = time.process_time()
    with torch.no_grad():
        factor = spectral_init(task.problem.y, task.problem.mask, RANK, operator=task.problem.operator)
    start = time.process_time() - begun
    runners = [Runner(method, task, factor, signal.truth) for method in methods]
    running, limit = list(runners), math.inf
    while running:
        running = [runner for runner in running if runner.advance(limit)]
        if limit == math.inf and (finished := [runner.seconds for runner in runners if runner.done]):
            limit = PATIENCE * min(finished)
    return start, runners


def peak_of_one(size: int) -> float:
    """MiB that a solution by the default method adds to the process at its peak; NaN where nobody tells."""
    from leyden_hankel import complete

    signal = draw(size, RANK, seed=0, samples=size // 8, kappa=10, separation=True)
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        before = _status("VmRSS")
        complete(signal.y, signal.mask, RANK, max_iter=12)
        return _status("VmHWM") - before
    except OSError:
        return math.nan


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def told(runners: list[Runner], start: float, whole: bool) -> str:
    """The shortest time of a method over the signals, or that it did not arrive."""
    arrived = [runner for runner in runners if runner.done]
    if len(arrived) < len(runners):
        return f"over {min(runner.seconds for runner in runners):.2f} s"
    seconds = sorted(runner.seconds for runner in runners)[len(runners) // 2] + (start if whole else 0.0)
    iterations = sorted(runner.iterations for runner in runners)[len(runners) // 2]
    return f"{seconds:.3f} ({iterations})"


def draw_curve(path: str, seconds: dict[str, dict[int, float]]) -> None:
    """The times against the length, both on logarithmic axes."""
    from leyden.figures import INK, new_figure, styles

    look = styles(METHODS)
    figure, (ax,) = new_figure(title="Time to a relative error of 1e-6", height=4.4)
    for method, times in seconds.items():
        if not times:  # it never arrived
            continue
        style = look[method]
        ax.plot(
            times.keys(), times.values(), color=style.color, marker=style.marker, ls=style.line, label=method
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("samples of the signal")
    ax.set_ylabel("processor seconds")
    ax.legend(frameon=False, labelcolor=INK, fontsize=9)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="stop at 2^14 samples")
    parser.add_argument("--largest", type=int, default=20, help="the largest power of 2")
    parser.add_argument("--figure", default="", help="where to draw the curve")
    arguments = parser.parse_args()
    powers = range(12, (14 if arguments.quick else arguments.largest) + 1, 2)
    print(
        f"## hankel: seconds (iterations) to a relative error of {LEVEL:g}, {RANK} lines, an eighth of the "
        f"samples, condition number 10, {torch.get_num_threads()} thread(s)\n"
    )
    header = ("samples", "start", *METHODS, "FIHT over tangent", "FIHT over fixed", "peak, MiB")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    curve: dict[str, dict[int, float]] = {method: {} for method in METHODS}
    for power in powers:
        size = 2**power
        races = [race(size, seed, METHODS) for seed in range(3 if power < 18 else 1)]
        start = min(seconds for seconds, _ in races)
        rows = {method: [runners[place] for _, runners in races] for place, method in enumerate(METHODS)}
        middle = {
            method: sorted(runner.seconds for runner in runners)[len(runners) // 2]
            for method, runners in rows.items()
            if all(runner.done for runner in runners)
        }
        for method, seconds in middle.items():
            curve[method][size] = seconds
        ratios = [
            f"{middle['FIHT'] / middle[own]:.2f}" if {"FIHT", own} <= middle.keys() else ""
            for own in ("tangent", "tangent, fixed")
        ]
        times = [told(runners, start, whole=False) for runners in rows.values()]
        cells = [f"2^{power}", f"{start:.3f}", *times, *ratios, f"{peak_of_one(size):.0f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    if arguments.figure:
        draw_curve(arguments.figure, curve)


if __name__ == "__main__":
    sys.exit(main())
