"""The LightningModule: the numbers of `complete`, tracked, saved, resumed, on one process and on two."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from leyden.testing.fitting import quiet, quiet_trainer
from leyden_hankel import (
    HankelCompletion,
    HankelCompletionModule,
    JacobiPGD,
    SignalFile,
    SpectralSignalDataModule,
    complete,
)
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader


def data(**changes: Any) -> SpectralSignalDataModule:
    return SpectralSignalDataModule(63, 3, **{"samples": 40, "count": 2, "iterations": 10, **changes})


def trained(module: HankelCompletionModule, given: Any, **arguments: Any) -> HankelCompletionModule:
    trainer = quiet_trainer(**{"max_epochs": 40, **arguments})
    with quiet():
        trainer.fit(module, given)
    return module


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(torch.view_as_real(one), torch.view_as_real(other))


@pytest.mark.parametrize(
    ("settings", "drawn"),
    [
        ({}, {}),
        ({"preconditioner": "block_jacobi", "step": "exact"}, {"damping": True}),
        ({"step": "fixed", "outlier_fraction": 0.1}, {"samples": 50, "outliers": 0.1}),
        ({"shape": [15, 14], "damping": 0.1, "consistent": True}, {"shape": [15, 14], "samples": 120}),
    ],
)
def test_a_training_gives_what_complete_gives_bit_for_bit(
    settings: dict[str, Any], drawn: dict[str, Any]
) -> None:
    shape = settings.pop("shape", 63)
    drawn.pop("shape", None)
    signals = SpectralSignalDataModule(shape, 3, **{"samples": 40, "count": 2, "iterations": 10, **drawn})
    module = trained(HankelCompletionModule(shape, 3, **settings), signals)
    y, mask, truth = signals.train
    dims = 1 if shape == 63 else 2
    answer = complete(y, mask, 3, signal_dims=dims, truth=truth, **settings)
    found = module.completion
    assert same(found.x, answer.x)
    assert same(found.Z, answer.Z)
    assert torch.equal(found.iters, answer.iters)
    assert torch.equal(found.converged, answer.converged)
    for name, values in answer.history.items():
        assert torch.equal(found.history[name], values), name
    assert module.trainer.global_step == int(answer.iters.max())


def test_a_training_resumed_in_mid_epoch_gives_the_same_bits(tmp_path: Path) -> None:
    through = trained(HankelCompletionModule(63, 3), data())
    saving = ModelCheckpoint(dirpath=tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    part = trained(
        HankelCompletionModule(63, 3), data(), max_steps=7, callbacks=[saving], enable_checkpointing=True
    )
    assert part.trainer.global_step == 7
    resumed = HankelCompletionModule(63, 3)
    trainer = quiet_trainer(max_epochs=40)
    with quiet():
        trainer.fit(resumed, data(), ckpt_path=tmp_path / "step=7.ckpt")
    assert same(through.completion.x, resumed.completion.x)
    assert torch.equal(through.history, resumed.history)
    loaded = HankelCompletionModule.load_from_checkpoint(tmp_path / "step=7.ckpt")
    assert same(loaded.completion.x, part.completion.x)
    assert loaded.hparams["rank"] == 3


def test_a_checkpoint_of_more_processes_is_refused() -> None:
    module = trained(HankelCompletionModule(63, 3), data(), max_steps=1)
    with pytest.raises(MisconfigurationException, match="signals of 2 processes, and this Trainer has 1"):
        module.on_load_checkpoint({"hankel_states": [{}, {}], "state_dict": {}})


def test_copies_of_a_trained_module_go_on_alike() -> None:
    part = trained(HankelCompletionModule(63, 3), data(), max_steps=7)
    for duplicate in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert same(duplicate.completion.x, part.completion.x)
        trained(duplicate, data())
        assert same(duplicate.completion.x, trained(copy.deepcopy(part), data()).completion.x)


def test_what_happens_is_logged(tmp_path: Path) -> None:
    module = HankelCompletionModule(63, 3)
    logger = CSVLogger(tmp_path)
    trained(module, data(), logger=logger, log_every_n_steps=1, callbacks=[LearningRateMonitor()])
    rows = np.genfromtxt(Path(logger.log_dir) / "metrics.csv", delimiter=",", names=True)
    names = set(rows.dtype.names)
    assert names >= {
        "objective",
        "rel_change",
        "step_size",
        "gram_condition",
        "iterations",
        "seconds",
        "rel_error",
        "val_rel_error",
    }
    errors = rows["rel_error"][~np.isnan(rows["rel_error"])]
    assert errors[-1] < 1e-5
    assert errors[-1] == pytest.approx(float(module.history[-1, :, 3].mean()))
    conditions = rows["gram_condition"][~np.isnan(rows["gram_condition"])]
    assert conditions[-1] == pytest.approx(float(module.completion.gram_condition.mean()), rel=1e-3)


def test_testing_and_predicting_solve_from_the_start() -> None:
    module = HankelCompletionModule(63, 3)
    signals = data(count=5, batch_size=2)
    trainer = quiet_trainer()
    with quiet():
        (measured,) = trainer.test(module, signals, verbose=False)
        (validated,) = trainer.validate(module, signals, verbose=False)
        batches = trainer.predict(module, signals)
    assert validated["val_rel_error"] < 1e-5
    assert measured["test_iterations"] == pytest.approx(
        float(module(*signals.test[:2]).iters.double().mean())
    )
    assert measured["test_rel_error"] < 1e-5
    assert measured["test_converged"] == 1
    assert batches is not None
    y, mask, _ = signals.test
    answer = HankelCompletion(63, 3)(y[2:4], mask[2:4])
    assert same(batches[1]["x"], answer.x)
    gaps = torch.where(mask, y, torch.tensor(complex(math.nan, 0), dtype=y.dtype))
    with quiet():
        (alone,) = trainer.predict(module, DataLoader(gaps, batch_size=5))  # type: ignore[arg-type,misc]
    assert torch.linalg.vector_norm(alone["x"][2:4] - answer.x) < 1e-10


def test_other_signals_in_a_later_step_are_refused() -> None:
    y, mask, truth = data(count=4).train
    batches = [(y[:2], mask[:2], truth[:2]), (y[2:], mask[2:], truth[2:])]
    with pytest.raises(ValueError, match=r"^batch: expected the same signals in every training step"):
        trained(HankelCompletionModule(63, 3), DataLoader(batches, batch_size=None))  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"gradient_clip_val": 1.0}, {"accumulate_grad_batches": 2}])
def test_clipping_and_accumulation_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(MisconfigurationException, match="manual optimization"):
        trained(HankelCompletionModule(63, 3), data(), **arguments)


def test_half_precision_is_refused_and_autocast_changes_no_bit() -> None:
    plain = trained(HankelCompletionModule(63, 3), data(), max_steps=5)
    cast = trained(HankelCompletionModule(63, 3), data(), max_steps=5, precision="bf16-mixed")
    assert same(plain.completion.x, cast.completion.x)
    with pytest.raises(MisconfigurationException, match="no transform in half precision"):
        trained(HankelCompletionModule(63, 3), data(), precision="bf16-true")


def test_there_is_no_completion_before_the_first_step() -> None:
    with pytest.raises(RuntimeError, match="before the first training step"):
        _ = HankelCompletionModule(63, 3).completion


def test_the_seed_and_every_setting_reach_what_is_drawn() -> None:
    plain = data(count=2)
    plain.setup()
    assert not torch.equal(plain.train[2][0], plain.train[2][1])
    for changes in (
        {"seed": 1},
        {"kappa": 5.0},
        {"separation": True},
        {"damping": True},
        {"noise_db": 10.0},
        {"outliers": 0.2},
        {"samples": 30},
    ):
        other = data(**changes)
        other.setup()
        assert not torch.equal(plain.train[0], other.train[0]), changes


def test_a_file_of_arrays_is_read(tmp_path: Path) -> None:
    y, mask, truth = (tensor.numpy() for tensor in data().train)
    np.savez(tmp_path / "signals.npz", observed=y, mask=mask, truth=truth)
    np.save(tmp_path / "gaps.npy", np.where(mask, y, np.nan))
    np.save(tmp_path / "zeros.npy", np.where(mask, y, 0))
    expected = trained(HankelCompletionModule(63, 3), data()).completion.x
    for name, missing in (("signals.npz", "nan"), ("gaps.npy", "nan"), ("zeros.npy", "zero")):
        read = SignalFile(str(tmp_path / name), missing=missing)  # type: ignore[arg-type]
        assert same(trained(HankelCompletionModule(63, 3), read).completion.x, expected)
    planes = SpectralSignalDataModule([7, 9], 2, samples=40, count=3)
    planes.setup()
    np.savez(tmp_path / "planes.npz", observed=planes.train[0], mask=planes.train[1])
    read = SignalFile(str(tmp_path / "planes.npz"), signal_dims=2)
    read.setup()
    assert read.train[0].shape == (3, 7, 9)
    assert torch.equal(read.train[1], planes.train[1])
    np.savez(tmp_path / "other.npz", signal=y)
    with pytest.raises(ValueError, match=r"^path: expected an array 'observed'"):
        SignalFile(str(tmp_path / "other.npz")).setup()
    with pytest.raises(ValueError, match=r"^missing: expected 'nan' or 'zero'"):
        SignalFile("x.npy", missing="blank")  # type: ignore[arg-type]


class Factorization(LightningModule):
    """A symmetric matrix from its factor, under automatic optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.randn(6, 2, dtype=torch.complex128))
        target = torch.randn(6, 2, dtype=torch.complex128)
        self.register_buffer("target", target @ target.mT)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.factor @ self.factor.mT - self.target).abs().square().sum() / 2

    def train_dataloader(self) -> Any:
        return DataLoader(torch.zeros(40, 1))

    def configure_optimizers(self) -> JacobiPGD:
        return JacobiPGD([self.factor])


