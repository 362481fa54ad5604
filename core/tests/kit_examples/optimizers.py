"""A loss-aware optimizer that passes the kit, and variants of it that break one thing each."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import torch
from leyden.testing import Trial
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer


class Steady(Optimizer):
    """Momentum with the step size ``loss / (norm^2 + 1)`` for all parameters, Eq. (1) of Nobody (2026).

    A step whose loss or gradient is not finite is skipped.

    Args:
        params: what to train.
        decay: weight of the past in the momentum, from 0 to below 1.
        weight_decay: decoupled weight decay, at least 0.

    >>> Steady([torch.nn.Parameter(torch.zeros(1))]).defaults["lr"]
    1.0
    """

    needs_loss = True
    skips_nonfinite = True

    def __init__(self, params, decay: float = 0.5, weight_decay: float = 0.0):
        if not 0 <= decay < 1:
            raise ValueError(f"decay: expected a number from 0 to below 1, got {decay}")
        if not 0 <= weight_decay < math.inf:
            raise ValueError(f"weight_decay: expected a number of at least 0, got {weight_decay}")
        super().__init__(params, {"lr": 1.0, "decay": decay, "weight_decay": weight_decay})
        self.pending_loss = self.pending_mean_loss = None

    @torch.no_grad()
    def step(self, closure=None, *, loss=None):
        returned = None
        if closure is not None:
            with torch.enable_grad():
                returned = closure()
        loss = self.choose_loss(loss, returned)
        gradients = [parameter.grad for parameter in self.moving()]
        if gradients:
            if loss is None:
                raise RuntimeError(
                    "no loss: pass step(loss=...) or a closure, or add LossFeed to the callbacks"
                )
            self.update(torch.as_tensor(loss).detach().double(), self.squared_norm(gradients))
        self.pending_loss = self.pending_mean_loss = None
        return loss

    def choose_loss(self, loss, returned):
        if loss is not None:
            return loss
        return returned if self.pending_loss is None else self.pending_loss

    def moving(self):
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    def squared_norm(self, gradients):
        return sum(self.whole(gradient.double().square().sum()) for gradient in gradients)

    @staticmethod
    def whole(value):
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    def update(self, loss, squared_norm):
        usable = torch.isfinite(loss) & torch.isfinite(squared_norm)
        for group in self.param_groups:
            step_size = group["lr"] * loss / (squared_norm + 1)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter, group, step_size, usable)

    def move(self, parameter, group, step_size, usable):
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter, dtype=self.state_type(parameter))
        gradient = parameter.grad.to(state["momentum"].dtype)
        momentum = group["decay"] * state["momentum"] + gradient
        step_size = step_size.to(momentum.dtype)
        value = parameter.to(momentum.dtype)
        value = value - step_size * momentum - step_size * group["weight_decay"] * value
        state["momentum"].copy_(torch.where(usable, momentum, state["momentum"]))
        parameter.copy_(torch.where(usable, value.to(parameter.dtype), parameter))

    @staticmethod
    def state_type(parameter):
        return torch.promote_types(parameter.dtype, torch.float32)

    def load_state_dict(self, state_dict):
        """Load a state, and keep it in float32 where the parameters are bf16."""
        super().load_state_dict(state_dict)
        kept = [state["momentum"] for _, state in sorted(state_dict["state"].items())]
        owners = [p for group in self.param_groups for p in group["params"] if p in self.state]
        for parameter, momentum in zip(owners, kept, strict=True):
            self.state[parameter]["momentum"] = momentum.clone()

    def __setstate__(self, state):
        super().__setstate__(state)
        self.pending_loss = self.pending_mean_loss = None


class WithoutClosure(Steady):
    """Has a ``step`` that Lightning cannot call."""

    def step(self, *, loss):
        return super().step(loss=loss)


class KeepsPendingLoss(Steady):
    """Takes the loss of an earlier batch, once it was fed one."""

    def step(self, closure=None, *, loss=None):
        pending = self.pending_loss
        result = super().step(closure, loss=loss)
        self.pending_loss = pending
        return result


class ContentWithoutLoss(Steady):
    """Takes 1 for a loss that it does not have."""

    def choose_loss(self, loss, returned):
        found = super().choose_loss(loss, returned)
        return 1.0 if found is None else found


class WithoutLr(Steady):
    """Has no ``lr`` in its groups."""

    def __init__(self, params):
        super().__init__(params)
        for group in self.param_groups:
            del group["lr"]

    def update(self, loss, squared_norm):
        for group in self.param_groups:
            group["lr"] = 1.0
        super().update(loss, squared_norm)
        for group in self.param_groups:
            del group["lr"]


class IgnoresLr(Steady):
    """Has an ``lr`` that does nothing."""

    def move(self, parameter, group, step_size, usable):
        super().move(parameter, group, step_size / group["lr"], usable)


class ResetsLr(Steady):
    """Sets ``lr`` back at every step, so that no scheduler has a say."""

    def update(self, loss, squared_norm):
        super().update(loss, squared_norm)
        for group in self.param_groups:
            group["lr"] = 1.0


class NormOfEachGroup(Steady):
    """Takes the norm over each parameter group alone."""

    def update(self, loss, squared_norm):
        groups = self.param_groups
        for group in groups:
            self.param_groups = [group]
            super().update(loss, self.squared_norm([p.grad for p in self.moving()]))
        self.param_groups = groups


class MovesFrozen(Steady):
    """Decays parameters that have no gradient."""

    def update(self, loss, squared_norm):
        super().update(loss, squared_norm)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.mul_(0.9)


class CrashesWithoutGradient(Steady):
    """Crashes on a parameter without gradient."""

    def moving(self):
        return [p for group in self.param_groups for p in group["params"] if p.grad.numel()]


class IgnoresWeightDecay(Steady):
    """Has a ``weight_decay`` that does nothing."""

    def move(self, parameter, group, step_size, usable):
        super().move(parameter, {**group, "weight_decay": 0.0}, step_size, usable)


class CountsSkippedBatches(Steady):
    """Shortens its steps at every call, also at one without a loss."""

    def step(self, closure=None, *, loss=None):
        for group in self.param_groups:
            group["decay"] = group["decay"] * 0.9
        return super().step(closure, loss=loss)


class SpreadsNaN(Steady):
    """States that it skips a loss that is NaN, and does not."""

    def move(self, parameter, group, step_size, usable):
        super().move(parameter, group, step_size, torch.ones_like(usable))


class HidesNaN(Steady):
    """Skips a loss that is NaN, and says so nowhere."""

    skips_nonfinite = False


class PoisonsState(Steady):
    """Lets NaN into its state alone."""

    skips_nonfinite = False

    def move(self, parameter, group, step_size, usable):
        super().move(parameter, group, step_size, usable)
        self.state[parameter]["momentum"].add_(torch.where(usable, 0.0, math.nan).to(torch.float32))

    def update(self, loss, squared_norm):
        for state in self.state.values():
            state["momentum"].nan_to_num_()
        super().update(loss, squared_norm)
        if not math.isfinite(loss):
            self.update = lambda loss, squared_norm: None


class LowPrecisionState(Steady):
    """Keeps its state in the parameters' type."""

    @staticmethod
    def state_type(parameter):
        return parameter.dtype


