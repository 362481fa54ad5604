"""The scale of activations during training, logged and drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from leyden.arguments import check_at_least
from leyden_callbacks import keeps_figures, log_figure
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leyden_simplenorm.conversion import Patterns
from leyden_simplenorm.watching import check_patterns, draw_by_kind, is_due, keep, step_of, watched, write

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from matplotlib.figure import Figure

Scale = tuple[float, float, float]
"""Smallest, median and largest root mean square over the rows of an output."""

_UNSEEN: Scale = (math.nan, math.nan, math.nan)


class ActivationScaleMonitor(Callback):
    """Logs the root mean square of linear maps' outputs, the scale that Chen et al. (2026) keep fixed.

    At the steps it watches, and for every map, it takes the root mean square of each row of the output (each
    token) and logs the smallest, the median and the largest as ``act/NAME/rms_min``, ``rms_median`` and
    ``rms_max``. A map with its norm counts as one, measured after the norm. Of batches that are accumulated
    it watches the first, among several processes those of the first. It changes nothing; between the steps
    that it watches it has no hooks. At the end it draws the medians, for `leyden.logger.LeydenLogger` and
    ``MLFlowLogger``.

    Hooks of modules inside a compiled model do not run; a warning says so.

    Args:
        every_n_steps: watch at every so many optimizer steps, from the first one on.
        modules: patterns of dotted names; ``*`` stands for linear maps alone, a whole name for any module
            whose output is a tensor.
        figure: whether to draw at the end.

    Attributes:
        steps: the steps that were watched.
        scales: for each module its scale at each of them; NaN where it was not called.

    Raises:
        ValueError: if an argument is out of its range.
    """

    def __init__(self, every_n_steps: int = 50, modules: Patterns = "*", *, figure: bool = True) -> None:
        check_at_least("every_n_steps", every_n_steps, 1)
        check_patterns("modules", modules)
        self.every_n_steps = every_n_steps
        self.modules = modules
        self.figure = figure
        self.steps: list[int] = []
        self.scales: dict[str, list[Scale]] = {}
        self._step: int | None = None
        self._seen: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []
        self._warned = False

    @property
    def state_key(self) -> str:
        """What its state goes by in a checkpoint; monitors of several modules may stand in one Trainer."""
        return self._generate_state_key(every_n_steps=self.every_n_steps, modules=str(self.modules))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin anew, unless the same Trainer goes on."""
        if stage == "fit" and trainer.global_step == 0:
            self.steps, self.scales = [], {}

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Hook the modules at a step that is watched."""
        self._forget()  # a batch that was left before its end
        if not is_due(trainer, batch_idx, self.every_n_steps):
            return
        self._step = step_of(trainer)
        self._hooks = [
            module.register_forward_hook(partial(self._look, name))
            for name, module in watched(pl_module, self.modules).items()
        ]

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Let the modules go before the backward pass, which may run a part of them again."""
        self._unhook()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log what was seen."""
        step, seen = self._step, self._seen
        self._forget()
        if step is None:
            return
        if not seen:
            self._warn(pl_module)
            return
        rows = torch.stack(list(seen.values())).tolist()
        found = {name: (low, middle, high) for name, (low, middle, high) in zip(seen, rows, strict=True)}
        keep(self.scales, found, len(self.steps), _UNSEEN)
        self.steps.append(step)
        metrics: dict[str, float] = {}
        for name, (low, middle, high) in found.items():
            label = f"act/{name}/rms"
            metrics |= {f"{label}_min": low, f"{label}_median": middle, f"{label}_max": high}
        write(trainer, metrics, step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the modules go, where the last batch was left before its end."""
        self._forget()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the medians."""
        self._forget()
        if self.figure and len(self.steps) > 1 and keeps_figures(trainer):
            log_figure(trainer, "activation_scales", draw_scales(self.steps, self.scales))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let the modules go."""
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """What was measured."""
        return {
            "steps": list(self.steps),
            "scales": {name: [list(one) for one in values] for name, values in self.scales.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.steps = list(state_dict["steps"])
        self.scales = {
            name: [(low, middle, high) for low, middle, high in values]
            for name, values in state_dict["scales"].items()
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_step": None, "_seen": {}, "_hooks": []}

    def _look(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel():
            self._seen[name] = row_scales(output.detach())

    def _warn(self, pl_module: LightningModule) -> None:
        if not self._warned:
            self._warned = True
            rank_zero_warn(
                f"ActivationScaleMonitor saw no output of a module that modules={self.modules!r} names in "
                f"{type(pl_module).__name__}; in a compiled model hooks do not run"
            )

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _forget(self) -> None:
        self._unhook()
        self._step, self._seen = None, {}


def row_scales(output: Float[Tensor, "*batch d"]) -> Float[Tensor, " three"]:
    """The smallest, the median and the largest root mean square of an output's rows.

    Args:
        output: of shape ``(..., d)``, not empty.

    Returns:
        Three numbers in float32 (float64 for such an output); NaN where a row has one.

    >>> row_scales(torch.tensor([[1.0, 1.0], [2.0, 2.0], [5.0, 5.0]]))
    tensor([1., 2., 5.])
    """
    high = torch.promote_types(output.dtype, torch.float32)
    scales = output.to(high).square().mean(dim=-1).sqrt().flatten()
    return torch.stack([scales.min(), scales.median(), scales.max()])


def draw_scales(steps: Sequence[int], scales: Mapping[str, Sequence[Scale]]) -> Figure:
    """Draw the median scale of the modules against the step, a band and its middle for each kind of module.

    Args:
        steps: the steps that were watched.
        scales: for each module its scale at each of them.

    Returns:
        The figure.
    """
    from leyden.figures import new_figure

    figure, (ax,) = new_figure(
        title="Scale of the activations, by kind of map",
        alt="Median root mean square of maps' outputs against the optimizer step, by kind of map",
    )
    draw_by_kind(figure, ax, steps, {name: [one[1] for one in values] for name, values in scales.items()})
    ax.set_yscale("log")
    ax.set_xlabel("optimizer step")
    ax.set_ylabel("rms, median over tokens")
    return figure
