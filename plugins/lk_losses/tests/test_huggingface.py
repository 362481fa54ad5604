"""Drafts for models of transformers: trained from a folder, and run by assisted generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from leyden_datamodules.loader import training_loader
from leyden_lk_losses import LKLoss, MedusaHeads, MLPSpeculator, SpeculativeDecoder, TinyDraftGPT
from leyden_lk_losses.distributions import store_distributions
from leyden_lk_losses.huggingface import save_draft, to_gpt2
from leyden_lk_losses.models import wrap
from leyden_lk_losses.module import DraftTrainingModule
from leyden_lk_losses.sampling import sample
from lightning.pytorch import Trainer
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

VOCAB, LENGTH, K = 24, 24, 3
PROMPT = torch.tensor([1, 2, 3])


def causal(kind: str, width: int, layers: int, seed: int, spread: float) -> Any:
    """A causal language model with random weights."""
    torch.manual_seed(seed)
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCAB,
            n_embd=width,
            n_layer=layers,
            n_head=2,
            n_positions=128,
            initializer_range=spread,
            **ends,
        )
        return transformers.GPT2LMHeadModel(config).eval()
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=spread,
        **ends,
    )
    return transformers.LlamaForCausalLM(config).eval()


def trainer(steps: int) -> Trainer:
    return Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


class Pair(NamedTuple):
    """A target and a draft on disk that was trained for it."""

    target: Any
    folder: Path
    untrained: Any
    tokens: Tensor
    bits: dict[str, Tensor]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Trained from the target's folder, by the distributions that were kept of it, and saved."""
    home = tmp_path_factory.mktemp(request.param)
    target = causal(request.param, 16, 2, seed=0, spread=0.8)
    target.save_pretrained(home / "target")
    bits = {name: value.clone() for name, value in target.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(VOCAB, (64, 2), generator=generator)
    tokens, _ = sample(wrap(target), prompts, LENGTH, generator=generator)
    stored = store_distributions(home / "target", tokens, keep="full", folder=home)
    draft, untrained = (causal(request.param, 8, 1, seed=1, spread=0.02) for _ in range(2))
    module = DraftTrainingModule(str(home / "target"), draft, LKLoss(eta=3.0), lr=0.02)
    trainer(60).fit(module, training_loader(stored, batch_size=16, seed=0))  # type: ignore[arg-type]
    return Pair(target, save_draft(draft, home / "draft", k=K), untrained, tokens, bits)


def read(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@contextmanager
def passes_of(model: nn.Module) -> Iterator[list[int]]:
    """Counts how often a model is run."""
    counted = [0]

    def count(*_: object) -> None:
        counted[0] += 1

    handle = model.register_forward_hook(count)
    try:
        yield counted
    finally:
        handle.remove()


def generated(pair: Pair, assistant: Any, new: int, **settings: Any) -> tuple[Tensor, int]:
    """The new tokens, and the target's passes."""
    with passes_of(pair.target) as passes:
        tokens = pair.target.generate(
            PROMPT.unsqueeze(0),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            max_new_tokens=new,
            assistant_model=assistant,
            **settings,
        )
    return tokens[0, len(PROMPT) :], passes[0]


def test_assisted_generation_with_the_saved_draft_says_what_the_target_says(pair: Pair) -> None:
    draft = read(pair.folder)
    alone, _ = generated(pair, None, 60, do_sample=False)
    assisted, passes = generated(pair, draft, 60, do_sample=False)
    assert torch.equal(assisted, alone)
    assert passes < 60
    ours = SpeculativeDecoder(pair.target, draft, k=K, temperature=0.0).generate(PROMPT, 60)
    assert torch.equal(ours.tokens, alone)


def test_training_makes_both_decoders_need_fewer_passes(pair: Pair) -> None:
    untrained, trained = pair.untrained, read(pair.folder)
    untrained.generation_config = trained.generation_config
    torch.manual_seed(0)
    drawn: dict[str, Any] = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0}
    before, after = (generated(pair, draft, 120, **drawn)[1] for draft in (untrained, trained))
    assert after < 0.9 * before
    before, after = (
        SpeculativeDecoder(pair.target, draft, k=K, generator=torch.Generator().manual_seed(0))
        .generate(PROMPT, 120)
        .rounds
        for draft in (untrained, trained)
    )
    assert after < 0.9 * before


def test_both_decoders_accept_the_saved_draft_equally_often(pair: Pair) -> None:
    draft = read(pair.folder)
    torch.manual_seed(1)
    theirs = [generated(pair, draft, 120, do_sample=True, top_k=0)[1] for _ in range(2)]
    generator = torch.Generator().manual_seed(1)
    decoder = SpeculativeDecoder(pair.target, draft, k=K, generator=generator)
    ours = [decoder.generate(PROMPT, 120).rounds for _ in range(2)]
    # Of twice 120 tokens, the number of passes has a standard deviation of about 5 %.
    assert abs(sum(theirs) / sum(ours) - 1) < 0.2


def test_the_saved_draft_is_the_trained_one_with_its_settings(pair: Pair) -> None:
    settings = read(pair.folder).generation_config
    assert settings.num_assistant_tokens == K
    assert settings.num_assistant_tokens_schedule == "constant"
    assert settings.assistant_confidence_threshold == 0.0


def test_the_target_keeps_every_bit(pair: Pair) -> None:
    reread = read(pair.folder.parent / "target").state_dict()
    assert all(torch.equal(value, reread[name]) for name, value in pair.bits.items())
    assert all(torch.equal(value, pair.bits[name]) for name, value in pair.target.state_dict().items())


def test_stored_distributions_train_the_draft_that_the_target_itself_trains(
    pair: Pair, tmp_path: Path
) -> None:
    drafts = []
    stored = {
        keep: store_distributions(pair.target, pair.tokens, keep=keep, k=VOCAB, folder=tmp_path)
        for keep in ("full", "top-k", "hidden")
    }
    for source in (None, *stored.values()):
        draft = causal("llama", 8, 1, seed=1, spread=0.02)
        module = DraftTrainingModule(pair.target, draft, LKLoss(eta=3.0), lr=0.01)
        loader: Any = (
            torch.utils.data.DataLoader(pair.tokens, batch_size=16)  # type: ignore[arg-type]
            if source is None
            else training_loader(source, batch_size=16, shuffle=False)  # type: ignore[arg-type]
        )
        trainer(8).fit(module, loader)
        drafts.append(torch.cat([parameter.detach().flatten() for parameter in draft.parameters()]))
    for other in drafts[1:]:
        torch.testing.assert_close(other, drafts[0], atol=2e-3, rtol=0)


def test_heads_train_from_stored_hidden_states(pair: Pair, tmp_path: Path) -> None:
    heads = {}
    for keep, hidden in (("hidden", False), ("full", True), (None, False)):
        torch.manual_seed(0)
        heads[keep] = MedusaHeads(16, VOCAB, 2)
        module = DraftTrainingModule(pair.target, heads[keep], LKLoss(eta=10.0), lr=0.01)
        if keep is None:
            loader: Any = torch.utils.data.DataLoader(pair.tokens, batch_size=16)  # type: ignore[arg-type]
        else:
            stored = store_distributions(pair.target, pair.tokens, keep=keep, hidden=hidden, folder=tmp_path)  # type: ignore[arg-type]
            loader = training_loader(stored, batch_size=16, shuffle=False)  # type: ignore[arg-type]
        trainer(8).fit(module, loader)
    for keep in ("hidden", "full"):
        torch.testing.assert_close(heads[keep].readout, heads[None].readout, atol=2e-3, rtol=0)


@pytest.mark.parametrize("kind", [MedusaHeads, MLPSpeculator])
def test_heads_in_single_precision_serve_a_target_in_half_precision(kind: Any) -> None:
    target = causal("llama", 16, 1, seed=0, spread=0.8).bfloat16()
    heads = kind(16, VOCAB, 2)
    trainer(1).fit(
        DraftTrainingModule(target, heads, LKLoss(), lr=0.01),
        torch.utils.data.DataLoader(torch.randint(VOCAB, (4, 8)), batch_size=4),  # type: ignore[arg-type]
    )
    assert len(SpeculativeDecoder(target, heads, k=2).generate(PROMPT, 12).tokens) == 12


def test_a_tiny_gpt_becomes_the_gpt2_that_computes_the_same() -> None:
    torch.manual_seed(0)
    own = TinyDraftGPT(VOCAB, width=16, depth=2, heads=4, max_length=32)
    nn.init.normal_(own.head.weight)
    for parameter in own.parameters():
        nn.init.normal_(parameter, std=0.3)
    twin = to_gpt2(own)
    tokens = torch.randint(VOCAB, (3, 32))
    torch.testing.assert_close(twin(tokens).logits, own(tokens), atol=1e-5, rtol=1e-5)
    assert twin.training
    assert not to_gpt2(own.eval()).training
    assert to_gpt2(own.double())(tokens).logits.dtype == torch.float64


def test_a_tiny_gpt_is_saved_for_assisted_generation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    target = TinyDraftGPT(VOCAB, width=16, depth=2, heads=4, max_length=64).eval()
    nn.init.normal_(target.head.weight)
    save_draft(target, tmp_path, k=4)
    read_again = read(tmp_path)
    tokens = torch.randint(VOCAB, (2, 20))
    torch.testing.assert_close(read_again(tokens).logits, target(tokens), atol=1e-5, rtol=1e-5)
    # A draft that is the target is always right: each of its passes gives 5 tokens.
    twin = to_gpt2(target)
    with passes_of(twin) as passes:
        twin.generate(PROMPT.unsqueeze(0), assistant_model=read_again, max_new_tokens=40, do_sample=False)
    assert passes[0] <= 9


def test_a_draft_for_the_target_that_is_trained_here_runs_in_assisted_generation(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from leyden_datamodules import PythonDocs
    from leyden_lk_losses import OnPolicyDataModule, tiny_target

    made = {"width": 32, "depth": 1, "heads": 2, "length": 48, "steps": 60, "batch_size": 8}
    target = to_gpt2(tiny_target(vocab=300, subset=40_000, **made))  # type: ignore[arg-type]
    docs = PythonDocs(tokens="bpe", vocabulary_size=300, length=16, subset=40_000)
    text = OnPolicyDataModule(
        target, docs, rows=64, val_rows=8, test_rows=8, length=32, prompt_length=4, batch_size=16
    )
    torch.manual_seed(0)
    draft = TinyDraftGPT(300, width=16, depth=1, heads=2, max_length=128)
    untrained = read(save_draft(draft, tmp_path / "untrained", k=K))
    fit = trainer(80)
    fit.fit(DraftTrainingModule(target, draft, LKLoss(eta=3.0), lr=0.02), text)
    trained = read(save_draft(draft, tmp_path / "trained", k=K))
    prompts = text.test[0][:, :4]
    passes = {}
    for name, assistant in (("alone", None), ("untrained", untrained), ("trained", trained)):
        with passes_of(target) as counted:
            said = [
                target.generate(
                    prompt[None],
                    attention_mask=torch.ones(1, 4, dtype=torch.long),
                    assistant_model=assistant,
                    max_new_tokens=40,
                    do_sample=False,
                )[0].tolist()
                for prompt in prompts[:4]
            ]
        passes[name] = (counted[0], said)
    assert passes["alone"][1] == passes["untrained"][1] == passes["trained"][1]
    assert passes["trained"][0] < passes["untrained"][0] <= passes["alone"][0]


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (MedusaHeads(4, 8, 2), "^draft: assisted generation runs causal language models; MedusaHeads reads"),
        (
            nn.Linear(2, 2),
            "^draft: expected a causal language model of transformers or a TinyDraftGPT, got L",
        ),
        (TinyDraftGPT(8, outputs=4), "^model: expected as many outputs as tokens, 8, got 4"),
    ],
)
def test_what_assisted_generation_cannot_run_is_refused(
    draft: nn.Module, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        save_draft(draft, tmp_path)
    with pytest.raises(ValueError, match=r"^k: expected"):
        save_draft(TinyDraftGPT(8), tmp_path, k=0)
    assert not list(tmp_path.iterdir())
