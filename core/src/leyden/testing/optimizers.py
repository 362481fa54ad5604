"""What an optimizer owes: it is right under Lightning, its state survives, and its step does not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils._pytree import tree_leaves

from leyden.testing.fitting import Learner, far, finite, fit, state_of, unequal
from leyden.testing.host_sync import host_syncs
from leyden.testing.kit import Subject, owed_by
from leyden.testing.saving import DUPLICATES, same_bits, through_file, unreadable
from leyden.testing.trials import Trial, as_double, trial_of

Replay = tuple[Tensor, list[Tensor | None]]
"""A loss and the gradient of every parameter."""


@owed_by("optimizer")
def automatic_optimization(subject: Subject) -> Iterator[str]:
    """Lightning's automatic optimization trains with it, as a closure in a plain loop does."""
    fitted = fit(subject, steps=6)
    if fitted.trainer.global_step != 6:
        yield f"after max_steps=6, trainer.global_step is {fitted.trainer.global_step}"
    if not finite(fitted.final):
        yield "parameters are not finite after 6 steps"
    if not unequal(fitted.states[0], fitted.final):
        yield "parameters did not change in 5 steps"
    bare = Bare(subject)
    if bare.trial.module is None and (difference := far(_inner(fitted.final), bare.walk(0, 6).state, 1e-6)):
        yield f"6 steps under a Trainer and 6 steps with a closure in a plain loop differ: {difference}"


@owed_by("optimizer")
def loss_sources(subject: Subject) -> Iterator[str]:
    """One that needs the loss takes it from ``loss=``, the feed or the closure, and says if it has none."""
    if not getattr(subject.target, "needs_loss", False):
        return
    by_closure = Bare(subject).walk(0, 3).state

    explicit = Bare(subject)
    for batch in explicit.batches[:3]:
        explicit.step(loss=explicit.backward(batch).detach())
    if difference := unequal(by_closure, explicit.state):
        yield f"step(loss=loss) and step(closure) differ: {difference}"

    fed = Bare(subject)
    for batch in fed.batches[:3]:
        fed.optimizer.pending_loss = fed.backward(batch).detach()  # type: ignore[attr-defined]
        fed.optimizer.step()
    if difference := unequal(by_closure, fed.state):
        yield f"step() with pending_loss set and step(closure) differ: {difference}"
    if getattr(fed.optimizer, "pending_loss", None) is not None:
        yield "step leaves pending_loss set: the next step would take the loss of an earlier batch"

    without = Bare(subject)
    without.backward(without.batches[0])
    try:
        without.optimizer.step()
    except (RuntimeError, ValueError) as error:
        if "loss" not in str(error):
            yield f"a step with gradients and no loss raises a text without the word 'loss': {error}"
    else:
        yield "a step with gradients and no loss raises nothing"


@owed_by("optimizer")
def learning_rate(subject: Subject) -> Iterator[str]:
    """Every parameter group has ``lr``, also one added later, and it acts."""
    bare = Bare(subject)
    for place, group in enumerate(bare.optimizer.param_groups):
        if "lr" not in group:
            yield f"parameter group {place} has no 'lr': schedulers and LearningRateMonitor raise KeyError"
            return
    if "lr" not in bare.optimizer.defaults:
        yield "defaults hold no 'lr': a group added later has none"

    def halve(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] / 2

    if not unequal(bare.walk(0, 3).state, Bare(subject, change=halve).walk(0, 3).state):
        yield "'lr' does nothing: 3 steps with half of it give the same parameters"


