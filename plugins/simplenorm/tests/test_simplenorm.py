from __future__ import annotations

import math

import pytest
import torch
from leyden_simplenorm import Simplenorm, penalized_cross_entropy


def test_without_penalty_it_is_torchs_cross_entropy() -> None:
    logits, labels = torch.randn(7, 4), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    expected = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(penalized_cross_entropy(logits, labels, penalty=0.0), expected)


def test_an_undecided_prediction_earns_the_penalty_times_the_log_of_the_classes() -> None:
    logits, labels = torch.zeros(3, 5), torch.tensor([0, 1, 2])
    loss = penalized_cross_entropy(logits, labels, penalty=0.3)
    assert loss.item() == pytest.approx((1 - 0.3) * math.log(5))


def test_a_certain_prediction_has_no_entropy_and_a_finite_loss() -> None:
    loss = penalized_cross_entropy(torch.tensor([[1000.0, 0.0]]), torch.tensor([0]), penalty=0.3)
    assert loss.item() == 0.0


def test_training_minimizes_the_penalized_loss() -> None:
    module = Simplenorm(features=3, classes=2, penalty=0.5)
    batch = (torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    expected = penalized_cross_entropy(module(batch[0]), batch[1], penalty=0.5)
    torch.testing.assert_close(module.training_step(batch, 0), expected)


@pytest.mark.parametrize(
    ("argument", "value"), [("features", 0), ("classes", 1), ("penalty", -0.1), ("lr", math.inf)]
)
def test_a_wrong_argument_is_named(argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}: expected .*, got {value}$"):
        Simplenorm(**{argument: value})
