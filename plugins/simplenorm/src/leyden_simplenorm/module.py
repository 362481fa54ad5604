"""The language model under a Trainer: its optimizer, its schedule and what is logged."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, get_args

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric

from leyden_simplenorm.gpt import (
    BlockNorm,
    FeedForwardKind,
    Positions,
    SimpleGPT,
    SimpleGPTBlock,
    shard_blocks,
)

Batch = list[Tensor] | tuple[Tensor, Tensor]
Schedule = Literal["linear", "cosine", "constant"]


class SimpleGPTModule(LightningModule):
    """Trains a `SimpleGPT` as the authors' code does (Chen et al., 2026): AdamW, warm-up and decay.

    A batch is ``(tokens, targets)``, both int64 of shape ``(batch, length)``. Logged are ``train/loss``,
    ``val/loss``, ``val/perplexity``, ``test/loss`` and ``test/perplexity``, in nats a token. Clip gradients
    by the Trainer, ``gradient_clip_val=1.0``. Under a strategy that shards (FSDP2) each block is a unit.

    A loss that is NaN or infinite ends the training, on an accelerator one step later, so that no step waits
    for it.

    Args:
        vocab_size: number of tokens.
        dim: width of the residual stream.
        n_layers: number of blocks.
        n_heads: attention heads of a block.
        n_kv_heads: heads of keys and values; None: as many as ``n_heads``.
        max_seq_len: longest sequence.
        ffn: ``"swiglu"`` or ``"gelu"``.
        multiple_of: the width of the feed-forward part is rounded up to a multiple of this.
        ffn_multiplier: factor of that width; None: 1.
        rope_theta: base of the rotary embedding's frequencies.
        positions: ``"rope"`` or ``"learned"``.
        norm_eps: epsilon of all norms, above 0.
        depth_init: whether initial weights shrink with the block's depth, and not with the number of blocks.
        block_norm: ``"simple"``, ``"pre"`` or ``"pre_qk"``.
        init_std: standard deviation of the maps' initial weights; None: the inverse root of each map's
            inputs.
        lr: the peak learning rate, at least 0.
        weight_decay: AdamW's, at least 0.
        betas: AdamW's.
        warmup_steps: steps over which the learning rate rises linearly; below 1 (and above 0) a share of all
            steps.
        schedule: how it falls afterwards: ``"linear"`` to 0, ``"cosine"`` to 0, or ``"constant"``.
        decay_gains: whether norm gains (and biases) decay too, as in the authors' code.
        allow_nonfinite: whether training goes on after a loss that is not finite.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
        FloatingPointError: in training, after a loss that is not finite; the text names step and loss.
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
        lr: float = 2e-3,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        warmup_steps: float = 0.05,
        schedule: Schedule = "linear",
        decay_gains: bool = False,
        allow_nonfinite: bool = False,
    ) -> None:
        super().__init__()
        for name, number in (("lr", lr), ("weight_decay", weight_decay), ("warmup_steps", warmup_steps)):
            if not isinstance(number, int | float) or not 0 <= number < math.inf:
                raise ValueError(f"{name}: expected a finite number of at least 0, got {number!r}")
        if warmup_steps >= 1 and warmup_steps != int(warmup_steps):
            raise ValueError(
                f"warmup_steps: expected a whole number or a share below 1, got {warmup_steps!r}"
            )
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas: expected two numbers of at least 0 and below 1, got {betas!r}")
        if schedule not in get_args(Schedule):
            raise ValueError(f"schedule: expected one of {', '.join(get_args(Schedule))}, got {schedule!r}")
        self.save_hyperparameters()
        self.model = SimpleGPT(
            vocab_size, dim, n_layers, n_heads, n_kv_heads, max_seq_len, ffn, multiple_of, ffn_multiplier,
            rope_theta, positions, norm_eps, depth_init, block_norm, init_std=init_std,
        )  # fmt: skip
        self.lr = lr
        self.weight_decay = weight_decay
        self.betas = (float(betas[0]), float(betas[1]))
        self.warmup_steps = warmup_steps
        self.schedule: Schedule = schedule
        self.decay_gains = decay_gains
        self.allow_nonfinite = allow_nonfinite
        self.means = nn.ModuleDict({"val": MeanMetric(), "test": MeanMetric()})
        self._unchecked: tuple[int, Tensor] | None = None
        self._sharded = False

    def configure_model(self) -> None:
        """Shard the model by blocks, under a strategy that shards."""
        if self.device_mesh is None or self._sharded:
            return
        self._sharded = True
        shard_blocks(self.model, self.device_mesh["data_parallel"], (SimpleGPTBlock,))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of shape ``(batch, length, vocab_size)``."""
        logits: Tensor = self.model(tokens)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The mean loss of the batch, in nats a token."""
        loss = self._loss(batch)
        self._check_finite(loss.detach())
        self.log("train/loss", loss)
        return loss

    def on_train_start(self) -> None:
        """Forget a loss of an earlier fit."""
        self._unchecked = None

    def on_train_end(self) -> None:
        """Check the last loss."""
        unchecked, self._unchecked = self._unchecked, None
        if unchecked is not None:
            self._refuse_nonfinite(*unchecked)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss of the batch."""
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss of the batch."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Tensor | Batch, batch_idx: int) -> Tensor:
        """The logits for a batch of tokens, with targets or without."""
        logits: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return logits

    def on_validation_epoch_end(self) -> None:
        """Log the perplexity."""
        self._log_perplexity("val")

    def on_test_epoch_end(self) -> None:
        """Log the perplexity."""
        self._log_perplexity("test")

    def configure_optimizers(self) -> Any:
        """AdamW, decaying matrices alone unless ``decay_gains``, and the schedule by steps."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        matrices = [one for one in parameters if one.ndim > 1 or self.decay_gains]
        vectors = [one for one in parameters if one.ndim <= 1 and not self.decay_gains]
        groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": self.weight_decay}]
        if vectors:
            groups.append({"params": vectors, "weight_decay": 0.0})
        optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=self.betas)
        total = self.trainer.estimated_stepping_batches
        factor = partial(
            learning_rate_factor, total=total, warmup_steps=self.warmup_steps, schedule=self.schedule
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _loss(self, batch: Batch) -> Tensor:
        tokens, targets = batch
        return nn.functional.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())

    def _evaluate(self, stage: str, batch: Batch) -> None:
        mean = self.means[stage]
        assert isinstance(mean, MeanMetric)
        mean.update(self._loss(batch), weight=batch[1].numel())
        self.log(f"{stage}/loss", mean, batch_size=len(batch[0]))

    def _log_perplexity(self, stage: str) -> None:
        mean = self.means[stage]
        assert isinstance(mean, MeanMetric)
        self.log(f"{stage}/perplexity", mean.compute().exp())

    def _check_finite(self, loss: Tensor) -> None:
        """Check the loss at once where that costs nothing, else the one before, which the device has."""
        if self.allow_nonfinite:
            return
        step = self.trainer.global_step if self._trainer is not None else 0
        if loss.device.type == "cpu":
            self._refuse_nonfinite(step, loss)
            return
        unchecked, self._unchecked = self._unchecked, (step, loss)
        if unchecked is not None:
            self._refuse_nonfinite(*unchecked)

    def _refuse_nonfinite(self, step: int, loss: Tensor) -> None:
        value = float(loss)
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the training loss at step {step} is {value}; try a smaller lr (it is {self.lr:g}), or go "
                "on with allow_nonfinite=True"
            )


