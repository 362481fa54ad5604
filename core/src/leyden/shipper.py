"""The helper process: carries what runs logged from their spools to the MLflow store.

It is the only process that imports MLflow. `leyden.tracking.Session` starts it as ``python -m leyden.shipper
SESSION PARENT``; it speaks JSON lines on its standard output and listens on its standard input. It ignores
Ctrl-C and SIGTERM, because its parent decides when it ends, and it goes when its parent is gone.

Shipping is safe to repeat: records count as shipped after the store took them, MLflow drops a metric value
that it has already, and a run is found again by its tag ``leyden.key``. So whatever stops this process,
nothing is lost or doubled.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import queue
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from leyden.errors import TrackingError
from leyden.files import write_atomic
from leyden.spool import (
    Chunk,
    ProcessIdentity,
    Record,
    SessionFile,
    Status,
    closed_status,
    masked,
    read_chunk,
    sessions,
)
from leyden.store import DISK_FULL, Held, MlflowStore, Refused, ask, reason

BATCH = 1000
"""Metric values in one request; MLflow takes no more."""
POLL_SECONDS = 0.25
LINGER_SECONDS = 2.0
"""How long a few values wait for more to come: a batch of one costs nearly as much as a batch of fifty."""
BURST_SECONDS = 0.5
"""How long one process keeps the lock of an sqlite store while others wait for it."""
GIVE_UP_SECONDS = 4.0
"""How long a closing session waits for a store that takes nothing."""
HEARTBEAT_SECONDS, HEARTBEAT_LOST_SECONDS = 10.0, 120.0
"""For sessions on another host, whose processes cannot be seen."""
NICENESS = 10
KEY_LENGTH, PARAM_LENGTH, TAG_LENGTH = 250, 6000, 8000
_BIGGEST_STEP = 2**63 - 1


def main() -> None:
    """Serve one session until it is closed or its parent is gone."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    session, parent = Path(sys.argv[1]), int(sys.argv[2])
    voice = Voice()
    gone = watch(parent)
    commands = listen()
    try:
        write_atomic(session / "helper.json", json.dumps(asdict(ProcessIdentity.current())))
        file = SessionFile.load(session)
        store = MlflowStore(file.uri, file.artifact_location)
        store.connect(on_probe=lambda: voice.say("probing"))
        voice.say("answered")
        recover(session, store, voice.warn)
    except (TrackingError, Held) as error:
        voice.say("error", message=str(error))
        voice.leave(1)
    except OSError as error:
        voice.say("error", message=f"cannot write in {session.parent}: {reason(error)}")
        voice.leave(1)
    voice.say("ready")
    left = serve(session, file, Shipper(session, store, voice.warn), commands, gone, voice.warn)
    voice.say("closed", left=left)
    voice.leave(0)


def serve(
    session: Path,
    file: SessionFile,
    shipper: Shipper,
    commands: queue.Queue[Mapping[str, Any]],
    gone: threading.Event,
    warn: Callable[[str], None],
) -> int:
    """Ship until told to close or left alone, then ship the rest.

    Returns:
        How many runs have something left in the spool.
    """
    stop = threading.Event()
    quietly = threading.Thread(target=ship_quietly, args=(session, file, shipper, stop, warn), daemon=True)
    quietly.start()
    closing: Status | None = None
    while closing is None and not gone.is_set():
        with contextlib.suppress(queue.Empty):
            closing = commands.get(timeout=POLL_SECONDS)["close"]
    stop.set()
    quietly.join()
    if closing is not None:
        return finish(session, file, shipper, closing, gone, warn)
    # The parent is gone. What is not done within a second is done at the next start.
    with contextlib.suppress(Held):
        shipper.ship(everything=True)
        shipper.end_the_dead()
    left = len(shipper.unshipped())
    if not left:
        shutil.rmtree(session, ignore_errors=True)
    return left


