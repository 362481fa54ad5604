"""What is kept of a target is what it said, and what is left out changes the losses within derived bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from leyden_datamodules.loader import training_loader
from leyden_lk_losses import acceptance_rate
from leyden_lk_losses.distributions import StoredDistributions, TargetBatch, store_distributions
from leyden_lk_losses.drafts import TinyDraftGPT
from leyden_lk_losses.outcomes import bucketed, with_rest
from torch import Tensor, nn

VOCAB, ROWS, LENGTH = 40, 5, 12
TOKENS = torch.randint(VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
ALL_ROWS = list(range(ROWS))


def own_target() -> nn.Module:
    torch.manual_seed(0)
    model = TinyDraftGPT(VOCAB, width=16, depth=2, heads=2, max_length=16)
    nn.init.normal_(model.head.weight, std=0.7)  # so that its distributions are no uniform ones
    return model


def huggingface_target(kind: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, n_positions=16, initializer_range=0.5
        )
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config)


def target_of(kind: str) -> nn.Module:
    return own_target() if kind == "own" else huggingface_target(kind)


@torch.no_grad()
def log_probabilities(target: nn.Module, temperature: float = 1.0) -> Tensor:
    said = target.eval()(TOKENS)
    return ((said if isinstance(said, Tensor) else said.logits) / temperature).log_softmax(-1)


def logits_pair(seed: int = 0, rows: int = 200, spread: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randn(2, rows, VOCAB, generator=generator, dtype=torch.float64) * spread
    return pair[0], pair[1]


def kept(log_p: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The target's side, as `store_distributions` keeps it."""
    top = log_p.topk(k, dim=-1)
    return with_rest(top.values), top.indices


def tv(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() - log_q.exp()).abs().sum(-1) / 2


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return torch.where(log_p > -torch.inf, log_p.exp() * (log_p - log_q), 0).sum(-1)


# what is kept


@pytest.mark.parametrize("kind", ["own", "gpt2", "llama"])
@pytest.mark.parametrize("keep", ["full", "hidden", "top-k"])
def test_what_is_read_is_what_the_target_said(kind: str, keep: str, tmp_path: Path) -> None:
    target = target_of(kind)
    stored = store_distributions(target, TOKENS, keep=keep, k=VOCAB, batch_size=2, folder=tmp_path)
    batch = stored.batch(ALL_ROWS)
    expected = log_probabilities(target)
    if keep == "top-k":
        assert batch.indices is not None
        torch.testing.assert_close(batch.target_logits[..., :-1], expected.gather(-1, batch.indices))
        assert (batch.target_logits[..., -1] == -torch.inf).all()
    else:
        torch.testing.assert_close(batch.target_logits, expected, atol=2e-5, rtol=0)
    assert torch.equal(batch.tokens, TOKENS)
    assert torch.equal(stored.tokens, TOKENS)


def test_the_likeliest_tokens_and_the_mass_of_the_rest_are_a_distribution(tmp_path: Path) -> None:
    target = own_target()
    batch = store_distributions(target, TOKENS, k=5, folder=tmp_path).batch(ALL_ROWS)
    expected = log_probabilities(target)
    likeliest = expected.topk(5, dim=-1)
    assert batch.indices is not None
    assert torch.equal(batch.indices, likeliest.indices)
    torch.testing.assert_close(batch.target_logits[..., :5], likeliest.values)
    torch.testing.assert_close(batch.target_logits.exp().sum(-1), torch.ones(ROWS, LENGTH))
    rest = 1 - likeliest.values.double().exp().sum(-1)
    torch.testing.assert_close(batch.target_logits[..., 5].double().exp(), rest, atol=1e-6, rtol=0)


