"""The spool: what a run logs, one JSON line a record, kept on disk until the store has it.

A run's process appends each record by one ``os.write``; the helper process (`leyden.shipper`) reads complete
lines and ships them. Nothing here needs MLflow, torch or Lightning, and nothing here waits for a store. A
session is a folder::

    .leyden/tracking/<session>/session.json     the store and the owner's process
                               closed.<status>  it was closed, but records are left
                               <run>.jsonl      the records of a run
                               <run>.json       how far it was shipped, and its MLflow identity
                               files/<run>/     copies of artifacts on their way
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat

import psutil

from leyden.errors import TrackingError
from leyden.files import write_atomic

Status = Literal["FINISHED", "FAILED", "KILLED"]
Record = dict[str, Any]

_SIGNAL_EXITS = (129, 130, 143)
"""Exit statuses after SIGHUP (the terminal was closed), Ctrl-C and SIGTERM."""
_CLOCK_TOLERANCE = 2.0
"""Seconds by which a process's start time may move when the clock is adjusted."""


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, told apart from a later one of the same number by its start time."""

    pid: int
    started: float
    host: str

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The calling process."""
        return cls(os.getpid(), psutil.Process().create_time(), socket.gethostname())

    @property
    def here(self) -> bool:
        """Whether it belongs to this host, so that `alive` can tell."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Whether it runs still; True for a process of another host, which cannot be seen from here."""
        if not self.here:
            return True
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _CLOCK_TOLERANCE
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True


