"""Where a run comes from: versions, platform, git commit and seed."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

_LIBRARIES = ("leyden", "torch", "lightning", "torchmetrics", "mlflow", "numpy")


def provenance(directory: Path | None = None) -> dict[str, str]:
    """Record what a result rests on, as far as it can be known without importing anything heavy.

    Args:
        directory: whose git commit is recorded; the working directory if None.

    Returns:
        ``python`` and ``platform``; the version of each library and of each installed plugin's distribution
        under its own name, such as ``torch`` or ``leyden-sps-safe``; ``git_commit``, the full hash, with
        ``+dirty`` where tracked files differ from it, left out where there is no repository, no commit or no
        git; ``seed``, what Lightning's ``seed_everything`` was given, left out where it was not called.
    """
    record = {"python": platform.python_version(), "platform": platform.platform()}
    record.update(_versions())
    commit = _git_commit(directory or Path.cwd())
    if commit:
        record["git_commit"] = commit
    seed = os.environ.get("PL_GLOBAL_SEED")
    if seed:
        record["seed"] = seed
    return record


@functools.cache
def _versions() -> dict[str, str]:
    """The installed versions; a process has imported what it found, whatever is installed later."""
    return dict(_installed())


def _installed() -> Iterator[tuple[str, str]]:
    for name in _LIBRARIES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for entry_point in importlib.metadata.entry_points(group="leyden"):
        if entry_point.dist is not None:
            yield entry_point.dist.name, entry_point.dist.version


def _git_commit(directory: Path) -> str:
    # Without the option, git takes the index's lock to refresh it, in the way of the user's own commands.
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
    if not commit or commit == "(initial)":
        return ""
    dirty = any(not line.startswith("#") for line in lines)
    return f"{commit}+dirty" if dirty else commit