@pytest.mark.parametrize("keep", ["full", "hidden", "top-k"])
def test_a_temperature_applies_before_anything_is_left_out(keep: str, tmp_path: Path) -> None:
    target = own_target()
    stored = store_distributions(target, TOKENS, keep=keep, k=3, temperature=0.5, folder=tmp_path)
    batch = stored.batch(ALL_ROWS)
    expected = log_probabilities(target, 0.5)
    if keep == "top-k":
        expected = with_rest(expected.topk(3, dim=-1).values)
    torch.testing.assert_close(batch.target_logits.exp(), expected.exp(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", ["own", "gpt2", "llama"])
def test_hidden_states_are_kept_beside_distributions(kind: str, tmp_path: Path) -> None:
    target = target_of(kind)
    hidden = store_distributions(target, TOKENS, k=3, hidden=True, folder=tmp_path).batch(ALL_ROWS).hidden
    assert hidden is not None
    assert hidden.shape == (ROWS, LENGTH, 16)
    head = target.get_output_embeddings() if kind != "own" else target.head  # type: ignore[operator]
    with torch.no_grad():
        torch.testing.assert_close(head(hidden).log_softmax(-1), log_probabilities(target))  # type: ignore[operator]


@pytest.mark.parametrize("keep", ["full", "hidden", "top-k"])
def test_half_precision_moves_no_probability_by_more_than_a_hundredth(keep: str, tmp_path: Path) -> None:
    target = own_target()
    exact, half = (
        store_distributions(target, TOKENS, keep=keep, k=9, dtype=dtype, folder=tmp_path)
        for dtype in ("float32", "float16")
    )
    assert half.bytes_per_token < exact.bytes_per_token
    first, second = (stored.batch(ALL_ROWS).target_logits.exp() for stored in (exact, half))
    assert 0 < (first - second).abs().max() < 2e-3
    torch.testing.assert_close(second.sum(-1), torch.ones(ROWS, LENGTH), atol=3e-3, rtol=0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"keep": "full"}, 4 * VOCAB),
        ({"keep": "full", "dtype": "float16"}, 2 * VOCAB),
        ({"k": 8}, 8 * (4 + 4) + 4),
        ({"k": 8, "dtype": "float16"}, 8 * (4 + 2) + 4),
        ({"k": 8, "hidden": True}, 8 * (4 + 4) + 4 + 4 * 16),
        ({"keep": "hidden", "dtype": "float16"}, 2 * 16 + 4),
    ],
)
def test_a_token_takes_so_many_bytes(settings: dict[str, object], expected: int, tmp_path: Path) -> None:
    stored = store_distributions(own_target(), TOKENS, folder=tmp_path, **settings)  # type: ignore[arg-type]
    assert stored.bytes_per_token == expected
    files = {path.name: path.stat().st_size for path in stored.folder.glob("*.npy")}
    on_disk = sum(size for name, size in files.items() if name != "tokens.npy")
    assert abs(on_disk - expected * TOKENS.numel()) <= 128 * len(files)  # numpy's headers


def test_hidden_states_of_a_target_in_half_precision_are_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    target = TinyDraftGPT(VOCAB, width=64, depth=1, heads=2, max_length=16)
    nn.init.normal_(target.head.weight, std=2.0)
    target = target.bfloat16()
    real = target.head.forward

    def rounded_otherwise(hidden: Tensor) -> Tensor:
        # As fast kernels do for few rows: the last digit of the result depends on their number.
        return real(hidden) if len(hidden) > 1 else real(hidden) * (1 + 2**-7)

    target.head.forward = rounded_otherwise  # type: ignore[method-assign]
    stored = store_distributions(target, TOKENS, keep="hidden", dtype="float16", folder=tmp_path)
    assert torch.isfinite(stored.batch(ALL_ROWS).target_logits).all()


