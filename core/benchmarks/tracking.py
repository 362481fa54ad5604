"""What tracking costs: five metrics at every step of a one-millisecond step, on the sqlite default.

    python core/benchmarks/tracking.py [--steps 2000] [--rounds 5]

Every arm does the same work, and every ratio is taken within one round, in which the arms follow each other;
the table shows the median over the rounds. It also counts what arrived in the store.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from leyden.settings import TrackingSettings
from leyden.tracking import Session, Store, resolve_store, use_run

METRICS = 5
STEP_SECONDS = 1e-3
MLFLOW_STEPS = 200

Log = Callable[[dict[str, float], int], None]


@dataclass
class Arm:
    """The measurements of one way to log, one a round."""

    name: str
    step: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)
    flush: list[float] = field(default_factory=list)
    lost: int = 0

    def row(self) -> str:
        flush = f"{1e3 * statistics.median(self.flush):.3f} ms" if self.flush else "-"
        lost = str(self.lost) if self.flush else "-"
        step, ratio = 1e3 * statistics.median(self.step), statistics.median(self.ratio)
        return f"| {self.name} | {step:.3f} ms | {ratio:.3f} | {flush} | {lost} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    work = calibrate()
    arms = [Arm("no logger"), Arm("Leyden"), Arm("Trainer, no logger"), Arm("Trainer, LeydenLogger")]
    peer = Arm(f"MLflow `log_batch` ({MLFLOW_STEPS} steps)")
    with tempfile.TemporaryDirectory() as folder:
        store = resolve_store(TrackingSettings(), Path(folder))
        Session.open(store).close()
        for _ in range(options.rounds):
            bare, tracked, trainer, logger = arms
            loop(work, 200, lambda values, step: None)  # warm
            # before and after, so that a machine whose speed drifts does not look like a cost
            before = loop(work, options.steps, lambda values, step: None) / options.steps
            seconds = measure_leyden(tracked, store, work, options.steps)
            after = loop(work, options.steps, lambda values, step: None) / options.steps
            note(bare, (before + after) / 2, (before + after) / 2)
            note(tracked, seconds, (before + after) / 2)
            plain = measure_trainer(trainer, None, work, options.steps)
            measure_trainer(logger, store, work, options.steps, plain)
        measure_mlflow(peer, store, work)
    rounds = f"median of {options.rounds} rounds"
    print(
        f"## Tracking\n\n{options.steps} steps, {METRICS} metrics a step, {rounds}, {os.cpu_count()} cores\n"
    )
    print("| arm | a step | ratio to no logger | flush, a value | values lost |")
    print("|---|---|---|---|---|")
    for arm in (*arms, peer):
        print(arm.row())


def calibrate() -> Callable[[], float]:
    """A step: a millisecond of matrix products. Unlike waiting, it shows who else wants the core."""
    matrix = torch.linalg.qr(torch.randn(64, 64)).Q  # its powers keep their size: no denormal numbers

    def work(count: int) -> float:
        product = matrix
        for _ in range(count):
            product = product @ matrix
        return float(product[0, 0])

    def seconds(count: int) -> float:
        started = time.perf_counter()
        work(count)
        return time.perf_counter() - started

    fastest = min(seconds(100) for _ in range(500)) / 100
    count = max(1, round(STEP_SECONDS / fastest))
    return lambda: work(count)


def loop(work: Callable[[], float], steps: int, log: Log) -> float:
    """Seconds that so many steps take."""
    started = time.perf_counter()
    for step in range(steps):
        value = work()
        log({f"metric_{i}": value + step + i for i in range(METRICS)}, step)
    return time.perf_counter() - started


def note(arm: Arm, seconds: float, baseline: float) -> None:
    arm.step.append(seconds)
    arm.ratio.append(seconds / baseline)


def measure_leyden(arm: Arm, store: Store, work: Callable[[], float], steps: int) -> float:
    """Seconds a step."""
    session = Session.open(store)
    run = session.run("benchmark", experiment="benchmark")
    seconds = loop(work, steps, run.metrics)
    run.end()
    started = time.perf_counter()
    session.close()
    arm.flush.append((time.perf_counter() - started) / (METRICS * steps))
    arm.lost += METRICS * steps - stored(store, run.key)
    return seconds / steps


def measure_trainer(
    arm: Arm, store: Store | None, work: Callable[[], float], steps: int, baseline: float | None = None
) -> float:
    """Fit with Lightning, which logs the same five numbers at every step; seconds a step."""
    from leyden.logger import LeydenLogger
    from lightning.pytorch import Callback, LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            value = work()
            self.log_dict({f"metric_{i}": value + i for i in range(METRICS)})
            return self.layer(batch[0]).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.0)

    class Clock(Callback):
        def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
            self.started = time.perf_counter()

        def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
            self.seconds = time.perf_counter() - self.started

    def fit(logger: Any) -> float:
        clock = Clock()
        quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        options = {"max_steps": steps, "max_epochs": -1, "log_every_n_steps": 1, "accelerator": "cpu"}
        trainer = Trainer(logger=logger, callbacks=[clock], **options, **quiet)
        data = torch.utils.data.TensorDataset(torch.ones(steps, 1))
        trainer.fit(Module(), torch.utils.data.DataLoader(data))
        return clock.seconds / steps

    if store is None:
        seconds = fit(False)
    else:
        session = Session.open(store)
        with session.run("trainer", experiment="benchmark") as run, use_run(run):
            seconds = fit(LeydenLogger())
        started = time.perf_counter()
        session.close()
        arm.flush.append((time.perf_counter() - started) / (METRICS * steps))
        arm.lost += METRICS * steps - stored(store, run.key)
    note(arm, seconds, seconds if baseline is None else baseline)
    return seconds


def measure_mlflow(arm: Arm, store: Store, work: Callable[[], float]) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(tracking_uri=store.uri)
    experiment = client.get_experiment_by_name("benchmark")
    assert experiment is not None
    run = client.create_run(experiment.experiment_id)

    def log(values: dict[str, float], step: int) -> None:
        moment = time.time_ns() // 1_000_000
        client.log_batch(run.info.run_id, [Metric(key, value, moment, step) for key, value in values.items()])

    baseline = loop(work, MLFLOW_STEPS, lambda values, step: None)
    note(arm, loop(work, MLFLOW_STEPS, log) / MLFLOW_STEPS, baseline / MLFLOW_STEPS)


def stored(store: Store, key: str) -> int:
    """How many of the benchmark's values the store has for a run."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store.uri)
    experiment = client.get_experiment_by_name("benchmark")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`leyden.key` = '{key}'")
    names = [f"metric_{i}" for i in range(METRICS)]
    return sum(len({m.step for m in client.get_metric_history(run.info.run_id, name)}) for name in names)


if __name__ == "__main__":
    sys.exit(main())
