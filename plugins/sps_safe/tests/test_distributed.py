"""Two processes: the joint batch under DDP, whole norms over FSDP2's shards, one decision for all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
import copy, math, os, sys, warnings
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from leyden_sps_safe import IMASPSSafe, SPSSafe

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
METHODS = {
    "SPSSafe": lambda p: SPSSafe(p, M=1.0, weight_decay=0.01),
    "IMASPSSafe": lambda p: IMASPSSafe(p, 9.0, M="auto", weight_decay=0.01),
    "IMASPSSafe t": lambda p: IMASPSSafe(p, "t", M="auto"),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))  # 7 rows: uneven shards


generator = torch.Generator().manual_seed(1)
inputs, labels = torch.randn(20, 16, 6, generator=generator), torch.randint(3, (20, 16), generator=generator)


def train(model, optimizer, rows, together, steps=range(20), spoil=None):
    for step in steps:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[step, rows]), labels[step, rows])
        if step == spoil:
            loss = loss * (math.inf if rank == 1 else 1)
        loss.backward()
        value = loss.detach().clone()
        if together:
            dist.all_reduce(value)
            value /= 2
        optimizer.step(loss=value)
    return optimizer


def weights(model):
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in whole])


half, everything = slice(8 * rank, 8 * rank + 8), slice(16)
for name, build in METHODS.items():
    single = network()
    reference = train(single, build(single.parameters()), everything, False)
    joint = weights(single)
    assert (joint - weights(network())).abs().max() > 1e-2

    replicated = DistributedDataParallel(network())
    train(replicated, build(replicated.parameters()), half, True)
    apart = float((weights(replicated.module) - joint).abs().max())
    assert apart <= 1e-6, (name, apart)

    sharded = network()
    fully_shard(sharded)
    optimizer = train(sharded, build(sharded.parameters()), half, True)
    apart = float((weights(sharded) - joint).abs().max())
    assert apart <= 1e-6, (name, apart)
    norm = float(optimizer.last_grad_norm_sq)
    assert abs(norm - float(reference.last_grad_norm_sq)) <= 1e-5 * norm, name
    if name != "SPSSafe":
        assert all(isinstance(state["z"], DTensor) for state in optimizer.state.values())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spoiled, spared = network(), network()
        fully_shard(spoiled), fully_shard(spared)
        one = train(spoiled, build(spoiled.parameters()), half, True, range(6), spoil=4)
        train(spared, build(spared.parameters()), half, True, [0, 1, 2, 3, 5])
    assert one.skipped_steps == 1
    assert torch.equal(weights(spoiled), weights(spared)), name

    first, second = network(), network()
    fully_shard(first), fully_shard(second)
    saver = train(first, build(first.parameters()), half, True, range(10))
    saved = copy.deepcopy(get_optimizer_state_dict(first, saver))
    loader = build(second.parameters())
    second.load_state_dict(first.state_dict())
    set_optimizer_state_dict(second, loader, saved)
    train(second, loader, half, True, range(10, 20))
    assert torch.equal(weights(second), weights(sharded)), name
    print("right:", name)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_equal_one_on_the_joint_batch_replicated_and_sharded(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "meeting")],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, output in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, output
        assert output.count("right:") == 3
