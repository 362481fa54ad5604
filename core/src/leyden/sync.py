"""``leyden sync``: install what plugins.toml lists.

What differs is found in the metadata of what is installed, so that pip is not asked where nothing does. Where
something does, pip is asked once for all of it: it resolves and builds everything before it installs
anything, so that a plugin that cannot be had leaves the environment as it was. torch, Lightning and Leyden
itself keep their versions.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import url2pathname

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from rich.console import Console

from leyden.errors import LeydenError, UsageError, hint
from leyden.execute import termination_as_exit
from leyden.formatting import count, error_line, listing
from leyden.settings import FILE_NAME, Key, PluginSettings, Settings, load_settings, shown

_ELSEWHERE = "installed from elsewhere"

KEPT = ("leyden", "lightning", "torch")
"""Distributions whose installed versions stay, because everything else rests on them."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A plugin that plugins.toml lists with where it comes from.

    Attributes:
        said: what plugins.toml says of it.
        folder: the folder it is installed from; None for a requirement.
        requirement: the requirement it is installed from; None for a folder.
        installed: its distribution, as far as it is installed.
        change: why it must be installed; empty where it need not.
    """

    said: PluginSettings
    folder: Path | None = None
    requirement: Requirement | None = None
    installed: Distribution | None = None
    change: str = ""

    @property
    def key(self) -> Key:
        """The key of plugins.toml that says where it comes from."""
        return ("plugins", self.said.name, "requirement" if self.folder is None else "path")

    @property
    def arguments(self) -> list[str]:
        """What pip is given for it."""
        return [str(self.requirement)] if self.folder is None else ["--editable", str(self.folder)]


def sync(*, dry_run: bool, console: Console) -> int:
    """Install what the nearest plugins.toml lists, and print a line for each plugin.

    Args:
        dry_run: whether only to say what would be installed.
        console: where to print.

    Returns:
        The exit status, 0.

    Raises:
        UsageError: if there is no plugins.toml, or it lists what cannot be a plugin.
        LeydenError: if pip cannot install it all; the text names the plugin and its line of plugins.toml.
            Nothing was changed then.
    """
    settings = load_settings()
    if settings.path is None:
        raise UsageError(f"there is no {FILE_NAME} here or above; nothing says which plugins to install")
    present = _present()
    before = _versions(present)
    wanted = [_wanted(settings, said, present) for said in settings.plugins.values() if _is_meant(said)]
    changing = [one for one in wanted if one.change]
    if not changing:
        _tell(console, wanted, [], before, dry_run=dry_run)
        return 0
    for one in changing:
        console.print(f"{one.said.name}: {one.change}", markup=False, soft_wrap=True)
    console.print(f"asking pip for {count(len(changing), 'plugin')}", markup=False)
    report = _install(settings, wanted, before, dry_run=dry_run)
    _tell(console, wanted, report, before, dry_run=dry_run)
    return 0


def _is_meant(said: PluginSettings) -> bool:
    return said.enabled and (said.path is not None or said.requirement is not None)


def _present() -> dict[str, Distribution]:
    """What is installed, by normalized name; of several of one name, the one that is imported."""
    importlib.invalidate_caches()
    found: dict[str, Distribution] = {}
    for distribution in distributions():
        if distribution.name:
            found.setdefault(canonicalize_name(distribution.name), distribution)
    return found


def _wanted(settings: Settings, said: PluginSettings, present: Mapping[str, Distribution]) -> Wanted:
    """What plugins.toml says of a plugin beside what is installed."""
    if said.path is not None:
        return _from_folder(settings, said, said.path, present)
    key = ("plugins", said.name, "requirement")
    try:
        requirement = Requirement(said.requirement or "")
    except InvalidRequirement as error:
        why = error_line(str(error))
        bare = re.match(r"[a-z+]+://", said.requirement or "")
        help = f"; an address is written as 'DISTRIBUTION @ {said.requirement}'" if bare else ""
        problem = f"'{said.requirement}' is no requirement that pip knows: {why}{help}"
        raise settings.error(key, problem) from error
    installed = present.get(canonicalize_name(requirement.name))
    change = "" if installed is None else _unmet(requirement, present)
    if installed is None and (requirement.marker is None or requirement.marker.evaluate()):
        change = "not installed"
    return Wanted(said=said, requirement=requirement, installed=installed, change=change)


def _from_folder(
    settings: Settings, said: PluginSettings, path: str, present: Mapping[str, Distribution]
) -> Wanted:
    assert settings.path is not None
    key = ("plugins", said.name, "path")
    folder = (settings.path.parent / path).resolve()
    if not folder.is_dir():
        raise settings.error(key, f"there is no folder '{path}' beside {FILE_NAME}")
    project = _project(settings, key, folder)
    plugins = project.get("entry-points", {}).get("leyden", {})
    if plugins and said.name.replace("-", "_") not in {name.replace("-", "_") for name in plugins}:
        raise settings.error(key, f"'{path}' holds no plugin '{said.name}'; {hint(said.name, plugins)}")
    installed = next((one for one in present.values() if _is_editable_from(one, folder)), None)
    if installed is not None:
        change = _stale(project, installed, present)
    else:
        elsewhere = present.get(canonicalize_name(project.get("name", "")))
        change = _ELSEWHERE if elsewhere else "not installed"
    return Wanted(said=said, folder=folder, installed=installed, change=change)


def _project(settings: Settings, key: Key, folder: Path) -> dict[str, Any]:
    """The table ``[project]`` of a folder; empty where another file than pyproject.toml describes it."""
    file = folder / "pyproject.toml"
    if not file.is_file():
        if (folder / "setup.py").is_file():
            return {}
        raise settings.error(key, f"'{shown(folder)}' holds no pyproject.toml, so pip cannot install it")
    try:
        project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise settings.error(key, f"{shown(file)} cannot be read: {error}") from error
    return project


def _is_editable_from(distribution: Distribution, folder: Path) -> bool:
    origin = _origin(distribution)
    place = urlsplit(origin.get("url", ""))
    if place.scheme != "file" or not origin.get("dir_info", {}).get("editable", False):
        return False
    return Path(url2pathname(place.path)).resolve() == folder


def _origin(distribution: Distribution) -> dict[str, Any]:
    """What pip wrote of where it got a distribution; empty where it came from an index."""
    text = distribution.read_text("direct_url.json")
    origin: dict[str, Any] = json.loads(text) if text else {}
    return origin


def _stale(project: Mapping[str, Any], installed: Distribution, present: Mapping[str, Distribution]) -> str:
    """What a folder says otherwise than the metadata that pip made of it, or lacks; empty for nothing."""
    dynamic = project.get("dynamic", ())
    if "version" in project and project["version"] != installed.version:
        return f"its version is {project['version']}, installed as {installed.version}"
    required = [Requirement(text) for text in installed.requires or ()]
    plain = {one for one in required if "extra" not in str(one.marker or "")}
    if "name" in project and "dependencies" not in dynamic:
        try:
            if {Requirement(text) for text in project.get("dependencies", ())} != plain:
                return "its dependencies are others than when it was installed"
        except InvalidRequirement:
            return "its dependencies are others than when it was installed"
    plugins = {entry.name: entry.value for entry in installed.entry_points.select(group="leyden")}
    if "name" in project and project.get("entry-points", {}).get("leyden", {}) != plugins:
        return "its entry points are others than when it was installed"
    return next(filter(None, (_unmet(one, present) for one in plain)), "")


def _unmet(requirement: Requirement, present: Mapping[str, Distribution], *, deep: bool = True) -> str:
    """Why what is installed does not meet a requirement; empty where it does.

    Args:
        requirement: the requirement.
        present: what is installed.
        deep: whether what it needs itself counts too.
    """
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return ""
    installed = present.get(canonicalize_name(requirement.name))
    if installed is None:
        return f"needs {requirement}, which is not installed"
    if not requirement.specifier.contains(installed.version, prereleases=True):
        return f"needs {requirement}, and {installed.version} is installed"
    if requirement.url is not None and _place(requirement.url) != _place_of(_origin(installed)):
        return _ELSEWHERE
    if not deep:
        return ""
    for text in installed.requires or ():
        below = Requirement(text)
        asked = below.marker is None or any(
            below.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
        )
        if asked:
            below.marker = None
            if problem := _unmet(below, present, deep=False):
                return problem
    return ""


def _place(url: str) -> tuple[str, ...]:
    """What an address says of where a distribution lies; pip writes down neither passwords nor hashes.

    >>> _place("git+https://me:word@example.org/all.git@v1#subdirectory=plugins/two")
    ('git', 'https', 'example.org', '/all.git', 'v1', 'plugins/two')
    """
    parts = urlsplit(url)
    system, _, scheme = parts.scheme.rpartition("+")
    path, _, revision = parts.path.rpartition("@") if system and "@" in parts.path else (parts.path, "", "")
    folder = parse_qs(parts.fragment).get("subdirectory", [""])[0]
    return system, scheme, parts.netloc.rpartition("@")[2], path, revision, folder.strip("/")


def _place_of(origin: Mapping[str, Any]) -> tuple[str, ...]:
    """The same, of what pip wrote down."""
    parts = urlsplit(origin.get("url", ""))
    used = origin.get("vcs_info", {})
    revision, folder = used.get("requested_revision", ""), origin.get("subdirectory", "")
    return used.get("vcs", ""), parts.scheme, parts.netloc.rpartition("@")[2], parts.path, revision, folder


def _install(
    settings: Settings, wanted: Sequence[Wanted], before: Mapping[str, str], *, dry_run: bool
) -> list[dict[str, Any]]:
    """Let pip install what changes, all at once; returns what its report says it installed."""
    if importlib.util.find_spec("pip") is None:
        raise LeydenError("sync needs pip, which this environment has not: run 'python -m ensurepip'")
    arguments = [
        argument
        for one in wanted
        if one.change or one.folder is None  # a folder that is there would be built anew
        for argument in one.arguments
    ]
    kept = {name: before[name] for name in KEPT if name in before}
    for one in wanted:
        if one.folder is not None and not one.change and one.installed is not None:
            kept[canonicalize_name(one.installed.name)] = one.installed.version
    needed = _needed(wanted, _present(), kept)
    limits = [str(requirement) for requirements in needed.values() for requirement in requirements]
    limits += [f"{name}=={version}" for name, version in kept.items()]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("".join(f"{limit}\n" for limit in limits))
        options = ["--constraint", str(constraints), *(["--dry-run"] if dry_run else [])]
        installed, output = _pip_install([*options, *arguments])
        done = {canonicalize_name(one["metadata"]["name"]) for one in installed}
        moved = [one for one in wanted if _has_moved(one) and done.isdisjoint(_names(one))]
        if moved and output is None:
            again = [argument for one in moved for argument in one.arguments]
            more, output = _pip_install([*options, "--force-reinstall", "--no-deps", *again])
            installed += more
    if output is None:
        return installed
    problem = _explained(settings, wanted, output, needed)
    if changed := _versions(_present()).items() ^ before.items():
        names = ", ".join(sorted({name for name, _ in changed}))
        problem = f"{problem}; pip had changed {names} by then"
    raise LeydenError(problem)


def _pip_install(arguments: Sequence[str]) -> tuple[list[dict[str, Any]], str | None]:
    """What pip's report says it installed, and what pip printed where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        status, output = _pip(["install", "--report", str(report), *arguments])
        if status:
            return [], output
        installed: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
        return installed, None


