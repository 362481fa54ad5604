"""The data of a solver: the numbers of its training steps, so that a Trainer has something to count."""

from __future__ import annotations

import torch
from leyden.arguments import check_at_least
from leyden_datamodules import TensorDataModule
from torch import Tensor


class IterationDataModule(TensorDataModule):
    """One index a training step; validation, test and prediction have one step.

    Args:
        num_rounds: training steps of an epoch.

    Raises:
        ValueError: if ``num_rounds`` is not positive.
    """

    def __init__(self, num_rounds: int = 1000) -> None:
        check_at_least("num_rounds", num_rounds, 1)
        super().__init__(batch_size=1, shuffle=False, drop_last=False, seed=0)
        self.num_rounds = num_rounds

    def load(self) -> dict[str, tuple[Tensor, ...]]:
        """The indices."""
        return {
            "train": (torch.arange(self.num_rounds),),
            "val": (torch.arange(1),),
            "test": (torch.arange(1),),
        }
