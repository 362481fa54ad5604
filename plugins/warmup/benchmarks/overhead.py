"""What LossWarmup and SmoothnessProbe add to a training step in Lightning, beside other callbacks.

Every arm is a Trainer of its own over one network of a million parameters, which they share, gradients, batch
and allocator included: of two copies of a network one is some hundredths slower, whatever trains it, by where
it lies in memory. Rounds of a few steps go to the arms in turn, in another order each time, so that what else
the machine does hits all alike; "no callback, again" shows how far this holds. A step goes from the start of
its batch to the start of the next, and is timed in seconds of the processor, which other processes take least
part in. Medians over the rounds; ratios to the step without callbacks, paired by round, and of the fastest
tenths of all steps, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

os.environ["LEYDEN_CALLBACKS"] = "0"  # each arm says what it has
if "MALLOC_ARENA_MAX" not in os.environ:  # each thread's own would differ by more than a callback costs
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"MALLOC_ARENA_MAX": "1"})

import lightning.pytorch as pl
import torch
from leyden_callbacks import LossFeed
from leyden_warmup import LossWarmup, SmoothnessProbe
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader

WARM_UP = 10
STEPS = 5
REFERENCE = "no callback"


class Network(pl.LightningModule):
    """Trains a network that others train as well."""

    def __init__(self, model: nn.Module, linear: bool = False) -> None:
        super().__init__()
        self.model = model
        self.linear = linear

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        if not self.linear:
            return optimizer
        scheduler = {"scheduler": LinearLR(optimizer, 0.1, total_iters=100), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Silent(Logger):
    """Takes metrics and drops them."""

    name, version = "silent", "0"

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        pass

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


class Turns(Callback):
    """Lets the Trainer run a few steps whenever it is its turn, and times them."""

    def __init__(self) -> None:
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.rounds: list[list[float]] = []
        self.left = 0
        self.started = 0.0

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        now = time.process_time()
        if self.started:
            self.rounds[-1].append((now - self.started) * 1e6)
        if self.left == 0:
            self.started = 0.0
            self.done.release()
            self.go.acquire()
            self.left = STEPS
            self.rounds.append([])
        self.left -= 1
        self.started = time.process_time()


class Arm:
    """A Trainer in a thread, of which one runs at a time."""

    def __init__(
        self, network: Network, batch: list[Tensor], rounds: int, callbacks: Sequence[Callback] = ()
    ) -> None:
        self.turns = Turns()
        trainer = pl.Trainer(
            max_steps=(rounds + WARM_UP) * STEPS,
            callbacks=[self.turns, *callbacks],
            logger=Silent(),
            accelerator="cpu",
            devices=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        batches = DataLoader([batch] * ((rounds + WARM_UP) * STEPS + 1), batch_size=None)
        self.thread = threading.Thread(target=trainer.fit, args=(network, batches), daemon=True)
        self.thread.start()
        self.wait()

    def take_turn(self) -> None:
        self.turns.go.release()
        self.wait()

    def wait(self) -> None:
        if not self.turns.done.acquire(timeout=60):
            raise SystemExit("a Trainer does not come back from its turn")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it runs")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of five steps that count")
    parser.add_argument("--batch", type=int, default=64, help="samples in a batch")
    given = parser.parse_args()
    rounds = 5 if given.quick else given.rounds
    torch.manual_seed(0)
    layers = [nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 200), nn.ReLU(), nn.Linear(200, 10)]
    model = nn.Sequential(*layers)
    batch = [torch.randn(given.batch, 784), torch.randint(10, (given.batch,))]
    trained = {
        REFERENCE: [],
        "no callback, again": [],
        "LossFeed alone (nobody asks)": [LossFeed()],
        "LossWarmup (with its LossFeed)": [LossFeed(), LossWarmup()],
        "LossWarmup(ema=0.9, monotone, release_at)": [
            LossFeed(),
            LossWarmup(ema=0.9, monotone=True, release_at=0.99),
        ],
        "SmoothnessProbe(every=50)": [LossFeed(), SmoothnessProbe(until_step=None)],
        "LearningRateMonitor of Lightning": [LearningRateMonitor("step")],
    }
    arms = {label: Arm(Network(model), batch, rounds, callbacks) for label, callbacks in trained.items()}
    arms["torch LinearLR, stepped by Lightning"] = Arm(Network(model, linear=True), batch, rounds)
    order = list(arms.values())
    for _ in range(rounds + WARM_UP - 1):
        random.shuffle(order)
        for arm in order:
            arm.take_turn()

    def medians(arm: Arm) -> list[float]:
        return [statistics.median(one) for one in arm.turns.rounds[WARM_UP:-1]]

    def fast(arm: Arm) -> float:
        steps = sorted(step for one in arm.turns.rounds[WARM_UP:-1] for step in one)
        return steps[len(steps) // 10]

    reference = medians(arms[REFERENCE])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"## warmup: a step of {parameters:,} parameters in Lightning, batch {given.batch}, "
        f"{torch.get_num_threads()} thread(s), {len(reference)} rounds of {STEPS} steps\n"
    )
    print(
        "| callbacks | step, µs of the processor | ratio | fastest tenth, µs | ratio |\n|---|---|---|---|---|"
    )
    for label, arm in arms.items():
        own, quick = medians(arm), fast(arm)
        ratio = statistics.median(one / other for one, other in zip(own, reference, strict=True))
        middle = f"{statistics.median(own):.0f} | {ratio:.3f}"
        print(f"| {label} | {middle} | {quick:.0f} | {quick / fast(arms[REFERENCE]):.3f} |")
    os._exit(0)  # the threads wait for turns that do not come


if __name__ == "__main__":
    main()
