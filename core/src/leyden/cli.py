"""The command ``leyden``. What is heavy is imported by the commands that need it."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from leyden import __version__
from leyden.errors import LeydenError, UsageError, unknown

if TYPE_CHECKING:
    from rich.console import Console

LIGHTNING_COMMANDS = {
    "fit": "train, as LightningCLI does; --config sps_safe/digits names a shipped configuration",
    "validate": "evaluate on the validation data",
    "test": "evaluate on the test data",
    "predict": "compute predictions, for a callback of your own to write",
}
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what follows ``leyden``; the process's own arguments by default.

    Returns:
        The exit status: 0, 1 where something failed, 2 where the input is wrong, 130 after Ctrl-C, 143 after
        SIGTERM.
    """
    _open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        _check_directory()
        return _run(given)
    except LeydenError as error:
        return _report(str(error), error.exit_status, debug)
    except KeyboardInterrupt:
        return _report("interrupted", 130, debug)
    except SystemExit as stop:
        if isinstance(stop.code, int) and stop.code > 128:
            return _report("terminated", stop.code, debug)
        raise
    except BrokenPipeError:
        # who reads the output has enough; what Python would still flush goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        place = error.filename or Path.cwd()
        return _report(f"cannot write {place}: {error.strerror}", 1, debug)


def _open_standard_streams() -> None:
    """Where the caller closed an output (``>&-``), what is written to it goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for the whole process


def _check_directory() -> None:
    """Where the working directory was removed, what asks for it could only fail in words of its own."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise LeydenError("the working directory is gone; change to one that exists") from error


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in LIGHTNING_COMMANDS:
        return _lightning(arguments)
    parser = _parser()
    if arguments and not arguments[0].startswith("-"):
        commands = _commands(parser)
        if arguments[0] not in commands:
            raise unknown("command", arguments[0], commands)
    chosen = parser.parse_args(arguments)
    if not hasattr(chosen, "run"):
        parser.print_help()
        return 0
    run: Callable[[argparse.Namespace], int] = chosen.run
    return run(chosen)


