"""A decoder-only transformer whose every linear map is followed by a norm; it imports no Lightning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from leyden_simplenorm.layer import SimpleNormLinear, check_init_std, check_sizes, initialise
from leyden_simplenorm.rms import RMSNorm, check_eps

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

BlockNorm = Literal["simple", "pre", "pre_qk"]
FeedForwardKind = Literal["swiglu", "gelu"]
Positions = Literal["rope", "learned"]
Rotation = tuple[Tensor, Tensor]


class SimpleGPT(nn.Module):
    """The language model of Section 3 of Chen et al. (2026), and the two it is compared with.

    With ``block_norm="simple"`` every map inside a block is a `SimpleNormLinear` and there is no other norm
    in it; queries and keys are normalised over all heads together, before the rotary embedding. ``"pre"`` is
    the Llama block (a norm before attention and one before the feed-forward part, plain maps), ``"pre_qk"``
    the same with a norm after the query and one after the key map. After the last block all have one RMSNorm
    and a plain output head. Initial values are those of the authors' code.

    Args:
        vocab_size: number of tokens.
        dim: width of the residual stream, a multiple of ``n_heads``.
        n_layers: number of blocks.
        n_heads: attention heads of a block.
        n_kv_heads: heads of keys and values, a divisor of ``n_heads``; None: as many as ``n_heads``.
        max_seq_len: longest sequence.
        ffn: ``"swiglu"``, W2(SiLU(W1 h) * W3 h), or ``"gelu"``, W2(GELU(W1 h)).
        multiple_of: the width of the feed-forward part is rounded up to a multiple of this.
        ffn_multiplier: factor of that width before it is rounded; None: 1.
        rope_theta: base of the rotary embedding's frequencies.
        positions: ``"rope"``, or ``"learned"`` embeddings that are added to the tokens'.
        norm_eps: epsilon of all norms, above 0.
        depth_init: whether the maps back to the residual stream (and W3) of block i, from 0, start smaller by
            the root of 2 (i + 1), as against 2 ``n_layers`` in all of them.
        block_norm: ``"simple"``, ``"pre"`` or ``"pre_qk"``.
        init_std: standard deviation of the maps' initial weights; None: the inverse root of each map's
            inputs.

    Raises:
        ValueError: if an argument is out of its range, or a sequence is longer than ``max_seq_len``; the text
            names it.

    >>> SimpleGPT(256, 32)(torch.zeros(2, 16, dtype=torch.long)).shape
    torch.Size([2, 16, 256])
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int = 256,
        n_layers: int = 4,
        n_heads: int = 4,
        n_kv_heads: int | None = None,
        max_seq_len: int = 256,
        ffn: FeedForwardKind = "swiglu",
        multiple_of: int = 64,
        ffn_multiplier: float | None = None,
        rope_theta: float = 1e4,
        positions: Positions = "rope",
        norm_eps: float = 1e-5,
        depth_init: bool = True,
        block_norm: BlockNorm = "simple",
        *,
        init_std: float | None = 0.02,
    ) -> None:
        super().__init__()
        kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        check_sizes(
            vocab_size=vocab_size, dim=dim, n_layers=n_layers, n_heads=n_heads, n_kv_heads=kv_heads,
            max_seq_len=max_seq_len, multiple_of=multiple_of,
        )  # fmt: skip
        for name, choice, choices in (
            ("ffn", ffn, get_args(FeedForwardKind)),
            ("positions", positions, get_args(Positions)),
            ("block_norm", block_norm, get_args(BlockNorm)),
        ):
            if choice not in choices:
                raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {choice!r}")
        factor = 1.0 if ffn_multiplier is None else ffn_multiplier
        for name, number in (("ffn_multiplier", factor), ("rope_theta", rope_theta)):
            if not isinstance(number, int | float) or not 0 < number < math.inf:
                raise ValueError(f"{name}: expected a finite number above 0, got {number!r}")
        _check_heads(dim, n_heads, kv_heads, positions)
        check_eps_named(norm_eps)
        check_init_std(init_std)
        self.vocab_size = vocab_size
        self.max_seq_len = max_seq_len
        hidden = feed_forward_width(dim, ffn, multiple_of, ffn_multiplier)
        self.tokens = nn.Embedding(vocab_size, dim)
        self.positions = nn.Embedding(max_seq_len, dim) if positions == "learned" else None
        if positions == "rope":
            cos, sin = rotation(dim // n_heads, max_seq_len, rope_theta)
            self.cos: Tensor
            self.sin: Tensor
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
        self.blocks = nn.ModuleList(
            SimpleGPTBlock(dim, n_heads, kv_heads, hidden, ffn=ffn, block_norm=block_norm, norm_eps=norm_eps)
            for _ in range(n_layers)
        )
        self.norm = RMSNorm(dim, norm_eps)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self._initialise(init_std, depth_init)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab"]:
        """Logits of the next tokens.

        Args:
            tokens: int64 of shape ``(batch, length)``; either may be 0.

        Returns:
            Shape ``(batch, length, vocab_size)``, in float32 (float64 where the model is).
        """
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise ValueError(
                f"tokens: expected whole numbers of shape (batch, length), got {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}"
            )
        length = tokens.shape[1]
        if length > self.max_seq_len:
            raise ValueError(
                f"max_seq_len: expected a sequence of at most {self.max_seq_len} tokens, got {length}"
            )
        hidden = self.tokens(tokens)
        turn = None
        if self.positions is not None:
            hidden = hidden + self.positions.weight[:length]
        else:
            turn = (self.cos[:length].to(hidden.dtype), self.sin[:length].to(hidden.dtype))
        if tokens.numel():
            for block in self.blocks:
                hidden = block(hidden, turn)
        logits: Tensor = self.output(self.norm(hidden))
        return logits if logits.dtype == torch.float64 else logits.float()

    def _initialise(self, std: float | None, depth_init: bool) -> None:
        nn.init.normal_(self.tokens.weight)
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=0.02)
        for place, block in enumerate(self.blocks):
            assert isinstance(block, SimpleGPTBlock)
            depth = place + 1 if depth_init else len(self.blocks)
            for linear, shrinks in block.maps():
                full = linear.in_features**-0.5 if std is None else std
                initialise(linear, full / math.sqrt(2 * depth) if shrinks else full)
        std = self.output.in_features**-0.5
        nn.init.trunc_normal_(self.output.weight, std=std, a=-3 * std, b=3 * std)


