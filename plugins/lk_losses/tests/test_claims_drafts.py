"""The claims on drafts are fair, and judge what they say."""

from __future__ import annotations

import subprocess
import sys

import pytest
from leyden.claims import Cell, CellResult, Scale, Table
from leyden_lk_losses.claims_drafts import Heads, StandAlone, _Drafts

CLAIMS: tuple[type[_Drafts], ...] = (Heads, StandAlone)


def table(claim: _Drafts, tau: dict[str, float], **others: float) -> Table:
    """Three seeds of every method at every rate, of which the first is the better one on validation rows."""
    return Table(
        CellResult(
            cell=cell,
            status="done",
            measured={
                "val_tau": tau[cell.method] - 0.1 * claim.rates.index(cell.setting["lr"]),  # type: ignore[arg-type]
                "test_tau": tau[cell.method] + 0.001 * cell.seed,
                "counted_tau": tau[cell.method] + 0.001 * cell.seed,
                "alpha_1": tau[cell.method] - 1 + 0.001 * cell.seed,
                "test_kl": 1.0 + (cell.method != "KL") + 0.001 * cell.seed,
                "agreement_slack": 0.01,
                "target_slack": 0.0,
                **others,
            },
        )
        for cell in claim.cells(Scale("laptop", 3))
    )


def test_listing_the_claims_imports_neither_torch_nor_lightning() -> None:
    code = (
        "import sys, leyden_lk_losses.claims_drafts; "
        "print(*{'torch', 'lightning', 'mlflow', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_loss_has_the_same_rates_and_steps(claim: type[_Drafts], scale: str) -> None:
    cells = claim().cells(Scale(scale, 2))  # type: ignore[arg-type]
    results = Table(CellResult(cell=cell, status="failed") for cell in cells)
    assert {len(results.arms(method)) for method in results.methods} == {len(claim.rates)}
    assert len({tuple(cell.options.items()) for cell in cells}) == 1
    assert (claim.validation, claim.metric) == ("val_tau", "test_tau")


def test_what_the_specification_measured_confirms_it() -> None:
    heads = {"KL": 1.465, "TV": 1.526, "LK-alpha": 1.500, "LK-lambda 3": 1.488, "LK-lambda 10": 1.530}
    outcomes = {verdict.statement: verdict.outcome for verdict in Heads().judge(table(Heads(), heads))}
    assert set(outcomes.values()) == {"holds"}
    alone = {"KL": 2.13, "TV": 2.08, "LK-alpha": 2.11, "LK-lambda 3": 2.17, "LK-lambda 3, by token": 2.11}
    outcomes = {
        verdict.statement: verdict.outcome for verdict in StandAlone().judge(table(StandAlone(), alone))
    }
    assert {name for name, outcome in outcomes.items() if outcome != "holds"} == {"alpha-loss"}
    assert outcomes["alpha-loss"] == "does not hold"


@pytest.mark.parametrize("name", ["agreement_slack", "target_slack"])
def test_one_violation_refutes_a_bound(name: str) -> None:
    found = table(Heads(), dict.fromkeys(Heads.methods, 1.5), **{name: -0.001})
    outcomes = {verdict.statement: verdict.outcome for verdict in Heads().judge(found)}
    statement = {"agreement_slack": "estimate", "target_slack": "target"}[name]
    assert outcomes[statement] == "does not hold"


def test_the_picture_shows_every_loss_at_its_chosen_rate() -> None:
    cells = [
        Cell(method=method, seed=seed, setting={"lr": 0.1}) for method in ("KL", "TV") for seed in (0, 1)
    ]
    found = Table(
        CellResult(
            cell=cell,
            status="done",
            measured={"val_tau": 1.0, "test_tau": 1.0, "counted_alpha": [0.5 + 0.1 * cell.seed, 0.3]},
        )
        for cell in cells
    )
    figure = Heads().figure(found)["acceptance"]
    lines = figure.axes[0].lines
    assert [line.get_label() for line in lines] == ["KL", "TV"]
    assert list(lines[0].get_ydata()) == pytest.approx([0.55, 0.3])
