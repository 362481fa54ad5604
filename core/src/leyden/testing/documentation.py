"""What every component owes its reader: arguments, shapes, the paper's equation, examples that run."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

from leyden.model import KINDS
from leyden.testing.kit import Subject, owed_by

PLACE_IN_PAPER = re.compile(
    r"\b(Eqs?\.|Equations?|Algorithms?|Sections?|Sec\.|Theorems?|Propositions?|Prop\.|Definitions?|Lemmas?|Appendix"
    r"|Figures?|Fig\.|Tables?|reconstructed|not in the paper|\(\d{4}\))|§|\(\d+(\.\d+)*\)",
    re.IGNORECASE,
)
SHAPE = re.compile(
    r"\bshapes?\b|\bscalars?\b|\bdimensions?\b|\b0-dim|\((\.\.\.|\w+)(, ?(\w+|\.\.\.))+,?\)|\(\w+,\)",
    re.IGNORECASE,
)
JAXTYPED = re.compile(r"\b(Float|Float32|Float64|Int|Int64|Integer|Real|Num|Bool|Complex|Shaped|Inexact)\[")
IMPLIED = {"self", "params", "optimizer", "args", "kwargs"}


@owed_by(*KINDS)
def docstring(subject: Subject) -> Iterator[str]:
    """Its docstring explains every argument in an Args section, and says what a function returns."""
    target = subject.target
    text = inspect.cleandoc(target.__doc__ or "")
    if not text:
        yield "it has no docstring"
        return
    arguments = [name for name in inspect.signature(target).parameters if name not in IMPLIED]
    explained = _section(text, "Args") or _section(_constructor_text(target), "Args") or _fields(target, text)
    if arguments and not explained:
        yield f"its docstring has no 'Args:' section; it takes {', '.join(arguments)}"
    elif missing := [name for name in arguments if not re.search(rf"^\s*\*{{0,2}}{name}\b", explained, re.M)]:
        yield f"the 'Args:' section of its docstring leaves out {', '.join(missing)}"
    if inspect.isfunction(target):
        yield from _function(target, text)


@owed_by("optimizer", "lr_scheduler", "layer", "loss", "function")
def place_in_paper(subject: Subject) -> Iterator[str]:
    """Where the plugin implements a paper, a docstring says where the method stands in it."""
    target = subject.target
    texts = [target.__doc__ or "", sys.modules[target.__module__].__doc__ or ""]
    if isinstance(target, type):
        texts += [member.__doc__ or "" for member in vars(target).values() if inspect.isfunction(member)]
    if subject.from_paper and not any(PLACE_IN_PAPER.search(text) for text in texts):
        yield "no docstring names an equation, algorithm or section of the paper (or says 'reconstructed')"


@owed_by("layer", "loss", "function")
def shapes(subject: Subject) -> Iterator[str]:
    """Where it takes tensors, its annotations or docstrings state their shapes."""
    target = subject.target
    called = target.forward if isinstance(target, type) and hasattr(target, "forward") else target
    annotations = " ".join(str(value) for value in getattr(called, "__annotations__", {}).values())
    text = f"{target.__doc__ or ''} {called.__doc__ or ''}"
    if "Tensor" in annotations and not JAXTYPED.search(annotations) and not SHAPE.search(text):
        yield "it takes tensors, but neither its annotations (jaxtyping) nor its docstring state a shape"


@owed_by("function")
def type_hints(subject: Subject) -> Iterator[str]:
    """Every argument and the result have a type."""
    signature = inspect.signature(subject.target)
    untyped = [name for name, p in signature.parameters.items() if p.annotation is inspect.Parameter.empty]
    if untyped:
        yield f"arguments without a type: {', '.join(untyped)}"
    if signature.return_annotation is inspect.Signature.empty:
        yield "its result has no type"


@owed_by(*KINDS)
def examples(subject: Subject) -> Iterator[str]:
    """The examples in its docstrings give what they say."""
    target = subject.target
    module = sys.modules[target.__module__]
    report: list[str] = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(
        target, subject.component.name, module=module, globs=dict(vars(module))
    ):
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(
            test, out=report.append
        )
    if report:
        yield "an example in its docstring fails:\n" + "".join(report)


def _function(function: Any, text: str) -> Iterator[str]:
    returned = inspect.signature(function).return_annotation
    iterates = _section(text, "Yields")
    if (
        returned not in (None, "None", inspect.Signature.empty)
        and not _section(text, "Returns")
        and not iterates
    ):
        yield "its docstring has no 'Returns:' section"


def _constructor_text(target: Any) -> str:
    """The docstring of the class whose constructor a class inherits."""
    if not isinstance(target, type):
        return ""
    home = next((base for base in target.__mro__ if "__init__" in vars(base)), target)
    return inspect.cleandoc(home.__doc__ or "")


def _fields(target: Any, text: str) -> str:
    """The section of a dataclass or named tuple that explains what are fields and arguments at once."""
    has_fields = dataclasses.is_dataclass(target) or hasattr(target, "_fields")
    return _section(text, "Attributes") if has_fields else ""


def _section(text: str, name: str) -> str:
    found = re.search(rf"^{name}:\n((?:[ \t]+.*\n?|\n)+)", text + "\n", re.M)
    return found.group(1) if found else ""