def ship_quietly(
    session: Path, file: SessionFile, shipper: Shipper, stop: threading.Event, warn: Callable[[str], None]
) -> None:
    """Ship while the parent trains, which comes first: on Linux this thread, and it alone, gives way."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    pause, resume_at, beat_at, silent = 1.0, 0.0, 0.0, False
    while not stop.wait(POLL_SECONDS):
        now = time.monotonic()
        if now >= beat_at:
            beat_at = now + HEARTBEAT_SECONDS
            with contextlib.suppress(OSError):
                os.utime(session / "session.json")
        if now >= resume_at:
            try:
                shipper.ship(stop=stop.is_set)
                shipper.end_the_dead()
                pause, silent = 1.0, False
            except Held as error:
                if not silent:
                    warn(f"{masked(file.uri)} takes no values now ({error}); they are kept in {session}")
                silent, pause, resume_at = True, min(2 * pause, 15.0), now + pause
            except Exception as error:
                traceback.print_exc()  # into the session's log
                warn(f"shipping stopped until the session closes: {reason(error)}")
                return


def finish(
    session: Path,
    file: SessionFile,
    shipper: Shipper,
    status: Status,
    gone: threading.Event,
    warn: Callable[[str], None],
) -> int:
    """Ship everything and remove the session; after a few tries leave it for the next start."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        try:
            shipper.finish(status, owner=file.owner)
            shutil.rmtree(session, ignore_errors=True)
            return 0
        except Held as error:
            if time.monotonic() > deadline or gone.is_set():
                left = len(shipper.unshipped())
                warn(
                    f"{left} run(s) could not be shipped to {masked(file.uri)} ({error}); "
                    f"they are kept in {session} and ship at the next start"
                )
                return left
            time.sleep(0.5)


def recover(own: Path, store: MlflowStore, warn: Callable[[str], None]) -> None:
    """Ship what sessions left whose process is gone; their runs without an end become KILLED.

    Args:
        own: the session of this process, which is left alone.
        store: the store of this process; another one is connected for a session that belongs elsewhere.
        warn: takes one line for the user.
    """
    folder = own.parent
    if all(session == own for session in sessions(folder)):
        return
    with contextlib.suppress(Timeout), FileLock(folder / "recovery.lock", timeout=600.0):
        for session in sessions(folder):
            if session == own:
                continue
            try:
                file = SessionFile.load(session)
                if not _abandoned(session, file):
                    continue
                same = file.uri == store.uri
                home = store if same else MlflowStore(file.uri, file.artifact_location)
                if not same:
                    home.connect()
                shipper = Shipper(session, home, warn)
                if shipper.any_alive(file.owner, wait=3.0):
                    continue
                count = len(shipper.unshipped())
                shipper.finish(closed_status(session) or "KILLED")
                shutil.rmtree(session, ignore_errors=True)
                if count:
                    warn(f"{count} run(s) of an interrupted session were completed in {masked(file.uri)}")
            except Exception as error:  # what an old session holds must not keep a new one from starting
                warn(f"what an earlier session logged stays in {session} for now: {reason(error)}")


def _abandoned(session: Path, file: SessionFile) -> bool:
    if not file.owner.here:
        return time.time() - (session / "session.json").stat().st_mtime > HEARTBEAT_LOST_SECONDS
    if file.owner.alive() and not closed_status(session):
        return False
    helper = None
    with contextlib.suppress(OSError, ValueError, TypeError):
        helper = ProcessIdentity(**json.loads((session / "helper.json").read_text(encoding="utf-8")))
    deadline = time.monotonic() + 3.0
    while helper is not None and helper.alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@dataclass
class Progress:
    """How far a run was shipped; kept beside its spool.

    Attributes:
        run_id: its MLflow identity, once it has one.
        attempted: whether its creation was tried, so that a run without identity may exist all the same.
        offset: everything before this position of the spool is in the store.
        status: how it ended; empty while it runs.
        late: artifacts that the store did not take when their turn came, as [path, folder].
    """

    run_id: str = ""
    attempted: bool = False
    offset: int = 0
    status: str = ""
    late: list[list[str]] = field(default_factory=list)