def _report(line: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    sys.stdout.flush()
    shown = "".join(
        letter if letter.isprintable() else ascii(letter)[1:-1] for letter in " ".join(line.split())
    )
    print(f"leyden: {shown}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """A parser that answers wrong input with one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")


def _parser() -> _Parser:
    parser = _Parser(
        prog="leyden",
        description="Optimization papers as plugins for PyTorch Lightning, their claims as experiments.",
        epilog="Every command has --help. --debug shows the traceback behind an error.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"leyden {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    plugins = commands.add_parser(
        "plugins", help="list the installed plugins; 'plugins show NAME' tells all of one"
    )
    plugins.set_defaults(run=_plugins)
    shown = plugins.add_subparsers(metavar="show NAME", parser_class=_Parser)
    show = shown.add_parser("show", help="paper, components, configurations, claims, a three-line use")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=_show)

    config = commands.add_parser("config", help="print a shipped configuration to start from")
    config.add_argument("reference", metavar="NAME/CONFIG")
    config.set_defaults(run=_config)

    for name, description in LIGHTNING_COMMANDS.items():
        commands.add_parser(name, help=description, add_help=False)

    claims = commands.add_parser("claims", help="list the claims of the papers and their last verdicts here")
    claims.set_defaults(run=_claims)

    reproduce = commands.add_parser("reproduce", help="run a claim: table, verdicts, figures, tracked")
    reproduce.add_argument("names", metavar="NAME[/CLAIM]", nargs="+", help="a plugin, or one of its claims")
    reproduce.add_argument("--scale", default="laptop", help="smoke, laptop (default) or paper")
    reproduce.add_argument("--seeds", type=_count, help="how many seeds; by default what the claim says")
    reproduce.add_argument(
        "--first-seed", type=_seed, default=0, help="the first of them, to confirm a claim on fresh seeds"
    )
    reproduce.add_argument(
        "--jobs", type=_count, help="how many cells at once; by default what plugins.toml says, or one a core"
    )
    reproduce.add_argument("--executor", help="loky (this machine) or ray (a cluster)")
    reproduce.add_argument("--resume", action="store_true", help="run only what is missing or failed")
    reproduce.set_defaults(run=_reproduce)

    page = commands.add_parser("ui", help="open MLflow's page on the runs, for this machine alone")
    page.add_argument("--port", type=_port, help="where to serve; by default 5000, or any that is free")
    page.add_argument("--no-open", action="store_true", help="print the address alone")
    page.set_defaults(run=_ui)

    compare = commands.add_parser(
        "compare", help="try plugins in a project of your own, equally tuned, against what is there"
    )
    compare.add_argument(
        "--config", action="append", required=True, help="your LightningCLI YAML; may be given several times"
    )
    compare.add_argument(
        "--try",
        dest="tries",
        action="append",
        nargs="+",
        required=True,
        metavar=("PLUGIN[.COMPONENT]", "KEY=VALUE"),
        help="what to try, with arguments to fix (key=value) or to tune (key=low..high)",
    )
    compare.add_argument(
        "--tune",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=LOW..HIGH",
        help="what to tune of the baseline, by dotted key; by default its learning rate",
    )
    compare.add_argument("--trials", type=_seed, default=8, help="settings to try for each arm (default 8)")
    compare.add_argument("--seeds", type=_count, default=5, help="seeds to judge each arm with (default 5)")
    compare.add_argument("--metric", help="the validation metric; val_loss or the only one by default")
    compare.add_argument("--mode", help="max or min; by default what the metric's name tells")
    compare.add_argument("--dry-run", action="store_true", help="say what would run and how long")
    compare.add_argument(
        "--jobs", type=_count, help="how many fits at once; by default what plugins.toml says, or one a core"
    )
    compare.add_argument("--executor", help="loky (this machine) or ray (a cluster)")
    compare.add_argument("--resume", action="store_true", help="run only what is missing or failed")
    compare.set_defaults(run=_compare)

    new = commands.add_parser("new", help="make a plugin of your own that passes the conformance kit")
    new.add_argument("name", metavar="NAME", help="its name, such as my_paper")
    new.add_argument("--kind", required=True, help="optimizer, lr_scheduler, callback, module, layer or loss")
    new.set_defaults(run=_new)

    sync = commands.add_parser("sync", help="install what plugins.toml lists, all of it or nothing")
    sync.add_argument("--dry-run", action="store_true", help="say what would be installed")
    sync.set_defaults(run=_sync)

    doctor = commands.add_parser("doctor", help="what is installed, what is missing, does tracking work")
    doctor.set_defaults(run=_doctor)
    return parser


def _commands(parser: argparse.ArgumentParser) -> list[str]:
    actions = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [name for choices in actions for name in choices]


def _plugins(chosen: argparse.Namespace) -> int:
    from leyden.listing import list_plugins
    from leyden.manager import manager

    list_plugins(_console(), manager())
    return 0


def _show(chosen: argparse.Namespace) -> int:
    from leyden.listing import show_plugin
    from leyden.manager import manager

    show_plugin(_console(), manager(), manager().plugin(chosen.name))
    return 0


def _config(chosen: argparse.Namespace) -> int:
    from leyden.manager import manager

    sys.stdout.write(manager().config(chosen.reference).read_text())
    return 0


def _claims(chosen: argparse.Namespace) -> int:
    from leyden.listing import list_claims
    from leyden.manager import manager

    list_claims(_console(), manager(), Path("leyden-reports"))
    return 0


def _reproduce(chosen: argparse.Namespace) -> int:
    from leyden.manager import manager, warn_once
    from leyden.reproduce import reproduce

    for problem in manager().problems:
        warn_once(problem)
    return reproduce(
        chosen.names,
        scale=chosen.scale,
        seeds=chosen.seeds,
        first_seed=chosen.first_seed,
        jobs=chosen.jobs,
        executor=chosen.executor,
        resume=chosen.resume,
        console=_console(),
    )


def _ui(chosen: argparse.Namespace) -> int:
    from leyden.ui import ui

    return ui(port=chosen.port, open_browser=not chosen.no_open, console=_console())


def _compare(chosen: argparse.Namespace) -> int:
    from leyden.compare import compare
    from leyden.manager import manager, warn_once

    for problem in manager().problems:
        warn_once(problem)
    return compare(
        chosen.config,
        chosen.tries,
        tune=chosen.tune,
        trials=chosen.trials,
        seeds=chosen.seeds,
        metric=chosen.metric,
        mode=chosen.mode,
        dry_run=chosen.dry_run,
        jobs=chosen.jobs,
        executor=chosen.executor,
        resume=chosen.resume,
        console=_console(),
    )


def _new(chosen: argparse.Namespace) -> int:
    from leyden.new import new

    return new(chosen.name, chosen.kind, console=_console())


def _sync(chosen: argparse.Namespace) -> int:
    from leyden.sync import sync

    return sync(dry_run=chosen.dry_run, console=_console())


def _doctor(chosen: argparse.Namespace) -> int:
    from leyden.doctor import examine

    return examine(_console())


def _lightning(arguments: list[str]) -> int:
    from leyden.execute import termination_as_exit

    with termination_as_exit():
        from lightning.fabric.utilities.exceptions import MisconfigurationException

        from leyden.lightning import LeydenCLI, without_noise

        try:
            with without_noise():
                LeydenCLI(args=arguments, parser_kwargs={"prog": "leyden"})
        except MisconfigurationException as error:
            raise UsageError(str(error)) from error
    return 0


def _console() -> Console:
    """A console as wide as the terminal; wide where the output goes to a file or another program."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 140)


def _count(text: str) -> int:
    return _integer(text, least=1)


def _seed(text: str) -> int:
    return _integer(text, least=0)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535, got '{text}'")
    return int(text)


def _integer(text: str, *, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got '{text}'")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
