"""What the optimizers of this package share: where the loss comes from, global sums, skipped steps, state."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed
from torch import Tensor
from torch.optim.optimizer import ParamsT, StateDict

from leyden_sps_safe.polyak import descend_, squared_norm


class Taken(NamedTuple):
    """One step in numbers, 0-dimensional tensors that nothing has waited for.

    Attributes:
        step_size: the method's own step size, before ``lr``; of no meaning where the step was skipped.
        squared_norm: squared norm of the gradient over all parameters.
        skipped: 1 where a number was not finite and nothing changed, else 0.
        loss: the loss that was used; None where the method needs none.
        safeguard: the floor of the denominator; None where the method has none.
        fallback: whether ``M="auto"`` found no gradient to take it from; None where M is a number.
    """

    step_size: Tensor
    squared_norm: Tensor
    skipped: Tensor
    loss: Tensor | None = None
    safeguard: Tensor | float | None = None
    fallback: Tensor | None = None


@dataclass(frozen=True)
class Share:
    """The parameters of one group that have a gradient, as this process holds them.

    Attributes:
        settings: the parameter group.
        sharding: the mesh dimensions that these parameters are cut along, as pairs of mesh and dimension.
        owners: the parameters themselves, which are the keys of the optimizer's state.
        parameters: the part of each that lies in this process, as a real tensor.
        gradients: the same of their gradients.
    """

    settings: dict[str, Any]
    sharding: tuple[tuple[Any, int], ...] = ()
    owners: list[Tensor] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)


class LossAwareOptimizer(torch.optim.Optimizer):
    """A method with one step size for the whole model, a function of the mini-batch loss and its gradient.

    A subclass names in ``global_settings`` what belongs to the rule, and so is the same in every group, and
    implements `_advance`. The loss is the first there is of ``step(loss=...)``; ``pending_loss``, which
    `leyden_callbacks.LossFeed` sets under Lightning's automatic optimization; and the closure's return value.

    Args:
        params: parameters or parameter groups.
        defaults: settings of the groups that do not state them.
    """

    needs_loss: ClassVar[bool] = True
    skips_nonfinite: ClassVar[bool] = True
    global_settings: ClassVar[tuple[str, ...]] = ()

    pending_loss: Tensor | None = None
    pending_mean_loss: Tensor | None = None
    _taken: Taken | None = None
    _events: Events | None = None

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        Args:
            param_group: the parameters under ``"params"``, and the settings of the group.

        Raises:
            ValueError: if a setting is out of its range, or one that belongs to the rule differs from that of
                the other groups.
            RuntimeError: if a parameter belongs to FSDP1, which hides how it is cut.
        """
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except BaseException:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Tensor | float | None = None) -> Any:
        """Take one step.

        A step whose loss or gradient is NaN or infinite is skipped: parameters and state keep every bit, and
        one warning tells of the first. Nothing waits for the device, so from a GPU it comes some steps later.

        Args:
            closure: evaluates the model and calls ``backward``; its return value is the loss.
            loss: the mini-batch loss at the present parameters, whose gradient they hold.

        Returns:
            The loss that was used, as it was given; None where there was none and nothing to do.

        Raises:
            RuntimeError: if there are gradients but no loss, or a gradient is sparse.
            ValueError: if the loss is not a single real number, or a setting of the rule was changed in one
                group alone.
        """
        computed = None
        if closure is not None:
            with torch.enable_grad():
                computed = closure()
        pending, self.pending_loss, self.pending_mean_loss = self.pending_loss, None, None
        given = next((value for value in (loss, pending, computed) if value is not None), None)
        for group in self.param_groups[1:]:
            self._check_agreement(group)
        shares = self._gather()
        if not shares:
            return given
        if given is None and self.needs_loss:
            if all(group["lr"] == 0 for group in self.param_groups):
                # So torch.distributed.checkpoint creates the state that it is about to load.
                self._create_state(shares)
                return None
            raise RuntimeError(
                f"{type(self).__name__} needs the mini-batch loss: call step(loss=...), or step(closure) "
                "with a closure that returns it, or add leyden_callbacks.LossFeed to the Trainer's callbacks"
            )
        self._create_state(shares)
        sums = global_sum(shares, self._measure)
        value = None if given is None else as_number(given, like=sums)
        self._taken = self._advance(shares, value, sums)
        self._watch()
        return given

    def _check(self, group: Mapping[str, Any]) -> None:
        """Validate a group's settings; a subclass validates its own first."""
        check_number("lr", group["lr"], least=0)
        check_number("weight_decay", group["weight_decay"], least=0)
        self._check_agreement(group)
        for parameter in group["params"]:
            if getattr(parameter, "_is_flat_param", False) or getattr(parameter, "_fsdp_flattened", False):
                raise RuntimeError(
                    f"{type(self).__name__} needs the norm of the whole gradient, which FSDP1 hides; use "
                    "FSDP2 (torch.distributed.fsdp.fully_shard, Lightning's ModelParallelStrategy)"
                )

    def _check_agreement(self, group: Mapping[str, Any]) -> None:
        first = self.param_groups[0]
        for name in self.global_settings:
            if group[name] != first[name]:
                raise ValueError(
                    f"{name} is one number for the whole model, but one group holds {first[name]} and "
                    f"another {group[name]}; only lr and weight_decay may differ"
                )

    def _measure(self, share: Share) -> Tensor:
        """The sums over parameters that the rule needs: here the squared norm."""
        return squared_norm(share.gradients)

    def _create_state(self, shares: list[Share]) -> None:
        """Create what the first step needs, from the present parameters."""

    def _advance(self, shares: list[Share], loss: Tensor | None, sums: Tensor) -> Taken:
        """Change parameters and state; must not wait for the device."""
        raise NotImplementedError

    def _descend(self, shares: list[Share], step_size: Tensor, skip: Tensor) -> None:
        for share in shares:
            descend_(
                share.parameters,
                share.gradients,
                scaled(step_size, share.settings["lr"]),
                weight_decay=share.settings["weight_decay"],
                skip=skip,
            )

    def _remember(self, **numbers: Tensor) -> None:
        """Keep numbers of the rule in the parameter groups, where `state_dict` finds them."""
        for group in self.param_groups:
            group.update(numbers)

    @property
    def last_step_size(self) -> Tensor | None:
        """The last step size, before ``lr``, 0 if it was skipped; None before the first step."""
        if self._taken is None:
            return None
        return torch.where(self._taken.skipped > 0, 0, self._taken.step_size)

    @property
    def last_grad_norm_sq(self) -> Tensor | None:
        """The last gradient's squared norm over all parameters; None before the first step."""
        return None if self._taken is None else self._taken.squared_norm

    @property
    def last_safeguard_active(self) -> Tensor | None:
        """Whether the safeguard, and not the squared norm, was the last denominator; None before that."""
        if self._taken is None or self._taken.safeguard is None:
            return None
        return self._taken.squared_norm < self._taken.safeguard

    @property
    def last_loss(self) -> Tensor | None:
        """The loss that the last step used; None before the first step."""
        return None if self._taken is None else self._taken.loss

    @property
    def skipped_steps(self) -> int:
        """How many steps this object has skipped; waits for the device."""
        return 0 if self._events is None else self._events.skipped

    def _watch(self) -> None:
        """Count what the user should hear of."""
        taken = self._taken
        if taken is None:
            return
        if self._events is None:
            self._events = Events(type(self).__name__)
        self._events.record(taken)
        self._events.look(self.param_groups[0].get("ell_star", -math.inf))

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what `state_dict` gave, in the precision that it was kept in.

        Args:
            state_dict: the saved state.
        """
        super().load_state_dict(state_dict)
        # torch casts state to the parameter's type; float32 state beside bfloat16 parameters would lose bits.
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        owners = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, owner in zip(saved, owners, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[owner][name] = value.detach().to(owner.device, copy=True)

    def _gather(self) -> list[Share]:
        found: dict[tuple[Any, ...], Share] = {}
        for index, group in enumerate(self.param_groups):
            for owner in group["params"]:
                gradient = owner.grad
                if gradient is None:
                    continue
                if gradient.layout is not torch.strided:
                    raise RuntimeError(f"{type(self).__name__} does not take sparse gradients")
                sharding: tuple[tuple[Any, int], ...] = ()
                if hasattr(owner, "device_mesh"):
                    sharding = _sharding(owner)
                    if gradient.placements != owner.placements:
                        gradient = gradient.redistribute(placements=owner.placements)
                key = (index, sharding)
                share = found.get(key)
                if share is None:
                    share = found[key] = Share(group, sharding)
                share.owners.append(owner)
                share.parameters.append(local(owner))
                share.gradients.append(local(gradient))
        return list(found.values())


class Events:
    """Remembers on the device what a user should hear of, and tells it once, without waiting for the device.

    On the CPU it is read where it lies. From a CUDA device it is copied every now and then, and read once the
    copy has arrived. From other devices it is read only when `skipped` is asked for.

    Args:
        name: the optimizer's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: set[str] = set()
        self._looks = 0
        self._numbers: Tensor | None = None
        self._host: Tensor | None = None
        self._arrival: Any = None

    def record(self, taken: Taken) -> None:
        """Take note of a step."""
        if self._numbers is None or self._numbers.device != taken.skipped.device:
            self._place(taken.squared_norm)
        self._skipped.add_(taken.skipped)
        if taken.loss is not None:
            torch.fmin(self._lowest, taken.loss, out=self._lowest)
        if taken.fallback is not None:
            self._fallbacks.add_(taken.fallback)

    def look(self, lower_bound: float) -> None:
        """Warn of what is known to have happened. Called once a step.

        Args:
            lower_bound: the bound that no loss should be below.
        """
        if not self._arrived():
            return
        skipped, lowest, fallbacks = self._seen
        if skipped:
            self._tell(
                "skipped an update because the loss or the gradient was NaN or infinite; parameters and "
                "state stay as they were"
            )
        if -math.inf < lowest < lower_bound:
            self._tell("met a mini-batch loss below ell_star, which gives no step; give a lower ell_star")
        if fallbacks:
            self._tell('found no gradient at the first step, so M="auto" became 1.0')

    @property
    def skipped(self) -> int:
        """How many steps were skipped; waits for the device."""
        return 0 if self._numbers is None else int(self._skipped)

    def _place(self, like: Tensor) -> None:
        self._numbers = torch.tensor([0.0, math.inf, 0.0], dtype=like.dtype, device=like.device)
        self._skipped, self._lowest, self._fallbacks = self._numbers.unbind()
        self._arrival = None
        self._host = None
        if like.device.type == "cpu":
            self._host = self._numbers
        elif like.device.type == "cuda":
            self._host = torch.zeros(3, dtype=like.dtype).pin_memory()
        if self._host is not None:
            self._seen = self._host.numpy()

    def _arrived(self) -> bool:
        if self._host is None or self._numbers is None:
            return False
        if self._host is self._numbers:
            return True
        if self._arrival is None:
            self._looks += 1
            if self._looks % _STEPS_BETWEEN_LOOKS == 1:
                self._host.copy_(self._numbers, non_blocking=True)
                self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._arrival.record()
            return False
        if not self._arrival.query():
            return False
        self._arrival = None
        return True

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            warnings.warn(f"{self._name} {message}", RuntimeWarning, stacklevel=7)


