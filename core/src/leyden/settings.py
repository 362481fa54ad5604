"""plugins.toml: which plugins are on, where they come from, their options, tracking and execution.

Every error names the file, the line, the key and the nearest valid name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leyden.errors import UsageError, hint

FILE_NAME = "plugins.toml"
EXECUTORS = ("loky", "ray")
Key = tuple[str, ...]


@dataclass(frozen=True)
class PluginSettings:
    """What plugins.toml says of one plugin, under ``[plugins.NAME]``.

    Attributes:
        name: the plugin's name, as in its entry point.
        enabled: whether it is used; an installed plugin that is not listed is.
        path: folder it is installed from, relative to plugins.toml; None where nothing is said.
        requirement: pip requirement it is installed from, such as ``"leyden-harm>=0.1"``; never both.
        options: the plugin's own settings, as written.
    """

    name: str
    enabled: bool = True
    path: str | None = None
    requirement: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrackingSettings:
    """Where runs are recorded, from the table ``[tracking]``.

    Attributes:
        enabled: whether runs are recorded at all.
        uri: MLflow tracking URI; None for the embedded default.
        experiment: MLflow experiment.
    """

    enabled: bool = True
    uri: str | None = None
    experiment: str = "leyden"


@dataclass(frozen=True)
class ExecuteSettings:
    """How a claim's cells are run, from the table ``[execute]``.

    Attributes:
        executor: ``"loky"`` (processes on this machine) or ``"ray"`` (a cluster).
        jobs: how many cells run at once; None for one a core.
    """

    executor: str = "loky"
    jobs: int | None = None


@dataclass(frozen=True)
class Settings:
    """A whole plugins.toml, or the defaults where there is none.

    Attributes:
        path: the file; None where there is none.
        plugins: what it says of each plugin, by name.
        tracking: where runs are recorded.
        execute: how cells are run.
        text: the file's text, which tells the line of a key.
    """

    path: Path | None = None
    plugins: Mapping[str, PluginSettings] = field(default_factory=dict)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    execute: ExecuteSettings = field(default_factory=ExecuteSettings)
    text: str = field(default="", repr=False, compare=False)

    def error(self, key: Key, problem: str) -> UsageError:
        """Build the error for a key of the file: where it stands and what is wrong with it."""
        return UsageError(f"{_place(self.path, line_of(self.text, key))}: {'.'.join(key)}: {problem}")


def load_settings(directory: Path | None = None) -> Settings:
    """Read the nearest plugins.toml, from a directory upwards.

    Args:
        directory: where to begin; the working directory by default.

    Returns:
        Its settings, or the defaults where there is no such file.

    Raises:
        UsageError: if the file cannot be read, is not TOML, or holds a key or a value that means nothing.
    """
    start = (directory or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        path = folder / FILE_NAME
        if path.is_file():
            return read_settings(path)
    return Settings()


def read_settings(path: Path) -> Settings:
    """Read one plugins.toml; see `load_settings`."""
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{_place(path)}: cannot be read: {error}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(_syntax_error(path, text, str(error))) from error

    read = _Reader(Settings(path=path, text=text))
    top = read.table(document, (), ("plugins", "tracking", "execute"))
    plugins = read.table(top.get("plugins", {}), ("plugins",))
    return Settings(
        path=path,
        plugins={name: _plugin(read, name, table) for name, table in plugins.items()},
        tracking=_tracking(read, top.get("tracking", {})),
        execute=_execute(read, top.get("execute", {})),
        text=text,
    )


def line_of(text: str, key: Key) -> int | None:
    r"""Find the line on which the statement that gives a key begins.

    tomllib tells no lines, but it tells of any prefix of the file whether it is TOML and which keys it holds.
    The statement begins after the longest prefix that is TOML without the key.

    Args:
        text: a whole TOML document, valid.
        key: the key's path.

    Returns:
        The line, counted from 1, or None if the document has no such key.

    >>> line_of('[tracking]\n\nuri = "sqlite:///leyden.db"\n', ("tracking", "uri"))
    3
    """
    lines = text.replace("\r\n", "\n").split("\n")
    last_without = 0
    for count in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        if _holds(document, key):
            return last_without + 1
        last_without = count
    return None


def _plugin(read: _Reader, name: str, value: object) -> PluginSettings:
    key = ("plugins", name)
    table = read.table(value, key, ("enabled", "path", "requirement", "options"))
    path = read.text(table, key, "path")
    requirement = read.text(table, key, "requirement")
    if path is not None and requirement is not None:
        raise read.error((*key, "requirement"), "a plugin comes from a path or from a requirement, not both")
    return PluginSettings(
        name=name,
        enabled=read.flag(table, key, "enabled"),
        path=path,
        requirement=requirement,
        options=read.table(table.get("options", {}), (*key, "options")),
    )


def _tracking(read: _Reader, value: object) -> TrackingSettings:
    key = ("tracking",)
    table = read.table(value, key, ("enabled", "uri", "experiment"))
    return TrackingSettings(
        enabled=read.flag(table, key, "enabled"),
        uri=read.text(table, key, "uri"),
        experiment=read.text(table, key, "experiment") or TrackingSettings.experiment,
    )


def _execute(read: _Reader, value: object) -> ExecuteSettings:
    key = ("execute",)
    table = read.table(value, key, ("executor", "jobs"))
    executor = read.text(table, key, "executor") or ExecuteSettings.executor
    if executor not in EXECUTORS:
        raise read.error((*key, "executor"), f"unknown executor '{executor}'; {hint(executor, EXECUTORS)}")
    jobs = table.get("jobs")
    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise read.error((*key, "jobs"), f"expected an integer of at least 1, got {describe(jobs)}")
    return ExecuteSettings(executor=executor, jobs=jobs)


@dataclass(frozen=True)
class _Reader:
    """Takes typed values out of parsed TOML; what does not fit is an error that names its line."""

    settings: Settings

    @property
    def error(self) -> Callable[[Key, str], UsageError]:
        return self.settings.error

    def table(self, value: object, key: Key, known: tuple[str, ...] | None = None) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(key, f"expected a table, got {describe(value)}")
        for name in value:
            if known is not None and name not in known:
                raise self.error((*key, name), f"unknown key; {hint(name, known)}")
        return value

    def flag(self, table: Mapping[str, Any], key: Key, name: str) -> bool:
        value = table.get(name, True)
        if not isinstance(value, bool):
            raise self.error((*key, name), f"expected true or false, got {describe(value)}")
        return value

    def text(self, table: Mapping[str, Any], key: Key, name: str) -> str | None:
        value = table.get(name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.error((*key, name), f"expected a string that is not empty, got {describe(value)}")
        return value


def describe(value: object) -> str:
    """A value of a settings file in the words of its format.

    >>> describe(True), describe("x"), describe([1])
    ('true', "the string 'x'", 'an array')
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string '{value}'"
        case dict():
            return "a table"
        case list():
            return "an array"
    return f"the {type(value).__name__} {value}"


def _holds(document: Any, key: Key) -> bool:
    for name in key:
        if not isinstance(document, dict) or name not in document:
            return False
        document = document[name]
    return True


def _syntax_error(path: Path, text: str, message: str) -> str:
    """The parser's message, with the line it names in front."""
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if not found:
        return f"{_place(path)}: not valid TOML: {message}"
    line = int(found[1]) if found[1] else text.rstrip("\n").count("\n") + 1
    column = f" (column {found[2]})" if found[2] else ""
    return f"{_place(path, line)}: not valid TOML: {message[: found.start()]}{column}"


def _place(path: Path | None, line: int | None = None) -> str:
    name = FILE_NAME if path is None else shown(path)
    return name if line is None else f"{name}:{line}"


def shown(path: Path, directory: Path | None = None) -> str:
    """A path as a person reads it: relative to the working directory where it lies under it.

    Args:
        path: the path.
        directory: the working directory, where another one is entered for the moment.
    """
    try:
        here = Path.cwd() if directory is None else directory
        return os.fspath((here / path).relative_to(here))
    except (ValueError, OSError):
        return os.fspath(path)