def test_a_target_that_never_says_a_token_keeps_that(tmp_path: Path) -> None:
    class Banned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = own_target()

        def forward(self, tokens: Tensor) -> Tensor:
            return self.model(tokens).index_fill(-1, torch.tensor([3, 7]), -torch.inf)

    full = store_distributions(Banned(), TOKENS, keep="full", folder=tmp_path).batch(ALL_ROWS)
    assert (full.target_logits[..., [3, 7]] == -torch.inf).all()
    assert not full.target_logits.isnan().any()
    top = store_distributions(Banned(), TOKENS, k=VOCAB - 1, folder=tmp_path).batch(ALL_ROWS)
    assert (top.target_logits[..., -1] == -torch.inf).all()
    with pytest.raises(ValueError, match=r"^keep: 'hidden' needs a target"):
        store_distributions(Banned(), TOKENS, keep="hidden", folder=tmp_path)


def test_a_target_that_changes_what_its_output_layer_says_is_not_kept_as_hidden(tmp_path: Path) -> None:
    class Capped(TinyDraftGPT):
        def observe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            logits, hidden = super().observe(tokens)
            return logits.tanh(), hidden

    target = Capped(VOCAB, width=16, depth=1, heads=2, max_length=16)
    nn.init.normal_(target.head.weight)
    with pytest.raises(ValueError, match=r"whose logits are its output layer's"):
        store_distributions(target, TOKENS, keep="hidden", folder=tmp_path)
    store_distributions(target, TOKENS, keep="full", folder=tmp_path)


# asked once


class Counted(nn.Module):
    """A target that counts how often it is asked, and would say something else while training."""

    def __init__(self) -> None:
        super().__init__()
        self.model = own_target()
        self.dropout = nn.Dropout(0.5)
        self.calls: list[int] = []

    @property
    def asked(self) -> int:
        return len(self.calls)

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls.append(len(tokens))
        return self.dropout(self.model(tokens))


def test_the_target_is_asked_once_for_each_window(tmp_path: Path) -> None:
    target = Counted()
    store_distributions(target, TOKENS, keep="full", batch_size=2, folder=tmp_path)
    asked = target.asked
    again = store_distributions(target, TOKENS, keep="full", batch_size=2, folder=tmp_path)
    again.batch([1, 3])
    # The second time it may say one token, from which its vocabulary is seen.
    assert asked <= 4
    assert target.asked - asked <= 1
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_the_target_is_evaluated_and_left_as_it_was(tmp_path: Path) -> None:
    target = Counted().train()
    target.model.eval()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    stored = store_distributions(target, TOKENS, keep="full", folder=tmp_path)
    assert (target.training, target.dropout.training, target.model.training) == (True, True, False)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
    assert all(parameter.grad is None for parameter in target.parameters())
    torch.testing.assert_close(stored.batch(ALL_ROWS).target_logits, log_probabilities(target.model))


def test_other_weights_tokens_or_settings_are_kept_apart(tmp_path: Path) -> None:
    target, other = own_target(), own_target()
    with torch.no_grad():
        other.head.weight[0, 0] += 1  # type: ignore[union-attr, index]
    changed = TOKENS.clone()
    changed[0, 0] += 1
    folders = {
        store_distributions(model, tokens, folder=tmp_path, **settings).folder  # type: ignore[arg-type]
        for model, tokens, settings in (
            (target, TOKENS, {}),
            (other, TOKENS, {}),
            (target, changed % VOCAB, {}),
            (target, TOKENS, {"k": 9}),
            (target, TOKENS, {"hidden": True}),
            (target, TOKENS, {"temperature": 2.0}),
            (target, TOKENS, {"dtype": "float16"}),
            (target, TOKENS, {"keep": "full"}),
            (target, TOKENS, {"keep": "hidden"}),
        )
    }
    assert len(folders) == 9


def test_the_same_weights_in_another_architecture_are_kept_apart(tmp_path: Path) -> None:
    first, second = huggingface_target("llama"), huggingface_target("llama")
    second.config.rms_norm_eps = 0.1  # type: ignore[union-attr]
    places = [store_distributions(target, TOKENS, folder=tmp_path).folder for target in (first, second)]
    assert places[0] != places[1]


