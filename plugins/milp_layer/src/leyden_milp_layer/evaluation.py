"""How far outputs are from satisfying rules: per rule, as a penalty, and as the paper's satisfaction rate.

Nothing here asks a solver whether an output satisfies a rule: the rows are evaluated. Only whether the rules
of a sample that violates them contradict each other is a question for one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from leyden_milp_layer.projection import DisjunctiveProjection
from leyden_milp_layer.rules import RowBank, RuleSet


@dataclass(frozen=True)
class Violations:
    """How far a batch of outputs is from its rules.

    Attributes:
        active: which rules apply, shape ``(batch, rules)``.
        by_rule: the violation of each rule: of its disjuncts the smallest, of a disjunct's rows the largest
            excess over the right-hand side, divided by the largest term of the row (or by 1, or by what the
            row can reach within the bounds, whichever is less, where all terms are below that); 0 where the
            rule is satisfied or not active; shape ``(batch, rules)``.
        common: the same of bounds and global constraints, shape ``(batch,)``.
    """

    active: Bool[Tensor, "batch rules"]
    by_rule: Float[Tensor, "batch rules"]
    common: Float[Tensor, " batch"]


def violations(
    rules: RuleSet, y: Float[Tensor, "batch outputs"], x: Float[Tensor, "batch features"] | None = None
) -> Violations:
    """Evaluate the rules at outputs, without a solver; for the rules' form see Section 3.1.

    Args:
        rules: the rules.
        y: outputs, of a floating type.
        x: features, for rules that depend on them.

    Returns:
        The violations, in float64 on the CPU.

    Raises:
        ValueError: if a shape is wrong.

    >>> from leyden_milp_layer import at_most
    >>> violations(RuleSet(1, 0, 1, rules=[at_most(0, 0.25)]), torch.tensor([[0.75], [0.1]])).by_rule
    tensor([[0.5000],
            [0.0000]], dtype=torch.float64)
    """
    with torch.no_grad():
        bank, over = _excess(rules, y, x)
        terms = (bank.A * y.to("cpu", torch.float64)[:, None, :]).abs().amax(dim=2)
        largest = torch.from_numpy(np.maximum(np.abs(rules.lower), np.abs(rules.upper)))
        reach = (bank.A.abs() * largest).amax(dim=2)
        least = torch.where(reach > 0, reach, torch.ones_like(reach)).clamp(max=1.0)
        over = over / torch.maximum(torch.maximum(terms, bank.b.abs()), least)
        columns = [
            torch.stack([over[:, start:stop].amax(dim=1) for start, stop in spans], dim=1).amin(dim=1)
            if spans
            else torch.full((len(y),), torch.inf, dtype=torch.float64)
            for spans in rules.layout.disjuncts
        ]
        by_rule = torch.stack(columns, dim=1) if columns else torch.zeros(len(y), 0, dtype=torch.float64)
        by_rule = torch.where(bank.active, by_rule, torch.zeros_like(by_rule))
        return Violations(bank.active, by_rule, over[:, : rules.layout.common].amax(dim=1))


class RulePenaltyLoss(nn.Module):
    """The soft penalty that the layer is compared with, Section 4.1: a violation costs, and none is excluded.

    ``rho`` times the mean over the batch of, for each active rule, the smallest over its disjuncts of the
    summed violations of the rows, plus the summed violations of bounds and global constraints. NaN outputs
    give NaN.

    Args:
        rules: the rules, or the path of a rule file.
        rho: the factor, at least 0.

    Raises:
        ValueError: if ``rho`` is negative or not finite.
    """

    def __init__(self, rules: RuleSet | str, rho: float = 1.0) -> None:
        super().__init__()
        if not 0 <= rho < float("inf"):
            raise ValueError(f"rho: expected a finite number of at least 0, got {rho!r}")
        if not isinstance(rules, RuleSet):
            from leyden_milp_layer.rule_file import load_rules

            rules = load_rules(rules)
        self.rules = rules
        self.rho = rho

    def forward(
        self, y: Float[Tensor, "batch outputs"], x: Float[Tensor, "batch features"] | None = None
    ) -> Float[Tensor, ""]:
        """The penalty of a batch.

        Args:
            y: outputs.
            x: features, for rules that depend on them.

        Returns:
            A scalar of the type and device of the outputs.
        """
        bank, over = _excess(self.rules, y, x)
        total = over[:, : self.rules.layout.common].sum(dim=1)
        for place, spans in enumerate(self.rules.layout.disjuncts):
            if spans:
                each = torch.stack([over[:, start:stop].sum(dim=1) for start, stop in spans], dim=1)
                total = total + each.amin(dim=1) * bank.active[:, place]
        return (self.rho * total.mean()).to(y.device, y.dtype)


class Contradictions:
    """Tells which samples have rules that contradict each other; violating them is nobody's fault.

    Args:
        rules: the rules.
    """

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._layer: DisjunctiveProjection | None = None

    def among(self, y: Tensor, x: Tensor | None, suspects: Bool[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
        """Which of the suspects they are.

        Args:
            y: outputs, shape ``(batch, outputs)``.
            x: features, shape ``(batch, features)``.
            suspects: samples that violate a rule; the output of the others proves that theirs do not.

        Returns:
            Booleans.
        """
        found = torch.zeros(len(y), dtype=torch.bool)
        places = suspects.cpu().nonzero()[:, 0]
        if len(places):
            if self._layer is None:
                self._layer = DisjunctiveProjection(self._rules, on_infeasible="global_only")
            with torch.no_grad():
                chosen = y.detach().cpu()[places].nan_to_num()
                self._layer(chosen, None if x is None else x.detach().cpu()[places])
            info = self._layer.last_info
            assert info is not None
            found[places] = torch.tensor([status == "global_only" for status in info.status])
        return found


def _excess(rules: RuleSet, y: Tensor, x: Tensor | None) -> tuple[RowBank, Tensor]:
    """The rows, and by how much each is exceeded; of equalities the distance."""
    if y.ndim != 2 or y.shape[1] != rules.n:
        raise ValueError(f"y: expected shape (batch, {rules.n}), got {tuple(y.shape)}")
    bank = rules.at(x, len(y))
    values = y.to("cpu", torch.float64)
    over = (bank.A @ values[:, :, None])[:, :, 0] - bank.b
    equality = torch.from_numpy(rules.layout.equality)
    return bank, torch.where(equality, over.abs(), over.clamp(min=0.0))
