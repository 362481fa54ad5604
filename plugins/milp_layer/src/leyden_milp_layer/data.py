"""The data of the two tasks: generated cooling control, and wine with rules."""

from __future__ import annotations

from typing import Literal

import torch
from leyden.arguments import check_at_least
from leyden_datamodules import TensorDataModule, Wine
from torch import Tensor

from leyden_milp_layer.cooling import cooling_samples

Splits = dict[str, tuple[Tensor, ...]]


class CoolingControlDataModule(TensorDataModule):
    """Cooling control of four zones, generated; see `leyden_milp_layer.cooling`.

    Batches are ``(inputs, features, targets)`` in float32, of shapes ``(batch, 6)``, ``(batch, 6)`` and
    ``(batch, 4)``; inputs are the features scaled to -1 to 1 over mild weather.

    Args:
        batch_size: rows a batch.
        train_size: number of training rows, from mild weather.
        val_size: number of validation rows, from mild weather.
        test_size: number of test rows.
        test_domain: ``"iid"`` for mild weather, ``"ood"`` for hot weather and dear power.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the draw and of the order.

    Raises:
        ValueError: if an argument is out of range; the text names it.
    """

    def __init__(
        self,
        *,
        batch_size: int = 50,
        train_size: int = 150,
        val_size: int = 100,
        test_size: int = 100,
        test_domain: Literal["iid", "ood"] = "iid",
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        for name, size in (("train_size", train_size), ("val_size", val_size), ("test_size", test_size)):
            check_at_least(name, size, 1)
        if test_domain not in ("iid", "ood"):
            raise ValueError(f"test_domain: expected 'iid' or 'ood', got {test_domain!r}")
        self.sizes = (train_size, val_size, test_size)
        self.test_domain = test_domain

    def load(self) -> Splits:
        """Draw the samples."""
        splits: Splits = {}
        domains: tuple[Literal["iid", "ood"], ...] = ("iid", "iid", self.test_domain)
        for place, (name, size, domain) in enumerate(
            zip(("train", "val", "test"), self.sizes, domains, strict=True)
        ):
            offset = {"iid": 0, "ood": 10}[domain]
            features, targets = cooling_samples(size, domain, 1000 * self.seed + offset + place)
            splits[name] = tuple(part.float() for part in (cooling_inputs(features), features, targets))
        return splits


def cooling_inputs(features: Tensor) -> Tensor:
    """The features scaled to -1 to 1 over mild weather, shape ``(batch, 6)``."""
    centre = torch.tensor([25.0, 25.0, 25.0, 25.0, 28.0, 0.3], dtype=features.dtype)
    half = torch.tensor([5.0, 5.0, 5.0, 5.0, 8.0, 0.2], dtype=features.dtype)
    return (features - centre) / half


class WineRulesDataModule(TensorDataModule):
    """Wine with a few training rows of each cultivar, and the measurements that rules are about.

    Batches are ``(inputs, features, labels)``: float32 of shapes ``(batch, 13)`` and ``(batch, 13)``, and
    int64 of shape ``(batch,)``. Inputs are the measurements standardised over the training rows, features
    the measurements as they are.

    Args:
        batch_size: rows a batch.
        per_class: training rows of each of the three cultivars.
        val_size: number of validation rows; the rest is for test.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the split and of the order.

    Raises:
        ValueError: if an argument is out of range; the text names it.
    """

    def __init__(
        self,
        *,
        batch_size: int = 32,
        per_class: int = 2,
        val_size: int = 30,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        check_at_least("per_class", per_class, 2)
        check_at_least("val_size", val_size, 1)
        if 3 * per_class + val_size >= 178 or per_class >= 48:
            raise ValueError(
                f"per_class, val_size: expected rows left of 178, got {per_class} and {val_size}"
            )
        self.per_class, self.val_size = per_class, val_size

    def load(self) -> Splits:
        """Read and split the table."""
        table = Wine(standardize=False, seed=0)
        features, labels = (
            torch.cat([part[place] for part in (table.train, table.val, table.test)]) for place in (0, 1)
        )
        generator = torch.Generator().manual_seed(1000 + self.seed)
        order = torch.randperm(len(labels), generator=generator)
        train = torch.cat([order[labels[order] == label][: self.per_class] for label in range(3)])
        rest = order[~torch.isin(order, train)]
        parts = {"train": train, "val": rest[: self.val_size], "test": rest[self.val_size :]}
        centre = features[train].mean(dim=0)
        spread = features[train].std(dim=0, correction=0)
        spread = torch.where(spread > 0, spread, torch.ones_like(spread))
        inputs = (features - centre) / spread
        return {name: (inputs[rows], features[rows], labels[rows]) for name, rows in parts.items()}
