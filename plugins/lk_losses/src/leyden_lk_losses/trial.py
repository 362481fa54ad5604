"""What the conformance kit tries the components on."""

from __future__ import annotations

from functools import partial

import torch
from leyden.testing import Trial

from leyden_lk_losses.data import OnPolicyDataModule
from leyden_lk_losses.drafts import MedusaHeads, MLPSpeculator, TinyDraftGPT
from leyden_lk_losses.loss import LKLoss
from leyden_lk_losses.metric import AcceptanceMetric
from leyden_lk_losses.module import DraftTrainingModule


def logits() -> Trial:
    """Six sequences of logits of a draft with two depths and of its target: four positions, seven tokens."""
    return Trial(inputs=(torch.randn(6, 2, 4, 7), 2 * torch.randn(6, 2, 4, 7)))


def synchronised() -> LKLoss:
    """A loss that is the same on the parts of a batch as on the whole, since its lambda is shared."""
    return LKLoss(sync_lambda=True)


def metric() -> AcceptanceMetric:
    """A metric for two depths."""
    return AcceptanceMetric(depths=2)


def target() -> TinyDraftGPT:
    """A target of twelve tokens, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return TinyDraftGPT(12, width=8, max_length=16)


def module() -> DraftTrainingModule:
    """Two heads for the target, trained by the loss that processes share."""
    optimizer = partial(torch.optim.SGD, lr=0.5)
    return DraftTrainingModule(target(), MedusaHeads(8, 12, 2), synchronised(), optimizer=optimizer)


def texts() -> Trial:
    """Rows of tokens."""
    generator = torch.Generator().manual_seed(3)
    return Trial(rows=(torch.randint(12, (80, 7), generator=generator),))


def datamodule() -> OnPolicyDataModule:
    """Rows that the target sampled."""
    prompts = torch.arange(24).view(12, 2) % 12
    return OnPolicyDataModule(
        target(), prompts, rows=6, val_rows=3, test_rows=3, length=6, prompt_length=2, batch_size=3
    )


def heads() -> MedusaHeads:
    """Two heads."""
    return MedusaHeads(5, 7, 2)


def recurrent() -> MLPSpeculator:
    """Two steps."""
    return MLPSpeculator(5, 7, 2)


def states() -> Trial:
    """Hidden states, and tokens for the draft that reads them."""
    return Trial(inputs=(torch.randn(4, 3, 5), torch.randint(7, (4, 6))))


def transformer() -> TinyDraftGPT:
    """A draft of seven tokens."""
    return TinyDraftGPT(7, width=8, max_length=8)


def tokens() -> Trial:
    """Rows of seven tokens."""
    return Trial(inputs=(torch.randint(7, (4, 6)),))
