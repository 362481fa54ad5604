"""A callback that shows a solution: its curve, rounds and path over the simplex, the strategies as a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from leyden.arguments import check_at_least
from leyden.logger import LeydenLogger
from leyden_callbacks import keeps_figures, log_figure
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import MLFlowLogger

from leyden_asym_perturb.arguments import check_positive
from leyden_asym_perturb.module import AsymPGameModule
from leyden_asym_perturb.sequence_form import SequenceFormGame
from leyden_asym_perturb.solver import Solver, SolveResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 2000
"""Information sets up to which a strategy is written by names."""


class NashConvCallback(Callback):
    """Follow an `AsymPGameModule`: keep NashConv over its run, and show at the end what became of it.

    At the end of a fit it draws NashConv on a logarithmic axis and, where both players have three actions,
    the path of x over the simplex, and keeps the rounds as ``rounds.md`` and the strategies as
    ``strategies.json`` with the run. It leaves other modules alone.

    Args:
        every_n_steps: training steps from one point of the curve to the next.
        stop_below: NashConv at which the fit ends, also if the module's ``eps`` is smaller; None: never.
        figures: whether to draw.

    Raises:
        ValueError: if ``every_n_steps`` or ``stop_below`` is out of its range.
    """

    def __init__(
        self, every_n_steps: int = 10, stop_below: float | None = None, *, figures: bool = True
    ) -> None:
        check_at_least("every_n_steps", every_n_steps, 1)
        if stop_below is not None:
            check_positive("stop_below", stop_below)
        self.every_n_steps = every_n_steps
        self.stop_below = stop_below
        self.figures = figures
        self._curve: list[list[float]] = []
        self._path: list[list[float]] = []

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Iterations at which a certificate was computed, and the largest NashConv of the games there."""
        return [(int(iterations), found) for iterations, found in self._curve]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep a point of the curve, and stop where it is low enough."""
        if not isinstance(pl_module, AsymPGameModule):
            return
        solver = pl_module.solver
        low = self.stop_below is not None and bool((solver.best <= self.stop_below).all())
        if self.stop_below is not None and trainer.strategy.reduce_boolean_decision(low, all=True):
            trainer.should_stop = True
        if trainer.global_step % self.every_n_steps == 0 or trainer.should_stop:
            done = int(solver.iteration)
            checked = float(done - done % solver.check_every)  # a certificate may be some steps old
            if not self._curve or checked > self._curve[-1][0]:
                self._curve.append([checked, float(solver.current.max())])
            if self._on_triangle(solver):
                self._path.append(solver.x[0, 0].tolist())

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw, and keep rounds and strategies."""
        if not isinstance(pl_module, AsymPGameModule) or not trainer.is_global_zero:
            return
        found = pl_module.result()
        if not isinstance(found, SolveResult):
            return
        _keep_texts(
            trainer,
            {
                "rounds.md": rounds_table(found),
                "strategies.json": json.dumps(strategies_of(pl_module.solver, found), indent=1),
            },
        )
        if not self.figures or not keeps_figures(trainer):
            return
        if len(self._curve) > 1:
            log_figure(trainer, "nash_conv", draw_curve(self.curve, found))
        if len(self._path) > 1:
            log_figure(trainer, "path", draw_path(self._path, found))

    def state_dict(self) -> dict[str, Any]:
        """The curve and the path so far."""
        return {
            "curve": [list(point) for point in self._curve],
            "path": [list(point) for point in self._path],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them."""
        self._curve = [list(point) for point in state_dict["curve"]]
        self._path = [list(point) for point in state_dict["path"]]

    def _on_triangle(self, solver: Solver) -> bool:
        return self.figures and solver.game.single and solver.x.shape[-1] == 3 and solver.y.shape[-1] == 3


def rounds_table(found: SolveResult) -> str:
    """The rounds of a solution as a table in Markdown.

    Args:
        found: the solution.

    Returns:
        The table.
    """
    rows = ["| game | mu | iterations so far | NashConv |", "|---|---|---|---|"]
    rows += [f"| {one.game} | {one.mu:.4g} | {one.iters} | {one.nash_conv:.3g} |" for one in found.history]
    last = zip(
        *(torch.as_tensor(v).reshape(-1).tolist() for v in (found.mu, found.iters, found.nash_conv)),
        strict=True,
    )
    rows += [f"| {place} | {mu:.4g} | {iters} | {conv:.3g} |" for place, (mu, iters, conv) in enumerate(last)]
    return "\n".join(rows)


def strategies_of(solver: Solver, found: SolveResult) -> dict[str, Any]:
    """A solution as plain data, by the names of a tree's information sets where they are not too many.

    Args:
        solver: what found it.
        found: the solution.

    Returns:
        Both strategies and the certificate.
    """
    game = solver.game
    both: dict[str, Any] = {"x": found.x.tolist(), "y": found.y.tolist()}
    if isinstance(game, SequenceFormGame) and sum(len(tree.info_sets) for tree in game.trees) <= LARGEST:
        both = {"x": game.policy(0, found.x), "y": game.policy(1, found.y)}
    certificate = {
        name: torch.as_tensor(getattr(found, name)).tolist()
        for name in ("nash_conv", "lower", "upper", "mu", "iters", "converged")
    }
    return {**both, **certificate}


def draw_curve(curve: list[tuple[int, float]], found: SolveResult) -> Figure:
    """NashConv against iterations, with the ends of the rounds.

    Args:
        curve: iterations and NashConv, at least one.
        found: the solution, for its rounds.

    Returns:
        The figure.
    """
    from leyden.figures import MUTED, PALETTE, new_figure

    figure, (ax,) = new_figure(title="NashConv of the game itself, and where mu was halved")
    iterations, values = zip(*curve, strict=True)
    ax.plot(iterations, [max(value, 1e-17) for value in values], color=PALETTE[0], lw=1.8)
    for end in sorted({one.iters for one in found.history}):
        ax.axvline(end, color=MUTED, lw=0.8, ls=":")
    ax.set_yscale("log")
    ax.set_xlabel("iterations of both processes")
    ax.set_ylabel("NashConv")
    return figure


def draw_path(path: list[list[float]], found: SolveResult) -> Figure:
    """The path of x over the simplex of three actions, in the process that perturbs x.

    Args:
        path: points of the simplex, at least one.
        found: the solution, which is marked.

    Returns:
        The figure.
    """
    from leyden.figures import INK, MUTED, PALETTE, new_figure

    figure, (ax,) = new_figure(title="The path of x over the simplex to the solution, the star", height=5.0)
    corners = [(0.0, 0.0), (1.0, 0.0), (0.5, 3**0.5 / 2), (0.0, 0.0)]
    ax.plot(*zip(*corners, strict=True), color=MUTED, lw=1)
    for place, (corner, name) in enumerate(
        zip(corners[:3], ("action 0", "action 1", "action 2"), strict=True)
    ):
        ax.annotate(
            name, corner, (0, -12 if place < 2 else 6), textcoords="offset points", ha="center", color=INK
        )
    ax.plot(*zip(*map(_on_plane, path), strict=True), color=PALETTE[0], lw=1.2, marker=".", ms=4)
    ax.plot(*_on_plane(found.x.tolist()), color=PALETTE[1], marker="*", ms=14, ls="")
    ax.set_aspect("equal")
    ax.set_axis_off()
    return figure


def _on_plane(point: list[float]) -> tuple[float, float]:
    return point[1] + 0.5 * point[2], point[2] * 3**0.5 / 2


def _keep_texts(trainer: Trainer, texts: dict[str, str]) -> None:
    """Keep texts with the run, wherever a logger of the Trainer can."""
    for logger in trainer.loggers:
        for name, text in texts.items():
            if isinstance(logger, LeydenLogger):
                logger.log_text(text, name)
            elif isinstance(logger, MLFlowLogger):
                logger.experiment.log_text(logger.run_id, text, name)