class RunSpool:
    """One run's spool, and how far it was shipped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = path.stem
        self.progress = Progress()
        self.shipped_at = 0.0
        self.last_record = 0
        self.torn = 0
        self.params: dict[str, str] | None = None
        self._opening: Record | None = None
        with contextlib.suppress(OSError, ValueError, TypeError):
            self.progress = Progress(**json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))

    @property
    def opening(self) -> Record | None:
        """The first record; None while it is not whole."""
        if self._opening is None:
            records = read_chunk(self.path, 0, values=0).records
            self._opening = records[0] if records and records[0]["kind"] == "open" else None
        return self._opening

    @property
    def name(self) -> str:
        """The run's name, for messages."""
        return str(self.opening["name"]) if self.opening else self.key

    @property
    def process(self) -> ProcessIdentity | None:
        """The process that started the run."""
        return ProcessIdentity(**self.opening["process"]) if self.opening else None

    @property
    def waiting(self) -> int:
        """Bytes that were not shipped."""
        try:
            return self.path.stat().st_size - self.progress.offset
        except FileNotFoundError:  # somebody deleted the spool
            return 0

    def due(self, now: float) -> bool:
        """Whether it is time to ship: the run is new, or much waits, or it has waited long enough."""
        waiting = self.waiting
        if not waiting or self.opening is None:
            return False
        return not self.progress.run_id or waiting > 60_000 or now - self.shipped_at >= LINGER_SECONDS

    def save(self) -> None:
        """Remember how far it was shipped.

        Raises:
            Held: if the disk does not take it.
        """
        try:
            write_atomic(self.path.with_suffix(".json"), json.dumps(asdict(self.progress)))
        except OSError as error:
            raise Held(reason(error)) from error


