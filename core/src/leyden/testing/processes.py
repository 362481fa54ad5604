"""What a component owes among processes: right under DDP and FSDP2, and resumed after its process was killed.

Importing Lightning costs seconds a process, so all components of a plugin share one group of two.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from leyden.model import Component
from leyden.testing.fitting import far, fit, in_double, tolerance_of, unequal
from leyden.testing.kit import Case, Subject
from leyden.testing.resume import RestoreRNG
from leyden.testing.values import value_of

STEPS = 20
"""Optimizer steps that are compared."""

TASKS = {
    "ddp": "Two processes under DDP equal one process on their joint batch.",
    "fsdp2": "Two processes with sharded parameters (FSDP2) equal one process on their joint batch.",
    "kill-resume": "A training killed by signal 9 and resumed from a checkpoint equals an undisturbed one.",
}
TIME_LIMIT = 120.0
"""Seconds a task may take; two processes that wait for each other never end."""


@dataclass(frozen=True)
class Task:
    """One training in other processes.

    Attributes:
        name: one of `TASKS`.
        subject: the component.
    """

    name: str
    subject: Subject

    def to_json(self) -> dict[str, Any]:
        """The task as `leyden.testing.rank` reads it."""
        return {"name": self.name, **asdict(self.subject)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Task:
        """The task that was written."""
        component = Component(**value["component"])
        return cls(value["name"], Subject(component, value["from_paper"], value["contributed"]))


def process_cases(subjects: Sequence[Subject]) -> Iterator[Case]:
    """The cases that need processes, of all components of a plugin; the first that runs starts the processes.

    Args:
        subjects: the components.

    Yields:
        A case for each check that a component owes.
    """
    tasks = [Task(name, subject) for subject in subjects for name in TASKS if _owes(name, subject.component)]
    asked = [task for task in tasks if task.name not in task.subject.component.exempt]
    group = _Group(sorted(asked, key=lambda task: task.name != "kill-resume"))  # in the order they are done
    for task in tasks:
        component = task.subject.component
        yield Case(
            component.name,
            task.name,
            TASKS[task.name],
            functools.partial(group.findings, task),
            exempt=component.exempt.get(task.name, ""),
        )


class _Group:
    """The trainings of a plugin's components in other processes, made when first asked for."""

    def __init__(self, tasks: list[Task]) -> None:
        self._tasks = tasks
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._failures: dict[int, str] = {}

    def findings(self, task: Task) -> Iterator[str]:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory()
            self._run(Path(self._folder.name))
        place = self._tasks.index(task)
        if place in self._failures:
            yield self._failures[place]
        else:
            yield from _compared(task, Path(self._folder.name) / str(place))

    def _run(self, folder: Path) -> None:
        """Run all tasks; where one breaks its processes, go on with the next in new ones."""
        start = 0
        while start < len(self._tasks):
            failure = _run_processes(self._tasks, start, folder)
            if failure is None:
                return
            self._failures[failure[0]] = failure[1]
            start = failure[0] + 1


def _owes(name: str, component: Component) -> bool:
    if name == "kill-resume":
        return component.kind in ("optimizer", "lr_scheduler", "callback", "module") and hasattr(os, "fork")
    trains = component.kind in ("optimizer", "lr_scheduler", "callback", "module", "layer")
    return name in component.supports and (trains or (name == "ddp" and component.kind in ("metric", "loss")))


def _run_processes(tasks: Sequence[Task], start: int, folder: Path) -> tuple[int, str] | None:
    """Start the processes for the tasks from a place on; tell the place and fault of the first that broke."""
    (folder / "tasks.json").write_text(json.dumps([task.to_json() for task in tasks]))
    ranks = 2 if any(task.name != "kill-resume" for task in tasks[start:]) else 1
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RUN_ID": "leyden",  # Lightning then takes the processes that exist
        "OMP_NUM_THREADS": "1",
    }
    logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("w") as file:
            command = [sys.executable, "-c", _RANK, str(os.getpid()), str(folder), str(start)]
            numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(
                subprocess.Popen(
                    command,
                    env={**environment, **numbers},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    try:
        return _watch(processes, tasks, start, folder, logs)
    finally:
        for process in processes:
            process.kill()
            process.wait()


_RANK = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-P", "-m", "leyden.guard", str(os.getpid()), sys.argv[1]])
from pathlib import Path
from leyden.testing.rank import main
main(Path(sys.argv[2]), int(sys.argv[3]))
"""
"""One of the processes: guarded before it spends seconds on imports."""


def _watch(
    processes: Sequence[subprocess.Popen[bytes]],
    tasks: Sequence[Task],
    start: int,
    folder: Path,
    logs: Sequence[Path],
) -> tuple[int, str] | None:
    place, since = start, time.monotonic()
    while True:
        done = _done(tasks, start, folder, len(processes))
        if done > place:
            place, since = done, time.monotonic()
        if place == len(tasks):
            return None
        if any(process.poll() is not None for process in processes):
            time.sleep(0.5)  # the other one, which lost its partner, ends too
            done = _done(tasks, start, folder, len(processes))
            return None if done == len(tasks) else (done, _last_words(processes, logs))
        if time.monotonic() - since > TIME_LIMIT:
            return place, f"after {TIME_LIMIT:.0f} s the processes still wait for each other"
        time.sleep(0.05)


def _last_words(processes: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path]) -> str:
    """What the processes that failed wrote last, each: one fails for what it did, the other for its loss."""
    words = [
        f"process {rank} ended with status {process.returncode}:\n"
        + "\n".join(log.read_text().strip().splitlines()[-12:])
        for rank, (process, log) in enumerate(zip(processes, logs, strict=True))
        if process.poll()
    ]
    return "\n".join(words) or "the processes ended before they were done"


def _done(tasks: Sequence[Task], start: int, folder: Path, ranks: int) -> int:
    """The place of the first task that not every process has finished."""
    for place in range(start, len(tasks)):
        wanted = 1 if tasks[place].name == "kill-resume" else ranks
        if any(not (folder / str(place) / f"done{rank}").exists() for rank in range(wanted)):
            return place
    return len(tasks)


def _compared(task: Task, folder: Path) -> Iterator[str]:
    """Compare what the processes left with the same in this one."""
    subject = task.subject
    if task.name == "kill-resume":
        through = fit(subject, steps=6, shuffle=True, callbacks=[RestoreRNG()])
        saved, error = folder / "step=3.ckpt", folder / "error.txt"
        if error.exists() or not saved.exists():
            reason = error.read_text() if error.exists() else "it wrote none"
            yield f"the training left no checkpoint before the kill: {reason}"
            return
        resumed = fit(subject, steps=6, shuffle=True, callbacks=[RestoreRNG()], resume_from=saved)
        if difference := unequal(through.final, resumed.final):
            yield f"the training that went on after the kill differs from an uninterrupted one: {difference}"
        return
    first, second = (torch.load(folder / f"state{rank}.pt", weights_only=True) for rank in (0, 1))
    if difference := unequal(first, second):
        yield f"the two processes end with different numbers: {difference}"
    if subject.component.kind in ("metric", "loss"):
        joint = value_of(subject)
    else:
        joint = fit(subject, steps=STEPS, joined=2, double=in_double(subject)).final
    if difference := far(joint, first, tolerance_of(subject)):
        yield f"two processes and one process on the joint batch differ: {difference}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
