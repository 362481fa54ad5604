"""Asymmetrically perturbed descent-ascent (Abe et al., 2026) for zero-sum games, in PyTorch and Lightning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leyden_asym_perturb.data import IterationDataModule
    from leyden_asym_perturb.fixed_mu import asymp_gda
    from leyden_asym_perturb.game import Game
    from leyden_asym_perturb.games import (
        biased_pennies,
        biased_rps,
        goofspiel,
        kuhn_poker,
        leduc_poker,
        liars_dice,
        many_equilibria,
        openspiel_game,
        random_matrix,
    )
    from leyden_asym_perturb.linear_program import (
        MatrixGameSolution,
        invariance_threshold,
        least_norm_strategy,
        solve_matrix_game_lp,
    )
    from leyden_asym_perturb.matrix_game import MatrixGame, nash_conv, perturbed_gap
    from leyden_asym_perturb.module import AsymPGameModule
    from leyden_asym_perturb.monitor import NashConvCallback
    from leyden_asym_perturb.optimizer import AsymPGDA
    from leyden_asym_perturb.sequence_form import SequenceFormGame
    from leyden_asym_perturb.simplex import project_simplex
    from leyden_asym_perturb.solver import ProcessResult, Round, SolveResult, asymp_solve
    from leyden_asym_perturb.tree import Chance, Decision, Terminal

_HOMES = {
    "leyden_asym_perturb.fixed_mu": ("asymp_gda",),
    "leyden_asym_perturb.data": ("IterationDataModule",),
    "leyden_asym_perturb.game": ("Game",),
    "leyden_asym_perturb.games": (
        "biased_pennies",
        "biased_rps",
        "goofspiel",
        "kuhn_poker",
        "leduc_poker",
        "liars_dice",
        "many_equilibria",
        "openspiel_game",
        "random_matrix",
    ),
    "leyden_asym_perturb.linear_program": (
        "MatrixGameSolution",
        "invariance_threshold",
        "least_norm_strategy",
        "solve_matrix_game_lp",
    ),
    "leyden_asym_perturb.matrix_game": ("MatrixGame", "nash_conv", "perturbed_gap"),
    "leyden_asym_perturb.module": ("AsymPGameModule",),
    "leyden_asym_perturb.monitor": ("NashConvCallback",),
    "leyden_asym_perturb.optimizer": ("AsymPGDA",),
    "leyden_asym_perturb.sequence_form": ("SequenceFormGame",),
    "leyden_asym_perturb.simplex": ("project_simplex",),
    "leyden_asym_perturb.solver": ("ProcessResult", "Round", "SolveResult", "asymp_solve"),
    "leyden_asym_perturb.tree": ("Chance", "Decision", "Terminal"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - what is used most comes first
    "asymp_solve",
    "MatrixGame",
    "SequenceFormGame",
    "Game",
    "SolveResult",
    "Round",
    "AsymPGameModule",
    "IterationDataModule",
    "NashConvCallback",
    "AsymPGDA",
    "asymp_gda",
    "ProcessResult",
    "project_simplex",
    "nash_conv",
    "perturbed_gap",
    "solve_matrix_game_lp",
    "MatrixGameSolution",
    "invariance_threshold",
    "least_norm_strategy",
    "biased_rps",
    "many_equilibria",
    "biased_pennies",
    "random_matrix",
    "kuhn_poker",
    "leduc_poker",
    "goofspiel",
    "liars_dice",
    "openspiel_game",
    "Decision",
    "Chance",
    "Terminal",
    "__version__",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'leyden_asym_perturb' has no attribute '{name}'")
