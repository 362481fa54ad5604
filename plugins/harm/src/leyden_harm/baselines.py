"""What the paper is compared with and no optimizer has."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from leyden_harm.affine import Affine


def without_history(optimizer: Optimizer, parameter: Tensor) -> Affine:
    """Any optimizer taken for plain gradient descent, for ``HarmReduction(affine=...)`` (not in the paper).

    With a large ``max_upweight`` and without normalizing, the weights are then those of conflict-free
    aggregation by the dual projection (GEM; ``DualProj`` of torchjd) on the last layer's Gram matrix.

    Args:
        optimizer: not used.
        parameter: not used.

    Returns:
        The update of plain gradient descent.
    """
    return Affine()
