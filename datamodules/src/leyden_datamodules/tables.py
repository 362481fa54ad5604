"""The labelled tables that scikit-learn ships: digits, breast cancer, wine and diabetes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from leyden.arguments import check_at_least
from torch import Tensor

from leyden_datamodules.base import Splits, TensorDataModule, check_share


@dataclass(frozen=True, kw_only=True)
class TableSplit:
    """How a table becomes splits.

    A generator seeded ``1000 + seed`` permutes the rows; the first are for training, the next for
    validation, the rest for test. Then the same generator draws the label noise of the training rows: which
    rows are hit, and a label for every row. Statistics come from the training rows alone.

    Attributes:
        train_size: number of training rows.
        val_size: number of validation rows.
        label_noise: share of the training rows whose label is drawn anew, from all classes alike.
        subset: keep only the first so many of the training rows, for learning curves; None keeps all.
        classes: keep only the rows of these classes, which become 0, 1, ... in the order given; None keeps
            all.
        standardize: whether inputs get mean 0 and standard deviation 1 over the training rows, column by
            column.
        normalize: whether each row is then scaled to Euclidean length 1.
    """

    train_size: int
    val_size: int
    label_noise: float = 0.0
    subset: int | None = None
    classes: Sequence[int] | None = None
    standardize: bool = False
    normalize: bool = False

    def __post_init__(self) -> None:
        """Check what can be checked without the table."""
        check_at_least("train_size", self.train_size, 1)
        check_at_least("val_size", self.val_size, 1)
        check_share("label_noise", self.label_noise, most=1)
        if self.subset is not None:
            check_at_least("subset", self.subset, 1)
            if self.subset > self.train_size:
                raise ValueError(f"subset: expected at most train_size={self.train_size}, got {self.subset}")
        if self.classes is not None and (len(self.classes) < 2 or len(set(self.classes)) < len(self.classes)):
            raise ValueError(f"classes: expected at least two different classes, got {list(self.classes)}")

    def check_rows(self, rows: int) -> None:
        """Raise a ValueError unless a table of so many rows leaves at least one for test."""
        if self.train_size + self.val_size >= rows:
            raise ValueError(
                f"train_size, val_size: expected a sum below the table's {rows} rows, "
                f"got {self.train_size} + {self.val_size}"
            )

    def apply(self, inputs: Tensor, targets: Tensor, *, seed: int) -> Splits:
        """Split a table.

        Args:
            inputs: floating-point tensor of shape ``(rows, features)``.
            targets: int64 class labels of shape ``(rows,)``, or other targets of shape ``(rows, ...)``.
            seed: seed of the permutation and of the noise.

        Returns:
            The pairs ``(inputs, targets)`` of ``"train"``, ``"val"`` and ``"test"``.

        Raises:
            ValueError: if the table has too few rows, or lacks one of ``classes``.
        """
        if self.classes is not None:
            inputs, targets = _keep_classes(inputs, targets, self.classes)
        self.check_rows(len(inputs))
        generator = torch.Generator().manual_seed(1000 + seed)
        order = torch.randperm(len(inputs), generator=generator)
        parts = torch.split(
            order, [self.train_size, self.val_size, len(order) - self.train_size - self.val_size]
        )
        inputs_of = [inputs[rows] for rows in parts]
        targets_of = [targets[rows] for rows in parts]
        if self.label_noise > 0:
            num_classes = int(targets.max()) + 1
            targets_of[0] = _noisy(targets_of[0], num_classes, self.label_noise, generator)
        inputs_of[0], targets_of[0] = inputs_of[0][: self.subset], targets_of[0][: self.subset]
        if self.standardize:
            center, scale = column_statistics(inputs_of[0])
            inputs_of = [(part - center) / scale for part in inputs_of]
        if self.normalize:
            inputs_of = [torch.nn.functional.normalize(part, dim=1) for part in inputs_of]
        return dict(zip(("train", "val", "test"), zip(inputs_of, targets_of, strict=True), strict=True))


def column_statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column; a constant column gets 1, so that it becomes 0."""
    deviation = rows.std(dim=0, correction=0)
    return rows.mean(dim=0), torch.where(deviation > 0, deviation, torch.ones_like(deviation))


def _keep_classes(inputs: Tensor, targets: Tensor, classes: Sequence[int]) -> tuple[Tensor, Tensor]:
    found = set(targets.tolist())
    missing = [label for label in classes if label not in found]
    if missing:
        raise ValueError(f"classes: expected some of {sorted(found)}, got {missing[0]!r}")
    wanted = torch.tensor(list(classes))
    matches = targets[:, None] == wanted
    rows = matches.any(dim=1)
    return inputs[rows], matches[rows].int().argmax(dim=1)


def _noisy(labels: Tensor, num_classes: int, share: float, generator: torch.Generator) -> Tensor:
    hit = torch.rand(len(labels), generator=generator) < share
    drawn = torch.randint(0, num_classes, (len(labels),), generator=generator)
    return torch.where(hit, drawn, labels)


