"""The claims are fair: equal budgets, validation apart from test data, a verdict for everything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from leyden.claims import Arm, Cell, CellResult, Claim, Scale, Table
from leyden_warmup.baselines import ScheduleFreeMode
from leyden_warmup.claims import Curvature, Descent, DigitsRange, Language, Logistic, _better_of
from leyden_warmup.sharpness import largest_eigenvalue
from torch import nn
from warmup_testbed import Classifier, fit

CLAIMS = (Descent, Logistic, DigitsRange, Language, Curvature)


@pytest.mark.parametrize("claim", [DigitsRange, Language])
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_tuned_method_has_the_same_number_of_settings(claim: type[Claim], scale: Any) -> None:
    cells = claim().cells(Scale(scale, 2))
    table = Table(CellResult(cell=cell, status="failed") for cell in cells)
    assert len({len(table.arms(method)) for method in table.methods}) == 1
    assert len(cells) == 2 * len(table.arms())
    assert set(table.methods) == {"none", "linear", "LossWarmup", "schedule-free"}


@pytest.mark.parametrize("claim", [DigitsRange, Language])
def test_what_tunes_is_not_what_judges_and_the_peer_is_asked_for(claim: type[Claim]) -> None:
    assert claim.validation.startswith("val_")
    assert claim.metric.startswith("test_")
    assert "schedulefree" in claim.imports


@pytest.mark.parametrize("claim", [DigitsRange, Language, Curvature])
def test_what_is_judged_is_run(claim: type[Claim]) -> None:
    """No statement waits for a cell that the laptop scale does not have."""
    scores = ("val_accuracy", "test_accuracy", "val_loss", "test_loss")
    measured = dict.fromkeys((*scores, "correlation", "probe_ratio", "proxy_ratio"), 0.5)
    cells = claim().cells(Scale("laptop", 6))
    table = Table(CellResult(cell=cell, status="done", measured=measured) for cell in cells)
    for verdict in claim().judge(table):
        assert verdict.pairs == 6, verdict


@pytest.mark.parametrize("claim", CLAIMS)
def test_statements_say_what_the_paper_says_or_are_our_own(claim: type[Claim]) -> None:
    assert len({statement.id for statement in claim.statements}) == len(claim.statements)
    assert any(statement.paper for statement in claim.statements)


def test_a_violated_inequality_refutes_it() -> None:
    cell = Cell(method="paper's step", seed=0, setting={"R": 2.0})
    measured = {
        "gradient_slack": -1e-3,
        "descent_slack": 0.1,
        "pl_slack": 0.1,
        "convex_slack": 0.1,
        "steps": 9.0,
    }
    verdicts = Descent().judge(Table([CellResult(cell=cell, status="done", measured=measured)]))
    outcomes = {verdict.statement: verdict.outcome for verdict in verdicts}
    assert outcomes["gradient"] == "does not hold"
    assert outcomes["near"] == "undecided"


def test_the_better_of_two_arms_is_that_of_the_higher_mean() -> None:
    arms = [Arm("linear", {"warmup": 20}), Arm("linear", {"warmup": 60})]
    cells = [Cell(method="linear", seed=0, setting={"warmup": warmup}) for warmup in (20, 60)]
    table = Table(
        CellResult(cell=cell, status="done", measured={"test_accuracy": value})
        for cell, value in zip(cells, (0.3, 0.4), strict=True)
    )
    assert _better_of(table, arms, "test_accuracy") == arms[1]
    assert _better_of(Table([]), arms, "test_accuracy") == arms[0]


def test_the_schedule_free_optimizer_validates_with_its_average() -> None:
    import schedulefree

    seen: list[tuple[str, bool]] = []

    class Watches(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(("train", self.trainer.optimizers[0].param_groups[0]["train_mode"]))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            seen.append(("val", self.trainer.optimizers[0].param_groups[0]["train_mode"]))

    module = Watches(lambda groups: schedulefree.SGDScheduleFree(groups, lr=0.1))
    runner = fit(module, ScheduleFreeMode(), validate=True, val_check_interval=8, num_sanity_val_steps=0)
    assert {mode for kind, mode in seen if kind == "train"} == {True}
    assert {mode for kind, mode in seen if kind == "val"} == {False}
    assert not runner.optimizers[0].param_groups[0]["train_mode"]


def test_the_largest_eigenvalue_is_that_of_the_hessian() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    inputs, labels = torch.randn(20, 3).double(), torch.randint(2, (20,))
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}

    def loss(vector: torch.Tensor) -> torch.Tensor:
        parts = vector.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(model, named, (inputs,)), labels)

    values = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat))
    own = nn.functional.cross_entropy(model(inputs), labels)
    found = largest_eigenvalue(own, list(model.parameters()), iterations=500, tolerance=1e-9)
    assert found == pytest.approx(float(values[values.abs().argmax()]), rel=1e-3)
