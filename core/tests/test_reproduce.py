"""A claim is reproduced from end to end, and whatever stops it leaves nothing behind and nothing lost.

The plugin under test is installed in a folder of its own; its claim's module lies in the working directory.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from leyden import progress, reproduce
from leyden.claims import Cell, CellResult
from leyden.errors import LeydenError, UsageError
from leyden.execute import stop_workers
from leyden.manager import manager
from leyden.model import Verdict
from leyden.progress import CellProgress, Pace
from rich.console import Console

PATIENCE = 60
PLUGIN = """
    from leyden.hookspecs import hookimpl

    LEYDEN_API = 1

    @hookimpl
    def leyden_claims():
        return ["toy_claims.Toy", "toy_claims.Ill", "toy_claims.Twice", "toy_claims.Unborn"]

    @hookimpl
    def leyden_run_start(run):
        with open("hooks", "a") as file:
            file.write(f"start {run.kind} {run.plugin} {run.name}\\n")

    @hookimpl
    def leyden_run_end(run, result):
        with open("hooks", "a") as file:
            file.write(f"end {result.status} {result.metrics['failed_cells']:g} {result.error}\\n")
"""
CLAIMS = '''

class Ill(Toy):
    """Cannot list its cells."""

    name = "ill"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        raise RuntimeError("no cells today")


class Twice(Toy):
    """Lists a cell twice."""

    name = "twice"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        return [Cell(method="Good", seed=0), Cell(method="Good", seed=0)]


class Unborn(Toy):
    """Cannot be constructed."""

    name = "unborn"

    def __init__(self) -> None:
        raise RuntimeError("not today")
'''


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the claim's module; the plugin is installed elsewhere."""
    site = tmp_path / "site"
    information = site / "toy-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[leyden]\ntoy = toy_plugin\n")
    (site / "toy_plugin.py").write_text(textwrap.dedent(PLUGIN))
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "toy_claims.py").write_text(Path(__file__).with_name("toy_claims.py").read_text() + CLAIMS)
    (directory / "plugins.toml").write_text('[tracking]\nuri = "sqlite:///leyden.db"\n')
    monkeypatch.chdir(directory)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("TOY", "TOY_ALL", "TOY_JUDGE", "TOY_FIGURE"):
        monkeypatch.delenv(name, raising=False)
    return directory


# In this process, without tracking: what is judged, reported, resumed and refused.


