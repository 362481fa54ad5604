"""How often drafts are accepted, gathered over batches and processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torchmetrics import Metric

from leyden_lk_losses.loss import LKLoss

_STATES = {"alpha_sum": True, "alpha_count": True, "tau_sum": False, "tau_count": False}
"""The sums and counts, and whether there is one for each depth."""


class AcceptanceMetric(Metric):
    """Mean acceptance rate of each depth, and the tokens of a round that they promise.

    Section 3 of Samarin et al. (2026). Both are means over tokens: of α = Σ min(p, q) at each depth, and of
    1 + Σ_j Π_{i≤j} α_i over positions. The second is an estimate from the given contexts; what a decoder
    counts in its own may differ.

    Args:
        depths: how many depths the draft has.
        temperature: divides both logits, above 0.
        draft_vocab: the ids of the draft's tokens, where it has fewer than the target.
        chunk_size: how many rows are processed at a time; None: as many as suit the cache.
        **kwargs: what `torchmetrics.Metric` takes.

    Raises:
        ValueError: if ``depths`` is below 1, or another argument is out of its range.

    >>> metric = AcceptanceMetric(depths=1)
    >>> metric.update(torch.tensor([[[0.9, 0.1]]]).log(), torch.tensor([[[0.5, 0.5]]]).log())
    >>> metric.compute()
    {'alpha': tensor(0.6000), 'tau': tensor(1.6000)}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    alpha_sum: Tensor
    alpha_count: Tensor
    tau_sum: Tensor
    tau_count: Tensor

    def __init__(
        self,
        depths: int = 1,
        *,
        temperature: float = 1.0,
        draft_vocab: Tensor | Sequence[int] | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if depths < 1:
            raise ValueError(f"depths: expected at least 1, got {depths!r}")
        self.depths = depths
        self._measure = LKLoss("kl", temperature=temperature, draft_vocab=draft_vocab, chunk_size=chunk_size)
        for name, shape in _STATES.items():
            size = (depths,) if shape else ()
            self.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")

    def update(
        self,
        draft_logits: Float[Tensor, "batch *depths time draft_vocab"],
        target_logits: Float[Tensor, "batch *depths time vocab"],
        mask: Bool[Tensor, "batch ..."] | None = None,
    ) -> None:
        """Add a batch; shapes, mask and errors are those of `leyden_lk_losses.LKLoss.forward`."""
        with torch.no_grad():
            found = self._measure(draft_logits, target_logits, mask)
        counts = _counts(draft_logits, mask)
        if len(counts) != self.depths:
            raise ValueError(f"draft_logits: expected {self.depths} depths, got {len(counts)}")
        self.alpha_sum += torch.where(counts > 0, found.alpha.double() * counts, 0.0)
        self.alpha_count += counts
        self.tau_sum += torch.where(counts[0] > 0, found.tau_estimate.double() * counts[0], 0.0)
        self.tau_count += counts[0]

    def compute(self) -> dict[str, Tensor]:
        """The mean rate of each depth and the estimate of tokens a round; NaN where nothing counted.

        Returns:
            ``alpha``, (depths,), which torchmetrics makes a scalar where there is one depth, and ``tau``, a
            scalar; both in float32.
        """
        return {
            "alpha": (self.alpha_sum / self.alpha_count).float(),
            "tau": (self.tau_sum / self.tau_count).float(),
        }


def _counts(draft_logits: Tensor, mask: Tensor | None) -> Tensor:
    """How many tokens of each depth count."""
    batch, *depths, time = draft_logits.shape[:-1]
    shape = (batch, depths[0] if depths else 1, time)
    if mask is None:
        return torch.full((shape[1],), batch * time, dtype=torch.float64, device=draft_logits.device)
    if mask.dim() == 2:
        mask = mask.unsqueeze(1)
    return mask.expand(shape).sum(dim=(0, 2)).double()
