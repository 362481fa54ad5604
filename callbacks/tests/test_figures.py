from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from leyden.figures import new_figure
from leyden.logger import LeydenLogger
from leyden_callbacks import keeps_figures, log_figure
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger


def logger_of(kind: type) -> Any:
    logger = MagicMock(spec=kind)
    logger.run_id = "run"
    logger.experiment = MagicMock()
    return logger


@pytest.mark.parametrize("kind", [LeydenLogger, MLFlowLogger])
def test_a_figure_goes_to_each_logger_that_keeps_one(kind: type) -> None:
    keeper, other = logger_of(kind), logger_of(CSVLogger)
    trainer = MagicMock(loggers=[other, keeper], is_global_zero=True)
    figure, _ = new_figure()
    assert keeps_figures(trainer)
    log_figure(trainer, "shape", figure)
    if kind is LeydenLogger:
        keeper.log_figure.assert_called_once_with("shape", figure)
    else:
        keeper.experiment.log_figure.assert_called_once_with("run", figure, "figures/shape.png")
    assert not other.experiment.log_figure.called


def test_nothing_is_drawn_where_nobody_keeps_it() -> None:
    assert not keeps_figures(MagicMock(loggers=[logger_of(CSVLogger)], is_global_zero=True))
    assert not keeps_figures(MagicMock(loggers=[logger_of(LeydenLogger)], is_global_zero=False))
    assert not keeps_figures(MagicMock(loggers=[], is_global_zero=True))
    assert keeps_figures(MagicMock(loggers=[LeydenLogger()], is_global_zero=True))
    assert not keeps_figures(MagicMock(loggers=[LeydenLogger(figures=False)], is_global_zero=True))
