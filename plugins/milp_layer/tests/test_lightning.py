"""The module, the report, the data and the swap, under Lightning."""

from __future__ import annotations

import copy
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from leyden.tasks import Regression, mlp
from leyden_milp_layer import (
    CoolingControlDataModule,
    DisjunctiveProjection,
    RuleConstrainedModule,
    RulePenaltyLoss,
    RuleReport,
    RuleSatisfaction,
    RuleSet,
    ScoreCrossEntropy,
    WineRulesDataModule,
    any_of,
    at_least,
    at_most,
    certify,
    cooling_rules,
    feature,
    implies,
    load_rules,
)
from leyden_milp_layer.module import constrained
from leyden_milp_layer.report import layer_of, metric_names
from lightning.pytorch import Trainer
from torch import nn

ADAM = partial(torch.optim.Adam, lr=0.01)


def quiet(**settings: Any) -> Trainer:
    fixed = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(**{**fixed, "enable_model_summary": False, "accelerator": "cpu", **settings})


@pytest.fixture(scope="module")
def data() -> CoolingControlDataModule:
    made = CoolingControlDataModule(train_size=60, val_size=30, test_size=30, test_domain="ood")
    made.setup()
    return made


@pytest.fixture(scope="module")
def trained(
    data: CoolingControlDataModule,
) -> tuple[RuleConstrainedModule, RuleReport, list[dict[str, float]]]:
    """A module after two epochs alone and two through the layer, tested."""
    torch.manual_seed(0)
    module = RuleConstrainedModule(
        mlp([6, 16, 4]), DisjunctiveProjection(cooling_rules()), warmup_epochs=2, optimizer=ADAM
    )
    report = RuleReport()
    trainer = quiet(max_epochs=4, callbacks=[report])
    trainer.fit(module, datamodule=data)
    assert "rules/csat" in trainer.callback_metrics
    return module, report, trainer.test(module, datamodule=data, verbose=False)  # type: ignore[return-value]


def test_every_rule_holds_after_training_through_the_layer(trained: Any) -> None:
    _, report, (metrics,) = trained
    assert metrics["test_rules/csat"] == 1.0
    assert metrics["test_rules/contradictory"] == 0
    assert metrics["test_rules/global"] == 1.0
    for name in ("mean_correction_l1", "scenarios_mean", "lps_per_sample", "ms_per_sample"):
        assert metrics[f"test_rules/{name}"] > 0
    assert metrics["test_rules/csat/spread"] == 1.0
    assert report.certificate is not None
    assert report.certificate.holds
    assert report.certificate.csat == 1.0


def test_the_report_has_a_line_for_each_rule_and_names_what_costs(trained: Any) -> None:
    _, report, _ = trained
    assert [line.name for line in report.lines] == list(cooling_rules().names)
    for line in report.lines:
        assert 0 <= line.applies <= 1
        assert line.satisfied == 1.0
        assert line.targets == 1.0
    assert any(line.raw < 0.9 for line in report.lines)
    text = report.table()
    assert text.count("\n") >= 9
    assert "Rules that cost accuracy: none." in text or "Rules that cost accuracy: '" in text


def test_a_wrong_rule_is_named_as_one_that_costs_accuracy() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 2, generator=generator)
    rules = RuleSet(
        2,
        0,
        1,
        rules=[
            implies(feature(0) > 0.5, at_least(0, 0.4), name="right"),
            implies(feature(1) > 0.5, at_most(1, 0.1), name="wrong"),
        ],
    )
    targets = x.clone()

    class Noisy(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs + 0.2 * torch.sin(40 * inputs)

    module = RuleConstrainedModule(Noisy(), DisjunctiveProjection(rules))
    report = RuleReport()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, targets), batch_size=50)
    quiet(callbacks=[report]).test(module, loader, verbose=False)
    assert report.costly == ["wrong"]
    by_name = {line.name: line for line in report.lines}
    assert by_name["wrong"].targets == 0.0
    assert by_name["right"].targets == 1.0
    assert by_name["right"].cost < 0
    # the cost is what leaving the rule out saves
    outputs = module(x)
    without = DisjunctiveProjection(RuleSet(2, 0, 1, rules=[implies(feature(0) > 0.5, at_least(0, 0.4))]))
    saved = (outputs - targets).square().mean() - (without(Noisy()(x), x) - targets).square().mean()
    assert by_name["wrong"].cost == pytest.approx(float(saved), rel=1e-5)


