from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import leyden
import lightning.pytorch  # noqa: F401 - its log goes to the standard error of now, not to that of the first test
import pytest
from leyden import manager
from leyden.cli import main
from leyden.listing import show_plugin
from plugin_maker import make_plugin
from rich.console import Console

Install = Callable[..., str]
HEAD = "from leyden.hookspecs import hookimpl\nfrom leyden.model import *\nLEYDEN_API = 1\n"
HEAVY = {"torch", "lightning", "mlflow", "numpy", "scipy", "matplotlib", "joblib", "jsonargparse", "yaml"}
PROJECT = """\
seed_everything: 1
trainer: {max_epochs: 2, accelerator: cpu, enable_progress_bar: false, log_every_n_steps: 1}
model: {class_path: regression.Line}
data: {class_path: regression.Plane}
optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.05}}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a user's module and configuration."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "regression.py").write_text(Path(__file__).with_name("regression.py").read_text())
    (folder / "mine.yaml").write_text(PROJECT)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(Path(__file__).parent)])
    monkeypatch.delitem(sys.modules, "regression", raising=False)
    yield folder
    sys.modules.pop("regression", None)


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW", "LEYDEN"))
    }
    environment["OMP_NUM_THREADS"] = "1"
    command = [str(Path(sys.executable).with_name("leyden")), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=cwd, env=environment, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def runs(folder: Path) -> list[tuple[str, str]]:
    """Identity and status of the runs in a working directory's store, oldest first."""
    with closing(sqlite3.connect(folder / "leyden.db")) as store:
        return store.execute("SELECT run_uuid, status FROM runs ORDER BY start_time").fetchall()


