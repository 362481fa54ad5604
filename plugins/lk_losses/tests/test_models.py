"""Models as the decoder sees them: a step through the cache gives what a pass over the text gives."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from leyden.tasks import CausalTransformer
from leyden_lk_losses.decoder import SpeculativeDecoder
from leyden_lk_losses.drafts import MedusaHeads, MLPSpeculator, TinyDraftGPT
from leyden_lk_losses.fingerprint import model_identity
from leyden_lk_losses.models import CausalModel, HuggingFace, OwnCache, Plain, evaluating, wrap
from torch import Tensor, nn

TOKENS = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(0))


def hugging_face(kind: str) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if kind != "GPT2":
        sizes |= {"intermediate_size": 64, "num_key_value_heads": 2}
    if kind == "Mistral":
        sizes["sliding_window"] = 6
    if kind == "Gemma2":
        sizes |= {"head_dim": 8, "sliding_window": 6, "final_logit_softcapping": 2.0}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    torch.manual_seed(1)
    name = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    model = getattr(transformers, name)(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def model(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "own":
        return TinyDraftGPT(50, width=32, depth=3, heads=4, max_length=64).double()
    if kind == "plain":
        return CausalTransformer(50, width=32, max_length=64).double().eval()
    return hugging_face(kind)


KINDS = ["own", "plain", "Llama", "GPT2", "Mistral", "Gemma2"]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_steps_after_rejections_give_what_one_pass_gives(kind: str) -> None:
    wrapped = wrap(model(kind))
    logits, hidden = wrapped.observe(TOKENS)
    close = partial(torch.allclose, atol=1e-5 if kind == "Gemma2" else 1e-10)  # it computes in float32 inside
    assert (wrapped.vocab, wrapped.hidden_size, wrapped.max_length) == (50, 32, 64)
    assert torch.allclose(wrapped.logits(TOKENS), logits, atol=1e-12)
    cache = wrapped.start(2)
    for start, stop, last in ((0, 7, None), (7, 8, 1), (8, 15, None), (11, 20, 4)):
        if start == 11:
            wrapped.crop(cache, 11)
        found, states = wrapped.step(TOKENS[:, start:stop], cache, last)
        kept = slice(start if last is None else stop - last, stop)
        assert close(found, logits[:, kept])
        assert states is not None
        assert close(states, hidden[:, kept])
    wrapped.crop(cache, 19)
    assert close(wrapped.step(TOKENS[:, 19:], cache, hidden=False)[0], logits[:, 19:])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_hidden_states_are_those_from_which_the_output_layer_makes_the_logits(kind: str) -> None:
    module = model(kind)
    logits, hidden = wrap(module).observe(TOKENS)
    head = module.get_output_embeddings() if isinstance(wrap(module), HuggingFace) else module.head
    made = head(hidden)  # type: ignore[operator]
    if kind == "Gemma2":
        made = 2 * torch.tanh(made / 2)
    assert torch.allclose(made, logits, atol=1e-12)


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Mistral"])
def test_hugging_face_models_decode_to_their_own_greedy_text(kind: str) -> None:
    target = hugging_face(kind)
    with torch.no_grad():
        expected = target.generate(TOKENS[:1, :5], do_sample=False, max_new_tokens=40)[0, 5:]
    torch.manual_seed(3)
    for draft in (
        TinyDraftGPT(50, max_length=16).double(),
        MedusaHeads(32, 50, 4).double(),
        MLPSpeculator(32, 50, 4).double(),
        copy.deepcopy(target),
    ):
        result = SpeculativeDecoder(target, draft, k=4, temperature=0.0).generate(TOKENS[0, :5], 40)
        assert torch.equal(result.tokens, expected)
    assert result.accepted == 32


def test_a_path_of_a_folder_is_a_model(tmp_path: Path) -> None:
    target = hugging_face("Llama").float()
    target.save_pretrained(tmp_path)
    assert torch.allclose(wrap(str(tmp_path)).logits(TOKENS), target(TOKENS).logits, atol=1e-5)
    assert not wrap(tmp_path).module.training
    with pytest.raises(ValueError, match=r"model: expected a folder with a config\.json, there is none in"):
        wrap(tmp_path / "nowhere")


def test_a_cache_that_forgets_nothing_is_refused() -> None:
    wrapped = wrap(hugging_face("GPT2"))
    held = wrapped.start()
    held.cache = SimpleNamespace(is_croppable=False)
    with pytest.raises(ValueError, match="model: the cache of GPT2LMHeadModel cannot forget rejected tokens"):
        wrapped.crop(held, 0)


def test_what_decides_what_a_model_says_is_told_apart_and_its_mode_is_not() -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float, shift: float = 0.0) -> None:
            super().__init__()
            self.layer = nn.LayerNorm(4, eps=scale)
            self.register_buffer("shift", torch.tensor(shift), persistent=False)

    first = model_identity(Scaled(0.1))
    assert first == model_identity(Scaled(0.1).eval())
    assert first not in (second := model_identity(Scaled(0.2)), third := model_identity(Scaled(0.1, 1.0)))
    assert first["weights"] == second["weights"] == third["weights"]


def test_what_is_no_causal_language_model_is_refused() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(vocab_size=20, d_model=8, num_layers=1, num_heads=1, d_kv=8, d_ff=8)
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is no causal language model"):
        wrap(transformers.T5ForConditionalGeneration(config))
    with pytest.raises(ValueError, match=r"expected a torch\.nn\.Module or a path, got int"):
        wrap(3)  # type: ignore[arg-type]


class NoReadout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(5, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


def test_a_module_without_hidden_states_is_named_where_they_are_asked_for() -> None:
    wrapped = wrap(NoReadout())
    assert isinstance(wrapped, Plain)
    assert wrapped.vocab == 5
    with pytest.raises(ValueError, match="NoReadout has no hidden states to read"):
        SpeculativeDecoder(wrapped, MedusaHeads(4, 5, 4))


class Square(nn.Module):
    """As many hidden units as tokens; its output layer is registered first and may be the embedding's."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tied = tied
        self.readout = nn.Linear(6, 6)
        self.tokens = nn.Embedding(6, 6)
        self.mix = nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.mix(self.tokens(tokens)).tanh()
        return nn.functional.linear(hidden, self.tokens.weight) if self.tied else self.readout(hidden)