class Shipper:
    """Ships the spools of one session.

    Args:
        session: the session's folder.
        store: where to; connected.
        warn: takes one line for the user.
    """

    def __init__(self, session: Path, store: MlflowStore, warn: Callable[[str], None]) -> None:
        self.session = session
        self.store = store
        self.warn = warn
        self._runs: dict[str, RunSpool] = {}
        self._refused: set[str] = set()

    def runs(self) -> list[RunSpool]:
        """Every run of the session whose first record is whole, oldest first."""
        for path in self.session.glob("*.jsonl"):
            if path.stem not in self._runs and path.stem not in self._refused:
                self._runs[path.stem] = RunSpool(path)
        opened = [(run.opening["time"], run.key, run) for run in self._runs.values() if run.opening]
        return [run for _, _, run in sorted(opened, key=lambda item: item[:2])]

    def unshipped(self) -> list[RunSpool]:
        """The runs that have something left to ship, or no end."""
        return [run for run in self.runs() if run.waiting or run.progress.late or not run.progress.status]

    def ship(self, *, everything: bool = False, stop: Callable[[], bool] = lambda: False) -> None:
        """Ship what is due, or everything.

        Raises:
            Held: if the store cannot take it now; call again later.
        """
        now = time.monotonic()
        due = deque(
            (run, run.progress.offset + run.waiting)
            for run in self.runs()
            if run.due(now) or (everything and run.waiting)
        )
        held: list[Held] = []
        while due and not stop():
            with self._writing():
                until = time.monotonic() + BURST_SECONDS
                while due and time.monotonic() < until and not stop():
                    run, end = due.popleft()
                    run.shipped_at = now
                    with _of_run(held):
                        if self._ship_chunk(run) and run.progress.offset < end:
                            due.append((run, end))
            if due and self.store.database:
                time.sleep(0.03)  # longer than the others' polling of the lock: it is their turn
        if held:
            raise held[0]

    def end_the_dead(self) -> None:
        """End, as KILLED, the runs whose process is gone."""
        for run in self.runs():
            if not run.progress.status and run.process and not run.process.alive():
                self._finish(run, "KILLED")

    def any_alive(self, owner: ProcessIdentity, wait: float) -> bool:
        """Whether a process of a run without an end, other than the owner, lives still after some seconds."""
        deadline = time.monotonic() + wait
        processes = {run.process for run in self.runs() if not run.progress.status and run.process} - {owner}
        while any(process.here and process.alive() for process in processes):
            if time.monotonic() > deadline:
                return True
            time.sleep(0.05)
        return False

    def finish(self, status: Status, *, owner: ProcessIdentity | None = None) -> None:
        """Ship everything for the last time; runs without an end get one.

        Args:
            status: the end of the owner's runs. A run of another process, a worker, becomes KILLED where this
                is FINISHED: its process did not come to its end.
            owner: the process that opened the session; None gives every run the status.

        Raises:
            Held: if the store cannot take it now; call again later.
        """
        held: list[Held] = []
        with _of_run(held):
            self.ship(everything=True)
        for run in self.runs():
            own = owner is None or run.process == owner
            with _of_run(held):
                self._finish(run, "KILLED" if status == "FINISHED" and not own else status)
        if held:
            raise held[0]
        for run in list(self._runs.values()):
            if run.opening is None and run.waiting:
                self._put_aside(run, "its spool does not begin with a run")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self.store.writing():
                yield
        except TrackingError as error:
            raise Held(str(error)) from error

    def _finish(self, run: RunSpool, status: Status) -> None:
        with self._writing():
            while self._ship_chunk(run, final=True):
                pass
            if run.key in self._refused:
                return
            self._ship_late(run)
            if not run.progress.status:
                self._end(run, status, run.last_record or int(run.path.stat().st_mtime * 1000))
                run.save()
            if run.torn:
                self.warn(f"run '{run.name}': {run.torn} record(s) were cut short by a full disk or a crash")
                run.torn = 0

    def _ship_chunk(self, run: RunSpool, *, final: bool = False) -> bool:
        """Ship the next records of a run; whether there were any."""
        chunk = read_chunk(run.path, run.progress.offset, values=BATCH, final=final)
        if chunk.end == run.progress.offset:
            return False
        try:
            if not run.progress.run_id:
                self._create(run)
            self._send(run, chunk)
        except Refused as error:
            self._put_aside(run, str(error))
            return False
        run.progress.offset = chunk.end
        run.torn += chunk.torn
        run.save()
        return True

    def _create(self, run: RunSpool) -> None:
        opening, client = run.opening, self.store.client
        assert opening is not None
        run_id = ask(self.store.find, run.key) if run.progress.attempted else None
        if run_id is None:
            run.progress.attempted = True
            run.save()
            tags = {**opening["tags"], "leyden.key": run.key}
            if opening["parent"]:
                tags["leyden.parent"] = opening["parent"]
                if parent := self._identity(opening["parent"]):
                    tags["mlflow.parentRunId"] = parent
            made = ask(
                client.create_run,
                ask(self.store.experiment, opening["experiment"]),
                start_time=opening["time"],
                tags={clean_key(name): cut(text, TAG_LENGTH) for name, text in tags.items()},
                run_name=cut(opening["name"], KEY_LENGTH),
            )
            run_id = made.info.run_id
            run.params = {}
        run.progress.run_id = run_id
        run.save()
        self._keep_long(run, opening["tags"], TAG_LENGTH)

    def _identity(self, key: str) -> str | None:
        """MLflow's identity of a run; one of this session is created first."""
        run = next((run for run in self.runs() if run.key == key), None)
        if run is None:
            return ask(self.store.find, key)
        if not run.progress.run_id:
            self._create(run)
        return run.progress.run_id

    def _send(self, run: RunSpool, chunk: Chunk) -> None:
        from mlflow.entities import Metric, Param, RunTag

        metrics: list[Metric] = []
        params: dict[str, str] = {}
        tags: dict[str, str] = {}
        artifacts: list[Record] = []
        end: Record | None = None
        for record in chunk.records:
            run.last_record = record.get("time", run.last_record)
            match record["kind"]:
                case "metrics":
                    moment, step = record["time"], max(-_BIGGEST_STEP, min(_BIGGEST_STEP, record["step"]))
                    values = record["values"].items()
                    metrics += [Metric(clean_key(name), value, moment, step) for name, value in values]
                case "params":
                    changed = self._changed(run, record["values"])
                    params |= {name: text for name, text in record["values"].items() if name not in changed}
                    tags |= {f"param.{name}": record["values"][name] for name in changed}
                case "tags":
                    tags |= record["values"]
                case "artifact":
                    artifacts.append(record)
                case "end":
                    end = record
        for part in _parts(params, PARAM_LENGTH):
            self._log(run, "params", [Param(key, value) for key, value in part])
        for part in _parts(tags, TAG_LENGTH):
            self._log(run, "tags", [RunTag(key, value) for key, value in part])
        for start in range(0, len(metrics), BATCH):
            self._log(run, "metrics", metrics[start : start + BATCH])
        self._keep_long(run, params, PARAM_LENGTH)
        self._keep_long(run, tags, TAG_LENGTH)
        for record in artifacts:
            self._ship_artifact(run, record["path"], record["folder"])
        if end is not None:
            self._end(run, end["status"], end["time"])

    def _changed(self, run: RunSpool, values: Mapping[str, str]) -> set[str]:
        """The parameters that have another value already: MLflow never changes one."""
        if run.params is None:
            run.params = dict(ask(self.store.client.get_run, run.progress.run_id).data.params)
        changed = set()
        for name, text in values.items():
            value = cut(text, PARAM_LENGTH)
            if run.params.setdefault(clean_key(name), value) != value:
                changed.add(name)
        return changed

    def _log(self, run: RunSpool, kind: str, items: Sequence[Any], *, again: bool = False) -> None:
        """Send items; where the store refuses them, halve them until the one that it refuses is alone."""
        try:
            ask(partial(self.store.client.log_batch, run.progress.run_id), **{kind: items})
        except (Refused, Held) as error:
            # To some impossible values a store answers as if it broke down; if it takes a tag, it did not.
            if isinstance(error, Held) and not error.odd:
                raise
            self._check(run)
            if len(items) > 1:
                middle = len(items) // 2
                self._log(run, kind, items[:middle])
                self._log(run, kind, items[middle:])
            elif isinstance(error, Held) and not again:
                self._log(run, kind, items, again=True)
            else:
                self._drop(run, kind, items[0], error)

    def _check(self, run: RunSpool) -> None:
        """Whether the store takes anything at all for this run.

        Raises:
            Held: if not now.
            Refused: if never.
        """
        ask(self.store.client.set_tag, run.progress.run_id, "leyden.checked", str(time.time_ns()))

    def _drop(self, run: RunSpool, kind: str, item: Any, why: Exception) -> None:
        """Leave out one value that the store will never take; it is kept in a file."""
        path = self._aside(run) / f"{kind}.jsonl"
        if not path.exists():
            self.warn(
                f"run '{run.name}': the store refused {kind[:-1]} '{item.key}' ({why}); it is in {path}"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**dict(item), "refused": str(why)}) + "\n")
        except OSError as error:
            raise Held(reason(error)) from error

    def _end(self, run: RunSpool, status: Status, moment: int) -> None:
        ask(self.store.client.set_terminated, run.progress.run_id, status=status, end_time=moment)
        run.progress.status = status

    def _keep_long(self, run: RunSpool, values: Mapping[str, str], limit: int) -> None:
        """Keep whole, as text files, the values that are longer than MLflow takes."""
        for name, text in values.items():
            if len(text) > limit:
                file_name = re.sub(r"[^\w.-]", "_", name)[:100]
                path = Path("files", run.key, f"long-{file_name}", f"{file_name}.txt")
                try:
                    write_atomic(self.session / path, _storable(text))
                except OSError as error:
                    raise Held(reason(error)) from error
                self._ship_artifact(run, str(path), "long")

    def _ship_artifact(self, run: RunSpool, path: str, folder: str) -> None:
        # The place of artifacts can be out of reach while the server answers: values do not wait for it.
        source, late = self.session / path, [path, folder]
        client, run_id = self.store.client, run.progress.run_id
        try:
            if source.is_dir():
                inside = "/".join(filter(None, (folder, source.name)))
                ask(client.log_artifacts, run_id, str(source), inside)
            elif source.exists():  # else it was shipped before a crash
                ask(client.log_artifact, run_id, str(source), folder or None)
        except (Refused, Held) as error:
            if str(error) == DISK_FULL:
                raise
            if late not in run.progress.late:
                run.progress.late.append(late)
            return
        shutil.rmtree(source.parent, ignore_errors=True)
        if late in run.progress.late:
            run.progress.late.remove(late)

    def _ship_late(self, run: RunSpool) -> None:
        for path, folder in list(run.progress.late):
            self._ship_artifact(run, path, folder)
        if not run.progress.late:
            return
        self._check(run)
        place = self._aside(run)
        for path, _ in run.progress.late:
            _move(self.session / path, place / path)
        self.warn(
            f"run '{run.name}': the store did not take {len(run.progress.late)} artifact(s); see {place}"
        )
        run.progress.late.clear()
        run.save()

    def _put_aside(self, run: RunSpool, why: str) -> None:
        place, name = self._aside(run), run.name
        _move(run.path, place / run.path.name)
        _move(self.session / "files" / run.key, place / "files" / run.key)
        self._refused.add(run.key)
        del self._runs[run.key]
        self.warn(f"run '{name}' was not shipped ({why}); what it logged is kept in {place}")

    def _aside(self, run: RunSpool) -> Path:
        return self.session.parent.parent / "refused" / run.key


