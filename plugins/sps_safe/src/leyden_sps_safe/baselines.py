"""The step sizes that the paper compares with and that no library has, as optimizers of the same manner.

Each moves along the gradient, `IMASPS` with the averaging of `IMASPSSafe`, with one step size for the whole
model. As everywhere here, f is the mini-batch loss, g its gradient and ℓ* a lower bound of f, and a step with
a number that is not finite is skipped. Where a formula divides by ‖g‖² and the gradient is 0, nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from leyden_sps_safe.ima_sps_safe import (
    average,
    averaging_weight,
    check_averaging,
    counted,
    create_targets,
    sums,
)
from leyden_sps_safe.loss_aware import LossAwareOptimizer, Share, Taken, as_number, check_number
from leyden_sps_safe.polyak import nonfinite


class SPS(LossAwareOptimizer):
    """The stochastic Polyak step size, γ = [f - ℓ*]₊ / (c ‖g‖²), of Loizou et al. (2021).

    Args:
        params: parameters or parameter groups.
        c: the factor of the denominator; 1 for convex losses, 0.2 for networks, in the authors' experiments.
        ell_star: a lower bound of every mini-batch loss.
        weight_decay: decoupled weight decay, multiplied by the step.
        lr: factor of the step.

    Raises:
        ValueError: if an argument is out of its range; names it.
    """

    global_settings = ("c", "ell_star")

    def __init__(
        self,
        params: ParamsT,
        c: float = 1.0,
        *,
        ell_star: float = 0.0,
        weight_decay: float = 0.0,
        lr: float = 1.0,
    ) -> None:
        super().__init__(params, {"c": c, "ell_star": ell_star, "weight_decay": weight_decay, "lr": lr})

    def _check(self, group: Mapping[str, Any]) -> None:
        check_number("c", group["c"], above=0)
        check_number("ell_star", group["ell_star"])
        super()._check(group)

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        assert loss is not None
        settings = self.param_groups[0]
        step_size = _ratio((loss - settings["ell_star"]).clamp(min=0), settings["c"] * sums, nothing=0.0)
        skip = nonfinite(loss, sums, step_size)
        self._descend(shares, step_size, skip)
        return Taken(step_size, sums, skip, loss)


class SPSMax(LossAwareOptimizer):
    """The bounded stochastic Polyak step size, γ = min{[f - ℓ*]₊ / (c ‖g‖²), γ_b}, of Loizou et al. (2021).

    Args:
        params: parameters or parameter groups.
        gamma_b: the bound γ_b > 0; with ``growth``, the step size before the first step.
        c: the factor of the denominator.
        growth: None for a constant bound. The fraction b / n of the data that a batch holds makes the bound
            2^(b / n) times the step size before, the authors' smoothed form.
        ell_star: a lower bound of every mini-batch loss.
        weight_decay: decoupled weight decay, multiplied by the step.
        lr: factor of the step.

    Raises:
        ValueError: if an argument is out of its range; names it.
    """

    global_settings = ("gamma_b", "c", "growth", "ell_star")

    def __init__(
        self,
        params: ParamsT,
        gamma_b: float = 1.0,
        *,
        c: float = 1.0,
        growth: float | None = None,
        ell_star: float = 0.0,
        weight_decay: float = 0.0,
        lr: float = 1.0,
    ) -> None:
        super().__init__(
            params,
            {
                "gamma_b": gamma_b,
                "c": c,
                "growth": growth,
                "ell_star": ell_star,
                "weight_decay": weight_decay,
                "lr": lr,
            },
        )
        if self.param_groups[0]["growth"] is not None:
            self._remember(previous=torch.tensor(float(self.param_groups[0]["gamma_b"])))

    def _check(self, group: Mapping[str, Any]) -> None:
        check_number("gamma_b", group["gamma_b"], above=0)
        check_number("c", group["c"], above=0)
        if group["growth"] is not None:
            check_number("growth", group["growth"], least=0)
        check_number("ell_star", group["ell_star"])
        super()._check(group)

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        assert loss is not None
        settings = self.param_groups[0]
        ratio = _ratio((loss - settings["ell_star"]).clamp(min=0), settings["c"] * sums, nothing=math.inf)
        if settings["growth"] is None:
            step_size = ratio.clamp(max=settings["gamma_b"])
        else:
            step_size = torch.minimum(ratio, 2.0 ** settings["growth"] * settings["previous"].to(sums))
        skip = nonfinite(loss, sums, step_size)
        self._descend(shares, step_size, skip)
        if settings["growth"] is not None:
            self._remember(previous=torch.where(skip > 0, settings["previous"].to(sums), step_size))
        return Taken(step_size, sums, skip, loss)


class SPSPlus(LossAwareOptimizer):
    """The oracle Polyak step size SPS_+, γ = [f(x) - f(x*)]₊ / ‖g‖², of Garrigos et al. (2023).

    It must be told each mini-batch's loss at a solution, so it is a yardstick, not a method to train with.

    Args:
        params: parameters or parameter groups.
        weight_decay: decoupled weight decay, multiplied by the step.
        lr: factor of the step.

    Raises:
        ValueError: if an argument is out of its range; names it.
    """

    _optimal_loss: Tensor | float | None = None

    def __init__(self, params: ParamsT, *, weight_decay: float = 0.0, lr: float = 1.0) -> None:
        super().__init__(params, {"weight_decay": weight_decay, "lr": lr})

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        loss: Tensor | float | None = None,
        optimal_loss: Tensor | float | None = None,
    ) -> Any:
        """Take one step.

        Args:
            closure: evaluates the model and calls ``backward``; its return value is the loss.
            loss: the mini-batch loss at the present parameters.
            optimal_loss: the same mini-batch's loss at a solution, f(x*).

        Returns:
            The loss that was used.

        Raises:
            ValueError: if ``optimal_loss`` is missing.
        """
        self._optimal_loss = _required(optimal_loss)
        return super().step(closure, loss=loss)

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        assert loss is not None
        gap = loss - as_number(_required(self._optimal_loss), like=sums)
        step_size = _ratio(gap.clamp(min=0), sums, nothing=0.0)
        skip = nonfinite(loss, sums, step_size)
        self._descend(shares, step_size, skip)
        return Taken(step_size, sums, skip, loss)


class IMASPS(LossAwareOptimizer):
    """The oracle step size with momentum, η = [f(x) - f(x*) + ⟨g, z - x⟩]₊ / ‖g‖², of Gower et al. (2025).

    Args:
        params: parameters or parameter groups.
        lambd: averaging parameter λ ≥ 0, or ``"t"``, as in `leyden_sps_safe.IMASPSSafe`.
        weight_decay: decoupled weight decay, multiplied by the step.
        lr: factor of the step.

    Raises:
        ValueError: if an argument is out of its range; names it.
    """

    global_settings = ("lambd",)
    _optimal_loss: Tensor | float | None = None

    def __init__(
        self,
        params: ParamsT,
        lambd: float | Literal["t"] = 1.0,
        *,
        weight_decay: float = 0.0,
        lr: float = 1.0,
    ) -> None:
        super().__init__(params, {"lambd": lambd, "weight_decay": weight_decay, "lr": lr})
        if self.param_groups[0]["lambd"] == "t":
            self._remember(steps=torch.zeros((), dtype=torch.int64))

    def _check(self, group: Mapping[str, Any]) -> None:
        check_averaging(group["lambd"])
        super()._check(group)

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        loss: Tensor | float | None = None,
        optimal_loss: Tensor | float | None = None,
    ) -> Any:
        """Take one step; as in `SPSPlus`."""
        self._optimal_loss = _required(optimal_loss)
        return super().step(closure, loss=loss)

    def _create_state(self, shares: list[Share]) -> None:
        create_targets(self.state, shares)

    def _measure(self, share: Share) -> Tensor:
        return sums(self.state, share)

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        assert loss is not None
        settings = self.param_groups[0]
        norm, product = sums.unbind()
        gap = loss - as_number(_required(self._optimal_loss), like=sums) + product
        step_size = _ratio(gap.clamp(min=0), norm, nothing=0.0)
        skip = nonfinite(loss, norm, product, step_size)
        average(self.state, shares, step_size, averaging_weight(settings, norm), skip)
        self._remember(**counted(settings, skip))
        return Taken(step_size, norm, skip, loss)


class DecSPS(LossAwareOptimizer):
    """The decreasing Polyak step size of Orvieto et al. (2022).

    γₜ = min{[f - ℓ*]₊ / ‖g‖², cₜ₋₁ γₜ₋₁} / cₜ with cₜ = c₀ √(t + 1) and c₋₁ = c₀.

    Args:
        params: parameters or parameter groups.
        c: c₀ > 0.
        gamma_b: γ₋₁ > 0, the bound of the first step.
        ell_star: a lower bound of every mini-batch loss.
        weight_decay: decoupled weight decay, multiplied by the step.
        lr: factor of the step.

    Raises:
        ValueError: if an argument is out of its range; names it.
    """

    global_settings = ("c", "gamma_b", "ell_star")

    def __init__(
        self,
        params: ParamsT,
        c: float = 1.0,
        *,
        gamma_b: float = 1.0,
        ell_star: float = 0.0,
        weight_decay: float = 0.0,
        lr: float = 1.0,
    ) -> None:
        super().__init__(
            params, {"c": c, "gamma_b": gamma_b, "ell_star": ell_star, "weight_decay": weight_decay, "lr": lr}
        )
        settings = self.param_groups[0]
        self._remember(
            bound=torch.tensor(float(settings["c"] * settings["gamma_b"])),
            steps=torch.zeros((), dtype=torch.int64),
        )

    def _check(self, group: Mapping[str, Any]) -> None:
        check_number("c", group["c"], above=0)
        check_number("gamma_b", group["gamma_b"], above=0)
        check_number("ell_star", group["ell_star"])
        super()._check(group)

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        assert loss is not None
        settings = self.param_groups[0]
        ratio = _ratio((loss - settings["ell_star"]).clamp(min=0), sums, nothing=math.inf)
        bound, steps = settings["bound"].to(sums), settings["steps"].to(sums.device)
        product = torch.minimum(ratio, bound)
        step_size = product / (settings["c"] * (steps + 1).to(sums.dtype).sqrt())
        skip = nonfinite(loss, sums, step_size)
        self._descend(shares, step_size, skip)
        self._remember(bound=torch.where(skip > 0, bound, product), steps=steps + (skip == 0))
        return Taken(step_size, sums, skip, loss)


class ALIG(LossAwareOptimizer):
    """ALI-G, γ = min{f / (‖g‖² + δ), η}, of Berrada et al. (2020): the safeguard is added, not a floor.

    Args:
        params: parameters or parameter groups.
        max_step: η > 0, the largest step.
        delta: δ > 0.
        weight_decay: decoupled weight decay, multiplied by the step.
        lr: factor of the step.

    Raises:
        ValueError: if an argument is out of its range; names it.
    """

    global_settings = ("max_step", "delta")

    def __init__(
        self,
        params: ParamsT,
        max_step: float = 1.0,
        *,
        delta: float = 1e-5,
        weight_decay: float = 0.0,
        lr: float = 1.0,
    ) -> None:
        super().__init__(
            params, {"max_step": max_step, "delta": delta, "weight_decay": weight_decay, "lr": lr}
        )

    def _check(self, group: Mapping[str, Any]) -> None:
        check_number("max_step", group["max_step"], above=0)
        check_number("delta", group["delta"], above=0)
        super()._check(group)

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        assert loss is not None
        settings = self.param_groups[0]
        step_size = (loss.clamp(min=0) / (sums + settings["delta"])).clamp(max=settings["max_step"])
        skip = nonfinite(loss, sums, step_size)
        self._descend(shares, step_size, skip)
        return Taken(step_size, sums, skip, loss)


class AdaGradNorm(LossAwareOptimizer):
    """AdaGrad with one step size, γₜ = 1 / √(b₀² + Σ ‖g‖²), of Ward et al. (2019); needs no loss.

    Args:
        params: parameters or parameter groups.
        lr: factor of the step, the method's η.
        initial: b₀ > 0.
        weight_decay: decoupled weight decay, multiplied by the step.

    Raises:
        ValueError: if an argument is out of its range; names it.
    """

    needs_loss: ClassVar[bool] = False
    global_settings = ("initial",)

    def __init__(
        self, params: ParamsT, lr: float = 1.0, *, initial: float = 0.1, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"initial": initial, "weight_decay": weight_decay, "lr": lr})
        self._remember(squares=torch.tensor(float(self.param_groups[0]["initial"]) ** 2))

    def _check(self, group: Mapping[str, Any]) -> None:
        check_number("initial", group["initial"], above=0)
        super()._check(group)

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        before = self.param_groups[0]["squares"].to(sums)
        squares = before + sums
        step_size = squares.rsqrt()
        skip = nonfinite(sums, step_size)
        self._descend(shares, step_size, skip)
        self._remember(squares=torch.where(skip > 0, before, squares))
        return Taken(step_size, sums, skip)


def _ratio(gap: Tensor, denominator: Tensor, *, nothing: float) -> Tensor:
    """The quotient, and ``nothing`` where the denominator is 0."""
    return torch.where(denominator > 0, gap / denominator, nothing)


def _required(optimal_loss: Tensor | float | None) -> Tensor | float:
    if optimal_loss is None:
        raise ValueError("optimal_loss must be given: this step size is an oracle's")
    return optimal_loss
