"""Your own tensors, from a folder."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import numpy as np
import torch
from leyden.arguments import check_at_least
from torch import Tensor

from leyden_datamodules.base import SPLITS, Splits, TensorDataModule
from leyden_datamodules.loader import Batch
from leyden_datamodules.tables import column_statistics

_LAYOUTS = ".pt ({split}.pt), .npz ({split}.npz) or .npy ({split}_x.npy and {split}_y.npy)"


class TensorFolder(TensorDataModule):
    """Tensors that lie in a folder, one file or pair of files a split.

    Three layouts are read; a folder uses one of them::

        train.pt     val.pt     test.pt      a pair (x, y) or a dictionary {"x": x, "y": y}, by torch.save
        train.npz    val.npz    test.npz     the arrays x and y, by numpy.savez
        train_x.npy  val_x.npy  test_x.npy   one array each, by numpy.save
        train_y.npy  val_y.npy  test_y.npy

    ``x`` and ``y`` have one row a sample. Floating-point values become float32. Integer ``y`` becomes int64,
    integer ``x`` (tokens, say) too. Training data must be there, the rest may be missing. Nothing in the
    files is run.

    Args:
        root: the folder.
        batch_size: rows a batch.
        val_size: where there is no validation file, take so many rows from training, at random; None takes
            none.
        standardize: whether inputs get mean 0 and standard deviation 1 over the training rows, value by
            value.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the order, and of the choice of validation rows.

    Raises:
        ValueError: if an argument is out of range, or a file is missing, unreadable, holds something else,
            has other numbers of rows or other shapes than it should, or holds NaN or infinity; the text
            names the file.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        batch_size: int = 64,
        val_size: int | None = None,
        standardize: bool = False,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        root = str(root)
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        check_at_least("val_size", 1 if val_size is None else val_size, 1)
        self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(f"root: '{root}' is no folder")
        self.files = {split: _files(self.root, split) for split in SPLITS}
        if not self.files["train"]:
            raise ValueError(f"root: '{root}' has no training data; {_LAYOUTS.format(split='train')} is read")
        if val_size is not None and self.files["val"]:
            raise ValueError(f"val_size: '{self.files['val'][0]}' is there already; leave val_size out")
        self.val_size = val_size
        self.standardize = standardize

    def load(self) -> Splits:
        """Read and check the files."""
        splits = {split: _read(files) for split, files in self.files.items() if files}
        first = splits["train"]
        for split, tensors in splits.items():
            for name, tensor, model in zip("xy", tensors, first, strict=True):
                if tensor.shape[1:] != model.shape[1:] or tensor.dtype != model.dtype:
                    raise ValueError(
                        f"{self.files[split][-1]}: expected {name} as in the training data, rows of shape "
                        f"{tuple(model.shape[1:])} and {model.dtype}, "
                        f"got {tuple(tensor.shape[1:])} and {tensor.dtype}"
                    )
        if self.val_size is not None:
            splits |= self._held_out(first)
        if self.standardize:
            if not first[0].is_floating_point():
                raise ValueError(f"standardize: expected floating-point x, got {first[0].dtype}")
            center, scale = column_statistics(splits["train"][0])
            splits = {split: ((x - center) / scale, y) for split, (x, y) in splits.items()}
        return splits

    def _held_out(self, rows: Batch) -> dict[str, Batch]:
        count, wanted = len(rows[0]), self.val_size or 0
        if wanted >= count:
            raise ValueError(f"val_size: expected less than the {count} training rows, got {wanted}")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 + self.seed))
        parts = torch.split(order, [count - wanted, wanted])
        return {
            split: tuple(tensor[part] for tensor in rows)
            for split, part in zip(("train", "val"), parts, strict=True)
        }


def example() -> TensorFolder:
    """A small set from a folder that is gone again."""
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as root:
        for split in SPLITS:
            inputs = torch.randn(32, 4, generator=generator)
            torch.save((inputs, (inputs.sum(dim=1) > 0).long()), Path(root) / f"{split}.pt")
        folder = TensorFolder(root, batch_size=8)
        folder.setup()
    return folder


def _files(root: Path, split: str) -> tuple[Path, ...]:
    candidates = (
        (root / f"{split}.pt",),
        (root / f"{split}.npz",),
        (root / f"{split}_x.npy", root / f"{split}_y.npy"),
    )
    found = [files for files in candidates if any(file.exists() for file in files)]
    if len(found) > 1:
        raise ValueError(f"root: both '{found[0][0]}' and '{found[1][0]}' are there; keep one of them")
    for file in found[0] if found else ():
        if not file.is_file():
            raise ValueError(f"root: there is no file '{file}'")
    return found[0] if found else ()


def _read(files: tuple[Path, ...]) -> Batch:
    try:
        if files[0].suffix == ".pt":
            content = torch.load(files[0], map_location="cpu", weights_only=True)
        elif files[0].suffix == ".npz":
            with np.load(files[0], allow_pickle=False) as archive:
                content = dict(archive)
        else:
            content = [np.load(file, allow_pickle=False) for file in files]
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{files[0]}: cannot be read as {files[0].suffix}; {reason}") from error
    if isinstance(content, dict):
        if not {"x", "y"} <= content.keys():
            raise ValueError(f"{files[0]}: expected 'x' and 'y', got {sorted(map(str, content))}")
        content = [content["x"], content["y"]]
    if not isinstance(content, list | tuple) or len(content) != 2:
        raise ValueError(f"{files[0]}: expected a pair (x, y) or a dictionary with 'x' and 'y'")
    pair = tuple(
        _tensor(value, name, file)
        for value, name, file in zip(content, "xy", (files[0], files[-1]), strict=True)
    )
    if len(pair[0]) != len(pair[1]) or len(pair[0]) == 0:
        raise ValueError(
            f"{files[-1]}: expected as many rows of y as of x, and at least one, "
            f"got x {tuple(pair[0].shape)} and y {tuple(pair[1].shape)}"
        )
    return pair


def _tensor(value: object, name: str, file: Path) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor) or value.is_complex() or value.ndim == 0:
        raise ValueError(f"{file}: expected {name} to be numbers with one row a sample, got {_kind(value)}")
    value = value.float() if value.is_floating_point() else value.long()
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        raise ValueError(f"{file}: {name} holds NaN or infinity in {bad} of {value.numel()} places")
    return value


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray | Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__
