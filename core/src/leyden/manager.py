"""Which plugins are installed and what they contribute.

Each entry point is loaded, registered and asked in its own try: a plugin that fails is named in one line and
everything else works. Nothing heavy is imported; a dotted path is imported when it is used.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from leyden import hookspecs
from leyden.errors import LeydenError, UsageError, hint, one_line, unknown
from leyden.model import (
    CAPABILITIES,
    KINDS,
    LEYDEN_API,
    Check,
    Component,
    Option,
    Paper,
    Range,
    Run,
    RunResult,
)
from leyden.settings import FILE_NAME, PluginSettings, Settings, describe, load_settings

if TYPE_CHECKING:
    from leyden.claims import Claim

GROUP = "leyden"
_log = logging.getLogger("leyden")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("leyden_"))
_Item = TypeVar("_Item")
_TYPES_IN_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_warned: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """An installed plugin and what it contributes.

    Attributes:
        name: its name, that of its entry point.
        entry_point: where it is installed.
        enabled: False where plugins.toml turns it off; it is not even imported then.
        paper: the paper it implements; None for a shared package.
        components: what it contributes.
        claims: dotted paths of its claims.
        option_specs: the settings it reads.
        check_specs: its checks for ``leyden doctor``.
        configs: the YAML files it ships, by name.
        error: why it cannot be used, in one line; None where it can.
    """

    name: str
    entry_point: EntryPoint = field(repr=False)
    enabled: bool = True
    paper: Paper | None = None
    components: tuple[Component, ...] = ()
    claims: tuple[str, ...] = ()
    option_specs: tuple[Option, ...] = ()
    check_specs: tuple[Check, ...] = ()
    configs: Mapping[str, Path] = field(default_factory=dict)
    error: str | None = None

    @property
    def module(self) -> str:
        """Dotted path of the module that implements its hooks."""
        return self.entry_point.module

    @functools.cached_property
    def distribution(self) -> str:
        """Name of the distribution that it is installed from."""
        return self.entry_point.dist.name if self.entry_point.dist else ""

    @functools.cached_property
    def version(self) -> str:
        """Version of that distribution."""
        return self.entry_point.dist.version if self.entry_point.dist else ""

    @property
    def title(self) -> str:
        """The plugin and where it comes from, in a few words for an error."""
        return f"plugin '{self.name}' ({self.distribution} {self.version})"


class Manager:
    """The plugins of one process; built by `discover`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.plugins: dict[str, Plugin] = {}
        self.problems: list[str] = []
        self.missing: list[str] = []
        self._hooks = pluggy.PluginManager(GROUP)
        self._hooks.add_hookspecs(hookspecs)
        self._options: dict[str, dict[str, Any]] = {}

    @property
    def active(self) -> list[Plugin]:
        """The plugins that are on and work, by name."""
        return [plugin for plugin in self.plugins.values() if plugin.enabled and plugin.error is None]

    def plugin(self, name: str) -> Plugin:
        """The plugin of that name; dashes count as underscores.

        Raises:
            UsageError: if there is none, or it is turned off.
            LeydenError: if it is installed and cannot be used.
        """
        found = self.plugins.get(name) or self.plugins.get(name.replace("-", "_"))
        if found is None:
            raise unknown("plugin", name, self.plugins)
        if not found.enabled:
            raise UsageError(f"plugin '{found.name}' is turned off in {FILE_NAME}")
        if found.error is not None:
            raise LeydenError(found.error)
        return found

    def config(self, reference: str) -> Path:
        """The YAML file that ``NAME/CONFIG`` names, such as ``"sps_safe/digits"``.

        Raises:
            UsageError: if there is no such plugin or configuration.
        """
        name, slash, config = reference.partition("/")
        plugin = self.plugin(name)
        if not slash or not config:
            raise UsageError(
                f"'{reference}' names no configuration; {hint(config, _under(plugin, plugin.configs))}"
            )
        config = config.removesuffix(".yaml")
        if config not in plugin.configs:
            raise unknown("configuration", f"{plugin.name}/{config}", _under(plugin, plugin.configs))
        return plugin.configs[config]

    def components(self) -> list[tuple[Plugin, Component]]:
        """Every component of every plugin that is on."""
        return [(plugin, component) for plugin in self.active for component in plugin.components]

    def component(self, name: str) -> Component | None:
        """The component of that short name; None if there is none.

        Raises:
            UsageError: if several have it.
        """
        found = {component.path: component for _, component in self.components() if component.name == name}
        if len(found) > 1:
            raise UsageError(f"'{name}' is ambiguous; write " + " or ".join(f"'{path}'" for path in found))
        return next(iter(found.values()), None)

    def claim(self, plugin: str, name: str) -> type[Claim]:
        """The claim of that plugin and name.

        Raises:
            UsageError: if there is no such plugin or claim.
            LeydenError: if the module that holds it cannot be imported.
        """
        found = self.plugin(plugin)
        claims, problems = _load_claims(found)
        if name not in claims:
            if problems:
                raise LeydenError(problems[0])
            raise unknown("claim", f"{found.name}/{name}", _under(found, claims))
        return claims[name]

    def claims(self) -> list[tuple[Plugin, type[Claim]]]:
        """Every claim of every plugin that is on; one that cannot be imported is added to ``problems``."""
        found: list[tuple[Plugin, type[Claim]]] = []
        for plugin in self.active:
            claims, problems = _load_claims(plugin)
            found += [(plugin, claim) for claim in claims.values()]
            self.problems += [problem for problem in problems if problem not in self.problems]
        return found

    def options(self, plugin: str) -> dict[str, Any]:
        """The plugin's options: those of plugins.toml, and the defaults of the rest."""
        return dict(self._options[self.plugin(plugin).name])

    def checks(self) -> list[tuple[Plugin, Check]]:
        """The plugins' own checks for ``leyden doctor``."""
        return [(plugin, check) for plugin in self.active for check in plugin.check_specs]

    def callback_paths(self) -> list[str]:
        """Dotted paths of the callbacks that every Trainer gets; a hook that fails is one line of warning."""
        paths: list[str] = []
        for plugin in self.active:
            try:
                paths += self._ask(
                    plugin, "leyden_callbacks", _dotted, options=dict(self._options[plugin.name])
                )
            except Exception as error:
                warn_once(f"{plugin.title}: leyden_callbacks: {one_line(error)}")
        return list(dict.fromkeys(paths))

    def run_start(self, run: Run) -> None:
        """Tell every plugin that a run starts; a hook that raises is one line of warning."""
        self._tell("leyden_run_start", run=run)

    def run_end(self, run: Run, result: RunResult) -> None:
        """Tell every plugin that a run ended; a hook that raises is one line of warning."""
        self._tell("leyden_run_end", run=run, result=result)

    def _tell(self, hook: str, **arguments: object) -> None:
        for plugin in self.active:
            try:
                self._call(plugin, hook, **arguments)
            except Exception as error:
                warn_once(f"{plugin.title}: {hook} raised {one_line(error)}")

    def _call(self, plugin: Plugin, hook: str, **arguments: object) -> Any:
        """Call one plugin's implementation of a hook; None where it has none."""
        for implementation in getattr(self._hooks.hook, hook).get_hookimpls():
            if implementation.plugin_name == plugin.name:
                return implementation.function(*(arguments[name] for name in implementation.argnames))
        return None

    def _ask(
        self, plugin: Plugin, hook: str, check: Callable[[object], _Item], **arguments: object
    ) -> tuple[_Item, ...]:
        """Call one plugin's implementation of a hook that returns several things, each checked."""
        answer = self._call(plugin, hook, **arguments)
        if answer is None:
            return ()
        if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
            raise TypeError(f"expected a list, got {type(answer).__name__} {answer!r:.60}")
        return tuple(check(item) for item in answer)

    def _add(self, entry_point: EntryPoint, said: PluginSettings) -> None:
        """Load and register one plugin, ask it what it contributes, and check the answers."""
        plugin = Plugin(name=entry_point.name, entry_point=entry_point, enabled=said.enabled)
        self.plugins[plugin.name] = plugin
        if not plugin.enabled:
            return
        step = "cannot be imported"
        try:
            module = entry_point.load()
            step = "is not a plugin"
            _check_module(module)
            self._hooks.register(module, plugin.name)
            for caller in self._hooks.get_hookcallers(module) or ():
                if caller.spec is None:
                    raise TypeError(f"there is no hook '{caller.name}'; {hint(caller.name, _HOOKS)}")
            step = "leyden_paper"
            paper = self._call(plugin, "leyden_paper")
            if not isinstance(paper, Paper | None):
                raise TypeError(f"expected a Paper or None, got {type(paper).__name__} {paper!r:.60}")
            step = "leyden_components"
            components = self._ask(plugin, step, _component)
            step = "leyden_claims"
            claims = self._ask(plugin, step, _dotted)
            step = "leyden_options"
            options = self._ask(plugin, step, _option)
            step = "leyden_checks"
            checks = self._ask(plugin, step, _check)
        except (Exception, SystemExit) as error:
            self._fail(plugin, f"{step}: {one_line(error)}")
            return
        self._options[plugin.name] = _resolved(self.settings, said, options)
        self.plugins[plugin.name] = Plugin(
            name=plugin.name,
            entry_point=entry_point,
            paper=paper,
            components=components,
            claims=claims,
            option_specs=options,
            check_specs=checks,
            configs=_configs(module),
        )

    def _fail(self, plugin: Plugin, why: str) -> None:
        """Keep a plugin as one that cannot be used."""
        error = f"{plugin.title} {why}"
        if self._hooks.has_plugin(plugin.name):
            self._hooks.unregister(name=plugin.name)
        self.plugins[plugin.name] = Plugin(name=plugin.name, entry_point=plugin.entry_point, error=error)
        self.problems.append(error)


