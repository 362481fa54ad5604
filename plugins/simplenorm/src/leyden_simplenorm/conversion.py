"""SimpleNorm in a model that exists: its linear maps get norms, its pre-norms go; it imports no Lightning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import nn

from leyden_simplenorm.layer import SimpleNormLinear
from leyden_simplenorm.rms import RMSNorm
from leyden_simplenorm.simplenorm import Norm, check_norm

Action = Literal["normalised", "dropped", "kept"]
Patterns = str | Sequence[str]

_FUSED = (
    "*qkv*", "*query_key_value*", "W_pack", "in_proj", "in_proj_*", "x_proj", "*gate_up*", "*up_gate*", "w12",
    "w13", "Wi", "kv_proj", "[Ww]kv", "to_kv", "kv_a_proj*", "kv_b_proj", "c_attn", "att_proj", "ff_proj",
)  # fmt: skip
"""Names under which models compute several projections at once, in layouts that differ."""


@dataclass(frozen=True)
class Change:
    """What `to_simplenorm` did with one module.

    Attributes:
        name: the module's dotted name.
        action: ``"normalised"``, ``"dropped"`` or ``"kept"``.
        kind: the class it had.
        detail: over what the norm runs, or why the module was kept.
        parameters: how many parameters the model has more (or, below 0, fewer).
    """

    name: str
    action: Action
    kind: str
    detail: str
    parameters: int = 0


@dataclass(frozen=True)
class Conversion:
    """What `to_simplenorm` changed; as text, a table in Markdown.

    Attributes:
        changes: one for each linear map and each norm of the model, in its order.
    """

    changes: tuple[Change, ...]

    def of(self, action: Action) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.action == action)

    @property
    def added_parameters(self) -> int:
        """How many parameters the model has more than before; below 0: fewer."""
        return sum(change.parameters for change in self.changes)

    def summary(self) -> str:
        """The table with the modules of all blocks together, a line for each kind."""
        alike = Counter(
            (_without_places(one.name), one.action, one.kind, one.detail, one.parameters)
            for one in self.changes
        )
        rows = [
            (name, str(number), action, kind, detail, f"{number * parameters:+d}")
            for (name, action, kind, detail, parameters), number in alike.items()
        ]
        return _table(("modules", "number", "what", "was", "detail", "parameters"), rows)

    def __str__(self) -> str:
        """The table, a line for each module."""
        rows = [(one.name, one.action, one.kind, one.detail, f"{one.parameters:+d}") for one in self.changes]
        return _table(("module", "what", "was", "detail", "parameters"), rows)


@dataclass
class _Plan:
    """What is to be done, before anything is."""

    changes: list[Change] = field(default_factory=list)
    replacements: dict[int, nn.Module] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


def to_simplenorm(
    model: nn.Module,
    include: Patterns | None = None,
    exclude: Patterns = ("lm_head", "output"),
    drop: Patterns = ("*norm*",),
    *,
    norm: Norm = "rms",
    eps: float = 1e-5,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> Conversion:
    """Put a norm after a model's linear maps, Section 3 of Chen et al. (2026), and take its pre-norms away.

    The maps are `torch.nn.Linear` and the ``Conv1D`` of Hugging Face's GPT-2. Their weights stay the very
    same parameters (ties stay tied, an optimizer that has them still does), as ``NAME.linear.weight``; the
    gains ``NAME.norm.weight`` are new and start at 1. A map that is used in two places is replaced once. The
    function that the model computes changes: SimpleNorm is for training from here, not for a trained model to
    go on as it is.

    Norms that `drop` matches become the identity, as long as they stand before or between the replaced maps:
    a norm beside the list of blocks, as after the last one, stays, and so does one whose parent has no
    replaced map. A head that is tied to an embedding, or that the model says is its output, is left alone.

    Of a model of Hugging Face whatever is outside its base model is head and left alone, too, and so is a map
    or a norm that also stands in a place where it is to be kept. Make the optimizer afterwards: one that
    exists lacks the gains. What is saved is loaded into a model that has been converted; ``from_pretrained``
    would build the old one.

    A map that computes several projections at once gets a norm for each: of GPT-2's ``c_attn`` the layout is
    known, for others say it in `groups` (contiguous parts) or leave the map out; else it is refused, since
    one norm over all of them would be another method.

    Args:
        model: it is changed in place.
        include: names of the maps to replace, as patterns (``*`` stands for anything) of the whole dotted
            name or of its last part; None: all.
        exclude: those to leave alone.
        drop: norms to take away, by name or by class; upper and lower case are not told apart.
        norm: ``"rms"``, or ``"layer"`` for a LayerNorm without bias.
        eps: the norms' epsilon, above 0.
        groups: for patterns of names, the lengths of the parts of a map's output that are normalised each for
            itself.

    Returns:
        What was changed, and what was kept for which reason.

    Raises:
        ValueError: if nothing matches, a map cannot be replaced, or an argument is out of its range; the text
            names it, and nothing has been changed.

    >>> model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4))
    >>> print(to_simplenorm(model))
    | module | what | was | detail | parameters |
    |---|---|---|---|---|
    | 0 | dropped | LayerNorm | pre-norm | -16 |
    | 1 | normalised | Linear | over 4 | +4 |
    """
    check_norm(norm)
    plan = _Plan()
    _refuse_what_cannot_change(model, plan, groups or {})
    maps = _maps(model, plan, include, exclude, norm, eps, groups or {})
    _refuse_experts(model, plan, exclude)
    if plan.refused:
        raise ValueError("model: " + "; ".join(plan.refused))
    if not maps:
        raise ValueError(
            f"include: expected patterns that match a linear map of {type(model).__name__}, got "
            f"include={include!r}, exclude={exclude!r}"
        )
    _norms(model, plan, set(maps), drop)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in plan.replacements:
                parent._modules[name] = plan.replacements[id(child)]
    order = {name: place for place, (name, _) in enumerate(_named(model))}
    return Conversion(tuple(sorted(plan.changes, key=lambda change: order[change.name])))


def _maps(
    model: nn.Module,
    plan: _Plan,
    include: Patterns | None,
    exclude: Patterns,
    norm: Norm,
    eps: float,
    groups: Mapping[str, Sequence[int]],
) -> list[str]:
    """Plan what becomes of the linear maps; returns the names of those that are replaced."""
    reasons = _reasons_to_keep(model)
    inside = _inside_others(model)
    spared = {
        id(module) for name, module in _named(model) if not _is_asked_for(name, include, exclude)
    }  # one that is also used under such a name
    replaced: list[str] = []
    for name, module in _named(model):
        if not is_map(module) or id(module) in inside["simple"]:
            continue
        kind = type(module).__name__
        if (reason := reasons.get(id(module))) is not None:
            plan.changes.append(Change(name, "kept", kind, reason))
        elif id(module) in spared:
            also = "" if not _is_asked_for(name, include, exclude) else ", being shared"
            plan.changes.append(Change(name, "kept", kind, f"left out{also}"))
        elif name == "":
            plan.refused.append("expected a module that has linear maps, got one map; use SimpleNormLinear")
        elif id(module) in inside["attention"]:
            plan.refused.append(
                f"{name} is part of torch.nn.MultiheadAttention, which reads weights without calling its maps"
            )
        elif id(module) in plan.replacements:
            plan.changes.append(Change(name, "normalised", kind, "the same module as above"))
        elif isinstance(found := _layout(name, module, groups), str):
            plan.refused.append(found)
        else:
            size = _out_features(module)
            layer = SimpleNormLinear.around(module, size, norm=norm, eps=eps, groups=found)
            plan.replacements[id(module)] = layer
            over = f"over {size}" if found is None else "over " + ", ".join(map(str, found)) + " apart"
            plan.changes.append(Change(name, "normalised", kind, over, size))
            replaced.append(name)
    return replaced


def _norms(model: nn.Module, plan: _Plan, maps: set[str], drop: Patterns) -> None:
    """Plan which norms go."""
    inside = _inside_others(model)
    modules = dict(_named(model))
    norms = {
        name: (module, _reason_to_keep_norm(name, modules, maps, drop))
        for name, module in modules.items()
        if is_norm(module) and id(module) not in inside["simple"]
    }
    spared = {id(module) for module, reason in norms.values() if reason is not None}
    for name, (module, reason) in norms.items():
        kind = type(module).__name__
        if id(module) in spared:
            plan.changes.append(Change(name, "kept", kind, reason or "is kept elsewhere, being shared"))
            continue
        fewer = 0
        if id(module) not in plan.replacements:
            plan.replacements[id(module)] = nn.Identity()
            fewer = sum(parameter.numel() for parameter in module.parameters())
        plan.changes.append(Change(name, "dropped", kind, "pre-norm", -fewer))


def _reason_to_keep_norm(
    name: str, modules: Mapping[str, nn.Module], maps: set[str], drop: Patterns
) -> str | None:
    kind = type(modules[name]).__name__
    if not (matches(name, drop, fold=True) or matches(kind, drop, fold=True)):
        return "not in drop"
    if not any(_below(one, name.rpartition(".")[0]) for one in maps):
        return "stands beside no replaced map"
    if _beside_blocks(name, modules, maps):
        return "stands beside the list of blocks"
    return None


def _is_asked_for(name: str, include: Patterns | None, exclude: Patterns) -> bool:
    return (include is None or matches(name, include)) and not matches(name, exclude)


def _refuse_what_cannot_change(model: nn.Module, plan: _Plan, groups: Mapping[str, Sequence[int]]) -> None:
    """Refuse models that are shared out already, and groups of maps that there are not."""
    names = [name for name, module in _named(model) if is_map(module)]
    plan.refused += [
        f"groups has {pattern!r}, which is no map of it"
        for pattern in groups
        if not any(matches(name, pattern) for name in names)
    ]
    wrappers = {type(one).__name__ for one in model.modules()} & {
        "DistributedDataParallel",
        "FullyShardedDataParallel",
    }
    plan.refused += [f"is in a {kind}, which would not see the gains; convert it before" for kind in wrappers]
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        plan.refused.append("is sharded already; convert it before")


def _refuse_experts(model: nn.Module, plan: _Plan, exclude: Patterns) -> None:
    """Refuse maps that are no modules: experts as one array, of which norms would have to be built in."""
    for name, module in _named(model):
        stacked = [one for one, p in module.named_parameters(recurse=False) if p.ndim == 3 and "proj" in one]
        if stacked and not matches(name, exclude):
            last = name.rpartition(".")[2]
            plan.refused.append(
                f"{name} has the maps of several experts in one array ({', '.join(stacked)}), which get no "
                f"norms here; leave it out by exclude=('{last}', ...), and say in drop which pre-norms go"
            )


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a LayerNorm or an RMSNorm, of torch or of somebody else.

    Args:
        module: the module.

    Returns:
        True for a leaf that is torch's, or whose class is named so.
    """
    named = type(module).__name__.lower().endswith(("rmsnorm", "layernorm"))
    return isinstance(module, nn.LayerNorm | nn.RMSNorm | RMSNorm) or (named and not list(module.children()))


