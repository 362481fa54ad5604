"""How far the cells of a claim are: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from leyden.claims import CellResult
from leyden.formatting import duration, error_line

QUIET_SECONDS = 20.0
"""How long no line is printed where there is no terminal."""


def say(console: Console, line: str, style: str = "") -> None:
    """Print one line as it stands."""
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


class CellProgress:
    """Shows cells done, time left and what failed.

    Args:
        console: where.
        name: the claim's name.
        total: how many cells there are.
        expected: seconds that all cells should take, until the first is done and a better guess is known.
    """

    def __init__(self, console: Console, name: str, *, total: int, expected: float) -> None:
        self._console = console
        self._name = name
        self._total = total
        self._pace = Pace(total, expected)
        self._said_at = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("cells ·"),
                TimeElapsedColumn(),
                TextColumn("·"),
                _TimeLeft(self._pace),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(name, total=total)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def done(self, result: CellResult) -> None:
        """Count a cell; one that failed is named."""
        self._pace.step()
        if result.status != "done":
            self.note(f"{result.cell.name} {result.status}: {error_line(result.error)}")
        if self._bar:
            self._bar.update(self._task, completed=self._pace.completed)
        elif time.monotonic() - self._said_at > QUIET_SECONDS:
            self._said_at = time.monotonic()
            say(
                self._console,
                f"{self._name}: {self._pace.completed} of {self._total} cells, {self._pace.left_text()}",
            )

    def note(self, message: str) -> None:
        """Print a line above the bar."""
        say(self._console, message, style="yellow")


class Pace:
    """Tells the time left from what is done.

    Args:
        total: how many steps there are.
        expected: seconds that all of them should take.
    """

    def __init__(self, total: int, expected: float) -> None:
        self.total = total
        self.completed = 0
        self._expected = expected
        self._began = self._stepped = time.monotonic()

    def step(self) -> None:
        """Count a step that is done."""
        self.completed += 1
        self._stepped = time.monotonic()

    def left(self) -> float:
        """Seconds left: the mean time of a step so far, for each step to come."""
        now = time.monotonic()
        if not self.completed:
            return max(0.0, self._expected - (now - self._began))
        mean = (self._stepped - self._began) / self.completed
        return max(0.0, mean * (self.total - self.completed) - (now - self._stepped))

    def left_text(self) -> str:
        """The same in words."""
        seconds = round(self.left())
        if seconds < 1:
            return "nearly done"
        return f"about {duration(seconds) if seconds >= 60 else f'{seconds} s'} left"


class _TimeLeft(ProgressColumn):
    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def render(self, task: Task) -> Text:
        return Text(self._pace.left_text(), style="progress.remaining")
