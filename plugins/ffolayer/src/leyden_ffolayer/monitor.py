"""A layer's gradient, compared with finite differences while it trains."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from leyden_ffolayer.qp_layer import FFOQPLayer, check_count

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class HypergradientMonitor(Callback):
    """Checks the gradients of every `FFOQPLayer` and `FFOLayer` of a model by central finite differences.

    Every few optimizer steps the first sample of a layer's last batch is solved again, along random
    directions of its arguments, and the largest relative difference between gradient and finite difference is
    logged as ``ffo/grad_check_relerr``, together with what the layer reports (``ffo/forward_ms``,
    ``ffo/active_rows_mean`` and so on). It draws from a generator of its own and changes nothing in the
    training. Of several in one Trainer, the first acts.

    Args:
        every: check at every so many optimizer steps, from the first one on.
        directions: how many random directions.
        step: length of the finite step along a direction of length 1.

    Raises:
        ValueError: if an argument is out of its range.
    """

    def __init__(self, every: int = 200, *, directions: int = 5, step: float = 1e-5) -> None:
        check_count("every", every)
        check_count("directions", directions)
        if not 0 < step < 1:
            raise ValueError(f"step: expected a number above 0 and below 1, got {step!r}")
        self.every = every
        self.directions = directions
        self.step = step
        self._watches: list[_Watch] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the layers."""
        others: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        first = next(one for one in others if isinstance(one, HypergradientMonitor))
        self._unwatch()
        if first is self:
            self._watches = [_Watch(one) for one in pl_module.modules() if _is_checked(one)]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check, at the steps that check."""
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        if not self._watches or step % self.every:
            return
        known = [watch for watch in self._watches if watch.arguments is not None]
        if not known:
            return
        generator = torch.Generator().manual_seed(step)
        errors = []
        for watch in known:
            assert watch.arguments is not None
            errors.append(
                gradient_error(
                    watch.layer,
                    watch.arguments,
                    generator=generator,
                    directions=self.directions,
                    step=self.step,
                )
            )
        metrics = {"ffo/grad_check_relerr": max(errors), **known[0].layer.report.metrics()}  # type: ignore[union-attr,operator]
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the layers alone."""
        self._unwatch()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the layers alone."""
        self._unwatch()

    def __getstate__(self) -> dict[str, Any]:
        """The settings; a copy watches nothing."""
        return {**vars(self), "_watches": []}

    def _unwatch(self) -> None:
        for watch in self._watches:
            watch.handle.remove()
        self._watches = []


def gradient_error(
    layer: nn.Module,
    arguments: tuple[Tensor | None, ...],
    *,
    generator: torch.Generator,
    directions: int = 5,
    step: float = 1e-5,
) -> float:
    """The largest relative difference between a layer's directional derivative and a central difference.

    It is a check of the gradients of Section 3.4 that trusts nothing but the solver; not in the paper.

    Args:
        layer: an `FFOQPLayer` or `FFOLayer`; a copy of it is called.
        arguments: its arguments, of shapes that it takes; of batched ones the first sample is taken.
        generator: of the directions, and of the loss, a random combination of the outputs.
        directions: how many directions, each of length 1 in all arguments together.
        step: length of the finite step.

    Returns:
        The largest of ``|a - f| / max(|a|, |f|, 1e-8)``, a being the derivative and f the difference.
    """
    twin: Any = copy.deepcopy(layer)
    with torch.enable_grad():
        values = [_first(twin, place, value) for place, value in enumerate(arguments)]
        leaves = [value.requires_grad_() for value in values if value is not None]

        def loss(shifts: list[Tensor] | None, sign: float) -> Tensor:
            moved = iter(shifts or [])
            given = [
                value if value is None or shifts is None else value + sign * step * next(moved)
                for value in values
            ]
            outputs = twin(*given)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            return torch.stack([(w * o).sum() for w, o in zip(weights, outputs, strict=True)]).sum()

        shapes = twin(*values)
        shapes = shapes if isinstance(shapes, tuple) else (shapes,)
        weights = [torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in shapes]
        found = torch.autograd.grad(loss(None, 0), leaves, allow_unused=True)
        worst = 0.0
        for _ in range(directions):
            shifts = [
                _direction(_declared(twin, place), value.detach(), generator)
                for place, value in enumerate(values)
                if value is not None
            ]
            length = torch.stack([shift.square().sum() for shift in shifts]).sum().sqrt()
            shifts = [shift / (length + 1e-300) for shift in shifts]
            ahead, behind = (float(loss(shifts, sign).detach()) for sign in (1.0, -1.0))
            difference = (ahead - behind) / (2 * step)
            along = sum(float((g * s).sum()) for g, s in zip(found, shifts, strict=True) if g is not None)
            worst = max(worst, abs(along - difference) / max(abs(along), abs(difference), 1e-8))
    return worst


class _Watch:
    """Remembers the last arguments of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.arguments: tuple[Tensor | None, ...] | None = None
        self.handle = layer.register_forward_pre_hook(self._remember)

    def _remember(self, layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        if layer.training:
            self.arguments = tuple(
                value.detach() if isinstance(value, Tensor) else None for value in arguments
            )


def _is_checked(module: nn.Module) -> bool:
    from leyden_ffolayer.cvxpy_layer import FFOLayer

    return isinstance(module, FFOQPLayer | FFOLayer)


def _first(layer: Any, place: int, value: Tensor | None) -> Tensor | None:
    """The first sample of an argument, in float64."""
    if value is None:
        return None
    single = _dimensions(layer, place)
    one = value[0] if value.dim() > single else value
    return one.detach().to("cpu", torch.float64).clone()


def _dimensions(layer: Any, place: int) -> int:
    """How many dimensions an argument has without a batch."""
    if isinstance(layer, FFOQPLayer):
        return 2 if place in (0, 2, 4) else 1
    return len(layer.ctx.parameters[place].shape)


def _declared(layer: Any, place: int) -> str:
    """What an argument has to stay while it is moved: ``"definite"``, ``"signed"`` or nothing."""
    if isinstance(layer, FFOQPLayer):
        return "definite" if place == 0 else ""
    attributes = layer.ctx.parameters[place].attributes
    if attributes["PSD"] or attributes["NSD"]:
        return "definite"
    return "signed" if any(attributes[one] for one in ("nonneg", "pos", "nonpos", "neg")) else ""


def _direction(declared: str, value: Tensor, generator: torch.Generator) -> Tensor:
    """A random direction in which a small step breaks nothing that is declared."""
    drawn = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    if declared == "signed":
        return drawn * value
    if declared == "definite":
        return drawn.T @ value + value @ drawn
    if value.dim() == 2 and value.shape[0] == value.shape[1] and torch.equal(value, value.T):
        return 0.5 * (drawn + drawn.T)
    return drawn
