"""The LightningModule around the solver: an iteration a training step, tracked, saved and resumed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from leyden_callbacks import keeps_figures, log_figure
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from leyden_hankel.completion import Completion, HankelCompletion, Record, Task, finish, prepare
from leyden_hankel.directions import Preconditioner
from leyden_hankel.metrics import relative_error
from leyden_hankel.solver import State, Step, iterate, start


class HankelCompletionModule(LightningModule):
    """The solver as a LightningModule (reconstructed), with the numbers of `complete`, bit for bit.

    A batch is ``(observed, mask)`` or ``(observed, mask, truth)``, signals first. A training step is one
    iteration of all signals of the batch, the first one from the spectral start, so every training batch
    holds the same signals (`SpectralSignalDataModule` and `SignalFile` give such batches); the training ends
    when all have converged. Test and prediction steps solve the signals of their batches from the start.
    It optimizes by hand: Lightning refuses gradient accumulation and clipping, which have no meaning here.

    Checkpoints hold the whole state. Under several processes each solves the signals that its batches hold,
    nothing is averaged, and a checkpoint holds the states of all.

    Logged are ``objective``, ``rel_change``, ``step_size``, ``gram_condition``, ``iterations``, ``seconds``
    and, where the true signals are known, ``rel_error``, as means over the signals.

    Args:
        shape: the sizes of a signal.
        rank: the number of exponentials.
        preconditioner: ``"tangent"``, ``"block_jacobi"`` or ``"none"``, see `direction`.
        step: ``"auto"``, ``"exact"``, ``"fixed"`` or a number, see `Settings`.
        max_iter: iterations at most.
        tol: relative change of the signal that ends the iteration.
        outlier_fraction: the share of the observed samples that may be grossly wrong, below 0.5; needs a
            fixed step.
        damping: see `Settings`.
        consistent: whether the observed samples are put back into the result.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """

    if TYPE_CHECKING:  # buffers, of whatever size the signals have
        observed: Any
        mask: Any
        value: Any
        history: Any
        best_value: Any
        best_rows: Any
        best_x: Any
        time: Any

    def __init__(
        self,
        shape: int | list[int],
        rank: int,
        preconditioner: Preconditioner = "tangent",
        step: Step | float = "auto",
        max_iter: int = 300,
        tol: float = 1e-7,
        outlier_fraction: float = 0.0,
        damping: float = 0.0,
        *,
        consistent: bool = False,
    ) -> None:
        super().__init__()
        self.solver = HankelCompletion(
            shape,
            rank,
            preconditioner,
            step,
            max_iter,
            tol,
            outlier_fraction,
            damping,
            consistent=consistent,
        )
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.clock = nn.Parameter(torch.zeros(()))  # an optimizer needs one, and Lightning counts its steps
        for name in _BUFFERS:
            self.register_buffer(name, None)
        # Each process has signals of its own, which DDP would overwrite with those of the first.
        self._ddp_params_and_buffers_to_ignore = list(_BUFFERS)
        self._task: Task | None = None
        self._since = 0.0

    def forward(self, observed: Tensor, mask: Tensor | None = None) -> Completion:
        """Solve signals from the start, as `HankelCompletion` does."""
        completion: Completion = self.solver(observed, mask)
        return completion

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """One iteration of the signals."""
        observed, mask, truth = _unpacked(batch)
        task = self._task_of(observed, mask)
        optimizer: Any = self.optimizers()
        optimizer.step(lambda: self._advance(task, truth))
        if self.trainer.strategy.reduce_boolean_decision(not self._state().running, all=True):
            self.trainer.should_stop = True

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Log how near the iterates are to the true signals, where those are known."""
        observed, mask, truth = _unpacked(batch)
        if truth is None:
            return
        current = self(observed, mask) if self.history is None else self.completion
        if current.x.shape == truth.shape:
            error = relative_error(current.x, truth, signal_dims=len(self.solver.shape)).mean()
            self.log("val_rel_error", error, sync_dist=True, batch_size=len(observed))

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Solve the signals and log how that went."""
        observed, mask, truth = _unpacked(batch)
        completion = self(observed, mask)
        measured = {
            "test_iterations": completion.iters.double().mean(),
            "test_converged": completion.converged.double().mean(),
        }
        if truth is not None:
            dims = len(self.solver.shape)
            measured["test_rel_error"] = relative_error(completion.x, truth, signal_dims=dims).mean()
        self.log_dict(measured, sync_dist=True, batch_size=len(observed))

    def predict_step(self, batch: Sequence[Tensor] | Tensor, batch_idx: int) -> dict[str, Tensor]:
        """Solve the signals of a batch.

        Args:
            batch: ``(observed, mask, ...)``, or the observed samples alone with NaN where there is none.
            batch_idx: its place.

        Returns:
            ``"x"``, ``"Z"``, ``"iters"`` and ``"converged"``, as in `Completion`.
        """
        observed, mask = (batch, None) if isinstance(batch, Tensor) else _unpacked(batch)[:2]
        completion = self(observed, mask)
        return {name: getattr(completion, name) for name in ("x", "Z", "iters", "converged")}

    def configure_optimizers(self) -> Optimizer:
        """What counts the steps."""
        return SolverSteps([self.clock], {"lr": 1.0})

    def on_fit_start(self) -> None:
        """Refuse half precision, in which there is no transform.

        Raises:
            MisconfigurationException: under such a precision.
        """
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if scaled or self.clock.dtype not in (torch.float32, torch.float64):
            raise MisconfigurationException(
                f"precision: expected '32-true', '64-true' or 'bf16-mixed', got '{self.trainer.precision}'"
                "; there is no transform in half precision, and what counts is the type of the signals"
            )
        self._since = time.monotonic()

    def on_train_end(self) -> None:
        """Draw the errors over the iterations and the spectrum with its lines, where a logger keeps them."""
        if self.history is None or not keeps_figures(self.trainer):
            return
        from leyden_hankel.pictures import iterations_figure, spectrum_figure

        completion = self.completion
        log_figure(self.trainer, "iterations", iterations_figure(completion))
        if len(self.solver.shape) == 1:
            log_figure(self.trainer, "spectrum", spectrum_figure(completion, self.observed, self.mask))

    @property
    def completion(self) -> Completion:
        """The signals as far as the training came.

        Raises:
            RuntimeError: before the first training step.
        """
        if self.history is None:
            raise RuntimeError("completion: there is none before the first training step")
        task = self._task_of(self.observed, self.mask)
        record = Record(task)
        numbers = self.history
        names = (*record.series, "rel_error") if numbers.shape[-1] == 4 else tuple(record.series)
        record.series = {name: list(numbers[..., place]) for place, name in enumerate(names)}
        return finish(task, self._state(), record, consistent=self.solver.consistent)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the states of all processes into the checkpoint that the first one writes."""
        if self._ranks() == 1 or self.history is None:
            return
        own = {name: getattr(self, name).cpu() for name in _BUFFERS}
        states: list[Any] = [None] * self._ranks()
        torch.distributed.all_gather_object(states, own)
        checkpoint["hankel_states"] = states

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take this process's own state out of a checkpoint of several.

        Raises:
            MisconfigurationException: if there are as many processes no more.
        """
        states = checkpoint.get("hankel_states")
        if states is None or self._trainer is None:
            return
        if len(states) != self._ranks():
            raise MisconfigurationException(
                f"the checkpoint holds the signals of {len(states)} processes, and this Trainer has "
                f"{self._ranks()}"
            )
        checkpoint["state_dict"].update(states[self.global_rank])

    def _ranks(self) -> int:
        return 1 if self._trainer is None else self.trainer.world_size

    def _advance(self, task: Task, truth: Tensor | None) -> None:
        """Compute the next state and keep it."""
        settings = self.solver.settings
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            state = start(task.problem, settings) if self.value is None else self._state()
            if not state.running:
                return
            state = iterate(task.problem, settings, state)
            record = Record(task, truth)
            numbers = record.add(state)
            self._keep(state)
            row = torch.stack(list(numbers.values()), dim=-1).unsqueeze(0)
            self.history = row if self.history is None else torch.cat([self.history, row])
            condition = torch.linalg.cond(state.gram)
        logged = {
            **numbers,
            "gram_condition": condition,
            "iterations": state.iterations.to(condition.dtype),
            "seconds": condition.new_tensor(time.monotonic() - self._since),
        }
        self.log_dict({name: value.mean() for name, value in logged.items()}, batch_size=len(condition))

    def _task_of(self, observed: Tensor, mask: Tensor | None) -> Task:
        """The task of a batch, which must be that of the first."""
        seen = ~torch.isnan(observed) if mask is None else mask.bool()
        y = torch.where(seen, observed, torch.zeros((), dtype=observed.dtype, device=observed.device))
        if self.observed is None:
            self.observed, self.mask = y, seen
        elif not (
            self.observed.shape == y.shape and torch.equal(self.observed, y) and torch.equal(self.mask, seen)
        ):
            raise ValueError(
                "batch: expected the same signals in every training step, got others; put all signals into "
                "one batch (SpectralSignalDataModule and SignalFile do), or solve batch after batch with "
                "trainer.predict"
            )
        if self._task is None or self._task.scale.device != y.device:
            self._task = prepare(self.observed, self.mask, self.solver.shape, self.solver.settings)
        return self._task

    def _state(self) -> State:
        """The state that the buffers hold."""
        fields: dict[str, Any] = {
            field: _turned(name, getattr(self, name)) for name, field in zip(_STATE, _FIELDS, strict=True)
        }
        best = (self.best_value, self.best_rows.mT, self.best_x)
        return State(**fields, best=best, time=int(self.time))

    def _keep(self, state: State) -> None:
        for name, field in zip(_STATE, _FIELDS, strict=True):
            setattr(self, name, _turned(name, getattr(state, field)))
        self.best_value, factor, self.best_x = state.best
        self.best_rows = factor.mT
        self.time = torch.tensor(state.time)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take buffers of any size: how many signals there are is known from the data or the checkpoint."""
        for name in _BUFFERS:
            if (value := state_dict.get(prefix + name)) is not None:
                setattr(self, name, value.clone())
        self._task = None
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __getstate__(self) -> dict[str, Any]:
        """Without the task, which is made anew."""
        return {**super().__getstate__(), "_task": None}


class SolverSteps(Optimizer):
    """An optimizer whose step is its closure: what Lightning counts, saves and resumes by."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the closure."""
        return None if closure is None else closure()


_FIELDS = tuple(field.name for field in dataclasses.fields(State) if field.name not in ("best", "time"))
_STATE = tuple("rows" if name == "factor" else name for name in _FIELDS)
_BUFFERS = ("observed", "mask", *_STATE, "best_value", "best_rows", "best_x", "time", "history")
"""The state: the factor as rows, in the memory layout in which the solver has it."""


def _turned(name: str, tensor: Tensor) -> Tensor:
    return tensor.mT if name == "rows" else tensor


def _unpacked(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
    observed, mask, *rest = batch
    return observed, mask, rest[0] if rest else None
