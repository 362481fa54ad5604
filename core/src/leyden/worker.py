"""What happens in the process that runs a cell.

A cell's result is stored before `run_job` returns. What the cell prints goes to a file beside the result: the
terminal belongs to the progress bar, and the last words of a process that crashes are kept.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.claims import Cell, CellResult, Claim, Measured
from leyden.errors import LeydenError
from leyden.manager import load_object
from leyden.results import Results, measured_from

if TYPE_CHECKING:
    from leyden.tracking import RunWriter

ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)
"""Environment of a worker: cells run side by side, so each computes on one thread."""


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Where the runs of cells are tracked.

    Attributes:
        session: directory of the tracking session's spool.
        parent: key of the claim's run.
        experiment: MLflow experiment.
    """

    session: Path
    parent: str
    experiment: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a worker needs to run one cell.

    Attributes:
        claim: dotted path of the claim's class.
        cell: the cell.
        results: directory that takes the result.
        directory: the user's working directory; the worker works in it and finds its modules.
        tracked: where the cell's run is tracked; None for nowhere.
    """

    claim: str
    cell: Cell
    results: Path
    directory: Path
    tracked: Tracked | None = None


def start_worker(parent: int, directory: Path) -> None:
    """Prepare a process that runs jobs.

    Ctrl-C is the parent's to hear, so the worker ignores it and leads a process group of its own; a guard
    ends the group once the parent is gone. loky makes itself the way to start processes in its workers, which
    the workers of a DataLoader do not survive: the platform's way is restored.

    Args:
        parent: the process that started this one.
        directory: the user's working directory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # it starts deaf, so that nothing is heard before the line above
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    find_modules_in(directory)
    multiprocessing.set_start_method(None, force=True)
    if os.name == "posix":
        os.setpgid(0, 0)
        subprocess.Popen(
            [sys.executable, "-P", "-m", "leyden.guard", str(os.getpid()), str(parent)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def find_modules_in(directory: Path) -> None:
    """Put a directory first on ``sys.path``, as ``python -m`` does and a console script does not."""
    if sys.path[:1] != [str(directory)]:
        sys.path.insert(0, str(directory))


def import_quietly(modules: Sequence[str]) -> None:
    """Import what cells will need; what fails or is said here, they will meet or say again."""
    with _output_to(Path(os.devnull)), contextlib.suppress(Exception):
        _import(modules)


def run_job(job: Job) -> None:
    """Run one cell in this process and store its result; a cell that raises is a result, too.

    Raises:
        LeydenError: if the result cannot be stored.
    """
    results = Results(job.results)
    try:
        results.start(job.cell)
        with _output_to(results.log(job.cell)):
            _work_in(job.directory)
            run = open_cell_run(job.tracked, job.cell) if job.tracked else None
            result = _measure(job, run)
        if run is not None:
            track(run, result, results.log(job.cell))
        results.save(result)
        if not results.log(job.cell).stat().st_size:
            results.log(job.cell).unlink()
    except OSError as error:
        raise LeydenError(f"cannot store the result of {job.cell.name}: {error}") from error


def open_cell_run(tracked: Tracked, cell: Cell, *, tags: Mapping[str, str] | None = None) -> RunWriter:
    """Open the run of a cell, a child of its claim's run."""
    from leyden.tracking import open_run

    return open_run(
        tracked.session,
        cell.name,
        experiment=tracked.experiment,
        parent=tracked.parent,
        tags={"leyden.cell": cell.digest, **(tags or {})},
        params=cell_params(cell),
    )


def track(run: RunWriter, result: CellResult, log: Path) -> None:
    """Log what a cell measured to its run, and end the run.

    Args:
        run: the cell's run.
        result: its numbers are logged at step 0, each of its series at steps 0, 1, ...
        log: what the cell printed; kept with the run of a cell that failed.
    """
    for step, values in _by_step(result.measured):
        run.metrics(values, step=step)
    if result.status != "done":
        run.text(result.error, "error.txt")
        if log.exists() and log.stat().st_size:
            run.artifact(log)
    run.end("FINISHED" if result.status == "done" else "FAILED")


def cell_params(cell: Cell) -> dict[str, Any]:
    """The parameters of a cell's run."""
    return {
        "method": cell.method,
        "seed": cell.seed,
        **({"scale": cell.scale} if cell.scale else {}),
        **{f"setting.{key}": value for key, value in cell.setting.items()},
        **{f"options.{key}": value for key, value in cell.options.items()},
    }


def _work_in(directory: Path) -> None:
    """Work where the user does; on another machine of a cluster that directory may not exist."""
    find_modules_in(directory)
    if directory.is_dir():
        os.chdir(directory)


def _measure(job: Job, run: RunWriter | None) -> CellResult:
    started = time.perf_counter()
    measured: Measured = {}
    error = ""
    try:
        claim: Claim = load_object(job.claim)()
        _import(claim.imports)
        _use_one_thread()
        _seed(job.cell.seed)
        started = time.perf_counter()
        with _tracked_by(run):
            measured = measured_from(claim.run(job.cell))
    except (
        BaseException
    ) as raised:  # whatever a cell raises is its own end; this process is stopped by a signal
        below = raised.__traceback__.tb_next if raised.__traceback__ else None
        error = "".join(traceback.format_exception(type(raised), raised, below)).strip()
    return CellResult(
        cell=job.cell,
        status="failed" if error else "done",
        measured=measured,
        seconds=time.perf_counter() - started,
        error=error,
    )


def _import(modules: Sequence[str]) -> None:
    """Import what the claim names; one that is missing is the cell's to complain about."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def _use_one_thread() -> None:
    os.environ.update(ONE_THREAD)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _seed(seed: int) -> None:
    """Start the global generators anew, so that a cell draws the same numbers whatever ran here before it."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _tracked_by(run: RunWriter | None) -> contextlib.AbstractContextManager[Any]:
    if run is None:
        return contextlib.nullcontext()
    from leyden.tracking import use_run

    return use_run(run)


def _by_step(measured: Measured) -> list[tuple[int, dict[str, float]]]:
    steps: dict[int, dict[str, float]] = {}
    for name, value in measured.items():
        for step, number in enumerate(value if isinstance(value, Sequence) else [value]):
            steps.setdefault(step, {})[name] = number
    return sorted(steps.items())


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send standard output and error to a file, also what compiled code writes."""
    _flush()
    kept = os.dup(1), os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        _flush()
        for target, original in zip((1, 2), kept, strict=True):
            os.dup2(original, target)
            os.close(original)
        os.close(file)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
