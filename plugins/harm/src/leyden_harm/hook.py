"""A forward hook that goes with neither copies nor pickles of the module that it hangs on."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent_hooks() -> Iterator[None]:
    """Let calls of the layer pass unnoticed that belong to no training step, such as those of a probe."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class Listener(Protocol):
    """Who is told of a layer's calls."""

    def on_layer_called(self, layer: nn.Module, h: Tensor, output: Any) -> None:
        """Take note of a call: the layer, its input and what it returned."""


class ForwardHook:
    """Tells a listener of every call of a layer; a copy of it, as of a module under EMA, tells nobody.

    Args:
        listener: who is told; None for a copy.
    """

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = None if listener is None else weakref.ref(listener)

    def __call__(  # noqa: D102 - what torch asks of a hook
        self, layer: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any
    ) -> None:
        listener = None if self._listener is None else self._listener()
        if listener is not None and not _silent.get():
            listener.on_layer_called(layer, arguments[0] if arguments else keywords["input"], output)

    def __reduce__(self) -> tuple[type[ForwardHook], tuple[()]]:
        return ForwardHook, ()
