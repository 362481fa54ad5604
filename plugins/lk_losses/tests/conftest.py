"""Lets the tests import the module beside them, and keeps what they compute out of the user's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is built once is built once a session; the processes that tests start find it too."""
    before = os.environ.get("LEYDEN_CACHE")
    os.environ["LEYDEN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["LEYDEN_CACHE"]
    else:
        os.environ["LEYDEN_CACHE"] = before
