"""The public names and their signatures are those of public_surface.txt, so that none changes unnoticed.

A name is public if it is in the ``__all__`` of a package, or a method, property or attribute of a public
class. What a class has from a base is left out where the base is public itself or of another project, and so
are the fields of a dataclass, which its constructor shows. ``python tests/test_public_surface.py`` writes the
list anew.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("public_surface.txt")
COMMAND = "python tests/test_public_surface.py"
PACKAGES = sorted(
    ["leyden", "leyden.testing"]
    + [path.parent.name for path in ROOT.glob("*/src/leyden_*/__init__.py")]
    + [path.parent.name for path in ROOT.glob("plugins/*/src/leyden_*/__init__.py")]
)
_PREFIXES = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


@functools.cache
def surface() -> tuple[str, ...]:
    """A line for each public name."""
    return tuple(line for package in PACKAGES for line in lines_of(importlib.import_module(package)))


def lines_of(package: ModuleType) -> Iterator[str]:
    """The lines of a package: its names in the order of the alphabet, each class followed by its members."""
    for name in sorted(package.__all__):
        public = getattr(package, name)
        path = f"{package.__name__}.{name}"
        if inspect.isclass(public):
            yield f"{path}{signature_of(public) if constructed_here(public) else ''}"
            for member in members_of(public):
                yield f"{path}.{member}"
        elif inspect.isroutine(public):
            yield f"{path}{signature_of(public)}"
        else:
            yield path


def members_of(cls: type) -> Iterator[str]:
    """The public members of a class that its own lines must show."""
    shown_elsewhere = public_classes() - {cls}
    bases = [base for base in cls.__mro__ if is_ours(base) and base not in shown_elsewhere]
    inherited = {name for base in cls.__mro__ if base not in bases for name in dir(base)}
    for base in cls.__mro__:
        if base in shown_elsewhere:
            inherited |= set(inspect.get_annotations(base))
    if dataclasses.is_dataclass(cls):
        inherited |= {field.name for field in dataclasses.fields(cls)}
    names = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
    for name in sorted(names - inherited):
        if not name.startswith("_"):
            member = inspect.getattr_static(cls, name, None)
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            yield f"{name}{signature_of(function)}" if inspect.isfunction(function) else name


@functools.cache
def public_classes() -> frozenset[type]:
    """Every class that some package lists."""
    modules = [importlib.import_module(package) for package in PACKAGES]
    listed = (getattr(module, name) for module in modules for name in module.__all__)
    return frozenset(one for one in listed if inspect.isclass(one))


def is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0].startswith("leyden")


def constructed_here(cls: type) -> bool:
    """Whether a class of this project constructs it; signatures of others change with their versions."""
    home = next(base for base in cls.__mro__ if "__init__" in vars(base) or "__new__" in vars(base))
    return is_ours(home)


def signature_of(function: Any) -> str:
    """Names, kinds and defaults of the arguments, without their types.

    >>> def f(a, /, b=1, *rest, c, d="x", **more): ...
    >>> signature_of(f)
    "(a, /, b=1, *rest, c, d='x', **more)"
    """
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    parts: list[str] = []
    for place, parameter in enumerate(parameters):
        former = parameters[place - 1].kind if place else None
        if former is parameter.POSITIONAL_ONLY and parameter.kind is not parameter.POSITIONAL_ONLY:
            parts.append("/")
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        if keyword and former not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            parts.append("*")
        default = "" if parameter.default is parameter.empty else f"={shown(parameter.default)}"
        parts.append(f"{_PREFIXES.get(parameter.kind, '')}{parameter.name}{default}")
    if parameters and parameters[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return f"({', '.join(parts)})"


def shown(default: object) -> str:
    """A default as it is written, without the address of an object."""
    if inspect.isclass(default) or inspect.isroutine(default):
        return default.__qualname__
    return re.sub(r" at 0x[0-9a-f]+", "", repr(default))


def committed() -> list[str]:
    return LIST.read_text(encoding="utf-8").splitlines()


def test_the_public_surface_is_the_committed_one() -> None:
    changes = [
        line
        for line in difflib.unified_diff(committed(), surface(), lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    assert not changes, (
        f"the public surface changed; if that is meant, run '{COMMAND}' and add a line to CHANGELOG.md:\n"
        + "\n".join(changes)
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_listed_once_and_exist(package: str) -> None:
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    assert not [name for name in module.__all__ if not hasattr(module, name)]
    assert not [name for name in module.__all__ if name.startswith("_") and name != "__version__"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_class_function_and_method_has_a_docstring_of_its_own(package: str) -> None:
    module = importlib.import_module(package)
    undocumented = []
    for name in module.__all__:
        public = getattr(module, name)
        if inspect.isclass(public):
            if not (vars(public).get("__doc__") or "").strip():
                undocumented.append(name)
            for member in members_of(public):
                method = inspect.getattr_static(public, member.partition("(")[0], None)
                function = getattr(method, "__func__", method)
                described = inspect.isfunction(function) or isinstance(method, property)
                if described and not (function.__doc__ or "").strip():
                    undocumented.append(f"{name}.{member}")
        elif inspect.isroutine(public) and not (public.__doc__ or "").strip():
            undocumented.append(name)
    assert not undocumented


def test_the_list_has_every_package() -> None:
    assert {line.split("(")[0].rpartition(".")[0] for line in committed()} >= set(PACKAGES)


if __name__ == "__main__":
    LIST.write_text("\n".join(surface()) + "\n", encoding="utf-8")
    print(f"{len(surface())} lines in {LIST.relative_to(ROOT)}")
