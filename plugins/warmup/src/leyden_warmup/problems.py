"""Functions whose smoothness constants are known, and gradient descent on them: where the theory is exact.

numpy in float64, since a step of these small problems is all overhead. Not in the paper; reconstructed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
StepSize = Callable[[float], float]
"""A step size as a function of the loss."""


@dataclass(frozen=True)
class Problem:
    """A function with its gradient and its constants.

    Attributes:
        evaluate: the value and the gradient at a point.
        f_star: its infimum.
        H0, H1: the Hessian's norm is at most H0 + H1 (f - f_star).
        mu: its PL constant; 0 where it has none.
        minimizer: where it is smallest; empty where it is nowhere.
    """

    evaluate: Callable[[Vector], tuple[float, Vector]]
    f_star: float
    H0: float
    H1: float
    mu: float
    minimizer: Vector


@dataclass(frozen=True)
class Descent:
    """What a run of gradient descent showed.

    Attributes:
        steps: how many steps were taken.
        losses: the value before each step and at the end.
        gradient_slack: the least of 2 H0 Δ + H1 Δ² - ‖∇f‖² over the iterates (fact 1 of Section 3.5).
        decrease: the least of (f(w) - f(w₊)) / (η ‖∇f‖²) over the steps (fact 2 of Section 3.5).
    """

    steps: int
    losses: list[float]
    gradient_slack: float
    decrease: float


def descend(
    problem: Problem, start: Vector, step_size: StepSize, *, gap: float | None = None, most: int = 2_000_000
) -> Descent:
    """Gradient descent until the gap is reached or the steps are used up.

    Args:
        problem: what is minimized.
        start: where.
        step_size: the step as a function of the loss.
        gap: the f - f_star at which to stop; None: never.
        most: the largest number of steps.

    Returns:
        The run.
    """
    point = start
    loss, gradient = problem.evaluate(point)
    losses, slack, decrease = [loss], np.inf, np.inf
    while len(losses) <= most and (gap is None or losses[-1] - problem.f_star > gap):
        step, squared, excess = step_size(loss), float(gradient @ gradient), loss - problem.f_star
        slack = min(slack, 2 * problem.H0 * excess + problem.H1 * excess**2 - squared)
        point = point - step * gradient
        before = loss
        loss, gradient = problem.evaluate(point)
        # Where rounding is as large as the decrease, their ratio says nothing.
        if step * squared > 1e-8 * (1 + abs(loss)):
            decrease = min(decrease, (before - loss) / (step * squared))
        losses.append(loss)
    return Descent(len(losses) - 1, losses, float(slack), float(decrease))


def exponentials(seed: int = 0, *, rows: int = 100, dimension: int = 20, mu: float = 0.5) -> Problem:
    """The mean of exp(⟨a, w⟩) over random rows a, plus (mu / 2) ‖w‖²: (H0, H1)-smooth, not smooth.

    Its Hessian is the mean of exp(⟨a, w⟩) a aᵀ plus mu, so H1 = max ‖a‖² and H0 = mu + H1 f_star do.

    Args:
        seed: seed of the rows.
        rows: how many.
        dimension: of the point.
        mu: weight of the square, which is the PL constant too.

    Returns:
        The problem.
    """
    matrix = np.random.default_rng(seed).normal(size=(rows, dimension)) / np.sqrt(dimension)

    def evaluate(point: Vector) -> tuple[float, Vector]:
        values = np.exp(matrix @ point)
        gradient = matrix.T @ values / rows + mu * point
        return float(values.mean() + mu / 2 * (point @ point)), gradient

    minimizer = np.zeros(dimension)
    for _ in range(50):
        values = np.exp(matrix @ minimizer)
        hessian = (matrix.T * values) @ matrix / rows + mu * np.eye(dimension)
        minimizer = minimizer - np.linalg.solve(hessian, evaluate(minimizer)[1])
    f_star = evaluate(minimizer)[0]
    growth = float((matrix**2).sum(axis=1).max())
    return Problem(evaluate, f_star, mu + growth * f_star, growth, mu, minimizer)


def starts(problem: Problem, distances: Sequence[float], seed: int = 1) -> list[Vector]:
    """Points at given distances from the minimizer, each in a random direction.

    Args:
        problem: the problem.
        distances: how far.
        seed: seed of the directions, drawn in order.

    Returns:
        A point for each distance.
    """
    generator = np.random.default_rng(seed)
    directions = [generator.normal(size=len(problem.minimizer)) for _ in distances]
    return [
        problem.minimizer + distance * direction / np.linalg.norm(direction)
        for distance, direction in zip(distances, directions, strict=True)
    ]


def cosh() -> Problem:
    """The hyperbolic cosine less 1, for which H0 = H1 = 1 and fact 1 of Section 3.5 is an equality.

    Returns:
        The problem.
    """

    def evaluate(point: Vector) -> tuple[float, Vector]:
        return float(np.cosh(point[0]) - 1), np.sinh(point)

    return Problem(evaluate, 0.0, 1.0, 1.0, 0.0, np.zeros(1))


def logistic(classes: tuple[int, int] = (0, 1)) -> Problem:
    """Logistic regression of two kinds of handwritten digits: H0 = 0 and H1 = max ‖x‖², infimum 0.

    The second derivative of log(1 + exp(-t)) is at most its value, hence the constants.

    Args:
        classes: which two digits.

    Returns:
        The problem; it has no minimizer where a plane separates the digits.
    """
    signed = signed_digits(classes)

    def evaluate(point: Vector) -> tuple[float, Vector]:
        margins = signed @ point
        # log(1 + exp(-t)) and its derivative, without overflow and exact where they are tiny
        small = np.exp(-np.abs(margins))
        losses = np.log1p(small) + np.maximum(-margins, 0)
        slopes = -np.where(margins > 0, small, 1) / (1 + small)
        return float(losses.mean()), slopes @ signed / len(signed)

    growth = float((signed**2).sum(axis=1).max())
    return Problem(evaluate, 0.0, 0.0, growth, 0.0, np.zeros(0))


def signed_digits(classes: tuple[int, int] = (0, 1)) -> Vector:
    """Images of two kinds of digits with a constant 1, those of the first kind negated.

    Args:
        classes: which two digits.

    Returns:
        Shape (rows, 65), values between -1 and 1.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    chosen = np.isin(labels, classes)
    rows = np.hstack([images[chosen] / 16, np.ones((int(chosen.sum()), 1))])
    signs: Any = np.where(labels[chosen] == classes[1], 1.0, -1.0)
    return np.asarray(rows * signs[:, None], dtype=np.float64)


