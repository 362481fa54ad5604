from __future__ import annotations

import subprocess
import sys

import pytest
from leyden.manager import load_object
from leyden_callbacks import GradientNorm, LossFeed, Provenance, plugin
from lightning.pytorch import Callback, Trainer


def contributed(**options: bool) -> list[Callback]:
    settings = {option.name: option.default for option in plugin.leyden_options()} | options
    return [load_object(path)() for path in plugin.leyden_callbacks(settings)]


def test_every_trainer_gets_the_feed_and_provenance_and_the_norm_on_request() -> None:
    assert [type(one) for one in contributed()] == [LossFeed, Provenance]
    asked = contributed(gradient_norm=True)
    assert [type(one) for one in asked] == [LossFeed, Provenance, GradientNorm]
    assert asked[2].tracked_only


def test_every_component_can_be_imported_and_is_what_it_says() -> None:
    for component in plugin.leyden_components():
        target = load_object(component.path)
        assert issubclass(target, Callback) if component.kind == "callback" else callable(target)
        assert component.summary


def test_a_plain_trainer_has_them_through_lightnings_own_entry_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LEYDEN_CALLBACKS")
    own = GradientNorm(every=3)
    callbacks = Trainer(logger=False, enable_checkpointing=False, callbacks=[own]).callbacks
    assert callbacks.index(own) == 0
    assert {LossFeed, Provenance} <= {type(one) for one in callbacks}
    monkeypatch.setenv("LEYDEN_CALLBACKS", "0")
    assert not any(
        isinstance(one, LossFeed) for one in Trainer(logger=False, enable_checkpointing=False).callbacks
    )


def test_the_plugin_is_listed_without_importing_torch_or_lightning() -> None:
    script = (
        "import sys, leyden_callbacks, leyden_callbacks.plugin as plugin;"
        "list(plugin.leyden_components()); list(plugin.leyden_callbacks({}));"
        "print(sorted({'torch', 'lightning', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_misspelt_name_is_an_attribute_error() -> None:
    import leyden_callbacks

    with pytest.raises(AttributeError, match="LosFeed"):
        leyden_callbacks.LosFeed  # noqa: B018
    for name in leyden_callbacks.__all__:
        assert getattr(leyden_callbacks, name)
