"""Runs cells on Ray: on the cluster that ``RAY_ADDRESS`` names, or on workers started on this machine.

A cell is a Ray task that asks for one core. Ray itself finds a machine for it, keeps the process for the next
cell, and says which cell a process that died was running, so that its neighbours go on. Ray's backend for
joblib does none of these: it deals the cells out in turn to a fixed set of processes, whoever is busy, and
ends all that run when one process dies.

Every machine of the cluster must see the working directory at the same place: results and what is logged go
through it. This is checked before a cell runs.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any

from leyden.errors import LeydenError, UsageError, one_line
from leyden.results import code_version
from leyden.worker import ONE_THREAD, Job, find_modules_in, run_job

POLL = 0.2
"""Seconds between two looks at the stored results."""
PROBE_SECONDS = 4.0
"""How long a cluster may take to greet."""
_BETWEEN_PROBES = 10.0
_QUIET_SECONDS = 20.0
"""How long no cell starts until the user is told why."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Opens an HTTP/2 connection, with an empty frame of settings; Ray's head answers with one of its own."""
_OBJECT_STORE_BYTES = 100_000_000
"""Cells exchange nothing; by default Ray would set a third of the memory aside."""
_OF_A_CLUSTER_OF_OUR_OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is told
    "RAY_worker_niceness": "0",  # as this process; Ray's 15 lets whatever else runs go first
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: Ray then listens on the loopback alone
}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a job comes from; the machine that runs it must agree.

    Attributes:
        host: the machine of the command.
        code: version of the claim's code there, of `leyden.results.code_version`.
    """

    host: str
    code: str


class RayWorkers:
    """The connection to Ray; it stays for the next batch."""

    knows_culprit = True
    patience = 60.0
    """Seconds until a result must be visible here; a network disk shows a folder as it was a while ago."""

    def __init__(self) -> None:
        self._ray: Any = None
        self._address: str | None = None
        self._started_here = 0

    def cores(self) -> int | None:
        """How many cores the cluster has; None where ``RAY_ADDRESS`` names none.

        Raises:
            LeydenError: if the cluster does not answer.
        """
        return None if cluster_address() is None else max(1, self._cores(self._connected(1)))

    def run(
        self, batch: Sequence[Job], count: int, report: Callable[[], None], tell: Callable[[str], None]
    ) -> str:
        """Run every job, at most so many at a time; where processes died, say how the first of them did.

        Raises:
            LeydenError: if a result cannot be stored, or the cluster does not answer any more.
        """
        before = self._ray, self._started_here
        ray = self._connected(count)
        if before != (ray, self._started_here):
            tell(self._description(count))
        for folder in {job.results for job in batch}:
            folder.mkdir(parents=True, exist_ok=True)  # the other machines look whether they see it
        task = ray.remote(num_cpus=1, max_retries=0, runtime_env={"env_vars": ONE_THREAD})(run_remote_job)
        origin = _origin(batch[0].claim)
        waiting, running, deaths = iter(batch), set[Future[None]](), list[str]()
        silence = _Silence(batch, tell, lambda: self._occupied(ray))
        probed_at = time.monotonic()
        while True:
            running |= {task.remote(job, origin).future() for job in islice(waiting, count - len(running))}
            if not running:
                return deaths[0] if deaths else ""
            # not ray.wait(), which forgets the exit status that a signal asks for
            done, running = wait(running, timeout=POLL, return_when=FIRST_COMPLETED)
            report()
            deaths += [death for future in done if (death := _death_in(ray, future))]
            silence.look(len(done))
            if time.monotonic() - probed_at > _BETWEEN_PROBES:
                self._probe()
                probed_at = time.monotonic()

    def stop(self) -> None:
        """End the tasks and leave the cluster; one that was started here ends, with every process of it."""
        ray, self._ray, self._started_here = self._ray, None, 0
        if ray is not None:
            ray.shutdown()

    def _connected(self, count: int) -> Any:
        address = cluster_address()
        enough = address is not None or self._started_here >= count
        if self._ray is not None and self._address == address and enough:
            self._probe()
            return self._ray
        self.stop()
        if address is None:
            self._ray = _started(num_cpus=count)
            self._started_here = count
        else:
            self._ray = _joined(address)
        self._address = address
        return self._ray

    def _probe(self) -> None:
        """Check that the cluster is there still: without its head, calls wait and then end this process."""
        if self._started_here:
            return
        try:
            await_greeting(self._ray.get_runtime_context().gcs_address)
        except LeydenError as error:
            raise LeydenError(f"{error}; what was measured is stored, --resume goes on") from error

    def _cores(self, ray: Any) -> int:
        return int(ray.cluster_resources().get("CPU", 0))

    def _occupied(self, ray: Any) -> str:
        free = int(ray.available_resources().get("CPU", 0))
        return f"{free} of {self._cores(ray)} cores of the cluster are free"

    def _description(self, count: int) -> str:
        if self._address is None:
            return f"Ray runs on this machine, {_counted(count, 'worker')}; RAY_ADDRESS names no cluster"
        machines = _counted(sum(node["Alive"] for node in self._ray.nodes()), "machine")
        return (
            f"Ray runs on the cluster {self._address}: {machines}, {_counted(self._cores(self._ray), 'core')}"
        )


def cluster_address() -> str | None:
    """The cluster that ``RAY_ADDRESS`` names, as ``"host:port"`` or ``"auto"``; None where it names none.

    Raises:
        UsageError: if it is something else.
    """
    address = os.environ.get("RAY_ADDRESS", "").strip()
    if address in ("", "local"):
        return None
    host, _, port = address.rpartition(":")
    if address == "auto" or (host and "/" not in host and port.isdecimal() and int(port) < 2**16):
        return address
    raise UsageError(
        f"RAY_ADDRESS '{address}': expected HOST:PORT of a cluster that this machine belongs to, "
        "'auto' for the one that was started here, or 'local' for none"
    )


def await_greeting(address: str) -> None:
    """Check that the head of a cluster is there; Ray would wait for a minute and then end this process.

    Args:
        address: as ``"host:port"``.

    Raises:
        LeydenError: if nothing answers, or something that is no Ray.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("0", ""):
                return
            connection.sendall(_GREETING)
            answer = connection.recv(9)
    except TimeoutError:
        raise LeydenError(
            f"the Ray cluster at {address} does not answer: nothing came within {PROBE_SECONDS:g} s"
        ) from None
    except OSError as error:
        raise LeydenError(
            f"the Ray cluster at {address} does not answer: {error.strerror or error}"
        ) from error
    if answer[3:4] != b"\x04":
        raise LeydenError(f"what answers at {address} is no Ray cluster")