class Digits(TensorDataModule):
    """Handwritten digits: 1,797 images of 8 x 8 pixels, ten classes (Alpaydin and Kaynak, 1998).

    Batches are ``(inputs, labels)``: float32 pixels in 0 to 1 of shape ``(batch, 64)`` and int64 labels of
    shape ``(batch,)``.

    Args:
        batch_size: rows a batch.
        train_size: number of training rows.
        val_size: number of validation rows; the rest is for test.
        label_noise: share of the training rows whose label is drawn anew, from all classes alike.
        subset: keep only the first so many of the training rows.
        classes: keep only the rows of these classes, renumbered from 0 in the order given.
        standardize: whether pixels get mean 0 and standard deviation 1 over the training rows.
        normalize: whether each row is scaled to Euclidean length 1.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the split, of the noise and of the order.

    Raises:
        ValueError: if an argument is out of range; the text names it.

    >>> inputs, labels = Digits(label_noise=0.4, seed=3).train
    >>> inputs.shape, labels.shape
    (torch.Size([1000, 64]), torch.Size([1000]))
    """

    def __init__(
        self,
        *,
        batch_size: int = 64,
        train_size: int = 1000,
        val_size: int = 297,
        label_noise: float = 0.0,
        subset: int | None = None,
        classes: list[int] | None = None,
        standardize: bool = False,
        normalize: bool = False,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        self.split = TableSplit(
            train_size=train_size,
            val_size=val_size,
            label_noise=label_noise,
            subset=subset,
            classes=classes,
            standardize=standardize,
            normalize=normalize,
        )
        self.split.check_rows(1797)

    def load(self) -> Splits:
        """Read and split the table."""
        inputs, targets = _table("load_digits")
        return self.split.apply(inputs / 16, targets.long(), seed=self.seed)


class BreastCancer(TensorDataModule):
    """Breast cancer, Wisconsin, diagnostic: 569 tumours, 30 measurements, malignant (0) or benign (1).

    Batches are ``(inputs, labels)``: float32 of shape ``(batch, 30)`` and int64 of shape ``(batch,)``.

    Args:
        batch_size: rows a batch.
        train_size: number of training rows.
        val_size: number of validation rows; the rest is for test.
        label_noise: share of the training rows whose label is drawn anew, from both classes alike.
        subset: keep only the first so many of the training rows.
        standardize: whether columns get mean 0 and standard deviation 1 over the training rows.
        normalize: whether each row is then scaled to Euclidean length 1.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the split, of the noise and of the order.

    Raises:
        ValueError: if an argument is out of range; the text names it.
    """

    def __init__(
        self,
        *,
        batch_size: int = 32,
        train_size: int = 341,
        val_size: int = 114,
        label_noise: float = 0.0,
        subset: int | None = None,
        standardize: bool = True,
        normalize: bool = False,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        self.split = TableSplit(
            train_size=train_size,
            val_size=val_size,
            label_noise=label_noise,
            subset=subset,
            standardize=standardize,
            normalize=normalize,
        )
        self.split.check_rows(569)

    def load(self) -> Splits:
        """Read and split the table."""
        inputs, targets = _table("load_breast_cancer")
        return self.split.apply(inputs, targets.long(), seed=self.seed)


class Wine(TensorDataModule):
    """Wine: 178 wines of three cultivars, 13 chemical measurements.

    Batches are ``(inputs, labels)``: float32 of shape ``(batch, 13)`` and int64 of shape ``(batch,)``.

    Args:
        batch_size: rows a batch.
        train_size: number of training rows.
        val_size: number of validation rows; the rest is for test.
        label_noise: share of the training rows whose label is drawn anew, from all classes alike.
        subset: keep only the first so many of the training rows.
        standardize: whether columns get mean 0 and standard deviation 1 over the training rows.
        normalize: whether each row is then scaled to Euclidean length 1.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the split, of the noise and of the order.

    Raises:
        ValueError: if an argument is out of range; the text names it.
    """

    def __init__(
        self,
        *,
        batch_size: int = 32,
        train_size: int = 106,
        val_size: int = 36,
        label_noise: float = 0.0,
        subset: int | None = None,
        standardize: bool = True,
        normalize: bool = False,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        self.split = TableSplit(
            train_size=train_size,
            val_size=val_size,
            label_noise=label_noise,
            subset=subset,
            standardize=standardize,
            normalize=normalize,
        )
        self.split.check_rows(178)

    def load(self) -> Splits:
        """Read and split the table."""
        inputs, targets = _table("load_wine")
        return self.split.apply(inputs, targets.long(), seed=self.seed)


class Diabetes(TensorDataModule):
    """Diabetes: 442 patients, 10 measurements, progression of the disease a year on (Efron and others, 2004).

    Batches are ``(inputs, targets)``: float32 of shapes ``(batch, 10)`` and ``(batch, 1)``. The table is
    taken as it was measured; scikit-learn's scaled copy was centred on all of its rows, those for test among
    them.

    Args:
        batch_size: rows a batch.
        train_size: number of training rows.
        val_size: number of validation rows; the rest is for test.
        subset: keep only the first so many of the training rows.
        standardize: whether inputs and targets get mean 0 and standard deviation 1 over the training rows.
        normalize: whether each row of the inputs is then scaled to Euclidean length 1.
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
        train_size: int = 266,
        val_size: int = 88,
        subset: int | None = None,
        standardize: bool = True,
        normalize: bool = False,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        self.split = TableSplit(
            train_size=train_size,
            val_size=val_size,
            subset=subset,
            standardize=standardize,
            normalize=normalize,
        )
        self.split.check_rows(442)

    def load(self) -> Splits:
        """Read and split the table."""
        inputs, targets = _table("load_diabetes", scaled=False)
        splits = self.split.apply(inputs, targets[:, None], seed=self.seed)
        if not self.split.standardize:
            return splits
        center, scale = column_statistics(splits["train"][1])
        return {name: (rows, (values - center) / scale) for name, (rows, values) in splits.items()}


def _table(function: str, **options: Any) -> tuple[Tensor, Tensor]:
    # Here, because importing scikit-learn takes about a second and listing the datamodules should not.
    from sklearn import datasets

    inputs, targets = getattr(datasets, function)(return_X_y=True, **options)
    return torch.from_numpy(inputs).float(), torch.from_numpy(targets).float()
