"""The callback that weights each batch's samples so that its step harms fewer of them."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.distributed
from leyden.arguments import check_at_least
from leyden_callbacks import keeps_figures, log_figure, loss_scale
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from leyden_harm.affine import Affine, AffineFunction, Part, affine_update, has_affine_form, layer_update
from leyden_harm.hook import ForwardHook
from leyden_harm.layer import compiled_in, last_linear, linears
from leyden_harm.pictures import draw_reduction
from leyden_harm.record import Record
from leyden_harm.reweighting import Reweighting, Update, reweight

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class HarmReduction(Callback):
    """Weights the samples of each batch so that the optimizer's step makes fewer of them worse.

    Reconstructed from the abstract of Avranas (2026). In the backward pass, where the gradient leaves the
    last linear layer's output, it asks the optimizer's state where its next update would go, finds the
    nearest update that harms the batch less, and scales each sample's row of the gradient accordingly. There
    is no further forward or backward pass, the user's ``training_step`` stays as it is, and nothing waits for
    the device but at the steps that log. A batch of which no sample would be harmed is left as it is, bit for
    bit.

    Every few optimizer steps it logs ``harm/rate_before`` and ``harm/rate_after`` (the share of the batch's
    samples that the update makes worse, to first order, on the last layer), ``harm/sum_before`` and
    ``harm/sum_after`` (by how much in all, per unit of learning rate), ``harm/max_weight`` (the largest
    weight in units of the plain one), ``harm/active_fraction`` (the share of the batches, since the last
    time, with any harm) and ``harm/solver_gap`` (the solver's relative duality gap); at the end of training
    it draws them. Under DDP the numbers are the first rank's.

    Args:
        layer: dotted name of the ``torch.nn.Linear`` whose output is the logits; None takes the last one in
            the order of the modules, and says which.
        max_upweight: τ; a weight grows at most (1 + τ)-fold before it is normalized.
        n_iter: iterations of the solver.
        normalize: whether the weights keep their sum, so that the learning rate keeps its meaning.
        reduction: whether the loss is the ``"mean"`` or the ``"sum"`` over the samples of the batch.
        every: act at every so many optimizer steps, counted from ``start_step``.
        start_step: the first optimizer step at which it acts.
        sync: whether the ranks solve one joint problem; needs batches of one size, which it compares, and
            so waits for the device. Without it each rank balances its own batch.
        include_weight_decay: whether weight decay counts as part of the update.
        log_every: log at every so many optimizer steps, or the next one at which it acts.
        affine: for optimizers other than torch's SGD, Adam and AdamW: takes the optimizer and a parameter and
            returns (a, κ, P) of its next update P (a + κ ĝ), each of which None stands for 0, 1 and 1.
        figure: whether to draw at the end.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
        MisconfigurationException: when training starts, if there is no such layer, it is compiled, the
            optimizer is L-BFGS, two optimizers own the layer, or the strategy hides the parameters; with
            ``sync``, if a rank has a batch of another size.
    """

    def __init__(
        self,
        layer: str | None = None,
        max_upweight: float = 1.0,
        n_iter: int = 20,
        normalize: bool = True,
        reduction: Literal["mean", "sum"] = "mean",
        every: int = 1,
        start_step: int = 0,
        sync: bool = False,
        include_weight_decay: bool = True,
        log_every: int = 20,
        *,
        affine: AffineFunction | None = None,
        figure: bool = True,
    ) -> None:
        number = isinstance(max_upweight, int | float) and not isinstance(max_upweight, bool)
        if not (number and 0 < max_upweight < math.inf):
            raise ValueError(f"max_upweight: expected a finite number above 0, got {max_upweight!r}")
        for name, value, least in (
            ("n_iter", n_iter, 1),
            ("every", every, 1),
            ("start_step", start_step, 0),
            ("log_every", log_every, 1),
        ):
            check_at_least(name, value, least)
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction: expected 'mean' or 'sum', got {reduction!r}")
        if affine is not None and not callable(affine):
            raise ValueError(f"affine: expected a function of an optimizer and a parameter, got {affine!r}")
        self.layer = layer
        self.max_upweight = float(max_upweight)
        self.n_iter = n_iter
        self.normalize = normalize
        self.reduction = reduction
        self.every = every
        self.start_step = start_step
        self.sync = sync
        self.include_weight_decay = include_weight_decay
        self.log_every = log_every
        self.affine = affine
        self.figure = figure
        self.last: Reweighting | None = None
        self._fit: _Fit | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the layer and hang the hook on it."""
        self._leave()
        _check_strategy(trainer)
        name, layer = last_linear(pl_module, self.layer)
        others: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(
            isinstance(one, HarmReduction)
            and one is not self
            and one._fit is not None
            and one._fit.layer is layer
            for one in others
        ):
            raise MisconfigurationException(
                f"two HarmReduction callbacks act on layer '{name}'; leave one out"
            )
        if self.layer is None:
            rank_zero_info(f"HarmReduction acts on '{name}', the last torch.nn.Linear of the module")
        self._fit = _Fit(weakref.ref(trainer), name, layer)
        self._fit.handles.append(layer.register_forward_hook(ForwardHook(self), with_kwargs=True))
        if self.layer is None:
            self._watch_order(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the optimizer that owns the layer."""
        if self._fit is None:
            return
        for optimizer in trainer.optimizers:
            if isinstance(optimizer, LBFGS):
                raise MisconfigurationException(
                    "HarmReduction does not work with L-BFGS, which evaluates a batch many times within one"
                    " step"
                )
        fit = self._fit
        weight, bias = fit.layer.weight, fit.layer.bias
        fit.parameters = [weight] if bias is None else [weight, bias]
        fit.owners = [_owner(trainer.optimizers, parameter) for parameter in fit.parameters]
        optimizers = {id(owner.optimizer): owner.optimizer for owner in fit.owners if owner is not None}
        if len(optimizers) > 1:
            raise MisconfigurationException(
                f"layer '{fit.name}' belongs to more than one optimizer; HarmReduction needs one that owns it"
            )
        if None in fit.owners:
            fit.warn_once(
                f"HarmReduction: '{fit.name}' is frozen or in no optimizer, at least in part; what is counts"
                f" as"
                " updated by plain gradient descent"
            )
        for optimizer in optimizers.values():
            if self.affine is None and not has_affine_form(optimizer):
                fit.warn_once(
                    f"HarmReduction does not know the update of {type(optimizer).__name__} and takes it for"
                    f" plain"
                    " gradient descent without history; affine= tells it otherwise"
                )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count the layer's calls anew."""
        if self._fit is not None:
            self._fit.calls = 0

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Watch no longer what is called last: activation checkpointing calls layers once more."""
        if self._fit is not None:
            self._fit.forget_order()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Log, at the steps that log."""
        fit = self._fit
        if fit is None or self.last is None or not fit.acted:
            return
        step, fit.acted = _step(trainer), False
        fit.record.keep(step, self.last)
        if fit.record.logged is not None and step < fit.record.logged + self.log_every:
            return
        metrics = fit.record.metrics(step, self.last)
        if fit.record.nonfinite:
            fit.warn_once(
                "HarmReduction: a gradient, an input of the last layer or a state of the optimizer was not"
                " finite;"
                " such a batch is left as it is"
            )
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After the first batch, say so if the layer was not the last one that was called."""
        fit = self._fit
        if fit is None or fit.last_called is None:
            return
        fit.forget_order()
        called, fit.last_called = fit.last_called, None
        if called and called != fit.name:
            fit.warn_once(
                f"HarmReduction acts on '{fit.name}', the last torch.nn.Linear in the order of the modules,"
                f" but '{called}' is"
                f" called after it; if that one makes the logits, write layer='{called}'"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the run."""
        fit = self._fit
        if fit is not None and self.figure and len(fit.record.steps) > 1 and keeps_figures(trainer):
            log_figure(trainer, "harm", draw_reduction(fit.record))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the hook away."""
        self._leave()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take the hook away."""
        self._leave()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the hook away."""
        self._leave()

    def on_layer_called(self, layer: nn.Module, h: Tensor, output: Any) -> None:
        """Let the layer's input wait for the gradient of its output; called by the hook on the layer.

        Args:
            layer: the layer that was called.
            h: its input.
            output: what it returned.
        """
        fit = self._fit
        trainer = None if fit is None else fit.trainer()
        if fit is None or trainer is None or layer is not fit.layer or not layer.training:
            return
        if not isinstance(output, Tensor) or not output.requires_grad or output.dim() < 2:
            return
        step = _step(trainer)
        if step < self.start_step or (step - self.start_step) % self.every:
            return
        fit.calls += 1
        if fit.calls == 2:
            fit.warn_once(
                f"HarmReduction: '{fit.name}' is called more than once a batch; each call is weighted by"
                f" itself"
            )
        output.register_hook(partial(self._weigh, h.detach()))  # type: ignore[no-untyped-call]

    def _weigh(self, h: Tensor, gradient: Tensor) -> Tensor:
        """Scale the rows of the gradient of the layer's output."""
        fit = self._fit
        trainer = None if fit is None else fit.trainer()
        if fit is None or trainer is None:
            return gradient
        with torch.no_grad():
            found = self._solve(fit, trainer, h, gradient.detach())
            batch = len(gradient)
            first = trainer.global_rank * batch if self._joint(trainer) else 0
            factors = found.factors[first : first + batch].reshape(-1, *[1] * (gradient.dim() - 1))
            self.last, fit.acted = found, True
            fit.record.count(found)
        return (gradient * factors).to(gradient.dtype)

    def _solve(self, fit: _Fit, trainer: Trainer, h: Tensor, gradient: Tensor) -> Reweighting:
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        scale = loss_scale(trainer, gradient.device)
        rows = gradient.to(dtype) if scale is None else gradient.to(dtype) / scale
        module = trainer.lightning_module
        windows = trainer.accumulate_grad_batches if module.automatic_optimization else 1
        omega = 1 / windows if self.reduction == "sum" else 1 / (windows * len(rows))
        h, delta = h.to(dtype), rows / omega
        if self._joint(trainer):
            _check_alike(h)
            h, delta, omega = _gathered(h), _gathered(delta), omega / trainer.world_size
        return reweight(
            h,
            delta,
            self._update(fit, trainer, scale, dtype),
            bias=fit.layer.bias is not None,
            omega=omega,
            max_upweight=self.max_upweight,
            n_iter=self.n_iter,
            normalize=self.normalize,
        )

    def _update(self, fit: _Fit, trainer: Trainer, scale: Tensor | None, dtype: torch.dtype) -> Update:
        """The next update of the layer, whole where it is sharded, in the dtype of the computation."""
        parts = [
            self._part(parameter, owner, scale, self._joint(trainer))
            for parameter, owner in zip(fit.parameters, fit.owners, strict=True)
        ]
        update = layer_update(*parts)
        whole = {
            name: _whole(value, dtype)
            for name, value in update._asdict().items()
            if isinstance(value, Tensor)
        }
        return update._replace(**whole)

    def _part(self, parameter: Tensor, owner: _Owner | None, scale: Tensor | None, joint: bool) -> Part:
        if owner is None:
            return Part(parameter)
        group = owner.optimizer.param_groups[owner.group]
        if self.affine is not None:
            form = _explained(self.affine, owner.optimizer, parameter)
        else:
            form = affine_update(
                owner.optimizer, parameter, group, include_weight_decay=self.include_weight_decay
            )
        pending = parameter.grad
        if pending is not None:
            pending = pending.detach() if scale is None else pending.detach() / scale
            if joint and not hasattr(pending, "full_tensor"):
                pending = pending.clone()
                torch.distributed.all_reduce(pending)
                pending /= torch.distributed.get_world_size()
        return Part(parameter, form, group.get("lr", 1.0), bool(group.get("maximize", False)), pending)

    def _joint(self, trainer: Trainer) -> bool:
        return self.sync and trainer.world_size > 1

    def _watch_order(self, module: LightningModule) -> None:
        """Note, for the first batch, which linear layer is called last."""
        fit = self._fit
        assert fit is not None
        fit.last_called = ""

        def called(name: str, layer: nn.Module, arguments: Any, output: Any) -> None:
            if layer.training and isinstance(output, Tensor) and output.requires_grad:
                fit.last_called = name

        for name, layer in linears(module):
            if not compiled_in(module, name):
                fit.order_handles.append(layer.register_forward_hook(partial(called, name)))

    def _leave(self) -> None:
        if self._fit is not None:
            for handle in (*self._fit.handles, *self._fit.order_handles):
                handle.remove()
        self._fit = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fit": None, "last": None}


class _Owner(NamedTuple):
    """Where a parameter is updated; the group by its number, since loading a state makes new groups."""

    optimizer: Optimizer
    group: int


@dataclass
class _Fit:
    """What lives as long as a fit."""

    trainer: weakref.ref[Trainer]
    name: str
    layer: nn.Linear
    handles: list[Any] = field(default_factory=list)
    order_handles: list[Any] = field(default_factory=list)
    last_called: str | None = None
    parameters: list[Tensor] = field(default_factory=list)
    owners: list[_Owner | None] = field(default_factory=list)
    calls: int = 0
    acted: bool = False
    record: Record = field(default_factory=Record)
    warned: set[str] = field(default_factory=set)

    def forget_order(self) -> None:
        """Watch no longer which layer is called last."""
        for handle in self.order_handles:
            handle.remove()
        self.order_handles.clear()

    def warn_once(self, text: str) -> None:
        """Warn of what has not been warned of in this fit."""
        if text not in self.warned:
            self.warned.add(text)
            rank_zero_warn(text)


def _owner(optimizers: list[Optimizer], parameter: Tensor) -> _Owner | None:
    found = [
        _Owner(optimizer, place)
        for optimizer in optimizers
        for place, group in enumerate(optimizer.param_groups)
        if parameter.requires_grad and any(one is parameter for one in group["params"])
    ]
    if len({id(owner.optimizer) for owner in found}) > 1:
        raise MisconfigurationException(
            "a parameter of the last layer is in more than one optimizer; HarmReduction needs one that owns"
            " it"
        )
    return found[0] if found else None


def _explained(affine: AffineFunction, optimizer: Optimizer, parameter: Tensor) -> Affine:
    """The update that the user's function tells, of the shapes that it must have."""
    found = affine(optimizer, parameter)
    shape = tuple(parameter.shape)
    if not isinstance(found, tuple) or len(found) not in (3, 4):
        raise MisconfigurationException(
            f"affine: expected (a, kappa, P) for a parameter of shape {shape}, got {found!r}"
        )
    form = Affine(*found)
    for name in ("a", "P", "drift"):
        value = getattr(form, name)
        if value is not None and (not isinstance(value, Tensor) or tuple(value.shape) != shape):
            got = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
            raise MisconfigurationException(
                f"affine: expected {name} of the parameter's shape {shape}, got {got}"
            )
    return form if form.kappa is not None else form._replace(kappa=1.0)


def _check_strategy(trainer: Trainer) -> None:
    if isinstance(trainer.strategy, FSDPStrategy) or trainer.strategy.handles_gradient_accumulation:
        raise MisconfigurationException(
            f"HarmReduction needs the last layer's parameters and the optimizer's state, which"
            f" {type(trainer.strategy).__name__} keeps in flat shards of its own; use ModelParallelStrategy"
            f" (FSDP2),"
            " or DDP"
        )


def _step(trainer: Trainer) -> int:
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def _whole(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor as it is without sharding; numbers stay what they are, wherever they are."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole if whole.dim() == 0 else whole.to(dtype)


def _check_alike(rows: Tensor) -> None:
    """Refuse batches that differ between ranks, whose gather would hang; waits for the device."""
    shapes = _gathered(torch.tensor([rows.shape], device=rows.device)).tolist()
    different = sorted({tuple(shape) for shape in shapes})
    if len(different) > 1:
        raise MisconfigurationException(
            f"sync: every rank needs a batch of the same size, got inputs of the last layer of shapes"
            f" {' and '.join(map(str, different))}; drop the last batch (drop_last=True), or leave sync out"
        )


def _gathered(rows: Tensor) -> Tensor:
    rows = rows.contiguous()
    parts = [torch.empty_like(rows) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, rows)
    return torch.cat(parts)
