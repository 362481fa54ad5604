"""Three small LightningModules that claims and YAMLs build on, and backbones that YAML can spell.

The optimizer comes from LightningCLI (``optimizer:`` and ``lr_scheduler:`` of the configuration) or, in a
script, from the argument ``optimizer``, a callable that takes the parameters::

    task = Classification(mlp([64, 64, 10]), num_classes=10, optimizer=partial(torch.optim.SGD, lr=0.1))
    Trainer(max_epochs=20).fit(task, datamodule=Digits())
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torchmetrics import MeanSquaredError, Metric, R2Score
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.text import Perplexity

from leyden.arguments import check_at_least
from leyden.errors import UsageError, unknown

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]
Batch = tuple[Tensor, Tensor]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "identity": nn.Identity,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}


class Task(LightningModule, ABC):
    """What the three tasks share: a backbone, a loss, an optimizer, and what is logged.

    A batch is a pair ``(inputs, targets)``. Logged are the means over an epoch ``train_loss``, ``val_loss``
    and ``test_loss``, the task's metrics after validation and test, and ``train_loss_step`` at every step
    that the Trainer logs (``log_every_n_steps``). No step waits for the device.

    A checkpoint holds weights and plain values. The modules can be rebuilt from it only where LightningCLI
    made the task; else ``load_from_checkpoint(path, backbone=...)`` is needed, and says so.
    """

    further_modules: ClassVar[tuple[str, ...]] = ()
    """Names of a subclass's own arguments that are modules, which hyper-parameters leave out."""

    _train_total: Tensor | float
    _train_rows: int

    def __init__(
        self,
        backbone: nn.Module,
        loss: nn.Module | None,
        default_loss: nn.Module,
        metrics: Mapping[str, Metric],
        optimizer: MakeOptimizer | None,
        lr_scheduler: MakeScheduler | None,
        interval: Literal["epoch", "step"],
    ) -> None:
        super().__init__()
        _check_module("backbone", backbone)
        if loss is not None:
            _check_module("loss", loss)
        _check_callables(optimizer, lr_scheduler)
        if interval not in ("epoch", "step"):
            raise ValueError(f"interval: expected 'epoch' or 'step', got {interval!r}")
        modules = ["backbone", "loss", "default_loss", "metrics", "optimizer", "lr_scheduler"]
        modules += self.further_modules
        self.save_hyperparameters(ignore=modules)
        if "_instantiator" in self.hparams:  # plain values of LightningCLI that rebuild each
            self.save_hyperparameters()
        else:  # names, from which loading says what it needs
            self.hparams["backbone"] = type(backbone).__name__
            self.hparams["loss"] = None if loss is None else type(loss).__name__
        self.backbone = backbone
        self.loss = default_loss if loss is None else loss
        self.val_metrics = nn.ModuleDict(dict(metrics))
        self.test_metrics = copy.deepcopy(self.val_metrics)
        self._make_optimizer = optimizer
        self._make_scheduler = lr_scheduler
        self.interval = interval
        self._forget_training()
        if optimizer is not None:
            # On the object, because LightningCLI warns if a class has one and the configuration another.
            self.configure_optimizers = self._configure_optimizers  # type: ignore[method-assign]

    @abstractmethod
    def align(self, outputs: Tensor, targets: Tensor) -> Batch:
        """Return outputs and targets as `apply_loss` and the metrics take them.

        Raises:
            ValueError: if a shape or type is wrong; the text has the expected and the given one.
        """

    def apply_loss(self, loss: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
        """Apply a loss to what `align` returned."""
        result: Tensor = loss(outputs, targets)
        return result

    def forward(self, inputs: Tensor) -> Tensor:
        """The backbone's outputs; of an object with ``logits``, as Hugging Face's models return, those."""
        outputs = self.backbone(inputs)
        return outputs if isinstance(outputs, Tensor) else outputs.logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The mean loss of the batch."""
        inputs, targets = batch
        loss = self.apply_loss(self.loss, *self.align(self(inputs), targets))
        # Summed here, because `self.log` at every step would cost as much as a small model's step itself.
        self._train_total = self._train_total + loss.detach().float() * len(targets)
        self._train_rows += len(targets)
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and (self.global_step + 1) % every == 0:
            self.log("train_loss_step", loss, on_step=True, on_epoch=False, batch_size=len(targets))
        return loss

    def on_train_start(self) -> None:
        """Forget what an interrupted fit has summed."""
        self._forget_training()

    def on_train_epoch_end(self) -> None:
        """Log the mean training loss of the epoch."""
        if self._train_rows:
            self.log("train_loss", self._train_total / self._train_rows, sync_dist=True)
        self._forget_training()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss and the metrics of the batch."""
        self._evaluate("val", self.val_metrics, batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss and the metrics of the batch."""
        self._evaluate("test", self.test_metrics, batch)

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """The outputs for a batch of inputs, with targets or without."""
        outputs: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return outputs

    def per_sample_loss(self, batch: Batch) -> Tensor:
        """The loss of each row of a batch, shape ``(batch,)``: the mean over the row's tokens or values.

        Raises:
            TypeError: if the loss has no ``reduction`` that could be switched off.
        """
        if not hasattr(self.loss, "reduction"):
            raise TypeError(
                f"loss: expected an attribute 'reduction', as torch's losses have, got {self.loss}"
            )
        loss: Any = copy.copy(self.loss)
        loss.reduction = "none"
        inputs, targets = batch
        losses: Tensor = self.apply_loss(loss, *self.align(self(inputs), targets)).reshape(len(targets), -1)
        if not hasattr(loss, "ignore_index"):
            return losses.mean(dim=1)
        counted = (targets != loss.ignore_index).reshape(len(targets), -1)
        means: Tensor = losses.sum(dim=1) / counted.sum(dim=1).clamp(min=1)
        return means

    def configure_callbacks(self) -> list[Any]:
        """Add none; as the first hook of a fit it is the place to say that there is no optimizer."""
        if self.trainer.training and not is_overridden("configure_optimizers", self):
            name = type(self).__name__
            raise UsageError(
                f"{name} has no optimizer: write `optimizer:` in the configuration, or in a script "
                f"{name}(..., optimizer=partial(torch.optim.SGD, lr=0.1))"
            )
        return []

    def _forget_training(self) -> None:
        self._train_total = 0.0
        self._train_rows = 0

    def _evaluate(self, stage: str, metrics: nn.ModuleDict, batch: Batch) -> None:
        inputs, targets = batch
        pair = self.align(self(inputs), targets)
        rows = len(targets)
        self.log(f"{stage}_loss", self.apply_loss(self.loss, *pair), sync_dist=True, batch_size=rows)
        for name, metric in metrics.items():
            assert isinstance(metric, Metric)
            metric.update(*pair)
            self.log(f"{stage}_{name}", metric, batch_size=rows)

    def _configure_optimizers(self) -> Any:
        assert self._make_optimizer is not None
        optimizer = self._make_optimizer(self.parameters())
        if self._make_scheduler is None:
            return optimizer
        scheduler = self._make_scheduler(optimizer)
        entry: dict[str, Any] = {"scheduler": scheduler, "interval": self.interval}
        if isinstance(scheduler, ReduceLROnPlateau):
            entry["monitor"] = "val_loss"
        return {"optimizer": optimizer, "lr_scheduler": entry}


class Classification(Task):
    """Classify rows; logs accuracy.

    Inputs are what the backbone takes, targets int64 labels of shape ``(batch,)``.

    Args:
        backbone: returns logits of shape ``(batch, num_classes)``.
        num_classes: number of classes.
        loss: takes logits and labels; None is cross-entropy.
        optimizer: makes the optimizer from the parameters, where LightningCLI does not.
        lr_scheduler: makes the scheduler from the optimizer.
        interval: whether this ``lr_scheduler`` steps after each ``"epoch"`` or each ``"step"``.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        *,
        loss: nn.Module | None = None,
        optimizer: MakeOptimizer | None = None,
        lr_scheduler: MakeScheduler | None = None,
        interval: Literal["epoch", "step"] = "epoch",
    ) -> None:
        check_at_least("num_classes", num_classes, 2)
        # Checked labels would cost a wait for the device at every batch; the loss refuses those out of range.
        accuracy = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        metrics = {"accuracy": accuracy}
        super().__init__(backbone, loss, nn.CrossEntropyLoss(), metrics, optimizer, lr_scheduler, interval)
        self.num_classes = num_classes

    def align(self, outputs: Tensor, targets: Tensor) -> Batch:
        """Check logits and labels."""
        _check_shape("backbone's output", outputs, (len(targets), self.num_classes))
        _check_shape("targets", targets, (len(targets),))
        _check_labels(targets)
        return outputs, targets


class Regression(Task):
    """Predict numbers; logs the root mean squared error (``rmse``) and the variance explained (``r2``).

    Inputs are what the backbone takes, targets floating-point of shape ``(batch,)`` or ``(batch, outputs)``.

    Args:
        backbone: returns predictions of the shape of the targets; for targets of shape ``(batch,)`` also
            ``(batch, 1)``.
        loss: takes predictions and targets; None is the mean squared error.
        optimizer: makes the optimizer from the parameters, where LightningCLI does not.
        lr_scheduler: makes the scheduler from the optimizer.
        interval: whether this ``lr_scheduler`` steps after each ``"epoch"`` or each ``"step"``.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        loss: nn.Module | None = None,
        optimizer: MakeOptimizer | None = None,
        lr_scheduler: MakeScheduler | None = None,
        interval: Literal["epoch", "step"] = "epoch",
    ) -> None:
        metrics = {"rmse": MeanSquaredError(squared=False), "r2": R2Score()}
        super().__init__(backbone, loss, nn.MSELoss(), metrics, optimizer, lr_scheduler, interval)

    def align(self, outputs: Tensor, targets: Tensor) -> Batch:
        """Check predictions and targets; ``(batch, 1)`` becomes ``(batch,)`` where the targets are so."""
        if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
        # Unequal shapes would broadcast, and a wrong loss would go down all the same.
        _check_shape("backbone's output", outputs, tuple(targets.shape))
        return outputs, targets


class LanguageModeling(Task):
    """Predict the next token; losses are nats a token, and perplexity is logged.

    Inputs and targets are int64 tokens of shape ``(batch, length)``, the targets one place on.

    Args:
        backbone: returns logits of shape ``(batch, length, tokens)``, or an object that has them as
            ``logits``.
        ignore_index: target that counts for nothing.
        loss: takes logits of shape ``(batch * length, tokens)`` and targets; None is cross-entropy.
        optimizer: makes the optimizer from the parameters, where LightningCLI does not.
        lr_scheduler: makes the scheduler from the optimizer.
        interval: whether this ``lr_scheduler`` steps after each ``"epoch"`` or each ``"step"``.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        ignore_index: int = -100,
        loss: nn.Module | None = None,
        optimizer: MakeOptimizer | None = None,
        lr_scheduler: MakeScheduler | None = None,
        interval: Literal["epoch", "step"] = "step",
    ) -> None:
        metrics = {"perplexity": Perplexity(ignore_index=ignore_index)}
        default_loss = nn.CrossEntropyLoss(ignore_index=ignore_index)
        super().__init__(backbone, loss, default_loss, metrics, optimizer, lr_scheduler, interval)

    def align(self, outputs: Tensor, targets: Tensor) -> Batch:
        """Check logits and targets."""
        _check_shape("backbone's output", outputs, (*targets.shape, outputs.shape[-1]))
        _check_labels(targets)
        return outputs, targets

    def apply_loss(self, loss: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
        """Apply the loss to all tokens of the batch."""
        return super().apply_loss(loss, outputs.flatten(0, -2), targets.flatten())


class CausalTransformer(nn.Module):
    """A small decoder-only transformer: pre-norm blocks of torch.nn, learned positions.

    Args:
        num_tokens: size of the vocabulary.
        width: size of the embeddings, a multiple of ``heads``.
        depth: number of blocks.
        heads: attention heads of a block.
        max_length: longest sequence.
        dropout: dropout probability.

    Raises:
        ValueError: if an argument is out of range, or a sequence is longer than ``max_length``; the text
            names it.

    >>> CausalTransformer(256, width=32)(torch.zeros(2, 16, dtype=torch.long)).shape
    torch.Size([2, 16, 256])
    """

    def __init__(
        self,
        num_tokens: int,
        *,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        max_length: int = 256,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, value in (
            ("num_tokens", num_tokens),
            ("width", width),
            ("depth", depth),
            ("heads", heads),
            ("max_length", max_length),
        ):
            check_at_least(name, value, 1)
        if width % heads:
            raise ValueError(f"width: expected a multiple of heads={heads}, got {width}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout: expected a number of at least 0 and below 1, got {dropout!r}")
        self.max_length = max_length
        self.tokens = nn.Embedding(num_tokens, width)
        self.positions = nn.Embedding(max_length, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, num_tokens, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of shape ``(batch, length, num_tokens)`` for int64 tokens of shape ``(batch, length)``."""
        length = tokens.shape[-1]
        if length > self.max_length:
            raise ValueError(
                f"tokens: expected a length of at most max_length={self.max_length}, got {length}"
            )
        hidden = self.tokens(tokens) + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, hidden.device, hidden.dtype)
        logits: Tensor = self.head(self.blocks(hidden, mask=mask, is_causal=True))
        return logits


def mlp(sizes: list[int], activation: str = "relu") -> nn.Sequential:
    """A multilayer perceptron, with the activation between its layers.

    Args:
        sizes: the width of the input, of every hidden layer and of the output.
        activation: ``"relu"``, ``"tanh"``, ``"sigmoid"``, ``"gelu"``, ``"silu"``, ``"elu"``,
            ``"leaky_relu"``, ``"softplus"`` or ``"identity"``.

    Returns:
        The module; it acts on the last dimension.

    Raises:
        ValueError: if there are fewer than two sizes, one is not positive, or the activation is unknown.

    >>> mlp([64, 32, 10])
    Sequential(
      (0): Linear(in_features=64, out_features=32, bias=True)
      (1): ReLU()
      (2): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    if len(sizes) < 2:
        raise ValueError(f"sizes: expected at least two, of the input and of the output, got {list(sizes)}")
    for size in sizes:
        check_at_least("sizes", size, 1)
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation: {unknown('activation', activation, _ACTIVATIONS)}")
    layers: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
    for width, following in pairwise(sizes[1:]):
        layers += [_ACTIVATIONS[activation](), nn.Linear(width, following)]
    return nn.Sequential(*layers)


def sequential(layers: list[nn.Module]) -> nn.Sequential:
    """`torch.nn.Sequential` of a list, which YAML can spell.

    Args:
        layers: the modules, in order.

    Returns:
        The module.

    Raises:
        ValueError: if there is none, or one is not a module.
    """
    if not layers:
        raise ValueError("layers: expected at least one")
    for place, layer in enumerate(layers):
        _check_module(f"layers[{place}]", layer)
    return nn.Sequential(*layers)


def _check_module(name: str, value: object) -> None:
    if isinstance(value, nn.Module):
        return
    if isinstance(value, str):
        raise ValueError(
            f"{name}: expected a torch.nn.Module, got the name '{value}'; a checkpoint of a script holds "
            f"weights alone, load it with load_from_checkpoint(path, {name}=...)"
        )
    raise ValueError(f"{name}: expected a torch.nn.Module, got {type(value).__name__}")


def _check_callables(optimizer: object, lr_scheduler: object) -> None:
    for name, value in (("optimizer", optimizer), ("lr_scheduler", lr_scheduler)):
        if value is not None and not callable(value):
            kind = type(value).__name__
            raise ValueError(
                f"{name}: expected a callable such as partial({kind}, ...), got an object {kind}"
            )
    if lr_scheduler is not None and optimizer is None:
        raise ValueError("lr_scheduler: expected an optimizer with it, got optimizer=None")


def _check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")


def _check_labels(targets: Tensor) -> None:
    if targets.dtype != torch.int64:
        raise ValueError(f"targets: expected torch.int64, got {targets.dtype}")
