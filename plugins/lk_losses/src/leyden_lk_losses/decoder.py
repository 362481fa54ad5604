"""Speculative sampling with key-value caches: the target's law exactly, in fewer passes of the target.

A round proposes tokens d₁..d_K by the draft, reads them all in one pass of the target, and accepts d_j with
probability min(1, p_j(d_j) / q_j(d_j)). The first that is rejected is replaced by a draw from the residual
max(0, p_j - q_j), normalised; if none is, one more token is drawn from p_{K+1} (Section 3 of Samarin et al.,
2026, of which the text was not at hand; the rule is that of speculative sampling since 2023).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from leyden_lk_losses.acceptance import check_draft_vocab, check_temperature
from leyden_lk_losses.arguments import check_count
from leyden_lk_losses.drafts import HiddenDraft, MedusaHeads
from leyden_lk_losses.models import CausalModel, evaluating, wrap

_STOCK = 256
"""How many random numbers are drawn at once: each call costs as much as these."""


@dataclass(frozen=True)
class GenerationResult:
    """What `SpeculativeDecoder.generate` gives.

    Attributes:
        tokens: the new tokens, int64 of shape ``(tokens,)``, without the prompt.
        accepted: how many proposals were accepted, those behind an end-of-text token among them.
        drafted: how many were proposed.
        rounds: how many rounds there were, each of which gave its accepted proposals and one token more.
        target_calls: passes of the target, one a round. The first reads the prompt too.
        accepted_by_depth: of each place in a round, how often the proposal there was accepted.
        examined_by_depth: how often it was reached, all before it having been accepted.
    """

    tokens: Int[Tensor, " tokens"]
    accepted: int
    drafted: int
    rounds: int
    target_calls: int
    accepted_by_depth: tuple[int, ...] = field(default=())
    examined_by_depth: tuple[int, ...] = field(default=())

    @property
    def tau(self) -> float:
        """Mean number of tokens of a target pass, τ; NaN where there was none."""
        return 1 + self.accepted / self.rounds if self.rounds else float("nan")

    @property
    def alpha_by_depth(self) -> tuple[float, ...]:
        """How often a proposal that was reached was accepted, for each place; NaN where none was."""
        pairs = zip(self.accepted_by_depth, self.examined_by_depth, strict=True)
        return tuple(accepted / examined if examined else float("nan") for accepted, examined in pairs)


class Draws:
    """Where a decoder's random decisions are made, all of them.

    Args:
        generator: gives the random numbers; None is torch's own.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        self._stock = torch.empty(0)
        self._used = 0

    def forget(self) -> None:
        """Drop the numbers drawn in advance, so that the next follow from the generator's state as it is."""
        self._used = len(self._stock)

    def token(self, weights: Float[Tensor, "*rows vocab"]) -> Int[Tensor, "*rows"]:
        """Draw a token of each row with probabilities in proportion to weights.

        Args:
            weights: not negative, none of the rows all zero.

        Returns:
            Its place, int64; never one of weight zero.
        """
        steps = weights.cumsum(dim=-1, dtype=torch.float64)
        rows = weights.shape[:-1]
        # What is looked up is above 0 and at most the last step: nothing of weight 0.
        height = self._uniform(rows.numel(), weights.device).view(*rows, 1) * steps[..., -1:]
        # NaN is found by whoever reads the result; its place must exist until then.
        return torch.searchsorted(steps, height).squeeze(-1).clamp_(max=weights.shape[-1] - 1)

    def accept(
        self, p: Float[Tensor, " proposals"], q: Float[Tensor, " proposals"]
    ) -> Bool[Tensor, " proposals"]:
        """Decide with probability min(1, p / q) for each proposal, without dividing.

        Args:
            p: the target's probability of each proposal.
            q: the draft's, above 0.

        Returns:
            Whether each is accepted, were it reached.
        """
        # The numbers are never 0, so that what the target gives no probability never passes.
        return self._uniform(len(p), p.device) * q <= p

    def _uniform(self, count: int, device: torch.device) -> Tensor:
        """Numbers above 0 and at most 1, ``(count,)``, of which many are drawn at once."""
        if self._used + count > len(self._stock) or self._stock.device != device:
            own = device if self.generator is None else self.generator.device
            size = max(count, _STOCK)
            drawn = torch.rand(size, dtype=torch.float64, generator=self.generator, device=own)
            self._stock, self._used = (1 - drawn).to(device), 0
        self._used += count
        return self._stock[self._used - count : self._used]


