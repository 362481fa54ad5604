"""The two processes side by side, with a perturbation that halves itself: Algorithm 1, Section 3.4."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from leyden_asym_perturb.arguments import check_positive, check_whole
from leyden_asym_perturb.game import Game, default_step


@dataclass(frozen=True)
class Round:
    """A round of one perturbation, of one game.

    Attributes:
        game: the game's place in the batch.
        mu: its perturbation.
        iters: iterations of the whole run at its end.
        nash_conv: NashConv at its end.
    """

    game: int
    mu: float
    iters: int
    nash_conv: float


@dataclass(frozen=True)
class SolveResult:
    """What solving a game gives; of a batch of games every number is a tensor with one value a game.

    Attributes:
        x: the strategy of x: a point of the simplex, or behavioural probabilities of a tree.
        y: the strategy of y.
        nash_conv: the certificate, NashConv of (x, y) in the game itself, without any perturbation: together
            the two strategies are worse than the best by so much and no more.
        lower: h(y); the value of the game is at least that.
        upper: g(x); the value of the game is at most that.
        mu: the perturbation with which they were found.
        iters: iterations after which they were found.
        rounds: how often the perturbation was halved.
        converged: whether the certificate is at most the accuracy that was asked.
        history: the rounds, in the order in which they ended.
    """

    x: Tensor
    y: Tensor
    nash_conv: float | Tensor
    lower: float | Tensor
    upper: float | Tensor
    mu: float | Tensor
    iters: int | Tensor
    rounds: int | Tensor
    converged: bool | Tensor
    history: tuple[Round, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class ProcessResult:
    """What one process gives: a strategy of the perturbed player, and of that player alone.

    Attributes:
        strategy: the perturbed player's strategy.
        companion: the other player's strategy at the saddle point of the perturbed game. It is in general no
            equilibrium strategy of the game: `asymp_solve` runs the mirrored process for it.
        bound: g of the strategy for x, the most that it can cost; h of it for y, the least that it earns.
        gap: the duality gap of the perturbed game.
        side: which player was perturbed.
        iters: iterations.
        converged: whether the gap is small enough.
    """

    strategy: Tensor
    companion: Tensor
    bound: Tensor
    gap: Tensor
    side: Literal["x", "y"]
    iters: int
    converged: bool


class _Pair(NamedTuple):
    """Strategies of both players, of every game, and when they were found."""

    x: Tensor
    y: Tensor
    mu: Tensor
    iteration: Tensor


class Solver(nn.Module):
    """The state of a solution, and how to go on with it.

    Two processes run side by side, one that perturbs x and one that perturbs y; of each only the perturbed
    player's strategy is taken (Section 3.2). Every ``check_every`` iterations NashConv of the game itself is
    computed. If it is more than twice the sum of the duality gaps of the perturbed games, the perturbation is
    larger than it need be, and is halved. All state is buffers; what is interrupted and loaded goes on with
    the same bits.

    Args:
        game: one game, or several of one size.
        eps: the NashConv that ends the run, above 0.
        mu: a perturbation to keep; None: start with ``mu_init`` and halve.
        mu_init: the first perturbation; None: from the size of the payoffs.
        eta: the step size; None: a share of the longest stable one, which follows mu.
        check_every: iterations from one check to the next.
        max_halvings: how often mu is halved at most.
        warm_start: whether a round starts where the last one ended.
        mirrored: whether both processes run. Without the second ``mu`` must be given; the run ends when the
            duality gap of the perturbed game shows that x is within ``eps`` of the best for it.
        official: hand up a tree what the authors' code does.
        x0: where x starts; None: uniform.
        y0: where y starts; None: uniform.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """

    x: Tensor
    y: Tensor
    mu: Tensor
    iteration: Tensor
    rounds: Tensor
    best_x: Tensor
    best_y: Tensor
    best: Tensor
    best_mu: Tensor
    best_iteration: Tensor
    done: Tensor
    current: Tensor
    gaps: Tensor

    def __init__(
        self,
        game: Game,
        *,
        eps: float,
        mu: float | None = None,
        mu_init: float | None = None,
        eta: float | None = None,
        check_every: int = 10,
        max_halvings: int = 40,
        warm_start: bool = True,
        mirrored: bool = True,
        official: bool = False,
        x0: Tensor | None = None,
        y0: Tensor | None = None,
    ) -> None:
        super().__init__()
        if not mirrored and not mu:
            raise ValueError(f"mirrored: False needs a mu above 0, got mu={mu!r}")
        check_positive("eps", eps)
        for name, number in (("mu", mu), ("mu_init", mu_init), ("eta", eta)):
            if number is not None:
                check_positive(name, number, zero=name == "mu")
        check_whole("check_every", check_every, 1)
        check_whole("max_halvings", max_halvings, 0)
        if mu is not None and mu_init is not None:
            raise ValueError(
                f"mu_init: expected None where mu is kept, got mu={mu!r} and mu_init={mu_init!r}"
            )
        if game.norm.dtype not in (torch.float64, torch.float32):
            raise ValueError(f"game: expected its payoffs in float64 or float32, got {game.norm.dtype}")
        self.game = game
        self.eps = eps
        self.fixed = mu is not None
        self.eta = eta
        self.check_every = check_every
        self.max_halvings = max_halvings
        self.warm_start = warm_start
        self.mirrored = mirrored
        self.official = official
        self.history: list[Round] = []
        x, y = game.start()
        x = x if x0 is None else game.admit(0, x0)
        y = y if y0 is None else game.admit(1, y0)
        strength = game.first_mu() if mu_init is None else torch.full_like(game.norm, mu_init)
        strength = strength if mu is None else torch.full_like(game.norm, mu)
        if eta is not None:
            warn_of_step(eta, strength, game.norm)
        self._hold(x, y, strength)

    def _hold(self, x: Tensor, y: Tensor, mu: Tensor) -> None:
        """Make the buffers."""
        games = len(mu)
        both = (games, 2 if self.mirrored else 1, -1)
        whole = torch.zeros_like(mu, dtype=torch.int64)
        for name, tensor in {
            "x": x.unsqueeze(1).expand(both),
            "y": y.unsqueeze(1).expand(both),
            "mu": mu,
            "iteration": whole[0],
            "rounds": whole,
            "best_x": x,
            "best_y": y,
            "best": torch.full_like(mu, torch.finfo(mu.dtype).max),
            "best_mu": mu,
            "best_iteration": whole,
            "done": torch.zeros_like(mu, dtype=torch.bool),
            "current": torch.full_like(mu, torch.finfo(mu.dtype).max),
            "gaps": torch.zeros_like(mu)[:, None].repeat(1, 2),
        }.items():
            self.register_buffer(name, tensor.clone())

    @property
    def finished(self) -> bool:
        """Whether every game is solved."""
        return bool(self.done.all())

    @property
    def step_size(self) -> Tensor:
        """The step size of each game."""
        if self.eta is None:
            return default_step(self.game.norm, self.mu)
        return torch.full_like(self.mu, self.eta)

    @torch.no_grad()
    def advance(self, iterations: int) -> bool:
        """Go on for some iterations, or until every game is solved.

        However a run is cut into calls, it gives the same numbers.

        Args:
            iterations: how many at most.

        Returns:
            Whether every game is solved.

        Raises:
            FloatingPointError: if a number is no longer finite; the text tells iteration and mu.
        """
        done = int(self.iteration)
        end = done + iterations
        if done == 0 and iterations > 0:
            self._check()
        while done < end and not self.finished:
            steps = min(self.check_every - done % self.check_every, end - done)
            self._iterate(steps)
            done += steps
            self.iteration.fill_(done)
            if done % self.check_every == 0:
                self._check()
        return self.finished

    def result(self) -> SolveResult | ProcessResult:
        """The best pair seen, with its certificate; without the second process the strategy of x alone."""
        game = self.game
        if not self.mirrored:
            return self._one_sided()
        best = self._best()
        lower, upper = game.guaranteed(best.y), game.worst_case(best.x)
        found = game.nash_conv(best.x, best.y)
        converged = found <= self.eps
        if not game.single:
            return SolveResult(
                x=best.x,
                y=best.y,
                nash_conv=found,
                lower=lower,
                upper=upper,
                mu=best.mu,
                iters=best.iteration,
                rounds=self.rounds.clone(),
                converged=converged,
                history=tuple(self.history),
            )
        return SolveResult(
            x=best.x[0],
            y=best.y[0],
            nash_conv=float(found),
            lower=float(lower),
            upper=float(upper),
            mu=float(best.mu),
            iters=int(best.iteration),
            rounds=int(self.rounds),
            converged=bool(converged),
            history=tuple(self.history),
        )

    def _one_sided(self) -> ProcessResult:
        place = 0 if self.game.single else slice(None)
        best = self._best()
        gap = self.game.perturbed_gap(0, best.x, best.y, self.mu)
        return ProcessResult(
            strategy=best.x[place],
            companion=best.y[place],
            bound=self.game.worst_case(best.x)[place],
            gap=gap[place],
            side="x",
            iters=int(self.iteration),
            converged=bool((_distance(gap, self.mu, self.game.radius[0]) <= self.eps).all()),
        )

    def _best(self) -> _Pair:
        """The best pair that was checked, or the present one if no check has seen it and it is better."""
        best = _Pair(self.best_x, self.best_y, self.best_mu, self.best_iteration)
        if int(self.iteration) % self.check_every == 0:
            return _Pair(*(part.clone() for part in best))
        now = _Pair(self.x[:, 0], self.y[:, -1], self.mu, self.iteration.expand_as(self.best_iteration))
        better = (self._quality(now.x, now.y) < self.best) & ~self.done
        better_of = better[:, None]
        return _Pair(
            torch.where(better_of, now.x, best.x),
            torch.where(better_of, now.y, best.y),
            torch.where(better, now.mu, best.mu),
            torch.where(better, now.iteration, best.iteration),
        )

    def _quality(self, x: Tensor, y: Tensor) -> Tensor:
        """NashConv of a pair; without the second process by how much x can be worse than the best for it."""
        if self.mirrored:
            return self.game.nash_conv(x, y)
        return _distance(self.game.perturbed_gap(0, x, y, self.mu), self.mu, self.game.radius[0])

    def _iterate(self, steps: int) -> None:
        eta = self.step_size[:, None, None]
        none = torch.zeros_like(self.mu)
        of_x, of_y = ([self.mu, none], [none, self.mu]) if self.mirrored else ([self.mu], [none])
        mu_x, mu_y = torch.stack(of_x, 1).unsqueeze(-1), torch.stack(of_y, 1).unsqueeze(-1)
        x, y = self.game.advance(
            self.x, self.y, eta=eta, mu_x=mu_x, mu_y=mu_y, steps=steps, official=self.official
        )
        self.x.copy_(x)
        self.y.copy_(y)

    def _check(self) -> None:
        """Compute the certificate, keep the best pair, and halve what is too large."""
        x, y = self.x[:, 0], self.y[:, -1]
        found = self._quality(x, y)
        self.current.copy_(found)
        if not bool(torch.isfinite(found).all()):
            place = int((~torch.isfinite(found)).nonzero()[0])
            raise FloatingPointError(
                f"NashConv is {float(found[place])} at iteration {int(self.iteration)} "
                f"with mu = {float(self.mu[place]):g}"
            )
        better = (found < self.best) & ~self.done
        self.best.copy_(torch.where(better, found, self.best))
        self.best_x.copy_(torch.where(better[:, None], x, self.best_x))
        self.best_y.copy_(torch.where(better[:, None], y, self.best_y))
        self.best_mu.copy_(torch.where(better, self.mu, self.best_mu))
        self.best_iteration.copy_(torch.where(better, self.iteration, self.best_iteration))
        self.done |= found <= self.eps
        if self.finished or self.fixed:
            return
        self.measure_gaps()
        self._halve(found)

    @torch.no_grad()
    def measure_gaps(self) -> None:
        """Set ``gaps`` to the duality gaps of the perturbed games; 0 where nothing is perturbed."""
        if not bool((self.mu > 0).all()):
            return
        players = ((0, self.x, self.y), (1, self.y, self.x)) if self.mirrored else ((0, self.x, self.y),)
        for player, own, opponent in players:
            gap = self.game.perturbed_gap(player, own[:, player], opponent[:, player], self.mu)
            self.gaps[:, player] = gap

    def _halve(self, found: Tensor) -> None:
        """End the round of every game whose NashConv its gaps do not explain (derived).

        Let alpha be the sharpness of g, and mu L at most alpha / 2, where L is the Lipschitz constant of the
        perturbation's square. Then g(x) - v* ≤ 2 (f(x) - f*) for f = g + mu ψ, hence NashConv is at most
        twice the sum of both gaps. Where it is more, mu is above alpha / (2 L).
        """
        explained = 2 * self.gaps.clamp(min=0).sum(-1)
        over = (explained < found) & ~self.done & (self.rounds < self.max_halvings)
        if not bool(over.any()):
            return
        for place in over.nonzero()[:, 0].tolist():
            self.history.append(Round(place, float(self.mu[place]), int(self.iteration), float(found[place])))
        self.mu.copy_(torch.where(over, self.mu / 2, self.mu))
        self.rounds += over
        if not self.warm_start:
            x, y = self.game.start()
            self.x.copy_(torch.where(over[:, None, None], x[:, None], self.x))
            self.y.copy_(torch.where(over[:, None, None], y[:, None], self.y))


def asymp_solve(
    game: Game | Tensor,
    eps: float = 1e-8,
    mu_init: float | None = None,
    eta: float | None = None,
    max_iters: int = 200_000,
    check_every: int = 10,
    max_halvings: int = 40,
    warm_start: bool = True,
    *,
    mu: float | None = None,
    x0: Tensor | None = None,
    y0: Tensor | None = None,
) -> SolveResult:
    """Solve a game, or a batch of matrix games, to a certified accuracy: Algorithm 1, Section 3.4.

    No perturbation has to be chosen; of a game of which a good one is known, ``mu`` keeps it fixed.

    Args:
        game: a `MatrixGame`, a `SequenceFormGame`, or a payoff matrix of shape ``(m, n)``.
        eps: the NashConv that is good enough, in the unit of the payoffs.
        mu_init: the first perturbation; None: four times the spread of the payoffs for a matrix.
        eta: the step size; None: a share of the longest stable one, which follows mu.
        max_iters: iterations at most; each costs two half steps of each of the two processes.
        check_every: iterations from one certificate to the next.
        max_halvings: how often mu is halved at most.
        warm_start: whether a round starts where the last one ended.
        mu: keep this perturbation; 0 is plain gradient descent-ascent, which does not converge.
        x0: where x starts; None: uniform.
        y0: where y starts; None: uniform.

    Returns:
        The best pair seen, with its certificate. If the budget did not suffice, ``converged`` is False and a
        warning tells NashConv.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
        FloatingPointError: if a number is no longer finite.

    >>> solved = asymp_solve(torch.tensor([[0.0, 1.0, -3.0], [-1.0, 0.0, 1.0], [3.0, -1.0, 0.0]]))
    >>> [round(p, 6) for p in solved.x.tolist()], solved.converged
    ([0.2, 0.6, 0.2], True)
    """
    check_whole("max_iters", max_iters, 0)
    solver = Solver(
        as_game(game),
        eps=eps,
        mu=mu,
        mu_init=mu_init,
        eta=eta,
        check_every=check_every,
        max_halvings=max_halvings,
        warm_start=warm_start,
        x0=x0,
        y0=y0,
    )
    solver.advance(max_iters)
    found = solver.result()
    assert isinstance(found, SolveResult)
    if not bool(torch.as_tensor(found.converged).all()):
        worst = float(torch.as_tensor(found.nash_conv).max())
        warnings.warn(
            f"asymp_solve: {max_iters} iterations reached NashConv {worst:.2g}, eps is {eps:g}", stacklevel=2
        )
    return found


def _distance(gap: Tensor, mu: Tensor, radius: Tensor) -> Tensor:
    """By how much a strategy can be worse for its player than the solution of the perturbed game (derived).

    With f = g + mu ψ and its minimiser x^mu, the gap is at least f(x) - f(x^mu) and at least mu times the
    divergence of x and x^mu. So g(x) - g(x^mu) ≤ gap + mu (ψ(x^mu) - ψ(x)) ≤ gap + radius sqrt(2 mu gap).
    """
    gap = gap.clamp(min=0)
    return gap + radius * (2 * mu).sqrt() * gap.sqrt()  # two roots, whose product does not overflow


def as_game(game: object) -> Game:
    """A game as it is, or the matrix game of a payoff.

    Args:
        game: what a user gave.

    Returns:
        The game.

    Raises:
        ValueError: if it is neither; the text names ``game`` or ``payoff``.
    """
    from leyden_asym_perturb.matrix_game import MatrixGame

    if isinstance(game, Game):
        return game
    if isinstance(game, str | bytes | Mapping | Set) or game is None:
        raise ValueError(f"game: expected a game or a payoff matrix, got {game!r}")
    return MatrixGame(game)  # type: ignore[arg-type]


def warn_of_step(eta: float, mu: Tensor, norm: Tensor) -> None:
    """Warn of a step size beyond the bound of Section 3.3, eta² |A|² + 2 eta mu < 4.

    Args:
        eta: the step size.
        mu: of each game the perturbation.
        norm: of each game the norm.
    """
    reach = float((eta**2 * norm**2 + 2 * eta * mu).max())
    if not reach < 4 or math.isnan(reach):
        warnings.warn(
            f"eta = {eta:g} is too large to be safe: eta² |A|² + 2 eta mu is {reach:.3g}, the bound is 4",
            stacklevel=3,
        )
