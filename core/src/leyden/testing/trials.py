"""What the kit tries a component on: the plugin's own `Trial`, or a small classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_map

from leyden.manager import load_object
from leyden.testing.kit import Subject

BATCHES = 10
"""Batches of an epoch of a trial: no multiple of 4, so that accumulating 4 leaves a short last window."""


def plain_sgd(parameters: Iterable[Any]) -> Optimizer:
    """The optimizer beside a component that is none."""
    return SGD(parameters, lr=0.05)


def mean_cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Mean cross-entropy of a classifier, the loss of the kit's own trial.

    Args:
        model: maps features (batch, features) to logits (batch, classes).
        batch: features and labels.

    Returns:
        A scalar.
    """
    features, labels = batch
    return nn.functional.cross_entropy(model(features), labels)


@dataclass(kw_only=True)
class Trial:
    """What a component is tried on, where the kit's small classifier does not fit it.

    A plugin returns one from the function that `leyden.model.Component.trial` names; the kit calls it anew
    for every training, after seeding torch. What is left out is the kit's own.

    Attributes:
        inputs: for a layer, loss or metric: the positional arguments of its ``forward`` or ``update``, batch
            first (tensors whose first dimension equals that of the first tensor are taken for batched).
        model: for an optimizer, scheduler or callback: what is trained.
        loss: loss of a model on a batch, a mean over the batch's rows.
        parameters: the optimizer's argument from the model: its parameters, or its parameter groups.
        optimizer: for a scheduler, callback or layer: the optimizer beside it, from those parameters.
        rows: the data, tensors of one first dimension; 80 rows make the 10 batches of an epoch.
        batch_size: rows of a batch.
        module: for an optimizer, scheduler or callback that needs a LightningModule of its own, such as one
            with manual optimization: that module, which then configures its optimizers itself. The checks
            without Lightning use ``model`` and ``loss`` where they are given, else this module.
        data: for a module (or the one above) that needs a datamodule of its own.
        trainer: arguments that a Trainer needs for it.
    """

    inputs: tuple[Any, ...] = ()
    model: nn.Module | None = None
    loss: Callable[[nn.Module, Any], Tensor] = mean_cross_entropy
    parameters: Callable[[nn.Module], Iterable[Any]] = nn.Module.parameters
    optimizer: Callable[[Iterable[Any]], Optimizer] = plain_sgd
    rows: tuple[Tensor, ...] = ()
    batch_size: int = 8
    module: LightningModule | None = None
    data: LightningDataModule | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def batches(self) -> list[Any]:
        """The batches of an epoch, in order, the same at every call."""
        if self.data is not None:
            self.data.prepare_data()
            self.data.setup("fit")
            loader = self.data.train_dataloader()
            return [batch for batch, _ in zip(loader, range(BATCHES), strict=False)]
        rows = self.rows or _classes()
        starts = range(0, len(rows[0]), self.batch_size)
        return [tuple(column[start : start + self.batch_size] for column in rows) for start in starts]


def trial_of(subject: Subject) -> Trial:
    """The trial of a component, built anew from the same seed.

    Args:
        subject: the component.

    Returns:
        The plugin's trial, its gaps filled with the kit's classifier.
    """
    torch.manual_seed(0)
    trial = load_object(subject.component.trial)() if subject.component.trial else Trial()
    if not isinstance(trial, Trial):
        raise TypeError(
            f"{subject.component.trial}() returned {type(trial).__name__}, not leyden.testing.Trial"
        )
    if trial.model is None and trial.module is None:
        trial.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    return trial


def join(batches: Sequence[Any], count: int) -> list[Any]:
    """Batches of ``count`` times the size: each the concatenation of that many; the last may be shorter."""
    return [concatenate(batches[start : start + count]) for start in range(0, len(batches), count)]


def concatenate(batches: Sequence[Any]) -> Any:
    """One batch that holds the rows of several."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return {key: concatenate([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(concatenate([batch[place] for batch in batches]) for place in range(len(first)))
    raise TypeError(f"the kit cannot join batches of {type(first).__name__}; let the trial give tensors")


def as_double(batch: Any) -> Any:
    """The batch with its floating tensors in float64."""
    return tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, batch)


def _classes() -> tuple[Tensor, Tensor]:
    """Eighty rows of six features in four classes, two of them overlapping."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(80, 6, generator=generator)
    directions = torch.randn(6, 4, generator=generator)
    noise = torch.randn(80, 4, generator=generator)
    return features, (features @ directions + noise).argmax(dim=1)
