"""Random last layers: inputs, logits and a momentum as in a network in the middle of its training."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from leyden_harm.last_layer import harm_margins, last_layer_gram


class LastLayer(NamedTuple):
    """A batch as the last layer sees it.

    Attributes:
        h: inputs, shape ``(batch, features)``, not negative, as after a ReLU.
        delta: gradients of the samples' cross-entropies by the logits, shape ``(batch, classes)``.
        history: a momentum of the weight, shape ``(classes, features)``.
    """

    h: Tensor
    delta: Tensor
    history: Tensor


def last_layer(
    batch: int, seed: int, *, features: int = 64, classes: int = 10, momentum: float = 0.05
) -> LastLayer:
    """A random last layer: four samples in five are learned, the others are not.

    Args:
        batch: number of samples.
        seed: seed of the draw.
        features: width of the layer's input.
        classes: number of classes.
        momentum: standard deviation of the history's entries; 0 is none.

    Returns:
        The layer, in float64.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    h, logits = normal(batch, features).relu(), 3 * normal(batch, classes)
    labels = torch.randint(classes, (batch,), generator=generator)
    learned = torch.rand(batch, generator=generator) < 0.8
    targets = torch.nn.functional.one_hot(labels, classes).to(logits.dtype)
    delta = (logits + 4 * learned.to(logits.dtype).unsqueeze(1) * targets).softmax(1) - targets
    return LastLayer(h, delta, momentum * normal(classes, features))


def box_problem(batch: int, seed: int, *, momentum: float = 0.05) -> tuple[Tensor, Tensor]:
    """The Gram matrix and the margins of a random last layer under SGD with momentum.

    Args:
        batch: number of samples.
        seed: seed of the draw.
        momentum: as of `last_layer`.

    Returns:
        K and s0, in float64.
    """
    drawn = last_layer(batch, seed, momentum=momentum)
    K = last_layer_gram(drawn.h, drawn.delta)
    return K, harm_margins(drawn.h, drawn.delta, K, history_W=drawn.history)
