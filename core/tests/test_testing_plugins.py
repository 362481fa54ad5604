"""The kit finds what is broken in a plugin: its package, its configurations, its claims."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import leyden
import pytest
from leyden.model import Component
from leyden.testing import cases_of, check_plugin, conformance
from leyden.testing.claims import claim_cases
from leyden.testing.configs import runs_as_it_is

HOOKS = """
from leyden.hookspecs import hookimpl
from leyden.model import Check, Component, Paper

LEYDEN_API = 1


@hookimpl
def leyden_paper():
    return Paper(
        title="Nothing",
        authors=("N. Nobody",),
        venue="ICML 2026",
        url="https://example.org",
        summary="Nothing.",
    )


@hookimpl
def leyden_components():
    return [Component(kind="function", path="leyden_sample.halved", summary="A half.")]


@hookimpl
def leyden_claims():
    return ["kit_examples.claims.Grows"]


@hookimpl
def leyden_checks():
    return [Check(name="a check", function="leyden_sample.plugin.leyden_paper")]


@hookimpl
def leyden_callbacks():
    return ["leyden_sample.callbacks.Modest"]
"""

PACKAGE = """
import importlib

__all__ = ["halved"]


def __getattr__(name):
    if name in __all__:
        return getattr(importlib.import_module("kit_examples.functions"), name)
    raise AttributeError(f"module 'leyden_sample' has no attribute '{name}'")
