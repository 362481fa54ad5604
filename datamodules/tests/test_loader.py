from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from leyden_datamodules import Digits, TensorRows
from leyden_datamodules.loader import tensor_loader, training_loader
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

ROWS = TensorRows(torch.arange(10), torch.arange(10) * 2)


class Linear(LightningModule):
    """A linear classifier that notes the rows it trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.seen: list[list[float]] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.seen.append(batch[0].sum(dim=1).tolist())
        return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        pass

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return batch[1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class SaveAt(Callback):
    """Saves a checkpoint after a number of steps."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def trainer(**options: Any) -> Trainer:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return Trainer(accelerator="cpu", **{**quiet, **options})


def epochs(loader: Any, count: int) -> list[list[int]]:
    return [torch.cat([batch[0] for batch in loader]).tolist() for _ in range(count)]


def test_every_epoch_has_every_row_in_an_order_of_its_own() -> None:
    first, second = epochs(training_loader(ROWS, batch_size=4), 2)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    torch.manual_seed(0)
    one = epochs(training_loader(ROWS, batch_size=4, seed=7), 3)
    torch.manual_seed(1)
    other = training_loader(ROWS, batch_size=2, seed=7)
    other.sampler.set_epoch(2)
    assert epochs(other, 1) == one[2:]
    assert epochs(training_loader(ROWS, batch_size=4, seed=8), 1) != one[:1]


def test_iterating_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    epochs(training_loader(ROWS, batch_size=4), 2)
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_stay_together() -> None:
    for inputs, targets in training_loader(ROWS, batch_size=3):
        assert torch.equal(inputs * 2, targets)


def test_an_incomplete_batch_can_be_left_out() -> None:
    assert [len(batch[0]) for batch in training_loader(ROWS, batch_size=4, drop_last=True)] == [4, 4]
    assert len(training_loader(ROWS, batch_size=4, drop_last=True)) == 2


def test_unshuffled_training_and_evaluation_keep_the_order() -> None:
    assert epochs(training_loader(ROWS, batch_size=4, shuffle=False), 2) == [list(range(10))] * 2
    assert epochs(tensor_loader(ROWS, batch_size=4), 2) == [list(range(10))] * 2


def test_torchs_own_loader_takes_the_rows() -> None:
    assert epochs(DataLoader(ROWS, batch_size=4), 1) == [list(range(10))]


def test_rows_of_unequal_number_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tensors: expected one number of rows, got \[2, 3\]"):
        TensorRows(torch.zeros(2), torch.zeros(3))


@pytest.mark.parametrize("step", [4, 10, 13], ids=["mid-epoch", "epoch boundary", "second epoch"])
@pytest.mark.parametrize("limit", [1.0, 10], ids=["full epochs", "limited epochs"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, step: int, limit: float) -> None:
    data = Digits(batch_size=100 if limit == 1.0 else 64)
    whole, before, after = Linear(), Linear(), Linear()
    trainer(max_epochs=3, limit_train_batches=limit).fit(whole, datamodule=data)
    save = SaveAt(step, tmp_path / "half.ckpt")
    trainer(max_steps=step, max_epochs=3, limit_train_batches=limit, callbacks=[save]).fit(
        before, datamodule=data
    )
    resumed = trainer(max_epochs=3, limit_train_batches=limit)
    resumed.fit(after, datamodule=Digits(batch_size=data.batch_size), ckpt_path=save.path, weights_only=True)

    assert before.seen + after.seen == whole.seen
    assert torch.equal(after.layer.weight, whole.layer.weight)


def test_lightning_says_nothing_about_workers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer(max_epochs=1).fit(Linear(), datamodule=Digits())


def test_lightning_can_overfit_and_predict() -> None:
    data, model = Digits(), Linear()
    with pytest.warns(UserWarning, match="turning off the train dataloader shuffling"):
        trainer(max_epochs=2, overfit_batches=2, num_sanity_val_steps=0).fit(model, datamodule=data)
    assert model.seen[:2] == model.seen[2:]
    predicted = trainer().predict(model, datamodule=data)
    assert torch.equal(torch.cat(predicted), data.test[1])


@pytest.mark.slow
def test_two_processes_get_disjoint_shards_of_every_epoch(tmp_path: Path) -> None:
    class Note(Callback):
        def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
            (tmp_path / f"{trainer.global_rank}.json").write_text(json.dumps(module.seen))

    data = Digits(batch_size=50, train_size=1000)
    for row in range(1000):  # every row sums to its own number
        data.train[0][row] = row / 64
    options = {"devices": 2, "strategy": "ddp_fork", "num_sanity_val_steps": 0, "limit_val_batches": 0}
    trainer(max_epochs=2, callbacks=[Note()], **options).fit(Linear(), datamodule=data)

    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    shards = [[[round(x) for batch in seen[i : i + 10] for x in batch] for i in (0, 10)] for seen in ranks]
    for epoch in range(2):
        assert sorted(shards[0][epoch] + shards[1][epoch]) == list(range(1000))
    assert shards[0][0] != shards[0][1]
