"""Extensive-form games in sequence form, sparse, and the iteration on them (Section 3.5)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy import sparse
from torch import Tensor

import leyden_asym_perturb.treeplex as tp
from leyden_asym_perturb.arguments import admitted, tell_if_projected
from leyden_asym_perturb.game import POWER_STEPS, Game, default_step
from leyden_asym_perturb.game_trees import kuhn_tree
from leyden_asym_perturb.linear_program import MatrixGameSolution, solve_sequence_form
from leyden_asym_perturb.simplex import project_simplex
from leyden_asym_perturb.tree import Child, SequenceForm, sequence_form
from leyden_asym_perturb.treeplex import InfoSet, Treeplex

LOOK_AHEAD = 50
"""Iterations after which the norm of a tree is looked at a second time."""

DENSE = 50_000
"""Up to so many entries a payoff is multiplied as a dense matrix, which is faster there."""


class SequenceFormGame(Game):
    """A two-player zero-sum game with perfect recall, in sequence form.

    Player 0 is x and minimises its cost; player 1 is y. A strategy is the vector of its behavioural
    probabilities over the player's sequences, float64, 1 at place 0 (see `leyden_asym_perturb.treeplex`);
    `policy` shows it by names.

    Args:
        form: the sequence form; `from_tree`, `from_openspiel` and the generators of
            `leyden_asym_perturb.games` make it.
        value: the value of the game, where it is known: the cost to player 0.

    Attributes:
        treeplex: the sequences of both players.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, form: SequenceForm, value: float | None = None) -> None:
        super().__init__(value)
        self.treeplex = torch.nn.ModuleList(form.trees)
        matrix = form.payoff.tocsr()
        largest = float(np.abs(matrix.data).max()) if matrix.nnz else 0.0
        rows, columns = _operator(matrix), _operator(-matrix.T.tocsr())
        for name, tensor in {
            "rows": rows,
            "columns": columns,
            "norm": _stretch(rows, columns, form.trees, *map(tp.uniform_behaviour, form.trees)),
            "spread": torch.tensor([largest], dtype=torch.float64),
            "radius": torch.tensor([tp.radius(tree) for tree in form.trees], dtype=torch.float64),
        }.items():
            self.register_buffer(name, tensor, persistent=False)
        self.norm.copy_(torch.maximum(self.norm, self._later_stretch()))

    @torch.no_grad()
    def _later_stretch(self) -> Tensor:
        """The norm where some iterations lead; it grows where play concentrates."""
        x, y = (strategy.unsqueeze(1) for strategy in self.start())
        mu = self.first_mu()[:, None, None] / 8  # of the size that rounds end with
        eta = default_step(self.norm[:, None, None], mu) / 2
        x, y = self.advance(x, y, eta=eta, mu_x=mu, mu_y=torch.zeros_like(mu), steps=LOOK_AHEAD)
        return _stretch(self.rows, self.columns, self.trees, x[0, 0], y[0, 0])

    def __deepcopy__(self, memo: dict[int, Any]) -> SequenceFormGame:
        """A copy; torch itself copies no sparse matrix in CSR form."""
        memo |= {id(matrix): matrix.clone() for matrix in (self.rows, self.columns)}
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__dict__ = copy.deepcopy(self.__dict__, memo)
        return twin

    @classmethod
    def from_tree(cls, root: Child, value: float | None = None) -> SequenceFormGame:
        """Make a game of a tree.

        Args:
            root: the tree, of `leyden_asym_perturb.Decision`, ``Chance`` and ``Terminal``.
            value: as of the class.

        Returns:
            The game.

        Raises:
            ValueError: if the game is not zero-sum, has no perfect recall or not two players.

        >>> from leyden_asym_perturb.tree import Decision, Terminal
        >>> def guess(coin: str) -> Decision:
        ...     ends = {side: Terminal((1.0, -1.0) if side == coin else (-1.0, 1.0)) for side in "ht"}
        ...     return Decision(1, "hidden coin", ends)
        >>> pennies = SequenceFormGame.from_tree(Decision(0, "coin", {side: guess(side) for side in "ht"}))
        >>> abs(float(pennies.nash_conv(*pennies.uniform())))
        0.0
        """
        return cls(sequence_form(root), value)

    @classmethod
    def from_openspiel(cls, game: Any, value: float | None = None) -> SequenceFormGame:
        """Take a game of OpenSpiel by one walk through its tree, with a sparse payoff.

        Args:
            game: its name, such as ``"leduc_poker"`` or ``"goofspiel(imp_info=True,num_cards=4)"``, or a game
                of ``pyspiel``; moves at the same time are made into turns.
            value: as of the class.

        Returns:
            The game.

        Raises:
            ValueError: if it has not two players, is not zero-sum or has no perfect recall.
            ImportError: if OpenSpiel is not installed.
        """
        from leyden_asym_perturb.openspiel import tree_of

        return cls.from_tree(tree_of(game), value)

    @classmethod
    def kuhn(cls) -> SequenceFormGame:
        """Kuhn poker; three cards, one bet, Section 3.6; the cost to player 0 is 1/18."""
        return cls.from_tree(kuhn_tree(), 1 / 18)

    @property
    def A(self) -> Tensor:  # noqa: N802 - the paper's name
        """The payoff as a sparse tensor in CSR form: the expected cost to player 0 of a pair of sequences."""
        return (
            self.rows
            if self.rows.layout == torch.sparse_csr
            else _csr(sparse.csr_matrix(self.rows.cpu().numpy()))
        )

    @property
    def trees(self) -> tuple[Treeplex, Treeplex]:
        """The sequences of both players."""
        first, second = self.treeplex
        assert isinstance(first, Treeplex)
        assert isinstance(second, Treeplex)
        return first, second

    def uniform(self) -> tuple[Tensor, Tensor]:
        """Strategies that take every action with the same probability, a vector for each player."""
        return tp.uniform_behaviour(self.trees[0]), tp.uniform_behaviour(self.trees[1])

    def start(self) -> tuple[Tensor, Tensor]:
        """The uniform strategies, as of one game."""
        x, y = self.uniform()
        return x[None], y[None]

    def admit(self, player: int, strategy: Tensor) -> Tensor:
        """A start, projected onto the simplex at every information set."""
        tree, name = self.trees[player], ("x0", "y0")[player]
        start = admitted(name, strategy, (1, tree.num_sequences))
        projected = torch.ones_like(start)
        for target, part in zip(tree.views(projected), tree.views(start), strict=True):
            target.copy_(project_simplex(part))
        tell_if_projected(name, start[:, 1:], projected[:, 1:])
        return projected.to(self.spread)

    def to_sequence(self, player: int, behaviour: Tensor) -> Tensor:
        """The realisation plan of a strategy of player 0 or 1."""
        return tp.to_sequence(self.trees[player], behaviour)

    def to_behaviour(self, player: int, plan: Tensor) -> Tensor:
        """The strategy of a realisation plan of player 0 or 1; uniform where the plan does not reach."""
        return tp.to_behaviour(self.trees[player], plan)

    def policy(self, player: int, behaviour: Tensor) -> dict[str, dict[str, float]]:
        """A strategy by names: for each information set the probability of each action.

        Args:
            player: 0 or 1.
            behaviour: the strategy, a vector.

        Returns:
            A mapping from the information sets' labels.

        Raises:
            ValueError: if there is no such player, or its strategies are longer or shorter.
        """
        tree = self._tree(player)
        if behaviour.shape != (tree.num_sequences,):
            raise ValueError(
                f"behaviour: expected shape {(tree.num_sequences,)}, got {tuple(behaviour.shape)}"
            )
        numbers = behaviour.tolist()
        named, place = {}, 1
        for one in tree.info_sets:
            ends = place + len(one.actions)
            named[one.label] = dict(zip(one.actions, numbers[place:ends], strict=True))
            place = ends
        return named

    def strategy(self, player: int, policy: Mapping[str, Mapping[str, float]]) -> Tensor:
        """The inverse of `policy`; information sets that are missing are uniform.

        Args:
            player: 0 or 1.
            policy: for information sets by label the probability of each action, 0 where one is missing.

        Returns:
            The strategy, a vector.

        Raises:
            ValueError: if a name is unknown, or the numbers at a set are no probabilities of sum 1.
        """
        tree = self._tree(player)
        unknown = policy.keys() - {one.label for one in tree.info_sets}
        if unknown:
            raise ValueError(f"policy: player {player} has no information set '{min(unknown)}'")
        behaviour = tp.uniform_behaviour(tree)
        place = 1
        for one in tree.info_sets:
            ends = place + len(one.actions)
            if one.label in policy:
                behaviour[place:ends] = torch.tensor(_chances(one, policy[one.label]), dtype=torch.float64)
            place = ends
        return behaviour

    def _tree(self, player: int) -> Treeplex:
        if player not in (0, 1):
            raise ValueError(f"player: expected 0 or 1, got {player!r}")
        return self.trees[player]

    @property
    def single(self) -> bool:
        """Always."""
        return True

    def first_mu(self) -> Tensor:
        """An eighth of the largest payoff of a pair of sequences, chance included."""
        return torch.where(self.spread > 0, self.spread / 8, torch.ones_like(self.spread))

    def costs(self, player: int, opponent: Float[Tensor, "... k"]) -> Float[Tensor, "... l"]:
        """A y for x, and -Aᵀ x for y, x and y being the plans of the strategies."""
        matrix = (self.rows, self.columns)[player]
        plan = tp.to_sequence(self.trees[1 - player], opponent.to(matrix))
        flat = plan.reshape(-1, plan.shape[-1]).mT
        return (matrix @ flat).mT.reshape(*plan.shape[:-1], -1)

    def least(self, player: int, cost: Float[Tensor, "... k"]) -> Float[Tensor, "*batch"]:
        """The cost of a best response, by one pass over the tree."""
        return tp.least_cost(self.trees[player], cost)

    def step(
        self, player: int, strategy: Tensor, cost: Tensor, keep: Tensor, official: Tensor | None = None
    ) -> Tensor:
        """The step of DGDA; see `leyden_asym_perturb.treeplex.dilated_step`."""
        return tp.dilated_step(self.trees[player], strategy, cost, keep, official)

    def entropic_step(self, player: int, strategy: Tensor, cost: Tensor) -> Tensor:
        """The step of DMWU."""
        return tp.entropic_step(self.trees[player], strategy, cost)

    def square(self, player: int, strategy: Float[Tensor, "... k"]) -> Float[Tensor, "*batch"]:
        """The dilated Euclidean regulariser."""
        return tp.dilated_norm(self.trees[player], strategy)

    def perturbed_least(
        self, player: int, cost: Float[Tensor, "... k"], mu: Float[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """The least cost with mu times the regulariser, by one pass over the tree."""
        return tp.regularised_minimum(self.trees[player], cost, mu)

    @cached_property
    def constraints(self) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
        """E and F of Section 3.5: a row for the empty sequence and for each information set."""
        return _constraints(self.trees[0]), _constraints(self.trees[1])

    def solve_lp(self) -> MatrixGameSolution:
        """The exact solution by HiGHS.

        Returns:
            A `leyden_asym_perturb.MatrixGameSolution` whose strategies are behavioural probabilities.
        """
        plans = solve_sequence_form(_scipy(self.A), self.constraints)
        x, y = (torch.from_numpy(plan).to(self.spread) for plan in plans[:2])
        return MatrixGameSolution(self.to_behaviour(0, x), self.to_behaviour(1, y), plans[2])


def _chances(one: InfoSet, policy: Mapping[str, float]) -> list[float]:
    """The probabilities of a set's actions, as a user names them."""
    unknown = policy.keys() - set(one.actions)
    if unknown:
        raise ValueError(f"policy: information set '{one.label}' has no action '{min(unknown)}'")
    chances = [float(policy.get(action, 0.0)) for action in one.actions]
    if not all(chance >= 0 for chance in chances) or abs(sum(chances) - 1) > 1e-6:
        raise ValueError(
            f"policy: expected probabilities of sum 1 at information set '{one.label}', got {chances}"
        )
    return chances


def _stretch(rows: Tensor, columns: Tensor, trees: tuple[Treeplex, Treeplex], x: Tensor, y: Tensor) -> Tensor:
    """The norm of the payoff between steps of both players from their strategies, by power iteration.

    The plain norm of the payoff is no measure for steps of behavioural strategies: a plan that reaches little
    moves little (derived).
    """
    left, right = trees
    plan_x, plan_y = tp.to_sequence(left, x), tp.to_sequence(right, y)
    step = torch.rand(len(y), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    length = torch.zeros(())
    for _ in range(POWER_STEPS):
        step = step / step.norm().clamp(min=1e-300)
        seen = tp.gather_step(left, x, plan_x, rows @ tp.spread_of_step(right, y, plan_y, step))
        length = seen.norm()
        step = tp.gather_step(right, y, plan_y, -(columns @ tp.spread_of_step(left, x, plan_x, seen)))
    return length.reshape(1)


def _operator(matrix: sparse.csr_matrix) -> Tensor:
    """A payoff as it is multiplied fastest: dense where it is small."""
    if matrix.shape[0] * matrix.shape[1] <= DENSE:
        return torch.from_numpy(matrix.toarray())
    return _csr(matrix)


def _csr(matrix: sparse.csr_matrix) -> Tensor:
    with warnings.catch_warnings():  # torch's notes that sparse tensors are new
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data.astype(np.float64)),
            size=matrix.shape,
            check_invariants=True,
        )


def _scipy(matrix: Tensor) -> sparse.csr_matrix:
    parts = matrix.values(), matrix.col_indices(), matrix.crow_indices()
    return sparse.csr_matrix(tuple(part.cpu().numpy() for part in parts), shape=tuple(matrix.shape))


def _constraints(tree: Treeplex) -> sparse.csr_matrix:
    rows, columns, values = [0], [0], [1.0]
    place = 1
    for row, one in enumerate(tree.info_sets, start=1):
        width = len(one.actions)
        rows += [row] * (width + 1)
        columns += [one.parent, *range(place, place + width)]
        values += [-1.0] + [1.0] * width
        place += width
    return sparse.csr_matrix((values, (rows, columns)), shape=(len(tree.info_sets) + 1, tree.num_sequences))
