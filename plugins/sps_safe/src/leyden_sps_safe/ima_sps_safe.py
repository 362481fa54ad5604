"""IMA_SPS_safe, the safeguarded Polyak step size with momentum (Oikonomou and Loizou, 2026)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from leyden_sps_safe.loss_aware import LossAwareOptimizer, Share, Taken, check_number, local, scaled
from leyden_sps_safe.polyak import (
    approach_,
    descend_,
    momentum_step_size,
    nonfinite,
    norm_and_product,
    scale_,
    squared_norm,
)
from leyden_sps_safe.sps_safe import check_safeguard, current_safeguard, fell_back, kept_safeguard


class IMASPSSafe(LossAwareOptimizer):
    """The safeguarded Polyak step size with momentum, in the form of an iterate moving average.

    With z = x at the start, η = [f - ℓ* + ⟨g, z - x⟩]₊ / max(‖g‖², M) and s = ``lr`` η, a step is
    z ← z - s g, x ← (λ x + z) / (1 + λ). It is heavy-ball momentum of β = λ / (1 + λ) with a step size of its
    own. Weight decay multiplies both x and z by 1 - wd s before the step.

    Args:
        params: parameters or parameter groups.
        lambd: averaging parameter λ ≥ 0; 9 corresponds to a momentum of 0.9, and 0 is `SPSSafe`. ``"t"``
            counts the steps, λₜ = t; then the paper's guarantee is on the last iterate, not on the average.
        M: safeguard on ‖g‖², positive. A larger one takes smaller steps where the gradient is small.
            ``"auto"`` takes the squared norm of the first gradient (1.0 where that is 0).
        ell_star: a lower bound ℓ* of every mini-batch loss; 0 for cross-entropy and other losses that are
            never negative.
        weight_decay: decoupled weight decay wd, multiplied by the step; may differ between groups.
        lr: factor of the step, for schedulers; may differ between groups. 1 is the paper's method.

    Raises:
        ValueError: if an argument is out of its range; names it.

    >>> x = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = IMASPSSafe([x], lambd=1.0, M=2.0)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     loss = (x**2 / 2 + 1).sum()
    ...     loss.backward()
    ...     _ = optimizer.step(loss=loss)
    ...     print(round(x.item(), 8))
    0.625
    0.28735352
    """

    global_settings = ("M", "ell_star", "lambd")

    def __init__(
        self,
        params: ParamsT,
        lambd: float | Literal["t"] = 1.0,
        *,
        M: float | Literal["auto"] = 1.0,
        ell_star: float = 0.0,
        weight_decay: float = 0.0,
        lr: float = 1.0,
    ) -> None:
        super().__init__(
            params,
            {"lambd": lambd, "M": M, "ell_star": ell_star, "weight_decay": weight_decay, "lr": lr},
        )
        if self.param_groups[0]["M"] == "auto":
            self._remember(resolved_M=torch.zeros(()))
        if self.param_groups[0]["lambd"] == "t":
            self._remember(steps=torch.zeros((), dtype=torch.int64))

    def _check(self, group: Mapping[str, Any]) -> None:
        check_averaging(group["lambd"])
        check_safeguard(group["M"])
        check_number("ell_star", group["ell_star"])
        super()._check(group)

    def _create_state(self, shares: list[Share]) -> None:
        if self.param_groups[0]["lambd"] != 0:
            create_targets(self.state, shares)
        else:
            self.state.clear()

    def _measure(self, share: Share) -> Tensor:
        if self.param_groups[0]["lambd"] != 0:
            return sums(self.state, share)
        norm = squared_norm(share.gradients)
        return torch.stack([norm, torch.zeros_like(norm)])

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        assert loss is not None
        settings = self.param_groups[0]
        norm, product = sums.unbind()
        safeguard = current_safeguard(settings, norm)
        step_size = momentum_step_size(
            loss, norm, product, lower_bound=settings["ell_star"], safeguard=safeguard
        )
        skip = nonfinite(loss, norm, product, step_size)
        if settings["lambd"] == 0:
            self._descend(shares, step_size, skip)
        else:
            average(self.state, shares, step_size, averaging_weight(settings, norm), skip)
        fallback = fell_back(settings, norm, skip)
        self._remember(**kept_safeguard(settings, safeguard, skip), **counted(settings, skip))
        return Taken(step_size, norm, skip, loss, safeguard, fallback)


def create_targets(state: MutableMapping[Tensor, Any], shares: list[Share]) -> None:
    """Create z = x for every parameter that has none; in float32 where the parameter has 16 bits."""
    for share in shares:
        for owner in share.owners:
            if "z" not in state[owner]:
                precise = torch.float32 if owner.dtype in (torch.float16, torch.bfloat16) else owner.dtype
                state[owner]["z"] = owner.detach().to(precise, copy=True)


def sums(state: Mapping[Tensor, Any], share: Share) -> Tensor:
    """The squared norm of g and ⟨g, z - x⟩ over a share, as a vector of two."""
    return norm_and_product(share.gradients, _targets(state, share), share.parameters)


def average(
    state: Mapping[Tensor, Any],
    shares: list[Share],
    step_size: Tensor,
    weight: float | Tensor,
    skip: Tensor,
) -> None:
    """Set z ← z - s g and x ← x + w (z - x), both after their decay; where ``skip`` is 1, touch nothing."""
    for share in shares:
        targets = _targets(state, share)
        step = scaled(step_size, share.settings["lr"])
        decay = share.settings["weight_decay"]
        if decay:
            scale_(share.parameters, torch.where(skip > 0, 1, 1 - decay * step))
        descend_(targets, share.gradients, step, weight_decay=decay, skip=skip)
        approach_(share.parameters, targets, weight, skip=skip)


def averaging_weight(settings: Mapping[str, Any], like: Tensor) -> float | Tensor:
    """The weight w = 1 / (1 + λ) of z; with ``lambd="t"``, λ is the number of this step, counted from 1."""
    if settings["lambd"] == "t":
        averaging: Tensor = (settings["steps"].to(like.device) + 1).to(like.dtype)
        return 1 / (1 + averaging)
    return float(1 / (1 + settings["lambd"]))


def counted(settings: Mapping[str, Any], skip: Tensor) -> dict[str, Tensor]:
    """With ``lambd="t"``, the number of steps after this one, which does not count if it was skipped."""
    if settings["lambd"] != "t":
        return {}
    return {"steps": settings["steps"].to(skip.device) + (skip == 0)}


def check_averaging(value: Any) -> None:
    """Check ``lambd``: a number of at least 0, or ``"t"``.

    Raises:
        ValueError: naming ``lambd``, its value and its range.

    >>> check_averaging(-1.0)
    Traceback (most recent call last):
    ValueError: lambd must be a finite number of at least 0, got -1.0; or "t"
    """
    if isinstance(value, str) and value == "t":
        return
    try:
        check_number("lambd", value, least=0)
    except ValueError as error:
        raise ValueError(f'{error}; or "t"') from None


def _targets(state: Mapping[Tensor, Any], share: Share) -> list[Tensor]:
    return [local(state[owner]["z"]) for owner in share.owners]
