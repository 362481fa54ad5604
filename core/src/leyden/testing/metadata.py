"""What a plugin owes as a package: what it says of itself is true, and listing it costs nothing."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from leyden.claims import SCALES, Claim
from leyden.errors import LeydenError
from leyden.manager import Plugin, load_object
from leyden.model import Component, Kind
from leyden.testing.documentation import docstring
from leyden.testing.kit import OWED, Case, Subject

HEAVY = ("torch", "lightning", "pytorch_lightning", "mlflow")
LONGEST_SUMMARY = 120


def metadata_cases(plugin: Plugin, callbacks: list[str], also: set[str]) -> Iterator[Case]:
    """The cases of a plugin as a package.

    Args:
        plugin: the plugin.
        callbacks: dotted paths of the callbacks that it gives to every Trainer.
        also: names of checks that are not in `leyden.testing.kit.OWED`.

    Yields:
        A case for each thing that a package owes.
    """
    for name, text, find in (
        ("entry-point", "The entry point has the name of the package.", lambda: entry_point(plugin)),
        ("paper", "The paper's fields are filled.", lambda: paper(plugin)),
        ("components", "Every component is what it says.", lambda: components(plugin, also)),
        ("dotted-paths", "What its other hooks name exists.", lambda: dotted_paths(plugin, callbacks)),
        ("claims", "Every claim describes itself.", lambda: claims(plugin)),
        ("public-names", "Public names load lazily; a misspelt one raises.", lambda: public_names(plugin)),
        ("documented", "Every public name explains its arguments.", lambda: documented(plugin)),
        ("typed", "The package says that it is typed.", lambda: typed(plugin)),
        ("import-budget", "Listing it imports nothing heavy.", lambda: import_budget(plugin)),
    ):
        yield Case(plugin.name, name, text, find)


def entry_point(plugin: Plugin) -> Iterator[str]:
    """The entry point ``NAME`` is the module ``leyden_NAME.plugin`` or ``NAME.plugin``."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", plugin.name):
        yield f"the entry point's name '{plugin.name}' is not in lower case letters, digits and underscores"
    if plugin.module not in (f"leyden_{plugin.name}.plugin", f"{plugin.name}.plugin"):
        yield f"the entry point '{plugin.name}' names the module '{plugin.module}', not its own '.plugin'"


def paper(plugin: Plugin) -> Iterator[str]:
    """A plugin has a paper with all its fields, or none at all."""
    if plugin.paper is None:
        return
    for field in ("title", "venue", "summary"):
        if not getattr(plugin.paper, field).strip():
            yield f"Paper.{field} is empty"
    yield from _one_line("Paper.summary", plugin.paper.summary)
    if not isinstance(plugin.paper.authors, tuple) or not plugin.paper.authors:
        yield "Paper.authors is not a tuple of names"
    elif not all(isinstance(author, str) and author.strip() for author in plugin.paper.authors):
        yield "Paper.authors holds something else than names"
    for field in ("url", "code"):
        address = getattr(plugin.paper, field)
        if (address or field == "url") and not address.startswith(("https://", "http://")):
            yield f"Paper.{field} is no web address: '{address}'"


def components(plugin: Plugin, also: set[str]) -> Iterator[str]:
    """Components have one summary line, distinct names, and import as what their kind says."""
    names = [component.name for component in plugin.components]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two components have the name '{name}'"
    for component in plugin.components:
        yield from _one_line(f"{component.name}: summary", component.summary)
        known = {owed.name for owed in OWED if component.kind in owed.kinds} | also
        for check, reason in component.exempt.items():
            if check not in known:
                yield f"{component.name}: exempt names the check '{check}', which a {component.kind} has not"
            if not reason.strip():
                yield f"{component.name}: exempt gives no reason for '{check}'"
        if len(set(component.supports)) != len(component.supports):
            yield f"{component.name}: supports says something twice"
        for path in (component.path, component.example, component.trial, component.swap):
            if path:
                yield from _importable(component.name, path)
        yield from _of_its_kind(component)
        yield from _search(component)


