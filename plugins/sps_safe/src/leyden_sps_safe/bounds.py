"""What the paper guarantees for convex losses, as numbers that a run can be compared with.

Assumptions: every fᵢ is convex, ‖g‖ ≤ G, x* is any fixed point, bᵢ = fᵢ(x*) - ℓᵢ* ≥ 0 and D = max(‖g‖², M).
The rates are the paper's (Theorems 3.1, 3.4 and 3.5). The constants are derived from the update rule; the
README shows how.
"""

from __future__ import annotations

from math import sqrt


def descent_slack(
    distance: float,
    next_distance: float,
    *,
    loss: float,
    reference_loss: float,
    denominator: float,
    lower_bound: float = 0.0,
) -> float:
    """How far one step of SPS_safe stays inside its per-step inequality, on every path and for every sample.

    ‖x₊ - x*‖² ≤ ‖x - x*‖² - [(f(x) - f(x*))² - b²] / D.

    Args:
        distance: ‖x - x*‖² before the step.
        next_distance: ‖x₊ - x*‖² after it.
        loss: f(x), the sample's loss before the step.
        reference_loss: f(x*), the same sample's loss at the fixed point.
        denominator: D.
        lower_bound: ℓ*.

    Returns:
        Right-hand side minus left-hand side; negative where the inequality is violated.

    >>> descent_slack(4.0, 1.0, loss=2.0, reference_loss=0.0, denominator=4.0)
    2.0
    """
    progress = (loss - reference_loss) ** 2 - (reference_loss - lower_bound) ** 2
    return distance - progress / denominator - next_distance


def momentum_descent_slack(
    distance: float,
    next_distance: float,
    *,
    loss: float,
    inner_product: float,
    reference_loss: float,
    denominator: float,
    lower_bound: float = 0.0,
) -> float:
    """The same for IMA_SPS_safe, where the distances are those of z.

    ‖z₊ - x*‖² ≤ ‖z - x*‖² - [(A - b)₊² - b²] / D with A = f(x) - ℓ* + ⟨g, z - x⟩.

    Args:
        distance: ‖z - x*‖² before the step.
        next_distance: ‖z₊ - x*‖² after it.
        loss: f(x), the sample's loss before the step.
        inner_product: ⟨g, z - x⟩ before the step.
        reference_loss: f(x*), the same sample's loss at the fixed point.
        denominator: D.
        lower_bound: ℓ*.

    Returns:
        Right-hand side minus left-hand side; negative where the inequality is violated.

    >>> momentum_descent_slack(4.0, 1.0, loss=2.0, inner_product=0.0, reference_loss=0.0, denominator=4.0)
    2.0
    """
    excess = reference_loss - lower_bound
    progress = max(loss - lower_bound + inner_product - excess, 0.0) ** 2 - excess**2
    return distance - progress / denominator - next_distance


def suboptimality_bound(
    *,
    distance: float,
    deviation: float,
    steps: int,
    safeguard: float,
    squared_gradient_bound: float,
    averaging: float = 0.0,
    initial_gap: float = 0.0,
) -> float:
    """Bound of the expected suboptimality after a number of steps.

    E f(x̄) - f* ≤ √max(G², M) (‖x₀ - x*‖ / √T + σ / √M) + λ (f(x₀) - f*) / T.

    It holds for the average of the iterates before each step, for SPS_safe (λ = 0) and for IMA_SPS_safe with
    constant λ; and, with λ = 0 in this formula, for the last of them where λₜ = t.

    Args:
        distance: ‖x₀ - x*‖.
        deviation: σ, the root of the mean of b² at a minimiser.
        steps: T.
        safeguard: M.
        squared_gradient_bound: G².
        averaging: the constant λ.
        initial_gap: f(x₀) - f*, which matters only with λ > 0.

    Returns:
        The bound, in the unit of the loss.

    Raises:
        ValueError: if ``steps`` or ``safeguard`` is not positive.

    >>> suboptimality_bound(distance=2.0, deviation=0.0, steps=100, safeguard=1.0, squared_gradient_bound=4.0)
    0.4
    """
    if not steps > 0:
        raise ValueError(f"steps must be positive, got {steps}")
    if not safeguard > 0:
        raise ValueError(f"safeguard must be positive, got {safeguard}")
    scale = sqrt(max(squared_gradient_bound, safeguard))
    return scale * (distance / sqrt(steps) + deviation / sqrt(safeguard)) + averaging * initial_gap / steps
