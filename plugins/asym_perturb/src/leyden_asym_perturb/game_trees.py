"""The trees of Kuhn poker, Leduc poker, Goofspiel and liar's dice, walked through as they are needed.

Rules, information sets and payoffs are those of OpenSpiel's games of the same name, which the tests compare.
"""

from __future__ import annotations

from functools import partial
from itertools import permutations

from leyden_asym_perturb.tree import Chance, Child, Decision, Node, Terminal


def kuhn_tree() -> Node:
    """The tree of Kuhn poker.

    Returns:
        Its root.
    """
    return Chance([(1 / 6, partial(_kuhn, deal, "")) for deal in permutations(range(3), 2)])


def _kuhn(deal: tuple[int, ...], played: str) -> Node:
    if played in ("pp", "pbp", "bp", "pbb", "bb"):
        showdown = 1.0 if deal[0] > deal[1] else -1.0
        gain = {"pp": showdown, "pbp": -1.0, "bp": 1.0}.get(played, 2 * showdown)
        return Terminal((gain, -gain))
    player = len(played) % 2
    ways: dict[str, Child] = {name: partial(_kuhn, deal, played + name[0]) for name in ("pass", "bet")}
    return Decision(player, f"{deal[player]}{played}", ways)


def leduc_tree() -> Node:
    """The tree of Leduc poker.

    Returns:
        Its root.
    """
    return Chance([(1 / 30, partial(_leduc, deal, None, ("", ""))) for deal in permutations(range(6), 2)])


def _leduc(deal: tuple[int, ...], public: int | None, played: tuple[str, str]) -> Node:
    """A node of Leduc poker: private cards, public card, the actions of both rounds by first letters."""
    turn = 0 if public is None else 1
    actions = played[turn]
    player = len(actions) % 2
    stakes = _leduc_stakes(played)
    if actions.endswith("f"):
        return _won(stakes, player)
    if actions.endswith("c") and len(actions) > 1:
        if turn == 1:
            return _showdown(deal, public, stakes)
        left = [card for card in range(6) if card not in deal]
        return Chance([(1 / 4, partial(_leduc, deal, card, played)) for card in left])
    names = ["fold"] if stakes[1 - player] > stakes[player] else []
    names += ["call"] + (["raise"] if actions.count("r") < 2 else [])
    ways: dict[str, Child] = {
        name: partial(
            _leduc, deal, public, (actions + name[0], "") if turn == 0 else (played[0], actions + name[0])
        )
        for name in names
    }
    return Decision(player, f"{deal[player]}|{'' if public is None else public}|{'/'.join(played)}", ways)


def _leduc_stakes(played: tuple[str, str]) -> list[int]:
    """What each player has put into the pot."""
    stakes = [1, 1]
    for actions, step in zip(played, (2, 4), strict=True):
        for place, action in enumerate(actions):
            if action == "c":
                stakes[place % 2] = max(stakes)
            elif action == "r":
                stakes[place % 2] = max(stakes) + step
    return stakes


def _showdown(deal: tuple[int, ...], public: int | None, stakes: list[int]) -> Terminal:
    assert public is not None
    strength = [(card // 2 == public // 2, card // 2) for card in deal]
    if strength[0] == strength[1]:
        return Terminal((0.0, 0.0))
    return _won(stakes, 0 if strength[0] > strength[1] else 1)


def _won(stakes: list[int], winner: int) -> Terminal:
    """The winner gains what the other one put in."""
    gain = float(stakes[1 - winner])
    return Terminal((gain, -gain) if winner == 0 else (-gain, gain))


def goofspiel_tree(cards: int) -> Node:
    """The tree of Goofspiel; players know their own cards and who won each prize.

    Args:
        cards: of each player.

    Returns:
        Its root.
    """
    return _goofspiel(cards, ((), ()))


def _goofspiel(cards: int, played: tuple[tuple[int, ...], tuple[int, ...]]) -> Node:
    mine, yours = played
    if len(mine) == cards - 1 and len(yours) == cards - 1:  # the last cards play themselves
        full = [(*hand, *(set(range(1, cards + 1)) - set(hand))) for hand in played]
        points = sum((cards - turn) * _sign(a - b) for turn, (a, b) in enumerate(zip(*full, strict=True)))
        return Terminal((float(_sign(points)), -float(_sign(points))))
    player = 0 if len(mine) == len(yours) else 1
    hand = played[player]
    outcomes = "".join("=+-"[_sign(a - b)] for a, b in zip(mine, yours, strict=False))
    outcomes = outcomes if player == 0 else outcomes.translate(str.maketrans("+-", "-+"))
    ways: dict[str, Child] = {}
    for card in sorted(set(range(1, cards + 1)) - set(hand)):
        after = ((*mine, card), yours) if player == 0 else (mine, (*yours, card))
        ways[str(card)] = partial(_goofspiel, cards, after)
    return Decision(player, f"{','.join(map(str, hand))}|{outcomes}", ways)


def liars_dice_tree(sides: int) -> Node:
    """The tree of liar's dice with one die for each player.

    Args:
        sides: of a die.

    Returns:
        Its root.
    """
    rolls = [(first, second) for first in range(1, sides + 1) for second in range(1, sides + 1)]
    return Chance([(1 / sides**2, partial(_liars_dice, sides, roll, ())) for roll in rolls])


def _liars_dice(sides: int, roll: tuple[int, int], bids: tuple[int, ...]) -> Node:
    """A node: bids are numbers, quantity minus 1 times sides plus face minus 1, and may only rise."""
    player = len(bids) % 2
    if bids and bids[-1] == 2 * sides:  # the call, by the player who moved last
        quantity, face = bids[-2] // sides + 1, bids[-2] % sides + 1
        enough = sum(die in (face, sides) for die in roll) >= quantity
        bidder = player
        gain = 1.0 if enough == (bidder == 0) else -1.0
        return Terminal((gain, -gain))
    lowest = bids[-1] + 1 if bids else 0
    ways: dict[str, Child] = {
        f"{bid // sides + 1}-{bid % sides + 1}": partial(_liars_dice, sides, roll, (*bids, bid))
        for bid in range(lowest, 2 * sides)
    }
    if bids:
        ways["liar"] = partial(_liars_dice, sides, roll, (*bids, 2 * sides))
    return Decision(player, f"{roll[player]} {' '.join(map(str, bids))}", ways)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
