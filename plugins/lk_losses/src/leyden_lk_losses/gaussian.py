"""One Gaussian fitted to a mixture of three: what each divergence does when the draft cannot be the target.

Everything lives on a grid of points from -10 to 10, so that a fit is found by looking at all Gaussians of a
grid of means and deviations, and no optimizer is in the way.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from leyden_lk_losses.baselines import baseline
from leyden_lk_losses.kernel import row_divergences

Divergence = Literal["kl", "reverse_kl", "tv"]

POINTS: Float[Tensor, " points"] = torch.linspace(-10, 10, 201, dtype=torch.float64)
"""Where densities are compared."""

MIXTURE = ((0.5, -4.0, 0.5), (0.3, -1.0, 0.5), (0.2, 7.0, 0.5))
"""Weight, mean and standard deviation of each part of the target."""


class Fit(NamedTuple):
    """The Gaussian that is nearest to the mixture.

    Attributes:
        mean: its mean.
        deviation: its standard deviation.
        acceptance: α = Σ min(p, q) of mixture and fit.
        density: its probabilities at `POINTS`.
    """

    mean: float
    deviation: float
    acceptance: float
    density: Float[Tensor, " points"]


def mixture() -> Float[Tensor, " points"]:
    """The target's probabilities at `POINTS`."""
    parts = [weight * _gaussian(mean, deviation).exp() for weight, mean, deviation in MIXTURE]
    total = torch.stack(parts).sum(dim=0)
    return total / total.sum()


def fit(divergence: Divergence, *, step: float = 0.05) -> Fit:
    """Find the Gaussian of the least divergence by trying all of a grid.

    Args:
        divergence: KL(p‖q), KL(q‖p) or the total variation of target p and Gaussian q.
        step: between the means tried, from -10 to 10, and between the deviations, from 0.2 to 8.

    Returns:
        The best one.
    """
    means = torch.arange(-10, 10 + step / 2, step, dtype=torch.float64)
    deviations = torch.arange(0.2, 8 + step / 2, step, dtype=torch.float64)
    grid = torch.cartesian_prod(means, deviations)
    log_p = mixture().log()
    best, place = torch.inf, 0
    for start in range(0, len(grid), 4096):
        part = grid[start : start + 4096]
        draft = _gaussian(part[:, :1], part[:, 1:])
        target = log_p.expand_as(draft)
        if divergence == "reverse_kl":
            values = baseline("reverse_kl", target, draft)
        else:
            kl, log_alpha = row_divergences(target, draft)
            values = kl if divergence == "kl" else 1 - log_alpha.exp()
        least = int(values.argmin())
        if float(values[least]) < best:
            best, place = float(values[least]), start + least
    mean, deviation = grid[place].tolist()
    density = _gaussian(mean, deviation).softmax(dim=-1)
    return Fit(mean, deviation, float(torch.minimum(log_p.exp(), density).sum()), density)


def _gaussian(mean: float | Tensor, deviation: float | Tensor) -> Tensor:
    """Logarithms of a Gaussian's density at `POINTS`, but for a constant that they share."""
    logarithm = torch.as_tensor(deviation, dtype=torch.float64).log()
    return -(((POINTS - mean) / deviation) ** 2) / 2 - logarithm
