"""Collecting what earlier fits of a process left, without looking at everything that it has imported."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle() -> None:
    """Exempt what exists now from every later collection, once a process.

    Before the first fit that is what was imported: hundreds of thousands of objects that stay in any case,
    and that a collection before each fit would go through for some tenths of a second.
    """
    gc.collect()
    gc.freeze()
