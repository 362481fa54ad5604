"""Drafts train as documented: for the right tokens, with a target that nothing touches."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from leyden.errors import UsageError
from leyden.testing import RecordingLeydenLogger, RecordingLogger
from leyden_datamodules.loader import tensor_loader
from leyden_lk_losses.acceptance import acceptance_rate
from leyden_lk_losses.alignment import by_depth, estimated_tau
from leyden_lk_losses.data import OnPolicyDataModule
from leyden_lk_losses.decoder import SpeculativeDecoder
from leyden_lk_losses.distributions import TargetBatch, store_distributions
from leyden_lk_losses.drafts import MedusaHeads, MLPSpeculator, TinyDraftGPT
from leyden_lk_losses.loss import LKLoss
from leyden_lk_losses.module import DraftTrainingModule, with_loss
from leyden_lk_losses.sampling import sample
from leyden_lk_losses.targets import tiny_target
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TOKENS = torch.randint(12, (48, 9), generator=torch.Generator().manual_seed(0))


def target(seed: int = 5) -> TinyDraftGPT:
    torch.manual_seed(seed)
    model = TinyDraftGPT(12, width=8, depth=2, max_length=16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def heads() -> MedusaHeads:
    torch.manual_seed(6)
    return MedusaHeads(8, 12, 2)


def standalone() -> TinyDraftGPT:
    torch.manual_seed(6)
    return TinyDraftGPT(12, width=4, max_length=16)


def recurrent() -> MLPSpeculator:
    torch.manual_seed(6)
    return MLPSpeculator(8, 12, 2)


DRAFTS: dict[str, Any] = {"heads": heads, "standalone": standalone, "recurrent": recurrent}


def train(
    module: LightningModule, *, steps: int = 6, batch: int = 8, rows: Any = None, **trainer: Any
) -> Trainer:
    settings: dict[str, Any] = {"logger": False, "enable_checkpointing": False, **trainer}
    runner = Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(TOKENS), batch_size=batch)
    runner.fit(module, loader, loader)
    return runner


def weights(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("name", DRAFTS)
def test_the_target_keeps_every_bit_gets_no_gradient_and_is_in_nothing(name: str) -> None:
    frozen = target().train()
    before = copy.deepcopy(frozen.state_dict())
    module = DraftTrainingModule(frozen, DRAFTS[name](), LKLoss(), 0.05)
    start = weights(module)
    runner = train(module)
    assert all(torch.equal(value, before[key]) for key, value in frozen.state_dict().items())
    assert all(parameter.grad is None for parameter in frozen.parameters())
    assert not frozen.training
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    mine = {id(parameter) for parameter in module.draft.parameters()}
    optimized = {id(one) for group in runner.optimizers[0].param_groups for one in group["params"]}
    assert mine == optimized == {id(parameter) for parameter in module.parameters()}
    assert {key.partition(".")[0] for key in module.state_dict()} == {"draft"}
    assert (weights(module) - start).abs().max() > 1e-2


@pytest.mark.parametrize("name", DRAFTS)
def test_every_depth_is_compared_with_what_the_target_says_there(name: str) -> None:
    """By hand: proposals of the decoder's way, one position at a time, against the target at that place."""
    module = DraftTrainingModule(target(), DRAFTS[name]())
    compared = module(TOKENS[:2])
    logits, hidden = module.target.observe(TOKENS[:2])
    if name == "standalone":
        assert torch.equal(compared.target_logits, logits.unsqueeze(1))
        assert torch.equal(compared.draft_logits, module.draft(TOKENS[:2]).unsqueeze(1))
        return
    assert compared.draft_logits.shape == compared.target_logits.shape == (2, 2, 7, 12)
    for place in range(7):
        state = module.draft.start(hidden[:, place])
        for depth in (1, 2):
            proposed, state = module.draft.advance(depth - 1, state, TOKENS[:2, place + depth])
            assert torch.allclose(compared.draft_logits[:, depth - 1, place], proposed, atol=1e-6)
            assert torch.equal(compared.target_logits[:, depth - 1, place], logits[:, place + depth])


