"""A scheduler that passes the kit, and variants of it that break one thing each."""

from __future__ import annotations

import math
from fractions import Fraction

from torch.optim.lr_scheduler import LambdaLR, LRScheduler


class Halving(LRScheduler):
    """Halves the learning rate every few steps, Section 2 of Nobody (2026).

    Args:
        optimizer: whose rate it is.
        every: so many steps, at least 1.
        floor: the least share of the first rate, from 0 to 1.
    """

    def __init__(self, optimizer, every: int = 2, floor: float = 0.0):
        if not 0 <= floor <= 1:
            raise ValueError(f"floor: expected a number from 0 to 1, got {floor}")
        self.every, self.floor = every, floor
        super().__init__(optimizer)

    def get_lr(self):
        """The rate of every group."""
        return [rate * max(self.floor, 0.5 ** (self.count() // self.every)) for rate in self.base_lrs]

    def count(self):
        """The steps so far."""
        return self.last_epoch


class FollowsLoss(Halving):
    """Halves the rate whenever the loss that it is given has halved, Section 3 of Nobody (2026)."""

    def __init__(self, optimizer):
        self.first = self.latest = None
        super().__init__(optimizer)

    def step(self, loss=None):
        """Look at the loss."""
        if loss is not None:
            self.latest = float(loss)
            self.first = self.first or self.latest
        super().step()

    def count(self):
        """How often the loss has halved."""
        return 0 if self.latest is None else int(max(0.0, math.log2(self.first / self.latest)))


class ForgetsCount(Halving):
    """Leaves its count out of its state."""

    def __init__(self, optimizer):
        self.steps = 0
        super().__init__(optimizer)

    def count(self):
        """The steps of this object."""
        self.steps += 1
        return self.steps

    def state_dict(self):
        """All but the count."""
        return {key: value for key, value in super().state_dict().items() if key != "steps"}


class SavesFraction(Halving):
    """Saves a fraction, which ``weights_only=True`` refuses."""

    def __init__(self, optimizer):
        self.share = Fraction(1, 3)
        super().__init__(optimizer)


def with_lambda(optimizer):
    """A scheduler that cannot be pickled."""
    return LambdaLR(optimizer, lambda step: 0.5**step)
