from __future__ import annotations

import pytest
import torch
from leyden_datamodules import BreastCancer, Diabetes, Digits, TableSplit, Wine
from sklearn import datasets

SETS = [Digits, BreastCancer, Wine, Diabetes]


@pytest.mark.parametrize(("seed", "noise"), [(0, 0.4), (2, 0.4), (1, 0.0)])
def test_digits_follow_the_draws_of_the_papers_reproduction(seed: int, noise: float) -> None:
    pixels, digits = datasets.load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(1000 + seed)
    order = torch.randperm(1797, generator=generator)
    labels = torch.tensor(digits)[order]
    mask = torch.rand(1000, generator=generator) < noise
    replaced = torch.randint(0, 10, (1000,), generator=generator)
    expected = torch.where(mask, replaced, labels[:1000])

    data = Digits(label_noise=noise, seed=seed)

    assert torch.equal(data.train[1], expected)
    assert torch.equal(data.train[0], torch.tensor(pixels / 16, dtype=torch.float32)[order[:1000]])
    assert torch.equal(torch.cat([data.val[1], data.test[1]]), labels[1000:])
    assert (len(data.val[1]), len(data.test[1])) == (297, 500)


@pytest.mark.parametrize("cls", SETS)
def test_splits_share_no_row_and_lose_none(cls: type) -> None:
    data = cls(standardize=False)
    rows = torch.arange(float(sum(len(targets) for _, targets in data.splits.values())))[:, None]
    parts = data.split.apply(rows, torch.zeros(len(rows)), seed=3)
    assert torch.equal(
        torch.cat([inputs for inputs, _ in parts.values()]).flatten().sort().values, rows[:, 0]
    )


def test_label_noise_changes_training_labels_alone() -> None:
    clean, noisy = Digits(seed=5), Digits(seed=5, label_noise=0.5)
    changed = (clean.train[1] != noisy.train[1]).float().mean()
    assert 0.38 < changed < 0.52  # half of the rows are drawn anew, a tenth of those get their own label back
    assert torch.equal(clean.train[0], noisy.train[0])
    for split in ("val", "test"):
        assert torch.equal(clean.splits[split][1], noisy.splits[split][1])


@pytest.mark.parametrize("cls", [BreastCancer, Wine, Diabetes])
def test_standardization_knows_the_training_rows_alone(cls: type) -> None:
    raw, scaled = cls(standardize=False), cls()
    mean, deviation = raw.train[0].mean(0), raw.train[0].std(0, correction=0)
    for split in ("train", "val", "test"):
        expected = (raw.splits[split][0] - mean) / deviation
        torch.testing.assert_close(scaled.splits[split][0], expected)
    assert scaled.test[0].mean(0).abs().max() > 1e-3


def test_constant_columns_become_zero() -> None:
    assert Digits(standardize=True).train[0].isfinite().all()
    assert Digits(standardize=True).train[0][:, 0].eq(0).all()


def test_normalized_rows_have_length_one() -> None:
    torch.testing.assert_close(Wine(normalize=True).test[0].norm(dim=1), torch.ones(36))


def test_diabetes_is_not_the_copy_that_was_scaled_over_all_rows() -> None:
    ages = torch.cat([inputs[:, 0] for inputs, _ in Diabetes(standardize=False).splits.values()])
    assert (ages.min(), ages.max()) == (19, 79)
    assert Diabetes().train[1].shape == (266, 1)
    torch.testing.assert_close(Diabetes().train[1].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)


def test_subset_keeps_the_first_training_rows_and_everything_else() -> None:
    full, part = Digits(label_noise=0.3), Digits(label_noise=0.3, subset=50)
    assert torch.equal(part.train[0], full.train[0][:50])
    assert torch.equal(part.train[1], full.train[1][:50])
    assert torch.equal(part.test[0], full.test[0])


def test_chosen_classes_are_renumbered_in_the_order_given() -> None:
    data = Digits(classes=[7, 3], train_size=300, val_size=30)
    assert data.num_classes == 2
    seven = data.train[0][data.train[1] == 0]
    everything = torch.cat([inputs for inputs, _ in Digits().splits.values()])
    labels = torch.cat([labels for _, labels in Digits().splits.values()])
    assert (seven[0] == everything[labels == 7]).all(dim=1).any()


def test_features_and_classes_are_known_before_a_model_is_built() -> None:
    assert [(cls().num_features, getattr(cls(), "num_classes", None)) for cls in SETS] == [
        (64, 10),
        (30, 2),
        (13, 3),
        (10, None),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed: expected"),
        ({"train_size": 0}, "train_size: expected"),
        (
            {"train_size": 1500},
            r"train_size, val_size: expected a sum below the table's 1797 rows, got 1500 \+ 297",
        ),
        ({"label_noise": 1.5}, "label_noise: expected a number of at least 0 and at most 1, got 1.5"),
        ({"label_noise": float("nan")}, "label_noise: expected"),
        ({"label_noise": "much"}, "label_noise: expected a number of at least 0 and at most 1, got 'much'"),
        ({"subset": 1001}, "subset: expected at most train_size=1000, got 1001"),
        ({"classes": [1, 1]}, "classes: expected at least two different classes"),
    ],
)
def test_wrong_arguments_fail_at_construction(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Digits(**options)  # type: ignore[arg-type]


def test_an_unknown_class_is_named() -> None:
    with pytest.raises(ValueError, match=r"classes: expected some of .* got 12"):
        Digits(classes=[0, 12]).setup()


def test_a_split_may_be_used_without_a_datamodule() -> None:
    parts = TableSplit(train_size=2, val_size=1).apply(torch.eye(4), torch.arange(4), seed=0)
    assert [len(labels) for _, labels in parts.values()] == [2, 1, 1]
