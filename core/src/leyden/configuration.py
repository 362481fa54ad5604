"""LightningCLI configurations: shipped ones by name, components by short name, values replaced."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

from leyden.errors import UsageError, hint
from leyden.manager import load_object, manager
from leyden.settings import shown

Key = tuple[str | int, ...]
PARSER_MODE = "leyden"
_CLASS_KEYS = (
    ("model",),
    ("data",),
    ("optimizer",),
    ("lr_scheduler",),
    ("trainer", "callbacks"),
    ("trainer", "logger"),
)
_REFERENCE = re.compile(r"[\w-]+/[\w.-]+")
_TAKES_PRECEDENCE = (
    "torch.nn",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
)


def config_path(reference: str) -> Path:
    """The file that ``--config`` names: a path, or ``NAME/CONFIG`` for a YAML that a plugin ships.

    Raises:
        UsageError: if there is no such file, plugin or configuration.
    """
    path = Path(reference)
    if path.is_file():
        return path
    if path.is_dir():
        raise UsageError(f"--config: '{reference}' is a folder, not a file")
    if _REFERENCE.fullmatch(reference):
        plugins = manager()
        name = reference.partition("/")[0]
        if name.replace("-", "_") in plugins.plugins or not path.parent.is_dir():
            return plugins.config(reference)
    siblings = [str(path.with_name(other.name)) for other in path.parent.glob("*.y*ml")]
    raise UsageError(f"--config: there is no file '{reference}'; {hint(reference, siblings)}")


def load_config(path: Path) -> dict[str, Any]:
    """Read a YAML as LightningCLI does, with the short names of components written out.

    Raises:
        UsageError: if it is not YAML, not a mapping, or gives a key twice; the text names the file and the
            line.
    """
    try:
        text = path.read_text()
        document = get_loader("yaml")(text)
        for name, first, second in _given_twice(yaml.compose(text, yaml.SafeLoader)):
            raise UsageError(f"{shown(path)}:{second}: '{name}' is given twice, first in line {first}")
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{shown(path)}{line}: not valid YAML: {error.problem}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{shown(path)}: cannot be read: {error}") from error
    if not isinstance(document, dict):
        given = "an empty file" if document is None else f"{document!r:.60}"
        raise UsageError(f"{shown(path)}: expected a mapping of keys to values, got {given}")
    return full_names(document)  # type: ignore[no-any-return]


def _given_twice(node: yaml.Node | None) -> Iterator[tuple[str, int, int]]:
    """The keys that a mapping has twice, of which YAML would keep the last: name, first and second line."""
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                yield key.value, lines[key.value], line
            yield from _given_twice(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _given_twice(item)


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some of its values replaced.

    Args:
        base: the configuration.
        overrides: new values: nested mappings, or dotted keys such as ``"optimizer.init_args.M"``. A new
            ``class_path`` drops the arguments of the old class. Below the first level a key is what it is,
            dots or no text at all.

    Returns:
        A new configuration; lists are replaced whole.

    >>> merged({"data": {"class_path": "A", "init_args": {"x": 1, "y": 2}}}, {"data.init_args.y": 3})
    {'data': {'class_path': 'A', 'init_args': {'x': 1, 'y': 3}}}
    """
    result = dict(base)
    for dotted, value in overrides.items():
        key, *below = str(dotted).split(".")
        for name in reversed(below):
            value = {name: value}
        result = _with_values(result, {key: value})
    return result


def _with_values(base: Mapping[Any, Any], values: Mapping[Any, Any]) -> dict[Any, Any]:
    """A mapping with some values replaced, mappings in it by their own keys."""
    result = dict(base)
    for key, new in values.items():
        if isinstance(new, Mapping):
            old = result.get(key)
            if isinstance(old, str):
                old = {"class_path": old}
            if not isinstance(old, Mapping) or new.get("class_path", old.get("class_path")) != old.get(
                "class_path"
            ):
                old = {}
            new = _with_values(old, new)
        result[key] = new
    return result


def callbacks_of(trainer: Mapping[str, Any]) -> list[Any]:
    """The callbacks in a configuration's ``trainer:``, where one alone needs no list."""
    given = trainer.get("callbacks") or []
    return given if isinstance(given, list) else [given]


def full_names(node: Any, key: Key = ()) -> Any:
    """Write out the short names of components in a configuration, where a class is named."""
    match node:
        case dict():
            return {name: full_names(value, (*key, name)) for name, value in node.items()}
        case list():
            return [full_names(item, key) for item in node]
        case str() if key and (key[-1] == "class_path" or key in _CLASS_KEYS):
            return _full_name(node)
    return node


def full_names_in_arguments(arguments: Sequence[str]) -> list[str]:
    """Write out the short names of components in command line arguments such as ``--optimizer SPSSafe``."""
    result: list[str] = []
    key: Key = ()
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if option.startswith("--"):
            key = tuple(option[2:].rstrip("+").removesuffix(".help").split("."))
            result.append(option + equals + full_names(value, key) if equals else option)
        else:
            result.append(full_names(argument, key))
            key = ()
    return result


def named_class(name: str) -> Any:
    """What a ``class_path`` names: a dotted path, a component, or a name of torch's or Lightning's own.

    Raises:
        LeydenError: if it cannot be imported.
        UsageError: if several components have that name.
    """
    for home in () if "." in name else _TAKES_PRECEDENCE:
        if hasattr(module := importlib.import_module(home), name):
            return getattr(module, name)
    return load_object(_full_name(name))


def _full_name(name: str) -> str:
    """The dotted path of a component; torch's and Lightning's own names stay as they are."""
    if "." in name or not name.isidentifier():
        return name
    component = manager().component(name)
    if component is None or any(hasattr(importlib.import_module(home), name) for home in _TAKES_PRECEDENCE):
        return name
    return component.path


def _load(text: str) -> Any:
    return full_names(get_loader("yaml")(text))


set_loader(PARSER_MODE, _load, (yaml.YAMLError,))
