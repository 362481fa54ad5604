"""The curvature of the loss in the inputs of linear maps during training, logged."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from leyden.arguments import check_at_least
from leyden_callbacks import keeps_figures, log_figure, loss_scale
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leyden_simplenorm.conversion import Patterns
from leyden_simplenorm.curvature import spectral_norm
from leyden_simplenorm.watching import check_patterns, draw_by_kind, is_due, keep, step_of, watched, write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning.pytorch import LightningModule, Trainer
    from matplotlib.figure import Figure


class CurvatureMonitor(Callback):
    """Logs the spectral norm of the loss's Hessian in the inputs of maps, which Chen et al. (2026) bound.

    At the steps it watches it applies the Hessian of the batch's loss in a map's whole input (all tokens
    together) to a vector, again and again (power iteration), and logs the length as ``curv/NAME``; that costs
    two backward passes for each map and iteration. The input counts on its way through this map alone: what
    other maps or the residual stream make of the same tensor is held fixed. The estimate is never above the
    true value. The loss is the module's own, before a GradScaler and before it is divided for accumulation.
    Of batches that are accumulated it watches the first, of several backward passes in a step the first,
    among several processes those of the first. At the end it draws what it measured.

    Parameters, gradients and random numbers are left alone. In a step that it watches, attention runs in a
    form that can be differentiated twice, which rounds in another way. What cannot be (a compiled model, a
    recurrent network by cuDNN, a sharded model, DDP with ``static_graph``) ends the watching with a warning,
    and training goes on.

    Args:
        every_n_steps: watch at every so many optimizer steps, from the first one on.
        n_power_iter: iterations for each map.
        layers: patterns of dotted names; ``*`` stands for linear maps alone; None: of all maps the first, the
            one in the middle and the last.
        figure: whether to draw at the end.

    Attributes:
        steps: the steps that were watched.
        curvatures: for each module the spectral norm at each of them; NaN where there was none.

    Raises:
        ValueError: if an argument is out of its range.
    """

    def __init__(
        self,
        every_n_steps: int = 200,
        n_power_iter: int = 10,
        layers: Patterns | None = None,
        *,
        figure: bool = True,
    ) -> None:
        check_at_least("every_n_steps", every_n_steps, 1)
        check_at_least("n_power_iter", n_power_iter, 1)
        if layers is not None:
            check_patterns("layers", layers)
        self.every_n_steps = every_n_steps
        self.n_power_iter = n_power_iter
        self.layers = layers
        self.figure = figure
        self.steps: list[int] = []
        self.curvatures: dict[str, list[float]] = {}
        self._inputs: dict[str, Tensor] = {}
        self._open = ExitStack()
        self._found: dict[str, Tensor] = {}
        self._step: int | None = None
        self._recording = False
        self._failed = False
        self._warned = False

    @property
    def state_key(self) -> str:
        """What its state goes by in a checkpoint; monitors of several modules may stand in one Trainer."""
        return self._generate_state_key(every_n_steps=self.every_n_steps, layers=str(self.layers))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin anew, unless the same Trainer goes on."""
        if stage == "fit" and trainer.global_step == 0:
            self.steps, self.curvatures = [], {}
            self._failed = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Hook the modules at a step that is watched."""
        self._close()  # a batch that was left before its end
        if self._failed or not is_due(trainer, batch_idx, self.every_n_steps):
            return
        if getattr(trainer.strategy.model, "static_graph", False):
            # The first backward pass, which would be ours, is where its gradients would be reduced for good.
            self._stop("DDP with static_graph=True takes every backward pass for the training's")
            return
        self._step, self._recording = step_of(trainer), True
        self._open.enter_context(sdpa_kernel(SDPBackend.MATH))
        for name, module in self._chosen(pl_module).items():
            hook = module.register_forward_pre_hook(partial(self._look, name))
            self._open.callback(hook.remove)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Measure, while the loss's graph is there."""
        inputs, self._inputs = self._inputs, {}
        step, self._recording = self._step, False
        if step is None or self._found:
            return
        if not inputs:
            self._warn(pl_module)
        if not inputs or not loss.requires_grad:
            return
        # Of the loss as a scaler has it, in whose size half precision keeps derivatives above zero.
        factor: Tensor | float = trainer.accumulate_grad_batches
        if (scale := loss_scale(trainer, loss.device)) is not None:
            factor = factor / scale
        try:
            found = input_curvatures(loss, inputs, iterations=self.n_power_iter, seed=step)
            self._found = {name: value * factor for name, value in found.items()}
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            self._stop(f"the loss cannot be differentiated twice ({reason})")

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the modules go; a backward pass that runs a part of them again must find them as they were."""
        self._open.close()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log what was measured."""
        found, step = self._found, self._step
        self._close()
        if not found or step is None:
            return
        values = dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))
        keep(self.curvatures, values, len(self.steps), math.nan)
        self.steps.append(step)
        write(trainer, {f"curv/{name}": value for name, value in values.items()}, step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the modules go, where the last batch was left before its end."""
        self._close()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw what was measured."""
        self._close()
        if self.figure and len(self.steps) > 1 and keeps_figures(trainer):
            log_figure(trainer, "curvature", draw_curvatures(self.steps, self.curvatures))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let the modules go."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """What was measured."""
        return {
            "steps": list(self.steps),
            "curvatures": {name: list(values) for name, values in self.curvatures.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.steps = list(state_dict["steps"])
        self.curvatures = {name: list(values) for name, values in state_dict["curvatures"].items()}

    def __getstate__(self) -> dict[str, Any]:
        empty: dict[str, Any] = {
            "_inputs": {},
            "_found": {},
            "_step": None,
            "_recording": False,
            "_open": None,
        }
        return {**self.__dict__, **empty}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = ExitStack()

    def _chosen(self, pl_module: LightningModule) -> dict[str, nn.Module]:
        found = watched(pl_module, "*" if self.layers is None else self.layers)
        if self.layers is not None or len(found) < 4:
            return found
        names = list(found)
        return {name: found[name] for name in (names[0], names[len(names) // 2], names[-1])}

    def _look(self, name: str, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        x = arguments[0] if arguments else None
        if not isinstance(x, Tensor) or not x.is_floating_point() or not torch.is_grad_enabled():
            return None
        # A tensor of the map's own, since others may read the same one.
        taken = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        if self._recording:
            self._inputs[name] = taken
        return (taken, *arguments[1:])

    def _stop(self, reason: str) -> None:
        self._failed = True
        rank_zero_warn(f"CurvatureMonitor stops: {reason}")

    def _warn(self, pl_module: LightningModule) -> None:
        if not self._warned:
            self._warned = True
            rank_zero_warn(
                f"CurvatureMonitor saw no input of a module that layers={self.layers!r} names in "
                f"{type(pl_module).__name__}; in a compiled model hooks do not run"
            )

    def _close(self) -> None:
        self._open.close()
        self._inputs, self._found, self._step, self._recording = {}, {}, None, False


def input_curvatures(
    loss: Tensor, inputs: Mapping[str, Tensor], *, iterations: int = 10, seed: int = 0
) -> dict[str, Tensor]:
    """Spectral norms of a loss's Hessians in tensors that it was computed from; see Chen et al. (2026).

    Args:
        loss: a scalar with its graph, which is kept.
        inputs: tensors in that graph, of any shape, by name.
        iterations: of the power iteration.
        seed: of the vector that it starts with.

    Returns:
        For each tensor that the loss depends on a scalar.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> input_curvatures((x**2).sum(), {"x": x})
    {'x': tensor(2.)}
    """
    names = list(inputs)
    with torch.enable_grad():
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            loss.reshape(()), [inputs[name] for name in names], create_graph=True, allow_unused=True
        )
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is None:
            continue
        x = inputs[name]
        start = torch.randn(x.shape, generator=generator).to(x)
        found[name] = spectral_norm(partial(_hessian_times, gradient, x), start, iterations=iterations)
    return found


def draw_curvatures(steps: Sequence[int], curvatures: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the spectral norms against the step, of more than seven maps by their kind.

    Args:
        steps: the steps that were watched.
        curvatures: for each module the spectral norm at each of them.

    Returns:
        The figure.
    """
    from leyden.figures import PALETTE, new_figure, place_legend, styles
    from matplotlib.lines import Line2D

    figure, (ax,) = new_figure(
        title="Curvature of the loss in the inputs of maps",
        alt="Spectral norm of the loss's Hessian in each map's input against the optimizer step",
    )
    if len(curvatures) > len(PALETTE):
        draw_by_kind(figure, ax, steps, curvatures)
    else:
        looks = styles(curvatures)
        for name, values in curvatures.items():
            style = looks[name]
            ax.plot(steps, values, color=style.color, ls=style.line, marker=style.marker, lw=1.6)
        lines = [Line2D([], [], color=one.color, ls=one.line, marker=one.marker) for one in looks.values()]
        place_legend(figure, lines, list(looks))
    if any(value > 0 for values in curvatures.values() for value in values):
        ax.set_yscale("log")
    ax.set_xlabel("optimizer step")
    ax.set_ylabel("spectral norm of the Hessian")
    return figure


def _hessian_times(gradient: Tensor, x: Tensor, vector: Tensor) -> Tensor:
    if not gradient.requires_grad:  # the loss is linear in x
        return torch.zeros_like(x)
    (product,) = torch.autograd.grad(gradient, x, vector, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if product is None else product