@pytest.fixture
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, with tracking turned off and the plugin visible to this process."""
    (work / "plugins.toml").write_text("[tracking]\nenabled = false\n")
    monkeypatch.setattr(sys, "path", [str(work), os.environ["PYTHONPATH"], *sys.path])
    manager.cache_clear()
    yield work
    stop_workers()
    manager.cache_clear()
    for name in ("toy_claims", "toy_plugin"):
        sys.modules.pop(name, None)


def run(*names: str, **arguments: Any) -> tuple[int, str]:
    output = io.StringIO()
    arguments = {"scale": "smoke", "jobs": 1, **arguments}
    status = reproduce.reproduce(names or ["toy/toy"], console=Console(file=output, width=200), **arguments)
    stop_workers()  # so that the next one sees a changed environment
    return status, output.getvalue()


def report(name: str = "verdicts.json", scale: str = "smoke") -> str:
    return Path("leyden-reports/toy/toy", scale, name).read_text()


def attempts() -> int:
    return len(list(Path("attempts").glob("*")))


def test_a_claim_leaves_a_table_verdicts_figures_and_a_page(here: Path) -> None:
    status, output = run()
    assert status == 0
    assert "Good is better than Bad." in output
    assert "leyden-reports/toy/toy/smoke/report.html" in output
    verdicts = json.loads(report())
    assert (verdicts["cells"], verdicts["failed"], verdicts["seeds"]) == (4, 0, [0, 1])
    assert verdicts["verdicts"][0]["outcome"] == "holds"
    assert "0.9005" in report("table.md")
    assert list(Path("leyden-reports/toy/toy/smoke").glob("*.png"))
    assert not Path("leyden.db").exists()


def test_seeds_given_by_the_user_replace_those_of_the_claim(here: Path) -> None:
    run(seeds=3)
    assert json.loads(report())["seeds"] == [0, 1, 2]


def test_a_first_seed_moves_every_cell_and_is_in_the_command_that_repeats_it(here: Path) -> None:
    run(seeds=2, first_seed=5)
    assert json.loads(report())["seeds"] == [5, 6]
    assert "--seeds 2 --first-seed 5" in report("table.md")
    page = re.sub("<[^>]*>", "", report("report.html"))
    assert "--seeds 2 --first-seed 5" in page
    assert "2, 5 to 6" in page


def test_a_cell_that_raises_is_in_the_report_with_its_traceback_and_the_status_is_1(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY", "Bad0=fail")
    status, output = run()
    assert status == 1
    assert "Bad seed 0 failed: ValueError: told to fail" in output
    page = report("report.html")
    assert "Traceback" in page
    assert "told to fail" in page
    assert attempts() == 4
    assert Path("hooks").read_text().splitlines()[-1] == "end FAILED 1 Bad seed 0 failed"


def test_a_worker_killed_once_leaves_a_complete_table(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY", "Bad0=die_once")
    status, output = run()
    assert status == 0
    assert "a worker died (SIGKILL(-9)); once more, each alone: Bad seed 0" in output
    assert attempts() == 5
    assert (json.loads(report())["cells"], json.loads(report())["failed"]) == (4, 0)


def test_a_worker_killed_twice_leaves_a_crashed_cell_and_the_status_is_1(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY", "Bad0=die")
    status, output = run()
    assert status == 1
    assert "Bad seed 0 is recorded as crashed" in output
    assert (json.loads(report())["cells"], json.loads(report())["failed"]) == (4, 1)


@pytest.mark.parametrize(("variable", "words"), [("TOY_JUDGE", "judged"), ("TOY_FIGURE", "drawn")])
def test_a_claim_whose_judge_or_figure_raises_is_still_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch, variable: str, words: str
) -> None:
    monkeypatch.setenv(variable, "raise")
    status, output = run()
    assert status == 1
    assert Path("hooks").read_text().splitlines()[-1].startswith("end FAILED 0 The ")
    told = next(line for line in output.splitlines() if "traceback in the report" in line)
    assert words in told
    assert "is ill" in told
    assert output.count("could not be") == 1
    assert "Traceback (most recent call last)" not in output
    assert "Traceback (most recent call last)" in report("report.html")
    assert json.loads(report())["cells"] == 4


def test_a_claim_that_could_not_be_judged_is_undecided(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_JUDGE", "raise")
    run()
    (verdict,) = json.loads(report())["verdicts"]
    assert (verdict["statement"], verdict["outcome"]) == ("better", "undecided")


def test_a_judge_that_returns_no_verdicts_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import toy_claims

    monkeypatch.setattr(toy_claims.Toy, "judge", lambda self, table: ["holds"])
    status, output = run()
    assert status == 1
    assert "judge() returned 'holds', which is no Verdict" in output


def verdict(**changes: Any) -> Verdict:
    sound = {"statement": "better", "text": "Good is better than Bad.", "kind": "better", "outcome": "holds"}
    numbers = {"estimate": 0.4, "low": 0.3, "high": 0.5, "threshold": 0.0}
    return Verdict(**{**sound, **numbers, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"estimate": None}, "estimate of 'better' is None, which is no number"),
        ({"low": "small"}, "low of 'better' is 'small', which is no number"),
        ({"outcome": "perhaps"}, "the outcome of 'better' is 'perhaps'"),
        ({"statement": "other"}, "a verdict on 'other', which the claim does not state"),
    ],
)
def test_a_verdict_that_makes_no_sense_is_named_and_the_claim_is_still_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    import toy_claims

    monkeypatch.setattr(toy_claims.Toy, "judge", lambda self, table: [verdict(**changes)])
    status, output = run()
    assert status == 1
    assert words in output
    (kept,) = json.loads(report())["verdicts"]
    assert (kept["statement"], kept["outcome"]) == ("better", "undecided")


def test_a_judge_may_compute_with_arrays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import toy_claims

    numbers = {"estimate": np.float32(0.5), "low": np.array(0.25), "high": np.float64(1)}
    monkeypatch.setattr(toy_claims.Toy, "judge", lambda self, table: [verdict(**numbers)])
    assert run()[0] == 0
    (kept,) = json.loads(report())["verdicts"]
    assert (kept["estimate"], kept["low"], kept["high"]) == (0.5, 0.25, 1.0)


def test_a_statement_that_was_not_judged_is_undecided_and_named(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import toy_claims

    monkeypatch.setattr(toy_claims.Toy, "judge", lambda self, table: [])
    status, output = run()
    assert status == 1
    assert "judge() gave no verdict on better." in output
    (kept,) = json.loads(report())["verdicts"]
    assert (kept["statement"], kept["outcome"]) == ("better", "undecided")


def test_what_was_measured_is_shown_also_where_the_report_cannot_be_written(here: Path) -> None:
    Path("leyden-reports").write_text("a file where the folder should be")
    output = io.StringIO()
    with pytest.raises(LeydenError, match="the report cannot be written to leyden-reports"):
        reproduce.reproduce(["toy/toy"], scale="smoke", jobs=1, console=Console(file=output, width=200))
    assert "Good is better than Bad." in output.getvalue()


def test_a_cell_that_failed_is_told_in_one_line_with_its_error(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY", "Bad0=fail_at_length")
    status, output = run()
    assert status == 1
    told = [line for line in output.splitlines() if line.startswith("Bad seed 0 failed:")]
    assert set(told) == {"Bad seed 0 failed: ValueError: first line second line"}


def test_resume_runs_what_is_missing_or_failed_and_nothing_else(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_ALL", "fail_at_first")
    run()
    assert attempts() == 4
    first = json.loads(report())
    assert first["failed"] == 1
    status, output = run(resume=True)
    assert status == 0
    assert "3 of them measured by this code before" in output
    assert attempts() == 5
    run(resume=True)
    assert attempts() == 5


def test_resume_with_more_seeds_runs_the_new_ones(here: Path) -> None:
    run(seeds=1)
    run(seeds=3, resume=True)
    assert attempts() == 6
    assert json.loads(report())["seeds"] == [0, 1, 2]


def test_resume_measures_again_what_other_code_measured(here: Path) -> None:
    run()
    with Path("toy_claims.py").open("a") as module:
        module.write("# changed\n")
    _, output = run(resume=True)
    assert "none of them measured by this code before" in output
    assert attempts() == 8


def test_without_resume_everything_is_measured_again(here: Path) -> None:
    run()
    run()
    assert attempts() == 8


def test_the_plugins_hear_of_the_start_and_the_end(here: Path) -> None:
    run()
    assert Path("hooks").read_text().splitlines() == ["start claim toy toy/toy", "end FINISHED 0 "]


def test_a_claim_that_cannot_list_its_cells_is_one_line_and_the_others_run(here: Path) -> None:
    status, output = run("toy")
    assert status == 1
    assert "toy/unborn: the claim cannot be set up: RuntimeError: not today" in output
    assert "toy/ill: its cells cannot be listed: RuntimeError: no cells today" in output
    assert "toy/twice: its cells cannot be listed: LeydenError: Good seed 0 is there twice" in output
    assert json.loads(report())["cells"] == 4


def test_a_claim_that_cannot_be_imported_is_one_line_and_the_others_run(here: Path) -> None:
    plugin = Path(os.environ["PYTHONPATH"]) / "toy_plugin.py"
    plugin.write_text(plugin.read_text().replace("toy_claims.Ill", "toy_claims.Missing"))
    status, output = run("toy")
    assert status == 1
    (line,) = [line for line in output.splitlines() if "toy_claims.Missing" in line]
    assert "cannot import" in line
    assert json.loads(report())["cells"] == 4


def test_a_claim_named_twice_runs_once(here: Path) -> None:
    run("toy/toy", "toy/toy")
    assert attempts() == 4


@pytest.mark.parametrize(
    ("names", "arguments", "words"),
    [
        (["tyo"], {}, "unknown plugin 'tyo'; did you mean 'toy'?"),
        (["toy/toi"], {}, "unknown claim 'toy/toi'; did you mean 'toy/toy'"),
        (["toy/"], {}, "unknown claim 'toy/'"),
        (["toy"], {"scale": "labtop"}, "unknown scale 'labtop'; did you mean 'laptop'?"),
        (["toy"], {"executor": "lok"}, "unknown executor 'lok'; did you mean 'loky'?"),
        (["toy"], {"jobs": 0}, "--jobs 0: must be at least 1"),
        (["toy"], {"seeds": -1}, "--seeds -1: must be at least 1"),
        (["toy"], {"first_seed": -1}, "--first-seed -1: must be at least 0"),
        (["callbacks"], {}, "plugin 'callbacks' has no claim"),
    ],
)
def test_wrong_input_is_one_line_with_the_nearest_name(
    here: Path, names: list[str], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        run(*names, **arguments)
    assert not Path("attempts").exists()


def test_a_working_directory_that_cannot_be_written_is_one_line(here: Path) -> None:
    Path(".leyden").write_text("a file where a folder should be")
    with pytest.raises(LeydenError, match=r"^cannot store results in .*\.leyden"):
        run()


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk")
def test_a_full_disk_is_one_line_and_what_was_stored_stays(work: Path) -> None:
    script = """
        set -e
        mount -t tmpfs -o size=64k none small
        cp toy_claims.py small
        printf '[tracking]\\nenabled = false\\n' > small/plugins.toml
        cd small
        "$PYTHON" -P -m leyden reproduce toy/toy --scale smoke --jobs 1 || echo "status $?"
        head -c 1000000 /dev/zero > filler 2>/dev/null || true
        "$PYTHON" -P -m leyden reproduce toy/toy --scale smoke --jobs 1 || echo "status $?"
        "$PYTHON" -c "$COUNT"
    """
    count = (
        "import json, pathlib; "
        "print(len([json.loads(p.read_text()) for p in pathlib.Path('.leyden').rglob('*.json')]), 'whole')"
    )
    Path("small").mkdir()
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", textwrap.dedent(script)]
    try:
        probe = subprocess.run([*command[:4], "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if probe.returncode:
        pytest.skip("this machine lets no user mount a disk")
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHON": sys.executable, "COUNT": count},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "status 1" in done.stdout, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r"^\d+ whole$", done.stdout, re.MULTILINE)


# The live bar and the plain lines.


def result(status: str = "done", error: str = "") -> CellResult:
    return CellResult(cell=Cell(method="A", seed=0), status=status, error=error)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    return now


def test_the_time_left_is_the_mean_time_of_a_cell_for_each_to_come(clock: SimpleNamespace) -> None:
    pace = Pace(10, expected=500.0)
    clock.seconds += 100
    assert pace.left() == 400.0
    pace.step()
    pace.step()
    assert pace.left() == 400.0
    clock.seconds += 30
    assert pace.left() == 370.0
    assert pace.left_text() == "about 6 min 10 s left"
    clock.seconds += 350
    assert pace.left_text() == "about 20 s left"
    clock.seconds += 10_000
    assert pace.left_text() == "nearly done"
    assert pace.left() == 0.0


def test_without_a_terminal_there_is_a_line_now_and_then(clock: SimpleNamespace) -> None:
    output = io.StringIO()
    with CellProgress(Console(file=output), "toy/toy", total=100, expected=0) as shown:
        for _ in range(100):
            clock.seconds += 5
            shown.done(result())
    lines = output.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[0] == "toy/toy: 5 of 100 cells, about 7 min 55 s left"


def test_on_a_terminal_there_is_a_bar_with_cells_done_and_time_left() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120, color_system=None)
    with CellProgress(console, "toy/toy", total=4, expected=90) as shown:
        shown._bar.refresh()  # type: ignore[union-attr]
        assert "about 1 min 30 s left" in output.getvalue()
        shown.done(result())
        shown._bar.refresh()  # type: ignore[union-attr]
    assert "toy/toy" in output.getvalue()
    assert "1/4" in output.getvalue()


def test_a_failed_cell_is_named_as_soon_as_it_failed() -> None:
    output = io.StringIO()
    with CellProgress(Console(file=output), "toy/toy", total=2, expected=0) as shown:
        shown.done(result("failed", 'Traceback:\n  File "a.py", line 1\n    [line]\nValueError: x [red]'))
        assert output.getvalue() == "A seed 0 failed: ValueError: x [red]\n"


# From the command line, with the real store.


def start(*arguments: str, jobs: int = 2, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "leyden",
            "reproduce",
            "toy/toy",
            "--scale",
            "smoke",
            f"--jobs={jobs}",
            *arguments,
        ],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=PATIENCE)
    return output


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"it ended early: {finish(process)}")
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def runs() -> list[SimpleNamespace]:
    """Every run in the store, oldest first."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd()}/leyden.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, max_results=1000, order_by=["attributes.start_time ASC"])
    return [
        SimpleNamespace(
            id=run.info.run_id,
            name=run.info.run_name,
            status=run.info.status,
            parent=run.data.tags.get("mlflow.parentRunId"),
            tags=run.data.tags,
            params=run.data.params,
            metrics=run.data.metrics,
            loss=[metric.value for metric in client.get_metric_history(run.info.run_id, "loss")],
            artifacts=sorted(
                file.path
                for folder in ("", "figures")
                for file in client.list_artifacts(run.info.run_id, folder)
                if not file.is_dir
            ),
        )
        for run in found
    ]