def test_warming_up_is_without_the_layer_and_testing_with_it(data: CoolingControlDataModule) -> None:
    layer = DisjunctiveProjection(cooling_rules())
    module = RuleConstrainedModule(mlp([6, 8, 4]), layer, warmup_epochs=9, optimizer=ADAM)
    report = RuleReport(figure=False)
    trainer = quiet(max_epochs=1, callbacks=[report])
    trainer.fit(module, datamodule=data)
    assert layer.last_info is None
    assert report.lines == []
    trainer.test(module, datamodule=data, verbose=False)
    assert layer.last_info is not None
    assert module.projects


def test_a_report_leaves_a_model_without_a_layer_alone(data: CoolingControlDataModule) -> None:
    module = RuleConstrainedModule(mlp([6, 8, 4]), penalty=RulePenaltyLoss(cooling_rules()), optimizer=ADAM)
    report = RuleReport()
    trainer = quiet(max_epochs=1, callbacks=[report])
    trainer.fit(module, datamodule=data)
    assert layer_of(module) is None
    assert report.lines == []
    assert not any(name.startswith("rules/") for name in trainer.callback_metrics)


def test_a_penalty_is_added_in_training_alone() -> None:
    rules = RuleSet(1, 0, 1, rules=[at_least(0, 0.9)])
    module = RuleConstrainedModule(nn.Identity(), penalty=RulePenaltyLoss(rules, rho=2.0))
    batch = torch.tensor([[0.4]]), torch.tensor([[0.4]])
    module.train()
    outputs = module(batch[0])
    assert float(module.apply_loss(module.loss, outputs, batch[1])) == pytest.approx(2 * 0.5)
    module.eval()
    outputs = module(batch[0])
    assert float(module.apply_loss(module.loss, outputs, batch[1])) == 0.0


def test_the_penalty_takes_the_cheapest_disjunct_and_sums_its_rows() -> None:
    either = any_of(at_least(0, 0.5) & at_least(1, 0.5), at_most(0, 0.05))
    rules = RuleSet(2, 0, 1, rules=[implies(feature(0) > 0, either)])
    penalty = RulePenaltyLoss(rules, rho=1.0)
    y, x = torch.tensor([[0.4, 0.3], [0.1, 0.0], [0.1, 1.5]]), torch.tensor([[1.0], [1.0], [-1.0]])
    # the first disjunct costs 0.1 + 0.2, the second 0.35; then 0.05; then only a bound
    assert float(penalty(y, x)) == pytest.approx((0.3 + 0.05 + 0.5) / 3, abs=1e-6)


def test_wine_is_classified_by_scores_on_the_simplex() -> None:
    data = WineRulesDataModule(seed=3)
    torch.manual_seed(0)
    scores = nn.Sequential(mlp([13, 8, 3]), nn.Softmax(dim=1))
    layer = DisjunctiveProjection(load_rules("milp_layer/wine"))
    module = RuleConstrainedModule(scores, layer, task="classification", optimizer=ADAM)
    trainer = quiet(max_epochs=2, callbacks=[RuleReport(figure=False)])
    trainer.fit(module, datamodule=data)
    (metrics,) = trainer.test(module, datamodule=data, verbose=False)
    assert metrics["test_rules/csat"] == 1.0
    assert 0 < metrics["test_accuracy"] <= 1
    (prediction, *_) = trainer.predict(module, datamodule=data)  # type: ignore[misc]
    torch.testing.assert_close(prediction.sum(dim=1), torch.ones(len(prediction)))
    assert isinstance(module.loss, ScoreCrossEntropy)


