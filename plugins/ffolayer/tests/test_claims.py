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
        for seed in range(6)
        for delta in (1e-1, 1e-2, 1e-3)
    ]
    assert outcomes(Rate(), results)["first-order"] in ("does not hold", "undecided")
    noisy = [
        done("ghost problem", seed, {"delta": delta}, gradient_error=delta ** (2 + 0.01 * seed))
        for seed in range(6)
        for delta in (1e-1, 1e-2, 1e-3)
    ]
    assert outcomes(Rate(), noisy)["first-order"] == "does not hold"


def test_the_triage_is_judged_on_the_loss_that_it_trains_as_well() -> None:
    results = [
        done(
            f"{training}, {predictor}", seed, {"lr": 0.01}, val_regret=1.0, val_decision_loss=loss,
            test_regret=regret + 0.01 * seed, test_decision_loss=loss + 0.01 * seed, test_prediction_loss=1.0,
        )
        for seed in range(6)
        for predictor in ("network", "two measurements")
        for training, loss, regret in (("end-to-end", -2.0, 1.5), ("two-stage", -1.0, 1.0))
    ]  # fmt: skip
    found = outcomes(Triage(), results)
    assert found["own-loss"] == "holds"
    assert found["end-to-end-wins"] != "holds"


def test_qpth_is_an_arm_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "qpth" not in {cell.method for cell in Decisions().cells(Scale("laptop", 1))}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert "qpth" in {cell.method for cell in Decisions().cells(Scale("laptop", 1))}


def test_both_formulas_are_tuned_on_validation_pairs_over_the_same_rates() -> None:
    results = [
        done(
            f"{formula} formula", seed, {"rate": rate}, log_validation_error=validation + 0.1 * seed,
            test_error=10 ** (test + 0.1 * seed), fall_slack=-test - 5,
        )
        for seed in range(6)
        for formula, rate, validation, test in (
            ("paper", 0.01, -3.0, -12.0), ("paper", 0.03, -8.0, -8.0),
            ("released", 0.01, -3.0, -3.0), ("released", 0.03, -5.0, -5.5),
        )
    ]  # fmt: skip
    found = outcomes(LearnConstraints(), results)
    assert found == {"learns": "holds", "term": "holds", "released-learns": "holds"}
    table = Table(results)
    assert [arm.setting for tuned in LearnConstraints()._tuned(table) for arm in [tuned.arm] if arm] == [
        {"rate": 0.03}, {"rate": 0.03}
    ]  # fmt: skip
