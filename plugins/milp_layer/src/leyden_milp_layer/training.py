"""Plain training loops of the claims: a base network, then fine-tuning (Section 3.6 of Pal and Li, 2026)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leyden_milp_layer.evaluation import RulePenaltyLoss
from leyden_milp_layer.projection import DisjunctiveProjection

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Split:
    """Rows of a data set.

    Attributes:
        inputs: what the network takes.
        features: what the rules are about.
        targets: outputs or labels.
    """

    inputs: Tensor
    features: Tensor
    targets: Tensor


def train_base(
    network: nn.Module,
    split: Split,
    loss: Loss,
    *,
    optimizer: Callable[..., torch.optim.Optimizer],
    lr: float,
    steps: int,
    penalty: RulePenaltyLoss | None = None,
) -> nn.Module:
    """Train a network alone, on all rows at every step.

    Args:
        network: is trained in place.
        split: the training rows.
        loss: of outputs and targets.
        optimizer: its class.
        lr: learning rate.
        steps: how many.
        penalty: added to the loss.

    Returns:
        The network.
    """
    updates = optimizer(network.parameters(), lr=lr)
    for _ in range(steps):
        updates.zero_grad()
        outputs = network(split.inputs)
        value = loss(outputs, split.targets)
        if penalty is not None:
            value = value + penalty(outputs, split.features)
        value.backward()  # type: ignore[no-untyped-call]
        updates.step()
    return network


def fine_tune(
    network: nn.Module,
    split: Split,
    loss: Loss,
    *,
    optimizer: Callable[..., torch.optim.Optimizer],
    lr: float,
    epochs: int,
    batch_size: int,
    seed: int,
    layer: DisjunctiveProjection | None = None,
    penalty: RulePenaltyLoss | None = None,
) -> nn.Module:
    """Train a copy of a network on, through a projection or with a penalty.

    Args:
        network: where it starts from.
        split: the training rows.
        loss: of outputs and targets.
        optimizer: its class.
        lr: learning rate.
        epochs: passes over the rows.
        batch_size: rows a batch.
        seed: of the order of the rows.
        layer: the outputs go through it; None: they do not.
        penalty: added to the loss, of the raw outputs.

    Returns:
        The trained copy.
    """
    network = copy.deepcopy(network)
    updates = optimizer(network.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(split.inputs), generator=generator)
        for rows in torch.split(order, batch_size):
            updates.zero_grad()
            raw = network(split.inputs[rows])
            outputs = raw if layer is None else layer(raw, split.features[rows])
            value = loss(outputs, split.targets[rows])
            if penalty is not None:
                value = value + penalty(raw, split.features[rows])
            value.backward()  # type: ignore[no-untyped-call]
            updates.step()
    return network


@torch.no_grad()
def predict(network: nn.Module, split: Split, layer: DisjunctiveProjection | None) -> Tensor:
    """The outputs for a split, projected where there is a layer; shape ``(rows, outputs)``.

    Args:
        network: the network.
        split: the rows.
        layer: the projection.

    Returns:
        The outputs.
    """
    raw: Tensor = network(split.inputs)
    return raw if layer is None else layer(raw, split.features)
