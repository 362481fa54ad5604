"""The probe measures curvature and leaves training as it is, bit for bit."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from leyden.tasks import Classification, mlp
from leyden.testing import RecordingLeydenLogger, RecordingLogger
from leyden_datamodules import Digits
from leyden_warmup import LossWarmup, SmoothnessProbe, fit_h0h1
from leyden_warmup.replay import leaving_no_trace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric
from warmup_testbed import Classifier, fit, scaled, sgd


class Quadratic(pl.LightningModule):
    """Half of wᵀQw, of which curvature is known; batches scale it."""

    def __init__(self, eigenvalues: list[float], start: list[float], rate: float = 0.05) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        size = len(eigenvalues)
        basis, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
        self.register_buffer("matrix", basis @ torch.diag(torch.tensor(eigenvalues).double()) @ basis.T)
        self.w = nn.Parameter(basis @ torch.tensor(start).double())
        self.rate = rate

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return batch[0].mean() * (self.w @ self.matrix @ self.w) / 2

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD(self.parameters(), lr=self.rate)


def curvatures(module: pl.LightningModule, factors: list[float], **settings: Any) -> list[float]:
    probe = SmoothnessProbe(every=1, **settings)
    trainer = settings.pop("trainer", {})
    runner = pl.Trainer(
        max_epochs=1,
        callbacks=[probe],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        **trainer,
    )
    runner.fit(module, DataLoader(TensorDataset(torch.tensor(factors).double()), batch_size=1))
    return probe.curvatures


def test_on_a_quadratic_it_lies_between_the_eigenvalues_and_is_the_largest_along_its_direction() -> None:
    found = curvatures(Quadratic([1.0, 3.0, 8.0], [1.0, 1.0, 1.0]), [1.0] * 20)
    assert len(found) == 20
    assert all(1 - 1e-9 <= value <= 8 + 1e-9 for value in found)
    top = curvatures(Quadratic([1.0, 3.0, 8.0], [0.0, 0.0, 1.0]), [1.0] * 5)
    assert top == pytest.approx([8.0] * 5, rel=1e-2)


def test_the_same_batch_at_both_points_leaves_no_noise_and_the_next_one_does() -> None:
    factors = [1.0, 2.0, 1.0, 2.0, 1.0]
    same = curvatures(Quadratic([4.0], [1.0]), factors)
    assert same == pytest.approx([4 * factor for factor in factors])
    consecutive = curvatures(Quadratic([4.0], [1.0]), factors, batch="consecutive")
    # |2 q w₊ - q w| / |w₊ - w| with w₊ = (1 - 0.05 q) w
    step = 0.05 * 4
    assert consecutive[0] == pytest.approx(abs(8 * (1 - step) - 4) / step)
    assert len(consecutive) == 4
    assert consecutive[0] > 2 * same[0]


class Records(Classifier):
    """A module whose training step changes all that a training step may: buffers, attributes, generators."""

    def __init__(self, optimizer: Any = sgd) -> None:
        super().__init__(optimizer, noisy=True)
        self.calls = 0
        self.total: Any = 0.0
        self.running = torch.zeros(())
        self.seen: dict[str, list[float]] = {"draws": []}
        self.mean = MeanMetric()
        self.own = torch.Generator().manual_seed(3)
        self.others = (random.Random(4), np.random.default_rng(5), np.random.RandomState(6))
        self.first.noise = torch.Generator().manual_seed(7)  # type: ignore[assignment]

    def draws(self) -> list[float]:
        one, two, three = self.others
        inner: Any = self.first.noise
        mine = [float(torch.rand((), generator=generator)) for generator in (self.own, inner)]
        common = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return [*common, one.random(), float(two.random()), float(three.rand()), *mine]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        self.calls += 1
        self.seen["draws"] += self.draws()
        loss = super().training_step(batch, batch_idx)
        assert loss is not None
        self.total = self.total + loss.detach()
        self.running += loss.detach()
        self.mean.update(loss.detach())
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Draw between two training steps, as a hook that adds noise to the gradient does."""
        self.seen["draws"] += self.draws()


