"""Modules under automatic and manual optimization that pass the kit, and variants that break one thing."""

from __future__ import annotations

import threading
from fractions import Fraction

import torch
from lightning.pytorch import LightningModule
from torch import nn


class Classifier(LightningModule):
    """A linear classifier trained by SGD.

    Args:
        lr: the learning rate, above 0.
    """

    def __init__(self, lr: float = 0.1):
        if not 0 < lr < float("inf"):
            raise ValueError(f"lr: expected a number above 0, got {lr}")
        super().__init__()
        self.save_hyperparameters()
        self.linear = nn.Linear(6, 4)

    def forward(self, features):
        """The logits."""
        return self.linear(features)

    def training_step(self, batch, batch_idx):
        """The loss."""
        features, labels = batch
        return nn.functional.cross_entropy(self(features), labels)

    def validation_step(self, batch, batch_idx):
        """Log the loss."""
        self.log("val_loss", Classifier.training_step(self, batch, batch_idx))

    def test_step(self, batch, batch_idx):
        """Log the loss."""
        self.log("test_loss", Classifier.training_step(self, batch, batch_idx))

    def predict_step(self, batch, batch_idx):
        """The classes."""
        return self(batch[0]).argmax(dim=1)

    def configure_optimizers(self):
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Solver(Classifier):
    """Manual optimization that advances through one optimizer, once a batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        """One step of the optimizer."""
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


class WithoutOptimizer(Solver):
    """Advances by hand, so that Lightning counts nothing."""

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(0.9)

    def configure_optimizers(self):
        return None


class TwoOptimizers(Solver):
    """Steps two optimizers a batch, so that Lightning counts double."""

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(Classifier.training_step(self, batch, batch_idx))
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD([parameter], lr=0.1) for parameter in self.parameters()]


class GradientInTest(Classifier):
    """Needs autograd in ``test``, which inference mode denies."""

    def test_step(self, batch, batch_idx):
        with torch.enable_grad():
            features = batch[0].requires_grad_()
            self(features).sum().backward()


class SavesFraction(Classifier):
    """Keeps an object among its hyper-parameters that ``weights_only=True`` refuses."""

    def __init__(self, share=Fraction(1, 3)):
        super().__init__()
        self.save_hyperparameters()


class HoldsLock(Classifier):
    """Holds what cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class ForgetsCount(Classifier):
    """Shapes its loss by a count that no checkpoint holds."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def training_step(self, batch, batch_idx):
        self.count += 1
        return super().training_step(batch, batch_idx) / self.count


class Noisy(Classifier):
    """Draws from a source that no seed governs."""

    def training_step(self, batch, batch_idx):
        import random

        return super().training_step(batch, batch_idx) * (1 + random.SystemRandom().random())


class SumOfLosses(Classifier):
    """Sums the loss over the batch, so that the batch's size matters."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * len(batch[0])


class RefusesClipping(Classifier):
    """Refuses clipping in words that do not help."""

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        if gradient_clip_val:
            raise RuntimeError("not possible")


class TellsCompiled(Classifier):
    """Gives another loss when it is compiled."""

    def forward(self, features):
        return super().forward(features) * (2 if torch.compiler.is_compiling() else 1)


class OverflowsInHalf(Classifier):
    """Divides by zero in the type that autocast gives it."""

    def forward(self, features):
        output = super().forward(features)
        return output / float(output.dtype == torch.float32)
