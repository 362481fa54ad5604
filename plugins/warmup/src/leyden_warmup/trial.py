"""On what the conformance kit tries the components."""

from __future__ import annotations

from leyden_warmup.probe import SmoothnessProbe


def probe() -> SmoothnessProbe:
    """A probe that measures often enough for a short training."""
    return SmoothnessProbe(every=2)
