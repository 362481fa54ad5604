"""The model: where its norms are, how it starts, that it looks back alone, and grouped heads."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from leyden_simplenorm import RMSNorm, SimpleGPT, SimpleGPTBlock, SimpleNormLinear, shard_blocks
from leyden_simplenorm.gpt import feed_forward_width, rotate, rotation
from torch import Tensor, nn

SMALL: dict[str, Any] = {"dim": 16, "n_layers": 3, "n_heads": 4, "max_seq_len": 12, "multiple_of": 8}


def model(**arguments: Any) -> SimpleGPT:
    torch.manual_seed(0)
    return SimpleGPT(11, **{**SMALL, **arguments})


def tokens(batch: int = 2, length: int = 10) -> Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(1))


def norms(gpt: nn.Module) -> list[str]:
    return [name for name, module in gpt.named_modules() if isinstance(module, RMSNorm)]


def test_every_map_of_a_block_has_a_norm_after_it_and_there_is_no_other() -> None:
    gpt = model()
    assert len(norms(gpt)) == 7 * 3 + 1
    assert all(name == "norm" or name.endswith(".norm") for name in norms(gpt))
    for block in gpt.blocks:
        assert isinstance(block.attention_norm, nn.Identity)
        assert isinstance(block.feed_forward_norm, nn.Identity)
        maps = [*block.attention.children(), *block.feed_forward.children()]
        assert sum(isinstance(one, SimpleNormLinear) for one in maps) == 7
    assert type(gpt.output) is nn.Linear
    assert gpt.output.bias is None
    assert gpt.output.weight is not gpt.tokens.weight
    assert all(
        torch.equal(one.weight, torch.ones_like(one.weight))
        for one in gpt.modules()
        if isinstance(one, RMSNorm)
    )


@pytest.mark.parametrize(("block_norm", "of_a_block"), [("pre", 2), ("pre_qk", 4)])
def test_the_baselines_have_their_norms(block_norm: Any, of_a_block: int) -> None:
    gpt = model(block_norm=block_norm)
    assert len(norms(gpt)) == of_a_block * 3 + 1
    assert not any(isinstance(one, SimpleNormLinear) for one in gpt.modules())
    wide = [gpt.blocks[0].attention.q_norm, gpt.blocks[0].attention.k_norm]
    assert [isinstance(one, RMSNorm) and one.size == 16 for one in wide] == [block_norm == "pre_qk"] * 2


def test_the_gelu_form_has_two_maps_in_its_feed_forward_part() -> None:
    gpt = model(ffn="gelu", positions="learned")
    assert len(norms(gpt)) == 6 * 3 + 1
    assert gpt.blocks[0].feed_forward.w1.linear.out_features == 64
    assert gpt(tokens()).shape == (2, 10, 11)


def test_a_block_is_the_papers_formula() -> None:
    gpt = model(n_layers=1).double()
    block = gpt.blocks[0]
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    hidden = torch.randn(2, 5, 16, dtype=torch.float64)
    turn = (gpt.cos[:5], gpt.sin[:5])

    def psi(layer: Any, x: Tensor) -> Tensor:
        y = x @ layer.linear.weight.T
        return layer.norm.weight * y / (y.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()

    heads = [
        psi(getattr(block.attention, name), hidden).reshape(2, 5, 4, 4).transpose(1, 2) for name in "qkv"
    ]
    q, k, v = rotate(heads[0], turn), rotate(heads[1], turn), heads[2]
    scores = q @ k.transpose(-1, -2) / 2
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    middle = hidden + psi(block.attention.o, (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(2, 5, 16))
    ffn = block.feed_forward
    gate = psi(ffn.w1, middle)
    expected = middle + psi(ffn.w2, gate * gate.sigmoid() * psi(ffn.w3, middle))
    torch.testing.assert_close(block(hidden, turn), expected)


@pytest.mark.parametrize("block_norm", ["pre", "pre_qk"])
def test_a_baselines_block_is_its_formula(block_norm: Any) -> None:
    gpt = model(n_layers=1, ffn="gelu", positions="learned", block_norm=block_norm).double()
    for parameter in gpt.parameters():
        nn.init.normal_(parameter)
    attention, ffn = gpt.blocks[0].attention, gpt.blocks[0].feed_forward

    def rms(norm: Any, y: Tensor) -> Tensor:
        return norm.weight * y / (y.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()

    hidden = gpt.tokens.weight[tokens()] + gpt.positions.weight[:10]
    before = rms(gpt.blocks[0].attention_norm, hidden)
    projected = {name: before @ getattr(attention, name).weight.T for name in "qkv"}
    if block_norm == "pre_qk":
        projected |= {name: rms(getattr(attention, f"{name}_norm"), projected[name]) for name in "qk"}
    q, k, v = (one.reshape(2, 10, 4, 4).transpose(1, 2) for one in projected.values())
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(torch.ones(10, 10).triu(1).bool(), -math.inf)
    mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(2, 10, 16)
    middle = hidden + mixed @ attention.o.weight.T
    inner = rms(gpt.blocks[0].feed_forward_norm, middle) @ ffn.w1.weight.T
    inner = inner * (1 + torch.erf(inner / 2**0.5)) / 2
    expected = rms(gpt.norm, middle + inner @ ffn.w2.weight.T) @ gpt.output.weight.T
    torch.testing.assert_close(gpt(tokens()), expected)


@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize("block_norm", ["simple", "pre_qk"])
def test_a_token_changes_no_logit_before_it(positions: Any, block_norm: Any) -> None:
    gpt = model(positions=positions, block_norm=block_norm)
    one, other = tokens(), tokens()
    other[:, 6] = (other[:, 6] + 1) % 11
    with torch.no_grad():
        before, after = gpt(one), gpt(other)
    assert torch.equal(before[:, :6], after[:, :6])
    assert (before[:, 6:] != after[:, 6:]).any(dim=-1).all()


def test_grouped_heads_are_explicit_repetition() -> None:
    grouped = model(n_kv_heads=2).double()
    whole = model().double()
    for name, target in whole.named_parameters():
        source = dict(grouped.named_parameters())[name].detach()
        if source.shape != target.shape:  # keys and values: each head twice
            source = source.unflatten(0, (2, 4)).repeat_interleave(2, dim=0).flatten(0, 1)
        target.data.copy_(source)
    torch.testing.assert_close(grouped(tokens()), whole(tokens()), rtol=1e-6, atol=1e-6)


def test_positions_turn_pairs_by_angles_that_depend_on_the_difference() -> None:
    cos, sin = rotation(8, 20, 1e4)
    q, k = torch.randn(2, 1, 1, 1, 8)

    def score(i: int, j: int) -> Tensor:
        return (
            rotate(q, (cos[i : i + 1], sin[i : i + 1])) * rotate(k, (cos[j : j + 1], sin[j : j + 1]))
        ).sum()

    torch.testing.assert_close(score(3, 1), score(17, 15))
    assert (score(3, 1) - score(3, 2)).abs() > 1e-3
    assert cos[1, 0].item() == pytest.approx(math.cos(1.0))
    assert sin[2, 1].item() == pytest.approx(math.sin(2 * 1e4 ** (-2 / 8)))


def test_initial_weights_have_the_official_spread() -> None:
    gpt = model(dim=128, n_layers=4)
    assert gpt.tokens.weight.std().item() == pytest.approx(1, rel=0.1)
    assert gpt.output.weight.std().item() == pytest.approx(128**-0.5, rel=0.1)
    for place, block in enumerate(gpt.blocks):
        for name, module in block.named_modules():
            if isinstance(module, nn.Linear):
                shrinks = name in ("attention.o.linear", "feed_forward.w2.linear", "feed_forward.w3.linear")
                expected = 0.02 / math.sqrt(2 * (place + 1)) if shrinks else 0.02
                assert module.weight.std().item() == pytest.approx(expected, rel=0.05), name
    even = model(dim=128, n_layers=4, depth_init=False)
    assert even.blocks[0].attention.o.linear.weight.std().item() == pytest.approx(
        0.02 / math.sqrt(8), rel=0.05
    )
    wide = model(dim=128, block_norm="pre", init_std=None)
    assert wide.blocks[0].attention.q.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    w2 = wide.blocks[1].feed_forward.w2.weight
    assert w2.shape == (128, 344)
    assert w2.std().item() == pytest.approx((344 * 2 * 2) ** -0.5, rel=0.05)
    learned = model(dim=128, positions="learned", max_seq_len=64)
    assert learned.positions.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_all_three_block_norms_start_from_the_same_weights() -> None:
    weights = [
        [p for p in model(block_norm=block_norm).parameters() if p.ndim > 1]
        for block_norm in ("simple", "pre", "pre_qk")
    ]
    for one, other, third in zip(*weights, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


def test_widths_of_the_feed_forward_part_are_the_authors() -> None:
    assert feed_forward_width(64, "swiglu", 64) == 192
    assert feed_forward_width(2048, "swiglu", 256) == 5632
    assert feed_forward_width(4096, "swiglu", 256) == 11008
    assert feed_forward_width(4096, "swiglu", 256, 1.3) == 14336


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)])
def test_no_tokens_give_no_logits_of_the_right_shape(shape: tuple[int, int]) -> None:
    assert model()(torch.zeros(shape, dtype=torch.long)).shape == (*shape, 11)


def test_logits_are_float32_unless_the_model_is_float64() -> None:
    gpt = model()
    assert gpt(tokens()).dtype == torch.float32
    assert copy.deepcopy(gpt).bfloat16()(tokens()).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        logits = gpt(tokens())
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, gpt(tokens()), rtol=0, atol=0.1)
    assert gpt.double()(tokens()).dtype == torch.float64


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"dim": 18}, "n_heads: expected a divisor of dim=18, got 4"),
        ({"dim": 12}, "n_heads: rotary positions need heads of even size, got 3"),
        ({"n_kv_heads": 3}, "n_kv_heads: expected a divisor of n_heads=4, got 3"),
        ({"n_layers": 0}, "n_layers: expected a whole number of at least 1, got 0"),
        ({"norm_eps": 0.0}, "norm_eps: expected a finite number above 0, got 0.0"),
        ({"ffn": "relu"}, "ffn: expected one of swiglu, gelu, got 'relu'"),
        ({"block_norm": "post"}, "block_norm: expected one of simple, pre, pre_qk, got 'post'"),
        ({"rope_theta": -1.0}, "rope_theta: expected a finite number above 0, got -1.0"),
        ({"init_std": math.nan}, "init_std: expected a finite number above 0 or None, got nan"),
        ({"ffn_multiplier": 0.0}, "ffn_multiplier: expected a finite number above 0, got 0.0"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named}"):
        model(**arguments)


def test_a_sequence_that_is_too_long_is_named() -> None:
    with pytest.raises(ValueError, match=r"^max_seq_len: expected a sequence of at most 12 tokens, got 13"):
        model()(tokens(1, 13))


def test_a_feed_forward_part_is_never_narrower_than_its_multiple() -> None:
    assert feed_forward_width(16, "swiglu", 8, 1e-9) == 8


@pytest.mark.parametrize("tokens", [torch.zeros(3).long(), torch.zeros(1, 2, 3).long(), torch.zeros(1, 3)])
def test_what_is_no_batch_of_tokens_is_named(tokens: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^tokens: expected whole numbers of shape \(batch, length\), got "):
        model()(tokens)


def test_odd_heads_do_for_learned_positions() -> None:
    assert model(dim=12, positions="learned")(tokens()).shape == (2, 10, 11)


def test_compiled_in_one_graph_it_is_the_same() -> None:
    gpt = model(n_layers=1)
    compiled = torch.compile(gpt, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens()), gpt(tokens()), rtol=0, atol=1e-5)


def test_sharding_needs_blocks_that_the_model_has() -> None:
    with pytest.raises(ValueError, match=r"^blocks: expected classes that Linear has, got SimpleGPTBlock"):
        shard_blocks(nn.Linear(2, 2), None, (SimpleGPTBlock,))  # type: ignore[arg-type]
