from __future__ import annotations

import logging
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import yaml
from leyden import lightning as subject
from leyden import manager
from leyden.cli import main
from leyden.configuration import full_names, full_names_in_arguments, merged
from leyden.errors import LeydenError, UsageError
from leyden.finite import FiniteLoss
from leyden.lightning import LeydenCLI, callbacks_factory, fit_config, run_config
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

Install = Callable[..., str]
HEAD = "from leyden.hookspecs import hookimpl\nfrom leyden.model import *\nLEYDEN_API = 1\n"
PROJECT = """\
seed_everything: 1
trainer:
  max_epochs: 2
  accelerator: cpu
  enable_progress_bar: false
  enable_model_summary: false
  log_every_n_steps: 1
model:
  class_path: regression.Line
  init_args:
    width: 4
data:
  class_path: regression.Plane
optimizer:
  class_path: torch.optim.SGD
  init_args:
    lr: 0.05
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A working directory with a user's module and configuration, tracking turned off."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("regression.py"), folder)
    (folder / "mine.yaml").write_text(PROJECT)
    (folder / "plugins.toml").write_text("[tracking]\nenabled = false\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(Path(__file__).parent)])
    monkeypatch.delitem(sys.modules, "regression", raising=False)
    yield  # type: ignore[misc]
    sys.modules.pop("regression", None)


def run(*arguments: str) -> LeydenCLI:
    return LeydenCLI(args=[*arguments])


def fit(*arguments: str) -> LeydenCLI:
    return run("fit", "--config", "mine.yaml", *arguments)


def error_of(*arguments: str, text: str | None = None) -> str:
    """The one line that wrong input is answered with."""
    if text is not None:
        Path("mine.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        fit(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(old: str, new: str) -> str:
    assert PROJECT.count(old) == 1
    return PROJECT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROJECT + "foo: 1\n", "mine.yaml:18: foo: unknown key"),
        (
            changed("max_epochs: 2", "max_epochz: 2"),
            "mine.yaml:3: trainer.max_epochz: unknown key; did you mean 'trainer.max_epochs' or",
        ),
        (
            changed("max_epochs: 2", "max_epochs: many"),
            "mine.yaml:3: trainer.max_epochs: expected an integer or null, got 'many'",
        ),
        (
            changed("width: 4", "widht: 4"),
            "mine.yaml:11: model.init_args.widht: "
            "regression.Line has no such argument; did you mean 'width'?",
        ),
        (
            changed("width: 4", "width: wide"),
            "mine.yaml:11: model.init_args.width: expected an integer, got 'wide'",
        ),
        (
            changed("width: 4", "head: {class_path: torch.nn.Linear, init_args: {in_featurs: 4}}"),
            "mine.yaml:11: model.init_args.head.init_args.in_featurs: "
            "torch.nn.Linear has no such argument; did you mean 'in_features'",
        ),
        (
            changed("width: 4", "width: -4"),
            "mine.yaml:11: model.init_args.width: regression.Line: width must be positive, got -4",
        ),
        (
            changed("width: 4", "width: 1000000"),
            "mine.yaml:11: model.init_args.width: regression.Line: width: expected less than a million, got "
            "1000000: range() arg 3 must not be zero",
        ),
        (
            changed("lr: 0.05", "lr: -0.05"),
            "mine.yaml:17: optimizer.init_args.lr: torch.optim.SGD: Invalid learning rate: -0.05",
        ),
        (
            changed("regression.Line", "regression.Lin"),
            "mine.yaml:9: model.class_path: cannot import 'regression.Lin': "
            "module 'regression' has no attribute 'Lin'; did you mean 'Line'?",
        ),
        (
            changed("regression.Line", "regresion.Line"),
            "mine.yaml:9: model.class_path: cannot import 'regresion.Line': No module named 'regresion'",
        ),
        (
            changed("regression.Line", "Lines"),
            "mine.yaml:9: model.class_path: unknown component 'Lines'; ",
        ),
        (
            changed("regression.Line", "torch.nn.Linear"),
            "mine.yaml:9: model.class_path: 'torch.nn.Linear' is not a LightningModule",
        ),
        (
            changed("regression.Plane", "regression.Line"),
            "mine.yaml:13: data.class_path: 'regression.Line' is not a LightningDataModule",
        ),
        (
            changed("accelerator: cpu", "accelerator: cpuu"),
            "mine.yaml:4: trainer.accelerator: You selected an invalid accelerator name: `accelerator='cp",
        ),
        (
            changed(
                "  accelerator: cpu\n",
                "  callbacks:\n  - class_path: EarlyStopping\n    init_args: {montor: x}\n",
            ),
            "mine.yaml:6: trainer.callbacks.0.init_args.montor: "
            "EarlyStopping has no such argument; did you mean 'monitor'?",
        ),
        (
            PROJECT + "lr_scheduler: StepLR\n",
            "mine.yaml:18: lr_scheduler: required and not given: step_size",
        ),
        (changed("trainer:", "trainr:"), "mine.yaml:2: trainr: unknown key; did you mean 'trainer'"),
        (changed("max_epochs: 2", "max_epochs: [2"), "mine.yaml:4: not valid YAML: "),
        ("- 1\n", "mine.yaml: expected a mapping of keys to values, got [1]"),
        ("", "mine.yaml: expected a mapping of keys to values, got an empty file"),
        (PROJECT + "trainer: {max_steps: 3}\n", "mine.yaml:18: 'trainer' is given twice, first in line 2"),
        (
            changed("max_epochs: 2", "precision: 17"),
            "mine.yaml:3: trainer.precision: expected '64' or '32' or '16' or 'transformer-engine' or ",
        ),
        (
            changed("  accelerator: cpu\n", "  callbacks: LerningRateMonitor\n"),
            "mine.yaml:4: trainer.callbacks: unknown component 'LerningRateMonitor'; "
            "did you mean 'LearningRateMonitor'",
        ),
        (
            PROJECT + "lr_scheduler: {class_path: CosineAnealingLR}\n",
            "mine.yaml:18: lr_scheduler.class_path: unknown component 'CosineAnealingLR'; "
            "did you mean 'CosineAnnealingLR'",
        ),
        (PROJECT.replace("optimizer:", "x:"), "mine.yaml:14: x: unknown key"),
        (
            PROJECT[: PROJECT.index("optimizer:")],
            "Line has no optimizer: write `optimizer:` in the configuration",
        ),
    ],
)
def test_wrong_input_in_a_file_is_one_line_with_file_line_and_key(text: str, expected: str) -> None:
    error = error_of(text=text)
    assert error.startswith(expected), error


def test_a_class_of_the_users_own_is_asked_for_with_its_module() -> None:
    error = error_of(text=changed("regression.Line", "Lines"))
    assert error.endswith("a class of your own needs its module, 'module.Lines'")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--trainer.max_epochs=many"], "--trainer.max_epochs: expected an integer or null, got 'many'"),
        (
            ["--trainer.max_epochz", "2"],
            "unknown argument '--trainer.max_epochz'; did you mean '--trainer.max_epochs'",
        ),
        (
            ["--trainer.max_epoch", "2"],
            "unknown argument '--trainer.max_epoch'; did you mean '--trainer.max_epochs'",
        ),
        (["--model.widht=3"], "--model.widht: regression.Line has no such argument; did you mean 'width'?"),
        (["--model.init_args.width", "x"], "--model.init_args.width: expected an integer, got 'x'"),
        (["--model.width=-3"], "--model.width: regression.Line: width must be positive, got -3"),
        (["--optimizer", "Nonsense"], "--optimizer: unknown component 'Nonsense'; "),
        (
            ["--optimizer", "torch.optim.SDG"],
            "--optimizer: cannot import 'torch.optim.SDG': module 'torch.optim' has",
        ),
        (["--config", "mien.yaml"], "--config: there is no file 'mien.yaml'; did you mean 'mine.yaml'?"),
        (["--config", "sps_saef/digits"], "unknown plugin 'sps_saef'; did you mean 'sps_safe'?"),
        (["stray"], "unknown argument 'stray'"),
        (["mine.yaml"], "unknown argument 'mine.yaml'; did you mean '--config mine.yaml'?"),
        (["--config", "."], "--config: '.' is a folder, not a file"),
        (["--config", "regression.pyc"], "--config: there is no file 'regression.pyc'; "),
        (["--seed_everything=-1"], "--seed_everything: -1 is not in bounds"),
        (["--ckpt_path", "none.ckpt"], "--ckpt_path: there is no file 'none.ckpt'"),
        (["--ckpt_path", "mine.yaml"], "--ckpt_path: 'mine.yaml' is not a checkpoint of Lightning"),
    ],
)
def test_wrong_input_on_the_command_line_is_one_line_with_the_argument(
    arguments: list[str], expected: str
) -> None:
    assert error_of(*arguments).startswith(expected), error_of(*arguments)


@pytest.mark.parametrize("folder", [".", "configs"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch\nraise RuntimeError('no luck')\n", "RuntimeError: no luck (broken.py:2)"),
        ("def f(:\n", "SyntaxError: invalid syntax (broken.py, line 1)"),
    ],
)
def test_a_module_of_the_users_whose_import_fails_is_told_with_its_line(
    folder: str, code: str, expected: str
) -> None:
    Path("broken.py").write_text(code)
    Path(folder).mkdir(exist_ok=True)
    file = Path(folder, "broken.yaml")
    file.write_text("model: {class_path: broken.Net, init_args: {width: 3}}\n")
    assert error_of("--model", "broken.Net") == f"--model: cannot import 'broken.Net': {expected}"
    assert error_of("--config", str(file)).startswith(
        f"{file}:1: model.class_path: cannot import 'broken.Net': {expected}"
    )


def test_a_file_in_another_folder_is_named_with_its_line() -> None:
    Path("configs").mkdir()
    Path("configs/over.yaml").write_text("trainer:\n  max_epochs: many\n")
    assert error_of("--config", "configs/over.yaml").startswith(
        "configs/over.yaml:2: trainer.max_epochs: expected an integer"
    )


def test_a_file_that_is_no_text_is_told() -> None:
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert error_of("--config", "binary.yaml").startswith("binary.yaml: cannot be read: ")


def test_resuming_in_a_folder_of_its_own_does_not_warn_of_it() -> None:
    fit("--trainer.default_root_dir=first")
    (checkpoint,) = Path("first").rglob("*.ckpt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arguments = ["--trainer.max_epochs=3", f"--ckpt_path={checkpoint}"]
        assert main(["fit", "--config", "mine.yaml", *arguments]) == 0
    assert not [str(warning.message) for warning in caught if "dirpath" in str(warning.message)]


@pytest.mark.slow
def test_processes_that_are_spawned_train_like_one_with_the_configured_optimizer() -> None:
    Path("plugins.toml").write_text("[tracking]\nenabled = false\n")
    spawned = fit(
        "--trainer.strategy=ddp_spawn",
        "--trainer.devices=2",
        "--trainer.use_distributed_sampler=false",
        "--trainer.callbacks=regression.Leaver",
    )
    assert [mark.read_text() for mark in Path().glob("in-a-group-*")] == ["False", "False"]
    alone = fit()
    for parameter, expected in zip(spawned.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.allclose(parameter, expected, atol=1e-6)


def test_the_file_that_wins_is_the_one_that_is_named() -> None:
    Path("over.yaml").write_text("\nmodel:\n  init_args:\n    width: wide\n")
    assert error_of("--config", "over.yaml").startswith(
        "over.yaml:4: model.init_args.width: expected an integer"
    )
    Path("over.yaml").write_text("trainer: {max_steps: 3}\n")
    assert error_of("--config", "over.yaml", text=changed("width: 4", "width: w")).startswith(
        "mine.yaml:11: "
    )


def test_a_shipped_configuration_is_named_and_mixes_with_files_and_arguments(install: Install) -> None:
    install("one", files={"configs/first.yaml": "trainer: {max_epochs: 7, max_steps: 5, min_epochs: 1}\n"})
    Path("over.yaml").write_text("trainer: {max_steps: 9}\n")
    files = ["--config", "mine.yaml", "--config", "one/first", "--config", "over.yaml"]
    trainer = LeydenCLI(args=[*files, "--trainer.min_epochs=2"], run=False).config.trainer
    assert (trainer.max_epochs, trainer.max_steps, trainer.min_epochs) == (7, 9, 2)


def test_a_file_wins_over_a_shipped_configuration_of_the_same_name(install: Install) -> None:
    install("one", files={"configs/first.yaml": "trainer: {max_epochs: 7}\n"})
    Path("one").mkdir()
    Path("one/first").write_text("trainer: {max_epochs: 8}\n")
    cli = LeydenCLI(args=["--config", "mine.yaml", "--config", "one/first"], run=False)
    assert cli.config.trainer.max_epochs == 8


def test_short_names_resolve_everywhere_and_only_what_is_named_is_imported(install: Install) -> None:
    install("one")
    hooks = HEAD + (
        "@hookimpl\ndef leyden_components(): return [\n"
        "  Component(kind='callback', path='made_two.parts.Watch', summary=''),\n"
        "  Component(kind='datamodule', path='made_two.parts.Sphere', summary=''),\n"
        "  Component(kind='module', path='made_two.parts.Curve', summary=''),\n"
        "  Component(kind='function', path='made_two.parts.squashed', summary=''),\n"
        "  Component(kind='loss', path='made_two.never.Named', summary='')]\n"
    )
    parts = (
        "import regression, torch\nfrom lightning.pytorch import Callback\n"
        "class Watch(Callback): pass\n"
        "class Sphere(regression.Plane): pass\n"
        "class Curve(regression.Line): pass\n"
        "def squashed(width: int) -> torch.nn.Module:\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh())\n"
    )
    install("two", hooks, files={"parts.py": parts, "never.py": "raise RuntimeError('imported')"})
    Path("mine.yaml").write_text(
        "trainer: {max_steps: 2, accelerator: cpu, callbacks: [Watch, {class_path: Watch}]}\n"
        "model:\n  class_path: Curve\n"
        "  init_args: {width: 3, head: {class_path: squashed, init_args: {width: 3}}}\n"
        "data: Sphere\noptimizer: {class_path: Stepper, init_args: {size: 0.2}}\n"
    )
    cli = fit()
    assert type(cli.model).__name__ == "Curve"
    assert isinstance(cli.model.head[1], torch.nn.Tanh)  # type: ignore[index, union-attr]
    assert type(cli.datamodule).__name__ == "Sphere"
    assert [type(callback).__name__ for callback in cli.trainer.callbacks].count("Watch") == 2  # type: ignore[attr-defined]
    assert type(cli.trainer.optimizers[0]).__name__ == "Stepper"
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == 0.2
    assert "made_two.never" not in sys.modules

    cli = LeydenCLI(args=["--config", "mine.yaml", "--optimizer=Stepper", "--data", "Sphere"], run=False)
    assert cli.config.optimizer.class_path == "made_one.Stepper"
    assert error_of("--optimizer=Stepper", "--optimizer.size=-1").startswith(
        "--optimizer.size: made_one.Stepper: size must be positive, got -1"
    )
    install("three")
    manager.manager.cache_clear()
    assert error_of() == "'Stepper' is ambiguous; write 'made_one.Stepper' or 'made_three.Stepper'"


def test_names_of_torch_and_lightning_keep_their_meaning(install: Install) -> None:
    hooks = HEAD + (
        "@hookimpl\ndef leyden_components(): return ["
        "Component(kind='optimizer', path='made_one.Adam', summary=''),"
        "Component(kind='optimizer', path='made_one.Stepper', summary='')]\n"
    )
    install("one", hooks)
    config = {
        "optimizer": "Adam",
        "trainer": {"callbacks": ["EarlyStopping"], "x": "Stepper"},
        "class_path": "Stepper",
    }
    assert full_names(config) == {**config, "class_path": "made_one.Stepper"}
    given = ["--optimizer", "Adam", "--optimizer", "Stepper", "--x", "Stepper", "--data=Stepper"]
    assert full_names_in_arguments(given) == [
        "--optimizer", "Adam", "--optimizer", "made_one.Stepper", "--x", "Stepper", "--data=made_one.Stepper",
    ]  # fmt: skip


def test_the_default_logger_tracks_unless_the_settings_or_the_configuration_say_otherwise() -> None:
    def logger(*arguments: str) -> Any:
        manager.manager.cache_clear()
        return LeydenCLI(args=["--config", "mine.yaml", *arguments], run=False).config.trainer.logger

    assert logger() is False
    Path("plugins.toml").write_text("[tracking]\nexperiment = 'papers'\n")
    tracked = logger()
    assert tracked.class_path == "leyden.logger.LeydenLogger"
    assert tracked.init_args.experiment == "papers"
    Path("mine.yaml").write_text(
        changed("  max_epochs: 2\n", "  logger: {class_path: CSVLogger, init_args: {save_dir: mine}}\n")
    )
    own = logger()
    assert own.class_path.endswith("CSVLogger")
    assert "experiment" not in own.init_args
    assert logger("--trainer.logger=false") is False
    assert not Path("leyden.db").exists(), "nothing is opened before something runs"


def test_checkpoints_and_the_resolved_configuration_lie_in_folders_of_their_own(tmp_path: Path) -> None:
    fit()
    assert [path.parent for path in Path().rglob("*.ckpt")] == [Path("leyden-runs/checkpoints")]
    own = {"class_path": "CSVLogger", "init_args": {"save_dir": "mine", "name": "n"}}
    Path("over.yaml").write_text(yaml.safe_dump({"trainer": {"logger": own}}))
    fit("--config", "over.yaml")
    saved = yaml.safe_load(Path("mine/n/version_0/config.yaml").read_text())
    assert saved["model"]["init_args"]["width"] == 4
    assert saved["trainer"]["logger"]["init_args"]["save_dir"] == "mine"
    assert list(Path("mine/n/version_0/checkpoints").glob("*.ckpt"))
    again = run("fit", "--config", "mine/n/version_0/config.yaml")
    assert isinstance(again.trainer.logger, CSVLogger), "what was saved runs"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model.bad_step=5"], "loss nan at step 5, epoch 0: metric 'train_loss'"),
        (
            ["--model.bad_step=57", "--trainer.max_epochs=20"],
            "loss nan at step 57, epoch 7: metric 'train_loss'",
        ),
        (["--model.bad_step=11", "--model.bad=.inf"], "loss inf at step 11, epoch 1: "),
        (
            ["--model.bad_step=3", "--model.log=false"],
            "loss nan at step 3, epoch 0: the loss of training_step, which",
        ),
        (["--model.bad_step=3", "--trainer.accumulate_grad_batches=2"], "loss nan at step 3, epoch 0: "),
        (["--data.nan_validation=true"], "loss nan at step 8, epoch 0: metric 'val_loss'"),
        (["--optimizer=regression.Skipper", "--model.bad_step=2"], "loss nan at step 2, epoch 0: "),
        (
            ["--optimizer=regression.Skipper", "--data.nan_validation=true"],
            "loss nan at step 8, epoch 0: metric 'val_loss'",
        ),
    ],
)
def test_a_loss_that_turns_nan_ends_the_run_with_step_and_metric(arguments: list[str], expected: str) -> None:
    more = ["--trainer.max_epochs=20"] if "Skipper" in arguments[0] and "bad_step" in arguments[1] else []
    with pytest.raises(LeydenError) as caught:
        fit(*arguments, *more)
    assert str(caught.value).startswith(expected)
    assert not isinstance(caught.value, UsageError)


def test_an_optimizer_that_skips_such_steps_goes_on() -> None:
    arguments = ["--model.bad_step=5", "--model.bad_steps=1"]
    cli = fit("--optimizer=regression.Skipper", *arguments)
    assert cli.trainer.global_step == 16
    assert all(parameter.isfinite().all() for parameter in cli.model.parameters())
    with pytest.raises(LeydenError, match="loss nan at step 5"):
        fit("--optimizer=torch.optim.SGD", *arguments)


def test_a_loss_that_is_never_finite_fails_also_where_steps_may_be_skipped() -> None:
    with pytest.raises(LeydenError, match="loss nan at step 0"):
        fit("--optimizer=regression.Skipper", "--model.bad_step=0")


def test_losses_are_fetched_from_the_device_fifty_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    look = FiniteLoss._look

    def spy(self: FiniteLoss, trainer: Trainer) -> None:
        fetched.append(len(self._kept))
        look(self, trainer)
        assert self._kept == []

    monkeypatch.setattr(FiniteLoss, "_look", spy)
    fit("--trainer.max_epochs=1", "--data.batch_size=1", "--trainer.limit_val_batches=0")
    assert fetched == [50, 14]


def test_a_test_whose_loss_is_nan_fails() -> None:
    with pytest.raises(LeydenError, match="metric 'test_loss'"):
        run("test", "--config", "mine.yaml", "--data.test_size=24", "--data.nan_validation=true")


def test_the_hooks_of_a_run_see_its_start_and_how_it_ended(install: Install) -> None:
    install(
        "watching",
        HEAD + "seen = []\n"
        "@hookimpl\n"
        "def leyden_run_start(run): seen.append((run.kind, run.settings['model']['init_args']['width']))\n"
        "@hookimpl\n"
        "def leyden_run_end(run, result):\n"
        "    seen.append((result.status, sorted(result.metrics), result.error))\n",
    )
    fit()
    with pytest.raises(LeydenError):
        fit("--model.bad_step=1")
    with pytest.raises(KeyboardInterrupt):
        fit("--trainer.callbacks=regression.Interrupt")
    seen = sys.modules["made_watching.plugin"].seen
    assert seen[0] == ("fit", 4)
    assert seen[1] == ("FINISHED", ["train_loss", "val_loss"], "")
    assert seen[3][0] == "FAILED"
    assert seen[3][2] == "LeydenError: loss nan at step 1, epoch 0: metric 'train_loss'"
    assert seen[5][0] == "KILLED"
    assert len(seen) == 6


def test_the_working_directory_is_importable() -> None:
    assert str(Path.cwd()) not in sys.path
    fit()
    assert sys.path[0] == str(Path.cwd())


def test_run_config_trains_and_tests_quietly_and_leaves_nothing_behind(
    capfd: pytest.CaptureFixture[str],
) -> None:
    levels = [logging.getLogger(name).level for name in ("lightning.pytorch", "lightning.fabric")]
    before = sorted(Path().iterdir())
    first = run_config("mine.yaml", {"seed_everything": 3})
    assert sorted(first) == ["test_loss", "train_loss", "val_loss"]
    assert first == run_config("mine.yaml", {"seed_everything": 3}), "bit for bit"
    assert first != run_config("mine.yaml", {"seed_everything": 4})
    assert "test_loss" not in run_config("mine.yaml", test=False)
    assert capfd.readouterr() == ("", "")
    assert [path for path in sorted(Path().iterdir()) if path.name != "__pycache__"] == before
    assert levels == [logging.getLogger(name).level for name in ("lightning.pytorch", "lightning.fabric")]


def test_run_config_takes_dotted_and_nested_overrides_mappings_and_callbacks(install: Install) -> None:
    install("one", files={"configs/first.yaml": PROJECT})
    trace = subject.load_object("regression.Trace")() if "regression" in sys.modules else None
    fitted = fit_config(
        "one/first",
        {"trainer.max_epochs": 1, "data": {"init_args": {"batch_size": 16}}, "optimizer.init_args.lr": 0.5},
        callbacks=[trace] if trace else [],
    )
    assert (fitted.trainer.global_step, fitted.trainer.optimizers[0].param_groups[0]["lr"]) == (4, 0.5)
    assert type(fitted.datamodule).__name__ == "Plane"

    trace = sys.modules["regression"].Trace()
    other = fit_config(yaml.safe_load(PROJECT), {"optimizer": "Stepper"}, callbacks=[trace])
    assert type(other.trainer.optimizers[0]).__name__ == "Stepper"
    assert len(trace.losses) == 16
    assert trace.losses[-1] == pytest.approx(other.metrics["train_loss"])


def test_run_config_names_what_is_wrong_and_where() -> None:
    for overrides, expected in (
        (
            {"optimizer.init_args.lrr": 1},
            "optimizer.init_args.lrr: torch.optim.SGD has no such argument; did you mean",
        ),
        (
            {"model.init_args.width": 0},
            "mine.yaml:11: model.init_args.width: regression.Line: width must be positive",
        ),
        ({"trainer.max_epochz": 1}, "trainer.max_epochz: unknown key; did you mean 'trainer.max_epochs'"),
    ):
        with pytest.raises(UsageError) as caught:
            run_config("mine.yaml", overrides)
        assert str(caught.value).startswith(expected)
    with pytest.raises(UsageError, match=r"there is no file 'nothing\.yaml'"):
        run_config("nothing.yaml")
    with pytest.raises(LeydenError, match="loss nan at step 9, epoch 1: metric 'train_loss'"):
        run_config("mine.yaml", {"model.init_args.bad_step": 9})


def test_run_config_writes_checkpoints_only_when_asked() -> None:
    fitted = fit_config("mine.yaml", {"trainer.callbacks": ["ModelCheckpoint"]}, test=False)
    assert any(isinstance(callback, ModelCheckpoint) for callback in fitted.trainer.callbacks)  # type: ignore[attr-defined]
    assert len(list(Path().rglob("*.ckpt"))) == 1


def test_run_config_logs_to_the_active_run() -> None:
    from leyden.spool import open_run
    from leyden.tracking import use_run

    Path("session").mkdir()
    with use_run(open_run(Path("session"), "cell", experiment="e")) as writer:
        fitted = fit_config("mine.yaml", {"trainer.log_every_n_steps": 1})
        assert fitted.trainer.logger is not None
        assert fitted.trainer.logger.experiment is writer  # type: ignore[attr-defined]
    spool = b"".join(path.read_bytes() for path in Path("session").rglob("*") if path.is_file())
    assert spool.count(b"train_loss") >= 16
    assert b"test_loss" in spool
    (resolved,) = Path("session").rglob("config.yaml")
    kept = yaml.safe_load(resolved.read_text())
    assert (kept["trainer"]["log_every_n_steps"], kept["model"]["class_path"]) == (1, "regression.Line")


@pytest.mark.parametrize(
    ("base", "overrides", "expected"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a.b": 3}, {"a": {"b": 3, "c": 2}}),
        ({"a": {"b": 1}}, {"a": {"c": 2}, "a.d": 3}, {"a": {"b": 1, "c": 2, "d": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"o": "SGD"}, {"o.init_args.lr": 1}, {"o": {"class_path": "SGD", "init_args": {"lr": 1}}}),
        (
            {"o": {"class_path": "SGD", "init_args": {"lr": 1}}},
            {"o": {"class_path": "Adam"}},
            {"o": {"class_path": "Adam"}},
        ),
        (
            {"o": {"class_path": "SGD", "init_args": {"lr": 1}}},
            {"o.class_path": "Adam", "o.init_args.eps": 2},
            {"o": {"class_path": "Adam", "init_args": {"eps": 2}}},
        ),
    ],
)
def test_overrides_replace_values_and_a_new_class_drops_the_old_ones_arguments(
    base: dict[str, Any], overrides: Mapping[str, Any], expected: dict[str, Any]
) -> None:
    before = yaml.safe_dump(base)
    assert merged(base, overrides) == expected
    assert yaml.safe_dump(base) == before


def trainer(callbacks: Sequence[Callback] = ()) -> Trainer:
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(callbacks=list(callbacks), enable_model_summary=False, accelerator="cpu", **options)  # type: ignore[arg-type]


def test_every_trainer_gets_the_callbacks_of_the_plugins_and_a_variable_turns_them_off(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = "from lightning.pytorch import Callback\nclass Gate(Callback): pass\n"
    install(
        "one",
        HEAD + "@hookimpl\ndef leyden_callbacks(): return ['made_one.gate.Gate']",
        files={"gate.py": gate},
    )
    own = pl.callbacks.EarlyStopping("x")
    names = [type(callback).__name__ for callback in trainer([own]).callbacks]  # type: ignore[attr-defined]
    assert names.index("EarlyStopping") < names.index("Gate")
    assert "LossFeed" in names
    monkeypatch.setenv("LEYDEN_CALLBACKS", "0")
    assert trainer().callbacks == []  # type: ignore[attr-defined]
    assert callbacks_factory() == []


def test_the_factory_never_raises_and_says_once_what_it_leaves_out(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    gate = (
        "from lightning.pytorch import Callback\nclass Good(Callback): pass\n"
        "class Needy(Callback):\n  def __init__(self, x): pass\n"
    )
    paths = [
        "made_one.gate.Good",
        "made_one.gate.Needy",
        "made_one.gate.Gone",
        "made_one.absent.X",
        "pathlib.Path",
    ]
    install("one", HEAD + f"@hookimpl\ndef leyden_callbacks(): return {paths}", files={"gate.py": gate})
    install("broken", "import nothing_of_this_name")
    for _ in range(2):
        names = [type(callback).__name__ for callback in trainer().callbacks]  # type: ignore[attr-defined]
        assert "Good" in names
        assert "LossFeed" in names
    lines = [record.getMessage() for record in caplog.records if record.name == "leyden"]
    assert [line.partition("left out")[0] for line in lines[1:]] == [
        f"leyden: callback {path} is " for path in paths[1:]
    ]
    assert lines[0].startswith("leyden: plugin 'broken' (made-broken 1.0) cannot be imported")

    caplog.clear()
    Path("plugins.toml").write_text("[nonsense]\n")
    manager.manager.cache_clear()
    assert [callbacks_factory(), callbacks_factory()] == [[], []]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "leyden"]
    assert "no callbacks are added: UsageError: plugins.toml:1: nonsense: unknown key" in line


@pytest.mark.parametrize(("interval", "decays"), [("epoch", 2), ("step", 8)])
def test_a_configured_scheduler_steps_at_the_interval_of_its_model(interval: str, decays: int) -> None:
    scheduler = {"class_path": "torch.optim.lr_scheduler.ExponentialLR", "init_args": {"gamma": 0.5}}
    document = yaml.safe_load(PROJECT) | {"lr_scheduler": scheduler}
    document["trainer"] |= {"limit_train_batches": 4, "logger": False}
    cli = LeydenCLI(args=document, run=False, save_config_callback=None)
    cli.model.interval = interval
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.05 * 0.5**decays)
