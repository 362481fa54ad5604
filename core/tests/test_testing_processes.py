"""The kit finds what is broken among processes; these components share those that it starts."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from leyden.model import Component
from leyden.testing import processes
from leyden.testing.kit import Case, Subject
from leyden.testing.processes import process_cases

pytestmark = pytest.mark.slow

PASS = [
    ("Steady", "ddp"),
    ("Steady", "fsdp2"),
    ("Steady", "kill-resume"),
    ("Halving", "ddp"),
    ("Modest", "ddp"),
    ("Solver", "ddp"),
    ("Solver", "kill-resume"),
    ("Mixing", "ddp"),
    ("Distance", "ddp"),
    ("MeanDistance", "ddp"),
]
FAIL = [
    ("NormOfShard", "fsdp2", "differ"),
    ("BreaksProcess", "ddp", "the second process cannot do this"),
    ("TakesLastLoss", "ddp", "the two processes end with different numbers"),
    ("ForgetsState", "kill-resume", "differs from an uninterrupted one"),
    ("SumOfLosses", "ddp", "two processes and one process on the joint batch differ"),
    ("SumOfRows", "ddp", "two processes and one process on the joint batch differ"),
    ("KeepsLargest", "ddp", "two processes and one process on the joint batch differ"),
]


@pytest.fixture(scope="module")
def cases() -> Iterator[dict[str, Case]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        subjects = [
            subject("optimizer", "optimizers.Steady", "ddp", "fsdp2"),
            subject("optimizer", "optimizers.NormOfShard", "fsdp2"),
            subject("optimizer", "optimizers.BreaksProcess", "ddp"),
            subject("optimizer", "optimizers.TakesLastLoss", "ddp"),
            subject("optimizer", "optimizers.ForgetsState"),
            subject("lr_scheduler", "schedulers.Halving", "ddp"),
            subject("callback", "callbacks.Modest", "ddp", trial="callbacks.damped"),
            subject("module", "modules.Solver", "ddp"),
            subject("module", "modules.SumOfLosses", "ddp"),
            subject("layer", "layers.Mixing", "ddp", trial="layers.one_tensor"),
            subject("loss", "layers.Distance", "ddp", trial="layers.two_tensors"),
            subject("loss", "layers.SumOfRows", "ddp", trial="layers.two_tensors"),
            subject("metric", "metrics.MeanDistance", "ddp", trial="metrics.eight_rows"),
            subject("metric", "metrics.KeepsLargest", "ddp", trial="metrics.eight_rows"),
        ]
        yield {case.id: case for case in process_cases(subjects)}


def subject(kind: str, path: str, *supports: str, trial: str = "") -> Subject:
    return Subject(
        Component(
            kind=kind,
            path=f"kit_examples.{path}",
            summary="An example.",
            supports=supports,
            trial=trial and f"kit_examples.{trial}",
        )
    )


def texts(case: Case) -> str:
    return "\n".join(finding.text for finding in case.findings())


@pytest.mark.parametrize(("name", "check"), PASS)
def test_a_component_that_keeps_its_promises_passes(cases: dict[str, Case], name: str, check: str) -> None:
    assert texts(cases[f"{name}-{check}"]) == ""


@pytest.mark.parametrize(("name", "check", "text"), FAIL)
def test_a_component_broken_in_one_way_fails_the_check_of_it(
    cases: dict[str, Case], name: str, check: str, text: str
) -> None:
    assert text in texts(cases[f"{name}-{check}"])


def test_only_what_is_claimed_needs_a_group_of_processes() -> None:
    owed = {case.id for case in process_cases([subject("optimizer", "optimizers.Steady", "ddp")])}
    assert owed == {"Steady-ddp", "Steady-kill-resume"}
    assert not list(process_cases([subject("function", "functions.halved")]))


def test_processes_that_wait_for_each_other_are_ended_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TIME_LIMIT", 0.2)  # less than they take to start
    started: list[int] = []
    popen = processes.subprocess.Popen

    def spy(*args: object, **kwargs: object) -> object:
        process = popen(*args, **kwargs)
        started.append(process.pid)
        return process

    monkeypatch.setattr(processes.subprocess, "Popen", spy)
    component = Component(
        kind="optimizer",
        path="torch.optim.Adagrad",
        summary="x",
        supports=("ddp",),
        exempt={"kill-resume": "x"},
    )
    ddp, kill = process_cases([Subject(component)])
    assert texts(kill) == ""
    assert "the processes still wait for each other" in texts(ddp)
    assert len(started) == 2
    assert not any(alive(pid) for pid in started)


def test_the_processes_end_when_the_one_that_started_them_is_killed() -> None:
    code = """
        from leyden.model import Component
        from leyden.testing import check_component
        component = Component(kind="optimizer", path="torch.optim.Adagrad", summary="x", supports=("ddp",))
        check_component(component, only=["ddp"])
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        ranks = eventually(lambda: [one.pid for one in psutil.Process(parent.pid).children()])
        guards = eventually(lambda: [one.pid for rank in ranks for one in psutil.Process(rank).children()])
    finally:
        parent.kill()
        parent.wait()
    assert eventually(lambda: not any(alive(pid) for pid in [*ranks, *guards]), seconds=5)


def eventually(find: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
