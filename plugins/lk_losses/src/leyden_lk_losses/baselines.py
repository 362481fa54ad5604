"""Losses that the paper compares with and that are no function of KL(p‖q) and α; it imports no Lightning.

Each takes rows of logits and gives a number for each row, by ordinary autograd. A token that one of the two
models does not have (minus infinity, or not in ``draft_vocab``) contributes nothing: the model that has it is
renormalised on the others where it is the one whose logarithm would be infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Baseline = Callable[[Tensor, Tensor, "Tensor | None", float, "Tensor | None"], Tensor]
"""Of target and draft (..., tokens), draft vocabulary, temperature and which rows count: (...)."""


def reverse_kl(
    target_logits: Tensor,
    draft_logits: Tensor,
    draft_vocab: Tensor | None = None,
    temperature: float = 1.0,
    valid: Tensor | None = None,
) -> Tensor:
    """KL(q‖p) of each row in nats, with q renormalised on the tokens that the target has.

    Args:
        target_logits: (..., vocab), without gradient.
        draft_logits: (..., tokens of the draft).
        draft_vocab: the ids of the draft's tokens; None: all.
        temperature: divides both.
        valid: which rows count, (...); the others give 0 or a constant.

    Returns:
        (...), in float32 at least.

    >>> reverse_kl(torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log())
    tensor([0.5108])
    """
    target, draft = _prepared(target_logits, draft_logits, draft_vocab, temperature, valid)
    log_p = target.log_softmax(-1)
    log_q = torch.where(log_p == -torch.inf, -torch.inf, draft).log_softmax(-1)
    return _mean_log_ratio(log_q, log_p)


def jensen_shannon(
    target_logits: Tensor,
    draft_logits: Tensor,
    draft_vocab: Tensor | None = None,
    temperature: float = 1.0,
    valid: Tensor | None = None,
) -> Tensor:
    """The Jensen-Shannon divergence ½ KL(p‖m) + ½ KL(q‖m) with m = ½ (p + q) of each row, at most log 2.

    Args:
        target_logits: as for `reverse_kl`; p is renormalised on the draft's tokens.
        draft_logits: as there.
        draft_vocab: as there.
        temperature: as there.
        valid: as there.

    Returns:
        (...), in float32 at least.

    >>> jensen_shannon(torch.tensor([[9.0, 9.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([0.])
    """
    target, draft = _prepared(target_logits, draft_logits, draft_vocab, temperature, valid)
    log_p, log_q = target.log_softmax(-1), draft.log_softmax(-1)
    neither = (log_p == -torch.inf) & (log_q == -torch.inf)  # there logaddexp has no gradient
    log_m = torch.logaddexp(*(torch.where(neither, 0.0, one) for one in (log_p, log_q))) - math.log(2)
    return (_mean_log_ratio(log_p, log_m) + _mean_log_ratio(log_q, log_m)) / 2


def hard_label(
    target_logits: Tensor,
    draft_logits: Tensor,
    draft_vocab: Tensor | None = None,
    temperature: float = 1.0,
    valid: Tensor | None = None,
) -> Tensor:
    """-log q of the target's likeliest token among the draft's, of each row, in nats.

    Args:
        target_logits: as for `reverse_kl`.
        draft_logits: as there.
        draft_vocab: as there.
        temperature: as there.
        valid: as there.

    Returns:
        (...), in float32 at least.

    >>> hard_label(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([0.6931])
    """
    target, draft = _prepared(target_logits, draft_logits, draft_vocab, temperature, valid)
    likeliest = target.argmax(-1, keepdim=True)
    return -draft.log_softmax(-1).gather(-1, likeliest).squeeze(-1)


BASELINES: Mapping[str, Baseline] = {"reverse_kl": reverse_kl, "jsd": jensen_shannon, "ce": hard_label}
"""By the kind of `leyden_lk_losses.LKLoss`."""


def _prepared(
    target: Tensor, draft: Tensor, draft_vocab: Tensor | None, temperature: float, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Logits of the draft's tokens over the temperature; rows that do not count are zeros."""
    dtype = torch.promote_types(torch.promote_types(target.dtype, draft.dtype), torch.float32)
    if draft_vocab is not None:
        target = target.index_select(-1, draft_vocab)
    target, draft = target.to(dtype) / temperature, draft.to(dtype) / temperature
    if valid is not None:
        target, draft = (torch.where(valid.unsqueeze(-1), one, 0.0) for one in (target, draft))
    return torch.where(draft == -torch.inf, -torch.inf, target), draft


def _mean_log_ratio(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Σ p log(p / q); a token of probability 0 contributes nothing to it and nothing to the gradient."""
    has = log_p > -torch.inf
    ratio = torch.where(has, log_p, 0.0) - torch.where(has, log_q, 0.0)
    return (log_p.exp() * ratio).sum(-1)
