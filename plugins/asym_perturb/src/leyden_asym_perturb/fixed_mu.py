"""AsymP-GDA and AsymP-DGDA with a fixed perturbation of one player: Sections 3.3 and 3.5."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from leyden_asym_perturb.arguments import check_positive, check_side, check_whole
from leyden_asym_perturb.game import Game, default_step
from leyden_asym_perturb.solver import ProcessResult, as_game, warn_of_step

CHECK_EVERY = 10


@torch.no_grad()
def asymp_gda(
    A: Game | Tensor,
    mu: float,
    eta: float | None = None,
    side: Literal["x", "y"] = "x",
    x0: Tensor | None = None,
    y0: Tensor | None = None,
    max_iters: int = 10_000,
    tol: float = 1e-12,
    *,
    perturbation: Literal["gradient", "official"] = "gradient",
) -> ProcessResult:
    """Perturb one player and iterate, Section 3.3; on a game tree Section 3.5.

    Args:
        A: the cost to the row player, of shape ``(m, n)``, or a game.
        mu: the perturbation; 0 is plain gradient descent-ascent, which goes round in circles.
        eta: the step size; None: a share of the longest stable one.
        side: the perturbed player.
        x0: where x starts; None: uniform.
        y0: where y starts; None: uniform.
        max_iters: iterations at most.
        tol: the duality gap of the perturbed game that ends the run; it is looked at every 10 iterations.
        perturbation: what a set of a tree hands to its parent: ``"gradient"``, exact, or ``"official"``, what
            the authors' code does, which bears smaller perturbations only.

    Returns:
        The perturbed player's strategy; one of a batch of games a row.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
        FloatingPointError: if a number is no longer finite.

    >>> asymp_gda(torch.tensor([[0.0, 1.0, -3.0], [-1.0, 0.0, 1.0], [3.0, -1.0, 0.0]]), 1.0).strategy
    tensor([0.2000, 0.6000, 0.2000], dtype=torch.float64)
    """
    game = as_game(A)
    check_positive("mu", mu, zero=True)
    check_side(side)
    check_positive("tol", tol, zero=True)
    check_whole("max_iters", max_iters, 0)
    if perturbation not in ("gradient", "official"):
        raise ValueError(f"perturbation: expected 'gradient' or 'official', got {perturbation!r}")
    strength = torch.full_like(game.norm, mu)
    if eta is not None:
        check_positive("eta", eta)
        warn_of_step(eta, strength, game.norm)
    step = default_step(game.norm, strength) if eta is None else torch.full_like(strength, eta)
    x, y = game.start()
    x = (x if x0 is None else game.admit(0, x0)).unsqueeze(1)
    y = (y if y0 is None else game.admit(1, y0)).unsqueeze(1)
    pulls = [torch.zeros_like(strength)[:, None, None] for _ in range(2)]
    player = "xy".index(side)
    pulls[player] = strength[:, None, None]
    gap, done = torch.full_like(strength, torch.inf), 0
    while done < max_iters and not bool((gap <= tol).all()):
        steps = min(CHECK_EVERY, max_iters - done)
        x, y = game.advance(
            x,
            y,
            eta=step[:, None, None],
            mu_x=pulls[0],
            mu_y=pulls[1],
            steps=steps,
            official=perturbation == "official",
        )
        done += steps
        own, other = (x[:, 0], y[:, 0]) if player == 0 else (y[:, 0], x[:, 0])
        if mu > 0:
            gap = game.perturbed_gap(player, own, other, strength)
        if not bool(torch.isfinite(own).all()):
            raise FloatingPointError(f"a strategy is not finite at iteration {done} with mu = {mu:g}")
    own, other = (x[:, 0], y[:, 0]) if player == 0 else (y[:, 0], x[:, 0])
    bound = game.worst_case(own) if player == 0 else game.guaranteed(own)
    place = 0 if game.single else slice(None)
    return ProcessResult(
        strategy=own[place],
        companion=other[place],
        bound=bound[place],
        gap=gap[place],
        side=side,
        iters=done,
        converged=bool((gap <= tol).all()),
    )
