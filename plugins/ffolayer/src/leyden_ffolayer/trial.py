"""What the conformance kit tries the components on."""

from __future__ import annotations

from functools import partial
from typing import Any

import cvxpy
import torch
from leyden.tasks import mlp
from leyden.testing import Trial

from leyden_ffolayer.cvxpy_layer import FFOLayer
from leyden_ffolayer.data import SyntheticDFLDataModule
from leyden_ffolayer.decision import DecisionFocusedModule
from leyden_ffolayer.program import BoxProgram
from leyden_ffolayer.qp_layer import FFOQPLayer


def qp_rows() -> Trial:
    """Three programs of five variables with four inequalities and two equalities."""
    M, q = torch.randn(3, 5, 5), torch.randn(3, 5)
    G, A, inside = torch.randn(3, 4, 5), torch.randn(3, 2, 5), torch.randn(3, 5, 1)
    Q = M @ M.mT / 5 + torch.eye(5)
    h = (G @ inside).squeeze(-1) + torch.rand(3, 4)
    return Trial(inputs=(Q, q, G, h, A, (A @ inside).squeeze(-1)))


def cvxpy_layer() -> FFOLayer:
    """A constrained least-squares problem of four variables."""
    cp: Any = cvxpy
    x, A, b = cp.Variable(4), cp.Parameter((6, 4), name="A"), cp.Parameter(6, name="b")
    problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b)), [x >= 0, cp.sum(x) <= 1])
    return FFOLayer(problem, [A, b], [x])


def least_squares_rows() -> Trial:
    """Three matrices and right-hand sides for it."""
    return Trial(inputs=(torch.randn(3, 6, 4), torch.randn(3, 6)))


def decision_module() -> DecisionFocusedModule:
    """Six costs predicted from four features."""
    return DecisionFocusedModule(
        mlp([4, 8, 6]),
        FFOQPLayer(),
        BoxProgram(6, least_sum=-1.5),
        optimizer=partial(torch.optim.Adam, lr=0.01),
    )


def decision_rows() -> Trial:
    """Ten batches of eight rows."""
    data = SyntheticDFLDataModule(num_costs=6, num_features=4, train_size=80, val_size=16, test_size=16)
    return Trial(rows=data.train)


def watched_module() -> Trial:
    """The same, trained beside a callback."""
    return Trial(rows=decision_rows().rows, module=decision_module())
