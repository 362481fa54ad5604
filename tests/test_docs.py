"""The site builds without a warning, asks nothing of other hosts, and shows every plugin and public name."""

from __future__ import annotations

import html
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
from leyden.manager import discover
from leyden.settings import read_settings

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))
PACKAGES = (
    "leyden",
    "leyden.testing",
    "leyden_callbacks",
    "leyden_datamodules",
    *(f"leyden_{name}" for name in PLUGINS),
)


def build(place: Path, *, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", place],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = build(place)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Requests(HTMLParser):
    """What a browser fetches for a page without being asked: not the links that a reader may follow."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get("href") or "")
        self.found += [given[name] or "" for name in ("src", "srcset", "poster", "data") if name in given]


def pages(site: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(site.rglob("*.html")):
        yield path, path.read_text()


def test_nothing_is_asked_of_another_host(site: Path) -> None:
    for path, text in pages(site):
        requests = Requests()
        requests.feed(text)
        assert requests.found
        assert 'class="mermaid"' not in text, f"{path.name}: the theme fetches what draws a diagram"
        asked = [address for address in requests.found if re.match(r"(https?:)?//", address)]
        assert not asked, f"{path.name} asks for {asked}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//", path.read_text()), path
        assert not re.search(r"@import", path.read_text()), path


def test_what_is_asked_of_this_host_is_there(site: Path) -> None:
    for path, text in pages(site):
        requests = Requests()
        requests.feed(text)
        for address in requests.found:
            if not address.startswith(("data:", "/")):
                assert (path.parent / address.partition("?")[0]).exists(), f"{path.name} asks for {address}"


def test_formulas_are_drawn_without_a_script(site: Path) -> None:
    claims = (site / "claims.html").read_text()
    assert len(re.findall("<math ", claims)) >= 20
    for path, text in pages(site):
        assert "arithmatex" not in text, path.name
        shown = re.sub(r"<(pre|code|script).*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\\(frac|bar|sqrt|sigma)\b", shown), path.name


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_has_its_page(site: Path, name: str) -> None:
    found = discover(read_settings(ROOT / "plugins.toml"))
    plugin = found.plugin(name)
    text = html.unescape((site / "plugins" / f"{name}.html").read_text())
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text))
    assert plugin.paper is not None
    for said in (plugin.paper.summary, plugin.distribution):
        assert said in plain
    exact = re.sub(r"<[^>]+>", "", html.unescape((site / "exact.html").read_text()))
    assert plugin.paper.exact in exact
    readme = (ROOT / "plugins" / name / "README.md").read_text()
    told = readme.partition("## What is exact and what is reconstructed\n")[2].split()
    assert told
    assert " ".join(told[:3]) in exact
    for component in plugin.components:
        assert f'href="../reference/leyden_{name}.html#{component.path}"' in text, component.path
        assert re.sub(r"\s+", " ", component.summary) in plain
    for config in plugin.configs:
        assert f"{name}/{config}" in plain
    claims = [claim for owner, claim in found.claims() if owner.name == name]
    assert claims
    for claim in claims:
        for statement in claim.statements:
            assert re.sub(r"\s+", " ", statement.text) in plain, statement.id


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(site: Path, package: str) -> None:
    text = (site / "reference" / f"{package}.html").read_text()
    for name in importlib.import_module(package).__all__:
        if not name.startswith("__"):
            assert f'id="{package}.{name}"' in text, name


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Page\n\n[there](missing.md) [here](#missing)\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    kept = settings[settings.index("validation:") :]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: one\n{kept}")
    done = build(tmp_path / "site", config=tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert "'missing.md'" in done.stderr
    assert "'#missing'" in done.stderr


def test_links_of_a_readme_lead_to_pages_of_the_site(hooks: ModuleType) -> None:
    def led(target: str, origin: str, uri: str) -> str:
        return hooks.site_link(target, origin, uri, None, None)

    plugin = "plugins/sps_safe/README.md"
    assert (
        led("../../CONTRIBUTING.md#a-plugin", plugin, "plugins/sps_safe.md") == "../contributing.md#a-plugin"
    )
    assert led("../../core/README.md", plugin, "plugins/sps_safe.md") == "../packages/leyden.md"
    assert led("../plugins/sps_safe/README.md", "docs/use.md", "use.md") == "plugins/sps_safe.md"
    assert led("claims.md#pairs", "docs/compare.md", "compare.md") == "claims.md#pairs"
    assert led("docs/images/a.png", "README.md", "index.md") == "images/a.png"
    for untouched in ("https://arxiv.org/abs/1", "#limits", "missing.md"):
        assert led(untouched, plugin, "plugins/sps_safe.md") == untouched


def test_an_asterisk_within_a_formula_is_no_emphasis(site: Path) -> None:
    text = (site / "plugins" / "sps_safe.html").read_text()
    told = text.partition('id="what-is-exact-and-what-is-reconstructed"')[2].partition("<h2")[0]
    assert "f(x*)" in told
    assert "<em>" not in told


def test_code_keeps_what_looks_like_a_link(hooks: ModuleType) -> None:
    page = "see [a](b.md)\n```python\nx[0](y)\n```\nand `z[0](y)`\n"
    changed = hooks.outside_code(page, lambda text: text.replace("(", "<"))
    assert changed == "see [a]<b.md)\n```python\nx[0](y)\n```\nand `z[0](y)`\n"
