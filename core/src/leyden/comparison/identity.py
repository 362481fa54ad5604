"""What a comparison's numbers depend on, so that a resumed one adopts only what is the same."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from leyden.comparison.arms import Contender
from leyden.results import code_version


def identity(arms: Sequence[Contender], budget: Mapping[str, Any]) -> str:
    """A hash of the configurations, the search spaces, the budget and the code.

    Args:
        arms: the arms.
        budget: trials, seeds, metric and mode.

    Returns:
        Letters and digits. The code is that of Leyden, of the plugins tried, and of the modules in the
        working directory that the configuration names, with what they import of it.
    """
    said = [
        [
            arm.name,
            yaml.safe_dump(dict(arm.document)),  # its keys may be numbers, too
            {name: str(space) for name, space in arm.space.items()},
            arm.keys,
            arm.defaults,
        ]
        for arm in arms
    ]
    code = {
        path: code_version(path) for path in sorted({arm.component.path for arm in arms if arm.component})
    }
    own = _own_code(set(_modules(arms[0].document)))
    text = json.dumps([said, dict(budget), code, own], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _modules(node: Any) -> Iterator[str]:
    """The top modules of what a configuration names by dotted paths."""
    if isinstance(node, Mapping):
        for value in node.values():
            yield from _modules(value)
    elif isinstance(node, list):
        for item in node:
            yield from _modules(item)
    elif isinstance(node, str) and "." in node and all(part.isidentifier() for part in node.split(".")):
        yield node.partition(".")[0]


def _own_code(modules: set[str]) -> dict[str, str]:
    """A hash of the sources of each module that is the user's own, and of those that these import."""
    found: dict[str, str] = {}
    seen, waiting = set(modules), sorted(modules)
    while waiting:
        name = waiting.pop()
        digest = hashlib.sha256()
        files = list(_own_files(name))
        for path in files:
            source = path.read_bytes()
            digest.update(f"{path.name}\0".encode() + source)
            new = set(_imported(source)) - seen
            seen |= new
            waiting += sorted(new)
        if files:
            found[name] = digest.hexdigest()
    return found


def _imported(source: bytes) -> Iterator[str]:
    """The top modules that a source imports, wherever in it; none where it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _own_files(module: str) -> Iterator[Path]:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return
    for place in (spec.submodule_search_locations or [spec.origin or ""]) if spec else []:
        path = Path(place)
        if not path.is_relative_to(Path.cwd()) or "site-packages" in path.parts:
            continue
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]
