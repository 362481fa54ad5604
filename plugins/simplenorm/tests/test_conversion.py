"""SimpleNorm in models that exist: what is replaced, what is kept and why, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from leyden_simplenorm import Conversion, SimpleGPT, SimpleNormLinear, simple_norm, to_simplenorm
from leyden_simplenorm.rms import RMSNorm
from torch import Tensor, nn


def actions(conversion: Conversion) -> dict[str, str]:
    return {change.name: change.action for change in conversion.changes}


def llama(**arguments: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **arguments})).eval()


def gpt2(**arguments: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=19, n_positions=32, n_embd=16, n_layer=2, n_head=4, **arguments
    )
    return transformers.GPT2LMHeadModel(config).eval()


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter under the name that it had before a conversion."""
    return {name.replace(".linear.", "."): p for name, p in model.named_parameters(remove_duplicate=False)}


def test_the_prenorm_model_becomes_the_simple_one() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"dim": 16, "n_layers": 2, "max_seq_len": 8}
    converted, expected = SimpleGPT(11, **sizes, block_norm="pre_qk"), SimpleGPT(11, **sizes)
    report = to_simplenorm(converted)
    missing = expected.load_state_dict(converted.state_dict())
    assert not missing.missing_keys
    tokens = torch.randint(11, (2, 8))
    assert torch.equal(converted(tokens), expected(tokens))
    assert len(report.of("normalised")) == 2 * 7
    assert len(report.of("dropped")) == 2 * 4
    assert actions(report)["output"] == actions(report)["norm"] == "kept"


def test_weights_stay_the_very_same_parameters_and_every_change_is_reported() -> None:
    model = SimpleGPT(11, 16, 2, block_norm="pre")
    before = weights(model)
    bits = {name: p.detach().clone() for name, p in before.items()}
    size = sum(p.numel() for p in model.parameters())
    report = to_simplenorm(model)
    after = weights(model)
    kept = {name for name in before if "_norm." not in name}
    assert all(after[name] is before[name] and torch.equal(after[name], bits[name]) for name in kept)
    assert report.added_parameters == sum(p.numel() for p in model.parameters()) - size
    modules = dict(model.named_modules())
    for change in report.changes:
        kinds = {"normalised": SimpleNormLinear, "dropped": nn.Identity, "kept": nn.Linear | RMSNorm}
        assert isinstance(modules[change.name], kinds[change.action]), change
    assert {type(module) for name, module in modules.items() if name.endswith("_norm")} == {nn.Identity}


def test_llama_with_grouped_heads_is_the_papers_network() -> None:
    model = llama()
    before = weights(model)
    report = to_simplenorm(model)
    assert actions(report)["model.norm"] == "kept"
    assert actions(report)["lm_head"] == "kept"
    assert len(report.of("normalised")) == 2 * 7
    assert len(report.of("dropped")) == 2 * 2
    over = {c.name.rpartition(".")[2]: c.detail for c in report.of("normalised")}
    assert over == {
        "q_proj": "over 16", "k_proj": "over 8", "v_proj": "over 8", "o_proj": "over 16",
        "gate_proj": "over 24", "up_proj": "over 24", "down_proj": "over 16",
    }  # fmt: skip
    assert all(weights(model)[name] is p for name, p in before.items() if "layernorm" not in name)
    loss = model(input_ids=torch.arange(6)[None], labels=torch.arange(6)[None]).loss
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_llama_computes_what_our_model_does_with_its_weights() -> None:
    theirs = llama(rms_norm_eps=1e-5, intermediate_size=48)
    to_simplenorm(theirs, eps=1e-5)
    ours = SimpleGPT(19, 16, 2, 4, 2, 32, multiple_of=48)
    names = {
        "tokens": "model.embed_tokens", "norm": "model.norm", "output": "lm_head", "blocks": "model.layers",
        "attention": "self_attn", "feed_forward": "mlp", "q": "q_proj", "k": "k_proj", "v": "v_proj",
        "o": "o_proj", "w1": "gate_proj", "w3": "up_proj", "w2": "down_proj",
    }  # fmt: skip
    source = theirs.state_dict()
    state = {}
    for name in ours.state_dict():
        first, *rest = name.split(".")
        inner = [part if part in ("norm", "linear", "weight") else names.get(part, part) for part in rest]
        state[name] = source[".".join([names[first], *inner])]
    ours.load_state_dict(state)
    tokens = torch.arange(12)[None] % 19
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=0, atol=1e-5)


