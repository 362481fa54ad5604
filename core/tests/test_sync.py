from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from importlib.metadata import PathDistribution
from pathlib import Path

import leyden
import pytest
import torch
from leyden import sync as module
from leyden.cli import main

BACKEND = '''
"""Builds the package beside it with the standard library alone."""
import pathlib, re, tomllib, zipfile

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
stem = re.sub("[-.]+", "_", project["name"]) + "-" + project["version"]
plugins = project.get("entry-points", {}).get("leyden", {})
metadata = ["Metadata-Version: 2.1", "Name: " + project["name"], "Version: " + project["version"]]
metadata += ["Requires-Dist: " + one for one in project.get("dependencies", [])]
tags = ["Wheel-Version: 1.0", "Generator: test", "Root-Is-Purelib: true", "Tag: py3-none-any"]
described = {
    "METADATA": metadata,
    "WHEEL": tags,
    "entry_points.txt": ["[leyden]", *(f"{name} = {value}" for name, value in plugins.items())],
}
info = {f"{stem}.dist-info/{name}": "\\n".join(lines) + "\\n" for name, lines in described.items()}


def fail_at(stage):
    if stage in project.get("keywords", []):
        raise RuntimeError("no compiler in sight")


def prepare_metadata_for_build_wheel(folder, settings=None):
    fail_at("metadata")
    for path, text in info.items():
        (pathlib.Path(folder) / path).parent.mkdir(exist_ok=True)
        (pathlib.Path(folder) / path).write_text(text)
    return stem + ".dist-info"


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build(folder, files):
    fail_at("build")
    files |= info
    record = stem + ".dist-info/RECORD"
    files[record] = "".join(f"{name},,\\n" for name in [*files, record])
    name = stem + "-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name


def build_wheel(folder, settings=None, metadata=None):
    sources = pathlib.Path("src").rglob("*.py")
    return build(folder, {str(path.relative_to("src")): path.read_text() for path in sources})


def build_editable(folder, settings=None, metadata=None):
    return build(folder, {project["name"] + ".pth": str(pathlib.Path("src").resolve()) + "\\n"})
'''
PLUGIN = """
from leyden.hookspecs import hookimpl
LEYDEN_API = 1
"""


class Project:
    """A working directory with a plugins.toml, and an environment of its own that lies over this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / "environment"
        self.index = folder / "index"
        self.index.mkdir(parents=True)
        venv.create(self.environment, symlinks=True)
        paths = {"base": str(self.environment), "platbase": str(self.environment)}
        self.site = Path(sysconfig.get_path("purelib", vars=paths))
        (self.site / "below.pth").write_text(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        )

    def plugin(
        self,
        name: str,
        version: str = "1.0",
        *,
        fails_at: str = "",
        needs: tuple[str, ...] = (),
        distribution: str = "",
    ) -> Path:
        """Write the source of a plugin, or of its next version."""
        folder = self.folder / "plugins" / name
        package = folder / "src" / f"leyden_{name}"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "plugin.py").write_text(PLUGIN)
        (folder / "backend.py").write_text(BACKEND)
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            f'[project]\nname = "{distribution or f"leyden-{name}"}"\nversion = "{version}"\n'
            f"dependencies = {json.dumps(needs)}\n"
            f'keywords = ["{fails_at}"]\n'
            f'[project.entry-points.leyden]\n{name} = "leyden_{name}.plugin"\n'
        )
        return folder

    def release(
        self, name: str, version: str, *, needs: tuple[str, ...] = (), distribution: str = ""
    ) -> None:
        """Put a wheel of a plugin into the index."""
        folder = self.plugin(name, version, needs=needs, distribution=distribution)
        program = (
            f"import sys; sys.path.insert(0, '.'); import backend; backend.build_wheel({str(self.index)!r})"
        )
        subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)

    def lists(self, **plugins: str) -> None:
        """Write plugins.toml: a path where there is a slash, else a requirement."""
        tables = [
            f'[plugins.{name}]\n{"path" if "/" in source else "requirement"} = "{source}"\n'
            for name, source in plugins.items()
        ]
        (self.folder / "plugins.toml").write_text("\n".join(tables))

    def sync(self, *arguments: str, status: int = 0) -> str:
        """Run ``leyden sync`` there, offline, and return what it printed."""
        done = subprocess.run(
            [self.environment / "bin" / "python", "-P", "-m", "leyden", "sync", *arguments],
            cwd=self.folder,
            env=self.variables(),
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        if status:
            assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr if status else done.stdout

    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        return {**kept, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index), "PIP_CONFIG_FILE": os.devnull}

    def installed(self) -> dict[str, str]:
        """What lies in the environment itself, with the versions."""
        found = [PathDistribution(path) for path in self.site.glob("*.dist-info")]
        return {one.name: one.version for one in found}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One that holds a plugin, for the tests that must leave it so."""
    project = Project(tmp_path_factory.mktemp("settled"))
    project.plugin("one")
    project.lists(one="plugins/one")
    project.sync()
    assert project.installed() == {"leyden-one": "1.0"}
    return project