_STEPS_BETWEEN_LOOKS = 32


def global_sum(shares: list[Share], measure: Callable[[Share], Tensor]) -> Tensor:
    """Sum a measure over all shares, and over the processes that hold the other parts of sharded parameters.

    Args:
        shares: at least one.
        measure: a vector of numbers that add up over parameters.

    Returns:
        The vector of sums, the same in every process, on the device of the first share.
    """
    if len(shares) == 1 and not shares[0].sharding:
        return measure(shares[0])
    sums: dict[tuple[tuple[Any, int], ...], Tensor] = {}
    for share in shares:
        part = measure(share)
        held = sums.get(share.sharding)
        sums[share.sharding] = part if held is None else held + part.to(held.device)
    for sharding, part in sums.items():
        for mesh, dimension in sharding:
            torch.distributed.all_reduce(part, group=mesh.get_group(dimension))
    total, *others = sums.values()
    for other in others:
        total = total + other.to(total.device)
    return total


def local(tensor: Any) -> Tensor:
    """What of a tensor lies in this process, as a real tensor that shares its memory."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "device_mesh") else tensor
    return torch.view_as_real(part) if part.is_complex() else part


def _sharding(tensor: Any) -> tuple[tuple[Any, int], ...]:
    mesh = tensor.device_mesh
    return tuple(
        (mesh, dimension)
        for dimension, placement in enumerate(tensor.placements)
        if not placement.is_replicate()
    )


def scaled(step_size: Tensor, factor: float | Tensor) -> Tensor:
    """A step size times a group's ``lr``."""
    return step_size if isinstance(factor, float) and factor == 1 else step_size * factor