def test_listing_imports_nothing_heavy_with_fifty_plugins_installed(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for number in range(50):
        make_plugin(site, f"p{number}", files={"configs/first.yaml": "a: 1\n"})
    make_plugin(site, "broken", "import nothing_of_this_name")
    script = f"""
import contextlib, io, sys
sys.path.insert(0, {str(site)!r})
from leyden.cli import main

def run(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        status = main(arguments)
        assert status == 0, (arguments, status)
    heavy = {HEAVY!r} & set(sys.modules)
    assert not heavy, (arguments, heavy)
    return out.getvalue()

assert run("--version") == "leyden {leyden.__version__}\\n"
assert not [name for name in sys.modules if name.startswith(("made_", "rich", "leyden_"))]
assert "reproduce" in run("--help")
listing = run("plugins")
assert all(f"p{{number}} " in listing for number in range(50)), listing
assert "plugin 'broken' (made-broken 1.0) cannot be imported: ModuleNotFoundError" in listing
assert run("config", "p7/first") == "a: 1\\n"
assert "p7/faster" in run("plugins", "show", "p7")
claims = run("claims")
assert claims.count("Stepper is faster than SGD.") == 50, claims
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_plugins_lists_what_is_there_what_is_off_and_what_is_wrong(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("one", files={"configs/first.yaml": "a: 1\n"})
    install("off")
    install("broken", "raise RuntimeError('no [red]luck[/red]')")
    Path("plugins.toml").write_text("[plugins.off]\nenabled = false\n[plugins.gone]\npath = 'x'\n")
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "1.0" in lines["one"]
    assert "Steps. (ICML 2026)" in lines["one"]
    assert "1 optimizer, 1 configuration, 1 claim" in lines["one"]
    assert "turned off in plugins.toml" in lines["off"]
    assert "cannot be used" in lines["broken"]
    assert "plugin 'broken' (made-broken 1.0) cannot be imported: RuntimeError: no [red]luck[/red]" in out
    assert "plugins.toml:3: plugins.gone: not installed; run 'pip install -e x'" in out


def test_show_tells_all_of_a_plugin(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    package = install("one", files={"configs/first.yaml": "a: 1\n"})
    Path("plugins.toml").write_text("[plugins.one.options]\nevery = 3\n")
    assert main(["plugins", "show", "one"]) == 0
    out = capsys.readouterr().out
    for expected in (
        "On steps",
        "A. Author",
        "https://x.org/1",
        f"{package}.Stepper",
        "every = 3",
        "one/first",
        "one/faster",
        "Stepper is faster",
        f"  from {package} import Stepper\n  def configure_optimizers(self):\n",
        "      return Stepper(self.parameters())\n",
        "leyden fit --config one/first",
    ):
        assert expected in out


def test_config_prints_a_shipped_file_as_it_is(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    text = "# a comment\na: [1,   2]\n"
    install("one", files={"configs/first.yaml": text})
    assert main(["config", "one/first"]) == 0
    assert capsys.readouterr().out == text


def test_claims_tell_what_the_paper_says_and_the_last_verdict_here(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("one")
    assert main(["claims"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "one/faster Stepper is faster (Section 5) takes smoke 6 s with 1 seed, laptop 2 min with 3 seeds"
        in out
    )
    assert "not run here Stepper is faster than SGD. the paper says: twice as fast" in out

    for age, (scale, outcome) in enumerate([("smoke", "undecided"), ("laptop", "holds"), ("paper", None)]):
        report = Path(f"leyden-reports/one/faster/{scale}/verdicts.json")
        report.parent.mkdir(parents=True)
        verdicts = [{"statement": "fast", "outcome": outcome}]
        whole = json.dumps({"scale": scale, "date": "2026-03-01T12:00:00+00:00", "verdicts": verdicts})
        report.write_text(whole if outcome else whole[:20])
        os.utime(report, (1000 + age, 1000 + age))
    assert main(["claims"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "holds (laptop, 2026-03-01) Stepper is faster than SGD." in out, "the newest report that is whole"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("plugns", "unknown command 'plugns'; did you mean 'plugins'?"),
        (
            "plugins shw",
            "argument show NAME: invalid choice: 'shw' (choose from 'show'); see 'leyden plugins --help'",
        ),
        ("plugins show sps_saef", "unknown plugin 'sps_saef'; did you mean 'sps_safe'?"),
        ("config sps_saef/digits", "unknown plugin 'sps_saef'; did you mean 'sps_safe'?"),
        ("config one/frst", "unknown configuration 'one/frst'; did you mean 'one/first'?"),
        ("config one", "'one' names no configuration; there is 'one/first'"),
        ("config", "the following arguments are required: NAME/CONFIG; see 'leyden config --help'"),
        ("reproduce one/fastr", "unknown claim 'one/fastr'; did you mean 'one/faster'?"),
        ("reproduce onne", "unknown plugin 'onne'; did you mean 'one'"),
        ("reproduce one --scale lapto", "unknown scale 'lapto'; did you mean 'laptop'?"),
        ("reproduce one --executor lky", "unknown executor 'lky'; did you mean 'loky'?"),
        ("reproduce one --seeds 0", "argument --seeds: expected an integer of at least 1, got '0'; see"),
        ("reproduce one --jobs two", "argument --jobs: expected an integer of at least 1, got 'two'; see"),
        ("claims --al", "unrecognized arguments: --al; see 'leyden --help'"),
        ("fit", "required and not given: model"),
        ("fit --config one/frst", "unknown configuration 'one/frst'; did you mean 'one/first'?"),
        (
            "fit --config mine.yaml --optimizer Steper",
            "--optimizer: unknown component 'Steper'; did you mean 'Stepper'?",
        ),
        (
            "test --config mine.yaml --model.width=-1",
            "--model.width: regression.Line: width must be positive, got -1",
        ),
        (
            "fit --config mine.yaml --trainer.max_epochs=x",
            "--trainer.max_epochs: expected an integer or null, got 'x'",
        ),
    ],
)
def test_wrong_input_is_one_line_on_stderr_and_status_2(
    arguments: str, expected: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("one", files={"configs/first.yaml": "a: 1\n"})
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line != "Seed set to 1"]
    assert len(lines) == 1, err
    assert lines[0].startswith(f"leyden: {expected}"), lines[0]


def test_wrong_settings_are_told_by_every_command_that_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("plugins.toml").write_text("[tracking]\nurii = 'x'\n")
    for arguments in (["plugins"], ["claims"], ["reproduce", "sps_safe"], ["fit", "--config", "mine.yaml"]):
        manager.manager.cache_clear()
        assert main(arguments) == 2
        assert (
            capsys.readouterr().err
            == "leyden: plugins.toml:2: tracking.urii: unknown key; did you mean 'uri'?\n"
        )


def test_debug_shows_the_traceback_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "config", "nothing/x"], ["config", "nothing/x", "--debug"]):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("Traceback (most recent call last):\n")
        assert err.endswith("\n" + err.splitlines()[-1] + "\n")
        assert err.splitlines()[-1].startswith("leyden: unknown plugin 'nothing'")


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "COMMAND" in capsys.readouterr().out


def test_an_exception_of_the_users_own_code_keeps_its_traceback() -> None:
    Path("plugins.toml").write_text("[tracking]\nenabled = false\n")
    with pytest.raises(ZeroDivisionError):
        main(["fit", "--config", "mine.yaml", "--trainer.callbacks=regression.Divide"])


def test_a_loss_that_turns_nan_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    Path("plugins.toml").write_text("[tracking]\nenabled = false\n")
    assert main(["fit", "--config", "mine.yaml", "--model.bad_step=5"]) == 1
    assert (
        capsys.readouterr().err.splitlines()[-1] == "leyden: loss nan at step 5, epoch 0: metric 'train_loss'"
    )


def test_reproduce_hands_on_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, object]] = []

    def reproduce(names: list[str], **options: object) -> int:
        asked.append((names, {name: value for name, value in options.items() if name != "console"}))
        return 1

    monkeypatch.setattr("leyden.reproduce.reproduce", reproduce)
    assert main(["reproduce", "sps_safe"]) == 1
    seeds = ["--seeds", "2", "--first-seed", "8"]
    options = ["--scale", "smoke", *seeds, "--jobs", "3", "--executor", "ray", "--resume"]
    assert main(["reproduce", "a/b", "c", *options]) == 1
    default = {
        "scale": "laptop",
        "seeds": None,
        "first_seed": 0,
        "jobs": None,
        "executor": None,
        "resume": False,
    }
    assert asked[0] == (["sps_safe"], default)
    assert asked[1] == (
        ["a/b", "c"],
        {"scale": "smoke", "seeds": 2, "first_seed": 8, "jobs": 3, "executor": "ray", "resume": True},
    )


def test_doctor_finds_what_is_wrong(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    hooks = HEAD + (
        "@hookimpl\ndef leyden_checks(): return [Check(name='solver', function='made_one.checks.solver'),\n"
        "  Check(name='solver licence', function='made_one.checks.licence')]\n"
    )
    checks = "def solver(): return 'HiGHS 1.7'\ndef licence(): raise OSError('no file; put it there')\n"
    install("one", hooks, files={"checks.py": checks})
    install("broken", "import nothing_of_this_name")
    site = Path(sys.path[0])
    metadata = site / "made_one-1.0.dist-info" / "METADATA"
    metadata.write_text(
        metadata.read_text() + "Requires-Dist: torch>=99\nRequires-Dist: nothing-of-this-name\n"
    )
    Path("plugins.toml").write_text(
        "[tracking]\nenabled = false\n[plugins.gone]\nrequirement = 'leyden-gone'\n"
    )
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    wrong = [line.removeprefix("wrong ") for line in out.splitlines() if line.startswith("wrong ")]
    assert wrong == [
        "plugin 'broken' (made-broken 1.0) cannot be imported: "
        "ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "plugins.toml:3: plugins.gone: not installed; run 'pip install \"leyden-gone\"'",
        next(line for line in wrong if line.startswith("made-one needs torch>=99; ")),
        "made-one needs nothing-of-this-name, which is not installed",
        "one: solver licence: OSError: no file; put it there",
    ]
    assert "ok    one: solver: HiGHS 1.7" in out
    assert out.endswith("5 things are wrong\n")

    Path("plugins.toml").write_text("[trackin]\n")
    assert main(["doctor"]) == 1
    assert "wrong plugins.toml:1: trackin: unknown key; did you mean 'tracking'?" in capsys.readouterr().out


@pytest.mark.slow
def test_doctor_asks_the_tracking_store(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"ok    tracking: sqlite:///{project}/leyden.db answers" in out
    assert f"ok    working directory {project} can be written" in out
    Path("plugins.toml").write_text("[tracking]\nuri = 'http://127.0.0.1:9'\n")
    assert main(["doctor"]) == 1
    assert "wrong tracking: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_told_before_anything_trains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("plugins.toml").write_text("[tracking]\nuri = 'http://127.0.0.1:9'\n")
    assert main(["fit", "--config", "mine.yaml", "--model.seconds=0.001"]) == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err.splitlines()[-1]
    assert not Path("stepped").exists()


@pytest.mark.slow
def test_fit_finds_the_users_module_also_in_workers_and_tracks_the_run(project: Path) -> None:
    arguments = ("--data.workers=1", "--trainer.max_epochs=1", "--trainer.limit_val_batches=0")
    program = start("fit", "--config", "mine.yaml", *arguments, cwd=project)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 0, out + err
    ((identity, status),) = runs(project)
    assert status == "FINISHED"
    with closing(sqlite3.connect(project / "leyden.db")) as store:
        count = store.execute("SELECT count(*) FROM metrics WHERE key = 'train_loss'").fetchone()
        name = store.execute("SELECT name FROM runs").fetchone()
        parameters = dict(store.execute("SELECT key, value FROM params").fetchall())
    assert (count, name) == ((8,), ("fit mine",))
    assert parameters["optimizer.class_path"] == "torch.optim.SGD"
    assert parameters["optimizer.init_args.lr"] == "0.05"
    assert parameters["data.init_args.workers"] == "1"
    saved = project / "leyden-artifacts" / identity / "artifacts" / "config.yaml"
    assert "class_path: regression.Line" in saved.read_text()
    (checkpoint,) = project.rglob("*.ckpt")
    assert checkpoint.relative_to(project).parts[:2] == ("leyden-runs", "leyden")


@pytest.mark.slow
def test_ctrl_c_and_sigterm_end_the_run_as_killed_with_one_line(tmp_path: Path, project: Path) -> None:
    cases = {signal.SIGINT: (130, "leyden: interrupted"), signal.SIGTERM: (143, "leyden: terminated")}
    programs = {}
    for number in cases:
        folder = tmp_path / number.name
        folder.mkdir()
        for file in ("regression.py", "mine.yaml"):
            (folder / file).write_text((project / file).read_text())
        arguments = ("--model.seconds=0.1", "--trainer.max_epochs=1000")
        programs[number] = (start("fit", "--config", "mine.yaml", *arguments, cwd=folder), folder)
    for number, (program, folder) in programs.items():
        while not (folder / "stepped").exists():
            assert program.poll() is None, program.communicate()
            time.sleep(0.1)
        program.send_signal(number)
    for number, (program, folder) in programs.items():
        _, err = program.communicate(timeout=60)
        status, line = cases[number]
        assert program.returncode == status, err
        assert err.splitlines()[-1] == line
        assert "Traceback" not in err
        assert [status for _, status in runs(folder)] == ["KILLED"]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only, also for root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        (folder / "regression.py").write_text(Path("regression.py").read_text())
        (folder / "mine.yaml").write_text(Path("mine.yaml").read_text())
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield
    finally:
        os.chdir(folder.parent)
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_read_only_working_directory_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "read-only"
    with read_only(folder):
        monkeypatch.chdir(folder)
        assert main(["plugins"]) == 0
        capsys.readouterr()
        assert main(["fit", "--config", "mine.yaml"]) == 1
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"leyden: cannot write in {folder}: ")
        untracked = ["--trainer.logger=false", "--trainer.max_epochs=1"]
        assert main(["fit", "--config", "mine.yaml", *untracked]) == 1
        assert capsys.readouterr().err.splitlines()[-1].startswith("leyden: cannot write ")
        assert main(["doctor"]) == 1
        assert (
            f"wrong working directory {folder} cannot be written: Read-only file system"
            in capsys.readouterr().out
        )


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_output_is_no_error(
    closed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, closed, None)
    assert main(["plugins"]) == 0
    assert main(["plugins", "show", "nothing"]) == 2
    out, err = capsys.readouterr()
    assert ("sps_safe" in out, "unknown plugin" in err) == (closed == "stderr", closed == "stdout")


def test_names_stay_whole_in_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_plugin(Console(width=60), manager.manager(), manager.manager().plugin("sps_safe"))
    out = capsys.readouterr().out
    assert all(component.path in out for component in manager.manager().plugin("sps_safe").components)


def test_a_reader_that_has_enough_is_no_error(project: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "leyden", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=project,
    )
    assert program.stdout is not None
    program.stdout.close()
    _, err = program.communicate(timeout=60)
    assert err == b""


def test_a_working_directory_that_is_gone_is_told_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for command in ("plugins", "sync", "fit"):
        assert main([command]) == 1
        assert capsys.readouterr().err == "leyden: the working directory is gone; change to one that exists\n"


def test_what_a_terminal_would_obey_is_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "\x1b[31mred\udcff"]) == 2
    assert r"unknown plugin '\x1b[31mred\udcff'" in capsys.readouterr().err
