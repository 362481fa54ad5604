from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from leyden import manager
from leyden import new as module
from leyden.cli import main
from leyden.errors import LeydenError
from leyden.new import KINDS, class_name, new_plugin
from leyden.testing import cases_of
from leyden.testing.kit import Case, Subject
from leyden.testing.processes import TASKS, process_cases

ROOT = Path(__file__).resolve().parents[2]
LONG = "x2345678_2345678_2345678"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, which is no checkout."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def make_checkout(root: Path) -> Path:
    """Put what a checkout of Leyden is known by into a folder, where it is not there yet."""
    for file in ("pyproject.toml", "plugins.toml", "core/pyproject.toml"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        if not (root / file).exists():
            shutil.copy(ROOT / file, root / file)
    return root


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is known as a checkout of Leyden; the working directory lies deep in it."""
    root = make_checkout(tmp_path / "checkout")
    deep = root / "docs" / "pages"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    return root


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A plugin of every kind, on the path with its metadata, by its name."""
    site = tmp_path_factory.mktemp("site")
    folders = {}
    for kind in KINDS:
        created = new_plugin(f"made_{kind}", kind, site)
        folders[created.name] = created.folder
        shutil.copytree(created.folder / "src", site, dirs_exist_ok=True)
        metadata = site / f"leyden_made_{kind}-0.1.0.dist-info"
        metadata.mkdir()
        project = tomllib.loads((created.folder / "pyproject.toml").read_text())["project"]
        entries = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["leyden"].items())
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n"
        )
        (metadata / "entry_points.txt").write_text(f"[leyden]\n{entries}")
    sys.path.insert(0, str(site))
    yield folders
    sys.path.remove(str(site))
    for name in [name for name in sys.modules if name.startswith("leyden_made_")]:
        del sys.modules[name]


