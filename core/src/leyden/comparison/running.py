"""Running a comparison: a short fit of every arm, then tuning, then judging."""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.claims import Cell, Scalar, Table
from leyden.comparison.arms import BASELINE, Contender, Refusal
from leyden.comparison.asked import Asked
from leyden.comparison.document import ArmFile
from leyden.comparison.fits import FITS, TUNING_SEED, cell_tags
from leyden.comparison.outcome import Question, chosen_setting, select, tuning_notes, values_of
from leyden.comparison.probing import (
    Facts,
    choose_metric,
    choose_mode,
    does_not_apply,
    dropped_groups,
    dropped_scheduler,
    expected_seconds,
    facts_of,
    left_out_callbacks,
    metric_of_test,
)
from leyden.comparison.search import Search
from leyden.comparison.telling import conclude, foretell
from leyden.errors import LeydenError, UsageError, one_line
from leyden.execute import run_cells
from leyden.formatting import count, words
from leyden.manager import Manager
from leyden.model import Run, RunResult
from leyden.progress import CellProgress, say
from leyden.provenance import provenance
from leyden.reproduce import await_store
from leyden.results import Results
from leyden.statistics import Selection
from leyden.tracking import RunWriter, Session, status_of
from leyden.worker import Tracked, open_cell_run, track

if TYPE_CHECKING:
    pass

ARMS = Path(".leyden", "arms")
"""Folder of the arms' configurations, in the working directory, where the workers read them."""