class StateCastOnLoad(Steady):
    """Loses its state's precision when it is loaded, as `torch.optim.Optimizer.load_state_dict` does."""

    def load_state_dict(self, state_dict):
        Optimizer.load_state_dict(self, state_dict)


class ForgetsState(Steady):
    """Keeps a counter that shapes its steps outside of its state."""

    def __init__(self, params):
        super().__init__(params)
        self.steps = 0

    def update(self, loss, squared_norm):
        self.steps = getattr(self, "steps", 0) + 1
        super().update(loss / self.steps, squared_norm)


class SavesFraction(Steady):
    """Saves an object that ``weights_only=True`` refuses."""

    def __init__(self, params):
        super().__init__(params)
        for group in self.param_groups:
            group["share"] = Fraction(1, 3)


class LosesAttribute(Steady):
    """Needs an attribute that `Optimizer.__getstate__` drops."""

    def __init__(self, params):
        super().__init__(params)
        self.scale = 1.0

    def update(self, loss, squared_norm):
        super().update(loss * self.scale, squared_norm)


class ReadsNumber(Steady):
    """Waits for the device: reads the loss as a number."""

    def update(self, loss, squared_norm):
        super().update(torch.tensor(loss.item(), dtype=torch.float64), squared_norm)


class BranchesOnTensor(Steady):
    """Waits for the device: branches on the norm."""

    def update(self, loss, squared_norm):
        if squared_norm > 0:
            super().update(loss, squared_norm)


class ListsNumbers(Steady):
    """Waits for the device: turns the gradient into a list."""

    def squared_norm(self, gradients):
        return torch.tensor(
            sum(sum(x * x for x in gradient.flatten().tolist()) for gradient in gradients)
        ).double()


class ReadsOwnCounter(Steady):
    """Reads a counter that never leaves the host, which is no synchronisation."""

    def update(self, loss, squared_norm):
        if not hasattr(self, "counter"):
            self.counter = torch.zeros(())
        self.counter += 1
        if self.counter.item() > 0:
            super().update(loss, squared_norm)


class DiffersEachTime(Steady):
    """Draws from a source that no seed governs."""

    def update(self, loss, squared_norm):
        super().update(loss * (1 + random.SystemRandom().random()), squared_norm)


class TakesLastLoss(Steady):
    """Takes the loss of the last micro-batch for that of the window, as without LossFeed."""

    def choose_loss(self, loss, returned):
        return super().choose_loss(loss, returned) if returned is None else returned