def test_hidden_states_as_wide_as_the_vocabulary_are_not_mistaken() -> None:
    module = Square(tied=False)
    logits, hidden = wrap(module).observe(TOKENS % 6)
    torch.testing.assert_close(module.readout(hidden), logits)
    with pytest.raises(ValueError, match=r"Square has no hidden states to read: no torch\.nn\.Linear"):
        wrap(Square(tied=True)).observe(TOKENS % 6)


@pytest.mark.parametrize("capped", [False, True])
def test_hidden_states_are_found_behind_wide_layers_and_before_a_cap(capped: bool) -> None:
    class Wide(nn.Module):
        """Three layers have as many outputs as there are tokens; the logits come from the second."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.up, self.down = nn.Embedding(6, 4), nn.Linear(4, 6), nn.Linear(6, 4)
            self.head, self.side = nn.Linear(4, 6), nn.Linear(4, 6)

        def states(self, tokens: Tensor) -> Tensor:
            return self.down(self.up(self.tokens(tokens)).relu())

        def forward(self, tokens: Tensor) -> Tensor:
            hidden = self.states(tokens)
            if capped:
                return self.head(hidden).tanh()
            logits = self.head(hidden)
            self.side(self.tokens(tokens))
            return logits

    module = Wide()
    torch.testing.assert_close(wrap(module).observe(TOKENS % 6)[1], module.states(TOKENS % 6))


def test_a_module_may_say_its_hidden_states_itself() -> None:
    class Told(Square):
        def observe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            return self(tokens), self.mix(self.tokens(tokens)).tanh()[..., :5]

    assert wrap(Told(tied=True)).hidden_size == 5


def test_a_wrapped_model_is_taken_as_it_is() -> None:
    wrapped = wrap(TinyDraftGPT(5))
    assert isinstance(wrapped, OwnCache)
    assert wrap(wrapped) is wrapped
    assert isinstance(wrapped, CausalModel)


def test_every_submodule_gets_its_own_mode_back() -> None:
    module = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    module[1].eval()
    with evaluating(module):
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.modules()] == [True, True, False, False, False]


def test_a_text_beyond_the_context_is_refused_with_its_length() -> None:
    draft = TinyDraftGPT(5, max_length=8)
    with pytest.raises(ValueError, match="at most max_length=8, got 9"):
        draft(torch.zeros(1, 9, dtype=torch.long))
    cache = draft.start()
    draft.step(torch.zeros(1, 6, dtype=torch.long), cache)
    with pytest.raises(ValueError, match="at most max_length=8, got 9"):
        draft.step(torch.zeros(1, 3, dtype=torch.long), cache)


def test_heads_and_steps_one_at_a_time_are_those_of_the_whole() -> None:
    torch.manual_seed(0)
    hidden, tokens = torch.randn(2, 6, 8), torch.randint(11, (2, 9))
    for draft in (MedusaHeads(8, 11, 3), MLPSpeculator(8, 11, 3, width=5)):
        whole = draft(hidden, tokens)
        assert whole.shape == (2, 3, 6, 11)
        for place in range(6):
            state = draft.start(hidden[:, place])
            for depth in range(3):
                logits, state = draft.advance(depth, state, tokens[:, place + 1 + depth])
                assert torch.allclose(logits, whole[:, depth, place], atol=1e-6)


def test_heads_are_residual_blocks_with_vocabularies_of_their_own() -> None:
    torch.manual_seed(0)
    heads, hidden = MedusaHeads(8, 11, 3), torch.randn(2, 6, 8)
    for head in range(3):
        block = hidden + nn.functional.silu(hidden @ heads.weight[head] + heads.bias[head])
        assert torch.allclose(heads(hidden)[:, head], block @ heads.readout[head], atol=1e-6)


def test_a_recurrent_draft_of_few_tokens_reads_all_of_the_target() -> None:
    draft = MLPSpeculator(8, 3, 2, inputs=11)
    assert draft(torch.zeros(1, 2, 8), torch.full((1, 4), 10)).shape == (1, 2, 2, 3)


def test_a_recurrent_draft_does_not_see_the_tokens_it_proposes() -> None:
    torch.manual_seed(0)
    draft, hidden, tokens = MLPSpeculator(8, 11, 3), torch.randn(1, 4, 8), torch.randint(10, (1, 7))
    base, changed = draft(hidden, tokens), tokens.clone()
    changed[0, 3] = 10
    moved = (draft(hidden, changed) - base).abs().amax(dim=(0, 3)) > 0
    # Depth n at t predicts token t + 1 + n and has read those from t + 1 to t + n.
    for depth in range(3):
        for place in range(4):
            assert bool(moved[depth, place]) == (place + 1 <= 3 <= place + 1 + depth)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: MedusaHeads(0, 5, 2), "hidden: expected a whole number of at least 1, got 0"),
        (lambda: MedusaHeads(4, 5, 0), "n_heads: expected"),
        (lambda: MLPSpeculator(4, 5, 0), "n_steps: expected"),
        (lambda: MLPSpeculator(4, 5, 1, width=0), "width: expected"),
        (lambda: TinyDraftGPT(5, width=9), "width: expected a multiple of heads=2, got 9"),
        (lambda: TinyDraftGPT(5, depth=0), "depth: expected"),
        (lambda: MedusaHeads(4, 5, 2)(torch.zeros(1, 2, 3)), "hidden: expected states of size 4, got 3"),
        (lambda: MLPSpeculator(4, 5, 2)(torch.zeros(1, 2, 3)), "hidden: expected states of size 4, got 3"),
        (
            lambda: MLPSpeculator(4, 5, 2)(torch.zeros(1, 2, 4)),
            "tokens: expected at least 4 of them",
        ),
    ],
)
def test_wrong_sizes_are_named(build: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build()
