"""What is expensive is built once, by one process, and is whole or absent."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import pytest
import torch
from leyden.cache import built_once, cache_folder, tensors_fingerprint


def slowly(place: Path) -> None:
    time.sleep(0.2)
    (place / "builder").write_text(str(multiprocessing.current_process().pid))


def ask(folder: Path) -> str:
    return (built_once("slow", {"seed": 0}, slowly, folder=folder) / "builder").read_text()


def test_the_folder_is_the_one_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("LEYDEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "leyden"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "leyden"


def test_the_second_time_nothing_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path))
    first = built_once("it", {"a": 1}, lambda place: (place / "x").touch())
    assert built_once("it", {"a": 1}, lambda place: pytest.fail("built again")) == first
    assert first.parent == tmp_path
    assert sorted(path.name for path in first.iterdir()) == ["identity.json", "x"]
    assert json.loads((first / "identity.json").read_text()) == {"a": 1}


def test_another_identity_or_name_is_another_folder(tmp_path):
    places = {
        built_once(name, identity, lambda place: None, folder=tmp_path)
        for name in ("it", "other")
        for identity in ({"a": 1}, {"a": 2}, {"a": 1, "b": None})
    }
    assert len(places) == 6
    assert built_once("it", {"b": None, "a": 1}, lambda place: None, folder=tmp_path) in places


def test_several_processes_build_it_once(tmp_path):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert len(set(pool.map(ask, [tmp_path] * 3))) == 1


def test_what_a_builder_left_that_failed_or_died_is_thrown_away(tmp_path):
    def broken(place: Path) -> None:
        (place / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        built_once("it", {}, broken, folder=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    place = built_once("it", {}, lambda place: None, folder=tmp_path)
    place.rename(tmp_path / f".{place.name}.draft-killed")  # as a builder leaves it that gets signal 9
    assert built_once("it", {}, lambda place: None, folder=tmp_path) == place
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [place]


def test_a_fingerprint_knows_name_type_shape_and_every_byte():
    base = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor(3)}
    changed = [
        {"c": base["a"], "b": base["b"]},
        {**base, "a": base["a"].T},
        {**base, "a": base["a"].view(torch.int32)},
        {**base, "a": base["a"].double()},
        {**base, "a": torch.tensor([[1.0, torch.nextafter(torch.tensor(2.0), torch.tensor(3.0))]])},
    ]
    assert len({tensors_fingerprint(tensors) for tensors in [base, *changed]}) == 6
    assert tensors_fingerprint({"b": base["b"], "a": base["a"].T.contiguous().T}) == tensors_fingerprint(base)


def test_a_fingerprint_of_a_module_is_that_of_its_state_in_any_precision():
    module = torch.nn.Linear(2, 2).bfloat16()
    assert tensors_fingerprint(module) == tensors_fingerprint(module.state_dict())
    before = tensors_fingerprint(module)
    with torch.no_grad():
        module.bias[0] += 1
    assert tensors_fingerprint(module) != before