def test_rates_of_training_are_those_of_the_decoder() -> None:
    """The decoder on a deterministic text: p at a proposal's place over the same contexts."""
    frozen, draft = target(), heads()
    module = DraftTrainingModule(frozen, draft, LKLoss("tv"), 0.05)
    train(module, steps=30, limit_val_batches=0)
    prompts = TOKENS[:, :2]
    tokens, _ = sample(module.target, prompts.repeat(20, 1), 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        estimate = module.loss(*module(tokens))
    decoder = SpeculativeDecoder(frozen, draft, k=2, generator=torch.Generator().manual_seed(0))
    accepted = examined = 0
    for prompt in prompts.repeat(2, 1):
        result = decoder.generate(prompt, 14)
        accepted += result.accepted_by_depth[0]
        examined += result.examined_by_depth[0]
    assert accepted / examined == pytest.approx(float(estimate.alpha[0]), abs=0.05)


@pytest.mark.parametrize("name", DRAFTS)
def test_a_stored_answer_trains_as_the_target_itself(name: str, tmp_path: Path) -> None:
    frozen = target()
    stored = store_distributions(frozen, TOKENS, keep="full", hidden=True, dtype="float32", folder=tmp_path)
    batch = stored.batch(range(8))
    assert isinstance(batch, TargetBatch)
    asked = DraftTrainingModule(frozen, DRAFTS[name](), LKLoss())
    told = DraftTrainingModule(frozen, DRAFTS[name](), LKLoss())
    told.target.logits = told.target.observe = None  # type: ignore[assignment,method-assign]
    losses = [module.loss(*module(given)).loss for module, given in ((asked, TOKENS[:8]), (told, batch))]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DRAFTS)
def test_all_tokens_kept_as_the_likeliest_give_the_same_loss(name: str, tmp_path: Path) -> None:
    frozen = target()
    stored = store_distributions(
        frozen, TOKENS, keep="top-k", k=11, hidden=True, dtype="float32", folder=tmp_path
    )
    module = DraftTrainingModule(frozen, DRAFTS[name](), LKLoss())
    losses = [module.loss(*module(given)).loss for given in (TOKENS[:8], stored.batch(range(8)))]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["lk_alpha", "kl", "tv"])
def test_accumulated_batches_equal_one_of_their_rows(kind: Any) -> None:
    small, large = (
        DraftTrainingModule(target(), heads(), LKLoss(kind), optimizer=partial(torch.optim.SGD, lr=0.5))
        for _ in "12"
    )
    train(small, batch=4, accumulate_grad_batches=4, steps=3)
    train(large, batch=16, steps=3)
    assert (weights(small) - weights(large)).abs().max() <= 1e-6
    assert (weights(small) - weights(heads())).abs().max() > 1e-2


def test_lambda_is_that_of_a_micro_batch() -> None:
    seen: list[float] = []

    class Watched(LKLoss):
        def forward(self, *given: Any) -> Any:
            output = super().forward(*given)
            if torch.is_grad_enabled():
                seen.append(float(output.lam[0]))
            return output

    module = DraftTrainingModule(
        target(), heads(), Watched(eta=5.0), optimizer=partial(torch.optim.SGD, lr=0.0)
    )
    train(module, batch=4, accumulate_grad_batches=4, steps=2, limit_val_batches=0)
    rates = [float(LKLoss()(*module(part)).alpha[0]) for part in TOKENS[:32].split(4)]
    assert seen == pytest.approx([math.exp(-5 * rate) for rate in rates], rel=1e-4)


def test_tokens_outside_the_text_change_nothing() -> None:
    mask = torch.ones(8, 9, dtype=torch.bool)
    mask[:4, 6:] = False
    other = torch.where(mask, TOKENS[:8], 0)
    for build in (heads, standalone):
        module = DraftTrainingModule(target(), build(), LKLoss())
        first, second = (module.loss(*module((tokens, mask))) for tokens in (TOKENS[:8], other))
        assert torch.equal(first.loss, second.loss)
        assert not torch.equal(module.loss(*module(TOKENS[:8])).loss, module.loss(*module(other)).loss)