def files(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def owed(plugin: str) -> list[Case]:
    return [case for case in cases_of(plugin) if case.check not in TASKS]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_owes_checks_of_every_sort_and_passes_them(
    kind: str, installed: dict[str, Path]
) -> None:
    cases = owed(f"made_{kind}")
    name = class_name(f"made_{kind}")
    assert {case.subject for case in cases} >= {name, "digits.yaml", "Digits", f"made_{kind}"}
    assert not [case.id for case in cases if case.exempt]
    assert [str(finding) for case in cases for finding in case.findings()] == []


@pytest.mark.slow
def test_new_plugins_pass_the_checks_among_processes(installed: dict[str, Path]) -> None:
    """All in one group of processes, since each would spend seconds on its imports."""
    found = manager.discover()
    components = [component for name in installed for component in found.plugin(name).components]
    cases = list(process_cases([Subject(component, from_paper=True) for component in components]))
    assert {case.check for case in cases} == set(TASKS)
    assert [str(finding) for case in cases for finding in case.findings()] == []


@pytest.mark.slow
def test_the_tests_that_come_with_new_plugins_pass(installed: dict[str, Path], here: Path) -> None:
    tests = [str(path) for folder in installed.values() for path in folder.glob("tests/test_made_*.py")]
    assert len(tests) == len(KINDS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    done = subprocess.run([*command, *tests], env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_new_claim_runs_at_smoke_scale(
    installed: dict[str, Path],
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (here / "plugins.toml").write_text("[tracking]\nenabled = false\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert main(["reproduce", "made_loss", "--scale", "smoke", "--jobs", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "MadeLoss is within 0.02 of cross-entropy" in out


@pytest.mark.slow
def test_the_wheel_holds_the_whole_skeleton(here: Path) -> None:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(here)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT / "core")], check=True)
    (wheel,) = here.glob("*.whl")
    source = ROOT / "core" / "src"
    skeleton = {
        path.relative_to(source).as_posix()
        for path in (source / "leyden" / "skeleton").rglob("*")
        if path.is_file()
    }
    assert len(skeleton) > 40
    assert skeleton <= set(zipfile.ZipFile(wheel).namelist())


def test_the_code_is_as_the_houses_linter_wants_it_whatever_the_name(tmp_path: Path) -> None:
    """All in one go of the linter, which takes for each file the settings that lie nearest above it."""
    for kind in KINDS:
        for name in ("q", "my_paper", LONG):
            alone = tmp_path / "alone" / kind
            alone.mkdir(parents=True, exist_ok=True)
            assert new_plugin(name, kind, alone).changed == ()
            assert new_plugin(name, kind, make_checkout(tmp_path / "checkouts" / kind)).changed
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_code_is_typed_strictly(installed: dict[str, Path]) -> None:
    sources = [str(folder / "src") for folder in installed.values()]
    command = [sys.executable, "-m", "mypy", *sources]  # with the checkout's settings and what it has cached
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_readmes_blocks_run_and_name_what_exists(kind: str, installed: dict[str, Path]) -> None:
    readme = (installed[f"made_{kind}"] / "README.md").read_text()
    python = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert len(python) == 1
    exec(compile(python[0], "README.md", "exec"), {"__name__": "__main__"})
    (document,) = re.findall(r"^```yaml\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert f"leyden_made_{kind}.{class_name(f'made_{kind}')}" in str(yaml.safe_load(document))


def test_a_name_becomes_distribution_package_and_class(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "my_paper", "--kind", "optimizer"]) == 0
    out = capsys.readouterr().out
    assert "made leyden-my-paper\n" in out
    assert "leyden reproduce my_paper --scale smoke" in out
    folder = here / "leyden-my-paper"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "leyden-my-paper"
    assert project["entry-points"]["leyden"] == {"my_paper": "leyden_my_paper.plugin"}
    made = files(folder)
    assert "class MyPaper(Optimizer):" in made["src/leyden_my_paper/optimizer.py"]
    assert {"LICENSE", "CHANGELOG.md", "Makefile", ".gitignore", "src/leyden_my_paper/py.typed"} <= set(made)
    assert made["LICENSE"] == (ROOT / "LICENSE").read_text()
    assert (folder / ".git").is_dir(), "a repository of its own"
    assert folder.stat().st_mode & 0o777 == here.stat().st_mode & 0o777


def test_nothing_of_the_templates_is_left(here: Path) -> None:
    for kind in KINDS:
        for path, text in files(new_plugin(f"a_{kind}", kind).folder).items():
            assert not re.search(r"PACKAGE|SLUG|DOT|\.template", path)
            if path != "Makefile":
                assert not re.search(r"\$\{?[a-z]", text), (kind, path)


def test_in_a_repository_no_second_one_is_made(here: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=here, check=True)
    assert not (new_plugin("my_paper", "loss").folder / ".git").exists()


def test_in_a_checkout_it_lands_in_plugins_and_in_every_list(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: (checkout / name).read_text() for name in ("plugins.toml", "pyproject.toml")}
    assert main(["new", "my_paper", "--kind", "layer"]) == 0
    assert "make test PLUGIN=my_paper" in capsys.readouterr().out
    made = files(checkout / "plugins" / "my_paper")
    assert not {"LICENSE", "CHANGELOG.md", "Makefile", ".gitignore"} & set(made), "the workspace has them"
    assert "[tool.ruff]" not in made["pyproject.toml"]

    listed = tomllib.loads((checkout / "plugins.toml").read_text())
    assert listed["plugins"].pop("my_paper") == {"path": "plugins/my_paper"}
    assert listed == tomllib.loads(before["plugins.toml"])
    linter = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert "leyden_my_paper" in linter["root_packages"]
    layers, core = linter["contracts"]
    assert "leyden_my_paper" in layers["layers"][0].split(" | ")
    assert "leyden_my_paper.my_paper" in core["source_modules"]
    for name, text in before.items():
        now = (checkout / name).read_text()
        kept = [line for line in text.splitlines() if line.startswith("#")]
        assert [line for line in now.splitlines() if line.startswith("#")] == kept
        assert (
            len(now.splitlines()) - len(text.splitlines()) == {"plugins.toml": 3, "pyproject.toml": 1}[name]
        )


def test_two_plugins_in_a_checkout_are_both_listed(checkout: Path) -> None:
    new_plugin("one", "loss")
    new_plugin("two", "callback")
    plugins = tomllib.loads((checkout / "plugins.toml").read_text())["plugins"]
    assert list(plugins)[-2:] == ["one", "two"]
    layers = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    assert layers["layers"][0].endswith("leyden_one | leyden_two")
    assert "\n\n[plugins.two]\n" in (checkout / "plugins.toml").read_text()
    assert "\n\n[tracking]\n" in (checkout / "plugins.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("x --kind optimiser", "unknown kind 'optimiser'; did you mean 'optimizer'?"),
        ("x --kind metric", "unknown kind 'metric'; there is 'callback', 'layer', "),
        ("x", "the following arguments are required: --kind; see 'leyden new --help'"),
        ("--kind loss", "the following arguments are required: NAME; see 'leyden new --help'"),
        ("My-Paper --kind loss", "argument NAME: 'My-Paper' cannot name a plugin: expected "),
        ("My-Paper --kind loss", "no keyword of Python; did you mean 'my_paper'?"),
        ("leyden-My-Paper --kind loss", "no keyword of Python; did you mean 'my_paper'?"),
        ("Präzise --kind loss", "no keyword of Python; did you mean 'prazise'?"),
        ("None --kind loss", "argument NAME: 'None' cannot name a plugin: expected lower-case letters and"),
        (
            "leyden_x --kind loss",
            "would make a package 'leyden_leyden_x', as 'leyden' is put before every",
        ),
        (f"{'x' * 500} --kind loss", f"at most 24 letters, got 500 in '{'x' * 39}…'"),
        ("class --kind loss", "argument NAME: 'class' cannot name a plugin: expected "),
        ("my__paper --kind loss", "argument NAME: 'my__paper' cannot name a plugin: expected "),
        ("../x --kind loss", "argument NAME: '../x' cannot name a plugin: expected "),
        (f"{LONG}x --kind loss", "argument NAME: expected at most 24 letters, got 25 in "),
        ("taken --kind loss", "argument NAME: 'taken' is taken: leyden-taken exists"),
        ("sps_safe --kind loss", "is taken: a plugin of that name is installed from leyden-sps-safe 0.1.0"),
        ("json --kind loss", "argument NAME: 'json' is taken: there is a module 'json'"),
        ("torch --kind loss", "argument NAME: 'torch' is taken: there is a module 'torch'"),
        ("claims --kind loss", "'claims' is taken: the skeleton of this kind has a 'claims' of its own"),
        ("conformance --kind loss", "the skeleton of this kind has a 'conformance' of its own"),
        ("normalize --kind layer", "the skeleton of this kind has a 'normalize' of its own"),
        ("tensor --kind layer", "its class would be 'Tensor', which the skeleton's code uses already"),
        ("value_error --kind layer", "its class would be 'ValueError', which the skeleton's code uses"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(
    arguments: str, expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "leyden-taken").mkdir()
    assert main(["new", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("leyden: ")
    assert err.count("\n") == 1
    assert expected in err
    assert [path.name for path in here.iterdir()] == ["leyden-taken"]
    assert not list((here / "leyden-taken").iterdir())


@pytest.mark.parametrize("name", ["None", "class", "1abc", "...", "", "x" * 30 + "-y"])
def test_no_name_is_proposed_that_would_be_refused_as_well(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", name, "--kind", "loss"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named_as_it_was_asked_for(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(prefix: str, dir: Path) -> str:
        raise PermissionError(13, "Permission denied", f"{dir}/{prefix}x2")

    monkeypatch.setattr(module.tempfile, "mkdtemp", refuse)
    assert main(["new", "my_paper", "--kind", "loss"]) == 1
    assert capsys.readouterr().err == f"leyden: cannot write {here / 'leyden-my-paper'}: Permission denied\n"


def test_a_name_that_a_checkouts_plugins_toml_lists_is_taken(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (checkout / "plugins.toml").open("a") as file:
        file.write("[plugins.my-paper]\nrequirement = 'leyden-my-paper'\n")
    assert main(["new", "my_paper", "--kind", "loss"]) == 2
    assert "argument NAME: 'my_paper' is taken: " in capsys.readouterr().err
    assert not (checkout / "plugins").exists()


@pytest.mark.parametrize("failing", ["plugins.toml", "pyproject.toml"])
def test_where_a_list_cannot_be_written_nothing_has_changed(
    failing: str, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(checkout)
    write = module.write_atomic

    def full(path: Path, content: str | bytes) -> Path:
        if path.name == failing and b"my_paper" in (
            content if isinstance(content, bytes) else content.encode()
        ):
            raise OSError(28, "No space left on device", str(path))
        return write(path, content)

    monkeypatch.setattr(module, "write_atomic", full)
    assert main(["new", "my_paper", "--kind", "loss"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("leyden: cannot write ")
    assert err.endswith(f"{failing}: No space left on device\n")
    assert files(checkout) == before
    assert not list((checkout / "plugins").iterdir())


def test_a_checkout_whose_lists_are_not_as_expected_is_told_of(checkout: Path) -> None:
    path = checkout / "pyproject.toml"
    path.write_text(path.read_text().replace("root_packages", "roots"))
    before = files(checkout)
    with pytest.raises(LeydenError, match=r"cannot add 'my_paper' to .*root_packages"):
        new_plugin("my_paper", "loss")
    assert files(checkout) == before


def test_a_users_project_with_a_plugins_toml_is_no_checkout(here: Path) -> None:
    (here / "plugins.toml").write_text("[tracking]\nenabled = false\n")
    (here / "core").mkdir()
    (here / "core" / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    assert new_plugin("my_paper", "loss").folder == here / "leyden-my-paper"
    assert (here / "plugins.toml").read_text() == "[tracking]\nenabled = false\n"
