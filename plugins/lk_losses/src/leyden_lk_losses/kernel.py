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

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_CACHED = 2**17
"""Numbers of a block for each thread of a processor: three float32 blocks then fit its second cache."""

_ON_DEVICE = 2**26
"""Numbers of a block on an accelerator, where fewer and larger steps are better."""

_FAINT = -70.0
"""Below this the log of an acceptance rate comes from logarithms alone: exp ends at -87 in float32."""


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

    @property
    def width(self) -> int:
        """Tokens of the larger vocabulary."""
        return max(self.target.shape[-1], self.draft.shape[-1], 1)

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


class _Known(NamedTuple):
    """What the backward pass knows of each row, all (rows, 1); the last two are derivatives of the loss."""

    sums: _Sums
    log_alpha: Tensor
    of_kl: Tensor | None
    of_log_alpha: Tensor | None

    def part(self, rows: slice | Tensor) -> _Known:
        """Some of the rows."""
        of_kl, of_log_alpha = (None if one is None else one[rows] for one in self[2:])
        return _Known(_Sums(*(one[rows] for one in self.sums)), self.log_alpha[rows], of_kl, of_log_alpha)


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
        pair, blocks, careful = _Pair(target, draft, draft_vocab, temperature, valid), None, None
        if torch.compiler.is_compiling():
            sums, found = _careful_statistics(pair)
        else:
            blocks = _Blocks.of(pair, chunk_size)
            if draft.is_cpu:
                sums, found, careful = _quick_statistics(pair, blocks)
            else:
                sums, found = _careful_statistics_in_blocks(pair, blocks)
        ctx.temperature, ctx.blocks = temperature, blocks
        log_alpha = found.log_alpha.unsqueeze(-1)
        ctx.save_for_backward(target, draft, draft_vocab, valid, careful, *sums, log_alpha)
        return found.kl.view(draft.shape[:-1]), found.log_alpha.view(draft.shape[:-1])

    @staticmethod
    def backward(ctx: Any, of_kl: Tensor | None, of_log_alpha: Tensor | None) -> Any:
        target, draft, draft_vocab, valid, careful, *sums, log_alpha = ctx.saved_tensors
        pair = _Pair(target, draft, draft_vocab, ctx.temperature, valid)
        if torch.compiler.is_compiling():
            owed = (None if one is None else one.unsqueeze(-1) for one in (of_kl, of_log_alpha))
            gradient = _careful_gradient(pair, _Known(_Sums(*sums), log_alpha, *owed)).to(draft.dtype)
            return gradient, None, None, None, None, None
        if torch.is_grad_enabled():
            raise RuntimeError(
                "these losses have first derivatives only; create_graph=True asks for second ones"
            )
        owed = (None if one is None else one.reshape(-1, 1) for one in (of_kl, of_log_alpha))
        known = _Known(_Sums(*sums), log_alpha, *owed)
        gradient = (
            draft.new_empty(draft.shape) if ctx.blocks.counted is None else draft.new_zeros(draft.shape)
        )
        rows = gradient.view(-1, gradient.shape[-1])
        if careful is None:
            _write_careful_gradient(rows, pair, known, ctx.blocks.rows)
        else:
            _write_quick_gradient(rows, pair, known, ctx.blocks)
            _write_careful_gradient(rows, pair, known, ctx.blocks.small(careful))
        return gradient, None, None, None, None, None


