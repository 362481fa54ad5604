"""KL(p‖q) and log α of each row of logits, with their gradients in closed form; it imports no Lightning.

The losses of Section 3 of Samarin et al. (2026) are functions of these two numbers, so that autograd needs
to see no tensor as wide as the vocabulary. With w = min(p, q) / α, with c equal to 1 where q < p, ½ where
q = p and 0 elsewhere, and with C the sum of w c, the gradients in the draft's logits are

    q - p  for KL(p‖q),    w c - C q  for log α,

and that of TV = 1 - α is -α times the second. Nothing as wide as the vocabulary is kept between the passes:
the backward pass makes p and q anew from the logits, block by block. A block holds ``chunk_size`` rows, or
as many as stay in a processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_CACHED = 2**17
"""Numbers of a block for each thread of a processor: three float32 blocks then fit its second cache."""

_ON_DEVICE = 2**26
"""Numbers of a block on an accelerator, where fewer and larger steps are better."""

_FAINT = 1e-30
"""Below this an acceptance rate is computed in logarithms: float32 ends at 1e-38."""


class Divergences(NamedTuple):
    """What two distributions over one vocabulary differ by, for each row.

    Attributes:
        kl: KL(p‖q) in nats, with p renormalised on the draft's tokens where it has fewer; shape (*rows).
        log_alpha: the logarithm of the acceptance rate, with p as it is; shape (*rows).
    """

    kl: Tensor
    log_alpha: Tensor


def row_divergences(
    target_logits: Float[Tensor, "*rows vocab"],
    draft_logits: Float[Tensor, "*rows draft_vocab"],
    *,
    draft_vocab: Int[Tensor, " draft_vocab"] | None = None,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    valid: Bool[Tensor, "*rows"] | None = None,
) -> Divergences:
    """KL(p‖q) and log α of each row, Section 3 of Samarin et al. (2026), in float32 or float64.

    A token with the logit minus infinity in the draft is one that the draft does not have, as if
    ``draft_vocab`` left it out; in the target it has the probability 0.

    Args:
        target_logits: logits of the target, which gets no gradient; views whose rows overlap are not copied.
        draft_logits: logits of the draft.
        draft_vocab: the ids of the draft's tokens, in the order of its logits; None: all.
        temperature: divides both, above 0.
        chunk_size: how many rows are processed at a time; None: as many as suit the cache.
        valid: which rows count; the others give 0 and no gradient, whatever they hold. None: all.

    Returns:
        Both for each row, in the wider of the two types and at least float32; differentiable once.

    Raises:
        ValueError: on a processor and outside of ``torch.compile``, for a row that is no distribution (a NaN,
            an infinite logit, minus infinity at every token that the draft has), naming the model and the
            row. Elsewhere the row's numbers are NaN.

    >>> p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
    >>> divergences = row_divergences(p.log(), q.log())
    >>> divergences.kl, divergences.log_alpha.exp()
    (tensor([0.5108]), tensor([0.6000]))
    """
    kl, log_alpha = _Rows.apply(  # type: ignore[no-untyped-call]
        draft_logits, target_logits.detach(), draft_vocab, temperature, chunk_size, valid
    )
    return Divergences(kl, log_alpha)


class _Pair(NamedTuple):
    """Rows of both models, as `row_divergences` takes them or one after the other."""

    target: Tensor
    draft: Tensor
    draft_vocab: Tensor | None
    temperature: float
    valid: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return torch.promote_types(torch.promote_types(self.target.dtype, self.draft.dtype), torch.float32)

    def part(self, rows: slice | Tensor) -> _Pair:
        """Some of the rows, one after the other."""
        valid = None if self.valid is None else self.valid.reshape(-1)[rows]
        return self._replace(target=_taken(self.target, rows), draft=_taken(self.draft, rows), valid=valid)


class _Sums(NamedTuple):
    """Logarithms of sums of exponentials, each (rows, 1), which make log-probabilities of logits.

    That of the target over its whole vocabulary, of the target over the draft's tokens, and of the draft.
    """

    target: Tensor
    shared: Tensor
    draft: Tensor


class _Rows(torch.autograd.Function):
    """`row_divergences` for autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        draft: Tensor,
        target: Tensor,
        draft_vocab: Tensor | None,
        temperature: float,
        chunk_size: int | None,
        valid: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        pair = _Pair(target, draft, draft_vocab, temperature, valid)
        if torch.compiler.is_compiling():
            sums, found = _careful_statistics(pair)
        else:
            sums, found, ctx.quick = _statistics_in_blocks(pair, chunk_size)
        ctx.temperature, ctx.chunk_size = temperature, chunk_size
        ctx.save_for_backward(target, draft, draft_vocab, valid, *sums, found.log_alpha.unsqueeze(-1))
        return found.kl.view(draft.shape[:-1]), found.log_alpha.view(draft.shape[:-1])

    @staticmethod
    def backward(ctx: Any, of_kl: Tensor | None, of_log_alpha: Tensor | None) -> Any:
        target, draft, draft_vocab, valid, *sums, log_alpha = ctx.saved_tensors
        pair = _Pair(target, draft, draft_vocab, ctx.temperature, valid)
        known = _Known(_Sums(*sums), log_alpha, _column(of_kl), _column(of_log_alpha))
        if torch.compiler.is_compiling():
            gradient = _careful_gradient(pair, known).to(draft.dtype)
        elif torch.is_grad_enabled():
            raise RuntimeError(
                "the losses have first derivatives only, and create_graph=True asks for second ones"
            )
        else:
            gradient = _gradient_in_blocks(pair, known, ctx.chunk_size, ctx.quick)
        return gradient, None, None, None, None, None


