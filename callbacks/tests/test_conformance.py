from __future__ import annotations

from leyden.testing import conformance

test_conformance = conformance("callbacks")
