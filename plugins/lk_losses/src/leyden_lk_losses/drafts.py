"""Draft models (reconstructed): heads on the target's hidden states, a recurrent one, a small transformer.

Two kinds of draft propose tokens. A `HiddenDraft` reads the target's last hidden state at position t, from
which the target itself predicts token t + 1, and predicts the tokens behind that one: its depth n = 1..N is
the token t + 1 + n. A stand-alone draft is a causal language model of its own, from tokens to logits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from leyden_lk_losses.arguments import check_count

State = Tensor
"""What a recurrent draft carries from one proposal to the next, of shape ``(batch, width)``."""


class HiddenDraft(nn.Module, ABC):
    """A draft that reads the target's last hidden state.

    Args:
        hidden: size of the target's hidden states.
        vocab: how many tokens it can propose.
        depths: how many tokens it proposes from one hidden state, N.

    Raises:
        ValueError: if a size is not positive; the text names it.
    """

    def __init__(self, hidden: int, vocab: int, depths: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.vocab = vocab
        self.depths = depths

    @abstractmethod
    def forward(
        self, hidden: Float[Tensor, "batch time hidden"], tokens: Int[Tensor, "batch longer"] | None = None
    ) -> Float[Tensor, "batch depth time vocab"]:
        """Logits of every depth at every position, in training.

        Args:
            hidden: the target's last hidden states.
            tokens: the text, int64; at least N tokens longer than the hidden states, where it is read.

        Returns:
            At ``[:, n - 1, t]`` the logits of token t + 1 + n.
        """

    @abstractmethod
    def start(self, hidden: Float[Tensor, "batch hidden"]) -> State:
        """What the first proposal is made from."""

    @abstractmethod
    def advance(
        self, depth: int, state: State, token: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch vocab"], State]:
        """Propose one token.

        Args:
            depth: which one, counted from 0.
            state: of the last proposal.
            token: the token before the proposed one, int64.

        Returns:
            Its logits and the next state.
        """


class MedusaHeads(HiddenDraft):
    """Independent heads on one hidden state, as in MEDUSA (reconstructed from Section 3's summary).

    Head n is ``(h + SiLU(W_n h + b_n)) U_n``: a residual block and a vocabulary projection of its own. No
    head knows what another proposes.

    Args:
        hidden: size of the target's hidden states.
        vocab: how many tokens it can propose.
        n_heads: number of heads N; the paper takes 6.

    Raises:
        ValueError: if a size is not positive; the text names it.

    >>> MedusaHeads(8, 100, 3)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 3, 5, 100])
    """

    def __init__(self, hidden: int, vocab: int, n_heads: int) -> None:
        for name, value in (("hidden", hidden), ("vocab", vocab), ("n_heads", n_heads)):
            check_count(name, value)
        super().__init__(hidden, vocab, n_heads)
        # All heads in one tensor: a pass is two matrix products, however many there are.
        self.weight = nn.Parameter(_uniform(n_heads, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(n_heads, 1, hidden))
        self.readout = nn.Parameter(_uniform(n_heads, hidden, vocab))

    def forward(
        self, hidden: Float[Tensor, "batch time hidden"], tokens: Int[Tensor, "batch longer"] | None = None
    ) -> Float[Tensor, "batch depth time vocab"]:
        """Logits of every head at every position; ``tokens`` are not read."""
        if hidden.shape[-1] != self.hidden:
            raise ValueError(f"hidden: expected states of size {self.hidden}, got {hidden.shape[-1]}")
        rows = hidden.reshape(1, -1, self.hidden).expand(self.depths, -1, -1)
        mixed = rows + nn.functional.silu(torch.baddbmm(self.bias, rows, self.weight))
        logits = torch.bmm(mixed, self.readout)
        return logits.view(self.depths, *hidden.shape[:-1], self.vocab).transpose(0, 1)

    def start(self, hidden: Float[Tensor, "batch hidden"]) -> State:
        """The hidden state itself."""
        return hidden

    def advance(
        self, depth: int, state: State, token: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch vocab"], State]:
        """The logits of one head; the token before is not read."""
        mixed = state + nn.functional.silu(state @ self.weight[depth] + self.bias[depth])
        return mixed @ self.readout[depth], state


class MLPSpeculator(HiddenDraft):
    """A recurrent multilayer perceptron on hidden state and tokens (reconstructed).

    With s₀ = h, step n reads the token before the one that it proposes: sₙ = GELU(norm(Wₙ sₙ₋₁ + Eₙ x)), and
    its logits are Uₙ sₙ. So a proposal knows those before it, which `MedusaHeads` do not.

    Args:
        hidden: size of the target's hidden states.
        vocab: how many tokens it can propose.
        n_steps: number of steps N; the paper takes 6.
        width: size of the states s; None is ``hidden``.
        inputs: size of the target's vocabulary, from which the tokens it reads are; None is ``vocab``.

    Raises:
        ValueError: if a size is not positive; the text names it.

    >>> draft = MLPSpeculator(8, 100, 3)
    >>> draft(torch.zeros(2, 5, 8), torch.zeros(2, 8, dtype=torch.long)).shape
    torch.Size([2, 3, 5, 100])
    """

    def __init__(
        self, hidden: int, vocab: int, n_steps: int, *, width: int | None = None, inputs: int | None = None
    ) -> None:
        width, inputs = hidden if width is None else width, vocab if inputs is None else inputs
        sizes = (("hidden", hidden), ("vocab", vocab), ("n_steps", n_steps), ("width", width))
        for name, value in (*sizes, ("inputs", inputs)):
            check_count(name, value)
        super().__init__(hidden, vocab, n_steps)
        self.width = width
        self.embeddings = nn.ModuleList(nn.Embedding(inputs, width) for _ in range(n_steps))
        self.mixers = nn.ModuleList(
            nn.Linear(hidden if step == 0 else width, width, bias=False) for step in range(n_steps)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(n_steps))
        self.readouts = nn.ModuleList(nn.Linear(width, vocab, bias=False) for _ in range(n_steps))
        for embedding in self.embeddings:
            nn.init.normal_(embedding.weight, std=width**-0.5)  # type: ignore[arg-type]

    def forward(
        self, hidden: Float[Tensor, "batch time hidden"], tokens: Int[Tensor, "batch longer"] | None = None
    ) -> Float[Tensor, "batch depth time vocab"]:
        """Logits of every step at every position, each told the true tokens before its own."""
        time = hidden.shape[1]
        if hidden.shape[-1] != self.hidden:
            raise ValueError(f"hidden: expected states of size {self.hidden}, got {hidden.shape[-1]}")
        if tokens is None or tokens.shape[1] < time + self.depths:
            given = "none" if tokens is None else f"{tokens.shape[1]}"
            raise ValueError(f"tokens: expected at least {time + self.depths} of them, got {given}")
        state, logits = hidden, []
        for depth in range(self.depths):
            told = tokens[:, depth + 1 : depth + 1 + time]
            proposed, state = self.advance(depth, state, told)
            logits.append(proposed)
        return torch.stack(logits, dim=1)

    def start(self, hidden: Float[Tensor, "batch hidden"]) -> State:
        """The hidden state itself, s₀."""
        return hidden

    def advance(
        self, depth: int, state: State, token: Int[Tensor, "*batch"]
    ) -> tuple[Float[Tensor, "*batch vocab"], State]:
        """One step of the recurrence."""
        mixed = self.mixers[depth](state) + self.embeddings[depth](token)
        state = nn.functional.gelu(self.norms[depth](mixed))
        return self.readouts[depth](state), state


class TinyDraftGPT(nn.Module):
    """A small decoder-only transformer with a key-value cache (reconstructed): a draft, or a tiny target.

    Pre-norm blocks, learned positions, no dropout. `leyden_lk_losses.models.wrap` finds its cache.

    Args:
        vocab: how many tokens it reads.
        width: size of the hidden states, a multiple of ``heads``.
        depth: number of blocks.
        heads: attention heads of a block.
        max_length: longest sequence.
        outputs: how many tokens it proposes, where its vocabulary is truncated; None is ``vocab``.

    Raises:
        ValueError: if a size is out of range, or a sequence is too long; the text names it.

    >>> TinyDraftGPT(512)(torch.zeros(2, 16, dtype=torch.long)).shape
    torch.Size([2, 16, 512])
    """

    def __init__(
        self,
        vocab: int,
        *,
        width: int = 24,
        depth: int = 1,
        heads: int = 2,
        max_length: int = 256,
        outputs: int | None = None,
    ) -> None:
        super().__init__()
        outputs = vocab if outputs is None else outputs
        sizes = (("vocab", vocab), ("width", width), ("depth", depth), ("heads", heads))
        for name, value in (*sizes, ("max_length", max_length), ("outputs", outputs)):
            check_count(name, value)
        if width % heads:
            raise ValueError(f"width: expected a multiple of heads={heads}, got {width}")
        self.vocab = vocab
        self.heads = heads
        self.hidden_size = width
        self.max_length = max_length
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(max_length, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        """Logits of the next token at every position."""
        return self.observe(tokens)[0]

    def observe(
        self, tokens: Int[Tensor, "batch time"]
    ) -> tuple[Float[Tensor, "batch time vocab"], Float[Tensor, "batch time hidden"]]:
        """Logits, and the hidden states that they are a linear function of."""
        hidden = self._embedded(tokens, 0)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.norm(hidden)
        return self.head(hidden), hidden

    def start(self, batch: int = 1) -> KeysValues:
        """An empty cache for so many texts."""
        return KeysValues(self, batch)

    def step(
        self, tokens: Int[Tensor, "batch new"], cache: KeysValues, last: int | None = None
    ) -> tuple[Float[Tensor, "batch last vocab"], Float[Tensor, "batch last hidden"]]:
        """Read on after what the cache holds.

        Args:
            tokens: the new tokens, int64.
            cache: takes their keys and values.
            last: for how many of the last tokens to return something; None: all.

        Returns:
            Logits and hidden states of those.

        Raises:
            ValueError: if the text becomes longer than ``max_length``.
        """
        hidden = self._embedded(tokens, cache.length)
        mask = cache.mask(tokens.shape[1])
        for place, block in enumerate(self.blocks):
            hidden = block.step(hidden, cache.stores[place], cache.length, mask)  # type: ignore[operator]
        cache.length += tokens.shape[1]
        hidden = self.norm(hidden if last is None else hidden[:, -last:])
        return self.head(hidden), hidden

    def crop(self, cache: KeysValues, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        cache.length = length

    def _embedded(self, tokens: Tensor, start: int) -> Tensor:
        end = start + tokens.shape[1]
        if end > self.max_length:
            raise ValueError(f"tokens: expected a length of at most max_length={self.max_length}, got {end}")
        embedded: Tensor = self.tokens(tokens) + self.positions.weight[start:end]
        return embedded


class KeysValues:
    """The keys and values that a `TinyDraftGPT` has computed, in memory that is taken once.

    Args:
        model: whose they are.
        batch: for how many texts.
    """

    def __init__(self, model: TinyDraftGPT, batch: int) -> None:
        weight = model.head.weight
        heads = model.heads
        shape = (2, batch, heads, model.max_length, model.hidden_size // heads)
        self.stores = [weight.new_empty(shape) for _ in model.blocks]
        self.length = 0

    def mask(self, new: int) -> Tensor | None:
        """What each of the new tokens may attend to; None: everything."""
        if new == 1:
            return None
        total = self.length + new
        places = torch.arange(total, device=self.stores[0].device)
        return places <= places[self.length :, None]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self._projected(hidden)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._finished(hidden, mixed)

    def step(self, hidden: Tensor, store: Tensor, length: int, mask: Tensor | None) -> Tensor:
        """As forward, for tokens that come after ``length`` others whose keys and values are in the store."""
        projected = self._projected(hidden)
        end = length + hidden.shape[1]
        store[:, :, :, length:end] = projected[1:]
        key, value = store[:, :, :, :end]
        mixed = nn.functional.scaled_dot_product_attention(projected[0], key, value, attn_mask=mask)
        return self._finished(hidden, mixed)

    def _projected(self, hidden: Tensor) -> Tensor:
        """Queries, keys and values, ``(3, batch, heads, time, size)``."""
        batch, time, width = hidden.shape
        projected: Tensor = self.inputs(self.attention_norm(hidden))
        return projected.view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)

    def _finished(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        hidden = hidden + self.outputs(mixed.transpose(1, 2).reshape(hidden.shape))
        finished: Tensor = hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))
        return finished


def _uniform(count: int, rows: int, columns: int) -> Tensor:
    """The initial weights of ``count`` linear maps, as torch draws them."""
    bound = 1 / math.sqrt(rows)
    return torch.empty(count, rows, columns).uniform_(-bound, bound)
