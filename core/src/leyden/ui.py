"""``leyden ui``: MLflow's own page on the store that runs go to, for this machine alone."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import webbrowser
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from leyden.errors import LeydenError, UsageError
from leyden.execute import termination_as_exit
from leyden.mlflow_server import PATIENCE, Contents, contents, environment
from leyden.progress import say
from leyden.settings import load_settings
from leyden.spool import masked
from leyden.store import sqlite_path
from leyden.tracking import Session, Store, resolve_store

if TYPE_CHECKING:
    from rich.console import Console

HOST = "127.0.0.1"
"""The page has no password, so nobody but this machine can ask for it."""

PORT = 5000
_TRIES_PAUSE = 0.1


def ui(*, port: int | None = None, open_browser: bool = True, console: Console | None = None) -> int:
    """Show MLflow's page on the current store until Ctrl-C; a server has its page already.

    What earlier sessions left is shipped first.

    Args:
        port: where to serve; `PORT`, or any other where that is taken, if None.
        open_browser: whether to open the page where there is a screen.
        console: where to print; standard output if None.

    Returns:
        The exit status: 0 where the store is a server and its page was told. Otherwise Ctrl-C and SIGTERM end
        it, by their exceptions.

    Raises:
        UsageError: if the port cannot be had, tracking is turned off, or the store has no page here.
        LeydenError: if nothing was tracked yet, the store does not answer, or the server ends.
    """
    if console is None:
        from rich.console import Console

        console = Console()
    settings = load_settings()
    if not settings.tracking.enabled:
        raise settings.error(("tracking", "enabled"), "tracking is turned off, so there is no page to show")
    store, experiment = resolve_store(settings.tracking), settings.tracking.experiment
    if re.match("https?://", store.uri):
        if port is not None:
            raise UsageError(f"--port {port}: {masked(store.uri)} is a server and has its page already")
        with termination_as_exit():
            _tell_of_server(store, experiment, open_browser, console)
        return 0
    _check_is_there(store)
    with termination_as_exit(), _listen(port) as listener:
        _serve(listener, store, experiment, open_browser, console)
    return 0


def _check_is_there(store: Store) -> None:
    if store.uri.startswith(("databricks", "uc")):
        raise UsageError(f"the page of {masked(store.uri)} is Databricks' own; open it there")
    database = sqlite_path(store.uri)
    if database is not None and not database.exists():
        raise LeydenError(
            f"nothing was tracked here yet: there is no {database}; run `leyden reproduce` on one of "
            "`leyden claims`, or `leyden fit`, first"
        )


def _tell_of_server(store: Store, experiment: str, open_browser: bool, console: Console) -> None:
    with _waiting(console):
        Session.open(store).close()
        from mlflow import MlflowClient

        found = contents(MlflowClient(store.uri), experiment)
    _show(_without_secrets(store.uri), found, open_browser, console)


def _serve(
    listener: socket.socket, store: Store, experiment: str, open_browser: bool, console: Console
) -> None:
    with _Server(listener, store, experiment) as server:
        with _waiting(console):
            Session.open(store).close()
            found = server.begin()
        _show(f"http://{HOST}:{listener.getsockname()[1]}", found, open_browser, console)
        say(console, "Ctrl-C ends it.", "dim")
        server.wait()


def _show(page: str, found: Contents, open_browser: bool, console: Console) -> None:
    runs = f"{page}/#/experiments/{found.experiment}/runs" if found.experiment else page
    say(console, f"MLflow's page: {runs}")
    if found.run:
        say(console, f"Newest, {found.name}: {page}/#/experiments/{found.run_experiment}/runs/{found.run}")
    if open_browser and _has_screen():
        webbrowser.open(runs)


def _waiting(console: Console) -> AbstractContextManager[Any]:
    return console.status("waiting for MLflow") if console.is_terminal else contextlib.nullcontext()


def _has_screen() -> bool:
    """Whether a browser would have where to open; one that draws text would take over the terminal."""
    return sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )


def _without_secrets(uri: str) -> str:
    """The URI without user and password.

    >>> _without_secrets("https://me:secret@host:5000/mlflow/")
    'https://host:5000/mlflow'
    """
    parts = urllib.parse.urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


@contextlib.contextmanager
def _listen(port: int | None) -> Iterator[socket.socket]:
    """A socket that takes connections, so that nobody else gets the port while the server starts."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            _bind(listener, port)
            listener.listen(128)
        except OSError as error:
            why = "it is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error).lower()
            raise UsageError(f"--port {port}: {why}; without --port a free one is found") from error
        yield listener


def _bind(listener: socket.socket, port: int | None) -> None:
    try:
        listener.bind((HOST, PORT if port is None else port))
    except OSError:
        if port is not None:
            raise
        listener.bind((HOST, 0))


class _Server:
    """MLflow's server on a store, in a process of its own that ends with this one.

    Args:
        listener: the socket to serve.
        store: the store.
        experiment: name of the experiment that runs go to.
    """

    def __init__(self, listener: socket.socket, store: Store, experiment: str) -> None:
        self._port = int(listener.getsockname()[1])
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._begun = False
        program = [sys.executable, "-P", "-W", "ignore", "-m", "leyden.mlflow_server"]
        self._process = subprocess.Popen(
            [*program, str(listener.fileno()), experiment],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(store.uri, store.artifact_location),
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for this process, which then ends the server
        )

    def begin(self) -> Contents:
        """Let it serve and wait until it answers; what the store holds.

        Raises:
            LeydenError: if it ends.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        self._begun = True
        with contextlib.suppress(OSError):
            stdin.write(b"serve\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            raise self._ended()
        while not self._answers():
            if self._process.poll() is not None:
                raise self._ended()
            time.sleep(_TRIES_PAUSE)
        return Contents(**json.loads(line))

    def wait(self) -> None:
        """Wait until it ends by itself, which it never should.

        Raises:
            LeydenError: if it does.
        """
        self._process.wait()
        raise self._ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(OSError):
            stdin.close()
        try:
            self._process.wait(PATIENCE if self._begun else 0.0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
            stdout.close()
            self._log.close()

    def _answers(self) -> bool:
        """Whether it answers; the proxy that the environment may name is not asked."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=1.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _ended(self) -> LeydenError:
        status = self._process.wait()
        if status < 0:
            return LeydenError(f"MLflow's server was killed by signal {-status}")
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return LeydenError(f"MLflow's server ended: {lines[-1].strip() if lines else f'status {status}'}")
