"""The claims are fair and refute what is wrong."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from leyden.claims import Cell, CellResult, Claim, Scale, Table
from leyden_ffolayer.claims import Decisions, Gradients, LearnConstraints, Rate, Triage

CLAIMS: tuple[type[Claim], ...] = (Gradients, Rate, LearnConstraints, Decisions, Triage)


def test_listing_claims_imports_nothing_heavy() -> None:
    code = (
        "import sys, leyden_ffolayer.claims, leyden_ffolayer.plugin; print(*{'torch', 'lightning', 'mlflow', "
        "'numpy', 'scipy', 'cvxpy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_both_trainings_of_the_triage_get_the_same_settings_and_are_tuned_on_validation_groups() -> None:
    claim = Triage()
    table = Table(CellResult(cell=cell, status="failed") for cell in claim.cells(Scale("laptop", 2)))
    assert len({len(table.arms(method)) for method in table.methods}) == 1
    assert claim.validation.startswith("val_")
    assert claim.metric.startswith("test_")


@pytest.mark.parametrize("claim", CLAIMS)
def test_statements_say_what_the_paper_says_or_are_our_own(claim: type[Claim]) -> None:
    assert len({statement.id for statement in claim.statements}) == len(claim.statements)
    assert any(not statement.paper for statement in claim.statements)


def done(method: str, seed: int, setting: dict[str, Any] | None = None, **measured: float) -> CellResult:
    cell = Cell(method=method, seed=seed, setting=setting or {})
    return CellResult(cell=cell, status="done", measured=measured)


def outcomes(claim: Claim, results: list[CellResult]) -> dict[str, str]:
    return {verdict.statement: verdict.outcome for verdict in claim.judge(Table(results))}


def test_a_wrong_gradient_refutes_exactness() -> None:
    results = [done("FFOQPLayer", 0, {"n": 100}, exact_slack=1e-8 - 1e-7, gradient_error=1e-7)]
    assert outcomes(Gradients(), results)["exact"] == "does not hold"


def test_a_loss_three_percent_off_refutes_the_same_curve() -> None:
    results = [
        done(method, seed, test_decision_loss=loss, seconds=1.0)
        for seed in range(2)
        for method, loss in (("FFOQPLayer", -1.0), ("cvxpylayers", -1.03))
    ]
    assert outcomes(Decisions(), results)["same-loss"] == "does not hold"


def test_an_error_that_falls_like_the_square_refutes_the_rate() -> None:
    results = [
        done("ghost problem", seed, {"delta": delta}, gradient_error=(1 + 0.1 * seed) * delta**2)
        for seed in range(3)
        for delta in (1e-1, 1e-2, 1e-3)
    ]
    assert outcomes(Rate(), results)["first-order"] in ("does not hold", "undecided")
    noisy = [
        done("ghost problem", seed, {"delta": delta}, gradient_error=delta ** (2 + 0.01 * seed))
        for seed in range(3)
        for delta in (1e-1, 1e-2, 1e-3)
    ]
    assert outcomes(Rate(), noisy)["first-order"] == "does not hold"
