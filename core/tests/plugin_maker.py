"""Makes plugins that are installed for one test: a package and its metadata, in a folder on the path."""

from __future__ import annotations

import textwrap
from pathlib import Path

GOOD = """
from leyden.hookspecs import hookimpl
from leyden.model import Component, Option, Paper

LEYDEN_API = 1


@hookimpl
def leyden_paper():
    return Paper(
        title="On steps", authors=("A. Author",), venue="ICML 2026", url="https://x.org/1", summary="Steps."
    )


@hookimpl
def leyden_components():
    return [Component(kind="optimizer", path="{package}.Stepper", summary="Steps.")]


@hookimpl
def leyden_claims():
    return ["{package}.claims.Faster"]


@hookimpl
def leyden_options():
    return [
        Option(name="every", type=int, default=10, summary="How often."),
        Option(name="rate", type=float, default=0.5, summary="How fast."),
        Option(name="log", type=bool, default=False, summary="Whether."),
        Option(name="prefix", type=str, default="", summary="What before."),
    ]
"""

CLAIMS = """
from leyden.claims import Claim, Statement


class Faster(Claim):
    name = "faster"
    title = "Stepper is faster"
    source = "Section 5"
    statements = (
        Statement(id="fast", text="Stepper is faster than SGD.", kind="better", paper="twice as fast"),
    )
    minutes = {"smoke": 0.1, "laptop": 2}
    seeds = {"smoke": 1, "laptop": 3}
    metric = "accuracy"

    def cells(self, scale):
        return []

    def run(self, cell):
        return {}

    def judge(self, table):
        return []
"""

LAZY = """
def __getattr__(name):
    if name == "Stepper":
        from .stepper import Stepper

        return Stepper
    raise AttributeError(name)
"""

STEPPER = """
import torch


class Stepper(torch.optim.SGD):
    def __init__(self, params, size: float = 0.1):
        if size <= 0:
            raise ValueError(f"size must be positive, got {size}")
        super().__init__(params, lr=size)
"""


def make_plugin(
    folder: Path,
    name: str,
    hooks: str = GOOD,
    *,
    package: str = "",
    distribution: str = "",
    version: str = "1.0",
    files: dict[str, str] | None = None,
) -> str:
    """Install a plugin in a folder and return the name of its package.

    Args:
        folder: a folder that is, or will be, on ``sys.path``.
        name: the plugin's name.
        hooks: source of its ``plugin.py``.
        package: its package; one named after the plugin by default.
        distribution: its distribution; one named after the plugin by default.
        version: the distribution's version.
        files: further files of the package, by name, beside those of a sound plugin.
    """
    package = package or f"made_{name}"
    distribution = distribution or f"made-{name}"
    sources = {
        "__init__.py": LAZY,
        "stepper.py": STEPPER,
        "claims.py": CLAIMS,
        "plugin.py": hooks.replace("{package}", package),
    }
    for file, source in {**sources, **(files or {})}.items():
        path = folder / package / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    metadata = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[leyden]\n{name} = {package}.plugin\n")
    return package
