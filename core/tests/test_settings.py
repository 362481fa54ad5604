from __future__ import annotations

from pathlib import Path

import pytest
from leyden.errors import UsageError
from leyden.settings import (
    ExecuteSettings,
    PluginSettings,
    Settings,
    TrackingSettings,
    line_of,
    load_settings,
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(text: str) -> str:
    Path("plugins.toml").write_bytes(text.encode())
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    assert load_settings(tmp_path) == Settings(
        path=None,
        plugins={},
        tracking=TrackingSettings(True, None, "leyden"),
        execute=ExecuteSettings("loky", None),
    )


def test_every_key_is_read() -> None:
    Path("plugins.toml").write_text(
        """
        [plugins.sps_safe]
        path = "plugins/sps_safe"
        options = {every = 3, rate = 0.1}
        [plugins.harm]
        requirement = "leyden-harm>=1"
        enabled = false
        [plugins.bare]
        [tracking]
        enabled = false
        uri = "http://tracker:5000"
        experiment = "mine"
        [execute]
        executor = "ray"
        jobs = 4
        """
    )
    settings = load_settings()
    assert settings.plugins == {
        "sps_safe": PluginSettings("sps_safe", True, "plugins/sps_safe", None, {"every": 3, "rate": 0.1}),
        "harm": PluginSettings("harm", False, None, "leyden-harm>=1", {}),
        "bare": PluginSettings("bare"),
    }
    assert settings.tracking == TrackingSettings(False, "http://tracker:5000", "mine")
    assert settings.execute == ExecuteSettings("ray", 4)


def test_the_nearest_file_upwards_is_read(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "plugins.toml").write_text('[tracking]\nexperiment = "outer"\n')
    assert load_settings(below).tracking.experiment == "outer"
    (tmp_path / "a" / "plugins.toml").write_text('[tracking]\nexperiment = "inner"\n')
    assert load_settings(below).tracking.experiment == "inner"
    assert load_settings(below).path == tmp_path / "a" / "plugins.toml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tracking]\n\nurii = 'x'\n", "plugins.toml:3: tracking.urii: unknown key; did you mean 'uri'?"),
        ("[trackin]\nuri = 'x'\n", "plugins.toml:1: trackin: unknown key; did you mean 'tracking'?"),
        ("[plugins.x]\npth = 'a'\n", "plugins.toml:2: plugins.x.pth: unknown key; did you mean 'path'?"),
        (
            "[execute]\nexecutor = 'lky'\n",
            "plugins.toml:2: execute.executor: unknown executor 'lky'; did you mean 'loky'?",
        ),
        (
            "[plugins.x]\nenabled = 'yes'\n",
            "plugins.toml:2: plugins.x.enabled: expected true or false, got the string 'yes'",
        ),
        ("plugins = 3\n", "plugins.toml:1: plugins: expected a table, got the number 3"),
        ("[plugins]\nx = []\n", "plugins.toml:2: plugins.x: expected a table, got an array"),
        (
            "[tracking]\nuri = 7\n",
            "plugins.toml:2: tracking.uri: expected a string that is not empty, got the number 7",
        ),
        (
            "[tracking]\nuri = ' '\n",
            "plugins.toml:2: tracking.uri: expected a string that is not empty, got the string ' '",
        ),
        (
            "[execute]\njobs = true\n",
            "plugins.toml:2: execute.jobs: expected an integer of at least 1, got true",
        ),
        (
            "[execute]\njobs = 0\n",
            "plugins.toml:2: execute.jobs: expected an integer of at least 1, got the number 0",
        ),
        (
            "[plugins.x]\npath = 'a'\nrequirement = 'b'\n",
            "plugins.toml:3: plugins.x.requirement: "
            "a plugin comes from a path or from a requirement, not both",
        ),
    ],
)
def test_a_wrong_key_or_value_is_named_with_file_line_and_what_would_do(text: str, expected: str) -> None:
    assert error_of(text) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[tracking\n", 1),
        ("[tracking]\nuri = 'a'\nuri = 'b'\n", 3),
        ('[tracking]\nuri = """\nnever ends\n', 3),
        ("[execute]\n\njobs = = 1\n", 3),
    ],
)
def test_text_that_is_not_toml_is_named_with_its_line(text: str, line: int) -> None:
    assert error_of(text).startswith(f"plugins.toml:{line}: not valid TOML: ")


def test_a_file_that_is_not_text_is_named() -> None:
    Path("plugins.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"^plugins\.toml: cannot be read: "):
        load_settings()


def test_a_file_elsewhere_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins.toml").write_text("x = 1\n")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert str(caught.value).startswith(f"{tmp_path}/plugins.toml:1: x: unknown key")


def test_the_line_of_a_key_is_found_however_it_is_written() -> None:
    text = "\n".join(
        [
            "# [a] in a comment",  # 1
            "title = '''",  # 2
            "[a]",  # 3, inside a string
            "b = 1",
            "'''",
            'a.b = { "c.d" = 1, e = [1, 2] }',  # 6
            "list = [",  # 7
            "  { f = 1 },",
            "]",
            "[ a . g ]",  # 10
            "h = 2 # a = 3",  # 11
            '["quoted key".sub]',  # 12
            "i = 1979-05-27",  # 13
        ]
    )
    lines = {
        ("title",): 2,
        ("a",): 6,
        ("a", "b", "c.d"): 6,
        ("a", "b", "e"): 6,
        ("list",): 7,
        ("a", "g"): 10,
        ("a", "g", "h"): 11,
        ("quoted key",): 12,
        ("quoted key", "sub", "i"): 13,
        ("nowhere",): None,
        ("a", "h"): None,
    }
    assert {key: line_of(text, key) for key in lines} == lines
    assert {key: line_of(text.replace("\n", "\r\n"), key) for key in lines} == lines