@pytest.mark.parametrize("name", ["heads", "recurrent"])
def test_a_state_before_the_text_proposes_nothing(name: str) -> None:
    """Of a row that is padded in front, the first state that counts is that of its first token."""
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, :3] = False
    counted = DraftTrainingModule(target(), DRAFTS[name]())((TOKENS[:2], mask)).mask
    assert counted.shape == (2, 2, 7)
    assert counted[0].tolist() == [[place >= 3 for place in range(7)]] * 2


@pytest.mark.parametrize("keep", ["full", "top-k", "hidden"])
@pytest.mark.parametrize("name", ["heads", "standalone"])
def test_a_stored_answer_brings_the_mask_of_its_texts(name: str, keep: Any, tmp_path: Path) -> None:
    mask = torch.rand(48, 9, generator=torch.Generator().manual_seed(2)) < 0.8
    frozen = target()
    stored = store_distributions(frozen, TOKENS, keep=keep, k=11, hidden=True, mask=mask, folder=tmp_path)
    assert torch.equal(stored.batch([5, 2]).mask, mask[[5, 2]])
    assert torch.equal(stored[7].mask, mask[7])
    module = DraftTrainingModule(frozen, DRAFTS[name](), LKLoss())
    given = ((TOKENS[:8], mask[:8]), stored.batch(range(8)))
    torch.testing.assert_close(*(module.loss(*module(batch)) for batch in given), rtol=1e-4, atol=1e-5)
    if keep == "full":
        assert torch.equal(stored.restricted(torch.arange(3)).batch([4]).mask, mask[[4]])


def test_a_target_that_was_kept_at_a_temperature_needs_none_in_the_loss(tmp_path: Path) -> None:
    frozen = target()
    stored = store_distributions(frozen, TOKENS[:4], keep="full", temperature=2.0, folder=tmp_path)
    module = DraftTrainingModule(frozen, standalone(), LKLoss())
    found = module(stored.batch([0, 1])).target_logits.softmax(-1)
    torch.testing.assert_close(found, (module(TOKENS[:2]).target_logits / 2).softmax(-1))


def test_what_is_logged_has_the_documented_names() -> None:
    logger = RecordingLogger()
    train(DraftTrainingModule(target(), heads(), LKLoss(), 0.05), logger=logger, log_every_n_steps=2)
    assert list(logger.of("train/lambda_depth1")) == list(logger.of("train/lambda_depth2")) == [1, 3, 5]
    for name in (
        "val_loss",
        "val/alpha_depth1",
        "val/alpha_depth2",
        "val/tau",
        "val/kl",
        "val/top1",
        "train_loss",
    ):
        assert len(logger.of(name)) == 1, name
    first, second = (next(iter(logger.of(f"val/alpha_depth{depth}").values())) for depth in (1, 2))
    assert 0 < second < 1
    assert 1 + first < next(iter(logger.of("val/tau").values())) < 1 + first + second


def test_what_is_logged_of_a_step_is_of_that_step() -> None:
    logger = RecordingLogger()
    module = DraftTrainingModule(target(), heads(), LKLoss(), 1e-12)
    train(module, steps=2, logger=logger, log_every_n_steps=2)
    output = module.loss(*module(TOKENS[8:16]))
    assert logger.of("train/lambda_depth1") == pytest.approx({1: float(output.lam[0])})
    assert logger.of("train_loss_step") == pytest.approx({1: float(output.loss)})