@contextlib.contextmanager
def _of_run(held: list[Held]) -> Iterator[None]:
    """Collect what holds one run back, so that the others go on."""
    try:
        yield
    except Held as error:
        if not error.of_run:
            raise
        held.append(error)


def clean_key(name: str) -> str:
    """The name as MLflow takes it: its characters, no path that leads elsewhere, at most 250 characters.

    >>> clean_key("sps/step size (mean)"), clean_key("../x"), clean_key("a//b")
    ('sps/step size _mean_', '_/x', 'a/b')
    """
    key = re.sub(r"[^\w/.\- :]", "_", _storable(name))
    key = posixpath.normpath(key).replace("..", "_").lstrip("/") if key else "_"
    key = "_" if key in ("", ".") else key
    if len(key) > KEY_LENGTH:
        key = f"{key[: KEY_LENGTH - 9]}-{sha256(key.encode()).hexdigest()[:8]}"
    return key


def cut(text: str, limit: int) -> str:
    """The text as MLflow takes it.

    >>> cut("four", 3)
    'fo…'
    """
    text = _storable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "")


def _parts(values: Mapping[str, str], limit: int) -> Iterator[list[tuple[str, str]]]:
    """The values as MLflow takes them, at most 100 items and little over 200,000 characters at once."""
    part: list[tuple[str, str]] = []
    size = 0
    for name, text in {clean_key(name): cut(text, limit) for name, text in values.items()}.items():
        part.append((name, text))
        size += len(name) + len(text)
        if len(part) == 100 or size > 200_000:
            yield part
            part, size = [], 0
    if part:
        yield part