def discover(settings: Settings | None = None) -> Manager:
    """Find the installed plugins.

    Args:
        settings: what plugins.toml says; read from the working directory by default.

    Returns:
        A manager; plugins that cannot be used are in its ``problems``.

    Raises:
        UsageError: if plugins.toml is wrong.
    """
    settings = load_settings() if settings is None else settings
    manager = Manager(settings)
    by_name: dict[str, list[EntryPoint]] = {}
    for entry_point in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        by_name.setdefault(entry_point.name, []).append(entry_point)
    for name, found in by_name.items():
        said = _settings_of(name, settings)
        if len(found) > 1 and said.enabled:
            homes = " and ".join(
                f"{entry.dist.name} {entry.dist.version} ({entry.module})" for entry in found if entry.dist
            )
            error = f"{len(found)} plugins have the name '{name}': {homes}; uninstall all but one"
            manager.plugins[name] = Plugin(name=name, entry_point=found[0], error=error)
            manager.problems.append(error)
        else:
            manager._add(found[0], said)
    for name, said in settings.plugins.items():
        if said.enabled and said not in [_settings_of(found, settings) for found in by_name]:
            manager.missing.append(str(settings.error(("plugins", name), _how_to_install(said, by_name))))
    return manager


@functools.cache
def manager() -> Manager:
    """The plugins of this process, found at the first call from the working directory of that moment."""
    return discover()


