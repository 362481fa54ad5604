"""The solver under a Trainer: the numbers of the function, checkpoints, resume, stopping, what is logged."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from leyden.lightning import fit_config
from leyden.testing.fitting import quiet, quiet_trainer
from leyden_asym_perturb import (
    AsymPGameModule,
    IterationDataModule,
    MatrixGame,
    NashConvCallback,
    ProcessResult,
    SolveResult,
    asymp_gda,
    asymp_solve,
    biased_rps,
    goofspiel,
    kuhn_poker,
    random_matrix,
)
from leyden_asym_perturb.game import Game
from leyden_asym_perturb.monitor import draw_curve, draw_path, rounds_table, strategies_of
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


def fitted(
    module: AsymPGameModule, steps: int = 1000, *, ckpt: Path | None = None, **arguments: Any
) -> tuple[Trainer, AsymPGameModule]:
    trainer = quiet_trainer(max_epochs=1, max_steps=steps, **arguments)
    with quiet():
        trainer.fit(module, datamodule=IterationDataModule(1000), ckpt_path=ckpt)
    return trainer, module


@pytest.mark.parametrize("game", [biased_rps, kuhn_poker, goofspiel, lambda: random_matrix(6, 1, games=3)])
def test_a_trainer_gives_the_numbers_of_the_function_bit_for_bit(game: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = asymp_solve(game(), 1e-4, max_iters=700)
    _, module = fitted(AsymPGameModule(game(), eps=1e-4, inner_steps=35), steps=20)
    found = module.result()
    assert isinstance(found, SolveResult)
    for name in ("x", "y", "nash_conv", "lower", "upper", "mu", "iters", "rounds", "converged"):
        ours, theirs = (torch.as_tensor(getattr(one, name)) for one in (found, alone))
        assert torch.equal(ours, theirs), name
    assert found.history == alone.history


def test_a_fit_interrupted_at_iteration_500_and_resumed_is_the_uninterrupted_one(tmp_path: Path) -> None:
    make = lambda: AsymPGameModule(random_matrix(6, 4), eps=1e-12, inner_steps=50)  # noqa: E731
    checkpoint = ModelCheckpoint(dirpath=tmp_path, filename="half", every_n_train_steps=10)
    fitted(make(), 10, callbacks=[checkpoint], enable_checkpointing=True)
    saved = torch.load(tmp_path / "half.ckpt", weights_only=True)
    assert int(saved["state_dict"]["solver.iteration"]) == 500
    _, resumed = fitted(make(), 30, ckpt=tmp_path / "half.ckpt")
    _, through = fitted(make(), 30)
    for name, tensor in through.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    assert through.solver.history == resumed.solver.history
    assert len(through.solver.history) > 2


def test_the_fit_stops_when_the_certificate_is_small_enough() -> None:
    trainer, module = fitted(AsymPGameModule(biased_rps(), eps=1e-6, inner_steps=10))
    found = module.result()
    assert isinstance(found, SolveResult)
    assert found.converged
    assert trainer.global_step == -(-found.iters // 10) < 1000


def test_what_is_logged(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    monitor = LearningRateMonitor()
    module = AsymPGameModule(biased_rps(), eps=1e-6, inner_steps=10)
    trainer, _ = fitted(module, logger=logger, log_every_n_steps=1, callbacks=[monitor])
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    names = {
        "nash_conv",
        "exploitability_x",
        "exploitability_y",
        "perturbed_gap_x",
        "perturbed_gap_y",
        "mu",
        "eta",
        "round",
        "iters_total",
    }
    assert names <= set(metrics)
    assert metrics["nash_conv"] <= 1e-6
    both = metrics["exploitability_x"] + metrics["exploitability_y"]
    assert both == pytest.approx(metrics["nash_conv"], rel=1e-5)
    assert metrics["iters_total"] == float(module.solver.iteration)
    assert 0 < metrics["perturbed_gap_x"] < 1e-6
    kept, _ = fitted(AsymPGameModule(biased_rps(), mu=1.0, inner_steps=10), 2)
    assert float(kept.callback_metrics["perturbed_gap_y"]) > 0
    unknown, _ = fitted(AsymPGameModule(random_matrix(4, 0), inner_steps=10), 2)
    assert "exploitability_x" not in unknown.callback_metrics


def test_a_batch_of_games_logs_its_worst_and_stops_with_the_last() -> None:
    payoffs = torch.cat((biased_rps().payoff, -2 * biased_rps().payoff.mT))
    trainer, module = fitted(AsymPGameModule(MatrixGame(payoffs), eps=1e-6, inner_steps=10))
    found = module.result()
    assert isinstance(found, SolveResult)
    assert torch.as_tensor(found.converged).all()
    assert float(trainer.callback_metrics["nash_conv"]) <= 1e-6


def test_one_process_solves_for_x_alone() -> None:
    _, module = fitted(AsymPGameModule(biased_rps(), mu=1.0, eps=1e-8, inner_steps=10, mirrored=False))
    found = module.result()
    assert isinstance(found, ProcessResult)
    assert found.converged
    assert float(found.bound) <= 1e-8
    alone = asymp_gda(biased_rps(), 1.0, max_iters=found.iters, tol=0.0)
    assert torch.equal(found.strategy, alone.strategy)
    with pytest.raises(ValueError, match=r"^mirrored: "):
        AsymPGameModule(biased_rps(), mirrored=False)


def test_tests_and_predictions_tell_the_certificate() -> None:
    trainer, module = fitted(AsymPGameModule(biased_rps(), eps=1e-6, inner_steps=50))
    with quiet():
        tested = trainer.test(module, datamodule=IterationDataModule(1), verbose=False)
        predicted: Any = trainer.predict(module, datamodule=IterationDataModule(1))
    assert tested[0]["test_nash_conv"] <= 1e-6
    assert predicted[0]["nash_conv"] <= 1e-6
    assert torch.equal(predicted[0]["x"], module.solver.best_x[0])


@pytest.mark.parametrize("given", [{"accumulate_grad_batches": 2}, {"gradient_clip_val": 1.0}])
def test_accumulation_and_clipping_are_refused_in_words(given: dict[str, Any]) -> None:
    with pytest.raises(MisconfigurationException, match="manual optimization"):
        fitted(AsymPGameModule(biased_rps()), 2, **given)


def test_half_precision_is_refused_and_autocast_changes_nothing() -> None:
    with pytest.raises(MisconfigurationException, match="precision"):
        fitted(AsymPGameModule(biased_rps()), 2, precision="bf16-true")
    _, plain = fitted(AsymPGameModule(biased_rps(), eps=1e-12, inner_steps=20), 3)
    _, mixed = fitted(AsymPGameModule(biased_rps(), eps=1e-12, inner_steps=20), 3, precision="bf16-mixed")
    assert torch.equal(plain.solver.x, mixed.solver.x)
    assert plain.solver.x.dtype == torch.float64


def test_autocast_leaves_a_game_in_float32_alone() -> None:
    """Of float64 it changes nothing anyway."""
    plain, mixed = (AsymPGameModule(biased_rps(), eps=1e-12, inner_steps=20).float() for _ in range(2))
    fitted(plain, 3)
    fitted(mixed, 3, precision="bf16-mixed")
    assert torch.equal(plain.solver.x, mixed.solver.x)
    assert plain.solver.x.dtype == torch.float32


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"mu": "large"}, "mu"),
        ({"eta": "large"}, "eta"),
        ({"inner_steps": 0}, "inner_steps"),
        ({"perturbation": "both"}, "perturbation"),
        ({"eps": -1.0}, "eps"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        AsymPGameModule(biased_rps(), **given)


def test_a_checkpoint_is_loaded_with_its_game(tmp_path: Path) -> None:
    trainer, module = fitted(AsymPGameModule(kuhn_poker(), eps=1e-3, inner_steps=50))
    trainer.save_checkpoint(tmp_path / "kuhn.ckpt")
    loaded = AsymPGameModule.load_from_checkpoint(tmp_path / "kuhn.ckpt", game=kuhn_poker())
    assert torch.equal(loaded.solver.best_x, module.solver.best_x)
    assert loaded.result().history == module.result().history  # type: ignore[union-attr]


class Kept(Callback):
    """Leaves a training as it is."""


def test_the_callback_follows_stops_and_resumes(tmp_path: Path) -> None:
    callback = NashConvCallback(every_n_steps=2, stop_below=1e-3)
    trainer, module = fitted(
        AsymPGameModule(biased_rps(), eps=1e-9, inner_steps=10), callbacks=[callback, Kept()]
    )
    assert trainer.global_step < 100
    assert 1e-9 < float(module.solver.best) <= 1e-3
    iterations, values = zip(*callback.curve, strict=True)
    assert list(iterations[:2]) == [20, 40]
    assert values[-1] <= 1e-3 < values[0]
    # of the process that perturbs x, whose x is right
    path = callback.state_dict()["path"]
    assert path[-1] == module.solver.x[0, 0].tolist() != module.solver.x[0, 1].tolist()
    assert len(path) == len(iterations)
    twin = NashConvCallback()
    twin.load_state_dict(callback.state_dict())
    assert twin.curve == callback.curve


def test_the_curve_tells_when_a_certificate_was_computed() -> None:
    """Where a training step is shorter than ``check_every`` it is not the present iteration."""
    callback = NashConvCallback(every_n_steps=1)
    fitted(AsymPGameModule(biased_rps(), eps=1e-9, inner_steps=4, check_every=10), 8, callbacks=[callback])
    assert [iterations for iterations, _ in callback.curve] == [0, 10, 20, 30]
    for iterations, found in callback.curve:
        solver = AsymPGameModule(biased_rps(), eps=1e-9).solver
        solver.advance(max(iterations, 1))
        assert float(solver.current) == found


def test_the_callback_leaves_other_modules_alone() -> None:
    class Other(LightningModule):
        pass

    callback = NashConvCallback()
    callback.on_train_batch_end(quiet_trainer(), Other(), None, None, 0)
    callback.on_fit_end(quiet_trainer(), Other())
    assert callback.curve == []


def test_tables_files_and_pictures(tmp_path: Path) -> None:
    module = AsymPGameModule(biased_rps(), eps=1e-6)
    module.solver.advance(1000)
    found = module.result()
    assert isinstance(found, SolveResult)
    table = rounds_table(found)
    assert table.count("\n") == 2 + len(found.history)
    assert "| 0 | 12 |" in table
    written = json.loads(json.dumps(strategies_of(module.solver, found)))
    assert written["x"] == pytest.approx([0.2, 0.6, 0.2], abs=1e-5)
    assert written["converged"] is True
    assert written["y"] == found.y.tolist()
    named = AsymPGameModule(kuhn_poker(), eps=1e-3)
    named.solver.advance(2000)
    both = strategies_of(named.solver, named.result())  # type: ignore[arg-type]
    assert both["x"] == named.game.policy(0, named.result().x)  # type: ignore[attr-defined,union-attr]
    assert both["y"]["2b"]["bet"] > 0.99  # the best card calls
    curve = draw_curve([(10, 1.0), (20, 0.0)], found)
    path = draw_path([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], found)
    for figure in (curve, path):
        figure.savefig(tmp_path / "figure.png")
    # every action is at the corner that bears its name
    (ax,) = path.axes
    names = {text.get_text(): text.xy for text in ax.texts}  # type: ignore[attr-defined]
    corners = dict(zip(("action 0", "action 1", "action 2"), ax.lines[1].get_xydata().tolist(), strict=True))  # type: ignore[union-attr]
    assert {name: pytest.approx(place) for name, place in names.items()} == corners
    ends = [line.get_xdata()[0] for line in curve.axes[0].lines[1:]]  # type: ignore[index]
    assert ends == [one.iters for one in found.history]


def test_games_are_named_in_a_configuration(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "model": {
            "class_path": "AsymPGameModule",
            "init_args": {"game": {"class_path": "leyden_asym_perturb.goofspiel", "init_args": {"cards": 3}}},
        },
        "data": {"class_path": "IterationDataModule", "init_args": {"num_rounds": 3}},
        "trainer": {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False},
    }
    module = fit_config(config).model
    assert isinstance(module, AsymPGameModule)
    assert isinstance(module.game, Game)
    assert module.game.trees[0].num_sequences == goofspiel(3).trees[0].num_sequences  # type: ignore[attr-defined]
