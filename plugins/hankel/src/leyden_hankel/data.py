"""Signals for the module: drawn, or read from a file of arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from leyden.arguments import check_at_least
from leyden_datamodules import TensorDataModule
from torch import Tensor

from leyden_hankel.completion import checked_shape
from leyden_hankel.signals import check_arguments, spectral_signal

Signals = tuple[Tensor, ...]
"""Observed samples, the mask, and where it is known the true signal; signals first."""


class SignalDataModule(TensorDataModule):
    """Signals of one shape. A training batch holds all of them, an epoch is so many iterations.

    Under several processes each takes its share of the signals. Test and prediction batches go through the
    same signals.

    Args:
        iterations: iterations in an epoch.
        batch_size: signals in a batch of test and prediction.
        seed: seed of what is drawn.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """

    def __init__(self, *, iterations: int, batch_size: int, seed: int) -> None:
        super().__init__(batch_size=batch_size, shuffle=False, drop_last=False, seed=seed)
        check_at_least("iterations", iterations, 1)
        self.iterations = iterations

    def signals(self) -> Signals:
        """The tensors, signals first."""
        raise NotImplementedError

    def load(self) -> dict[str, Signals]:
        """The signals, which are to be trained on and tested."""
        signals = self.signals()
        return {"train": signals, "val": signals, "test": signals}

    def train_dataloader(self) -> Repeated:  # type: ignore[override]
        """All of this process's signals, once for every iteration."""
        return self._repeated(self.iterations)

    def val_dataloader(self) -> Repeated:  # type: ignore[override]
        """All of this process's signals, once."""
        return self._repeated(1)

    def _repeated(self, times: int) -> Repeated:
        rank, ranks = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return Repeated(tuple(tensor[rank::ranks] for tensor in self.train), times)


class Repeated:
    """A loader that hands out one batch so many times.

    Args:
        batch: the batch.
        times: how often.
    """

    def __init__(self, batch: Signals, times: int) -> None:
        self.batch = batch
        self.times = times

    def __len__(self) -> int:
        return self.times

    def __iter__(self) -> Iterator[Signals]:
        return itertools.repeat(self.batch, self.times)


class SpectralSignalDataModule(SignalDataModule):
    """Signals drawn by `spectral_signal`, with their truth.

    Args:
        shape: the sizes of a signal.
        rank: its number of lines.
        samples: how many samples are observed.
        count: how many signals.
        kappa: the amplitudes are spread from 1 / kappa to 1; None: over 10 dB.
        separation: whether frequencies are at least 1.5 / n apart.
        damping: whether lines decay.
        noise_db: signal to noise in dB; None: no noise.
        outliers: the share of the observed samples that is grossly wrong.
        seed: seed of the signals.
        iterations: iterations in an epoch.
        batch_size: signals in a batch of test and prediction.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """

    def __init__(
        self,
        shape: int | list[int],
        rank: int,
        samples: int,
        count: int = 1,
        kappa: float | None = None,
        separation: bool = False,
        damping: bool = False,
        noise_db: float | None = None,
        outliers: float = 0.0,
        seed: int = 0,
        *,
        iterations: int = 50,
        batch_size: int = 64,
    ) -> None:
        super().__init__(iterations=iterations, batch_size=batch_size, seed=seed)
        check_at_least("count", count, 1)
        self.count = count
        self.shape: int | Sequence[int] = shape
        self.rank = rank
        self.samples = samples
        self.kappa = kappa
        self.separation = separation
        self.damping = damping
        self.noise_db = noise_db
        self.outliers = outliers
        check_arguments(checked_shape(shape), rank, samples, kappa, separation, noise_db, outliers)

    def signals(self) -> Signals:
        """Draw them."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = [self._draw(generator) for _ in range(self.count)]
        return tuple(torch.stack(parts) for parts in zip(*drawn, strict=True))

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        signal = spectral_signal(
            self.shape,
            self.rank,
            samples=self.samples,
            kappa=self.kappa,
            separation=self.separation,
            damping=self.damping,
            noise_db=self.noise_db,
            outliers=self.outliers,
            generator=generator,
        )
        return signal.y, signal.mask, signal.truth


class SignalFile(SignalDataModule):
    """Signals of your own, from a file of numpy arrays.

    A ``.npz`` file holds ``observed`` and, if there are, ``mask`` and ``truth``, all of one shape; a ``.npy``
    file the observed samples. What nmrglue's ``expand_nus`` returns can be saved as it is, with
    ``missing="zero"``.

    Args:
        path: the file.
        signal_dims: how many trailing dimensions a signal has; the others count signals.
        missing: what stands at samples that were not observed, where the file has no mask: ``"nan"`` or
            ``"zero"``.
        iterations: iterations in an epoch.
        batch_size: signals in a batch of test and prediction.

    Raises:
        ValueError: if an argument is out of its range, the file lacks ``observed``, or shapes differ; the
            text names it.
    """

    def __init__(
        self,
        path: str,
        signal_dims: int = 1,
        missing: Literal["nan", "zero"] = "nan",
        *,
        iterations: int = 50,
        batch_size: int = 64,
    ) -> None:
        super().__init__(iterations=iterations, batch_size=batch_size, seed=0)
        check_at_least("signal_dims", signal_dims, 1)
        if missing not in ("nan", "zero"):
            raise ValueError(f"missing: expected 'nan' or 'zero', got {missing!r}")
        self.path = path
        self.signal_dims = signal_dims
        self.missing = missing

    def signals(self) -> Signals:
        """Read them."""
        loaded = np.load(Path(self.path))
        arrays = {"observed": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        if "observed" not in arrays:
            raise ValueError(f"path: expected an array 'observed' in {self.path}, got {', '.join(arrays)}")
        observed = torch.as_tensor(arrays["observed"])
        if observed.dim() < self.signal_dims:
            raise ValueError(f"signal_dims: expected at most {observed.dim()}, got {self.signal_dims}")
        unseen = torch.isnan(observed) if self.missing == "nan" else observed == 0
        mask = torch.as_tensor(arrays["mask"]).bool() if "mask" in arrays else ~unseen
        found = [observed, mask] + ([torch.as_tensor(arrays["truth"])] if "truth" in arrays else [])
        for name, tensor in zip(("observed", "mask", "truth"), found, strict=False):
            if tensor.shape != observed.shape:
                raise ValueError(
                    f"path: expected '{name}' of shape {tuple(observed.shape)}, got {tuple(tensor.shape)}"
                )
        shape = observed.shape[observed.dim() - self.signal_dims :]
        return tuple(tensor.reshape(-1, *shape) for tensor in found)
