"""Every code block of the documentation and the READMEs is run, or says why it is not.

The blocks of a page run one after another in a folder that was empty before the first:

- ``python``: in one namespace. With ``title="FILE"`` it is written to that file instead.
- ``yaml``: as ``leyden fit --config`` takes it, for one batch; what a fragment leaves out comes from a small
  classifier. One for several processes is built, and not run. With ``title="FILE"`` it is written as well.
- ``console``: line by line. What would take minutes is made small: see `SMALL`. ``make TARGET`` must exist,
  and ``leyden ui`` is stopped when it has said where it serves.
- ``toml``: is a plugins.toml, and names plugins and options that exist.
- ``text``: shows an output, a layout, or the forms of commands; ``leyden COMMAND`` in it must exist.

A block after ``<!-- not run: REASON -->`` is left alone. Any other block fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from leyden import cli, tracking
from leyden.configuration import merged
from leyden.lightning import LeydenCLI, fit_config
from leyden.manager import discover, manager
from leyden.settings import read_settings

sys.path.append(str(Path(__file__).parent))

from docs_pages import PAGES, ROOT, Block, blocks, name_of

TESTED_ELSEWHERE = {
    "docs/clusters.md": "core/tests/test_cluster_commands.py",
    "docs/write-a-plugin.md": "tests/test_docs_write_a_plugin.py",
}
"""Pages whose blocks another test takes from the page and runs."""

SMALL = {
    "fit": ["--trainer.max_epochs=1", "--trainer.enable_progress_bar=false"],
    "reproduce": ["--scale=smoke", "--jobs=1"],
    "compare": ["--trials=1", "--seeds=1", "--jobs=1"],
}
"""What is added to a command of that name, after its own arguments."""

_reproduced: set[tuple[str, ...]] = set()
"""Claims that an earlier page has run; they depend on no page, and are not run again."""

CLASSIFIER: dict[str, Any] = {
    "model": {
        "class_path": "leyden.tasks.Classification",
        "init_args": {
            "backbone": {"class_path": "leyden.tasks.mlp", "init_args": {"sizes": [64, 16, 10]}},
            "num_classes": 10,
        },
    },
    "data": {"class_path": "leyden_datamodules.Digits"},
    "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
    "trainer": {"accelerator": "cpu", "devices": 1, "logger": False},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; what was imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for variable in ("MLFLOW_TRACKING_URI", "LEYDEN_CALLBACKS"):
        monkeypatch.delenv(variable, raising=False)
    manager.cache_clear()
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    yield tmp_path
    end_tracking()
    manager.cache_clear()
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("page", [path for path in PAGES if blocks(path)], ids=name_of)
def test_every_block_runs_or_says_why_not(page: Path, folder: Path) -> None:
    if name_of(page) in TESTED_ELSEWHERE:
        pytest.skip(f"run by {TESTED_ELSEWHERE[name_of(page)]}")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.reason is None:
            run(block, namespace)


@pytest.mark.parametrize("page", [path for path in PAGES if blocks(path)], ids=name_of)
def test_every_block_has_a_language_that_a_rule_covers(page: Path) -> None:
    for block in blocks(page):
        if block.reason is None:
            assert block.language in RULES, (
                f"{block.place}: no rule runs '{block.language}'; give its language or say why it is not run"
            )
        else:
            assert len(block.reason) > 5, f"{block.place}: say why it is not run"
    assert len(blocks(page)) * 2 == page.read_text().count("```"), f"{name_of(page)}: a fence is not closed"


@pytest.mark.parametrize(("page", "test"), TESTED_ELSEWHERE.items())
def test_pages_tested_elsewhere_are_tested_there(page: str, test: str) -> None:
    assert Path(page).name in (ROOT / test).read_text()


def run(block: Block, namespace: dict[str, Any]) -> None:
    if block.title:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(block.text)
    try:
        RULES[block.language](block, namespace)
    except Exception as error:
        error.add_note(f"in {block.place}")
        raise


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    code = compile(block.text, block.place, "exec")
    if not block.title:
        exec(code, namespace)


def run_yaml(block: Block, namespace: dict[str, Any]) -> None:
    document = yaml.safe_load(block.text)
    assert isinstance(document, dict), f"not a mapping: {block.text}"
    config = merged(CLASSIFIER, document)
    if "configure_optimizers" in block.text:  # said in a comment: the module brings its own
        config.pop("optimizer")
    if config["trainer"].get("devices", 1) != 1:
        made = LeydenCLI(args={**config, "seed_everything": False}, run=False)
        assert made.trainer.num_devices == config["trainer"]["devices"]
        return
    fit_config(merged(config, {"trainer.fast_dev_run": True, "trainer.logger": False}))


def run_console(block: Block, namespace: dict[str, Any]) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        elif words[:2] == ["leyden", "ui"]:
            serve_and_stop([sys.executable, "-m", *words, "--no-open"])
        elif words[0] == "leyden" and not set(words) & {"&&", "|", ">"}:
            if words[1] == "reproduce" and tuple(words) in _reproduced:
                continue
            _reproduced.add(tuple(words))
            manager.cache_clear()
            status = cli.main([*words[1:], *SMALL.get(words[1], [])])
            end_tracking()
            assert status == 0, f"{block.place}: '{line}' ended with {status}"
        else:
            assert words[0] != "pip", f"{block.place}: say that '{line}' is not run, and why"
            subprocess.run(["bash", "-ec", line], check=True, timeout=300)


def end_tracking() -> None:
    """Ship what was logged, as the end of a process does."""
    if (session := tracking._process_session) is not None:
        session.close()


def serve_and_stop(command: list[str]) -> None:
    """Start what serves until it is stopped, and stop it once it has said where."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            said = next((line for line in server.stdout if "http://127.0.0.1" in line), "")
            server.terminate()  # a job in the background is deaf to Ctrl-C
            server.communicate(timeout=60)
        finally:
            server.kill()
    assert said
    assert server.returncode in (0, 143)


def read_toml(block: Block, namespace: dict[str, Any]) -> None:
    tomllib.loads(block.text)
    if block.title not in ("", "plugins.toml"):
        return
    path = Path("plugins.toml")
    path.write_text(block.text)
    found = discover(read_settings(path))
    assert not found.problems
    assert not found.missing


def check_text(block: Block, namespace: dict[str, Any]) -> None:
    for command in re.findall(r"^leyden ([a-z][\w|]*)", block.text, re.MULTILINE):
        for name in command.split("|"):
            assert name in commands(), f"{block.place}: there is no command 'leyden {name}'"


def commands() -> list[str]:
    parser: argparse.ArgumentParser = cli._parser()
    return cli._commands(parser)


RULES = {
    "python": run_python,
    "yaml": run_yaml,
    "console": run_console,
    "toml": read_toml,
    "text": check_text,
}