def _move(source: Path, target: Path) -> None:
    if not source.exists():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source, target)
    except OSError as error:
        raise Held(reason(error)) from error


class Voice:
    """Speaks to the parent: one JSON line a message. Anything else that is printed goes to the log."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def say(self, event: str, **content: object) -> None:
        """Send an event; nobody may be listening any more."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._out.write(json.dumps({"event": event, **content}) + "\n")

    def warn(self, message: str) -> None:
        """Send one line for the user."""
        self.say("warning", message=message)

    def leave(self, status: int) -> None:
        """End the process at once: MLflow's own threads are not waited for."""
        with contextlib.suppress(OSError, ValueError):
            self._out.flush()
        sys.stderr.flush()
        os._exit(status)


def watch(parent: int) -> threading.Event:
    """Start watching the parent; the event says that it is gone, and a second later this process is, too."""
    gone = threading.Event()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(0.1)
        gone.set()
        time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()
    return gone


def listen() -> queue.Queue[Mapping[str, Any]]:
    """Start listening to the parent's commands."""
    commands: queue.Queue[Mapping[str, Any]] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            with contextlib.suppress(ValueError):
                commands.put(json.loads(line))

    threading.Thread(target=read, daemon=True).start()
    return commands


if __name__ == "__main__":
    main()
