"""An MLflow database without a run: making one takes seconds, copying it none."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path


@functools.cache
def empty_database() -> Path:
    """Path of the database, made at the first call; copy it."""
    from leyden.store import _create_database

    folder = Path(tempfile.mkdtemp(prefix="leyden-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _create_database(folder / "leyden.db")
    return folder / "leyden.db"
