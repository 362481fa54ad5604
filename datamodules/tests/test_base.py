from __future__ import annotations

import copy
import doctest
import hashlib
import importlib
import pickle
import subprocess
import sys

import leyden_datamodules
import pytest
import torch
from leyden_datamodules import Digits, PythonDocs, fingerprint
from leyden_datamodules.plugin import leyden_components


def test_fingerprints_repeat_and_tell_every_change() -> None:
    assert Digits(seed=1).fingerprint() == Digits(seed=1).fingerprint()
    assert Digits(seed=1).fingerprint() != Digits(seed=2).fingerprint()
    rows = torch.arange(6.0)
    changed = rows.clone()
    changed[3] += 1e-6
    prints = {
        fingerprint({"train": (rows,)}),
        fingerprint({"train": (changed,)}),
        fingerprint({"val": (rows,)}),
        fingerprint({"train": (rows.reshape(2, 3),)}),
        fingerprint({"train": (rows.int(),)}),
        fingerprint({"train": (rows[:3], rows[3:])}),
    }
    assert len(prints) == 6


def test_a_fingerprint_is_the_sha256_of_name_type_shape_and_bytes() -> None:
    rows = torch.tensor([[1, 2], [3, 4]])
    expected = hashlib.sha256(b"train torch.int64 (2, 2)\n" + rows.numpy().tobytes()).hexdigest()
    assert fingerprint({"train": (rows,)}) == expected


def test_a_view_has_the_fingerprint_of_its_copy() -> None:
    windows = torch.arange(50_000).unfold(0, 4, 1)
    assert fingerprint({"train": (windows,)}) == fingerprint({"train": (windows.clone(),)})


def test_datamodules_survive_copies_and_pickling() -> None:
    data = Digits(seed=3)
    for twin in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert twin.fingerprint() == data.fingerprint()


def test_hyper_parameters_are_plain_values() -> None:
    assert PythonDocs(subset=5000).hparams["root"] is None
    assert all(isinstance(value, int | float | str | None) for value in Digits().hparams.values())


@pytest.mark.parametrize("component", leyden_components(), ids=lambda component: component.name)
def test_components_import_and_are_public(component: object) -> None:
    module, _, name = component.path.rpartition(".")  # type: ignore[attr-defined]
    assert hasattr(importlib.import_module(module), name)
    assert name in leyden_datamodules.__all__


def test_the_plugin_imports_neither_torch_nor_lightning() -> None:
    heavy = "{'torch', 'lightning', 'numpy', 'sklearn'}"
    code = f"import sys, leyden_datamodules.plugin; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["base", "folder", "loader", "mnist1d", "tables", "text"])
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"leyden_datamodules.{name}")).failed == 0
