"""What the plugin contributes to Leyden; imports neither torch nor lightning."""

from __future__ import annotations

from collections.abc import Iterable

from leyden.hookspecs import hookimpl
from leyden.model import Capability, Component, Paper, Range

LEYDEN_API = 1


@hookimpl
def leyden_paper() -> Paper:
    """The paper."""
    return Paper(
        title=(
            "Safeguarded Stochastic Polyak Step Sizes for Non-smooth Optimization: "
            "Robust Performance Without Small (Sub)Gradients"
        ),
        authors=("Dimitris Oikonomou", "Nicolas Loizou"),
        venue="ICML 2026",
        url="https://arxiv.org/abs/2512.02342",
        summary="Polyak step sizes with one safeguard constant: no learning rate to tune, no blow-up.",
        code="https://github.com/dimitris-oik/sps_safe",
        exact=(
            "Update rules, momentum form and initialisation follow the authors' released code; the constants "
            "of the bounds and the weight decay of the momentum form are reconstructed."
        ),
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The two optimizers, what they are compared with, the monitor, and the step sizes as functions."""
    everywhere: tuple[Capability, ...] = ("ddp", "fsdp2", "scaler", "bf16", "compile")
    return (
        Component(
            kind="optimizer",
            path="leyden_sps_safe.SPSSafe",
            summary="SGD whose step size is the loss over the squared gradient norm, floored by M.",
            supports=everywhere,
            search={"M": Range(0.001, 10)},
        ),
        Component(
            kind="optimizer",
            path="leyden_sps_safe.IMASPSSafe",
            summary="The same with momentum, as an average of iterates.",
            supports=everywhere,
            search={"M": Range(0.001, 10), "lambd": (1.0, 9.0)},
        ),
        Component(
            kind="callback",
            path="leyden_sps_safe.SPSMonitor",
            summary="Logs step size, squared gradient norm and how often the safeguard acts.",
            supports=everywhere,
        ),
        Component(
            kind="function",
            path="leyden_sps_safe.polyak_step_size",
            summary="The step size of SPSSafe.",
        ),
        Component(
            kind="function",
            path="leyden_sps_safe.momentum_step_size",
            summary="The step size of IMASPSSafe.",
        ),
        Component(
            kind="function",
            path="leyden_sps_safe.clipped_step_size",
            summary="The step size of SPSSafe, read as gradient clipping.",
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments, negative results included."""
    return tuple(
        f"leyden_sps_safe.claims.{name}" for name in ("Digits", "NoisyDigits", "SigmoidMLP", "Convex")
    )


@hookimpl
def leyden_callbacks() -> Iterable[str]:
    """The monitor, which acts where an optimizer of this package trains under a logger."""
    return ("leyden_sps_safe.SPSMonitor",)
