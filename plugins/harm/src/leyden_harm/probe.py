"""How much harm an optimizer does, measured on true losses without changing the training by a bit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed
from leyden.arguments import check_at_least
from leyden_callbacks import keeps_figures, log_figure
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from leyden_harm.hook import silent_hooks
from leyden_harm.layer import find_linear
from leyden_harm.measuring import Probed, gram_correlation, harm_of_totals, harm_totals
from leyden_harm.pictures import check_picture, draw_probe

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class HarmProbe(Callback):
    """Measures at some steps what the step does to the losses of the very samples that it was made from.

    Just before and just after such a step it computes the loss of every sample of the batch (of all the
    batches of an accumulation window), in training mode and with the random numbers that the step itself
    draws, so that dropout masks agree. Parameters, gradients, buffers and random generators are left as they
    were: a training with the probe equals one without it bit for bit. It costs two forward passes at the
    steps that are probed and nothing between.

    Logged are ``harm/rate``, the share of the samples whose loss rose, and ``harm/mass``, the sum of the
    increases over the sum of all changes of losses (both over all ranks), and with ``gram`` also
    ``harm/gram_correlation``, how well the last layer's gradients tell the inner products of the whole ones
    (Avranas, 2026), and ``harm/mass_first_order``, the mass that the whole per-sample gradients predict. At
    the end of training it says what it found in a sentence and draws it. The steps stay readable as
    ``probed``.

    The module needs a method ``per_sample_loss(batch)`` that returns the loss of each row; the tasks of
    Leyden have one. Without it the batch must be a pair of inputs and int64 labels, and the module's
    ``forward`` give logits of shape ``(batch, classes)``; the loss is then taken for cross-entropy.

    Args:
        every: probe at every so many optimizer steps, from the first one on.
        gram: whether to compute whole per-sample gradients, a backward pass a sample.
        layer: for ``gram``, dotted name of the last layer; None takes the last ``torch.nn.Linear``.
        figure: whether to draw at the end, for the loggers that keep figures.
        picture: a file that the figure is written to as well; its ending says the format.

    Raises:
        ValueError: if ``every`` is not a positive integer, or no picture has such an ending.
        MisconfigurationException: in training, if the loss of each sample cannot be known.
    """

    def __init__(
        self,
        every: int = 50,
        *,
        gram: bool = False,
        layer: str | None = None,
        figure: bool = True,
        picture: str | None = None,
    ) -> None:
        check_at_least("every", every, 1)
        if picture is not None:
            check_picture("picture", picture)
        self.every = every
        self.gram = gram
        self.layer = layer
        self.figure = figure
        self.picture = picture
        self.probed: list[Probed] = []
        self._window: list[_Batch] = []
        self._optimizer = ""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin anew."""
        self.probed, self._window = [], []
        self._optimizer = ", ".join(type(one).__name__ for one in trainer.optimizers)
        sharded = any(hasattr(parameter, "full_tensor") for parameter in pl_module.parameters())
        if isinstance(trainer.strategy, FSDPStrategy) or (self.gram and sharded):
            raise MisconfigurationException(
                f"HarmProbe{'(gram=True)' * self.gram} does not work under"
                f" {type(trainer.strategy).__name__}, which"
                " keeps the parameters in shards; probe in one process, or under DDP"
            )
        if self.gram:
            find_linear(pl_module, self.layer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Compute the losses before the step, where it is one that is probed."""
        if trainer.fit_loop.epoch_loop._batches_that_stepped % self.every:
            return
        entry = _Batch(batch, _RandomState.now())
        entry.losses = self._losses(trainer, pl_module, entry)
        if self.gram:
            entry.gradients = self._gradients(trainer, pl_module, entry)
            entry.start = _flat(pl_module)
        self._window.append(entry)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Compute the losses after the step, and log."""
        if not self._window or trainer.fit_loop._should_accumulate():
            return
        window, self._window = self._window, []
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        changes = [self._losses(trainer, pl_module, entry) - entry.losses for entry in window]
        probed = self._measured(trainer, pl_module, step, torch.cat(changes), window[-1])
        if probed is None:
            return
        self.probed.append(probed)
        metrics = {
            f"harm/{name}": value
            for name in ("rate", "mass", "gram_correlation", "mass_first_order")
            if (value := getattr(probed, name)) is not None
        }
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say and draw what was found."""
        self._window = []
        if not self.probed:
            return
        rank_zero_info(self.summary())
        wanted = self.picture is not None and trainer.is_global_zero
        if wanted or (self.figure and keeps_figures(trainer)):
            drawn = draw_probe(self.probed, self._optimizer or "optimizer")
            if self.picture is not None and wanted:
                Path(self.picture).parent.mkdir(parents=True, exist_ok=True)
                drawn.savefig(self.picture, dpi=150)
            if self.figure:
                log_figure(trainer, "harm_probe", drawn)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let go of the batches."""
        self._window = []

    def summary(self) -> str:
        """What was found, in a sentence.

        Returns:
            The mean rate and mass over the steps that were probed.
        """
        if not self.probed:
            return "HarmProbe: no step was probed"
        finite = [one for one in self.probed if math.isfinite(one.mass)]
        count, lost = len(finite), len(self.probed) - len(finite)
        where = f"HarmProbe: in {count} steps of {self._optimizer or 'the optimizer'}"
        further = f"; in {lost} more, losses were not finite" if lost else ""
        if not finite:
            return f"{where} losses were finite{further}"
        rate = sum(one.rate for one in finite) / count
        mass = sum(one.mass for one in finite) / count
        return (
            f"{where}, {rate:.0%} of the samples of the step's own batch got worse, with {mass:.0%} of all"
            f" changes of losses{further}"
        )

    def _measured(
        self, trainer: Trainer, module: LightningModule, step: int, changes: Tensor, entry: _Batch
    ) -> Probed | None:
        totals = harm_totals(changes.double())
        if trainer.world_size > 1:
            torch.distributed.all_reduce(totals)
        if not float(totals[3]):
            return None  # nothing moved: a step that a GradScaler or the optimizer skipped, or a rate of 0
        rate, mass = (float(value) for value in harm_of_totals(totals))
        correlation = first_order = None
        if entry.gradients is not None and entry.start is not None:
            gradients = entry.gradients
            predicted = gradients @ (_flat(module) - entry.start).to(gradients.dtype)
            first_order = float(harm_of_totals(harm_totals(predicted)).mass)
            last = gradients[:, self._last_columns(module)]
            if min(last.shape[1], len(gradients) - 1) > 0:
                correlation = float(gram_correlation(last @ last.T, gradients @ gradients.T))
        return Probed(step, rate, mass, tuple(changes.tolist()), correlation, first_order)

    def _losses(self, trainer: Trainer, module: LightningModule, entry: _Batch) -> Tensor:
        with torch.no_grad(), _untouched(module, entry.random), trainer.precision_plugin.forward_context():
            return per_sample_losses(module, entry.batch).detach().float()

    def _gradients(self, trainer: Trainer, module: LightningModule, entry: _Batch) -> Tensor:
        """The whole gradient of every sample's loss, a row each."""
        parameters = [one for one in module.parameters() if one.requires_grad]
        with torch.enable_grad(), _untouched(module, entry.random):
            with trainer.precision_plugin.forward_context():
                losses = per_sample_losses(module, entry.batch)
            rows = []
            for loss in losses:
                found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
                rows.append(_joined(parameters, found))
        return torch.stack(rows)

    def _last_columns(self, module: LightningModule) -> Tensor:
        """Which columns of the gradients are the last layer's."""
        _, layer = find_linear(module, self.layer)
        own = {id(parameter) for parameter in layer.parameters()}
        parameters = [one for one in module.parameters() if one.requires_grad]
        return torch.cat([torch.full((one.numel(),), id(one) in own) for one in parameters])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_window": []}


def per_sample_losses(module: LightningModule, batch: Any) -> Tensor:
    """The loss of every row of a batch.

    Args:
        module: with ``per_sample_loss``, or a classifier.
        batch: what ``training_step`` gets.

    Returns:
        Shape ``(batch,)``.

    Raises:
        MisconfigurationException: if the losses cannot be known.
    """
    own = getattr(module, "per_sample_loss", None)
    if own is not None:
        losses: Tensor = own(batch)
        if losses.dim() != 1:
            raise MisconfigurationException(
                f"per_sample_loss of {type(module).__name__} must return shape (batch,), got"
                f" {tuple(losses.shape)}"
            )
        return losses
    pair = isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[1], Tensor)
    if pair and is_overridden("forward", module):
        inputs, labels = batch
        outputs = module(inputs)
        logits = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
        if isinstance(logits, Tensor) and logits.dim() == 2 and labels.dtype == torch.int64:
            return torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    raise MisconfigurationException(
        f"HarmProbe cannot tell the loss of each sample: give {type(module).__name__} a method"
        f" per_sample_loss(batch)"
        " that returns a tensor of shape (batch,)"
    )


