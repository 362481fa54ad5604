"""What `HarmReduction` adds to a training step, as the network grows under one last layer, batch 128.

Under a Trainer, process CPU time of ``training_step``, backward and optimizer step. One training acts at
every second step, so that each step with weights has one without beside it, of the same network under the
same load; given is the median of the differences of these pairs, with the quartiles, and the time within the
callback's part of the backward pass alone, which load disturbs least. The last layer is the same at all
sizes, 64 inputs and 10 classes; depth and image grow. ``--quick`` takes seconds.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
import warnings
from typing import Any

import torch
from leyden_harm import HarmReduction
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

QUICK = "--quick" in sys.argv
BATCH, FEATURES, CLASSES = 128, 64, 10
PAIRS = 4 if QUICK else 20
SIZES = ((16, 1, 32),) if QUICK else ((16, 1, 32), (16, 2, 32), (16, 2, 64))
"""Channels of the first stage, convolutions in each of three stages, and side of the image."""


def network(width: int, depth: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(3):
        for place in range(depth):
            last = (stage, place) == (2, depth - 1)
            wide = FEATURES if last else width * 2**stage
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()]
            channels = wide
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(FEATURES, CLASSES)]
    return nn.Sequential(*layers)


class Classifier(LightningModule):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.network = network(width, depth)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Timed(HarmReduction):
    """Counts its own time: all that it does in the backward pass."""

    def __init__(self) -> None:
        super().__init__(every=2)
        self.own: list[float] = []

    def _weigh(self, h: Tensor, gradient: Tensor) -> Tensor:
        start = time.process_time()
        weighted = super()._weigh(h, gradient)
        self.own.append((time.process_time() - start) * 1e3)
        return weighted


class Clock(Callback):
    def __init__(self) -> None:
        self.steps: list[float] = []
        self._start = 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self._start = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps.append((time.process_time() - self._start) * 1e3)


def train(width: int, depth: int, side: int) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of the steps with weights and of those without, in turns, and of the weighting alone."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.utils.data.TensorDataset(
        torch.randn(BATCH * 2, 3, side, side, generator=generator),
        torch.randint(CLASSES, (BATCH * 2,), generator=generator),
    )
    clock, reduction = Clock(), Timed()
    trainer = Trainer(
        max_steps=2 * PAIRS + 4,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[reduction, clock],
    )
    trainer.fit(Classifier(width, depth), torch.utils.data.DataLoader(rows, batch_size=BATCH))
    steps = clock.steps[4:]
    return steps[::2], steps[1::2], reduction.own[2:]


warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
print(
    f"## harm: a training step, batch {BATCH}, {torch.get_num_threads()} thread(s), {PAIRS} pairs of steps\n"
)
print("| network | image | parameters | plain, ms | more by pairs (quartiles) | more | weighting alone |")
print("|---|---|---|---|---|---|---|")
for width, depth, side in SIZES:
    weighted, plain, own = train(width, depth, side)
    more = [one - other for one, other in zip(weighted, plain, strict=True)]
    low, middle, high = statistics.quantiles(more, n=4)
    base = statistics.median(plain)
    parameters = sum(one.numel() for one in network(width, depth).parameters())
    print(
        f"| {3 * depth} convolutions from {width} channels | {side} x {side} | {parameters:,} | {base:.1f} "
        f"| {middle:.1f} ({low:.1f} to {high:.1f}) | {middle / base:+.1%} "
        f"| {(alone := statistics.median(own)):.2f}, {alone / base:.2%} |"
    )
