"""Decision-focused learning: a network predicts the costs of a program, and is trained by what it decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from jaxtyping import Float
from leyden.errors import UsageError
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from leyden_ffolayer.program import BoxProgram
from leyden_ffolayer.qp_layer import FFOQPLayer, check_choice
from leyden_ffolayer.report import SolveReport

Training = Literal["decision", "two-stage"]
Batch = tuple[Tensor, Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler]

_MODULES = ("predictor", "layer", "program", "optimizer", "lr_scheduler")


class DecisionFocusedModule(LightningModule):
    """A predictor of costs, a program that decides, and the loss of the decisions.

    A batch is a pair of features and true costs, of shapes (batch, ...) and (batch, size). The predictor's
    costs are the vector q of the program; the decision loss is the mean of the true costs times the
    decisions (Section 5 of Zhao and others, 2025), and the regret the mean of what the program's own
    objective loses, at the true costs, against deciding by them; it is never negative.

    Logged are ``train/decision_loss`` or, in two-stage training, ``train/prediction_loss``, and the means
    ``val/decision_loss``, ``val/regret``, ``val/prediction_loss`` and the same for ``test``; at the steps
    that the Trainer logs, also what the layer reports as ``ffo/*``.

    Args:
        predictor: returns costs of shape (batch, size), or (batch, size, 1).
        layer: solves the program; called as `FFOQPLayer` is.
        program: what of the program is constant; called without arguments.
        training: ``"decision"`` trains on the decision loss, through the layer; ``"two-stage"`` on the mean
            squared error of the costs, as one does without a layer.
        optimizer: makes the optimizer from the parameters, where LightningCLI does not.
        lr_scheduler: makes the scheduler from the optimizer; stepped after each epoch.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """

    def __init__(
        self,
        predictor: nn.Module,
        layer: nn.Module,
        program: nn.Module,
        *,
        training: Training = "decision",
        optimizer: MakeOptimizer | None = None,
        lr_scheduler: MakeScheduler | None = None,
    ) -> None:
        super().__init__()
        check_choice("training", training, ("decision", "two-stage"))
        for name, module in (("predictor", predictor), ("layer", layer), ("program", program)):
            if not isinstance(module, nn.Module):
                raise ValueError(f"{name}: expected a torch.nn.Module, got {type(module).__name__}")
        self.save_hyperparameters(ignore=list(_MODULES))
        if "_instantiator" in self.hparams:  # plain values of LightningCLI that rebuild each
            self.save_hyperparameters()
        self.predictor = predictor
        self.layer = layer
        self.program = program
        self.objective: Training = training
        self._make_optimizer = optimizer
        self._make_scheduler = lr_scheduler
        if optimizer is not None:
            # On the object, because LightningCLI warns if a class has one and the configuration another.
            self.configure_optimizers = self._configure_optimizers  # type: ignore[method-assign]

    def forward(self, features: Tensor) -> Tensor:
        """The decisions for features."""
        return self.decide(self.predict_costs(features))

    def predict_costs(self, features: Tensor) -> Float[Tensor, "batch size"]:
        """The predictor's costs."""
        costs: Tensor = self.predictor(features)
        return costs.squeeze(-1) if costs.dim() == 3 and costs.shape[-1] == 1 else costs

    def decide(self, costs: Float[Tensor, "batch size"]) -> Float[Tensor, "batch size"]:
        """The decisions at given costs."""
        Q, G, h = self.program()
        decisions: Tensor = self.layer(Q, costs, G, h)
        return decisions

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss that is trained."""
        features, costs = batch
        predicted = self._checked(self.predict_costs(features), costs)
        if self.objective == "two-stage":
            loss = nn.functional.mse_loss(predicted, costs)
            name = "train/prediction_loss"
        else:
            loss = _decision_loss(costs, self.decide(predicted))
            name = "train/decision_loss"
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and (self.global_step + 1) % every == 0:
            self.log(name, loss, batch_size=len(costs))
            report = getattr(self.layer, "report", None)
            if isinstance(report, SolveReport):
                self.log_dict(report.metrics(), batch_size=len(costs))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the losses of the batch."""
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the losses of the batch."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Tensor | Batch, batch_idx: int) -> Tensor:
        """The decisions for a batch of features, with costs or without."""
        decisions: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return decisions

    def configure_callbacks(self) -> list[Any]:
        """Add none; as the first hook of a fit it is the place to say that there is no optimizer."""
        if self.trainer.training and not is_overridden("configure_optimizers", self):
            raise UsageError(
                "DecisionFocusedModule has no optimizer: write `optimizer:` in the configuration, or in a "
                "script DecisionFocusedModule(..., optimizer=partial(torch.optim.Adam, lr=0.003))"
            )
        return []

    def _evaluate(self, stage: str, batch: Batch) -> None:
        features, costs = batch
        predicted = self._checked(self.predict_costs(features), costs)
        decisions = self.decide(predicted)
        Q = self.program().Q
        values = {
            "decision_loss": _decision_loss(costs, decisions),
            "regret": (_value(Q, costs, decisions) - _value(Q, costs, self.decide(costs))).mean(),
            "prediction_loss": nn.functional.mse_loss(predicted, costs),
        }
        named = {f"{stage}/{name}": value for name, value in values.items()}
        self.log_dict(named, sync_dist=True, batch_size=len(costs), on_step=False, on_epoch=True)

    def _checked(self, predicted: Tensor, costs: Tensor) -> Tensor:
        if predicted.shape != costs.shape:
            raise ValueError(
                f"predictor's output: expected shape {tuple(costs.shape)}, got {tuple(predicted.shape)}"
            )
        return predicted

    def _configure_optimizers(self) -> Any:
        assert self._make_optimizer is not None
        optimizer = self._make_optimizer(self.parameters())
        if self._make_scheduler is None:
            return optimizer
        return [optimizer], [self._make_scheduler(optimizer)]


class ChosenFeatures(nn.Module):
    """A predictor that sees some of the features alone.

    Args:
        features: places of the features in the last dimension.
        inner: the predictor.

    Raises:
        ValueError: if no feature is chosen.
    """

    def __init__(self, features: list[int], inner: nn.Module) -> None:
        super().__init__()
        if not features:
            raise ValueError("features: expected at least one place, got none")
        self.features = list(features)
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        """The prediction from the chosen features."""
        prediction: Tensor = self.inner(inputs[..., self.features])
        return prediction


def regret(
    layer: FFOQPLayer, program: BoxProgram, predicted: Float[Tensor, "batch size"],
    costs: Float[Tensor, "batch size"],
) -> Float[Tensor, " batch"]:  # fmt: skip
    """What deciding by predicted costs loses against deciding by the true ones, not in the paper's formulas.

    Args:
        layer: solves the program.
        program: the program's constant part.
        predicted: the costs that are decided by.
        costs: the true costs.

    Returns:
        The loss of each sample in the program's objective at the true costs, 0 or more.

    >>> import torch
    >>> regret(FFOQPLayer(), BoxProgram(1), torch.tensor([[-0.5]]), torch.tensor([[0.5]]))
    tensor([0.1250])
    """
    Q, G, h = program()
    return _value(Q, costs, layer(Q, predicted, G, h)) - _value(Q, costs, layer(Q, costs, G, h))


def _value(Q: Tensor, costs: Tensor, decisions: Tensor) -> Tensor:
    """The program's objective at given costs, for each sample."""
    values: Tensor = 0.5 * ((decisions @ Q) * decisions).sum(dim=-1) + (costs * decisions).sum(dim=-1)
    return values


def _decision_loss(costs: Tensor, decisions: Tensor) -> Tensor:
    return (costs * decisions).sum(dim=-1).mean()