@dataclass
class _RandomState:
    """The random generators that a forward pass may draw from."""

    torch_state: Tensor
    cuda_states: list[Tensor]
    numpy_state: Any
    python_state: Any

    @classmethod
    def now(cls) -> _RandomState:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(torch.get_rng_state(), cuda, np.random.get_state(), random.getstate())

    def restore(self) -> None:
        torch.set_rng_state(self.torch_state)
        if self.cuda_states:
            torch.cuda.set_rng_state_all(self.cuda_states)
        np.random.set_state(self.numpy_state)
        random.setstate(self.python_state)


@dataclass
class _Batch:
    """A batch of the window that is probed."""

    batch: Any
    random: _RandomState
    losses: Tensor = field(default_factory=lambda: torch.zeros(0))
    gradients: Tensor | None = None
    start: Tensor | None = None


@contextmanager
def _untouched(module: LightningModule, state: _RandomState) -> Iterator[None]:
    """Draw from a given state of the generators, and leave them and all buffers as they are."""
    before = _RandomState.now()
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    state.restore()
    try:
        with silent_hooks():
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        before.restore()


def _flat(module: LightningModule) -> Tensor:
    return torch.cat([one.detach().reshape(-1) for one in module.parameters() if one.requires_grad])


def _joined(parameters: list[Any], gradients: Any) -> Tensor:
    pairs = zip(parameters, gradients, strict=True)
    flat = [(torch.zeros_like(one) if found is None else found).reshape(-1) for one, found in pairs]
    return torch.cat(flat).double()
