"""Completion of undersampled spectrally sparse signals (Cai, Quan, Wang and Ying, 2026)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_hankel.answer import complete
    from leyden_hankel.baselines import emac, fiht, hsnld, ist, pgd, shgd
    from leyden_hankel.completion import Completion, HankelCompletion
    from leyden_hankel.data import SignalFile, SpectralSignalDataModule
    from leyden_hankel.frequencies import Lines, esprit
    from leyden_hankel.guard import JacobiGuard
    from leyden_hankel.jacobi_pgd import JacobiPGD
    from leyden_hankel.metrics import match_frequencies, relative_error
    from leyden_hankel.module import HankelCompletionModule
    from leyden_hankel.operator import HankelOperator
    from leyden_hankel.rank import estimate_rank
    from leyden_hankel.signals import SpectralSignal, spectral_signal
    from leyden_hankel.spectral import spectral_init, takagi

_HOMES = {
    "leyden_hankel.answer": ("complete",),
    "leyden_hankel.baselines": ("emac", "fiht", "hsnld", "ist", "pgd", "shgd"),
    "leyden_hankel.completion": ("Completion", "HankelCompletion"),
    "leyden_hankel.data": ("SignalFile", "SpectralSignalDataModule"),
    "leyden_hankel.frequencies": ("Lines", "esprit"),
    "leyden_hankel.guard": ("JacobiGuard",),
    "leyden_hankel.jacobi_pgd": ("JacobiPGD",),
    "leyden_hankel.metrics": ("match_frequencies", "relative_error"),
    "leyden_hankel.module": ("HankelCompletionModule",),
    "leyden_hankel.operator": ("HankelOperator",),
    "leyden_hankel.rank": ("estimate_rank",),
    "leyden_hankel.signals": ("SpectralSignal", "spectral_signal"),
    "leyden_hankel.spectral": ("spectral_init", "takagi"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - what a user calls comes first
    "complete",
    "Completion",
    "HankelCompletion",
    "HankelCompletionModule",
    "JacobiPGD",
    "JacobiGuard",
    "SpectralSignalDataModule",
    "SignalFile",
    "HankelOperator",
    "spectral_init",
    "takagi",
    "esprit",
    "Lines",
    "estimate_rank",
    "spectral_signal",
    "SpectralSignal",
    "relative_error",
    "match_frequencies",
    "shgd",
    "pgd",
    "fiht",
    "hsnld",
    "ist",
    "emac",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_hankel' has no attribute '{name}'")
