"""What `HarmReduction` adds to a training step, at three sizes of a convolutional network, batch 128.

Under a Trainer, process CPU time of ``training_step``, backward and optimizer step; the two trainings take
turns in blocks of steps. All networks see images of 3 x 32 x 32. ``--quick`` takes seconds.
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
BATCH = 128
STEPS = 6 if QUICK else 10
BLOCKS = 1 if QUICK else 2
SIZES = ((16, 1),) if QUICK else ((16, 1), (32, 1), (48, 2))


def network(width: int, depth: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(3):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width * 2**stage, 3, padding=1), nn.ReLU()]
            channels = width * 2**stage
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers)


class Classifier(LightningModule):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.network = network(width, depth)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Clock(Callback):
    def __init__(self) -> None:
        self.steps: list[float] = []
        self._start = 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self._start = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps.append(time.process_time() - self._start)


def train(width: int, depth: int, *callbacks: Callback) -> list[float]:
    clock = Clock()
    trainer = Trainer(
        max_steps=STEPS + 3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, clock],
    )
    trainer.fit(Classifier(width, depth), torch.utils.data.DataLoader(rows, batch_size=BATCH))
    return clock.steps[3:]


warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
generator = torch.Generator().manual_seed(0)
rows = torch.utils.data.TensorDataset(
    torch.randn(BATCH * 4, 3, 32, 32, generator=generator),
    torch.randint(10, (BATCH * 4,), generator=generator),
)
threads = torch.get_num_threads()
print(f"## harm: a training step, batch {BATCH}, {threads} thread(s), medians of {BLOCKS * STEPS} steps\n")
print("| network | parameters | plain, ms of CPU | with HarmReduction | more |\n|---|---|---|---|---|")
for width, depth in SIZES:
    plain: list[float] = []
    weighted: list[float] = []
    for _ in range(BLOCKS):
        plain += train(width, depth)
        weighted += train(width, depth, HarmReduction())
    parameters = sum(one.numel() for one in network(width, depth).parameters())
    before, after = (statistics.median(times) * 1e3 for times in (plain, weighted))
    print(
        f"| {3 * depth} convolutions, {width} to {4 * width} channels | {parameters:,} | {before:.1f} "
        f"| {after:.1f} | {after / before - 1:+.1%} |"
    )
