"""What is wrong with a configuration, in one line: file, line, key, what was given, what would do.

jsonargparse answers a wrong key with fifty lines, and its wording changes with its version. What it means is
in the chain of exceptions behind; where a key stands is in the files. Where neither tells, its own words are
kept.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from leyden.configuration import named_class
from leyden.errors import LeydenError, UsageError, unknown
from leyden.manager import load_object, manager
from leyden.settings import shown

Key = tuple[str | int, ...]
_KINDS = {
    "model": "module",
    "data": "datamodule",
    "optimizer": "optimizer",
    "lr_scheduler": "lr_scheduler",
    "trainer.callbacks": "callback",
}
_HOMES = {
    "optimizer": "torch.optim",
    "lr_scheduler": "torch.optim.lr_scheduler",
    "trainer.callbacks": "lightning.pytorch.callbacks",
    "trainer.logger": "lightning.pytorch.loggers",
}


@dataclass(frozen=True)
class Place:
    """Where a value was written.

    Attributes:
        where: file and line, ``"digits.yaml:7: "``; empty for a value of the command line.
        key: the whole key, ``"optimizer.init_args.M"``, or the option, ``"--optimizer.M"``.
        class_path: the class whose argument it is; empty where it is none or not known.
    """

    where: str
    key: str
    class_path: str = ""

    def __str__(self) -> str:
        return f"{self.where}{self.key}: " if self.key else self.where


@dataclass
class Sources:
    """Where the values of a configuration were written.

    Attributes:
        files: configuration files, the last one winning.
        arguments: the command line, which wins over the files.
        document: a whole configuration given as a mapping, which may replace values of the files.
        directory: the working directory; jsonargparse enters that of each file while it reads it.
    """

    files: list[Path] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    document: Mapping[str, Any] | None = None
    directory: Path = field(default_factory=Path.cwd)

    def place(self, keys: Sequence[str]) -> Place:
        """Find a value from the keys that lead to it, outermost first; levels between may be left out."""
        parts = [part for key in keys for part in key.split(".") if part]
        found = [_find(node, parts, self.shown(path)) for path, node in self._documents()]
        in_file = next((place for place in found if place), None)
        if in_file is None and self.document is not None:
            root = yaml.compose(yaml.safe_dump(self.document), yaml.SafeLoader)
            if root and (place := _find(root, parts, "")):
                return place
        for argument in self.arguments:
            option = argument.partition("=")[0]
            names = option.lstrip("-").rstrip("+").split(".")
            if parts and option.startswith("--") and _leads_to(names, parts):
                return Place(
                    "", option.rstrip("+"), in_file.class_path if in_file else self._class_at(parts[:-1])
                )
        if in_file is None and parts[-1:] == ["class_path"]:  # a class may be named without that key
            return self.place(parts[:-1])
        return in_file or Place("", ".".join(parts))

    def shown(self, path: Path) -> str:
        """A file as the user named it."""
        return shown(path, self.directory)

    def _class_at(self, parts: Sequence[str]) -> str:
        """The class that is named at a key."""
        for option, value in zip(self.arguments, [*self.arguments[1:], ""], strict=True):
            name, equals, own = option.partition("=")
            if name.startswith("--") and name[2:].removesuffix(".class_path").split(".") == list(parts):
                return own if equals else value
        for _, node in self._documents():
            below = _descend(node, parts)
            if below and (class_path := _child(below[1], "class_path")):
                return str(class_path.value)
        return ""

    def _documents(self) -> Iterator[tuple[Path, yaml.Node]]:
        for path in reversed(self.files):
            try:
                node = yaml.compose((self.directory / path).read_text(), yaml.SafeLoader)
            except (OSError, UnicodeDecodeError, yaml.YAMLError):
                continue
            if node is not None:
                yield path, node


def parser_error(
    message: str, cause: BaseException | None, sources: Sources, names: Sequence[str]
) -> UsageError:
    """Turn what the parser says into one line.

    Args:
        message: the parser's message.
        cause: the exception behind it; those behind that say more and more exactly what is wrong.
        sources: where the values were written.
        names: every key that the parser knows.
    """
    texts = [message]
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__
    keys = list(
        dict.fromkeys(
            key for text in texts for key in re.findall(r'^Parser key "([^"]+)"', text) if key != "config"
        )
    )
    for index, text in reversed(list(enumerate(texts))):
        if meaning := _meaning(text, keys, sources, names, around=texts[max(0, index - 1)]):
            return UsageError(meaning)
    return UsageError(f"{sources.place(keys)}{' '.join(message.split()):.300}")


def constructor_error(error: BaseException, config: Mapping[str, Any], sources: Sources) -> UsageError:
    """Turn what a constructor raised into one line that names the constructor's key.

    Args:
        error: what was raised; of it and its causes the first that passed through a constructor is what that
            one said.
        config: the resolved configuration.
        sources: where the values were written.
    """
    named = list(_classes(config))
    for said in _chain(error):
        text = " ".join(str(said).split()) or type(said).__name__
        for constructed in _under_construction(said):
            for key, class_path, arguments in named:
                if _is(class_path, constructed):
                    place = sources.place([*key, *_guilty(text, arguments)])
                    return UsageError(f"{place}{class_path}: {text}")
    return UsageError(f"{sources.place(['trainer', *_guilty(text, config.get('trainer') or {})])}{text}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, its cause, the cause of that, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def _meaning(text: str, keys: list[str], sources: Sources, names: Sequence[str], *, around: str) -> str:
    """One line for a text that is understood, else nothing; the text around it may tell further types."""
    file = sources.shown(sources.files[-1]) if sources.files else "--config"
    if found := re.search(r"Group '([^']+)' does not accept option '([^']+)'", text):
        return _unknown_key([f"{found[1]}.{found[2]}"], sources, names)
    if found := re.search(r"[Oo]ption '([^']+)'(?: is not accepted|$)", text):
        return _unknown_key([*keys, found[1]], sources, names)
    if found := re.search(r"[Kk]ey [\"']([\w.]+)[\"'] (?:is not expected|to check)", text):
        return _unknown_key([*keys, found[1]], sources, names)
    if found := re.search(r"unrecognized arguments: ([^\s=]+)", text):
        if Path(found[1]).is_file():
            return f"unknown argument '{found[1]}'; did you mean '--config {found[1]}'?"
        return f"unknown argument '{found[1]}'{_near(found[1], [f'--{name}' for name in names])}"
    if found := re.search(r"Expected a dot import path string: (\S+)", text):
        return f"{sources.place([*keys, 'class_path'])}{_unknown_component(found[1], keys)}"
    if found := re.search(r"Problem with given class_path '([^']+)':\s*(.+)", text, re.DOTALL):
        reason = " ".join(found[2].split())
        place = sources.place([*keys, "class_path"])
        return f"{place}cannot import '{found[1]}': {reason}{_near(*_module_names(found[1]))}"
    if found := re.search(r"the following arguments are required: (.+)", text):
        missing = re.sub(r"\b(fit|validate|test|predict)\.", "", found[1])
        return f"{sources.place(keys)}required and not given: {missing}"
    if found := re.search(r"Import path (\S+) does not correspond to a subclass of (\w+)", text):
        return f"{sources.place([*keys, 'class_path'])}'{found[1]}' is not a {found[2]}"
    if found := re.search(r"Not a valid subclass of (\w+)\W+Got value: (.+)", text):
        return f"{sources.place(keys)}expected the class_path of a {found[1]}, got {found[2]:.80}"
    if found := re.search(r"Given value: (.*)|Got value: (.*)", text):
        value = found[1] or found[2]
        whole = around if f"Given value: {value}" in around else text
        if f"Expected a dot import path string: {value}\n" in whole:
            return f"{sources.place([*keys, 'class_path'])}{_unknown_component(value, keys)}"
        if reason := _import_error(value, sources):
            return f"{sources.place([*keys, 'class_path'])}{reason}"
        types, choices = _types(whole)
        return f"{sources.place(keys)}expected {types}, got '{value:.80}'{_near(value, choices)}"
    if lines := re.findall(r'in "<[^>]+>", line (\d+)', text):
        reason = [line for line in text.splitlines() if " line " not in line][-1].strip()
        return f"{file}:{lines[-1]}: not valid YAML: {reason}"
    if found := re.search(r"Unexpected config: (.*)", text):
        return f"{file}: expected a mapping of keys to values, got '{found[1]:.60}'"
    return ""


def _unknown_component(name: str, keys: Sequence[str]) -> str:
    key = keys[0] if len(keys) == 1 else ""
    kind = _KINDS.get(key)
    components = [item.name for _, item in manager().components() if kind in (None, item.kind)]
    if near := _near(
        name, [*components, *(dir(importlib.import_module(_HOMES[key])) if key in _HOMES else ())]
    ):
        return f"unknown component '{name}'{near}"
    return f"{unknown('component', name, components)}; a class of your own needs its module, 'module.{name}'"


def _unknown_key(keys: list[str], sources: Sources, names: Sequence[str]) -> str:
    if len(keys) == 1:  # a key of the parser itself: blame the first level that it does not know
        parts = keys[0].split(".")
        levels = [".".join(parts[: count + 1]) for count in range(len(parts))]
        known = [level for level in levels if any(f"{name}.".startswith(f"{level}.") for name in names)]
        keys = [next((level for level in levels if level not in known), keys[0])]
    place = sources.place(keys)
    if not place.class_path:
        return f"{place}unknown key{_near('.'.join(keys), names)}"
    try:
        arguments = list(inspect.signature(named_class(place.class_path)).parameters)
    except (LeydenError, TypeError, ValueError):
        arguments = []
    return f"{place}{place.class_path} has no such argument{_near(keys[-1], arguments)}"


def _near(name: str, known: Sequence[str]) -> str:
    """The nearest valid names, for a name among too many to list."""
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    return "; did you mean " + " or ".join(f"'{choice}'" for choice in near) + "?" if near else ""


def _module_names(path: str) -> tuple[str, list[str]]:
    """The last name of a dotted path, and the names that its module has, where that is imported."""
    module, _, name = path.rpartition(".")
    return name, dir(sys.modules[module]) if module in sys.modules else []


def _import_error(value: str, sources: Sources) -> str:
    """Why a class that a value names, alone or by ``class_path``, cannot be imported; empty if all can."""
    for path in re.findall(r"'class_path': '([\w.]+)'", value) or [value]:
        module = path.rpartition(".")[0]
        if not module or not all(part.isidentifier() for part in path.split(".")):
            continue
        try:
            load_object(path)
        except LeydenError as error:
            return f"{error}{_raised_in(error.__cause__, sources)}"
    return ""


def _raised_in(error: BaseException | None, sources: Sources) -> str:
    """The file and the line of the user's code that raised an error."""
    trace = error.__traceback__ if error else None
    place = ""
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(sources.directory):
            place = f" ({sources.shown(file)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _types(text: str) -> tuple[str, list[str]]:
    """The types that a text names, in words, and the single values that it allows."""
    words = {"NoneType": "null", "str": "a string", "bool": "true or false", "int": "an integer"}
    words |= {"float": "a number", "dict": "a mapping", "list": "a list"}
    subtypes = re.search(r"^\s*Subtypes: \[(.*)\]", text, re.MULTILINE)
    whole = subtypes[1] if subtypes else text
    found = re.findall(r"<class '([\w.]+)'>|(list)\[|Literal\[([^\]]*)\]", whole)
    choices = [choice.strip("' ") for *_, literals in found for choice in literals.split(",") if choice]
    choices = list(dict.fromkeys(choices))
    types = dict.fromkeys((type_ or list_).rpartition(".")[2] for type_, list_, _ in found if type_ or list_)
    names = [*(f"'{choice}'" for choice in choices), *(words.get(name, name) for name in types)]
    return " or ".join(names) or "something else", choices


