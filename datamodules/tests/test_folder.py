from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from leyden_datamodules import TensorFolder
from leyden_datamodules.folder import example

SIZES = {"train": 20, "val": 6, "test": 5}
RNG = np.random.default_rng(0)
ARRAYS = {
    split: (RNG.normal(size=(n, 3)), RNG.integers(0, 4, n, dtype=np.int32)) for split, n in SIZES.items()
}


def write(root: Path, layout: str) -> Path:
    for split, (x, y) in ARRAYS.items():
        if layout == "pair":
            torch.save((torch.tensor(x), torch.tensor(y)), root / f"{split}.pt")
        elif layout == "dictionary":
            torch.save({"x": torch.tensor(x), "y": torch.tensor(y)}, root / f"{split}.pt")
        elif layout == "npz":
            np.savez(root / f"{split}.npz", x=x, y=y)
        else:
            np.save(root / f"{split}_x.npy", x)
            np.save(root / f"{split}_y.npy", y)
    return root


@pytest.mark.parametrize("layout", ["pair", "dictionary", "npz", "npy"])
def test_every_layout_gives_the_same_tensors(tmp_path: Path, layout: str) -> None:
    data = TensorFolder(write(tmp_path, layout))
    for split, (x, y) in ARRAYS.items():
        assert torch.equal(data.splits[split][0], torch.tensor(x, dtype=torch.float32))
        assert torch.equal(data.splits[split][1], torch.tensor(y, dtype=torch.int64))
    assert (data.num_features, data.num_classes) == (3, 4)
    assert data.hparams["root"] == str(tmp_path)


def test_validation_rows_can_come_from_the_training_file(tmp_path: Path) -> None:
    write(tmp_path, "pair")
    (tmp_path / "val.pt").unlink()
    (tmp_path / "test.pt").unlink()
    data = TensorFolder(tmp_path, val_size=5)
    rows = torch.cat([data.train[0], data.val[0]])
    assert sorted(rows[:, 0].tolist()) == sorted(ARRAYS["train"][0][:, 0].astype(np.float32).tolist())
    assert len(data.val[0]) == 5
    assert data.test_dataloader() == []


def test_standardization_knows_the_training_rows_alone(tmp_path: Path) -> None:
    data = TensorFolder(write(tmp_path, "npz"), standardize=True)
    x = ARRAYS["train"][0]
    expected = (ARRAYS["test"][0] - x.mean(0)) / x.std(0)
    torch.testing.assert_close(data.test[0], torch.tensor(expected, dtype=torch.float32))


def test_the_example_needs_no_folder() -> None:
    assert [len(rows) for rows, _ in example().splits.values()] == [32, 32, 32]


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("false",)


@pytest.mark.parametrize(
    ("split", "content", "message"),
    [
        ("train", b"not a checkpoint", r"train\.pt: cannot be read as \.pt"),
        ("train", Trap(), r"train\.pt: cannot be read as \.pt; Weights only load failed"),
        ("train", torch.zeros(3, 2), r"train\.pt: expected a pair \(x, y\) or a dictionary"),
        ("train", {"x": torch.zeros(3), "z": 1}, r"train\.pt: expected 'x' and 'y', got \['x', 'z'\]"),
        ("train", (torch.zeros(3, 2), "labels"), r"train\.pt: expected y to be numbers .* got str"),
        ("train", (torch.zeros(3, 2), torch.zeros(4)), r"train\.pt: expected as many rows of y as of x"),
        ("train", (torch.zeros(0, 2), torch.zeros(0)), r"train\.pt: expected as many rows .* at least one"),
        ("val", (torch.zeros(3, 2), torch.zeros(3).int()), r"val\.pt: expected x .* \(3,\) .* got \(2,\)"),
        ("test", (torch.zeros(3, 3), torch.zeros(3)), r"test\.pt: expected y .*int64, got .*float32"),
        ("test", (torch.full((3, 3), torch.nan), torch.zeros(3).int()), r"test\.pt: x holds NaN .* 9 of 9"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, split: str, content: object, message: str) -> None:
    write(tmp_path, "pair")
    if isinstance(content, bytes):
        (tmp_path / f"{split}.pt").write_bytes(content)
    else:
        torch.save(content, tmp_path / f"{split}.pt")
    with pytest.raises(ValueError, match=message):
        TensorFolder(tmp_path).setup()


def test_a_wrong_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"root: '.*nowhere' is no folder"):
        TensorFolder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"root: '.*' has no training data"):
        TensorFolder(tmp_path)
    write(tmp_path, "npy")
    with pytest.raises(ValueError, match=r"val_size: '.*val_x\.npy' is there already"):
        TensorFolder(tmp_path, val_size=3)
    (tmp_path / "test_y.npy").unlink()
    with pytest.raises(ValueError, match=r"root: there is no file '.*test_y\.npy'"):
        TensorFolder(tmp_path)
    write(tmp_path, "pair")
    with pytest.raises(ValueError, match=r"root: both '.*train\.pt' and '.*train_x\.npy' are there"):
        TensorFolder(tmp_path)
