"""Treeplexes: the strategies of one player of an extensive-form game, in sequence form (Section 3.5).

A strategy is kept as its behavioural probabilities, a vector over the player's sequences: for every sequence
the probability of its last action at that action's information set, and 1 for the empty sequence at place 0.
So information sets that are never reached keep a strategy of their own. Sequences are numbered such that
information sets of one depth and one number of actions stand side by side: whatever is done at all of them
is one operation on a view, and a pass over the tree is as many operations as there are such groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leyden_asym_perturb.simplex import project_simplex


@dataclass(frozen=True)
class InfoSet:
    """An information set.

    Attributes:
        label: what the player knows there.
        parent: the sequence that leads to it.
        actions: the names of its actions.
    """

    label: str
    parent: int
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Information sets of one depth and one number of actions, in a row.

    Attributes:
        first: place of the first of them among the information sets.
        count: how many.
        actions: actions of each.
    """

    first: int
    count: int
    actions: int


class Treeplex(nn.Module):
    """The sequences of one player.

    Args:
        info_sets: the player's information sets, parents before children. The sequences are numbered in this
            order: 0 is the empty one, then come the actions of the first set, and so on. A parent's number
            must be smaller. Sets that stand side by side with the same number of actions are done together,
            so they must not lie below one another.
        depths: for each set, how many of the player's own sets lie above it.

    Attributes:
        info_sets: as given.
        num_sequences: how many sequences there are, the empty one included.
        groups: the sets that are done together.
    """

    parents: Tensor

    def __init__(self, info_sets: Sequence[InfoSet], depths: Sequence[int]) -> None:
        super().__init__()
        self.info_sets = tuple(info_sets)
        self.num_sequences = 1 + sum(len(one.actions) for one in self.info_sets)
        self.groups = tuple(_groups(self.info_sets, depths))
        self._counts = [group.count for group in self.groups]
        self._shapes = [(group.count, group.actions) for group in self.groups]
        self._sizes = [1] + [group.count * group.actions for group in self.groups]
        parents = torch.tensor([one.parent for one in self.info_sets], dtype=torch.int64)
        self.register_buffer("parents", parents, persistent=False)

    def views(self, vector: Float[Tensor, "... sequences"]) -> list[Tensor]:
        """The parts of a vector over sequences that belong to the groups, shape ``(..., sets, actions)``."""
        leading = vector.shape[:-1]
        parts = vector.split_with_sizes(self._sizes, -1)[1:]
        return [part.view(leading + shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def joined(
        self, parts: Sequence[Tensor], like: Float[Tensor, "... sequences"]
    ) -> Float[Tensor, "... sequences"]:
        """The vector whose parts are given, with 1 for the empty sequence, shaped as another one."""
        first = torch.ones_like(like[..., :1])
        return torch.cat([first, *(part.flatten(-2) for part in parts)], -1)

    def leading(self) -> list[Tensor]:
        """For each group the parent sequences of its sets."""
        return list(self.parents.split_with_sizes(self._counts))


def uniform_behaviour(tree: Treeplex) -> Float[Tensor, " sequences"]:
    """The strategy that takes every action with the same probability.

    Args:
        tree: the player's sequences.

    Returns:
        Behavioural probabilities, float64.
    """
    behaviour = torch.ones(tree.num_sequences, dtype=torch.float64, device=tree.parents.device)
    for part in tree.views(behaviour):
        part.fill_(1 / part.shape[-1])
    return behaviour


def to_sequence(tree: Treeplex, behaviour: Float[Tensor, "... sequences"]) -> Float[Tensor, "... sequences"]:
    """The realisation plan: for every sequence the product of the probabilities of its actions.

    Args:
        tree: the player's sequences.
        behaviour: behavioural probabilities.

    Returns:
        The plan, 1 at the empty sequence.
    """
    plan = behaviour.clone()
    for part, parents in zip(tree.views(plan), tree.leading(), strict=True):
        part.mul_(plan.index_select(-1, parents).unsqueeze(-1))
    return plan


def to_behaviour(tree: Treeplex, plan: Float[Tensor, "... sequences"]) -> Float[Tensor, "... sequences"]:
    """Behavioural probabilities of a realisation plan; uniform where the plan does not reach.

    Args:
        tree: the player's sequences.
        plan: a realisation plan.

    Returns:
        Behavioural probabilities.
    """
    behaviour = torch.ones_like(plan)
    for part, ways, parents in zip(tree.views(behaviour), tree.views(plan), tree.leading(), strict=True):
        reach = plan.index_select(-1, parents).unsqueeze(-1)
        part.copy_(torch.where(reach > 0, ways / reach.clamp(min=1e-300), 1 / part.shape[-1]))
    return behaviour


def least_cost(tree: Treeplex, cost: Float[Tensor, "... sequences"]) -> Float[Tensor, "*batch"]:
    """The least of ⟨cost, x⟩ over the player's realisation plans, by one pass from the leaves.

    Args:
        tree: the player's sequences.
        cost: of every sequence.

    Returns:
        A value for each leading index.
    """
    total = cost.clone()
    for part, parents in _upwards(tree, total):
        total.index_add_(-1, parents, part.amin(-1))
    return total[..., 0]


def best_response(tree: Treeplex, cost: Float[Tensor, "... sequences"]) -> Float[Tensor, "... sequences"]:
    """A pure strategy that attains `least_cost`.

    Args:
        tree: the player's sequences.
        cost: of every sequence.

    Returns:
        Behavioural probabilities.
    """
    total, behaviour = cost.clone(), torch.zeros_like(cost)
    behaviour[..., 0] = 1
    chosen = reversed(tree.views(behaviour))
    for (part, parents), choice in zip(_upwards(tree, total), chosen, strict=True):
        least, place = part.min(-1, keepdim=True)
        choice.scatter_(-1, place, 1.0)
        total.index_add_(-1, parents, least.squeeze(-1))
    return behaviour


def dilated_norm(tree: Treeplex, behaviour: Float[Tensor, "... sequences"]) -> Float[Tensor, "*batch"]:
    """The dilated Euclidean regulariser, Section 3.5: the sum over sets of x_parent |b|² / 2.

    Args:
        tree: the player's sequences.
        behaviour: behavioural probabilities.

    Returns:
        A value for each leading index.
    """
    total = torch.zeros_like(behaviour)
    for (part, parents), own in zip(_upwards(tree, total), reversed(tree.views(behaviour)), strict=True):
        total.index_add_(-1, parents, (own * (part + 0.5 * own)).sum(-1))
    return total[..., 0]


def regularised_minimum(
    tree: Treeplex, cost: Float[Tensor, "... sequences"], mu: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """The least of ⟨cost, x⟩ + mu ψ(x) over the player's plans, ψ being `dilated_norm`.

    Args:
        tree: the player's sequences.
        cost: of every sequence.
        mu: the perturbation, above 0, a value for each leading index.

    Returns:
        A value for each leading index.
    """
    total = cost.clone()
    strength = mu[..., None, None]
    for part, parents in _upwards(tree, total):
        best = project_simplex(-part / strength)
        total.index_add_(-1, parents, (part * best + 0.5 * strength * best.square()).sum(-1))
    return total[..., 0]


def dilated_step(
    tree: Treeplex,
    behaviour: Float[Tensor, "... sequences"],
    cost: Float[Tensor, "... sequences"],
    keep: Float[Tensor, "... 1"],
    official: Float[Tensor, "... 1"] | None = None,
) -> Float[Tensor, "... sequences"]:
    """One step of DGDA with its perturbation, Section 3.5, solved from the leaves to the root.

    With G the cost at a set, b its strategy and keep = 1 - eta mu, the new strategy is the projection of
    v = keep b - eta G, and what the set hands to its parent is, times eta,
    ⟨b', b' / 2 - v⟩ + keep |b|² / 2: the same as ⟨G + mu b, b'⟩ + |b' - b|² / (2 eta) - mu |b|² / 2.

    Args:
        tree: the player's sequences.
        behaviour: the strategy b.
        cost: eta times the cost of every sequence.
        keep: 1 - eta mu.
        official: eta mu, to hand up what the authors' code does: mu (⟨b, b'⟩ + |b|² / 2) more; None: exact.

    Returns:
        The new strategy b'.
    """
    total = cost.clone()
    kept = keep * behaviour
    constant = 0.5 * kept * behaviour
    if official is not None:
        constant = constant + 0.5 * official * behaviour.square()
    pulls = tree.views(kept if official is None else official * behaviour)
    parts = zip(
        _upwards(tree, total),
        reversed(tree.views(kept)),
        reversed(tree.views(constant)),
        reversed(pulls),
        strict=True,
    )
    new = []
    for (part, parents), start, offset, pull in parts:
        moved = start - part
        chosen = project_simplex(moved)
        slope = torch.add(moved, chosen, alpha=-0.5).neg_()
        if official is not None:
            slope += pull
        total.index_add_(-1, parents, torch.addcmul(offset, chosen, slope).sum(-1))
        new.append(chosen)
    return tree.joined(new[::-1], total)


def entropic_step(
    tree: Treeplex, behaviour: Float[Tensor, "... sequences"], cost: Float[Tensor, "... sequences"]
) -> Float[Tensor, "... sequences"]:
    """One step of DMWU, Section 3.5: `dilated_step` with entropy in the place of the square, no perturbation.

    Args:
        tree: the player's sequences.
        behaviour: the strategy, positive everywhere.
        cost: eta times the cost of every sequence.

    Returns:
        The new strategy.
    """
    total = cost.clone()
    new = torch.ones_like(behaviour)
    parts = zip(
        _upwards(tree, total), reversed(tree.views(behaviour)), reversed(tree.views(new)), strict=True
    )
    for (part, parents), start, target in parts:
        logits = start.log() - part
        target.copy_(logits.softmax(-1))
        total.index_add_(-1, parents, -logits.logsumexp(-1))
    return new


def spread_of_step(
    tree: Treeplex,
    behaviour: Float[Tensor, "... sequences"],
    plan: Float[Tensor, "... sequences"],
    step: Float[Tensor, "... sequences"],
) -> Float[Tensor, "... sequences"]:
    """How the plan changes with a small step of the strategy, measured as the regulariser measures steps.

    The step at a set is the root of the plan's reach of it times the change of its strategy, so that the
    squared length of a step is twice its divergence (derived). What would change the sum of a set's
    probabilities is taken out.

    Args:
        tree: the player's sequences.
        behaviour: the strategy.
        plan: its realisation plan.
        step: the step.

    Returns:
        The change of the plan.
    """
    change = torch.zeros_like(step)
    parts = zip(tree.views(change), tree.views(behaviour), tree.views(step), tree.leading(), strict=True)
    for target, chances, move, parents in parts:
        reach = plan.index_select(-1, parents).sqrt().unsqueeze(-1)
        above = change.index_select(-1, parents).unsqueeze(-1)
        target.copy_(above * chances + reach * (move - move.mean(-1, keepdim=True)))
    return change


def gather_step(
    tree: Treeplex,
    behaviour: Float[Tensor, "... sequences"],
    plan: Float[Tensor, "... sequences"],
    cost: Float[Tensor, "... sequences"],
) -> Float[Tensor, "... sequences"]:
    """The transpose of `spread_of_step`: how a cost looks to a step of the strategy.

    Args:
        tree: the player's sequences.
        behaviour: the strategy.
        plan: its realisation plan.
        cost: of every sequence.

    Returns:
        The cost of every direction.
    """
    total, step = cost.clone(), torch.zeros_like(cost)
    parts = zip(
        _upwards(tree, total), reversed(tree.views(behaviour)), reversed(tree.views(step)), strict=True
    )
    for (part, parents), chances, target in parts:
        reach = plan.index_select(-1, parents).sqrt().unsqueeze(-1)
        target.copy_(reach * (part - part.mean(-1, keepdim=True)))
        total.index_add_(-1, parents, (part * chances).sum(-1))
    return step


def radius(tree: Treeplex) -> float:
    """By how much the regulariser changes at most for a strategy that moves by 1 (derived).

    For plans x and x' with behavioural strategies b and b', ψ(x') - ψ(x) is at most this number times the
    root of the sum over sets of x_parent |b - b'|². The derivative of ψ at a set is b' plus what ψ is below
    each action, of which a constant is lost; telescoping over sets and Cauchy-Schwarz do the rest.

    Args:
        tree: the player's sequences.

    Returns:
        The constant; for a single set of n actions it is the root of 1 - 1/n.
    """
    most, least, total = (torch.zeros(tree.num_sequences, dtype=torch.float64) for _ in range(3))
    parts = zip(_upwards(tree, most), reversed(tree.views(least)), reversed(tree.views(total)), strict=True)
    for (high, parents), low, below in parts:
        parents = parents.cpu()
        actions = high.shape[-1]
        top, bottom = high.amax(-1), low.amin(-1)
        slope = math.sqrt(1 - 1 / actions) + 0.5 * math.sqrt(actions) * (top - bottom)
        most.index_add_(-1, parents, 0.5 + top)
        least.index_add_(-1, parents, 0.5 / actions + bottom)
        total.index_add_(-1, parents, slope.square() + below.amax(-1))
    return math.sqrt(float(total[0]))


def _upwards(tree: Treeplex, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The groups' parts of a vector, deepest first, each with the parent sequences of its sets."""
    return zip(reversed(tree.views(vector)), reversed(tree.leading()), strict=True)


def _groups(info_sets: Sequence[InfoSet], depths: Sequence[int]) -> Iterator[Group]:
    """Runs of sets with the same depth and number of actions."""
    start = 0
    for place in range(1, len(info_sets) + 1):
        kind = depths[start], len(info_sets[start].actions)
        if place == len(info_sets) or (depths[place], len(info_sets[place].actions)) != kind:
            yield Group(start, place - start, kind[1])
            start = place
