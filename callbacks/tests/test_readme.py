from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from leyden_callbacks import plugin
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_python_blocks_run_in_order_with_the_callbacks_that_every_trainer_gets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LEYDEN_CALLBACKS")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "readme"}
    for index, block in enumerate(blocks("python")):
        exec(compile(block, f"README.md, block {index}", "exec"), names)
        if index == 0:
            learned = names["trainer"].lightning_module.layer.weight
            torch.testing.assert_close(learned, torch.ones_like(learned), atol=0.1, rtol=0)
    printed = capsys.readouterr().out
    assert len(re.findall(r"matching \d", printed)) == 6
    assert names["Sums"]().fingerprint()


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_blocks_configure_a_trainer(text: str) -> None:
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(Trainer, "trainer")
    made = parser.instantiate_classes(parser.parse_object(yaml.safe_load(text)))
    (callback,) = [
        one for one in made.trainer.callbacks if type(one).__module__.startswith("leyden_callbacks")
    ]
    assert isinstance(callback, Callback)
    for name, value in yaml.safe_load(text)["trainer"]["callbacks"][0].get("init_args", {}).items():
        assert getattr(callback, name) == value


def test_toml_blocks_name_options_that_exist() -> None:
    known = {option.name: option.type for option in plugin.leyden_options()}
    for text in blocks("toml"):
        options = tomllib.loads(text)["plugins"]["callbacks"]["options"]
        assert options
        assert all(isinstance(value, known[name]) for name, value in options.items())
