from __future__ import annotations

import copy
import csv
import doctest
import pickle
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from leyden import arguments, tasks
from leyden.errors import UsageError
from leyden.tasks import CausalTransformer, Classification, LanguageModeling, Regression, mlp, sequential
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SGD = partial(torch.optim.SGD, lr=0.1)
INPUTS = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
LABELS = INPUTS.sum(dim=1).gt(0).long()
TOKENS = torch.randint(0, 9, (6, 8), generator=torch.Generator().manual_seed(1))
TARGETS = TOKENS.roll(-1, dims=1)


def loader(*tensors: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors), batch_size=7)


def trainer(**options: Any) -> Trainer:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return Trainer(accelerator="cpu", **{**quiet, **options})


def evaluate(task: tasks.Task, *tensors: Tensor) -> dict[str, float]:
    runner = trainer()
    runner.validate(task, loader(*tensors), verbose=False)
    return {name: float(value) for name, value in runner.callback_metrics.items()}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_classification_logs_the_mean_loss_and_accuracy_of_unequal_batches() -> None:
    task = Classification(mlp([4, 3]), 3)
    logits = task(INPUTS)
    assert evaluate(task, INPUTS, LABELS) == pytest.approx(
        {
            "val_loss": functional.cross_entropy(logits, LABELS).item(),
            "val_accuracy": (logits.argmax(1) == LABELS).float().mean().item(),
        }
    )


def test_regression_logs_error_and_explained_variance() -> None:
    task = Regression(mlp([4, 1]))
    values = INPUTS[:, 0]
    residual = task(INPUTS).squeeze(1) - values
    assert evaluate(task, INPUTS, values) == pytest.approx(
        {
            "val_loss": residual.square().mean().item(),
            "val_rmse": residual.square().mean().sqrt().item(),
            "val_r2": (1 - residual.square().sum() / (values - values.mean()).square().sum()).item(),
        },
        rel=1e-4,
    )


def test_language_modeling_logs_nats_a_token_and_their_exponential() -> None:
    task = LanguageModeling(CausalTransformer(9, width=8, heads=2))
    loss = functional.cross_entropy(task(TOKENS).flatten(0, 1), TARGETS.flatten())
    assert evaluate(task, TOKENS, TARGETS) == pytest.approx(
        {"val_loss": loss.item(), "val_perplexity": loss.exp().item()}, rel=1e-4
    )


@pytest.mark.parametrize(
    ("task", "batch"),
    [
        (Classification(mlp([4, 2]), 2), (INPUTS, LABELS)),
        (Regression(mlp([4, 3])), (INPUTS, INPUTS[:, :3])),
        (Regression(mlp([4, 1]), loss=nn.HuberLoss(delta=0.1)), (INPUTS, INPUTS[:, 0])),
        (LanguageModeling(CausalTransformer(9, width=8, heads=2)), (TOKENS, TARGETS)),
    ],
)
def test_per_sample_losses_average_to_the_loss_of_the_batch(task: tasks.Task, batch: tasks.Batch) -> None:
    losses = task.per_sample_loss(batch)
    assert losses.shape == (len(batch[0]),)
    torch.testing.assert_close(
        losses.mean(), task.apply_loss(task.loss, *task.align(task(batch[0]), batch[1]))
    )
    torch.testing.assert_close(losses[2], task.per_sample_loss((batch[0][2:3], batch[1][2:3]))[0])
    assert task.loss.reduction == "mean"


def test_ignored_tokens_count_for_nothing() -> None:
    task = LanguageModeling(CausalTransformer(9, width=8, heads=2), ignore_index=-1)
    targets = TARGETS.clone()
    targets[0, 3:] = -1
    targets[1] = -1
    losses = task.per_sample_loss((TOKENS, targets))
    torch.testing.assert_close(losses[0], task.per_sample_loss((TOKENS[:1, :3], TARGETS[:1, :3]))[0])
    assert losses[1] == 0


def test_a_model_that_returns_an_object_with_logits_is_a_backbone() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = CausalTransformer(9, width=8, heads=2)

        def forward(self, input_ids: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.model(input_ids), past_key_values=None)

    backbone = Wrapped()
    assert torch.equal(LanguageModeling(backbone)(TOKENS), backbone.model(TOKENS))