def dotted_paths(plugin: Plugin, callbacks: list[str]) -> Iterator[str]:
    """Contributed callbacks are Callbacks without arguments; checks and their functions exist."""
    for path in callbacks:
        problems = list(_importable("leyden_callbacks", path))
        yield from problems
        if problems:
            continue
        try:
            callback = load_object(path)()
        except Exception as error:
            yield f"leyden_callbacks: {path}() raises {type(error).__name__}: {error}"
            continue
        if not isinstance(callback, Callback):
            yield f"leyden_callbacks: {path}() makes a {type(callback).__name__}, not a Callback"
    for check in plugin.check_specs:
        yield from _one_line(f"check '{check.name}': name", check.name)
        yield from _importable(f"check '{check.name}'", check.function)
    for option in plugin.option_specs:
        yield from _one_line(f"option '{option.name}': summary", option.summary)


def claims(plugin: Plugin) -> Iterator[str]:
    """Claims import, are complete, have distinct names, and distinct statements of a known kind."""
    names: list[str] = []
    for path in plugin.claims:
        problems = list(_importable("leyden_claims", path))
        yield from problems
        if problems:
            continue
        claim = load_object(path)
        if not isinstance(claim, type) or not issubclass(claim, Claim):
            yield f"leyden_claims: {path} is no subclass of leyden.Claim"
            continue
        lacking = [name for name in Claim.__annotations__ if not hasattr(claim, name)]
        if lacking:
            yield f"{path} lacks {', '.join(lacking)}"
            continue
        names.append(claim.name)
        yield from _one_line(f"{path}: title", claim.title)
        if not claim.source.strip():
            yield f"{path}: source does not say where the paper makes the claim"
        ids = [statement.id for statement in claim.statements]
        if not ids:
            yield f"{path} has no statements"
        if len(set(ids)) != len(ids):
            yield f"{path}: two statements have one id: {', '.join(sorted(ids))}"
        for what in ("minutes", "seeds"):
            missing = [scale for scale in SCALES if scale not in getattr(claim, what)]
            if missing:
                yield f"{path}: {what} says nothing for {', '.join(missing)}"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two claims have the name '{name}'"


def public_names(plugin: Plugin) -> Iterator[str]:
    """The package lists its public names in ``__all__``, gives each, and raises for a misspelt one."""
    package = _package(plugin)
    names = getattr(package, "__all__", None)
    if not names:
        yield f"'{package.__name__}' has no __all__"
        return
    for name in names:
        try:
            getattr(package, name)
        except Exception as error:
            yield f"'{package.__name__}.{name}' raises {type(error).__name__}: {error}"
    misspelt = f"{names[0]}_misspelt"
    try:
        getattr(package, misspelt)
    except AttributeError as error:
        if misspelt not in str(error):
            yield f"the error for '{package.__name__}.{misspelt}' does not name it: {error}"
    except Exception as error:
        yield f"'{package.__name__}.{misspelt}' raises {type(error).__name__}, not AttributeError"
    else:
        yield f"'{package.__name__}.{misspelt}' exists: a misspelt name is not noticed"
    for component in plugin.components:
        home, _, name = component.path.rpartition(".")
        if home == package.__name__ and name not in names:
            yield f"component '{component.path}' is not in '{home}.__all__'"


def documented(plugin: Plugin) -> Iterator[str]:
    """Every public class and function explains its arguments; components have a check of their own."""
    package = _package(plugin)
    components = {component.path for component in plugin.components}
    for name in getattr(package, "__all__", ()):
        path = f"{package.__name__}.{name}"
        public = getattr(package, name, None)
        if path not in components and (isinstance(public, type) or inspect.isfunction(public)):
            kind: Kind = "layer" if isinstance(public, type) else "function"
            subject = Subject(Component(kind=kind, path=path, summary=name))
            yield from (f"{name}: {text}" for text in docstring(subject))


