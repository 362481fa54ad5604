"""Runs the cells of a claim in parallel: ``loky`` on this machine, ``ray`` on a Ray cluster.

Both promise the same. A cell stores its own result before it returns, so what was measured survives whatever
stops the run. A cell that raises is recorded with its traceback and the rest go on. A worker that dies takes
no result with it. Ray tells which cell it was running, and that one runs again; loky does not, so all cells
that were run at that moment are suspects and run again, each alone. One whose worker then dies as well is
recorded as crashed.

loky's own executor is used rather than `joblib.Parallel`, which runs a single job in the calling process: a
crash there would end the whole run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from leyden.claims import Cell, CellResult
from leyden.cluster import POLL, RayWorkers
from leyden.errors import LeydenError, UsageError, unknown
from leyden.results import Results
from leyden.settings import EXECUTORS
from leyden.worker import ONE_THREAD, Job, Tracked, import_quietly, run_job, start_worker

_MAX_IDLE_DEATHS = 3
_OUTPUT_KEPT = 4000


def run_cells(
    claim: str,
    cells: Sequence[Cell],
    *,
    results: Results,
    jobs: int,
    executor: str = "loky",
    tracked: Tracked | None = None,
    on_done: Callable[[CellResult], None] = lambda result: None,
    on_death: Callable[[str], None] = lambda message: None,
) -> None:
    """Run every cell that has no stored result, and store one for each.

    The workers stay for the next call; `stop_workers` ends them. They are killed when this function raises.

    Args:
        claim: dotted path of the claim's class.
        cells: the cells; those with a stored result are left alone.
        results: where results are stored.
        jobs: how many cells run at the same time.
        executor: ``"loky"`` or ``"ray"``.
        tracked: where the runs of the cells are tracked; None for nowhere.
        on_done: called with each result soon after it was stored.
        on_death: called with a line for a person when a worker died, or keeps them waiting.

    Raises:
        UsageError: if the executor cannot be used.
        LeydenError: if a result cannot be stored, or workers die before they run anything.
    """
    check_executor(executor)
    workers = _WORKERS[executor]
    try:
        _Execution(claim, cells, results, jobs, workers, tracked, on_done, on_death).run()
    except OSError as error:
        workers.stop()
        raise LeydenError(f"cannot run the cells of {claim}: {error}") from error
    except BaseException:
        workers.stop()
        raise


def check_executor(name: str) -> None:
    """Check that an executor can be used.

    Raises:
        UsageError: if there is none of that name, or its package is not installed.
    """
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    if name == "ray" and importlib.util.find_spec("ray") is None:
        raise UsageError("executor 'ray' needs Ray, which is not installed: pip install 'leyden[ray]'")


def default_jobs(executor: str) -> int:
    """How many cells run at the same time where nobody said: one a core, of this machine or of the cluster.

    Raises:
        UsageError: if ``RAY_ADDRESS`` is no address.
        LeydenError: if the cluster does not answer.
    """
    from joblib import cpu_count

    return (_RAY.cores() if executor == "ray" else None) or int(cpu_count())


def start_workers(executor: str, jobs: int, imports: Sequence[str]) -> None:
    """Start the workers that `run_cells` will use, so that they import while this process does other things.

    Only those of this machine are started; for others it does nothing.

    Args:
        executor: ``"loky"`` or ``"ray"``.
        jobs: how many cells will run at the same time.
        imports: modules that the cells need.

    Raises:
        LeydenError: if they cannot be started.
    """
    if executor == "loky":
        try:
            _LOKY.start(jobs, imports)
        except OSError as error:
            _LOKY.stop()
            raise LeydenError(f"cannot start workers: {error}") from error


def stop_workers() -> None:
    """End the workers of this process at once, if there are any; what they measured is stored."""
    for workers in _WORKERS.values():
        workers.stop()


@contextlib.contextmanager
def termination_as_exit() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `SystemExit`, so that they are cleaned up after as Ctrl-C is.

    A second one ends the process at once. Outside the main thread, which alone hears them, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former: dict[int, Any] = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            former[number] = signal.signal(number, _exit)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


class _Workers(Protocol):
    @property
    def knows_culprit(self) -> bool:
        """Whether the cells that a death leaves without a result are those of the workers that died."""

    @property
    def patience(self) -> float:
        """Seconds until the result of a job that was run must be visible."""

    def run(
        self, batch: Sequence[Job], count: int, report: Callable[[], None], tell: Callable[[str], None]
    ) -> str:
        """Run the jobs on so many workers; call ``report`` now and then, ``tell`` with lines for a person.

        Returns:
            How a worker died, in a few words; empty if all jobs were run.
        """

    def stop(self) -> None:
        """Kill the workers, if there are any."""


class _Execution:
    """One call of `run_cells`."""

    def __init__(
        self,
        claim: str,
        cells: Sequence[Cell],
        results: Results,
        jobs: int,
        workers: _Workers,
        tracked: Tracked | None,
        on_done: Callable[[CellResult], None],
        on_death: Callable[[str], None],
    ) -> None:
        self.claim, self.results, self.jobs, self.workers = claim, results, jobs, workers
        self.tracked, self.on_done, self.on_death = tracked, on_done, on_death
        self.pending = {cell.digest: cell for cell in cells if not results.stored(cell)}
        self.idle_deaths = 0

    def run(self) -> None:
        suspects: dict[str, Cell] = {}
        together = self.workers.knows_culprit
        while fresh := [cell for digest, cell in self.pending.items() if digest not in suspects]:
            death, caught = self.attempt(fresh)
            if caught:
                suspects |= {cell.digest: cell for cell in caught}
                names = ", ".join(cell.name for cell in caught)
                alone = "" if together else ", each alone"
                self.on_death(f"a worker died ({death}); once more{alone}: {names}")
        for group in [[*suspects.values()]] if together else [[cell] for cell in suspects.values()]:
            while cells := [cell for cell in group if cell.digest in self.pending]:
                death, caught = self.attempt(cells)
                for cell in caught:
                    self.results.save(_crashed(cell, death, self.results))
                    self.report()
                    self.on_death(f"a worker died again ({death}): {cell.name} is recorded as crashed")

    def attempt(self, cells: Sequence[Cell]) -> tuple[str, list[Cell]]:
        """Run some cells; return how a worker died, if one did, and the cells that were being run then."""
        for cell in cells:
            self.results.discard(cell)
        before = len(self.pending)
        jobs = [self.job(cell) for cell in cells]
        death = self.workers.run(jobs, min(self.jobs, len(cells)), self.report, self.on_death)
        self.report()
        if not death:
            self.expect(cells)
            return "", []
        caught = self.results.in_flight(cells)
        self.idle_deaths = 0 if caught or len(self.pending) < before else self.idle_deaths + 1
        if self.idle_deaths == _MAX_IDLE_DEATHS:
            raise LeydenError(f"workers die before they run a cell: {death}")
        return death, caught

    def expect(self, cells: Sequence[Cell]) -> None:
        """Wait until the results of cells that were run can be seen."""
        deadline = time.monotonic() + self.workers.patience
        while missing := [cell for cell in cells if cell.digest in self.pending]:
            if time.monotonic() > deadline:
                where = self.results.directory.absolute()
                raise LeydenError(f"the result of {missing[0].name} is not in {where}")
            time.sleep(POLL)
            self.report()

    def report(self) -> None:
        for digest in self.results.digests() & self.pending.keys():
            if (result := self.results.load(self.pending.pop(digest))) is not None:
                self.on_done(result)

    def job(self, cell: Cell) -> Job:
        return Job(
            claim=self.claim,
            cell=cell,
            results=self.results.directory.absolute(),
            directory=Path.cwd(),
            tracked=self.tracked,
        )


class _Loky:
    """Processes on this machine. They stay for a next batch that wants as many."""

    knows_culprit = False
    patience = 0.0

    def __init__(self) -> None:
        self._pool: Any = None
        self._count = 0
        self._early = False

    def start(self, count: int, imports: Sequence[str]) -> None:
        """Start processes that import something; a batch that wants no more will find them."""
        pool = self._started(count)
        self._early = True
        with _deaf_to_interrupts():
            for _ in range(count):
                pool.submit(import_quietly, imports)

    def run(
        self, batch: Sequence[Job], count: int, report: Callable[[], None], tell: Callable[[str], None]
    ) -> str:
        with warnings.catch_warnings():
            # loky replaces a worker whose memory grew, and warns about it: nothing is lost by that.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
            try:
                pool = self._started(count, alone=len(batch) == 1)
                waiting = iter(batch)
                running: set[Future[None]] = set()
                # No more than loky's own queue holds: what waits before it makes loky's thread fail when the
                # pool is stopped.
                while True:
                    room = 2 * count - len(running)
                    with _deaf_to_interrupts():
                        running |= {pool.submit(run_job, job) for job in islice(waiting, room)}
                    if not running:
                        break
                    done, running = wait(running, timeout=POLL, return_when=FIRST_COMPLETED)
                    report()
                    for future in done:
                        future.result()
            except BrokenProcessPool as error:
                self.stop()
                return _how(error)
            return ""

    def stop(self) -> None:
        pool, self._pool, self._early = self._pool, None, False
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=True)

    def _started(self, count: int, *, alone: bool = False) -> Any:
        fits = alone or count == self._count or (self._early and count < self._count)
        if self._pool is None or not fits:
            from joblib.externals.loky import ProcessPoolExecutor

            self.stop()
            self._count = count
            self._pool = ProcessPoolExecutor(
                count, initializer=start_worker, initargs=(os.getpid(), Path.cwd()), env=ONE_THREAD
            )
        return self._pool


_RAY, _LOKY = RayWorkers(), _Loky()
_WORKERS: dict[str, _Workers] = {"loky": _LOKY, "ray": _RAY}


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Let processes that start now, and threads that start them later, not hear Ctrl-C until they ask for it.

    A worker that heard it while it is still importing would print a traceback. This process itself still
    hears it, at the latest when the block ends.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # loky starts it with the first worker, and starting it ends the block.
    resource_tracker.ensure_running()
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _how(error: BrokenProcessPool) -> str:
    """How a worker died: loky's list of exit codes, such as ``SIGKILL(-9)``, or else its first line."""
    text = str(error)
    _, _, codes = text.partition("exit codes of the workers are {")
    return codes.partition("}")[0] or text.partition("\n")[0]


def _crashed(cell: Cell, death: str, results: Results) -> CellResult:
    error = f"The process that ran the cell died twice; the second time: {death}."
    log = results.log(cell)
    if log.exists() and (output := log.read_bytes()[-_OUTPUT_KEPT:].decode(errors="replace").strip()):
        error += f"\nIts last output:\n{output}"
    return CellResult(cell=cell, status="crashed", error=error)
