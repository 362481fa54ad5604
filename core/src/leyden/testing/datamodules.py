"""What a datamodule owes: the same data every time, with a fingerprint, in every stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils._pytree import tree_leaves

from leyden.testing.kit import Subject, owed_by
from leyden.testing.saving import DUPLICATES, same_bits

LOADERS = {"fit": "train_dataloader", "validate": "val_dataloader", "test": "test_dataloader"}


@owed_by("datamodule")
def loaders(subject: Subject) -> Iterator[str]:
    """Every loader that it defines gives batches of tensors, after ``setup`` of its own stage alone."""
    defined = {stage: name for stage, name in LOADERS.items() if _defines(subject.target, name)}
    if "fit" not in defined and "test" not in defined:
        yield "it defines neither train_dataloader nor test_dataloader"
    for stage, name in defined.items():
        data = _set_up(subject, stage)
        first = next(iter(getattr(data, name)()), None)
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(first)):
            yield f"{name}() gives no batch of tensors after setup('{stage}')"


@owed_by("datamodule")
def deterministic(subject: Subject) -> Iterator[str]:
    """Two of them give the same data, whatever was drawn from torch's generator before."""
    for stage, name in LOADERS.items():
        if not _defines(subject.target, name):
            continue
        contents = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            data = _set_up(subject, stage)
            torch.manual_seed(0)
            contents.append(
                [leaf for leaf in tree_leaves(next(iter(getattr(data, name)()))) if isinstance(leaf, Tensor)]
            )
        if len(contents[0]) != len(contents[1]) or not all(map(same_bits, *contents)):
            yield f"two of them give different first batches from {name}()"


@owed_by("datamodule")
def fingerprint(subject: Subject) -> Iterator[str]:
    """Its fingerprint is a text, the same for two of them and after ``setup`` of any stage."""
    prints = []
    for stage in ("fit", "test"):
        data = _set_up(subject, stage)
        prints.append(data.fingerprint())
    if not all(isinstance(text, str) and text for text in prints):
        yield f"fingerprint() gives {prints[0]!r}, not a text"
    elif len(set(prints)) > 1:
        yield f"two of them have different fingerprints: {prints[0]} and {prints[1]}"


@owed_by("datamodule")
def copies(subject: Subject) -> Iterator[str]:
    """It can be copied and pickled, before and after ``setup``."""
    for when, data in (("", subject.build()), (" after setup", _set_up(subject, "fit"))):
        for how, duplicate in DUPLICATES:
            try:
                duplicate(data)
            except Exception as error:
                yield f"{how}{when} raises {type(error).__name__}: {error}"


def _set_up(subject: Subject, stage: str) -> Any:
    data = subject.build()
    data.prepare_data()
    data.setup(stage)
    return data


def _defines(cls: type, loader: str) -> bool:
    return getattr(cls, loader) is not getattr(LightningDataModule, loader)
