"""``leyden new``: a plugin that installs, trains and passes the conformance kit before a line is changed.

Its files are the templates under ``skeleton``: what every plugin has (``plugin``), what its kind adds, and,
where it becomes a repository of its own, what the checkout of Leyden would have given it (``repository``).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.util
import keyword
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from leyden import __version__
from leyden.errors import LeydenError, UsageError, one_line, unknown
from leyden.files import write_atomic
from leyden.settings import FILE_NAME, read_settings, shown

if TYPE_CHECKING:
    from rich.console import Console

KINDS = ("optimizer", "lr_scheduler", "callback", "module", "layer", "loss")
"""The kinds of which there is a skeleton."""

LONGEST_NAME = 24
"""Letters of a name; modules, classes and lines of code are made of it."""

_SKELETON = Path(__file__).with_name("skeleton")
_SUFFIX = ".template"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Created:
    """A plugin that was made.

    Attributes:
        name: the plugin's name.
        folder: where it lies.
        changed: the files of the checkout that list it now; empty outside a checkout.
    """

    name: str
    folder: Path
    changed: tuple[Path, ...] = ()


def new(name: str, kind: str, *, console: Console) -> int:
    """Make a plugin as `new_plugin` does, and print where it lies and what to do next.

    Args:
        name: the plugin's name.
        kind: one of `KINDS`.
        console: where to print.

    Returns:
        The exit status, 0.
    """
    created = new_plugin(name, kind)
    folder = shown(created.folder)
    listed = f", listed in {' and '.join(shown(path) for path in created.changed)}" if created.changed else ""
    test = f"make test PLUGIN={name}" if created.changed else f"make -C {folder} test"
    for line in (
        f"made {folder}{listed}",
        "try it, then replace what its README names:",
        f"  pip install -e {folder}",
        f"  leyden reproduce {name} --scale smoke",
        f"  {test}",
    ):
        console.print(line, markup=False, soft_wrap=True)
    return 0


def new_plugin(name: str, kind: str, directory: Path | None = None) -> Created:
    """Make a plugin from the skeleton of its kind, wholly or not at all.

    Inside a checkout of Leyden it lands in ``plugins/NAME`` and is added to the lists of ``plugins.toml``
    and ``pyproject.toml``; elsewhere in ``leyden-NAME``, a repository with licence, changelog, Makefile and
    settings of its own.

    Args:
        name: the plugin's name, such as ``"my_paper"``; the distribution is ``leyden-my-paper``, the package
            ``leyden_my_paper``, the class ``MyPaper``.
        kind: one of `KINDS`.
        directory: where to make it; the working directory by default.

    Returns:
        Where it lies, and what lists it.

    Raises:
        UsageError: if the name cannot be used or is taken, or the kind is unknown.
        LeydenError: if a list of the checkout is not as expected; nothing was changed.
        OSError: if a file cannot be written; nothing was changed.
    """
    here = (Path.cwd() if directory is None else directory).absolute()
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    _check_name(name)
    checkout = checkout_of(here)
    folder = here / _distribution(name) if checkout is None else checkout / "plugins" / name
    _check_free(name, folder)
    words = _words(name, kind, alone=checkout is None)
    files = list(_files(words, alone=checkout is None))
    _check_code(words, files)
    lists = {} if checkout is None else _lists(name, checkout)
    _write(folder, dict(files), lists)
    return Created(name=name, folder=folder, changed=tuple(lists))


def checkout_of(directory: Path) -> Path | None:
    """The checkout of Leyden that a directory lies in.

    It is known by its ``plugins.toml`` beside a ``core`` that holds the distribution ``leyden``.

    Args:
        directory: where to begin to look upwards.

    Returns:
        Its root; None outside of one.
    """
    for folder in (directory, *directory.parents):
        core = folder / "core" / "pyproject.toml"
        if (folder / FILE_NAME).is_file() and core.is_file():
            try:
                project = tomllib.loads(core.read_text()).get("project", {})
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
                continue
            if project.get("name") == "leyden":
                return folder
    return None


def class_name(name: str) -> str:
    """The name of a plugin's class.

    >>> class_name("my_paper")
    'MyPaper'
    """
    return "".join(part.capitalize() for part in name.split("_"))


def _check_name(name: str) -> None:
    if not _is_name(name):
        near = _nearest(name)
        help = f"; did you mean '{near}'?" if near else ""
        raise UsageError(
            f"argument NAME: '{_short(name)}' cannot name a plugin: expected lower-case letters and digits, "
            f"words joined by single underscores, no keyword of Python{help}"
        )
    if name.startswith(_package("")):
        bare = name.removeprefix(_package(""))
        raise UsageError(
            f"argument NAME: '{_short(name)}' would make a package '{_short(_package(name))}', as 'leyden' "
            f"is put before every name; did you mean '{_short(bare)}'?"
        )
    if len(name) > LONGEST_NAME:
        raise UsageError(
            f"argument NAME: expected at most {LONGEST_NAME} letters, got {len(name)} in '{_short(name)}'"
        )


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not keyword.iskeyword(name)


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:39]}…"


def _nearest(name: str) -> str:
    """The name that is meant, in letters that it may have; empty where none would do.

    >>> _nearest("leyden-MyPaper"), _nearest("Präzise Schritte"), _nearest("None")
    ('my_paper', 'prazise_schritte', '')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()
    near = re.sub(r"[^a-z0-9]+", "_", apart).strip("_").removeprefix(_package(""))
    good = _is_name(near) and len(near) <= LONGEST_NAME and not hasattr(builtins, class_name(near))
    return near if good and not keyword.iskeyword(class_name(near)) else ""


