"""What the conformance kit tries the module on."""

from __future__ import annotations

from leyden_simplenorm.module import Simplenorm


def small() -> Simplenorm:
    """A module for the kit's own rows of six features in four classes."""
    return Simplenorm(features=6, classes=4, width=8)
