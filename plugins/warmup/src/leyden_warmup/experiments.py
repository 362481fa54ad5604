"""Models and data on which the claims try the warm-up; configurations can name them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from leyden.arguments import check_at_least
from leyden.tasks import mlp
from leyden_datamodules import TensorDataModule
from torch import Tensor, nn


def scaled_mlp(sizes: list[int], gain: float = 1.0, activation: str = "relu") -> nn.Sequential:
    """A multilayer perceptron whose initial weights are torch's, times a gain: large ones need a warm-up.

    Args:
        sizes: the width of the input, of every hidden layer and of the output.
        gain: the factor of all initial weights and biases, above 0.
        activation: as for `leyden.tasks.mlp`.

    Returns:
        The module.

    Raises:
        ValueError: if an argument is out of its range.
    """
    if not gain > 0:
        raise ValueError(f"gain: expected a number above 0, got {gain!r}")
    model = mlp(sizes, activation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(gain)
    return model


class MarkovText(TensorDataModule):
    """Random text in which the next token depends on the two before it.

    Two transition tables are drawn with the seed; half of the time the next token follows the first from the
    last token, half of the time the second from the last but one. No model gets below the entropy of that
    mixture.

    Args:
        tokens: size of the vocabulary, at least 2.
        length: tokens of a sequence, at least 2.
        train_size: training sequences.
        val_size: validation sequences.
        test_size: test sequences.
        batch_size: sequences a batch.
        sharpness: how far the tables are from uniform; the scale of their normal logits.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the tables, the text and the order.

    Raises:
        ValueError: if a number is out of its range.
    """

    def __init__(
        self,
        *,
        tokens: int = 32,
        length: int = 24,
        train_size: int = 4800,
        val_size: int = 500,
        test_size: int = 500,
        batch_size: int = 32,
        sharpness: float = 2.0,
        shuffle: bool = True,
        drop_last: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        for name, value, least in (
            ("tokens", tokens, 2),
            ("length", length, 2),
            ("train_size", train_size, 1),
            ("val_size", val_size, 1),
            ("test_size", test_size, 1),
        ):
            check_at_least(name, value, least)
        self.tokens = tokens
        self.length = length
        self.sizes = {"train": train_size, "val": val_size, "test": test_size}
        self.sharpness = sharpness

    def load(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Draw the tables and the text."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (2, self.tokens, self.tokens)
        tables = (self.sharpness * torch.randn(shape, generator=generator)).softmax(dim=-1)
        rows = sum(self.sizes.values())
        text = torch.randint(self.tokens, (rows, self.length + 1), generator=generator)
        for place in range(2, self.length + 1):
            chances = (tables[0][text[:, place - 1]] + tables[1][text[:, place - 2]]) / 2
            text[:, place] = torch.multinomial(chances, 1, generator=generator).squeeze(1)
        parts = torch.split(text, list(self.sizes.values()))
        return {name: (part[:, :-1], part[:, 1:]) for name, part in zip(self.sizes, parts, strict=True)}