def _has_moved(wanted: Wanted) -> bool:
    """Whether it comes from another address; pip leaves what has the same version as it is."""
    return (
        wanted.requirement is not None and wanted.requirement.url is not None and wanted.change == _ELSEWHERE
    )


def _needed(
    wanted: Sequence[Wanted], present: Mapping[str, Distribution], kept: Mapping[str, str]
) -> dict[str, list[Requirement]]:
    """What must go on to be met, by who needs it: pip looks at nothing but what it is asked to install.

    That is what Leyden and all else in `KEPT` need, and the plugins that pip is not asked for.

    Args:
        wanted: what plugins.toml lists.
        present: what is installed.
        kept: the versions that stay, of which nothing more has to be said.
    """
    asked = {
        canonicalize_name(one.installed.name)
        for one in wanted
        if one.installed is not None and (one.change or one.folder is None)
    }
    needed: dict[str, list[Requirement]] = {}
    for name, distribution in present.items():
        stays = name in KEPT or distribution.entry_points.select(group="leyden")
        if not stays or name in asked:
            continue
        limits = []
        for text in distribution.requires or ():
            one = Requirement(text)
            applies = one.marker is None or one.marker.evaluate({"extra": ""})
            other = canonicalize_name(one.name) not in kept
            if applies and other and one.specifier and not _unmet(one, present, deep=False):
                limits.append(Requirement(f"{one.name}{one.specifier}"))
        needed[f"{distribution.name} {distribution.version}"] = limits
    return needed


