"""Matrix games: one, or several of one size at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from leyden_asym_perturb.arguments import (
    admitted,
    as_payoff,
    check_positive,
    check_side,
    tell_if_projected,
)
from leyden_asym_perturb.game import Game, spectral_norm
from leyden_asym_perturb.linear_program import MatrixGameSolution, solve_matrix_game_lp
from leyden_asym_perturb.simplex import project_simplex

Row = Literal["minimizes", "maximizes"]
"""What the row player does with the payoff."""


class MatrixGame(Game):
    """A zero-sum game in normal form, Section 2: min over x, max over y of xᵀ A y, on simplices.

    Args:
        payoff: A of shape ``(m, n)``, or several of one size as ``(games, m, n)``: an array, a tensor or
            nested lists of numbers; kept in float64.
        value: the value of the game, where it is known: the cost to the row player.
        row: whether the row player ``"minimizes"`` the payoff, as in the paper, or ``"maximizes"`` it, as
            where the matrix holds the row player's gains. Everything this package returns speaks of costs to
            the row player, so ``"maximizes"`` turns the sign of the payoff and of ``value``.

    Raises:
        ValueError: if ``payoff`` is empty, not finite, complex or of another rank, or ``row`` another word.

    >>> game = MatrixGame([[1.0, -1.0], [-1.0, 1.0]], value=0.0)
    >>> game.nash_conv(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    tensor(1., dtype=torch.float64)
    """

    payoff: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(
        self,
        payoff: Tensor | Sequence[Any] | np.ndarray[Any, Any],
        value: float | None = None,
        *,
        row: Row = "minimizes",
    ) -> None:
        if row not in ("minimizes", "maximizes"):
            raise ValueError(f"row: expected 'minimizes' or 'maximizes', got {row!r}")
        super().__init__(value)
        if self.value is not None and row == "maximizes":
            self.value = -self.value
        matrix = as_payoff(payoff)
        matrix = matrix if row == "minimizes" else -matrix
        self._single = matrix.ndim == 2
        stacked = matrix.reshape(-1, *matrix.shape[-2:])
        spread = (stacked.amax((1, 2)) - stacked.amin((1, 2))) / 2
        for name, tensor in {
            "payoff": stacked,
            "rows": stacked.mT.contiguous(),
            "columns": -stacked,
            "norm": tangent_norm(stacked),
            "spread": spread,
            "radius": stacked.new_tensor([math.sqrt(1 - 1 / size) for size in stacked.shape[1:]]),
        }.items():
            self.register_buffer(name, tensor, persistent=False)

    @classmethod
    def from_csv(cls, path: str | Path, value: float | None = None, *, row: Row = "minimizes") -> MatrixGame:
        """Read a payoff matrix from a text file with commas, one row a line; ``#`` begins a comment.

        Args:
            path: the file.
            value: as of the class.
            row: as of the class.

        Returns:
            The game.

        Raises:
            ValueError: if the file is no matrix of numbers; the text names it.
            OSError: if it cannot be read.
        """
        try:
            matrix = np.loadtxt(path, delimiter=",", ndmin=2, dtype=np.float64)
        except ValueError as error:
            raise ValueError(f"path: '{path}' is no matrix of numbers: {error}") from error
        return cls(matrix, value, row=row)

    @classmethod
    def from_openspiel(cls, game: Any) -> MatrixGame:
        """Take a matrix game of OpenSpiel; its row player's gains become costs.

        Args:
            game: its name, such as ``"matrix_rps"``, or a game of ``pyspiel``.

        Returns:
            The game.

        Raises:
            ValueError: if it is no two-player zero-sum matrix game.
            ImportError: if OpenSpiel is not installed.
        """
        from leyden_asym_perturb.openspiel import matrix_of

        return cls(matrix_of(game))

    @property
    def single(self) -> bool:
        """Whether the payoff was one matrix."""
        return self._single

    def first_mu(self) -> Tensor:
        """Four times the spread of the payoffs, half the difference of the largest and the smallest."""
        return torch.where(self.spread > 0, 4 * self.spread, torch.ones_like(self.spread))

    def start(self) -> tuple[Tensor, Tensor]:
        """The uniform strategies."""
        m, n = self.payoff.shape[1:]
        return self.payoff.new_full((self.count, m), 1 / m), self.payoff.new_full((self.count, n), 1 / n)

    def admit(self, player: int, strategy: Tensor) -> Tensor:
        """A start, projected onto the simplex."""
        name, shape = ("x0", "y0")[player], (self.count, self.payoff.shape[1 + player])
        start = admitted(name, strategy, shape)
        projected = project_simplex(start)
        tell_if_projected(name, start, projected)
        return projected.to(self.payoff)

    def costs(self, player: int, opponent: Float[Tensor, "... k"]) -> Float[Tensor, "... l"]:
        """A y for x, and -Aᵀ x for y."""
        matrices = (self.rows, self.columns)[player]
        opponent = opponent.to(matrices)
        if len(matrices) == 1:
            return opponent @ matrices[0]
        if opponent.ndim == 2:
            return (opponent.unsqueeze(1) @ matrices).squeeze(1)
        return opponent @ matrices

    def least(self, player: int, cost: Float[Tensor, "... k"]) -> Float[Tensor, "*batch"]:
        """The smallest entry."""
        return cost.amin(-1)

    def step(
        self, player: int, strategy: Tensor, cost: Tensor, keep: Tensor, official: Tensor | None = None
    ) -> Tensor:
        """The projection of the moved strategy; there is no tree, and so nothing to hand up."""
        return project_simplex(keep * strategy - cost)

    def entropic_step(self, player: int, strategy: Tensor, cost: Tensor) -> Tensor:
        """Multiplicative weights."""
        return (strategy.log() - cost).softmax(-1)

    def square(self, player: int, strategy: Float[Tensor, "... k"]) -> Float[Tensor, "*batch"]:
        """Half the squared norm."""
        return 0.5 * strategy.square().sum(-1)

    def perturbed_least(
        self, player: int, cost: Float[Tensor, "... k"], mu: Float[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """The least of ⟨cost, x⟩ + (mu / 2) |x|², at the projection of -cost / mu."""
        best = project_simplex(-cost / mu.unsqueeze(-1))
        return (best * cost).sum(-1) + mu * self.square(player, best)

    def solve_lp(self) -> MatrixGameSolution:
        """The exact solution by HiGHS, of a single game; see `solve_matrix_game_lp`."""
        if self.count != 1:
            raise ValueError(f"payoff: the linear program solves one game, this is a batch of {self.count}")
        return solve_matrix_game_lp(self.payoff[0])


def nash_conv(
    A: Float[Tensor, "m n"], x: Float[Tensor, "... m"], y: Float[Tensor, "... n"]
) -> Float[Tensor, "*batch"]:
    """NashConv of Section 3.1, max over j of (Aᵀ x)_j minus min over i of (A y)_i.

    Args:
        A: the cost to the row player.
        x: strategies of the row player.
        y: strategies of the column player.

    Returns:
        NashConv, in the unit of A; twice what OpenSpiel calls exploitability.

    Raises:
        ValueError: if A is no matrix, or a strategy has another number of actions.

    >>> nash_conv(torch.eye(2), torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    tensor(0.)
    """
    A = _matching(A, x, y)
    return (x @ A).amax(-1) - (y @ A.mT).amin(-1)


def perturbed_gap(
    A: Float[Tensor, "m n"],
    mu: float,
    x: Float[Tensor, "... m"],
    y: Float[Tensor, "... n"],
    side: Literal["x", "y"] = "x",
) -> Float[Tensor, "*batch"]:
    """The duality gap of a perturbed game, Section 3.4; it bounds (mu / 2) |x - x^mu|².

    Args:
        A: the cost to the row player.
        mu: the perturbation, above 0.
        x: strategies of the row player.
        y: strategies of the column player.
        side: which player is perturbed.

    Returns:
        The gap, at least 0 but for rounding.

    Raises:
        ValueError: if an argument is wrong; the text names it.

    >>> perturbed_gap(torch.eye(2), 1.0, torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    tensor(0.)
    """
    check_positive("mu", mu)
    check_side(side)
    A = _matching(A, x, y)
    return _gap(A, mu, x, y) if side == "x" else _gap(-A.mT, mu, y, x)


def tangent_norm(payoff: Float[Tensor, "... m n"]) -> Float[Tensor, "*batch"]:
    """The spectral norm of payoffs from which the means of rows and columns are taken.

    Between points of simplices nothing else of a payoff matters: a constant that is added to a row, a column
    or the whole matrix is lost in the projection.

    Args:
        payoff: A.

    Returns:
        The norm of each matrix.
    """
    centred = payoff - payoff.mean(-1, keepdim=True)
    return spectral_norm(centred - centred.mean(-2, keepdim=True))


def _matching(A: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """A in the numbers of the strategies, after a look at all shapes."""
    if A.ndim != 2:
        raise ValueError(
            f"A: expected shape (m, n), got {tuple(A.shape)}; `MatrixGame` holds a batch of games"
        )
    for name, strategy, size in (("x", x, A.shape[0]), ("y", y, A.shape[1])):
        if strategy.ndim == 0 or strategy.shape[-1] != size or not strategy.is_floating_point():
            raise ValueError(
                f"{name}: expected {size} probabilities in the last dimension, got {strategy.dtype} of shape "
                f"{tuple(strategy.shape)}"
            )
    if x.dtype != y.dtype:
        raise ValueError(f"y: expected {x.dtype}, as x, got {y.dtype}")
    return A.to(x.dtype)


def _gap(A: Tensor, mu: float, x: Tensor, y: Tensor) -> Tensor:
    """The gap of the game that perturbs its minimising player."""
    costs = y @ A.mT
    best = project_simplex(-costs / mu)
    least = (best * costs).sum(-1) + 0.5 * mu * best.square().sum(-1)
    return (x @ A).amax(-1) + 0.5 * mu * x.square().sum(-1) - least