def test_logits_of_the_transformer_do_not_see_later_tokens() -> None:
    model = CausalTransformer(9, width=8, heads=2, depth=3)
    changed = TOKENS.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 9
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amax(dim=2).min() > 1e-4


def test_a_fit_equals_a_plain_loop() -> None:
    task = Classification(mlp([4, 5, 2]), 2, optimizer=SGD)
    model = copy.deepcopy(task.backbone)
    optimizer = SGD(model.parameters())
    for _ in range(2):
        for inputs, labels in loader(INPUTS, LABELS):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    runner = trainer(max_epochs=2, log_every_n_steps=2)
    runner.fit(task, loader(INPUTS, LABELS), loader(INPUTS, LABELS))
    for own, other in zip(task.backbone.parameters(), model.parameters(), strict=True):
        assert torch.equal(own, other)
    assert {"train_loss", "train_loss_step", "val_loss", "val_accuracy"} == set(runner.callback_metrics)


def test_the_training_loss_is_the_mean_over_the_rows_of_the_last_epoch() -> None:
    task = Classification(mlp([4, 2]), 2, optimizer=partial(torch.optim.SGD, lr=0.0))
    runner = trainer(max_epochs=2)
    runner.fit(task, loader(INPUTS, LABELS))
    expected = functional.cross_entropy(task(INPUTS), LABELS)
    torch.testing.assert_close(runner.callback_metrics["train_loss"], expected.detach())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loss_of_a_step_is_logged_at_the_steps_that_the_trainer_logs(
    accumulate: int, tmp_path: Path
) -> None:
    task = Classification(mlp([4, 2]), 2, optimizer=SGD)
    runner = trainer(
        max_epochs=4,
        logger=CSVLogger(tmp_path),
        log_every_n_steps=2,
        accumulate_grad_batches=accumulate,
    )
    runner.fit(task, loader(INPUTS, LABELS))
    with (Path(runner.log_dir or "") / "metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row["train_loss_step"]]
    assert steps == list(range(1, runner.global_step, 2))


@pytest.mark.parametrize(("interval", "left"), [("step", 0.1 * 0.5**5), ("epoch", 0.05)])
def test_the_scheduler_steps_as_told(interval: str, left: float) -> None:
    halve = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    task = Classification(mlp([4, 2]), 2, optimizer=SGD, lr_scheduler=halve, interval=interval)  # type: ignore[arg-type]
    runner = trainer(max_epochs=1)
    runner.fit(task, loader(INPUTS, LABELS))
    assert runner.optimizers[0].param_groups[0]["lr"] == pytest.approx(left)


def test_a_plateau_scheduler_watches_the_validation_loss() -> None:
    task = Classification(
        mlp([4, 2]),
        2,
        optimizer=SGD,
        lr_scheduler=partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0),
    )
    runner = trainer(max_epochs=2)
    runner.fit(task, loader(INPUTS, LABELS), loader(INPUTS, LABELS))
    assert runner.lr_scheduler_configs[0].scheduler.best < 1


