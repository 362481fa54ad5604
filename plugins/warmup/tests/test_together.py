"""Three plugins in one Trainer: Polyak steps, harm reduction and the warm-up, in every order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from leyden.testing import RecordingLogger
from leyden_harm import HarmProbe, HarmReduction
from leyden_sps_safe import SPSMonitor, SPSSafe
from leyden_warmup import LossWarmup, SmoothnessProbe
from torch import Tensor, optim
from torch.optim.lr_scheduler import OneCycleLR
from warmup_testbed import Classifier, Rates, fit, multipliers

pytestmark = pytest.mark.filterwarnings("ignore")


def polyak(groups: Any) -> optim.Optimizer:
    return SPSSafe(groups, M=0.5)


def momentum(groups: Any) -> optim.Optimizer:
    return optim.SGD(groups, lr=0.2, momentum=0.9)


def plain_descent(optimizer: optim.Optimizer, parameter: Tensor) -> tuple[None, None, None]:
    """What harm reduction takes the update of the Polyak step for."""
    return None, None, None


def callbacks() -> dict[str, Any]:
    return {
        "warmup": LossWarmup(C=0.8),
        "harm": HarmReduction(layer="second", max_upweight=4.0, affine=plain_descent),
        "monitor": SPSMonitor(every=1),
    }


def train(build: Any, chosen: list[Any], scheduler: Any = None, **options: Any) -> Classifier:
    module = Classifier(build, scheduler)
    fit(module, *chosen, max_epochs=2, batch=8, **options)
    return module


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5}])
def test_three_plugins_train_alike_in_every_order(options: dict[str, Any]) -> None:
    reference = train(polyak, list(callbacks().values()), **options)
    for order in permutations(callbacks()):
        made = callbacks()
        module = train(polyak, [made[name] for name in order], **options)
        assert torch.equal(module.vector, reference.vector), order


@pytest.mark.parametrize("left_out", ["warmup", "harm"])
def test_each_of_them_takes_part(left_out: str) -> None:
    whole = train(polyak, list(callbacks().values()))
    without = train(polyak, [one for name, one in callbacks().items() if name != left_out])
    assert not torch.equal(whole.vector, without.vector)
    assert not torch.equal(whole.vector, train(momentum, list(callbacks().values())).vector)


def test_the_polyak_step_is_multiplied_and_says_its_own_size() -> None:
    """Its step size is told before ``lr``, which alone the warm-up multiplies."""
    noted, logger = Rates(), RecordingLogger()
    made = callbacks()
    module = train(polyak, [made["warmup"], noted, made["monitor"]], logger=logger)
    assert [used[0] for used in noted.used] == pytest.approx(multipliers(module.losses, C=0.8))
    losses = [float(loss) for loss in module.losses]
    told, norms = logger.of("sps/step_size"), logger.of("sps/grad_norm_sq")
    expected = [loss / max(norms[step], 0.5) for step, loss in enumerate(losses)]
    assert [told[step] for step in range(len(losses))] == pytest.approx(expected, rel=1e-5)


def test_with_momentum_and_a_cycle_harm_reduction_sees_the_rate_without_the_warm_up() -> None:
    seen: list[list[float]] = []

    def scheduler(optimizer: optim.Optimizer) -> OneCycleLR:
        return OneCycleLR(optimizer, 0.4, total_steps=20)

    class Notes(HarmReduction):
        def _weigh(self, h: Tensor, gradient: Tensor) -> Tensor:
            optimizer = self._fit.trainer().optimizers[0]  # type: ignore[union-attr]
            seen.append([float(group["lr"]) for group in optimizer.param_groups])
            return super()._weigh(h, gradient)

    vectors = []
    for first in (True, False):
        noted = Rates()
        pair = [LossWarmup(C=0.8), Notes(layer="second", max_upweight=4.0)]
        seen.clear()
        module = train(momentum, [*(pair if first else reversed(pair)), noted], scheduler)
        assert seen == noted.between
        vectors.append(module.vector)
    assert torch.equal(*vectors)


def test_the_probes_of_both_plugins_change_nothing() -> None:
    vectors = []
    for probes in (
        [],
        [SmoothnessProbe(every=2), HarmProbe(every=2)],
        [HarmProbe(every=2), SmoothnessProbe(every=2)],
    ):
        module = train(polyak, [*callbacks().values(), *probes])
        vectors.append(module.vector)
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])