def _check_free(name: str, folder: Path) -> None:
    """Refuse a name that a folder, a plugin or a module has already."""
    if folder.exists() or folder.is_symlink():
        raise _taken(name, f"{shown(folder)} exists")
    for entry in entry_points(group="leyden"):
        if entry.name.replace("-", "_") == name:
            home = f" from {entry.dist.name} {entry.dist.version}" if entry.dist else ""
            raise _taken(name, f"a plugin of that name is installed{home}")
    for module in (_package(name), name):
        if importlib.util.find_spec(module) is not None:
            raise _taken(name, f"there is a module '{module}'")


def _check_code(words: Mapping[str, str], files: Sequence[tuple[Path, str]]) -> None:
    """Refuse a name that would have two meanings in the plugin's code."""
    name, class_ = words["slug"], words["name"]
    paths = [path for path, _ in files]
    if len(set(paths)) < len(paths) or name == words["function"]:
        raise _taken(name, f"the skeleton of this kind has a '{name}' of its own")
    if hasattr(builtins, class_) or any(
        _bound(text).count(class_) > 1 for path, text in files if path.suffix == ".py"
    ):
        raise _taken(name, f"its class would be '{class_}', which the skeleton's code uses already")


def _bound(source: str) -> list[str]:
    """The names that a module imports and the classes that it defines."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.ClassDef):
            names.append(node.name)
    return names


def _taken(name: str, why: str) -> UsageError:
    return UsageError(f"argument NAME: '{name}' is taken: {why}")


def _files(words: Mapping[str, str], *, alone: bool) -> Iterator[tuple[Path, str]]:
    """The plugin's files, by their paths in its folder."""
    for part in ("plugin", words["kind"], *(["repository"] if alone else [])):
        root = _SKELETON / part
        for template in sorted(root.rglob(f"*{_SUFFIX}")):
            path = template.relative_to(root).as_posix().removesuffix(_SUFFIX)
            for placeholder, name in (("PACKAGE", words["package"]), ("SLUG", words["slug"]), ("DOT", ".")):
                path = path.replace(placeholder, name)
            yield Path(path), Template(template.read_text(encoding="utf-8")).substitute(words)