def test_the_loss_of_an_epoch_is_the_mean_over_its_rows() -> None:
    logger = RecordingLogger()
    module = DraftTrainingModule(target(), heads(), LKLoss(), 1e-12)
    train(module, steps=2, batch=32, logger=logger)  # 32 rows and 16
    losses = [module.loss(*module(rows)).loss.item() for rows in TOKENS.split(32)]
    assert list(logger.of("train_loss").values()) == [pytest.approx((2 * losses[0] + losses[1]) / 3)]
    module._train_total, module._train_rows = 1e9, 1  # as an interrupted fit leaves them
    train(module, steps=2, batch=32, logger=(again := RecordingLogger()))
    assert again.of("train_loss") == pytest.approx(logger.of("train_loss"))


def test_a_round_of_a_standalone_draft_is_of_five_tokens_by_default() -> None:
    module = DraftTrainingModule(target(), standalone(), LKLoss())
    found = validated(module, DataLoader(TOKENS, batch_size=16))
    compared = module(TOKENS)
    alpha = acceptance_rate(compared.target_logits, compared.draft_logits).detach()
    assert found["val/tau"] == pytest.approx(float(estimated_tau(alpha, 5)), rel=1e-5)
    assert "val/tau" not in validated(module, DataLoader(TOKENS[:, :4], batch_size=16))  # too short for one


def test_schedulers_step_as_often_as_asked_and_plateaus_watch_validation() -> None:
    rates = []
    for interval in ("step", "epoch"):
        module = DraftTrainingModule(
            target(),
            heads(),
            lr=0.1,
            lr_scheduler=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5),
            interval=interval,  # type: ignore[arg-type]
        )
        rates.append(train(module, steps=6, batch=8).optimizers[0].param_groups[0]["lr"])
    assert rates == pytest.approx([0.1 * 0.5**6, 0.1 * 0.5])
    plateau = DraftTrainingModule(
        target(), heads(), lr=0.1, lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau, interval="epoch"
    )
    assert train(plateau, steps=6).lr_scheduler_configs[0].monitor == "val_loss"


def validated(module: DraftTrainingModule, loader: Any) -> dict[str, float]:
    quiet: Any = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return dict(Trainer(accelerator="cpu", devices=1, **quiet).validate(module, loader, verbose=False)[0])


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("left", [2, 5])
def test_what_is_logged_is_the_mean_over_tokens_however_they_are_batched(left: int, k: int) -> None:
    """With 2 tokens left of a row its second head has nothing to be compared with in the second batch."""
    mask = torch.ones(8, 9, dtype=torch.bool)
    mask[4:, left:] = False
    module = DraftTrainingModule(target(), heads(), LKLoss(), k=k)
    rows = TensorDataset(TOKENS[:8], mask)
    whole, parts = (validated(module, DataLoader(rows, batch_size=size)) for size in (8, 4))
    compared = module((TOKENS[:8], mask))
    alpha = acceptance_rate(compared.target_logits, compared.draft_logits)
    for depth in (0, 1):
        mean = float(alpha[:, depth][compared.mask[:, depth]].detach().mean())
        assert parts[f"val/alpha_depth{depth + 1}"] == pytest.approx(mean, rel=1e-5)
    for name in ("val/tau", "val/kl", "val/top1"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-5), name


def test_a_batch_without_a_token_that_counts_changes_nothing_of_what_is_logged() -> None:
    mask = torch.ones(8, 9, dtype=torch.bool)
    mask[4:] = False
    module = DraftTrainingModule(target(), standalone(), LKLoss())
    rows = TensorDataset(TOKENS[:8], mask)
    found = validated(module, DataLoader(rows, batch_size=4))
    assert found == pytest.approx(validated(module, DataLoader(TOKENS[:4], batch_size=4)), rel=1e-6)


@pytest.mark.parametrize("k", [1, 5, 12])
@pytest.mark.parametrize("name", ["heads", "standalone"])
def test_agreement_on_the_likeliest_token_is_that_of_tokens_whatever_is_kept(
    name: str, k: int, tmp_path: Path
) -> None:
    """Not that of sums: the sum of all others is often the likeliest outcome of both models."""
    frozen = target()
    stored = store_distributions(frozen, TOKENS[:16], keep="top-k", k=k, hidden=True, folder=tmp_path)
    module = DraftTrainingModule(frozen, DRAFTS[name](), LKLoss())
    wanted = validated(module, DataLoader(TOKENS[:16], batch_size=8))["val/top1"]
    assert validated(module, tensor_loader(stored, batch_size=8))["val/top1"] == pytest.approx(wanted)
    assert 0 < wanted < 0.9


