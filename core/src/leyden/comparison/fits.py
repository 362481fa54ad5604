"""The fits of a comparison, as they run in a worker: a short one to learn what is there, and whole ones."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from leyden.claims import Cell, Claim, Measured, Scale, Statement, Table
from leyden.comparison.document import ArmFile
from leyden.comparison.settle import settle
from leyden.configuration import callbacks_of
from leyden.errors import LeydenError, UsageError
from leyden.model import Verdict
from leyden.tracking import active_run

if TYPE_CHECKING:
    from leyden.comparison.watch import Watch
    from leyden.lightning import LeydenCLI

TUNING_SEED = 1_000_003
"""The seed of every fit that tunes; the seeds that judge begin at 0 and never reach it."""

FITS = "leyden.comparison.fits.Fits"
_PROBE_BATCHES = 12
_PROBE_EVALUATIONS = 4
_PROBE_SECONDS = 10.0
_NEVER = 2**31
"""Steps between two that are logged in a fit that tunes: what validation and whole epochs give is kept."""
_ANY_LOGGER = {"class_path": "leyden.comparison.deaf.DeafLogger"}


class Fits(Claim):
    """Runs the cells of a comparison; `leyden.comparison.outcome` judges and draws them.

    A cell's options are ``stage`` (``"probe"``, ``"tune"`` or ``"judge"``), ``document`` (the file of its
    `ArmFile`), ``metric`` (of validation) and ``test`` (the metric of testing, or empty).
    """

    name = "compare"
    title = "A comparison"
    source = ""
    statements: ClassVar[tuple[Statement, ...]] = ()
    minutes: ClassVar[Mapping[str, float]] = {}
    seeds: ClassVar[Mapping[str, int]] = {}
    metric = ""
    imports = ("leyden.comparison.watch", "leyden.comparison.order", "leyden_callbacks")

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """None; a comparison lists them as it goes."""
        return []

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Nothing."""
        return []

    def run(self, cell: Cell) -> Measured:
        """Fit an arm at the cell's setting with the cell's seed."""
        settle()
        arm = ArmFile.load(str(cell.options["document"]))
        document = prepared(arm.configured(cell.setting), cell.seed)
        if cell.options["stage"] == "tune":
            document["trainer"]["log_every_n_steps"] = _NEVER
        files = [Path(file) for file in arm.files]
        if cell.options["stage"] == "probe":
            return _probe(document, files, cell.seed)
        if run := active_run():
            run.tags(cell_tags(cell))
        return _fit(document, files, cell)


def prepared(document: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A configuration as a comparison runs it: with the seed, on one device, quiet and without checkpoints.

    The weights at the end of training are judged, and fits that run side by side would write to one folder
    and show a bar each.
    """
    from lightning.pytorch.callbacks import Checkpoint, ProgressBar

    from leyden.lightning import names_callback

    trainer = dict(document.get("trainer") or {})
    left_out = (Checkpoint, ProgressBar)
    callbacks = [
        item for item in callbacks_of(trainer) if not any(names_callback(item, kind) for kind in left_out)
    ]
    devices = trainer.get("devices")
    trainer |= {"callbacks": callbacks, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer |= {"devices": 1 if devices in (None, "auto") else devices}
    return {**document, "seed_everything": seed, "trainer": trainer}


def cell_tags(cell: Cell) -> dict[str, str]:
    """The tags of a fit's run."""
    return {"arm": cell.method, "stage": str(cell.options["stage"]), "seed": str(cell.seed)}


def _fit(document: Mapping[str, Any], files: Sequence[Path], cell: Cell) -> Measured:
    from leyden.comparison.watch import Watch
    from leyden.lightning import logged_metrics, quietly

    metric, test = str(cell.options["metric"]), str(cell.options.get("test") or "")
    judges = cell.options["stage"] == "judge"
    watch = Watch(metric, memory=judges)
    with quietly():
        cli = _made(document, files, cell.seed, watch)
        _draw(cli, judges and cell.seed == 0)
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        measured: dict[str, Any] = {
            metric: _at_the_end(watch, cli, metric),
            "training_seconds": watch.training_seconds,
        }
        if judges:
            measured |= {"steps": watch.steps, "seconds": watch.seconds, "curve": watch.values}
            measured |= {"peak_megabytes": watch.peak_megabytes}
            if test:
                cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)
                measured[test] = logged_metrics(cli.trainer).get(test, math.nan)
    if not math.isfinite(measured[metric]):
        raise LeydenError(f"{metric} is {measured[metric]} at the end of training")
    return measured


