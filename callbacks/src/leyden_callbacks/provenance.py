"""What a run rests on, written to the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakSet

from leyden.provenance import provenance
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger, MLFlowLogger
from lightning.pytorch.utilities import rank_zero_warn

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

_written: WeakSet[Logger] = WeakSet()


class Provenance(Callback):
    """Writes where a run comes from to the run in MLflow, once, as tags that begin with ``leyden.``.

    They are what `leyden.provenance.provenance` gives (versions of Python, the libraries and the plugins, the
    platform, the git commit of the working directory, the seed) and, if the datamodule has a method
    ``fingerprint``, what that returns (``leyden.data_fingerprint``). It acts only for Leyden's own logger and
    Lightning's ``MLFlowLogger``, and a failure is a warning that stops nothing. Any number of copies in one
    Trainer do the work of one.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the tags, in whatever stage comes first; the datamodule is set up by then."""
        from leyden.logger import LeydenLogger

        if not trainer.is_global_zero:
            return
        loggers = [
            logger
            for logger in trainer.loggers
            if isinstance(logger, (LeydenLogger, MLFlowLogger)) and logger not in _written
        ]
        if not loggers:
            return
        try:
            tags = {f"leyden.{name}": value for name, value in _record(trainer).items()}
            for logger in loggers:
                _written.add(logger)
                if isinstance(logger, LeydenLogger):
                    logger.experiment.tags(tags)
                else:
                    _tag_mlflow(logger, tags)
        except Exception as error:
            rank_zero_warn(f"the provenance of the run was not recorded: {error!r}")


def _record(trainer: Trainer) -> dict[str, str]:
    record = provenance()
    fingerprint = getattr(trainer.datamodule, "fingerprint", None)  # type: ignore[attr-defined]
    if callable(fingerprint):
        record["data_fingerprint"] = str(fingerprint())
    return record


def _tag_mlflow(logger: MLFlowLogger, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    logger.experiment.log_batch(logger.run_id, tags=[RunTag(key, value) for key, value in tags.items()])
