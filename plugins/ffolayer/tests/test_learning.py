"""Training through the layers: constraints, decisions, and what Lightning is owed beyond the kit."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ffo_references import relative
from leyden.lightning import fit_config
from leyden.tasks import mlp
from leyden_ffolayer import (
    BoxProgram,
    DecisionFocusedModule,
    FFOQPLayer,
    HypergradientMonitor,
    SyntheticDFLDataModule,
    Triage,
    regret,
)
from leyden_ffolayer.baselines import CvxpyQPLayer
from leyden_ffolayer.decision import ChosenFeatures
from leyden_ffolayer.experiments import learn_constraints
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor


def module(layer: Any = None, **settings: Any) -> DecisionFocusedModule:
    seed_everything(0)
    optimizer = partial(torch.optim.SGD, lr=0.05)
    return DecisionFocusedModule(
        mlp([4, 8, 6]), layer or FFOQPLayer(), BoxProgram(6, least_sum=-1.5), optimizer=optimizer, **settings
    )


def data(**sizes: int) -> SyntheticDFLDataModule:
    settings = {"num_costs": 6, "num_features": 4, "train_size": 32, "val_size": 16, "test_size": 16}
    return SyntheticDFLDataModule(batch_size=8, **{**settings, **sizes})


def trained(task: DecisionFocusedModule, **settings: Any) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    plain: dict[str, Any] = {"max_epochs": 1, "logger": False, "accelerator": "cpu", "devices": 1, **quiet}
    trainer = Trainer(**{**plain, **settings})
    trainer.fit(task, datamodule=data())
    return trainer


def weights(task: DecisionFocusedModule) -> Tensor:
    return torch.nn.utils.parameters_to_vector(task.parameters()).detach()


@pytest.mark.parametrize("seed", range(3))
def test_acceptance_10_constraints_are_learned_from_solutions_and_worse_without_the_dropped_term(
    seed: int,
) -> None:
    errors: dict[int, float] = {}
    learned = learn_constraints(seed, on_step=errors.__setitem__)
    assert learned.before / learned.after >= 1e5
    assert learned.validation == pytest.approx(learned.after, rel=100)
    if seed == 0:
        released = learn_constraints(seed, steps=120, formula="released")
        assert released.before == learned.before
        assert released.after > 3 * errors[120]


def test_acceptance_11_decisions_train_to_the_loss_of_cvxpylayers() -> None:
    losses = []
    for layer in (FFOQPLayer(), CvxpyQPLayer()):
        trainer = trained(module(layer), max_epochs=3)
        losses.append(float(trainer.callback_metrics["val/decision_loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_acceptance_11_decisions_train_to_the_loss_of_qpth() -> None:
    pytest.importorskip("qpth")
    from leyden_ffolayer.baselines import QpthLayer

    losses = [
        float(trained(module(layer), max_epochs=3).callback_metrics["val/decision_loss"])
        for layer in (FFOQPLayer(), QpthLayer())
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_the_baselines_dense_adjoint_is_exact_and_its_default_is_not() -> None:
    from leyden_ffolayer.problems import dense_problem

    problem = dense_problem(60, batch=2, seed=3)
    found = {}
    for name, layer in (
        ("ours", FFOQPLayer()), ("dense", CvxpyQPLayer("dense", 1e-9)), ("lsqr", CvxpyQPLayer("lsqr", 1e-9))
    ):  # fmt: skip
        q = problem.q.clone().requires_grad_()
        (found[name],) = torch.autograd.grad((problem.c * layer(problem.Q, q, problem.G, problem.h)).sum(), q)
    assert relative(found["dense"], found["ours"]) < 1e-5
    assert relative(found["lsqr"], found["ours"]) > 1e-3


def test_acceptance_4_output_and_gradient_agree_with_qpth() -> None:
    pytest.importorskip("qpth")
    from leyden_ffolayer.problems import dense_problem
    from qpth.qp import QPFunction

    problem = dense_problem(100)
    none = torch.tensor([], dtype=torch.float64)
    outputs, found = [], []
    for layer in (FFOQPLayer(), QPFunction(verbose=-1, eps=1e-12, maxIter=60)):
        leaves = [value.clone().requires_grad_() for value in (problem.q, problem.h.expand(8, -1).clone())]
        y = layer(problem.Q, leaves[0], problem.G, leaves[1], none, none)
        outputs.append(y.detach())
        found.append(torch.autograd.grad((problem.c * y).sum(), leaves))
    assert relative(outputs[1], outputs[0]) <= 1e-8
    for ours, theirs in zip(*found, strict=True):
        assert relative(theirs, ours) <= 1e-5


def test_regret_is_zero_at_the_true_costs_and_never_negative() -> None:
    program, layer = BoxProgram(6, least_sum=-1.5), FFOQPLayer()
    _, costs = data().train
    assert regret(layer, program, costs, costs).abs().max() < 1e-6
    generator = torch.Generator().manual_seed(0)
    guesses = costs + torch.randn(costs.shape, generator=generator)
    lost = regret(layer, program, guesses, costs)
    assert float(lost.min()) > -1e-6
    assert float(lost.mean()) > 0.05


@pytest.mark.parametrize("training", ["decision", "two-stage"])
def test_training_lowers_what_it_trains_on(training: Any) -> None:
    task = module(training=training)
    features, costs = data().train

    def loss() -> float:
        with torch.no_grad():
            predicted = task.predict_costs(features)
            if training == "two-stage":
                return float((predicted - costs).square().mean())
            return float((costs * task.decide(predicted)).sum(dim=1).mean())

    before = loss()
    after = trained(task, max_epochs=10).callback_metrics
    assert loss() < before
    assert float(after["val/regret"]) >= 0


def test_the_layers_numbers_are_logged() -> None:
    trainer = trained(module(), log_every_n_steps=1)
    metrics = trainer.callback_metrics
    assert 0 < float(metrics["ffo/active_rows_mean"]) <= 13
    assert float(metrics["ffo/polish_rate"]) == 1
    assert float(metrics["ffo/forward_ms"]) > 0
    assert float(metrics["ffo/backward_ms"]) > 0
    assert float(metrics["ffo/inaccurate_solves"]) == 0


def test_a_predictors_wrong_shape_is_told() -> None:
    task = DecisionFocusedModule(
        mlp([4, 5]), FFOQPLayer(), BoxProgram(6), optimizer=partial(torch.optim.SGD, lr=0.1)
    )
    with pytest.raises(ValueError, match=r"predictor's output: expected shape \(8, 6\), got \(8, 5\)"):
        trained(task)
    with pytest.raises(ValueError, match=r"^training: expected one of 'decision', 'two-stage'"):
        module(training="both")


def test_under_a_gradient_scaler_the_training_is_the_same() -> None:
    plain, scaled = module(), module()
    trained(plain)
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    precision.autocast_context_manager = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    trained(scaled, plugins=[precision])
    assert torch.allclose(weights(plain), weights(scaled), atol=1e-6)


def test_under_bf16_autocast_it_trains_to_nearly_the_same() -> None:
    plain, mixed = module(), module()
    trained(plain)
    trained(mixed, precision="bf16-mixed")
    assert torch.isfinite(weights(mixed)).all()
    assert relative(weights(mixed), weights(plain)) < 0.05


def test_the_monitor_sees_a_right_gradient_and_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = HypergradientMonitor(every=2)
    trainer = trained(module(), callbacks=[monitor])
    assert float(trainer.callback_metrics["ffo/grad_check_relerr"]) < 1e-5

    from leyden_ffolayer import qp_layer

    real = qp_layer.gradients

    def wrong(*arguments: Any) -> Any:
        found = real(*arguments)
        return found if found.q is None else found._replace(q=1.5 * found.q)

    monkeypatch.setattr(qp_layer, "gradients", wrong)
    trainer = trained(module(), callbacks=[HypergradientMonitor(every=2)])
    assert float(trainer.callback_metrics["ffo/grad_check_relerr"]) > 0.01


def test_the_monitor_checks_the_drop_in_too() -> None:
    from leyden_ffolayer import gradient_error
    from leyden_ffolayer.trial import cvxpy_layer, least_squares_rows

    generator = torch.Generator().manual_seed(0)
    assert gradient_error(cvxpy_layer(), least_squares_rows().inputs, generator=generator) < 1e-5


def test_the_monitor_leaves_no_declared_set_and_checks_on_its_boundary() -> None:
    """A singular Q, a weight of 0 and a singular semidefinite matrix: a free step would be refused."""
    import cvxpy
    from leyden_ffolayer import FFOLayer, gradient_error

    cp: Any = cvxpy
    generator = torch.Generator().manual_seed(0)
    low = torch.diag(torch.tensor([1.0, 0.0]))
    box = (torch.cat([torch.eye(2), -torch.eye(2)]), torch.ones(4))
    q = torch.tensor([-0.5, 0.3])
    assert gradient_error(FFOQPLayer(), (low, q, *box), generator=generator) < 1e-5
    y, P, weights, costs = (
        cp.Variable(2),
        cp.Parameter((2, 2), PSD=True),
        cp.Parameter(2, nonneg=True),
        cp.Parameter(2),
    )
    objective = 0.5 * cp.quad_form(y, P) + weights @ cp.square(y) + costs @ y
    layer = FFOLayer(cp.Problem(cp.Minimize(objective), [y <= 1, y >= -1]), [P, weights, costs], [y])
    values = (low, torch.tensor([0.7, 0.0]), q)
    assert gradient_error(layer, values, generator=generator) < 1e-5


def test_the_monitor_changes_nothing_and_counts_no_solve_of_its_own() -> None:
    plain, watched = module(), module()
    trained(plain)
    trained(watched, callbacks=[HypergradientMonitor(every=1)])
    assert torch.equal(weights(plain), weights(watched))
    assert watched.layer.report.backward_systems == plain.layer.report.backward_systems  # type: ignore[union-attr]


def test_a_checkpoint_holds_no_trace_of_layer_and_program(tmp_path: Path) -> None:
    task = module()
    trainer = trained(task, default_root_dir=tmp_path)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert all(name.startswith("predictor.") for name in saved["state_dict"])
    arguments = {"predictor": mlp([4, 8, 6]), "layer": FFOQPLayer(), "program": BoxProgram(6, least_sum=-1.5)}
    again = DecisionFocusedModule.load_from_checkpoint(tmp_path / "last.ckpt", **arguments)
    assert torch.equal(weights(again), weights(task))


def test_the_generated_set_is_learnable_and_the_splits_are_apart() -> None:
    made = SyntheticDFLDataModule(num_costs=10, num_features=8, train_size=200)
    features, costs = made.train
    assert features.shape == (200, 8)
    assert float(costs.min()) >= -0.5
    assert float(costs.max()) <= 0.5
    fitted = torch.linalg.lstsq(features, costs).solution
    left = (features @ fitted - costs).square().mean() / costs.square().mean()
    assert float(left) < 0.8
    assert not torch.equal(made.val[0][:16], features[:16])
    assert float(SyntheticDFLDataModule(centred=False).train[1].min()) >= 0


def test_groups_of_patients_come_from_their_own_split() -> None:
    made = Triage(patients=5, train_size=40, val_size=10, test_size=10)
    measurements, costs = made.train
    assert measurements.shape == (40, 5, 10)
    assert costs.shape == (40, 5)

    def patients(split: str) -> set[tuple[float, ...]]:
        return {tuple(row) for row in made.splits[split][0].reshape(-1, 10).tolist()}

    assert not patients("train") & patients("test")
    assert not patients("val") & patients("test")
    assert all(len({tuple(row) for row in group}) == 5 for group in measurements.tolist())
    with pytest.raises(ValueError, match=r"^patients: expected at most 88"):
        Triage(patients=100)


def test_chosen_features_are_all_that_a_predictor_sees() -> None:
    predictor = ChosenFeatures([1], mlp([1, 1]))
    inputs = torch.randn(3, 4, 5)
    moved = inputs.clone()
    moved[..., [0, 2, 3, 4]] += 1
    assert torch.equal(predictor(inputs), predictor(moved))
    with pytest.raises(ValueError, match=r"^features"):
        ChosenFeatures([], mlp([1, 1]))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"lower": 1.0, "upper": 0.0}, "^upper: expected a number above lower"),
        ({"least_sum": 1.0}, "^least_sum: expected at most"),
        ({"most_sum": -9.0}, "^most_sum: expected at least"),
        ({"curvature": 0.0}, "^curvature: expected a finite number above 0"),
    ],
)
def test_a_box_without_a_point_is_refused(arguments: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        BoxProgram(3, **arguments)


def test_the_shipped_configuration_can_train_without_the_program() -> None:
    changes = {
        "trainer.max_epochs": 1,
        "data.init_args.train_size": 64,
        "model.init_args.training": "two-stage",
    }
    fitted = fit_config("ffolayer/synthetic", changes)
    assert fitted.metrics["test/regret"] >= 0
