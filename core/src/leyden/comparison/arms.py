"""The arms of a comparison: the configuration as it is, and a configuration for each thing tried in it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leyden.claims import Scalar
from leyden.comparison import space
from leyden.comparison.document import configured
from leyden.configuration import callbacks_of, config_path, load_config, merged
from leyden.errors import LeydenError, UsageError, hint, unknown
from leyden.manager import Manager, Plugin
from leyden.model import Component, Space

BASELINE = "baseline"
SWAPPED = "leyden.comparison.swap.swapped"
"""The dotted path of the function that puts a component into a model, a ``class_path`` for LightningCLI."""

_PLACES = ("optimizer", "lr_scheduler", "callback")
_SUBCOMMAND_KEYS = ("ckpt_path", "weights_only", "verbose", "return_predictions")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One arm: a LightningCLI configuration, and what tuning may change in it.

    Attributes:
        name: the method's name in tables.
        document: the configuration.
        place: what distinguishes it, in words.
        space: what tuning may try, by short name.
        keys: the dotted key of the configuration that each short name stands for.
        defaults: the values of those where nothing is tuned; a name is left out where none is known.
        component: what is tried; None for the baseline.
        notes: what a reader should know, in sentences.
    """

    name: str
    document: Mapping[str, Any]
    place: str
    space: Mapping[str, Space] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Scalar] = field(default_factory=dict)
    component: Component | None = None
    notes: tuple[str, ...] = ()

    def configured(self, setting: Mapping[str, Scalar]) -> dict[str, Any]:
        """The configuration at a setting."""
        return configured(self.document, self.keys, setting)

    @property
    def slug(self) -> str:
        """The name as a file's or a tag's."""
        return re.sub(r"[^\w.-]+", "-", self.name).strip("-")


def read_configs(references: Sequence[str]) -> tuple[dict[str, Any], list[Path]]:
    """Read the files that ``--config`` names, as one configuration.

    Returns:
        The configuration, later files winning, and the files.

    Raises:
        UsageError: if a file is not there or is no configuration.
    """
    files = [config_path(reference) for reference in references]
    document: dict[str, Any] = {}
    for path in files:
        document = merged(document, load_config(path))
    if isinstance(own := document.pop("fit", None), Mapping):
        document = merged(document, own)
    if document.get("ckpt_path"):
        raise UsageError(
            f"ckpt_path '{document['ckpt_path']}': a comparison trains from the start; "
            "let the model load the weights that it starts from"
        )
    for key in _SUBCOMMAND_KEYS:
        document.pop(key, None)
    _check_devices(document.get("trainer") or {})
    for key in ("optimizer", "lr_scheduler", "model", "data"):
        if isinstance(document.get(key), str):
            document[key] = {"class_path": document[key]}
    names = ", ".join(map(str, references))
    if not isinstance(document.get("model"), Mapping):
        raise UsageError(f"--config {names}: the configuration has no 'model:'")
    for key in ("optimizer", "lr_scheduler", "model", "data"):
        node = document.get(key)
        if isinstance(node, Mapping) and not isinstance(node.get("class_path"), str):
            raise UsageError(f"--config {names}: '{key}:' names no class; it needs a class_path")
    return document, files


def _check_devices(trainer: Mapping[str, Any]) -> None:
    """Refuse more than one process a fit: the workers of a comparison cannot start further ones."""
    devices, nodes = trainer.get("devices", "auto"), trainer.get("num_nodes", 1)
    if str(devices) not in ("auto", "None", "1") and not (isinstance(devices, list) and len(devices) == 1):
        raise UsageError(f"trainer.devices: {devices}: each fit of a comparison has one device; write 1")
    if nodes != 1:
        raise UsageError(f"trainer.num_nodes: {nodes}: each fit of a comparison has one device; write 1")
    strategy = str(trainer.get("strategy"))
    if any(word in strategy for word in ("spawn", "fork", "notebook")):
        raise UsageError(
            f"trainer.strategy: {strategy}: it trains in a process of its own, and each fit of a comparison "
            "has one already; leave it out"
        )


