"""A model of somebody's own with a plugin's layer put in, as a configuration names it."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule

from leyden.comparison.order import own_randomness
from leyden.manager import load_object


def swapped(model: LightningModule, by: str, arguments: dict[str, Any] | None = None) -> LightningModule:
    """Put a component into a model.

    What the component draws for its initial values leaves the global generators as they were, so that
    everything drawn later is what it is without the component.

    Args:
        model: the model as it is.
        by: dotted path of the function that puts the component in, the component's ``swap``.
        arguments: the component's arguments by name.

    Returns:
        What the function returned.

    Raises:
        TypeError: if that is no LightningModule.
    """
    with own_randomness():
        changed = load_object(by)(model, **(arguments or {}))
    if not isinstance(changed, LightningModule):
        raise TypeError(f"{by} must return a LightningModule, got {type(changed).__name__}")
    return changed
