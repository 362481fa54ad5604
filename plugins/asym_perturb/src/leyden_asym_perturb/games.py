"""Games that need nothing installed: those of Section 3.6, each a function that a YAML can name.

Rules, information sets and payoffs of the trees are those of OpenSpiel's games of the same name, which the
tests compare. Costs are those of x, the row player or player 0.
"""

from __future__ import annotations

import numpy as np
import torch

from leyden_asym_perturb.arguments import check_whole
from leyden_asym_perturb.game_trees import goofspiel_tree, leduc_tree, liars_dice_tree
from leyden_asym_perturb.matrix_game import MatrixGame
from leyden_asym_perturb.sequence_form import SequenceFormGame

LEDUC_VALUE = 0.0856064240781
"""Cost to player 0 of Leduc poker, by linear programming."""


LIARS_DICE_VALUE = 7 / 258
"""The same of liar's dice with six sides."""


def biased_rps() -> MatrixGame:
    """Biased rock, paper, scissors (BRPS), Section 3.6: both play (1/5, 3/5, 1/5), the value is 0.

    Returns:
        The game.
    """
    return MatrixGame([[0.0, 1.0, -3.0], [-1.0, 0.0, 1.0], [3.0, -1.0, 0.0]], 0.0)


def many_equilibria() -> MatrixGame:
    """The game M-Ne of Section 3.6: x has one equilibrium strategy, y a whole set; the value is 0.

    Returns:
        The game.
    """
    return MatrixGame(
        [[0, -1, 1, 0, 0], [1, 0, -1, 0, 0], [-1, 1, 0, 0, 0], [-1, 1, 0, 2, -1], [-1, 1, 0, -1, 2]], 0.0
    )


def biased_pennies() -> MatrixGame:
    """Biased matching pennies (BMP), Section 3.6: both play (5/8, 3/8), the cost to x is -1/24.

    Returns:
        The game.
    """
    return MatrixGame([[1 / 3, -2 / 3], [-2 / 3, 1.0]], -1 / 24)


def random_matrix(size: int = 10, seed: int = 0, *, games: int | None = None) -> MatrixGame:
    """Square matrices of standard normal numbers, the random games of the experiments (reconstructed).

    Args:
        size: rows and columns.
        seed: of numpy's default generator.
        games: how many; None: one.

    Returns:
        The game.

    Raises:
        ValueError: if a number is too small; the text names it.
    """
    check_whole("size", size, 1)
    check_whole("seed", seed, 0)
    if games is not None:
        check_whole("games", games, 1)
    shape = (size, size) if games is None else (games, size, size)
    return MatrixGame(torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)))


def kuhn_poker() -> SequenceFormGame:
    """Kuhn poker, Section 3.6: three cards, one bet; the cost to player 0 is 1/18.

    Returns:
        The game.
    """
    return SequenceFormGame.kuhn()


def leduc_poker() -> SequenceFormGame:
    """Leduc poker, Section 3.6: six cards of three ranks, two rounds of at most two raises of 2 and 4.

    Returns:
        The game.
    """
    return SequenceFormGame.from_tree(leduc_tree(), LEDUC_VALUE)


def goofspiel(cards: int = 4) -> SequenceFormGame:
    """Goofspiel with imperfect information and falling prizes, Section 3.6; its value is 0.

    Args:
        cards: of each player, at least 2.

    Returns:
        The game.

    Raises:
        ValueError: if ``cards`` is less than 2.
    """
    check_whole("cards", cards, 2)
    return SequenceFormGame.from_tree(goofspiel_tree(cards), 0.0)


def liars_dice(sides: int = 6) -> SequenceFormGame:
    """Liar's dice with one die for each player, Section 3.6; the highest face is wild.

    Args:
        sides: of a die, at least 2; with 6 there are 24,571 sequences a player.

    Returns:
        The game.

    Raises:
        ValueError: if ``sides`` is less than 2.
    """
    check_whole("sides", sides, 2)
    return SequenceFormGame.from_tree(liars_dice_tree(sides), LIARS_DICE_VALUE if sides == 6 else None)


def openspiel_game(name: str) -> SequenceFormGame:
    """A game of OpenSpiel by its name, Section 4; see `SequenceFormGame.from_openspiel`.

    Args:
        name: such as ``"leduc_poker"`` or ``"liars_dice(dice_sides=4)"``.

    Returns:
        The game.
    """
    return SequenceFormGame.from_openspiel(name)