def test_what_is_listed_is_installed_and_then_there_is_nothing_to_do(project: Project) -> None:
    project.plugin("one")
    project.release("two", "1.5")
    project.lists(one="plugins/one", two="leyden-two>=1")
    out = project.sync("--dry-run")
    assert "would be installed: one (leyden-one 1.0, editable from plugins/one)\n" in out
    assert "would be installed: two (leyden-two 1.5)\n" in out
    assert project.installed() == {}

    out = project.sync()
    assert "one: not installed\ntwo: not installed\nasking pip for 2 plugins\n" in out
    assert "installed: one (leyden-one 1.0, editable from plugins/one)\n" in out
    assert "installed: two (leyden-two 1.5)\n" in out
    assert project.installed() == {"leyden-one": "1.0", "leyden-two": "1.5"}
    origin = json.loads((project.site / "leyden_one-1.0.dist-info" / "direct_url.json").read_text())
    assert origin["dir_info"] == {"editable": True}

    assert project.sync() == (
        "already there: one (leyden-one 1.0, editable from plugins/one)\n"
        "already there: two (leyden-two 1.5)\n"
        "nothing to do\n"
    )


def test_only_what_differs_is_installed_anew(project: Project) -> None:
    project.plugin("one")
    project.plugin("other")
    project.release("two", "1.5")
    project.lists(one="plugins/one", other="plugins/other", two="leyden-two>=1")
    project.sync()
    before = (project.site / "leyden_other-1.0.dist-info").stat().st_mtime_ns

    project.plugin("one", "1.1")
    project.release("two", "2.0")
    project.lists(one="plugins/one", other="plugins/other", two="leyden-two>=2")
    out = project.sync()
    assert "one: its version is 1.1, installed as 1.0\n" in out
    assert "two: needs leyden-two>=2, and 1.5 is installed\n" in out
    assert "changed from 1.0: one (leyden-one 1.1, editable from plugins/one)\n" in out
    assert "changed from 1.5: two (leyden-two 2.0)\n" in out
    assert "already there: other (leyden-other 1.0, editable from plugins/other)\n" in out
    assert project.installed() == {"leyden-one": "1.1", "leyden-other": "1.0", "leyden-two": "2.0"}
    assert (project.site / "leyden_other-1.0.dist-info").stat().st_mtime_ns == before


def test_changed_dependencies_are_seen_and_installed(project: Project) -> None:
    project.plugin("one")
    project.lists(one="plugins/one")
    project.sync()
    project.release("two", "1.0")
    project.plugin("one", needs=("leyden-two",))
    out = project.sync()
    assert "one: its dependencies are others than when it was installed\n" in out
    assert "installed anew: one" in out
    assert "installed with them: leyden-two 1.0\n" in out


