"""Games of OpenSpiel, by its Python interface ``pyspiel``; the extra ``[openspiel]`` brings it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from leyden_asym_perturb.tree import Chance, Child, Decision, Node, Terminal


def tree_of(game: Any) -> Child:
    """The tree of a game, walked through as it is needed.

    Args:
        game: a name, or a game of ``pyspiel``.

    Returns:
        The root.

    Raises:
        ValueError: if the game has not two players.
        ImportError: if OpenSpiel is not installed.
    """
    pyspiel = _pyspiel()
    loaded = _loaded(game)
    if loaded.num_players() != 2:
        raise ValueError(f"game: expected two players, '{loaded}' has {loaded.num_players()}")
    if loaded.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        loaded = pyspiel.convert_to_turn_based(loaded)
    return partial(_node, loaded.new_initial_state())


def matrix_of(game: Any) -> np.ndarray[Any, Any]:
    """The payoff of a matrix game: the cost to the row player.

    Args:
        game: a name, or a game of ``pyspiel``.

    Returns:
        The matrix.

    Raises:
        ValueError: if the game is no zero-sum matrix game.
        ImportError: if OpenSpiel is not installed.
    """
    pyspiel = _pyspiel()
    try:
        loaded = pyspiel.load_matrix_game(game) if isinstance(game, str) else game
        gains, others = np.asarray(loaded.row_utilities()), np.asarray(loaded.col_utilities())
    except (AttributeError, pyspiel.SpielError) as error:
        raise ValueError(f"game: expected a matrix game of OpenSpiel, got '{game}': {error}") from error
    if np.abs(gains + others).max() > 1e-9:
        raise ValueError(f"game: expected a zero-sum game, '{game}' is none")
    return -gains


def _node(state: Any) -> Node:
    if state.is_terminal():
        return Terminal(tuple(state.returns()))
    if state.is_chance_node():
        return Chance([(p, partial(_after, state, action)) for action, p in state.chance_outcomes()])
    player = state.current_player()
    return Decision(
        player,
        state.information_state_string(player),
        {
            state.action_to_string(player, action): partial(_after, state, action)
            for action in state.legal_actions()
        },
    )


def _after(state: Any, action: int) -> Node:
    return _node(state.child(action))


def _loaded(game: Any) -> Any:
    pyspiel = _pyspiel()
    if not isinstance(game, str):
        return game
    try:
        return pyspiel.load_game(game)
    except pyspiel.SpielError as error:
        raise ValueError(f"game: OpenSpiel does not load '{game}': {error}") from error


def _pyspiel() -> Any:
    try:
        import pyspiel
    except ImportError as error:
        raise ImportError(
            "OpenSpiel is not installed; pip install 'leyden-asym-perturb[openspiel]'"
        ) from error
    return pyspiel
