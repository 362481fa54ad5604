"""The commands of docs/clusters.md, taken from the page and run in its order, with a real PostgreSQL behind.

What is put for what the page says: this machine for ``head.example.org``, free ports for the usual ones,
folders of the test for ``/srv/leyden`` and ``/shared/project``, ``--scale=smoke`` for the size of the claim
and one epoch for that of the training. A block whose last command stays in the foreground is started and left
running. PostgreSQL's own commands are run by the user ``nobody`` where the test is run by root, whom
PostgreSQL refuses.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"
PATIENCE = 120
FOREGROUND = ("mlflow server", "--block")

pytestmark = pytest.mark.slow


def blocks(after: str = "", before: str = "") -> list[str]:
    """The console blocks of the page that are run, between two of its headings."""
    text = PAGE.read_text()
    text = text[text.index(after) : text.index(before) if before else None]
    fenced = re.findall(r"(<!-- not run:[^\n]*\n)?```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block for reason, block in fenced if not reason]


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


class Cluster:
    """Runs blocks of the page, each in a shell of its own that knows what earlier blocks exported."""

    def __init__(self, srv: Path, project: Path) -> None:
        self.srv, self.project = srv, project
        self.replaced = {
            "/srv/leyden": str(srv),
            "/shared/project": str(project),
            "head.example.org": "127.0.0.1",
            "5432": free_port(),
            "5000": free_port(),
            "6379": free_port(),
            "leyden reproduce sps_safe/digits": "leyden reproduce sps_safe/digits --scale=smoke --jobs=2",
            "-m leyden fit": f"-m leyden fit --trainer.max_epochs=1 --trainer.default_root_dir={project}",
        }
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "RAY_"))},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(srv / "home"),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OMP_NUM_THREADS": "1",
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.measured: dict[str, dict[str, float]] = {}

    def command(self, block: str) -> str:
        """The block with what is put for what the page says."""
        for said, put in self.replaced.items():
            assert said in PAGE.read_text(), f"the page does not say {said} any more"
            block = block.replace(said, put)
        return block

    def run(self, block: str, *, unprivileged: bool = False) -> str:
        """Run a block to its end and return what it printed; what it exports is there for the next."""
        exported = self.srv / "exported"
        script = f"set -e\n{self.command(block)}\nenv -0 > {exported}"
        done = subprocess.run(
            [*self._user(unprivileged), "bash", "-c", script],
            cwd=self.srv if unprivileged else self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}"
        pairs = (pair.split("=", 1) for pair in exported.read_text().split("\0") if pair)
        self.environment |= {
            name: value for name, value in pairs if name.startswith(("MLFLOW_", "RAY_", "PATH"))
        }
        return done.stdout

    def start(self, name: str, block: str, ready: Callable[[], bool]) -> None:
        """Start a block that stays in the foreground, and wait until it serves."""
        with (self.srv / f"{name}.log").open("ab") as log:
            process = self.running[name] = subprocess.Popen(
                ["bash", "-c", self.command(block)],
                cwd=self.srv,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE
        while not ready():
            assert process.poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.2)

    def log(self, name: str) -> str:
        return (self.srv / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        """End what a block started, as a failure of its machine would."""
        process = self.running.pop(name)
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.kill()
        process.wait()

    def postgres(self, *arguments: str) -> str:
        """Ask PostgreSQL itself."""
        return subprocess.run(
            [
                "psql",
                "--host=localhost",
                f"--port={self.replaced['5432']}",
                "--username=leyden",
                "-At",
                *arguments,
            ],
            env={**self.environment, "PGPASSWORD": (self.srv / "password").read_text().strip()},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def answers(self) -> bool:
        """Whether the server answers from the database, whichever of its workers is asked."""
        place = f"http://127.0.0.1:{self.replaced['5000']}/api/2.0/mlflow/experiments/get-by-name"
        try:
            for _ in range(6):
                with urllib.request.urlopen(f"{place}?experiment_name=Default", timeout=2) as answer:
                    assert answer.status == 200
        except OSError:
            return False
        return True

    def _user(self, unprivileged: bool) -> list[str]:
        if not unprivileged or os.getuid():
            return []
        return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]


STORE, RAY, TRAINING = "## The store", "## The workers: Ray", "## Training on several"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """PostgreSQL and the MLflow server of the page."""
    if not (shutil.which("postgres") or list(Path("/usr/lib/postgresql").glob("*/bin/postgres"))):
        pytest.skip("there is no PostgreSQL here: apt-get install postgresql")
    pytest.importorskip("pg8000")
    database, server, _ = blocks(STORE, RAY)
    with tempfile.TemporaryDirectory(prefix="leyden", ignore_cleanup_errors=True) as folder:
        srv, project = Path(folder), Path(folder, "project")
        srv.chmod(0o777)
        project.mkdir()
        (srv / "home").mkdir()
        here = Cluster(srv, project)
        try:
            here.run(database, unprivileged=True)
            here.start("mlflow", server, here.answers)
            yield here
        finally:
            for name in list(here.running):
                here.kill(name)
            with contextlib.suppress(AssertionError):
                stop = f"pg_ctl --pgdata={srv}/postgres --mode=immediate stop"
                here.run(stop, unprivileged=True)


def runs(cluster: Cluster, parent: str) -> tuple[SimpleNamespace, list[SimpleNamespace]]:
    """A run of the server's, and its children."""
    from mlflow import MlflowClient

    client = MlflowClient(f"http://127.0.0.1:{cluster.replaced['5000']}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]

    def simple(run: object) -> SimpleNamespace:
        info, data = run.info, run.data  # type: ignore[attr-defined]
        artifacts = {
            file.path for folder in ("", "figures") for file in client.list_artifacts(info.run_id, folder)
        }
        return SimpleNamespace(
            name=info.run_name,
            status=info.status,
            params=data.params,
            metrics=data.metrics,
            artifacts=artifacts,
            id=info.run_id,
        )

    children = client.search_runs(experiments, f"tags.`mlflow.parentRunId` = '{parent}'")
    return simple(client.get_run(parent)), [simple(child) for child in children]


def parent_in(output: str) -> str:
    found = re.search(r"MLflow run: ([0-9a-f]{32})", output)
    assert found, output
    return found[1]


def check_complete(cluster: Cluster, output: str, executor: str) -> dict[str, dict[str, float]]:
    """Check what a claim left on the server, and return the numbers of its cells."""
    parent, children = runs(cluster, parent_in(output))
    assert (parent.name, parent.status) == ("sps_safe/digits", "FINISHED")
    assert parent.params["executor"] == executor
    assert {"report.html", "table.md", "verdicts.json"} <= parent.artifacts
    assert any(path.startswith("figures/") for path in parent.artifacts)
    assert len(children) == int(parent.params["cells"]) >= 4
    assert {child.status for child in children} == {"FINISHED"}
    assert all("test_accuracy" in child.metrics for child in children)
    return {child.name: child.metrics for child in children}


def test_what_is_measured_on_one_machine_is_on_the_server_and_in_postgresql(cluster: Cluster) -> None:
    output = cluster.run(blocks(STORE, RAY)[2])
    assert re.search(r"^ok +tracking: http://127.0.0.1:\d+ answers$", output, re.MULTILINE)
    cluster.measured = check_complete(cluster, output, "loky")
    stored = cluster.postgres("-c", "select count(*) from runs", "leyden")
    assert int(stored) >= len(cluster.measured) + 1
    assert list((cluster.srv / "artifacts").rglob("report.html"))
    assert not (cluster.project / "leyden.db").exists()


def test_the_database_asks_for_its_password_and_answers_this_machine_alone(cluster: Cluster) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(
            [
                "psql",
                f"--port={cluster.replaced['5432']}",
                "--host=localhost",
                "--username=leyden",
                "--no-password",
                "leyden",
            ],
            env={**cluster.environment, "PGPASSWORD": "wrong"},
            capture_output=True,
            check=True,
        )
    listening = cluster.postgres("-c", "show listen_addresses", "leyden")
    assert listening.strip() == "localhost"
    assert (cluster.srv / "password").stat().st_mode & 0o077 == 0


def test_a_server_that_dies_in_mid_run_loses_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = cluster.srv / "toy"
    work.mkdir()
    site = work / "site"
    information = site / "toy-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[leyden]\ntoy = toy_plugin\n")
    (site / "toy_plugin.py").write_text(
        "from leyden.hookspecs import hookimpl\nLEYDEN_API = 1\n"
        "@hookimpl\ndef leyden_claims():\n    return ['toy_claims.Toy']\n"
    )
    shutil.copy(Path(__file__).with_name("toy_claims.py"), work)
    (work / "tell").write_text("2")
    environment = {
        **cluster.environment,
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{cluster.replaced['5000']}",
        "PYTHONPATH": str(site),
        "TOY_ALL": "rest_until_told",
    }
    command = [sys.executable, "-P", "-m", "leyden", "reproduce", "toy/toy", "--scale=smoke", "--jobs=1"]
    process = subprocess.Popen(
        command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + PATIENCE
    while len(list(work.glob("attempts/*"))) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cluster.kill("mlflow")
    (work / "tell").write_text("99")
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert "ship at the next start" in output
    assert json.loads((work / "leyden-reports/toy/toy/smoke/verdicts.json").read_text())["cells"] == 4

    cluster.start("mlflow", blocks(STORE, RAY)[1], cluster.answers)
    doctor = subprocess.run(
        [*command[:4], "doctor"], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert "were completed in" in doctor.stderr, doctor.stdout + doctor.stderr
    key = cluster.postgres("-c", "select run_uuid from runs where name = 'toy/toy'", "leyden").split()
    assert len(key) == 1
    parent, children = runs(cluster, key[0])
    assert parent.status == "FINISHED"
    assert "report.html" in parent.artifacts
    assert {child.name: child.status for child in children} == dict.fromkeys(
        ("Good seed 0", "Good seed 1", "Bad seed 0", "Bad seed 1"), "FINISHED"
    )
    assert all({"accuracy", "loss"} <= child.metrics.keys() for child in children)


def test_what_is_measured_on_a_ray_cluster_is_on_the_server(cluster: Cluster) -> None:
    pytest.importorskip("ray")
    head, machine, use = blocks(RAY, TRAINING)
    cluster.environment["RAY_AUTH_MODE"] = "token"
    started = "This command will now block"
    try:
        cluster.start("head", head, lambda: started in cluster.log("head"))
        assert (cluster.srv / "home/.ray/auth_token").exists()
        cluster.start("machine", machine, lambda: started in cluster.log("machine"))
        output = cluster.run(use)
        assert re.search(
            r"^Ray runs on the cluster 127.0.0.1:\d+: 2 machines, \d+ cores$", output, re.MULTILINE
        )
        measured = check_complete(cluster, output, "ray")
        assert measured == (cluster.measured or measured)  # where the first test ran
        cluster.environment["HOME"] = str(cluster.srv)
        with pytest.raises(AssertionError, match=r"the Ray cluster at 127.0.0.1:\d+ cannot be used: .*token"):
            cluster.run(use)
    finally:
        cluster.environment["HOME"] = str(cluster.srv / "home")
        for name in ("machine", "head"):
            if name in cluster.running:
                cluster.kill(name)


def test_two_processes_train_together_and_one_of_them_tracks(cluster: Cluster) -> None:
    (block,) = blocks(TRAINING)
    cluster.environment["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{cluster.replaced['5000']}"
    cluster.run(block)
    names = cluster.postgres("-c", "select name, status from runs where name like 'fit%'", "leyden").split(
        "\n"
    )
    assert names[:-1] == ["fit digits|FINISHED"]


def test_every_block_of_the_page_is_run_here_or_says_why_not() -> None:
    assert len(blocks(STORE, RAY)) == len(blocks(RAY, TRAINING)) == 3
    assert len(blocks(TRAINING)) == 1
    assert len(blocks("# Clusters")) == 7
    waiting = [block for block in blocks("# Clusters") if any(word in block for word in FOREGROUND)]
    assert len(waiting) == 3