def test_expert_rules_of_wine_are_right_on_the_data() -> None:
    data = WineRulesDataModule()
    rules = load_rules("milp_layer/wine")
    for _, features, labels in (data.train, data.val, data.test):
        certificate = certify(rules, nn.functional.one_hot(labels, 3).double(), features)
        assert certificate.holds
    assert len(data.train[0]) == 6
    assert data.train[2].bincount().tolist() == [2, 2, 2]


def test_hot_weather_has_more_rules_than_mild_weather() -> None:
    rules = cooling_rules()
    counts = {}
    for domain in ("iid", "ood"):
        data = CoolingControlDataModule(train_size=5, val_size=5, test_size=60, test_domain=domain)  # type: ignore[arg-type]
        inputs, features, targets = data.test
        certificate = certify(rules, targets, features, tol=1e-5)
        assert certificate.holds
        counts[domain] = float(certificate.active.double().sum(dim=1).mean())
        assert inputs.shape == (60, 6)
    assert counts["ood"] > counts["iid"] + 2


def test_a_model_of_somebody_else_is_constrained_by_a_rule_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "outputs: 2\nfeatures: 3\nlower: -5\nupper: 5\nrules:\n  - when: x0 > 0\n    then: y0 >= 1\n"
    )
    model = Regression(mlp([3, 2]), optimizer=ADAM)
    changed = constrained(model, rules=str(file))
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    for one in (changed, copy.deepcopy(changed), pickle.loads(pickle.dumps(changed.backbone)) and changed):
        assert (one(x)[x[:, 0] > 0, 0] >= 1 - 1e-6).all()
    assert (changed.backbone(x)[x[:, 0] > 0, 0] < 1).any()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.randn(20, 2)), batch_size=10)
    quiet(max_epochs=1).fit(changed, loader)


def test_a_checkpoint_keeps_the_hash_of_the_rules(tmp_path: Path) -> None:
    module = RuleConstrainedModule(
        mlp([1, 1]), DisjunctiveProjection(RuleSet(1, 0, 1, rules=[at_least(0, 0.5)]))
    )
    path = tmp_path / "module.ckpt"
    trainer = quiet()
    trainer.strategy.connect(module)
    trainer.save_checkpoint(path)
    other = RuleConstrainedModule(
        mlp([1, 1]), DisjunctiveProjection(RuleSet(1, 0, 1, rules=[at_most(0, 0.5)]))
    )
    saved = torch.load(path, weights_only=True)
    with pytest.warns(UserWarning, match="other rules"):
        other.load_state_dict(saved["state_dict"])


def test_rates_of_halves_are_those_of_the_whole() -> None:
    rules = RuleSet(2, 0, 1, rules=[any_of(at_most(i, 0.25), at_least(i, 0.75)) for i in (0, 1)])
    y = torch.rand(30, 2, generator=torch.Generator().manual_seed(0))
    metric = RuleSatisfaction(rules)
    for half in (y[:10], y[10:]):
        metric.update(half)
    rates = {name: float(value) for name, value in metric.compute().items()}
    held = (y <= 0.25) | (y >= 0.75)
    assert rates["csat"] == pytest.approx(float(held.all(dim=1).float().mean()))
    assert rates["csat/rule 1"] == pytest.approx(float(held[:, 0].float().mean()))
    assert rates["global"] == 1.0
    assert rates["csat"] == pytest.approx(certify(rules, y).csat)


def test_a_certificate_is_a_table_and_a_picture() -> None:
    rules = RuleSet(1, 0, 1, rules=[implies(feature(0) > 0, at_most(0, 0.25), name="low")], features=["t"])
    certificate = certify(rules, torch.tensor([[0.75], [0.1], [0.9]]), torch.tensor([[1.0], [1.0], [-1.0]]))
    assert "| low | 2 | 1 | 0.5 |" in certificate.table()
    assert "3 samples, tolerance 1e-06, 0 contradictory: 1 sample violates one." in certificate.table()
    figure = certificate.figure()
    assert figure.axes[0].images[0].get_array().tolist() == [[0, 2, 1], [1, 1, 1]]