def run_remote_job(job: Job, origin: Origin) -> None:
    """Run one cell in this process of Ray's. Ray ends it together with all that the cell started.

    Raises:
        LeydenError: if this machine does not see the results or has other code, or cannot store the result.
    """
    find_modules_in(job.directory)
    if not job.results.is_dir():
        raise LeydenError(
            f"{socket.gethostname()} does not see {job.results}; every machine of the cluster must see the "
            "working directory at the same place, on a disk that they share"
        )
    check_code(job.claim, origin)
    run_job(job)


def check_code(claim: str, origin: Origin) -> None:
    """Check that this machine would measure by the same code as the machine of the command.

    Raises:
        LeydenError: if not.
    """
    here = socket.gethostname()
    if here != origin.host and (code := _code_of(claim)) != origin.code:
        raise LeydenError(
            f"{here} has other code of {claim} than {origin.host} (version {code}, there {origin.code}); "
            "install the same packages on every machine of the cluster"
        )


def _code_of(claim: str) -> str:
    return code_version(claim.rpartition(".")[0])


def _origin(claim: str) -> Origin:
    return Origin(host=socket.gethostname(), code=_code_of(claim))


def _started(*, num_cpus: int) -> Any:
    """Start Ray on this machine; it ends with this process, however that ends."""
    with _environment(_OF_A_CLUSTER_OF_OUR_OWN), _loopback_alone():
        return _initialised(
            "Ray cannot be started on this machine",
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
        )


@contextlib.contextmanager
def _loopback_alone() -> Iterator[None]:
    """Where Ray was imported before, it does not read any more what the environment says of this."""
    _imported()
    constants = vars(importlib.import_module("ray._private.ray_constants"))
    before = constants.get("ENABLE_RAY_CLUSTER", True)
    constants["ENABLE_RAY_CLUSTER"] = False
    try:
        yield
    finally:
        constants["ENABLE_RAY_CLUSTER"] = before


def _joined(address: str) -> Any:
    if address != "auto":
        await_greeting(address)
    return _initialised(f"the Ray cluster at {address} cannot be used", address=address)


def _initialised(failure: str, **arguments: Any) -> Any:
    ray = _imported()
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with _own_handler_of_sigterm():
            ray.init(log_to_driver=False, configure_logging=False, **arguments)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        raise LeydenError(f"{failure}: {_first_sentence(error)}") from error
    # Ray prints to the standard output what is told of dead processes here.
    vars(importlib.import_module("ray._private.worker"))["print_to_stdstream"] = lambda *_, **__: None
    return ray


def _imported() -> Any:
    """Ray, without its handler of errors, which tells a cluster of them that may be no more."""
    hook = sys.excepthook
    ray: Any = importlib.import_module("ray")
    sys.excepthook = hook
    return ray


@contextlib.contextmanager
def _own_handler_of_sigterm() -> Iterator[None]:
    """Keep what this process does at SIGTERM; Ray's own handler ends it with another status."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as stop:
        raise SystemExit(128 + signal.SIGTERM if stop.code == signal.SIGTERM else stop.code) from None
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if former is None else former)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _death_in(ray: Any, future: Future[None]) -> str:
    """How the process died that ran a task; empty if it did not.

    Raises:
        LeydenError: that the task raised.
    """
    try:
        future.result()
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, LeydenError):
            raise cause from None
        raise LeydenError(f"a machine of the cluster cannot run cells: {_last_line(error)}") from error
    except ray.exceptions.RayError as error:
        return type(error).__name__
    return ""


def _first_sentence(error: BaseException) -> str:
    text = one_line(error).partition(": ")[2] or type(error).__name__
    sentence = text.partition(". ")[0].rstrip(".")
    return sentence if len(sentence) <= 300 else sentence[:297] + "..."


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


class _Silence:
    """Tells, once, why no cell starts."""

    def __init__(self, batch: Sequence[Job], tell: Callable[[str], None], why: Callable[[], str]) -> None:
        self._batch, self._tell, self._why = batch, tell, why
        self._deadline: float | None = time.monotonic() + _QUIET_SECONDS

    def look(self, done: int) -> None:
        if done:
            self._deadline = None
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        self._deadline = None
        if not any(any(folder.glob("*.running")) for folder in {job.results for job in self._batch}):
            self._tell(f"no cell has started yet: {self._why()}")
