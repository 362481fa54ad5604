"""The global gradient norm, logged every few steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from leyden.logger import LeydenLogger
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from lightning.pytorch.utilities import rank_zero_warn

from leyden_callbacks._scaler import loss_scale

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor
    from torch.optim import Optimizer


class GradientNorm(Callback):
    """Logs ``gradient_norm``, the Euclidean norm of the whole gradient, every few optimizer steps.

    The norm is over all parameter groups and all shards, of the gradient as the loss has it: summed over the
    accumulation window, averaged over the ranks, unscaled under a GradScaler, and before any clipping. With
    several optimizers it is one metric each, ``gradient_norm/0``, ``gradient_norm/1``, in the order of
    ``configure_optimizers``. It goes to every logger of the Trainer at Lightning's own step, whatever
    ``log_every_n_steps`` says, and to ``trainer.callback_metrics``. Between the steps that log, nothing is
    computed and nothing waits for the device. Of several in one Trainer, the first acts.

    Args:
        every: log at every so many optimizer steps, from the first one on.
        tracked_only: act only if the Trainer has a ``leyden.logger.LeydenLogger``.

    Raises:
        ValueError: if ``every`` is not a positive integer.
    """

    def __init__(self, every: int = 50, *, tracked_only: bool = False) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a positive integer, got {every!r}")
        self.every = every
        self.tracked_only = tracked_only
        self._batch_has_gradient = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so where the gradient is out of reach."""
        if self._acts(trainer) and isinstance(trainer.strategy, _HIDES_GRADIENTS):
            rank_zero_warn(
                f"GradientNorm does nothing under {type(trainer.strategy).__name__}, which keeps the gradient"
                " in flat shards of its own; ModelParallelStrategy shows it"
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note that the batch has no gradient yet."""
        self._batch_has_gradient = False

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that it has one."""
        self._batch_has_gradient = True

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Compute the norm and log it, at the steps that log."""
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        if step % self.every or not self._acts(trainer) or isinstance(trainer.strategy, _HIDES_GRADIENTS):
            return
        gradients = [
            parameter.grad
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if not gradients:
            return
        norm = global_norm(gradients)
        if (scale := loss_scale(trainer, norm.device)) is not None:
            if pl_module.automatic_optimization and not self._batch_has_gradient:
                return  # Lightning drops the window, and leaves its gradient scaled
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                norm = norm / scale  # a fused optimizer unscales inside its step
        name = "gradient_norm"
        if len(trainer.optimizers) > 1:
            name += f"/{next(i for i, one in enumerate(trainer.optimizers) if one is optimizer)}"
        trainer.callback_metrics[name] = norm
        for logger in trainer.loggers:
            logger.log_metrics({name: norm.item()}, step=step)

    def _acts(self, trainer: Trainer) -> bool:
        candidates: Iterable[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        tracked = any(isinstance(logger, LeydenLogger) for logger in trainer.loggers)
        return self is next(
            (
                one
                for one in candidates
                if isinstance(one, GradientNorm) and (tracked or not one.tracked_only)
            ),
            None,
        )


def for_tracked_runs() -> GradientNorm:
    """The `GradientNorm` that the option ``gradient_norm`` of plugins.toml adds to every Trainer."""
    return GradientNorm(tracked_only=True)


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all the gradients as one vector.

    Args:
        gradients: at least one tensor, on any devices, of any floating or complex types, dense, sparse or
            DTensors, whose norm is that of the whole tensor and not of the shard.

    Returns:
        A 0-dim tensor on the first gradient's device, of float32 or, if any gradient is float64, float64.
    """
    groups: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        dense = gradient.coalesce().values() if gradient.is_sparse else gradient
        real = torch.view_as_real(dense) if dense.is_complex() else dense
        home = getattr(real, "device_mesh", real.device)
        groups.setdefault((home, real.dtype), []).append(real)
    norms = []
    for (_, dtype), group in groups.items():
        each = torch._foreach_norm(group, 2, torch.promote_types(dtype, torch.float32))
        norm = torch.linalg.vector_norm(torch.stack(each))
        norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
    common = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    total: Tensor = torch.linalg.vector_norm(
        torch.stack([norm.to(norms[0].device, common) for norm in norms])
    )
    return total


_HIDES_GRADIENTS = (DeepSpeedStrategy, FSDPStrategy)
