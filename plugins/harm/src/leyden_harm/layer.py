"""Which layer is the last one, and whether its hooks can work."""

from __future__ import annotations

from collections.abc import Iterator

from leyden.errors import hint
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear


def last_linear(module: LightningModule, layer: str | None) -> tuple[str, nn.Linear]:
    """The layer whose output the loss is made of, where hooks of it are called.

    Args:
        module: as of `find_linear`.
        layer: as of `find_linear`.

    Returns:
        The name and the layer.

    Raises:
        MisconfigurationException: if there is none, it is no ``nn.Linear``, or it is compiled.
    """
    name, found = find_linear(module, layer)
    if getattr(module, "_compiler_ctx", None) is not None or compiled_in(module, name):
        raise MisconfigurationException(
            f"layer: '{name}' lies in a compiled module, where its hooks do not run; compile the backbone"
            f" alone"
            " and leave this layer out of it"
        )
    return name, found


def find_linear(module: LightningModule, layer: str | None) -> tuple[str, nn.Linear]:
    """The layer whose output the loss is made of.

    A layer that stands at several places counts once, at the first of them, as
    `torch.nn.Module.named_modules` has it. The output projection of `torch.nn.MultiheadAttention` is never
    called as a module and does not count.

    Args:
        module: the module that trains, without the strategy's wrapper.
        layer: its dotted name; None takes the last ``nn.Linear`` in the order of the modules.

    Returns:
        The name and the layer.

    Raises:
        MisconfigurationException: if there is none, or it is no ``nn.Linear``.
    """
    names = dict(linears(module))
    if layer is None:
        if not names:
            raise MisconfigurationException(
                f"layer: {type(module).__name__} has no torch.nn.Linear, of which one must make the logits"
            )
        layer = list(names)[-1]
    modules = dict(module.named_modules(remove_duplicate=False))
    if layer not in modules:
        raise MisconfigurationException(f"layer: there is no module '{layer}'; {hint(layer, names)}")
    found = modules[layer]
    if not isinstance(found, nn.Linear):
        raise MisconfigurationException(
            f"layer: expected a torch.nn.Linear, '{layer}' is a {type(found).__name__}; {hint(layer, names)}"
        )
    return layer, found


def linears(module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Every ``nn.Linear`` that is called as a module, once, in the order of the modules.

    Args:
        module: where to look.

    Yields:
        Name and layer.
    """
    for name, one in module.named_modules():
        if isinstance(one, nn.Linear) and not isinstance(one, NonDynamicallyQuantizableLinear):
            yield name, one


def compiled_in(module: nn.Module, name: str) -> bool:
    """Whether a module, or one that it lies in, was given to ``torch.compile``.

    Args:
        module: the root.
        name: dotted name of the module.

    Returns:
        True where hooks of it are not called.
    """
    parts = name.split(".") if name else []
    path = [module.get_submodule(".".join(parts[:end])) for end in range(len(parts) + 1)]
    return any(
        hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) is not None for one in path
    )
