"""What the plugin contributes to Leyden; imports neither torch nor lightning."""

from __future__ import annotations

from leyden.hookspecs import hookimpl
from leyden.model import Paper

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
            "Update rules, momentum form and initialisation follow the authors' released code; the constants of "
            "the bounds and the weight decay of the momentum form are reconstructed."
        ),
    )
