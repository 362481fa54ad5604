"""A forward hook that goes with neither copies nor pickles of the module that it hangs on."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from leyden_harm.reduction import HarmReduction

_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent_hooks() -> Iterator[None]:
    """Let calls of the layer pass unnoticed that belong to no training step, such as those of a probe."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class ForwardHook:
    """Tells a callback of every call of a layer; a copy of it, as of a module under EMA, tells nobody.

    Args:
        callback: who is told; None for a copy.
    """

    def __init__(self, callback: HarmReduction | None = None) -> None:
        self._callback = None if callback is None else weakref.ref(callback)

    def __call__(  # noqa: D102 - what torch asks of a hook
        self, layer: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any
    ) -> None:
        callback = None if self._callback is None else self._callback()
        if callback is not None and not _silent.get():
            callback.on_layer_called(layer, arguments[0] if arguments else keywords["input"], output)

    def __reduce__(self) -> tuple[type[ForwardHook], tuple[()]]:
        return ForwardHook, ()
