"""What the paper compares with, for matrices and for trees: gradient methods, weights, and the CFR family.

A method is a class with the current strategies, one `step` that moves both, and what it would hand out: the
last iterate, or an average. They are written on what a `Game` offers, so that one text serves both kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

import leyden_asym_perturb.treeplex as tp
from leyden_asym_perturb.game import Game
from leyden_asym_perturb.sequence_form import SequenceFormGame

Noise = Callable[[Tensor], Tensor]
"""Adds something to a player's costs, as noisy feedback does."""


class Method(ABC):
    """An iteration on a game.

    Args:
        game: the game; a batch of matrix games counts as runs side by side.
        x0: where x starts, of shape ``(games, size)``; None: uniform.
        y0: where y starts.
        noise: changes the costs that a step sees.
    """

    def __init__(
        self,
        game: Game,
        *,
        x0: Tensor | None = None,
        y0: Tensor | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.game = game
        x, y = game.start()
        self.x, self.y = x if x0 is None else x0, y if y0 is None else y0
        self._noise = noise

    @abstractmethod
    def step(self) -> None:
        """One iteration of both players."""

    def answer(self) -> tuple[Tensor, Tensor]:
        """What the method hands out: its last iterate."""
        return self.x, self.y

    def costs(self, player: int, opponent: Tensor) -> Tensor:
        """The costs that a step sees."""
        costs = self.game.costs(player, opponent)
        return costs if self._noise is None else self._noise(costs)


class PerturbedGDA(Method):
    """Alternating gradient descent-ascent with perturbations of either player, Sections 3.3 and 3.5.

    With both 0 it is GDA or DGDA, with one AsymP, with both equal SymP (Section 4).

    Args:
        game: the game.
        eta: the step size.
        mu_x: the perturbation of x.
        mu_y: the perturbation of y.
        simultaneous: whether y answers the old x; unstable unless eta is tiny, kept for comparison.
        **given: as of `Method`.
    """

    def __init__(
        self,
        game: Game,
        *,
        eta: float,
        mu_x: float = 0.0,
        mu_y: float = 0.0,
        simultaneous: bool = False,
        **given: Any,
    ) -> None:
        super().__init__(game, **given)
        self.eta = eta
        self.keep = [torch.full_like(self.x[:1, :1], 1 - eta * mu) for mu in (mu_x, mu_y)]
        self.simultaneous = simultaneous

    def step(self) -> None:
        """X first, then y against the new x."""
        before = self.x
        self.x = self.game.step(0, self.x, self.eta * self.costs(0, self.y), self.keep[0])
        seen = before if self.simultaneous else self.x
        self.y = self.game.step(1, self.y, self.eta * self.costs(1, seen), self.keep[1])


class MirroredAsymP(Method):
    """Two processes, one that perturbs x and one that perturbs y; handed out is the perturbed player of each.

    Args:
        game: the game.
        eta: the step size.
        mu: the perturbation.
        **given: as of `Method`.
    """

    def __init__(self, game: Game, *, eta: float, mu: float, **given: Any) -> None:
        super().__init__(game, **given)
        self.processes = [
            PerturbedGDA(game, eta=eta, mu_x=mu, **given),
            PerturbedGDA(game, eta=eta, mu_y=mu, **given),
        ]

    def step(self) -> None:
        """An iteration of both processes."""
        for process in self.processes:
            process.step()
        self.x, self.y = self.processes[0].x, self.processes[1].y


class OptimisticGDA(Method):
    """OGDA and DOGDA, Section 4: both players move from a base by the last gradient, then the base does.

    Args:
        game: the game.
        eta: the step size.
        geometry: ``"euclidean"``, or ``"entropic"`` for optimistic multiplicative weights (DOMWU).
        **given: as of `Method`.
    """

    def __init__(
        self,
        game: Game,
        *,
        eta: float,
        geometry: Literal["euclidean", "entropic"] = "euclidean",
        **given: Any,
    ) -> None:
        super().__init__(game, **given)
        self.eta = eta
        self.geometry = geometry
        self.base = self.x, self.y
        self._one = torch.ones_like(self.x[:1, :1])
        self._seen = self.costs(0, self.y), self.costs(1, self.x)

    def step(self) -> None:
        """Move by the gradient that was seen last, look again, and move the base by what is seen."""
        self.x, self.y = self._move(0, self._seen[0]), self._move(1, self._seen[1])
        self._seen = self.costs(0, self.y), self.costs(1, self.x)
        self.base = self._move(0, self._seen[0]), self._move(1, self._seen[1])

    def _move(self, player: int, costs: Tensor) -> Tensor:
        if self.geometry == "entropic":
            return self.game.entropic_step(player, self.base[player], self.eta * costs)
        return self.game.step(player, self.base[player], self.eta * costs, self._one)


class Extragradient(Method):
    """The extragradient method: look ahead by a step, then move by what is seen there; two gradients a step.

    Args:
        game: the game.
        eta: the step size.
        **given: as of `Method`.
    """

    def __init__(self, game: Game, *, eta: float, **given: Any) -> None:
        super().__init__(game, **given)
        self.eta = eta
        self._one = torch.ones_like(self.x[:1, :1])

    def step(self) -> None:
        """Look ahead, then move."""
        ahead = self._move(self.x, self.y)
        self.x, self.y = self._move(*ahead)

    def _move(self, at_x: Tensor, at_y: Tensor) -> tuple[Tensor, Tensor]:
        x = self.game.step(0, self.x, self.eta * self.costs(0, at_y), self._one)
        return x, self.game.step(1, self.y, self.eta * self.costs(1, at_x), self._one)


class MultiplicativeWeights(Method):
    """Alternating multiplicative weights, on a tree dilated (DMWU), Section 3.5.

    Args:
        game: the game.
        eta: the step size.
        **given: as of `Method`.
    """

    def __init__(self, game: Game, *, eta: float, **given: Any) -> None:
        super().__init__(game, **given)
        self.eta = eta

    def step(self) -> None:
        """X first, then y against the new x."""
        self.x = self.game.entropic_step(0, self.x, self.eta * self.costs(0, self.y))
        self.y = self.game.entropic_step(1, self.y, self.eta * self.costs(1, self.x))


CFRVariant = Literal["cfr", "cfr+", "dcfr", "lcfr", "pcfr+"]

_AVERAGING: dict[CFRVariant, int] = {"cfr": 0, "cfr+": 1, "dcfr": 2, "lcfr": 1, "pcfr+": 2}
"""The power of the iteration with which a strategy counts in the average."""


class CounterfactualRegret(Method):
    """The CFR family on a game tree, vectorised, alternating; handed out is the average strategy (Section 4).

    Args:
        game: the game.
        variant: ``"cfr"``; ``"cfr+"`` with linear averaging; ``"dcfr"`` with (1.5, 0, 2); ``"lcfr"``; or
            ``"pcfr+"``, predictive with quadratic averaging.
        **given: as of `Method`.
    """

    game: SequenceFormGame

    def __init__(self, game: SequenceFormGame, *, variant: CFRVariant = "cfr+", **given: Any) -> None:
        super().__init__(game, **given)
        self.variant = variant
        self.regrets = [torch.zeros_like(self.x), torch.zeros_like(self.y)]
        self.sums = [torch.zeros_like(self.x), torch.zeros_like(self.y)]
        self.time = 0

    def step(self) -> None:
        """Player 0 first, then player 1 against the new strategy."""
        self.time += 1
        for player in (0, 1):
            own = (self.x, self.y)[player]
            opponent = (self.x, self.y)[1 - player]
            self._average(player, own)
            regret = self._instant(player, own, self.costs(player, opponent))
            new = self._match(player, regret)
            if player == 0:
                self.x = new
            else:
                self.y = new

    def answer(self) -> tuple[Tensor, Tensor]:
        """The average strategies."""
        x, y = (tp.to_behaviour(tree, total) for tree, total in zip(self.game.trees, self.sums, strict=True))
        return x, y

    def _average(self, player: int, own: Tensor) -> None:
        """Add the strategy that was played, with the variant's weight."""
        weight = self.time ** _AVERAGING[self.variant]
        self.sums[player] += weight * tp.to_sequence(self.game.trees[player], own)

    def _instant(self, player: int, own: Tensor, costs: Tensor) -> Tensor:
        """The counterfactual regrets of this iteration: what a set costs, minus what each action costs."""
        tree = self.game.trees[player]
        total, regret = costs.clone(), torch.zeros_like(costs)
        parts = zip(
            reversed(tree.views(total)),
            reversed(tree.views(own)),
            reversed(tree.views(regret)),
            reversed(tree.leading()),
            strict=True,
        )
        for part, chances, target, parents in parts:
            worth = (part * chances).sum(-1)
            target.copy_(worth.unsqueeze(-1) - part)
            total.index_add_(-1, parents, worth)
        return regret

    def _match(self, player: int, regret: Tensor) -> Tensor:
        """Add the regrets as the variant does, and play in proportion to the positive ones."""
        summed = self.regrets[player] + regret
        if self.variant in ("cfr+", "pcfr+"):
            summed = summed.clamp(min=0)
        elif self.variant == "dcfr":
            grown = self.time**1.5
            summed = torch.where(summed >= 0, summed * (grown / (grown + 1)), 0.5 * summed)
        elif self.variant == "lcfr":
            summed = summed * (self.time / (self.time + 1))
        self.regrets[player] = summed
        weights = (summed + regret if self.variant == "pcfr+" else summed).clamp(min=0)
        tree, new = self.game.trees[player], torch.ones_like(summed)
        for target, part in zip(tree.views(new), tree.views(weights), strict=True):
            whole = part.sum(-1, keepdim=True)
            target.copy_(torch.where(whole > 0, part / whole.clamp(min=1e-300), 1 / part.shape[-1]))
        return new


@torch.no_grad()
def run(method: Method, iterations: int, *, every: int = 0) -> list[tuple[int, float]]:
    """Iterate, and measure NashConv of what the method hands out.

    Args:
        method: the method.
        iterations: how many.
        every: from one measurement to the next; 0: at the end alone.

    Returns:
        Iterations and NashConv there; of a batch the mean.
    """
    measured = []
    for count in range(1, iterations + 1):
        method.step()
        if count == iterations or (every and count % every == 0):
            measured.append((count, float(method.game.nash_conv(*method.answer()).mean())))
    return measured
