"""Small trainings under a Trainer, and what the callback's weights should have made of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from leyden_harm import HarmReduction
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def momentum(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def cross_entropies(outputs: Any, labels: Tensor) -> Tensor:
    """The loss of each row: the mean over its positions, where it has some."""
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    losses = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return losses.view(len(labels), -1).mean(1)


class Learner(LightningModule):
    """A model and the mean of its rows' losses."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Callable[[Any], torch.optim.Optimizer] = momentum,
        losses: Callable[[Any, Tensor], Tensor] = cross_entropies,
        *,
        total: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self._optimizer = optimizer
        self._losses = losses
        self._total = total

    def per_sample_loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return self._losses(self.model(inputs), labels)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        losses = self.per_sample_loss(batch)
        return losses.sum() if self._total else losses.mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.per_sample_loss(batch).mean())

    def configure_optimizers(self) -> Any:
        return self._optimizer([one for one in self.parameters() if one.requires_grad])


class Gradients(Callback):
    """Keeps, for every batch, its rows, the weights that were found and the gradients as they are then."""

    def __init__(self, reduction: HarmReduction | None = None) -> None:
        self.reduction = reduction
        self.batches: list[Any] = []
        self.weights: list[Tensor] = []
        self.margins: list[tuple[Tensor, Tensor]] = []
        self.gradients: list[dict[str, Tensor]] = []
        self.states: list[dict[str, Tensor]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.batches.append(batch)
        self.states.append({name: value.detach().clone() for name, value in pl_module.state_dict().items()})

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = None if self.reduction is None else self.reduction.last
        if found is not None:
            self.weights.append(found.weights.clone())
            self.margins.append((found.margins_before.clone(), found.margins_after.clone()))
        self.gradients.append(
            {
                name: one.grad.detach().clone()
                for name, one in pl_module.named_parameters()
                if one.grad is not None
            }
        )


def rows(count: int = 32, features: int = 6, classes: int = 3, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, features, generator=generator),
        torch.randint(classes, (count,), generator=generator),
    )


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def fit(
    module: LightningModule,
    *callbacks: Callback,
    data: Any = None,
    batch: int = 8,
    steps: int = 8,
    logger: Any = False,
    **arguments: Any,
) -> Trainer:
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": -1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    trainer = Trainer(max_steps=steps, logger=logger, callbacks=list(callbacks), **{**settings, **arguments})
    torch.manual_seed(3)
    trainer.fit(module, DataLoader(rows() if data is None else data, batch_size=batch))
    return trainer


def flat(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def weighted_gradients(
    module: Any, state: dict[str, Tensor], batch: Any, weights: Tensor
) -> dict[str, Tensor]:
    """Autograd's gradients of the weighted sum of the rows' losses at a given state."""
    module.load_state_dict(state)
    module.zero_grad()
    (weights.to(torch.float32) * module.per_sample_loss(batch)).sum().backward()
    return {name: one.grad for name, one in module.named_parameters() if one.grad is not None}
