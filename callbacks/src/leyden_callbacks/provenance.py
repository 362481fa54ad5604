"""What a run rests on, written to the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from leyden.logger import LeydenLogger
from leyden.provenance import provenance
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import rank_zero_warn

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import Logger

_written: set[str] = set()


class Provenance(Callback):
    """Writes where a run comes from to the run in MLflow, once, as tags that begin with ``leyden.``.

    They are what `leyden.provenance.provenance` gives (versions of Python, the libraries and the plugins, the
    platform, the git commit of the working directory, the seed) and, if the datamodule has a method
    ``fingerprint``, what that returns (``leyden.data_fingerprint``). It acts only for Leyden's own logger and
    Lightning's ``MLFlowLogger``, and a failure is a warning that stops nothing. Any number of copies in one
    Trainer, and any number of Trainers that log to one run, write once.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the tags, in whatever stage comes first; the datamodule is set up by then."""
        if not trainer.is_global_zero:
            return
        try:
            for logger in trainer.loggers:
                run, write = _run_of(logger)
                if run and run not in _written:
                    _written.add(run)
                    write({f"leyden.{name}": value for name, value in _record(trainer).items()})
        except Exception as error:
            rank_zero_warn(f"the provenance of the run was not recorded: {error!r}")


def _run_of(logger: Logger) -> tuple[str, Callable[[Mapping[str, str]], None]]:
    """Identity of the logger's run, empty if it is not one that is written to, and what tags it."""
    if isinstance(logger, LeydenLogger):
        return logger.experiment.key, logger.experiment.tags
    if isinstance(logger, MLFlowLogger):
        return str(logger.run_id), partial(_tag_mlflow, logger)
    return "", lambda tags: None


def _record(trainer: Trainer) -> dict[str, str]:
    record = provenance()
    fingerprint = getattr(trainer.datamodule, "fingerprint", None)  # type: ignore[attr-defined]
    if callable(fingerprint):
        record["data_fingerprint"] = str(fingerprint())
    return record


def _tag_mlflow(logger: MLFlowLogger, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    logger.experiment.log_batch(logger.run_id, tags=[RunTag(key, value) for key, value in tags.items()])
