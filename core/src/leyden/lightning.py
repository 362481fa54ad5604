"""Leyden inside Lightning: LeydenCLI, a configuration run from Python, the callbacks every Trainer gets."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined]
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

from leyden.configuration import (
    PARSER_MODE,
    callbacks_of,
    config_path,
    full_names,
    full_names_in_arguments,
    load_config,
    merged,
    named_class,
)
from leyden.errors import LeydenError, UsageError, hint, one_line
from leyden.explain import Sources, constructor_error, parser_error
from leyden.finite import FiniteLoss
from leyden.group import LeaveProcessGroup
from leyden.manager import load_object, manager, warn_once
from leyden.model import Run, RunResult

RUNS = "leyden-runs"
"""Folder of checkpoints, in the working directory."""
_LOGGER = "leyden.logger.LeydenLogger"
_LIGHTNING_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric")
_LEAF_WARNING = ".*isinstance.treespec, LeafSpec"
_FOLDER_WARNING = (
    "The dirpath has changed from"  # at every resumption, since each run has a folder of its own
)


def callbacks_factory() -> list[Callback]:
    """The self-gating callbacks of the installed plugins; Lightning adds them to every Trainer.

    It never raises: what cannot be used is warned of once. ``LEYDEN_CALLBACKS=0`` turns it off.
    """
    if os.environ.get("LEYDEN_CALLBACKS", "1") == "0":
        return []
    callbacks: list[Callback] = []
    try:
        plugins = manager()
        for problem in plugins.problems:
            warn_once(problem)
        for path in plugins.callback_paths():
            try:
                callback = load_object(path)()
                if not isinstance(callback, Callback):
                    raise TypeError(f"{path} makes a {type(callback).__name__}, not a Callback")
                callbacks.append(callback)
            except Exception as error:
                warn_once(f"callback {path} is left out: {one_line(error)}")
    except Exception as error:
        warn_once(f"no callbacks are added: {one_line(error)}")
    return callbacks


class LeydenCLI(LightningCLI):
    """LightningCLI with shipped configurations, short names, tracking, and errors of one line.

    ``--config sps_safe/digits`` names a YAML that a plugin ships, ``class_path: SPSSafe`` a component of an
    installed plugin. Runs are recorded by `leyden.logger.LeydenLogger` unless the configuration names a
    logger or plugins.toml turns tracking off. Classes of the working directory are found.

    Takes what LightningCLI takes, and

    Args:
        config_files: the files that ``args``, given as a mapping, were read from; errors name them.

    Raises:
        UsageError: if the configuration is wrong or a constructor refuses its arguments.
        LeydenError: if the loss turns NaN.
    """

    def __init__(self, *args: Any, config_files: Sequence[Path] = (), **kwargs: Any) -> None:
        if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - as it is written in sys.path
            sys.path.insert(0, here)
        self.sources = Sources(files=list(config_files))
        kwargs.setdefault("save_config_callback", SaveConfig)
        if kwargs["save_config_callback"] is SaveConfig:
            kwargs.setdefault("save_config_kwargs", {"save_to_log_dir": False})
        kwargs.setdefault("parser_class", _Parser)
        kwargs["trainer_defaults"] = _trainer_defaults(kwargs.get("trainer_defaults") or {})
        super().__init__(*args, **kwargs)

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Make a parser that knows shipped configurations and short names."""
        kwargs.setdefault("parser_mode", PARSER_MODE)
        kwargs.setdefault("allow_abbrev", False)
        parser = super().init_parser(**kwargs)
        if isinstance(parser, _Parser):
            parser.sources = self.sources
            # Not by overriding `add_argument`: jsonargparse then makes classes with which a parser, and so a
            # Trainer whose processes are spawned, cannot be pickled.
            for action in parser._actions:
                if type(action) is ActionConfigFile:
                    action.__class__ = _ConfigFile
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the command line, a list of arguments, or a whole configuration."""
        if isinstance(args, dict | Namespace):
            self.sources.document = args if isinstance(args, dict) else args.as_dict()
            self.config = parser.parse_object(full_names(args))
            return
        self.sources.arguments[:] = sys.argv[1:] if args is None else args
        self.config = parser.parse_args(full_names_in_arguments(self.sources.arguments))

    def _set_seed(self) -> None:
        """Seed everything; a seed out of range is an error that names its key."""
        try:
            super()._set_seed()
        except ValueError as error:
            raise UsageError(f"{self.sources.place(['seed_everything'])}{error}") from error

    def _parse_ckpt_path(self) -> None:
        """Take the model's arguments from the checkpoint, after a look at what is given as one."""
        config = self.config.get(str(self.config.get("subcommand")), self.config)
        reference = config.get("ckpt_path")
        if reference is not None and (wrong := _wrong_checkpoint(str(reference))):
            raise UsageError(f"{self.sources.place(['ckpt_path'])}{wrong}")
        super()._parse_ckpt_path()

    def before_instantiate_classes(self) -> None:
        """Name the run after its subcommand and its files, unless the configuration names it."""
        logger = self.config.get(str(self.subcommand), self.config).get("trainer.logger")
        if self.subcommand and isinstance(logger, Namespace) and logger.get("class_path") == _LOGGER:
            files = ", ".join(path.stem for path in self.sources.files)
            if logger.get("init_args.run_name") is None:
                logger["init_args.run_name"] = f"{self.subcommand} {files}".strip()

    def instantiate_classes(self) -> None:
        """Make the objects; what a constructor refuses is an error that names its key."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError, OSError, MisconfigurationException) as error:
            config = self.config.get(str(self.subcommand), self.config)
            raise constructor_error(error, config.as_dict(), self.sources) from error

    @staticmethod
    def configure_optimizers(
        lightning_module: LightningModule, optimizer: Optimizer, lr_scheduler: Any = None
    ) -> Any:
        """Attach the configured optimizer and scheduler, which steps at the ``interval`` of a task."""
        plain = LightningCLI.configure_optimizers(lightning_module, optimizer, lr_scheduler)
        if not isinstance(plain, tuple):
            return plain
        interval = getattr(lightning_module, "interval", "epoch")
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": lr_scheduler, "interval": interval}}

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Attach what makes the optimizer, so that it is still there in a spawned process."""
        super()._add_configure_optimizers_method_to_model(subcommand)
        method = vars(self.model).get("configure_optimizers")
        if isinstance(made := getattr(method, "__func__", None), partial):
            # a bound method is pickled by its name, which in the copy means the class's own
            self.model.configure_optimizers = partial(made.func, self.model, **made.keywords)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run the subcommand between the plugins' hooks."""
        if subcommand == "fit":
            check_optimizer(self.model, also=", give --optimizer NAME,")
        with self._announced(subcommand), _ctrl_c_kept():
            super()._run_subcommand(subcommand)

    @contextlib.contextmanager
    def _announced(self, subcommand: str) -> Iterator[None]:
        """Tell the plugins that a run starts and how it ended."""
        if not self.trainer.is_global_zero:
            yield
            return
        from leyden.logger import LeydenLogger
        from leyden.tracking import status_of

        # the first use of a run opens it: a store that does not answer stops the run here, before it trains
        keys = [logger.experiment.key for logger in self.trainer.loggers if isinstance(logger, LeydenLogger)]
        key = keys[0] if keys else uuid.uuid4().hex
        config = self.config.get(subcommand, self.config)
        run = Run(key=key, name=subcommand, kind=subcommand, settings=config.as_dict())
        manager().run_start(run)
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            text = one_line(failure) if failure else ""
            result = RunResult(status=status_of(failure), metrics=logged_metrics(self.trainer), error=text)
            manager().run_end(run, result)


