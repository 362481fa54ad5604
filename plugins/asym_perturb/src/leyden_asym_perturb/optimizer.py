"""Alternating gradient descent-ascent with one perturbed player, as a torch optimizer (Section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from leyden_asym_perturb.arguments import check_positive, check_side
from leyden_asym_perturb.simplex import project_simplex


class AsymPGDA(Optimizer):
    """Descend in some parameters, then ascend in the others against the new ones; perturb one of the sides.

    The loss is what the groups with ``role="min"`` make small and those with ``role="max"`` make large. With
    ``geometry="simplex"`` a parameter's last dimension is a point of the probability simplex, and the method
    is that of the paper, Section 3.3. With ``geometry="free"`` it trains any differentiable min-max model: an
    extension, for which the paper proves nothing.

    Where there are groups of both roles, ``step`` needs the closure, which it calls once before each half
    step. A scheduler acts by ``lr``, which multiplies ``eta``. All of these may be set by group.

    Args:
        params: parameters or groups of them.
        eta: the step size, above 0.
        mu: the perturbation, at least 0; 0 is plain alternating gradient descent-ascent.
        side: the perturbed side: ``"x"``, the groups with role ``"min"``, or ``"y"``.
        lr: factor of ``eta``, at least 0.
        role: of groups that do not say it, ``"min"`` or ``"max"``.
        geometry: of groups that do not say it, ``"free"`` or ``"simplex"``.

    Raises:
        ValueError: if an argument is out of its range; the text names it.

    >>> x, y = (torch.full((2,), 0.5, requires_grad=True) for _ in range(2))
    >>> optimizer = AsymPGDA(
    ...     [{"params": [x]}, {"params": [y], "role": "max"}], eta=0.1, mu=1.0, geometry="simplex"
    ... )
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     cost = x @ torch.tensor([[0.0, 1.0], [2.0, -1.0]]) @ y
    ...     cost.backward()
    ...     return cost
    >>> loss = optimizer.step(closure)
    >>> float(x.sum())
    1.0
    """

    def __init__(
        self,
        params: Any,
        eta: float = 0.01,
        mu: float = 1.0,
        side: Literal["x", "y"] = "x",
        *,
        lr: float = 1.0,
        role: Literal["min", "max"] = "min",
        geometry: Literal["free", "simplex"] = "free",
    ) -> None:
        defaults = {"lr": lr, "eta": eta, "mu": mu, "side": side, "role": role, "geometry": geometry}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, after a look at its settings."""
        settings = {**self.defaults, **param_group}
        check_positive("eta", settings["eta"])
        check_positive("mu", settings["mu"], zero=True)
        check_positive("lr", settings["lr"], zero=True)
        check_side(settings["side"])
        for name, known in (("role", ("min", "max")), ("geometry", ("free", "simplex"))):
            if settings[name] not in known:
                raise ValueError(f"{name}: expected {' or '.join(map(repr, known))}, got {settings[name]!r}")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take both half steps.

        Args:
            closure: sets the gradients and returns the loss. It is called before the step of the groups that
                descend, and again before that of the groups that ascend.

        Returns:
            What the closure returned first, or None.

        Raises:
            RuntimeError: if there are groups of both roles and no closure.
        """
        loss = _call(closure)
        roles = {group["role"] for group in self.param_groups}
        if "min" in roles:
            self._half_step("min")
        if "max" in roles:
            if "min" in roles:
                if closure is None:
                    raise RuntimeError(
                        "step: expected a closure, since there are groups of both roles: the groups that "
                        "ascend answer the new values of those that descend"
                    )
                _call(closure)
            self._half_step("max")
        return loss

    def _half_step(self, role: str) -> None:
        sign = 1.0 if role == "min" else -1.0
        for group in self.param_groups:
            if group["role"] != role:
                continue
            moving = [p for p in group["params"] if p.grad is not None]
            if not moving:
                continue
            size = group["lr"] * group["eta"]
            perturbed = role == ("min" if group["side"] == "x" else "max")
            if perturbed and group["mu"]:
                torch._foreach_mul_(moving, 1 - size * group["mu"])
            torch._foreach_add_(moving, [p.grad for p in moving], alpha=-sign * size)
            if group["geometry"] == "simplex":
                for parameter in moving:
                    parameter.copy_(project_simplex(parameter))


def _call(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class SolverSteps(Optimizer):
    """What lets Lightning count the steps of a solver: its step calls the closure, which iterates.

    Args:
        tensors: the solver's state.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__(tensors, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Iterate."""
        return None if closure is None else closure()
