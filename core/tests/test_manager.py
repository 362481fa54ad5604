from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from leyden.errors import LeydenError, UsageError
from leyden.manager import Manager, discover, load_object
from leyden.model import Run, RunResult
from leyden.settings import PluginSettings, Settings, load_settings

Install = Callable[..., str]
HEAD = "from leyden.hookspecs import hookimpl\nfrom leyden.model import *\nLEYDEN_API = 1\n"
HEAVY = ("torch", "lightning", "mlflow")


def found(**plugins: PluginSettings) -> Manager:
    return discover(Settings(plugins=plugins))


def test_a_plugin_is_found_with_everything_it_contributes(install: Install) -> None:
    package = install("one", files={"configs/first.yaml": "a: 1\n", "configs/second.yaml": "a: 2\n"})
    manager = found()
    plugin = manager.plugin("one")
    assert (plugin.distribution, plugin.version, plugin.module) == ("made-one", "1.0", f"{package}.plugin")
    assert plugin.paper is not None
    assert plugin.paper.title == "On steps"
    assert [component.path for component in plugin.components] == [f"{package}.Stepper"]
    assert list(plugin.configs) == ["first", "second"]
    assert manager.config("one/second").read_text() == "a: 2\n"
    assert manager.config("one/first.yaml").read_text() == "a: 1\n"
    assert manager.claim("one", "faster").title == "Stepper is faster"
    assert [claim.name for owner, claim in manager.claims() if owner is plugin] == ["faster"]
    assert (plugin, plugin.components[0]) in manager.components()
    assert manager.options("one") == {"every": 10, "rate": 0.5, "log": False, "prefix": ""}
    assert manager.problems == []
    assert package in sys.modules, "its module was imported"
    assert manager.plugin("one") is plugin


def test_the_packages_of_this_repository_are_found() -> None:
    manager = found()
    assert {"callbacks", "datamodules", "sps_safe"} <= {plugin.name for plugin in manager.active}
    assert manager.plugin("sps-safe").name == "sps_safe", "dashes count as underscores"
    for _, component in manager.components():
        assert load_object(component.path) is not None