@dataclass(frozen=True)
class SessionFile:
    """What ``session.json`` says.

    Attributes:
        uri: the store that the session's runs go to.
        artifact_location: where artifacts of a new experiment go; None leaves it to the server.
        owner: the process that opened the session.
    """

    uri: str
    artifact_location: str | None
    owner: ProcessIdentity

    def save(self, session: Path) -> None:
        """Write it in the session's folder, which only the user may read: a URI can hold a password."""
        session.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(session / "session.json", json.dumps(asdict(self)))

    @classmethod
    def load(cls, session: Path) -> SessionFile:
        """Read it.

        Raises:
            OSError: if there is none.
            ValueError: if it is not one.
        """
        try:
            content = json.loads((session / "session.json").read_text(encoding="utf-8"))
            return cls(**{**content, "owner": ProcessIdentity(**content["owner"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{session / 'session.json'} is not a session: {error}") from None


def mark_closed(session: Path, status: Status) -> None:
    """Say that a session was closed with records left. An empty file fits on a full disk."""
    (session / f"closed.{status}").touch()


def closed_status(session: Path) -> Status | None:
    """The status with which a session was closed with records left; None if it was not closed."""
    statuses: tuple[Status, ...] = ("FINISHED", "FAILED", "KILLED")
    return next((status for status in statuses if (session / f"closed.{status}").exists()), None)


def status_of(error: BaseException | None) -> Status:
    """The status of a run that ended with this exception, or without one.

    >>> status_of(None), status_of(ValueError()), status_of(KeyboardInterrupt()), status_of(SystemExit(143))
    ('FINISHED', 'FAILED', 'KILLED', 'KILLED')
    """
    if error is None:
        return "FINISHED"
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "SIGTERMException":  # Lightning's own
        return "KILLED"
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "FINISHED"
    return "KILLED" if isinstance(error, SystemExit) and error.code in _SIGNAL_EXITS else "FAILED"


def open_run(
    session: Path,
    name: str,
    *,
    experiment: str,
    parent: str | None = None,
    tags: Mapping[str, object] | None = None,
    params: Mapping[str, object] | None = None,
) -> RunWriter:
    """Start a run in a session, from any process that sees the session's folder.

    Args:
        session: `Session.directory`.
        name: the run's name in MLflow.
        experiment: the experiment it belongs to; made where it does not exist.
        parent: key of the run that it is a child of.
        tags: tags to start with.
        params: parameters to start with.

    Returns:
        The writer; use it as a context manager, or call its `RunWriter.end`.

    Raises:
        TrackingError: if the session is closed or its folder cannot be written.
    """
    writer = RunWriter(session, uuid.uuid4().hex, name, experiment)
    opened = {
        "kind": "open",
        "time": _now(),
        "name": name,
        "experiment": experiment,
        "parent": parent,
        "tags": {**_source_tags(), **_texts(tags or {})},
        "process": asdict(ProcessIdentity.current()),
    }
    writer._write(opened, create=True)
    if params:
        writer.params(params)
    return writer


class RunWriter:
    """Writes what a run logs. Every call returns once the record is on disk; none waits for the store.

    It survives pickling and copying: the copy writes to the same run. As a context manager it ends the run
    with the status that the exception, if any, stands for.

    Attributes:
        session: folder of the session.
        key: identity of the run, unique on every machine; the MLflow run carries it as the tag
            ``leyden.key``.
        name: the run's name.
        experiment: its experiment.
    """

    def __init__(self, session: Path, key: str, name: str, experiment: str) -> None:
        self.session = Path(session)
        self.key = key
        self.name = name
        self.experiment = experiment
        self._descriptor: int | None = None

    def params(self, values: Mapping[str, object]) -> None:
        """Log parameters; each value is kept as its text. MLflow keeps the first value of a parameter."""
        self._write({"kind": "params", "values": _texts(values)})

    def tags(self, values: Mapping[str, object]) -> None:
        """Set tags; a later value replaces an earlier one."""
        self._write({"kind": "tags", "values": _texts(values)})

    def metrics(self, values: Mapping[str, SupportsFloat], step: int = 0) -> None:
        """Log numbers that belong to a step; NaN and infinities are numbers, too.

        Raises:
            ValueError: if a value is not a number, naming the metric.
            TrackingError: if the disk does not take the record.
        """
        numbers = {str(name): _number(name, value) for name, value in values.items()}
        self._write({"kind": "metrics", "time": _now(), "step": int(step), "values": numbers})

    def artifact(self, path: str | os.PathLike[str], folder: str = "") -> None:
        """Keep a file or a folder with the run. It is copied now: the original may change or go at once.

        Args:
            path: the file or folder.
            folder: folder among the run's artifacts, the top by default.

        Raises:
            ValueError: if ``folder`` leads out of the run's artifacts.
            TrackingError: if it cannot be read or copied.
        """
        source = Path(path)
        kept = self._new_file(source.resolve().name, folder)
        try:
            kept.parent.mkdir(parents=True)
            if source.is_dir():
                shutil.copytree(source, kept)
            else:
                shutil.copyfile(source, kept)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(kept.parent, ignore_errors=True)
            raise TrackingError(f"cannot keep the artifact {source}: {_strerror(error)}") from error
        self._write_artifact(kept, folder)

    def text(self, content: str, file_name: str) -> None:
        """Keep a text with the run, such as its resolved configuration.

        Args:
            content: the text.
            file_name: its name among the run's artifacts; may have folders, as in ``"config/resolved.yaml"``.

        Raises:
            ValueError: if ``file_name`` leads out of the run's artifacts.
            TrackingError: if the disk does not take it.
        """
        place = PurePosixPath(file_name)
        folder = "" if place.parent == PurePosixPath(".") else str(place.parent)
        kept = self._new_file(place.name, folder)
        try:
            write_atomic(kept, content)
        except OSError as error:
            shutil.rmtree(kept.parent, ignore_errors=True)
            raise TrackingError(f"cannot keep the text {file_name}: {_strerror(error)}") from error
        self._write_artifact(kept, folder)

    def end(self, status: Status = "FINISHED") -> None:
        """Say how the run ended. What is logged later is shipped still, and a later end replaces this one."""
        self._write({"kind": "end", "time": _now(), "status": status})
        self._close()

    def run_id(self, timeout: float = 30.0) -> str:
        """The run's identity in MLflow, once the helper process created it.

        Raises:
            TrackingError: if it was not created within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError, ValueError):
                state = json.loads((self.session / f"{self.key}.json").read_text(encoding="utf-8"))
                if state["run_id"]:
                    return str(state["run_id"])
            if time.monotonic() > deadline:
                raise TrackingError(f"run '{self.name}' was not created in the store within {timeout:g} s")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end(status_of(error))
        except TrackingError:
            if error is None:
                raise

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": None}

    def __del__(self) -> None:
        self._close()

    def _new_file(self, name: str, folder: str) -> Path:
        place = PurePosixPath(folder)
        if place.is_absolute() or ".." in place.parts or not name or name == "..":
            raise ValueError(f"'{folder}/{name}' is not a place among a run's artifacts")
        return self.session / "files" / self.key / uuid.uuid4().hex[:8] / name

    def _write_artifact(self, kept: Path, folder: str) -> None:
        self._write({"kind": "artifact", "path": str(kept.relative_to(self.session)), "folder": folder})

    def _write(self, record: Record, *, create: bool = False) -> None:
        # The newline before closes a line that a full disk cut short, whoever wrote it.
        line = b"\n" + json.dumps(record, separators=(",", ":")).encode() + b"\n"
        path = self.session / f"{self.key}.jsonl"
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_APPEND | (os.O_CREAT if create else 0)
                self._descriptor = os.open(path, flags, 0o600)
            written = os.write(self._descriptor, line)
        except OSError as error:
            if not self.session.is_dir():
                raise TrackingError(
                    f"run '{self.name}' cannot log: its tracking session is closed"
                ) from error
            raise TrackingError(f"cannot write {path}: {_strerror(error)}") from error
        if written != len(line):
            raise TrackingError(f"cannot write {path}: the disk is full")

    def _close(self) -> None:
        descriptor, self._descriptor = getattr(self, "_descriptor", None), None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


@dataclass
class Chunk:
    """Records read from a spool, the position behind them, and how many lines were not records."""

    records: list[Record]
    end: int
    torn: int = 0


def read_chunk(path: Path, offset: int, *, values: int = 1000, final: bool = False) -> Chunk:
    """Read complete records from a position on.

    Args:
        path: the spool.
        offset: where to start: 0 or an earlier chunk's end.
        values: stop once so many metric values were read.
        final: nobody writes any more: a last line without its newline counts where it is whole, else it is
            torn.

    Returns:
        The records; none if nothing complete was added.
    """
    chunk = Chunk([], offset)
    count = 0
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            whole = line.endswith(b"\n")
            if not whole and not final:
                break
            chunk.end += len(line)
            record = _parse(line)
            if record is not None:
                chunk.records.append(record)
                count += len(record["values"]) if record["kind"] == "metrics" else 0
            elif line.strip():
                chunk.torn += 1
            if chunk.records and count >= values:
                break
    return chunk


def tracking_folder(directory: Path) -> Path:
    """Where the sessions of a working directory lie."""
    return directory / ".leyden" / "tracking"


def sessions(folder: Path) -> Iterator[Path]:
    """The sessions in a tracking folder, oldest first."""
    yield from sorted(path.parent for path in folder.glob("*/session.json"))


def masked(uri: str) -> str:
    """The URI without its password, as messages show it.

    >>> masked("https://me:secret@host/x")
    'https://***@host/x'
    """
    return re.sub(r"//[^/@]*@", "//***@", uri)


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "kind" in record else None


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"metric '{name}': expected one number, got {_short(value)}") from None


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}


def _short(value: object) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else text[:77] + "..."


def _strerror(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _source_tags() -> dict[str, str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for the user
        user = "unknown"
    return {"mlflow.user": user, "mlflow.source.name": sys.argv[0] or "python", "mlflow.source.type": "LOCAL"}
