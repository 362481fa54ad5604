"""What the site adds to the pages in docs/: plugins, references, READMEs, formulas, links into the checkout.

MkDocs calls the functions that begin with ``on_``. A plugin gets its pages by being in ``plugins/``.
"""

from __future__ import annotations

import html
import importlib
import posixpath
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

from latex2mathml.converter import convert
from leyden.claims import SCALES, Claim
from leyden.formatting import count, duration
from leyden.listing import search_text, three_lines
from leyden.manager import Manager, Plugin, discover
from leyden.settings import read_settings
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "core/README.md": "packages/leyden.md",
    "callbacks/README.md": "packages/callbacks.md",
    "datamodules/README.md": "packages/datamodules.md",
}
"""Which page stands for which file of the checkout; a plugin's README is on the plugin's page."""
MODULES = (
    "leyden",
    "leyden.hookspecs",
    "leyden.statistics",
    "leyden.tasks",
    "leyden.lightning",
    "leyden.logger",
    "leyden.tracking",
    "leyden.figures",
    "leyden.cache",
    "leyden.testing",
    "leyden_callbacks",
    "leyden_datamodules",
)
"""What the reference holds besides the plugins."""

_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()[^()\s]+(?=\))")
_EXACT_SECTION = re.compile(
    r"^## [^\n]*\bexact\b[^\n]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL | re.IGNORECASE
)
_NO_HEADING = "show_root_heading: false, show_root_toc_entry: false"
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the plugins and the references into the navigation."""
    pages: dict[str, list[object]] = {
        "Plugins": ["plugins/index.md", *({name: f"plugins/{name}.md"} for name in plugin_names())],
        "Reference": [{module: f"reference/{module}.md"} for module in modules()],
    }
    for entry in config.nav or ():
        if isinstance(entry, dict):
            entry.update({title: pages[title] for title in entry if title in pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated."""
    for uri, content in generated():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what follows from the plugins, and lead links into the checkout to the pages of the site."""
    uri = page.file.src_uri
    if "<!-- exactness -->" in markdown:
        markdown = markdown.replace("<!-- exactness -->", exactness())
    source = next((file for file, page_uri in sources().items() if page_uri == uri), "")
    origin = f"docs/{uri}" if uri == "index.md" or not source else source

    def lead(text: str) -> str:
        return _LINK.sub(lambda link: site_link(link[0], origin, uri, config, files), text)

    return outside_code(markdown, lead)


def on_page_content(html_text: str, **_: object) -> str:
    """Write formulas as MathML, which a browser draws without a script."""
    return _FORMULA.sub(lambda found: formula(html.unescape(found[2]), block=found[1] == "div"), html_text)


def formula(tex: str, *, block: bool) -> str:
    """A formula in TeX as MathML.

    >>> formula("a < b", block=False)[-44:]
    '<mi>a</mi><mo>&#x0003C;</mo><mi>b</mi></mrow></math>'[-44:]
    """
    drawn = convert(" ".join(tex.split()), display="block" if block else "inline")
    return f'<div class="formula">{drawn}</div>' if block else drawn


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Change a page but for what it shows as code."""
    parts = _CODE.split(markdown)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


def site_link(target: str, origin: str, uri: str, config: MkDocsConfig, files: Files) -> str:
    """Where a link of a file of the checkout leads on the site.

    Args:
        target: the link as written, relative to ``origin``.
        origin: the file that holds it, relative to the checkout.
        uri: the page that shows that file.
        config: the site's configuration.
        files: the site's files; a file of the checkout that is no page is added, so that it can be read.
    """
    place, hash_, anchor = target.partition("#")
    if not place or ":" in place:
        return target
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), place))
    page = sources().get(path) or sources().get(f"{path}/README.md")
    if page is None and path.startswith("docs/"):
        page = path.removeprefix("docs/")
    if page is None:
        if not (ROOT / path).is_file():
            return target  # MkDocs says that it leads nowhere
        page = f"files/{path}.txt"
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=(ROOT / path).read_bytes()))
    return posixpath.relpath(page, posixpath.dirname(uri) or ".") + hash_ + anchor