class SpeculativeDecoder:
    """Generates with a draft exactly what the target would, in fewer passes of the target.

    At temperature T > 0 the tokens have the target's law at that temperature, whatever the draft is; at 0
    they are those of greedy decoding. Target and draft keep their keys and values, from which those of
    rejected tokens are cut off. A draft whose context is full starts anew from the last half of it. Models
    are run in evaluation mode, and put back.

    Args:
        target: a causal language model, see `wrap`.
        draft: `MedusaHeads`, `MLPSpeculator` or another `HiddenDraft`, or a causal language model.
        k: tokens that a round proposes, K, at least 1 and at most what a `HiddenDraft` has.
        temperature: T, divides the logits of both; 0 is greedy.
        generator: gives the random numbers; None is torch's own.
        draft_vocab: the ids of the draft's tokens, int64, where it has logits of these alone.
        draws: makes the random decisions in place of ``generator``.

    Raises:
        ValueError: if an argument is out of its range, or the sizes of the models do not fit together.

    >>> from leyden_lk_losses.drafts import TinyDraftGPT
    >>> model = TinyDraftGPT(16)
    >>> result = SpeculativeDecoder(model, model, k=3).generate(torch.tensor([1, 2]), 8)
    >>> len(result.tokens), result.accepted, result.rounds, result.target_calls
    (8, 6, 2, 2)
    """

    def __init__(
        self,
        target: nn.Module | CausalModel | str | Path,
        draft: nn.Module | CausalModel | str | Path,
        k: int = 4,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        *,
        draft_vocab: Int[Tensor, " draft_vocab"] | None = None,
        draws: Draws | None = None,
    ) -> None:
        check_count("k", k)
        check_temperature(temperature)
        self.target = wrap(target)
        self.draft = draft if isinstance(draft, HiddenDraft) else wrap(draft)
        self.k = k
        self.temperature = temperature
        self.draws = Draws(generator) if draws is None else draws
        self.draft_vocab = draft_vocab
        _check_sizes(self.target, self.draft, k, draft_vocab)

    def generate(
        self, prompt: Int[Tensor, " prompt"], max_new_tokens: int, eos: int | Collection[int] | None = None
    ) -> GenerationResult:
        """Generate on from a prompt.

        Args:
            prompt: tokens, int64, at least one.
            max_new_tokens: how many to generate at most. A text never becomes longer than the target's
                ``max_length``.
            eos: the token, or the tokens, that end a text; the first is the last token of the result.

        Returns:
            The new tokens, and what it took.

        Raises:
            ValueError: if the prompt is empty, has no int64 tokens, or is longer than the target reads; if
                ``max_new_tokens`` is not positive; if logits are NaN, plus infinity, or minus infinity for
                every token, which names the model that they are of.
        """
        check_count("max_new_tokens", max_new_tokens)
        _check_prompt(prompt, self.target.max_length)
        self.draws.forget()
        ends = frozenset([eos] if isinstance(eos, int) else eos or ())
        draft: Any = self.draft
        module = draft if isinstance(draft, HiddenDraft) else draft.module
        with evaluating(self.target.module, module), torch.inference_mode():
            room = max_new_tokens
            if self.target.max_length is not None:
                room = min(room, self.target.max_length - len(prompt))
            text = _Text(prompt.tolist(), room, ends)
            tally = _Tally(self.k)
            self._run(text, tally, prompt)
        tokens = torch.tensor(text.new, dtype=torch.long, device=prompt.device)
        return GenerationResult(
            tokens=tokens,
            accepted=tally.accepted,
            drafted=tally.drafted,
            rounds=tally.rounds,
            target_calls=tally.rounds,
            accepted_by_depth=tuple(tally.accepted_by_depth),
            examined_by_depth=tuple(tally.examined_by_depth),
        )

    def _run(self, text: _Text, tally: _Tally, prompt: Tensor) -> None:
        device = self.target.device
        cache = self.target.start()
        proposer = _proposer(self, device)
        unread = prompt.to(device).unsqueeze(0)
        running = text.room > 0
        while running:
            # The round gives one token more than it accepts, so a proposal for the last place is wasted.
            proposals = proposer.propose(text.tokens, min(self.k, text.room - 1))
            count = 0 if proposals is None else len(proposals.tokens)
            read = unread if proposals is None else torch.cat([unread, proposals.tokens.unsqueeze(0)], dim=1)
            logits, hidden = self.target.step(read, cache, count + 1, hidden=proposer.reads_hidden)
            accepted, tokens = self._examined(logits[0], proposals)
            tally.add(accepted, count)
            running = text.extend(tokens)
            if running:
                proposer.accept(accepted, None if hidden is None else hidden[:, accepted])
                if accepted < count:
                    self.target.crop(cache, len(text.tokens) - 1)
                unread = torch.tensor([tokens[-1:]], device=device)

    def _examined(self, logits: Tensor, proposals: _Proposals | None) -> tuple[int, list[int]]:
        """How many proposals the target accepts, and the tokens of the round. Waits for the device once."""
        if self.temperature == 0:
            return _compared(logits, proposals)
        p = _distribution(logits, self.temperature)
        if proposals is None:
            token, total = torch.stack([self.draws.token(p[0]), p.sum()]).tolist()
            _check_total("target", total)
            return 0, [int(token)]
        places = proposals.tokens.unsqueeze(-1)
        q = proposals.q
        count = len(places)
        own = q[:count].gather(-1, places).squeeze(-1)
        passed = self.draws.accept(p[:count].gather(-1, places).squeeze(-1), own)
        accepted = passed.cumprod(dim=0).sum()
        # The row of q behind the last proposal is zero: with all accepted the residual is p itself.
        row = p.index_select(0, accepted.view(1))[0]
        residual = (row - q.index_select(0, accepted.view(1))[0]).clamp_(min=0)
        weights = torch.where(residual.sum() > 0, residual, row)
        numbers = (accepted, self.draws.token(weights), row.sum(), own.sum())
        report = torch.cat([torch.stack([number.to(torch.float64) for number in numbers]), places[:, 0]])
        taken, token, total, drafted, *proposed = report.tolist()
        _check_total("draft", drafted)
        _check_total("target", total)
        tokens = [int(place) for place in proposed[: int(taken)]]
        return int(taken), [*tokens, int(token)]


