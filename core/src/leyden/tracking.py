"""Tracking: runs are logged to a spool on disk at once, and a helper process ships them to MLflow.

A process that tracks opens a `Session`; runs are opened in it from any process by `open_run`. Logging never
waits for the store, survives ``kill -9``, and imports neither MLflow nor torch::

    with Session.open(resolve_store()) as session, session.run("digits", experiment="leyden") as run:
        run.metrics({"loss": 0.5}, step=1)
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from leyden.errors import TrackingError, UsageError, unknown
from leyden.files import write_atomic
from leyden.spool import (
    ProcessIdentity,
    RunWriter,
    SessionFile,
    Status,
    mark_closed,
    masked,
    open_run,
    status_of,
    tracking_folder,
)

if TYPE_CHECKING:
    from leyden.settings import TrackingSettings

__all__ = [
    "RunWriter",
    "Session",
    "Status",
    "Store",
    "active_run",
    "open_run",
    "process_session",
    "resolve_store",
    "status_of",
    "use_run",
]

DEFAULT_URI = "sqlite:///leyden.db"

_SCHEMES = ("databricks", "databricks-uc", "http", "https", "mssql", "mysql", "postgresql", "sqlite", "uc")
_LOADING_SECONDS, _PROBING_SECONDS, _ANSWER_SECONDS = 120.0, 5.0, 9.5
_TABLES_SECONDS = 60.0
"""MLflow makes its tables in a database that has none, and one that is stopped there is of no more use."""
_SILENT_SECONDS = 5.0
_log = logging.getLogger("leyden.tracking")
_active: ContextVar[RunWriter | None] = ContextVar("leyden_active_run", default=None)


@dataclass(frozen=True)
class Store:
    """Where runs go.

    Attributes:
        uri: MLflow's tracking URI; absolute where it names a file.
        artifact_location: where artifacts of a new experiment go; None leaves it to the server.
        directory: the working directory: ``.leyden/`` lies in it.
    """

    uri: str
    artifact_location: str | None
    directory: Path


def resolve_store(settings: TrackingSettings | None = None, directory: Path | None = None) -> Store:
    """Find the store: ``MLFLOW_TRACKING_URI``, else plugins.toml, else ``sqlite:///leyden.db``.

    Args:
        settings: the ``[tracking]`` table; None reads the plugins.toml that rules the directory.
        directory: the working directory.

    Returns:
        The store. An sqlite file has its artifacts in ``leyden-artifacts`` beside it.

    Raises:
        UsageError: if the URI is of a kind that MLflow has given up, or does not know.
    """
    directory = (directory or Path.cwd()).absolute()
    if settings is None:
        from leyden.settings import load_settings

        settings = load_settings(directory).tracking
    variable = os.environ.get("MLFLOW_TRACKING_URI", "")
    uri = variable or settings.uri or DEFAULT_URI
    if uri.startswith("sqlite:///"):
        path = Path(os.path.normpath(directory / uri.removeprefix("sqlite:///")))
        return Store(f"sqlite:///{path}", (path.parent / "leyden-artifacts").as_uri(), directory)
    source = "MLFLOW_TRACKING_URI" if variable else "tracking.uri in plugins.toml"
    if uri.startswith("file:") or ("://" not in uri and not uri.startswith("databricks")):
        raise UsageError(
            f"{source} '{uri}': MLflow keeps no runs in plain folders; use '{DEFAULT_URI}' or a server"
        )
    scheme = uri.partition(":")[0].partition("+")[0]
    known = {*_SCHEMES, *(entry.name for entry in entry_points(group="mlflow.tracking_store"))}
    if scheme not in known:
        raise unknown(f"kind of tracking store in {source} '{uri}':", scheme, known)
    return Store(uri, None, directory)


class Session:
    """The runs of one process and its workers, and the helper process that ships them.

    Attributes:
        store: where the runs go.
        directory: the session's folder; workers get it and call `open_run`.
    """

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._spare_helpers = 2
        self._helper = _Helper(directory, store, self._on_death)

    @classmethod
    def open(cls, store: Store, *, wait: bool = True) -> Session:
        """Start a session.

        Ships first what sessions left whose process is gone; their runs without an end become KILLED.

        Args:
            store: where the runs go.
            wait: return when the store has answered. Otherwise call `wait` before anything trains.

        Raises:
            TrackingError: if the working directory cannot be written, or the store does not answer or is not
                one.
        """
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
        directory = tracking_folder(store.directory) / name
        try:
            write_atomic(store.directory / ".leyden" / ".gitignore", "*\n")
            SessionFile(store.uri, store.artifact_location, ProcessIdentity.current()).save(directory)
            session = cls(store, directory)
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise TrackingError(
                f"cannot write in {store.directory}: {error.strerror or error}; "
                "start in a folder that can be written, or turn tracking off in plugins.toml"
            ) from error
        atexit.register(session._close_at_exit)
        if wait:
            session.wait()
        return session

    def wait(self) -> None:
        """Wait until the store has answered and what earlier sessions left was shipped.

        Raises:
            TrackingError: if it does not answer or is not one; the session is closed then.
        """
        try:
            self._helper.wait_ready()
        except BaseException:
            with self._lock:
                self._closed = True
            atexit.unregister(self._close_at_exit)
            self._helper.kill()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def run(
        self,
        name: str,
        *,
        experiment: str,
        parent: str | None = None,
        tags: Mapping[str, object] | None = None,
        params: Mapping[str, object] | None = None,
    ) -> RunWriter:
        """Start a run in this session, as `open_run` does."""
        return open_run(self.directory, name, experiment=experiment, parent=parent, tags=tags, params=params)

    @property
    def usable(self) -> bool:
        """Whether it was opened by this process and not closed."""
        return not self._closed and self._owner == os.getpid()

    def close(self, status: Status = "FINISHED", timeout: float | None = None) -> bool:
        """Ship everything and end the helper process.

        Args:
            status: the end of runs that have none yet.
            timeout: seconds after which the rest is left for the next start; None waits as long as the store
                takes values, and a few seconds more.

        Returns:
            Whether the store has everything. Otherwise one line said what is left, and the next start ships
            it.
        """
        if not self.usable:
            return not self.directory.exists()
        with self._lock:
            self._closed = True
        atexit.unregister(self._close_at_exit)
        try:
            self._drain(status, timeout)
        finally:
            self._helper.kill()
            complete = not self.directory.exists()
            if not complete:
                self._leave(status)
        return complete

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(status_of(error))

    def _drain(self, status: Status, timeout: float | None) -> None:
        if self._helper.close(status, timeout) is None and not self._helper.running:
            with contextlib.suppress(OSError):  # somebody deleted the session, say
                self._helper = _Helper(self.directory, self.store, self._on_death)
                self._helper.close(status, timeout)

    def _leave(self, status: Status) -> None:
        """Let the next start adopt the session, though this process may live on."""
        if not self._helper.said("closed"):
            _tell("what was logged last is kept in %s and ships at the next start", self.directory)
        with contextlib.suppress(OSError):
            mark_closed(self.directory, status)

    def _on_death(self, helper: _Helper) -> None:
        """Start another helper where one died by itself; what it had not shipped is still in the spool."""
        with self._lock:
            if self._closed or helper is not self._helper or not self._spare_helpers:
                return
            self._spare_helpers -= 1
            with contextlib.suppress(OSError):
                self._helper = _Helper(self.directory, self.store, self._on_death)

    def _close_at_exit(self) -> None:
        self.close(status_of(getattr(sys, "last_value", None)))


def active_run() -> RunWriter | None:
    """The run that this code works for, if it was set by `use_run`."""
    return _active.get()


@contextlib.contextmanager
def use_run(writer: RunWriter) -> Iterator[RunWriter]:
    """Make a run the active one: loggers and provenance attach to it."""
    token = _active.set(writer)
    try:
        yield writer
    finally:
        _active.reset(token)


_process_session: Session | None = None
_process_lock = threading.Lock()


def process_session(store: Store | None = None) -> Session:
    """The session of this process, for loggers that nobody gave one; closed when the process ends."""
    global _process_session
    with _process_lock:
        session = _process_session
        if session is None or not session.usable:
            session = _process_session = Session.open(store or resolve_store())
        return session


class _Helper:
    """One helper process, and the thread that listens to it.

    Args:
        directory: the session's folder.
        store: where its runs go.
        on_death: called, in the listening thread, when the process ended without being told to.
    """

    def __init__(self, directory: Path, store: Store, on_death: Callable[[_Helper], None]) -> None:
        self._directory = directory
        self._store = store
        self._on_death = on_death
        self._events: dict[str, Mapping[str, Any]] = {}
        self._changed = threading.Condition()
        self._ended = self._killed = False
        with (directory / "helper.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "leyden.shipper", str(directory), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(store),
                start_new_session=True,  # Ctrl-C is for this process, which then tells the helper what to do
            )
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def said(self, event: str) -> bool:
        """Whether it has sent that event."""
        return event in self._events

    def wait_ready(self) -> None:
        """Wait until the store has answered.

        Raises:
            TrackingError: if it did not, or is not a store.
        """
        started = time.monotonic()
        self._wait_for({"probing", "error"}, _LOADING_SECONDS)
        if "probing" in self._events:
            left = max(_PROBING_SECONDS, _ANSWER_SECONDS - (time.monotonic() - started))
            if self._store.uri.startswith(("mssql", "mysql", "postgresql")):
                left = _TABLES_SECONDS
            self._wait_for({"answered", "error"}, None if self._store.uri.startswith("sqlite:") else left)
        if "answered" in self._events:
            self._wait_for({"ready", "error"}, None)
        if "error" in self._events:
            raise TrackingError(self._events["error"]["message"])
        if "ready" in self._events:
            return
        if self.running:
            raise TrackingError(f"the tracking store {masked(self._store.uri)} does not answer")
        lines = (self._directory / "helper.log").read_text(errors="replace").strip().splitlines()
        raise TrackingError(
            f"the tracking helper process ended: {lines[-1] if lines else self._process.poll()}"
        )

    def close(self, status: Status, timeout: float | None) -> Mapping[str, Any] | None:
        """Tell it to ship the rest and end; its last word, or None if it did not come to that."""
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"close": status}).encode() + b"\n")
            self._process.stdin.flush()
        patience = _SILENT_SECONDS if timeout is None else min(timeout, _SILENT_SECONDS)
        self._wait_for({"closed"}, patience)
        if self.running and not self.said("closed"):
            _tell("shipping what is left to %s; Ctrl-C leaves it for the next start", masked(self._store.uri))
            self._wait_for({"closed"}, None if timeout is None else timeout - patience)
        return self._events.get("closed")

    def kill(self) -> None:
        """End it, whatever it does: what it has not shipped is still in the spool."""
        self._killed = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0 if "closed" in self._events else 0.0)
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _wait_for(self, events: set[str], timeout: float | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(events & self._events.keys()), timeout)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                message = json.loads(line)
                if message["event"] == "warning":
                    _tell("%s", message["message"])
                with self._changed:
                    self._events[message["event"]] = message
                    self._changed.notify_all()
        self._process.wait()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if not self._killed and self.said("ready") and not self.said("closed"):
            self._on_death(self)


def _tell(message: str, *values: object) -> None:
    _log.warning("leyden: " + message, *values)


def _environment(store: Store) -> dict[str, str]:
    """The helper's environment: one thread's work to do, one store to speak to, nobody to report to."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **kept,
        "MLFLOW_TRACKING_URI": store.uri,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
