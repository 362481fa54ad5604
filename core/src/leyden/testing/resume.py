"""What a training needs so that it resumes bit for bit: a loader and a callback that keep their place."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class ResumableLoader:
    """A loader over batches in memory that Lightning can save and restore, also in mid-epoch.

    A plain `torch.utils.data.DataLoader` starts an interrupted epoch from its first batch, in another order.
    Lightning restores a loader's state in mid-epoch only; at an epoch's end it tells the sampler the epoch's
    number instead, so the loader is its own sampler.

    Args:
        batches: the batches of an epoch.
        shuffle: whether each epoch takes them in another order.
        seed: determines the orders.

    >>> loader = ResumableLoader([0, 1, 2])
    >>> first = iter(loader)
    >>> next(first), next(first)
    (0, 1)
    >>> resumed = ResumableLoader([0, 1, 2])
    >>> resumed.load_state_dict(loader.state_dict())
    >>> list(resumed)
    [2]
    """

    batch_sampler = None
    """Lightning's evaluation loops look for one where there is a sampler."""

    def __init__(self, batches: Sequence[Any], *, shuffle: bool = False, seed: int = 0) -> None:
        self.batches = list(batches)
        self.shuffle = shuffle
        self.seed = seed
        self._epoch = 0
        self._position = 0
        self._resuming = False

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        if self._resuming and self._position < len(self):
            self._resuming = False
        elif self._position > 0:
            self._epoch, self._position, self._resuming = self._epoch + 1, 0, False
        order = self._order()
        while self._position < len(order):
            self._position += 1
            yield self.batches[order[self._position - 1]]

    @property
    def sampler(self) -> ResumableLoader:
        """What Lightning tells the number of an epoch before it starts."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, unless it is the one in whose middle the loader stands."""
        if epoch != self._epoch:
            self._epoch, self._position, self._resuming = epoch, 0, False

    def state_dict(self) -> dict[str, int]:
        """Where it stands: the epoch, and how many of its batches were handed out."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Stand where the saved one stood: the next iteration goes on from there."""
        self._epoch, self._position, self._resuming = state["epoch"], state["position"], True

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(len(self)))
        generator = torch.Generator().manual_seed(self.seed + self._epoch)
        order: list[int] = torch.randperm(len(self), generator=generator).tolist()
        return order


class RestoreRNG(Callback):
    """Save the random number generators with each checkpoint, and restore them when training resumes from it.

    Lightning does not, so dropout and augmentation differ after a resume. Kept: torch's generators of the CPU
    and of every CUDA device, numpy's and Python's, in a form that ``torch.load(weights_only=True)`` reads.
    """

    def __init__(self) -> None:
        self._state: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The generators' states at this moment."""
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        version, words, gauss = random.getstate()
        return {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "numpy": [kind, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
            "python": [version, list(words), gauss],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember the states until training starts."""
        self._state = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore them for the hooks that open an epoch."""
        self._restore()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Restore them again before the first batch of an interrupted epoch: fetching it may have drawn."""
        if self._state is not None and batch_idx > 0:
            self._restore()
        self._state = None

    def _restore(self) -> None:
        if self._state is None:
            return
        torch.set_rng_state(self._state["torch"])
        if self._state["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(self._state["cuda"])
        kind, keys, position, has_gauss, cached = self._state["numpy"]
        np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
        version, words, gauss = self._state["python"]
        random.setstate((version, tuple(words), gauss))
