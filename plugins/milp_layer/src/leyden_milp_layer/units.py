"""Units in which outputs and rows are about 1, so that tolerances mean the same whatever the rules' units.

Factors are powers of two: changing units and changing back costs no bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leyden_milp_layer.powers import nearest_power
from leyden_milp_layer.rules import RowBank, RuleSet
from leyden_milp_layer.scenarios import Problem

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Units:
    """The units of a rule set.

    Args:
        rules: the rules; their bounds tell how large outputs are.

    Attributes:
        outputs: the unit of each output, shape ``(outputs,)``.
        lower: the bounds in these units, shape ``(outputs,)``.
        upper: the same.
    """

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self.outputs = nearest_power(np.maximum(np.abs(rules.lower), np.abs(rules.upper)))
        self.lower, self.upper = rules.lower / self.outputs, rules.upper / self.outputs
        self._constant: tuple[Array, Array] | None = None

    def problem(self, bank: RowBank, points: Array, active: Mask | None = None) -> Problem:
        """A batch in these units.

        Args:
            bank: the rows as they are written.
            points: what is projected, shape ``(batch, outputs)``.
            active: which rules apply, shape ``(batch, rules)``; None: those of the bank.
        """
        A, factor = self._matrix(bank)
        return Problem(
            A,
            bank.b.detach().numpy() / factor,
            bank.active.numpy() if active is None else active,
            points / self.outputs,
            self._rules.varies,
        )

    def _matrix(self, bank: RowBank) -> tuple[Array, Array]:
        """The matrix in these units, and the unit of each row; kept where the matrix never changes."""
        if self._constant is not None:
            return self._constant
        A = bank.A.detach().numpy() * self.outputs
        factor = nearest_power(np.abs(A).max(axis=2))
        found = A / factor[:, :, None], factor
        if not self._rules.varies[0]:
            self._constant = found
        return found