def warn_once(line: str) -> None:
    """Warn in one line, once a process."""
    if line not in _warned:
        _warned.add(line)
        _log.warning("leyden: %s", line)


def load_object(path: str) -> Any:
    """Import what a dotted path names.

    Raises:
        LeydenError: if it cannot be imported; the text names the path and the reason.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        raise LeydenError(f"cannot import '{path}': {one_line(error)}") from error


def _under(plugin: Plugin, names: Iterable[str]) -> list[str]:
    return [f"{plugin.name}/{name}" for name in names]


def _check_module(module: object) -> None:
    """Refuse a module for another hook API, and hooks that pluggy would overlook."""
    api = getattr(module, "LEYDEN_API", None)
    if api is None:
        raise TypeError(f"it states no LEYDEN_API; this Leyden has LEYDEN_API = {LEYDEN_API}")
    if api != LEYDEN_API:
        raise TypeError(f"it is written for LEYDEN_API {api}; this Leyden has LEYDEN_API {LEYDEN_API}")
    for name in _HOOKS:
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, f"{GROUP}_impl"):
            raise TypeError(f"{name} lacks the decorator @hookimpl")


def _dotted(item: object) -> str:
    if not isinstance(item, str) or not _DOTTED.fullmatch(item):
        raise TypeError(f"expected dotted paths, got {item!r:.60}")
    return item


def _component(item: object) -> Component:
    if not isinstance(item, Component):
        raise TypeError(f"expected Component, got {item!r:.60}")
    _dotted(item.path)
    if item.kind not in KINDS:
        raise ValueError(f"{item.path}: unknown kind '{item.kind}'; {hint(str(item.kind), KINDS)}")
    for capability in item.supports:
        if capability not in CAPABILITIES:
            raise ValueError(
                f"{item.path}: unknown capability '{capability}'; {hint(capability, CAPABILITIES)}"
            )
    for name, space in item.search.items():
        if not isinstance(space, Range) and not (isinstance(space, tuple) and space):
            raise TypeError(f"{item.path}: search of '{name}' must be a Range or a tuple, got {space!r:.60}")
    if item.swap:
        _dotted(item.swap)
    return item


def _option(item: object) -> Option:
    if not isinstance(item, Option):
        raise TypeError(f"expected Option, got {item!r:.60}")
    if item.type not in (bool, int, float, str):
        raise TypeError(f"option '{item.name}': expected the type bool, int, float or str, got {item.type!r}")
    if not _fits(item, item.default):
        raise TypeError(f"option '{item.name}': its default {item.default!r} is not a {item.type.__name__}")
    return item


def _check(item: object) -> Check:
    if not isinstance(item, Check):
        raise TypeError(f"expected Check, got {item!r:.60}")
    _dotted(item.function)
    return item


def _fits(option: Option, value: object) -> bool:
    if option.type is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is option.type


def _settings_of(name: str, settings: Settings) -> PluginSettings:
    """What plugins.toml says of a plugin; dashes count as underscores."""
    for said in settings.plugins.values():
        if said.name.replace("-", "_") == name.replace("-", "_"):
            return said
    return PluginSettings(name)


def _resolved(settings: Settings, plugin: PluginSettings, options: tuple[Option, ...]) -> dict[str, Any]:
    """The options of a plugin, those of plugins.toml checked against what the plugin reads."""
    specs = {option.name: option for option in options}
    values: dict[str, Any] = {option.name: option.default for option in options}
    for key, value in plugin.options.items():
        path = ("plugins", plugin.name, "options", key)
        if key not in specs:
            raise settings.error(path, f"plugin '{plugin.name}' has no such option; {hint(key, specs)}")
        if not _fits(specs[key], value):
            expected = _TYPES_IN_WORDS[specs[key].type]
            raise settings.error(path, f"expected {expected}, got {describe(value)}")
        values[key] = float(value) if specs[key].type is float else value
    return values


def _configs(module: Any) -> dict[str, Path]:
    """The YAML files beside a plugin's module; a module outside a package has none."""
    package = getattr(module, "__package__", "") or ""
    file = getattr(module, "__file__", None)
    if not package or not file:
        return {}
    return {path.stem: path for path in sorted(Path(file).parent.glob("configs/*.yaml"))}


