"""The model under a Trainer: what is logged, how it learns, when it stops, and how it is shared out."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from leyden_simplenorm import SimpleGPT, SimpleGPTModule, learning_rate_factor
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def module(**arguments: Any) -> SimpleGPTModule:
    torch.manual_seed(0)
    return SimpleGPTModule(11, 16, 1, 2, max_seq_len=6, multiple_of=8, **{"lr": 3e-2, **arguments})


def loader() -> DataLoader[Any]:
    """Sequences in which every token is the one before plus one."""
    start = torch.arange(40) % 11
    rows = (start[:, None] + torch.arange(7)) % 11
    return DataLoader(TensorDataset(rows[:, :-1], rows[:, 1:]), batch_size=8)


@pytest.mark.filterwarnings("ignore")
def test_it_learns_and_logs_nats_and_perplexity_of_all_tokens() -> None:
    learner = module()
    trainer = lightning.Trainer(max_epochs=12, gradient_clip_val=1.0, **QUIET)
    trainer.fit(learner, loader(), loader())
    metrics = trainer.callback_metrics
    assert metrics["val/loss"] < 0.3
    assert {"train/loss", "val/loss", "val/perplexity"} <= set(metrics)
    assert metrics["val/perplexity"].item() == pytest.approx(math.exp(metrics["val/loss"].item()), rel=1e-5)
    (tested,) = trainer.test(learner, loader(), verbose=False)
    rows, targets = (torch.cat(column) for column in zip(*loader(), strict=True))
    with torch.no_grad():
        expected = nn.functional.cross_entropy(learner(rows).flatten(0, 1), targets.flatten()).item()
    assert tested["test/loss"] == pytest.approx(expected, rel=1e-5)
    assert tested["test/perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


def test_every_token_counts_alike_in_batches_of_different_size() -> None:
    rows, targets = (torch.cat(column) for column in zip(*loader(), strict=True))
    uneven = DataLoader(TensorDataset(rows[:11], targets[:11]), batch_size=8)
    learner = module()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(learner(rows[:11]).flatten(0, 1), targets[:11].flatten())
    (tested,) = lightning.Trainer(**QUIET).test(learner, uneven, verbose=False)
    assert tested["test/loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_its_optimizer_has_the_given_numbers_and_what_can_learn() -> None:
    learner = module(lr=0.25, betas=(0.5, 0.75), weight_decay=0.5)
    learner.model.tokens.weight.requires_grad_(False)
    trainer = lightning.Trainer(max_steps=1, **QUIET)
    trainer.fit(learner, loader())
    (optimizer,) = trainer.optimizers
    assert type(optimizer) is torch.optim.AdamW
    assert {(group["initial_lr"], group["betas"]) for group in optimizer.param_groups} == {
        (0.25, (0.5, 0.75))
    }
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(one) for one in learner.parameters() if one is not learner.model.tokens.weight}


def test_what_is_said_of_the_model_reaches_it() -> None:
    said: dict[str, Any] = {
        "dim": 24, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "max_seq_len": 9, "ffn": "gelu",
        "multiple_of": 40, "ffn_multiplier": 1.5, "rope_theta": 50.0, "positions": "rope",
        "norm_eps": 1e-3, "depth_init": False, "block_norm": "pre_qk", "init_std": 0.3,
    }  # fmt: skip
    torch.manual_seed(0)
    expected = SimpleGPT(11, **said)
    torch.manual_seed(0)
    found = SimpleGPTModule(11, **said).model
    assert str(found) == str(expected)
    assert torch.equal(found.cos, expected.cos)
    assert all(map(torch.equal, found.parameters(), expected.parameters()))
    assert not torch.equal(found.cos, SimpleGPT(11, **{**said, "rope_theta": 1e4}).cos)
    assert set(said) <= set(SimpleGPTModule(11, **said).hparams)


def test_logits_are_predicted_for_tokens_with_targets_or_without() -> None:
    learner = module()
    rows, targets = next(iter(loader()))
    alone = DataLoader(rows, batch_size=4)  # type: ignore[arg-type]
    for data in (alone, DataLoader(TensorDataset(rows, targets), batch_size=4)):
        predicted = lightning.Trainer(**QUIET).predict(learner, data)
        torch.testing.assert_close(torch.cat(predicted), learner(rows))  # type: ignore[arg-type]


@pytest.mark.parametrize("gains", [True, False])
def test_gains_decay_only_if_asked(gains: bool) -> None:
    learner = module(decay_gains=gains, schedule="constant", warmup_steps=0)
    lightning.Trainer(max_steps=1, **QUIET).fit(learner, loader())
    optimizer = learner.optimizers()
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert set(decay) == {id(p) for p in learner.parameters()}
    for parameter in learner.parameters():
        assert decay[id(parameter)] == (0.1 if parameter.ndim > 1 or gains else 0.0)


def test_the_schedule_is_the_authors() -> None:
    def rate(step: int, **changes: Any) -> float:
        return learning_rate_factor(step, **{"total": 10, "warmup_steps": 2, "schedule": "linear", **changes})

    assert [rate(step) for step in (0, 1, 2, 3, 9)] == pytest.approx([1 / 3, 2 / 3, 1, 7 / 8, 1 / 8])
    assert rate(5, schedule="constant") == 1
    assert rate(6, schedule="cosine") == pytest.approx(0.5)
    assert rate(0, warmup_steps=0.2) == rate(0)
    assert rate(0, warmup_steps=0) == 1
    assert rate(10) == 0
    with pytest.raises(ValueError, match=r"^schedule: 'linear' needs a number of steps, got inf"):
        rate(0, total=math.inf)
    assert rate(0, total=math.inf, schedule="constant") == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match=r"^warmup_steps: a share of all steps needs their number, got 0.05"):
        rate(0, total=math.inf, schedule="constant", warmup_steps=0.05)


def test_the_learning_rate_follows_the_schedule() -> None:
    class Rates(lightning.Callback):
        seen: list[float]

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    rates = Rates()
    rates.seen = []
    learner = module(lr=0.5, warmup_steps=1)
    lightning.Trainer(max_steps=5, callbacks=[rates], **QUIET).fit(learner, loader())
    assert rates.seen == pytest.approx([0.25, 0.5, 0.375, 0.25, 0.125])


class Spoilt(SimpleGPTModule):
    """A model whose loss is NaN at its third step."""

    def _loss(self, batch: Any) -> Tensor:
        return super()._loss(batch) * (math.nan if self.global_step == 2 else 1.0)


def spoilt(**arguments: Any) -> Spoilt:
    torch.manual_seed(0)
    return Spoilt(11, 16, 1, 2, max_seq_len=6, **arguments)


def test_a_loss_that_is_not_finite_ends_training_by_step_and_loss() -> None:
    with pytest.raises(
        FloatingPointError, match=r"^the training loss at step 2 is nan; .*allow_nonfinite=True"
    ):
        lightning.Trainer(max_steps=4, **QUIET).fit(spoilt(), loader())
    trainer = lightning.Trainer(max_steps=4, **QUIET)
    trainer.fit(spoilt(allow_nonfinite=True), loader())
    assert trainer.global_step == 4


def test_on_an_accelerator_the_loss_is_checked_a_step_later_and_at_the_end() -> None:
    class Elsewhere:
        """A loss on a device that only tells its value when it is asked."""

        device = torch.device("cuda")

        def __init__(self, value: float) -> None:
            self.value = value

        def __float__(self) -> float:
            return self.value

    learner = module()
    learner._check_finite(Elsewhere(1.0))  # type: ignore[arg-type]
    learner._check_finite(Elsewhere(math.inf))  # type: ignore[arg-type]
    with pytest.raises(FloatingPointError, match=r"^the training loss at step 0 is inf"):
        learner._check_finite(Elsewhere(1.0))  # type: ignore[arg-type]
    learner._check_finite(Elsewhere(math.nan))  # type: ignore[arg-type]
    learner.on_train_start()  # of another fit
    learner._check_finite(Elsewhere(math.nan))  # type: ignore[arg-type]
    with pytest.raises(FloatingPointError, match=r"is nan"):
        learner.on_train_end()
    learner.on_train_end()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("lr", -1.0),
        ("weight_decay", math.nan),
        ("warmup_steps", 1.5),
        ("betas", (0.9, 1.0)),
        ("schedule", "step"),
    ],
)
def test_a_wrong_argument_is_named(argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}: expected "):
        SimpleGPTModule(11, 16, **{argument: value})


SCRIPT = """
import os, sys
import lightning, torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset
from leyden_simplenorm import ActivationScaleMonitor, SimpleGPTModule, SimpleGPT, shard_blocks, to_simplenorm