class Watch(Callback):
    """Keeps all that training is, after every batch."""

    def __init__(self) -> None:
        self.states: list[Any] = []

    def on_train_batch_end(self, trainer: pl.Trainer, own: Any, *_: Any) -> None:
        gradients = [None if p.grad is None else p.grad.clone() for p in own.parameters()]
        self.states.append(
            copy.deepcopy(
                (
                    own.state_dict(),
                    gradients,
                    trainer.optimizers[0].state_dict(),
                    torch.get_rng_state(),
                    random.getstate(),
                    np.random.get_state()[1].tolist(),
                    (own.calls, own.total, own.running, own.seen, own.mean.compute(), own.losses),
                    {name: value.clone() for name, value in trainer.callback_metrics.items()},
                    "log" in vars(own),
                )
            )
        )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("batch", ["same", "consecutive"])
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 4}, {"gradient_clip_val": 0.1}])
def test_training_is_bit_for_bit_what_it_is_without(batch: Any, options: dict[str, Any]) -> None:
    runs = []
    for probing in (False, True):
        random.seed(0)
        np.random.seed(0)
        watch, module = Watch(), Records()
        probe = [SmoothnessProbe(every=2, batch=batch)] if probing else []
        fit(module, *probe, watch, rows=56, **options)
        runs.append(watch.states)
        if probing:
            # of 14 or 4 steps every second one; a consecutive one needs the step after it
            assert len(probe[0].curvatures) == (2 if "accumulate_grad_batches" in options else 7)
            assert all(value > 0 for value in probe[0].curvatures)
    assert len(runs[0]) == 14
    for plain, probed in zip(*runs, strict=True):
        for one, other in zip(plain, probed, strict=True):
            assert same(one, other)


def test_it_uses_the_same_random_draws_at_both_points() -> None:
    """With other dropout masks the difference of the gradients would not vanish with the step."""
    probe = SmoothnessProbe(every=1)
    fit(Classifier(lambda groups: optim.SGD(groups, lr=1e-5), noisy=True), probe)
    assert max(probe.curvatures) < 1000  # else above 10,000


class Noisy(Classifier):
    """Adds noise of a generator of its own."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if batch_idx == 0:
            self.noise = torch.Generator().manual_seed(3)
        inputs, labels = batch
        return super().training_step(
            [inputs + torch.randn(inputs.shape, generator=self.noise), labels], batch_idx
        )


class Consumes(Classifier):
    """Changes its batch in place, and takes it apart."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        labels, inputs = batch.pop(), batch.pop().mul_(3)
        return nn.functional.cross_entropy(self.second(self.first(inputs)), labels)


@pytest.mark.parametrize("kind", [Noisy, Consumes])
def test_both_points_see_the_same_batch_and_noise_of_the_modules_own(kind: Any) -> None:
    probe = SmoothnessProbe(every=1)
    fit(kind(lambda groups: optim.SGD(groups, lr=1e-5)), probe)
    assert len(probe.curvatures) == 16
    assert max(probe.curvatures) < 1000  # else above 10,000


class Thaws(Classifier):
    """Trains its second layer alone, until the second epoch."""

    def on_fit_start(self) -> None:
        self.first.requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        self.first.requires_grad_(self.current_epoch > 0)


class Adds(Classifier):
    """The same, by a group that is added to the optimizer."""

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD(self.second.parameters(), lr=0.05)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch:
            self.optimizers().add_param_group({"params": list(self.first.parameters()), "lr": 0.05})  # type: ignore[union-attr]


