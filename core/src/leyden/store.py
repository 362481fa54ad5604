"""The MLflow store as the helper process sees it: checked, created, locked, and its errors told apart.

Only `leyden.shipper` uses this module; MLflow is imported when a store is connected.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from filelock import FileLock, Timeout

from leyden.errors import TrackingError
from leyden.spool import masked

if TYPE_CHECKING:
    from mlflow import MlflowClient

P = ParamSpec("P")
T = TypeVar("T")

PROBE_SECONDS = 4
"""How long a server may take to answer at all, and at least has to answer MLflow."""
_ALL_PROBES_SECONDS = 9.0
"""The user is told within ten seconds."""
SHIPPING_SECONDS = 20
_QUICK_CHECK_BYTES = 64_000_000
_REFUSALS = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE"}
"""MLflow's codes for a request that fails again, whenever it is sent."""
DISK_FULL = "the disk is full"
_SQLITE_WORDS = {
    "disk is full": DISK_FULL,
    "readonly database": "it is read-only",
    "unable to open database file": "it cannot be opened",
    "malformed": "its file is damaged",
    "out-of-date database schema": "another MLflow wrote it; make a copy, then run `mlflow db upgrade`",
}


class Held(Exception):  # noqa: N818 - it says what happens to the values
    """The store cannot take anything now; what is in the spool stays there.

    Attributes:
        of_run: whether it concerns one run only, so that the others go on.
        odd: whether the store says no more than that something went wrong, which can be the request's fault.
    """

    def __init__(self, text: str, *, of_run: bool = False, odd: bool = False) -> None:
        super().__init__(text)
        self.of_run = of_run
        self.odd = odd


class Refused(Exception):  # noqa: N818
    """The store will never take this."""


