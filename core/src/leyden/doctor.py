"""``leyden doctor``: what is installed, what is missing, whether the tracking store answers."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from rich.console import Console
from rich.markup import escape

from leyden.errors import LeydenError, one_line
from leyden.manager import Manager, discover, load_object
from leyden.settings import Settings, load_settings, shown
from leyden.spool import masked

_SHOWN = ("leyden", "torch", "lightning", "torchmetrics", "mlflow", "jsonargparse", "joblib", "pluggy")
_LITTLE_SPACE = 200_000_000


def examine(console: Console) -> int:
    """Check the installation and print what was found, a line each.

    Returns:
        The exit status: 1 if something is wrong.
    """
    wrong = 0
    for fine, line in _findings():
        wrong += not fine
        console.print(
            f"{'[green]ok[/green]   ' if fine else '[red]wrong[/red]'} {escape(line)}", soft_wrap=True
        )
    if wrong:
        console.print(f"\n{wrong} {'thing is' if wrong == 1 else 'things are'} wrong")
    return 1 if wrong else 0


def _findings() -> Iterator[tuple[bool, str]]:
    yield True, f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield True, "versions: " + ", ".join(f"{name} {_version(name)}" for name in _SHOWN)
    settings: Settings | None = None
    try:
        settings = load_settings()
        manager = discover(settings)
        yield True, f"settings: {shown(settings.path) if settings.path else 'no plugins.toml, all defaults'}"
    except LeydenError as error:
        yield False, str(error)
        settings, manager = None, discover(Settings())
    yield from _plugins(manager)
    yield from _requirements(manager)
    yield from _working_directory()
    if settings is not None:
        yield from _executor(settings)
        yield from _tracking(settings)
    yield from _checks(manager)


def _plugins(manager: Manager) -> Iterator[tuple[bool, str]]:
    manager.claims()  # a claim that cannot be imported is a problem too
    names = ", ".join(f"{plugin.name} {plugin.version}" for plugin in manager.active)
    yield True, f"plugins: {names or 'none is installed'}"
    for problem in (*manager.problems, *manager.missing):
        yield False, problem


def _requirements(manager: Manager) -> Iterator[tuple[bool, str]]:
    """What Leyden and the plugins need, and is not there or too old."""
    homes = dict.fromkeys(["leyden", *(plugin.distribution for plugin in manager.active)])
    lacking = [line for home in homes for line in _lacking(distribution(home))]
    yield from ((False, line) for line in lacking)
    if not lacking:
        yield True, "requirements: all are met"


def _lacking(home: Distribution) -> Iterator[str]:
    for text in home.requires or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = _version(requirement.name)
        if installed == "missing":
            yield f"{home.name} needs {requirement}, which is not installed"
        elif not requirement.specifier.contains(installed, prereleases=True):
            yield f"{home.name} needs {requirement}; {installed} is installed"


def _working_directory() -> Iterator[tuple[bool, str]]:
    here = Path.cwd()
    try:
        with TemporaryDirectory(dir=here, prefix=".leyden-doctor-"):
            free = shutil.disk_usage(here).free
    except OSError as error:
        yield False, f"working directory {here} cannot be written: {error.strerror}"
        return
    yield free > _LITTLE_SPACE, f"working directory {here} can be written, {free / 1e9:.1f} GB free"


def _executor(settings: Settings) -> Iterator[tuple[bool, str]]:
    from leyden.execute import check_executor, default_jobs, stop_workers

    try:
        check_executor(settings.execute.executor)
        jobs = settings.execute.jobs
        cores = default_jobs(settings.execute.executor)
    except LeydenError as error:
        yield False, f"execution: {error}"
    else:
        number = f"{jobs} jobs" if jobs else f"one job a core, {cores} of them"
        yield True, f"execution: {settings.execute.executor}, {number}"
    finally:
        stop_workers()


def _tracking(settings: Settings) -> Iterator[tuple[bool, str]]:
    from leyden.tracking import Session, resolve_store

    if not settings.tracking.enabled:
        yield True, "tracking: turned off in plugins.toml"
        return
    try:
        store = resolve_store(settings.tracking)
        Session.open(store).close()
    except LeydenError as error:
        yield False, f"tracking: {error}"
    else:
        yield True, f"tracking: {masked(store.uri)} answers"


def _checks(manager: Manager) -> Iterator[tuple[bool, str]]:
    for plugin, check in manager.checks():
        try:
            yield True, f"{plugin.name}: {check.name}: {load_object(check.function)()}"
        except Exception as error:
            what = str(error) if isinstance(error, LeydenError) else one_line(error)
            yield False, f"{plugin.name}: {check.name}: {what}"


def _version(name: str) -> str:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return "missing"
