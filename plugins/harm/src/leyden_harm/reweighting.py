"""From the last layer's inputs and gradients to a weight for each sample, on tensors alone.

Reconstructed from the abstract of Avranas (2026): harm is an update that raises the loss of samples of the
very batch that it was made from; the update nearest to the optimizer's own with less of it stays in the span
of the per-sample gradients, so that weights of the samples bring it about.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from leyden_harm.box_qp import solve_box_qp
from leyden_harm.last_layer import history_margins, last_layer_gram


class Update(NamedTuple):
    """The optimizer's update of the last layer, per unit of learning rate, as a function of its gradient ĝ.

    The update of the weight is ``history_W + kappa P_W ĝ``, and that of the bias likewise.

    Attributes:
        history_W: the part without ĝ, shape ``(classes, features)``; None is 0.
        history_b: the same of the bias, shape ``(classes,)``.
        kappa: the factor κ of the fed gradient, a number or a 0-dim tensor.
        P_W: the positive diagonal preconditioner of the weight, shape ``(classes, features)``; None is 1.
        P_b: the same of the bias, shape ``(classes,)``.
    """

    history_W: Tensor | None = None  # noqa: N815
    history_b: Tensor | None = None
    kappa: float | Tensor = 1.0
    P_W: Tensor | None = None
    P_b: Tensor | None = None


class Reweighting(NamedTuple):
    """What the weights are and what they do, all of it on the device of the inputs.

    Attributes:
        weights: the samples' weights w in the fed gradient, shape ``(batch,)``.
        factors: w / ω, by which the rows of the layer's output gradient are multiplied, shape ``(batch,)``;
            exactly 1 where no sample is harmed, or a number is not finite.
        margins_before: s0, shape ``(batch,)``; a negative one is a sample that the plain update makes worse.
        margins_after: the same under the weights.
        gap: the duality gap of the solver, relative to its primal value; 0-dim.
        finite: whether K and s0 were finite; 0-dim, bool.
    """

    weights: Tensor
    factors: Tensor
    margins_before: Tensor
    margins_after: Tensor
    gap: Tensor
    finite: Tensor


@torch.no_grad()
def sample_weights(
    lam: Float[Tensor, "*problems batch"],
    kappa: float | Tensor,
    normalize: bool,
    *,
    omega: float | None = None,
) -> Float[Tensor, "*problems batch"]:
    """The weights w = ω + λ / κ that bring the update u0 + P Σ λ_i g_i about (reconstructed).

    Args:
        lam: the solution λ of the box problem.
        kappa: the factor κ of the fed gradient in the update.
        normalize: whether to scale the weights to the sum B ω that they have without harm.
        omega: the weight ω of a sample in the fed gradient; None is 1 / batch.

    Returns:
        The weights, at least ω, and at most (1 + τ) ω for an upper bound κ τ ω of λ; if normalized, with
        mean ω.

    >>> sample_weights(torch.tensor([0.0, 0.5]), 1.0, normalize=True)
    tensor([0.3333, 0.6667])
    """
    batch = lam.shape[-1]
    share = 1 / batch if omega is None else omega
    weights = share + lam / kappa
    return weights * (batch * share / weights.sum(-1, keepdim=True)) if normalize else weights


@torch.no_grad()
def reweight(
    h: Float[Tensor, "batch *positions features"],
    delta: Float[Tensor, "batch *positions classes"],
    update: Update | None = None,
    *,
    bias: bool = True,
    omega: float | None = None,
    max_upweight: float = 1.0,
    n_iter: int = 20,
    normalize: bool = True,
) -> Reweighting:
    """Weights under which an update harms fewer samples of its batch, on the last layer (reconstructed).

    The total harm Σ [-s_i]₊ under the weights is at most that of the plain update, for every ``n_iter``:
    where normalizing would break that, the weights are left as they are. Nothing waits for the device.

    Args:
        h: the layer's input, float32 or float64.
        delta: the gradient of each sample's own loss by the layer's output, of the same dtype.
        update: the optimizer's update; None is plain gradient descent.
        bias: whether the layer has a bias.
        omega: the weight ω of a sample in the fed gradient; None is 1 / batch.
        max_upweight: τ; a weight grows at most (1 + τ)-fold before it is normalized.
        n_iter: iterations of the solver.
        normalize: whether the weights keep their sum, and so the gradient its scale.

    Returns:
        The weights, and the margins before and after.

    Raises:
        ValueError: if shapes do not fit.

    >>> h, delta = torch.ones(2, 1), torch.tensor([[1.0], [-0.5]])
    >>> reweight(h, delta, bias=False, max_upweight=0.5, normalize=False).weights
    tensor([0.5000, 0.7500])
    """
    update = update or Update()
    batch = len(h)
    share = 1 / batch if omega is None else omega
    gram = last_layer_gram(h, delta, update.P_W, update.P_b, bias)
    history = history_margins(h, delta, update.history_W, update.history_b)
    own = update.kappa * share * gram.sum(-1)
    before = history + own
    upper = update.kappa * (max_upweight * share) * torch.ones_like(before[:1])
    lam, info = solve_box_qp(gram, before, upper, n_iter)
    weights = sample_weights(lam, update.kappa, False, omega=share)
    after = info.margins
    if normalize:
        scale = batch * share / weights.sum()
        scaled_after = history + scale * (own + info.margins - before)
        kept = total_harm(scaled_after) <= total_harm(before)
        weights = torch.where(kept, scale * weights, weights)
        after = torch.where(kept, scaled_after, after)
    finite = torch.isfinite(gram.abs().sum() + before.abs().sum())
    # a κ of 0, as under full dampening, leaves the weights without effect and without meaning
    acts = finite & torch.isfinite(weights.sum()) & (before < 0).any()
    factors = torch.where(acts, weights / share, torch.ones_like(weights))
    weights = torch.where(acts, weights, torch.full_like(weights, share))
    gap = info.gap / info.primal.clamp_min(torch.finfo(gram.dtype).tiny)
    return Reweighting(weights, factors, before, torch.where(acts, after, before), gap, finite)


def total_harm(margins: Float[Tensor, "*problems batch"]) -> Float[Tensor, "*problems"]:
    """The total harm H = Σ [-s_i]₊ of an update.

    Args:
        margins: s, of which a negative one is a sample that gets worse.

    Returns:
        The sum of what the harmed samples lose, per unit of learning rate.

    >>> total_harm(torch.tensor([0.5, -0.25, -1.0]))
    tensor(1.2500)
    """
    return (-margins).clamp_min(0).sum(-1)
