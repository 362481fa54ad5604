"""Data that runs offline: sets and a model inside well-known packages, a generated set, your own tensors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leyden_datamodules.base import TensorDataModule, fingerprint
    from leyden_datamodules.folder import TensorFolder
    from leyden_datamodules.loader import TensorLoader, TensorRows
    from leyden_datamodules.mnist1d import MNIST1D, generate_mnist1d
    from leyden_datamodules.smollm2 import load_smollm2, smollm2_folder, smollm2_tokenizer
    from leyden_datamodules.tables import BreastCancer, Diabetes, Digits, TableSplit, Wine
    from leyden_datamodules.text import KingJames, PythonDocs, TextDataModule

_HOMES = {
    "leyden_datamodules.base": ("TensorDataModule", "fingerprint"),
    "leyden_datamodules.folder": ("TensorFolder",),
    "leyden_datamodules.loader": ("TensorLoader", "TensorRows"),
    "leyden_datamodules.mnist1d": ("MNIST1D", "generate_mnist1d"),
    "leyden_datamodules.smollm2": ("load_smollm2", "smollm2_folder", "smollm2_tokenizer"),
    "leyden_datamodules.tables": ("BreastCancer", "Diabetes", "Digits", "TableSplit", "Wine"),
    "leyden_datamodules.text": ("KingJames", "PythonDocs", "TextDataModule"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "MNIST1D",
    "BreastCancer",
    "Diabetes",
    "Digits",
    "KingJames",
    "PythonDocs",
    "TableSplit",
    "TensorDataModule",
    "TensorFolder",
    "TensorLoader",
    "TensorRows",
    "TextDataModule",
    "Wine",
    "fingerprint",
    "generate_mnist1d",
    "load_smollm2",
    "smollm2_folder",
    "smollm2_tokenizer",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_datamodules' has no attribute '{name}'")
