"""Find where a computation moves numbers from a device to the host, on a machine without a device too."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READS = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
}
_METHODS = {"tolist", "numpy", "cpu", "__array__"}


def host_syncs(compute: Callable[[], object], on_device: Iterable[Tensor]) -> list[str]:
    """Run a computation and report each place that would make the host wait for a device.

    Tensors that depend on the given ones count as being on the device; others, such as a step counter that an
    optimizer keeps on the CPU on purpose, do not.

    Args:
        compute: the computation.
        on_device: the tensors that would be on the device.

    Returns:
        Descriptions such as ``".item() at harm.py:88"``, each place once.
    """
    watch = _Dependence(on_device)
    with _Methods(watch), _Operators(watch):
        compute()
    return list(dict.fromkeys(watch.found))


class _Dependence:
    """Which storages depend on the device's tensors, and what was read from them."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._storages: dict[int, Any] = {}
        self.found: list[str] = []
        self.add(tensors)

    def add(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self._storages[storage._cdata] = storage  # kept, so that its address is not used again

    def holds(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.untyped_storage()._cdata in self._storages

    def report(self, what: str) -> None:
        self.found.append(f"{what} at {_place()}")


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, watch: _Dependence) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if any(self._watch.holds(leaf) for leaf in tree_leaves((args, kwargs))):
            name = func._schema.name
            if name in _READS:
                self._watch.report(_in_words(name))
            self._watch.add(tree_leaves(output))
            written = (
                value
                for argument, value in zip(func._schema.arguments, args, strict=False)
                if argument.alias_info is not None and argument.alias_info.is_write
            )
            self._watch.add(tree_leaves(list(written)))
        return output


class _Methods(TorchFunctionMode):
    """Sees what reaches no operator: a tensor on the CPU gives its memory away without one."""

    def __init__(self, watch: _Dependence) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _METHODS and args and self._watch.holds(args[0]):
            self._watch.report(f".{name}()")
        return func(*args, **(kwargs or {}))


def _in_words(operator: str) -> str:
    if operator == "aten::_local_scalar_dense":
        return ".item(), float(), int() or bool() of a tensor"
    return f"torch.{operator.removeprefix('aten::')}, which waits for its result,"


def _place() -> str:
    """The innermost frame that is neither torch's nor this module's."""
    torch_folder = str(Path(torch.__file__).parent)
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(torch_folder) and frame.filename != __file__:
            return f"{Path(frame.filename).name}:{frame.lineno} ({(frame.line or '').strip()})"
    return "an unknown place"