@pytest.mark.parametrize("fault", ["backend", "metadata", "build", "missing", "dependency", "torch"])
def test_a_plugin_that_cannot_be_had_leaves_everything_as_it_was(fault: str, settled: Project) -> None:
    project = settled
    before = project.installed()
    project.plugin("one", "1.1")
    project.plugin("new")
    third = "plugins/third"
    if fault in ("metadata", "build"):
        project.plugin("third", fails_at=fault)
        expected = "plugins.third.path: it cannot be built: RuntimeError: no compiler in sight"
    elif fault == "backend":
        settings = project.plugin("third") / "pyproject.toml"
        settings.write_text(settings.read_text().replace("requires = []", 'requires = ["leyden-nowhere"]'))
        expected = (
            "plugins.third.path: it cannot be built: Could not find a version that satisfies the requirement "
            "leyden-nowhere (from versions: none)"
        )
    elif fault == "missing":
        project.release("third", "0.5")
        third = "leyden-third>=7"
        expected = "plugins.third.requirement: pip finds no version of leyden-third>=7; there is 0.5"
    elif fault == "dependency":
        project.plugin("third", needs=("leyden-nowhere>=3",))
        expected = "plugins.third.path: pip finds no version of leyden-nowhere>=3; leyden-third needs it; "
        expected += "there is none"
    else:
        project.plugin("third", needs=("torch<2",))
        version = torch.__version__
        expected = (
            "plugins.third.path: leyden-third 1.0 needs torch<2, "
            f"and torch {version} is installed, which sync leaves as it is"
        )
    project.lists(one="plugins/one", new="plugins/new", third=third)
    assert project.sync(status=1) == f"leyden: plugins.toml:8: {expected}\n"
    assert project.installed() == before


def test_a_plugin_for_another_leyden_is_not_installed(project: Project) -> None:
    project.plugin("one", needs=(f"leyden>{leyden.__version__}",))
    project.lists(one="plugins/one")
    err = project.sync(status=1)
    assert f"needs leyden>{leyden.__version__}, and leyden {leyden.__version__} is installed" in err
    assert project.installed() == {}


def test_two_plugins_that_exclude_each_other_are_told(project: Project) -> None:
    for version in ("1.0", "2.0"):
        project.release("base", version)
    project.plugin("one", needs=("leyden-base<2",))
    project.plugin("two", needs=("leyden-base>=2",))
    project.lists(one="plugins/one", two="plugins/two")
    err = project.sync(status=1)
    assert "leyden-one 1.0 depends on leyden-base<2; leyden-two 1.0 depends on leyden-base>=2" in err
    assert project.installed() == {}


def test_another_revision_of_a_repository_is_installed_and_the_same_is_not(project: Project) -> None:
    repository = project.folder / "all"
    (repository / "plugins").mkdir(parents=True)
    project.plugin("two").rename(repository / "plugins" / "two")

    def git(*arguments: str) -> None:
        author = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *author, *arguments], cwd=repository, check=True, capture_output=True)

    git("init", "--quiet")
    for tag in ("v1", "v2"):
        (repository / "plugins/two/src/leyden_two/said.py").write_text(tag)
        git("add", ".")
        git("commit", "--quiet", "--message", tag)
        git("tag", tag)

    def listed(revision: str) -> None:
        source = f"git+file://{repository}@{revision}#subdirectory=plugins/two"
        (project.folder / "plugins.toml").write_text(
            f'[plugins.two]\nrequirement = "leyden-two @ {source}"\n'
        )

    listed("v1")
    assert "installed: two (leyden-two 1.0)\n" in project.sync()
    assert project.sync() == "already there: two (leyden-two 1.0)\nnothing to do\n"
    listed("v2")
    out = project.sync()
    assert out.startswith("two: installed from elsewhere\n")
    assert out.endswith("installed anew: two (leyden-two 1.0)\n")
    assert (project.site / "leyden_two" / "said.py").read_text() == "v2"
    listed("v3")
    assert project.sync(status=1) == (
        "leyden: plugins.toml:2: plugins.two.requirement: it cannot be built: "
        "error: pathspec 'v3' did not match any file(s) known to git\n"
    )
    assert (project.site / "leyden_two" / "said.py").read_text() == "v2"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        (
            "git+ssh://git@example.org/a.git",
            {"url": "ssh://git@example.org/a.git", "vcs_info": {"vcs": "git"}},
        ),
        (
            "git+https://${TOKEN}@example.org/a.git@0a1b#egg=a",
            {
                "url": "https://example.org/a.git",
                "vcs_info": {"vcs": "git", "requested_revision": "0a1b", "commit_id": "0a1b"},
            },
        ),
        ("https://me:word@example.org/a.zip#sha256=0a1b", {"url": "https://example.org/a.zip"}),
    ],
)
def test_an_address_is_known_again_in_what_pip_wrote_down(url: str, origin: dict[str, object]) -> None:
    assert module._place(url) == module._place_of(origin)