def _words(name: str, kind: str, *, alone: bool) -> dict[str, str]:
    """What stands for the names in the templates."""
    core = ".".join(__version__.split(".")[:2])
    following = (
        f"0.{int(core.split('.')[1]) + 1}" if core.startswith("0.") else f"{int(core.split('.')[0]) + 1}"
    )
    words = {
        "name": class_name(name),
        "slug": name,
        "package": _package(name),
        "distribution": _distribution(name),
        "kind": kind,
    }
    of_kind: dict[str, Any] = tomllib.loads((_SKELETON / kind / "kind.toml").read_text(encoding="utf-8"))
    needed = [
        *of_kind.pop("dependencies"),
        f"leyden>={core},<{following}",
        f"leyden-datamodules>={core},<{following}",
        "lightning>=2.5,!=2.6.2,!=2.6.3",
        "torch>=2.4",
    ]
    words |= {key: Template(text).substitute(words) for key, text in of_kind.items()}
    homes = {f"{words['package']}.{words['module']}": words["name"]}
    homes[f"{words['package']}.{name}"] = words["function"]
    settings = (_SKELETON / "settings.toml").read_text(encoding="utf-8")
    return {
        **words,
        "dependencies": "\n".join(f'    "{requirement}",' for requirement in needed),
        "imports": "\n".join(f"    from {home} import {homes[home]}" for home in sorted(homes)),
        "model": "Component, Paper, Range" if words["search"] else "Component, Paper",
        "tool_settings": settings.rstrip("\n") if alone else "",
        "testing": _TESTING_ALONE
        if alone
        else f"`make test PLUGIN={name}` in the checkout, or `pytest tests` here.",
    }


_TESTING_ALONE = """\
`make test` sets up `.venv` and runs every check and test. By hand:

```console
pip install -e '.[test]'
pytest
```"""


def _lists(name: str, checkout: Path) -> dict[Path, str]:
    """The files of a checkout that list its plugins, with the new one added; comments stay."""
    import tomlkit

    plugins, workspace = checkout / FILE_NAME, checkout / "pyproject.toml"
    if name in {listed.replace("-", "_") for listed in read_settings(plugins).plugins}:
        raise _taken(name, f"{shown(plugins)} lists it")
    try:
        document: Any = tomlkit.parse(plugins.read_text(encoding="utf-8"))
        entry = tomlkit.table()
        entry.add("path", f"plugins/{name}")
        entry.add(tomlkit.nl())
        document.setdefault("plugins", tomlkit.table(is_super_table=True)).add(name, entry)
        settings: Any = tomlkit.parse(workspace.read_text(encoding="utf-8"))
        linter = settings["tool"]["importlinter"]
        linter["root_packages"].append(_package(name))
        for contract in linter["contracts"]:
            if contract["type"] == "layers":
                contract["layers"][0] = f"{contract['layers'][0]} | {_package(name)}"
            elif contract["type"] == "forbidden":
                contract["source_modules"].append(f"{_package(name)}.{name}")
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise LeydenError(
            f"cannot add '{name}' to {shown(plugins)} and {shown(workspace)}, which are not as they were "
            f"in Leyden's checkout: {one_line(error)}"
        ) from error
    return {plugins: tomlkit.dumps(document), workspace: tomlkit.dumps(settings)}


def _write(folder: Path, files: Mapping[Path, str], lists: Mapping[Path, str]) -> None:
    """Write a folder and change the lists; where one of them fails, all are as they were."""
    before = {path: path.read_bytes() for path in lists}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        error.filename = os.fspath(folder)  # rather than the draft, which nobody asked for
        raise
    try:
        for path, text in files.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8")
        draft.chmod(0o777 & ~_umask())
        if not lists:
            _make_repository(draft)
        draft.rename(folder)
        draft = folder
        for path, text in lists.items():
            write_atomic(path, text)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        for path, content in before.items():
            if path.read_bytes() != content:
                write_atomic(path, content)
        raise


def _make_repository(folder: Path) -> None:
    """Let git have it, where there is git and the folder is in no repository yet."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        inside = subprocess.run(
            ["git", "rev-parse"], cwd=folder, capture_output=True, check=False, timeout=10
        )
        if inside.returncode:
            subprocess.run(["git", "init", "-q"], cwd=folder, capture_output=True, check=False, timeout=10)


def _umask() -> int:
    """The mode bits that new files do not get; mkdtemp gives none of them to anyone else."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _package(name: str) -> str:
    return f"leyden_{name}"


def _distribution(name: str) -> str:
    return f"leyden-{name.replace('_', '-')}"
