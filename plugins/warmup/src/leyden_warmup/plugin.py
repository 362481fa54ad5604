"""What the plugin contributes to Leyden; imports neither torch nor lightning."""

from __future__ import annotations

from collections.abc import Iterable

from leyden.hookspecs import hookimpl
from leyden.model import Component, Paper, Range

LEYDEN_API = 1


@hookimpl
def leyden_paper() -> Paper:
    """The paper."""
    return Paper(
        title="Why Do We Need Warm-up? A Theoretical Perspective",
        authors=("Foivos Alimisis", "Rustem Islamov", "Aurelien Lucchi"),
        venue="ICML 2026",
        url="https://arxiv.org/abs/2510.03164",
        summary="A warm-up driven by the loss: one parameter in the place of a length.",
        exact=(
            "The step size, the form of both complexity bounds and the curvature proxy are the paper's; the "
            "schedule with one parameter and the constants of the bounds are reconstructed."
        ),
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The warm-up as callback and as scheduler, the probe of curvature, and the mathematics as functions."""
    return (
        Component(
            kind="callback",
            path="leyden_warmup.LossWarmup",
            summary="Multiplies the learning rate by a function of the loss, beside any scheduler.",
            supports=("ddp", "fsdp2", "scaler", "bf16", "compile"),
            search={"C": Range(0.1, 10), "form": ("smooth", "clipped")},
            exempt={
                "accumulation": "the kit shrinks the loss of a batch to stand for a short last window, and "
                "the warm-up reads the loss; own tests compare whole windows and a short one, see Limits"
            },
        ),
        Component(
            kind="callback",
            path="leyden_warmup.SmoothnessProbe",
            summary="Measures curvature beside the loss, fits H0 and H1 and draws the line.",
            supports=("ddp", "scaler", "bf16", "compile"),
            example="leyden_warmup.trial.probe",
        ),
        Component(
            kind="lr_scheduler",
            path="leyden_warmup.LossWarmupLR",
            summary="The warm-up for loops of one's own: scheduler.step(loss) before optimizer.step().",
            search={"C": Range(0.1, 10), "form": ("smooth", "clipped")},
            exempt={
                "accumulation": "it knows the loss that its step is given, which the kit takes of one batch"
            },
        ),
        Component(
            kind="function",
            path="leyden_warmup.warmup_multiplier",
            summary="The multiplier of the learning rate at a loss.",
        ),
        Component(
            kind="function",
            path="leyden_warmup.h0h1_step_size",
            summary="The step size of gradient descent on (H0, H1)-smooth functions.",
        ),
        Component(
            kind="function",
            path="leyden_warmup.h0h1_bound",
            summary="How many such steps a convex function takes at most.",
        ),
        Component(
            kind="function",
            path="leyden_warmup.pl_bound",
            summary="How many such steps a function with a PL inequality takes at most.",
        ),
        Component(
            kind="function",
            path="leyden_warmup.fit_h0h1",
            summary="H0 and H1 from measured losses and curvatures.",
        ),
        Component(
            kind="function",
            path="leyden_warmup.secant_curvature",
            summary="Curvature along a step, from two gradients.",
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments, negative results included."""
    names = ("Descent", "Logistic", "DigitsRange", "Language", "Curvature")
    return tuple(f"leyden_warmup.claims.{name}" for name in names)
