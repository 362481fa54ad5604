"""The LightningModule: a network, its optimizer and what is logged, around the mathematics."""

from __future__ import annotations

import math

import torch
from leyden.arguments import check_at_least
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from leyden_simplenorm.simplenorm import penalized_cross_entropy

Batch = list[Tensor] | tuple[Tensor, Tensor]


class Simplenorm(LightningModule):
    """A classifier with one hidden layer and a confidence penalty: a placeholder, not in the paper.

    A batch is a pair of inputs, floating-point of shape ``(batch, features)``, and labels, int64 of shape
    ``(batch,)``. Logged are ``train_loss``, ``val_loss``, ``val_accuracy``, ``test_loss`` and
    ``test_accuracy``.

    Args:
        features: numbers in a row of the input.
        classes: classes, at least 2.
        width: units of the hidden layer.
        penalty: factor of the entropy of the prediction, at least 0; 0 is plain cross-entropy.
        lr: learning rate of SGD with momentum 0.9, at least 0.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """

    def __init__(
        self, features: int = 64, classes: int = 10, width: int = 64, *, penalty: float = 0.1, lr: float = 0.1
    ) -> None:
        super().__init__()
        for name, value, least in (("features", features, 1), ("classes", classes, 2), ("width", width, 1)):
            check_at_least(name, value, least)
        for name, number in (("penalty", penalty), ("lr", lr)):
            if not 0 <= number < math.inf:
                raise ValueError(f"{name}: expected a finite number of at least 0, got {number!r}")
        self.save_hyperparameters()
        self.penalty = penalty
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of shape ``(batch, classes)``."""
        logits: Tensor = self.net(inputs)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The penalized mean loss of the batch."""
        inputs, labels = batch
        loss = penalized_cross_entropy(self(inputs), labels, penalty=self.penalty)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the cross-entropy and the accuracy of the batch."""
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the cross-entropy and the accuracy of the batch."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Tensor | Batch, batch_idx: int) -> Tensor:
        """The logits for a batch of inputs, with labels or without."""
        logits: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum 0.9."""
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)

    def _evaluate(self, stage: str, batch: Batch) -> None:
        inputs, labels = batch
        logits = self(inputs)
        measured = {
            f"{stage}_loss": penalized_cross_entropy(logits, labels, penalty=0.0),
            f"{stage}_accuracy": (logits.argmax(dim=-1) == labels).float().mean(),
        }
        self.log_dict(measured, sync_dist=True, batch_size=len(labels))