def test_a_tied_head_is_left_alone_whatever_its_name() -> None:
    model = llama(tie_word_embeddings=True)
    report = to_simplenorm(model, exclude=())
    kept = {change.name: change.detail for change in report.of("kept")}
    assert kept["lm_head"] == "tied to an embedding"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    untied = to_simplenorm(llama(), exclude=())
    assert {c.name: c.detail for c in untied.of("kept")}["lm_head"] == "the model's output head"


def test_gpt2_has_its_fused_projections_normalised_apart() -> None:
    model = gpt2()
    plain = copy.deepcopy(model)
    report = to_simplenorm(model)
    details = {change.name: change.detail for change in report.changes}
    assert details["transformer.h.0.attn.c_attn"] == "over 16, 16, 16 apart"
    assert details["transformer.h.1.mlp.c_fc"] == "over 64"
    assert details["transformer.h.0.ln_1"] == details["transformer.h.1.ln_2"] == "pre-norm"
    assert details["transformer.ln_f"] == "stands beside the list of blocks"
    assert details["lm_head"] == "tied to an embedding"
    assert model.lm_head.weight is model.transformer.wte.weight
    x = torch.randn(3, 16)
    theirs = plain.transformer.h[0].attn.c_attn
    parts = [
        simple_norm(x, theirs.weight[:, start : start + 16].T, None, theirs.bias[start : start + 16])
        for start in (0, 16, 32)
    ]
    torch.testing.assert_close(model.transformer.h[0].attn.c_attn(x), torch.cat(parts, dim=1))
    model(input_ids=torch.arange(6)[None], labels=torch.arange(6)[None]).loss.backward()
    assert model.transformer.h[0].attn.c_attn.norm.weight.grad.abs().max() > 0


def test_generation_with_a_cache_agrees_with_the_whole_sequence() -> None:
    for model in (llama(), gpt2()):
        to_simplenorm(model)
        tokens = torch.arange(9)[None] % 19
        with torch.no_grad():
            whole = model(tokens).logits
            start = model(tokens[:, :5], use_cache=True)
            rest = model(tokens[:, 5:], past_key_values=start.past_key_values, use_cache=True)
        torch.testing.assert_close(torch.cat([start.logits, rest.logits], dim=1), whole, rtol=0, atol=1e-5)


class Fused(nn.Module):
    def __init__(self, name: str, width: int = 12) -> None:
        super().__init__()
        self.add_module(name, nn.Linear(4, width))
        self.other = nn.Linear(4, 4)


@pytest.mark.parametrize("name", ["query_key_value", "qkv_proj", "Wqkv", "gate_up_proj", "c_attn"])
def test_a_fused_map_of_unknown_layout_is_refused_and_nothing_changed(name: str) -> None:
    model = Fused(name)
    with pytest.raises(ValueError, match=rf"^model: {name} computes several projections at once"):
        to_simplenorm(model)
    assert not any(isinstance(one, SimpleNormLinear) for one in model.modules())
    assert actions(to_simplenorm(model, exclude=(name,))) == {name: "kept", "other": "normalised"}


def test_a_fused_map_whose_parts_are_told_is_normalised_apart() -> None:
    model = Fused("qkv_proj")
    linear = model.qkv_proj
    report = to_simplenorm(model, groups={"*qkv_proj": (8, 2, 2)})
    assert report.changes[0].detail == "over 8, 2, 2 apart"
    x = torch.randn(3, 4)
    parts = [
        simple_norm(x, w, None, b)
        for w, b in zip(linear.weight.split((8, 2, 2)), linear.bias.split((8, 2, 2)), strict=True)
    ]
    torch.testing.assert_close(model.qkv_proj(x), torch.cat(parts, dim=1))
    with pytest.raises(ValueError, match=r"^model: qkv_proj: groups sum to 11, its outputs are 12"):
        to_simplenorm(Fused("qkv_proj"), groups={"qkv_proj": (8, 3)})


def test_attention_that_does_not_call_its_maps_is_refused() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16)
    with pytest.raises(ValueError, match=r"self_attn.out_proj is part of torch.nn.MultiheadAttention"):
        to_simplenorm(model)


