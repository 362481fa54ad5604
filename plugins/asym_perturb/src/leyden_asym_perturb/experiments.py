"""What the claims measure: runs of a method from random starts, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden_asym_perturb.baselines import (
    CounterfactualRegret,
    Extragradient,
    Method,
    MirroredAsymP,
    MultiplicativeWeights,
    Noise,
    OptimisticGDA,
    PerturbedGDA,
)
from leyden_asym_perturb.game import Game
from leyden_asym_perturb.games import (
    biased_pennies,
    biased_rps,
    goofspiel,
    kuhn_poker,
    leduc_poker,
    many_equilibria,
)
from leyden_asym_perturb.matrix_game import MatrixGame
from leyden_asym_perturb.sequence_form import SequenceFormGame

GAMES: Mapping[str, Callable[[], Any]] = {
    "BRPS": biased_rps,
    "M-Ne": many_equilibria,
    "BMP": biased_pennies,
    "Kuhn": kuhn_poker,
    "Goofspiel-4": goofspiel,
    "Leduc": leduc_poker,
}


def method_of(name: str, game: Game, eta: Any, mu: float = 0.0, **given: Any) -> Method:
    """A method of Section 4 by its name, on a matrix or a tree.

    Args:
        name: such as ``"AsymP"``, the mirrored pair, ``"AsymP of x"``, one process, or ``"CFR+"``.
        game: the game.
        eta: the step size of a gradient method; for OGDA and extragradient also one for each game.
        mu: the perturbation, where there is one.
        **given: starts and noise.

    Returns:
        The method.
    """
    if name == "AsymP":
        return MirroredAsymP(game, eta=eta, mu=mu, **given)
    if name == "AsymP of x":
        return PerturbedGDA(game, eta=eta, mu_x=mu, **given)
    if name == "SymP":
        return PerturbedGDA(game, eta=eta, mu_x=mu, mu_y=mu, **given)
    if name == "GDA":
        return PerturbedGDA(game, eta=eta, **given)
    if name == "OGDA":
        return OptimisticGDA(game, eta=eta, **given)
    if name == "OMWU":
        return OptimisticGDA(game, eta=eta, geometry="entropic", **given)
    if name == "MWU":
        return MultiplicativeWeights(game, eta=eta, **given)
    if name == "extragradient":
        return Extragradient(game, eta=eta, **given)
    assert isinstance(game, SequenceFormGame)
    variant: Any = name.lower()
    return CounterfactualRegret(game, variant=variant, **given)


def random_starts(game: Game, seed: int, count: int = 1) -> dict[str, Tensor]:
    """Random strategies of both players: uniform on the simplex, on a tree at every information set.

    Args:
        game: the game.
        seed: of numpy's generator.
        count: how many pairs.

    Returns:
        ``x0`` and ``y0``, of shape ``(count, size)``.
    """
    generator = np.random.default_rng(seed)
    both = []
    for player, uniform in enumerate(game.start()):
        weights = torch.from_numpy(generator.exponential(size=(count, uniform.shape[-1])))
        if isinstance(game, SequenceFormGame):
            weights[:, 0] = 1
            for part in game.trees[player].views(weights):
                part /= part.sum(-1, keepdim=True)
        else:
            weights /= weights.sum(-1, keepdim=True)
        both.append(weights)
    return {"x0": both[0], "y0": both[1]}


@torch.no_grad()
def curve(method: Method, iterations: int, points: int = 40) -> tuple[list[int], list[Tensor]]:
    """NashConv of what a method hands out, at places spread evenly in their logarithm.

    Args:
        method: the method.
        iterations: how many.
        points: about how many places.

    Returns:
        The iterations, and NashConv of every start there; the last place is the last iteration.
    """
    ratio = iterations ** (1 / points)
    marks = sorted({max(1, round(ratio**place)) for place in range(points + 1)} | {iterations})
    found = []
    for count in range(1, iterations + 1):
        method.step()
        if count in marks:
            found.append(method.game.nash_conv(*method.answer()))
    return marks, found


@torch.no_grad()
def iterations_needed(method: Method, eps: float, budget: int, every: int = 10) -> list[float]:
    """Iterations until NashConv of what the method hands out is small enough, for each game of a batch.

    Args:
        method: the method.
        eps: what is small enough.
        budget: iterations at most.
        every: iterations from one look to the next.

    Returns:
        The numbers; the budget where it did not suffice.
    """
    needed = torch.full((method.game.count,), float(budget))
    for count in range(every, budget + 1, every):
        for _ in range(every):
            method.step()
        low = method.game.nash_conv(*method.answer()) <= eps
        needed = torch.where(low & (needed == budget), float(count), needed)
        if bool((needed < budget).all()):
            break
    found: list[float] = needed.tolist()
    return found


@torch.no_grad()
def late_exploitability(method: Method, iterations: int) -> float:
    """Exploitability of the last iterate of x, averaged over the last tenth of a run.

    Args:
        method: the method, on a game whose value is known.
        iterations: how many.

    Returns:
        The mean, over starts too.
    """
    value, late = method.game.value or 0.0, round(0.9 * iterations)
    total = torch.zeros(())
    for count in range(iterations):
        method.step()
        if count >= late:
            total = total + (method.game.worst_case(method.x) - value).mean()
    return float(total) / (iterations - late)


def gaussian(seed: int, scale: float) -> Noise:
    """Independent normal noise on every entry of a gradient, Section 6 (E3).

    Args:
        seed: of torch's generator.
        scale: its standard deviation.

    Returns:
        The function that adds it.
    """
    generator = torch.Generator().manual_seed(seed)

    def noisy(costs: Tensor) -> Tensor:
        return costs + scale * torch.randn(costs.shape, dtype=costs.dtype, generator=generator)

    return noisy


@torch.no_grad()
def pennies_solutions(strengths: Tensor, iterations: int, *, symmetric: bool) -> Tensor:
    """What perturbations make of biased matching pennies.

    Args:
        strengths: the perturbations.
        iterations: how many, with a step of 1 / (norm + mu).
        symmetric: whether both players of one run are perturbed; else the mirrored pair is meant.

    Returns:
        NashConv in the game itself, a number for each strength.
    """
    game = MatrixGame(biased_pennies().payoff.expand(len(strengths), 2, 2))
    mu = strengths[:, None, None]
    none = torch.zeros_like(mu)
    mu_x, mu_y = (mu, mu) if symmetric else (torch.cat((mu, none), 1), torch.cat((none, mu), 1))
    x, y = (side.unsqueeze(1).repeat(1, mu_x.shape[1], 1) for side in game.start())
    eta = 1 / (game.norm[:, None, None] + mu)
    x, y = game.advance(x, y, eta=eta, mu_x=mu_x, mu_y=mu_y, steps=iterations)
    return game.nash_conv(x[:, 0], y[:, -1])
