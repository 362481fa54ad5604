"""A LightningModule that trains a network with its rules, by the paper's recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from leyden.arguments import check_at_least
from leyden.tasks import MakeOptimizer, MakeScheduler, Task
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import MeanSquaredError, Metric
from torchmetrics.classification import MulticlassAccuracy

from leyden_milp_layer.evaluation import RulePenaltyLoss
from leyden_milp_layer.projection import DisjunctiveProjection


class ScoreCrossEntropy(nn.Module):
    """Cross-entropy of class scores that a projection returned, ``-log max(y, 1e-6)``, Section 3.6.

    A score that is NaN gives NaN.

    Args:
        floor: the smallest score that counts, above 0.

    Raises:
        ValueError: if ``floor`` is not a finite number above 0.
    """

    def __init__(self, floor: float = 1e-6) -> None:
        super().__init__()
        if not 0 < floor < float("inf"):
            raise ValueError(f"floor: expected a finite number above 0, got {floor!r}")
        self.floor = floor

    def forward(
        self, scores: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        """The mean over the batch.

        Args:
            scores: non-negative, their sum over classes is 1.
            labels: int64.

        Returns:
            A scalar.
        """
        return nn.functional.nll_loss(scores.clamp(min=self.floor).log(), labels)


class RuleConstrainedModule(Task):
    """Train a network alone for some epochs, then through the projection, Section 3.6 of Pal and Li (2026).

    A batch is ``(inputs, targets)``, where the rules' features are the inputs, or ``(inputs, features,
    targets)``, where they are apart (standardised inputs, say, and features in the units of the rules).
    Logged are the losses of every `leyden.tasks.Task`, and ``rmse`` or ``accuracy``. What concerns the rules
    is logged by `RuleReport`.

    Args:
        backbone: the network; its outputs have the shape ``(batch, outputs)``.
        projection: the layer; None trains without one, as the baselines do.
        loss: takes outputs and targets; None: the mean squared error, or `ScoreCrossEntropy`.
        warmup_epochs: for so many epochs of a fit the projection is off, in training and in validation; test
            and prediction always project.
        penalty: added to the training loss, of the raw outputs.
        task: ``"regression"``, targets of the outputs' shape, or ``"classification"``, outputs that are
            scores and targets that are int64 labels of shape ``(batch,)``.
        optimizer: makes the optimizer from the parameters, where LightningCLI does not.
        lr_scheduler: makes the scheduler from the optimizer.
        interval: whether this ``lr_scheduler`` steps after each ``"epoch"`` or each ``"step"``.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """

    further_modules = ("projection", "penalty")

    def __init__(
        self,
        backbone: nn.Module,
        projection: DisjunctiveProjection | None = None,
        *,
        loss: nn.Module | None = None,
        warmup_epochs: int = 0,
        penalty: RulePenaltyLoss | None = None,
        task: Literal["regression", "classification"] = "regression",
        optimizer: MakeOptimizer | None = None,
        lr_scheduler: MakeScheduler | None = None,
        interval: Literal["epoch", "step"] = "epoch",
    ) -> None:
        check_at_least("warmup_epochs", warmup_epochs, 0)
        if task not in ("regression", "classification"):
            raise ValueError(f"task: expected 'regression' or 'classification', got {task!r}")
        for name, value, kind in (
            ("projection", projection, DisjunctiveProjection),
            ("penalty", penalty, RulePenaltyLoss),
        ):
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name}: expected a {kind.__name__}, got {type(value).__name__}")
        rules = projection.rules if projection is not None else penalty.rules if penalty is not None else None
        if task == "classification" and rules is None:
            raise ValueError("projection: expected one, or a penalty, which tell how many classes there are")
        metrics: dict[str, Metric] = {"rmse": MeanSquaredError(squared=False)}
        default: nn.Module = nn.MSELoss()
        if task == "classification" and rules is not None:
            metrics = {"accuracy": MulticlassAccuracy(rules.n, average="micro", validate_args=False)}
            default = ScoreCrossEntropy()
        super().__init__(backbone, loss, default, metrics, optimizer, lr_scheduler, interval)
        self.projection = projection
        self.penalty = penalty
        self.warmup_epochs = warmup_epochs
        self.task = task
        self._penalized: Tensor | None = None

    @property
    def projects(self) -> bool:
        """Whether the outputs are projected now."""
        if self.projection is None:
            return False
        trainer = self._trainer
        warming = trainer is not None and trainer.state.fn == TrainerFn.FITTING
        return not (warming and trainer is not None and trainer.current_epoch < self.warmup_epochs)

    def forward(self, inputs: Tensor | Sequence[Tensor]) -> Tensor:
        """The outputs, projected unless the module is warming up.

        Args:
            inputs: what the backbone takes; or a pair of that and the features of the rules.
        """
        given, features = (inputs, inputs) if isinstance(inputs, Tensor) else inputs
        raw: Tensor = self.backbone(given)
        self._penalized = self.penalty(raw, features) if self.penalty is not None and self.training else None
        if self.projection is None or not self.projects:
            return raw
        # 16 bits cannot hold what was projected: a rule would be violated by rounding
        projected: Tensor = self.projection(raw.float() if raw.element_size() < 4 else raw, features)
        return projected

    def align(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Check outputs and targets."""
        shape = tuple(outputs.shape) if self.task == "regression" else tuple(outputs.shape[:1])
        if tuple(targets.shape) != shape:
            raise ValueError(f"targets: expected shape {shape}, got {tuple(targets.shape)}")
        if self.task == "classification" and targets.dtype != torch.int64:
            raise ValueError(f"targets: expected torch.int64, got {targets.dtype}")
        return outputs, targets

    def apply_loss(self, loss: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, with the penalty in training."""
        value = super().apply_loss(loss, outputs, targets)
        penalty, self._penalized = self._penalized, None
        return value if penalty is None else value + penalty

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The mean loss of the batch."""
        return super().training_step(paired(batch), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss and the metrics of the batch."""
        super().validation_step(paired(batch), batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss and the metrics of the batch."""
        super().test_step(paired(batch), batch_idx)

    def per_sample_loss(self, batch: Any) -> Tensor:
        """The loss of each row of a batch, shape ``(batch,)``, without the penalty."""
        return super().per_sample_loss(paired(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The outputs for inputs, or for a batch with targets."""
        outputs: Tensor = self(batch if isinstance(batch, Tensor) else paired(batch)[0])
        return outputs


def paired(batch: Any) -> Any:
    """A batch as inputs and targets; of three tensors the first two are the inputs."""
    if isinstance(batch, Mapping) or len(batch) != 3:
        return batch
    return (batch[0], batch[1]), batch[2]


def constrained(model: Any, *, rules: str, **settings: Any) -> Any:
    """Put a projection behind the outputs of somebody's LightningModule, for ``leyden compare``.

    Args:
        model: its ``forward`` takes a tensor of features and returns outputs.
        rules: the path of a rule file, about those features and outputs.
        **settings: further arguments of `DisjunctiveProjection`.

    Returns:
        The same module, its outputs projected.
    """
    model.rule_projection = DisjunctiveProjection(rules, **settings)
    model.register_forward_hook(_project_outputs)
    return model


def _project_outputs(module: Any, inputs: tuple[Any, ...], outputs: Tensor) -> Tensor:
    """The forward hook of `constrained`; a function of the module, so that a copy uses its own layer."""
    if not isinstance(outputs, Tensor):
        raise ValueError(f"model: expected a tensor of outputs from forward, got {type(outputs).__name__}")
    needed = module.rule_projection.rules.depends_on_features
    if needed and not inputs:
        raise ValueError("model: expected the features as the first argument of forward, got keywords alone")
    features = inputs[0] if needed else None
    projected: Tensor = module.rule_projection(outputs, features)
    return projected
