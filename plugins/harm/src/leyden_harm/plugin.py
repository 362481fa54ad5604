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
        title="Reducing Per-Sample Harm in Stochastic Optimization",
        authors=("Apostolos Avranas",),
        venue="ICML 2026",
        url="https://arxiv.org/abs/2607.16261",
        summary="Weights a batch's samples so that the optimizer's step makes fewer of them worse.",
        exact=(
            "Reconstructed from the abstract: it fixes the aim, the reduction to the batch's size and the"
            " last layer; "
            "objective, metric, solver and defaults are ours."
        ),
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The two callbacks, and the mathematics as functions."""
    functions = (
        ("last_layer_gram", "Inner products of a linear layer's per-sample gradients."),
        ("harm_margins", "By how much an update improves each sample, to first order."),
        ("solve_box_qp", "The box quadratic program of the harm penalty, batched."),
        ("sample_weights", "The samples' weights that bring an update about."),
        ("reweight", "Weights under which an update harms fewer samples of its batch."),
        ("affine_update", "The next update of SGD, Adam or AdamW as an affine function of the gradient."),
        ("layer_update", "The same of a layer's weight and bias together."),
        ("total_harm", "The total harm of margins."),
        ("harm_of_losses", "Harm from the losses of samples before and after a step."),
    )
    return (
        Component(
            kind="callback",
            path="leyden_harm.HarmReduction",
            summary="Weights the samples of a batch so that its step makes fewer of them worse.",
            supports=("ddp", "fsdp2", "scaler", "bf16"),
            example="leyden_harm.trial.joint_reduction",
            trial="leyden_harm.trial.with_momentum",
            exempt={
                "accumulation": "each micro-batch is balanced when it is backpropagated, before the others"
                " of its "
                "window are known; see Limits"
            },
            search={"max_upweight": Range(0.25, 16)},
        ),
        Component(
            kind="callback",
            path="leyden_harm.HarmProbe",
            summary="Measures how many samples of its own batch a step makes worse; changes nothing.",
            supports=("ddp", "fsdp2", "scaler", "bf16"),
            example="leyden_harm.trial.frequent_probe",
            trial="leyden_harm.trial.classifier",
        ),
        *(
            Component(kind="function", path=f"leyden_harm.{name}", summary=summary)
            for name, summary in functions
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments, a negative result among them."""
    return tuple(
        f"leyden_harm.claims.{name}" for name in ("TrueHarm", "NoisyLabels", "CleanLabels", "Solver")
    )
