"""Learning rates that are multiplied while an optimizer updates, and are the user's before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

Rate = float | Tensor


class MultipliedRates:
    """The learning rates of all parameter groups of an optimizer, multiplied while it updates.

    Schedulers compute the next rate from the one in the group, and checkpoints hold it, so nobody may see a
    multiplied rate: it is put in place after the closure ran, with all the hooks that Lightning calls in it,
    and taken back after the update. A state that the optimizer tells in between holds the user's rates; where
    an update raises, they are back at `restore` and at the next step. Rates that are tensors change in place,
    so that captured and compiled steps see it.

    L-BFGS reads its rate before it runs its closure, so a rate that is a number is lent to it as a tensor.

    Args:
        optimizer: the optimizer.
        multiplier: returns the multiplier of the step that is under way, 0-dim; None leaves the rates alone.
            It is asked after the first run of the closure, once a step.
        after: called after an update, with the rates restored; not where a GradScaler skipped it.

    Raises:
        ValueError: if the optimizer has its rates multiplied already, or has none.
    """

    def __init__(
        self, optimizer: Optimizer, multiplier: Callable[[], Rate | None], after: Callable[[], None]
    ) -> None:
        if multiplied(optimizer):
            raise ValueError(
                f"optimizer: this {type(optimizer).__name__} has a loss-driven warm-up already, and two "
                "would multiply its learning rate twice"
            )
        if not all("lr" in group for group in optimizer.param_groups):
            raise ValueError(
                f"optimizer: {type(optimizer).__name__} has no learning rate ('lr') in its parameter groups,"
                " and a warm-up nothing to multiply"
            )
        self.optimizer = optimizer
        self._multiplier = multiplier
        self._after = after
        self._own: list[Rate] | None = None
        self._multiplied = False
        self._aside: list[tuple[Rate, Rate]] | None = None
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_pre_hook(self._before_state_dict),
            optimizer.register_state_dict_post_hook(self._after_state_dict),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]

    def own(self) -> list[Rate]:
        """The rates of each group as the user and the schedulers have them; tensors are copies."""
        return _copies(self._own or self._in_groups())

    def multiply(self, multiplier: Rate) -> None:
        """Multiply the rates, unless they are multiplied."""
        if self._multiplied:
            return
        self._keep()
        self._multiplied = True
        number: float | None = None
        tensors: dict[int, Tensor] = {}  # groups may share one
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                tensors[id(group["lr"])] = group["lr"]
            else:
                number = float(multiplier) if number is None else number
                group["lr"] *= number
        for rate in tensors.values():
            rate.mul_(multiplier)

    def restore(self) -> None:
        """Put the user's rates back."""
        if self._own is not None:
            self._put(self._own)
        self._own, self._multiplied = None, False

    def detach(self) -> None:
        """Put the user's rates back and leave the optimizer alone from now on."""
        self.restore()
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self.restore()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._begin()
            return None
        if isinstance(optimizer, LBFGS):
            self._lend()

        def closure_and_multiply() -> Any:
            result = closure()
            self._begin()
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure_and_multiply}
        return (args[0], closure_and_multiply, *args[2:]), kwargs

    def _begin(self) -> None:
        if not self._multiplied and (multiplier := self._multiplier()) is not None:
            self.multiply(multiplier)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.restore()
        # A fused optimizer runs under a GradScaler in any case, and is told there whether to update.
        if not getattr(optimizer, "found_inf", None):
            self._after()

    def _before_state_dict(self, optimizer: Optimizer) -> None:
        if self._own is not None:
            present = self._in_groups()
            self._aside = list(zip(present, _copies(present), strict=True))
            self._put(self._own)

    def _after_state_dict(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        aside, self._aside = self._aside, None
        if aside is None:
            return
        for group in state["param_groups"]:
            group["lr"] = _copies([group["lr"]])[0]  # else it would change with the optimizer's own tensor
        for group, (rate, value) in zip(self.optimizer.param_groups, aside, strict=True):
            group["lr"] = rate
            if isinstance(rate, Tensor) and isinstance(value, Tensor):
                rate.copy_(value)

    def _after_load(self, optimizer: Optimizer) -> None:
        self._own, self._multiplied = None, False  # what was loaded is the user's

    def _lend(self) -> None:
        self._keep()
        for group in self.optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = torch.tensor(group["lr"], dtype=torch.float64)

    def _keep(self) -> None:
        if self._own is None:
            self._own = _copies(self._in_groups())

    def _put(self, rates: Sequence[Rate]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate

    def _in_groups(self) -> list[Rate]:
        return [group["lr"] for group in self.optimizer.param_groups]


def multiplied(optimizer: Optimizer) -> bool:
    """Whether a warm-up of this package has hold of the optimizer."""
    hooks = optimizer._optimizer_step_pre_hooks.values()
    return any(isinstance(getattr(hook, "__self__", None), MultipliedRates) for hook in hooks)


def products(rates: Sequence[Rate], multiplier: Rate) -> list[Rate]:
    """Rates times a multiplier, numbers as numbers and tensors as new tensors of their type."""
    return [
        rate.clone().mul_(multiplier) if isinstance(rate, Tensor) else rate * float(multiplier)
        for rate in rates
    ]


def home_of(optimizer: Optimizer) -> torch.device | None:
    """The device on which a multiplier is needed, that of a rate that is a tensor; None if none is."""
    rates = (group.get("lr") for group in optimizer.param_groups)
    return next((rate.device for rate in rates if isinstance(rate, Tensor)), None)


def _copies(rates: Sequence[Rate]) -> list[Rate]:
    return [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]
