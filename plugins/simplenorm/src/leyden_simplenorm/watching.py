"""What the two monitors share: which modules they watch, at which steps, and how they write it down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from leyden_simplenorm.conversion import Patterns, is_map, matches
from leyden_simplenorm.layer import SimpleNormLinear

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Value = TypeVar("Value")


def watched(model: nn.Module, modules: Patterns) -> dict[str, nn.Module]:
    """The modules that patterns name.

    Args:
        model: where they are looked for.
        modules: patterns of dotted names; one with ``*`` or ``?`` stands for linear maps alone (a map with
            its norm is one), a name without for whatever module has it.

    Returns:
        The modules by name, in the model's order.
    """
    listed = [modules] if isinstance(modules, str) else list(modules)
    inner = {
        id(part)
        for layer in model.modules()
        if isinstance(layer, SimpleNormLinear)
        for part in layer.modules()
        if part is not layer
    }
    return {
        name: module
        for name, module in model.named_modules()
        if name in listed
        or (
            (isinstance(module, SimpleNormLinear) or is_map(module))
            and id(module) not in inner
            and matches(name, listed)
        )
    }


def keep(history: dict[str, list[Value]], found: Mapping[str, Value], steps: int, missing: Value) -> None:
    """Append what was measured at a step, in place.

    Args:
        history: for each module what was measured at each step before.
        found: what was measured now; modules may be missing, and others new.
        steps: how many steps there were before.
        missing: stands for what was not measured.
    """
    for name in found:
        history.setdefault(name, [missing] * steps)
    for name, values in history.items():
        values.append(found.get(name, missing))


def check_patterns(argument: str, modules: object) -> None:
    """Refuse what are no patterns.

    Args:
        argument: the argument's name.
        modules: what was given.

    Raises:
        ValueError: if it is neither a text nor a list of texts.
    """
    listed = [modules] if isinstance(modules, str) else modules
    if not isinstance(listed, Sequence) or not listed or not all(isinstance(one, str) for one in listed):
        raise ValueError(f"{argument}: expected a pattern of names, or a list of them, got {modules!r}")


def is_due(trainer: Trainer, batch_idx: int, every: int) -> bool:
    """Whether a batch is the first of an optimizer step that is watched.

    Args:
        trainer: the Trainer.
        batch_idx: the batch's number in its epoch.
        every: of so many steps one is watched.

    Returns:
        True at steps 0, ``every``, 2 ``every`` …, for the first of the batches that are accumulated.
    """
    return step_of(trainer) % every == 0 and batch_idx % trainer.accumulate_grad_batches == 0


def step_of(trainer: Trainer) -> int:
    """The number of the optimizer step that is under way, from 0."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def draw_by_kind(
    figure: Figure, ax: Axes, steps: Sequence[int], values: Mapping[str, Sequence[float]]
) -> None:
    """Draw a band and its middle for each kind of module, those of the same last name, and a legend.

    Args:
        figure: gets the legend.
        ax: is drawn on.
        steps: where the values were measured.
        values: for each module its value at each step; NaN where there was none.
    """
    from leyden.figures import place_legend, styles
    from matplotlib.lines import Line2D

    kinds: dict[str, list[Sequence[float]]] = {}
    for name, series in values.items():
        kinds.setdefault(name.rpartition(".")[2], []).append(series)
    looks = styles(kinds)
    for kind, modules in kinds.items():
        columns = [sorted(filter(math.isfinite, one)) or [math.nan] for one in zip(*modules, strict=True)]
        color = looks[kind].color
        ax.fill_between(
            steps, [one[0] for one in columns], [one[-1] for one in columns], color=color, alpha=0.12, lw=0
        )
        ax.plot(steps, [one[len(one) // 2] for one in columns], color=color, ls=looks[kind].line, lw=1.8)
    lines = [Line2D([], [], color=style.color, ls=style.line, lw=1.8) for style in looks.values()]
    place_legend(figure, lines, list(looks))


def write(trainer: Trainer, metrics: Mapping[str, float], step: int) -> None:
    """Log numbers to every logger.

    Args:
        trainer: whose loggers.
        metrics: the numbers.
        step: their step.
    """
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=step)