def test_a_training_step_reads_no_value_back(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Classification(mlp([4, 2]), 2, optimizer=SGD)
    step = Classification.training_step
    reads: list[str] = []

    def watched(self: Classification, *arguments: Any) -> Tensor:
        with monkeypatch.context() as patch:
            for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy"):
                patch.setattr(Tensor, name, lambda *_, name=name: reads.append(name))
            return step(self, *arguments)

    monkeypatch.setattr(Classification, "training_step", watched)
    trainer(max_epochs=1).fit(task, loader(INPUTS, LABELS))
    assert reads == []


def test_tasks_survive_copies_and_pickling() -> None:
    task = Classification(mlp([4, 2]), 2, optimizer=SGD)
    for twin in (copy.deepcopy(task), pickle.loads(pickle.dumps(task))):
        assert torch.equal(twin(INPUTS), task(INPUTS))
        assert twin.configure_optimizers().param_groups[0]["params"][0] is twin.backbone[0].weight


def test_a_scripts_checkpoint_holds_plain_values_and_loads_with_its_modules(tmp_path: Path) -> None:
    task = Classification(mlp([4, 2]), 2, loss=nn.CrossEntropyLoss(label_smoothing=0.1), optimizer=SGD)
    runner = trainer(max_epochs=1)
    runner.fit(task, loader(INPUTS, LABELS))
    path = tmp_path / "task.ckpt"
    runner.save_checkpoint(path)

    assert set(torch.load(path, weights_only=True)["hyper_parameters"].values()) == {
        2,
        "epoch",
        "Sequential",
        "CrossEntropyLoss",
    }
    with pytest.raises(
        ValueError, match=r"backbone: .*load it with load_from_checkpoint\(path, backbone=\.\.\.\)"
    ):
        Classification.load_from_checkpoint(path, loss=task.loss, weights_only=True)
    with pytest.raises(ValueError, match=r"loss: .*load it with load_from_checkpoint\(path, loss=\.\.\.\)"):
        Classification.load_from_checkpoint(path, backbone=mlp([4, 2]), weights_only=True)
    loaded = Classification.load_from_checkpoint(
        path, backbone=mlp([4, 2]), loss=task.loss, weights_only=True
    )
    assert torch.equal(loaded(INPUTS), task(INPUTS))


CONFIG: dict[str, Any] = {
    "model": {
        "class_path": "leyden.tasks.Regression",
        "init_args": {
            "backbone": {
                "class_path": "leyden.tasks.sequential",
                "init_args": {
                    "layers": [
                        {"class_path": "torch.nn.Linear", "init_args": {"in_features": 4, "out_features": 4}},
                        {
                            "class_path": "leyden.tasks.mlp",
                            "init_args": {"sizes": [4, 1], "activation": "tanh"},
                        },
                    ]
                },
            },
            "loss": {"class_path": "torch.nn.HuberLoss", "init_args": {"delta": 0.5}},
        },
    },
    "seed_everything": 1,
    "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
    "lr_scheduler": {"class_path": "torch.optim.lr_scheduler.ExponentialLR", "init_args": {"gamma": 0.5}},
    "trainer": {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
    },
}


def test_top_level_optimizer_and_scheduler_of_a_configuration_work_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["fit"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message="The 'train_dataloader' does not have many workers")
        warnings.filterwarnings(
            "ignore", message="You defined a `validation_step` but have no `val_dataloader`"
        )
        cli = LightningCLI(args=CONFIG, run=False, save_config_callback=None)
        cli.trainer.fit(cli.model, loader(INPUTS, INPUTS[:, :1]))
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == 0.05

    cli.trainer.save_checkpoint(tmp_path / "task.ckpt")
    rebuilt = Regression.load_from_checkpoint(tmp_path / "task.ckpt", weights_only=True)
    assert torch.equal(rebuilt(INPUTS), cli.model(INPUTS))
    assert rebuilt.loss.delta == 0.5


def test_a_configuration_may_give_the_task_its_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fit"])
    config = copy.deepcopy(CONFIG)
    config["model"]["init_args"]["optimizer"] = config.pop("optimizer")
    config["model"]["init_args"]["lr_scheduler"] = config.pop("lr_scheduler")
    config["model"]["init_args"]["interval"] = "step"
    cli = LightningCLI(args=config, run=False, save_config_callback=None)
    cli.trainer.fit(cli.model, loader(INPUTS, INPUTS[:, :1]))
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**5)


def test_a_fit_without_optimizer_says_where_to_give_one() -> None:
    with pytest.raises(UsageError, match="Classification has no optimizer: write `optimizer:`"):
        trainer(max_epochs=1).fit(Classification(mlp([4, 2]), 2), loader(INPUTS, LABELS))


def test_a_subclass_may_configure_its_optimizer_itself() -> None:
    class Own(Classification):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return SGD(self.parameters())

    runner = trainer(max_epochs=1)
    runner.fit(Own(mlp([4, 2]), 2), loader(INPUTS, LABELS))
    assert runner.global_step == 5