def test_unknown_names_are_answered_with_the_nearest_ones(install: Install) -> None:
    install("stepping", files={"configs/first.yaml": "a: 1\n"})
    manager = found()
    for call, expected in (
        (lambda: manager.plugin("steping"), "unknown plugin 'steping'; did you mean 'stepping'?"),
        (lambda: manager.config("steping/first"), "unknown plugin 'steping'; did you mean 'stepping'?"),
        (
            lambda: manager.config("stepping/frst"),
            "unknown configuration 'stepping/frst'; did you mean 'stepping/first'?",
        ),
        (lambda: manager.config("stepping"), "'stepping' names no configuration; there is 'stepping/first'"),
        (
            lambda: manager.claim("stepping", "fastr"),
            "unknown claim 'stepping/fastr'; did you mean 'stepping/faster'?",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value) == expected


FAULTS = {
    "raises": ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError: No module named"),
    "exits": ("import sys\nsys.exit('no')", "cannot be imported: SystemExit: no"),
    "syntax": ("def", "cannot be imported: SyntaxError: "),
    "no_api": (
        "x = 1",
        "is not a plugin: TypeError: it states no LEYDEN_API; this Leyden has LEYDEN_API = 1",
    ),
    "other_api": (
        "LEYDEN_API = 2",
        "is not a plugin: TypeError: it is written for LEYDEN_API 2; this Leyden has LEYDEN_API 1",
    ),
    "misspelt": (
        HEAD + "@hookimpl\ndef leyden_componets(): return []",
        "there is no hook 'leyden_componets'; did you mean 'leyden_components'",
    ),
    "unmarked": (
        HEAD + "def leyden_components(): return []",
        "leyden_components lacks the decorator @hookimpl",
    ),
    "arguments": (HEAD + "@hookimpl\ndef leyden_components(what): return []", "what"),
    "hook_raises": (
        HEAD + "@hookimpl\ndef leyden_components(): raise RuntimeError('a\\n  b')",
        "leyden_components: RuntimeError: a b",
    ),
    "paper": (
        HEAD + "@hookimpl\ndef leyden_paper(): return 3",
        "leyden_paper: TypeError: expected a Paper or None",
    ),
    "not_a_list": (HEAD + "@hookimpl\ndef leyden_components(): return 3", "expected a list, got int 3"),
    "string": (
        HEAD + "@hookimpl\ndef leyden_claims(): return 'a.B'",
        "leyden_claims: TypeError: expected a list, got str",
    ),
    "not_a_component": (
        HEAD + "@hookimpl\ndef leyden_components(): return ['x']",
        "expected Component, got 'x'",
    ),
    "path": (
        HEAD + "@hookimpl\ndef leyden_components(): return [Component(kind='loss', path='x y', summary='')]",
        "leyden_components: TypeError: expected dotted paths, got 'x y'",
    ),
    "kind": (
        HEAD
        + "@hookimpl\ndef leyden_components(): return [Component(kind='optimiser', path='a.B', summary='')]",
        "a.B: unknown kind 'optimiser'; did you mean 'optimizer'?",
    ),
    "capability": (
        HEAD
        + "@hookimpl\ndef leyden_components():\n"
        + "    return [Component(kind='loss', path='a.B', summary='', supports=('dpp',))]",
        "a.B: unknown capability 'dpp'; did you mean 'ddp'",
    ),
    "claims": (
        HEAD + "@hookimpl\ndef leyden_claims(): return [int]",
        "leyden_claims: TypeError: expected dotted paths",
    ),
    "option": (
        HEAD
        + "@hookimpl\ndef leyden_options(): return [Option(name='n', type=int, default='x', summary='')]",
        "leyden_options: TypeError: option 'n': its default 'x' is not a int",
    ),
    "check": (
        HEAD + "@hookimpl\ndef leyden_checks(): return [None]",
        "leyden_checks: TypeError: expected Check, got None",
    ),
}


def test_a_plugin_with_a_fault_is_named_in_one_line_and_the_rest_works(install: Install) -> None:
    install("sound")
    for name, (source, _) in FAULTS.items():
        install(name, source)
    manager = found()
    for name, (_, expected) in FAULTS.items():
        error = manager.plugins[name].error
        assert error is not None, name
        assert error.startswith(f"plugin '{name}' (made-{name} 1.0) ")
        assert expected in error, error
        assert "\n" not in error
        assert error in manager.problems
        with pytest.raises(LeydenError) as caught:
            manager.plugin(name)
        assert str(caught.value) == error
    assert len(manager.problems) == len(FAULTS)
    assert {"sound", "sps_safe"} <= {plugin.name for plugin in manager.active}
    assert manager.claim("sound", "faster").name == "faster"
    manager.run_start(Run(key="k", name="n", kind="fit"))


def test_two_plugins_of_one_name_are_both_refused_and_named(install: Install) -> None:
    install("twin", distribution="made-first", package="made_first")
    install("twin", distribution="made-second", package="made_second", version="2.5")
    install("other")
    manager = found()
    (problem,) = manager.problems
    assert "2 plugins have the name 'twin'" in problem
    assert "made-first 1.0 (made_first.plugin)" in problem
    assert "made-second 2.5 (made_second.plugin)" in problem
    assert "made_first" not in sys.modules
    with pytest.raises(LeydenError, match="2 plugins have the name 'twin'"):
        manager.plugin("twin")
    assert manager.plugin("other").components


def test_a_plugin_that_is_turned_off_is_not_even_imported(install: Install) -> None:
    package = install("off", "import nothing_of_this_name")
    manager = found(off=PluginSettings("off", enabled=False))
    assert manager.problems == []
    assert package not in sys.modules
    assert not manager.plugins["off"].enabled
    with pytest.raises(UsageError, match=r"plugin 'off' is turned off in plugins\.toml"):
        manager.plugin("off")


def test_dashes_in_plugins_toml_count_as_underscores(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install("one_more")
    Path("plugins.toml").write_text("[plugins.one-more]\noptions.every = 7\n")
    found = discover()
    assert (found.options("one_more")["every"], found.missing) == (7, [])
    Path("plugins.toml").write_text("[plugins.one-more]\noptions.evry = 7\n")
    with pytest.raises(UsageError, match=r"plugins\.toml:2: plugins\.one-more\.options\.evry: "):
        discover()
    Path("plugins.toml").write_text("[plugins.one-more]\nenabled = false\n")
    assert not discover().plugins["one_more"].enabled


def test_a_plugin_that_is_listed_and_not_installed_is_told_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plugins.toml").write_text(
        "[plugins.mine]\npath = 'plugins/mine'\n\n[plugins.yours]\nrequirement = 'leyden-yours>=1'\n"
        "[plugins.sps_saef]\n[plugins.gone]\nenabled = false\n"
    )
    assert discover(load_settings()).missing == [
        "plugins.toml:1: plugins.mine: not installed; run 'pip install -e plugins/mine'",
        "plugins.toml:4: plugins.yours: not installed; run 'pip install \"leyden-yours>=1\"'",
        "plugins.toml:6: plugins.sps_saef: not installed; did you mean 'sps_safe'?",
    ]


def test_options_are_those_of_plugins_toml_checked_against_what_the_plugin_reads(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("one")
    monkeypatch.chdir(tmp_path)

    def options(text: str) -> dict[str, object]:
        Path("plugins.toml").write_text(f"[plugins.one.options]\n{text}\n")
        return discover(load_settings()).options("one")

    assert options("every = 3\nrate = 1") == {"every": 3, "rate": 1.0, "log": False, "prefix": ""}
    for text, expected in (
        (
            "evry = 3",
            "plugins.toml:2: plugins.one.options.evry: "
            "plugin 'one' has no such option; did you mean 'every'?",
        ),
        (
            "\nevery = 'x'",
            "plugins.toml:3: plugins.one.options.every: expected an integer, got the string 'x'",
        ),
        ("every = true", "plugins.toml:2: plugins.one.options.every: expected an integer, got true"),
        ("log = 1", "plugins.toml:2: plugins.one.options.log: expected true or false, got the number 1"),
    ):
        with pytest.raises(UsageError) as caught:
            options(text)
        assert str(caught.value) == expected


def test_callbacks_get_the_options_and_a_hook_that_fails_is_left_out_with_one_warning(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    options = HEAD + (
        "@hookimpl\ndef leyden_options(): return [Option(name='on', type=bool, default=True, summary='')]\n"
        "@hookimpl\ndef leyden_callbacks(options): return ['made_gated.On'] if options['on'] else []\n"
    )
    install("gated", options)
    install("plain", HEAD + "@hookimpl\ndef leyden_callbacks(): return ['made_gated.On', 'made_plain.P']")
    install("bad", HEAD + "@hookimpl\ndef leyden_callbacks(options): raise KeyError('lost')")
    manager = found()
    for _ in range(2):
        paths = manager.callback_paths()
        assert [path for path in paths if path.startswith("made_")] == ["made_gated.On", "made_plain.P"]
    lines = [record.getMessage() for record in caplog.records if "made-bad" in record.getMessage()]
    assert lines == ["leyden: plugin 'bad' (made-bad 1.0): leyden_callbacks: KeyError: 'lost'"]
    off = found(
        gated=PluginSettings("gated", options={"on": False}), plain=PluginSettings("plain", enabled=False)
    )
    assert "made_gated.On" not in off.callback_paths()


def test_hooks_of_a_run_are_called_once_each_and_one_that_raises_stops_nothing(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(
        "watching",
        HEAD + "seen = []\n"
        "@hookimpl\ndef leyden_run_start(run): seen.append(run.key)\n"
        "@hookimpl\ndef leyden_run_end(result): seen.append(result.status)\n",
    )
    install("angry", HEAD + "@hookimpl\ndef leyden_run_start(run): raise OSError('no\\nroom')\n")
    manager = found()
    run = Run(key="k1", name="n", kind="fit")
    with caplog.at_level(logging.WARNING):
        manager.run_start(run)
        manager.run_end(run, RunResult(status="KILLED"))
    assert sys.modules["made_watching.plugin"].seen == ["k1", "KILLED"]
    assert [record.getMessage() for record in caplog.records] == [
        "leyden: plugin 'angry' (made-angry 1.0): leyden_run_start raised OSError: no room"
    ]


def test_a_claim_that_cannot_be_used_is_a_problem_and_the_others_are_listed(install: Install) -> None:
    hooks = HEAD + "@hookimpl\ndef leyden_claims(): return ['{package}.claims.Faster', '{package}.claims.%s']"
    install("gone", hooks % "Gone")
    install("twice", hooks % "Faster")
    install("other", hooks % "Statement")
    install(
        "bare",
        hooks % "Bare",
        files={"claims.py": "from leyden.claims import *\nclass Faster(Claim): name = 'f'"},
    )
    manager = found()
    names = [f"{plugin.name}/{claim.name}" for plugin, claim in manager.claims()]
    assert [name for name in names if name.startswith(("gone", "twice", "other", "bare"))] == [
        "gone/faster",
        "other/faster",
        "twice/faster",
    ]
    text = "\n".join(manager.problems)
    assert "cannot import 'made_gone.claims.Gone'" in text
    assert "two claims have the name 'faster'" in text
    assert "made_other.claims.Statement is not a subclass of leyden.Claim" in text
    assert "made_bare.claims.Faster lacks title, source, statements, minutes, seeds, metric" in text
    before = list(manager.problems)
    manager.claims()
    assert manager.problems == before, "a second look adds nothing"


def test_a_short_name_that_two_components_have_must_be_written_out(install: Install) -> None:
    install("one")
    install("two")
    with pytest.raises(
        UsageError, match=r"'Stepper' is ambiguous; write 'made_one\.Stepper' or 'made_two\.Stepper'"
    ):
        found().component("Stepper")
    assert found().component("Nothing") is None


def test_a_module_outside_a_package_ships_no_configurations(install: Install, tmp_path: Path) -> None:
    install("one")
    site = tmp_path / "site"
    (site / "made_single.py").write_text("LEYDEN_API = 1\n")
    (site / "configs").mkdir()
    (site / "configs" / "foreign.yaml").write_text("a: 1\n")
    (site / "made_one-1.0.dist-info" / "entry_points.txt").write_text("[leyden]\nsingle = made_single\n")
    manager = found()
    assert manager.problems == []
    assert manager.plugin("single").configs == {}


def test_importing_what_does_not_exist_says_what_and_why() -> None:
    with pytest.raises(
        LeydenError, match=r"^cannot import 'leyden\.nothing\.X': ModuleNotFoundError: No module"
    ):
        load_object("leyden.nothing.X")
    with pytest.raises(
        LeydenError, match=r"^cannot import 'leyden\.errors\.X': AttributeError: module 'leyden"
    ):
        load_object("leyden.errors.X")
