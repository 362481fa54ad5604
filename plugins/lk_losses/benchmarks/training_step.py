"""What a whole training step of a draft costs with LK-λ, beside the same step with KL and other losses.

A step is the target's pass, the draft's pass, the loss, the backward pass and AdamW, in experiment C's sizes.
All losses take turns in every round, so that what else the machine does hits them alike. Medians over the
rounds.

    OMP_NUM_THREADS=1 python benchmarks/training_step.py [--quick]
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from leyden_lk_losses import DraftTrainingModule, LKLoss, MedusaHeads, TinyDraftGPT

ROUNDS = 10 if "--quick" in sys.argv else 60
LOSSES: dict[str, dict[str, Any]] = {
    "KL": {"kind": "kl"},
    "LK-lambda": {"kind": "lk_lambda"},
    "LK-alpha": {"kind": "lk_alpha"},
    "TV": {"kind": "tv"},
}


def step_of(draft: str, loss: LKLoss) -> Callable[[], None]:
    torch.manual_seed(0)
    target = TinyDraftGPT(512, width=96, depth=3, heads=4, max_length=64)
    model = MedusaHeads(96, 512, 3) if draft == "heads" else TinyDraftGPT(512, width=24, max_length=64)
    module = DraftTrainingModule(target, model, loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    tokens = torch.randint(512, (32, 64))

    def step() -> None:
        optimizer.zero_grad()
        module.loss(*module(tokens)).loss.backward()
        optimizer.step()

    return step


def main() -> None:
    for draft in ("heads", "stand-alone"):
        steps = {name: step_of(draft, LKLoss(**settings)) for name, settings in LOSSES.items()}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(ROUNDS + 2):
            for name in random.sample(list(steps), len(steps)):
                start = time.perf_counter()
                steps[name]()
                if turn >= 2:
                    seconds[name].append(time.perf_counter() - start)
        reference = statistics.median(seconds["KL"])
        print(f"\n| {draft} | step, ms | times KL |\n|---|---|---|")
        for name, values in seconds.items():
            median = statistics.median(values)
            print(f"| {name} | {1e3 * median:.1f} | {median / reference:.2f} |")


if __name__ == "__main__":
    main()
