"""Tracking with its helper process: what happens when processes, disks and servers fail."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from empty_store import empty_database
from leyden.errors import TrackingError
from leyden.settings import TrackingSettings
from leyden.spool import ProcessIdentity, RunWriter, SessionFile, open_run
from leyden.tracking import Session, Store, _Helper, resolve_store

pytestmark = pytest.mark.slow

SERVER = Path(__file__).with_name("tracking_server.py")
PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path
from leyden.tracking import Session, open_run, resolve_store

def terminated(number, frame):
    raise SystemExit(143)

def log_for_ever(run):
    step = 0
    while True:
        run.metrics({"loss": step, "accuracy": -step}, step=step)
        print(step, flush=True)
        step += 1
        time.sleep(0.001)

signal.signal(signal.SIGTERM, terminated)
"""


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A working directory with a store in it."""
    shutil.copy(empty_database(), tmp_path / "leyden.db")
    return tmp_path


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program in a directory, in a process group of its own; what is left of it is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, directory: Path, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + program, *map(str, arguments)],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextlib.contextmanager
def tmpfs(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Fill a disk, but for some bytes; returns the file that does it."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    if leave:
        os.truncate(filler, filler.stat().st_size - leave)
    return filler


def local(directory: Path) -> Store:
    return resolve_store(TrackingSettings(), directory)


def runs(uri: str) -> dict[str, Any]:
    """The runs in a store by name."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, max_results=1000)
    assert len({run.info.run_name for run in found}) == len(found)
    return {run.info.run_name: run for run in found}


def steps(uri: str, name: str, metric: str) -> list[int]:
    from mlflow import MlflowClient

    history = MlflowClient(tracking_uri=uri).get_metric_history(runs(uri)[name].info.run_id, metric)
    return sorted(value.step for value in history)


def recover(store: Store) -> None:
    Session.open(store).close()


def log_for_ever(run: RunWriter, logged: list[int]) -> None:
    for step in itertools.count():
        run.metrics({"loss": step}, step=step)
        logged.append(step)


def printed(process: subprocess.Popen[str], count: int) -> None:
    """Wait until a program printed so many numbers."""
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(count):
        assert process.stdout.readline(), process.stderr.read()


def last_printed(process: subprocess.Popen[str], before: int) -> int:
    """The last number that a program printed whole until it ended, having printed so many before."""
    assert process.stdout is not None
    return before + process.stdout.read().count("\n") - 1


def helpers(directory: Path) -> list[psutil.Process]:
    """The helper processes that serve sessions of a directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if f"leyden.shipper {directory}/" in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def assert_gone(processes: list[psutil.Process], within: float) -> None:
    deadline = time.monotonic() + within
    while (
        alive := [process for process in processes if runs_still(process)]
    ) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive


def runs_still(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended and that init has not noticed yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_sound(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# --- processes


def test_nothing_is_lost_and_the_training_process_imports_no_mlflow(
    directory: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    program = start(
        """
with Session.open(resolve_store()) as session, session.run("fast", experiment="e") as run:
    for step in range(2000):
        run.metrics({f"m{i}": step + i for i in range(5)}, step=step)
heavy = {"mlflow", "torch", "lightning", "pandas"} & set(sys.modules)
print(heavy or "light")
""",
        directory,
    )
    out, err = program.communicate(timeout=120)
    assert (out.strip(), program.returncode) == ("light", 0), err
    uri = local(directory).uri
    assert runs(uri)["fast"].info.status == "FINISHED"
    for index in range(5):
        assert steps(uri, "fast", f"m{index}") == list(range(2000))
    assert not list((directory / ".leyden" / "tracking").glob("*/"))
    assert not helpers(directory)


def test_after_kill_9_the_next_start_ships_all_that_was_logged(
    directory: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    program = start(
        """
