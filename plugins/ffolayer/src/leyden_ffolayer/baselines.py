"""What the layers are compared with, behind the same call."""

from __future__ import annotations

import importlib
from typing import Any

import cvxpy
import torch
from cvxpylayers.torch.cvxpylayer import CvxpyLayer
from torch import Tensor, nn

from leyden_ffolayer.qp_layer import check_choice


class CvxpyQPLayer(nn.Module):
    """The quadratic program of `FFOQPLayer` by cvxpylayers, the baseline of Section 5; only costs vary.

    Args:
        adjoint: ``"lsqr"``, cvxpylayers' default, or ``"dense"``, which is exact and costs more.
        eps: accuracy that is asked of its solver; None: its default.

    Raises:
        ValueError: if a setting is unknown.
    """

    def __init__(self, adjoint: str = "lsqr", eps: float | None = None) -> None:
        super().__init__()
        check_choice("adjoint", adjoint, ("lsqr", "dense"))
        self.adjoint = adjoint
        self.eps = eps
        self._known: tuple[Tensor, ...] = ()
        self._layers: list[CvxpyLayer] = []

    def forward(self, Q: Tensor, q: Tensor, G: Tensor, h: Tensor) -> Tensor:
        """Solve the programs.

        Args:
            Q: of shape (n, n), positive definite.
            q: of shape (batch, n).
            G: of shape (m, n).
            h: of shape (m,).

        Returns:
            The decisions, of shape (batch, n) and the type of q.
        """
        arguments: dict[str, Any] = {}
        # Without a gradient to compute, cvxpylayers does not know the setting of how to compute it.
        if self.adjoint != "lsqr" and torch.is_grad_enabled() and q.requires_grad:
            arguments["mode"] = self.adjoint
        if self.eps is not None:
            arguments["eps"] = self.eps
        (found,) = self._layer(Q, G, h)(q.double(), solver_args=arguments)
        decisions: Tensor = found.to(q.dtype)
        return decisions

    def _layer(self, Q: Tensor, G: Tensor, h: Tensor) -> CvxpyLayer:
        if not self._layers or any(a is not b for a, b in zip(self._known, (Q, G, h), strict=True)):
            cp: Any = cvxpy
            y, q = cp.Variable(len(Q)), cp.Parameter(len(Q))
            root = torch.linalg.cholesky(Q.double()).T.numpy()
            objective = 0.5 * cp.sum_squares(root @ y) + q @ y
            problem = cp.Problem(cp.Minimize(objective), [G.double().numpy() @ y <= h.double().numpy()])
            self._known, self._layers = (Q, G, h), [CvxpyLayer(problem, [q], [y])]
        return self._layers[0]


class QpthLayer(nn.Module):
    """The quadratic program of `FFOQPLayer` by qpth, a baseline of Section 5.

    Raises:
        ImportError: if qpth is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        qp: Any = importlib.import_module("qpth.qp")
        self._function = qp.QPFunction(verbose=-1, check_Q_spd=False)

    def forward(self, Q: Tensor, q: Tensor, G: Tensor, h: Tensor) -> Tensor:
        """Solve the programs.

        Args:
            Q: of shape (n, n), positive definite.
            q: of shape (batch, n).
            G: of shape (m, n).
            h: of shape (m,).

        Returns:
            The decisions, of shape (batch, n) and the type of q.
        """
        none = Q.new_zeros(0, dtype=torch.float64)
        found: Tensor = self._function(Q.double(), q.double(), G.double(), h.double(), none, none)
        return found.to(q.dtype)
