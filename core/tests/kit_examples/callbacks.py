"""A callback that passes the kit, and variants of it that break one thing each."""

from __future__ import annotations

import threading

import torch
from lightning.pytorch import Callback


class Damping(Callback):
    """Scales the gradient by a factor that falls with every step.

    Args:
        rate: how fast it falls, from 0 to below 1.
    """

    def __init__(self, rate: float = 0.1):
        if not 0 <= rate < 1:
            raise ValueError(f"rate: expected a number from 0 to below 1, got {rate}")
        self.rate = rate
        self.factor = 1.0

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        """Scale the gradients."""
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        for gradient in gradients:
            gradient.mul_(self.factor)
        if all(gradient.isfinite().all() for gradient in gradients):
            self.factor *= 1 - self.rate

    def on_fit_start(self, trainer, pl_module):
        """Begin anew, unless a state was restored."""
        self.factor = 1.0 if trainer.ckpt_path is None else self.factor

    def state_dict(self):
        """The factor."""
        return {"factor": self.factor}

    def load_state_dict(self, state_dict):
        """Take the factor."""
        self.factor = state_dict["factor"]


class Modest(Callback):
    """Halves the gradient where an optimizer asks for it; the first of its type alone acts."""

    def acts(self, trainer):
        """Whether it has business here."""
        first = next(one for one in trainer.callbacks if isinstance(one, Modest))
        return first is self and any(group.get("damped") for group in trainer.optimizers[0].param_groups)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        """Halve the gradients."""
        if self.acts(trainer):
            for parameter in pl_module.parameters():
                parameter.grad.mul_(0.5)


class Twice(Modest):
    """Acts as often as a Trainer holds it."""

    def acts(self, trainer):
        return any(group.get("damped") for group in trainer.optimizers[0].param_groups)


class Meddles(Modest):
    """Acts in every training."""

    def acts(self, trainer):
        return True


class DrawsNumbers(Modest):
    """Draws from torch's generator in every training."""

    def on_train_end(self, trainer, pl_module):
        torch.rand(1)


class LogsEverywhere(Modest):
    """Logs in every training."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        pl_module.log("noise", 1.0)


class HasState(Modest):
    """Adds to every checkpoint, and cannot stand in a Trainer twice."""

    def state_dict(self):
        return {"scale": 0.5}


class NeedsArgument(Modest):
    """Cannot be made without an argument."""

    def __init__(self, argument):
        super().__init__()


class Once(Damping):
    """Serves one training only."""

    def on_fit_end(self, trainer, pl_module):
        self.rate = None


class FailsInTest(Damping):
    """Expects an optimizer where there is none."""

    def on_test_start(self, trainer, pl_module):
        trainer.optimizers[0].zero_grad()


class HoldsLock(Damping):
    """Holds what cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class CopiesBadly(Damping):
    """Gives its copies another rate."""

    def __deepcopy__(self, memo):
        return CopiesBadly(rate=0.5)

    def __init__(self, rate: float = 0.1):
        super().__init__(rate)


class SavesModule(Damping):
    """Saves an object that ``weights_only=True`` refuses."""

    def state_dict(self):
        return {"factor": self.factor, "layer": torch.nn.Linear(1, 1)}


class ForgetsFactor(Damping):
    """Does not take up the state that it saved."""

    def load_state_dict(self, state_dict):
        pass


class LeavesHooks(Damping):
    """Leaves a hook behind where an exception ends the training."""

    def on_train_start(self, trainer, pl_module):
        self.handle = pl_module.register_forward_hook(lambda *_: None)

    def on_train_end(self, trainer, pl_module):
        self.handle.remove()
        del self.handle


class AddsBuffer(Damping):
    """Adds a buffer to the module."""

    def on_train_start(self, trainer, pl_module):
        pl_module.register_buffer("damping", torch.ones(1))


class MicroBatches(Damping):
    """Scales the gradient after every batch, not once a window."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pass

    def on_after_backward(self, trainer, pl_module):
        super().on_before_optimizer_step(trainer, pl_module, None)


class Explodes(Damping):
    """Makes the gradient infinite."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for parameter in pl_module.parameters():
            parameter.grad.mul_(float("inf"))


def damped():
    """A training whose optimizer asks for `Modest`."""
    from leyden.testing import Trial

    return Trial(optimizer=damped_sgd)


def damped_sgd(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    optimizer.param_groups[0]["damped"] = True
    return optimizer
