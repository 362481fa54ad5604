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
        title="DisjunctiveNet: Neural Symbolic Learning via Differentiable Convexified Optimization Layers",
        authors=("Shraman Pal", "Can Li"),
        venue="ICML 2026",
        url="https://arxiv.org/abs/2605.30456",
        summary="Outputs that satisfy every if-then, either-or and integer rule exactly, with gradients.",
        code="https://github.com/li-group/DisjunctiveNet.jl",
        exact=(
            "Projection, relaxations and training recipe follow the paper as abstract, code and a note on it "
            "tell of it; the batched solver, the order of expansion and the data are reconstructed."
        ),
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The layer, what measures and penalizes violations, the module, the callback and the data."""
    return (
        Component(
            kind="layer",
            path="leyden_milp_layer.DisjunctiveProjection",
            summary="Projects outputs onto the nearest point that satisfies every active rule.",
            supports=("bf16", "compile"),
            example="leyden_milp_layer.trial.layer",
            trial="leyden_milp_layer.trial.outputs",
            swap="leyden_milp_layer.module.constrained",
        ),
        Component(
            kind="loss",
            path="leyden_milp_layer.RulePenaltyLoss",
            summary="A penalty on violations, the soft way that the layer is compared with.",
            supports=("ddp", "bf16", "compile"),
            example="leyden_milp_layer.trial.penalty",
            trial="leyden_milp_layer.trial.outputs",
            search={"rho": Range(0.1, 10)},
        ),
        Component(
            kind="metric",
            path="leyden_milp_layer.RuleSatisfaction",
            summary="The share of samples that satisfy every active rule, and of each rule.",
            example="leyden_milp_layer.trial.metric",
            trial="leyden_milp_layer.trial.outputs",
        ),
        Component(
            kind="module",
            path="leyden_milp_layer.RuleConstrainedModule",
            summary="Trains a network alone, then through the projection.",
            supports=("ddp", "bf16"),
            example="leyden_milp_layer.trial.module",
            trial="leyden_milp_layer.trial.samples",
        ),
        Component(
            kind="callback",
            path="leyden_milp_layer.RuleReport",
            summary="Tells what each rule does: activity, satisfaction, corrections, cost in accuracy.",
            supports=("ddp", "scaler", "bf16"),
            trial="leyden_milp_layer.trial.watched",
        ),
        Component(
            kind="datamodule",
            path="leyden_milp_layer.CoolingControlDataModule",
            summary="Cooling control of four zones, generated, with seven rules.",
        ),
        Component(
            kind="datamodule",
            path="leyden_milp_layer.WineRulesDataModule",
            summary="Wine with two training rows of each cultivar, and measurements for rules.",
        ),
        Component(
            kind="function",
            path="leyden_milp_layer.certify",
            summary="The certificate of a dataset: which rules hold, as a table and a picture.",
        ),
        Component(
            kind="function",
            path="leyden_milp_layer.load_rules",
            summary="Rules from a YAML file, with errors that name the line.",
        ),
        Component(
            kind="function",
            path="leyden_milp_layer.violations",
            summary="How far outputs are from each rule, without a solver.",
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments, negative results included."""
    return tuple(f"leyden_milp_layer.claims.{name}" for name in ("Exactness", "Cooling", "Expansion", "Wine"))
