"""What the paper says, as experiments on two cores; what does not hold is stated as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from leyden.claims import Cell, Claim, Measured, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import bound


class LastIterate(Claim):
    """Where the last iterates of the small games go, from random starts."""

    name = "last-iterate"
    title = "Last iterates of the small matrix games from random starts"
    source = "Section 6, normal-form games (curves of NashConv, sensitivity to mu)"
    statements = (
        Statement(
            id="exact",
            text="With mu = 0.1, 1 or 2 both mirrored processes end within 1e-10 of an equilibrium.",
            kind="bound",
            paper="AsymP-GDA converges linearly to an equilibrium of the original game.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 1.0, "paper": 5.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 8, "paper": 100}
    metric = "nash_conv"
    mode = "min"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Three perturbations."""
        return [
            Cell(method="AsymP-GDA", seed=seed, setting={"mu": mu}, scale=scale.name)
            for seed in range(scale.seeds)
            for mu in (0.1, 1.0, 2.0)
        ]

    def run(self, cell: Cell) -> Measured:
        """Iterate."""
        from leyden_asym_perturb.games import biased_rps
        from leyden_asym_perturb.solver import asymp_solve

        found = asymp_solve(biased_rps(), 1e-10, mu=float(cell.setting["mu"] or 0), max_iters=20_000)
        return {"nash_conv": float(found.nash_conv), "slack": 1e-10 - float(found.nash_conv)}

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge."""
        return [bound(self.statement("exact"), table, "slack")]
