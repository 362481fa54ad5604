"""The claims are fair: equal budgets, validation apart from test data, a verdict for everything."""

from __future__ import annotations

import subprocess
import sys

import pytest
from leyden.claims import Arm, Cell, CellResult, Claim, Scale, Table
from leyden_sps_safe.claims import Convex, Digits, NoisyDigits, SigmoidMLP, _extremes

CLAIMS = (Digits, NoisyDigits, SigmoidMLP, Convex)
UNTUNED = {"SPS", "SPS_+ (oracle)", "IMA-SPS (oracle)", "SPSSafe, separable"}


def test_listing_claims_imports_neither_torch_nor_lightning() -> None:
    code = (
        "import sys, leyden_sps_safe.claims, leyden_sps_safe.plugin; print(*{'torch', 'lightning', 'mlflow', "
        "'numpy', 'scipy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_tuned_method_has_the_same_number_of_settings(claim: type[Claim], scale: str) -> None:
    cells = claim().cells(Scale(scale, 2))  # type: ignore[arg-type]
    table = Table(CellResult(cell=cell, status="failed") for cell in cells)
    budgets = {method: len(table.arms(method)) for method in table.methods if method not in UNTUNED}
    assert len(set(budgets.values())) == 1, budgets
    assert len(cells) == 2 * len(table.arms())


@pytest.mark.parametrize("claim", CLAIMS[:3])
def test_what_tunes_is_not_what_judges(claim: type[Claim]) -> None:
    assert claim.validation == "val_accuracy"
    assert claim.metric == "test_accuracy"


@pytest.mark.parametrize("claim", CLAIMS)
def test_statements_say_what_the_paper_says_or_are_our_own(claim: type[Claim]) -> None:
    assert len({statement.id for statement in claim.statements}) == len(claim.statements)
    assert any(statement.paper for statement in claim.statements)
    assert any(not statement.paper for statement in claim.statements)


def test_all_four_kinds_of_statement_are_judged() -> None:
    kinds = {statement.kind for claim in CLAIMS for statement in claim.statements}
    assert kinds == {"better", "not worse", "bound", "rate"}


def measured(values: dict[float, tuple[float, ...]]) -> Table:
    return Table(
        CellResult(
            cell=Cell(method="SPSSafe", seed=seed, setting={"M": M}),
            status="done",
            measured={"test_accuracy": value},
        )
        for M, column in values.items()
        for seed, value in enumerate(column)
    )


def test_extremes_are_by_mean_over_seeds() -> None:
    arms = [Arm("SPSSafe", {"M": M}) for M in (0.1, 1.0, 10.0)]
    table = measured({0.1: (0.9, 0.8), 1.0: (0.7, 0.95), 10.0: (0.99, 0.9)})
    assert _extremes(table, arms, "test_accuracy") == (arms[1], arms[2])
    assert _extremes(measured({}), arms, "test_accuracy") == (arms[0], arms[2])


def test_the_convex_claim_refutes_a_wrong_bound() -> None:
    claim = Convex()
    cell = Cell(method="SPSSafe", seed=0, setting={"M": 1.0}, options={"length": 200})
    result = CellResult(cell=cell, status="done", measured={"descent_slack": -1.0, "theorem_slack": 0.5})
    outcomes = {verdict.statement: verdict.outcome for verdict in claim.judge(Table([result]))}
    assert outcomes["descent"] == "does not hold"
    assert outcomes["theorems"] == "holds"
    assert outcomes["neighbourhood"] == "undecided"
