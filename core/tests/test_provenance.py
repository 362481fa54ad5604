from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from leyden.provenance import provenance


@pytest.fixture(autouse=True)
def plain_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Git finds no repository but the test's own and no settings of the user."""
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "kept.txt").write_text("one")
    (tmp_path / "sub").mkdir()
    git(tmp_path, "add", "kept.txt")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    return tmp_path


def test_versions_are_those_of_the_installed_distributions() -> None:
    record = provenance()
    assert record["python"] == platform.python_version()
    assert record["platform"] == platform.platform()
    for name in ("leyden", "torch", "lightning", "leyden-callbacks", "leyden-sps-safe"):
        assert record[name] == importlib.metadata.version(name)
    assert all(isinstance(value, str) for value in record.values())


def test_commit_is_that_of_the_directory_also_below_its_top(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert len(commit) == 40
    assert provenance(repository)["git_commit"] == commit
    assert provenance(repository / "sub")["git_commit"] == commit


def test_the_working_directory_is_the_default(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    assert provenance()["git_commit"] == git(repository, "rev-parse", "HEAD")


def test_a_changed_file_makes_the_commit_dirty_and_an_untracked_one_does_not(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "leyden.db").write_text("new")
    assert provenance(repository)["git_commit"] == commit
    (repository / "kept.txt").write_text("two")
    assert provenance(repository)["git_commit"] == f"{commit}+dirty"
    git(repository, "add", "kept.txt")
    assert provenance(repository)["git_commit"] == f"{commit}+dirty"


def test_asking_takes_no_lock_of_the_repository(repository: Path) -> None:
    (repository / ".git" / "index.lock").touch()
    assert "git_commit" in provenance(repository)


def test_no_repository_no_commit_and_no_git_leave_the_commit_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "git_commit" not in provenance(tmp_path)
    git(tmp_path, "init", "--quiet")
    assert "git_commit" not in provenance(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git_commit" not in provenance(tmp_path)


def test_seed_is_the_one_given_to_seed_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    assert provenance()["seed"] == "5"
    monkeypatch.delenv("PL_GLOBAL_SEED")
    assert "seed" not in provenance()


def test_asking_imports_nothing_heavy() -> None:
    script = (
        "import sys; from leyden.provenance import provenance; provenance();"
        "print(sorted({'torch', 'lightning', 'mlflow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
