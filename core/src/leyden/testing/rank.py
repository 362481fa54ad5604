"""What one of the processes of `leyden.testing.processes` does."""

from __future__ import annotations

import json
import os
import signal
import traceback
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from leyden.testing.fitting import State, fit, in_double
from leyden.testing.processes import STEPS, Task
from leyden.testing.resume import RestoreRNG
from leyden.testing.values import value_of


class Kill(Callback):
    """Kill the process before the batch that follows a given number of optimizer steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Kill, when it is time."""
        if trainer.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, start: int) -> None:
    """Do the tasks from a place on, and leave a mark after each.

    Args:
        folder: where the tasks are written and the results go.
        start: place of the first task to do.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    tasks = [Task.from_json(value) for value in json.loads((folder / "tasks.json").read_text())]
    places = range(start, len(tasks))
    for place in places:
        (folder / str(place)).mkdir(exist_ok=True)
    if rank == 0:  # forks, so before the process group starts its threads
        for place in (place for place in places if tasks[place].name == "kill-resume"):
            _killed_training(tasks[place], folder / str(place))
            (folder / str(place) / "done0").touch()
    if ranks == 1:
        return
    torch.distributed.init_process_group("gloo")
    for place in (place for place in places if tasks[place].name != "kill-resume"):
        state = _joint_training(tasks[place], rank, ranks)
        torch.save(state, folder / str(place) / f"state{rank}.pt")
        (folder / str(place) / f"done{rank}").touch()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _joint_training(task: Task, rank: int, ranks: int) -> State:
    subject = task.subject
    if subject.component.kind in ("metric", "loss"):
        return value_of(subject, share=(rank, ranks))
    strategy: Any = DDPStrategy(process_group_backend="gloo")
    if task.name == "fsdp2":
        strategy = ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1)
    return fit(
        subject,
        steps=STEPS,
        share=(rank, ranks),
        double=in_double(subject),
        strategy=strategy,
        devices=ranks,
        use_distributed_sampler=False,
    ).final


def _killed_training(task: Task, folder: Path) -> None:
    """Train in a fork that saves every step and kills itself after the third."""
    child = os.fork()
    if child == 0:
        checkpoint = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
        os.environ.update(WORLD_SIZE="1")
        os.environ.pop("TORCHELASTIC_RUN_ID")
        try:
            fit(task.subject, steps=6, shuffle=True, callbacks=[RestoreRNG(), checkpoint, Kill(3)])
        except BaseException:
            (folder / "error.txt").write_text(traceback.format_exc(limit=-6))
        finally:
            os._exit(1)
    os.waitpid(child, 0)
