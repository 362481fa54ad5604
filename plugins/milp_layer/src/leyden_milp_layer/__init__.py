"""Hard disjunctive rules as a differentiable layer (Pal and Li, 2026) for PyTorch and Lightning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_milp_layer.certificate import Certificate, certify
    from leyden_milp_layer.constraints import (
        Disjunction,
        Linear,
        Polyhedron,
        all_of,
        any_of,
        at_least,
        at_most,
        binary,
        box,
        equals,
        halfspace,
        implies,
        integer,
        output,
        total,
        wins,
    )
    from leyden_milp_layer.cooling import cooling_rules, cooling_samples
    from leyden_milp_layer.data import CoolingControlDataModule, WineRulesDataModule
    from leyden_milp_layer.evaluation import RulePenaltyLoss, Violations, violations
    from leyden_milp_layer.expressions import Condition, Expression, feature
    from leyden_milp_layer.module import RuleConstrainedModule, ScoreCrossEntropy
    from leyden_milp_layer.projection import ContradictionError, DisjunctiveProjection, ProjectionInfo
    from leyden_milp_layer.report import RuleLine, RuleReport
    from leyden_milp_layer.rule_file import RuleFileError, load_rules, parse_rules
    from leyden_milp_layer.rules import RuleSet
    from leyden_milp_layer.satisfaction import RuleSatisfaction

_HOMES = {
    "leyden_milp_layer.certificate": ("Certificate", "certify"),
    "leyden_milp_layer.constraints": (
        "Disjunction",
        "Linear",
        "Polyhedron",
        "all_of",
        "any_of",
        "at_least",
        "at_most",
        "binary",
        "box",
        "equals",
        "halfspace",
        "implies",
        "integer",
        "output",
        "total",
        "wins",
    ),
    "leyden_milp_layer.cooling": ("cooling_rules", "cooling_samples"),
    "leyden_milp_layer.data": ("CoolingControlDataModule", "WineRulesDataModule"),
    "leyden_milp_layer.expressions": ("Condition", "Expression", "feature"),
    "leyden_milp_layer.module": ("RuleConstrainedModule", "ScoreCrossEntropy"),
    "leyden_milp_layer.projection": ("ContradictionError", "DisjunctiveProjection", "ProjectionInfo"),
    "leyden_milp_layer.report": ("RuleLine", "RuleReport"),
    "leyden_milp_layer.rule_file": ("RuleFileError", "load_rules", "parse_rules"),
    "leyden_milp_layer.rules": ("RuleSet",),
    "leyden_milp_layer.satisfaction": ("RuleSatisfaction",),
    "leyden_milp_layer.evaluation": ("RulePenaltyLoss", "Violations", "violations"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the layer and its language come first
    "DisjunctiveProjection",
    "RuleSet",
    "Disjunction",
    "Polyhedron",
    "Linear",
    "Condition",
    "Expression",
    "feature",
    "output",
    "total",
    "implies",
    "any_of",
    "all_of",
    "at_least",
    "at_most",
    "equals",
    "box",
    "halfspace",
    "wins",
    "binary",
    "integer",
    "load_rules",
    "parse_rules",
    "RuleFileError",
    "ContradictionError",
    "ProjectionInfo",
    "violations",
    "Violations",
    "certify",
    "Certificate",
    "RuleSatisfaction",
    "RulePenaltyLoss",
    "RuleConstrainedModule",
    "ScoreCrossEntropy",
    "RuleReport",
    "RuleLine",
    "CoolingControlDataModule",
    "WineRulesDataModule",
    "cooling_rules",
    "cooling_samples",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_milp_layer' has no attribute '{name}'")