@dataclass
class _Proposals:
    """Proposed tokens ``(count,)``, on the device, and the draft's distributions; at T = 0 its best logits.

    ``q`` has one row more than there are tokens, which is zero.
    """

    tokens: Tensor
    q: Tensor


class _Text:
    """The text so far, on the host, how many tokens more it may get, and which end it."""

    def __init__(self, prompt: list[int], room: int, ends: frozenset[int]) -> None:
        self.tokens = prompt
        self.room = room
        self.ends = ends
        self._start = len(prompt)

    @property
    def new(self) -> list[int]:
        return self.tokens[self._start :]

    def extend(self, tokens: list[int]) -> bool:
        """Take the tokens of a round; whether the text goes on."""
        end = next((place for place, token in enumerate(tokens) if token in self.ends), None)
        self.tokens += tokens if end is None else tokens[: end + 1]
        self.room -= len(tokens)
        return end is None and self.room > 0


class _Tally:
    """What is counted over the rounds."""

    def __init__(self, k: int) -> None:
        self.accepted = self.drafted = self.rounds = 0
        self.accepted_by_depth = [0] * k
        self.examined_by_depth = [0] * k

    def add(self, accepted: int, drafted: int) -> None:
        self.rounds += 1
        self.accepted += accepted
        self.drafted += drafted
        for place in range(min(accepted + 1, drafted)):
            self.examined_by_depth[place] += 1
            self.accepted_by_depth[place] += place < accepted