session = Session.open(resolve_store())
parent = session.run("parent", experiment="e")
log_for_ever(session.run("child", experiment="e", parent=parent.key))
""",
        directory,
    )
    printed(program, 1500)
    helper = helpers(directory)
    assert len(helper) == 1
    program.kill()
    assert_gone(helper, within=2.0)
    logged = last_printed(program, 1500)
    store = local(directory)
    recover(store)
    found = steps(store.uri, "child", "loss")
    assert found == list(range(len(found)))
    assert len(found) > logged
    assert {run.info.status for run in runs(store.uri).values()} == {"KILLED"}
    assert not list((directory / ".leyden" / "tracking").glob("*/"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_as_killed_and_leaves_no_process(
    number: signal.Signals, directory: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    program = start(
        """
with Session.open(resolve_store()) as session, session.run("run", experiment="e") as run:
    log_for_ever(run)
""",
        directory,
    )
    printed(program, 300)
    helper = helpers(directory)
    for process in (
        psutil.Process(program.pid),
        *helper,
    ):  # as a terminal or a scheduler does: to all of them
        process.send_signal(number)
    logged = last_printed(program, 300)
    program.wait(timeout=60)
    assert_gone(helper, within=2.0)
    uri = local(directory).uri
    assert runs(uri)["run"].info.status == "KILLED"
    assert len(steps(uri, "run", "loss")) > logged


def test_a_run_ends_as_failed_when_its_code_raises(
    directory: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    program = start(
        """
with Session.open(resolve_store()) as session, session.run("run", experiment="e"):
    session.run("forgotten", experiment="e")
    raise ArithmeticError("loss is NaN")
""",
        directory,
    )
    _, err = program.communicate(timeout=120)
    assert "ArithmeticError: loss is NaN" in err
    statuses = {name: run.info.status for name, run in runs(local(directory).uri).items()}
    assert statuses == {"run": "FAILED", "forgotten": "FAILED"}


def test_a_helper_that_is_killed_is_replaced_and_nothing_is_lost(directory: Path) -> None:
    store = local(directory)
    session = Session.open(store)
    run = session.run("run", experiment="e")
    for step in range(3000):
        run.metrics({"loss": step}, step=step)
        if step == 1500:
            run.run_id()
            (helper,) = helpers(directory)
            helper.kill()
            helper.wait(5)
            deadline = time.monotonic() + 10
            while not helpers(directory) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert helpers(directory), "there is another one already while the session is open"
    assert session.close()
    assert steps(store.uri, "run", "loss") == list(range(3000))
    assert runs(store.uri)["run"].info.status == "FINISHED"
    assert not helpers(directory)


def test_a_session_whose_folder_was_deleted_closes_in_silence(directory: Path) -> None:
    session = Session.open(local(directory))
    session.run("run", experiment="e").run_id()
    shutil.rmtree(session.directory)
    (helper,) = helpers(directory)
    helper.kill()
    helper.wait(5)
    session.close("FAILED")
    assert not helpers(directory)


def test_a_worker_that_is_killed_is_marked_while_the_session_lives(
    directory: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    store = local(directory)
    with Session.open(store) as session:
        parent = session.run("parent", experiment="e")
        worker = start(
            "log_for_ever(open_run(Path(sys.argv[1]), 'cell', experiment='e', parent=sys.argv[2]))",
            directory,
            session.directory,
            parent.key,
        )
        printed(worker, 100)
        worker.kill()
        logged = last_printed(worker, 100)
        worker.wait()
        wait_until(lambda: runs(store.uri).get("cell") and runs(store.uri)["cell"].info.status == "KILLED")
        parent.end()
    found = runs(store.uri)
    assert found["parent"].info.status == "FINISHED"
    assert found["cell"].data.tags["mlflow.parentRunId"] == found["parent"].info.run_id
    assert len(steps(store.uri, "cell", "loss")) > logged


def wait_until(condition: Callable[[], object], patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_four_programs_that_start_at_once_make_one_store_and_lose_nothing(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    program = """
with Session.open(resolve_store()) as session, session.run(sys.argv[1], experiment="e") as run:
    for step in range(1000):
        run.metrics({"loss": step, "accuracy": step}, step=step)