def as_number(value: Tensor | float, *, like: Tensor) -> Tensor:
    """A loss as a detached 0-dimensional tensor.

    Args:
        value: a number, or a tensor that holds one.
        like: gives type and device.

    Returns:
        The same number.

    Raises:
        ValueError: if it is not a single real number.

    >>> as_number(2.5, like=torch.zeros(1))
    tensor(2.5000)
    """
    if isinstance(value, Tensor):
        if value.dim() == 0 and value.dtype == like.dtype and value.device == like.device:
            return local(value.detach())
        if value.numel() != 1 or value.is_complex():
            raise ValueError(
                f"loss must be a single real number, got {value.dtype} of shape {tuple(value.shape)}; reduce "
                "it over the batch first"
            )
        return local(value.detach()).reshape(()).to(like.device, like.dtype, non_blocking=True)
    try:
        number = float(value)
    except TypeError:
        raise ValueError(f"loss must be a tensor or a number, got {type(value).__name__}") from None
    return torch.full((), number, dtype=like.dtype, device=like.device)


def check_number(name: str, value: Any, *, least: float | None = None, above: float | None = None) -> None:
    """Check a setting.

    Args:
        name: the argument's name.
        value: a number, or a tensor that holds one (which is not looked at).
        least: the smallest valid value.
        above: what it must exceed.

    Raises:
        ValueError: naming the argument, its value and its range.

    >>> check_number("M", 0.0, above=0)
    Traceback (most recent call last):
    ValueError: M must be a finite number above 0, got 0.0
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        return
    valid = isinstance(value, float | int) and math.isfinite(value)
    if valid and (least is None or value >= least) and (above is None or value > above):
        return
    limit = f" of at least {least}" if least is not None else f" above {above}" if above is not None else ""
    raise ValueError(f"{name} must be a finite number{limit}, got {value!r}")