def _made(document: Mapping[str, Any], files: Sequence[Path], seed: int, *callbacks: Any) -> LeydenCLI:
    """The objects of a configuration, with data that depend on the seed alone."""
    from leyden.comparison.order import PinnedCLI, pin_data
    from leyden.lightning import check_optimizer, quiet_cli

    cli = quiet_cli(document, files=files, callbacks=callbacks, loggers=[_ANY_LOGGER], kind=PinnedCLI)
    check_optimizer(cli.model)
    pin_data(cli.datamodule or cli.model, seed)
    return cli


def _draw(cli: LeydenCLI, wanted: bool) -> None:
    """Let callbacks draw or not; nobody looks at the pictures of each setting and seed that was tried."""
    from leyden.logger import LeydenLogger

    for logger in cli.trainer.loggers:
        if isinstance(logger, LeydenLogger):
            logger.keeps_figures = wanted


def _at_the_end(watch: Watch, cli: LeydenCLI, metric: str) -> float:
    """The metric of the weights at the end; the last validation may be of others, or not be at all."""
    if watch.is_final:
        return watch.values[-1]
    return _validated(cli).get(metric, math.nan)


def _validated(cli: LeydenCLI) -> dict[str, float]:
    """The metrics of a validation; none where the model or the data have none."""
    from lightning.pytorch.utilities.model_helpers import is_overridden

    from leyden.lightning import logged_metrics

    source = cli.datamodule or cli.model
    if not is_overridden("validation_step", cli.model) or not is_overridden("val_dataloader", source):
        return {}
    cli.trainer.validate(cli.model, datamodule=cli.datamodule, verbose=False)
    return logged_metrics(cli.trainer)


def _probe(document: Mapping[str, Any], files: Sequence[Path], seed: int) -> Measured:
    """Fit a few batches twice: what the first imports and compiles would count as the time of a fit."""
    began = time.perf_counter()
    found = _short_fit(document, files, seed)
    if time.perf_counter() - began < _PROBE_SECONDS:
        found = _short_fit(document, files, seed)
    return found


def _short_fit(document: Mapping[str, Any], files: Sequence[Path], seed: int) -> dict[str, float]:
    from leyden.comparison.short import Glance
    from leyden.lightning import can_test, logged_metrics, quietly

    trainer = dict(document["trainer"])
    own = {name: trainer.get(name) for name in ("limit_val_batches", "limit_test_batches")}
    trainer |= {name: _fewer(limit) for name, limit in own.items()}
    trainer |= {"num_sanity_val_steps": 0, "min_epochs": None, "min_steps": None}
    glance = Glance(_PROBE_BATCHES, own["limit_val_batches"])
    began = time.perf_counter()
    with quietly():
        cli = _made({**document, "trainer": trainer}, files, seed, glance)
        try:
            cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        except LeydenError as error:
            if not str(error).startswith("loss "):
                raise
            untrained = _made({**document, "trainer": trainer}, files, seed)
            return {**glance.found, **_named("val", _validated(untrained)), "diverged": 1.0}
        if not glance.found:
            raise UsageError(
                "no batch is trained: look at the data, trainer.max_epochs and trainer.limit_train_batches"
            )
        found = dict(glance.found)
        spent = time.perf_counter() - began
        found["fit_seconds"] = glance.fit_seconds(spent)
        found |= _named("val", _validated(cli))
        if can_test(cli):
            cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)
            found |= _named("test", logged_metrics(cli.trainer))
    return found


def _named(stage: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{stage}:{name}": value for name, value in metrics.items()}


def _fewer(limit: float | None) -> float:
    """A limit of batches for a probe; none stays none."""
    if limit is None or (isinstance(limit, float) and limit > 0):
        return _PROBE_EVALUATIONS
    return min(limit, _PROBE_EVALUATIONS)
