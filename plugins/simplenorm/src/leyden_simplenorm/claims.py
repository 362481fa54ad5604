"""What is claimed, as an experiment on two cores.

Both methods get the same number of settings, are tuned on validation data and judged on test data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from leyden.claims import Cell, Claim, Measured, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import best, not_worse

_METHODS: Mapping[str, Mapping[str, Any]] = {
    "Simplenorm": {},
    "no penalty": {
        "model.init_args.penalty": 0.0,
    },
}
"""For each method, what it changes in ``configs/digits.yaml``."""

_RATE = "model.init_args.lr"
"""The value that is tuned, the learning rate."""


class Digits(Claim):
    """Test accuracy on handwritten digits, beside the same classifier without the penalty."""

    name = "digits"
    title = "Handwritten digits, beside the same classifier without the penalty"
    source = "ours, a check of the skeleton; replace it by the paper's section, figure or table"
    statements = (
        Statement(
            id="keeps-up",
            text="Tuned with the same budget, Simplenorm is within 0.02 of no penalty.",
            kind="not worse",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 2.0, "paper": 5.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 8, "paper": 20}
    metric = "test_accuracy"
    validation = "val_accuracy"
    reference = "no penalty"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Two methods with the same learning rates."""
        rates = scale.pick(smoke=(0.1,), laptop=(0.03, 0.1, 0.3, 1.0))
        return [
            Cell(
                method=method,
                seed=seed,
                setting={"lr": rate},
                scale=scale.name,
                options={"epochs": scale.pick(smoke=1, laptop=20)},
            )
            for seed in range(scale.seeds)
            for method in _METHODS
            for rate in rates
        ]

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        from leyden.lightning import run_config

        metrics = run_config(
            Path(__file__).with_name("configs") / "digits.yaml",
            {
                "seed_everything": cell.seed,
                "data.init_args.seed": cell.seed,
                "trainer.max_epochs": cell.options["epochs"],
                "trainer.check_val_every_n_epoch": cell.options["epochs"],
                **_METHODS[cell.method],
                _RATE: cell.setting["lr"],
            },
        )
        return {name: metrics[name] for name in ("val_accuracy", "test_accuracy", "test_loss")}

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the rates that validation data chose."""
        method, reference = (best(table, name, self.validation) for name in _METHODS)
        statement = self.statement("keeps-up")
        return [
            not_worse(statement, table, method, reference, self.metric, margin=0.02, unit="accuracy"),
        ]