"""

Install = Callable[..., str]


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a plugin called ``sample``, its files changed in one place."""

    def install(*change: str, name: str = "sample", typed: bool = True) -> str:
        old, new = change or ("", "")
        assert old in HOOKS + PACKAGE
        package = tmp_path / "leyden_sample"
        package.mkdir()
        (package / "__init__.py").write_text(PACKAGE.replace(old, new) if old else PACKAGE)
        (package / "callbacks.py").write_text("from kit_examples.callbacks import *\n")
        (package / "plugin.py").write_text(HOOKS.replace(old, new) if old else HOOKS)
        if typed:
            (package / "py.typed").touch()
        info = tmp_path / "leyden_sample-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leyden-sample\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[leyden]\n{name} = leyden_sample.plugin\n")
        monkeypatch.syspath_prepend(tmp_path)
        for module in ("leyden_sample", "leyden_sample.plugin", "leyden_sample.callbacks"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        return name

    return install


def found(plugin: str, *, but: tuple[str, ...] = ("import-budget",)) -> dict[str, str]:
    """What is wrong with the package, by check; a process of its own is started only where it matters."""
    cases = [case for case in cases_of(plugin) if case.subject == plugin and case.check not in but]
    texts = {case.check: "\n".join(finding.text for finding in case.findings()) for case in cases}
    return {check: text for check, text in texts.items() if text}


def test_a_plugin_that_keeps_its_promises_passes(install: Install) -> None:
    assert check_plugin(install()) == []


SAID = 'kind="function", path="leyden_sample.halved", summary="A half."'
CLAIM = "kit_examples.claims.Grows"
NAMES = '__all__ = ["halved"]'

BROKEN = [
    ('title="Nothing"', 'title=" "', "paper", "Paper.title is empty"),
    ('("N. Nobody",)', '("N. Nobody")', "paper", "not a tuple of names"),
    ("https://example.org", "example.org", "paper", "Paper.url is no web address"),
    ('summary="A half."', 'summary=""', "components", "is not one line"),
    ("leyden_sample.halved", "leyden_sample.halfed", "components", "cannot import 'leyden_sample.halfed'"),
    ('kind="function"', 'kind="layer"', "components", "asks for a subclass of Module"),
    ("leyden_sample.halved", "kit_examples.layers.Mixing", "components", "a function is expected"),
    (SAID, f'{SAID}, exempt={{"speed": "x"}}', "components", "exempt names the check 'speed'"),
    (SAID, f'{SAID}, exempt={{"shapes": ""}}', "components", "exempt gives no reason for 'shapes'"),
    (SAID, f'{SAID}, example="leyden_sample.made"', "components", "cannot import 'leyden_sample.made'"),
    (SAID, f'{SAID}, supports=("ddp", "ddp")', "components", "supports says something twice"),
    ("return [Component(", "return 2 * [Component(", "components", "two components have the name 'halved'"),
    ("leyden_sample.plugin.leyden_paper", "leyden_sample.plugin.no", "dotted-paths", "cannot import"),
    ("callbacks.Modest", "callbacks.Nothing", "dotted-paths", "cannot import"),
    ("callbacks.Modest", "callbacks.NeedsArgument", "dotted-paths", "() raises TypeError"),
    ("callbacks.Modest", "callbacks.damped", "dotted-paths", "makes a Trial, not a Callback"),
    (CLAIM, "kit_examples.claims.Shrinks", "claims", "cannot import"),
    (CLAIM, "kit_examples.functions.halved", "claims", "no subclass of leyden.Claim"),
    (CLAIM, "kit_examples.claims.Untitled", "claims", "title is not one line"),
    (CLAIM, "kit_examples.claims.Untimed", "claims", "minutes says nothing for paper"),
    (CLAIM, "kit_examples.claims.Stated", "claims", "two statements have one id"),
    (f'["{CLAIM}"]', f'2 * ["{CLAIM}"]', "claims", "two claims have the name 'grows'"),
    (NAMES, '__all__ = ["halved", "third"]', "public-names", "'leyden_sample.third' raises AttributeError"),
    (
        NAMES,
        '__all__ = ["halved", "without_args"]',
        "documented",
        "without_args: its docstring has no 'Args:'",
    ),
    (NAMES, '__all__ = ["torch"]', "public-names", "component 'leyden_sample.halved' is not in"),
    (NAMES, "__all__ = []", "public-names", "has no __all__"),
    ("raise AttributeError(", "return (", "public-names", "a misspelt name is not noticed"),
    ("raise AttributeError(", "raise KeyError(", "public-names", "raises KeyError, not AttributeError"),
    ("has no attribute '{name}'", "has it not", "public-names", "does not name it"),
    ("LEYDEN_API = 1", "LEYDEN_API = 99", "usable", "LEYDEN_API"),
    ("LEYDEN_API = 1", "1 / 0", "usable", "cannot be imported"),
]


@pytest.mark.parametrize(("old", "new", "check", "text"), BROKEN)
def test_a_package_broken_in_one_way_fails_the_check_of_it(
    install: Install, old: str, new: str, check: str, text: str
) -> None:
    assert text in found(install(old, new)).get(check, "")


def test_an_entry_point_with_another_name_than_its_package_is_found(install: Install) -> None:
    assert "not its own '.plugin'" in found(install(name="example"))["entry-point"]


def test_a_package_without_the_mark_of_types_is_found(install: Install) -> None:
    assert "has no file py.typed" in found(install(typed=False))["typed"]


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("LEYDEN_API = 1", "LEYDEN_API = 1\nimport torch", "'leyden_sample.plugin'"),
        ("__all__ =", "import lightning\n\n__all__ =", "'leyden_sample'"),
        ("    return [Check(", "    import mlflow\n    return [Check(", "'leyden_sample.plugin'"),
    ],
)
def test_an_import_that_costs_seconds_is_found(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, place: str
) -> None:
    for heavy in ("torch", "lightning", "mlflow"):  # stand-ins that cost nothing
        (tmp_path / f"{heavy}.py").touch()
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    text = found(install(old, new), but=())["import-budget"]
    assert text.startswith(f"importing {place} (and asking its hooks) imports ")


def test_a_plugin_that_is_not_installed_is_one_finding_with_the_nearest_name(install: Install) -> None:
    install()
    (finding,) = check_plugin("sampels")
    assert str(finding) == "sampels: usable: unknown plugin 'sampels'; did you mean 'sample'?"


