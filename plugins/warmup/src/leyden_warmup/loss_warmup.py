"""The warm-up as a Lightning callback, beside any optimizer and any scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leyden.arguments import check_at_least
from leyden_callbacks import keeps_figures, log_figure, window_losses
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn

from leyden_warmup.history import History, draw_rates
from leyden_warmup.rates import MultipliedRates, home_of, multiplied
from leyden_warmup.schedule import Form, Schedule, Value, WarmupState

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor
    from torch.optim import Optimizer


@dataclass
class _Step:
    """The optimizer step that is under way."""

    asked: bool = False
    loss: Tensor | None = None
    state: WarmupState | None = None
    rates: list[float | Tensor] | None = None


class LossWarmup(Callback):
    """Multiplies the learning rate by a function of the loss: small while the loss is high.

    At every optimizer step the rate of every parameter group is multiplied by 1 / (1 + C (loss - f_star)), or
    another ``form`` of Section 3.3 (reconstructed), for the length of the update. Schedulers, monitors and
    checkpoints see the rate as it would be without it, so that it composes with every scheduler. The loss is
    that of the step: the mean over accumulated batches and ranks, unscaled (`leyden_callbacks.LossFeed`). An
    optimizer that runs its closure several times in a step takes the multiplier of the first run. A step that
    a GradScaler skips leaves no trace.

    Where all rates are numbers, the multiplier has to be a number too; on an accelerator the host then waits
    for it once a step, after the backward pass. It does not where rates are tensors on the device, as
    ``capturable=True`` and ``fused=True`` optimizers take them.

    Every few steps it logs ``warmup/multiplier``, ``warmup/lr`` (with several parameter groups
    ``warmup/lr/0``, ``warmup/lr/1`` and so on), ``warmup/loss_used`` and ``warmup/released_at_step``, once
    that is known; at the end of training it draws rate and multiplier, for `leyden.logger.LeydenLogger` and
    ``MLFlowLogger``.

    Args:
        C: the warm-up parameter, above 0, in units of 1 / loss. 0.1 to 10 over the gap at the start is the
            useful range: the first multiplier is 1 / (1 + C gap).
        f_star: a lower bound on the loss, or better the loss that training will reach. Where that is far from
            0, as for language models, 0 would keep the rate small for ever.
        form: ``"smooth"``, ``"clipped"`` (over at a gap of 1 / C) or ``"rational"``, see `warmup_multiplier`.
        ema: weight of the past in a running average of the loss, at least 0 and below 1; 0 is the paper's.
        monotone: whether the multiplier never goes down.
        max_steps: the optimizer step from which on the multiplier is 1.
        release_at: the multiplier at which it becomes 1 for good.
        log_every: log at every so many optimizer steps, from the first one on.
        figure: whether to draw at the end.

    Raises:
        ValueError: if an argument is out of its range.
        MisconfigurationException: when training starts, if another `LossWarmup` is there or the module
            optimizes manually (`LossWarmupLR` is for that).
    """

    needs_loss = True

    def __init__(
        self,
        C: float = 1.0,
        f_star: float = 0.0,
        form: Form = "smooth",
        ema: float = 0.0,
        monotone: bool = False,
        max_steps: int | None = None,
        release_at: float | None = None,
        log_every: int = 10,
        *,
        figure: bool = True,
    ) -> None:
        self.schedule = Schedule(
            C=C,
            f_star=f_star,
            form=form,
            ema=ema,
            monotone=monotone,
            max_steps=max_steps,
            release_at=release_at,
        )
        check_at_least("log_every", log_every, 1)
        self.log_every = log_every
        self.figure = figure
        self._state = WarmupState.initial()
        self._history = History()
        self._warned: set[str] = set()
        self._step = _Step()
        self._rates: MultipliedRates | None = None
        self._draws = False

    @property
    def multiplier(self) -> Value:
        """The multiplier of the last optimizer step, 0-dim where a rate is a tensor; 1 before the first."""
        return self._state.multiplier

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work, and begin anew unless the same Trainer goes on."""
        if stage != "fit":
            return
        others: Sequence[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if sum(isinstance(one, LossWarmup) for one in others) > 1:
            raise MisconfigurationException(
                "the Trainer has two LossWarmup callbacks, which would multiply the learning rate twice"
            )
        if not pl_module.automatic_optimization:
            raise MisconfigurationException(
                f"LossWarmup does not know the loss of a step of {type(pl_module).__name__}, which optimizes"
                " manually; use leyden_warmup.LossWarmupLR there"
            )
        if trainer.global_step == 0:
            self._state = WarmupState.initial()
            self._history = History()
            self._warned = set()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take hold of the optimizer."""
        (optimizer,) = trainer.optimizers
        if multiplied(optimizer):
            raise MisconfigurationException(
                f"the optimizer {type(optimizer).__name__} has a LossWarmupLR, and LossWarmup would multiply"
                " its learning rate a second time"
            )
        self._state = self._state.to(home_of(optimizer))
        self._step = _Step()
        self._draws = self.figure and keeps_figures(trainer)
        self._rates = MultipliedRates(optimizer, self._of_step, self._stepped)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Forget a step that did not take place."""
        self._step = _Step()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Compute the multiplier of the step; the rates are multiplied when the update begins."""
        if self._rates is None or self._step.asked:
            return
        losses = window_losses(trainer)
        self._step = _Step(asked=True)
        if losses is not None:
            self._step.loss = losses.mean
            self._step.state = self.schedule.advance(self._state, losses.mean)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take note of the step, and log it at the steps that log."""
        step = self._step
        if step.rates is None or step.loss is None:
            return
        place = trainer.fit_loop.epoch_loop._batches_that_stepped
        if self._draws:
            self._history.add(place, (self._state.multiplier, *step.rates))
        if place % self.log_every == 0:
            self._warn_of_odd_losses()
            metrics = self._metrics(step.loss, step.rates)
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=place)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let go of the optimizer, and draw the run."""
        self._warn_of_odd_losses()
        self._let_go()
        history, self._history = self._history, History()
        if self._draws and len(history) > 1:
            log_figure(trainer, "warmup", draw_rates(history))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let go of the optimizer."""
        self._let_go()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go of the optimizer."""
        self._let_go()

    def state_dict(self) -> dict[str, float]:
        """What a resumed warm-up goes on from, as numbers."""
        return self._state.numbers()

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Go on from what `state_dict` gave."""
        self._state = WarmupState.of_numbers(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rates": None, "_step": _Step()}

    def _of_step(self) -> Value | None:
        return None if self._step.state is None else self._step.state.multiplier

    def _stepped(self) -> None:
        if self._step.state is not None and self._rates is not None:
            self._state = self._step.state
            self._step.rates = self._rates.own()

    def _let_go(self) -> None:
        if self._rates is not None:
            self._rates.detach()
        self._rates = None

    def _metrics(self, loss: Tensor, own: Sequence[float | Tensor]) -> dict[str, float]:
        """The last step in numbers; waits for the device."""
        multiplier, used = float(self._state.multiplier), float(loss)
        released = float(self._state.released_at)
        rates = [float(rate) * multiplier for rate in own]
        names = ["warmup/lr"] if len(rates) == 1 else [f"warmup/lr/{place}" for place in range(len(rates))]
        metrics = {"warmup/multiplier": multiplier, "warmup/loss_used": used}
        metrics |= dict(zip(names, rates, strict=True))
        return metrics if released < 0 else {**metrics, "warmup/released_at_step": released}

    def _warn_of_odd_losses(self) -> None:
        """Warn once of losses below f_star and of losses that are not finite; waits for the device."""
        lowest, f_star = float(self._state.lowest), self.schedule.f_star
        if lowest < f_star:
            self._warn_once(
                "below",
                f"LossWarmup: a loss of {lowest:.4g} is below f_star={f_star:g}, where the learning "
                "rate is not reduced; set f_star to a lower bound on the loss",
            )
        if bool(self._state.odd):
            self._warn_once(
                "odd",
                "LossWarmup: a loss was not finite; such a step keeps the multiplier of the one before",
            )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            rank_zero_warn(text)