"""
    started = [start(program, tmp_path, f"run-{index}") for index in range(4)]
    for process in started:
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said
        assert "locked" not in said
    uri = local(tmp_path).uri
    assert {run.info.status for run in runs(uri).values()} == {"FINISHED"}
    for index in range(4):
        assert steps(uri, f"run-{index}", "loss") == list(range(1000))
    assert_sound(tmp_path / "leyden.db")


def test_two_starts_at_once_recover_a_killed_session_once(
    directory: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    program = start(
        "log_for_ever(Session.open(resolve_store()).run('run', experiment='e'))",
        directory,
    )
    printed(program, 50)
    for helper in helpers(directory):
        helper.kill()  # so that it cannot have shipped anything to the end
    program.kill()
    logged = last_printed(program, 50)
    program.wait()
    opening = [start("Session.open(resolve_store()).close()", directory) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in opening]
    assert "".join(said).count("1 run(s) of an interrupted session were completed") == 1
    found = steps(local(directory).uri, "run", "loss")
    assert len(found) == len(set(found)) > logged
    assert runs(local(directory).uri)["run"].info.status == "KILLED"


# --- disks


def test_a_read_only_directory_is_said_in_one_line(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "4m") as disk:
        if subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True).returncode:
            pytest.skip("mounting a read-only disk is not permitted here")
        with pytest.raises(TrackingError, match="Read-only file system") as caught:
            Session.open(local(disk))
        assert str(disk) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_store_in_a_read_only_directory_is_said_in_one_line(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "4m") as disk:
        if subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True).returncode:
            pytest.skip("mounting a read-only disk is not permitted here")
        store = resolve_store(TrackingSettings(uri=f"sqlite:///{disk}/leyden.db"), tmp_path)
        with pytest.raises(TrackingError, match=f"cannot write in {disk}: Read-only file system"):
            Session.open(store)
        assert not list((tmp_path / ".leyden" / "tracking").glob("*/"))


def test_a_disk_too_small_for_a_new_store_leaves_no_half_store(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "400k") as disk:
        with pytest.raises(TrackingError, match="the disk is full") as caught:
            Session.open(local(disk))
        assert "\n" not in str(caught.value)
        assert not list(disk.glob("*.db*new*"))
        assert not (disk / "leyden.db").exists()


def test_a_disk_that_is_full_at_the_start_is_said_in_one_line(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "4m") as disk:
        shutil.copy(empty_database(), disk / "leyden.db")
        fill(disk)
        with pytest.raises(TrackingError, match="No space left on device") as caught:
            Session.open(local(disk))
        assert "\n" not in str(caught.value)
        assert_sound(disk / "leyden.db")


def test_a_disk_that_fills_up_stops_logging_and_the_next_start_has_all_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tmpfs(tmp_path / "disk", "6m") as disk:
        shutil.copy(empty_database(), disk / "leyden.db")
        store = local(disk)
        session = Session.open(store)
        run = session.run("run", experiment="e")
        run.run_id()
        filler = fill(disk, leave=8 * 4096)
        logged: list[int] = []
        with pytest.raises(
            TrackingError, match=r"cannot write .*: (No space left on device|the disk is full)"
        ):
            log_for_ever(run, logged)
        assert len(logged) > 100
        assert session.close("FAILED") is False
        assert "the disk is full" in caplog.text
        assert_sound(disk / "leyden.db")
        filler.unlink()
        recover(store)
        stored = steps(store.uri, "run", "loss")
        assert stored[: len(logged)] == logged
        assert len(stored) <= len(logged) + 1  # the call that said so may have been written
        assert runs(store.uri)["run"].info.status == "FAILED"


def test_a_file_that_is_no_store_is_said_before_anything_is_logged(tmp_path: Path) -> None:
    (tmp_path / "leyden.db").write_text("not a database, though it is called one")
    with pytest.raises(TrackingError, match=r"leyden.db is not an SQLite database; move it away"):
        Session.open(local(tmp_path))
    assert not list((tmp_path / ".leyden" / "tracking").glob("*/"))


# --- servers


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def remote(directory: Path, port: int) -> Store:
    return resolve_store(TrackingSettings(uri=f"http://127.0.0.1:{port}"), directory)


@contextlib.contextmanager
def serving(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    with (folder / "server.log").open("a") as log:
        command = [sys.executable, str(SERVER), str(folder), str(port)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == "serving\n", (folder / "server.log").read_text()
        yield server
    finally:
        server.kill()
        server.communicate()


def test_a_server_that_refuses_is_said_before_training(tmp_path: Path, port: int) -> None:
    words = f"the tracking server http://127.0.0.1:{port} does not answer: Connection refused"
    with pytest.raises(TrackingError) as caught:
        Session.open(remote(tmp_path, port))
    assert str(caught.value) == words
    assert not list((tmp_path / ".leyden" / "tracking").glob("*/"))
    assert not helpers(tmp_path)


def test_a_server_that_is_silent_is_said_before_training(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(TrackingError, match=r"does not answer: .*timed out"):
            Session.open(remote(tmp_path, silent.getsockname()[1]))


def test_a_server_of_another_kind_is_said_before_training(tmp_path: Path) -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(TrackingError, match="cannot be used") as caught:
            Session.open(remote(tmp_path, server.server_port))
        assert "\n" not in str(caught.value)
    finally:
        server.shutdown()
        server.server_close()


def test_what_a_server_misses_when_it_dies_ships_at_the_next_start(
    tmp_path: Path, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    import math

    store = remote(tmp_path, port)
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server", port) as server:
        session = Session.open(store)
        run = session.run("run", experiment="e", params={"seed": 1})
        run.metrics({"loss": 0, "nan": math.nan, "up": math.inf}, step=0)
        run.run_id()
        server.kill()
        server.wait()
        for step in range(1, 1500):
            run.metrics({"loss": step}, step=step)
        run.text("seed: 1", "config/resolved.yaml")
        run.end()
        assert session.close() is False
    told = [record.getMessage() for record in caplog.records]
    assert any("Connection refused" in line and "ship at the next start" in line for line in told)
    with serving(tmp_path / "server", port):
        recover(store)
        assert steps(store.uri, "run", "loss") == list(range(1500))
        found = runs(store.uri)["run"]
        assert found.info.status == "FINISHED"
        assert found.data.params == {"seed": "1"}
        assert math.isnan(found.data.metrics["nan"])
    assert list((tmp_path / "server" / "artifacts").rglob("resolved.yaml"))
    assert not list((tmp_path / ".leyden" / "tracking").glob("*/"))


def test_what_waits_for_a_dead_server_does_not_keep_another_store_from_working(
    directory: Path, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    left = directory / ".leyden" / "tracking" / "20200101-000000-aaaaaaaa"
    gone = ProcessIdentity(2**22 - 1, 0.0, socket.gethostname())
    SessionFile(f"http://127.0.0.1:{port}", None, gone).save(left)
    writer = open_run(left, "waiting", experiment="e")
    spool = left / f"{writer.key}.jsonl"
    record = json.loads(spool.read_text())
    spool.write_text(json.dumps({**record, "process": {**record["process"], "pid": gone.pid}}) + "\n")
    store = local(directory)
    with Session.open(store) as session, session.run("run", experiment="e") as run:
        run.metrics({"loss": 1.0})
    assert runs(store.uri).keys() == {"run"}
    assert spool.exists()
    assert "what an earlier session logged stays in" in caplog.text


def test_a_run_writer_waits_for_its_identity_no_longer_than_asked(directory: Path) -> None:
    writer = RunWriter(directory, "0" * 32, "run", "e")
    with pytest.raises(TrackingError, match=r"run 'run' was not created in the store within 0\.1 s"):
        writer.run_id(timeout=0.1)


@pytest.mark.parametrize(("uri", "patience"), [("postgresql://host/db", 60.0), ("http://host", 5.0)])
def test_a_database_has_time_to_make_its_tables(uri: str, patience: float) -> None:
    helper = object.__new__(_Helper)
    helper._store, helper._events = Store(uri, None, Path()), {"probing": {}}
    waited: list[float | None] = []

    def wait_for(events: set[str], seconds: float | None) -> None:
        waited.append(seconds)
        helper._events["ready"] = {}

    helper._wait_for = wait_for  # type: ignore[method-assign]
    helper.wait_ready()
    assert waited[1] is not None
    assert patience <= waited[1] < 2 * patience
