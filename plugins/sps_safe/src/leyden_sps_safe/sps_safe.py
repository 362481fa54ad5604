"""SPS_safe, the safeguarded stochastic Polyak step size (Oikonomou and Loizou, 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from leyden_sps_safe.loss_aware import LossAwareOptimizer, Share, Taken, check_number
from leyden_sps_safe.polyak import nonfinite, polyak_step_size, resolve_safeguard


class SPSSafe(LossAwareOptimizer):
    """Stochastic (sub)gradient descent with the safeguarded Polyak step size, without momentum.

    With the mini-batch loss f, its gradient g over all parameters of all groups, γ = [f - ℓ*]₊ / max(‖g‖², M)
    and s = ``lr`` γ, a step is x ← (1 - wd s) x - s g. There is one step size for the whole model.

    Args:
        params: parameters or parameter groups.
        M: safeguard on ‖g‖², positive. A larger one takes smaller steps where the gradient is small.
            ``"auto"`` takes the squared norm of the first gradient (1.0 where that is 0).
        ell_star: a lower bound ℓ* of every mini-batch loss; 0 for cross-entropy and other losses that are
            never negative.
        weight_decay: decoupled weight decay wd, multiplied by the step; may differ between groups.
        lr: factor of the step, for schedulers; may differ between groups. 1 is the paper's method.

    Raises:
        ValueError: if an argument is out of its range; names it.

    >>> x = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = SPSSafe([x], M=2.0)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     loss = (x**2 / 2 + 1).sum()
    ...     loss.backward()
    ...     _ = optimizer.step(loss=loss)
    ...     print(round(x.item(), 8), optimizer.last_safeguard_active)
    0.25 tensor(True)
    0.12109375 tensor(True)
    """

    global_settings = ("M", "ell_star")

    def __init__(
        self,
        params: ParamsT,
        M: float | Literal["auto"] = 1.0,
        *,
        ell_star: float = 0.0,
        weight_decay: float = 0.0,
        lr: float = 1.0,
    ) -> None:
        super().__init__(params, {"M": M, "ell_star": ell_star, "weight_decay": weight_decay, "lr": lr})
        if self.param_groups[0]["M"] == "auto":
            self._remember(resolved_M=torch.zeros(()))

    def _check(self, group: Mapping[str, Any]) -> None:
        check_safeguard(group["M"])
        check_number("ell_star", group["ell_star"])
        super()._check(group)

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        assert loss is not None
        settings = self.param_groups[0]
        safeguard = current_safeguard(settings, sums)
        step_size = polyak_step_size(loss, sums, lower_bound=settings["ell_star"], safeguard=safeguard)
        skip = nonfinite(loss, sums, step_size)
        self._descend(shares, step_size, skip)
        fallback = fell_back(settings, sums, skip)
        self._remember(**kept_safeguard(settings, safeguard, skip))
        return Taken(step_size, sums, skip, loss, safeguard, fallback)


def check_safeguard(value: Any) -> None:
    """Check ``M``: a positive number or ``"auto"``.

    Raises:
        ValueError: naming ``M``, its value and its range.

    >>> check_safeguard(-1.0)
    Traceback (most recent call last):
    ValueError: M must be a finite number above 0, got -1.0; or "auto"
    """
    if isinstance(value, str) and value == "auto":
        return
    try:
        check_number("M", value, above=0)
    except ValueError as error:
        raise ValueError(f'{error}; or "auto"') from None


def current_safeguard(settings: Mapping[str, Any], squared_norm: Tensor) -> Tensor | float:
    """The M of this step: the number, or with ``"auto"`` what was kept or is found now."""
    if settings["M"] != "auto":
        return float(settings["M"])
    return resolve_safeguard(settings["resolved_M"].to(squared_norm), squared_norm)


def fell_back(settings: Mapping[str, Any], squared_norm: Tensor, skip: Tensor) -> Tensor | None:
    """Whether ``M="auto"`` meets a first step without a gradient; None where M is a number."""
    if settings["M"] != "auto":
        return None
    unset: Tensor = settings["resolved_M"].to(squared_norm) == 0
    return unset & (squared_norm == 0) & (skip == 0)


def kept_safeguard(settings: Mapping[str, Any], safeguard: Tensor | float, skip: Tensor) -> dict[str, Tensor]:
    """What ``M="auto"`` keeps after this step: what it found, unless the step was skipped."""
    if not isinstance(safeguard, Tensor):
        return {}
    return {"resolved_M": torch.where(skip > 0, settings["resolved_M"].to(safeguard), safeguard)}
