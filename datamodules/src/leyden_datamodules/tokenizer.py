"""How text becomes tokens: bytes, characters, or byte pairs learned from the training text."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from leyden.errors import LeydenError
from torch import Tensor

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Character of token 0 in a vocabulary of characters: one that the training text lacks."""


class Tokenizer(Protocol):
    """Encodes text as int64 tokens and back."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """What each token stands for."""

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, int64 of shape ``(tokens,)``."""

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens."""


class Bytes:
    """The bytes of UTF-8; what is no UTF-8 is decoded as replacement characters."""

    vocabulary = tuple(map(chr, range(256)))

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, int64 of shape ``(tokens,)``."""
        return torch.tensor(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64))

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens."""
        return bytes(tokens.tolist()).decode(errors="replace")


class Characters:
    """The characters of a text, and one token for all others.

    Args:
        text: whose characters are the vocabulary.
    """

    def __init__(self, text: str) -> None:
        self.vocabulary = (UNKNOWN, *sorted(set(text) - {UNKNOWN}))

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, int64 of shape ``(tokens,)``."""
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        known = np.array([ord(character) for character in self.vocabulary[1:]], dtype=np.uint32)
        places = np.minimum(np.searchsorted(known, codes), len(known) - 1)
        return torch.from_numpy(np.where(known[places] == codes, places + 1, 0).astype(np.int64))

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens."""
        return "".join(self.vocabulary[token] for token in tokens.tolist())


class BytePairs:
    """Byte pairs: the 256 bytes, and the pairs that a text joins most often; needs `tokenizers`.

    Args:
        text: from which the pairs are learned.
        size: of the vocabulary; a text that has too few pairs gives fewer tokens.

    Raises:
        LeydenError: if `tokenizers` is not installed.
    """

    def __init__(self, text: str, size: int) -> None:
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        except ImportError as error:
            raise LeydenError(
                "tokens='bpe' needs tokenizers: pip install 'leyden-datamodules[bpe]'"
            ) from error
        self.huggingface: HuggingFaceTokenizer = Tokenizer(models.BPE())
        self.huggingface.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.huggingface.decoder = decoders.ByteLevel()
        self.huggingface.train_from_iterator(
            [text],
            trainers.BpeTrainer(
                vocab_size=size,
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                show_progress=False,
            ),
        )

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The text of each token; of a part of a character, a replacement character."""
        return tuple(self.huggingface.decode([token]) for token in range(self.huggingface.get_vocab_size()))

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, int64 of shape ``(tokens,)``."""
        return torch.tensor(self.huggingface.encode(text).ids, dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens."""
        decoded: str = self.huggingface.decode(tokens.tolist())
        return decoded
