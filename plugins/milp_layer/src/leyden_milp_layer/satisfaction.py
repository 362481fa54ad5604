"""The satisfaction rate as a torchmetrics metric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from leyden_milp_layer.evaluation import Contradictions, violations
from leyden_milp_layer.rules import RuleSet


class RuleSatisfaction(Metric):
    """How often outputs satisfy their rules, Section 5 (CSAT).

    ``compute`` returns, as tensors by name: ``csat``, the share of the samples whose active rules are all
    satisfied, among those whose rules do not contradict each other; ``global``, the share that satisfies
    bounds and global constraints; ``contradictory``, the number of samples left out of ``csat``; and
    ``csat/NAME`` for each rule, the share among the samples to which it applies (NaN where there is none).
    Outputs that are not finite satisfy nothing.

    Args:
        rules: the rules, or the path of a rule file.
        tol: how far a row may be violated, relative to its largest term where that is above 1.

    Raises:
        ValueError: if ``tol`` is negative or not finite.

    >>> from leyden_milp_layer import RuleSet, at_most
    >>> metric = RuleSatisfaction(RuleSet(1, 0, 1, rules=[at_most(0, 0.25)]))
    >>> metric.update(torch.tensor([[0.75], [0.1]]))
    >>> metric.compute()["csat"]
    tensor(0.5000)
    """

    full_state_update = False
    satisfied: Tensor
    counted: Tensor
    contradictory: Tensor
    common: Tensor
    rows: Tensor
    held: Tensor
    active: Tensor

    def __init__(self, rules: RuleSet | str, tol: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= tol < float("inf"):
            raise ValueError(f"tol: expected a finite number of at least 0, got {tol!r}")
        if not isinstance(rules, RuleSet):
            from leyden_milp_layer.rule_file import load_rules

            rules = load_rules(rules)
        self.rules = rules
        self.tol = tol
        self._contradictions = Contradictions(rules)
        count = len(rules.rules)
        for name in ("satisfied", "counted", "contradictory", "common", "rows"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")
        for name in ("held", "active"):
            self.add_state(name, torch.zeros(count, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, y: Tensor, x: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            y: outputs, shape ``(batch, outputs)``.
            x: features, shape ``(batch, features)``, for rules that depend on them.
        """
        if not len(y):
            return
        found = violations(self.rules, y, x)
        held = (found.by_rule <= self.tol) | ~found.active
        all_held = held.all(dim=1)
        contradictory = self._contradictions.among(y, x, ~all_held)
        kept = ~contradictory
        device = self.rows.device
        self.rows += len(y)
        self.contradictory += contradictory.sum().to(device)
        self.counted += kept.sum().to(device)
        self.satisfied += (all_held & kept).sum().to(device)
        self.common += (found.common <= self.tol).sum().to(device)
        applies = found.active & kept[:, None]
        self.active += applies.sum(dim=0).to(device)
        self.held += (held & applies).sum(dim=0).to(device)

    def compute(self) -> dict[str, Tensor]:
        """The rates by name."""
        rates = {
            "csat": self.satisfied / self.counted,
            "global": self.common / self.rows,
            "contradictory": self.contradictory.clone(),
        }
        shares = self.held / self.active
        return rates | {f"csat/{name}": shares[place] for place, name in enumerate(self.rules.names)}
