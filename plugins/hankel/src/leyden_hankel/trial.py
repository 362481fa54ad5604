"""What the conformance kit tries the components on."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from leyden.testing import Trial
from torch import Tensor, nn

from leyden_hankel.completion import HankelCompletion
from leyden_hankel.data import SignalFile, SpectralSignalDataModule
from leyden_hankel.jacobi_pgd import JacobiPGD
from leyden_hankel.module import HankelCompletionModule


class Factors(nn.Module):
    """Two symmetric matrices of rank 2, of which entries are observed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 2))
        self.second = nn.Parameter(torch.randn(5, 2))

    def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """The entries of both at pairs of places, in every row two for each matrix."""
        a, b, c, d = pairs.long().unbind(-1)
        return (self.first[a] * self.first[b]).sum(-1), (self.second[c] * self.second[d]).sum(-1)


def entries() -> Trial:
    """The optimizer's trial: matrices from some of their entries."""
    generator = torch.Generator().manual_seed(3)
    sizes = torch.tensor([6.0, 6.0, 5.0, 5.0])
    pairs = (torch.rand(80, 4, generator=generator) * sizes).floor()
    values = torch.randn(80, 2, generator=generator)
    return Trial(model=Factors(), loss=_squares, rows=(pairs, values))


def _squares(model: nn.Module, batch: Any) -> Tensor:
    pairs, values = batch
    first, second = model(pairs)
    loss: Tensor = ((first - values[:, 0]).square() + (second - values[:, 1]).square()).mean()
    return loss


def optimizer(params: Any) -> JacobiPGD:
    """The optimizer with a rate for single entries."""
    return JacobiPGD(params, lr=0.5, damping=0.1)


def module() -> HankelCompletionModule:
    """A module for the signals of `signals`."""
    return HankelCompletionModule(31, 2)


def signals() -> Trial:
    """Three signals, ten iterations in an epoch."""
    data = SpectralSignalDataModule(31, 2, samples=16, count=3, kappa=10, iterations=10)
    return Trial(data=data)


def datamodule() -> SpectralSignalDataModule:
    """Two signals."""
    return SpectralSignalDataModule(31, 2, samples=16, count=2, iterations=3)


def solver() -> HankelCompletion:
    """A solver for the signals of `observed`."""
    return HankelCompletion(31, 2, max_iter=20)


def observed() -> Trial:
    """Real signals of a cosine each, with NaN where they were not observed."""
    times = torch.arange(31.0)
    rates = torch.tensor([[0.5], [0.9], [1.7]])
    missing = (times * times) % 5 == 1
    return Trial(inputs=(torch.where(missing, torch.nan, torch.cos(rates * times)),))


def file() -> SignalFile:
    """The signals of a file that is made anew."""
    path = Path(tempfile.gettempdir()) / f"leyden-hankel-{os.getpid()}.npz"
    observed = np.exp(0.7j * np.arange(31)) * np.array([[1.0], [2.0j]])
    observed[:, 1::3] = np.nan
    np.savez(path, observed=observed)
    return SignalFile(str(path), iterations=3)