@pytest.mark.parametrize("batch", ["same", "consecutive"])
@pytest.mark.parametrize("kind", [Thaws, Adds])
def test_it_follows_the_parameters_that_are_trained(kind: Any, batch: Any) -> None:
    """From the second epoch on it measures what a probe does that saw no other parameters."""

    def build(groups: Any) -> optim.Optimizer:
        return optim.SGD(groups, lr=0.05)

    probe, module = SmoothnessProbe(every=1, batch=batch), kind(build)
    weights: list[dict[str, Tensor]] = []

    class Notes(Callback):
        def on_train_epoch_start(self, trainer: pl.Trainer, own: Any) -> None:
            weights.append(copy.deepcopy(own.state_dict()))

    fit(module, probe, Notes(), max_epochs=2)
    fresh, other = SmoothnessProbe(every=1, batch=batch), Classifier(build)
    other.load_state_dict(weights[1])
    fit(other, fresh)
    assert probe.curvatures[-len(fresh.curvatures) :] == pytest.approx(fresh.curvatures, rel=1e-4)
    assert len(fresh.curvatures) == (16 if batch == "same" else 15)


def test_without_anything_to_train_it_does_nothing() -> None:
    class Still(Classifier):
        def configure_optimizers(self) -> None:
            return None

    probe = SmoothnessProbe(every=1)
    fit(Still(sgd), probe)
    assert probe.steps == []


def test_under_accumulation_it_measures_the_window() -> None:
    values = []
    for batch, accumulate in ((4, 4), (16, 1)):
        module = Classifier(lambda groups: optim.SGD(groups, lr=0.05))
        probe = SmoothnessProbe(every=1)
        fit(module, probe, batch=batch, accumulate_grad_batches=accumulate)
        values.append((probe.curvatures, probe.losses))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-3)
    assert values[0][1] == pytest.approx(values[1][1], rel=1e-5)


def test_a_scaler_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values = []
    for plugins in ([], [scaled(monkeypatch, init_scale=2.0**8)]):
        module = Classifier(lambda groups: optim.SGD(groups, lr=0.05))
        probe = SmoothnessProbe(every=2)
        fit(module, probe, plugins=plugins)
        values.append(probe.curvatures)
    assert values[0] == pytest.approx(values[1], rel=1e-3)


def test_a_gradient_that_another_callback_changes_does_not_count() -> None:
    class Meddles(Callback):
        def on_before_optimizer_step(self, trainer: pl.Trainer, own: Any, optimizer: Any) -> None:
            for parameter in own.parameters():
                parameter.grad *= 1.5

    found = []
    for callbacks in ([SmoothnessProbe(every=1), Meddles()], [Meddles(), SmoothnessProbe(every=1)]):
        module = Quadratic([4.0], [1.0])
        runner = pl.Trainer(
            max_epochs=1,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
        )
        runner.fit(module, DataLoader(TensorDataset(torch.ones(5).double())))
        found.append(next(one for one in callbacks if isinstance(one, SmoothnessProbe)).curvatures)
    assert found[0] == found[1] == pytest.approx([4.0] * 5)


def test_it_stops_at_until_step() -> None:
    probe = SmoothnessProbe(every=3, until_step=7)
    fit(Classifier(sgd), probe)
    assert probe.steps == [0, 3, 6]


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None")
def test_steps_without_a_loss_or_without_a_move_are_left_out() -> None:
    module, probe = Classifier(sgd), SmoothnessProbe(every=1)
    module.no_loss = {2}
    fit(module, probe, limit_train_batches=5)
    assert 2 not in probe.steps
    still = SmoothnessProbe(every=1)
    fit(Classifier(lambda groups: optim.SGD(groups, lr=0.0)), still, limit_train_batches=5)
    assert still.steps == []


def test_it_resumes_with_what_was_measured(tmp_path: Path) -> None:
    through, saver = SmoothnessProbe(every=3), ModelCheckpoint(dirpath=tmp_path, save_last=True)
    fit(Classifier(sgd), through, max_epochs=2)
    fit(Classifier(sgd), SmoothnessProbe(every=3), saver, enable_checkpointing=True)
    resumed = SmoothnessProbe(every=3)
    fit(Classifier(sgd), resumed, max_epochs=2, resume_from=tmp_path / "last.ckpt")
    assert resumed.state_dict() == through.state_dict()
    assert len(resumed.steps) == 11


