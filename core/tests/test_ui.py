"""`leyden ui` shows what was tracked, to this machine alone, in a real browser; and says what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from browser import chromium, watch
from leyden import mlflow_server, ui
from leyden.cli import main

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 60
LEYDEN = [sys.executable, "-P", "-m", "leyden"]
COMMAND = [*LEYDEN, "ui", "--no-open"]
PLUGIN = """
    from leyden.hookspecs import hookimpl

    LEYDEN_API = 1

    @hookimpl
    def leyden_claims():
        return ["toy_claims.Toy"]
"""
LEAVE_A_RUN = """
    import os, signal
    from leyden.tracking import Session, resolve_store

    session = Session.open(resolve_store(), wait=False)
    run = session.run("left behind", experiment="leyden")
    run.metrics({"loss": 0.5}, step=3)
    os.kill(os.getpid(), signal.SIGKILL)
"""
CHILDREN = {f"{method} seed {seed}" for method in ("Good", "Bad") for seed in (0, 1)}


# What is wrong, in one line.


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, where runs go to leyden.db."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "plugins.toml").write_text('[tracking]\nuri = "sqlite:///leyden.db"\n')
    return tmp_path


@pytest.fixture
def refused(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs `leyden ui` where it must not get so far as to serve; its exit status and its one line."""

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["ui", "--no-open", *arguments])
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.count("\n") == 1
        return status, told.err.strip()

    return run


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "80.5"])
def test_a_port_that_is_none_is_named(refused: Any, port: str) -> None:
    status, line = refused(f"--port={port}")
    assert status == 2
    assert f"argument --port: expected a port from 1 to 65535, got '{port}'" in line


def test_a_port_in_use_is_named(here: Path, refused: Any) -> None:
    Path("leyden.db").touch()
    with socket.create_server((ui.HOST, 0)) as other:
        port = other.getsockname()[1]
        status, line = refused("--port", str(port))
    assert status == 2
    assert line == f"leyden: --port {port}: it is in use; without --port a free one is found"


def test_without_a_store_it_says_what_to_run_and_makes_none(here: Path, refused: Any) -> None:
    status, line = refused()
    assert status == 1
    assert line.startswith(f"leyden: nothing was tracked here yet: there is no {here / 'leyden.db'}; run ")
    assert [path.name for path in here.iterdir()] == ["plugins.toml"]


def test_tracking_that_is_turned_off_has_no_page(here: Path, refused: Any) -> None:
    (here / "plugins.toml").write_text("[tracking]\nenabled = false\n")
    status, line = refused()
    assert status == 2
    assert line.startswith("leyden: plugins.toml:2: tracking.enabled: tracking is turned off")


def test_a_server_that_does_not_answer_is_named(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:  # bound and not listening: nobody else gets the port meanwhile
        closed.bind((ui.HOST, 0))
        address = f"http://{ui.HOST}:{closed.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//me:secret@"))
        status, line = refused()
    assert status == 1
    assert "does not answer" in line
    assert address.removeprefix("http://") in line
    assert "secret" not in line


def test_a_server_has_no_port_to_choose(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@tracking.example.org")
    status, line = refused("--port", "5001")
    assert status == 2
    assert (
        line == "leyden: --port 5001: https://***@tracking.example.org is a server and has its page already"
    )


def test_databricks_has_a_page_of_its_own(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "databricks://profile")
    status, line = refused()
    assert status == 2
    assert "databricks://profile" in line


@pytest.mark.slow
def test_a_file_that_is_no_store_is_named_and_left_as_it_is(here: Path, refused: Any) -> None:
    Path("leyden.db").write_text("a diary")
    status, line = refused()
    assert status == 1
    assert f"{here / 'leyden.db'} is not an SQLite database" in line
    assert Path("leyden.db").read_text() == "a diary"


@pytest.mark.slow
def test_the_server_touches_no_store_before_it_is_told(here: Path) -> None:
    with socket.create_server((ui.HOST, 0)) as listener:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "leyden.mlflow_server", str(listener.fileno()), "leyden"],
            env=mlflow_server.environment(f"sqlite:///{here}/leyden.db", None),
            pass_fds=[listener.fileno()],
            input=b"",
            stdout=subprocess.PIPE,
            check=True,
        )
    assert done.stdout == b""
    assert [path.name for path in here.iterdir()] == ["plugins.toml"]


def test_where_the_usual_port_is_taken_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ui.HOST, 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(ui, "PORT", taken)
        with ui._listen(None) as listener:
            host, port = listener.getsockname()
    assert host == "127.0.0.1"
    assert port not in (0, taken)


