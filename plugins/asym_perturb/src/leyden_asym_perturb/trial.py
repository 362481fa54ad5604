"""What the conformance kit tries the components on."""

from __future__ import annotations

from leyden.testing import Trial

from leyden_asym_perturb.data import IterationDataModule
from leyden_asym_perturb.games import random_matrix
from leyden_asym_perturb.module import AsymPGameModule


def module() -> AsymPGameModule:
    """A module that is not done within the kit's few steps, and halves its perturbation in them."""
    return AsymPGameModule(random_matrix(6, 4), eps=1e-12, inner_steps=15, check_every=10)


def iterations() -> Trial:
    """Ten training steps an epoch."""
    return Trial(data=IterationDataModule(10))


def watched() -> Trial:
    """The module, for the callback beside it."""
    return Trial(module=module(), data=IterationDataModule(10))
