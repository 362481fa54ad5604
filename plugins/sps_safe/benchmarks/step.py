"""A training step of a network of a million parameters, batch 64, by each optimizer in one process.

Every round takes one step with every optimizer, in another order each time, so that what else the machine
does hits all alike. Medians over the rounds, of ``step`` alone and of the whole training step.
"""

from __future__ import annotations

import importlib
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from leyden_sps_safe import IMASPSSafe, SPSMax, SPSSafe
from torch import nn

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
WARM_UP = 5
REFERENCE = "torch SGD(momentum=0.9, foreach=True)"


def peer(module: str, name: str) -> Any:
    """A peer's class, or None where it is not installed."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return None


class Arm:
    """An optimizer with a network of its own."""

    def __init__(self, build: Callable[[Any], Any], step: Callable[[Any, torch.Tensor], Any]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 200), nn.ReLU(), nn.Linear(200, 10)
        )
        self.optimizer = build(self.model.parameters())
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        self._step = step
        self.alone: list[float] = []
        self.whole: list[float] = []

    def train(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        before = time.perf_counter()
        self._step(self.optimizer, loss)
        end = time.perf_counter()
        self.alone.append((end - before) * 1e6)
        self.whole.append((end - start) * 1e6)


def without(optimizer: Any, loss: torch.Tensor) -> None:
    optimizer.step()


def with_loss(optimizer: Any, loss: torch.Tensor) -> None:
    optimizer.step(loss=loss)


arms: dict[str, tuple[Any, Callable[[Any, torch.Tensor], Any]]] = {
    REFERENCE: (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True), without),
    "SPSSafe": (SPSSafe, with_loss),
    "IMASPSSafe(lambd=9)": (lambda p: IMASPSSafe(p, 9.0), with_loss),
    "SPSMax": (SPSMax, with_loss),
    "torch SGD(momentum=0.9, fused=True)": (
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
        without,
    ),
    "torch Adam(foreach=True)": (lambda p: torch.optim.Adam(p, foreach=True), without),
}
for label, (module, name), build in (
    ("sps-safe SPS_safe", ("sps_safe", "SPS_safe"), lambda kind: lambda p: kind(p)),
    ("sps-safe IMA_SPS_safe", ("sps_safe", "IMA_SPS_safe"), lambda kind: lambda p: kind(p, lambd=9.0)),
    ("momo-opt Momo", ("momo", "Momo"), lambda kind: lambda p: kind(p, lr=0.1)),
):
    if (kind := peer(module, name)) is not None:
        arms[label] = (build(kind), with_loss)
if (kind := peer("schedulefree", "SGDScheduleFree")) is not None:
    arms["schedulefree SGDScheduleFree"] = (lambda p: kind(p, lr=0.1, foreach=True), without)

generator = torch.Generator().manual_seed(0)
data, targets = (
    torch.randn(64, 784, generator=generator),
    torch.randint(10, (64,), generator=generator),
)
running = {label: Arm(build, step) for label, (build, step) in arms.items()}
order = list(running.values())
for _ in range(WARM_UP + ROUNDS):
    random.shuffle(order)
    for arm in order:
        arm.train(data, targets)


def median(values: list[float]) -> float:
    return statistics.median(values[WARM_UP:])


parameters = sum(parameter.numel() for parameter in order[0].model.parameters())
print(
    f"## sps_safe: a step of {parameters:,} parameters, batch 64, {torch.get_num_threads()} thread(s), "
    f"medians of {ROUNDS}\n"
)
print("| optimizer | step alone, µs | ratio | training step, µs | ratio |\n|---|---|---|---|---|")
alone, whole = median(running[REFERENCE].alone), median(running[REFERENCE].whole)
for label, arm in running.items():
    step, training = median(arm.alone), median(arm.whole)
    print(f"| {label} | {step:.0f} | {step / alone:.2f} | {training:.0f} | {training / whole:.2f} |")