class SimpleGPTBlock(nn.Module):
    """One block of `SimpleGPT`, attention and feed-forward part; the unit of sharding.

    Args:
        dim: width of the residual stream.
        n_heads: attention heads.
        n_kv_heads: heads of keys and values.
        hidden: width of the feed-forward part.
        ffn: ``"swiglu"`` or ``"gelu"``.
        block_norm: ``"simple"``, ``"pre"`` or ``"pre_qk"``.
        norm_eps: epsilon of the norms.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        hidden: int,
        *,
        ffn: FeedForwardKind = "swiglu",
        block_norm: BlockNorm = "simple",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        simple = block_norm == "simple"
        self.attention_norm = nn.Identity() if simple else RMSNorm(dim, norm_eps)
        self.attention = _Attention(dim, n_heads, n_kv_heads, block_norm, norm_eps)
        self.feed_forward_norm = nn.Identity() if simple else RMSNorm(dim, norm_eps)
        self.feed_forward = _FeedForward(dim, hidden, ffn, simple, norm_eps)

    def forward(self, hidden: Float[Tensor, "batch length dim"], turn: Rotation | None) -> Tensor:
        """The residual stream after the block.

        Args:
            hidden: the residual stream, of shape ``(batch, length, dim)``.
            turn: cosines and sines of the rotary embedding, each ``(length, dim / n_heads / 2)``; None: none.

        Returns:
            Shape ``(batch, length, dim)``.
        """
        hidden = hidden + self.attention(self.attention_norm(hidden), turn)
        result: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result

    def maps(self) -> list[tuple[nn.Linear, bool]]:
        """The linear maps, and for each whether its initial weights shrink with depth."""
        shrinking = ("attention.o", "feed_forward.w2", "feed_forward.w3")
        return [
            (module, name.removesuffix(".linear") in shrinking)
            for name, module in self.named_modules()
            if isinstance(module, nn.Linear)
        ]


class _Attention(nn.Module):
    def __init__(
        self, dim: int, n_heads: int, n_kv_heads: int, block_norm: BlockNorm, norm_eps: float
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = dim // n_heads
        narrow = n_kv_heads * self.head_dim
        simple = block_norm == "simple"
        self.q = _map(dim, dim, simple, norm_eps)
        self.k = _map(dim, narrow, simple, norm_eps)
        self.v = _map(dim, narrow, simple, norm_eps)
        self.o = _map(dim, dim, simple, norm_eps)
        further = block_norm == "pre_qk"
        self.q_norm = RMSNorm(dim, norm_eps) if further else nn.Identity()
        self.k_norm = RMSNorm(narrow, norm_eps) if further else nn.Identity()

    def forward(self, hidden: Tensor, turn: Rotation | None) -> Tensor:
        q = self._heads(self.q_norm(self.q(hidden)), self.n_heads)
        k = self._heads(self.k_norm(self.k(hidden)), self.n_kv_heads)
        v = self._heads(self.v(hidden), self.n_kv_heads)
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        repeats = self.n_heads // self.n_kv_heads
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, projected: Tensor, number: int) -> Tensor:
        return projected.view(*projected.shape[:-1], number, self.head_dim).transpose(1, 2)


class _FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int, ffn: FeedForwardKind, simple: bool, norm_eps: float) -> None:
        super().__init__()
        self.w1 = _map(dim, hidden, simple, norm_eps)
        self.w3 = _map(dim, hidden, simple, norm_eps) if ffn == "swiglu" else None
        self.w2 = _map(hidden, dim, simple, norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.w3 is None:
            inner = nn.functional.gelu(self.w1(hidden))
        else:
            inner = nn.functional.silu(self.w1(hidden)) * self.w3(hidden)
        result: Tensor = self.w2(inner)
        return result


def shard_blocks(
    model: nn.Module, mesh: DeviceMesh, blocks: Sequence[type[nn.Module]] = (SimpleGPTBlock,), **policy: Any
) -> nn.Module:
    """Shard a model by FSDP2 a block at a time, which for SimpleNorm is right; not in the paper.

    A norm needs the whole output of its map, and within a block everything is whole. (Splitting a map's
    outputs over processes, as tensor parallelism does by columns, would change the norm.) For FSDP1 the same
    policy is ``FSDPStrategy(auto_wrap_policy={SimpleGPTBlock})``.

    Args:
        model: the model, such as a `SimpleGPT`, or one that `to_simplenorm` changed.
        mesh: the device mesh, such as ``self.device_mesh["data_parallel"]`` in ``configure_model``.
        blocks: the classes of the blocks, for Hugging Face's Llama ``LlamaDecoderLayer``.
        **policy: further arguments of `torch.distributed.fsdp.fully_shard`.

    Returns:
        The model.

    Raises:
        ValueError: if the model has no module of these classes.
    """
    from torch.distributed.fsdp import fully_shard

    found = [module for module in model.modules() if isinstance(module, tuple(blocks))]
    if not found:
        names = ", ".join(block.__name__ for block in blocks)
        raise ValueError(f"blocks: expected classes that {type(model).__name__} has, got {names}")
    for block in found:
        fully_shard(block, mesh=mesh, **policy)
    fully_shard(model, mesh=mesh, **policy)
    return model


def feed_forward_width(
    dim: int, ffn: FeedForwardKind, multiple_of: int, ffn_multiplier: float | None = None
) -> int:
    """Width of the feed-forward part, as in the code of Chen et al. (2026).

    Args:
        dim: width of the residual stream.
        ffn: ``"swiglu"``, two thirds of four times ``dim``; ``"gelu"``, four times ``dim``.
        multiple_of: rounded up to a multiple of this.
        ffn_multiplier: factor before it is rounded; None: 1.

    Returns:
        The width.

    >>> feed_forward_width(64, "swiglu", 64), feed_forward_width(4096, "swiglu", 256, 1.3)
    (192, 14336)
    """
    hidden = int(2 * (4 * dim) / 3) if ffn == "swiglu" else 4 * dim
    if ffn_multiplier is not None:
        hidden = int(ffn_multiplier * hidden)
    return multiple_of * max(math.ceil(hidden / multiple_of), 1)


def rotation(size: int, length: int, theta: float) -> Rotation:
    """Cosines and sines of the rotary embedding.

    Args:
        size: of a head, even.
        length: number of positions.
        theta: base of the frequencies.

    Returns:
        Two tensors of shape ``(length, size / 2)``.
    """
    frequencies = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(heads: Float[Tensor, "batch heads length size"], turn: Rotation) -> Tensor:
    """Turn each pair (i, i + size / 2) of a head by its position's angle.

    Args:
        heads: of shape ``(batch, heads, length, size)``.
        turn: cosines and sines, each ``(length, size / 2)``.

    Returns:
        Shape ``(batch, heads, length, size)``.
    """
    cos, sin = turn
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def check_eps_named(norm_eps: float) -> None:
    """Refuse an epsilon, by the model's name for it.

    Args:
        norm_eps: the norms' epsilon.

    Raises:
        ValueError: if it is not a finite number above 0.
    """
    try:
        check_eps(norm_eps)
    except ValueError as error:
        raise ValueError(f"norm_{error}") from None


def _check_heads(dim: int, n_heads: int, kv_heads: int, positions: Positions) -> None:
    """Refuse heads that do not share out the width, or that positions cannot turn."""
    if dim % n_heads:
        raise ValueError(f"n_heads: expected a divisor of dim={dim}, got {n_heads}")
    if n_heads % kv_heads:
        raise ValueError(f"n_kv_heads: expected a divisor of n_heads={n_heads}, got {kv_heads}")
    if positions == "rope" and dim // n_heads % 2:
        raise ValueError(
            f"n_heads: rotary positions need heads of even size, got {dim // n_heads} (dim={dim}, "
            f"n_heads={n_heads})"
        )


def _map(inputs: int, outputs: int, simple: bool, eps: float) -> nn.Module:
    linear = nn.Linear(inputs, outputs, bias=False)
    # Not the constructor, which would draw weights: all block norms start from the same ones.
    return SimpleNormLinear.around(linear, outputs, eps=eps) if simple else linear
