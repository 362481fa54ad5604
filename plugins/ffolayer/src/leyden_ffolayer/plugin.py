"""What the plugin contributes to Leyden; imports neither torch nor lightning."""

from __future__ import annotations

from collections.abc import Iterable

from leyden.hookspecs import hookimpl
from leyden.model import Component, Paper

LEYDEN_API = 1


@hookimpl
def leyden_paper() -> Paper:
    """The paper."""
    return Paper(
        title="A Fully First-Order Layer for Differentiable Optimization",
        authors=("Zihao Zhao", "Kai-Chia Mo", "Shing-Hei Ho", "Brandon Amos", "Kai Wang"),
        venue="ICML 2026",
        url="https://arxiv.org/abs/2512.02494",
        summary="Convex programs as layers: a drop-in for CvxpyLayer, with right gradients at less cost.",
        code="https://github.com/GT-KOALA/FFOLayer",
        exact=(
            "The hypergradient follows the paper's formula (Algorithm 1 and its limit), not the released "
            "code, which drops terms of it; solvers, polishing and the treatment of cones are reconstructed."
        ),
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The layers, what trains with them, and the mathematics as functions."""
    home = "leyden_ffolayer"
    return (
        Component(
            kind="layer",
            path=f"{home}.FFOLayer",
            summary="A cvxpy problem as a layer: change the import of CvxpyLayer, keep the program.",
            supports=("bf16", "compile"),
            example=f"{home}.trial.cvxpy_layer",
            trial=f"{home}.trial.least_squares_rows",
            swap=f"{home}.swap.replace_cvxpy_layers",
        ),
        Component(
            kind="layer",
            path=f"{home}.FFOQPLayer",
            summary="A batch of quadratic programs as a layer, arguments as in qpth.",
            supports=("bf16", "compile"),
            trial=f"{home}.trial.qp_rows",
        ),
        Component(
            kind="module",
            path=f"{home}.DecisionFocusedModule",
            summary="A predictor of costs, trained by what a program decides with them.",
            supports=("ddp",),
            example=f"{home}.trial.decision_module",
            trial=f"{home}.trial.decision_rows",
        ),
        Component(
            kind="callback",
            path=f"{home}.HypergradientMonitor",
            summary="Compares a layer's gradient with finite differences while it trains.",
            supports=("ddp",),
            trial=f"{home}.trial.watched_module",
        ),
        Component(
            kind="datamodule",
            path=f"{home}.SyntheticDFLDataModule",
            summary="Generated features and the costs that they tell of.",
        ),
        Component(
            kind="datamodule",
            path=f"{home}.Triage",
            summary="Groups of patients of the diabetes table, of whom some can be treated.",
        ),
        Component(
            kind="function",
            path=f"{home}.ghost_hypergradient",
            summary="The paper's algorithm with a finite perturbation, for functions of torch.",
        ),
        Component(
            kind="function",
            path=f"{home}.gradient_error",
            summary="How far a layer's gradient is from finite differences.",
        ),
        Component(
            kind="function",
            path=f"{home}.regret",
            summary="What deciding by predicted costs loses.",
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments, negative results included."""
    names = ("Gradients", "Rate", "LearnConstraints", "Decisions", "Triage")
    return tuple(f"leyden_ffolayer.claims.{name}" for name in names)