torch.manual_seed(0)
learner = SimpleGPTModule(11, 16, 2, 2, max_seq_len=6, multiple_of=8, lr=1e-2).double()
alone = SimpleGPTModule(11, 16, 2, 2, max_seq_len=6, multiple_of=8, lr=1e-2).double()
alone.load_state_dict(learner.state_dict())
rows = torch.randint(11, (32, 7), generator=torch.Generator().manual_seed(1))
data = TensorDataset(rows[:, :-1], rows[:, 1:])
quiet = dict(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
             enable_model_summary=False)
monitor = ActivationScaleMonitor(1)
strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
trainer = lightning.Trainer(max_epochs=2, devices=2, strategy=strategy, use_distributed_sampler=False,
                            callbacks=[monitor], **quiet)
mine = torch.utils.data.DistributedSampler(data, 2, int(os.environ["RANK"]), shuffle=False)
trainer.fit(learner, DataLoader(data, batch_size=4, sampler=mine))
assert all(isinstance(p, DTensor) for p in learner.parameters())
units = {name for name, m in learner.model.named_modules() if "FSDP" in type(m).__name__}
assert units == {"", "blocks.0", "blocks.1"}, units
assert any(name.endswith("w2") for name in monitor.scales)
whole = torch.cat([p.full_tensor().detach().reshape(-1) for p in learner.parameters()])
if os.environ["RANK"] == "0":
    order = [row for start in range(0, 32, 8) for rank in (0, 1) for row in range(start + rank, start + 8, 2)]
    torch.save((whole, order), sys.argv[1])
"""


@pytest.mark.slow
def test_sharded_by_blocks_it_trains_as_one_process_on_the_joint_batches(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    common = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    environment = {**common, "MASTER_PORT": str(20000 + os.getpid() % 20000), "TORCHELASTIC_RUN_ID": "test"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "weights.pt")],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, output in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, output
    sharded, order = torch.load(tmp_path / "weights.pt")
    torch.manual_seed(0)
    alone = SimpleGPTModule(11, 16, 2, 2, max_seq_len=6, multiple_of=8, lr=1e-2).double()
    rows = torch.randint(11, (32, 7), generator=torch.Generator().manual_seed(1))[order]
    joint = DataLoader(TensorDataset(rows[:, :-1], rows[:, 1:]), batch_size=8)
    lightning.Trainer(max_epochs=2, **QUIET).fit(alone, joint)
    weights = torch.cat([p.detach().reshape(-1) for p in alone.parameters()])
    torch.testing.assert_close(sharded, weights, rtol=0, atol=1e-6)
