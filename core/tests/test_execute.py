"""Cells run in parallel and nothing measured is lost, whatever happens to the processes."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from leyden import execute, worker
from leyden.claims import Cell, CellResult
from leyden.errors import LeydenError, UsageError
from leyden.execute import (
    check_executor,
    run_cells,
    start_workers,
    stop_workers,
    termination_as_exit,
)
from leyden.results import Results

PATIENCE = 20
"""Seconds after which something that should happen soon counts as never; the cells would go on for 300."""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory that holds the module of the claims, and no workers at the end."""
    shutil.copy(Path(__file__).with_name("toy_claims.py"), tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    stop_workers()


def toy(*does: str) -> list[Cell]:
    return [Cell(method="Good", seed=seed, options={"do": do}) for seed, do in enumerate(does)]


def run(cells: list[Cell], *, claim: str = "Toy", jobs: int = 2, **arguments: Any) -> dict[int, CellResult]:
    results = Results(Path("results"))
    run_cells(f"toy_claims.{claim}", cells, results=results, jobs=jobs, **arguments)
    return {result.cell.seed: result for result in results.table(cells)}


def starts(cell: Cell) -> int:
    return len(list(Path("attempts").glob(f"{cell.digest}-*")))


def test_parallel_cells_measure_what_one_after_the_other_measures() -> None:
    cells = toy("", "", "", "", "")
    parallel = run(cells, jobs=3)
    shutil.rmtree("results")
    serial = run(cells, jobs=1)
    assert len(parallel) == 5
    assert {seed: result.measured for seed, result in parallel.items()} == {
        seed: result.measured for seed, result in serial.items()
    }


def test_what_a_cell_draws_does_not_depend_on_what_ran_before_it() -> None:
    cells = toy("", "", "")
    forward = run(cells, claim="Draws", jobs=1)
    shutil.rmtree("results")
    backward = run(cells[::-1], claim="Draws", jobs=1)
    assert {seed: result.measured for seed, result in forward.items()} == {
        seed: result.measured for seed, result in backward.items()
    }
    assert len({result.measured["numpy"] for result in forward.values()}) == 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_cells_run_in_as_many_processes_as_asked_and_never_in_this_one(jobs: int) -> None:
    done = run(toy("", "", "", "", ""), claim="WhoRan", jobs=jobs)
    processes = {result.measured["process"] for result in done.values()}
    assert len(processes) == jobs
    assert os.getpid() not in processes


def test_workers_stay_for_the_next_claim() -> None:
    first = run(toy("", "", ""), claim="WhoRan")
    shutil.rmtree("results")
    second = run(toy("", "", ""), claim="WhoRan")
    assert {result.measured["process"] for result in first.values()} == {
        result.measured["process"] for result in second.values()
    }


def test_each_result_is_reported_once() -> None:
    seen: list[CellResult] = []
    cells = toy("", "fail", "die", "")
    run(cells, on_done=seen.append)
    assert sorted(result.cell.seed for result in seen) == [0, 1, 2, 3]


def test_a_cell_that_raises_is_recorded_with_its_traceback_and_the_rest_run() -> None:
    done = run(toy("", "fail", ""))
    assert [done[seed].status for seed in range(3)] == ["done", "failed", "done"]
    assert done[1].error.startswith("Traceback")
    assert done[1].error.endswith("ValueError: told to fail")
    assert 'toy_claims.py", line' in done[1].error
    assert "leyden/worker.py" not in done[1].error
    assert done[1].measured == {}


def test_a_cell_that_calls_exit_is_a_failed_cell() -> None:
    done = run(toy("exit", ""))
    assert done[0].status == "failed"
    assert done[0].error.endswith("SystemExit: 3")
    assert done[1].status == "done"


def test_a_claim_that_returns_no_numbers_fails_by_name() -> None:
    done = run(toy(""), claim="Words")
    assert done[0].status == "failed"
    assert "as 'accuracy'" in done[0].error


def test_a_claim_that_cannot_be_imported_fails_its_cells() -> None:
    done = run(toy("", ""), claim="NoSuchClaim")
    assert [result.status for result in done.values()] == ["failed", "failed"]
    assert "NoSuchClaim" in done[0].error


def test_a_cell_whose_worker_is_killed_runs_once_more_and_the_table_is_complete() -> None:
    told: list[str] = []
    cells = toy("", "die_once", "rest", "rest", "")
    done = run(cells, on_death=told.append)
    assert [done[seed].status for seed in range(5)] == ["done"] * 5
    assert starts(cells[1]) == 2
    assert starts(cells[4]) == 1
    assert len(told) == 1
    assert "SIGKILL" in told[0]
    assert cells[1].name in told[0]


def test_a_cell_that_kills_its_worker_twice_is_recorded_as_crashed_and_its_neighbours_are_not() -> None:
    cells = toy("rest", "die", "rest", "rest", "rest")
    done = run(cells)
    assert [done[seed].status for seed in range(5)] == ["done", "crashed", "done", "done", "done"]
    assert starts(cells[1]) == 2
    assert "SIGKILL" in done[1].error


def test_whatever_a_cell_raises_is_its_own_end_and_the_rest_run() -> None:
    done = run(toy("leave", "interrupt", ""), jobs=2)
    assert [done[seed].status for seed in range(3)] == ["failed", "failed", "done"]
    assert done[0].error.endswith("CancelledError: told to leave")
    assert done[1].error.endswith("KeyboardInterrupt")


def test_a_worker_hears_no_interrupt_of_its_terminal_from_its_first_moment_on() -> None:
    # In a process of its own, because only the first worker of a process starts what goes with it.
    asked = """
import signal
from joblib.externals.loky import ProcessPoolExecutor
from leyden.execute import _deaf_to_interrupts
pool = ProcessPoolExecutor(1)
with _deaf_to_interrupts():
    blocked = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, [])
print(blocked.result() == {signal.SIGINT}, signal.pthread_sigmask(signal.SIG_BLOCK, []) == set())
pool.shutdown()
"""
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout == "True True\n"
    done = run(toy("hear_an_interrupt", ""))
    assert [done[seed].status for seed in range(2)] == ["done", "done"]


def test_two_cells_that_kill_their_workers_are_both_found() -> None:
    done = run(toy("die", "die", "", ""), jobs=2)
    assert [done[seed].status for seed in range(4)] == ["crashed", "crashed", "done", "done"]


def test_a_crash_in_compiled_code_is_recorded_with_the_line_that_caused_it() -> None:
    done = run(toy("segfault", ""), jobs=1)
    assert done[0].status == "crashed"
    assert "SIGSEGV" in done[0].error
    assert "in segfault" in done[0].error
    assert done[1].status == "done"


def test_workers_that_die_before_any_cell_are_an_error_not_an_endless_loop(
    monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    monkeypatch.syspath_prepend(directory)
    import toy_claims

    monkeypatch.setattr(execute, "run_job", toy_claims.die_before_the_cell)
    with pytest.raises(LeydenError, match=r"die before they run a cell: EXIT\(7\)"):
        run(toy("", ""))
    sys.modules.pop("toy_claims")


def test_a_result_that_never_arrives_is_an_error_not_an_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = toy("", "")
    monkeypatch.setattr(Results, "digests", lambda self: set())
    with pytest.raises(LeydenError, match=r"^the result of Good seed 0 is not in /.*results$"):
        run(cells)


def test_stored_cells_are_not_run_again() -> None:
    cells = toy("", "", "")
    run(cells[:2])
    done = run(cells)
    assert len(done) == 3
    assert [starts(cell) for cell in cells] == [1, 1, 1]


def test_a_result_that_cannot_be_stored_is_one_line_that_names_the_cell(directory: Path) -> None:
    (directory / "results").write_text("a file where a folder should be")
    job = worker.Job(
        claim="toy_claims.Toy", cell=toy("")[0], results=directory / "results", directory=directory
    )
    with pytest.raises(LeydenError, match=r"^cannot store the result of Good seed 0: .*results"):
        worker.run_job(job)
    with pytest.raises(LeydenError, match=r"^cannot run the cells of toy_claims.Toy: .*results"):
        run(toy(""))


def test_an_error_in_storing_reaches_the_parent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute.Results, "discard", lambda self, cell: None)
    cell = toy("")[0]
    Results(Path("results")).log(cell).mkdir(parents=True)
    with pytest.raises(LeydenError, match=r"^cannot store the result of Good seed 0: .*Is a directory"):
        run([cell])


def test_what_cells_print_goes_to_their_logs_and_not_to_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    cells = toy("speak", "")
    run(cells)
    captured = capfd.readouterr()
    assert "spoken" not in captured.out + captured.err
    assert Results(Path("results")).log(cells[0]).read_text() == "spoken in Python\nspoken in C\n"


def test_each_worker_computes_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    done = run(toy(""), claim="Threads", jobs=1)
    assert done[0].measured == {"threads": 1.0, "asked": 1.0, "niceness": float(os.nice(0))}


def test_a_cell_can_start_processes_as_a_data_loader_does() -> None:
    done = run(toy("start_processes"))
    assert done[0].status == "done", done[0].error


def test_stopping_leaves_no_process_behind() -> None:
    run(toy("rest", "rest"))
    ours = psutil.Process().children(recursive=True)
    workers = [process for process in ours if "--process-name" in process.cmdline()]
    guards = [process for process in ours if "leyden.guard" in process.cmdline()]
    assert len(workers) == len(guards) == 2
    stop_workers()
    _, alive = psutil.wait_procs(workers + guards, timeout=PATIENCE)
    assert alive == []


PARENT = """
    import sys
    from pathlib import Path
    from leyden.claims import Cell
    from leyden.execute import run_cells, termination_as_exit
    from leyden.results import Results
    cells = [Cell(method="Good", seed=seed, options={"do": sys.argv[1]}) for seed in range(20)]
    with termination_as_exit():
        run_cells("toy_claims.Toy", cells, results=Results(Path("results")), jobs=2)
"""


def start_parent(doing: str) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """Start a process that runs cells; return it and all its descendants once two cells are being run."""
    command = [sys.executable, "-c", textwrap.dedent(PARENT), doing]
    with Path("errors").open("wb") as errors:
        parent = subprocess.Popen(command, stderr=errors, start_new_session=True)
    wait_for(lambda: len(list(Path().glob("attempts/*"))) == 2, parent)
    expected = 2 if doing == "start_a_child" else 0
    wait_for(lambda: len(sleeping_children(parent)) == expected, parent)
    return parent, psutil.Process(parent.pid).children(recursive=True)


def sleeping_children(parent: subprocess.Popen[bytes]) -> list[psutil.Process]:
    everyone = psutil.Process(parent.pid).children(recursive=True)
    return [process for process in everyone if any("time.sleep(300)" in word for word in process.cmdline())]


def wait_for(condition: Any, parent: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert parent.poll() is None, "the parent ended early"
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "doing"),
    [
        (signal.SIGKILL, -9, "sleep"),
        (signal.SIGKILL, -9, "hold_the_interpreter"),
        (signal.SIGKILL, -9, "start_a_child"),
        (signal.SIGTERM, 143, "hold_the_interpreter"),
        (signal.SIGINT, -2, "start_a_child"),
        (signal.SIGHUP, 129, "sleep"),
    ],
)
def test_no_process_outlives_a_parent_that_is_stopped(number: int, status: int, doing: str) -> None:
    parent, descendants = start_parent(doing)
    assert len(descendants) >= 5, "two workers, two guards and the resource tracker"
    parent.send_signal(number)
    assert parent.wait(timeout=PATIENCE) == status
    _, alive = psutil.wait_procs(descendants, timeout=PATIENCE)
    assert alive == []
    assert "Exception in thread" not in Path("errors").read_text()


