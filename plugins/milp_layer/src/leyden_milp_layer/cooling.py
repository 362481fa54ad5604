"""Cooling control of four zones with seven rules, synthetic (Section 5 of Pal and Li, 2026; reconstructed).

Features are the zones' temperatures ``T1 .. T4`` and the outside's, ``To``, in degrees Celsius, and the
price of power ``p``; outputs are the cooling powers ``y1 .. y4`` in 0 to 1. The paper's own data are not
public, so sampling and rules are reconstructed; the target is the feasible point nearest to a smooth control
law, an oracle's answer.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from leyden_milp_layer.projection import DisjunctiveProjection
from leyden_milp_layer.rule_file import load_rules
from leyden_milp_layer.rules import RuleSet

Domain = Literal["iid", "ood"]

_LOW = {"iid": (20.0,) * 4 + (20.0, 0.1), "ood": (25.0,) * 4 + (28.0, 0.2)}
_HIGH = {"iid": (30.0,) * 4 + (36.0, 0.5), "ood": (34.0,) * 4 + (42.0, 0.6)}
_LEAN = (1.0, 0.5, -0.5, 1.0)


def cooling_rules() -> RuleSet:
    """The rules of the task, from the shipped file ``milp_layer/cooling``.

    Returns:
        Seven rules on four outputs, which depend on six features.

    >>> cooling_rules().names[-1]
    'spread'
    """
    return load_rules("milp_layer/cooling")


def cooling_wish(features: Float[Tensor, "batch 6"]) -> Float[Tensor, "batch 4"]:
    """The control law before any rule, in -0.2 to 1.2.

    Args:
        features: temperatures and price, shape ``(batch, 6)``.

    Returns:
        Shape ``(batch, 4)``, of the type of the features.
    """
    lean = torch.tensor(_LEAN, dtype=features.dtype)
    zones, outside, price = features[:, :4], features[:, 4:5], features[:, 5:6]
    wish = 0.1 * (zones - 22) + 0.03 * (outside - 27) * lean - 0.8 * (price - 0.3)
    return wish.clamp(-0.2, 1.2)


def cooling_samples(
    count: int, domain: Domain, seed: int, *, rules: RuleSet | None = None
) -> tuple[Float[Tensor, "count 6"], Float[Tensor, "count 4"]]:
    """Draw samples whose rules do not contradict each other.

    Args:
        count: how many.
        domain: ``"iid"`` for mild weather, ``"ood"`` for hot weather and dear power, where more rules apply.
        seed: of the draw.
        rules: the rules; None: those of `cooling_rules`.

    Returns:
        Features, and targets: the Euclidean projection of `cooling_wish`; both in float64.

    Raises:
        ValueError: if the domain is unknown.

    >>> features, targets = cooling_samples(3, "iid", seed=0)
    >>> features.shape, targets.shape
    (torch.Size([3, 6]), torch.Size([3, 4]))
    """
    if domain not in _LOW:
        raise ValueError(f"domain: expected 'iid' or 'ood', got {domain!r}")
    oracle = DisjunctiveProjection(rules or cooling_rules(), norm="l2", on_infeasible="global_only")
    generator = np.random.default_rng(seed)
    kept: list[Tensor] = []
    targets: list[Tensor] = []
    found = 0
    while found < count:
        drawn = generator.uniform(_LOW[domain], _HIGH[domain], (count, 6))
        features = torch.from_numpy(drawn)
        target = oracle(cooling_wish(features), features)
        assert oracle.last_info is not None
        good = torch.tensor([one != "global_only" for one in oracle.last_info.status])
        kept.append(features[good])
        targets.append(target[good])
        found += int(good.sum())
    return torch.cat(kept)[:count], torch.cat(targets)[:count]
