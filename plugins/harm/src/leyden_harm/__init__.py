"""Fewer samples made worse by the step that was made from them (Avranas, 2026), for PyTorch and Lightning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_harm.affine import Affine, Part, affine_update, layer_update
    from leyden_harm.box_qp import BoxQPInfo, solve_box_qp
    from leyden_harm.last_layer import harm_margins, last_layer_gram
    from leyden_harm.measuring import Harm, harm_of_losses
    from leyden_harm.probe import HarmProbe
    from leyden_harm.reduction import HarmReduction
    from leyden_harm.reweighting import Reweighting, Update, reweight, sample_weights, total_harm

_HOMES = {
    "leyden_harm.affine": ("Affine", "Part", "affine_update", "layer_update"),
    "leyden_harm.box_qp": ("BoxQPInfo", "solve_box_qp"),
    "leyden_harm.last_layer": ("harm_margins", "last_layer_gram"),
    "leyden_harm.measuring": ("Harm", "harm_of_losses"),
    "leyden_harm.probe": ("HarmProbe",),
    "leyden_harm.reduction": ("HarmReduction",),
    "leyden_harm.reweighting": ("Reweighting", "Update", "reweight", "sample_weights", "total_harm"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the callbacks come first
    "HarmReduction",
    "HarmProbe",
    "last_layer_gram",
    "harm_margins",
    "solve_box_qp",
    "sample_weights",
    "reweight",
    "affine_update",
    "layer_update",
    "total_harm",
    "harm_of_losses",
    "Affine",
    "BoxQPInfo",
    "Harm",
    "Part",
    "Reweighting",
    "Update",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_harm' has no attribute '{name}'")
