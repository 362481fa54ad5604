"""What every datamodule of the package shares: splits of tensors, their loaders and their fingerprint."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property

import torch
from leyden.arguments import check_at_least
from lightning.pytorch import LightningDataModule
from torch import Tensor

from leyden_datamodules.loader import Batch, TensorLoader, TensorRows, tensor_loader, training_loader

Splits = Mapping[str, Batch]
"""The tensors of ``"train"``, ``"val"`` and ``"test"``; a split that a set lacks is missing."""

SPLITS = ("train", "val", "test")


class TensorDataModule(LightningDataModule, ABC):
    """A set that fits in memory. A subclass says how to load its splits.

    Args:
        batch_size: rows a batch.
        shuffle: whether every epoch has an order of its own, which depends on ``seed`` and the epoch alone.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the split and of the order.

    Raises:
        ValueError: if ``batch_size`` is not positive or ``seed`` is negative.
    """

    def __init__(self, *, batch_size: int, shuffle: bool, drop_last: bool, seed: int) -> None:
        super().__init__()
        check_at_least("batch_size", batch_size, 1)
        check_at_least("seed", seed, 0)
        # Not for the logger: Lightning refuses a model whose hyper-parameter of that name has another value.
        self.save_hyperparameters(logger=False)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed

    @abstractmethod
    def load(self) -> Splits:
        """Read or generate the splits; called once, when they are first needed."""

    @cached_property
    def splits(self) -> Splits:
        """The tensors of every split."""
        return self.load()

    @property
    def train(self) -> Batch:
        """The training tensors, rows first."""
        return self.splits["train"]

    @property
    def val(self) -> Batch:
        """The validation tensors, rows first."""
        return self.splits["val"]

    @property
    def test(self) -> Batch:
        """The test tensors, rows first."""
        return self.splits["test"]

    @property
    def num_features(self) -> int:
        """The number of values in one row of the inputs."""
        return math.prod(self.train[0].shape[1:])

    @property
    def num_classes(self) -> int:
        """The number of classes, where the targets are labels."""
        targets = [tensors[-1] for tensors in self.splits.values()]
        if targets[0].dtype != torch.int64 or targets[0].ndim != 1:
            raise AttributeError(f"{type(self).__name__} has no classes: its targets are no labels")
        return 1 + max(int(labels.max()) for labels in targets)

    def fingerprint(self) -> str:
        """The sha256 of the splits (see `fingerprint`)."""
        return fingerprint(self.splits)

    def setup(self, stage: str | None = None) -> None:
        """Load the splits."""
        _ = self.splits

    def train_dataloader(self) -> TensorLoader:
        """Training batches, in a new order each epoch."""
        return training_loader(
            TensorRows(*self.train),
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            seed=self.seed,
        )

    def val_dataloader(self) -> TensorLoader | list[TensorLoader]:
        """Validation batches, in order; none where the set has no such split."""
        return self._evaluation_loader("val")

    def test_dataloader(self) -> TensorLoader | list[TensorLoader]:
        """Test batches, in order; none where the set has no such split."""
        return self._evaluation_loader("test")

    def predict_dataloader(self) -> TensorLoader | list[TensorLoader]:
        """The test batches."""
        return self._evaluation_loader("test")

    def _evaluation_loader(self, split: str) -> TensorLoader | list[TensorLoader]:
        if split not in self.splits:
            return []
        return tensor_loader(TensorRows(*self.splits[split]), batch_size=self.batch_size)


def fingerprint(splits: Splits) -> str:
    """The sha256 of tensors: of each split its name, and of each tensor dtype, shape and bytes.

    Args:
        splits: the tensors of each split.

    Returns:
        64 hexadecimal digits.

    >>> fingerprint({"train": (torch.zeros(2),)}) == fingerprint({"train": (torch.zeros(1, 2),)})
    False
    """
    digest = hashlib.sha256()
    for split in SPLITS:
        for tensor in splits.get(split, ()):
            digest.update(f"{split} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            # In pieces: overlapping windows of a text are a view whose copy would be many times as large.
            for rows in torch.split(tensor, 4096):
                digest.update(_bytes(rows))
    return digest.hexdigest()


def _bytes(rows: Tensor) -> bytes:
    return rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def check_share(name: str, value: float, *, below: float = math.inf, most: float = math.inf) -> None:
    """Raise a ValueError that names the argument unless ``0 <= value < below`` and ``value <= most``."""
    if not isinstance(value, int | float) or not (0 <= value < below and value <= most):
        limit = f"at most {most:g}" if most < math.inf else f"less than {below:g}"
        raise ValueError(f"{name}: expected a number of at least 0 and {limit}, got {value!r}")
