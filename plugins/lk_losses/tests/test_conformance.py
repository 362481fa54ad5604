from leyden.testing import conformance

test_conformance = conformance("lk_losses")
