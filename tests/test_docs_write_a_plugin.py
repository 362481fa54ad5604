"""docs/write-a-plugin.md, followed to the letter in an empty directory: files written, commands run."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from docs_pages import ROOT, blocks

PAGE = ROOT / "docs" / "write-a-plugin.md"
ONE_EPOCH = "--trainer.max_epochs=1"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A virtual environment that sees what is installed here, and takes what is installed on top of it."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=False)
    (packages,) = (place / "lib").glob("python*/site-packages")
    seen = "; ".join(f"site.addsitedir({folder!r})" for folder in site.getsitepackages())
    (packages / "outer.pth").write_text(f"import site; {seen}\n")
    for command in ("leyden", "pip", "pytest"):
        script = place / "bin" / command
        script.write_text(f'#!/bin/sh\nexec "{place}/bin/python" -m {command} "$@"\n')
        script.chmod(0o755)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "PYTHON", "LEYDEN", "MLFLOW"))
    }
    return inherited | {
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one the other way round: the build tools are here
        "PIP_NO_DEPS": "1",
    }


@pytest.mark.slow
def test_the_page_leads_to_a_plugin_that_passes_the_kit(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    kit = ""
    for block in blocks(PAGE):
        assert block.reason is None, f"{block.place}: the page is followed whole"
        if block.title:
            path = folder / block.title
            assert path.exists(), f"{block.place}: the skeleton has no {block.title}"
            path.write_text(block.text)
            continue
        assert block.language == "console", block.place
        for line in block.text.splitlines():
            small = f"{line} {ONE_EPOCH}" if line.startswith("leyden fit") else line
            done = subprocess.run(
                ["bash", "-ec", small],
                cwd=folder,
                env=environment,
                text=True,
                capture_output=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{block.place}: {line}\n{done.stdout}\n{done.stderr}"
            kit = done.stdout if line.startswith("pytest") else kit
    assert " passed" in kit
    assert " failed" not in kit
    assert list((folder / "leyden-reports" / "robust_loss" / "noisy-digits").rglob("report.html"))


def test_the_page_replaces_every_file_that_the_placeholder_is_in() -> None:
    written = {Path(block.title).name for block in blocks(PAGE) if block.title}
    assert {"__init__.py", "robust_loss.py", "loss.py", "plugin.py", "claims.py", "digits.yaml"} <= written