def check_optimizer(model: LightningModule, *, also: str = "") -> None:
    """Refuse a model that nothing would train.

    Args:
        model: the model, with the optimizer that a configuration gives it.
        also: a further way to give it one.

    Raises:
        UsageError: if there is none.
    """
    if not is_overridden("configure_optimizers", model):
        name = type(model).__name__
        raise UsageError(
            f"{name} has no optimizer: write `optimizer:` in the configuration{also} "
            f"or let {name} have configure_optimizers"
        )


class SaveConfig(SaveConfigCallback):
    """Writes the resolved configuration where the logger keeps the run: an artifact, or a file."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write it once, on the first rank."""
        from leyden.logger import LeydenLogger

        text = self.parser.dump(self.config, skip_none=False, format="yaml")
        for logger in trainer.loggers:
            if isinstance(logger, LeydenLogger):
                logger.log_text(text, self.config_filename)
                logger.log_hyperparams(self._compared())
            elif isinstance(logger, MLFlowLogger):
                logger.experiment.log_text(logger.run_id, text, self.config_filename)
            elif isinstance(logger, DummyLogger):
                continue
            elif directory := getattr(logger, "log_dir", None):
                Path(directory).mkdir(parents=True, exist_ok=True)
                (Path(directory) / self.config_filename).write_text(text)

    def _compared(self) -> dict[str, Any]:
        """What runs are compared by: seed, data, optimizer and scheduler. Tasks log their own parameters."""
        config = self.config.as_dict()
        kept = {key: config.get(key) for key in ("seed_everything", "data", "optimizer", "lr_scheduler")}
        return {key: value for key, value in kept.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What `fit_config` gives: the objects after training, and every last logged metric."""

    trainer: Trainer
    model: LightningModule
    datamodule: LightningDataModule | None
    metrics: dict[str, float] = field(default_factory=dict)


def fit_config(
    config: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    test: bool = True,
) -> Fitted:
    """Train as a LightningCLI configuration says, then test, in this process and quietly.

    Where a run is active (`leyden.tracking.use_run`), it gets the metrics and the resolved configuration.

    Args:
        config: a YAML file, the name of a shipped one (``"sps_safe/digits"``), or a whole configuration.
        overrides: values to replace: dotted keys such as ``"optimizer.init_args.M"``, or nested mappings.
        callbacks: further callbacks.
        test: whether to test after training, where the model and the data can.

    Returns:
        The trainer, the model, the data and the metrics.

    Raises:
        UsageError: if the configuration is wrong.
        LeydenError: if the loss turns NaN; the text names step and metric.
    """
    if isinstance(config, Mapping):
        files, document = [], full_names(dict(config))
    else:
        path = config_path(str(config))
        files, document = [path], load_config(path)
    document = merged(document, full_names(dict(overrides or {})))
    with quietly():
        cli = quiet_cli(document, files=files, callbacks=callbacks)
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        metrics = logged_metrics(cli.trainer)
        if test and can_test(cli):
            cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)
            metrics |= logged_metrics(cli.trainer)
    return Fitted(trainer=cli.trainer, model=cli.model, datamodule=cli.datamodule, metrics=metrics)


def quiet_cli(
    document: Mapping[str, Any],
    *,
    files: Sequence[Path] = (),
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Mapping[str, Any]] = (),
    kind: type[LeydenCLI] = LeydenCLI,
) -> LeydenCLI:
    """Make the objects of a configuration for a run that shows nothing and writes no checkpoints unasked.

    Args:
        document: the configuration.
        files: where it was read from; errors name them.
        callbacks: further callbacks.
        loggers: loggers before that of the active run (`leyden.tracking.use_run`), as a configuration names
            them; without either there is none.
        kind: the class that makes them.

    Raises:
        UsageError: if the configuration is wrong.
    """
    whole = merged(document, _quiet_trainer(document, loggers))
    return kind(
        args=whole,
        config_files=files,
        run=False,
        load_from_checkpoint_support=bool(whole["trainer"]["enable_checkpointing"]),
        trainer_defaults={"callbacks": list(callbacks)},
    )


def run_config(
    config: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    test: bool = True,
) -> dict[str, float]:
    """Train and test as a configuration says and return the last logged metrics; see `fit_config`."""
    return fit_config(config, overrides, callbacks=callbacks, test=test).metrics


class _ConfigFile(ActionConfigFile):
    """The option ``--config``: a file, the name of a shipped one, or YAML itself."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        if not values.lstrip().startswith(("{", "[")) and "\n" not in values:
            path = config_path(values)
            load_config(path)  # what is wrong with the file itself is told here, in the words of all errors
            parser.sources.files.append(path)
            values = str(path)
        super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]


class _Parser(LightningArgumentParser):
    """A parser that answers wrong input with one line."""

    sources: Sources

    def error(self, message: str, ex: Exception | None = None) -> Any:
        if not self.exit_on_error:  # a parser of a nested class; its error is one of several tries
            super().error(message, ex)
        names = list(dict.fromkeys(_known_keys(self)))
        raise parser_error(message, ex, self.sources, names) from ex


def _known_keys(parser: LightningArgumentParser) -> Iterator[str]:
    """Every key of a parser and of its subcommands."""
    for action in parser._actions:
        if not action.dest.endswith(("help", "config")):
            yield action.dest
        for subparser in action.choices.values() if isinstance(action.choices, Mapping) else ():
            yield from _known_keys(subparser)


def _trainer_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The Trainer's arguments where the configuration says nothing."""
    tracking = manager().settings.tracking
    logger: Any = False
    if tracking.enabled:
        logger = {"class_path": _LOGGER, "init_args": {"experiment": tracking.experiment}}
    callbacks = given.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    callbacks = [FiniteLoss(), LeaveProcessGroup(), *callbacks]
    return {"logger": logger, "default_root_dir": RUNS, **given, "callbacks": callbacks}


def _quiet_trainer(document: Mapping[str, Any], loggers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the Trainer of a cell does not do unless it is asked to."""
    from leyden.tracking import active_run

    said = document.get("trainer") or {}
    callbacks = callbacks_of(said)
    quiet = {
        "enable_progress_bar": any(names_callback(item, ProgressBar) for item in callbacks),
        "enable_model_summary": False,
        "enable_checkpointing": any(names_callback(item, Checkpoint) for item in callbacks),
    }
    every = [*loggers, *([{"class_path": _LOGGER}] if active_run() else [])]
    return {
        "trainer": {
            **{key: value for key, value in quiet.items() if key not in said},
            "logger": every or False,
        }
    }


def names_callback(item: Any, kind: type[Callback]) -> bool:
    """Whether an item of a configuration's ``trainer.callbacks`` names a class of a kind.

    One that cannot be imported is of none: the parser has better words for it.
    """
    name = str(item.get("class_path", "") if isinstance(item, Mapping) else item)
    try:
        named = named_class(name)
    except LeydenError:
        return False
    return isinstance(named, type) and issubclass(named, kind)


@contextlib.contextmanager
def _ctrl_c_kept() -> Iterator[None]:
    """Undo what Lightning makes of Ctrl-C: the status 1, and a deaf ear to the next one."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


def _wrong_checkpoint(reference: str) -> str:
    """What is wrong with a file given as ``ckpt_path``; empty if nothing is, or Lightning must find it."""
    if reference in ("best", "last", "hpc") or ":" in reference:
        return ""
    path = Path(reference)
    if path.is_dir():
        return ""  # sharded
    if not path.is_file():
        siblings = [str(path.with_name(other.name)) for other in path.parent.glob("*.ckpt")]
        return f"there is no file '{reference}'" + (f"; {hint(reference, siblings)}" if siblings else "")
    with path.open("rb") as file:
        return (
            "" if file.read(2) in (b"PK", b"\x80\x02") else f"'{reference}' is not a checkpoint of Lightning"
        )


def can_test(cli: LeydenCLI) -> bool:
    """Whether a configuration's model can be tested and there is test data."""
    return is_overridden("test_step", cli.model) and is_overridden(
        "test_dataloader", cli.datamodule or cli.model
    )


def logged_metrics(trainer: Trainer) -> dict[str, float]:
    """The last value of every logged metric."""
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Leave out what Lightning advertises, and warnings that no user can act on."""
    loggers = [logging.getLogger(name) for name in _LIGHTNING_LOGGERS]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    with warnings.catch_warnings():
        for message in (_LEAF_WARNING, _FOLDER_WARNING):
            warnings.filterwarnings("ignore", message=message)
        for handler in handlers:
            handler.addFilter(_is_no_advertisement)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(_is_no_advertisement)


def _is_no_advertisement(record: logging.LogRecord) -> bool:
    return "Tip: For seamless cloud" not in record.getMessage()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep Lightning's notes on hardware, seeds and loaders out of a cell's output."""
    loggers = [logging.getLogger(name) for name in _LIGHTNING_LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in (".*does not have many workers", "The number of training batches", _LEAF_WARNING):
            warnings.filterwarnings("ignore", message=message)
        try:
            for logger in loggers:
                logger.setLevel(logging.WARNING)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