def ask(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the store and tell its two kinds of failure apart.

    Raises:
        Refused: if the same request would fail again.
        Held: if a later one may succeed.
    """
    try:
        return function(*args, **kwargs)
    except (Held, Refused):
        raise
    except Exception as error:
        code = getattr(error, "error_code", "")
        lasting = isinstance(error, TypeError | ValueError | AttributeError | LookupError | OverflowError)
        if lasting or code in _REFUSALS:
            raise Refused(reason(error)) from error
        raise Held(reason(error), odd=code in ("INTERNAL_ERROR", "BAD_REQUEST")) from error


class MlflowStore:
    """An MLflow store, with the lock that lets many processes write to one sqlite file.

    Args:
        uri: the tracking URI, absolute if it names a file.
        artifact_location: where artifacts of a new experiment go; None leaves it to the server.
    """

    client: MlflowClient

    def __init__(self, uri: str, artifact_location: str | None) -> None:
        self.uri = uri
        self.artifact_location = artifact_location
        self.database = sqlite_path(uri)
        self._lock = FileLock(f"{self.database}.lock") if self.database else None
        self._experiments: dict[str, str] = {}

    def connect(self, *, on_probe: Callable[[], None] = lambda: None) -> None:
        """Check that the store answers; create it where it is an sqlite file that does not exist yet.

        Args:
            on_probe: called when everything is loaded and the store itself is asked.

        Raises:
            TrackingError: one line: what is wrong and what to do.
        """
        started = time.monotonic()
        loading = threading.Thread(target=_import_mlflow, daemon=True)
        loading.start()
        if re.match("https?://", self.uri):
            _await_answer(self.uri)
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
        try:
            with self.writing(wait=120.0):
                if self.database:
                    _check_database(self.database)
                loading.join()
                from mlflow import MlflowClient

                on_probe()
                left = _ALL_PROBES_SECONDS - (time.monotonic() - started)
                os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(max(PROBE_SECONDS, int(left)))
                if self.database and not (self.database.exists() and self.database.stat().st_size):
                    _create_database(self.database)
                self.client = MlflowClient(tracking_uri=self.uri)
                self.client.search_experiments(max_results=1)
        except TrackingError:
            raise
        except Exception as error:
            raise TrackingError(
                f"the tracking store {masked(self.uri)} cannot be used: {reason(error)}"
            ) from error
        finally:
            os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(SHIPPING_SECONDS)

    @contextlib.contextmanager
    def writing(self, wait: float = 60.0) -> Iterator[None]:
        """Hold the store's lock. A server needs none.

        Raises:
            Held: if another process keeps it for ``wait`` seconds.
            TrackingError: if the folder of an sqlite store cannot be written.
        """
        if self._lock is None or self.database is None:
            yield
            return
        try:
            self.database.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=wait, poll_interval=0.02)
        except Timeout:
            raise Held(f"another process has kept {self.database}.lock for {wait:g} s") from None
        except OSError as error:
            raise TrackingError(
                f"cannot write in {self.database.parent}: {error.strerror or error}; "
                "start elsewhere, or name another store by MLFLOW_TRACKING_URI"
            ) from error
        try:
            yield
        finally:
            self._lock.release()

    def experiment(self, name: str) -> str:
        """Identity of the experiment of that name, made where there is none.

        Raises:
            Held: if the user deleted it.
        """
        if name not in self._experiments:
            found = self.client.get_experiment_by_name(name)
            if found is None:
                made = self._make_experiment(name)
            elif found.lifecycle_stage == "deleted":
                restore = f"mlflow experiments restore --experiment-id {found.experiment_id}"
                raise Held(f"the experiment '{name}' was deleted; run `{restore}`", of_run=True)
            else:
                made = found.experiment_id
            self._experiments[name] = str(made)
        return self._experiments[name]

    def _make_experiment(self, name: str) -> str:
        try:
            return str(self.client.create_experiment(name, artifact_location=self.artifact_location))
        except Exception as error:
            if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
                raise
            return self.experiment(name)  # another process was faster

    def find(self, key: str) -> str | None:
        """Identity of the run with that key, in any experiment."""
        experiments = [item.experiment_id for item in self.client.search_experiments()]
        runs = self.client.search_runs(experiments, f"tags.`leyden.key` = '{key}'", max_results=1)
        return str(runs[0].info.run_id) if runs else None


def sqlite_path(uri: str) -> Path | None:
    """The file that an sqlite URI names; None for any other store.

    >>> sqlite_path("sqlite:////data/leyden.db")
    PosixPath('/data/leyden.db')
    """
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def reason(error: BaseException) -> str:
    """The error of a store in a few words: without SQL, stack and retry counts."""
    origin = getattr(error, "orig", None) or getattr(error.__cause__, "orig", None)
    text = str(origin or getattr(error, "message", None) or error) or type(error).__name__
    for part, words in _SQLITE_WORDS.items():
        if part in text:
            return words
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return DISK_FULL
    for pattern in (r"\[Errno -?\d+\] ([^'\")]+)", r"Error\(\d+, '([^']+)'", r"(Read timed out|timed out)"):
        if found := re.search(pattern, text):
            return found.group(1).strip()
    if "HTTPConnectionPool" in text or "HTTPSConnectionPool" in text:
        return "the connection broke off"
    line = re.sub(r"^\([\w.]+\)\s*", "", text.strip().splitlines()[0])
    return line if len(line) <= 200 else line[:197] + "..."


def _import_mlflow() -> None:
    with contextlib.suppress(Exception):  # the caller imports it again and reports
        import mlflow  # noqa: F401


def _await_answer(uri: str) -> None:
    """Any answer will do: whether it is an MLflow server and lets us in is asked afterwards, by MLflow."""
    problem: list[str] = []

    def request() -> None:
        try:
            with urllib.request.urlopen(urllib.parse.urljoin(f"{uri}/", "health"), timeout=PROBE_SECONDS):
                pass
        except urllib.error.HTTPError:
            pass
        except (OSError, ValueError) as error:
            cause = getattr(error, "reason", error)
            if "CERTIFICATE" not in str(cause):  # that is for MLflow's own settings to judge
                problem.append(reason(cause) if isinstance(cause, BaseException) else str(cause))

    thread = threading.Thread(target=request, daemon=True)  # looking up a host name knows no timeout
    thread.start()
    thread.join(PROBE_SECONDS + 0.5)
    if thread.is_alive():
        problem.append(f"nothing came within {PROBE_SECONDS} s")
    if problem:
        raise TrackingError(f"the tracking server {masked(uri)} does not answer: {problem[0]}")


def _check_database(path: Path) -> None:
    """Refuse what is not an MLflow database before MLflow writes its tables into it."""
    advice = "move it away, or name another store by MLFLOW_TRACKING_URI or in plugins.toml"
    if path.is_dir():
        raise TrackingError(f"{path} is a folder, not a tracking store; {advice}")
    if not path.exists() or not path.stat().st_size:
        return
    try:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise TrackingError(f"{path} is not an SQLite database; {advice}")
        quoted = urllib.parse.quote(str(path))
        with contextlib.closing(
            sqlite3.connect(f"file:{quoted}?mode=rw", uri=True, timeout=20.0)
        ) as database:
            tables = {
                name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if tables and not {"experiments", "alembic_version"} <= tables:
                raise TrackingError(f"{path} is a database of another program, not of MLflow; {advice}")
            if path.stat().st_size <= _QUICK_CHECK_BYTES:
                (finding,) = database.execute("PRAGMA quick_check(1)").fetchone()
                if finding != "ok":
                    raise TrackingError(f"{path} is damaged; {advice}")
            database.execute("BEGIN IMMEDIATE")
            database.rollback()
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"the tracking store {path} cannot be used: {reason(error)}; {advice}") from error


def _create_database(path: Path) -> None:
    """Create an MLflow database that is whole or absent, whatever stops this process."""
    from mlflow import MlflowClient

    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    try:
        MlflowClient(tracking_uri=f"sqlite:///{draft}").search_experiments(max_results=1)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
