"""What holds for the workspace as a whole: its layout, its lists, its READMEs."""

from __future__ import annotations

import ast
import graphlib
import re
import tomllib
from pathlib import Path

import pytest
from leyden.manager import discover

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))
PACKAGES = ("core", "callbacks", "datamodules", *(f"plugins/{name}" for name in PLUGINS))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_has_its_parts(package: str) -> None:
    folder = ROOT / package
    name = "leyden" if package == "core" else f"leyden_{folder.name}"
    for part in ("pyproject.toml", "README.md", f"src/{name}/py.typed", f"src/{name}/__init__.py", "tests"):
        assert (folder / part).exists(), f"{package} lacks {part}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_imports_go_in_a_circle(package: str) -> None:
    source = ROOT / package / "src"
    files = {".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph = {name: _imported(path) & (modules.keys() - {name}) for name, path in modules.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def _imported(path: Path) -> set[str]:
    """All that a module imports, anywhere in it and for type checkers alone as well."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names | {str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("name", PLUGINS)
def test_every_plugin_has_its_parts_and_runs_the_conformance_kit(name: str) -> None:
    folder = ROOT / "plugins" / name
    package = folder / "src" / f"leyden_{name}"
    for part in ("plugin.py", "claims.py", "configs"):
        assert (package / part).exists(), f"{name} lacks {part}"
    assert list((package / "configs").glob("*.yaml"))
    assert list((folder / "benchmarks").glob("*.py"))
    tests = "\n".join(path.read_text() for path in (folder / "tests").glob("test_*.py"))
    assert re.search(rf"""conformance\(\s*["']{name}["']""", tests), (
        f"{name} does not run the conformance kit"
    )


def test_plugins_toml_lists_every_package_of_the_checkout() -> None:
    listed = tomllib.loads((ROOT / "plugins.toml").read_text())["plugins"]
    assert {entry["path"] for entry in listed.values()} == set(PACKAGES) - {"core"}


def test_every_plugin_of_the_checkout_is_discovered_without_a_problem() -> None:
    found = discover()
    assert {"callbacks", "datamodules", *PLUGINS} <= set(found.plugins)
    assert not found.problems
    assert not [name for name in PLUGINS if found.plugin(name).paper is None]


def test_the_import_contracts_name_every_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    modules = {"leyden", "leyden_callbacks", "leyden_datamodules", *(f"leyden_{name}" for name in PLUGINS)}
    assert set(settings["root_packages"]) == modules
    layers, core = settings["contracts"]
    assert set(re.findall(r"leyden\w*", " ".join(layers["layers"]))) == modules
    for name in PLUGINS:
        assert [module for module in core["source_modules"] if module.startswith(f"leyden_{name}.")]


@pytest.mark.parametrize("package", PACKAGES)
def test_versions_agree_within_a_package(package: str) -> None:
    folder = ROOT / package
    stated = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    for init in folder.glob("src/*/__init__.py"):
        found = re.search(r'^__version__ = "([^"]+)"', init.read_text(), re.MULTILINE)
        assert found is None or found.group(1) == stated


@pytest.mark.parametrize(
    "readme", [Path("README.md"), *(Path(package) / "README.md" for package in PACKAGES)], ids=str
)
def test_links_within_the_checkout_resolve(readme: Path) -> None:
    text = (ROOT / readme).read_text()
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (ROOT / readme.parent / target).exists(), f"{readme} links to {target}, which is not there"