def test_agreement_of_a_draft_of_few_tokens_is_on_the_tokens_of_the_target() -> None:
    ids = torch.tensor([11, 3, 0, 7])
    module = DraftTrainingModule(target(), MedusaHeads(8, 4, 2), LKLoss(draft_vocab=ids))
    compared = module(TOKENS)
    wanted = (ids[compared.draft_logits.argmax(-1)] == compared.target_logits.argmax(-1)).float().mean()
    assert validated(module, DataLoader(TOKENS, batch_size=16))["val/top1"] == pytest.approx(wanted.item())
    assert wanted > 0


def test_a_temperature_for_a_target_of_which_a_sum_was_kept_is_refused(tmp_path: Path) -> None:
    frozen = target()
    module = DraftTrainingModule(frozen, standalone(), LKLoss(temperature=0.5))
    part = store_distributions(frozen, TOKENS[:4], k=4, folder=tmp_path).batch([0, 1])
    with pytest.raises(ValueError, match=r"loss: expected temperature=1 where .* got 0.5"):
        module(part)
    full = store_distributions(frozen, TOKENS[:4], keep="full", folder=tmp_path)
    module.loss.temperature = 0.5
    torch.testing.assert_close(module.loss(*module(full.batch([0, 1]))), module.loss(*module(TOKENS[:2])))


def test_the_rates_are_drawn_at_the_end() -> None:
    logger = RecordingLeydenLogger()
    train(DraftTrainingModule(target(), heads(), LKLoss(), 0.05), logger=logger)
    (figure,) = logger.figures.values()
    places, rates = figure.axes[0].lines[0].get_data()
    assert list(places) == [1, 2]
    assert all(0 < rate < 1 for rate in rates)


def test_a_lower_bound_of_what_a_draft_learns() -> None:
    frozen = target()
    module = DraftTrainingModule(frozen, copy.deepcopy(frozen), LKLoss(), 0.01)
    with torch.no_grad():
        output = module.loss(*module(TOKENS))
    assert float(output.alpha[0]) == pytest.approx(1, abs=1e-5)
    assert float(output.loss) == pytest.approx(0, abs=1e-5)


def test_the_target_moves_and_changes_type_with_the_module() -> None:
    module = DraftTrainingModule(target(), heads())
    module.double()
    assert {parameter.dtype for parameter in module.target.module.parameters()} == {torch.float64}
    assert module(TOKENS[:2]).target_logits.dtype == torch.float64
    assert {one.device.type for one in module.to("meta").target.module.parameters()} == {"meta"}


@pytest.mark.parametrize("save_target", [False, True])
def test_a_checkpoint_holds_the_target_if_that_is_wished(save_target: bool, tmp_path: Path) -> None:
    module = DraftTrainingModule(target(), heads(), LKLoss(), 0.05, save_target=save_target)
    train(module, enable_checkpointing=True, default_root_dir=tmp_path).save_checkpoint(
        tmp_path / "draft.ckpt"
    )
    saved = torch.load(tmp_path / "draft.ckpt", weights_only=True)
    assert not [key for key in saved["state_dict"] if not key.startswith("draft.")]
    other = target(seed=7)
    loaded = DraftTrainingModule.load_from_checkpoint(
        tmp_path / "draft.ckpt", target=other, draft=heads(), loss=None
    )
    assert torch.equal(weights(loaded), weights(module))
    same = torch.equal(weights(loaded.target.module), weights(module.target.module))
    assert same == save_target
    assert ("target_state_dict" in saved) == save_target


