"""What cells measured, one file a cell, so that a claim survives whatever stops it.

An invocation of a claim owns one directory::

    .leyden/results/<plugin>/<claim>/<scale>/<invocation>/
        code              the version of the code that measured
        lock              held for as long as the invocation lives
        <cell>.json       a stored result, whole or absent
        <cell>.running    the cell was started and has not stored a result
        <cell>.log        what the cell wrote to its standard output and error
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from leyden.claims import Cell, CellResult, Measured, Table
from leyden.errors import LeydenError
from leyden.files import write_atomic

SHARED_PACKAGES = ("leyden", "leyden_callbacks", "leyden_datamodules")
"""Packages whose sources count towards the code version of every claim."""


class Results:
    """The stored results of one invocation of a claim. Any number of processes may use one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def load(self, cell: Cell) -> CellResult | None:
        """The stored result of a cell, or None."""
        try:
            stored = json.loads(self._path(cell, "json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return CellResult(
            cell=cell,
            status=stored["status"],
            measured=stored["measured"],
            seconds=stored["seconds"],
            error=stored["error"],
        )

    def save(self, result: CellResult) -> None:
        """Store a result.

        Raises:
            OSError: if it cannot be written; an earlier result of the cell is then untouched.
        """
        write_atomic(self._path(result.cell, "json"), json.dumps(asdict(result)))
        self._path(result.cell, "running").unlink(missing_ok=True)

    def start(self, cell: Cell) -> None:
        """Note that a cell is being run."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._path(cell, "running").touch()

    def discard(self, cell: Cell) -> None:
        """Forget a cell: its result, and that it was started."""
        for suffix in ("json", "running", "log"):
            self._path(cell, suffix).unlink(missing_ok=True)

    def in_flight(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that were started and have stored no result."""
        return [cell for cell in cells if self._path(cell, "running").exists() and not self.stored(cell)]

    def stored(self, cell: Cell) -> bool:
        """Whether a result of the cell is stored."""
        return self._path(cell, "json").exists()

    def number_done(self) -> int:
        """How many cells were measured, and did not fail."""
        stored = (json.loads(path.read_text(encoding="utf-8")) for path in self.directory.glob("*.json"))
        return sum(result["status"] == "done" for result in stored)

    def digests(self) -> set[str]:
        """The digests of the cells whose results are stored."""
        return {path.stem for path in self.directory.glob("*.json")}

    def log(self, cell: Cell) -> Path:
        """Where the cell's own output goes."""
        return self._path(cell, "log")

    def table(self, cells: Iterable[Cell]) -> Table:
        """The stored results, in the order of the cells."""
        return Table(result for cell in cells if (result := self.load(cell)) is not None)

    def _path(self, cell: Cell, suffix: str) -> Path:
        return self.directory / f"{cell.digest}.{suffix}"


@contextmanager
def own_results(root: Path, *, code: str, resume: bool) -> Iterator[Results]:
    """Own a results directory for as long as the context lasts.

    Args:
        root: the directory that holds every invocation of a claim at a scale.
        code: version of the code, of `code_version`.
        resume: take over the newest invocation of this code version that no living process owns, if there is
            one; otherwise, or if there is none, begin a new one.

    Raises:
        LeydenError: if the directory cannot be written.
    """
    try:
        directory, lock = (_adopt(root, code) if resume else None) or _begin(root, code)
    except OSError as error:
        raise LeydenError(f"cannot store results in {root}: {error.strerror or error}") from error
    try:
        yield Results(directory)
    finally:
        lock.release()


def _begin(root: Path, code: str) -> tuple[Path, FileLock]:
    directory = root / f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"
    directory.mkdir(parents=True)
    lock = FileLock(directory / "lock")
    lock.acquire(timeout=0)
    write_atomic(directory / "code", code)
    return directory, lock


def _adopt(root: Path, code: str) -> tuple[Path, FileLock] | None:
    for directory in sorted(root.glob("*/"), reverse=True):
        note = directory / "code"
        if not note.exists() or note.read_text(encoding="utf-8") != code:
            continue
        lock = FileLock(directory / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        for mark in directory.glob("*.running"):
            mark.unlink(missing_ok=True)
        return directory, lock
    return None


def measured_from(raw: Mapping[str, Any]) -> Measured:
    """Turn what `Claim.run` returned into plain numbers and lists of numbers.

    Args:
        raw: names with numbers, 0-dim tensors or arrays, or sequences of those.

    Raises:
        TypeError: naming the entry that is neither a number nor a series of numbers.

    >>> measured_from({"accuracy": 1, "loss": (2, 1.5)})
    {'accuracy': 1.0, 'loss': [2.0, 1.5]}
    """
    if not isinstance(raw, Mapping):
        raise TypeError(f"run() must return a mapping of names to numbers, not {type(raw).__name__}")
    return {str(name): _number_or_series(str(name), value) for name, value in raw.items()}


def _number_or_series(name: str, value: Any) -> float | list[float]:
    try:
        if getattr(value, "ndim", 0) == 1:
            value = value.tolist()
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return [_number(item) for item in value]
        return _number(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        shown = " ".join(repr(value).split())
        raise TypeError(
            f"run() returned {shown:.80} as '{name}', which is neither a number nor a series of numbers"
        ) from error


def _number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError("a text is no number")
    return float(value)


def code_version(module: str) -> str:
    """A hash of the sources that a claim's numbers depend on.

    Args:
        module: the module of the claim; every file of its top-level package counts, and those of
            `SHARED_PACKAGES`.
    """
    digest = hashlib.sha256()
    for package in dict.fromkeys((module.partition(".")[0], *SHARED_PACKAGES)):
        for name, path in _sources(package):
            content = path.read_bytes()
            digest.update(f"{package}/{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def _sources(package: str) -> list[tuple[str, Path]]:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [(package, Path(spec.origin))] if spec.origin and Path(spec.origin).is_file() else []
    return [
        (path.relative_to(folder).as_posix(), path)
        for folder in sorted(spec.submodule_search_locations)
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not _is_by_product(path.relative_to(folder))
    ]


def _is_by_product(path: Path) -> bool:
    """Whether a file of a package was left by a tool: compiled files, caches, an editor's drafts."""
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)