def _load_claims(plugin: Plugin) -> tuple[dict[str, type[Claim]], list[str]]:
    """A plugin's claims by name, and one line for each that cannot be used."""
    from leyden.claims import Claim

    claims: dict[str, type[Claim]] = {}
    problems: list[str] = []
    for path in plugin.claims:
        try:
            claim = load_object(path)
            if not isinstance(claim, type) or not issubclass(claim, Claim):
                raise TypeError(f"{path} is not a subclass of leyden.Claim")
            if lacking := [name for name in Claim.__annotations__ if not hasattr(claim, name)]:
                raise TypeError(f"{path} lacks {', '.join(lacking)}")
            if claim.name in claims:
                raise ValueError(f"two claims have the name '{claim.name}'")
        except LeydenError as error:
            problems.append(f"{plugin.title}: {error}")
        except Exception as error:
            problems.append(f"{plugin.title}: {one_line(error)}")
        else:
            claims[claim.name] = claim
    return claims, problems


def _how_to_install(said: PluginSettings, installed: Iterable[str]) -> str:
    if said.path is not None:
        return f"not installed; run 'pip install -e {said.path}'"
    if said.requirement is not None:
        return f"not installed; run 'pip install \"{said.requirement}\"'"
    return f"not installed; {hint(said.name, installed)}"
