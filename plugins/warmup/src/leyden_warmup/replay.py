"""Running a module's training step once more, as if it had not been run."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@dataclass
class Replay:
    """A batch as it was when its training step began, and what puts all random generators back there."""

    batch: Any
    batch_idx: int
    rewind: Callable[[], None]

    @classmethod
    def of(cls, module: nn.Module, batch: Any, batch_idx: int) -> Replay:
        """A copy of the batch, which the training step may change, and the present state of generators."""
        return cls(apply_to_collection(batch, Tensor, torch.clone), batch_idx, _remember_generators(module))


def gradient_again(
    trainer: Trainer, module: LightningModule, replays: Sequence[Replay], parameters: Sequence[Tensor]
) -> list[Tensor]:
    """The gradient of a window's batches at the present parameters, with the same random draws.

    Parameters' own gradients, buffers, generators, logged values and plain attributes of modules (numbers,
    tensors, and lists, dicts and sets of them) are afterwards what they were.

    Args:
        trainer: the Trainer that trains the module.
        module: the module.
        replays: the batches of the window.
        parameters: with respect to what.

    Returns:
        A gradient for each parameter, averaged over the ranks.
    """
    total = [torch.zeros_like(parameter) for parameter in parameters]
    with leaving_no_trace(module), torch.enable_grad():
        for replay in replays:
            replay.rewind()
            loss = _loss_of(trainer, module, replay)
            if loss is None or not loss.requires_grad:
                continue
            loss = loss / trainer.accumulate_grad_batches
            gradients = torch.autograd.grad(loss.reshape(()), list(parameters), allow_unused=True)
            for summed, gradient in zip(total, gradients, strict=True):
                if gradient is not None:
                    summed += gradient
    return _mean_over_ranks(total, trainer)


@contextmanager
def leaving_no_trace(module: nn.Module) -> Iterator[None]:
    """Put back, at the end, what a training step changes beside gradients; nothing is logged meanwhile."""
    rewind = _remember_generators(module)
    undo = [_remember_attributes(child) for child in module.modules()]
    for child in module.modules():
        if isinstance(child, LightningModule):
            for name in ("log", "log_dict"):
                vars(child)[name] = _silent
    try:
        yield
    finally:
        for put_back in undo:
            put_back()
        rewind()


def _silent(*_: Any, **__: Any) -> None:
    """Log nothing."""


def _loss_of(trainer: Trainer, module: LightningModule, replay: Replay) -> Tensor | None:
    arguments = {"batch": replay.batch}
    if is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2):
        arguments["batch_idx"] = replay.batch_idx
    with trainer.precision_plugin.train_step_context():
        output: Any = module.training_step(*arguments.values())
    found = output["loss"] if isinstance(output, dict) else output
    return found if isinstance(found, Tensor) else None


def _mean_over_ranks(gradients: list[Tensor], trainer: Trainer) -> list[Tensor]:
    if trainer.world_size > 1:
        for gradient in gradients:
            torch.distributed.all_reduce(gradient)
            gradient /= trainer.world_size
    return gradients


_STRUCTURE = {
    "_parameters",
    "_modules",
    "_trainer",
    "_fabric",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
}
"""Attributes of a module that its training step does not change."""


def _remember_attributes(module: nn.Module) -> Callable[[], None]:
    attributes = dict(vars(module))
    inner = [_remember(value) for name, value in attributes.items() if name not in _STRUCTURE]

    def put_back() -> None:
        vars(module).clear()
        vars(module).update(attributes)
        for each in inner:
            each()

    return put_back


def _remember_generators(module: nn.Module) -> Callable[[], None]:
    """Keep the state of the global random generators and of those that modules have; returns what rewinds."""
    states = _collect_rng_states()
    own = [_remember_generator(value) for child in module.modules() for value in vars(child).values()]

    def rewind() -> None:
        _set_rng_states(states)
        for each in own:
            each()

    return rewind


def _remember_generator(value: Any) -> Callable[[], object]:
    if isinstance(value, list | tuple | dict):
        inner = [_remember_generator(one) for one in (value.values() if isinstance(value, dict) else value)]
        return lambda: [rewind() for rewind in inner]
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if type(value).__module__ == "numpy.random._generator":
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if type(value).__module__ == "numpy.random.mtrand":
        return partial(value.set_state, value.get_state())
    return _nothing


def _remember(value: Any) -> Callable[[], None]:
    """Keep the content of a tensor or a container; returns what puts it back."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        return _remember_tensor(value)
    if not isinstance(value, list | dict | set | deque):
        return _nothing
    content: Any = value.copy()
    items = content.values() if isinstance(value, dict) else content
    inner = [_remember(item) for item in items]

    def put_back() -> None:
        value.clear()
        value.extend(content) if isinstance(value, list | deque) else value.update(content)
        for each in inner:
            each()

    return put_back


def _remember_tensor(value: Tensor) -> Callable[[], None]:
    if value.is_inference() or value.is_sparse:
        return _nothing
    content = value.detach().clone()

    def put_back() -> None:
        with torch.no_grad():
            value.copy_(content)

    return put_back


def _nothing() -> None:
    pass