def test_the_optimizer_trains_a_factor_of_any_loss() -> None:
    seed_everything(0, verbose=False)
    module = Factorization()
    with quiet():
        quiet_trainer(max_epochs=1).fit(module)
    assert float(module.training_step(None, 0).detach()) < 1e-20


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"gradient_clip_val": 1.0}, "gradient_clip_val"), ({"accumulate_grad_batches": 4}, "accumulate_grad")],
)
def test_the_guard_refuses_another_method_of_the_optimizer(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(MisconfigurationException, match=name), quiet():
        quiet_trainer(max_epochs=1, **arguments).fit(Factorization())


@pytest.mark.parametrize(("preconditioner", "lr"), [("tangent", 1.0), ("block_jacobi", 0.5)])
def test_the_optimizers_step_is_the_solvers_direction(preconditioner: str, lr: float) -> None:
    from leyden_hankel.directions import direction
    from leyden_hankel.objective import conjugate_gram

    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(7, 2, dtype=torch.complex128, generator=generator).requires_grad_()
    target = torch.randn(7, 7, dtype=torch.complex128, generator=generator)
    target = target + target.mT
    before = factor.detach().clone()
    optimizer = JacobiPGD([factor], lr=lr, preconditioner=preconditioner)  # type: ignore[arg-type]
    ((factor @ factor.mT - target).abs().square().sum() / 2).backward()
    optimizer.step()
    gram = conjugate_gram(before)
    towards = direction(before, -target @ before.conj(), gram, preconditioner).apply(  # type: ignore[arg-type]
        before, -target @ before.conj()
    )
    torch.testing.assert_close(factor.detach(), before + lr * towards, rtol=1e-11, atol=1e-11)


def stepped(dtype: torch.dtype, **settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A factor before a step, the gradient over two, and the factor after it."""
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(7, 2, generator=generator).to(dtype).requires_grad_()
    target = torch.randn(7, 7, generator=generator).to(dtype)
    before = factor.detach().clone()
    optimizer = JacobiPGD([factor], **settings)
    ((factor @ factor.mT - target - target.mT).square().sum() / 2).backward()
    assert factor.grad is not None
    gradient = factor.grad / 2
    optimizer.step()
    return before, gradient, factor.detach()


def test_the_optimizers_damping_and_its_plain_step_are_as_described() -> None:
    before, gradient, after = stepped(torch.float64, lr=0.3, preconditioner="block_jacobi", damping=0.7)
    gram = before.mT @ before
    lifted = gram + 0.7 * gram.trace() / 2 * torch.eye(2)
    torch.testing.assert_close(after, before - 0.3 * gradient @ torch.linalg.inv(lifted))
    before, gradient, after = stepped(torch.float64, lr=0.3, preconditioner="none")
    largest = torch.linalg.eigvalsh(before.mT @ before)[-1]
    torch.testing.assert_close(after, before - 0.3 * gradient / largest)


def test_factors_in_half_precision_are_stepped_in_single() -> None:
    exact, half = (stepped(dtype, lr=0.5)[2].float() for dtype in (torch.float32, torch.bfloat16))
    assert (half - exact).norm() <= 0.05 * exact.norm()


def test_a_group_that_is_refused_is_not_kept() -> None:
    optimizer = JacobiPGD([torch.zeros(3, 1)])
    with pytest.raises(ValueError, match=r"^lr: expected a finite number"):
        optimizer.add_param_group({"params": [torch.zeros(2, 1)], "lr": -1.0})
    assert len(optimizer.param_groups) == 1


def test_wrong_factors_and_settings_of_the_optimizer_are_named() -> None:
    with pytest.raises(ValueError, match=r"^params: expected factors of shape"):
        JacobiPGD([torch.zeros(3)])
    with pytest.raises(ValueError, match=r"^preconditioner: expected one of"):
        JacobiPGD([torch.zeros(3, 1)], preconditioner="diagonal")  # type: ignore[arg-type]


SCRIPT = """
import os, sys, torch, warnings
warnings.simplefilter("ignore")
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from leyden_hankel import HankelCompletionModule, SpectralSignalDataModule, complete

rank, folder = int(os.environ["RANK"]), sys.argv[1]
settings = dict(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False,
                enable_model_summary=False)
signals = SpectralSignalDataModule(63, 3, samples=30, count=4, iterations=10)
module = HankelCompletionModule(63, 3)
saving = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, every_n_train_steps=5)
Trainer(max_epochs=40, callbacks=[saving], **settings).fit(module, signals)
y, mask, _ = (tensor[rank::2] for tensor in signals.train)
answer = complete(y, mask, 3, signal_dims=1)
assert torch.equal(torch.view_as_real(module.completion.x), torch.view_as_real(answer.x))
assert len(module.history) == int(answer.iters.max())  # and has waited for the other
print("right: each process has solved its own signals")

resumed = HankelCompletionModule(63, 3)
again = SpectralSignalDataModule(63, 3, samples=30, count=4, iterations=10)
trainer = Trainer(max_epochs=40, enable_checkpointing=False, **settings)
trainer.fit(resumed, again, ckpt_path=folder + "/step=5.ckpt")
assert torch.equal(torch.view_as_real(resumed.completion.x), torch.view_as_real(answer.x))
assert len(resumed.history) == len(module.history)
print("right: each process has resumed its own signals")
"""


def test_two_processes_solve_their_own_signals_and_resume_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20000 + os.getpid() % 20000),
        "TORCHELASTIC_RUN_ID": "leyden",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, output in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, output
        assert output.count("right:") == 2
