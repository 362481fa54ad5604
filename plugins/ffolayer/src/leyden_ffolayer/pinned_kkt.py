"""The reduced KKT system where many active rows are bounds, which fix a variable each (reconstructed).

A row with a single entry fixes its variable, so the system of Section 3.4 of Zhao and others (2025) shrinks
to the variables that are left and the rows with several entries; the multipliers of the bounds follow from
stationarity. On the paper's box programs that is most of the work. No matrix of all active rows is formed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leyden_ffolayer.reduced_kkt import ReducedKKT, apply, combine, factorise


@dataclass(frozen=True)
class PinnedKKT:
    """A factorised reduced KKT matrix without the variables that bounds fix.

    Attributes:
        hessian: H, of shape (variables, variables) or (batch, variables, variables).
        kept: which rows are no padding.
        pins: which rows fix a variable.
        places: the variable that each row fixes; 0 for the others.
        entries: its entry in the row; 1 for the others.
        free: the variables that are left, padded.
        free_kept: which of them are no padding.
        general: the rows that are left, padded.
        general_kept: which of them are no padding.
        general_rows: those rows, zero where padded.
        inner: the system of what is left.
    """

    hessian: Tensor
    kept: Bool[Tensor, "batch rows"]
    pins: Bool[Tensor, "batch rows"]
    places: Int[Tensor, "batch rows"]
    entries: Float[Tensor, "batch rows"]
    free: Int[Tensor, "batch free"]
    free_kept: Bool[Tensor, "batch free"]
    general: Int[Tensor, "batch general"]
    general_kept: Bool[Tensor, "batch general"]
    general_rows: Float[Tensor, "batch general variables"]
    inner: ReducedKKT

    @property
    def dependent(self) -> bool:
        """Whether the rows of a sample depend on each other."""
        return self.inner.dependent

    @property
    def unusable(self) -> Tensor | None:
        """Samples that were not factorised; None: there are none."""
        return self.inner.unusable

    def solve(
        self,
        first: Float[Tensor, "batch variables"],
        second: Float[Tensor, "batch rows"],
    ) -> tuple[Float[Tensor, "batch variables"], Float[Tensor, "batch rows"]]:
        """Solve ``[H Bᵀ; B 0] [u; w] = [first; second]``, as `ReducedKKT.solve` does."""
        second = second * self.kept
        fixed = torch.zeros_like(first)
        fixed.scatter_add_(1, self.places, torch.where(self.pins, second / self.entries, 0.0))
        rest = first - apply(self.hessian, fixed)
        right = second.gather(1, self.general) - apply(self.general_rows, fixed)
        moved, multipliers = self.inner.solve(
            rest.gather(1, self.free) * self.free_kept, right * self.general_kept
        )
        u = fixed.scatter_add(1, self.free, moved * self.free_kept)
        multipliers = multipliers * self.general_kept
        w = torch.zeros_like(second).scatter_add_(1, self.general, multipliers)
        left = first - apply(self.hessian, u) - combine(self.general_rows, multipliers)
        return u, torch.where(self.pins, left.gather(1, self.places) / self.entries, w)

    def take(self, samples: Tensor) -> PinnedKKT:
        """The same for some samples of the batch, given by their places."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        shared = self.hessian if self.hessian.dim() == 2 else self.hessian[samples]
        taken = {
            name: value[samples]
            for name, value in values.items()
            if isinstance(value, Tensor) and name != "hessian"
        }
        return PinnedKKT(hessian=shared, inner=self.inner.take(samples), **taken)


def factorise_pinned(
    hessian: Tensor,
    kept: Bool[Tensor, "batch rows"],
    places: Int[Tensor, "batch rows"],
    entries: Float[Tensor, "batch rows"],
    rows_at: Callable[[Tensor], Tensor],
    *,
    careful: bool = True,
) -> PinnedKKT:
    """Factorise a reduced KKT matrix without the variables that bounds fix.

    Args:
        hessian: H, symmetric.
        kept: which rows are no padding.
        places: the variable of each row that has a single entry; anything for the others.
        entries: its entry there; 0 for rows with several entries.
        rows_at: the rows at given places, of shape (batch, places, variables).
        careful: see `leyden_ffolayer.reduced_kkt.factorise`.

    Returns:
        The factors. Of several rows that fix one variable the first counts as a bound, the others as rows
        that depend on it.
    """
    batch, count = kept.shape
    size = hessian.shape[-1]
    candidates = kept & (entries != 0)
    places = torch.where(candidates, places, 0)
    order = torch.cumsum(torch.ones_like(places), dim=1) - 1
    first = places.new_full((batch, size), count).scatter_reduce(
        1, places, torch.where(candidates, order, count), "amin"
    )
    pins = candidates & (first.gather(1, places) == order)
    places = torch.where(pins, places, 0)
    entries = torch.where(pins, entries, 1.0)
    taken = places.new_zeros(batch, size).scatter_add_(1, places, pins.long()) > 0
    free, free_kept = packed(~taken)
    general, general_kept = packed(kept & ~pins)
    general_rows = rows_at(general) * general_kept.unsqueeze(2)
    if hessian.dim() == 2:
        reduced = hessian[free.unsqueeze(2), free.unsqueeze(1)]
    else:
        wide = hessian.gather(1, free.unsqueeze(2).expand(-1, -1, size))
        reduced = wide.gather(2, free.unsqueeze(1).expand(-1, free.shape[1], -1))
    both = free_kept.unsqueeze(2) & free_kept.unsqueeze(1)
    reduced = torch.where(both, reduced, torch.diag_embed((~free_kept).to(entries.dtype)))
    inside = general_rows.gather(2, free.unsqueeze(1).expand(-1, general.shape[1], -1))
    inside = inside * free_kept.unsqueeze(1)
    inner = factorise(reduced, inside, general_kept, careful=careful)
    return PinnedKKT(
        hessian,
        kept,
        pins,
        places,
        entries,
        free,
        free_kept,
        general,
        general_kept,
        general_rows,
        inner,
    )


def packed(mask: Bool[Tensor, "batch columns"]) -> tuple[Tensor, Tensor]:
    """The places of the true entries of each row, padded to one number, and which are no padding.

    >>> packed(torch.tensor([[False, True, True], [True, False, False]]))
    (tensor([[1, 2],
            [0, 1]]), tensor([[ True,  True],
            [ True, False]]))
    """
    most = int(mask.sum(dim=1).max()) if mask.shape[1] else 0
    order = mask.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return order, mask.gather(1, order)