def typed(plugin: Plugin) -> Iterator[str]:
    """The package ships ``py.typed``, so that type checkers read its annotations."""
    if not (_folder(plugin) / "py.typed").is_file():
        yield f"'{_package(plugin).__name__}' has no file py.typed"


def import_budget(plugin: Plugin) -> Iterator[str]:
    """Importing the package, its plugin and its claims, and asking its hooks, imports nothing heavy."""
    modules = [_package(plugin).__name__, plugin.module]
    modules += dict.fromkeys(path.rpartition(".")[0] for path in plugin.claims)
    answer = subprocess.run(
        [sys.executable, "-c", _IMPORT_BUDGET, json.dumps([sys.path, modules, HEAVY])],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if answer.returncode:
        yield f"importing {', '.join(modules)} fails: {answer.stderr.strip().splitlines()[-1]}"
        return
    for module, heavy in json.loads(answer.stdout.splitlines()[-1]).items():
        yield f"importing '{module}' (and asking its hooks) imports {', '.join(heavy)}"


_IMPORT_BUDGET = """
import importlib, inspect, json, sys
sys.path, modules, heavy = json.loads(sys.argv[1])
found = {}
for name in modules:
    before = set(sys.modules)
    module = importlib.import_module(name)
    for hook, function in list(vars(module).items()):
        if hook.startswith("leyden_") and hasattr(function, "leyden_impl"):
            wanted = inspect.signature(function).parameters
            if hook in ("leyden_run_start", "leyden_run_end") or set(wanted) - {"options"}:
                continue
            list(function(**{key: {} for key in wanted}) or ()) if hook != "leyden_paper" else function()
    new = [name for name in heavy if name in sys.modules and name not in before]
    if new:
        found[name] = new
print(json.dumps(found))
"""


def _of_its_kind(component: Component) -> Iterator[str]:
    try:
        target = load_object(component.path)
    except LeydenError:
        return  # said already
    base = _BASES.get(component.kind)
    if component.kind == "function":
        if not callable(target) or isinstance(target, type):
            yield f"{component.name}: a function is expected, {component.path} is a {_in_words(target)}"
    elif component.kind == "metric":
        from torchmetrics import Metric

        base = Metric
    if base is not None and not (isinstance(target, type) and issubclass(target, base)):
        yield (
            f"{component.name}: kind '{component.kind}' asks for a subclass of {base.__name__}, "
            f"{component.path} is a {_in_words(target)}"
        )


def _search(component: Component) -> Iterator[str]:
    """What tuning may try is an argument of the component."""
    with contextlib.suppress(LeydenError, TypeError, ValueError):  # what cannot be imported is said already
        parameters = inspect.signature(load_object(component.path)).parameters
        for name in component.search:
            if name not in parameters:
                yield f"{component.name}: search names '{name}', which is no argument of it"


_BASES: dict[str, type] = {
    "optimizer": Optimizer,
    "callback": Callback,
    "module": LightningModule,
    "datamodule": LightningDataModule,
    "layer": nn.Module,
    "loss": nn.Module,
    "lr_scheduler": LRScheduler,
}


def _in_words(target: Any) -> str:
    if isinstance(target, type):
        return "subclass of " + ", ".join(base.__name__ for base in target.__bases__)
    return "function" if inspect.isroutine(target) else type(target).__name__


def _importable(what: str, path: str) -> Iterator[str]:
    try:
        found = load_object(path)
    except LeydenError as error:
        yield f"{what}: {error}"
        return
    if not callable(found):
        yield f"{what}: {path} is a {type(found).__name__}, nothing to call"


def _one_line(what: str, text: str) -> Iterator[str]:
    if not text.strip() or "\n" in text or len(text) > LONGEST_SUMMARY:
        yield f"{what} is not one line of 1 to {LONGEST_SUMMARY} characters: {text!r:.60}"


def _package(plugin: Plugin) -> ModuleType:
    return importlib.import_module(plugin.module.partition(".")[0])


def _folder(plugin: Plugin) -> Path:
    return Path(str(_package(plugin).__file__)).parent
