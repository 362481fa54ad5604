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
        title="LK Losses: Direct Acceptance Rate Optimization for Speculative Decoding",
        authors=(
            "Alexander Samarin",
            "Sergei Krutikov",
            "Anton Shevtsov",
            "Sergei Skvortsov",
            "Filipp Fisin",
            "Alexander Golubev",
        ),
        venue="ICML 2026",
        url="https://arxiv.org/abs/2602.23881",
        summary="Losses that train a draft for speculative decoding by how often it is accepted.",
        exact=(
            "Reconstructed from the abstract and from what others tell of the losses, their gradients, the "
            "schedule and its constants; the paper's text was not at hand. Acceptance rates are exact."
        ),
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The losses, what they are made of, and what decodes with the trained drafts."""
    return (
        Component(
            kind="loss",
            path="leyden_lk_losses.LKLoss",
            summary="LK-lambda, LK-alpha and what they are compared with, for drafts of every depth.",
            supports=("ddp", "bf16", "compile"),
            example="leyden_lk_losses.trial.synchronised",
            trial="leyden_lk_losses.trial.logits",
            exempt={
                "gradients": "lambda and the target's logits are constants for the gradient, which finite "
                "differences cannot know; the plugin's tests check it with both held fixed",
            },
            search={"eta": Range(0.3, 30)},
            swap="leyden_lk_losses.module.with_loss",
        ),
        Component(
            kind="module",
            path="leyden_lk_losses.DraftTrainingModule",
            summary="Trains a draft for a frozen target, with any of the losses.",
            supports=("ddp",),
            example="leyden_lk_losses.trial.module",
            trial="leyden_lk_losses.trial.texts",
            exempt={
                "accumulation": "lambda is that of a micro-batch, as documented; the plugin's tests check "
                "accumulation with a loss whose tokens do not share one",
            },
        ),
        Component(
            kind="datamodule",
            path="leyden_lk_losses.OnPolicyDataModule",
            summary="Text that the target itself continued from prompts, sampled once and kept.",
            example="leyden_lk_losses.trial.datamodule",
        ),
        Component(
            kind="layer",
            path="leyden_lk_losses.MedusaHeads",
            summary="A draft of independent heads on the target's last hidden state.",
            supports=("ddp", "bf16", "compile"),
            example="leyden_lk_losses.trial.heads",
            trial="leyden_lk_losses.trial.states",
        ),
        Component(
            kind="layer",
            path="leyden_lk_losses.MLPSpeculator",
            summary="A recurrent draft on the target's last hidden state and the tokens since.",
            supports=("ddp", "bf16", "compile"),
            example="leyden_lk_losses.trial.recurrent",
            trial="leyden_lk_losses.trial.states",
        ),
        Component(
            kind="layer",
            path="leyden_lk_losses.TinyDraftGPT",
            summary="A small transformer with a cache: a draft that reads tokens alone, or a tiny target.",
            supports=("ddp", "bf16", "compile"),
            example="leyden_lk_losses.trial.transformer",
            trial="leyden_lk_losses.trial.tokens",
        ),
        Component(
            kind="metric",
            path="leyden_lk_losses.AcceptanceMetric",
            summary="Mean acceptance rate of each depth and the tokens of a round that they promise.",
            supports=("ddp",),
            example="leyden_lk_losses.trial.metric",
            trial="leyden_lk_losses.trial.logits",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.row_divergences",
            summary="KL(p||q) and the log of the acceptance rate of each row, with gradients in closed form.",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.expected_tokens",
            summary="Tokens of a round of speculative decoding at a constant acceptance rate.",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.expected_tokens_by_depth",
            summary="Tokens of a round whose depths have acceptance rates of their own.",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.speedup",
            summary="How many times faster speculative decoding is than plain decoding.",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.acceptance_rate",
            summary="How often a draft's token is accepted, of two sets of logits.",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.log_acceptance",
            summary="Its logarithm, exact where the rate itself underflows.",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.store_distributions",
            summary="A frozen target's distributions or hidden states, computed once and kept on disk.",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.tiny_target",
            summary="A small language model, trained once on a text that ships, for trying drafts.",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.wrap",
            summary="A model as the decoder and the training see it, with its cache.",
        ),
        Component(
            kind="function",
            path="leyden_lk_losses.bucketed",
            summary="A draft's log-probabilities of a target's likeliest tokens and of all others as one.",
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments; what does not hold is a claim as well."""
    return (
        "leyden_lk_losses.claims.OracleChain",
        "leyden_lk_losses.claims.GaussianToy",
        "leyden_lk_losses.claims_drafts.Heads",
        "leyden_lk_losses.claims_drafts.StandAlone",
        "leyden_lk_losses.claims_smollm2.SmolLM2Heads",
    )
