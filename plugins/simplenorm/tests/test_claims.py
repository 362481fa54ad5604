"""The claims are fair: equal budgets, validation apart from test text, a verdict for everything."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from functools import partial

import lightning
import pytest
import torch
from leyden.claims import Cell, CellResult, Claim, Scale, Table
from leyden_simplenorm import RMSNorm, SimpleGPTModule, claims
from leyden_simplenorm.measuring import GainBounds, curvature_at

CLAIMS = (claims.LearningRates, claims.LearningRatesKJV, claims.Tolerance, claims.Curvature, claims.Scales)


def test_listing_claims_imports_neither_torch_nor_lightning() -> None:
    code = (
        "import sys, leyden_simplenorm.claims, leyden_simplenorm.plugin; print(*{'torch', 'lightning', "
        "'mlflow', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_method_has_the_same_number_of_settings(claim: type[Claim], scale: str) -> None:
    cells = claim().cells(Scale(scale, 2))  # type: ignore[arg-type]
    table = Table(CellResult(cell=cell, status="failed") for cell in cells)
    assert len({len(table.arms(method)) for method in table.methods}) == 1
    assert len(cells) == 2 * len(table.arms())


@pytest.mark.parametrize("claim", CLAIMS)
def test_statements_say_what_the_paper_says_or_are_our_own(claim: type[Claim]) -> None:
    assert len({statement.id for statement in claim.statements}) == len(claim.statements)
    assert any(statement.paper for statement in claim.statements)
    assert any(not statement.paper for statement in claim.statements)


def test_what_tunes_is_not_what_judges() -> None:
    assert (claims.LearningRates.validation, claims.LearningRates.metric) == ("val_loss", "test_loss")
    assert issubclass(claims.LearningRatesKJV, claims.LearningRates)


def outcomes(claim: Claim, losses: Mapping[tuple[str, float], float]) -> dict[str, str]:
    """Verdicts where every seed of an arm has about the same loss."""
    results = [
        CellResult(
            cell=Cell(method=method, seed=seed, setting={"lr": rate}),
            status="done",
            measured=dict.fromkeys(("val_loss", "test_loss"), loss + 1e-5 * ((place + 1) * seed % 29)),
        )
        for place, ((method, rate), loss) in enumerate(losses.items())
        for seed in range(3)
    ]
    return {verdict.statement: verdict.outcome for verdict in claim.judge(Table(results))}


def curves(**best: float) -> dict[tuple[str, float], float]:
    """Losses by method and rate; the named methods' own, the others 2.0 everywhere."""
    names = {"simple": "SimpleNorm", "pre": "pre-norm"}
    found = {(method, rate): 2.0 for method in claims._METHODS for rate in claims._RATES}
    for name, loss in best.items():
        for place, rate in enumerate(claims._RATES):
            found[names[name], rate] = loss + place * (0.01 if name == "simple" else 0.2)
    return found


def test_the_learning_rates_can_be_confirmed_and_refuted() -> None:
    good = outcomes(claims.LearningRates(), curves(simple=1.7, pre=1.9))
    assert {good[name] for name in ("beats-pre", "beats-qk", "flatter", "width-aware", "small-rates")} == {
        "holds"
    }
    assert good["flat"] == "holds"
    bad = outcomes(claims.LearningRates(), curves(simple=2.5, pre=1.9))
    assert {bad[name] for name in ("beats-pre", "beats-qk", "width-aware")} == {"does not hold"}


def test_a_best_rate_is_found_for_each_seed() -> None:
    cells = [
        CellResult(
            cell=Cell(method="m", seed=seed, setting={"lr": rate}),
            status="done",
            measured={"val_loss": abs(rate - best)},
        )
        for seed, best in ((0, 0.1), (1, 0.01))
        for rate in (0.01, 0.1)
    ]
    assert claims._best_rate(Table(cells), "m", "val_loss") == {0: 0.1, 1: 0.01}
    assert claims._spread(Table(cells), "m", "val_loss") == pytest.approx({0: 0.09, 1: 0.09})


def test_changes_are_relative_to_the_power_of_the_factor() -> None:
    cells = [
        CellResult(
            cell=Cell(method="m", seed=0, setting={"factor": factor}),
            status="done",
            measured={"curvature": value},
        )
        for factor, value in ((1.0, 3.0), (4.0, 48.0))
    ]
    assert list(claims._changes(Table(cells), "m", 2).values()) == [0.0]
    assert list(claims._changes(Table(cells), "m", 0).values()) == [15.0]


def test_curvature_at_a_point_is_independent_of_the_factor_and_the_terms_add_up() -> None:
    one, other = (
        curvature_at(kind="SimpleNorm", loss="cross-entropy", factor=factor, width=12, seed=0)
        for factor in (1.0, 64.0)
    )
    assert one["curvature"] == pytest.approx(other["curvature"], rel=1e-9)
    assert one["terms_slack"] > 0
    plain = [
        curvature_at(kind="plain", loss="quadratic", factor=factor, width=12, seed=0)["curvature"]
        for factor in (1.0, 64.0)
    ]
    assert plain[1] / plain[0] == pytest.approx(4096, rel=1e-9)


def test_gain_bounds_see_both_ends_drift_and_what_is_not_finite() -> None:
    watch = GainBounds(1)
    norm = RMSNorm(4, 1e-12)
    torch.nn.init.constant_(norm.weight, 2.0)
    y = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    for factor, expected in ((1.0, 0.0), (1.5, -0.5), (0.25, -0.75), (1.0, -0.75), (math.nan, -math.inf)):
        watch._bound(norm, (y,), factor * norm(y))
        assert watch._slack == pytest.approx(expected, abs=1e-5)
    watch._scales = [2.0, 5.0, 3.0]
    assert watch.measured() == {"drift": 2.5, "scale": [2.0, 5.0, 3.0], "steps": [], "gain_slack": -math.inf}


def test_gain_bounds_watch_what_is_added_to_the_residual_stream() -> None:
    torch.manual_seed(0)
    learner = SimpleGPTModule(11, 16, 2, 2, max_seq_len=6, multiple_of=8)
    rows = torch.randint(11, (8, 7), generator=torch.Generator().manual_seed(1))
    seen = {}
    for name, module in learner.model.named_modules():
        if name.endswith((".o", ".w2")):
            module.register_forward_hook(partial(lambda name, *a: seen.setdefault(name, a[2]), name))
    watch = GainBounds(1)
    trainer = lightning.Trainer(
        max_steps=1, callbacks=[watch], logger=False, enable_checkpointing=False, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(learner, torch.utils.data.DataLoader([(row[:-1], row[1:]) for row in rows], batch_size=8))
    assert len(seen) == 4
    expected = [one.detach().square().mean(dim=-1).sqrt().median().item() for one in seen.values()]
    assert watch.measured()["scale"] == pytest.approx([sum(expected) / 4])
    assert watch.measured()["steps"] == [0]
