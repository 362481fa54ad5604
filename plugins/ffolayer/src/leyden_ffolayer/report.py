"""What a layer tells of its last calls."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class SolveReport:
    """What a layer's last forward and backward pass did; a callback or a module logs it.

    Attributes:
        forward_ms: wall time of the last forward pass, in milliseconds.
        backward_ms: that of the last backward pass.
        active_rows: active inequality rows of each sample of the last forward pass.
        polished: how many samples of it were solved to machine precision on their active set.
        samples: how many samples it had.
        inaccurate_solves: samples so far that are less accurate than was asked for.
        failed_solves: samples so far without solution.
        backward_systems: linear systems factorised or programs solved for gradients, so far.
    """

    forward_ms: float = 0.0
    backward_ms: float = 0.0
    active_rows: list[int] = field(default_factory=list)
    polished: int = 0
    samples: int = 0
    inaccurate_solves: int = 0
    failed_solves: int = 0
    backward_systems: int = 0

    def metrics(self) -> dict[str, float]:
        """The numbers under the names that they are logged by."""
        return {
            "ffo/forward_ms": self.forward_ms,
            "ffo/backward_ms": self.backward_ms,
            "ffo/active_rows_mean": sum(self.active_rows) / max(len(self.active_rows), 1),
            "ffo/polish_rate": self.polished / max(self.samples, 1),
            "ffo/inaccurate_solves": float(self.inaccurate_solves),
        }

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure a pass into the attribute of that name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, (time.perf_counter() - start) * 1e3)
