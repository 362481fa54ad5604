"""Two processes: the joint batch solved together, each rank's own, FSDP2, and the probe over all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, warnings
import torch
import torch.distributed as dist
from harm_testbed import Gradients, Learner, mlp, rows, weighted_gradients
from leyden_harm import HarmProbe, HarmReduction, total_harm
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.utils.data import DataLoader, Subset

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
warnings.simplefilter("ignore")
quiet = dict(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
             enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False)


class Sharded(Learner):
    def configure_model(self):
        from torch.distributed.fsdp import fully_shard
        if self.device_mesh is not None and not getattr(self, "done", False):
            self.done = True
            mesh = self.device_mesh["data_parallel"]
            for layer in (self.model[0], self.model[2]):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)


def optimizers():
    yield "momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)
    yield "AdamW", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)


def train(build, strategy, *callbacks, data, batch, accumulate=1, kind=Learner):
    module = kind(mlp(), build).double()
    data = [(row.double(), label) for row, label in data]
    trainer = Trainer(strategy=strategy, devices=2, callbacks=list(callbacks),
                      accumulate_grad_batches=accumulate, **quiet)
    trainer.fit(module, DataLoader(data, batch_size=batch))
    return module


def whole(module):
    values = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters()]
    return torch.cat([value.detach().reshape(-1) for value in values])


class Alone(Learner):
    def trained(self, data, batch, build, accumulate):
        '''One process with the joint batch, weighted by the function alone.'''
        from leyden_harm import Part, affine_update, layer_update, reweight
        optimizer = build(self.parameters())
        group = optimizer.param_groups[0]
        order = list(DataLoader(data, batch_size=batch))
        for start in range(0, len(order), accumulate):
            optimizer.zero_grad()
            for inputs, labels in order[start:start + accumulate]:
                seen = {}

                def called(layer, args, out):
                    out.register_hook(lambda g: weigh(args[0].detach(), g))

                handle = self.model[2].register_forward_hook(called)

                def weigh(h, g):
                    omega = 1 / (accumulate * len(g))
                    parts = [Part(p, affine_update(optimizer, p, group), group["lr"], False, p.grad)
                             for p in self.model[2].parameters()]
                    found = reweight(h, g / omega, layer_update(*parts), omega=omega, max_upweight=4.0)
                    seen["weights"] = found.weights
                    return g * found.factors.unsqueeze(1)

                (self.per_sample_loss((inputs, labels)).mean() / accumulate).backward()
                handle.remove()
                self.weights.append(seen["weights"])
            optimizer.step()


data = [row for row in rows(48)]
doubled = [(row.double(), label) for row, label in data]
shares = [Subset(data, [place for place in range(48) if (place // 4) % 2 == r]) for r in (0, 1)]
for name, build in optimizers():
    for accumulate in (1, 2):
        single = Alone(mlp(), build).double()
        single.weights = []
        single.trained(doubled, 8, build, accumulate)
        expected = whole(single)
        fsdp2 = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        for strategy, kind in ((DDPStrategy(process_group_backend="gloo"), Learner), (fsdp2, Sharded)):
            reduction = HarmReduction(max_upweight=4.0, sync=True)
            seen = Gradients(reduction)
            seen.on_train_batch_start = lambda *args: None
            seen.on_after_backward = lambda *args: seen.weights.append(reduction.last.weights.clone())
            options = dict(data=shares[rank], batch=4, accumulate=accumulate, kind=kind)
            found = whole(train(build, strategy, reduction, seen, **options))
            apart = float((found - expected).abs().max())
            assert apart <= 1e-5, (name, accumulate, kind.__name__, apart)
            assert len(seen.weights) == len(single.weights) == 6
            for one, other in zip(seen.weights, single.weights):
                assert torch.allclose(one, other, rtol=1e-5, atol=1e-7), (name, accumulate, kind.__name__)
            assert max(float(w.std()) for w in seen.weights) > 1e-4
    print("right:", name)

# each rank for itself: the mean over ranks of the gradients of its own weighted losses
reduction = HarmReduction(max_upweight=4.0)
seen = Gradients(reduction)
ddp = DDPStrategy(process_group_backend="gloo")
module = train(build, ddp, reduction, seen, data=shares[rank], batch=4)
for state, batch, weights, found in zip(seen.states, seen.batches, seen.weights, seen.gradients):
    own = weighted_gradients(Learner(mlp()).double(), state, batch, weights.double())
    for key, gradient in own.items():
        dist.all_reduce(gradient)
        assert torch.allclose(found[key], gradient / 2, rtol=1e-5, atol=1e-6), key
for before, after in seen.margins:
    assert float(total_harm(after)) <= float(total_harm(before)) * (1 + 1e-6)
print("right: each rank")

# the probe's numbers are over all ranks, and it changes nothing
plain = whole(train(build, DDPStrategy(process_group_backend="gloo"), data=shares[rank], batch=4))
probe = HarmProbe(every=2)
watched = whole(train(build, DDPStrategy(process_group_backend="gloo"), probe, data=shares[rank], batch=4))
assert torch.equal(plain, watched)
for one in probe.probed:
    changes = [None, None]
    dist.all_gather_object(changes, one.changes)
    joint = torch.tensor(changes[0] + changes[1])
    assert len(joint) == 8
    assert abs(one.rate - float((joint > 0).float().mean())) < 1e-6
    assert abs(one.mass - float(joint.clamp_min(0).sum() / joint.abs().sum())) < 1e-5
print("right: probe")

# a rank with a smaller last batch: an error on both, and not a wait for ever
uneven = Subset(shares[rank], range(7 - rank))
try:
    train(build, DDPStrategy(process_group_backend="gloo"), HarmReduction(sync=True), data=uneven, batch=4)
except MisconfigurationException as error:
    assert "(2, 8) and (3, 8)" in str(error), error
    print("right: uneven")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_solve_the_joint_problem_or_each_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "TORCHELASTIC_RUN_ID": "leyden",  # Lightning then takes the processes that exist
        "LEYDEN_CALLBACKS": "0",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "meeting")],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=180)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, output in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, output
        assert output.count("right:") == 5
