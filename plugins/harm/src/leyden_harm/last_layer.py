"""Per-sample gradients of a linear layer through their inner products, never one by one.

With input h_i and gradient δ_i of the sample's loss by the layer's output, the gradient of sample i is δ_i
h_iᵀ by the weight and δ_i by the bias (summed over positions, where the layer sees a sequence). Reconstructed
from the abstract of Avranas (2026): its last layer stands for the whole network.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

MAX_GRAM_ELEMENTS = 2**26
"""The most numbers that per-sample gradients may take at once; beyond, classes are taken in chunks."""


@torch.no_grad()
def last_layer_gram(
    h: Float[Tensor, "batch *positions features"],
    delta: Float[Tensor, "batch *positions classes"],
    P_W: Float[Tensor, "classes features"] | None = None,
    P_b: Float[Tensor, " classes"] | None = None,
    bias: bool = True,
    *,
    max_gram_elements: int = MAX_GRAM_ELEMENTS,
) -> Float[Tensor, "batch batch"]:
    """The Gram matrix K_ij = <g_i, P g_j> of a linear layer's per-sample gradients (reconstructed).

    Args:
        h: the layer's input; a sample is a row, all positions of it together.
        delta: the gradient of each sample's loss by the layer's output, of the same dtype.
        P_W: the positive diagonal preconditioner of the weight; None is 1.
        P_b: the same of the bias.
        bias: whether the layer has a bias that counts.
        max_gram_elements: the most numbers that intermediate results may hold.

    Returns:
        A symmetric positive semi-definite matrix.

    Raises:
        ValueError: if the shapes do not fit.

    >>> last_layer_gram(torch.tensor([[2.0], [1.0]]), torch.tensor([[1.0], [-1.0]]))
    tensor([[ 5., -3.],
            [-3.,  2.]])
    """
    h, delta = as_sequences(h, delta)
    batch, length, features = h.shape
    classes = delta.shape[-1]
    if P_W is None and _by_positions(batch, length, features, classes, max_gram_elements):
        rows, columns = h.flatten(0, 1), delta.flatten(0, 1)
        inputs = rows @ rows.T
        if bias and P_b is None:
            inputs = inputs + 1
        pairs = inputs * (columns @ columns.T)
        gram = pairs if length == 1 else pairs.view(batch, length, batch, length).sum((1, 3))
        bias = bias and P_b is not None
    else:
        gram = h.new_zeros(batch, batch)
        chunk = max(1, max_gram_elements // (batch * features))
        for start in range(0, classes, chunk):
            part = slice(start, start + chunk)
            gradients = torch.einsum("btc,btd->bcd", delta[..., part], h)
            if P_W is not None:
                gradients = gradients * P_W[part].sqrt()
            gradients = gradients.flatten(1)
            gram.addmm_(gradients, gradients.T)
    if bias:
        gradients = delta.sum(1)
        if P_b is not None:
            gradients = gradients * P_b.sqrt()
        gram = gram + gradients @ gradients.T
    return gram


@torch.no_grad()
def harm_margins(
    h: Float[Tensor, "batch *positions features"],
    delta: Float[Tensor, "batch *positions classes"],
    gram: Float[Tensor, "batch batch"],
    *,
    history_W: Float[Tensor, "classes features"] | None = None,
    history_b: Float[Tensor, " classes"] | None = None,
    kappa: float | Tensor = 1.0,
    omega: float | None = None,
) -> Float[Tensor, " batch"]:
    """The margins s0_i = <g_i, u0> of the optimizer's own update: a sample with a negative one gets worse.

    With the update u0 = history + κ P Σ ω g_i this is c + κ ω K 1 (reconstructed).

    Args:
        h: the layer's input.
        delta: the gradient of each sample's loss by the layer's output.
        gram: K, from `last_layer_gram` with the same P.
        history_W: what the update of the weight is without a gradient of this batch: P a, with whatever is
            added outside of P, such as decoupled weight decay. None is 0.
        history_b: the same of the bias.
        kappa: the factor κ of the fed gradient in the update.
        omega: the weight ω of a sample in the fed gradient; None is 1 / batch, a mean.

    Returns:
        The margins, in units of loss per unit of learning rate.

    >>> h, delta = torch.ones(2, 1), torch.tensor([[1.0], [-0.5]])
    >>> harm_margins(h, delta, last_layer_gram(h, delta, bias=False))
    tensor([ 0.2500, -0.1250])
    """
    share = 1 / len(gram) if omega is None else omega
    return history_margins(h, delta, history_W, history_b) + kappa * share * gram.sum(-1)


@torch.no_grad()
def history_margins(
    h: Float[Tensor, "batch *positions features"],
    delta: Float[Tensor, "batch *positions classes"],
    history_W: Float[Tensor, "classes features"] | None,
    history_b: Float[Tensor, " classes"] | None,
) -> Float[Tensor, " batch"]:
    """The part c_i = δ_iᵀ(A_W h_i + A_b) of the margins that no weight of this batch can change.

    Args:
        h: the layer's input.
        delta: the gradient of each sample's loss by the layer's output.
        history_W: as of `harm_margins`.
        history_b: as of `harm_margins`.

    Returns:
        c, zeros where there is no history.
    """
    h, delta = as_sequences(h, delta)
    if history_W is None and history_b is None:
        return h.new_zeros(len(h))
    moved = delta.new_zeros(()) if history_W is None else h @ history_W.T
    if history_b is not None:
        moved = moved + history_b
    return (delta * moved).sum((1, 2))


def as_sequences(h: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Both as ``(batch, positions, width)``; a matrix has one position.

    Args:
        h: the layer's input, ``(batch, ..., features)``.
        delta: the gradient of its output, ``(batch, ..., classes)``.

    Returns:
        The two, with all dimensions between the first and the last as one.

    Raises:
        ValueError: if the shapes do not fit.
    """
    if h.dim() < 2 or h.shape[:-1] != delta.shape[:-1]:
        raise ValueError(
            "h, delta: expected shapes (batch, ..., features) and (batch, ..., classes),"
            f" got {tuple(h.shape)} and {tuple(delta.shape)}"
        )
    return (
        h.reshape(len(h), -1, h.shape[-1]),
        delta.reshape(len(delta), -1, delta.shape[-1]),
    )


def _by_positions(batch: int, length: int, features: int, classes: int, most: int) -> bool:
    """Whether the products of all pairs of positions cost less than the gradients themselves."""
    pairs = (batch * length) ** 2
    return pairs <= most and pairs * (features + classes) <= batch * (length + batch) * features * classes