def learning_rate_factor(step: int, *, total: float, warmup_steps: float, schedule: Schedule) -> float:
    """The factor of the learning rate at a step, as in the code of Chen et al. (2026) for ``"linear"``.

    With w warm-up steps it is (i + 1) / (w + 1) before step w, then 1 - (i - w) / (steps - w).

    Args:
        step: i, from 0.
        total: number of steps; infinite only for ``"constant"``.
        warmup_steps: w, or a share of all steps.
        schedule: ``"linear"``, ``"cosine"`` or ``"constant"``.

    Returns:
        A number between 0 and 1.

    Raises:
        ValueError: if the schedule or the warm-up needs a number of steps and there is none.

    >>> tuple(learning_rate_factor(i, total=5, warmup_steps=1, schedule="linear") for i in (0, 1, 2, 4))
    (0.5, 1.0, 0.75, 0.25)
    """
    if schedule != "constant" and not 0 < total < math.inf:
        raise ValueError(
            f"schedule: '{schedule}' needs a number of steps, got {total}; give the Trainer max_steps or "
            "max_epochs"
        )
    if 0 < warmup_steps < 1 and not total < math.inf:
        raise ValueError(
            f"warmup_steps: a share of all steps needs their number, got {warmup_steps!r}; give the Trainer "
            "max_steps or max_epochs, or a whole number of steps here"
        )
    warmup = int(warmup_steps * total) if 0 < warmup_steps < 1 else int(warmup_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule == "constant":
        return 1.0
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