@cache
def plugin_names() -> tuple[str, ...]:
    """The plugins of the checkout."""
    return tuple(sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml")))


@cache
def modules() -> tuple[str, ...]:
    """What the reference holds, a page each."""
    return (*MODULES, *(f"leyden_{name}" for name in plugin_names()))


@cache
def sources() -> dict[str, str]:
    """Which page stands for which file of the checkout."""
    return FILES | {f"plugins/{name}/README.md": f"plugins/{name}.md" for name in plugin_names()}


@cache
def manager() -> Manager:
    """The plugins, as the checkout's plugins.toml has them.

    Raises:
        PluginError: if a plugin of the checkout cannot be used.
    """
    found = discover(read_settings(ROOT / "plugins.toml"))
    missing = [f"plugin '{name}' is not installed" for name in plugin_names() if name not in found.plugins]
    if problems := [*found.problems, *missing]:
        raise PluginError("; ".join(problems))
    return found


def generated() -> Iterator[tuple[str, str]]:
    """The pages that no file in docs/ holds, by their place on the site."""
    for file, uri in FILES.items():
        if uri != "index.md":
            yield uri, (ROOT / file).read_text()
    for name in plugin_names():
        yield f"plugins/{name}.md", plugin_page(manager().plugin(name))
    yield "plugins/index.md", plugins_page()
    for module in modules():
        yield f"reference/{module}.md", reference(module)


def plugins_page() -> str:
    """The list of the plugins."""
    rows = []
    for name in plugin_names():
        paper = manager().plugin(name).paper
        link = f"[{name}](../../plugins/{name}/README.md)"
        rows.append((link, paper.summary, f"[{paper.venue}]({paper.url})") if paper else (link, "", ""))
    return "\n\n".join(
        [
            "# Plugins",
            "One paper each; every one is installed by itself.",
            table(("plugin", "what you get", "paper"), rows),
        ]
    )


def plugin_page(plugin: Plugin) -> str:
    """A plugin's README, between what its paper is and what it contributes."""
    title, _, readme = (ROOT / "plugins" / plugin.name / "README.md").read_text().partition("\n")
    parts = [title, in_short(plugin), readme.strip(), components(plugin), options(plugin)]
    return "\n\n".join(filter(None, [*parts, configurations(plugin), claims(plugin)])) + "\n"


def in_short(plugin: Plugin) -> str:
    """What a user gets, how it is installed and where more of it stands."""
    lines = [f"`pip install {plugin.distribution}`", f"[reference](../reference/leyden_{plugin.name}.md)"]
    if paper := plugin.paper:
        lines.insert(1, f"[paper]({paper.url})")
        if paper.code:
            lines.insert(2, f"[the authors' code]({paper.code})")
    summary = plugin.paper.summary if plugin.paper else plugin.distribution
    return f'!!! abstract "{summary}"\n\n    {" · ".join(lines)}'


def components(plugin: Plugin) -> str:
    """What the plugin contributes, what each promises, and over what each is tuned."""
    rows = [
        (
            f"[`{item.name}`][{item.path}]",
            item.kind,
            item.summary,
            ", ".join(item.supports),
            search_text(item.search),
        )
        for item in plugin.components
    ]
    headings = ("name", "kind", "what it is", "also checked with", "tuned over")
    use = f"```python\n{three_lines(plugin.components[0])}\n```" if plugin.components else ""
    return section("Components", f"{table(headings, rows)}\n\n{use}" if rows else "")


def options(plugin: Plugin) -> str:
    """What the plugin reads from plugins.toml."""
    rows = [(f"`{o.name}`", o.type.__name__, f"`{o.default}`", o.summary) for o in plugin.option_specs]
    return section("Options", table(("key", "type", "default", "meaning"), rows) if rows else "")


def configurations(plugin: Plugin) -> str:
    """The YAML files that come with the plugin, each to be opened."""
    shown = []
    for name, path in plugin.configs.items():
        block = f"```yaml\n{path.read_text().rstrip()}\n```"
        shown.append(f'??? example "{plugin.name}/{name}"\n\n{textwrap.indent(block, "    ")}')
    said = (
        f"`leyden fit --config {plugin.name}/NAME` trains so; `leyden config {plugin.name}/NAME` prints one."
    )
    return section("Configurations", "\n\n".join([said, *shown]) if shown else "")


def claims(plugin: Plugin) -> str:
    """The plugin's claims with their statements."""
    found = [claim for owner, claim in manager().claims() if owner.name == plugin.name]
    return section("Claims", "\n\n".join(claim_text(plugin, claim) for claim in found))


def claim_text(plugin: Plugin, claim: type[Claim]) -> str:
    """A claim: its statements, the rule that judges each, what the paper says, how long a run takes."""
    rows = [(one.text, one.kind, one.paper or "(a check of our own)") for one in claim.statements]
    times = ", ".join(
        f"{scale} {duration(60 * claim.minutes[scale])} with {count(claim.seeds[scale], 'seed')}"
        for scale in SCALES
        if scale in claim.minutes and scale in claim.seeds
    )
    return "\n\n".join(
        [
            f"### {plugin.name}/{claim.name}",
            f"{claim.title}. {claim.source}. `leyden reproduce {plugin.name}/{claim.name}` takes: {times}.",
            table(("statement", "[rule](../../docs/claims.md#the-rules)", "the paper says"), rows),
        ]
    )


def exactness() -> str:
    """For each plugin what its authors say of how exact it is, and the section of its README on it."""
    parts = []
    for name in plugin_names():
        plugin = manager().plugin(name)
        text = (ROOT / "plugins" / name / "README.md").read_text()
        found = _EXACT_SECTION.search(text)
        told = outside_code(found[1].strip(), partial(moved, folder=f"../plugins/{name}")) if found else ""
        link = f"[{name}](../plugins/{name}/README.md)"
        said = plugin.paper.exact if plugin.paper else ""
        parts.append("\n\n".join(filter(None, [f"## {name}", f"{link}: {said}", told])))
    return "\n\n".join(parts)


def moved(text: str, folder: str) -> str:
    """A text whose relative links begin in another folder."""
    return _LINK.sub(lambda link: link[0] if ":" in link[0] else f"{folder}/{link[0]}", text)


def reference(module: str) -> str:
    """A page of the reference: the module's own text, then its public names."""
    loaded = importlib.import_module(module)
    names = [name for name in getattr(loaded, "__all__", ()) if not name.startswith("__")]
    if not names:
        return f"# {module}\n\n::: {module}\n    options: {{{_NO_HEADING}}}\n"
    head = f"::: {module}\n    options: {{members: false, {_NO_HEADING}}}"
    paths = dict.fromkeys([*(f"{module}.{name}" for name in names), *other_components(module)])
    return "\n\n".join([f"# {module}", head, *(f"::: {path}" for path in paths)]) + "\n"


def other_components(module: str) -> Iterable[str]:
    """The components of a package that its plugin names by another path."""
    name = module.removeprefix("leyden_")
    return [item.path for item in manager().plugin(name).components] if name != module else []


def section(heading: str, text: str) -> str:
    """A section, where it has anything to say."""
    return f"## {heading}\n\n{text}" if text else ""


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, without the columns that are empty in every row."""
    columns = list(zip(headings, *rows, strict=True))
    kept = [column for column in columns if any(column[1:])]
    lines = [
        " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line)
        for line in zip(*kept, strict=True)
    ]
    return "\n".join([f"| {lines[0]} |", "|" + " --- |" * len(kept), *(f"| {line} |" for line in lines[1:])])
