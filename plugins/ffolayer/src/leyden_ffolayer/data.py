"""Data for decision-focused learning: the paper's generated set, and patients of the diabetes table."""

from __future__ import annotations

import torch
from leyden.arguments import check_at_least
from leyden_datamodules import Diabetes, TensorDataModule
from torch import Tensor


class SyntheticDFLDataModule(TensorDataModule):
    """The generated set of Section 5 of Zhao and others (2025): costs, and features that depend on them.

    Costs are uniform in 0 to 1 (around 0 if ``centred``); features are a fixed random network of the costs
    plus noise, uniform in 0 to 0.1. Batches are float32 features (batch, num_features) and costs (batch,
    num_costs).

    Args:
        batch_size: rows a batch.
        num_costs: number of costs, the size of the program.
        num_features: number of features.
        train_size: rows for training.
        val_size: rows for validation.
        test_size: rows for test.
        centred: whether one half is subtracted from the costs, so that some are negative.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the network, the costs, the noise and the order.

    Raises:
        ValueError: if an argument is out of range; the text names it.

    >>> features, costs = SyntheticDFLDataModule(num_costs=6, num_features=4, train_size=8).train
    >>> features.shape, costs.shape
    (torch.Size([8, 4]), torch.Size([8, 6]))
    """

    def __init__(
        self,
        *,
        batch_size: int = 32,
        num_costs: int = 60,
        num_features: int = 32,
        train_size: int = 256,
        val_size: int = 64,
        test_size: int = 128,
        centred: bool = True,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        self.sizes = {"train": train_size, "val": val_size, "test": test_size}
        for name, value in self.sizes.items():
            check_at_least(f"{name}_size", value, 1)
        check_at_least("num_costs", num_costs, 1)
        check_at_least("num_features", num_features, 1)
        self.num_costs = num_costs
        self.feature_count = num_features
        self.centred = centred

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Generate the splits."""
        generator = torch.Generator().manual_seed(1000 + self.seed)
        hidden = 128
        first = torch.randn(self.num_costs, hidden, generator=generator) / self.num_costs**0.5
        second = torch.randn(hidden, self.feature_count, generator=generator) / hidden**0.5
        splits = {}
        for name, rows in self.sizes.items():
            costs = torch.rand(rows, self.num_costs, generator=generator)
            noise = 0.1 * torch.rand(rows, self.feature_count, generator=generator)
            features = torch.relu(2 * (costs - 0.5) @ first) @ second + noise
            splits[name] = (features, costs - 0.5 if self.centred else costs)
        return splits


class Triage(TensorDataModule):
    """Groups of patients of whom some can be treated, from the diabetes table (Efron and others, 2004).

    A row is a group: the standardised measurements of its patients, of shape (patients, 10), and their costs,
    minus the standardised progression of the disease a year on: treating the patient who gets worse is worth
    most. Training, validation and test patients are apart; groups are drawn from the patients of their split.

    Args:
        batch_size: groups a batch.
        patients: patients in a group.
        train_size: groups for training.
        val_size: groups for validation.
        test_size: groups for test.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the split, of the groups and of the order.

    Raises:
        ValueError: if an argument is out of range; the text names it.
    """

    def __init__(
        self,
        *,
        batch_size: int = 32,
        patients: int = 10,
        train_size: int = 256,
        val_size: int = 256,
        test_size: int = 512,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        self.sizes = {"train": train_size, "val": val_size, "test": test_size}
        for name, value in self.sizes.items():
            check_at_least(f"{name}_size", value, 1)
        check_at_least("patients", patients, 2)
        if patients > 88:
            raise ValueError(f"patients: expected at most 88, as many as are tested on, got {patients}")
        self.patients = patients

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Split the table and draw the groups."""
        table = Diabetes(seed=self.seed)
        generator = torch.Generator().manual_seed(2000 + self.seed)
        splits = {}
        for name, groups in self.sizes.items():
            measurements, progression = table.splits[name]
            draws = torch.rand(groups, len(measurements), generator=generator)
            rows = draws.argsort(dim=1)[:, : self.patients]
            splits[name] = (measurements[rows], -progression.squeeze(-1)[rows])
        return splits
