"""Every Python block of a README runs as it stands, in an empty working directory."""

from __future__ import annotations

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


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for path in READMES:
        for number, block in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        ):
            found.append((f"{path.relative_to(ROOT)}:{number}", block))
    return found


@pytest.mark.parametrize(
    ("where", "source"), blocks("python"), ids=lambda value: value if ":" in str(value)[:60] else ""
)
def test_python_blocks_run(where: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(source, where, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("where", "source"), blocks("yaml"), ids=lambda value: value if ":" in str(value)[:60] else ""
)
def test_yaml_blocks_name_classes_that_exist(where: str, source: str) -> None:
    def walk(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(path := node.get("class_path"), str) and "." in path:
                module, _, name = path.rpartition(".")
                if module.startswith(("leyden", "torch", "lightning")):
                    assert hasattr(__import__(module, fromlist=[name]), name), (
                        f"{where}: {path} does not exist"
                    )
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    document = yaml.safe_load(source)
    assert isinstance(document, dict), f"{where} is not a mapping"
    walk(document)
