"""A loader for tensors in memory: a batch is one indexing operation, a resumed run continues in mid-epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

Batch = tuple[Tensor, ...]


class TensorRows(Dataset[Batch]):
    """Rows of tensors of equal length.

    Args:
        *tensors: tensors of shape ``(rows, ...)``.

    Raises:
        ValueError: if there is no tensor, or their numbers of rows differ.

    >>> TensorRows(torch.arange(4), torch.arange(4) * 10)[2]
    (tensor(2), tensor(20))
    """

    def __init__(self, *tensors: Tensor) -> None:
        counts = [len(tensor) for tensor in tensors]
        if len(set(counts)) != 1:
            raise ValueError(f"tensors: expected one number of rows, got {counts}")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Batch:
        return tuple(tensor[index] for tensor in self.tensors)

    def batch(self, indices: list[int]) -> Batch:
        """The rows of these indices, stacked."""
        rows = torch.tensor(indices)
        return tuple(tensor[rows] for tensor in self.tensors)


class EpochSampler(RandomSampler):
    """Every row once, in an order that depends on the seed and the epoch alone.

    Lightning sets the epoch, also when it resumes; a plain loop gets the next epoch's order with each pass.
    It is a `RandomSampler`, so that Lightning puts its own distributed sampler in its place under DDP.
    """

    def __init__(self, rows: TensorRows, *, seed: int, shuffle: bool) -> None:
        super().__init__(rows)
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Give the epoch of the next pass."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        if not self.shuffle:
            yield from range(len(self))
            return
        # Torch's generator keeps 32 bits of its seed, so (seed, epoch) is mixed down to 32 bits first.
        mixed = np.random.SeedSequence((self.seed, epoch)).generate_state(1)[0]
        generator = torch.Generator().manual_seed(int(mixed))
        yield from torch.randperm(len(self), generator=generator).tolist()


class TensorLoader(DataLoader[Batch]):
    """A `DataLoader` over `TensorRows` that slices whole batches in the calling process.

    Made by `tensor_loader`. It has a ``state_dict`` that tells the epoch and how many of its batches were
    handed out; a loader that loaded it skips them if its next pass is over that same epoch. Lightning saves
    and restores it.
    """

    dataset: TensorRows
    _handed_out: tuple[int, int] | None = None
    _resume: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        epoch = getattr(self.sampler, "epoch", None)
        resume, self._resume = self._resume, None
        skip = resume[1] if resume is not None and resume[0] == epoch else 0
        for count, indices in enumerate(self.batch_sampler or (), start=1):
            if epoch is not None:
                self._handed_out = (epoch, count)
            if count > skip:
                yield self.dataset.batch(indices)

    def state_dict(self) -> dict[str, Any]:
        """The epoch of the current pass and the number of its batches handed out so far."""
        epoch, batches = self._handed_out or (0, 0)
        return {"epoch": epoch, "batches": batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass over that epoch continue after those batches."""
        self._resume = (state["epoch"], state["batches"])


def tensor_loader(rows: TensorRows, *, batch_size: int, drop_last: bool = False) -> TensorLoader:
    """Make a loader over the rows in their order, as for validation."""
    _silence_worker_advice()
    return TensorLoader(rows, batch_size=batch_size, drop_last=drop_last)


def training_loader(
    rows: TensorRows, *, batch_size: int, drop_last: bool = False, shuffle: bool = True, seed: int = 0
) -> TensorLoader:
    """Make a loader that has a new order in each epoch and can be resumed within one."""
    _silence_worker_advice()
    sampler = EpochSampler(rows, seed=seed, shuffle=shuffle)
    return TensorLoader(rows, batch_size=batch_size, drop_last=drop_last, sampler=sampler)


def _silence_worker_advice() -> None:
    # Worker processes would only slow this loader, and Lightning offers no other way to say so.
    warnings.filterwarnings("ignore", message=r"The '\w+_dataloader' does not have many workers")