def test_a_plugin_that_would_break_one_that_is_there_is_not_installed(project: Project) -> None:
    for version in ("1.0", "2.0"):
        project.release("base", version)
    project.plugin("one", needs=("leyden-base<2",))
    project.lists(one="plugins/one")
    project.sync()
    before = project.installed()
    project.plugin("two", needs=("leyden-base>=2",))
    project.lists(one="plugins/one", two="plugins/two")
    assert project.sync(status=1) == (
        "leyden: plugins.toml:5: plugins.two.path: leyden-two 1.0 needs leyden-base>=2, "
        "and leyden-base<2 is needed by leyden-one 1.0\n"
    )
    project.lists(two="plugins/two")  # what is installed and not listed is used as well
    assert "and leyden-base<2 is needed by leyden-one 1.0" in project.sync(status=1)
    assert project.installed() == before


def test_a_plugin_that_would_take_from_leyden_what_it_needs_is_not_installed(project: Project) -> None:
    project.release("pluggy", "1.0", distribution="pluggy")
    project.release("two", "1.0", needs=("pluggy<1.5",))
    project.lists(two="leyden-two")
    told = f"leyden-two 1.0 needs pluggy<1.5, and pluggy>=1.5 is needed by leyden {leyden.__version__}\n"
    assert project.sync(status=1).endswith(told)
    assert project.installed() == {}


def test_it_ends_with_pip_when_it_is_told_to(project: Project) -> None:
    folder = project.plugin("slow")
    (folder / "backend.py").write_text(
        "import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(60)\n" + BACKEND
    )
    project.lists(slow="plugins/slow")
    command = [project.environment / "bin" / "python", "-P", "-m", "leyden", "sync"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        command, cwd=project.folder, env=project.variables(), text=True, start_new_session=True, **pipes
    ) as program:
        deadline = time.monotonic() + 60
        while not (folder / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(program.pid, signal.SIGTERM)
        _, err = program.communicate(timeout=30)
    assert (program.returncode, err) == (143, "leyden: terminated\n")
    assert project.installed() == {}


def test_nothing_to_do_asks_no_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).resolve().parents[2]
    source = f"path = '{root / 'callbacks'}'"
    (tmp_path / "plugins.toml").write_text(
        f"[plugins.callbacks]\n{source}\n[plugins.sps_safe]\nrequirement = 'leyden-sps-safe>=0.1'\n"
        "[plugins.off]\nenabled = false\npath = 'nowhere'\n"
        "[plugins.elsewhere]\nrequirement = \"leyden-elsewhere; sys_platform == 'none'\"\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_pip", lambda arguments: pytest.fail(f"pip was asked: {arguments}"))
    assert main(["sync"]) == 0
    out = capsys.readouterr().out
    assert "already there: callbacks (leyden-callbacks 0.1.0, editable from " in out
    assert "already there: sps_safe (leyden-sps-safe 0.1.0)\n" in out
    assert out.endswith("\nnothing to do\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "there is no plugins.toml here or above; nothing says which plugins to install"),
        ("path = 'gone'", "plugins.toml:2: plugins.x.path: there is no folder 'gone' beside plugins.toml"),
        ("path = 'empty'", "plugins.toml:2: plugins.x.path: 'empty' holds no pyproject.toml, so pip cannot"),
        ("path = 'wrong'", "plugins.toml:2: plugins.x.path: wrong/pyproject.toml cannot be read: "),
        ("path = 'other'", "plugins.toml:2: plugins.x.path: 'other' holds no plugin 'x'; there is 'y'"),
        ("requirement = 'a b'", "plugins.toml:2: plugins.x.requirement: 'a b' is no requirement that pip"),
        (
            "requirement = 'git+https://x.org/a'",
            "plugins.toml:2: plugins.x.requirement: 'git+https://x.org/a' is",
        ),
        ("requirement = './a'", "plugins.toml:2: plugins.x.requirement: './a' is no requirement that pip"),
    ],
)
def test_a_wrong_plugins_toml_is_one_line_with_its_place(
    text: str | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "wrong": "[project",
        "other": "[project.entry-points.leyden]\ny = 'y.plugin'\n",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(content)
    (tmp_path / "empty").mkdir()
    if text is not None:
        (tmp_path / "plugins.toml").write_text(f"[plugins.x]\n{text}\n")
    assert main(["sync"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"leyden: {expected}")
    assert err.count("\n") == 1
    assert err.endswith("an address is written as 'DISTRIBUTION @ git+https://x.org/a'\n") == ("://" in err)
