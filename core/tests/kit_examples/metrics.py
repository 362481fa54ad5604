"""A metric that passes the kit, and variants of it that break one thing each."""

from __future__ import annotations

import threading

import torch
from torchmetrics import Metric


class MeanDistance(Metric):
    """The mean absolute difference of predictions and targets of shape (batch,)."""

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, predictions, targets):
        """Add a batch."""
        self.total += (predictions - targets).abs().sum()
        self.count += len(predictions)

    def compute(self):
        """The mean so far."""
        return self.total / self.count


class MeanOfMeans(MeanDistance):
    """Averages the batches' means, whatever their sizes."""

    def update(self, predictions, targets):
        self.total += (predictions - targets).abs().mean()
        self.count += 1


class KeepsLargest(MeanDistance):
    """Is merged over processes by the largest value."""

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="max")


class Remembers(MeanDistance):
    """Keeps a total that ``reset`` does not know."""

    def __init__(self):
        super().__init__()
        self.all = 0.0

    def update(self, predictions, targets):
        self.all += float((predictions - targets).abs().sum())
        super().update(predictions, targets)

    def compute(self):
        return self.all / self.count


class HoldsLock(MeanDistance):
    """Holds what cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def seven_rows():
    from leyden.testing import Trial

    return Trial(inputs=(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]), torch.zeros(7)))


def eight_rows():
    from leyden.testing import Trial

    return Trial(inputs=(torch.arange(8.0) ** 2, torch.zeros(8)))