def test_the_usual_port_is_taken_where_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ui.HOST, 0)) as other:
        free = other.getsockname()[1]
    monkeypatch.setattr(ui, "PORT", free)
    with ui._listen(None) as listener:
        assert listener.getsockname() == ("127.0.0.1", free)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is always a screen")
def test_a_browser_opens_only_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not ui._has_screen()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert ui._has_screen()


# What it shows, of a claim that was reproduced.


class Served:
    """A running `leyden ui`.

    Attributes:
        process: the command.
        server: the process that serves.
        lines: what it said.
        address: where it serves.
        runs: the link to the runs.
    """

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            COMMAND,
            cwd=directory,
            env=environment(directory),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("Ctrl-C"):
                break
        else:
            raise AssertionError(self.process.communicate()[1])
        (self.server,) = psutil.Process(self.process.pid).children()
        self.runs = self.lines[0].removeprefix("MLflow's page: ")
        self.address = self.runs.partition("/#/")[0]

    def ask(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        """The answer to a request, from JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.address}{path}", data, {"Content-Type": "application/json", **headers}
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return json.load(answer)

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal; the exit status and what was said on standard error."""
        self.process.send_signal(number)
        errors = self.process.communicate(timeout=PATIENCE)[1]
        wait_until_gone(self.server)
        return self.process.returncode, errors


def wait_until_gone(process: psutil.Process) -> None:
    """Wait until it has ended, though nobody may have reaped it."""
    until = time.monotonic() + PATIENCE
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until, "it is still there"
            time.sleep(0.05)


def environment(directory: Path, **more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TOY", "MLFLOW_TRACKING_URI"))
    }
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(directory.parent / "site"), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory in which a claim was reproduced."""
    folder = tmp_path_factory.mktemp("ui")
    information = folder / "site" / "toy-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[leyden]\ntoy = toy_plugin\n")
    (folder / "site" / "toy_plugin.py").write_text(textwrap.dedent(PLUGIN))
    directory = folder / "work"
    directory.mkdir()
    shutil.copy(Path(__file__).with_name("toy_claims.py"), directory)
    (directory / "plugins.toml").write_text('[tracking]\nuri = "sqlite:///leyden.db"\n')
    reproduce = ["reproduce", "toy/toy", "--scale", "smoke", "--jobs", "1"]
    done = subprocess.run(
        [*LEYDEN, *reproduce], cwd=directory, env=environment(directory), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def served(work: Path) -> Iterator[Served]:
    """The page, after a process was killed that had logged and not shipped."""
    program = [sys.executable, "-c", textwrap.dedent(LEAVE_A_RUN)]
    assert subprocess.run(program, cwd=work, env=environment(work)).returncode == -signal.SIGKILL
    page = Served(work)
    yield page
    status, told = page.end(signal.SIGINT)
    assert (status, told.splitlines()[-1:]) == (130, ["leyden: interrupted"]), told


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must ask nobody but this machine."""
    with browser.new_page(viewport={"width": 1600, "height": 1000}) as opened:
        opened.set_default_timeout(1000 * PATIENCE)
        traffic = watch(opened)
        yield opened
        asked = {re.match("[a-z]+:(//[^/:]*)?", address)[0] for address in traffic.requests}  # type: ignore[index]
        assert asked <= {f"http://{ui.HOST}", "data:", "blob:"}


def newest(served: Served) -> str:
    label, link = served.lines[1].rsplit(" ", 1)
    assert label == "Newest, toy/toy:"
    assert link.startswith(f"{served.address}/#/experiments/")
    return link


@pytest.mark.slow
def test_the_runs_show_the_claim_and_unfold_its_cells(served: Served, page: Page) -> None:
    page.goto(served.runs)
    claim = page.get_by_role("link", name="toy/toy", exact=True)
    claim.wait_for()
    assert page.get_by_role("link", name="Good seed 0", exact=True).count() == 0
    page.get_by_role("row").filter(has=claim).get_by_role("button").click()
    for name in CHILDREN:
        page.get_by_role("link", name=name, exact=True).wait_for()
    assert newest(served).endswith(str(claim.get_attribute("href")))


@pytest.mark.slow
def test_the_newest_link_shows_the_claims_run_and_its_children(served: Served, page: Page) -> None:
    page.goto(newest(served))
    page.get_by_role("heading", name="toy/toy").wait_for()
    for name in CHILDREN:
        page.get_by_role("link", name=name, exact=True).wait_for()
    assert page.get_by_text("verdict.better").first.is_visible()


@pytest.mark.slow
def test_the_report_shows_among_the_artifacts(served: Served, page: Page) -> None:
    page.goto(f"{newest(served)}/artifacts/report.html")
    report = page.frame_locator("iframe")
    report.get_by_role("heading", name="the good method is better than the bad one").wait_for()
    report.get_by_text("Good is better than Bad.").first.wait_for()
    picture = report.locator("figure img").first
    picture.scroll_into_view_if_needed()
    assert picture.evaluate("(image) => image.complete && image.naturalWidth > 0")


@pytest.mark.slow
def test_the_figures_show_among_the_artifacts(served: Served, work: Path, page: Page) -> None:
    (figure,) = (work / "leyden-reports/toy/toy/smoke").glob("*.png")
    page.goto(f"{newest(served)}/artifacts")
    page.get_by_text("report.html").first.wait_for()
    page.get_by_text("figures").first.click()
    page.get_by_text(figure.name).first.click()
    page.wait_for_function("[...document.images].some((image) => image.naturalWidth > 800)")


@pytest.mark.slow
def test_what_a_killed_process_left_is_shipped_first(served: Served) -> None:
    experiment = served.runs.split("/")[-2]
    found = served.ask("/api/2.0/mlflow/runs/search", {"experiment_ids": [experiment], "max_results": 50})
    left = [run for run in found["runs"] if run["info"]["run_name"] == "left behind"]
    assert [run["info"]["status"] for run in left] == ["KILLED"]
    assert [(metric["key"], metric["step"]) for metric in left[0]["data"]["metrics"]] == [("loss", 3)]


@pytest.mark.slow
def test_it_listens_to_this_machine_alone(served: Served) -> None:
    processes = [psutil.Process(served.process.pid), served.server, *served.server.children(recursive=True)]
    listening = {
        connection.laddr
        for process in processes
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    port = int(served.address.rpartition(":")[2])
    assert listening == {("127.0.0.1", port)}
    with pytest.raises(urllib.error.HTTPError, match="403"):  # a page of another name that leads here
        served.ask("/api/2.0/mlflow/experiments/search?max_results=1", Host="elsewhere.example.org")


@pytest.mark.slow
def test_nothing_but_the_store_is_left_in_the_working_directory(served: Served, work: Path) -> None:
    known = {"toy_claims.py", "plugins.toml", "attempts", "leyden-reports"}
    store = {"leyden.db", "leyden.db.lock", "leyden-artifacts", ".leyden"}
    assert {path.name for path in work.iterdir()} - {"__pycache__"} == known | store


@pytest.mark.slow
def test_a_server_is_told_and_opened_in_the_browser(served: Served, work: Path, tmp_path: Path) -> None:
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    program.chmod(0o755)
    done = subprocess.run(
        [*LEYDEN, "ui"],
        cwd=work,
        env=environment(work, MLFLOW_TRACKING_URI=f"{served.address}/", BROWSER=str(program)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == served.lines[:2]
    assert (tmp_path / "opened").read_text().strip() == served.runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (signal.SIGTERM, 143, "leyden: terminated\n"),
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
)
def test_the_server_ends_with_the_command(work: Path, number: int, status: int, line: str) -> None:
    """What Ctrl-C does is asserted where the page of the other tests ends."""
    page = Served(work)
    assert page.end(number) == (status, line)


@pytest.mark.slow
def test_a_server_that_ends_by_itself_is_told(work: Path) -> None:
    page = Served(work)
    page.server.kill()
    errors = page.process.communicate(timeout=PATIENCE)[1]
    assert page.process.returncode == 1
    assert errors == "leyden: MLflow's server was killed by signal 9\n"


@pytest.mark.slow
def test_a_server_that_cannot_start_is_told(work: Path, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError('it is broken')")
    known = environment(work)
    known["PYTHONPATH"] = os.pathsep.join([str(tmp_path), known["PYTHONPATH"]])
    done = subprocess.run(COMMAND, cwd=work, env=known, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "leyden: MLflow's server ended: ImportError: it is broken\n"


@pytest.mark.slow
def test_a_start_that_is_interrupted_leaves_no_server(work: Path) -> None:
    process = subprocess.Popen(
        COMMAND, cwd=work, env=environment(work), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    started: list[psutil.Process] = []
    while not any("leyden.mlflow_server" in child.cmdline() for child in started):
        assert process.poll() is None
        started = psutil.Process(process.pid).children()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE) == ("", "leyden: interrupted\n")
    assert process.returncode == 130
    for child in started:
        wait_until_gone(child)
