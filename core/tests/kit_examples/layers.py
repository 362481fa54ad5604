"""A layer and a loss that pass the kit, and variants of them that break one thing each."""

from __future__ import annotations

import threading

import torch
from leyden.testing import Trial
from torch import nn


class Mixing(nn.Module):
    """Maps rows of ``features`` numbers to as many, Eq. (2) of Nobody (2026).

    Args:
        features: their number.
        strength: how much is mixed, a finite number.
    """

    def __init__(self, features: int = 3, strength: float = 0.5):
        if not abs(strength) < float("inf"):
            raise ValueError(f"strength: expected a finite number, got {strength}")
        super().__init__()
        self.features = features
        self.strength = strength
        self.weight = nn.Parameter(torch.randn(features, features) / 3)
        self.register_buffer("scale", torch.ones(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix rows of shape (batch, features)."""
        if x.shape[-1] != self.features:
            raise ValueError(f"x: expected shape (batch, {self.features}), got {tuple(x.shape)}")
        return self.scale * (x + self.strength * torch.tanh(x @ self.weight))


class InfiniteOutput(Mixing):
    """Divides by zero."""

    def forward(self, x):
        return super().forward(x) / 0


class WrongGradient(Mixing):
    """Has a backward that is not its forward's."""

    def forward(self, x):
        return _Wrong.apply(x)


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class MixesRows(Mixing):
    """Lets the rows of a batch depend on each other."""

    def forward(self, x):
        return super().forward(x) - x.mean(dim=0)


class HoldsLock(Mixing):
    """Holds what cannot be copied, from its first call on."""

    def forward(self, x):
        self.lock = threading.Lock()
        return super().forward(x)


class CopiesBadly(Mixing):
    """Loses its weights when it is pickled."""

    def __reduce__(self):
        return (CopiesBadly, ())

    def __deepcopy__(self, memo):
        return CopiesBadly()


class ForgetsBuffer(Mixing):
    """Leaves part of what it learned out of its state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(3), persistent=False)


class OnlyFloat32(Mixing):
    """Computes in float32 and returns it."""

    def forward(self, x):
        return super().forward(x).float()


class SpreadsNaN(Mixing):
    """Normalizes over the batch without a word."""

    def forward(self, x):
        return super().forward(x) / x.abs().sum()


class SwallowsNaN(Mixing):
    """Replaces what it should report."""

    def forward(self, x):
        return super().forward(x).nan_to_num()


class SaysSo(SwallowsNaN):
    """Gives 0 in the place of NaN."""


class VagueAboutShape(Mixing):
    """Refuses a wrong shape in words that do not help."""

    def forward(self, x):
        if x.shape[-1] != self.features:
            raise ValueError("wrong shape")
        return super().forward(x)


class TellsCompiled(Mixing):
    """Gives another output when it is compiled."""

    def forward(self, x):
        return super().forward(x) * (2 if torch.compiler.is_compiling() else 1)


class OverflowsInHalf(Mixing):
    """Divides by zero in the type that autocast gives it."""

    def forward(self, x):
        mixed = x @ self.weight
        return mixed / float(mixed.dtype == torch.float32)


class Distance(nn.Module):
    """Mean distance of predictions to targets, both (batch, features), Eq. (3) of Nobody (2026)."""

    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean over the batch, a scalar."""
        return (predictions - targets).square().sum(dim=1).add(1).sqrt().mean()


class WeighsFirstRow(Distance):
    """Counts the first row of a batch twice."""

    def forward(self, predictions, targets):
        return super().forward(predictions, targets) + super().forward(predictions[:1], targets[:1])


class SumOfRows(Distance):
    """Sums over the batch, so that two processes do not make the mean."""

    def forward(self, predictions, targets):
        return super().forward(predictions, targets) * len(predictions)


def one_tensor() -> Trial:
    generator = torch.Generator().manual_seed(0)
    return Trial(inputs=(torch.randn(4, 3, generator=generator),))


def two_tensors() -> Trial:
    generator = torch.Generator().manual_seed(0)
    return Trial(inputs=tuple(torch.randn(4, 3, generator=generator) for _ in range(2)))
