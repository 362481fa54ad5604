"""Losses that the paper compares with and that are no function of KL(p‖q) and α; it imports no Lightning.

They are ordinary autograd on rows of logits. A token that one of the two models does not have (minus
infinity, or not in ``draft_vocab``) contributes nothing: the model that has it is renormalised on the others
where it is the one whose logarithm would be infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def baseline(
    kind: str,
    target_logits: Float[Tensor, "*rows vocab"],
    draft_logits: Float[Tensor, "*rows draft_vocab"],
    *,
    draft_vocab: Int[Tensor, " draft_vocab"] | None = None,
    temperature: float = 1.0,
    valid: Bool[Tensor, "*rows"] | None = None,
) -> Float[Tensor, "*rows"]:
    """One of the losses of `BASELINES` for each row, in nats.

    Args:
        kind: ``"reverse_kl"``, KL(q‖p) with q renormalised on the tokens that the target has; ``"jsd"``,
            ½ KL(p‖m) + ½ KL(q‖m) with m = ½ (p + q), at most log 2; or ``"ce"``, -log q of the target's
            likeliest token. In the last two p is renormalised on the draft's tokens.
        target_logits: logits of the target, without gradient.
        draft_logits: logits of the draft.
        draft_vocab: the ids of the draft's tokens, in the order of its logits; None: all.
        temperature: divides both, above 0.
        valid: which rows count; the others give a constant, whatever they hold. None: all.

    Returns:
        The loss of each row, in the wider of the two types and at least float32.

    >>> target, draft = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> baseline("reverse_kl", target, draft), baseline("ce", target, draft)
    (tensor([0.5108]), tensor([0.6931]))
    """
    dtype = torch.promote_types(torch.promote_types(target_logits.dtype, draft_logits.dtype), torch.float32)
    if draft_vocab is not None:
        target_logits = target_logits.index_select(-1, draft_vocab)
    target, draft = (logits.to(dtype) / temperature for logits in (target_logits, draft_logits))
    if valid is not None:
        target, draft = (torch.where(valid.unsqueeze(-1), logits, 0.0) for logits in (target, draft))
    target = torch.where(draft == -torch.inf, -torch.inf, target)
    return BASELINES[kind](target, draft)


def _reverse_kl(target: Tensor, draft: Tensor) -> Tensor:
    log_p = target.log_softmax(-1)
    log_q = torch.where(log_p == -torch.inf, -torch.inf, draft).log_softmax(-1)
    return _mean_log_ratio(log_q, log_p)


def _jensen_shannon(target: Tensor, draft: Tensor) -> Tensor:
    log_p, log_q = target.log_softmax(-1), draft.log_softmax(-1)
    neither = (log_p == -torch.inf) & (log_q == -torch.inf)  # there logaddexp has no gradient
    log_m = torch.logaddexp(*(torch.where(neither, 0.0, one) for one in (log_p, log_q))) - math.log(2)
    return (_mean_log_ratio(log_p, log_m) + _mean_log_ratio(log_q, log_m)) / 2


def _hard_label(target: Tensor, draft: Tensor) -> Tensor:
    likeliest = target.argmax(-1, keepdim=True)
    return -draft.log_softmax(-1).gather(-1, likeliest).squeeze(-1)


def _mean_log_ratio(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Σ p log(p / q); a token of probability 0 contributes nothing to it and nothing to the gradient."""
    has = log_p > -torch.inf
    ratio = torch.where(has, log_p, 0.0) - torch.where(has, log_q, 0.0)
    return (log_p.exp() * ratio).sum(-1)


BASELINES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "reverse_kl": _reverse_kl,
    "jsd": _jensen_shannon,
    "ce": _hard_label,
}
"""By the kind of `leyden_lk_losses.LKLoss`, of logits of the same tokens."""