@pytest.mark.slow
def test_two_at_the_same_moment_on_a_store_that_does_not_exist_lose_nothing(work: Path) -> None:
    both = [start(), start()]
    outputs = [finish(process) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert not any("locked" in output for output in outputs)
    found = runs()
    parents = [run for run in found if not run.parent]
    assert [run.name for run in parents] == ["toy/toy", "toy/toy"]
    assert {run.status for run in found} == {"FINISHED"}
    for parent in parents:
        assert any(parent.id in output for output in outputs)
        assert parent.tags["verdict.better"] == "holds"
        assert parent.metrics["better/estimate"] == 0.4
        assert {"report.html", "table.md", "verdicts.json"} <= set(parent.artifacts)
        assert any(path.startswith("figures/") for path in parent.artifacts)
        children = sorted((run for run in found if run.parent == parent.id), key=lambda run: run.name)
        assert [run.name for run in children] == ["Bad seed 0", "Bad seed 1", "Good seed 0", "Good seed 1"]
        for child in children:
            seed = int(child.params["seed"])
            assert child.params["method"] == child.name.split()[0]
            assert child.loss == [1 / (step + 1 + seed) for step in range(4)]
            assert "accuracy" in child.metrics


@pytest.mark.slow
def test_after_kill_9_resume_runs_only_the_missing_cells_and_the_table_is_that_of_an_uninterrupted_run(
    work: Path,
) -> None:
    (work / "plugins.toml").write_text("[tracking]\nenabled = false\n")
    assert "Traceback" not in finish(start())
    (work / "plugins.toml").unlink()
    whole = re.sub(r"`toy/toy`.*", "", report("table.md"))
    shutil.rmtree("leyden-reports")
    shutil.rmtree("attempts")

    Path("tell").write_text("2")
    killed = start(jobs=1, TOY_ALL="rest_until_told")
    wait_until(lambda: attempts() == 3, killed)
    family = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.wait()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert alive == []
    Path("tell").write_text("99")

    resumed = start("--resume", TOY_ALL="rest_until_told")
    output = finish(resumed)
    assert resumed.returncode == 0, output
    assert "2 of them measured by this code before" in output
    assert attempts() == 3 + 2
    assert re.sub(r"`toy/toy`.*", "", report("table.md")) == whole
    found = runs()
    parents = [run for run in found if not run.parent]
    assert [run.status for run in parents] == ["KILLED", "FINISHED"]
    children = [[run for run in found if run.parent == parent.id] for parent in parents]
    assert [sorted(run.status for run in family) for family in children] == [
        ["FINISHED", "FINISHED", "KILLED"],
        ["FINISHED"] * 4,
    ]
    assert [run.tags.get("leyden.resumed") for run in children[1]].count("true") == 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_claim_is_marked_killed_and_leaves_no_process(work: Path, number: int, status: int) -> None:
    process = start("--seeds=8", TOY="Good1=sleep,Bad0=sleep")
    wait_until(lambda: attempts() == 9, process)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 5
    process.send_signal(number)
    output = finish(process)
    assert process.returncode == status, output
    assert "leyden reproduce toy/toy --scale smoke --seeds 8 --resume" in output
    assert "Traceback" not in output
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert alive == []
    statuses = {run.name: run.status for run in runs()}
    assert statuses["toy/toy"] == "KILLED"
    assert statuses["Good seed 0"] == "FINISHED"
    assert statuses["Good seed 1"] == statuses["Bad seed 0"] == "KILLED"
    assert Path("hooks").read_text().splitlines()[-1].startswith("end KILLED")


@pytest.mark.slow
def test_a_tracked_claim_with_a_killed_worker_and_a_failed_cell_tells_which_is_which(work: Path) -> None:
    process = start(TOY="Good0=die_once,Bad1=fail")
    output = finish(process)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    found = runs()
    assert [(run.name, run.status) for run in found if not run.parent] == [("toy/toy", "FAILED")]
    assert sorted(run.status for run in found if run.name == "Good seed 0") == ["FINISHED", "KILLED"]
    (failed,) = [run for run in found if run.name == "Bad seed 1"]
    assert failed.status == "FAILED"
    assert "error.txt" in failed.artifacts
    assert json.loads(report())["failed"] == 1


def test_a_store_that_does_not_answer_is_told_before_any_cell_runs(work: Path) -> None:
    process = start(MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    output = finish(process)
    assert process.returncode == 1
    assert len(output.strip().splitlines()) == 1
    assert "http://127.0.0.1:9" in output
    assert not Path("attempts").exists()
