"""A LightningModule around the solver: tracking, checkpoints, resume and devices, the same numbers."""

from __future__ import annotations

from typing import Any, Literal

import torch
from leyden.arguments import check_at_least
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from leyden_asym_perturb.game import Game
from leyden_asym_perturb.optimizer import SolverSteps
from leyden_asym_perturb.solver import ProcessResult, Round, Solver, SolveResult

_HISTORY = "asym_perturb_rounds"


class AsymPGameModule(LightningModule):
    """Solve a game by AsymP-GDA or AsymP-DGDA under a Trainer, Sections 3.3 to 3.5.

    A training step is ``inner_steps`` iterations of both processes, whatever the batch holds. After as many
    iterations the strategies are those of `leyden_asym_perturb.asymp_solve`, bit for bit. The Trainer stops
    when the certificate is small enough. Logged are ``nash_conv``, ``mu``, ``eta``, ``round``,
    ``iters_total``, ``perturbed_gap_x`` and ``perturbed_gap_y``; where the value of the game is known also
    ``exploitability_x`` and ``exploitability_y``; of a batch of games the largest of each.

    The strategies are buffers in float64. It optimizes by hand: Lightning refuses gradient accumulation and
    clipping, which have no meaning here.

    Args:
        game: a `MatrixGame`, a `SequenceFormGame`, or a function of `leyden_asym_perturb.games`.
        mu: the perturbation; ``"auto"`` starts large and halves it, with a guarantee for matrices.
        eta: the step size; ``"auto"`` is a share of the longest stable one.
        eps: the NashConv that ends the fit, above 0.
        inner_steps: iterations of a training step.
        mirrored: whether both processes run. Without the second there is no strategy of y and no NashConv:
            a fixed ``mu`` is needed, and the fit ends when x is within ``eps`` of the best for it.
        perturbation: what a set of a tree hands to its parent: ``"gradient"``, exact, or ``"official"``, what
            the authors' code does.
        check_every: iterations from one certificate to the next.
        mu_init: the first perturbation of ``"auto"``; None: from the size of the payoffs.
        max_halvings: how often it is halved at most.
        warm_start: whether a round starts where the last one ended.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """

    def __init__(
        self,
        game: Game,
        mu: float | Literal["auto"] = "auto",
        eta: float | Literal["auto"] = "auto",
        eps: float = 1e-6,
        inner_steps: int = 100,
        mirrored: bool = True,
        perturbation: Literal["gradient", "official"] = "gradient",
        *,
        check_every: int = 10,
        mu_init: float | None = None,
        max_halvings: int = 40,
        warm_start: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(game, Game):
            raise ValueError(f"game: expected a MatrixGame or a SequenceFormGame, got {type(game).__name__}")
        check_at_least("inner_steps", inner_steps, 1)
        if perturbation not in ("gradient", "official"):
            raise ValueError(f"perturbation: expected 'gradient' or 'official', got {perturbation!r}")
        for name, number in (("mu", mu), ("eta", eta)):
            if isinstance(number, str) and number != "auto":
                raise ValueError(f"{name}: expected a number or 'auto', got {number!r}")
        self.automatic_optimization = False
        self.save_hyperparameters(ignore=["game"])
        self.inner_steps = inner_steps
        self.solver = Solver(
            game,
            eps=eps,
            mu=None if mu == "auto" else float(mu),
            mu_init=mu_init,
            eta=None if eta == "auto" else float(eta),
            check_every=check_every,
            max_halvings=max_halvings,
            warm_start=warm_start,
            mirrored=mirrored,
            official=perturbation == "official",
        )
        # Never trained: DDP refuses a module without parameters. It shall leave the solver's state alone, of
        # which every process computes its own.
        self.anchor = torch.nn.Parameter(torch.zeros(()))
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    @property
    def game(self) -> Game:
        """The game."""
        return self.solver.game

    def result(self) -> SolveResult | ProcessResult:
        """The best pair seen, with its certificate; without the second process the strategy of x alone."""
        return self.solver.result()

    def on_fit_start(self) -> None:
        """Refuse half precision, in which there is nothing to certify.

        Raises:
            MisconfigurationException: if the Trainer's precision would round the strategies.
        """
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if self.solver.x.dtype not in (torch.float64, torch.float32) or scaled:
            raise MisconfigurationException(
                f"precision: expected '32-true', '64-true' or 'bf16-mixed', got '{self.trainer.precision}'"
            )

    def on_train_start(self) -> None:
        """Tell DDP that no gradients are coming."""
        if isinstance(self.trainer.strategy.model, DistributedDataParallel):
            self.trainer.strategy.model.require_backward_grad_sync = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Iterate, log, and stop when the certificate is small enough."""
        optimizer: Any = self.optimizers()
        optimizer.step(self._advance)
        self._log_state()
        if self.trainer.strategy.reduce_boolean_decision(self.solver.finished, all=True):
            self.trainer.should_stop = True

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the certificate as ``val_nash_conv``."""
        self._log_certificate("val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the certificate as ``test_nash_conv``."""
        self._log_certificate("test")

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """The fields of `result`, by name, without the history."""
        fields = dict(vars(self.result()))
        fields.pop("history", None)
        return fields

    def configure_optimizers(self) -> SolverSteps:
        """What counts the steps."""
        return SolverSteps([self.anchor])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the rounds; all else is buffers."""
        checkpoint[_HISTORY] = [[one.game, one.mu, one.iters, one.nash_conv] for one in self.solver.history]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the rounds."""
        self.solver.history = [Round(*one) for one in checkpoint.get(_HISTORY, [])]

    def _advance(self) -> None:
        with torch.autocast(self.device.type, enabled=False):
            self.solver.advance(self.inner_steps)

    def _log_state(self) -> None:
        solver = self.solver
        solver.measure_gaps()
        numbers = {
            "mu": solver.mu.max(),
            "eta": solver.step_size.max(),
            "round": solver.rounds.max().double(),
            "iters_total": solver.iteration.double(),
            "perturbed_gap_x": solver.gaps[:, 0].max(),
        }
        if solver.mirrored:
            numbers |= {"nash_conv": solver.current.max(), "perturbed_gap_y": solver.gaps[:, 1].max()}
        numbers |= self._exploitabilities()
        self.log_dict(numbers, sync_dist=True, reduce_fx="max", batch_size=1)

    def _exploitabilities(self) -> dict[str, Tensor]:
        """What each player could lose, where the value is known."""
        value, solver = self.game.value, self.solver
        if value is None:
            return {}
        found = {"exploitability_x": (self.game.worst_case(solver.x[:, 0]) - value).max()}
        if solver.mirrored:
            found["exploitability_y"] = (value - self.game.guaranteed(solver.y[:, 1])).max()
        return found

    def _log_certificate(self, stage: str) -> None:
        found = self.result()
        if isinstance(found, SolveResult):
            worst = torch.as_tensor(found.nash_conv, dtype=torch.float64).max()
            self.log(f"{stage}_nash_conv", worst, sync_dist=True, reduce_fx="max", batch_size=1)
