"""What is measured of a fit besides its metrics: the curve, the time and the memory of the training."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import threading
import time
from pathlib import Path
from typing import Protocol

import psutil
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

MEGABYTE = 2**20
_SAMPLING_SECONDS = 0.01
_LEAST = 4 * MEGABYTE
"""A process grows in pages and by what its allocator holds ready; less than this says nothing of a fit."""


class Watch(Callback):
    """Measures a fit.

    Attributes:
        steps: the optimizer step of each validation.
        seconds: the time since training began at each of them, in seconds.
        values: the metric there.
        is_final: whether the last of them is of the weights that the fit ended with.
        training_seconds: how long the training took, validation included; NaN until it ended.
        peak_megabytes: the most memory that the training held, in 2^20 bytes: on CUDA what torch had
            allocated, elsewhere parameters and buffers and what the process grew by. NaN where it cannot be
            told, as where a process grew by less than 4 of them, or nobody wanted it.

    Args:
        metric: the validation metric.
        memory: whether to measure the memory; beginning to takes some tenths of a second on a CPU.
    """

    def __init__(self, metric: str, *, memory: bool = True) -> None:
        self.metric = metric
        self._measures_memory = memory
        self.steps: list[float] = []
        self.seconds: list[float] = []
        self.values: list[float] = []
        self.training_seconds = self.peak_megabytes = math.nan
        self.is_final = False
        self._validated: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        device = pl_module.device
        if self._measures_memory:
            on_cuda = device.type == "cuda"
            self._memory: _Memory = _CudaMemory(device) if on_cuda else _process_memory(pl_module)
        self._began = _now(device)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the metric."""
        if trainer.sanity_checking or not hasattr(self, "_began"):
            return
        value = trainer.callback_metrics.get(self.metric)
        if value is not None:
            self.steps.append(float(trainer.global_step))
            self.values.append(float(value))
            self.seconds.append(_now(pl_module.device) - self._began)
            self._validated = _weights(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self.training_seconds = _now(pl_module.device) - self._began
        if self._measures_memory:
            self.peak_megabytes = self._memory.peak() / MEGABYTE

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look whether the weights are those of the last validation; an average may be in their place."""
        same_step = bool(self.steps) and self.steps[-1] == trainer.global_step
        self.is_final = same_step and self._validated == _weights(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop measuring where the training failed."""
        if hasattr(self, "_memory"):
            self._memory.peak()


def _weights(model: LightningModule) -> list[float]:
    """A sum for each parameter and buffer, by which a change is seen."""
    tensors = [each.detach() for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()]
    return [float(each.sum(dtype=torch.float64)) for each in tensors]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class _Memory(Protocol):
    """Begins to measure when it is made."""

    def peak(self) -> float:
        """The most memory since, in bytes."""


class _CudaMemory:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)

    def peak(self) -> float:
        return float(torch.cuda.max_memory_allocated(self._device))


def _process_memory(model: LightningModule) -> _Memory:
    """The process's own growth; what earlier fits in it left to be collected is collected first."""
    tensors = [*model.parameters(), *model.buffers()]
    held = float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc's, where it is the C library
        ctypes.CDLL(None).malloc_trim(0)
    try:
        return _HighWaterMark(held)
    except (OSError, ValueError):
        return _Sampled(held)


class _HighWaterMark:
    """Linux's own mark of the most memory that a process held, begun anew."""

    def __init__(self, held: float) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._base = _status("VmRSS") - held

    def peak(self) -> float:
        try:
            return _told(_status("VmHWM") - self._base)
        except (OSError, ValueError):
            return math.nan


def _told(held: float) -> float:
    """The memory of a process, in bytes; NaN where it is too little to be told from chance."""
    return held if held >= _LEAST else math.nan


def _status(name: str) -> float:
    """A field of the process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024.0 * int(line.split()[1])
    raise ValueError(f"there is no {name}")


class _Sampled:
    """A thread looks at the process's memory now and then; what lasts shorter than that escapes it."""

    def __init__(self, held: float) -> None:
        self._process = psutil.Process()
        self._base = float(self._process.memory_info().rss) - held
        self._highest = float(self._base + held)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def peak(self) -> float:
        self._stop.set()
        self._thread.join()
        return _told(self._highest - self._base)

    def _sample(self) -> None:
        while True:
            self._highest = max(self._highest, float(self._process.memory_info().rss))
            if self._stop.wait(_SAMPLING_SECONDS):
                return
