"""What a projection costs, on cooling control in hot weather: the layer beside HiGHS' programs.

All methods project the same samples onto the same rules, in turn within each round. Times are processor time
of this process, which has one thread, so that what else the machine does matters little; medians over the
rounds. The same features come in every round with new raw outputs, as in the epochs of a training.
``--quick`` takes fewer.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from leyden_milp_layer import DisjunctiveProjection, cooling_rules, cooling_samples
from leyden_milp_layer.cooling import cooling_wish

QUICK = "--quick" in sys.argv
ROUNDS = 3 if QUICK else 9
BATCHES = (1, 8, 64) if QUICK else (1, 8, 64, 512)
OTHERS = 8 if QUICK else 24
"""How many samples the methods that solve one program for each sample get, of a larger batch."""

METHODS: dict[str, dict[str, Any]] = {
    "DNF, enumerated by pivoting (default)": {},
    "DNF, enumerated with warm HiGHS programs": {"solver": "highs"},
    "DNF, HiGHS mixed-integer program": {"strategy": "milp"},
    "DNF, lifted linear program": {"strategy": "lifted"},
    "CNF relaxation": {"relaxation": "cnf"},
}

torch.set_num_threads(1)
features, _ = cooling_samples(max(BATCHES), "ood", seed=0)
wish = cooling_wish(features)
generator = torch.Generator().manual_seed(0)
layers = {name: DisjunctiveProjection(cooling_rules(), **given) for name, given in METHODS.items()}


def milliseconds(layer: DisjunctiveProjection, raw: torch.Tensor, x: torch.Tensor) -> float:
    start = time.process_time()
    layer(raw, x)
    return 1000 * (time.process_time() - start) / len(raw)


def noisy(count: int) -> torch.Tensor:
    return wish[:count] + 0.15 * torch.randn(count, 4, generator=generator, dtype=torch.float64)


print(f"## milp_layer: processor time in ms a sample, seven rules, one thread, medians of {ROUNDS}\n")
print("| method | " + " | ".join(f"B={batch}" for batch in BATCHES) + " | ratio to the default |")
print("|---" * (len(BATCHES) + 2) + "|")
times: dict[str, list[float]] = {name: [] for name in METHODS}
for batch in BATCHES:
    kept: dict[str, list[float]] = {name: [] for name in METHODS}
    for turn in range(ROUNDS + 1):
        raw = noisy(batch)
        for name, layer in layers.items():
            count = batch if name.endswith("(default)") else min(batch, OTHERS)
            spent = milliseconds(layer, raw[:count], features[:count])
            if turn:  # the first round fills the caches
                kept[name].append(spent)
    for name, values in kept.items():
        times[name].append(statistics.median(values))
first = next(iter(times.values()))
for name, values in times.items():
    ratio = values[-1] / first[-1]
    print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + f" | {ratio:.1f} |")

print("\n| backward pass | " + " | ".join(f"B={batch}" for batch in BATCHES) + " |")
print("|---" * (len(BATCHES) + 1) + "|")
for rule in ("active_set", "straight_through", "smoothed"):
    layer = DisjunctiveProjection(cooling_rules(), backward=rule)  # type: ignore[arg-type]
    row = []
    for batch in BATCHES:
        spent = []
        for _ in range(ROUNDS):
            raw = noisy(batch).requires_grad_()
            value = layer(raw, features[:batch]).sum()
            start = time.process_time()
            value.backward()
            spent.append(1000 * (time.process_time() - start) / batch)
        row.append(statistics.median(spent))
    print(f"| {rule} | " + " | ".join(f"{value:.3f}" for value in row) + " |")

info = layers["DNF, enumerated by pivoting (default)"].last_info
assert info is not None
counts = [float(one.double().mean()) for one in (info.scenarios, info.lps)]
print("\n{:.0f} scenarios a sample, {:.1f} of them projected onto".format(*counts))
