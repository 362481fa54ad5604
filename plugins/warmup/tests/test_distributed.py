"""Two processes: one multiplier for all ranks, from the mean loss; the probe sees the joint gradient."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[2])
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from leyden_warmup import LossWarmup, SmoothnessProbe
from lightning.pytorch.strategies import DDPStrategy
import lightning.pytorch as pl
from warmup_testbed import Classifier, Rates, data, multipliers

rank = int(os.environ.get("LOCAL_RANK", 0))


class Joint(Classifier):
    def on_after_batch_transfer(self, batch, place):
        if self.trainer.world_size == 1:
            return batch
        half = slice(rank * len(batch[0]) // 2, (rank + 1) * len(batch[0]) // 2)
        return [one[half] for one in batch]


def train(devices):
    callbacks = [LossWarmup(C=0.8, ema=0.3), SmoothnessProbe(every=1), Rates()]
    strategy = DDPStrategy(process_group_backend="gloo") if devices > 1 else "auto"
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=devices, strategy=strategy, callbacks=callbacks,
        accumulate_grad_batches=2, use_distributed_sampler=False, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    module = Joint(lambda groups: optim.SGD(groups, lr=0.1))
    trainer.fit(module, data(batch=8))
    return module.vector, callbacks[1].curvatures, callbacks[1].losses, callbacks[2].used


one, two = train(1), train(2)
tolerances = {"weights": 1e-5, "curvature": 2e-2, "loss": 1e-5, "rates": 1e-5}
for (name, tolerance), alone, joint in zip(tolerances.items(), one, two):
    alone, joint = torch.as_tensor(alone), torch.as_tensor(joint)
    assert alone.shape == joint.shape and len(alone) >= 4, (name, alone.shape, joint.shape)
    assert torch.allclose(alone, joint, rtol=tolerance, atol=1e-6), (name, alone, joint)
    print("right:", name, flush=True)
"""


@pytest.mark.slow
def test_two_processes_take_the_multipliers_and_curvatures_of_one_on_the_joint_batch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), here],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("weights", "curvature", "loss", "rates"):
        assert f"right: {name}" in done.stdout
