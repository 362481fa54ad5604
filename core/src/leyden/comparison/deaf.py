"""A logger for models that ask more of theirs than Leyden's offers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cached_property
from typing import Any

from lightning.pytorch.loggers.logger import DummyLogger


class DeafLogger(DummyLogger):
    """Answers whatever a model asks of its logger, and keeps nothing.

    A model is written for the logger that its author has, and calls what only that one offers:
    ``self.logger.experiment.add_figure(...)``. In a comparison this one stands first, so it is the model's;
    what ``self.log`` logs goes to every logger. Files that a model writes to its logger's folder go to a
    temporary one.
    """

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="leyden-")

    @property
    def save_dir(self) -> str:
        """The folder; it is there from the first time it is asked for until the logger is gone."""
        return self._folder.name

    log_dir = root_dir = save_dir

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # Python's own questions, such as how it is copied
            raise AttributeError(name)
        return super().__getattr__(name)
