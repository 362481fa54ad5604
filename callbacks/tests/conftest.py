"""Lets the tests, and the processes they spawn, import the modules beside them; keeps Trainers plain."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def plain_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Trainer has the callbacks that the test gives it."""
    monkeypatch.setenv("LEYDEN_CALLBACKS", "0")
