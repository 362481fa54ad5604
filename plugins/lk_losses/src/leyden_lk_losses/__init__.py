"""LK losses: drafts of speculative decoding trained by their acceptance rate (Samarin et al., 2026)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_lk_losses.acceptance import acceptance_rate, log_acceptance
    from leyden_lk_losses.data import OnPolicyDataModule
    from leyden_lk_losses.decoder import GenerationResult, SpeculativeDecoder
    from leyden_lk_losses.distributions import StoredDistributions, TargetBatch, store_distributions
    from leyden_lk_losses.drafts import MedusaHeads, MLPSpeculator, TinyDraftGPT
    from leyden_lk_losses.expected import expected_tokens, expected_tokens_by_depth, speedup
    from leyden_lk_losses.huggingface import save_draft, to_gpt2
    from leyden_lk_losses.kernel import Divergences, row_divergences
    from leyden_lk_losses.loss import LKLoss, LKOutput
    from leyden_lk_losses.metric import AcceptanceMetric
    from leyden_lk_losses.models import wrap
    from leyden_lk_losses.module import DraftTrainingModule
    from leyden_lk_losses.outcomes import bucketed, with_rest
    from leyden_lk_losses.targets import tiny_target

_HOMES = {
    "leyden_lk_losses.acceptance": ("acceptance_rate", "log_acceptance"),
    "leyden_lk_losses.expected": ("expected_tokens", "expected_tokens_by_depth", "speedup"),
    "leyden_lk_losses.huggingface": ("save_draft", "to_gpt2"),
    "leyden_lk_losses.kernel": ("Divergences", "row_divergences"),
    "leyden_lk_losses.loss": ("LKLoss", "LKOutput"),
    "leyden_lk_losses.metric": ("AcceptanceMetric",),
    "leyden_lk_losses.data": ("OnPolicyDataModule",),
    "leyden_lk_losses.decoder": ("GenerationResult", "SpeculativeDecoder"),
    "leyden_lk_losses.distributions": ("StoredDistributions", "TargetBatch", "store_distributions"),
    "leyden_lk_losses.drafts": ("MLPSpeculator", "MedusaHeads", "TinyDraftGPT"),
    "leyden_lk_losses.models": ("wrap",),
    "leyden_lk_losses.module": ("DraftTrainingModule",),
    "leyden_lk_losses.targets": ("tiny_target",),
    "leyden_lk_losses.outcomes": ("bucketed", "with_rest"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the paper's methods come first
    "LKLoss",
    "LKOutput",
    "AcceptanceMetric",
    "acceptance_rate",
    "log_acceptance",
    "row_divergences",
    "Divergences",
    "expected_tokens",
    "expected_tokens_by_depth",
    "speedup",
    "DraftTrainingModule",
    "OnPolicyDataModule",
    "SpeculativeDecoder",
    "GenerationResult",
    "MedusaHeads",
    "MLPSpeculator",
    "TinyDraftGPT",
    "wrap",
    "tiny_target",
    "store_distributions",
    "StoredDistributions",
    "TargetBatch",
    "bucketed",
    "with_rest",
    "save_draft",
    "to_gpt2",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_lk_losses' has no attribute '{name}'")
