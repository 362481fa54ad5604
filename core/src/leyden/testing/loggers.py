"""Loggers that keep what is logged, for tests of what a component logs and draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from lightning.pytorch.loggers.logger import Logger

from leyden.logger import LeydenLogger

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RecordingLogger(Logger):
    """Keeps the numbers that are logged, and takes no figures.

    Attributes:
        metrics: for each call the step and the numbers by name.
    """

    name, version = "recording", "0"

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep numbers."""
        self.metrics.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Take parameters, and keep nothing of them."""

    def of(self, name: str) -> dict[int | None, float]:
        """The values of one name by step."""
        return {step: metrics[name] for step, metrics in self.metrics if name in metrics}


class RecordingLeydenLogger(LeydenLogger):
    """Leyden's logger without a store; it keeps the figures that it is given, and nothing else.

    Attributes:
        figures: the last figure of each name.
    """

    name, version = "recording", "0"

    def __init__(self) -> None:
        super().__init__()
        self.figures: dict[str, Figure] = {}

    @property
    def experiment(self) -> Any:
        """Something that takes every call."""
        return MagicMock()

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Take numbers, and keep none."""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Take parameters, and keep none."""

    def log_figure(self, name: str, figure: Figure, step: int | None = None) -> None:
        """Keep a figure."""
        self.figures[name] = figure

    def finalize(self, status: str) -> None:
        """End nothing."""