class _Blocks(NamedTuple):
    """Which rows are processed together, at most ``size`` of them.

    ``counted`` holds the numbers of the rows that count, None for all. On an accelerator all are processed:
    which ones count could not be known without waiting for it.
    """

    size: int
    counted: Tensor | None
    rows: Sequence[slice | Tensor]

    @classmethod
    def of(cls, pair: _Pair, chunk_size: int | None) -> _Blocks:
        """The blocks of some rows."""
        on_processor, number = pair.draft.is_cpu, pair.draft.shape[:-1].numel()
        if chunk_size is None:
            room = _CACHED * torch.get_num_threads() if on_processor else _ON_DEVICE
            chunk_size = room // pair.width
        size = max(min(chunk_size, number), 1)
        if on_processor and pair.valid is not None and not bool(pair.valid.all()):
            size = max(size * 3 // 5, 1)  # picking rows out of both models takes two blocks beside the three
            counted = pair.valid.reshape(-1).nonzero().squeeze(-1)
            return cls(size, counted, torch.split(counted, size))
        return cls(size, None, [slice(start, min(start + size, number)) for start in range(0, number, size)])

    def small(self, rows: Tensor) -> Sequence[Tensor]:
        """Some rows in blocks for the careful way, which takes four times the memory."""
        return torch.split(rows, max(self.size // 4, 1)) if len(rows) else ()


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


def _quick_statistics(pair: _Pair, blocks: _Blocks) -> tuple[_Sums, Divergences, Tensor]:
    """Both numbers of each row by sums of probabilities, in three blocks of memory that stay in the cache.

    Returns:
        What the gradient needs, both numbers, and the rows for which the careful way was taken: where a logit
        is not finite, and where α nears the end of float32.
    """
    rows = pair.draft.shape[:-1].numel()
    scratch = _scratch(pair, blocks)
    found = [_quick_sums(pair.part(block), scratch) for block in blocks.rows]
    made = pair.draft.new_zeros((5, rows, 1), dtype=pair.dtype)
    if found:
        top_p, sum_p, outside, cross, top_q, sum_q, common = (
            torch.cat(column) for column in zip(*found, strict=True)
        )
        log_p, log_q = sum_p.log(), sum_q.log()
        shared = top_p + log_p
        kl = cross / sum_p - log_p + log_q
        log_alpha = (common / sum_q).log().clamp_(max=0)
        values = torch.stack([shared + outside, shared, top_q + log_q, kl, log_alpha])
        made = values if blocks.counted is None else made.index_copy_(1, blocks.counted, values)
    *sums, kl, log_alpha = made
    right = kl.isfinite() & (log_alpha > _FAINT)
    careful = (~right).squeeze(-1).nonzero().squeeze(-1)
    for few in blocks.small(careful):
        answer, exact = _careful_statistics(pair.part(few))
        if not bool(exact.kl.isfinite().all()):
            raise ValueError(_what_is_wrong(pair, few, exact.kl))
        made[:, few] = torch.stack([*answer, *(one.unsqueeze(-1) for one in exact)])
    return _Sums(*sums), Divergences(kl.squeeze(-1), log_alpha.squeeze(-1)), careful


def _quick_sums(pair: _Pair, scratch: Tensor) -> tuple[Tensor, ...]:
    """Sums over a block's tokens, each (rows, 1), of what is made of exponentials.

    Returns:
        The target's largest logit and its sum of exponentials, the logarithm of how many times that is in its
        whole vocabulary, Σ e_p log(e_p / e_q), the draft's largest and its sum, and that times Σ min(p, q).
    """
    ratio, q, p = _room(scratch, pair.draft)
    if pair.draft_vocab is not None:
        everything, *_ = _room(scratch, pair.target)
        whole = _shifted(pair.target, None, pair.temperature, everything)
        whole = whole + everything.exp_().sum(-1, keepdim=True).log()
    top_p = _shifted(_on_draft_vocab(pair, ratio), None, pair.temperature, ratio)
    top_q = _shifted(pair.draft, None, pair.temperature, q)
    torch.exp(ratio, out=p)
    ratio.sub_(q)
    q.exp_()
    sum_p, sum_q = p.sum(-1, keepdim=True), q.sum(-1, keepdim=True)
    cross = ratio.mul_(p).sum(-1, keepdim=True)
    factor, outside = sum_q / sum_p, torch.zeros_like(sum_p)
    if pair.draft_vocab is not None:
        outside = whole - top_p - sum_p.log()
        factor.mul_((-outside).exp())
    common = torch.minimum(p.mul_(factor), q, out=ratio).sum(-1, keepdim=True)
    return top_p, sum_p, outside, cross, top_q, sum_q, common


def _write_quick_gradient(gradient: Tensor, pair: _Pair, known: _Known, blocks: _Blocks) -> None:
    """Write the gradient in the rows that count, as `_quick_statistics` made their numbers."""
    scratch = _scratch(pair, blocks)
    of_kl = None if known.of_kl is None else known.of_kl / pair.temperature
    half = None
    if known.of_log_alpha is not None:
        half = known.of_log_alpha * (-known.log_alpha).exp() / (2 * pair.temperature)
    weights = known._replace(of_kl=of_kl, of_log_alpha=half)
    for block in blocks.rows:
        out = gradient[block] if isinstance(block, slice) and gradient.dtype == scratch.dtype else None
        found = _quick_gradient(pair.part(block), weights.part(block), scratch, out)
        if out is None:
            gradient[block] = found if isinstance(block, slice) else found.to(gradient.dtype)


def _quick_gradient(pair: _Pair, known: _Known, scratch: Tensor, out: Tensor | None = None) -> Tensor:
    """The gradient of a block, in ``out`` or in the scratch.

    With u = 1 + sign(p - q), which is 2 c, and h = (derivative in log α) / 2 α, which ``of_log_alpha`` holds
    here, log α contributes h (u q - E_q[u] q).
    """
    p, q, u = _room(scratch, pair.draft)
    out = q if out is None else out
    of_kl, half = known.of_kl, known.of_log_alpha
    _shifted(pair.draft, known.sums.draft, pair.temperature, q)
    _shifted(_on_draft_vocab(pair, p), known.sums.shared, pair.temperature, p)
    q.exp_()
    p.exp_()
    if half is None:
        return torch.mul(q.sub_(p), 0 if of_kl is None else of_kl, out=out)
    if pair.draft_vocab is None:
        torch.sub(p, q, out=u)
    else:
        torch.mul(p, (known.sums.shared - known.sums.target).exp(), out=u).sub_(q)
    torch.addcmul(q, q, u.sign_(), out=u)
    weight = -half * u.sum(-1, keepdim=True)
    if of_kl is None:
        return torch.addcmul(q.mul_(weight), u, half, out=out)
    q.mul_(weight.add_(of_kl)).addcmul_(u, half)
    return torch.addcmul(q, p, -of_kl, out=out)


def _scratch(pair: _Pair, blocks: _Blocks) -> Tensor:
    """Memory for three blocks."""
    return pair.draft.new_empty((3, blocks.size * pair.width), dtype=pair.dtype)


def _room(scratch: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three tensors of the shape of a block's logits."""
    first, second, third = (one[: logits.numel()].view(logits.shape) for one in scratch)
    return first, second, third


def _careful_statistics_in_blocks(pair: _Pair, blocks: _Blocks) -> tuple[_Sums, Divergences]:
    """What `_careful_statistics` gives, a block at a time."""
    parts = [_careful_statistics(pair.part(block)) for block in blocks.rows]
    sums = _Sums(*(torch.cat(column) for column in zip(*(part[0] for part in parts), strict=True)))
    found = Divergences(*(torch.cat(column) for column in zip(*(part[1] for part in parts), strict=True)))
    return sums, found


def _careful_statistics(pair: _Pair) -> tuple[_Sums, Divergences]:
    """Both numbers of each row by logarithms of probabilities, whatever the logits."""
    target, shared_target, draft = _logits(pair)
    sums = _Sums(*(one.logsumexp(-1, keepdim=True) for one in (target, shared_target, draft)))
    log_p, log_q = shared_target - sums.shared, draft - sums.draft
    p = log_p.exp()
    kl = torch.where(p > 0, p * (log_p - log_q), p).sum(-1)
    log_alpha = torch.minimum(log_p + (sums.shared - sums.target), log_q).logsumexp(-1).clamp(max=0)
    return sums, Divergences(kl, log_alpha)


def _write_careful_gradient(
    gradient: Tensor, pair: _Pair, known: _Known, blocks: Iterable[slice | Tensor]
) -> None:
    """Write the gradient of blocks of rows, as `_careful_statistics` made their numbers."""
    for block in blocks:
        gradient[block] = _careful_gradient(pair.part(block), known.part(block)).to(gradient.dtype)


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
        w = (torch.minimum(log_p, log_q) - known.log_alpha).exp() * c
        gradient = gradient + known.of_log_alpha * (w - q * w.sum(-1, keepdim=True))
    gradient = gradient / pair.temperature
    return gradient if pair.valid is None else torch.where(pair.valid.unsqueeze(-1), gradient, 0)


def _shifted(logits: Tensor, by: Tensor | None, temperature: float, out: Tensor) -> Tensor:
    """Write logits over the temperature less a number a row, by default the largest; return that number."""
    if logits.dtype != out.dtype:
        logits = out.copy_(logits)
    if temperature != 1:
        logits = torch.mul(logits, 1 / temperature, out=out)
    shift = logits.amax(-1, keepdim=True) if by is None else by
    torch.sub(logits, shift, out=out)
    return shift


def _on_draft_vocab(pair: _Pair, room: Tensor) -> Tensor:
    """The target's logits of the draft's tokens, in the given room where they are picked and of its type."""
    if pair.draft_vocab is None:
        return pair.target
    if pair.target.dtype == room.dtype:
        return torch.index_select(pair.target, -1, pair.draft_vocab, out=room)
    return pair.target.index_select(-1, pair.draft_vocab)


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


def _what_is_wrong(pair: _Pair, rows: Tensor, kl: Tensor) -> str:
    """What is wrong with the first of some rows that is no distribution, in a line."""
    number = rows[(~kl.isfinite()).nonzero()[0]]
    row = tuple(int(one) for one in torch.unravel_index(number, pair.draft.shape[:-1]))
    named = f"[{', '.join(map(str, row))}]"
    for name, logits in (("target_logits", pair.target[row]), ("draft_logits", pair.draft[row])):
        for what, found in (
            ("NaN", logits.isnan().any()),
            ("an infinite logit", (logits == torch.inf).any()),
            ("minus infinity at every token", (logits == -torch.inf).all()),
        ):
            if bool(found):
                return f"{name}: the row {named} holds {what}"
    return f"target_logits: the row {named} gives no probability to any token that the draft has"
