from __future__ import annotations

from pathlib import Path

import pytest
import torch
from leyden_datamodules import PythonDocs


def test_targets_are_the_tokens_one_place_on() -> None:
    docs = PythonDocs(length=16)
    for tokens, targets in docs.splits.values():
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        assert torch.equal(tokens[1:, 0], targets[:-1, -1])


def test_windows_spell_the_text_of_their_split() -> None:
    docs = PythonDocs(length=16, tokens="characters")
    for split, (tokens, _) in docs.splits.items():
        spelt = docs.decode(tokens.flatten())
        assert docs.texts[split].startswith(spelt) or docs.vocabulary[0] in spelt


def test_validation_and_test_text_does_not_stand_in_the_training_text() -> None:
    texts = PythonDocs().texts
    seen = {texts["train"][i : i + 100] for i in range(len(texts["train"]) - 99)}
    for split in ("val", "test"):
        text = texts[split]
        assert len(text) > 15_000
        assert not [i for i in range(0, len(text) - 99, 10) if text[i : i + 100] in seen]


@pytest.mark.parametrize("tokens", ["bytes", "characters"])
def test_decoding_undoes_encoding(tokens: str) -> None:
    docs = PythonDocs(tokens=tokens)  # type: ignore[arg-type]
    text = docs.texts["train"][:3000]
    encoded = docs.encode(text)
    assert docs.decode(encoded) == text
    assert encoded.max() < docs.num_tokens


def test_the_vocabulary_of_characters_comes_from_the_training_text_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcabcabcabcabcabcabc" + "xyzxyzxyz", encoding="utf-8")
    docs = PythonDocs(root=tmp_path, tokens="characters", length=2, val_fraction=0.0, test_fraction=0.3)
    assert docs.vocabulary[1:] == ("a", "b", "c")
    assert docs.test[0].eq(0).all()
    assert "val" not in docs.splits
    assert docs.val_dataloader() == []


def test_a_stride_gives_overlapping_training_windows_alone() -> None:
    apart, overlapping = PythonDocs(length=64), PythonDocs(length=64, stride=1)
    assert len(overlapping.train[0]) > 60 * len(apart.train[0])
    assert torch.equal(overlapping.train[0][64], apart.train[0][1])
    assert torch.equal(overlapping.val[0], apart.val[0])


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "2.txt").write_text("zwei" * 20, encoding="utf-8")
    (tmp_path / "1.txt").write_text("eins" * 20, encoding="utf-8")
    docs = PythonDocs(root=tmp_path, length=2, subset=100)
    assert "".join(docs.texts.values()) == ("eins" * 20 + "\n\n" + "zwei" * 20)[:100]


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"root: there is no file '.*\*\.txt'"):
        PythonDocs(root=tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"latin\.txt: expected UTF-8"):
        PythonDocs(root=tmp_path).setup()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length: expected a whole number of at least 1, got 0"),
        ({"tokens": "words"}, "tokens: expected 'bytes' or 'characters', got 'words'"),
        ({"stride": 0}, "stride: expected"),
        ({"val_fraction": 1.0}, "val_fraction: expected a number of at least 0 and less than 1, got 1.0"),
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "val_fraction, test_fraction: expected a sum below 1"),
    ],
)
def test_wrong_arguments_fail_at_construction(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PythonDocs(**options)  # type: ignore[arg-type]


def test_a_text_too_short_for_a_window_is_named() -> None:
    with pytest.raises(ValueError, match="length: expected less than the 50 tokens of the val text, got 128"):
        PythonDocs(subset=1000).setup()