def test_the_same_weights_with_other_attention_heads_are_kept_apart(tmp_path: Path) -> None:
    """The number of heads is in no tensor and in no configuration."""
    first = own_target()
    second = TinyDraftGPT(VOCAB, width=16, depth=2, heads=4, max_length=16)
    second.load_state_dict(first.state_dict())
    assert (log_probabilities(first) - log_probabilities(second)).abs().max() > 1e-3
    stored = [store_distributions(target, TOKENS, keep="full", folder=tmp_path) for target in (first, second)]
    for one, target in zip(stored, (first, second), strict=True):
        torch.testing.assert_close(one.batch(ALL_ROWS).target_logits, log_probabilities(target))


def test_it_lies_in_the_users_folder_for_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path))
    assert store_distributions(own_target(), TOKENS).folder.parent == tmp_path


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    stored = store_distributions(own_target(), TOKENS, folder=tmp_path)
    path = stored.folder / "log_probabilities.npy"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"log_probabilities.npy.*; delete the folder"):
        store_distributions(own_target(), TOKENS, folder=tmp_path)


def test_a_target_on_disk_is_read(tmp_path: Path) -> None:
    target = huggingface_target("llama")
    target.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    stored = store_distributions(tmp_path / "model", TOKENS, keep="full", folder=tmp_path)
    torch.testing.assert_close(stored.batch(ALL_ROWS).target_logits, log_probabilities(target))


def test_loaders_hand_out_its_batches(tmp_path: Path) -> None:
    stored = store_distributions(own_target(), TOKENS, k=3, hidden=True, folder=tmp_path)
    batches = list(training_loader(stored, batch_size=2, seed=0))  # type: ignore[arg-type]
    assert [type(batch) for batch in batches] == [TargetBatch] * 3
    seen = torch.cat([batch.tokens for batch in batches])  # type: ignore[attr-defined]
    assert sorted(seen.tolist()) == sorted(TOKENS.tolist())
    assert torch.equal(stored[4].tokens, TOKENS[4])
    assert stored[4].target_logits.shape == (LENGTH, 4)


# what is left out


@pytest.mark.parametrize("k", [1, 4, 20, VOCAB - 1])
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_acceptance_is_overstated_by_at_most_the_smaller_rest(k: int, spread: float) -> None:
    target, draft = logits_pair(spread=spread)
    log_p, log_q = target.log_softmax(-1), draft.log_softmax(-1)
    p_bar, ids = kept(log_p, k)
    q_bar = bucketed(draft, ids)
    exact, coarse = acceptance_rate(target, draft), acceptance_rate(p_bar, q_bar)
    rest = torch.minimum(p_bar[:, -1], q_bar[:, -1]).exp()
    assert (coarse - exact > -1e-12).all()
    assert (coarse - exact <= rest + 1e-12).all()
    if k < VOCAB - 1:
        assert (coarse - exact > rest / 4).any()  # the bound is no idle one
    else:
        torch.testing.assert_close(coarse, exact)
    hidden_kl = kl(
        log_p.scatter(-1, ids, -torch.inf).log_softmax(-1), log_q.scatter(-1, ids, -torch.inf).log_softmax(-1)
    )
    torch.testing.assert_close(kl(log_p, log_q), kl(p_bar, q_bar) + p_bar[:, -1].exp() * hidden_kl)


@pytest.mark.parametrize("k", [1, 4, 20])
def test_gradients_are_off_by_at_most_twice_the_rest(k: int) -> None:
    target, draft = logits_pair(spread=2.0)
    log_p = target.log_softmax(-1)
    p_bar, ids = kept(log_p, k)
    for divergence, bound in ((kl, p_bar[:, -1].exp()), (tv, bucketed(draft, ids)[:, -1].exp())):
        gradients = []
        for bucket in (False, True):
            z = draft.clone().requires_grad_()
            value = divergence(p_bar, bucketed(z, ids)) if bucket else divergence(log_p, z.log_softmax(-1))
            gradients.append(torch.autograd.grad(value.sum(), z)[0])
        off = (gradients[0] - gradients[1]).abs().sum(-1)
        assert (off <= 2 * bound + 1e-12).all()
        assert off.max() > bound.max() / 50