class _Proposer:
    """What the drafts share: the distributions of a round, in memory that is taken once."""

    reads_hidden = False

    def __init__(self, decoder: SpeculativeDecoder, device: torch.device) -> None:
        self.draft: Any = decoder.draft
        self.draws = decoder.draws
        self.temperature = decoder.temperature
        self.vocab = decoder.target.vocab
        self.k = decoder.k
        self.device = device
        self.ids = None if decoder.draft_vocab is None else decoder.draft_vocab.to(device)
        self.q: Tensor | None = None

    def propose(self, text: list[int], count: int) -> _Proposals | None:
        """Propose up to ``count`` tokens to follow the text; None: none."""
        raise NotImplementedError

    def accept(self, accepted: int, hidden: Tensor | None) -> None:
        """Take note of how many were accepted, and of the hidden state ``(1, hidden)`` after the last."""

    def _rows(self, logits: Tensor, first: int) -> Tensor:
        """Draw a token from each row of logits ``(rows, vocab)``; keep the distributions from a place on."""
        if logits.device != self.device:
            logits = logits.to(self.device)
        if self.temperature == 0:
            best, places = logits.max(dim=-1)
            if self.q is None:
                self.q = best.new_zeros(self.k + 1, 1, dtype=_wide(best.dtype))
            self.q[first : first + len(places), 0] = best
        else:
            q = _distribution(logits, self.temperature)
            if self.q is None:
                self.q = q.new_zeros(self.k + 1, self.vocab)
            places = self.draws.token(q)
            if self.ids is None:
                self.q[first : first + len(q)] = q
            else:
                self.q[first : first + len(q), self.ids] = q
        return places if self.ids is None else self.ids[places]

    def _proposals(self, tokens: Tensor) -> _Proposals:
        assert self.q is not None
        count = len(tokens)
        if count < self.k:
            self.q[count].zero_()
        return _Proposals(tokens, self.q[: count + 1])


