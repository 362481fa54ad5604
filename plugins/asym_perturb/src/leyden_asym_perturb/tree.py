"""Game trees: what a person writes down, or a program walks through, and the sequence form made of them.

A tree is a `Terminal`, a `Chance` or a `Decision`. A child may also be a function without arguments that
returns it, so that a large tree is never held in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from scipy import sparse

from leyden_asym_perturb.arguments import LARGEST
from leyden_asym_perturb.treeplex import InfoSet, Treeplex


@dataclass(frozen=True)
class Terminal:
    """The end of a play.

    Attributes:
        gains: what player 0 and player 1 gain; their sum is 0.
    """

    gains: tuple[float, float]


@dataclass(frozen=True)
class Chance:
    """A move of nature.

    Attributes:
        outcomes: probabilities, of sum 1, and what follows.
    """

    outcomes: Sequence[tuple[float, Child]]


@dataclass(frozen=True)
class Decision:
    """A move of a player.

    Attributes:
        player: 0 or 1.
        info_set: what the player knows; nodes with the same text are one information set.
        actions: what follows each action, by its name.
    """

    player: int
    info_set: str
    actions: Mapping[str, Child]


Node = Terminal | Chance | Decision
Child = Node | Callable[[], Node]


@dataclass
class SequenceForm:
    """A game in sequence form, before it becomes tensors.

    Attributes:
        trees: the sequences of both players.
        payoff: A, the expected cost to player 0 of every pair of sequences.
    """

    trees: tuple[Treeplex, Treeplex]
    payoff: sparse.csr_matrix


def sequence_form(root: Child) -> SequenceForm:
    """Walk through a tree and write down its sequence form, Section 3.5.

    Args:
        root: the tree.

    Returns:
        The sequence form.

    Raises:
        ValueError: if the game is not zero-sum, has another number of players or no perfect recall, or a
            probability is wrong; the text begins with ``game``.
    """
    players = _Player(), _Player()
    costs: dict[tuple[int, int], float] = {}
    stack: list[tuple[Child, float, int, int]] = [(root, 1.0, 0, 0)]
    while stack:
        child, probability, *reached = stack.pop()
        node = _node(child)
        if isinstance(node, Terminal):
            pair = (reached[0], reached[1])
            costs[pair] = costs.get(pair, 0.0) + probability * _cost(node)
        elif isinstance(node, Chance):
            _check_chance(node)
            # turned round, so that what stands first is walked through first
            left, right = reached
            stack.extend(
                (after, probability * p, left, right) for p, after in reversed(node.outcomes) if p > 0
            )
        else:
            if node.player not in (0, 1):
                raise ValueError(f"game: expected two players, 0 and 1, got a move of player {node.player!r}")
            first = players[node.player].visit(node, reached[node.player])
            names = players[node.player].actions_of(node)
            followers = [(first + place, node.actions[name]) for place, name in enumerate(names)]
            for sequence, after in reversed(followers):
                after_both = (sequence, reached[1]) if node.player == 0 else (reached[0], sequence)
                stack.append((after, probability, *after_both))
    numbering = [player.numbering() for player in players]
    return SequenceForm(
        trees=(players[0].treeplex(numbering[0]), players[1].treeplex(numbering[1])),
        payoff=_payoff(costs, numbering),
    )


@dataclass
class _Player:
    """The information sets of a player as the walk finds them; sequences get their numbers afterwards."""

    sets: list[InfoSet] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    depth_of: list[int] = field(default_factory=lambda: [0])

    def visit(self, node: Decision, parent: int) -> int:
        """Enter a node's information set; return the number of the sequence of its first action."""
        actions = tuple(node.actions)
        place = self.places.get(node.info_set)
        if place is None:
            return self._add(node, parent, actions)
        known = self.sets[place]
        if set(known.actions) != set(actions):
            raise ValueError(
                f"game: information set '{node.info_set}' of player {node.player} has the actions "
                f"{', '.join(known.actions)} at one node and {', '.join(actions)} at another"
            )
        if known.parent != parent:
            raise ValueError(
                f"game: no perfect recall: player {node.player} reaches the information set "
                f"'{node.info_set}' by two ways that it can tell apart"
            )
        return self.firsts[place]

    def actions_of(self, node: Decision) -> tuple[str, ...]:
        """The actions of a node that was visited, in the order of the first node of its information set."""
        return self.sets[self.places[node.info_set]].actions

    def _add(self, node: Decision, parent: int, actions: tuple[str, ...]) -> int:
        if not actions:
            raise ValueError(f"game: information set '{node.info_set}' has no actions")
        self.places[node.info_set] = len(self.sets)
        first = len(self.depth_of)
        self.sets.append(InfoSet(node.info_set, parent, actions))
        self.firsts.append(first)
        self.depths.append(self.depth_of[parent])
        self.depth_of.extend([self.depth_of[parent] + 1] * len(actions))
        return first

    def order(self) -> list[int]:
        """The sets by depth, and of one depth by their number of actions."""
        return sorted(range(len(self.sets)), key=lambda i: (self.depths[i], len(self.sets[i].actions)))

    def numbering(self) -> np.ndarray[Any, Any]:
        """The last number of every sequence."""
        numbers = np.zeros(len(self.depth_of), dtype=np.int64)
        following = 1
        for place in self.order():
            count = len(self.sets[place].actions)
            numbers[self.firsts[place] : self.firsts[place] + count] = range(following, following + count)
            following += count
        return numbers

    def treeplex(self, numbers: np.ndarray[Any, Any]) -> Treeplex:
        order = self.order()
        sets = [self.sets[place] for place in order]
        renumbered = [InfoSet(one.label, int(numbers[one.parent]), one.actions) for one in sets]
        return Treeplex(renumbered, [self.depths[place] for place in order])


def _payoff(
    costs: Mapping[tuple[int, int], float], numbering: Sequence[np.ndarray[Any, Any]]
) -> sparse.csr_matrix:
    pairs = np.array(list(costs), dtype=np.int64).reshape(-1, 2)
    rows, columns = numbering[0][pairs[:, 0]], numbering[1][pairs[:, 1]]
    values = np.array(list(costs.values()), dtype=np.float64)
    return sparse.csr_matrix((values, (rows, columns)), shape=(len(numbering[0]), len(numbering[1])))


def _node(child: object) -> Node:
    """A node, made if it is a function that makes it."""
    node = child() if callable(child) else child
    if not isinstance(node, Node):
        raise ValueError(f"game: expected a Decision, a Chance or a Terminal, got {node!r}")
    return node


def _cost(node: Terminal) -> float:
    """The cost to player 0 of an end."""
    if not isinstance(node.gains, Sequence) or not all(isinstance(gain, Real) for gain in node.gains):
        raise ValueError(f"game: expected the gains of two players, got {node.gains!r}")
    if len(node.gains) != 2:
        raise ValueError(f"game: expected two players, got gains of {len(node.gains)}")
    if not all(abs(gain) <= LARGEST for gain in node.gains):
        raise ValueError(f"game: gains must be finite and at most {LARGEST:g} in size, got {node.gains}")
    if abs(sum(node.gains)) > 1e-9 * max(1.0, abs(node.gains[0])):
        raise ValueError(f"game: expected a zero-sum game, got gains {node.gains} at an end")
    return -node.gains[0]


def _check_chance(node: Chance) -> None:
    probabilities = [probability for probability, _ in node.outcomes]
    if not all(0 <= p <= 1 for p in probabilities) or abs(math.fsum(probabilities) - 1) > 1e-9:
        raise ValueError(f"game: probabilities of chance must be of sum 1, got {probabilities}")
