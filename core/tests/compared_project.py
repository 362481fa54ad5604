"""Projects of somebody who has never heard of Leyden; tests copy them into a folder as ``mine.py``.

Each is small enough to be trained in a moment: a classifier, a regression, two networks that play against
each other, and models that log or validate in their own way.
"""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Blobs(LightningDataModule):
    """Three clouds of points, split at random; targets are the clouds' numbers or a linear function."""

    def __init__(self, classes: int = 3, batch_size: int = 16, test: bool = True) -> None:
        super().__init__()
        self.classes, self.batch_size, self.test = classes, batch_size, test
        if not test:
            self.test_dataloader = super().test_dataloader

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(0, max(self.classes, 2), (96,), generator=generator)
        points = torch.randn(96, 4, generator=generator) + labels[:, None]
        targets = labels if self.classes else points.sum(1, keepdim=True)
        self.parts = random_split(TensorDataset(points, targets), [64, 16, 16])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.parts[0], self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.parts[1], self.batch_size)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.parts[2], self.batch_size)


class SplitAtOnce(Blobs):
    """Draws its split when it is made, and writes down which."""

    def __init__(self) -> None:
        super().__init__()
        super().setup("fit")
        with Path("splits").open("a") as file:
            file.write(f"{torch.initial_seed()} {sorted(self.parts[0].indices)}\n")

    def setup(self, stage: str) -> None:
        """Nothing is left to do."""


class Classifier(LightningModule):
    """A multilayer perceptron; it has no optimizer of its own."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

    def step(self, batch, name: str):
        inputs, labels = batch
        logits = self.net(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        self.log(f"{name}_loss", loss)
        self.log(f"{name}_acc", (logits.argmax(1) == labels).float().mean())
        return loss

    def training_step(self, batch, index):
        return self.step(batch, "train")

    def validation_step(self, batch, index):
        self.step(batch, "val")

    def test_step(self, batch, index):
        self.step(batch, "test")


class Regression(LightningModule):
    """A line; what validation logs has a name of its own, and there is no test."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def loss(self, batch):
        inputs, targets = batch
        return (self.layer(inputs) - targets).square().mean()

    def training_step(self, batch, index):
        return self.loss(batch)

    def validation_step(self, batch, index):
        self.log("mse", self.loss(batch))


class TwoMetrics(Regression):
    """Logs two metrics in validation, neither of them ``val_loss``."""

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.log("quality", -self.loss(batch))


class Blind(LightningModule):
    """Has no validation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()


class Independent(Regression):
    """Makes its own optimizer, of two parameter groups, and scheduler."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr

    def configure_optimizers(self):
        parameters = list(self.parameters())
        groups = [{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:]}]
        optimizer = torch.optim.SGD(groups, lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Adversaries(LightningModule):
    """Two networks with an optimizer each, optimized by hand."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.lr = lr
        self.generator, self.critic = nn.Linear(2, 4), nn.Linear(4, 1)

    def training_step(self, batch, index):
        first, second = self.optimizers()
        made = self.generator(torch.randn(len(batch[0]), 2))
        losses = {
            second: lambda: self.critic(made.detach()).mean() - self.critic(batch[0]).mean(),
            first: lambda: -self.critic(made).mean(),
        }
        for optimizer, loss in losses.items():
            optimizer.zero_grad()
            self.manual_backward(loss())
            optimizer.step()

    def validation_step(self, batch, index):
        self.log("val_distance", (self.generator(torch.ones(1, 2)) - batch[0]).square().mean())

    def configure_optimizers(self):
        networks = (self.generator, self.critic)
        return [torch.optim.SGD(network.parameters(), lr=self.lr) for network in networks]


class ByHand(Regression):
    """One optimizer, and its step is called by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class Diary(Callback):
    """Writes down which batches each training sees; the file's name tells what trains."""

    def on_train_start(self, trainer, module):
        what = f"{type(trainer.optimizers[0]).__name__}-{type(module.net[1]).__name__}"
        self.file = Path(f"diary-{what}-{torch.initial_seed()}").absolute()
        self.file.write_text("")

    def on_train_batch_start(self, trainer, module, batch, index):
        with self.file.open("a") as file:
            file.write(f"{batch[0].double().sum().item():.9f}\n")


class Talkative(Classifier):
    """Wants a logger that draws, and a folder for files of its own."""

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.logger.experiment.add_histogram("weights", self.net[0].weight, self.global_step)
        Path(self.logger.log_dir, "note").write_text("seen")


class Weighted(Classifier):
    """Has an argument of no type that must keep the keys it is given."""

    def __init__(self, weights=None) -> None:
        super().__init__()
        assert set(weights) == {0, "net.0"}, weights
        self.weights = weights

    def step(self, batch, name: str):
        return super().step(batch, name) * self.weights[0]


class Keeper(ModelCheckpoint):
    """A checkpoint by another name."""


class Zeroing(Callback):
    """Puts other weights in place when the training is over, as an average of weights would be."""

    def on_train_end(self, trainer, module):
        for parameter in module.parameters():
            parameter.data.zero_()
