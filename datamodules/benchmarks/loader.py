"""A batch from `TensorLoader` against one from torch's own loader over the same tensors, in one process."""

from __future__ import annotations

import time
from collections.abc import Iterable

from leyden_datamodules import Digits
from torch.utils.data import DataLoader, TensorDataset


def microseconds_a_batch(loader: Iterable[object], passes: int = 60) -> float:
    """The median time over passes, after one that is not counted."""
    times = []
    for _ in range(passes + 1):
        start = time.perf_counter()
        batches = sum(1 for _ in loader)
        times.append((time.perf_counter() - start) / batches * 1e6)
    return sorted(times[1:])[passes // 2]


data = Digits(batch_size=64)
ours = microseconds_a_batch(data.train_dataloader())
torchs = microseconds_a_batch(DataLoader(TensorDataset(*data.train), batch_size=64, shuffle=True))
print("## datamodules: one shuffled batch of 64 digits\n")
print("| loader | microseconds a batch | ratio |\n|---|---|---|")
print(f"| `leyden_datamodules.TensorLoader` | {ours:.0f} | 1.00 |")
print(f"| `torch.utils.data.DataLoader` over `TensorDataset` | {torchs:.0f} | {torchs / ours:.2f} |")