class BreaksUnderClipping(Steady):
    """Fails on gradients that were clipped, in words that do not help."""

    def squared_norm(self, gradients):
        if max(gradient.abs().max() for gradient in gradients) <= 0.0501:
            raise AssertionError("too small")
        return super().squared_norm(gradients)


class RefusesClipping(BreaksUnderClipping):
    """Fails on gradients that were clipped, and says why."""

    def squared_norm(self, gradients):
        try:
            return super().squared_norm(gradients)
        except AssertionError:
            raise ValueError("the gradient was clipped: leave gradient_clip_val unset") from None


class NeedsClosure(Steady):
    """Cannot step without a closure, as a GradScaler makes it."""

    def step(self, closure=None, *, loss=None):
        if closure is None:
            raise TypeError("step needs a closure")
        return super().step(closure)


class NormOfShard(Steady):
    """Takes the norm of its own shard for that of the whole."""

    def squared_norm(self, gradients):
        shards = [
            gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in gradients
        ]
        return super().squared_norm(shards)


class BreaksProcess(Steady):
    """Fails in one of two processes."""

    def update(self, loss, squared_norm):
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            raise RuntimeError("the second process cannot do this")
        super().update(loss, squared_norm)


class AcceptsNaN(Steady):
    """Accepts NaN for an argument."""

    def __init__(self, params, decay: float = 0.5):
        super().__init__(params)


class NamesNothing(Steady):
    """Refuses an argument without naming it."""

    def __init__(self, params, decay: float = 0.5):
        if not 0 <= decay < 1:
            raise ValueError("invalid value")
        super().__init__(params, decay)


class RaisesTypeError(Steady):
    """Refuses an argument by the wrong exception."""

    def __init__(self, params, decay: float | None = 0.5):
        if not 0 <= decay < 1:
            raise TypeError(f"decay is {decay}")
        super().__init__(params, decay)


class TellsCompiled(nn.Module):
    """A model whose output depends on whether it is compiled."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, features):
        return self.linear(features) * (2 if torch.compiler.is_compiling() else 1)


class OnlyInFloat32(nn.Module):
    """A model that divides by zero in the type that autocast gives it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, features):
        output = self.linear(features)
        return output / float(output.dtype == torch.float32)


def tells_compiled() -> Trial:
    return Trial(model=TellsCompiled())


def only_in_float32() -> Trial:
    return Trial(model=OnlyInFloat32())


class OnSphere(Optimizer):
    """Moves parameters whose rows have length 1 along the sphere.

    Args:
        params: parameters with rows of length 1.
        lr: step size, above 0.
    """

    def __init__(self, params, lr: float = 0.1):
        if not 0 < lr < math.inf:
            raise ValueError(f"lr: expected a number above 0, got {lr}")
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            for parameter in group["params"]:
                if not torch.allclose(parameter.norm(dim=-1), parameter.new_ones(())):
                    raise ValueError(f"params: expected rows of length 1, got {parameter.norm(dim=-1)}")

    @torch.no_grad()
    def step(self, closure=None):
        """Step, and return to the sphere."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    moved = parameter - group["lr"] * parameter.grad
                    parameter.copy_(moved / moved.norm(dim=-1, keepdim=True))
        return loss


class Directions(nn.Module):
    """Classifies by the angle to one direction a class."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(nn.functional.normalize(torch.randn(4, 6), dim=1))

    def forward(self, features):
        return features @ self.weight.T


def on_sphere() -> Trial:
    return Trial(model=Directions())


class Extragradient(OnSphere):
    """Evaluates its closure twice a step, and is used under manual optimization.

    Args:
        params: what to train.
        lr: step size, above 0.
    """

    def __init__(self, params, lr: float = 0.1):
        if not 0 < lr < math.inf:
            raise ValueError(f"lr: expected a number above 0, got {lr}")
        Optimizer.__init__(self, params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        """Look ahead, and step with the gradient found there."""
        parameters = [(p, group["lr"]) for group in self.param_groups for p in group["params"]]
        before = [parameter.clone() for parameter, _ in parameters]
        with torch.enable_grad():
            loss = closure()
        self.move(parameters)
        with torch.enable_grad():
            closure()
        for (parameter, _), old in zip(parameters, before, strict=True):
            parameter.copy_(old)
        self.move(parameters)
        return loss

    @staticmethod
    def move(parameters):
        for parameter, lr in parameters:
            if parameter.grad is not None:
                parameter.sub_(lr * parameter.grad)


class Saddle(LightningModule):
    """Trains by `Extragradient` under manual optimization."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.linear = nn.Linear(6, 4)

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.linear(batch[0]), batch[1])
            self.manual_backward(loss)
            return loss

        optimizer.step(closure)

    def configure_optimizers(self):
        return Extragradient(self.parameters())


def saddle() -> Trial:
    return Trial(module=Saddle(), model=nn.Linear(6, 4))
