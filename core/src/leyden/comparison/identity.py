"""What a comparison's numbers depend on, so that a resumed one adopts only what is the same."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leyden.comparison.arms import Contender
from leyden.results import code_version


def identity(arms: Sequence[Contender], budget: Mapping[str, Any]) -> str:
    """A hash of the configurations, the search spaces, the budget and the code.

    Args:
        arms: the arms.
        budget: trials, seeds, metric and mode.

    Returns:
        Letters and digits. The code is that of Leyden, of the plugins tried, and of the modules in the
        working directory that the configuration names.
    """
    said = [
        [
            arm.name,
            arm.document,
            {name: str(space) for name, space in arm.space.items()},
            arm.keys,
            arm.defaults,
        ]
        for arm in arms
    ]
    code = {
        path: code_version(path) for path in sorted({arm.component.path for arm in arms if arm.component})
    }
    own = {name: _content(name) for name in sorted(set(_modules(arms[0].document)))}
    text = json.dumps([said, dict(budget), code, own], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _modules(node: Any) -> Iterator[str]:
    """The top modules of the classes that a configuration names."""
    if isinstance(node, Mapping):
        if isinstance(path := node.get("class_path"), str) and "." in path:
            yield path.partition(".")[0]
        for value in node.values():
            yield from _modules(value)
    elif isinstance(node, list):
        for item in node:
            yield from _modules(item)


def _content(module: str) -> str:
    """A hash of a module's sources where it is the user's own; empty for what is installed."""
    digest = hashlib.sha256()
    files = list(_own_files(module))
    for path in files:
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest() if files else ""


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
