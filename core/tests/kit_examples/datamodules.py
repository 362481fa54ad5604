"""A datamodule that passes the kit, and variants of it that break one thing each."""

from __future__ import annotations

import threading
import uuid

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset


class Rows(LightningDataModule):
    """Eight rows of two numbers."""

    def draw(self):
        """The rows."""
        return torch.randn(8, 2, generator=torch.Generator().manual_seed(0))

    def setup(self, stage):
        """Make the rows."""
        self.rows = self.draw()

    def train_dataloader(self):
        """The rows in order."""
        return DataLoader(TensorDataset(self.rows), batch_size=4)

    def test_dataloader(self):
        """The rows in order."""
        return DataLoader(TensorDataset(self.rows), batch_size=4)

    def fingerprint(self):
        """Identity of the rows."""
        return str(float(self.rows.sum()))


class Labelled(Rows):
    """Rows as `kit_examples.modules.Classifier` takes them."""

    def setup(self, stage):
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(8, 6, generator=generator)
        self.set = TensorDataset(rows, torch.arange(8) % 4)

    def train_dataloader(self):
        """The rows in order."""
        return DataLoader(self.set, batch_size=4)

    test_dataloader = train_dataloader


class DrawsFreely(Rows):
    """Draws from torch's own generator."""

    def draw(self):
        return torch.randn(8, 2)


class OnlyForFit(Rows):
    """Is set up for ``fit`` alone."""

    def setup(self, stage):
        if stage == "fit":
            super().setup(stage)


class Empty(Rows):
    """Has no rows to train on."""

    def train_dataloader(self):
        return []


class WithoutLoaders(LightningDataModule):
    """Has no loaders."""


class NewFingerprint(Rows):
    """Has another fingerprint every time."""

    def fingerprint(self):
        return uuid.uuid4().hex


class HoldsLock(Rows):
    """Holds what cannot be copied once it is set up."""

    def setup(self, stage):
        super().setup(stage)
        self.lock = threading.Lock()