def deep_linear(
    scale: float, *, steps: int = 400, size: int = 6, seed: int = 0
) -> tuple[list[float], list[float]]:
    """Loss and sharpness along gradient descent on a two-layer linear network, balanced at the start.

    The loss is ‖W2 W1 X - Y‖² / (2 · 40) with X Xᵀ = 40 I, so that it depends on W2 W1 alone.

    Args:
        scale: standard deviation of the first layer's initial weights times the root of its width; the second
            layer is its transpose.
        steps: steps of gradient descent, at a rate of 0.2 over the first sharpness.
        size: width of both layers.
        seed: seed of the target and the weights.

    Returns:
        The losses, and the largest eigenvalues of the Hessian there.
    """
    generator = np.random.default_rng(seed)
    target = generator.normal(size=(size, size)) / np.sqrt(size)
    first = scale * generator.normal(size=(size, size)) / np.sqrt(size)
    second = first.T.copy()
    losses, sharpness = [], []
    rate = 0.0
    for _ in range(steps):
        residual = second @ first - target
        losses.append(float((residual**2).sum() / 2))
        sharpness.append(_sharpness(first, second, residual))
        rate = rate or 0.2 / sharpness[0]
        first, second = first - rate * second.T @ residual, second - rate * residual @ first.T
    return losses, sharpness


def _sharpness(first: Vector, second: Vector, residual: Vector) -> float:
    """The largest eigenvalue of the Hessian of ‖W2 W1 - T‖² / 2, from the Hessian itself."""
    size = len(first)
    one = np.eye(size)
    # With vec by rows: d(W2 W1) = (W2 ⊗ I) dW1 + (I ⊗ W1ᵀ) dW2, and the residual couples dW1 with dW2.
    jacobian = np.hstack([np.kron(second, one), np.kron(one, first.T)])
    coupling = np.einsum("ij,kl->kjil", residual, one).reshape(size**2, size**2)
    hessian = jacobian.T @ jacobian
    hessian[: size**2, size**2 :] += coupling
    hessian[size**2 :, : size**2] += coupling.T
    return float(np.linalg.eigvalsh(hessian)[-1])
