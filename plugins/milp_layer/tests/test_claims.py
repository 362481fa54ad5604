"""The claims' statements, cells and verdicts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from leyden.claims import Cell, CellResult, Claim, Scale, Table
from leyden_milp_layer.claims import Cooling, Exactness, Expansion, Wine

CLAIMS: list[type[Claim]] = [Exactness, Cooling, Expansion, Wine]
UNTUNED = {"base", "DNF at inference", "MILP oracle", "rules alone"}


def test_listing_claims_imports_nothing_heavy() -> None:
    code = (
        "import sys, leyden_milp_layer.claims, leyden_milp_layer.plugin; print(*{'torch', 'lightning', "
        "'mlflow', 'numpy', 'scipy', 'matplotlib', 'highspy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("claim", [Cooling, Wine])
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_tuned_method_has_the_same_number_of_settings(claim: type[Claim], scale: str) -> None:
    cells = claim().cells(Scale(scale, 2))  # type: ignore[arg-type]
    table = Table(CellResult(cell=cell, status="failed") for cell in cells)
    budgets = {method: len(table.arms(method)) for method in table.methods if method not in UNTUNED}
    assert set(budgets.values()) == {4}, budgets
    assert all(len(table.arms(method)) == 1 for method in UNTUNED & set(table.methods))


@pytest.mark.parametrize("claim", CLAIMS)
def test_statements_say_what_the_paper_says_or_are_our_own(claim: type[Claim]) -> None:
    assert len({statement.id for statement in claim.statements}) == len(claim.statements)
    assert any(statement.paper for statement in claim.statements)


def test_what_tunes_is_not_what_judges() -> None:
    assert (Cooling.validation, Cooling.metric) == ("val_mse", "ood_mse")
    assert (Wine.validation, Wine.metric) == ("val_accuracy", "test_accuracy")


def test_one_violated_sample_refutes_satisfaction() -> None:
    cells = [Cell(method="DNF", seed=seed, setting={"lr": 3e-3}) for seed in range(3)]
    values = [{"csat_slack": 0.0}, {"csat_slack": -0.01}, {"csat_slack": 0.0}]
    table = Table(
        CellResult(cell=cell, status="done", measured=value)
        for cell, value in zip(cells, values, strict=True)
    )
    for claim in (Cooling(), Wine()):
        outcomes = {verdict.statement: verdict.outcome for verdict in claim.judge(table)}
        assert outcomes["satisfied"] == "does not hold"


def test_a_distance_that_falls_along_the_chain_refutes_monotony() -> None:
    cell = Cell(method="pDNF", seed=0)
    measured = {"chain_slack": -0.1, "csat_slack": 0.0}
    table = Table([CellResult(cell=cell, status="done", measured=measured)])
    outcomes = {verdict.statement: verdict.outcome for verdict in Expansion().judge(table)}
    assert outcomes["monotone"] == "does not hold"
    assert outcomes["exact"] == "holds"
    assert outcomes["gain"] == "undecided"
