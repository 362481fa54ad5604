"""The optimizer: it is the method on simplices, and alternating descent-ascent elsewhere."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from leyden.testing.fitting import quiet, quiet_trainer
from leyden_asym_perturb import AsymPGDA, IterationDataModule, biased_rps
from leyden_asym_perturb.baselines import PerturbedGDA, run
from lightning.pytorch import LightningModule
from torch import Tensor

BRPS = biased_rps().payoff[0]


def play(optimizer: AsymPGDA, x: Tensor, y: Tensor, steps: int) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        cost = x @ BRPS @ y
        cost.backward()  # type: ignore[no-untyped-call]
        return cost

    for _ in range(steps):
        optimizer.step(closure)


@pytest.mark.parametrize("side", ["x", "y"])
def test_on_simplices_it_is_the_method_step_by_step(side: Literal["x", "y"]) -> None:
    x, y = (torch.full((3,), 1 / 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    groups = [{"params": [x]}, {"params": [y], "role": "max"}]
    optimizer = AsymPGDA(groups, eta=0.1, mu=1.0, side=side, geometry="simplex")
    method = PerturbedGDA(biased_rps(), eta=0.1, mu_x=float(side == "x"), mu_y=float(side == "y"))
    for _ in range(50):
        play(optimizer, x, y, 1)
        method.step()
        torch.testing.assert_close(x.detach(), method.x[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(y.detach(), method.y[0], rtol=0, atol=1e-12)


def test_lr_multiplies_eta_and_nothing_else() -> None:
    """As a scheduler sets it: half the eta is half the lr."""
    found = []
    for eta, lr in ((0.05, 1.0), (0.1, 0.5)):
        x, y = (torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64, requires_grad=True) for _ in range(2))
        groups = [{"params": [x]}, {"params": [y], "role": "max"}]
        play(AsymPGDA(groups, eta=eta, mu=1.0, lr=lr, geometry="simplex"), x, y, 20)
        found.append(torch.cat((x, y)).detach())
    assert torch.equal(*found)


def test_free_parameters_of_a_bilinear_game_converge_to_the_saddle() -> None:
    x, y = (torch.tensor([1.0], dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = AsymPGDA([{"params": [x]}, {"params": [y], "role": "max"}], eta=0.2, mu=0.5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (x * y).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(300):
        optimizer.step(closure)
    assert float(x.detach().abs() + y.detach().abs()) < 1e-6


def test_the_closure_is_called_before_each_half_step_and_must_be_there() -> None:
    x, y = (torch.ones(1, requires_grad=True) for _ in range(2))
    calls = []

    def closure() -> Tensor:
        calls.append(float(x))
        loss = (x * y).sum()
        x.grad, y.grad = torch.ones(1), torch.ones(1)
        return loss

    optimizer = AsymPGDA([{"params": [x]}, {"params": [y], "role": "max"}], eta=0.5, mu=0.0)
    optimizer.step(closure)
    assert calls == [1.0, 0.5]
    with pytest.raises(RuntimeError, match="closure"):
        optimizer.step()


class Rivals(LightningModule):
    """Two players on a matrix, under automatic optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = (torch.nn.Parameter(torch.full((3,), 1 / 3, dtype=torch.float64)) for _ in range(2))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        cost: Tensor = self.x @ BRPS @ self.y
        return cost

    def configure_optimizers(self) -> AsymPGDA:
        groups = [{"params": [self.x]}, {"params": [self.y], "role": "max"}]
        return AsymPGDA(groups, eta=0.1, mu=1.0, geometry="simplex")


def test_under_a_trainer_both_half_steps_see_their_own_gradient() -> None:
    module = Rivals()
    trainer = quiet_trainer(max_steps=30)
    with quiet():
        trainer.fit(module, datamodule=IterationDataModule(30))
    method = PerturbedGDA(biased_rps(), eta=0.1, mu_x=1.0)
    run(method, 30)
    assert trainer.global_step == 30
    torch.testing.assert_close(module.x.detach(), method.x[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(module.y.detach(), method.y[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"eta": 0.0}, "eta"),
        ({"mu": -1.0}, "mu"),
        ({"lr": -1.0}, "lr"),
        ({"side": "z"}, "side"),
        ({"role": "both"}, "role"),
        ({"geometry": "ball"}, "geometry"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        AsymPGDA([torch.ones(1, requires_grad=True)], **given)


def test_a_wrong_setting_of_a_group_is_named() -> None:
    for name, wrong in {"side": "z", "role": "both", "mu": -1.0}.items():
        with pytest.raises(ValueError, match=rf"^{name}: expected"):
            AsymPGDA([{"params": [torch.ones(1, requires_grad=True)], name: wrong}])
