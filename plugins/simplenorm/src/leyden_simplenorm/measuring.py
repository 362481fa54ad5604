"""What the claims measure: curvature at a point, and activations against the gains that should hold them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leyden_simplenorm.activation_monitor import row_scales
from leyden_simplenorm.curvature import input_hessian_terms
from leyden_simplenorm.layer import SimpleNormLinear
from leyden_simplenorm.simplenorm import simple_norm
from leyden_simplenorm.watching import is_due, step_of

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

CLASSES = 16
EXACT = 1e-200
"""An epsilon of which nothing is left beside a mean square of any size that occurs."""


def curvature_at(*, kind: str, loss: str, factor: float, width: int, seed: int) -> dict[str, float]:
    """The Hessian of a loss in the input of a map, in float64, at a random point.

    Args:
        kind: ``"SimpleNorm"`` or ``"plain"``.
        loss: ``"quadratic"``, or ``"cross-entropy"`` after a random head of 16 classes.
        factor: by what the weights, 0.02 times a standard normal, are multiplied.
        width: of input and output.
        seed: of the point, the weights and the loss.

    Returns:
        ``curvature``, its spectral norm; for SimpleNorm also those of its two terms, ``first_term`` and
        ``second_term``, and ``terms_slack``, 1e-9 minus the relative difference of their sum.
    """
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x, weight = draw(width), factor * 0.02 * draw(width, width)
    matrix, vector, head = draw(width, width), draw(width), draw(CLASSES, width) / width**0.5
    gain = torch.ones(width, dtype=torch.float64)

    def loss_of(z: Tensor) -> Tensor:
        if loss == "quadratic":
            return z @ (matrix + matrix.T) @ z / 4 + vector @ z
        return nn.functional.cross_entropy(head @ z, torch.tensor(0))

    def output(x: Tensor) -> Tensor:
        return weight @ x if kind == "plain" else simple_norm(x, weight, gain, eps=EXACT)

    hessian = _hessian(lambda x: loss_of(output(x)), x)
    found = {"curvature": _spectral(hessian)}
    if kind == "plain":
        return found
    z = output(x)
    in_output = _hessian(loss_of, z)
    gradient = torch.func.grad(loss_of)(z)
    first, second = input_hessian_terms(x, weight, gain, gradient, in_output)
    apart = _spectral(hessian - first - second) / found["curvature"]
    return {
        **found,
        "first_term": _spectral(first),
        "second_term": _spectral(second),
        "terms_slack": 1e-9 - apart,
    }


class GainBounds(Callback):
    """Watches the outputs of a `SimpleGPT`'s maps: against their gains, and how their scale drifts.

    Args:
        every: watch at every so many steps.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._steps: list[float] = []
        self._scales: list[float] = []
        self._slack = float("inf")
        self._now: list[float] = []
        self._hooks: list[RemovableHandle] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Hook the maps."""
        if not is_due(trainer, batch_idx, self.every):
            return
        self._steps.append(float(step_of(trainer)))
        for name, module in pl_module.named_modules():
            if isinstance(module, SimpleNormLinear):
                self._hooks.append(module.norm.register_forward_hook(self._bound))
            if name.endswith((".attention.o", ".feed_forward.w2")):
                self._hooks.append(module.register_forward_hook(self._note))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Let the maps go."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._now:
            self._scales.append(fmean(self._now))
            self._now = []

    def measured(self) -> dict[str, Any]:
        """What was seen.

        Returns:
            ``drift``, the largest scale over the first one, of what the parts of a block add to the residual
            stream; the series ``scale`` with its ``steps``; with SimpleNorm also ``gain_slack``, the least
            distance from a bound, relatively.
        """
        found: dict[str, Any] = {
            "drift": max(self._scales) / self._scales[0],
            "scale": self._scales,
            "steps": self._steps,
        }
        if self._slack < float("inf"):
            found["gain_slack"] = self._slack
        return found

    def _note(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._now.append(float(row_scales(output.detach())[1]))

    def _bound(self, norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        gain: Any = norm.weight
        mean_square = inputs[0].detach().square().mean(dim=-1)
        factor = (mean_square / (mean_square + float(norm.eps))).sqrt()  # type: ignore[arg-type]
        scale = output.detach().square().mean(dim=-1).sqrt()
        low, high = (factor * end for end in (gain.detach().abs().min(), gain.detach().abs().max()))
        slack = torch.minimum(scale / low - 1, 1 - scale / high).min()
        # A NaN keeps no bound, and min() would pass over it.
        self._slack = min(self._slack, float(slack.nan_to_num(nan=-float("inf"))))


def _hessian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    # By autograd, so that the layer's own second derivatives are used, and not torch's.
    found: Tensor = torch.autograd.functional.hessian(function, x)  # type: ignore[no-untyped-call]
    return found


def _spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))
