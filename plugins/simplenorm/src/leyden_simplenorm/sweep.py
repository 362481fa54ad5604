"""How far the learning rate can be off: one training for each, a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lightning
from leyden.arguments import check_at_least
from leyden_callbacks import log_figure, loss_scale
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Tolerance:
    """How a training with one learning rate went.

    Attributes:
        lr: the learning rate.
        final_loss: the validation loss at the end (of data without such a split the mean training loss of the
            last tenth of the batches); NaN if training ended in a loss that is not finite.
        max_spike: by how much a batch's training loss rose above the lowest mean of a twentieth of the
            batches before.
        diverged: whether a loss was not finite, or the final loss is not below the first training loss.
        steps: optimizer steps that were taken.
    """

    lr: float
    final_loss: float
    max_spike: float
    diverged: bool
    steps: int


def lr_tolerance_sweep(
    module_factory: Callable[[float], LightningModule],
    datamodule: LightningDataModule,
    lrs: Sequence[float],
    steps: int = 200,
    seed: int = 0,
    *,
    metric: str = "val/loss",
    logger: Logger | None = None,
    trainer: Mapping[str, Any] | None = None,
) -> tuple[Tolerance, ...]:
    """Train once for each learning rate, all from the same seed, Section 5 (tolerance) of Chen et al. (2026).

    Args:
        module_factory: makes the module of a learning rate.
        datamodule: its data.
        lrs: the learning rates, above 0.
        steps: optimizer steps of a training.
        seed: of the initial weights and of whatever draws from torch's generator.
        metric: the validation metric that counts, as the module logs it.
        logger: keeps the picture, ``lr_tolerance.png``, and the table's numbers; None: nobody does.
        trainer: further arguments of each Trainer; gradients are clipped to a norm of 1 unless it says
            otherwise.

    Returns:
        A row for each learning rate, in their order.

    Raises:
        ValueError: if ``lrs`` is empty or has one that is not above 0, ``steps`` is less than 2, there is no
            training data, or the module does not log ``metric``.
    """
    check_at_least("steps", steps, 2)
    if not lrs or not all(isinstance(lr, int | float) and 0 < lr < math.inf for lr in lrs):
        raise ValueError(f"lrs: expected finite numbers above 0, got {list(lrs)!r}")
    rows = tuple(_train(module_factory, datamodule, lr, steps, seed, metric, trainer or {}) for lr in lrs)
    if logger is not None:
        for place, row in enumerate(rows):
            numbers = {"lr": row.lr, "final_loss": row.final_loss, "max_spike": row.max_spike}
            logger.log_metrics({f"lr_tolerance/{key}": value for key, value in numbers.items()}, step=place)
        keeper = Trainer(**{**_QUIET, "logger": logger})
        log_figure(keeper, "lr_tolerance", draw_tolerance({"": rows}))
    return rows


def draw_tolerance(sweeps: Mapping[str, Sequence[Tolerance]]) -> Figure:
    """Draw final loss and spikes against the learning rate.

    Args:
        sweeps: the rows of `lr_tolerance_sweep` of one or several models, by name.

    Returns:
        The figure; a training that diverged is a cross at the top.
    """
    from leyden.figures import new_figure, place_legend, styles
    from matplotlib.lines import Line2D

    figure, axes = new_figure(
        2,
        title="How far the learning rate can be off",
        alt="Final loss and largest spike of the training loss against the learning rate",
        share_y=False,
    )
    looks = styles(sweeps)
    for ax, name, label in zip(
        axes, ("final_loss", "max_spike"), ("final loss", "largest spike of the training loss"), strict=True
    ):
        for model, rows in sweeps.items():
            style = looks[model]
            good = [(row.lr, getattr(row, name)) for row in rows if math.isfinite(getattr(row, name))]
            ax.plot(
                [lr for lr, _ in good], [value for _, value in good], color=style.color, ls=style.line,
                marker=style.marker,
            )  # fmt: skip
            for row in rows:
                if row.diverged:
                    ax.plot(row.lr, 0.96, transform=ax.get_xaxis_transform(), color=style.color, marker="x",
                            ms=8, mew=2)  # fmt: skip
        ax.set_xscale("log")
        ax.set_xlabel("learning rate")
        ax.set_ylabel(label)
    if any(sweeps):
        lines = [Line2D([], [], color=one.color, ls=one.line, marker=one.marker) for one in looks.values()]
        place_legend(figure, lines, list(looks))
    return figure


def largest_spike(losses: Sequence[float]) -> float:
    """By how much a loss rose above the lowest mean of a twentieth of the losses before it; not in the paper.

    Args:
        losses: the losses of a training, in order.

    Returns:
        At least 0; 0 for a training too short to tell.

    >>> largest_spike([3.0, 2.0, 1.0, 2.5, 1.0])
    1.5
    """
    width = max(len(losses) // 20, 1)
    lowest, spike = math.inf, 0.0
    for place in range(width, len(losses)):
        lowest = min(lowest, math.fsum(losses[place - width : place]) / width)
        spike = max(spike, losses[place] - lowest)
    return spike


class TrainingLosses(Callback):
    """Keeps the training losses."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Keep the loss as the module gave it, without waiting for it."""
        scale = loss_scale(trainer, loss.device)
        own = loss.detach() if scale is None else loss.detach() / scale
        self._losses.append(own * trainer.accumulate_grad_batches)

    def numbers(self) -> list[float]:
        """The losses, in order."""
        return [float(loss) for loss in self._losses]


_QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def _train(
    module_factory: Callable[[float], LightningModule],
    datamodule: LightningDataModule,
    lr: float,
    steps: int,
    seed: int,
    metric: str,
    arguments: Mapping[str, Any],
) -> Tolerance:
    lightning.seed_everything(seed, verbose=False)
    module = module_factory(lr)
    record = TrainingLosses()
    given = dict(arguments)
    callbacks = [record, *given.pop("callbacks", [])]
    settings = {**_QUIET, "max_steps": steps, "gradient_clip_val": 1.0, "limit_val_batches": 0, **given}
    trainer = Trainer(**settings, callbacks=callbacks)
    failed = False
    try:
        trainer.fit(module, datamodule=datamodule)
    except FloatingPointError:
        failed = True
    losses = record.numbers()
    if not losses:
        raise ValueError("datamodule: expected training data of at least one batch, got none")
    failed = failed or not all(map(math.isfinite, losses))
    final = math.nan if failed else _final_loss(module, datamodule, losses, metric, given)
    spike = math.inf if failed else largest_spike(losses)
    diverged = failed or not final < losses[0]
    return Tolerance(lr, final, spike, diverged, trainer.global_step)


def _final_loss(
    module: LightningModule,
    datamodule: LightningDataModule,
    losses: Sequence[float],
    metric: str,
    arguments: Mapping[str, Any],
) -> float:
    last = losses[-max(len(losses) // 10, 1) :]
    # The length of a loader is not asked for: data that comes as a stream has none.
    loaders = datamodule.val_dataloader() if is_overridden("val_dataloader", datamodule) else None
    if loaders is None or loaders == []:
        return math.fsum(last) / len(last)
    measured = Trainer(**{**_QUIET, **arguments}).validate(module, datamodule=datamodule, verbose=False)
    found = {name: value for one in measured for name, value in one.items()}
    if metric not in found:
        raise ValueError(
            f"metric: expected one that the module logs, got {metric!r}; it logs {sorted(found)}"
        )
    return found[metric]