def test_the_rest_of_the_draft_moves_in_proportion_to_its_probabilities() -> None:
    target, draft = logits_pair(rows=20)
    p_bar, ids = kept(target.log_softmax(-1), 5)
    z = draft.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(kl(p_bar, bucketed(z, ids)).sum(), z)
    log_q = draft.log_softmax(-1)
    per_probability = (gradient / log_q.exp()).scatter(-1, ids, torch.nan)
    spread = per_probability.nan_to_num(torch.inf).amin(-1) - per_probability.nan_to_num(-torch.inf).amax(-1)
    torch.testing.assert_close(spread, torch.zeros_like(spread), atol=1e-8, rtol=0)


def test_bucketing_every_token_is_the_whole_distribution() -> None:
    target, draft = logits_pair(rows=10)
    p_bar, ids = kept(target.log_softmax(-1), VOCAB)
    z = draft.clone().requires_grad_()
    alpha = acceptance_rate(p_bar, bucketed(z, ids))
    torch.testing.assert_close(alpha, acceptance_rate(target, draft))
    alpha.sum().backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_gradients_of_bucketing_are_those_of_differences() -> None:
    draft = logits_pair(rows=4)[1].requires_grad_()
    ids = torch.tensor([[3, 0, 7]]).expand(4, -1)
    assert torch.autograd.gradcheck(lambda logits: bucketed(logits, ids, temperature=0.7), (draft,))


