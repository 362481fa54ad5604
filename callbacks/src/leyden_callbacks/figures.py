"""A figure to every logger of a Trainer that can keep one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leyden.logger import LeydenLogger
from lightning.pytorch.loggers import MLFlowLogger

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import Logger
    from matplotlib.figure import Figure


def keeps_figures(trainer: Trainer) -> bool:
    """Whether a picture drawn in this process would be kept.

    Args:
        trainer: the Trainer whose loggers are asked.

    Returns:
        True on the first rank of a Trainer with an ``MLFlowLogger``, or with a `leyden.logger.LeydenLogger`
        that is to keep figures.
    """
    return trainer.is_global_zero and any(map(_keeps, trainer.loggers))


def log_figure(trainer: Trainer, name: str, figure: Figure) -> None:
    """Keep a figure with the run, as ``figures/NAME.png``, wherever a logger of the Trainer can.

    Args:
        trainer: the Trainer whose loggers get it.
        name: its name.
        figure: a matplotlib figure.
    """
    for logger in trainer.loggers:
        if isinstance(logger, LeydenLogger):
            logger.log_figure(name, figure)
        elif isinstance(logger, MLFlowLogger) and trainer.is_global_zero:
            logger.experiment.log_figure(logger.run_id, figure, f"figures/{name}.png")


def _keeps(logger: Logger) -> bool:
    return logger.keeps_figures if isinstance(logger, LeydenLogger) else isinstance(logger, MLFlowLogger)
