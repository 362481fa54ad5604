"""A comparison from the command line: its workers, its tracked runs, and whatever stops it loses nothing."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from compare_testbed import compare_here, install_tried, report, run_cells_here, stored, write_config
from leyden.comparison import running

PATIENCE = 120


@pytest.fixture
def work(tmp_path: Path, install: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the user's module; the plugins are installed elsewhere."""
    install_tried(install)
    directory = tmp_path / "work"
    directory.mkdir()
    shutil.copy(Path(__file__).with_name("compared_project.py"), directory / "mine.py")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return directory


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "leyden", "compare", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=PATIENCE)
    return output


def wait_for(fits: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many fits are stored."""
    deadline = time.monotonic() + PATIENCE
    while len(list(Path(".leyden/results").rglob("*.json"))) < fits:
        if process.poll() is not None:
            pytest.fail(f"it ended early: {finish(process)}")
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def comparable(table: str) -> str:
    """A table's results without what depends on the clock and on the memory that happens to be free."""
    results = table[table.index("## Verdicts") : table.index("## Repeat it")]
    return re.sub(r"\| [\N{MULTIPLICATION SIGN}][^|]*\| [^|]*\|(?=\n)", "|", results)


def runs() -> list[SimpleNamespace]:
    """Every run in the store."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd()}/leyden.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return [
        SimpleNamespace(
            name=run.info.run_name,
            status=run.info.status,
            parent=run.data.tags.get("mlflow.parentRunId"),
            id=run.info.run_id,
            tags=run.data.tags,
            params=run.data.params,
            metrics=run.data.metrics,
            artifacts=sorted(file.path for file in client.list_artifacts(run.info.run_id)),
        )
        for run in client.search_runs(experiments, max_results=1000, order_by=["attributes.start_time ASC"])
    ]


@pytest.mark.slow
def test_what_is_killed_and_interrupted_is_resumed_to_the_table_of_an_uninterrupted_comparison(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config()
    asked = [
        "--config",
        "mine.yaml",
        "--try",
        "tried.Steady",
        "momentum=0.5",
        "--trials",
        "6",
        "--seeds",
        "3",
    ]
    with monkeypatch.context() as here:
        here.setattr(running, "run_cells", run_cells_here)
        here.setattr(sys, "path", [str(work), *sys.path])
        (work / "plugins.toml").write_text("[tracking]\nenabled = false\n")
        compare_here("tried.Steady momentum=0.5", trials=6, seeds=3)
        (work / "plugins.toml").unlink()
    sys.modules.pop("mine", None)
    whole, fits = comparable(report()), len(stored())
    assert fits == 2 * (1 + 6 + 3)
    shutil.rmtree("leyden-reports")
    shutil.rmtree(".leyden")

    killed = start(*asked, "--jobs", "1")
    wait_for(6, killed)
    family = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.wait()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert alive == []

    before = len(stored())
    interrupted = start(*asked, "--jobs", "1", "--resume")
    wait_for(before + 2, interrupted)
    interrupted.send_signal(signal.SIGINT)
    output = finish(interrupted)
    assert interrupted.returncode == 130, output
    assert "Traceback" not in output
    assert f"To go on: leyden compare {' '.join(asked)} --resume" in output
    assert not Path("leyden-reports").exists()

    resumed = start(*asked, "--jobs", "2", "--resume")
    output = finish(resumed)
    assert resumed.returncode == 0, output
    assert comparable(report()) == whole
    assert len(stored()) == fits

    found = runs()
    parents = [run for run in found if not run.parent]
    assert [run.status for run in parents] == ["KILLED", "KILLED", "FINISHED"]
    last = parents[-1]
    assert last.name == "compare mine"
    assert last.tags["leyden.kind"] == "compare"
    assert last.tags["verdict.Steady"] in ("holds", "does not hold", "undecided")
    assert last.params["trials"] == "6"
    assert "Steady/estimate" in last.metrics
    assert {"report.html", "table.md", "verdicts.json", "Steady.yaml", "baseline.yaml"} <= set(last.artifacts)
    children = [run for run in found if run.parent == last.id]
    assert len(children) == fits - 2
    stages = sorted((run.tags["arm"], run.tags["stage"]) for run in children)
    assert stages == sorted(
        [(arm, "judge") for arm in ("Steady", "baseline") for _ in range(3)]
        + [(arm, "tune") for arm in ("Steady", "baseline") for _ in range(6)]
    )
    assert {run.tags["seed"] for run in children if run.tags["stage"] == "judge"} == {"0", "1", "2"}
    fresh = [run for run in children if "leyden.resumed" not in run.tags]
    assert 0 < len(fresh) <= fits - 2 - (before - 2)
    assert all("config.yaml" in run.artifacts for run in fresh)
    assert all("val_loss" in run.metrics for run in children)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "mine.yaml"], "the following arguments are required: --try"),
        (["--config", "mine.yaml", "--try", "tired"], "unknown plugin 'tired'; did you mean 'tried'"),
        (["--config", "mien.yaml", "--try", "tried"], "no file 'mien.yaml'; did you mean 'mine.yaml'"),
        (["--config", "mine.yaml", "--try", "tried", "--seeds", "0"], "expected an integer of at least 1"),
        (["--config", "mine.yaml", "--try", "single", "--executor", "loki"], "did you mean 'loky'"),
    ],
)
def test_wrong_input_is_one_line_and_the_status_is_2(work: Path, arguments: list[str], message: str) -> None:
    write_config()
    process = start(*arguments)
    output = finish(process)
    assert process.returncode == 2, output
    assert len(output.splitlines()) == 1
    assert message in output


def test_each_try_keeps_its_own_words() -> None:
    from leyden.cli import _parser

    words = "compare --config a.yaml --try one.A x=1 y=2..3 --try two --tune lr=1..2 z=1,2 --tune w=1..2"
    chosen = _parser().parse_args(words.split())
    assert chosen.tries == [["one.A", "x=1", "y=2..3"], ["two"]]
    assert chosen.tune == ["lr=1..2", "z=1,2", "w=1..2"]


@pytest.mark.slow
def test_a_comparison_on_ray_gives_the_table_of_one_on_this_machines_own_processes(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("HOME", str(work))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (work / "plugins.toml").write_text("[tracking]\nenabled = false\n")
    write_config()
    asked = ["--config", "mine.yaml", "--try", "tried.Steady", "--trials", "2", "--seeds", "2", "--jobs", "2"]
    tables = []
    for executor in ("loky", "ray"):
        process = start(*asked, "--executor", executor)
        output = finish(process)
        assert process.returncode == 0, output
        assert ("Ray runs on this machine, 2 workers" in output) == (executor == "ray")
        tables.append(comparable(Path("leyden-reports/compare/mine/table.md").read_text()))
    assert tables[0] == tables[1]