def test_a_rest_that_the_draft_hardly_knows_keeps_its_digits() -> None:
    draft = torch.tensor([0.0, -1.0, -80.0, -81.0])
    found = bucketed(draft, torch.tensor([0, 1]))[-1]
    expected = draft.double().log_softmax(-1)[2:].logsumexp(-1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


def test_tokens_that_the_draft_never_gives_are_no_nan() -> None:
    draft = torch.tensor([[1.0, -torch.inf, 0.0, -torch.inf], [1.0, 0.0, -torch.inf, -torch.inf]])
    z = draft.clone().requires_grad_()
    found = bucketed(z, torch.tensor([[0, 1], [0, 1]]))
    torch.testing.assert_close(found[0].exp(), torch.tensor([0.7311, 0.0, 0.2689]), atol=1e-4, rtol=0)
    torch.testing.assert_close(found[1].exp(), torch.tensor([0.7311, 0.2689, 0.0]), atol=1e-4, rtol=0)
    acceptance_rate(torch.zeros(2, 3), found).sum().backward()
    assert z.grad is not None
    assert not z.grad.isnan().any()


def test_half_precision_logits_are_bucketed_in_single_precision() -> None:
    draft = logits_pair(rows=3)[1].bfloat16()
    ids = torch.tensor([[0, 1]] * 3)
    assert bucketed(draft, ids).dtype == torch.float32
    torch.testing.assert_close(bucketed(draft, ids), bucketed(draft.float(), ids))
    torch.testing.assert_close(bucketed(draft, ids, temperature=0.5), bucketed(draft.float() * 2, ids))


# a draft of fewer tokens


@pytest.mark.parametrize("keep", ["full", "hidden"])
def test_a_restricted_target_gives_the_acceptance_of_the_whole_one(keep: str, tmp_path: Path) -> None:
    target = own_target()
    draft_vocab = torch.tensor([5, 0, 31, 17, 2])
    stored = store_distributions(target, TOKENS, keep=keep, folder=tmp_path)
    batch = stored.restricted(draft_vocab).batch(ALL_ROWS)
    assert batch.target_logits.shape == (ROWS, LENGTH, 6)
    expected = log_probabilities(target)
    torch.testing.assert_close(batch.target_logits[..., :5], expected[..., draft_vocab], atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(batch.target_logits.exp().sum(-1), torch.ones(ROWS, LENGTH))
    draft = torch.randn(ROWS, LENGTH, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        acceptance_rate(batch.target_logits, draft, draft_vocab=torch.arange(5)),
        acceptance_rate(expected, draft, draft_vocab=draft_vocab),
        atol=1e-5,
        rtol=1e-5,
    )


def test_the_likeliest_tokens_alone_cannot_be_restricted(tmp_path: Path) -> None:
    stored = store_distributions(own_target(), TOKENS, folder=tmp_path, k=4)
    with pytest.raises(ValueError, match=r"^draft_vocab: the likeliest tokens were kept"):
        stored.restricted(torch.arange(3))
    full = store_distributions(own_target(), TOKENS, folder=tmp_path, keep="full")
    with pytest.raises(ValueError, match=r"^draft_vocab: expected ids from 0 to 39, got 40"):
        full.restricted(torch.tensor([40]))


def test_the_mass_of_the_rest_of_a_certain_target_is_none() -> None:
    assert with_rest(torch.tensor([0.0, -torch.inf]))[-1] == -torch.inf
    assert with_rest(torch.tensor([1e-7, -20.0]))[-1] == -torch.inf  # a sum above 1 by rounding


# wrong input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": "all"}, "^keep: expected 'top-k', 'full' or 'hidden', got 'all'"),
        ({"k": 0}, "^k: expected a whole number of at least 1, got 0"),
        ({"dtype": "bfloat16"}, "^dtype: expected 'float32' or 'float16', got 'bfloat16'"),
        ({"batch_size": 0}, "^batch_size: expected a whole number of at least 1, got 0"),
        ({"temperature": 0.0}, "^temperature: expected a finite number above 0, got 0.0"),
        ({"tokens": torch.zeros(3)}, r"^tokens: expected ids of shape \(rows, length\), got torch.float32"),
        ({"tokens": torch.zeros(0, 3).long()}, "^tokens: expected ids of shape"),
        ({"tokens": torch.tensor([[40]])}, "^tokens: expected ids from 0 to 39, got 40"),
        ({"tokens": torch.tensor([[-1]])}, "^tokens: expected ids from 0 to 39, got -1"),
        ({"mask": torch.ones(5, 12)}, r"^mask: expected bool of shape \(5, 12\) .*, got torch.float32"),
        ({"mask": torch.ones(5, 11).bool()}, r"^mask: .* got torch.bool of shape \(5, 11\)"),
    ],
)
def test_a_wrong_argument_is_named(settings: dict[str, object], message: str, tmp_path: Path) -> None:
    arguments = {"tokens": TOKENS, **settings}
    with pytest.raises(ValueError, match=message):
        store_distributions(own_target(), folder=tmp_path, **arguments)  # type: ignore[arg-type]
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_target_that_says_nan_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    target = own_target()
    with torch.no_grad():
        target.head.weight[3] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(ValueError, match=r"^target: its logits hold NaN"):
        store_distributions(target, TOKENS, folder=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_hidden_states_beyond_half_precision_are_refused(tmp_path: Path) -> None:
    target = own_target()
    with torch.no_grad():
        target.norm.weight.fill_(1e6)  # type: ignore[union-attr, operator]
    with pytest.raises(ValueError, match=r"^dtype: a hidden state is beyond the range of float16"):
        store_distributions(target, TOKENS, keep="hidden", dtype="float16", folder=tmp_path)


def test_hidden_states_without_the_output_layer_are_refused(tmp_path: Path) -> None:
    stored = store_distributions(own_target(), TOKENS, keep="hidden", folder=tmp_path)
    with pytest.raises(ValueError, match=r"^head: the kept hidden states need"):
        StoredDistributions(stored.folder)
    assert np.load(stored.folder / "hidden.npy").shape == (ROWS, LENGTH, 16)