class _Continuing(_Proposer):
    """Proposals of a causal language model, which reads its own."""

    def __init__(self, decoder: SpeculativeDecoder, device: torch.device) -> None:
        super().__init__(decoder, device)
        self.cache = self.draft.start()
        self.own_device = self.draft.device
        self.read = 0  # tokens of the text in the cache, and before its start: a full cache is begun anew
        self.start = 0
        self.proposed = 0

    def propose(self, text: list[int], count: int) -> _Proposals | None:
        if count < 1:
            self.proposed = 0
            return None
        self._make_room(len(text), count)
        unread = torch.tensor([text[self.read :]], device=self.own_device)
        tokens = []
        for place in range(count):
            logits, _ = self.draft.step(unread, self.cache, 1, hidden=False)
            token = self._rows(logits[0], place)
            tokens.append(token)
            unread = token.view(1, 1)
            if self.own_device != self.device:
                unread = unread.to(self.own_device)
        self.read, self.proposed = len(text), count
        return self._proposals(torch.cat(tokens))

    def accept(self, accepted: int, hidden: Tensor | None) -> None:
        """Keep what was read of the text as it is now: the last proposal was never read."""
        if self.proposed:
            kept = min(accepted, self.proposed - 1)
            self.read += kept
            if kept < self.proposed - 1:
                self.draft.crop(self.cache, self.read - self.start)

    def _make_room(self, length: int, count: int) -> None:
        longest = self.draft.max_length
        if longest is not None and length - self.start + count - 1 > longest:
            kept = max(1, min(longest // 2, longest - count + 1))
            self.cache, self.start = self.draft.start(), length - kept
            self.read = self.start


class _Heads(_Proposer):
    """Proposals of independent heads, all from one hidden state in one pass."""

    reads_hidden = True

    def __init__(self, decoder: SpeculativeDecoder, device: torch.device) -> None:
        super().__init__(decoder, device)
        self.hidden: Tensor | None = None
        self.dtype = next((own.dtype for own in self.draft.parameters()), None)

    def propose(self, text: list[int], count: int) -> _Proposals | None:
        if self.hidden is None or count < 1:
            return None
        logits = self.draft(self.hidden.unsqueeze(1))[0, :count, 0]
        return self._proposals(self._rows(logits, 0))

    def accept(self, accepted: int, hidden: Tensor | None) -> None:
        # A target in half precision may have a draft in single precision.
        self.hidden = hidden if hidden is None else hidden.to(self.dtype)


class _Recurrent(_Heads):
    """Proposals of a recurrent draft, from a hidden state and the tokens since."""

    def propose(self, text: list[int], count: int) -> _Proposals | None:
        if self.hidden is None or count < 1:
            return None
        state, tokens = self.draft.start(self.hidden), []
        token = torch.tensor(text[-1:], device=self.hidden.device)
        for depth in range(count):
            logits, state = self.draft.advance(depth, state, token)
            token = self._rows(logits, depth)
            tokens.append(token)
        return self._proposals(torch.cat(tokens))


def _proposer(decoder: SpeculativeDecoder, device: torch.device) -> _Proposer:
    if not isinstance(decoder.draft, HiddenDraft):
        return _Continuing(decoder, device)
    kind = _Heads if isinstance(decoder.draft, MedusaHeads) else _Recurrent
    return kind(decoder, device)


def _compared(logits: Tensor, proposals: _Proposals | None) -> tuple[int, list[int]]:
    """The greedy rule: proposals are accepted as far as they are the target's likeliest tokens."""
    values, best = logits.max(dim=-1)
    if proposals is None:
        _check_best("target", float(values[0]))
        return 0, [int(best[0])]
    count = len(proposals.tokens)
    numbers = (best, proposals.tokens, values, proposals.q[:count, 0])
    report = torch.cat([number.to(torch.float64) for number in numbers]).tolist()
    wanted, proposed = report[: count + 1], report[count + 1 : 2 * count + 1]
    for value in report[3 * count + 2 :]:
        _check_best("draft", value)
    accepted = 0
    while accepted < count and wanted[accepted] == proposed[accepted]:
        accepted += 1
    for value in report[2 * count + 1 : 2 * count + 2 + accepted]:
        _check_best("target", value)
    return accepted, [int(token) for token in wanted[: accepted + 1]]


def _distribution(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities, in float32 or wider; so is the division, whose rounding would change the law."""
    scaled = logits if temperature == 1 else logits.to(_wide(logits.dtype)) / temperature
    return scaled.softmax(dim=-1, dtype=_wide(logits.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _check_total(name: str, total: float) -> None:
    if not total > 0:
        raise ValueError(f"{name}: its logits are NaN, plus infinity, or minus infinity for every token")


def _check_best(name: str, value: float) -> None:
    if not float("-inf") < value < float("inf"):
        raise ValueError(f"{name}: its logits are NaN, plus infinity, or minus infinity for every token")


def _check_prompt(prompt: Tensor, longest: int | None) -> None:
    if prompt.dim() != 1 or prompt.dtype != torch.int64:
        raise ValueError(
            f"prompt: expected int64 tokens of shape (prompt,), got {prompt.dtype}, {tuple(prompt.shape)}"
        )
    if not len(prompt):
        raise ValueError("prompt: expected at least one token, got none")
    if longest is not None and len(prompt) > longest:
        raise ValueError(f"prompt: expected at most max_length={longest} tokens, got {len(prompt)}")


def _check_sizes(
    target: CausalModel, draft: HiddenDraft | CausalModel, k: int, draft_vocab: Tensor | None
) -> None:
    if draft_vocab is not None:
        check_draft_vocab(draft_vocab, target.vocab)
    expected = target.vocab if draft_vocab is None else len(draft_vocab)
    if draft.vocab != expected:
        whose = "the target" if draft_vocab is None else "draft_vocab"
        raise ValueError(
            f"draft: expected {expected} tokens as {whose} has, got {draft.vocab}"
            + ("; a draft of fewer tokens needs draft_vocab" if draft_vocab is None else "")
        )
    if isinstance(draft, HiddenDraft):
        if k > draft.depths:
            raise ValueError(f"k: expected at most the draft's {draft.depths}, got {k}")
        if draft.hidden != target.hidden_size:
            raise ValueError(
                f"draft: expected hidden states of size {target.hidden_size} as the target has, "
                f"got {draft.hidden}"
            )
    elif draft.max_length is not None and k > draft.max_length:
        raise ValueError(f"k: expected at most the draft's max_length={draft.max_length}, got {k}")