def test_paths_of_folders_are_targets_and_drafts(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 12,
        "n_embd": 8,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 16,
        "eos_token_id": None,
    }
    for name in ("target", "draft"):
        config = transformers.GPT2Config(**sizes, bos_token_id=None)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / name)
    module = DraftTrainingModule(str(tmp_path / "target"), str(tmp_path / "draft"), LKLoss(), 0.05)
    start = weights(module)
    train(module)
    assert (weights(module) - start).abs().max() > 1e-2
    headed = DraftTrainingModule(str(tmp_path / "target"), heads(), LKLoss(), 0.05)
    train(headed, steps=1)


def test_another_loss_is_put_into_a_module() -> None:
    module = with_loss(DraftTrainingModule(target(), heads(), LKLoss("kl"), 0.1), eta=7.0)
    assert (module.loss.kind, module.loss.eta) == ("lk_lambda", 7.0)
    with pytest.raises(ValueError, match="model: expected a DraftTrainingModule, got Module"):
        with_loss(nn.Module())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lr": 0.0}, "lr: expected a finite number above 0, got 0.0"),
        ({"lr": float("nan")}, "lr: expected"),
        ({"k": 0}, "k: expected a whole number of at least 1"),
        ({"k": 3}, "k: expected at most the draft's 2 depths, got 3"),
        ({"interval": "day"}, "interval: expected 'epoch' or 'step', got 'day'"),
        ({"loss": nn.CrossEntropyLoss()}, "loss: expected an LKLoss, got CrossEntropyLoss"),
        (
            {"draft": MedusaHeads(9, 12, 2)},
            "hidden states of size 8 as the target has, got 9",
        ),
        ({"draft": MedusaHeads(8, 11, 2)}, "draft: expected 12 tokens as the target has, got 11"),
        ({"draft": 3}, "draft: expected a torch.nn.Module or a path, got int"),
        ({"target": 3}, "model: expected a torch.nn.Module or a path, got int"),
        ({"lr": 0.1, "optimizer": torch.optim.SGD}, "lr: expected None where an optimizer is given"),
        ({"lr_scheduler": torch.optim.lr_scheduler.LinearLR}, "lr_scheduler: expected an optimizer"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DraftTrainingModule(**{"target": target(), "draft": heads(), **change})


@pytest.mark.parametrize("batch", [torch.zeros(2, 9), torch.zeros(9, dtype=torch.long), (), ("text",)])
def test_a_batch_without_tokens_is_refused(batch: Any) -> None:
    with pytest.raises(ValueError, match="batch: expected tokens first, int64 of shape"):
        DraftTrainingModule(target(), heads())(batch)


def test_rows_too_short_for_the_depths_are_refused() -> None:
    with pytest.raises(ValueError, match="expected more than 2 positions, got 2"):
        DraftTrainingModule(target(), heads())(TOKENS[:, :2])


def test_a_target_that_is_its_own_draft_and_a_fit_without_optimizer_are_refused() -> None:
    frozen = target()
    with pytest.raises(ValueError, match="draft: expected another model than the target"):
        DraftTrainingModule(frozen, frozen)
    with pytest.raises(UsageError, match="DraftTrainingModule has no optimizer"):
        train(DraftTrainingModule(target(), heads()))


def test_estimates_of_a_round_are_the_mean_products_of_rates() -> None:
    alpha = torch.rand(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    by_hand = 1 + sum(alpha[:, :depth].prod(dim=1) for depth in (1, 2, 3)).mean()  # type: ignore[attr-defined]
    torch.testing.assert_close(estimated_tau(alpha, 3), by_hand)
    row = alpha[:, :1]
    windows = [1 + row[:, 0, t] + row[:, 0, t] * row[:, 0, t + 1] for t in range(4)]
    torch.testing.assert_close(estimated_tau(row, 2), torch.stack(windows).mean())
    mask = torch.ones(3, 1, 5, dtype=torch.bool)
    mask[:, :, 3:] = False
    torch.testing.assert_close(estimated_tau(row, 2, mask), torch.stack(windows[:2]).mean())
    for k, given in ((0, alpha), (5, alpha), (6, row)):
        with pytest.raises(ValueError, match="k: expected 1 to"):
            estimated_tau(given, k)


def test_depths_share_the_memory_of_the_targets_logits() -> None:
    logits = torch.randn(2, 9, 7)
    shifted = by_depth(logits, 3)
    assert shifted.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr()
    assert shifted.shape == (2, 3, 6, 7)


class Peaked(nn.Module):
    """Says token t + 1 after token t, with a chance of one in four for t + 2; 9 ends a text."""

    max_length = None

    def forward(self, tokens: Tensor) -> Tensor:
        p = torch.full((10, 10), 0.0)
        for token in range(10):
            p[token, (token + 1) % 10], p[token, (token + 2) % 10] = 0.75, 0.25
        return p.log()[tokens]


def test_sampled_text_has_the_models_law_and_ends_where_it_ends() -> None:
    from leyden_lk_losses.models import wrap

    prompts = torch.randint(10, (400, 2), generator=torch.Generator().manual_seed(1))  # 9 ends none of them
    rows, mask = sample(wrap(Peaked()), prompts, 12, eos=9, generator=torch.Generator().manual_seed(2))
    assert torch.equal(rows[:, :2], prompts)
    steps = (rows[:, 2:] - rows[:, 1:-1]) % 10
    inside = mask[:, 2:] & mask[:, 1:-1]
    assert set(steps[inside].tolist()) == {1, 2}
    assert float((steps[inside] == 1).float().mean()) == pytest.approx(0.75, abs=0.03)
    for row, belongs in zip(rows.tolist(), mask.tolist(), strict=True):
        end = row.index(9, 2) if 9 in row[2:] else 11
        assert belongs == [place <= end for place in range(12)]
        assert set(row[end + 1 :]) <= {9}
    again, _ = sample(wrap(Peaked()), prompts, 12, eos=9, generator=torch.Generator().manual_seed(2))
    assert torch.equal(again, rows)
    greedy, _ = sample(wrap(Peaked()), prompts, 12, temperature=0)
    assert torch.equal((greedy[:, 2:] - greedy[:, 1:-1]) % 10, torch.ones(400, 10, dtype=torch.long))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prompts": torch.zeros(2, 0, dtype=torch.long)}, "prompts: expected int64"),
        ({"prompts": torch.zeros(2, 5)}, "prompts: expected int64"),
        ({"length": 2}, "prompts: expected int64 of shape .* with prompts of 1 to 1 tokens"),
        ({"length": 18}, "length: expected at most 17, got 18"),
        ({"temperature": -1.0}, "temperature: expected"),
        ({"batch_size": 0}, "batch_size: expected"),
    ],
)
def test_wrong_arguments_of_sampling_are_named(change: dict[str, Any], text: str) -> None:
    from leyden_lk_losses.models import wrap

    with pytest.raises(ValueError, match=text):
        sample(wrap(target()), **{"prompts": TOKENS[:2, :2], "length": 8, **change})


