"""What the callback keeps of a run: on the device until it is asked, and no more than a figure can show."""

from __future__ import annotations

import torch
from torch import Tensor

from leyden_harm.reweighting import Reweighting, total_harm

SERIES = ("rate_before", "rate_after", "sum_before", "sum_after")


class Record:
    """Harm before and after, step by step, thinned out as a run grows long.

    Args:
        most: how many steps are kept at most.

    Attributes:
        steps: the steps that are kept.
        logged: the step of the last metrics; None before the first.
        nonfinite: whether a batch of which a number was not finite has been seen, as of the last metrics.
    """

    def __init__(self, most: int = 2000) -> None:
        self.steps: list[int] = []
        self.logged: int | None = None
        self.nonfinite = False
        self._most = most
        self._stride = 1
        self._rows: list[Tensor] = []
        self._seen = 0
        self._active: Tensor | None = None
        self._lost: Tensor | None = None

    def count(self, found: Reweighting) -> None:
        """Count a batch."""
        active, lost = (found.margins_before < 0).any(), ~found.finite
        self._active = active.long() if self._active is None else self._active + active
        self._lost = lost if self._lost is None else self._lost | lost
        self._seen += 1

    def keep(self, step: int, found: Reweighting) -> None:
        """Keep a step's last batch, where the step is one of those that are kept."""
        if step % self._stride or (self.steps and self.steps[-1] == step):
            return
        self.steps.append(step)
        self._rows.append(_numbers(found))
        if len(self.steps) > self._most:
            self._stride *= 2
            kept = [place for place, kept_step in enumerate(self.steps) if kept_step % self._stride == 0]
            self.steps = [self.steps[place] for place in kept]
            self._rows = [self._rows[place] for place in kept]

    def metrics(self, step: int, found: Reweighting) -> dict[str, float]:
        """The metrics of a step, and of the batches since the last; waits for the device."""
        assert self._active is not None
        assert self._lost is not None
        numbers = _numbers(found).double()
        largest = found.factors.max().double()
        fraction = self._active.double() / self._seen
        gap = found.gap.double()
        values = torch.stack([*numbers, largest, fraction, gap, self._lost.double()]).tolist()
        names = [*SERIES, "max_weight", "active_fraction", "solver_gap"]
        self.nonfinite = bool(values.pop())
        self.logged, self._seen, self._active, self._lost = step, 0, None, None
        return {f"harm/{name}": value for name, value in zip(names, values, strict=True)}

    def series(self) -> dict[str, list[float]]:
        """Rates and sums at `steps`, by name; waits for the device once."""
        columns = torch.stack(self._rows).double().T.tolist()
        return dict(zip(SERIES, columns, strict=True))


def _numbers(found: Reweighting) -> Tensor:
    before, after = found.margins_before, found.margins_after
    dtype = before.dtype
    rates = [(margins < 0).to(dtype).mean() for margins in (before, after)]
    return torch.stack([*rates, total_harm(before), total_harm(after)])
