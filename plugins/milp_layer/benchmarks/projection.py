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
SAMPLES = 8 if QUICK else 24
"""How many samples a round has at least; methods that solve a program for each sample get no more."""

DEFAULT = "DNF, enumerated by pivoting (default)"

METHODS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
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


def milliseconds(layer: DisjunctiveProjection, count: int, batch: int, *, backward: bool = False) -> float:
    """Processor time a sample, over ``count`` samples in batches."""
    raw = wish[:count] + 0.15 * torch.randn(count, 4, generator=generator, dtype=torch.float64)
    raw.requires_grad_(backward)
    start = time.process_time()
    for rows in torch.arange(count).split(batch):
        value = layer(raw[rows], features[rows])
        if backward:
            value.sum().backward()
    return 1000 * (time.process_time() - start) / count


print(f"## milp_layer: processor time in ms a sample, seven rules, one thread, medians of {ROUNDS}\n")
print("| method | " + " | ".join(f"B={batch}" for batch in BATCHES) + " |")
print("|---" * (len(BATCHES) + 1) + "|")
times: dict[str, list[float]] = {name: [] for name in METHODS}
for batch in BATCHES:
    kept: dict[str, list[float]] = {name: [] for name in METHODS}
    for turn in range(ROUNDS + 1):
        for name, layer in layers.items():
            count = max(batch, SAMPLES) if name == DEFAULT else SAMPLES
            spent = milliseconds(layer, count, min(batch, count))
            if turn:  # the first round fills the caches
                kept[name].append(spent)
    for name, values in kept.items():
        times[name].append(statistics.median(values))
for name, values in times.items():
    ratios = [value / base for value, base in zip(values, times[DEFAULT], strict=True)]
    cells = [f"{value:.2f} ({ratio:.1f})" for value, ratio in zip(values, ratios, strict=True)]
    print(f"| {name} | " + " | ".join(cells) + " |")

print("\n| with gradient | " + " | ".join(f"B={batch}" for batch in BATCHES) + " |")
print("|---" * (len(BATCHES) + 1) + "|")
for rule in ("active_set", "straight_through", "smoothed"):
    layer = DisjunctiveProjection(cooling_rules(), backward=rule)  # type: ignore[arg-type]
    row = []
    for batch in BATCHES:
        rounds = [milliseconds(layer, max(batch, SAMPLES), batch, backward=True) for _ in range(ROUNDS + 1)]
        row.append(statistics.median(rounds[1:]))
    print(f"| {rule} | " + " | ".join(f"{value:.2f}" for value in row) + " |")

info = layers[DEFAULT].last_info
assert info is not None
counts = [float(one.double().mean()) for one in (info.scenarios, info.lps)]
print("\n{:.0f} scenarios a sample, {:.1f} programs solved".format(*counts))
