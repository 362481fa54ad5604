"""What each of two processes does in the distributed tests; all of it in one process group, in one spawn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from leyden_callbacks import GradientNorm, LossFeed
from leyden_callbacks.gradient_norm import global_norm
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from loss_feed_testbed import LinearLoss, MeanReader, Recorder, counted_reductions, loader, rows, trainer
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

RANKS = 2
ROWS = 40


def work(rank: int, port: int, folder: str) -> None:
    """Run every check on this rank and save what it found."""
    os.environ |= {
        "LEYDEN_CALLBACKS": "0",
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NODE_RANK": "0",
        "WORLD_SIZE": str(RANKS),
    }
    torch.set_num_threads(1)
    found = {
        "joint": joint_batch(rank),
        "window": accumulated_window(rank),
        "infinite": infinite_on_one_rank(rank),
        "sharded": sharded(rank),
        "placements": placements(),
    }
    torch.save(found, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def ddp() -> Strategy:
    return DDPStrategy(process_group_backend="gloo", cluster_environment=LightningEnvironment())


def fit(rank: int, module: Any, callbacks: list[Any], strategy: Strategy, **options: Any) -> None:
    data = rows(ROWS)
    sampler = DistributedSampler(data, RANKS, rank, shuffle=False)
    run = trainer(callbacks, strategy=strategy, devices=RANKS, use_distributed_sampler=False, **options)
    run.fit(module, loader(data, 2, sampler))


def summary(optimizer: Recorder) -> dict[str, Any]:
    return {
        "matching": torch.stack([step.matching for step in optimizer.steps]),
        "mean": torch.stack([step.mean for step in optimizer.steps]),
        "by_gradient": torch.stack([step.by_gradient for step in optimizer.steps]),
    }


def joint_batch(rank: int) -> dict[str, Any]:
    module = LinearLoss()
    fit(rank, module, [LossFeed(), GradientNorm(every=1)], ddp(), max_epochs=2)
    return summary(module.optimizer) | {
        "parameters": torch.cat([module.x, module.y]).detach(),
        "norm": module.trainer.callback_metrics["gradient_norm"],
    }


def accumulated_window(rank: int) -> dict[str, Any]:
    module, reader = LinearLoss(), MeanReader()
    with counted_reductions() as reductions:
        fit(rank, module, [reader, LossFeed(), LossFeed()], ddp(), accumulate_grad_batches=4)
    return summary(module.optimizer) | {
        "read": torch.stack([losses.mean for losses in reader.read]),
        "raw": torch.stack(module.raw),
        "reductions": reductions[0],
    }


def infinite_on_one_rank(rank: int) -> dict[str, Any]:
    module = LinearLoss(infinite=[3] if rank == 1 else [])
    fit(rank, module, [LossFeed()], ddp())
    return summary(module.optimizer)


class Sharded(LinearLoss):
    """The same with a weight that FSDP2 shards."""

    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard

        if not isinstance(self.net, nn.Module):
            torch.manual_seed(7)
            self.net = nn.Linear(5, 3, bias=False, dtype=torch.float64)
            self.start = self.net.weight.detach().clone()
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def __init__(self) -> None:
        super().__init__()
        del self.x, self.y
        self.net: Any = None

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.net(batch[0]).sum(dim=1).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return Recorder(self.parameters())


def sharded(rank: int) -> dict[str, Any]:
    module = Sharded()
    strategy = ModelParallelStrategy(
        data_parallel_size=RANKS, tensor_parallel_size=1, process_group_backend="gloo"
    )
    strategy.cluster_environment = LightningEnvironment()
    callbacks = [LossFeed(), GradientNorm(every=1)]
    fit(rank, module, callbacks, strategy, accumulate_grad_batches=2)
    return summary(module.optimizer) | {
        "norm": module.trainer.callback_metrics["gradient_norm"],
        "whole_norm": module.net.weight.grad.full_tensor().norm(),
        "local_norm": module.net.weight.grad.to_local().norm(),
        "moved": (module.net.weight.full_tensor() - module.start).abs().max().detach(),
    }


def placements() -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (RANKS,))
    whole = [torch.randn(3, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    gradients = [
        distribute_tensor(whole[0], mesh, [Shard(0)]),
        distribute_tensor(whole[1], mesh, [Replicate()]),
        distribute_tensor(whole[2], mesh, [Shard(1)]),
        DTensor.from_local(whole[3] / RANKS, mesh, [Partial()]),
        torch.ones(7, dtype=torch.float64),
    ]
    flat = torch.cat([*(one.double().flatten() for one in whole), gradients[4]])
    return {"norm": global_norm(gradients), "expected": flat.norm()}