def is_map(module: nn.Module) -> bool:
    """Whether a module is a linear map: torch's, or the transposed one of Hugging Face's GPT-2.

    Args:
        module: the module.

    Returns:
        True for such a map; a map with its norm is none.
    """
    return isinstance(module, nn.Linear) or _is_conv1d(module)


def _is_conv1d(module: nn.Module) -> bool:
    """Whether it is the transposed linear map of Hugging Face's GPT-2."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _out_features(module: nn.Module) -> int:
    size: Any = module.out_features if isinstance(module, nn.Linear) else module.nf
    return int(size)


def _layout(
    name: str, module: nn.Module, groups: Mapping[str, Sequence[int]]
) -> tuple[int, ...] | str | None:
    """The parts of a map's output; None for one part, a text where they are unknown."""
    size = _out_features(module)
    for pattern, lengths in groups.items():
        if matches(name, (pattern,)):
            if sum(lengths) != size:
                return f"{name}: groups sum to {sum(lengths)}, its outputs are {size}"
            return tuple(lengths)
    last = name.rpartition(".")[2]
    if last == "c_attn" and _is_conv1d(module):
        width = int(module.nx)  # type: ignore[arg-type]
        if size % width == 0:
            return (width,) * (size // width)
    if matches(last, _FUSED):
        return (
            f"{name} computes several projections at once in a layout that is not known here; if the parts "
            f"are contiguous, give groups={{'*{last}': (their lengths)}}, else leave it out by exclude"
        )
    return None


def _reasons_to_keep(model: nn.Module) -> dict[int, str]:
    """Heads that must stay as they are, by the identity of the module."""
    embeddings = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    found = {}
    for _, module in _named(model):
        if is_map(module) and id(getattr(module, "weight", None)) in embeddings:
            found[id(module)] = "tied to an embedding"
    for module in model.modules():
        ask = getattr(module, "get_output_embeddings", None)
        head = ask() if callable(ask) else None
        if isinstance(head, nn.Module):
            found.setdefault(id(head), "the model's output head")
        base = getattr(module, "base_model", None)
        if callable(ask) and isinstance(base, nn.Module) and base is not module:
            body = {id(one) for one in base.modules()}
            for one in module.modules():
                if is_map(one) and id(one) not in body:
                    found.setdefault(id(one), "part of the model's head")
    return found


def _inside_others(model: nn.Module) -> dict[str, set[int]]:
    """Modules that belong to a SimpleNormLinear, or to attention that does not call its maps."""
    found: dict[str, set[int]] = {"simple": set(), "attention": set()}
    for module in model.modules():
        if isinstance(module, SimpleNormLinear):
            found["simple"] |= {id(one) for one in module.modules()}
        elif isinstance(module, nn.MultiheadAttention):
            found["attention"] |= {id(one) for one in module.modules()}
    return found


def _beside_blocks(name: str, modules: Mapping[str, nn.Module], maps: set[str]) -> bool:
    """Whether a norm stands beside a list of blocks, or in a row of them after the last one."""
    parent, _, own = name.rpartition(".")
    if isinstance(modules[parent], nn.Sequential):
        places = list(modules[parent]._modules)
        with_maps = [one for one in places if _has_maps(parent, one, maps)]
        last = with_maps[-1]
        return places.index(own) > places.index(last) and _is_block(parent, last, modules, maps)
    lists = [
        (_joined(parent, child), module)
        for child, module in modules[parent].named_children()
        if isinstance(module, nn.ModuleList | nn.Sequential)
    ]
    return any(_is_block(path, child, modules, maps) for path, one in lists for child in one._modules)


def _is_block(parent: str, child: str, modules: Mapping[str, nn.Module], maps: set[str]) -> bool:
    """Whether a child is more than a map and has replaced ones."""
    return not is_map(modules[_joined(parent, child)]) and _has_maps(parent, child, maps)


def _has_maps(parent: str, child: str, maps: set[str]) -> bool:
    path = _joined(parent, child)
    return any(one == path or _below(one, path) for one in maps)


def _joined(parent: str, child: str) -> str:
    return f"{parent}.{child}" if parent else child


def _below(name: str, parent: str) -> bool:
    return not parent or name.startswith(f"{parent}.")


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules, one that is used in two places twice."""
    yield from model.named_modules(remove_duplicate=False)


def matches(name: str, patterns: Patterns, *, fold: bool = False) -> bool:
    """Whether one of several patterns is that of a dotted name, or of its last part.

    Args:
        name: the name.
        patterns: one or several; ``*`` stands for anything.
        fold: whether upper and lower case are not told apart.

    Returns:
        True if one is.
    """
    listed = (patterns,) if isinstance(patterns, str) else patterns
    if fold:
        name, listed = name.lower(), [pattern.lower() for pattern in listed]
    last = name.rpartition(".")[2]
    return any(fnmatchcase(name, pattern) or fnmatchcase(last, pattern) for pattern in listed)


def _without_places(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _table(heading: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    first, second, *others = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([first, second.replace(" ", ""), *others])
