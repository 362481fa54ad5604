from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from leyden_callbacks import GradientNorm
from leyden_callbacks.gradient_norm import for_tracked_runs, global_norm
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.strategies import SingleDeviceStrategy
from loss_feed_testbed import LinearLoss, NoSynchronisation, fit, loader, plain, rows, scaled, trainer
from torch import Tensor


class Memory(Logger):
    """Keeps what it is given."""

    name, version = "memory", "0"

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert all(isinstance(value, float) for value in metrics.values())
        self.logged.append((step, dict(metrics)))

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def norms(self, name: str = "gradient_norm") -> dict[int, float]:
        return {step: metrics[name] for step, metrics in self.logged if name in metrics}


class Gradients(pl.Callback):
    """Notes the norm of each step's gradient by the definition, from one long vector."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
        self.norms.append(math.sqrt(float((gradient * gradient).sum())))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("size", [1, 4])
def test_norm_over_all_groups_is_logged_at_the_chosen_steps(every: int, size: int) -> None:
    logger, gradients = Memory(), Gradients()
    callbacks = [gradients, GradientNorm(every=every)]
    fit(
        LinearLoss(plain),
        callbacks=callbacks,
        logger=logger,
        max_epochs=2,
        accumulate_grad_batches=size,
        log_every_n_steps=7,
    )
    assert len(gradients.norms) == 2 * -(-10 // size)
    assert logger.norms() == pytest.approx(dict(list(enumerate(gradients.norms))[::every]), rel=1e-12)


def test_norm_is_taken_before_clipping() -> None:
    logger, gradients = Memory(), Gradients()
    fit(
        LinearLoss(plain), callbacks=[gradients, GradientNorm(every=1)], logger=logger, gradient_clip_val=1e-3
    )
    assert list(logger.norms().values()) == pytest.approx(gradients.norms, rel=1e-12)
    assert min(gradients.norms) > 0.1


def test_several_optimizers_have_a_norm_each() -> None:
    class Manual(LinearLoss):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.SGD([self.x], lr=0.1), torch.optim.SGD([self.y], lr=0.1)]

        def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward((batch[0] @ torch.cat([self.x, self.y])).mean())
                optimizer.step()

    logger = Memory()
    fit(Manual(), batches=5, callbacks=[GradientNorm(every=2)], logger=logger)
    data = rows(5)
    assert logger.norms("gradient_norm/0") == pytest.approx({i: float(data[i, :3].norm()) for i in (0, 2, 4)})
    assert logger.norms("gradient_norm/1") == pytest.approx({i: float(data[i, 3:].norm()) for i in (0, 2, 4)})


@pytest.mark.parametrize("fused", [False, True])
def test_norm_is_unscaled_under_a_grad_scaler(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = Memory()
    plugin = scaled(torch.amp.GradScaler("cpu", init_scale=2.0**9), monkeypatch)
    module = LinearLoss(lambda groups: torch.optim.Adam(groups, fused=fused), dtype=torch.float32)
    data = rows(6, dtype=torch.float32)
    trainer([GradientNorm(every=1)], plugins=plugin, logger=logger).fit(module, loader(data))
    assert logger.norms() == pytest.approx(dict(enumerate(data.norm(dim=1).tolist())), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*training_step. returned .None")
def test_a_window_that_lightning_drops_under_a_grad_scaler_is_not_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger = Memory()
    plugin = scaled(torch.amp.GradScaler("cpu", init_scale=2.0**9), monkeypatch)
    module = LinearLoss(plain, skip=[3], dtype=torch.float32)
    data = rows(6, dtype=torch.float32)
    run = trainer([GradientNorm(every=1)], plugins=plugin, logger=logger, accumulate_grad_batches=2)
    run.fit(module, loader(data))
    means = data.reshape(3, 2, -1).mean(dim=1).norm(dim=1).tolist()
    assert logger.norms() == pytest.approx({0: means[0], 2: means[2]}, rel=1e-5)


def test_nothing_waits_for_the_device_between_the_steps_that_log() -> None:
    class Watched(GradientNorm):
        def on_before_optimizer_step(self, trainer: pl.Trainer, *arguments: Any) -> None:
            if trainer.global_step in (1, 2, 4):
                with NoSynchronisation():
                    super().on_before_optimizer_step(trainer, *arguments)
            else:
                super().on_before_optimizer_step(trainer, *arguments)

    logger = Memory()
    fit(LinearLoss(plain), batches=5, callbacks=[Watched(every=3)], logger=logger)
    assert list(logger.norms()) == [0, 3]


def test_without_a_logger_the_norm_is_among_the_callback_metrics() -> None:
    module = LinearLoss(plain)
    fit(module, batches=3, callbacks=[GradientNorm(every=1)])
    assert module.trainer.callback_metrics["gradient_norm"].item() == pytest.approx(float(rows(3)[2].norm()))


@pytest.mark.parametrize("later", [GradientNorm(every=1), for_tracked_runs()])
def test_of_several_the_first_acts(later: GradientNorm) -> None:
    logger = Memory()
    fit(LinearLoss(plain), batches=4, callbacks=[GradientNorm(every=2), later], logger=logger)
    assert [step for step, _ in logger.logged] == [0, 2]


def test_the_contributed_one_leaves_untracked_runs_alone_and_does_not_stand_in_the_way() -> None:
    logger = Memory()
    fit(LinearLoss(plain), batches=4, callbacks=[for_tracked_runs()], logger=logger)
    assert not logger.logged
    fit(LinearLoss(plain), batches=4, callbacks=[for_tracked_runs(), GradientNorm(every=2)], logger=logger)
    assert list(logger.norms()) == [0, 2]


@pytest.mark.parametrize("every", [0, -1, 2.0, True, "50"])
def test_every_must_be_a_positive_integer(every: Any) -> None:
    with pytest.raises(ValueError, match="every"):
        GradientNorm(every=every)


def test_where_the_gradient_is_out_of_reach_it_says_so_and_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leyden_callbacks.gradient_norm._HIDES_GRADIENTS", (SingleDeviceStrategy,))
    logger = Memory()
    with pytest.warns(UserWarning, match="does nothing under SingleDeviceStrategy"):
        fit(LinearLoss(plain), batches=2, callbacks=[GradientNorm(every=1)], logger=logger)
    assert not logger.logged


def test_a_step_without_gradient_is_not_logged() -> None:
    logger = Memory()
    frozen = LinearLoss(lambda groups: torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1))
    fit(frozen, batches=2, callbacks=[GradientNorm(every=1)], logger=logger)
    assert not logger.logged


def test_global_norm_does_not_overflow_in_half_precision() -> None:
    gradients = [torch.full((100,), 3e4, dtype=torch.float16), torch.full((100,), 4e4, dtype=torch.float16)]
    exact = math.hypot(*(float(one[0]) * 10 for one in gradients))
    assert global_norm(gradients).item() == pytest.approx(exact, rel=1e-6)
    assert global_norm(gradients).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_global_norm_takes_dense_sparse_complex_and_mixed_types_as_one_vector() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1, 4]]), torch.tensor([1.0, 2.0, 4.0]), (9,))
    gradients = [torch.tensor([3.0 + 4.0j]), sparse, torch.tensor([2.0], dtype=torch.float64)]
    norm = global_norm(gradients)
    assert norm.item() == pytest.approx(math.sqrt(25 + 9 + 16 + 4), rel=1e-7)
    assert norm.dtype == torch.float64
