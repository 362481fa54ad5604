"""Cells that run on Ray keep the promises that those on this machine's own processes keep.

Most tests share one Ray of two workers; those that stop something start their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from leyden import cluster, execute
from leyden.claims import Cell, CellResult
from leyden.cluster import Origin, await_greeting, check_code, cluster_address
from leyden.errors import LeydenError, UsageError
from leyden.execute import default_jobs, run_cells, stop_workers
from leyden.results import Results

PATIENCE = 60
"""Seconds after which something that should happen soon counts as never; the cells would go on for 300."""
TRAINING = '''
"""A claim that trains; tests write it into a working directory."""

import torch
from toy_claims import Toy


class Training(Toy):
    name = "training"
    imports = ("torch",)

    def run(self, cell):
        model = torch.nn.Sequential(torch.nn.Linear(20, 200), torch.nn.Tanh(), torch.nn.Linear(200, 1))
        optimizer = torch.optim.Adam(model.parameters())
        inputs, targets = torch.randn(512, 20), torch.randn(512, 1)
        losses = []
        for _ in range(20):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return {"accuracy": losses[-1], "loss": losses}
'''

pytestmark = pytest.mark.slow
pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def surroundings() -> Iterator[None]:
    """No cluster is named, Ray's token lies in a home of its own, and two threads are asked for."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("HOME", home)
        patch.setenv("OMP_NUM_THREADS", "2")
        yield
        stop_workers()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that holds the modules of the claims."""
    shutil.copy(Path(__file__).with_name("toy_claims.py"), tmp_path)
    (tmp_path / "training_claims.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def toy(*does: str) -> list[Cell]:
    return [Cell(method="Good", seed=seed, options={"do": do}) for seed, do in enumerate(does)]


def run(cells: list[Cell], claim: str = "toy_claims.Toy", **arguments: Any) -> dict[int, CellResult]:
    results = Results(Path("results"))
    run_cells(claim, cells, results=results, **{"jobs": 2, "executor": "ray", **arguments})
    return {result.cell.seed: result for result in results.table(cells)}


def starts(cell: Cell) -> int:
    return len(list(Path("attempts").glob(f"{cell.digest}-*")))


# On one Ray of two workers.


@pytest.mark.parametrize("claim", ["training_claims.Training", "toy_claims.Draws"])
def test_ray_measures_bit_for_bit_what_loky_measures(claim: str) -> None:
    cells = toy("", "", "")
    on_ray = run(cells, claim)
    shutil.rmtree("results")
    on_loky = run(cells, claim, executor="loky")
    assert [result.status for result in on_ray.values()] == ["done"] * 3
    assert [on_ray[seed].measured for seed in range(3)] == [on_loky[seed].measured for seed in range(3)]


def test_each_worker_computes_on_one_thread_and_has_its_turn_like_any_process() -> None:
    done = run(toy(""), "toy_claims.Threads")
    assert done[0].measured == {"threads": 1.0, "asked": 1.0, "niceness": float(os.nice(0))}


def test_a_ray_of_our_own_listens_on_the_loopback_alone_and_reports_nothing() -> None:
    run(toy(""))
    family = psutil.Process().children(recursive=True)
    addresses = {
        connection.laddr.ip
        for process in family
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    (raylet,) = [process for process in family if process.name() == "raylet"]
    assert raylet.environ()["RAY_USAGE_STATS_ENABLED"] == "0"


def test_cells_run_in_two_processes_that_stay_for_the_next_claim() -> None:
    first = run(toy("", "", "", ""), "toy_claims.WhoRan")
    shutil.rmtree("results")
    second = run(toy("", "", "", ""), "toy_claims.WhoRan")
    processes = {result.measured["process"] for result in (*first.values(), *second.values())}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_a_free_worker_takes_the_next_cell_whoever_is_busy() -> None:
    cells = [Cell(method="Good", seed=0, options={"do": "rest_until_all"}), *toy("", "", "", "")[1:]]
    module = Path("toy_claims.py")
    waits = "while len(list(Path('attempts').iterdir())) < 4:\n            time.sleep(0.05)"
    module.write_text(
        module.read_text().replace(
            "    def sleep(self",
            f"    def rest_until_all(self, cell):\n        {waits}\n\n    def sleep(self",
        )
    )
    Path("fresh_claims.py").write_text(module.read_text())
    assert [result.status for result in run(cells, "fresh_claims.Toy").values()] == ["done"] * 4


def test_a_worker_killed_in_mid_cell_costs_that_cell_and_not_its_neighbours() -> None:
    told: list[str] = []
    cells = toy("die_once", "rest", "rest", "")
    done = run(cells, on_death=told.append)
    assert [done[seed].status for seed in range(4)] == ["done"] * 4
    assert [starts(cell) for cell in cells] == [2, 1, 1, 1]
    (line,) = [line for line in told if "died" in line]
    assert re.fullmatch(r"a worker died \(\w+\); once more: Good seed 0", line)


def test_a_cell_that_kills_its_worker_twice_is_recorded_as_crashed_and_the_rest_is_measured() -> None:
    cells = toy("die", "rest", "segfault", "fail", "exit", "")
    seen: list[CellResult] = []
    done = run(cells, on_done=seen.append)
    statuses = [done[seed].status for seed in range(6)]
    assert statuses == ["crashed", "done", "crashed", "failed", "failed", "done"]
    assert [starts(cell) for cell in cells] == [2, 1, 2, 1, 1, 1]
    assert "died twice" in done[0].error
    assert "in segfault" in done[2].error
    assert done[3].error.endswith("ValueError: told to fail")
    assert sorted(result.cell.seed for result in seen) == list(range(6))


def test_the_children_of_a_killed_worker_end_with_it() -> None:
    victims: list[psutil.Process] = []

    def kill_when_started() -> None:
        while not (children := sleepers(psutil.Process())):
            time.sleep(0.1)
        victims.extend(children)
        parent = children[0].parent()
        assert parent is not None
        parent.kill()

    thread = threading.Thread(target=kill_when_started, daemon=True)
    thread.start()
    module = Path("toy_claims.py").read_text()
    once = (
        "    def start_a_child(self, cell: Cell) -> None:\n        if attempts(cell) > 1:\n            return"
    )
    Path("child_claims.py").write_text(
        module.replace("    def start_a_child(self, cell: Cell) -> None:", once)
    )
    done = run(toy("start_a_child"), "child_claims.Toy")
    thread.join(PATIENCE)
    assert done[0].status == "done"
    _, alive = psutil.wait_procs(victims, timeout=PATIENCE)
    assert victims
    assert alive == []


def test_a_result_that_cannot_be_stored_is_one_line_that_names_the_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execute.Results, "discard", lambda self, cell: None)
    cell = toy("")[0]
    Results(Path("results")).log(cell).mkdir(parents=True)
    with pytest.raises(LeydenError, match=r"^cannot store the result of Good seed 0: .*Is a directory"):
        run([cell])


def sleepers(ancestor: psutil.Process) -> list[psutil.Process]:
    found = []
    for process in ancestor.children(recursive=True):
        try:
            if any("time.sleep(300)" in word for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


# What is no cluster.


@pytest.mark.parametrize("address", ["", "local"])
def test_an_address_that_names_no_cluster_is_none(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert cluster_address() is None


@pytest.mark.parametrize(
    "address", ["ray://head:10001", "head", "head:", "head:66000", ":6379", "http://a:1"]
)
def test_an_address_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UsageError, match=rf"^RAY_ADDRESS '{re.escape(address)}': expected HOST:PORT"):
        default_jobs("ray")


def test_a_cluster_that_is_not_there_or_silent_or_something_else_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "PROBE_SECONDS", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(LeydenError, match=f"{address} does not answer: Connection refused"):
            await_greeting(address)
        listener.listen()
        with pytest.raises(LeydenError, match=f"{address} does not answer: nothing came within 0.5 s"):
            await_greeting(address)
        listener.accept()[0].close()

        def speak() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        with pytest.raises(LeydenError, match=f"what answers at {address} is no Ray cluster"):
            await_greeting(address)
        thread.join(PATIENCE)


def test_other_code_on_another_machine_is_told_and_the_same_code_is_not(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(directory)
    same = cluster._code_of("toy_claims.Toy")
    check_code("toy_claims.Toy", Origin(host="elsewhere", code=same))
    check_code("toy_claims.Toy", Origin(host=socket.gethostname(), code="other"))
    with pytest.raises(
        LeydenError, match=rf"has other code of toy_claims\.Toy than elsewhere \(version {same}"
    ):
        check_code("toy_claims.Toy", Origin(host="elsewhere", code="other"))


# In processes of their own.

PARENT = """
    import sys
    from pathlib import Path
    from leyden.claims import Cell
    from leyden.errors import LeydenError
    from leyden.execute import run_cells, stop_workers, termination_as_exit
    from leyden.results import Results
    cells = [Cell(method="Good", seed=seed, options={"do": do}) for seed, do in enumerate(sys.argv[1:])]
    with termination_as_exit():
        try:
            run_cells(
                "toy_claims.Toy", cells, results=Results(Path("results")), jobs=2, executor="ray",
                on_death=lambda line: print(line, flush=True),
            )
        except LeydenError as error:
            sys.exit(f"told: {error}")
    stop_workers()