def _leads_to(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the parts stand in the names in this order, the last one last."""
    last = names[-1] == parts[-1] or (parts[-1] == "class_path" and names[-1] == (parts[-2:-1] or [""])[0])
    rest = iter(names)
    return last and all(part in rest for part in parts if part != "class_path")


def _find(root: yaml.Node, parts: Sequence[str], file: str) -> Place | None:
    """Find a value in a YAML document, and the class that has it among its ``init_args``."""
    found = _descend(root, parts)
    if found is None or not found[0]:
        return None
    key, _, line, owners = found
    class_path = ""
    if len(owners) > 1 and len(key) > 1 and key[-2] == "init_args":
        named = _child(owners[-2], "class_path")
        class_path = str(named.value) if named else ""
    return Place(f"{file}:{line}: " if file else "", ".".join(map(str, key)), class_path)


def _descend(root: yaml.Node, parts: Sequence[str]) -> tuple[Key, yaml.Node, int, list[yaml.Node]] | None:
    """Follow keys down a document, each to the nearest mapping below that has it.

    Returns:
        The whole key, the value's node, the key's line and the mappings passed; None if a key is nowhere.
    """
    key: Key = ()
    node, line = root, root.start_mark.line + 1
    owners: list[yaml.Node] = []
    for part in parts:
        queue: list[tuple[Key, yaml.Node, list[yaml.Node]]] = [((), node, [])]
        while queue:
            below, candidate, passed = queue.pop(0)
            if isinstance(candidate, yaml.MappingNode):
                children = [(name.value, name.start_mark.line + 1, value) for name, value in candidate.value]
                match = next((child for child in children if child[0] == part), None)
                if match:
                    key, line, node = (*key, *below, part), match[1], match[2]
                    owners += [*passed, candidate]
                    break
                queue += [((*below, name), value, [*passed, candidate]) for name, _, value in children]
            elif isinstance(candidate, yaml.SequenceNode):
                queue += [((*below, index), item, passed) for index, item in enumerate(candidate.value)]
        else:
            return None
    return key, node, line, owners


def _child(node: yaml.Node, name: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for key, value in pairs if key.value == name), None)


def _classes(config: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """Every class that a configuration names: its key, its path and its arguments."""
    if isinstance(config, Mapping):
        if isinstance(path := config.get("class_path"), str):
            yield key, path, dict(config.get("init_args") or {})
        for name, value in config.items():
            yield from _classes(value, (*key, str(name)))
    elif isinstance(config, list):
        for item in config:
            yield from _classes(item, key)


def _guilty(text: str, arguments: Mapping[str, Any]) -> list[str]:
    """The argument that a text speaks of, by its name or else by its value; none if it is not clear."""
    guilty = [name for name in arguments if _has_word(text, name)] or [
        name for name, value in arguments.items() if _has_word(text, str(value))
    ]
    return guilty if len(guilty) == 1 else []


def _has_word(text: str, word: str) -> bool:
    return bool(re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text)) if word else False


def _under_construction(error: BaseException) -> Iterator[object]:
    """The classes and functions whose call raised an error, the innermost first."""
    frames: list[FrameType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        if frame.f_code.co_name == "__init__" and "self" in frame.f_locals:
            yield type(frame.f_locals["self"])
        else:
            yield frame.f_globals.get(frame.f_code.co_name)


def _is(class_path: str, constructed: object) -> bool:
    try:
        return constructed is not None and load_object(class_path) is constructed
    except LeydenError:
        return False
