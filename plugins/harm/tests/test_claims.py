"""The claims are fair: equal budgets, validation apart from test data; and harm falls in a short run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from leyden.claims import Cell, CellResult, Claim, Scale, Table
from leyden_harm.claims import CleanLabels, NoisyLabels, Solver, TrueHarm

CLAIMS = (TrueHarm, NoisyLabels, CleanLabels, Solver)


def test_listing_claims_imports_neither_torch_nor_lightning() -> None:
    code = (
        "import sys, leyden_harm.claims, leyden_harm.plugin; "
        "print(*{'torch', 'lightning', 'mlflow', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("claim", [NoisyLabels, CleanLabels])
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_tuned_method_has_the_same_number_of_learning_rates(claim: type[Claim], scale: str) -> None:
    cells = claim().cells(Scale(scale, 2))  # type: ignore[arg-type]
    table = Table(CellResult(cell=cell, status="failed") for cell in cells)
    assert {len(table.arms(method)) for method in table.methods} == {4}
    assert len(cells) == 2 * len(table.arms())
    assert (claim.validation, claim.metric) == ("val_accuracy", "test_accuracy")


@pytest.mark.parametrize("claim", CLAIMS)
def test_statements_say_what_the_paper_says_or_are_our_own(claim: type[Claim]) -> None:
    assert len({statement.id for statement in claim.statements}) == len(claim.statements)
    assert any(statement.paper for statement in claim.statements)
    assert any(not statement.paper for statement in claim.statements)


def test_the_baselines_are_trained_like_the_method() -> None:
    cells = TrueHarm().cells(Scale("laptop", 1))
    assert {dict(cell.options)["epochs"] for cell in cells} == {15}
    methods = {cell.method for cell in NoisyLabels().cells(Scale("laptop", 1))}
    assert {"SGD (momentum 0.5)", "AdamW (beta1 0.5)", "SGD, conflict-free without history"} <= methods


@pytest.mark.slow
@pytest.mark.parametrize(("plain", "weighted", "factor"), [("SGD", "SGD, weighted (tau=4)", 0.7)])
def test_true_losses_of_fewer_samples_rise_in_a_short_training(
    plain: str, weighted: str, factor: float
) -> None:
    first, second = (
        TrueHarm().run(Cell(method=method, seed=0, scale="smoke", options={"epochs": 6}))
        for method in (plain, weighted)
    )
    assert second["harm_mass"] <= factor * first["harm_mass"]  # type: ignore[operator]
    assert second["harm_rate"] < first["harm_rate"]  # type: ignore[operator]
    assert first["gram_correlation"] >= 0.8  # type: ignore[operator]


def test_a_solver_that_did_more_harm_would_be_refuted() -> None:
    claim = Solver()
    cell = Cell(method="rescaled", seed=0, setting={"batch": 64, "tau": 1.0})
    wrong = {"reached_slack": 0.05, "harm_slack": 0.01, "never_more_slack": -0.01, "gap_slack": 1e-10}
    result = CellResult(cell=cell, status="done", measured=wrong)
    outcomes = {verdict.statement: verdict.outcome for verdict in claim.judge(Table([result]))}
    assert outcomes["never-more"] == "does not hold"
    assert outcomes["nine-tenths"] == outcomes["certified"] == "holds"
