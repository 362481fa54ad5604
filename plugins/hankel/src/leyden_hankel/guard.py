"""Refuses what would silently make `JacobiPGD` another method."""

from __future__ import annotations

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer

from leyden_hankel.jacobi_pgd import JacobiPGD


class JacobiGuard(Callback):
    """Refuses clipping and accumulation of gradients where a `JacobiPGD` trains; does nothing elsewhere.

    A clipped gradient is no longer the one that the preconditioner belongs to, and accumulated ones belong to
    several losses. Every Trainer gets it. Not in the paper.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse.

        Raises:
            MisconfigurationException: if the Trainer clips or accumulates and a `JacobiPGD` is to train.
        """
        if not any(isinstance(optimizer, JacobiPGD) for optimizer in trainer.optimizers):
            return
        for name, acts in (
            ("gradient_clip_val", bool(trainer.gradient_clip_val)),
            ("accumulate_grad_batches", trainer.accumulate_grad_batches > 1),
        ):
            if acts:
                raise MisconfigurationException(
                    f"Trainer({name}={getattr(trainer, name)!r}) makes another method of JacobiPGD, whose "
                    "step belongs to the gradient of one loss; leave it out"
                )