def test_it_logs_and_draws_the_fit() -> None:
    logger, probe = RecordingLogger(), SmoothnessProbe(every=2)
    fit(Classifier(sgd), probe, logger=logger)
    assert list(logger.of("smoothness/curvature").items()) == list(
        zip(probe.steps, probe.curvatures, strict=True)
    )
    found = fit_h0h1(probe.losses, probe.curvatures)
    for name, value in (("H0", found.H0), ("H1", found.H1), ("C_suggested", found.C)):
        assert logger.of(f"smoothness/{name}") == {15: value}
    drawn = RecordingLeydenLogger()
    fit(Classifier(sgd), SmoothnessProbe(every=2), logger=drawn)
    assert len(drawn.figures["smoothness"].axes[0].collections[0].get_offsets()) == 8


def test_it_says_where_there_is_no_signal(caplog: pytest.LogCaptureFixture) -> None:
    class Sharpens(Quadratic):
        """Curvature rises while the loss falls."""

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return (1 + batch[0].mean()) * (self.w @ self.matrix @ self.w) / 2

    with caplog.at_level("INFO"):
        curvatures(Sharpens([1.0], [1.0], rate=0.2), [0.1, 0.2, 0.3, 0.4, 0.5])
    assert "no warm-up signal" in caplog.text


def test_manual_optimization_is_refused() -> None:
    module = Classifier(sgd)
    module.automatic_optimization = False
    with pytest.raises(MisconfigurationException, match="Classifier, which optimizes manually"):
        fit(module, SmoothnessProbe())


def test_beside_the_warm_up_it_changes_nothing_either() -> None:
    vectors = []
    for probes in ([], [SmoothnessProbe(every=2)]):
        module = Classifier(sgd, noisy=True)
        fit(module, LossWarmup(), *probes)
        vectors.append(module.vector)
    assert torch.equal(*vectors)


def test_a_task_of_leyden_is_logged_as_without_it() -> None:
    metrics = []
    for probes in ([], [SmoothnessProbe(every=4)]):
        torch.manual_seed(0)
        task = Classification(
            mlp([64, 16, 10]), num_classes=10, optimizer=lambda parameters: optim.SGD(parameters, lr=0.1)
        )
        runner = pl.Trainer(
            max_epochs=1,
            callbacks=list(probes),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
        )
        runner.fit(task, datamodule=Digits(batch_size=64))
        metrics.append({name: float(value) for name, value in runner.callback_metrics.items()})
    assert metrics[0] == metrics[1]
    assert "train_loss" in metrics[0]


def test_containers_are_put_back_in_place() -> None:
    module = nn.Module()
    module.rows = rows = [torch.ones(2), {"a": torch.zeros(1)}]  # type: ignore[assignment]
    module.register_buffer("mean", torch.zeros(2))
    kept = module.mean
    with leaving_no_trace(module):
        rows[0] += 1
        rows[1]["a"] += 1
        rows[1]["b"] = 2
        rows.append(3)
        module.mean = torch.ones(2)
        module.new = 4  # type: ignore[assignment]
        torch.rand(3)
    assert module.rows is rows
    assert len(rows) == 2
    assert torch.equal(rows[0], torch.ones(2))
    assert same(rows[1], {"a": torch.zeros(1)})
    assert module.mean is kept
    assert not hasattr(module, "new")


@pytest.mark.parametrize(
    ("name", "value"),
    [("every", 0), ("every", True), ("batch", "other"), ("until_step", 0), ("f_star", float("nan"))],
)
def test_a_wrong_argument_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        SmoothnessProbe(**{name: value})