def test_a_map_used_twice_is_replaced_once_and_stays_shared() -> None:
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"one": shared, "other": nn.Sequential(shared, nn.Linear(4, 2))})
    report = to_simplenorm(model)
    assert model["one"] is model["other"][0]
    assert isinstance(model["one"], SimpleNormLinear)
    assert model["one"].linear is shared
    assert [(c.name, c.parameters) for c in report.changes] == [("one", 4), ("other.0", 0), ("other.1", 2)]
    assert report.added_parameters == 6


def test_what_was_converted_is_not_converted_again() -> None:
    model = SimpleGPT(11, 16, 1, block_norm="pre")
    to_simplenorm(model)
    with pytest.raises(ValueError, match=r"^include: expected patterns that match a linear map of SimpleGPT"):
        to_simplenorm(model)


def test_include_and_drop_choose() -> None:
    model = SimpleGPT(11, 16, 1, block_norm="pre")
    report = to_simplenorm(model, include="*.feed_forward.*", drop="feed_forward_norm")
    assert {c.name.rpartition(".")[2] for c in report.of("normalised")} == {"w1", "w2", "w3"}
    assert [c.name for c in report.of("dropped")] == ["blocks.0.feed_forward_norm"]
    with pytest.raises(ValueError, match=r"include='nothing'"):
        to_simplenorm(SimpleGPT(11, 16, 1, block_norm="pre"), include="nothing")
    with pytest.raises(ValueError, match=r"^model: expected a module that has linear maps, got one map"):
        to_simplenorm(nn.Linear(2, 2))


def test_a_norm_whose_parent_has_no_replaced_map_stays() -> None:
    embedding = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4))
    model = nn.ModuleDict({"embedding": embedding, "block": nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))})
    assert actions(to_simplenorm(model)) == {
        "embedding.1": "kept",
        "block.0": "dropped",
        "block.1": "normalised",
    }


def test_the_report_is_a_table() -> None:
    report = to_simplenorm(SimpleGPT(11, 16, 2, block_norm="pre"))
    lines = str(report).splitlines()
    assert len(lines) == 2 + len(report.changes)
    assert "| blocks.1.attention.q | normalised | Linear | over 16 | +16 |" in lines
    assert (
        "| blocks.*.attention.q | 2 | normalised | Linear | over 16 | +32 |" in report.summary().splitlines()
    )


def test_states_go_round_bit_for_bit_and_dtypes_stay() -> None:
    model = SimpleGPT(11, 16, 1, block_norm="pre").bfloat16()
    to_simplenorm(model)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    other = SimpleGPT(11, 16, 1, block_norm="pre").bfloat16()
    to_simplenorm(other)
    other.load_state_dict(model.state_dict())
    tokens = torch.arange(6)[None]
    assert torch.equal(model(tokens), other(tokens))