def baseline(document: Mapping[str, Any], tune: Sequence[str]) -> Contender:
    """The configuration as it is.

    Args:
        document: the configuration.
        tune: what ``--tune`` says, ``key=low..high`` or ``key=a,b``.

    Raises:
        UsageError: if a key is not in the configuration or a range makes no sense.
    """
    arm = Contender(name=BASELINE, document=document, place="the configuration as it is")
    for text in tune:
        key, value, reach = space.parse_pair("--tune", text)
        if reach is None:
            raise UsageError(f"--tune {text}: expected key=low..high or key=a,b,c, got the one value {value}")
        dotted = "optimizer.init_args.lr" if key == "lr" else key
        if dotted in arm.keys.values():
            raise UsageError(f"--tune {text}: '{dotted}' is given twice")
        try:
            found = space.value_at(document, dotted)
        except LeydenError as error:
            raise UsageError(f"--tune {error}") from error
        arm = _with(arm, key, dotted, reach, found)
    if tune:
        return arm
    return _with_rate(arm, "optimizer", lead="No --tune was given") or (
        _with_rate(arm, "model", lead="No --tune was given")
        or replace(
            arm,
            notes=(
                "The baseline runs as it is: no --tune was given and the configuration has no learning rate.",
            ),
        )
    )


def contenders(
    base: Contender, tries: Sequence[Sequence[str]], plugins: Manager
) -> list[Contender | Refusal]:
    """The arms that ``--try`` asks for.

    Args:
        base: the baseline.
        tries: for each ``--try`` its words: ``PLUGIN[.COMPONENT]``, then ``key=value`` or ``key=low..high``.
        plugins: the installed plugins.

    Raises:
        UsageError: if there is no such plugin, component or argument, or two tries are the same.
    """
    parsed = [_Try.parse(words, plugins) for words in tries]
    arms: list[Contender | Refusal] = []
    for attempt in parsed:
        name = _distinct_name(attempt, parsed)
        if reason := _no_place(attempt.component, base):
            arms.append(Refusal(name=name, reason=reason))
        else:
            arms.append(_contender(name, attempt, base))
    names = [arm.name for arm in arms]
    for place, attempt in enumerate(parsed):
        if any(attempt.same(other) for other in parsed[:place]) or names[place] in names[:place]:
            raise UsageError(f"--try {' '.join(attempt.words)} is given twice")
    return arms


