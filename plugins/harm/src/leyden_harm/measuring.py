"""Harm in numbers: what a step does to the losses of single samples; on tensors alone.

The two numbers follow the definition in the abstract of Avranas (2026); their form is reconstructed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Harm(NamedTuple):
    """What a step did to the samples of its batch.

    Attributes:
        rate: the share of the samples whose loss has risen, 0-dim.
        mass: the sum of the increases over the sum of all changes, both without sign, 0-dim; 0 where nothing
            changed, 1/2 where as much was lost as was won.
    """

    rate: Tensor
    mass: Tensor


class Probed(NamedTuple):
    """One probed step.

    Attributes:
        step: the optimizer step.
        rate: share of the samples whose loss rose.
        mass: sum of the increases over the sum of all changes.
        changes: the change of every sample's loss on this rank.
        gram_correlation: correlation of the last layer's Gram matrix with the whole one; None where not
            asked.
        mass_first_order: the mass that the whole gradients predict; None where not asked.
    """

    step: int
    rate: float
    mass: float
    changes: tuple[float, ...]
    gram_correlation: float | None = None
    mass_first_order: float | None = None


def harm_of_losses(before: Float[Tensor, " batch"], after: Float[Tensor, " batch"]) -> Harm:
    """Harm from the losses of the same samples before and after a step (reconstructed).

    Args:
        before: the losses of the samples before the step.
        after: the same after it.

    Returns:
        Rate and mass.

    >>> harm_of_losses(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 1.25, 0.75]))
    Harm(rate=tensor(0.3333), mass=tensor(0.2500))
    """
    return harm_of_totals(harm_totals(after - before))


def harm_totals(changes: Float[Tensor, " batch"]) -> Float[Tensor, " totals"]:
    """Samples made worse, samples, sum of the increases, sum of all changes: these add up over batches.

    Args:
        changes: the change of each sample's loss.

    Returns:
        Four numbers.
    """
    worse = changes > 0
    counts = torch.stack([worse.sum(), torch.ones_like(worse).sum()]).to(changes.dtype)
    return torch.cat([counts, torch.stack([changes.clamp_min(0).sum(), changes.abs().sum()])])


def harm_of_totals(totals: Float[Tensor, " totals"]) -> Harm:
    """Rate and mass from sums of `harm_totals`.

    Args:
        totals: the four numbers.

    Returns:
        Rate and mass.
    """
    worse, samples, increases, changes = totals
    tiny = torch.finfo(totals.dtype).tiny
    return Harm(worse / samples.clamp_min(1), increases / changes.clamp_min(tiny))


def gram_correlation(
    first: Float[Tensor, "batch batch"], second: Float[Tensor, "batch batch"]
) -> Float[Tensor, ""]:
    """Pearson's correlation of two symmetric matrices off their diagonals.

    Args:
        first: a Gram matrix.
        second: another of the same size, at least 2.

    Returns:
        The correlation; NaN where one of the two is constant.

    >>> first = torch.tensor([[9.0, 1.0, 2.0], [1.0, 9.0, 3.0], [2.0, 3.0, 9.0]])
    >>> gram_correlation(first, 2 * first)
    tensor(1.)
    """
    size = len(first)
    row, column = torch.triu_indices(size, size, offset=1, device=first.device)
    return torch.corrcoef(torch.stack([first[row, column], second[row, column]]))[0, 1]
