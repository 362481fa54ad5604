"""The objective of the completion and its values along a line (reconstructed), without forming a matrix.

With R = Z Z^T - H x + H(mask x - y) / p and x the antidiagonal averages of Z Z^T,

    F(Z) = |(I - H H^+)(Z Z^T)|^2 / 2 + sum_a w_a |mask_a (x_a - y_a)|^2 / (2 p),

whose Wirtinger gradient R conj(Z) is half of what autograd leaves in ``Z.grad``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from leyden_hankel.operator import HankelOperator


@dataclass(frozen=True)
class Problem:
    """Signals of one shape, each with its observed samples; leading dimensions are batches.

    Attributes:
        operator: the Hankel structure.
        y: the observed samples, zero elsewhere, shape ``(*batch, *shape)``.
        mask: which samples were observed, of the same shape, bool.
        rate: the share p of observed samples, shape ``(*batch,)``.
    """

    operator: HankelOperator
    y: Complex[Tensor, "*batch *shape"]
    mask: Bool[Tensor, "*batch *shape"]
    rate: Float[Tensor, "*batch"]

    def misfit(self, x: Complex[Tensor, "*batch *shape"]) -> Complex[Tensor, "*batch *shape"]:
        """Mask x - y: how far a signal is from what was observed, zero elsewhere."""
        return self.on_mask(x) - self.y

    def on_mask(self, x: Complex[Tensor, "*batch *shape"]) -> Complex[Tensor, "*batch *shape"]:
        """The signal at the observed samples, zero elsewhere."""
        return torch.where(self.mask, x, 0)

    def correction(
        self, x: Complex[Tensor, "*batch *shape"], misfit: Complex[Tensor, "*batch *shape"]
    ) -> Complex[Tensor, "*batch *shape"]:
        """The vector z = misfit / p - x, of which the gradient is Z conj(Z^H Z) + H(z) conj(Z)."""
        return misfit / self._spread(self.rate) - x

    def _spread(self, values: Tensor) -> Tensor:
        return values.reshape(*values.shape, *(1 for _ in self.operator.shape))


def conjugate_gram(factor: Complex[Tensor, "*batch rows rank"]) -> Complex[Tensor, "*batch rank rank"]:
    """Z^T conj(Z), the conjugate of the Gram matrix Z^H Z."""
    return cross_gram(factor, factor)


def cross_gram(
    first: Complex[Tensor, "*batch rows rank"], second: Complex[Tensor, "*batch rows rank"]
) -> Complex[Tensor, "*batch rank rank"]:
    """A^T conj(B), the conjugate of A^H B, of tall factors."""
    if first.dim() == 3 and len(first) == 1:  # a batch of one is slower than none
        return (first[0].mT @ second[0].conj()).unsqueeze(0)
    return first.mT @ second.conj()


def objective(
    problem: Problem,
    gram: Complex[Tensor, "*batch rank rank"],
    x: Complex[Tensor, "*batch *shape"],
    misfit: Complex[Tensor, "*batch *shape"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """F(Z), see above, from the Gram matrix and the signal.

    Args:
        problem: the signals.
        gram: Z^H Z or its conjugate.
        x: the antidiagonal averages of Z Z^T.
        misfit: of `Problem.misfit`.

    Returns:
        F for each signal, and |Z Z^T|^2: F is a difference of numbers of that size and is known to rounding
        of it alone.
    """
    operator = problem.operator
    squared = _entries(gram, gram)
    structure = squared - operator.weighted(x, x)
    fit = operator.weighted(misfit, misfit) / problem.rate
    return (structure + fit) / 2, squared


def gradient(
    problem: Problem, factor: Complex[Tensor, "*batch rows rank"]
) -> Complex[Tensor, "*batch rows rank"]:
    """The Wirtinger gradient R conj(Z), see above, from nothing but the factor.

    Args:
        problem: the signals.
        factor: Z.

    Returns:
        Of Z's shape; twice as much is what autograd leaves in ``Z.grad``.
    """
    operator = problem.operator
    spectrum = operator.fft(factor)
    x = operator.lift_adjoint(spectrum)
    pull = operator.matmul_conj(problem.correction(x, problem.misfit(x)), spectrum)
    return factor @ conjugate_gram(factor) + pull


class Line(NamedTuple):
    """What of Z + a D depends on a: x = x0 + a first + a^2 second, and the Gram matrix alike.

    Attributes:
        first: the averages of Z D^T + D Z^T.
        second: the averages of D D^T.
        cross: conj(Z^H D).
        square: conj(D^H D).
    """

    first: Complex[Tensor, "*batch *shape"]
    second: Complex[Tensor, "*batch *shape"]
    cross: Complex[Tensor, "*batch rank rank"]
    square: Complex[Tensor, "*batch rank rank"]


def line(
    operator: HankelOperator,
    factor: Complex[Tensor, "*batch rows rank"],
    spectrum: Complex[Tensor, "*batch rank *lengths"],
    direction: Complex[Tensor, "*batch rows rank"],
    direction_spectrum: Complex[Tensor, "*batch rank *lengths"],
) -> Line:
    """The parts of Z Z^T along Z + a D.

    Args:
        operator: the Hankel structure.
        factor: Z.
        spectrum: its transform.
        direction: D.
        direction_spectrum: its transform.

    Returns:
        The parts.
    """
    return Line(
        *operator.lift_adjoint_along(spectrum, direction_spectrum),
        cross_gram(factor, direction),
        cross_gram(direction, direction),
    )


def quartic(
    problem: Problem,
    gram: Complex[Tensor, "*batch rank rank"],
    x: Complex[Tensor, "*batch *shape"],
    misfit: Complex[Tensor, "*batch *shape"],
    along: Line,
) -> Float[Tensor, "*batch 4"]:
    """F(Z + a D) - F(Z) as c1 a + c2 a^2 + c3 a^3 + c4 a^4.

    Args:
        problem: the signals.
        gram: conj(Z^H Z).
        x: the signal at Z.
        misfit: of `Problem.misfit` at x.
        along: of `line`.

    Returns:
        c1 to c4.
    """
    first, second, cross, square = along
    axis = x.dim() - len(problem.operator.shape)
    three = torch.stack([x, first, second], dim=axis)
    inside = problem.operator.weighted_gram(three)
    missed = torch.stack([misfit, problem.on_mask(first), problem.on_mask(second)], dim=axis)
    # What the weights add to each product: the misfit over p, less the structure that x already has.
    extra = problem.operator.weighted_gram(missed) / problem.rate[..., None, None] - inside
    # Of the Gram matrix of Z + a D: that of Z, what is linear in a, and what is quadratic.
    grams = torch.stack([gram, cross + cross.mH, square], dim=-3).flatten(-2)
    twice = (grams @ grams.mT).real + extra
    c1 = twice[..., 0, 1]
    c2 = twice[..., 1, 1] / 2 + twice[..., 0, 2]
    c3 = twice[..., 1, 2]
    c4 = twice[..., 2, 2] / 2
    return torch.stack([c1, c2, c3, c4], dim=-1)


def smallest_minimum(
    coefficients: Float[Tensor, "*batch 4"], otherwise: float = 1.0
) -> Float[Tensor, "*batch"]:
    """The smallest positive place at which the derivative of such a quartic vanishes.

    Args:
        coefficients: c1 to c4.
        otherwise: the step where rounding leaves no descent to measure: c1 is not negative, or no root is
            found between 1e-3 and 1e3.

    Returns:
        The step a.
    """
    # A few numbers a signal: on the host, where a small operation costs a tenth of what it does in torch.
    derivative = coefficients.detach().double().cpu().numpy() * np.arange(1, 5)
    c1 = derivative[..., 0]
    descends = c1 < 0
    # In b = 1 / a the cubic's leading coefficient is c1, which is no more near zero than the others are.
    companion = np.zeros((*derivative.shape[:-1], 3, 3))
    companion[..., 0, :] = -derivative[..., 1:] / np.where(descends, c1, -1)[..., None]
    companion[..., 1, 0] = companion[..., 2, 1] = 1
    sound = np.asarray(np.isfinite(companion).all(axis=(-2, -1)))
    roots = np.linalg.eigvals(np.where(sound[..., None, None], companion, 0))
    real = np.abs(roots.imag) <= 1e-6 * np.abs(roots)
    largest = np.where(real, roots.real, 0).max(axis=-1)
    usable = descends & sound & (largest > 1e-3) & (largest < 1e3)
    steps = torch.from_numpy(np.asarray(1 / np.where(usable, largest, 1 / otherwise)))
    return steps.to(device=coefficients.device, dtype=coefficients.dtype)


def _entries(first: Tensor, second: Tensor) -> Tensor:
    """The real part of the sum of the elementwise product of two small matrices."""
    return (first * second).sum(dim=(-2, -1)).real
