"""What the solver asks of a game, whether it is a matrix or a tree."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leyden_asym_perturb.arguments import check_value

POWER_STEPS = 50
"""Steps of the power iteration where a matrix is too large for its singular values."""

POWER_SAFETY = 1.05

STEP_SHARE = 0.8
"""The default step as a share of the longest stable one."""


class Game(nn.Module, ABC):
    """A two-player zero-sum game, or several of one size: player 0 is x, player 1 is y.

    x minimises and y maximises the same number, the cost of x. Strategies have the player's size in their
    last dimension; in a batch of games the first one counts the games. What is done to a strategy of either
    player is written once, for the player's own cost, which it wants small. The tensors of a game are buffers
    that move with a module and that no checkpoint holds.

    Args:
        value: the value of the game, where it is known.

    Attributes:
        value: the known value, the cost to x, or None.
        norm: of each game the largest stretch of its payoff, from which step sizes come.
        spread: of each game the size of its payoffs, from which the first perturbation comes.
        radius: of both players, by how much the perturbation's square changes at most for a strategy that
            moves by 1.
    """

    norm: Tensor
    spread: Tensor
    radius: Tensor

    def __init__(self, value: float | None) -> None:
        super().__init__()
        self.value = check_value(value)

    @property
    def count(self) -> int:
        """How many games."""
        return len(self.norm)

    @property
    @abstractmethod
    def single(self) -> bool:
        """Whether it is one game, whose strategies need no dimension of games."""

    @abstractmethod
    def first_mu(self) -> Tensor:
        """For each game a perturbation to start with, above 0."""

    @abstractmethod
    def start(self) -> tuple[Tensor, Tensor]:
        """Uniform strategies of both players, of shape ``(games, size)``."""

    @abstractmethod
    def admit(self, player: int, strategy: Tensor) -> Tensor:
        """A start that a user gave, as strategies of shape ``(games, size)``, projected where it is none.

        Raises:
            ValueError: if it has another shape or is not finite.
        """

    @abstractmethod
    def costs(self, player: int, opponent: Tensor) -> Tensor:
        """What each action or sequence of a player costs it against a strategy of the opponent."""

    @abstractmethod
    def least(self, player: int, cost: Tensor) -> Tensor:
        """The cost of a best response; one dimension less."""

    @abstractmethod
    def step(
        self, player: int, strategy: Tensor, cost: Tensor, keep: Tensor, official: Tensor | None = None
    ) -> Tensor:
        """A step of gradient descent with a perturbation, projected.

        Args:
            player: 0 or 1.
            strategy: where the step starts.
            cost: eta times the player's costs.
            keep: 1 - eta mu, with a last dimension of 1.
            official: eta mu, to hand up a tree what the authors' code does; None: exact.

        Returns:
            The new strategy.
        """

    @abstractmethod
    def entropic_step(self, player: int, strategy: Tensor, cost: Tensor) -> Tensor:
        """A step of multiplicative weights; ``cost`` is eta times the player's costs."""

    @abstractmethod
    def square(self, player: int, strategy: Tensor) -> Tensor:
        """What a perturbation of 1 adds to the cost of a strategy; one dimension less."""

    @abstractmethod
    def perturbed_least(self, player: int, cost: Tensor, mu: Tensor) -> Tensor:
        """The least cost where a perturbation is added; one dimension less, as ``mu``."""

    def advance(
        self,
        x: Tensor,
        y: Tensor,
        *,
        eta: Tensor,
        mu_x: Tensor,
        mu_y: Tensor,
        steps: int,
        official: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Iterate AsymP-GDA or AsymP-DGDA, Sections 3.3 and 3.5: x first, then y against the new x.

        Args:
            x: strategies of the minimising player, shape ``(games, processes, size)``.
            y: strategies of the maximising player.
            eta: step sizes, broadcast against the strategies.
            mu_x: perturbations of x, shape ``(games, processes, 1)``.
            mu_y: perturbations of y.
            steps: how many iterations.
            official: hand up a tree what the authors' code does.

        Returns:
            The new strategies.
        """
        pull_x, pull_y = eta * mu_x, eta * mu_y
        keep_x, keep_y = 1 - pull_x, 1 - pull_y
        extra_x, extra_y = (pull_x, pull_y) if official else (None, None)
        for _ in range(steps):
            x = self.step(0, x, eta * self.costs(0, y), keep_x, extra_x)
            y = self.step(1, y, eta * self.costs(1, x), keep_y, extra_y)
        return x, y

    def worst_case(self, x: Tensor) -> Tensor:
        """g(x), the most that x can cost, against a best response of y; one dimension less."""
        return -self.least(1, self.costs(1, x))

    def guaranteed(self, y: Tensor) -> Tensor:
        """h(y), the least that y earns, against a best response of x; one dimension less."""
        return self.least(0, self.costs(0, y))

    def nash_conv(self, x: Tensor, y: Tensor) -> Tensor:
        """NashConv, g(x) - h(y) of Section 3.1: what both could gain together by best responses.

        Args:
            x: strategies of the minimising player, of shape ``(..., size)``.
            y: strategies of the maximising player.

        Returns:
            NashConv, of the leading shape; 0 at an equilibrium and nowhere else.
        """
        # rounding may leave it below 0
        return (self.worst_case(x) - self.guaranteed(y)).clamp(min=0)

    def perturbed_gap(self, player: int, own: Tensor, opponent: Tensor, mu: Tensor) -> Tensor:
        """The duality gap of the game that perturbs one player, Section 3.4.

        Args:
            player: the perturbed player.
            own: its strategy.
            opponent: the other player's strategy.
            mu: the perturbation, above 0.

        Returns:
            The gap; one dimension less.
        """
        most = -self.least(1 - player, self.costs(1 - player, own)) + mu * self.square(player, own)
        return most - self.perturbed_least(player, self.costs(player, opponent), mu)


def default_step(norm: Tensor, mu: Tensor) -> Tensor:
    """The default step size, a share of the longest stable one (derived).

    The bound eta² |A|² + 2 eta mu < 4 of Section 3.3 holds up to eta = 4 / (mu + √(mu² + 4 |A|²)). Where norm
    and mu are 0 no step moves anything, and it is 1.

    Args:
        norm: of each game the norm.
        mu: of each game the perturbation.

    Returns:
        A step size for each game.
    """
    slowness = mu + torch.hypot(mu, 2 * norm)
    return torch.where(slowness > 0, STEP_SHARE * 4 / slowness, 1.0)


def spectral_norm(matrix: Float[Tensor, "... m n"]) -> Float[Tensor, "*batch"]:
    """The largest singular value: of matrices of up to a million entries exactly, else from above.

    Args:
        matrix: dense, or one sparse matrix in CSR form.

    Returns:
        The norm; by power iteration it is 50 steps times 1.05.
    """
    if matrix.layout == torch.strided and matrix.shape[-1] * matrix.shape[-2] <= 1_000_000:
        exact: Tensor = torch.linalg.matrix_norm(matrix, 2)
        return exact
    generator = torch.Generator().manual_seed(0)
    vector = torch.rand(*matrix.shape[:-2], matrix.shape[-1], 1, dtype=matrix.dtype, generator=generator)
    vector = vector.to(matrix.device)
    transposed = matrix.t().to_sparse_csr() if matrix.layout == torch.sparse_csr else matrix.mT
    length = torch.ones(matrix.shape[:-2], dtype=matrix.dtype, device=matrix.device)
    for _ in range(POWER_STEPS):
        vector = vector / vector.norm(dim=-2, keepdim=True).clamp(min=1e-300)
        image = matrix @ vector
        length = image.norm(dim=(-2, -1))
        vector = transposed @ image
    bounded: Tensor = POWER_SAFETY * length
    return bounded
