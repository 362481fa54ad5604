"""How often a draft's token is accepted, on logits; it imports no Lightning and is usable alone.

With the target's distribution p and the draft's q over one vocabulary, speculative sampling accepts a token
drawn from q with probability α = Σ min(p, q) = 1 - TV(p, q), where TV = ½ Σ |p - q|. It is computed as
log α = logsumexp(min(log p, log q)), which stays exact, and keeps a gradient, where α itself underflows.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def acceptance_rate(
    target_logits: Float[Tensor, "*rows vocab"],
    draft_logits: Float[Tensor, "*rows draft_vocab"],
    *,
    draft_vocab: Int[Tensor, " draft_vocab"] | None = None,
    temperature: float = 1.0,
) -> Float[Tensor, "*rows"]:
    """The acceptance rate α = Σ min(p, q), Section 3 of Samarin et al. (2026).

    Args:
        target_logits: logits of the target; minus infinity is a token that it never says.
        draft_logits: logits of the draft, over the whole vocabulary or over ``draft_vocab`` alone.
        draft_vocab: the ids of the draft's tokens, int64, in the order of its logits. The draft gives no
            other token, and p is not renormalised, so that α is at most p's mass on these ids.
        temperature: divides both; 0 compares the two likeliest tokens, as greedy decoding does.

    Returns:
        A probability for each row, in the wider of the two types and at least float32.

    Raises:
        ValueError: if the sizes of the vocabularies differ and there is no ``draft_vocab``, if an id there is
            out of range or occurs twice, or if ``temperature`` is negative or not finite.

    >>> acceptance_rate(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log())
    tensor(0.6000)
    """
    return log_acceptance(target_logits, draft_logits, draft_vocab=draft_vocab, temperature=temperature).exp()


def log_acceptance(
    target_logits: Float[Tensor, "*rows vocab"],
    draft_logits: Float[Tensor, "*rows draft_vocab"],
    *,
    draft_vocab: Int[Tensor, " draft_vocab"] | None = None,
    temperature: float = 1.0,
) -> Float[Tensor, "*rows"]:
    """The logarithm of the acceptance rate, computed without it, Section 3 of Samarin et al. (2026).

    Args:
        target_logits: as for `acceptance_rate`, which raises the same errors.
        draft_logits: as there.
        draft_vocab: as there.
        temperature: as there.

    Returns:
        log α for each row, at most 0; minus infinity where no token is common to both. Where p = q at a
        token, its gradient takes half of each side, as ½ |p - q| does with sign(0) = 0.

    >>> log_acceptance(torch.tensor([0.0, 200.0]), torch.tensor([200.0, 0.0]))
    tensor(-199.3069)
    """
    check_vocabularies(target_logits, draft_logits, draft_vocab)
    if draft_vocab is not None:
        check_draft_vocab(draft_vocab, target_logits.shape[-1])
    check_temperature(temperature)
    dtype = torch.promote_types(torch.promote_types(target_logits.dtype, draft_logits.dtype), torch.float32)
    target, draft = target_logits.to(dtype), draft_logits.to(dtype)
    if temperature == 0:
        likeliest = draft.argmax(dim=-1)
        if draft_vocab is not None:
            likeliest = draft_vocab[likeliest]
        return (target.argmax(dim=-1) == likeliest).to(dtype).log()
    log_p = (target / temperature).log_softmax(dim=-1)
    if draft_vocab is not None:
        log_p = log_p[..., draft_vocab]
    log_q = (draft / temperature).log_softmax(dim=-1)
    return torch.logsumexp(torch.minimum(log_p, log_q), dim=-1).clamp(max=0)


def check_temperature(temperature: float, *, positive: bool = False) -> None:
    """Check a temperature.

    Args:
        temperature: the number that divides logits.
        positive: whether 0 is refused too.

    Raises:
        ValueError: if it is negative, 0 where that is refused, or not finite.

    >>> check_temperature(-1.0)
    Traceback (most recent call last):
    ValueError: temperature: expected a finite number of at least 0, got -1.0
    """
    if math.isfinite(temperature) and (temperature > 0 if positive else temperature >= 0):
        return
    wanted = "above 0" if positive else "of at least 0"
    raise ValueError(f"temperature: expected a finite number {wanted}, got {temperature!r}")


def check_vocabularies(target_logits: Tensor, draft_logits: Tensor, draft_vocab: Tensor | None) -> None:
    """Check that the shapes of target, draft and draft vocabulary belong together.

    Raises:
        ValueError: naming the sizes that were given.
    """
    vocab, own = target_logits.shape[-1], draft_logits.shape[-1]
    if target_logits.shape[:-1] != draft_logits.shape[:-1]:
        raise ValueError(
            f"draft_logits: expected the target's shape {tuple(target_logits.shape)} but for the vocabulary, "
            f"got {tuple(draft_logits.shape)}"
        )
    if draft_vocab is None:
        if vocab != own:
            raise ValueError(
                f"draft_logits: the draft has {own} tokens and the target {vocab}; a draft of fewer tokens "
                "needs draft_vocab, their ids"
            )
        return
    if len(draft_vocab) != own:
        raise ValueError(
            f"draft_vocab: expected {own} ids, one for each logit of the draft, got {len(draft_vocab)}"
        )


def check_draft_vocab(draft_vocab: Tensor, vocab: int | None = None) -> None:
    """Check the ids of a draft's tokens.

    Args:
        draft_vocab: the ids.
        vocab: how many tokens the target has; None where that is not known yet.

    Raises:
        ValueError: if they are no vector of whole numbers, if there is none, or if one is negative, not below
            ``vocab``, or there twice.

    >>> check_draft_vocab(torch.tensor([3, 1, 3]))
    Traceback (most recent call last):
    ValueError: draft_vocab: the id 3 occurs 2 times
    """
    if draft_vocab.dim() != 1 or draft_vocab.is_floating_point() or not len(draft_vocab):
        given = f"shape {tuple(draft_vocab.shape)} of {draft_vocab.dtype}"
        raise ValueError(f"draft_vocab: expected a vector of ids, got {given}")
    ids, counts = torch.unique(draft_vocab, return_counts=True)
    least, most = int(ids[0]), int(ids[-1])
    if least < 0 or (vocab is not None and most >= vocab):
        wanted = "of at least 0" if vocab is None else f"from 0 to {vocab - 1}"
        raise ValueError(f"draft_vocab: expected ids {wanted}, got {least if least < 0 else most}")
    if len(ids) < len(draft_vocab):
        twice = int(counts.argmax())
        raise ValueError(f"draft_vocab: the id {int(ids[twice])} occurs {int(counts[twice])} times")
