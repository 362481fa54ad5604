"""What the package contributes to Leyden; imports neither torch nor lightning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from leyden.hookspecs import hookimpl
from leyden.model import Component, Option

LEYDEN_API = 1


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The callbacks, and the function by which another callback reads the loss of a window."""
    return (
        Component(
            kind="callback",
            path="leyden_callbacks.LossFeed",
            summary="Hands optimizers and callbacks the loss of a step: accumulated, over ranks, unscaled.",
            supports=("ddp", "fsdp2", "scaler", "bf16"),
        ),
        Component(
            kind="callback",
            path="leyden_callbacks.GradientNorm",
            summary="Logs the global gradient norm every few steps.",
            supports=("ddp", "fsdp2", "scaler", "bf16"),
        ),
        Component(
            kind="callback",
            path="leyden_callbacks.Provenance",
            summary="Writes versions, git commit, seed and data fingerprint to the run in MLflow.",
            supports=("ddp", "fsdp2", "scaler", "bf16"),
        ),
        Component(
            kind="function",
            path="leyden_callbacks.window_losses",
            summary="The losses of the current accumulation window, for a callback with needs_loss = True.",
        ),
    )


@hookimpl
def leyden_options() -> Iterable[Option]:
    """The settings under ``[plugins.callbacks.options]``."""
    return (
        Option(
            name="gradient_norm",
            type=bool,
            default=False,
            summary="Log the global gradient norm of every tracked run.",
        ),
    )


@hookimpl
def leyden_callbacks(options: Mapping[str, Any]) -> Iterable[str]:
    """The self-gating callbacks of every Trainer."""
    paths = ["leyden_callbacks.LossFeed", "leyden_callbacks.Provenance"]
    if options.get("gradient_norm", False):
        paths.append("leyden_callbacks.gradient_norm.for_tracked_runs")
    return paths