class _Known(NamedTuple):
    """What the backward pass knows of each row, all (rows, 1); the last two are derivatives of the loss."""

    sums: _Sums
    log_alpha: Tensor
    of_kl: Tensor | None
    of_log_alpha: Tensor | None

    def part(self, rows: slice | Tensor) -> _Known:
        """Some of the rows, one after the other."""
        of_kl, of_log_alpha = (
            None if one is None else one.reshape(-1, 1)[rows] for one in (self.of_kl, self.of_log_alpha)
        )
        return _Known(_Sums(*(one[rows] for one in self.sums)), self.log_alpha[rows], of_kl, of_log_alpha)


def _column(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.unsqueeze(-1)


def _taken(logits: Tensor, rows: slice | Tensor) -> Tensor:
    """Some rows of logits, (rows, tokens); no others are copied where the whole is no matrix in memory."""
    if logits.dim() == 2:
        return logits[rows]
    try:
        return logits.view(-1, logits.shape[-1])[rows]
    except RuntimeError:
        if isinstance(rows, slice):
            rows = torch.arange(rows.start, rows.stop, device=logits.device)
        return logits[torch.unravel_index(rows, logits.shape[:-1])]


def _blocks(pair: _Pair, chunk_size: int | None) -> Iterator[slice | Tensor]:
    """Which rows are processed together; on a processor only those that count."""
    on_processor = pair.draft.device.type == "cpu"
    size = chunk_size or _rows_of_a_block(pair.draft, on_processor)
    rows = pair.draft.shape[:-1].numel()
    if on_processor and pair.valid is not None and not bool(pair.valid.all()):
        yield from torch.split(pair.valid.reshape(-1).nonzero().squeeze(-1), size)
        return
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _rows_of_a_block(logits: Tensor, on_processor: bool) -> int:
    numbers = _CACHED * torch.get_num_threads() if on_processor else _ON_DEVICE
    return max(numbers // max(logits.shape[-1], 1), 1)


def _statistics_in_blocks(pair: _Pair, chunk_size: int | None) -> tuple[_Sums, Divergences, list[bool]]:
    """Both numbers of every row, what the gradient needs, and for which blocks the quick way served."""
    rows = pair.draft.shape[:-1].numel()
    made = pair.draft.new_zeros((5, rows), dtype=pair.dtype)
    sums, found = _Sums(*made[:3].unsqueeze(-1)), Divergences(*made[3:])
    scratch, quick = _scratch(pair, chunk_size), []
    for block in _blocks(pair, chunk_size):
        part = pair.part(block)
        answer = _quick_statistics(part, scratch[:, : len(part.draft)]) if part.draft.is_cpu else None
        quick.append(answer is not None)
        part_sums, part_found = answer or _careful_statistics(part)
        if not quick[-1] and part.draft.is_cpu and not bool(part_found.kl.isfinite().all()):
            raise ValueError(_what_is_wrong(pair, block, part_found.kl))
        for whole, value in zip((*sums, *found), (*part_sums, *part_found), strict=True):
            whole[block] = value
    return sums, found, quick


def _scratch(pair: _Pair, chunk_size: int | None) -> Tensor:
    """Room for three blocks on a processor, where memory that was just used is the fastest."""
    on_processor, width = pair.draft.is_cpu, pair.draft.shape[-1]
    size = chunk_size or _rows_of_a_block(pair.draft, on_processor)
    size = min(size, pair.draft.shape[:-1].numel())
    return pair.draft.new_empty((3, size if on_processor else 0, width), dtype=pair.dtype)


def _quick_statistics(pair: _Pair, scratch: Tensor) -> tuple[_Sums, Divergences] | None:
    """Both numbers of each row by sums of probabilities, in three blocks of memory; None where that fails.

    It fails where a logit is not finite and where α nears the end of float32.
    """
    ratio, q, p = scratch.unbind()
    top_p = _shifted(_on_draft_vocab(pair), None, pair.temperature, ratio)
    top_q = _shifted(pair.draft, None, pair.temperature, q)
    torch.exp(ratio, out=p)
    ratio.sub_(q)
    q.exp_()
    sum_p, sum_q = p.sum(-1, keepdim=True), q.sum(-1, keepdim=True)
    log_p, log_q = sum_p.log(), sum_q.log()
    kl = ratio.mul_(p).sum(-1, keepdim=True) / sum_p - log_p + log_q
    whole = shared = top_p + log_p
    factor = sum_q / sum_p
    if pair.draft_vocab is not None:
        whole = (pair.target.to(pair.dtype) / pair.temperature).logsumexp(-1, keepdim=True)
        factor = factor * (shared - whole).exp()
    alpha = torch.minimum(p.mul_(factor), q, out=ratio).sum(-1, keepdim=True) / sum_q
    if not bool((kl.isfinite() & (alpha > _FAINT)).all()):
        return None
    log_alpha = alpha.log().clamp_(max=0)
    return _Sums(whole, shared, top_q + log_q), Divergences(kl.squeeze(-1), log_alpha.squeeze(-1))


def _careful_statistics(pair: _Pair) -> tuple[_Sums, Divergences]:
    """Both numbers of each row by logarithms of probabilities, whatever the logits."""
    target, shared_target, draft = _logits(pair)
    sums = _Sums(*(one.logsumexp(-1, keepdim=True) for one in (target, shared_target, draft)))
    log_p, log_q = shared_target - sums.shared, draft - sums.draft
    p = log_p.exp()
    kl = torch.where(p > 0, p * (log_p - log_q), p).sum(-1)
    log_alpha = torch.minimum(log_p + (sums.shared - sums.target), log_q).logsumexp(-1).clamp(max=0)
    return sums, Divergences(kl, log_alpha)


def _gradient_in_blocks(pair: _Pair, known: _Known, chunk_size: int | None, quick: list[bool]) -> Tensor:
    """The gradient in the draft's logits, in their type."""
    gradient = pair.draft.new_empty(pair.draft.shape)
    if pair.valid is not None:
        gradient.zero_()
    rows = gradient.view(-1, gradient.shape[-1])
    scratch = _scratch(pair, chunk_size)
    for block, is_quick in zip(_blocks(pair, chunk_size), quick, strict=True):
        part, part_known = pair.part(block), known.part(block)
        if is_quick:
            rows[block] = _quick_gradient(part, part_known, scratch[:, : len(part.draft)])
        else:
            rows[block] = _careful_gradient(part, part_known).to(gradient.dtype)
    return gradient


def _quick_gradient(pair: _Pair, known: _Known, scratch: Tensor) -> Tensor:
    """The gradient where `_quick_statistics` sufficed, in three blocks of memory, one of which it returns.

    With u = 1 + sign(p - q), which is 2 c, and h = (what is owed to log α) / 2 α, what log α contributes is
    q (h u - h E_q[u]).
    """
    p, q, u = scratch.unbind()
    scale = 1 / pair.temperature
    _shifted(pair.draft, known.sums.draft, pair.temperature, q)
    q.exp_()
    if known.of_kl is not None or known.of_log_alpha is not None:
        _shifted(_on_draft_vocab(pair), known.sums.shared, pair.temperature, p)
        p.exp_()
    of_kl = None if known.of_kl is None else known.of_kl * scale
    if known.of_log_alpha is None:
        return torch.zeros_like(q) if of_kl is None else q.sub_(p).mul_(of_kl)
    half = known.of_log_alpha * (scale / 2) * (-known.log_alpha).exp()
    if pair.draft_vocab is None:
        torch.sub(p, q, out=u)
    else:
        torch.mul(p, (known.sums.shared - known.sums.target).exp(), out=u).sub_(q)
    u.sign_().add_(1)
    with torch.autocast("cpu", enabled=False):
        constant = -half * torch.linalg.vecdot(q, u).unsqueeze(-1)
    if of_kl is None:
        q.mul_(u.mul_(half).add_(constant))
    else:
        q.mul_(u.mul_(half).add_(constant + of_kl)).addcmul_(p, -of_kl)
    return q


def _careful_gradient(pair: _Pair, known: _Known) -> Tensor:
    """The gradient by logarithms of probabilities, whatever the logits."""
    _, shared_target, draft = _logits(pair)
    log_p, log_q = shared_target - known.sums.shared, draft - known.sums.draft
    q = log_q.exp()
    gradient = torch.zeros_like(q)
    if known.of_kl is not None:
        gradient = known.of_kl * (q - log_p.exp())
    if known.of_log_alpha is not None:
        log_p = log_p + (known.sums.shared - known.sums.target)
        c = (log_q < log_p) + 0.5 * (log_q == log_p)
        never = known.log_alpha == -torch.inf
        w = (torch.minimum(log_p, log_q) - torch.where(never, 0, known.log_alpha)).exp() * c
        gradient = gradient + known.of_log_alpha * (w - q * w.sum(-1, keepdim=True))
    gradient = gradient / pair.temperature
    return gradient if pair.valid is None else torch.where(pair.valid.unsqueeze(-1), gradient, 0)


def _shifted(logits: Tensor, by: Tensor | None, temperature: float, out: Tensor) -> Tensor:
    """Write logits over the temperature less a number a row, by default the largest; return that number."""
    if logits.dtype != out.dtype:
        logits = out.copy_(logits)
    shift = logits.amax(-1, keepdim=True) if by is None else by * temperature
    torch.sub(logits, shift, out=out)
    if temperature != 1:
        out.mul_(1 / temperature)
    return shift / temperature


def _on_draft_vocab(pair: _Pair) -> Tensor:
    """The target's logits of the draft's tokens."""
    return pair.target if pair.draft_vocab is None else pair.target.index_select(-1, pair.draft_vocab)


def _logits(pair: _Pair) -> tuple[Tensor, Tensor, Tensor]:
    """Logits over the temperature: the target's, those of tokens that the draft has, and the draft's.

    Rows that do not count are zeros, so that nothing in them spreads.
    """
    target, draft = (logits.to(pair.dtype) / pair.temperature for logits in (pair.target, pair.draft))
    if pair.valid is not None:
        valid = pair.valid.unsqueeze(-1)
        target, draft = torch.where(valid, target, 0), torch.where(valid, draft, 0)
    shared = target if pair.draft_vocab is None else target.index_select(-1, pair.draft_vocab)
    return target, torch.where(draft == -torch.inf, -torch.inf, shared), draft


def _what_is_wrong(pair: _Pair, block: slice | Tensor, kl: Tensor) -> str:
    """What is wrong with the first row of a block that is no distribution, in a line."""
    place = int((~kl.isfinite()).nonzero()[0])
    number = block.start + place if isinstance(block, slice) else int(block[place])
    row = tuple(int(one) for one in torch.unravel_index(torch.tensor(number), pair.draft.shape[:-1]))
    for name, logits in (("target_logits", pair.target[row]), ("draft_logits", pair.draft[row])):
        for what, found in (
            ("NaN", logits.isnan().any()),
            ("an infinite logit", (logits == torch.inf).any()),
            ("minus infinity at every token", (logits == -torch.inf).all()),
        ):
            if bool(found):
                return f"{name}: the row {_named(row)} holds {what}"
    return f"target_logits: the row {_named(row)} gives no probability to any token that the draft has"


def _named(row: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, row))}]"
