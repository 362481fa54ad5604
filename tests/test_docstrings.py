"""Every example in a docstring shows what happens."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path
    for pattern in ("core/src", "callbacks/src", "datamodules/src", "plugins/*/src")
    for source in ROOT.glob(pattern)
    for path in source.rglob("*.py")
    if ">>> " in path.read_text()
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[parts.index("src") + 1 :]).removesuffix(".__init__")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: module_of(path))
def test_examples_of_docstrings_are_true(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tried = doctest.testmod(importlib.import_module(module_of(path)))
    assert tried.attempted > 0
    assert tried.failed == 0
