from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from leyden_datamodules import MNIST1D, generate_mnist1d
from sklearn.linear_model import LogisticRegression


@pytest.fixture
def published(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=(40, 40)),
        "y": np.arange(40) % 10,
        "x_test": rng.normal(size=(10, 40)),
        "y_test": np.arange(10),
        "t": np.linspace(0, 1, 40),
        "templates": {"x": rng.normal(size=(10, 12))},
    }
    (tmp_path / "mnist1d_data.pkl").write_bytes(pickle.dumps(arrays))
    return tmp_path


def test_a_linear_model_reaches_the_published_accuracy() -> None:
    # 32 % in the paper; generated rows that leaked their class or lost it would be far from it.
    data = MNIST1D()
    model = LogisticRegression(max_iter=300).fit(*map(np.asarray, data.train))
    assert 0.28 < model.score(*map(np.asarray, data.test)) < 0.37


def test_classes_are_balanced_and_shuffled() -> None:
    inputs, labels = generate_mnist1d(500, seed=1)
    assert labels.bincount().tolist() == [50] * 10
    assert labels[:50].unique().numel() > 5
    assert inputs.shape == (500, 40)
    assert inputs.isfinite().all()


def test_the_same_seed_gives_the_same_rows() -> None:
    assert MNIST1D(seed=4).fingerprint() == MNIST1D(seed=4).fingerprint()
    assert MNIST1D(seed=4).fingerprint() != MNIST1D(seed=5).fingerprint()


def test_rows_are_scaled_by_the_training_rows_alone() -> None:
    data = MNIST1D(train_size=600, val_size=100, test_size=100)
    raw, _ = generate_mnist1d(800)
    center, scale = raw[:600].mean(), raw[:600].std(correction=0)
    torch.testing.assert_close(data.test[0], ((raw[700:] - center) / scale).float())


def test_the_authors_file_is_read_and_its_test_rows_stay_test_rows(published: Path) -> None:
    data = MNIST1D(root=published, train_size=30, val_size=10)
    arrays = pickle.loads((published / "mnist1d_data.pkl").read_bytes())
    assert torch.equal(data.test[0], torch.tensor(arrays["x_test"]).float())
    both = torch.cat([data.train[0], data.val[0]])
    assert sorted(both[:, 0].tolist()) == sorted(torch.tensor(arrays["x"]).float()[:, 0].tolist())


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mnist1d_data.pkl").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(
        ValueError, match=r"mnist1d_data\.pkl: expected the arrays .*'os\.system' is not an array"
    ):
        MNIST1D(root=tmp_path).setup()


def test_a_missing_file_and_too_many_rows_are_named(tmp_path: Path, published: Path) -> None:
    with pytest.raises(ValueError, match=r"root: there is no file '.*elsewhere.mnist1d_data\.pkl'"):
        MNIST1D(root=tmp_path / "elsewhere")
    with pytest.raises(
        ValueError, match=r"train_size, val_size: expected a sum of at most the 40 training rows"
    ):
        MNIST1D(root=published).setup()
