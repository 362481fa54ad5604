"""On what the conformance kit tries the callbacks."""

from __future__ import annotations

from typing import Any

import torch
from leyden.testing import Trial
from leyden.testing.fitting import Learner
from leyden.testing.trials import mean_cross_entropy
from torch import Tensor, nn

from leyden_harm.probe import HarmProbe
from leyden_harm.reduction import HarmReduction


def joint_reduction() -> HarmReduction:
    """The reduction as it equals one process on the joint batch."""
    return HarmReduction(sync=True)


def frequent_probe() -> HarmProbe:
    """A probe of every second step."""
    return HarmProbe(every=2)


def with_momentum() -> Trial:
    """The kit's classifier, under an optimizer with a history."""
    return Trial(optimizer=_momentum)


def classifier() -> Trial:
    """A classifier that can tell the loss of each row."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    return Trial(module=_RowWise(model, mean_cross_entropy, lambda model: _momentum(model.parameters())))


class _RowWise(Learner):
    """The kit's module with the loss of each row."""

    def per_sample_loss(self, batch: Any) -> Tensor:
        """The loss of each row."""
        inputs, labels = batch
        return nn.functional.cross_entropy(self.model(inputs), labels, reduction="none")


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)
