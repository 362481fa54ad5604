"""What the conformance kit tries the components on."""

from __future__ import annotations

from functools import partial

import torch
from leyden.tasks import mlp
from leyden.testing import Trial
from torch import Tensor

from leyden_milp_layer.constraints import any_of, at_least, at_most, implies, total
from leyden_milp_layer.evaluation import RulePenaltyLoss
from leyden_milp_layer.expressions import feature
from leyden_milp_layer.module import RuleConstrainedModule
from leyden_milp_layer.projection import DisjunctiveProjection
from leyden_milp_layer.rules import RuleSet
from leyden_milp_layer.satisfaction import RuleSatisfaction


def rules() -> RuleSet:
    """Three rules on three outputs, which depend on six features."""
    hot = implies(feature(0) > 0, at_least(0, 0.4 + 0.1 * feature(1)) | at_least(1, 0.6), name="hot")
    gap = any_of(at_most(2, 0.25), at_least(2, 0.75), name="gap")
    return RuleSet(
        3, -4, 4, [total() <= 2.5], [hot, gap, implies(feature(2) > 0.5, at_most(0, 0.9), name="cap")]
    )


def layer() -> DisjunctiveProjection:
    """The layer."""
    return DisjunctiveProjection(rules())


def penalty() -> RulePenaltyLoss:
    """The penalty."""
    return RulePenaltyLoss(rules())


def metric() -> RuleSatisfaction:
    """The metric."""
    return RuleSatisfaction(rules())


def module() -> RuleConstrainedModule:
    """A module that trains through the layer."""
    optimizer = partial(torch.optim.SGD, lr=0.05)
    return RuleConstrainedModule(mlp([6, 8, 3], "tanh"), layer(), optimizer=optimizer)


def outputs() -> Trial:
    """Raw outputs and features."""
    return Trial(inputs=(torch.randn(8, 3), _features(8)))


def samples() -> Trial:
    """Features and targets for the module."""
    features = _features(80)
    targets = torch.tanh(features[:, :3] + features[:, 3:])
    return Trial(rows=(features, targets))


def watched() -> Trial:
    """The module, for the callback."""
    return Trial(module=module(), rows=samples().rows)


def _features(count: int) -> Tensor:
    # never a condition within rounding of its threshold, so that types agree on it
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(3))