"""


def start_parent(*doing: str, wait: int = 2, **environment: str) -> subprocess.Popen[str]:
    """Start a process that runs cells, and wait until so many are being run."""
    shutil.rmtree("attempts", ignore_errors=True)
    with Path("output").open("w") as told:
        parent = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PARENT), *doing],
            env={**os.environ, **environment},
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
    wait_for(lambda: len(list(Path().glob("attempts/*"))) >= wait, parent)
    children = doing.count("start_a_child")
    wait_for(lambda: len(sleepers(psutil.Process())) >= min(children, wait), parent)
    return parent


def output() -> str:
    return Path("output").read_text()


def wait_for(condition: Callable[[], bool], parent: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert parent.poll() is None, f"it ended early: {output()}"
        assert time.monotonic() < deadline, f"it never happened: {output()}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "status", "doing"),
    [
        (signal.SIGINT, -2, "start_a_child"),
        (signal.SIGTERM, 143, "hold_the_interpreter"),
        (signal.SIGKILL, -9, "start_a_child"),
    ],
)
def test_no_process_of_a_ray_of_our_own_outlives_its_parent(number: int, status: int, doing: str) -> None:
    parent = start_parent(doing, doing)
    family = psutil.Process(parent.pid).children(recursive=True)
    assert any("raylet" in process.name() for process in family)
    os.killpg(parent.pid, number) if number == signal.SIGINT else parent.send_signal(number)
    assert parent.wait(timeout=PATIENCE) == status, output()
    if number == signal.SIGKILL:  # these two take up to a minute to notice that they are alone
        family = [each for each in family if each.is_running() and "Agent" not in each.name()]
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert alive == []
    assert "(raylet)" not in output()


def test_after_kill_9_resume_runs_on_ray_what_is_missing_and_nothing_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = directory / "site" / "toy-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[leyden]\ntoy = toy_plugin\n")
    (directory / "site" / "toy_plugin.py").write_text(
        "from leyden.hookspecs import hookimpl\nLEYDEN_API = 1\n"
        "@hookimpl\ndef leyden_claims():\n    return ['toy_claims.Toy']\n"
    )
    Path("plugins.toml").write_text("[tracking]\nenabled = false\n\n[execute]\nexecutor = 'ray'\njobs = 2\n")
    Path("tell").write_text("2")
    monkeypatch.setenv("PYTHONPATH", str(directory / "site"))
    monkeypatch.setenv("TOY_ALL", "rest_until_told")
    command = [sys.executable, "-P", "-m", "leyden", "reproduce", "toy/toy", "--scale", "smoke"]
    with Path("output").open("w") as told:
        killed = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
    wait_for(lambda: len(list(Path().glob("attempts/*"))) == 4, killed)
    wait_for(lambda: len(list(Path().glob(".leyden/results/*/*/*/*/*.json"))) == 2, killed)
    family = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.wait()
    psutil.wait_procs([each for each in family if "Agent" not in each.name()], timeout=PATIENCE)
    Path("tell").write_text("99")
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "2 of them measured by this code before" in resumed.stdout
    assert "Ray runs on this machine, 2 workers" in resumed.stdout
    assert len(list(Path().glob("attempts/*"))) == 4 + 2


@contextmanager
def machine(*arguments: str, inside: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """A machine of a cluster: ``ray start``, ended with all that it started."""
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            [
                *inside,
                str(Path(sys.executable).with_name("ray")),
                "start",
                "--block",
                "--disable-usage-stats",
                *arguments,
            ],
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while "This command will now block" not in (text := _read(told)):
                assert process.poll() is None, text
                assert time.monotonic() < deadline, text
                time.sleep(0.1)
            yield process
        finally:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for each in reversed(family):
                each.kill() if each.is_running() else None
            process.wait()


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read())


@contextmanager
def head(cores: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # not the test's own folder: the names of sockets are short
    with (
        tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder,
        machine(
            "--head",
            f"--port={port}",
            f"--num-cpus={cores}",
            "--include-dashboard=false",
            f"--temp-dir={folder}",
        ) as process,
    ):
        yield process, f"127.0.0.1:{port}"


def test_a_running_cluster_is_used_left_running_and_missed_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with head(cores=3) as (process, address):
        monkeypatch.setenv("RAY_ADDRESS", address)
        parent = start_parent("start_a_child", "start_a_child", "")
        children = sleepers(psutil.Process(process.pid))
        time.sleep(1)
        assert len(list(Path().glob("attempts/*"))) == 2, "there is a third core, but two jobs were asked for"
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(timeout=PATIENCE) == 143
        _, alive = psutil.wait_procs(children, timeout=PATIENCE)
        assert alive == []
        assert process.poll() is None
        await_greeting(address)

        parent = start_parent("", "sleep", "sleep", wait=3)
        assert f"Ray runs on the cluster {address}: 1 machine, 3 cores" in output()
        for daemon in psutil.Process(process.pid).children():
            if daemon.name() in ("raylet", "gcs_server"):
                daemon.kill()
        assert parent.wait(timeout=PATIENCE) == 1
        assert "told: the Ray cluster at " in output()
        assert "does not answer: Connection refused; what was measured is stored" in output()
        # a cell that was still told to end is there as failed, and --resume runs it again
        stored = [json.loads(path.read_text()) for path in Path("results").glob("*.json")]
        assert [result["status"] for result in stored].count("done") == 1
        assert all("SystemExit" in result["error"] for result in stored if result["status"] != "done")


def test_a_cluster_without_cores_is_told_and_a_machine_that_does_not_share_the_disk_is_an_error(
    monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    apart = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{directory}" && exec "$@"', "sh")
    try:
        if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
            pytest.skip("this machine lets this user mount no disk")
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with head(cores=0) as (_, address):
        parent = start_parent("", wait=0, RAY_ADDRESS=address)
        wait_for(lambda: "no cell has started yet: 0 of 0 cores of the cluster are free" in output(), parent)
        with machine(f"--address={address}", "--num-cpus=1", inside=apart):
            assert parent.wait(timeout=PATIENCE) == 1
        assert f"told: {socket.gethostname()} does not see {directory}/results; every machine" in output()