@pytest.mark.slow
def test_ctrl_c_at_the_terminal_ends_everything() -> None:
    parent, descendants = start_parent("sleep")
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait(timeout=PATIENCE) == -signal.SIGINT
    _, alive = psutil.wait_procs(descendants, timeout=PATIENCE)
    assert alive == []


@pytest.mark.slow
def test_the_children_of_a_killed_worker_end_with_it() -> None:
    parent, _ = start_parent("start_a_child")
    children = sleeping_children(parent)
    victim = children[0].parent()
    assert victim is not None
    victim.kill()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert alive == []
    parent.terminate()
    assert parent.wait(timeout=PATIENCE) == 143


def test_sigterm_is_an_exit_that_can_be_cleaned_up_after() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, termination_as_exit():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_sigterm_ends_the_process_at_once() -> None:
    asked = """
import signal
import time
from leyden.execute import termination_as_exit
with termination_as_exit():
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.raise_signal(signal.SIGTERM)
        print("cleaned up after all")
"""
    ended = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "")


def test_the_workers_become_as_many_as_the_next_call_wants() -> None:
    run(toy("", ""), claim="WhoRan", jobs=1)
    shutil.rmtree("results")
    done = run(toy("", "", "", ""), claim="WhoRan", jobs=2)
    assert len({result.measured["process"] for result in done.values()}) == 2


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_as_exit():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    during: list[object] = []

    def work() -> None:
        with termination_as_exit():
            during.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert during == [before]