def on_policy(
    monkeypatch: pytest.MonkeyPatch, folder: Path, model: nn.Module, **settings: Any
) -> OnPolicyDataModule:
    monkeypatch.setenv("LEYDEN_CACHE", str(folder))
    sizes = {"rows": 6, "val_rows": 3, "test_rows": 3, "length": 8, "prompt_length": 2, "batch_size": 3}
    return OnPolicyDataModule(model, TOKENS[:12], **{**sizes, **settings})


def test_text_is_sampled_once_and_again_where_anything_differs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import leyden_lk_losses.data as module

    calls: list[int] = []
    real = module.sample
    monkeypatch.setattr(module, "sample", lambda *a, **k: calls.append(1) or real(*a, **k))
    first = on_policy(monkeypatch, tmp_path, target())
    assert first.train[0].shape == (6, 8)
    assert [len(getattr(first, split)[0]) for split in ("train", "val", "test")] == [6, 3, 3]
    assert torch.equal(first.train[0][:, :2], TOKENS[:6, :2])
    assert len(calls) == 3
    again = on_policy(monkeypatch, tmp_path, target())
    assert torch.equal(again.train[0], first.train[0])
    assert again.fingerprint() == first.fingerprint()
    assert len(calls) == 3
    for change in ({"seed": 1}, {"temperature": 0.5}, {"length": 9}, {"eos": 3}):
        other = on_policy(monkeypatch, tmp_path, target(), **change)
        assert other.fingerprint() != first.fingerprint()
    assert on_policy(monkeypatch, tmp_path, target(seed=9)).fingerprint() != first.fingerprint()
    assert len(calls) == 18
    longer = on_policy(monkeypatch, tmp_path, target(), prompt_length=3)
    assert torch.equal(longer.train[0][:, :3], TOKENS[:6, :3])
    del calls[18:]
    other_heads = TinyDraftGPT(12, width=8, depth=2, heads=4, max_length=16)
    other_heads.load_state_dict(target().state_dict())
    assert on_policy(monkeypatch, tmp_path, other_heads).fingerprint() != first.fingerprint()
    assert len(calls) == 21


