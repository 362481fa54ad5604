"""How the kit is put together: a check yields what is wrong, a case is a check of one subject."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from leyden.manager import load_object
from leyden.model import Capability, Component


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        subject: the component, configuration or claim, or the plugin's name.
        check: the check's name, as in ``exempt`` and in the test's identity.
        text: what is wrong, in a sentence.
    """

    subject: str
    check: str
    text: str

    def __str__(self) -> str:
        """The finding in one line, or more where it holds a traceback."""
        return f"{self.subject}: {self.check}: {self.text}"


@dataclass(frozen=True)
class Subject:
    """A component as a check meets it: what it is, and how to build one.

    Attributes:
        component: what the plugin says about it.
        from_paper: whether its plugin implements a paper.
        contributed: whether every Trainer gets it (callbacks).
    """

    component: Component
    from_paper: bool = False
    contributed: bool = False

    @property
    def target(self) -> Any:
        """The class or function itself."""
        return load_object(self.component.path)

    def build(self, *arguments: Any) -> Any:
        """Build one: by the component's example, or by calling it."""
        builder = load_object(self.component.example) if self.component.example else self.target
        return builder(*arguments)


Check = Callable[[Subject], Iterable[str]]
"""A check yields one text for each thing that is wrong; an exception that it lets out is a finding too."""


@dataclass(frozen=True)
class Owed:
    """A check, with the kinds of components that owe it.

    Attributes:
        name: its name, such as ``"mid-epoch-resume"``.
        kinds: the kinds that owe it.
        promise: the capability that makes it owed; None: always owed.
        text: what is owed, in a sentence.
        check: the function.
    """

    name: str
    kinds: tuple[str, ...]
    promise: Capability | None
    text: str
    check: Check

    def applies_to(self, component: Component) -> bool:
        """Whether the component owes it."""
        return component.kind in self.kinds and (self.promise is None or self.promise in component.supports)


OWED: list[Owed] = []
"""Every check of a component, in the order in which a reader wants them."""


def owed_by(*kinds: str, promise: Capability | None = None) -> Callable[[Check], Check]:
    """Register a check; its name comes from the function's, what is owed from the docstring's first line.

    Args:
        *kinds: the kinds of components that owe it, of `leyden.model.KINDS`.
        promise: the capability that makes it owed; None: always owed.

    Returns:
        The decorator, which returns the function as it is.
    """

    def register(check: Check) -> Check:
        text = (check.__doc__ or "").strip().splitlines()[0]
        OWED.append(Owed(check.__name__.replace("_", "-"), kinds, promise, text, check))
        return check

    return register


@dataclass(frozen=True)
class Case:
    """A check of one subject, ready to run.

    Attributes:
        subject: name of the component, configuration, claim or plugin.
        check: name of the check.
        text: what is owed.
        find: yields what is wrong.
        exempt: why the check does not apply here; empty: it does.
    """

    subject: str
    check: str
    text: str
    find: Callable[[], Iterable[str]] = field(repr=False)
    exempt: str = ""

    @property
    def id(self) -> str:
        """Identity, such as ``"SPSSafe-accumulation"``."""
        return f"{self.subject}-{self.check}"

    def findings(self) -> list[Finding]:
        """Run it.

        Returns:
            What is wrong; empty when all is well or the subject is exempt. A check that raises is a finding
            with its traceback.
        """
        return [] if self.exempt else [Finding(self.subject, self.check, text) for text in _texts(self.find)]


def component_cases(subject: Subject) -> Iterator[Case]:
    """The cases of a component's own checks, without those of `leyden.testing.processes`."""
    component = subject.component
    for owed in OWED:
        if owed.applies_to(component):
            yield Case(
                component.name,
                owed.name,
                owed.text,
                functools.partial(owed.check, subject),
                exempt=component.exempt.get(owed.name, ""),
            )


def _texts(find: Callable[[], Iterable[str]]) -> list[str]:
    texts: list[str] = []
    try:
        for text in find():
            texts.append(text)  # noqa: PERF402 - what was found before an exception counts
    except Exception:
        texts.append("raised\n" + traceback.format_exc(limit=-6))
    return texts
