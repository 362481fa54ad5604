"""`leyden reproduce`: run claims, judge them, and leave a report and a tracked run of each."""

from __future__ import annotations

import contextlib
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from leyden.claims import SCALES, Cell, Claim, Scale, ScaleName, Statement, Table
from leyden.errors import LeydenError, UsageError, one_line, unknown
from leyden.execute import check_executor, default_jobs, run_cells, stop_workers, termination_as_exit
from leyden.manager import Manager, Plugin, manager
from leyden.model import Outcome, Run, RunResult, Verdict
from leyden.progress import CellProgress, say
from leyden.provenance import provenance
from leyden.results import Results, code_version, own_results
from leyden.settings import TrackingSettings
from leyden.tracking import RunWriter, Session, resolve_store, status_of
from leyden.worker import Tracked, find_modules_in, open_cell_run, track

if TYPE_CHECKING:
    from rich.console import Console

    from leyden.report import Report, ReportFiles

REPORTS = Path("leyden-reports")
RESULTS = Path(".leyden", "results")


def reproduce(
    names: Sequence[str],
    *,
    scale: str = "laptop",
    seeds: int | None = None,
    first_seed: int = 0,
    jobs: int | None = None,
    executor: str | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> int:
    """Run claims and tell whether they hold here.

    Args:
        names: ``"plugin"`` for all its claims, or ``"plugin/claim"``.
        scale: ``"smoke"``, ``"laptop"`` or ``"paper"``.
        seeds: how many; the claim's own number for the scale if None.
        first_seed: the first of them. Whoever wrote a claim has seen its first seeds; later ones confirm it.
        jobs: how many cells run at the same time; plugins.toml's number, or one a core (of this machine or
            of the cluster), if None.
        executor: ``"loky"`` or ``"ray"``; plugins.toml's if None.
        resume: go on where the newest invocation stopped that ran the same code.
        console: where to print; standard output if None.

    Returns:
        The exit status: 0 if every cell ran, whatever the verdicts; 1 if one failed or a claim could not be
        judged; 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        UsageError: if a name or a number is wrong.
        LeydenError: if the tracking store or the working directory cannot be used.
    """
    if console is None:
        from rich.console import Console

        console = Console()
    find_modules_in(Path.cwd())
    plugins = manager()
    known_problems = list(plugins.problems)
    plan = _plan(
        plugins,
        scale=scale,
        seeds=seeds,
        first_seed=first_seed,
        jobs=jobs,
        executor=executor,
        resume=resume,
    )
    claims = _claims(names, plugins)
    for problem in plugins.problems:
        if problem not in known_problems:
            say(console, problem, "red")
    complete = len(plugins.problems) == len(known_problems)
    try:
        with termination_as_exit(), tracking_session(plugins.settings.tracking, console) as session:
            for plugin, claim in claims:
                try:
                    reproduction = _Reproduction(plugin, claim(), plan, plugins, session, console)
                except Exception as error:
                    name = f"{plugin.name}/{claim.name}"
                    say(console, f"{name}: the claim cannot be set up: {one_line(error)}", "red")
                    complete = False
                else:
                    complete &= reproduction.run()
    except (KeyboardInterrupt, SystemExit) as stop:
        command = [
            "leyden reproduce",
            *names,
            f"--scale {scale}",
            f"--seeds {seeds}" if seeds else "",
            f"--first-seed {first_seed}" if first_seed else "",
            "--resume",
        ]
        say(console, f"Stopped; what was measured is stored. To go on: {' '.join(filter(None, command))}")
        return stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130
    finally:
        stop_workers()
    return 0 if complete else 1


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How the user wants claims to be run."""

    scale: ScaleName
    seeds: int | None
    first_seed: int
    jobs: int
    executor: str
    resume: bool


def _plan(
    plugins: Manager,
    *,
    scale: str,
    seeds: int | None,
    first_seed: int,
    jobs: int | None,
    executor: str | None,
    resume: bool,
) -> _Plan:
    settings = plugins.settings.execute
    known = next((name for name in SCALES if name == scale), None)
    if known is None:
        raise unknown("scale", scale, SCALES)
    for name, number in (("seeds", seeds), ("jobs", jobs)):
        if number is not None and number < 1:
            raise UsageError(f"--{name} {number}: must be at least 1")
    if first_seed < 0:
        raise UsageError(f"--first-seed {first_seed}: must be at least 0")
    chosen = executor or settings.executor
    check_executor(chosen)
    return _Plan(
        scale=known,
        seeds=seeds,
        first_seed=first_seed,
        jobs=jobs or settings.jobs or default_jobs(chosen),
        executor=chosen,
        resume=resume,
    )


def _claims(names: Sequence[str], plugins: Manager) -> list[tuple[Plugin, type[Claim]]]:
    chosen: dict[str, tuple[Plugin, type[Claim]]] = {}
    for name in names:
        prefix, slash, claim = name.partition("/")
        plugin = plugins.plugin(prefix)
        if slash:
            found = [plugins.claim(prefix, claim)]
        else:
            found = [each for owner, each in plugins.claims() if owner.name == plugin.name]
            if not found:
                raise UsageError(f"plugin '{plugin.name}' has no claim that can be run")
        chosen |= {f"{plugin.name}/{each.name}": (plugin, each) for each in found}
    return list(chosen.values())


@contextlib.contextmanager
def tracking_session(
    settings: TrackingSettings, console: Console, *, wait: bool = True
) -> Iterator[Session | None]:
    """Open a tracking session for as long as the context lasts; None where tracking is turned off.

    Args:
        settings: the store, and whether anything is tracked.
        console: where it is said that the store keeps the user waiting.
        wait: whether to wait for the store; otherwise `await_store` does, before anything is measured.
    """
    if not settings.enabled:
        yield None
        return
    session = Session.open(resolve_store(settings), wait=False)
    if wait:
        await_store(session, console)
    with session:
        yield session


def await_store(session: Session, console: Console) -> None:
    """Wait until the store has answered.

    Raises:
        TrackingError: if it does not.
    """
    waiting = "waiting for the tracking store"
    with console.status(waiting) if console.is_terminal else contextlib.nullcontext():
        session.wait()


class _Reproduction:
    """One claim, run once."""

    def __init__(
        self,
        plugin: Plugin,
        claim: Claim,
        plan: _Plan,
        plugins: Manager,
        session: Session | None,
        console: Console,
    ) -> None:
        self.plugin, self.plan, self.plugins = plugin, plan, plugins
        self.session, self.console = session, console
        self.experiment = plugins.settings.tracking.experiment
        self.path = f"{type(claim).__module__}.{type(claim).__qualname__}"
        self.claim = claim
        self.name = f"{plugin.name}/{claim.name}"
        self.place = Path(plugin.name, claim.name, plan.scale)
        self.seeds = plan.seeds or claim.seeds.get(plan.scale, claim.seeds.get("laptop", 1))
        self.code = code_version(type(claim).__module__)
        self.problems: list[str] = []
        self.began = time.monotonic()

    def run(self) -> bool:
        """Run, judge and report it; return whether all of that went well."""
        try:
            cells = self._cells()
        except Exception as error:
            say(self.console, f"{self.name}: its cells cannot be listed: {one_line(error)}", "red")
            return False
        with own_results(
            Path.cwd() / RESULTS / self.place, code=self.code, resume=self.plan.resume
        ) as results:
            run = self._open_run(cells)
            announced = Run(
                key=run.key if run else uuid.uuid4().hex,
                name=self.name,
                kind="claim",
                plugin=self.plugin.name,
                settings=self._settings(cells),
            )
            self.plugins.run_start(announced)
            try:
                table = self._measure(cells, results, run)
                self._conclude(table, run)
            except BaseException as error:
                with contextlib.suppress(
                    LeydenError
                ):  # a full disk, say: the error that is told is the first
                    self._end(announced, run, results.table(cells), status_of(error), one_line(error))
                raise
            wrong = [f"{result.cell.name} {result.status}" for result in table.failed]
            wrong += [problem.partition("\n")[0] for problem in self.problems]
            self._end(announced, run, table, "FAILED" if wrong else "FINISHED", "; ".join(wrong))
        return not wrong

    def _cells(self) -> list[Cell]:
        # a cell's result depends on the cell alone, so shifting its seed is all there is to do
        cells = [
            replace(cell, seed=cell.seed + self.plan.first_seed)
            for cell in self.claim.cells(Scale(self.plan.scale, self.seeds))
        ]
        if not cells:
            raise LeydenError(f"there is none at scale {self.plan.scale}")
        if len({cell.digest for cell in cells}) < len(cells):
            twice = next(cell for cell in cells if [each.digest for each in cells].count(cell.digest) > 1)
            raise LeydenError(f"{twice.name} is there twice")
        return cells

    def _measure(self, cells: Sequence[Cell], results: Results, run: RunWriter | None) -> Table:
        stored = [result for result in results.table(cells) if result.status == "done"]
        tracked = None
        if self.session and run:
            tracked = Tracked(session=self.session.directory, parent=run.key, experiment=self.experiment)
            for result in stored:
                child = open_cell_run(tracked, result.cell, tags={"leyden.resumed": "true"})
                track(child, result, results.log(result.cell))
        for result in results.table(cells).failed:
            results.discard(result.cell)
        missing = len(cells) - len(stored)
        jobs = min(self.plan.jobs, max(missing, 1))
        note = f"{len(cells)} cells at {self.plan.scale} scale"
        if self.plan.resume:
            before = f"{len(stored)} of them" if stored else "none of them"
            note += f", {before} measured by this code before"
        say(self.console, f"{self.name}: {note}; {jobs} at a time", "dim")
        minutes_on_two_cores = self.claim.minutes.get(self.plan.scale, 0)
        expected = 60 * minutes_on_two_cores * 2 / jobs * missing / len(cells)
        with CellProgress(self.console, self.name, total=missing, expected=expected) as progress:
            run_cells(
                self.path,
                cells,
                results=results,
                jobs=jobs,
                executor=self.plan.executor,
                tracked=tracked,
                on_done=progress.done,
                on_death=progress.note,
            )
        return results.table(cells)

    def _conclude(self, table: Table, run: RunWriter | None) -> None:
        from leyden.report import Report, to_terminal, write_report

        report = Report(
            claim=self.claim,
            table=table,
            verdicts=self._judge(table),
            plugin=self.plugin.name,
            scale=self.plan.scale,
            paper=self.plugin.paper,
            settings=self._settings([result.cell for result in table]),
            provenance=provenance(),
            seconds=time.monotonic() - self.began,
            problems=tuple(self.problems),
        )
        try:
            files = write_report(REPORTS / self.place, report)
        except LeydenError:
            to_terminal(self.console, report)  # what was measured is shown, though it cannot be kept
            raise
        to_terminal(self.console, replace(report, problems=files.problems))
        self.problems = list(files.problems)
        if run:
            run.metrics({"cells": len(table), "failed_cells": len(table.failed)})
            log_report(run, report, files)
            say(self.console, f"MLflow run: {run_id(run)}")
        say(self.console, f"Report: {files.html}")

    def _judge(self, table: Table) -> Sequence[Verdict]:
        try:
            verdicts = [_checked(verdict, self.claim) for verdict in self.claim.judge(table)]
        except Exception as error:
            self.problems.append(f"The claim could not be judged.\n{traceback.format_exc()}")
            return [_unjudged(statement, one_line(error)) for statement in self.claim.statements]
        judged = {verdict.statement for verdict in verdicts}
        forgotten = [statement for statement in self.claim.statements if statement.id not in judged]
        if forgotten:
            names = ", ".join(statement.id for statement in forgotten)
            self.problems.append(f"judge() gave no verdict on {names}.")
        return [*verdicts, *(_unjudged(statement, "judge() gave no verdict") for statement in forgotten)]

    def _open_run(self, cells: Sequence[Cell]) -> RunWriter | None:
        if self.session is None:
            return None
        tags = {f"leyden.{name}": value for name, value in provenance().items()}
        return self.session.run(
            self.name,
            experiment=self.experiment,
            tags={**tags, "leyden.kind": "claim", "leyden.code": self.code},
            params=self._settings(cells),
        )

    def _end(self, announced: Run, run: RunWriter | None, table: Table, status: Any, error: str) -> None:
        if run:
            run.end(status)
        metrics = {"cells": float(len(table)), "failed_cells": float(len(table.failed))}
        self.plugins.run_end(announced, RunResult(status=status, metrics=metrics, error=error))

    def _settings(self, cells: Sequence[Cell]) -> dict[str, Any]:
        return {
            "plugin": self.plugin.name,
            "claim": self.claim.name,
            "scale": self.plan.scale,
            "seeds": self.seeds,
            "first_seed": self.plan.first_seed,
            "cells": len(cells),
            "jobs": self.plan.jobs,
            "executor": self.plan.executor,
        }


def log_report(run: RunWriter, report: Report, files: ReportFiles) -> None:
    """Log a report's verdicts as tags and metrics of a run, and its files as artifacts."""
    for verdict in report.verdicts:
        run.tags({f"verdict.{verdict.statement}": verdict.outcome})
        ends = {name: getattr(verdict, name) for name in ("estimate", "low", "high")}
        run.metrics({f"{verdict.statement}/{name}": value for name, value in ends.items()})
    for path in (files.html, files.markdown, files.verdicts):
        run.artifact(path)
    for path in files.figures.values():
        run.artifact(path, "figures")


def run_id(run: RunWriter) -> str:
    """The run's identity in MLflow, or in words that it is not there yet."""
    try:
        return run.run_id(timeout=10.0)
    except LeydenError as error:
        return f"not in the store yet: {error}"


def _checked(verdict: Verdict, claim: Claim) -> Verdict:
    """A verdict whose numbers are plain numbers, whatever arrays or tensors `Claim.judge` computed with."""
    if not isinstance(verdict, Verdict):
        raise TypeError(f"judge() returned {verdict!r:.60}, which is no Verdict")
    if verdict.statement not in {statement.id for statement in claim.statements}:
        raise ValueError(
            f"judge() returned a verdict on '{verdict.statement}', which the claim does not state"
        )
    if verdict.outcome not in get_args(Outcome):
        raise ValueError(f"the outcome of '{verdict.statement}' is {verdict.outcome!r:.60}")
    numbers = {name: getattr(verdict, name) for name in ("estimate", "low", "high", "threshold")}
    if verdict.threshold_high is not None:
        numbers["threshold_high"] = verdict.threshold_high
    for name, value in numbers.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"{name} of '{verdict.statement}' is {value!r:.60}, which is no number") from None
    return replace(verdict, **numbers)


def _unjudged(statement: Statement, why: str) -> Verdict:
    nothing = float("nan")
    return Verdict(
        statement=statement.id,
        text=statement.text,
        kind=statement.kind,
        outcome="undecided",
        estimate=nothing,
        low=nothing,
        high=nothing,
        threshold=nothing,
        detail=f"not judged: {why}",
    )