def test_wrong_arguments_of_the_module_are_named() -> None:
    rules = cooling_rules()
    for settings, text in (
        ({"warmup_epochs": -1}, "warmup_epochs: expected a whole number"),
        ({"task": "ranking"}, "task: expected"),
        ({"projection": nn.Identity()}, "projection: expected a DisjunctiveProjection"),
        ({"penalty": nn.Identity()}, "penalty: expected a RulePenaltyLoss"),
        ({"task": "classification"}, "projection: expected one, or a penalty"),
    ):
        with pytest.raises(ValueError, match=f"^{text}"):
            RuleConstrainedModule(mlp([2, 2]), **settings)  # type: ignore[arg-type]
    module = RuleConstrainedModule(mlp([6, 4]), DisjunctiveProjection(rules))
    with pytest.raises(ValueError, match=r"^targets: expected shape \(3, 4\), got \(3,\)"):
        module.align(torch.zeros(3, 4), torch.zeros(3))


def test_names_of_rules_are_logged_as_mlflow_takes_them_and_stay_apart() -> None:
    names = ["load > 0.8 -> on", "load < 0.8 -> on", "a/b|c", "plain"]
    logged = metric_names(names)
    assert list(logged) == names
    assert len(set(logged.values())) == 4
    assert logged["plain"] == "plain"
    assert all(re.fullmatch(r"[\w.\- ]+", name) for name in logged.values())


def odd_report(**settings: Any) -> tuple[RuleReport, dict[str, float]]:
    """A report on two rules with odd names, one of which is wrong."""
    rules = RuleSet(
        1, 0, 1, rules=[any_of(at_most(0, 0.3), name="x < 1 | y"), any_of(at_least(0, 0), name="x > 1")]
    )
    report = RuleReport(figure=False)
    data = torch.utils.data.TensorDataset(torch.rand(40, 1), torch.rand(40, 1) * 0.2 + 0.7)
    module = RuleConstrainedModule(nn.Identity(), DisjunctiveProjection(rules, **settings))
    loader = torch.utils.data.DataLoader(data, batch_size=40)
    (metrics,) = quiet(callbacks=[report]).test(module, loader, verbose=False)
    return report, dict(metrics)


def test_odd_names_pass_through_report_and_certificate() -> None:
    report, metrics = odd_report()
    assert metrics["test_rules/csat/x _ 1 _ y"] == 1.0
    assert metrics["test_rules/cost/x _ 1 _ y"] > 0
    assert metrics["test_rules/csat/x _ 1"] == 1.0
    assert "| x < 1 \\| y | 1.000 |" in report.table()
    told = report.table().splitlines()[-2:]
    assert told == [
        "Rules that cost accuracy: 'x < 1 | y'.",
        "Rules that targets violate: 'x < 1 | y' (100%).",
    ]
    assert report.certificate is not None
    assert "| x < 1 \\| y | 40 | 40 |" in report.certificate.table()


def test_costs_of_a_relaxation_are_not_made_up() -> None:
    report, metrics = odd_report(relaxation="cnf")
    assert not any("cost" in name for name in metrics)
    assert "\nRules that cost accuracy: not measured.\n" in report.table()
    assert report.costly == []


def test_a_certificate_of_nothing_cannot_be_drawn() -> None:
    certificate = certify(RuleSet(1, 0, 1, rules=[at_least(0, 0.5)]), torch.zeros(0, 1))
    with pytest.raises(ValueError, match="outputs: expected at least one sample to draw"):
        certificate.figure()


def test_a_model_that_cannot_be_constrained_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "outputs: 1\nfeatures: 1\nlower: 0\nupper: 1\nrules:\n  - when: x0 > 0\n    then: y0 >= 1\n"
    )

    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, x

    with pytest.raises(ValueError, match="model: expected a tensor of outputs from forward, got tuple"):
        constrained(Pair(), rules=str(file))(torch.zeros(1, 1))
    with pytest.raises(ValueError, match="model: expected the features as the first argument"):
        constrained(nn.Linear(1, 1), rules=str(file))(input=torch.zeros(1, 1))