@owed_by("optimizer")
def schedulers(subject: Subject) -> Iterator[str]:
    """A scheduler changes ``lr`` at every step, and LearningRateMonitor sees it."""
    if trial_of(subject).module is not None:
        return
    monitor = LearningRateMonitor(logging_interval="step")

    def schedule(module: LightningModule) -> None:
        assert isinstance(module, Learner)
        module.set_scheduler(lambda optimizer: StepLR(optimizer, step_size=2, gamma=0.5))

    fitted = fit(
        subject, steps=6, change=schedule, callbacks=[monitor], logger=DummyLogger(), log_every_n_steps=1
    )
    first = Bare(subject).optimizer.param_groups[0]["lr"]
    expected = [float(first) * 0.5 ** (step // 2) for step in range(6)]
    seen = [float(value) for value in next(iter(monitor.lrs.values()), [])]
    if seen != expected:
        yield f"LearningRateMonitor saw {seen} under StepLR(step_size=2, gamma=0.5), not {expected}"
    if not finite(fitted.final):
        yield "parameters are not finite under a scheduler"


@owed_by("optimizer")
def parameter_groups(subject: Subject) -> Iterator[str]:
    """Splitting the parameters into groups of equal settings changes nothing: norms are over all groups."""
    whole = Bare(subject, double=True).walk(0, 4).state
    split = Bare(subject, double=True, groups=_in_two).walk(0, 4).state
    if difference := far(whole, split, 1e-10):
        yield f"4 steps with one group and with its parameters in two groups differ: {difference}"


@owed_by("optimizer")
def idle_parameters(subject: Subject) -> Iterator[str]:
    """Frozen parameters and parameters without gradient stay, and the others move as without them."""
    plain = Bare(subject).walk(0, 3).state
    idle: list[Tensor] = []

    def with_idle(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        like = groups[0]["params"][0]
        unused, frozen = (nn.Parameter(like.detach().clone(), requires_grad=flag) for flag in (True, False))
        idle.extend((unused, frozen))
        return [{**groups[0], "params": [unused, *groups[0]["params"], frozen]}, *groups[1:]]

    bare = Bare(subject, groups=with_idle)
    before = [tensor.detach().clone() for tensor in idle]
    after = bare.walk(0, 3).state
    for name, old, new in zip(("without gradient", "frozen"), before, idle, strict=True):
        if not same_bits(old, new.detach()):
            yield f"a parameter that is {name} changed"
    if difference := unequal(plain, after):
        yield f"the other parameters move differently beside idle ones: {difference}"


@owed_by("optimizer")
def weight_decay(subject: Subject) -> Iterator[str]:
    """Where groups have ``weight_decay`` it acts, each group's on that group."""
    if "weight_decay" not in Bare(subject).optimizer.defaults:
        return

    def decay_last(optimizer: Optimizer) -> None:
        optimizer.param_groups[-1]["weight_decay"] = 0.5

    plain = Bare(subject, groups=_in_two).walk(0, 3)
    decayed = Bare(subject, groups=_in_two, change=decay_last).walk(0, 3)
    last = [_name_of(plain.model, parameter) for parameter in plain.optimizer.param_groups[-1]["params"]]
    if not any(unequal({name: plain.state[name]}, {name: decayed.state[name]}) for name in last if name):
        yield "'weight_decay' does nothing: with 0.5 in a group its parameters are the same after 3 steps"


@owed_by("optimizer", promise="bf16")
def bf16_parameters(subject: Subject) -> Iterator[str]:
    """With bf16 parameters its state is kept in float32, also after a round trip through ``state_dict``."""

    def as_bf16(model: nn.Module) -> nn.Module:
        return model.to(torch.bfloat16)

    bare = Bare(subject, cast=as_bf16).walk(0, 3)
    yield from (f"state of bf16 parameters: {fault}" for fault in _low_precision(bare.optimizer))
    if any(tensor.dtype != torch.bfloat16 for tensor in bare.state.values() if tensor.is_floating_point()):
        yield "a step changed the parameters' type"
    if not finite(bare.state):
        yield "bf16 parameters are not finite after 3 steps"
    other = Bare(subject, cast=as_bf16)
    other.load(bare)
    yield from (f"state after load_state_dict: {fault}" for fault in _low_precision(other.optimizer))
    if difference := unequal(bare.walk(3, 6).state, other.walk(3, 6).state):
        yield f"3 steps, a round trip through state_dict and 3 steps differ from 6 steps: {difference}"


@owed_by("optimizer")
def state_dict(subject: Subject) -> Iterator[str]:
    """Steps, a round trip through ``state_dict`` and as many steps equal twice the steps, bit for bit."""
    through = Bare(subject).walk(0, 8).state
    first = Bare(subject).walk(0, 4)
    second = Bare(subject)
    second.load(first)
    if difference := unequal(through, second.walk(4, 8).state):
        yield f"4 steps, a round trip through state_dict and 4 steps differ from 8 steps: {difference}"


@owed_by("optimizer")
def weights_only(subject: Subject) -> Iterator[str]:
    """Its ``state_dict`` holds only what ``torch.load(weights_only=True)`` reads."""
    yield from unreadable(Bare(subject).walk(0, 3).optimizer.state_dict())


@owed_by("optimizer")
def copies(subject: Subject) -> Iterator[str]:
    """A deep copy and a pickled copy, taken with the model, step on as the original does."""
    through = Bare(subject).walk(0, 6).state
    for how, duplicate in DUPLICATES:
        bare = Bare(subject).walk(0, 3)
        bare.model, bare.optimizer = duplicate((bare.model, bare.optimizer))
        try:
            difference = unequal(through, bare.walk(3, 6).state)
        except Exception as error:
            yield f"after {how} its step raises {type(error).__name__}: {error}"
            continue
        if difference:
            yield f"after {how} its steps differ: {difference}"


@owed_by("optimizer")
def skipped_batch(subject: Subject) -> Iterator[str]:
    """A batch for which ``training_step`` returns None leaves parameters and state as they were."""
    if not _automatic(subject):
        return
    skipped = fit(subject, steps=6, faults={2: "skip"})
    if difference := unequal(skipped.states[1], skipped.states[2]):
        yield f"parameters change at a batch without a loss: {difference}"
    elif difference := unequal(skipped.final, fit(subject, steps=5, leave_out=2).final):
        yield f"a batch without a loss changes what later steps do: {difference}"


@owed_by("optimizer")
def nonfinite_loss(subject: Subject) -> Iterator[str]:
    """A loss that is NaN or infinite is skipped unharmed (``skips_nonfinite``) or is seen; it never hides."""
    if not _automatic(subject):
        return
    for fault in ("nan", "inf"):
        if getattr(subject.target, "skips_nonfinite", False):
            harmed = fit(subject, steps=6, faults={2: fault})
            if difference := unequal(harmed.final, fit(subject, steps=6, faults={2: "skip"}).final):
                yield f"skips_nonfinite is stated, but a batch of loss {fault} is not skipped: {difference}"
            continue
        try:
            harmed = fit(subject, steps=6, faults={2: fault})
        except Exception:
            continue  # to raise is to be seen
        if not finite(harmed.final):
            continue
        tensors = [leaf for leaf in tree_leaves(harmed.module.optimizers().state_dict()) if _floating(leaf)]  # type: ignore[union-attr]
        if all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            yield (
                f"a batch of loss {fault} leaves no trace; an optimizer that skips such batches states "
                "skips_nonfinite = True and documents it"
            )
        else:
            yield f"a batch of loss {fault} poisons the optimizer's state while the parameters stay finite"


@owed_by("optimizer", promise="compile")
def compiled_model(subject: Subject) -> Iterator[str]:
    """``torch.compile`` of the model changes nothing."""

    def compile_model(module: LightningModule) -> None:
        (module.model if isinstance(module, Learner) else module).compile(backend="aot_eager")

    compiled = fit(subject, steps=4, double=True, change=compile_model).final
    if difference := far(fit(subject, steps=4, double=True).final, compiled, 1e-6):
        yield f"4 steps with and without torch.compile of the model differ: {difference}"


@owed_by("optimizer")
def host_synchronisation(subject: Subject) -> Iterator[str]:
    """A step moves no number from parameters, gradients or loss to the host."""
    bare = Bare(subject)
    replays = [bare.replay(batch) for batch in bare.batches[:3]]
    device = [*bare.model.parameters(), *tree_leaves(replays)]
    for where in host_syncs(lambda: bare.step_again(replays), device):
        yield f"a step synchronises with the host: {where}"


class Bare:
    """An optimizer on its trial's model in a plain loop, without Lightning.

    Args:
        subject: the optimizer.
        double: train in float64.
        cast: what else to do with the model before the optimizer is built.
        groups: changes the parameter groups that the optimizer is built from.
        change: changes the optimizer once it is built.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        double: bool = False,
        cast: Callable[[nn.Module], nn.Module] | None = None,
        groups: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None,
        change: Callable[[Optimizer], None] | None = None,
    ) -> None:
        self.trial: Trial = trial_of(subject)
        self.model: nn.Module = self.trial.model if self.trial.model is not None else self.trial.module  # type: ignore[assignment]
        self.batches = self.trial.batches()
        if double:
            self.model, self.batches = self.model.double(), as_double(self.batches)
        if cast is not None:
            self.model = cast(self.model)
        self._dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        parameters: Iterable[Any] = self.trial.parameters(self.model)
        if groups is not None:
            parameters = groups(_as_groups(parameters))
        self.optimizer: Optimizer = subject.build(parameters)
        if change is not None:
            change(self.optimizer)
        torch.manual_seed(1)

    @property
    def state(self) -> dict[str, Tensor]:
        """Copies of the model's parameters and buffers."""
        return state_of(self.model)

    def backward(self, batch: Any) -> Tensor:
        """Set the gradients at a batch and return its loss."""
        self.optimizer.zero_grad()
        with torch.enable_grad():
            loss = self.trial.loss(self.model, self._cast(batch))
            loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def walk(self, start: int, stop: int) -> Bare:
        """Step on the batches from one place to another; returns itself."""
        for place in range(start, stop):
            batch = self.batches[place % len(self.batches)]

            def closure(key: int | None = None, batch: Any = batch) -> Tensor:
                return self.backward(batch)

            self.optimizer.step(closure)  # type: ignore[arg-type]
        return self

    def load(self, other: Bare) -> None:
        """Take over another one's parameters and, through a file, its optimizer's state."""
        self.model.load_state_dict(other.model.state_dict())
        self.optimizer.load_state_dict(through_file(other.optimizer.state_dict(), weights_only=False))

    def step(self, **arguments: Any) -> None:
        """Step with arguments that not every optimizer takes."""
        step: Callable[..., Any] = self.optimizer.step
        step(**arguments)

    def replay(self, batch: Any) -> Replay:
        """Loss and gradients at a batch, for `step_again`."""
        loss = self.backward(batch).detach()
        return loss, [p.grad if p.grad is None else p.grad.clone() for p in self.model.parameters()]

    def step_again(self, replays: list[Replay]) -> None:
        """Step with given gradients and a closure that returns the given loss and does no more."""
        for loss, gradients in replays:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient

            def closure(key: int | None = None, loss: Tensor = loss) -> Tensor:
                return loss

            self.step(closure=closure)

    def _cast(self, batch: Any) -> Any:
        if self._dtype in (torch.float32, torch.float64):
            return batch
        return torch.utils._pytree.tree_map(lambda x: x.to(self._dtype) if _floating(x) else x, batch)


def _automatic(subject: Subject) -> bool:
    module = trial_of(subject).module
    return module is None or module.automatic_optimization


def _inner(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("model."): tensor for name, tensor in state.items()}


def _as_groups(parameters: Iterable[Any]) -> list[dict[str, Any]]:
    listed = list(parameters)
    if listed and isinstance(listed[0], dict):
        return [{**group, "params": list(group["params"])} for group in listed]
    return [{"params": listed}]


def _in_two(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    halves: list[dict[str, Any]] = []
    for group in groups:
        middle = (len(group["params"]) + 1) // 2
        parts = group["params"][:middle], group["params"][middle:]
        halves += [{**group, "params": part} for part in parts if part]
    return halves


def _name_of(model: nn.Module, parameter: Tensor) -> str:
    return next((name for name, other in model.named_parameters() if other is parameter), "")


def _low_precision(optimizer: Optimizer) -> Iterator[str]:
    for state in optimizer.state.values():
        for key, value in state.items():
            if _floating(value) and value.dtype in (torch.bfloat16, torch.float16):
                yield f"'{key}' is {value.dtype}, not float32"
        if state:
            return


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
