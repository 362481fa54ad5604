"""What the plugin contributes to Leyden; imports neither torch nor lightning."""

from __future__ import annotations

from collections.abc import Iterable

from leyden.hookspecs import hookimpl
from leyden.model import Component, Paper, Range

LEYDEN_API = 1

_FUNCTIONS = {
    "complete": "Completes an undersampled signal of few off-grid frequencies; an array in, the answer out.",
    "esprit": "Frequencies, damping and amplitudes from a factor.",
    "estimate_rank": "The number of lines, from samples that are held out.",
    "spectral_init": "The spectral start of the iteration.",
    "takagi": "Takagi factorization of a small complex symmetric matrix.",
    "spectral_signal": "Draws a signal of few lines and its samples.",
    "relative_error": "Relative error of a signal.",
    "match_frequencies": "Distances between frequencies on the circle, optimally assigned.",
    "fiht": "Fast iterative hard thresholding, for comparison.",
    "shgd": "Symmetric Hankel gradient descent, for comparison.",
    "pgd": "Projected gradient descent on two factors, for comparison.",
    "hsnld": "Scaled gradient descent on two factors, for comparison.",
    "ist": "Iterative soft thresholding on the grid, for comparison.",
    "emac": "Nuclear-norm completion by cvxpy, for comparison.",
}


@hookimpl
def leyden_paper() -> Paper:
    """The paper."""
    return Paper(
        title="Fast Spectrally Sparse Signal Reconstruction via Jacobi-Preconditioned Gradient Descent",
        authors=("Jian-Feng Cai", "Xueyang Quan", "Yang Wang", "Jiaxi Ying"),
        venue="ICML 2026",
        url="https://openreview.net/forum?id=b4HR1jhoRV",
        summary="Recovers a signal of few off-grid frequencies from some of its samples, in milliseconds.",
        exact=(
            "Reconstructed from the abstract: it fixes complex-symmetric factors, a Jacobi preconditioner "
            "and the generator; two preconditioners fit it and both are offered. Step sizes, stopping, rank "
            "and the treatment of outliers are ours or the predecessors'."
        ),
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The module, the optimizer, the data, the solver as a layer, and functions."""
    return (
        Component(
            kind="module",
            path="leyden_hankel.HankelCompletionModule",
            summary="The solver under a Trainer: an iteration a training step, tracked, saved, resumed.",
            example="leyden_hankel.trial.module",
            trial="leyden_hankel.trial.signals",
        ),
        Component(
            kind="optimizer",
            path="leyden_hankel.JacobiPGD",
            summary="Preconditioned gradient descent on factors Z of any loss of Z Z^T.",
            supports=("ddp", "scaler", "bf16", "compile"),
            example="leyden_hankel.trial.optimizer",
            trial="leyden_hankel.trial.entries",
            search={"lr": Range(0.01, 10), "preconditioner": ("tangent", "block_jacobi")},
        ),
        Component(
            kind="callback",
            path="leyden_hankel.JacobiGuard",
            summary="Refuses what would make another method of JacobiPGD.",
            supports=("ddp", "fsdp2", "scaler", "bf16", "compile"),
        ),
        Component(
            kind="layer",
            path="leyden_hankel.HankelCompletion",
            summary="The solver for batches of signals, without parameters.",
            example="leyden_hankel.trial.solver",
            trial="leyden_hankel.trial.observed",
        ),
        Component(
            kind="datamodule",
            path="leyden_hankel.SpectralSignalDataModule",
            summary="Signals of few lines, drawn as the field draws them, with their truth.",
            example="leyden_hankel.trial.datamodule",
        ),
        Component(
            kind="datamodule",
            path="leyden_hankel.SignalFile",
            summary="Signals of your own, from a file of numpy arrays.",
            example="leyden_hankel.trial.file",
        ),
        *(
            Component(kind="function", path=f"leyden_hankel.{name}", summary=summary)
            for name, summary in _FUNCTIONS.items()
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments, negative results included."""
    names = ("Conditioning", "FewSamples", "Noise", "Outliers", "Field", "Speed", "Batches")
    return tuple(f"leyden_hankel.claims.{name}" for name in names)


@hookimpl
def leyden_callbacks() -> Iterable[str]:
    """The guard of `JacobiPGD`."""
    return ("leyden_hankel.JacobiGuard",)
