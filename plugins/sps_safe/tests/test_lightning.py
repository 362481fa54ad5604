"""Under a Trainer: accumulation gives the large batch, and the monitor logs and draws what happened."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from leyden.tasks import Classification, mlp
from leyden.testing import RecordingLeydenLogger, RecordingLogger
from leyden_sps_safe import IMASPSSafe, SPSMonitor, SPSSafe
from leyden_sps_safe.monitor import History
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

METHODS = {
    "SPSSafe": partial(SPSSafe, M=0.5),
    "IMASPSSafe": partial(IMASPSSafe, lambd=9.0),
    "IMASPSSafe t": partial(IMASPSSafe, lambd="t", M="auto"),
}


def train(
    method: Any, *, batch: int = 8, accumulate: int = 1, epochs: int = 2, logger: Any = False, **trainer: Any
) -> tuple[Tensor, Trainer]:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(64, 6, generator=generator), torch.randint(3, (64,), generator=generator)
    )
    torch.manual_seed(0)
    task = Classification(mlp([6, 8, 3]), num_classes=3, optimizer=method)
    runner = Trainer(
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        logger=logger,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **trainer,
    )
    runner.fit(task, DataLoader(data, batch_size=batch))
    return nn.utils.parameters_to_vector(task.parameters()).detach(), runner


@pytest.mark.parametrize("name", METHODS)
def test_four_accumulated_batches_equal_one_of_four_times_the_size(name: str) -> None:
    small, _ = train(METHODS[name], batch=4, accumulate=4)
    large, _ = train(METHODS[name], batch=16)
    torch.manual_seed(0)
    start = nn.utils.parameters_to_vector(mlp([6, 8, 3]).parameters()).detach()
    assert (small - large).abs().max() <= 1e-6
    assert (small - start).abs().max() > 1e-2


def test_the_monitor_is_in_every_trainer_and_logs_every_few_steps() -> None:
    logger = RecordingLogger()
    _, runner = train(METHODS["SPSSafe"], logger=logger, log_every_n_steps=3)
    optimizer = runner.optimizers[0]
    for name in ("step_size", "grad_norm_sq", "safeguard_active", "loss_used", "skipped"):
        assert list(logger.of(f"sps/{name}")) == [0, 3, 6, 9, 12, 15]
    assert logger.of("sps/step_size")[15] == pytest.approx(float(optimizer.last_step_size))  # type: ignore[attr-defined]
    assert logger.of("sps/grad_norm_sq")[15] == pytest.approx(float(optimizer.last_grad_norm_sq))  # type: ignore[attr-defined]
    assert set(logger.of("sps/skipped").values()) == {0}
    losses, used = logger.of("train_loss_step"), logger.of("sps/loss_used")
    shared = losses.keys() & used.keys()
    assert [used[step] for step in shared] == pytest.approx([losses[step] for step in shared])


def test_the_fraction_of_an_epoch_is_the_mean_of_its_steps() -> None:
    logger = RecordingLogger()
    train(METHODS["SPSSafe"], logger=logger, log_every_n_steps=1)
    active = logger.of("sps/safeguard_active")
    fractions = logger.of("sps/safeguard_fraction")
    assert list(fractions) == [7, 15]
    assert fractions[7] == pytest.approx(sum(active[step] for step in range(8)) / 8)
    assert fractions[15] == pytest.approx(sum(active[step] for step in range(8, 16)) / 8)
    assert 0 < sum(active.values()) < 16


def test_only_the_first_monitor_acts() -> None:
    logger = RecordingLogger()
    train(METHODS["SPSSafe"], logger=logger, callbacks=[SPSMonitor(every=5), SPSMonitor(every=1)], epochs=1)
    assert list(logger.of("sps/step_size")) == [0, 5]
    assert len([step for step, metrics in logger.metrics if "sps/step_size" in metrics]) == 2


def test_the_monitor_leaves_other_optimizers_alone() -> None:
    logger = RecordingLogger()
    train(partial(torch.optim.SGD, lr=0.1), logger=logger, log_every_n_steps=1)
    assert not [metrics for _, metrics in logger.metrics if any(name.startswith("sps/") for name in metrics)]


def test_the_monitor_draws_the_run_at_its_end() -> None:
    logger = RecordingLeydenLogger()
    _, runner = train(METHODS["IMASPSSafe"], logger=logger)
    (figure,) = logger.figures.values()
    sizes, norms = (ax.lines[0].get_xydata() for ax in figure.axes)
    assert [int(step) for step, _ in sizes] == list(range(16))
    optimizer: Any = runner.optimizers[0]
    assert sizes[-1][1] == pytest.approx(float(optimizer.last_step_size))
    assert norms[-1][1] == pytest.approx(float(optimizer.last_grad_norm_sq))
    silent = RecordingLeydenLogger()
    train(METHODS["IMASPSSafe"], logger=silent, callbacks=[SPSMonitor(figure=False)])
    assert not silent.figures


def test_lightnings_own_mlflow_logger_gets_the_picture_too() -> None:
    class KeptByMLflow(MLFlowLogger):
        name, version, run_id, save_dir = "kept", "0", "run", None
        kept = MagicMock()

        @property
        def experiment(self) -> Any:
            return self.kept

        def __init__(self) -> None:
            Logger.__init__(self)

        def log_metrics(self, *args: Any, **kwargs: Any) -> None:
            pass

        log_hyperparams = finalize = after_save_checkpoint = log_metrics

    logger = KeptByMLflow()
    train(METHODS["SPSSafe"], logger=logger, epochs=1)
    ((run, figure, place), _) = logger.kept.log_figure.call_args
    assert (run, place) == ("run", "figures/sps.png")
    assert len(figure.axes) == 2


def test_a_skipped_update_is_counted_in_the_log() -> None:
    class Spoiled(SPSSafe):
        def step(self, closure: Any = None, *, loss: Any = None) -> Any:
            if self.last_step_size is not None and self.skipped_steps == 0:
                with torch.enable_grad():
                    closure()
                self.pending_loss = None
                return super().step(loss=float("nan"))
            return super().step(closure, loss=loss)

    logger = RecordingLogger()
    with pytest.warns(RuntimeWarning, match="skipped an update"):
        train(Spoiled, logger=logger, log_every_n_steps=1, epochs=1)
    skipped = logger.of("sps/skipped")
    assert [skipped[step] for step in range(8)] == [0, 1, 1, 1, 1, 1, 1, 1]
    assert logger.of("sps/step_size")[1] == 0


@pytest.mark.parametrize("every", [0, -1, True, 1.5])
def test_an_interval_that_is_not_a_positive_integer_is_refused(every: Any) -> None:
    with pytest.raises(ValueError, match="every must be a positive integer or None"):
        SPSMonitor(every=every)


def test_a_long_history_is_thinned_evenly() -> None:
    x = nn.Parameter(torch.zeros(1))
    optimizer, history = SPSSafe([x]), History(most=10)
    for step in range(100):
        x.grad = torch.tensor([1.0 + step])
        optimizer.step(loss=1.0)
        assert history.add(step, optimizer)
        assert not history.add(step, optimizer)
    assert history.steps == list(range(0, 100, 16))
    sizes, norms = history.series()
    assert norms == [(1.0 + step) ** 2 for step in history.steps]
    assert sizes == pytest.approx([1 / norm for norm in norms])


def test_each_fraction_counts_the_steps_since_the_last_one() -> None:
    x = nn.Parameter(torch.zeros(1))
    optimizer, history = SPSSafe([x], M=4.0), History()
    for step, gradient in enumerate((1.0, 3.0, 1.0, 1.0, 3.0, 3.0)):
        x.grad = torch.tensor([gradient])
        optimizer.step(loss=1.0)
        history.add(step, optimizer)
        if step == 3:
            assert history.safeguard_fraction() == 0.75
    assert history.safeguard_fraction() == 0
    assert history.safeguard_fraction() is None
