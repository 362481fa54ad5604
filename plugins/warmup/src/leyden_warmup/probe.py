"""Curvature beside the loss during any training, which it leaves as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from leyden.arguments import check_at_least
from leyden_callbacks import keeps_figures, log_figure, loss_scale, window_losses
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from leyden_warmup.curvature import SmoothnessFit, fit_h0h1, secant_curvature
from leyden_warmup.history import draw_curvature
from leyden_warmup.replay import Replay, gradient_again

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor
    from torch.optim import Optimizer


@dataclass
class _Window:
    """What is kept of the optimizer step that is under way.

    Attributes:
        due: whether it is measured.
        replays: its batches.
        gradient: its gradient, as the loss has it.
        closed: whether its update has begun.
        loss: its loss.
        start: the parameters before its update.
    """

    due: bool = False
    replays: list[Replay] = field(default_factory=list)
    gradient: list[Tensor] | None = None
    closed: bool = False
    loss: Tensor | None = None
    start: list[Tensor] | None = None


@dataclass
class _Open:
    """A measurement that waits for the gradient of the next batch."""

    step: int
    loss: Tensor
    gradient: list[Tensor]
    moved: list[Tensor]


class SmoothnessProbe(Callback):
    """Measures curvature along some steps, and fits how it grows with the loss (Section 3.4).

    Curvature is the length of the gradient's change over a step divided by the length of the step. By default
    both gradients are of the same batch, with the same random draws, so that it is at most the sharpness
    between the two points; that takes one gradient more at the steps that are measured. ``"consecutive"`` is
    the paper's proxy, which takes the next batch's gradient for the second and is mostly noise of the
    gradient.

    Training is bit for bit what it is without: parameters, gradients, optimizer, buffers, random generators,
    logged values and plain attributes of the module are left as they were. A ``training_step`` that keeps
    records elsewhere, in a file for instance, runs once more. It logs ``smoothness/curvature``, at the end
    ``smoothness/H0``, ``smoothness/H1`` and ``smoothness/C_suggested``, and draws curvature against loss with
    the fitted line, for `leyden.logger.LeydenLogger` and ``MLFlowLogger``. Sharded parameters (FSDP,
    DeepSpeed) are out of its reach: it says so and does nothing.

    Args:
        every: measure at every so many optimizer steps, from the first one on.
        batch: ``"same"`` or ``"consecutive"``.
        until_step: measure at steps before this one; None: to the end.
        f_star: a lower bound on the loss, or the loss that training will reach, for the fit.
        figure: whether to draw at the end.

    Raises:
        ValueError: if an argument is out of its range.
        MisconfigurationException: when training starts, if the module optimizes manually.
    """

    needs_loss = True

    def __init__(
        self,
        every: int = 50,
        batch: Literal["same", "consecutive"] = "same",
        until_step: int | None = 1000,
        *,
        f_star: float = 0.0,
        figure: bool = True,
    ) -> None:
        check_at_least("every", every, 1)
        if batch not in ("same", "consecutive"):
            raise ValueError(f"batch: expected 'same' or 'consecutive', got {batch!r}")
        if until_step is not None:
            check_at_least("until_step", until_step, 1)
        if not abs(f_star) < torch.inf:
            raise ValueError(f"f_star: expected a finite number, got {f_star!r}")
        self.every = every
        self.batch = batch
        self.until_step = until_step
        self.f_star = f_star
        self.figure = figure
        self.steps: list[int] = []
        self.losses: list[float] = []
        self.curvatures: list[float] = []
        self._window = _Window()
        self._open: _Open | None = None
        self._parameters: list[Tensor] | None = None

    @property
    def state_key(self) -> str:
        """What its state goes by in a checkpoint; probes of two kinds may stand in one Trainer."""
        return self._generate_state_key(every=self.every, batch=self.batch)

    @property
    def fit(self) -> SmoothnessFit:
        """H0, H1, C and the correlation of what was measured so far."""
        return fit_h0h1(self.losses, self.curvatures, self.f_star)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse manual optimization, and begin anew unless the same Trainer goes on."""
        if stage != "fit":
            return
        if not pl_module.automatic_optimization:
            raise MisconfigurationException(
                f"SmoothnessProbe cannot repeat a step of {type(pl_module).__name__}, which optimizes"
                " manually; leyden_warmup.secant_curvature and fit_h0h1 can be called in a loop of one's own"
            )
        if trainer.global_step == 0:
            self.steps, self.losses, self.curvatures = [], [], []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the parameters, where they are whole."""
        self._forget()
        parameters = _trained(trainer)
        strategy = type(trainer.strategy).__name__
        if strategy in _SHARDING or any(hasattr(parameter, "full_tensor") for parameter in parameters):
            rank_zero_warn(f"SmoothnessProbe does nothing under {strategy}, which shards the parameters")
            self._parameters = None
        else:
            self._parameters = parameters

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep the batches of a step that is measured."""
        due = self._parameters is not None and self._is_due(trainer)
        if due or self._open is not None:
            self._follow(trainer)
        self._window.due = due
        if due and self.batch == "same":
            self._window.replays.append(Replay.of(pl_module, batch, batch_idx))

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the gradient as the loss has it, before any callback or clipping changes it."""
        wanted = self._window.due or self._open is not None
        if not self._parameters or self._window.closed or not wanted:
            return
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
            for parameter in self._parameters
        ]
        if (scale := loss_scale(trainer, self._parameters[0].device)) is not None:
            gradients = [gradient / scale for gradient in gradients]
        self._window.gradient = gradients

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Close a measurement that waited for this gradient, and keep where the step starts."""
        window = self._window
        if window.closed or window.gradient is None or self._parameters is None:
            return
        window.closed = True
        if self._open is not None:
            change = _difference(window.gradient, self._open.gradient)
            self._note(trainer, self._open.step, self._open.loss, change, self._open.moved)
            self._open = None
        losses = window_losses(trainer)
        if window.due and losses is not None:
            window.loss = losses.mean
            window.start = [parameter.detach().clone() for parameter in self._parameters]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure what the step did."""
        if trainer.fit_loop._should_accumulate():
            return
        window, self._window = self._window, _Window()
        if window.start is None or window.loss is None or not window.gradient or not self._parameters:
            return
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        moved = _difference([parameter.detach() for parameter in self._parameters], window.start)
        if self.batch == "consecutive":
            self._open = _Open(step, window.loss, window.gradient, moved)
            return
        again = gradient_again(trainer, pl_module, window.replays, self._parameters)
        self._note(trainer, step, window.loss, _difference(again, window.gradient), moved)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit, log and draw."""
        self._forget()
        if self._parameters is None or not self.losses:
            return
        self._parameters = None
        fit = self.fit
        found = {"smoothness/H0": fit.H0, "smoothness/H1": fit.H1, "smoothness/C_suggested": fit.C}
        for logger in trainer.loggers:
            logger.log_metrics(found, step=max(trainer.fit_loop.epoch_loop._batches_that_stepped - 1, 0))
        if fit.H1 == 0:
            rank_zero_info(
                "SmoothnessProbe: no warm-up signal, curvature did not grow with the loss"
                f" (correlation {fit.r:+.2f} over {len(self.losses)} steps)"
            )
        if self.figure and keeps_figures(trainer):
            picture = draw_curvature(self.losses, self.curvatures, fit, f_star=self.f_star)
            log_figure(trainer, "smoothness", picture)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Forget a step that was not finished."""
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """What was measured."""
        return {"steps": list(self.steps), "losses": list(self.losses), "curvatures": list(self.curvatures)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.steps, self.losses, self.curvatures = (
            list(state_dict[name]) for name in ("steps", "losses", "curvatures")
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parameters": None, "_window": _Window(), "_open": None}

    def _is_due(self, trainer: Trainer) -> bool:
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        return step % self.every == 0 and (self.until_step is None or step < self.until_step)

    def _follow(self, trainer: Trainer) -> None:
        """Take the parameters that are trained now; where they are others, nothing under way fits them."""
        parameters = _trained(trainer)
        if list(map(id, parameters)) != list(map(id, self._parameters or ())):
            self._forget()
            self._parameters = parameters

    def _note(
        self, trainer: Trainer, step: int, loss: Tensor, change: Sequence[Tensor], moved: Sequence[Tensor]
    ) -> None:
        """Keep and log a measurement, if it is one: the step moved, and nothing is infinite."""
        curvature, at = secant_curvature(change, moved).item(), loss.item()
        if not torch.tensor([curvature, at]).isfinite().all():
            return
        self.steps.append(step)
        self.losses.append(at)
        self.curvatures.append(curvature)
        for logger in trainer.loggers:
            logger.log_metrics({"smoothness/curvature": curvature}, step=step)

    def _forget(self) -> None:
        self._window, self._open = _Window(), None


def _trained(trainer: Trainer) -> list[Tensor]:
    """The parameters of all groups, without those that are frozen."""
    return [
        parameter
        for optimizer in trainer.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]


def _difference(last: Sequence[Tensor], first: Sequence[Tensor]) -> list[Tensor]:
    return [after - before for after, before in zip(last, first, strict=True)]


_SHARDING = ("DeepSpeedStrategy", "FSDPStrategy")
