"""What the conformance kit tries the losses and the metric on."""

from __future__ import annotations

import torch
from leyden.testing import Trial

from leyden_lk_losses.loss import LKLoss
from leyden_lk_losses.metric import AcceptanceMetric


def logits() -> Trial:
    """Six sequences of logits of a draft with two depths and of its target: four positions, seven tokens."""
    return Trial(inputs=(torch.randn(6, 2, 4, 7), 2 * torch.randn(6, 2, 4, 7)))


def synchronised() -> LKLoss:
    """A loss that is the same on the parts of a batch as on the whole, since its lambda is shared."""
    return LKLoss(sync_lambda=True)


def metric() -> AcceptanceMetric:
    """A metric for two depths."""
    return AcceptanceMetric(depths=2)
