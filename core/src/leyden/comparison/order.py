"""The same data in the same order for every arm, however many random numbers its method draws."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader

from leyden.lightning import LeydenCLI

_DATA_HOOKS = ("prepare_data", "train_dataloader", "val_dataloader", "test_dataloader")


@contextlib.contextmanager
def own_randomness(seed: int | None = None) -> Iterator[None]:
    """Let a block draw from the global generators and leave them as they were.

    Args:
        seed: what Python's, numpy's and torch's CPU generator start from in the block; None: from where they
            are.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


class PinnedCLI(LeydenCLI):
    """Makes callbacks and data aside: what they draw when they are made changes no initial value of a model.

    Nor does what the model draws change data: a split that a data module draws when it is made follows from
    the seed alone.
    """

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Let callbacks be made by `_aside` and data modules by `_from_seed`."""
        parser.add_instantiator(_aside, Callback)
        parser.add_instantiator(_from_seed, LightningDataModule)


def _aside(kind: Any, *args: Any, **kwargs: Any) -> Any:
    with own_randomness():
        return kind(*args, **kwargs)


def _from_seed(kind: Any, *args: Any, **kwargs: Any) -> Any:
    with own_randomness(torch.initial_seed()):
        return kind(*args, **kwargs)


def pin_data(source: LightningDataModule | LightningModule, seed: int) -> None:
    """Let splits and the order of batches follow from the seed alone.

    Without it, a shuffling loader draws its order from torch's global generator, of which an optimizer or the
    initial values of a layer may have drawn before; two methods would then see different batches under one
    seed. The hooks that make data run with generators of their own, and the samplers of the training loaders
    get one each where they have none.

    Args:
        source: the data module, or the model where that brings the data.
        seed: the run's seed.
    """
    hooks = [*_DATA_HOOKS, "setup"] if isinstance(source, LightningDataModule) else _DATA_HOOKS
    for hook in hooks:
        if is_overridden(hook, source):
            # not a bound method: those are pickled by name, which in the copy would mean this attribute
            setattr(source, hook, partial(_pinned, type(source), hook, source, seed))


def _pinned(kind: type, hook: str, source: Any, seed: int, *args: Any, **kwargs: Any) -> Any:
    with own_randomness(seed):
        made = getattr(kind, hook)(source, *args, **kwargs)
    if hook == "train_dataloader":
        for loader in loaders(made):
            _own_generator(loader, seed + _epoch(source))
    return made


def _epoch(source: Any) -> int:
    """The epoch, so that loaders that are made anew during training do not repeat the first order."""
    try:
        return int(source.trainer.current_epoch)
    except (AttributeError, RuntimeError):  # no Trainer yet
        return 0


def loaders(made: Any) -> Iterator[DataLoader[Any]]:
    """The loaders of a collection of them, however nested."""
    match made:
        case DataLoader():
            yield made
        case CombinedLoader():
            yield from loaders(made.flattened)
        case Mapping():
            yield from loaders(list(made.values()))
        case list() | tuple():
            for item in made:
                yield from loaders(item)


def _own_generator(loader: DataLoader[Any], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    if loader.generator is None:
        loader.generator = generator
    for sampler in (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
        if getattr(sampler, "generator", generator) is None:
            sampler.generator = generator  # type: ignore[union-attr]