def test_conformance_is_a_pytest_test_with_a_case_for_each_check(install: Install) -> None:
    test = conformance(install(SAID, f'{SAID}, exempt={{"shapes": "it has none"}}'))
    (mark,) = test.pytestmark
    cases = {case.id: case for case in mark.args[1]}
    assert {"sample-paper", "halved-docstring", "halved-shapes", "Grows-smoke"} <= set(cases)
    assert mark.kwargs["ids"] == list(cases)
    test(cases["halved-docstring"])
    with pytest.raises(pytest.skip.Exception, match="exempt: it has none"):
        test(cases["halved-shapes"])


def test_a_case_may_be_exempt_in_the_plugins_tests(install: Install) -> None:
    plugin = install(SAID, f'{SAID}, exempt={{"shapes": "it has none"}}')
    cases = {case.id: case for case in cases_of(plugin, {"Grows-smoke": "no time"})}
    assert (cases["Grows-smoke"].exempt, cases["halved-shapes"].exempt) == ("no time", "it has none")
    assert check_plugin(plugin, exempt={"Grows-smoke": "no time"}) == []
    with pytest.raises(ValueError, match="plugin 'sample' has no case Grows-smok"):
        conformance(plugin, exempt={"Grows-smok": "no time"})


def test_conformance_fails_with_what_is_owed_and_what_is_wrong(install: Install) -> None:
    test = conformance(install("leyden_sample.halved", "kit_examples.functions.without_returns"))
    cases = {case.id: case for case in test.pytestmark[0].args[1]}
    with pytest.raises(pytest.fail.Exception, match="Owed: Its docstring explains") as failure:
        test(cases["without_returns-docstring"])
    assert "no 'Returns:' section" in str(failure.value)


def test_the_kit_is_imported_and_used_without_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leyden, "testing", leyden.testing)
    for name in [name for name in sys.modules if name.startswith("leyden.testing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytest", None)
    kit = importlib.import_module("leyden.testing")
    assert kit.check_component(Component(kind="function", path="leyden.errors.unknown", summary="x")) == []


CONFIG = """
model:
  class_path: kit_examples.modules.Classifier
data:
  class_path: kit_examples.datamodules.Labelled
trainer:
  max_epochs: 3
"""


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("", "", ""),
        ("max_epochs: 3", "max_epoch: 3", "trainer.max_epoch"),
        ("modules.Classifier", "modules.Clasifier", "Clasifier"),
        ("max_epochs: 3", "max_epochs: [", "UsageError"),
        ("modules.Classifier", "modules.GradientInTest", "does not require grad"),
        ("datamodules.Labelled", "datamodules.Rows", "raises"),
    ],
)
def test_a_configuration_that_does_not_run_is_found(tmp_path: Path, old: str, new: str, text: str) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(CONFIG.replace(old, new) if old else CONFIG)
    findings = list(runs_as_it_is(path))
    assert len(findings) == (1 if old else 0)
    assert all(text in finding or text == "raises" for finding in findings)


@pytest.mark.parametrize(
    ("name", "check", "text"),
    [
        ("SameCells", "cells", "1 cells are equal to others"),
        ("WithoutCells", "cells", "there are no cells at scale 'paper'"),
        ("OtherScale", "cells", "cells of another scale"),
        ("Raises", "smoke", "this cell cannot be run"),
        ("MeasuresText", "smoke", "measured no number or list of numbers: number"),
        ("MeasuresElse", "smoke", "no cell measured the claim's metric 'number'"),
        ("Chance", "repeatable", "run twice measures 'number' as"),
        ("NoVerdict", "verdicts", "gives verdicts on none; the statements are grows"),
        ("NeedsAllCells", "verdicts", "judging a run whose cells all failed raises KeyError"),
        ("OtherKind", "verdicts", "is of kind 'better', judged as 'bound'"),
        ("JudgesNothing", "verdicts", "is judged 'holds' in a run whose cells all failed"),
        ("WrongFigure", "figure", "gives 'a picture', which is no figure"),
        ("FigureNeedsCells", "figure", "drawing a run whose cells all failed raises KeyError"),
    ],
)
def test_a_claim_broken_in_one_way_fails_the_check_of_it(name: str, check: str, text: str) -> None:
    cases = {case.check: case for case in claim_cases(f"kit_examples.claims.{name}")}
    assert text in "\n".join(finding.text for finding in cases[check].findings())
