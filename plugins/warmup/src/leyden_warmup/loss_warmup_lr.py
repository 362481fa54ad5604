"""The warm-up for training loops of one's own: a scheduler that is stepped with the loss."""

from __future__ import annotations

from numbers import Real
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from leyden_warmup.rates import MultipliedRates, home_of, products
from leyden_warmup.schedule import Form, Schedule, Value, WarmupState


class LossWarmupLR(LRScheduler):
    """Multiplies the learning rate of the next update by a function of the loss, Section 3.3 (reconstructed).

    Call ``scheduler.step(loss)`` after the backward pass and before ``optimizer.step()``. The rate is
    multiplied for the length of the update alone, so that other schedulers and checkpoints of the optimizer
    see it as it would be without, also where a GradScaler skips the update; `get_last_lr` tells the
    multiplied one.

    Args:
        optimizer: the optimizer, whose ``lr`` is the full rate.
        C: the warm-up parameter, above 0, in units of 1 / loss.
        f_star: a lower bound on the loss, or better the loss that training will reach.
        form: ``"smooth"``, ``"clipped"`` or ``"rational"``, see `warmup_multiplier`.
        ema: weight of the past in a running average of the loss.
        monotone: whether the multiplier never goes down.
        max_steps: the step from which on the multiplier is 1.
        release_at: the multiplier at which it becomes 1 for good.

    Attributes:
        base_lrs: the rates without the warm-up, of each group, at the last step.

    Raises:
        ValueError: if an argument is out of its range, or the optimizer has no ``lr`` or a warm-up already.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> scheduler = LossWarmupLR(optimizer, C=1.0)
    >>> scheduler.step(torch.tensor(4.0))
    >>> scheduler.get_last_lr(), [group["lr"] for group in optimizer.param_groups]
    ([0.1], [0.5])
    >>> optimizer.step()  # by 0.1
    """

    def __init__(
        self,
        optimizer: Optimizer,
        C: float = 1.0,
        f_star: float = 0.0,
        form: Form = "smooth",
        ema: float = 0.0,
        monotone: bool = False,
        max_steps: int | None = None,
        release_at: float | None = None,
    ) -> None:
        # Not that of LRScheduler, which takes a first step, and there is no loss yet.
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"optimizer: expected an Optimizer, got {type(optimizer).__name__}")
        self.schedule = Schedule(
            C=C,
            f_star=f_star,
            form=form,
            ema=ema,
            monotone=monotone,
            max_steps=max_steps,
            release_at=release_at,
        )
        self.optimizer = optimizer
        self._state = WarmupState.initial(home_of(optimizer))
        self._waiting = False
        self._rates = MultipliedRates(optimizer, self._of_step, self._stepped)
        self.base_lrs = self._rates.own()
        self._last_lr = self._rates.own()
        self.last_epoch = 0

    def step(self, loss: Any) -> None:  # type: ignore[override]
        """Let the next ``optimizer.step()`` take the rate multiplied for this loss.

        Args:
            loss: the loss of the batch whose gradient the optimizer holds, a number or a tensor of one.

        Raises:
            ValueError: if it is no number.
        """
        value = _one_number(loss)
        self._rates.restore()
        self._state = self.schedule.advance(self._state, value)
        self.last_epoch += 1
        self.base_lrs = self._rates.own()
        self._last_lr = products(self.base_lrs, self._state.multiplier)
        self._waiting = True

    def get_lr(self) -> list[float | Tensor]:
        """The rates of the last step, as `get_last_lr`."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """What a resumed warm-up goes on from, as numbers; it waits for the device."""
        return {
            **self._state.numbers(),
            "waiting": self._waiting,
            "base_lrs": [float(rate) for rate in self.base_lrs],
            "last_lr": [float(rate) for rate in self._last_lr],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave; load the optimizer's own before."""
        self._state = WarmupState.of_numbers(state_dict, home_of(self.optimizer))
        self.last_epoch = self._state.steps
        self.base_lrs, self._last_lr = list(state_dict["base_lrs"]), list(state_dict["last_lr"])
        self._rates.restore()
        self._waiting = bool(state_dict["waiting"])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_rates"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._rates = MultipliedRates(self.optimizer, self._of_step, self._stepped)  # a copy has no hooks

    def _of_step(self) -> Value | None:
        return self._state.multiplier if self._waiting else None

    def _stepped(self) -> None:
        self._waiting = False


def _one_number(loss: Any) -> float | Tensor:
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.detach().reshape(())
    if isinstance(loss, Real):
        return float(loss)
    got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
    raise ValueError(
        f"loss: LossWarmupLR.step expected the loss of the batch, one number, got {got}; in a Lightning"
        " Trainer use the callback leyden_warmup.LossWarmup, which finds the loss itself"
    )