def test_compiled_in_one_graph_a_converted_model_is_the_same() -> None:
    model = SimpleGPT(11, 16, 1, block_norm="pre")
    to_simplenorm(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    tokens = torch.arange(6)[None]
    torch.testing.assert_close(compiled(tokens), model(tokens), rtol=0, atol=1e-5)


class Block(nn.Module):
    """A pre-norm block as people write it, its feed-forward part a row of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)
        self.ln_2 = nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


def test_a_row_of_maps_in_a_block_is_no_list_of_blocks() -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList([Block()]), "ln_f": nn.LayerNorm(4)})
    found = actions(to_simplenorm(model))
    assert found["blocks.0.ln_1"] == found["blocks.0.ln_2"] == "dropped"
    assert found["ln_f"] == "kept"


def test_in_a_row_of_blocks_the_norm_after_the_last_one_stays() -> None:
    row = nn.Sequential(nn.LayerNorm(4), Block(), Block(), nn.LayerNorm(4), nn.Linear(4, 2))
    found = actions(to_simplenorm(row, exclude="4"))
    assert (found["0"], found["3"], found["4"]) == ("dropped", "kept", "kept")
    between = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4))
    assert actions(to_simplenorm(between)) == {
        "0": "normalised", "1": "dropped", "3": "normalised", "4": "dropped",
    }  # fmt: skip


def test_what_is_shared_with_a_place_where_it_is_kept_is_kept() -> None:
    linear, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    block = nn.Sequential(norm, linear, nn.Linear(4, 4))
    model = nn.ModuleDict({"blocks": nn.ModuleList([block]), "norm": norm, "spared": linear})
    report = to_simplenorm(model, exclude="spared")
    kept = {change.name: change.detail for change in report.of("kept")}
    assert kept == {
        "blocks.0.0": "is kept elsewhere, being shared", "blocks.0.1": "left out, being shared",
        "norm": "stands beside the list of blocks", "spared": "left out",
    }  # fmt: skip
    assert block[0] is model["norm"] is norm
    assert block[1] is model["spared"] is linear


def test_groups_for_a_map_that_there_is_not_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^model: groups has 'qvk', which is no map of it"):
        to_simplenorm(nn.Sequential(nn.Linear(4, 12)), groups={"qvk": (4, 4, 4)})


@pytest.mark.parametrize("name", ["kv_a_proj_with_mqa", "kv_b_proj", "Wi", "x_proj", "in_proj_qkvz", "to_kv"])
def test_other_maps_that_compute_several_things_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^model: {name} computes several projections at once"):
        to_simplenorm(Fused(name))


@pytest.mark.parametrize("name", ["wi", "protein_projector", "q_proj", "up_proj", "fc_in", "dense_h_to_4h"])
def test_maps_that_compute_one_thing_are_not(name: str) -> None:
    assert actions(to_simplenorm(Fused(name)))[name] == "normalised"


def test_stacked_experts_are_refused_since_they_would_get_no_norm() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=19, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=2,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    if not any(p.ndim == 3 for p in model.parameters()):
        pytest.skip("this transformers has a map for each expert")
    with pytest.raises(ValueError, match=r"^model: .*experts has the maps of several experts in one array"):
        to_simplenorm(model)
    assert not any(isinstance(one, SimpleNormLinear) for one in model.modules())
    report = to_simplenorm(model, exclude=("experts",), drop="input_layernorm")
    assert [change.name for change in report.of("dropped")] == ["model.layers.0.input_layernorm"]


def test_a_model_that_is_shared_out_is_refused() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    with pytest.raises(ValueError, match=r"^model: is in a DistributedDataParallel, which would not see"):
        to_simplenorm(DistributedDataParallel())

    class DTensor(nn.Parameter):
        """What a sharded parameter is called."""

    sharded = nn.Sequential(nn.Linear(2, 2))
    sharded[0].weight = DTensor(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"^model: is sharded already; convert it before"):
        to_simplenorm(sharded)


def test_a_head_stays_inside_a_wrapper_and_whatever_it_is_for() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
             "num_attention_heads": 4}  # fmt: skip
    wrapped = nn.ModuleDict({"inner": llama()})
    kept = {c.name: c.detail for c in to_simplenorm(wrapped, exclude=()).of("kept")}
    assert kept["inner.lm_head"] == "the model's output head"
    judge = transformers.LlamaForSequenceClassification(
        transformers.LlamaConfig(**sizes, num_labels=3, pad_token_id=0)
    )
    assert {c.name: c.detail for c in to_simplenorm(judge).of("kept")}["score"] == "part of the model's head"


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3", "Mistral", "Gemma", "Gemma2"])
def test_families_like_llama_have_a_norm_after_every_map_of_a_block_and_no_other(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=19, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    plain = copy.deepcopy(model)
    report = to_simplenorm(model)
    assert len(report.of("normalised")) == 2 * 7
    assert {c.name for c in report.of("kept")} == {"model.norm", "lm_head"}
    left = [
        name for name, one in model.model.layers.named_modules() if type(one).__name__.endswith("RMSNorm")
    ]
    assert all(name.endswith("_proj.norm") for name in left)
    x = torch.randn(3, 16)
    theirs, ours = (one.model.layers[1].self_attn.k_proj for one in (plain, model))
    torch.testing.assert_close(ours(x), simple_norm(x, theirs.weight, None, theirs.bias))
    assert model(input_ids=torch.arange(6)[None]).logits.isfinite().all()


def test_a_weight_that_is_read_directly_is_missing_with_words() -> None:
    layer = SimpleNormLinear(3, 2)
    with pytest.raises(AttributeError, match=r"SimpleNormLinear has no weight, .* it is linear\.weight"):
        _ = layer.weight
