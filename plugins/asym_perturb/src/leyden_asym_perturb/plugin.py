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
        title="Asymmetric Perturbation in Solving Bilinear Saddle-Point Optimization",
        authors=("Kenshi Abe", "Mitsuki Sakamoto", "Kaito Ariu", "Atsushi Iwasaki"),
        venue="ICML 2026",
        url="https://arxiv.org/abs/2506.05747",
        summary="Equilibria of zero-sum games as a last iterate, certified, with nothing to tune.",
        code="https://github.com/CyberAgentAILab/asymmetrically-perturbed-gda",
        exact=(
            "Update rules, order and games follow the authors' code; step sizes, the end of a round, bounds "
            "and thresholds are derived, and the proofs were not available."
        ),
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The solver under a Trainer, its data and its monitor, the optimizer, and the functions."""
    return (
        Component(
            kind="module",
            path="leyden_asym_perturb.AsymPGameModule",
            summary="Solves a game under a Trainer: tracked, checkpointed, resumed bit for bit.",
            supports=("ddp",),
            example="leyden_asym_perturb.trial.module",
            trial="leyden_asym_perturb.trial.iterations",
        ),
        Component(
            kind="datamodule",
            path="leyden_asym_perturb.IterationDataModule",
            summary="The numbers of a solver's training steps.",
        ),
        Component(
            kind="callback",
            path="leyden_asym_perturb.NashConvCallback",
            summary="NashConv over the run, the rounds, the path over the simplex, the strategies as a file.",
            supports=("ddp",),
            trial="leyden_asym_perturb.trial.watched",
        ),
        Component(
            kind="optimizer",
            path="leyden_asym_perturb.AsymPGDA",
            summary="Alternating descent-ascent with one perturbed side, for any min-max model.",
            supports=("ddp", "bf16", "compile"),
            search={"eta": Range(0.001, 1.0), "mu": Range(0.001, 4.0)},
        ),
        Component(
            kind="function",
            path="leyden_asym_perturb.asymp_solve",
            summary="Solves a game, or a batch of matrix games, to a certified accuracy.",
        ),
        Component(
            kind="function",
            path="leyden_asym_perturb.asymp_gda",
            summary="One process with a fixed perturbation of one player.",
        ),
        Component(
            kind="function",
            path="leyden_asym_perturb.invariance_threshold",
            summary="The largest perturbation that leaves the equilibrium strategy as it is.",
        ),
        Component(
            kind="function",
            path="leyden_asym_perturb.solve_matrix_game_lp",
            summary="The exact solution of a matrix game by HiGHS.",
        ),
        Component(
            kind="function",
            path="leyden_asym_perturb.nash_conv",
            summary="What both players could gain together by best responses.",
        ),
        Component(
            kind="function",
            path="leyden_asym_perturb.perturbed_gap",
            summary="The duality gap of a perturbed game.",
        ),
        Component(
            kind="function",
            path="leyden_asym_perturb.project_simplex",
            summary="The nearest point of the probability simplex.",
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments, negative results included."""
    names = ("LastIterate", "Impossibility", "ParameterFree", "Noise", "Trees", "Leduc", "Thresholds")
    return tuple(f"leyden_asym_perturb.claims.{name}" for name in names)
