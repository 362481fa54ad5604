"""The Python blocks of a README run in its order, in an empty working directory; YAML names what exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
READMES = sorted(
    path
    for pattern in ("*.md", "core/*.md", "callbacks/*.md", "datamodules/*.md", "plugins/*/*.md")
    for path in ROOT.glob(pattern)
)


def blocks(readme: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", readme.read_text(), re.MULTILINE | re.DOTALL)


def name_of(readme: Path) -> str:
    return str(readme.relative_to(ROOT))


@pytest.mark.parametrize("readme", [path for path in READMES if blocks(path, "python")], ids=name_of)
def test_python_blocks_run_one_after_another(
    readme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, source in enumerate(blocks(readme, "python"), 1):
        exec(compile(source, f"{name_of(readme)}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("readme", [path for path in READMES if blocks(path, "yaml")], ids=name_of)
def test_yaml_blocks_name_classes_that_exist(readme: Path) -> None:
    def walk(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(path := node.get("class_path"), str) and "." in path:
                module, _, name = path.rpartition(".")
                if module.startswith(("leyden", "torch", "lightning")):
                    assert hasattr(importlib.import_module(module), name), f"{path} does not exist"
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    for source in blocks(readme, "yaml"):
        document = yaml.safe_load(source)
        assert isinstance(document, dict), f"not a mapping: {source}"
        walk(document)