def _pip(arguments: Sequence[str]) -> tuple[int, str]:
    """Run pip; returns its status and all it printed. It ends when this process is told to."""
    quiet = ["--no-input", "--no-color", "--disable-pip-version-check"]
    command = [sys.executable, "-P", "-m", "pip", *quiet, *arguments]
    with (
        termination_as_exit(),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        try:
            output, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
    return process.returncode, output


def _versions(present: Mapping[str, Distribution]) -> dict[str, str]:
    return {name: distribution.version for name, distribution in present.items()}


def _explained(
    settings: Settings, wanted: Sequence[Wanted], output: str, needed: Mapping[str, Sequence[Requirement]]
) -> str:
    """What pip printed, in one line that names the plugin and its line of plugins.toml."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    why, about = _conflict(lines, needed) or _not_built(lines) or _not_found(lines) or _last_error(lines)
    changing = [one for one in wanted if one.change]
    if len(changing) == 1 and not _conflict(lines, needed):
        return str(settings.error(changing[0].key, why))
    for one in sorted(wanted, key=lambda one: not one.change):
        if any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", about) for name in _names(one)):
            return str(settings.error(one.key, why))
    assert settings.path is not None
    return f"{shown(settings.path)}: {why}"


def _names(wanted: Wanted) -> Iterable[str]:
    """How pip calls a plugin in what it prints."""
    if wanted.requirement is not None:
        yield from (wanted.requirement.name, canonicalize_name(wanted.requirement.name))
    if wanted.folder is not None:
        yield str(wanted.folder)
        yield wanted.folder.as_uri()
        name = _name_in(wanted.folder)
        yield from (name, canonicalize_name(name)) if name else ()


def _name_in(folder: Path) -> str:
    try:
        name: str = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    except (OSError, KeyError, ValueError):
        return ""
    return name


def _conflict(lines: Sequence[str], needed: Mapping[str, Sequence[Requirement]]) -> tuple[str, str] | None:
    """Requirements that exclude each other; ``needed`` tells whose those are that pip was given as limits."""
    start = next((place for place, line in enumerate(lines) if line == "The conflict is caused by:"), None)
    if start is None:
        return None
    causes = []
    for line in lines[start + 1 :]:
        if not re.search(r" depends on |^The user requested ", line):
            break
        causes.append(line)
    needs = next((found for line in causes if (found := re.match(r"(\S+ \S+) depends on (.+)", line))), None)
    fixed = next(
        (found for line in causes if (found := re.search(r"\(constraint\) (\S+)==(\S+)", line))), None
    )
    if needs and fixed:
        why = (
            f"{needs[1]} needs {needs[2]}, and {fixed[1]} {fixed[2]} is installed, which sync leaves as it is"
        )
        return why, needs[1]
    limit = next((found for line in causes if (found := re.search(r"\(constraint\) (.+)", line))), None)
    if needs and limit:
        name = canonicalize_name(Requirement(limit[1]).name)
        owners = [
            owner
            for owner, requirements in needed.items()
            if any(canonicalize_name(one.name) == name for one in requirements)
        ]
        return f"{needs[1]} needs {needs[2]}, and {limit[1]} is needed by {listing(owners)}", needs[1]
    return "; ".join(causes), " ".join(causes)


def _not_found(lines: Sequence[str]) -> tuple[str, str] | None:
    """A requirement of which there is no version."""
    for line in lines:
        found = re.match(r"ERROR: Could not find a version that satisfies the requirement (.+)", line)
        if found:
            asked, _, versions = found[1].partition(" (from versions: ")
            requirement, _, origin = asked.partition(" (from ")
            there = versions.rstrip(")") or "none"
            of_whom = f"{origin.rstrip(')')} needs it; " if origin else ""
            return (
                f"pip finds no version of {requirement}; {of_whom}there is {there}",
                f"{requirement} {origin}",
            )
    return None


def _not_built(lines: Sequence[str]) -> tuple[str, str] | None:
    """A package that cannot be built, or cannot say what it needs."""
    failed = [
        line for line in lines if re.search(r"\bFailed to build |^error: metadata-generation-failed", line)
    ]
    if not failed:
        return None
    raised = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception|Exit)\b", line)]
    raised += [line for line in lines if re.match(r"fatal: |error: pathspec ", line)][:1]  # git's own words
    reasons = [line.partition("ERROR: ")[2] for line in lines if line.startswith("ERROR: ")]
    reason = next(iter([*raised[-1:], *reasons, *failed]))
    return f"it cannot be built: {error_line(reason)}", " ".join(
        [*failed, *(line for line in lines if line.startswith("╰─> "))]
    )


def _last_error(lines: Sequence[str]) -> tuple[str, str]:
    """Whatever else pip calls an error."""
    errors = [line for line in lines if re.match(r"error:", line, re.IGNORECASE)]
    line = errors[-1].partition(":")[2].strip() if errors else (lines or ["pip failed without a word"])[-1]
    return f"pip: {error_line(line)}", " ".join(errors)


def _tell(
    console: Console,
    wanted: Sequence[Wanted],
    report: Sequence[Mapping[str, Any]],
    before: Mapping[str, str],
    *,
    dry_run: bool,
) -> None:
    """Print a line for each plugin, and one for what came with them."""
    new: dict[str, str] = {
        canonicalize_name(one["metadata"]["name"]): one["metadata"]["version"] for one in report
    }
    would = "would be " if dry_run else ""
    told = set()
    for one in wanted:
        name = next((name for name in map(canonicalize_name, _names(one)) if name in new), "")
        source = f", editable from {shown(one.folder)}" if one.folder is not None else ""
        if name:
            told.add(name)
            what = would + _change(before.get(name), new[name])
            title = f"{name} {new[name]}"
        else:
            what = "already there"
            title = f"{one.installed.name} {one.installed.version}" if one.installed else str(one.requirement)
        console.print(f"{what}: {one.said.name} ({title}{source})", markup=False, soft_wrap=True)
    others = [f"{name} {version}" for name, version in new.items() if name not in told]
    if others:
        console.print(f"{would}installed with them: {', '.join(others)}", markup=False, soft_wrap=True)
    if not wanted:
        console.print(
            f"nothing to do: {FILE_NAME} lists no plugin with a path or a requirement", markup=False
        )
    elif not report:
        console.print("nothing to do", markup=False)


def _change(before: str | None, version: str) -> str:
    if before is None:
        return "installed"
    return "installed anew" if before == version else f"changed from {before}"