def test_prompts_are_spread_over_the_splits_of_another_datamodule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Texts(LightningDataModule):
        def setup(self, stage: str) -> None:
            if stage == "fit":
                self.train, self.val = (TOKENS[:21],), (TOKENS[21:24],)
            else:
                self.test = (TOKENS[24:31],)

    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path))
    sizes: dict[str, Any] = {"rows": 6, "val_rows": 6, "test_rows": 3, "length": 8, "prompt_length": 3}
    data = OnPolicyDataModule(target(), Texts(), **sizes)
    assert torch.equal(data.train[0][:, :3], TOKENS[[0, 4, 8, 12, 16, 20], :3])
    assert torch.equal(data.test[0][:, :3], TOKENS[[24, 27, 30], :3])
    pieces = TOKENS[21:24].view(9, 3)  # too few rows: cut anew
    assert torch.equal(data.val[0][:, :3], pieces[[0, 2, 3, 5, 6, 8]])


def test_rows_that_end_come_with_a_mask_that_training_heeds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = on_policy(monkeypatch, tmp_path, target(), eos=3, length=12)
    tokens, mask = next(iter(data.train_dataloader()))
    assert mask.dtype == torch.bool
    assert tokens.shape == mask.shape == (3, 12)
    assert DraftTrainingModule(target(), heads())((tokens, mask)).mask is not None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rows": 0}, "rows: expected"),
        ({"prompt_length": 8}, "prompt_length: expected less than length=8, got 8"),
        (
            {"prompt_length": 10, "length": 12},
            "prompt_length: expected at most the 9 tokens of the train",
        ),
        ({"rows": 99}, "prompts: expected 99 for train, there are"),
        ({"temperature": float("nan")}, "temperature: expected"),
    ],
)
def test_wrong_arguments_of_the_text_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        on_policy(monkeypatch, tmp_path, target(), **change).setup("fit")


def test_a_tiny_target_is_trained_once_and_the_same_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers")
    import leyden_lk_losses.targets as module

    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path))
    small: dict[str, Any] = {"width": 8, "depth": 1, "heads": 2, "length": 16, "steps": 3, "subset": 20_000}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = tiny_target(vocab=260, **small)
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(module, "_train", None)  # it would be called
    assert torch.equal(weights(tiny_target(vocab=260, **small)), weights(first))
    assert not first.training
    assert not any(parameter.requires_grad for parameter in first.parameters())
    for change in ({"steps": 4}, {"seed": 1}, {"lr": 1e-3}, {"batch_size": 16}, {"width": 16}):
        with pytest.raises(TypeError, match="not callable"):
            tiny_target(vocab=260, **{**small, **change})
    with pytest.raises(ValueError, match="text: expected 'python' or 'king-james'"):
        tiny_target("latin")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lr: expected"):
        tiny_target(lr=0)