@dataclass(frozen=True)
class Refusal:
    """Something tried that does not apply to the configuration, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        """The refusal in words."""
        return f"{self.name} does not apply: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class _Try:
    words: tuple[str, ...]
    plugin: Plugin
    component: Component
    fixed: Mapping[str, Any]
    ranges: Mapping[str, Space]

    @classmethod
    def parse(cls, words: Sequence[str], plugins: Manager) -> _Try:
        name, dot, wanted = words[0].partition(".")
        plugin = plugins.plugin(name)
        component = _component(plugin, wanted if dot else "", words[0])
        fixed: dict[str, Any] = {}
        ranges: dict[str, Space] = {}
        known = list(space.parameters_of(component.path))[1 if component.kind in _PLACES[:2] else 0 :]
        for text in words[1:]:
            key, value, reach = space.parse_pair(f"--try {words[0]}", text)
            if key not in known:
                raise UsageError(
                    f"--try {words[0]} {text}: {component.path} has no argument '{key}'; {hint(key, known)}"
                )
            if key in fixed or key in ranges:
                raise UsageError(f"--try {words[0]} {text}: '{key}' is given twice")
            if reach is None:
                fixed[key] = value
            else:
                ranges[key] = reach
        return cls(words=tuple(words), plugin=plugin, component=component, fixed=fixed, ranges=ranges)

    @property
    def values(self) -> str:
        return " ".join(self.words[1:])

    def same(self, other: _Try) -> bool:
        """Whether both ask for the same, however they spell it."""
        mine, theirs = ((each.component.path, each.fixed, each.ranges) for each in (self, other))
        return mine == theirs


def _component(plugin: Plugin, wanted: str, given: str) -> Component:
    usable = {item.name: item for item in plugin.components if item.kind in _PLACES or item.swap}
    if wanted:
        every = {item.name: item for item in plugin.components}
        if wanted not in every:
            raise unknown("component", given, [f"{plugin.name}.{name}" for name in usable or every])
        return every[wanted]
    if len(usable) == 1:
        return next(iter(usable.values()))
    named = [f"{plugin.name}.{name}" for name in usable]
    if named:
        raise UsageError(f"--try {given}: the plugin has several components; name one: {', '.join(named)}")
    kinds = ", ".join(f"{item.name} ({item.kind})" for item in plugin.components) or "nothing"
    raise UsageError(
        f"--try {given}: nothing of this plugin has a place in somebody else's model, it brings {kinds}; "
        "write it in your module and compare configurations of it"
    )


def _no_place(component: Component, base: Contender) -> str:
    """Why a component has no place in a configuration; empty if it has one."""
    if component.kind not in _PLACES and not component.swap:
        return (
            f"a {component.kind} has no natural place in somebody else's model; write it in your module and "
            "compare configurations of it"
        )
    if component.kind == "lr_scheduler" and "optimizer" not in base.document:
        return (
            "a scheduler of the configuration needs 'optimizer:' there; this model makes its optimizer in "
            "configure_optimizers, and Lightning would ignore the scheduler"
        )
    return ""


def _contender(name: str, attempt: _Try, base: Contender) -> Contender:
    component, fixed = attempt.component, dict(attempt.fixed)
    if component.kind in ("optimizer", "lr_scheduler"):
        prefix, said = f"{component.kind}.init_args", f"{component.kind}: {component.path}"
        document = {**base.document, component.kind: {"class_path": component.path, "init_args": fixed}}
    elif component.kind == "callback":
        document, place = _with_callback(base.document, component.path, fixed)
        prefix, said = f"trainer.callbacks.{place}.init_args", f"callback: {component.path}"
    else:
        document = dict(base.document)
        inner = {"model": base.document["model"], "by": component.swap, "arguments": fixed}
        document["model"] = {"class_path": SWAPPED, "init_args": inner}
        prefix, said = "model.init_args.arguments", f"{component.kind} put in by {component.swap}"
    arm = Contender(name=name, document=document, place=said, component=component)
    arm = _inherited(arm, base)
    declared = {**component.search, **attempt.ranges}
    for key, reach in declared.items():
        if key not in fixed:
            default = space.parameters_of(component.path).get(key)
            arm = _with(
                arm,
                key if key not in arm.space else f"{component.kind}.{key}",
                f"{prefix}.{key}",
                reach,
                default,
            )
    if component.kind == "optimizer" and not declared and "lr" not in fixed:
        arm = _with_rate(arm, "optimizer", lead=f"{component.name} declares nothing to tune") or arm
    if not arm.space:
        arm = replace(arm, notes=(*arm.notes, f"{name} runs as it is: there is nothing to tune."))
    return arm


def _with_callback(
    document: Mapping[str, Any], path: str, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    """A configuration with one more callback, and where in the list it stands."""
    trainer = document.get("trainer") or {}
    given = callbacks_of(trainer)
    callbacks = [*given, {"class_path": path, "init_args": dict(arguments)}]
    return {**document, "trainer": {**trainer, "callbacks": callbacks}}, len(given)


def _inherited(arm: Contender, base: Contender) -> Contender:
    """Let an arm tune what the baseline tunes, as far as it has it; else the two were not treated alike."""
    assert arm.component is not None
    for name, reach in base.space.items():
        key = base.keys[name]
        if arm.component.kind == "optimizer" and (
            key.startswith("optimizer.") or space.is_learning_rate(key)
        ):
            continue
        if key.startswith(f"{arm.component.kind}."):
            continue
        if arm.document["model"].get("class_path") == SWAPPED and key.startswith("model."):
            key = f"model.init_args.{key}"
        default = base.defaults.get(name)
        arm = _with(arm, name, key, reach, default)
    return arm


def _with(arm: Contender, name: str, key: str, reach: Space, default: Any) -> Contender:
    known = isinstance(default, bool | int | float | str)
    return replace(
        arm,
        space={**arm.space, name: reach},
        keys={**arm.keys, name: key},
        defaults={**arm.defaults, **({name: default} if known else {})},
    )


def _with_rate(arm: Contender, place: str, *, lead: str) -> Contender | None:
    """The arm with its learning rate to tune, around its value; None where it has none."""
    node = arm.document.get(place)
    if not isinstance(node, Mapping):
        return None
    known = dict(node.get("init_args") or {})
    with contextlib.suppress(LeydenError):  # a class that cannot be imported is told by the first fit
        known = {**space.parameters_of(node["class_path"]), **known}
    found = space.learning_rate(known)
    if found is None:
        return None
    name, rate = found
    reach = space.around(rate)
    who = "the baseline" if arm.name == BASELINE else arm.name
    key = f"{place}.init_args.{name}"
    note = f"{lead}, so {who} is tuned over {key} from {reach.low:g} to {reach.high:g}."
    return replace(_with(arm, name, key, reach, rate), notes=(*arm.notes, note))


def _distinct_name(attempt: _Try, every: Sequence[_Try]) -> str:
    name = attempt.component.name
    rivals = [other for other in every if other is not attempt and other.component.name == name]
    if name == BASELINE or any(rival.component.path != attempt.component.path for rival in rivals):
        name = f"{attempt.plugin.name}.{name}"
    if any(rival.component.path == attempt.component.path for rival in rivals) and attempt.values:
        name = f"{name} {attempt.values}"
    return name