@dataclass(kw_only=True)
class Comparing(Asked):
    """One invocation of a comparison.

    Attributes:
        plugins: the installed plugins.
        probes: how many short fits went well.
    """

    plugins: Manager
    probes: int = 0

    def foretell(self, results: Results) -> None:
        """Print what would run and how long."""
        began = time.monotonic()
        question, facts = self._probe(results)
        starting = time.monotonic() - began  # the whole comparison starts workers and probes, too
        fits = self._fits()
        foretell(self, question, fits, starting + expected_seconds(fits, facts, self.plan.jobs))

    def run(self, results: Results, session: Session | None) -> bool:
        """Run, judge and report the comparison.

        Returns:
            Whether every arm was judged on every seed.
        """
        began = time.monotonic()
        question, facts = self._probe(results)
        if session:
            await_store(session, self.console)
        self.said = [*(str(refusal) for refusal in self.refusals), *self.notes]
        for line in self.said:
            say(self.console, line, "dim")
        run = self._open_run(session, question)
        announced = Run(
            key=run.key if run else uuid.uuid4().hex,
            name=self.title,
            kind="compare",
            settings=self.settings(),
        )
        self.plugins.run_start(announced)
        try:
            question, judged = self._measure(question, facts, results, session, run)
            problems = conclude(self, question, judged, run, time.monotonic() - began)
        except BaseException as error:
            with contextlib.suppress(LeydenError):  # a full disk, say: the error that is told is the first
                self._end(announced, run, status_of(error), one_line(error))
            raise
        wrong = [f"{result.cell.name} {result.status}" for result in judged.failed]
        wrong += [f"{name}: no trial finished" for name, chosen in question.chosen.items() if not chosen.arm]
        wrong += [problem.partition("\n")[0] for problem in problems]
        self._end(announced, run, "FAILED" if wrong else "FINISHED", "; ".join(wrong))
        return not wrong

    def _probe(self, results: Results) -> tuple[Question, dict[str, Facts]]:
        """Fit every arm for some batches; take out those that cannot work, and choose the metric."""
        files = {arm.name: self._stored(arm) for arm in self.arms}
        cells = {
            arm.name: Cell(
                method=arm.name,
                seed=TUNING_SEED,
                scale="",
                options={"stage": "probe", "document": files[arm.name]},
            )
            for arm in self.arms
        }
        waiting = (
            self.console.status("a short fit of every arm")
            if self.console.is_terminal
            else contextlib.nullcontext()
        )
        with waiting:
            table = self._run(list(cells.values()), results)
        self.probes = len(table.done)
        found = {result.cell.method: result for result in table}
        facts = {BASELINE: facts_of(found[BASELINE])}
        for arm in self.arms[1:]:
            reason = does_not_apply(arm, facts[BASELINE])
            try:
                facts[arm.name] = facts_of(found[arm.name]) if not reason else facts[BASELINE]
            except UsageError:
                raise
            except LeydenError as error:
                reason = str(error)
            if reason:
                self.refusals.append(Refusal(name=arm.name, reason=reason))
                self.arms.remove(arm)
        self.check()
        losses = [arm.name for arm in self.arms if arm.component and arm.component.kind == "loss"]
        metric = choose_metric(facts[BASELINE], self.plan.metric, losses)
        question = Question(
            name=self.name,
            arms=self.arms,
            validation=metric,
            test=metric_of_test(facts[BASELINE], metric),
            mode=choose_mode(metric, self.plan.mode),
        )
        self.notes = self._first_notes(question, facts[BASELINE])
        return question, facts

    def _first_notes(self, question: Question, base: Facts) -> list[str]:
        seeds = f"seeds 0 to {self.plan.seeds - 1}" if self.plan.seeds > 1 else "seed 0"
        tuned = f"{count(self.plan.trials, 'trial')} for each arm, chosen by {words(question.validation)}"
        how = f"{tuned}, then {seeds}" if self.plan.trials else f"Nothing is tuned; {seeds}"
        notes = [f"{how}, judged by {words(question.judged)} with the weights at the end of training."]
        if not question.test:
            notes.append("There is no test for this metric, so the validation data that choose also judge.")
        if self.plan.trials:
            notes += [note for arm in self.arms for note in arm.notes]
        for dropped in (dropped_scheduler, dropped_groups):
            notes += filter(None, (dropped(arm, base) for arm in self.arms))
        if left_out := left_out_callbacks(self.arms[0].document):
            notes.append(f"{', '.join(left_out)} is left out: a comparison writes no checkpoints.")
        return notes

    def _fits(self) -> dict[str, int]:
        """How many fits each arm gets."""
        return {arm.name: self.plan.seeds + (self.plan.trials if arm.space else 0) for arm in self.arms}

    def _measure(
        self,
        question: Question,
        facts: Mapping[str, Facts],
        results: Results,
        session: Session | None,
        run: RunWriter | None,
    ) -> tuple[Question, Table]:
        tracked = None
        if session and run:
            experiment = self.plugins.settings.tracking.experiment
            tracked = Tracked(session=session.directory, parent=run.key, experiment=experiment)
        fits = self._fits()
        known = max(results.number_done() - self.probes, 0)  # of an invocation that is gone on with
        total = max(sum(fits.values()) - known, 1)
        expected = expected_seconds(fits, facts, self.plan.jobs)
        note = f"{sum(fits.values())} fits of {count(len(self.arms), 'arm')}"
        if self.plan.resume:
            before = f"{known} of them" if known else "none of them"
            note += f", {before} measured by this code and configuration before"
        note += f"; {self.plan.jobs} at a time"
        say(self.console, f"{self.title}: {note}", "dim")
        with CellProgress(
            self.console, self.title, total=total, expected=expected if math.isfinite(expected) else 0.0
        ) as progress:
            chosen, tuning = self._tune(question, results, tracked, progress)
            question = replace(question, chosen=chosen)
            self.notes += tuning_notes(tuning, chosen, self.arms)
            judged = self._judge(question, results, tracked, progress)
        return question, judged

    def _tune(
        self, question: Question, results: Results, tracked: Tracked | None, progress: CellProgress
    ) -> tuple[dict[str, Selection], Table]:
        """Try settings of every arm, in rounds; return what was chosen and all that was tried."""
        searches = {
            arm.name: Search(arm, trials=self.plan.trials, mode=question.mode, seed=TUNING_SEED)
            for arm in self.arms
        }
        every: list[Cell] = []
        while asked := {name: settings for name, search in searches.items() if (settings := search.ask())}:
            cells = [
                self._cell(question, arm, "tune", TUNING_SEED, setting)
                for arm in self.arms
                for setting in asked.get(arm.name, ())
            ]
            table = self._run(cells, results, tracked, progress)
            for name, settings in asked.items():
                searches[name].tell(settings, values_of(table, name, settings, question.validation))
            every += cells
        tuning = results.table(every)
        tuned = [arm for arm in self.arms if arm.name in tuning.methods]
        return {arm.name: select(tuning, arm, question.validation, question.mode) for arm in tuned}, tuning

    def _judge(
        self, question: Question, results: Results, tracked: Tracked | None, progress: CellProgress
    ) -> Table:
        """Fit every arm at its chosen setting with every seed."""
        cells = [
            self._cell(question, arm, "judge", seed, setting)
            for arm in self.arms
            if (setting := chosen_setting(question, arm)) is not None
            for seed in range(self.plan.seeds)
        ]
        return self._run(cells, results, tracked, progress)

    def _cell(
        self, question: Question, arm: Contender, stage: str, seed: int, setting: Mapping[str, Scalar]
    ) -> Cell:
        options = {
            "stage": stage,
            "document": self._stored(arm),
            "metric": question.validation,
            "test": question.test,
        }
        return Cell(method=arm.name, seed=seed, setting=setting, scale="", options=options)

    def _stored(self, arm: Contender) -> str:
        files = tuple(str(path) for path in self.files)
        return ArmFile(document=arm.document, keys=arm.keys, files=files).store(ARMS)

    def _run(
        self,
        cells: Sequence[Cell],
        results: Results,
        tracked: Tracked | None = None,
        progress: CellProgress | None = None,
    ) -> Table:
        stored = results.table(cells)
        for result in stored.failed:
            results.discard(result.cell)
        for result in stored.done if tracked else ():
            assert tracked is not None
            child = open_cell_run(
                tracked, result.cell, tags={**cell_tags(result.cell), "leyden.resumed": "true"}
            )
            track(child, result, results.log(result.cell))
        run_cells(
            FITS,
            cells,
            results=results,
            jobs=self.plan.jobs,
            executor=self.plan.executor,
            tracked=tracked,
            on_done=progress.done if progress else lambda result: None,
            on_death=progress.note if progress else lambda message: say(self.console, message, "yellow"),
        )
        return results.table(cells)

    def _open_run(self, session: Session | None, question: Question) -> RunWriter | None:
        if session is None:
            return None
        tags = {f"leyden.{name}": value for name, value in provenance().items()}
        metrics = {"validation": question.validation, "judged_by": question.judged, "mode": question.mode}
        return session.run(
            self.title,
            experiment=self.plugins.settings.tracking.experiment,
            tags={**tags, "leyden.kind": "compare"},
            params={**self.settings(), **metrics},
        )

    def _end(self, announced: Run, run: RunWriter | None, status: Any, error: str) -> None:
        if run:
            run.end(status)
        self.plugins.run_end(announced, RunResult(status=status, error=error))
