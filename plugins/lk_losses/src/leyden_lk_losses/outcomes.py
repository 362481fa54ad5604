r"""Some of a target's tokens, and all others as one more outcome.

The target's distributions are wide and mostly empty. Keeping few of their tokens (reconstructed: the paper of
Samarin et al., 2026, does not say how it kept its own) needs a decision on the rest, and this is it.

Let S be the k likeliest tokens of p, ρ = Σ_{v∉S} p_v the mass of the rest and r the same of the
draft q. `bucketed` makes one outcome of the rest on both sides, so that every loss of `LKLoss` applies to
k + 1 outcomes. Since min(ρ, r) ≥ Σ_{v∉S} min(p_v, q_v) ≥ 0, the acceptance rate ᾱ so computed obeys

$$\alpha \;\le\; \bar\alpha \;\le\; \alpha + \min(\rho, r),$$

and likewise TV - min(ρ, r) ≤ T̄V ≤ TV. The chain rule of relative entropy gives

$$\mathrm{KL}(p \| q) = \overline{\mathrm{KL}} + \rho\,\mathrm{KL}(p_{\text{rest}} \| q_{\text{rest}}),$$

the last with both rests normalised. In the draft's logits the gradient of the KL is off by at most 2ρ and
that of TV by at most 2r, both in the sum of absolute values; what is missing is how the rest is shared out,
about which the draft is told nothing: its logits there move together, each in proportion to its probability.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor


def bucketed(
    draft_logits: Float[Tensor, "*rows vocab"],
    indices: Int[Tensor, "*rows k"],
    *,
    temperature: float = 1.0,
) -> Float[Tensor, "*rows outcomes"]:
    """A draft's log-probabilities of k tokens, and of all others as one more outcome (reconstructed).

    The counterpart of the target's outcomes for ``keep="top-k"``; this module's text derives what the loss of
    both differs by from that of the whole vocabulary.

    Args:
        draft_logits: logits of the draft over the whole vocabulary; minus infinity is a token that it never
            gives.
        indices: the k tokens of each row, int64, all different.
        temperature: divides the logits first.

    Returns:
        Log-probabilities of shape ``(..., k + 1)``, at least float32. The last is minus infinity if k is the
        whole vocabulary.

    >>> bucketed(torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([1])).exp()
    tensor([0.3000, 0.7000])
    """
    logits = draft_logits.to(torch.promote_types(draft_logits.dtype, torch.float32))
    if temperature != 1:
        logits = logits / temperature
    chosen = logits.gather(-1, indices)
    # Not as 1 less the others' sum: that has no digits left where the draft leaves the rest little.
    rest = cast("Tensor", _LogSumOfRest.apply(logits, indices))  # type: ignore[no-untyped-call]
    return torch.cat([chosen, rest], dim=-1).log_softmax(dim=-1)


def with_rest(log_probabilities: Float[Tensor, "*rows chosen"]) -> Float[Tensor, "*rows outcomes"]:
    """Log-probabilities of some tokens with that of all others appended.

    Args:
        log_probabilities: of some of the tokens; their sum may exceed 1 by rounding.

    Returns:
        The same with one more outcome, the logarithm of what they leave of 1; minus infinity for nothing.

    >>> with_rest(torch.tensor([0.5, 0.3]).log()).exp()
    tensor([0.5000, 0.3000, 0.2000])
    """
    mass = log_probabilities.logsumexp(dim=-1, keepdim=True).clamp(max=0)
    return torch.cat([log_probabilities, torch.log(-torch.expm1(mass))], dim=-1)


class _LogSumOfRest(torch.autograd.Function):
    """Log-sum-exp of all but some entries; its gradient is 0, not NaN, where they are all minus infinity."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, indices: Tensor) -> Tensor:
        total = logits.scatter(-1, indices, -torch.inf).logsumexp(dim=-1, keepdim=True)
        ctx.save_for_backward(logits, indices, total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, indices, total = ctx.saved_tensors
        shares = (logits - total.masked_fill(total == -torch.inf, 0)).exp_().scatter_(-1, indices, 0)
        return shares.mul_(grad), None