@pytest.mark.parametrize(
    ("task", "batch", "message"),
    [
        (
            Classification(mlp([4, 3]), 2),
            (INPUTS, LABELS),
            r"output: expected shape \(30, 2\), got \(30, 3\)",
        ),
        (
            Classification(mlp([4, 2]), 2),
            (INPUTS, LABELS[:, None]),
            r"targets: expected shape \(30,\), got \(30, 1\)",
        ),
        (
            Classification(mlp([4, 2]), 2),
            (INPUTS, LABELS.int()),
            "targets: expected torch.int64, got torch.int32",
        ),
        (
            Regression(mlp([4, 2])),
            (INPUTS, INPUTS[:, :1]),
            r"output: expected shape \(30, 1\), got \(30, 2\)",
        ),
        (Regression(mlp([4, 1])), (INPUTS, INPUTS[:1, 0]), r"output: expected shape \(1,\), got \(30,\)"),
        (
            LanguageModeling(CausalTransformer(9, width=8, heads=2)),
            (TOKENS, TARGETS[:, 1:]),
            r"output: expected shape \(6, 7, 9\), got \(6, 8, 9\)",
        ),
    ],
)
def test_a_wrong_shape_is_refused_with_the_expected_and_the_given(
    task: tasks.Task, batch: tasks.Batch, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        task.per_sample_loss(batch)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Classification([nn.Linear(1, 2)], 2), r"backbone: expected a torch\.nn\.Module, got list"),
        (lambda: Classification(mlp([4, 1]), 1), "num_classes: expected a whole number of at least 2, got 1"),
        (
            lambda: Regression(mlp([4, 1]), loss=functional.mse_loss),
            "loss: expected a torch.nn.Module, got function",
        ),
        (
            lambda: Regression(mlp([4, 1]), optimizer=SGD(mlp([4, 1]).parameters())),
            r"optimizer: expected a callable such as partial\(SGD, \.\.\.\), got an object SGD",
        ),
        (lambda: Regression(mlp([4, 1]), lr_scheduler=SGD), "lr_scheduler: expected an optimizer with it"),
        (
            lambda: Regression(mlp([4, 1]), interval="hour"),
            "interval: expected 'epoch' or 'step', got 'hour'",
        ),
        (lambda: mlp([4]), r"sizes: expected at least two, of the input and of the output, got \[4\]"),
        (lambda: mlp([4, 0]), "sizes: expected a whole number of at least 1, got 0"),
        (lambda: mlp([4, 2], "rellu"), "activation: .*did you mean 'relu'"),
        (lambda: sequential([]), "layers: expected at least one"),
        (lambda: sequential([nn.ReLU(), 3]), r"layers\[1\]: expected a torch\.nn\.Module, got int"),
        (lambda: CausalTransformer(9, width=10), "width: expected a multiple of heads=4, got 10"),
        (lambda: CausalTransformer(9, dropout=1.0), "dropout: expected"),
        (lambda: CausalTransformer(9, max_length=4)(TOKENS), "length of at most max_length=4, got 8"),
    ],
)
def test_wrong_arguments_are_named(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_loss_without_reduction_has_no_per_sample_loss() -> None:
    class Total(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - targets).square().sum()

    with pytest.raises(TypeError, match="loss: expected an attribute 'reduction'"):
        Regression(mlp([4, 4]), loss=Total()).per_sample_loss((INPUTS, INPUTS))


def test_the_activation_stands_between_layers_alone() -> None:
    model = mlp([4, 3, 2], "tanh")
    assert [type(layer) for layer in model] == [nn.Linear, nn.Tanh, nn.Linear]


def test_examples_in_docstrings_are_true() -> None:
    assert [doctest.testmod(module).failed for module in (tasks, arguments)] == [0, 0]


def test_modules_that_a_subclass_names_stay_out_of_the_hyper_parameters() -> None:
    class Constrained(Regression):
        further_modules = ("layer",)

        def __init__(self, backbone: nn.Module, layer: nn.Module, factor: float = 2.0) -> None:
            super().__init__(backbone)
            self.layer = layer

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = Constrained(mlp([4, 1]), nn.Identity())
    assert task.hparams["factor"] == 2.0
    assert "layer" not in task.hparams
