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
        title="Replace: the full title of the paper",
        authors=("Replace: First Author", "Second Author"),
        venue="Replace: where and when it appeared",
        url="https://example.org/replace-by-the-address-of-the-paper",
        summary="Replace: in one line, what a user gets.",
        exact="Replace: what follows the text exactly. As it stands it is a placeholder of no paper.",
    )


@hookimpl
def leyden_components() -> Iterable[Component]:
    """The LightningModule, and its mathematics as a function."""
    return (
        Component(
            kind="module",
            path="leyden_simplenorm.Simplenorm",
            summary="A classifier that is penalized for confidence, a placeholder for the paper's model.",
            supports=("ddp", "compile"),
            example="leyden_simplenorm.trial.small",
            search={"penalty": Range(0.01, 1.0)},
        ),
        Component(
            kind="function",
            path="leyden_simplenorm.penalized_cross_entropy",
            summary="Cross-entropy minus a multiple of the entropy of the prediction.",
        ),
    )


@hookimpl
def leyden_claims() -> Iterable[str]:
    """The experiments; what does not hold is a claim as well."""
    return ("leyden_simplenorm.claims.Digits",)