def test_an_unknown_executor_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="unknown executor 'lokky'; did you mean 'loky'"):
        check_executor("lokky")


def test_ray_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'leyden\[ray\]'"):
        check_executor("ray")


class Writer:
    """Stands for a run's writer."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, Any]] = []

    def metrics(self, values: dict[str, float], step: int = 0) -> None:
        self.logged.append(("metrics", (step, values)))

    def text(self, content: str, file_name: str) -> None:
        self.logged.append((file_name, content))

    def artifact(self, path: Path, folder: str = "") -> None:
        self.logged.append(("artifact", path.read_text()))

    def end(self, status: str = "FINISHED") -> None:
        self.logged.append(("end", status))


def test_series_are_logged_over_their_steps_and_numbers_at_step_0(tmp_path: Path) -> None:
    writer = Writer()
    cell = Cell(method="A", seed=0)
    measured = {"accuracy": 0.5, "loss": [3.0, 2.0], "nothing": math.nan}
    worker.track(writer, CellResult(cell=cell, status="done", measured=measured), tmp_path / "none")  # type: ignore[arg-type]
    (_, (zero, first)), second, end = writer.logged
    assert (zero, first["accuracy"], first["loss"], math.isnan(first["nothing"])) == (0, 0.5, 3.0, True)
    assert second == ("metrics", (1, {"loss": 2.0}))
    assert end == ("end", "FINISHED")


def test_the_run_of_a_failed_cell_keeps_its_traceback_and_what_it_printed(tmp_path: Path) -> None:
    writer = Writer()
    (tmp_path / "log").write_text("about to fail")
    failed = CellResult(cell=Cell(method="A", seed=0), status="failed", error="Traceback ...")
    worker.track(writer, failed, tmp_path / "log")  # type: ignore[arg-type]
    assert writer.logged == [("error.txt", "Traceback ..."), ("artifact", "about to fail"), ("end", "FAILED")]


def test_the_parameters_of_a_run_tell_the_cell_apart() -> None:
    cell = Cell(method="A", seed=3, setting={"M": 1.0}, options={"M": 2, "epochs": 5})
    assert worker.cell_params(cell) == {
        "method": "A",
        "seed": 3,
        "scale": "laptop",
        "setting.M": 1.0,
        "options.M": 2,
        "options.epochs": 5,
    }


def test_workers_that_were_started_early_run_the_cells_whatever_they_imported(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (directory / "loud.py").write_text("print('loud')\nraise RuntimeError('broken')\n")
    start_workers("loky", 2, ["json", "no_such_module", "loud"])
    pool = execute._LOKY._pool
    for cells, jobs, same in ((toy(""), 2, True), (toy("", "", ""), 2, True), (toy("", "", ""), 3, False)):
        assert {result.status for result in run(cells, jobs=jobs).values()} == {"done"}
        assert (execute._LOKY._pool is pool) is same  # and not one that begins to import now
        shutil.rmtree("results")
    assert "loud" not in "".join(capfd.readouterr())


def test_workers_are_not_started_early_for_ray() -> None:
    start_workers("ray", 2, [])
    assert execute._LOKY._pool is None
