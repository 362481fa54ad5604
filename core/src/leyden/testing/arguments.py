"""What every component owes about its arguments: a wrong one fails at construction, by name."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import SGD

from leyden.testing.kit import Subject, owed_by
from leyden.testing.trials import trial_of

CLASSES = ("optimizer", "lr_scheduler", "callback", "module", "layer", "loss", "metric", "datamodule")
WRONG = (math.nan, math.inf, -math.inf, -1.0)


@owed_by(*CLASSES)
def arguments(subject: Subject) -> Iterator[str]:
    """NaN, and every other number that is refused, raises a ValueError that names the argument."""
    if not isinstance(subject.target, type):
        return
    for name in float_arguments(subject.target):
        for value in WRONG:
            try:
                with argument(subject.target, name, value):
                    construct(subject)
            except ValueError as error:
                if not re.search(rf"\b{re.escape(name)}\b", str(error)):
                    yield f"{name}={value} raises a ValueError that does not name '{name}': {error}"
            except Exception as error:
                yield f"{name}={value} raises {type(error).__name__}, not ValueError: {error}"
            else:
                if math.isnan(value):
                    yield f"{name}=nan is accepted"


def construct(subject: Subject) -> Any:
    """Build the component as its trial does."""
    kind = subject.component.kind
    if kind == "optimizer":
        trial = trial_of(subject)
        return subject.build(trial.parameters(trial.model if trial.model is not None else trial.module))  # type: ignore[arg-type]
    if kind == "lr_scheduler":
        return subject.build(SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    return subject.build()


def float_arguments(cls: type) -> list[str]:
    """The constructor's arguments that may be a float, by their annotations.

    Args:
        cls: the class.

    Returns:
        Their names.
    """
    return [
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if "float" in _alternatives(parameter.annotation)
    ]


@contextmanager
def argument(cls: type, name: str, value: Any) -> Iterator[None]:
    """Let every construction of a class take a given value for one argument, whatever the caller says.

    Args:
        cls: the class.
        name: the argument.
        value: what it is.
    """
    own = "__init__" in vars(cls)
    constructor = cls.__init__  # type: ignore[misc]
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def with_value(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is not cls:
            constructor(self, *args, **kwargs)
            return
        bound = signature.bind_partial(self, *args, **kwargs)
        bound.arguments[name] = value
        constructor(*bound.args, **bound.kwargs)

    cls.__init__ = with_value  # type: ignore[misc]
    try:
        yield
    finally:
        if own:
            cls.__init__ = constructor  # type: ignore[misc]
        else:
            del cls.__init__  # type: ignore[misc]


def _alternatives(annotation: Any) -> set[str]:
    """The alternatives of an annotation: ``{"float", "None"}`` of ``float | None``, written or evaluated."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"^(typing\.)?(Optional|Union)\[(.*)\]$", r"\3", text.strip("'\""))
    parts, depth, part = [], 0, ""
    for character in text:
        depth += (character in "[(") - (character in "])")
        if depth == 0 and character in "|,":
            parts.append(part)
            part = ""
        else:
            part += character
    return {alternative.strip() for alternative in [*parts, part]}
