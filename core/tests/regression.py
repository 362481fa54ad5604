"""A Lightning project of one file, which tests copy into a working directory as a user's own module."""

from __future__ import annotations

import atexit
import time
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Line(LightningModule):
    """Linear regression; its loss can be told to become something else at a step.

    Args:
        width: number of inputs, positive.
        head: a module applied to the inputs first.
        bad_step: the first step whose loss is ``bad``; -1 for none.
        bad: what the loss is there.
        bad_steps: how many steps; -1 for all the rest.
        seconds: how long a step takes at least.
    """

    def __init__(
        self,
        width: int = 4,
        head: torch.nn.Module | None = None,
        bad_step: int = -1,
        bad: float = float("nan"),
        bad_steps: int = -1,
        seconds: float = 0.0,
        log: bool = True,
    ) -> None:
        super().__init__()
        if width <= 0:
            raise ValueError(f"width must be positive, got {width}")
        try:
            range(width, 10**6, 10**6 - width)
        except ValueError as error:
            raise ValueError(f"width: expected less than a million, got {width}: {error}") from error
        self.head = head or torch.nn.Identity()
        self.layer = torch.nn.Linear(width, 1)
        self.bad_step, self.bad, self.bad_steps = bad_step, bad, bad_steps
        self.seconds, self.log_loss = seconds, log

    def loss(self, batch):
        inputs, targets = batch
        return (self.layer(self.head(inputs)) - targets).square().mean()

    def training_step(self, batch, index):
        time.sleep(self.seconds)
        loss = self.loss(batch)
        step = self.global_step - self.bad_step
        if self.bad_step >= 0 and step >= 0 and (self.bad_steps < 0 or step < self.bad_steps):
            loss = loss * self.bad
        if self.log_loss:
            self.log("train_loss", loss)
        if self.seconds:
            Path("stepped").touch()
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch, index):
        self.log("test_loss", self.loss(batch))


class Points(Dataset):
    """Points near a plane; in a worker process the working directory's modules must be importable."""

    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.inputs = torch.randn(number, 4, generator=generator)
        self.targets = self.inputs.sum(1, keepdim=True) + 0.1 * torch.randn(number, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int):
        if get_worker_info() is not None:
            import regression  # noqa: F401
        return self.inputs[index], self.targets[index]


class Plane(LightningDataModule):
    """Sixty-four training points."""

    def __init__(
        self, batch_size: int = 8, workers: int = 0, test_size: int = 16, nan_validation: bool = False
    ):
        super().__init__()
        self.batch_size, self.workers, self.test_size = batch_size, workers, test_size
        self.nan_validation = nan_validation

    def _loader(self, number: int):
        options = {"num_workers": self.workers, "multiprocessing_context": "spawn"} if self.workers else {}
        points = Points(number)
        if self.nan_validation and number == 24:
            points.targets[3] = torch.nan
        return DataLoader(points, self.batch_size, **options)

    def train_dataloader(self):
        return self._loader(64)

    def val_dataloader(self):
        return self._loader(24)

    def test_dataloader(self):
        return self._loader(self.test_size)


class Skipper(torch.optim.SGD):
    """SGD that skips a step whose gradient is not finite, and says so."""

    skips_nonfinite = True

    def step(self, closure=None):
        loss = closure() if closure is not None else None
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        if all(gradient is None or gradient.isfinite().all() for gradient in gradients):
            super().step()
        return loss


class Trace(Callback):
    """Remembers the losses of the training steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.losses.append(float(outputs["loss"]))


class Interrupt(Callback):
    """Ctrl-C in the second step."""

    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.global_step == 1:
            raise KeyboardInterrupt


class Divide(Callback):
    """A mistake in the user's own code."""

    def on_train_start(self, trainer, module):
        _ = 1 / 0


class Leaver(Callback):
    """Writes at the end of a process whether it is still in a process group."""

    def setup(self, trainer, module, stage):
        mark = Path(f"in-a-group-{trainer.global_rank}").absolute()
        atexit.register(lambda: mark.write_text(str(torch.distributed.is_initialized())))
