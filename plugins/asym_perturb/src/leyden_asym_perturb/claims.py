"""What the paper says, as experiments on two cores; what does not hold is stated as well.

A game has no validation data. Where a method is tuned, its setting is chosen from another random start than
the one that is judged, by the same number of settings for every method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from leyden.claims import Arm, Cell, Claim, Measured, Scalar, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import Selection, best, better, bound, not_worse, rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BRPS_LIMIT = {4.0: (0.275, 0.525, 0.2)}
"""Where x ends above the threshold 2.5: (0.4 - 0.5 / mu, 0.4 + 0.5 / mu, 0.2)."""

_GRADIENTS = 4
"""Gradients of an iteration of both processes."""

_MOST = 100_000
"""Gradients after which a method that is not done counts as done, whichever it is."""

_FLOOR = 1e-16
"""Smaller numbers are rounding, of which no ratio is taken."""


class LastIterate(Claim):
    """Where last iterates of the small matrix games go, at the paper's step size."""

    name = "last-iterate"
    title = "Last iterates of small matrix games: who ends at an equilibrium"
    source = "Section 6, normal-form games: curves of NashConv and sensitivity to mu"
    statements = (
        Statement(
            id="exact",
            text="Below the threshold (BRPS: mu = 1, 2; M-Ne: mu = 1) the mirrored pair ends with a NashConv "
            "of at most 1e-8.",
            kind="bound",
            paper="AsymP-GDA converges linearly to an equilibrium of the original game.",
        ),
        Statement(
            id="above",
            text="On BRPS at mu = 4, above the threshold 2.5, x ends within 1e-6 of (0.275, 0.525, 0.2).",
            kind="bound",
            paper="The equilibrium is reached for mu up to 2 and missed at 4.",
        ),
        Statement(
            id="one-run",
            text="Both strategies of one run have a NashConv of 0.16 mu together (BRPS, to 1e-6): only that "
            "of the perturbed player is right.",
            kind="bound",
        ),
        Statement(
            id="symmetric",
            text="With both players perturbed (BRPS, mu = 1) x can be exploited by 1/7, to 1e-6.",
            kind="bound",
            paper="SymP-GDA stalls at a shifted point.",
        ),
        Statement(
            id="optimistic",
            text="At the paper's step size of 0.01 its NashConv is at least 100 times smaller than OGDA's.",
            kind="better",
            paper="OGDA converges more slowly.",
        ),
        Statement(
            id="circles",
            text="Plain gradient descent-ascent keeps a NashConv above 0.01.",
            kind="bound",
            paper="GDA cycles.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 3.0, "paper": 60.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 6, "paper": 100}
    metric = "nash_conv"
    mode = "min"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Four methods on two games, the perturbed ones at several strengths."""
        arms: list[tuple[str, str, float]] = [
            *(("AsymP", "BRPS", mu) for mu in (1.0, 2.0, 4.0)),
            ("AsymP", "M-Ne", 1.0),
            *(("SymP", game, mu) for game in ("BRPS", "M-Ne") for mu in (0.1, 1.0)),
            *((method, game, 0.0) for method in ("OGDA", "GDA") for game in ("BRPS", "M-Ne")),
        ]
        return [
            Cell(
                method=f"{method}, {game}",
                seed=seed,
                setting={"mu": mu} if mu else {},
                scale=scale.name,
                options={
                    "method": method,
                    "game": game,
                    "iterations": scale.pick(smoke=300, laptop=10_000, paper=100_000),
                },
            )
            for seed in range(scale.seeds)
            for method, game, mu in arms
        ]

    def run(self, cell: Cell) -> Measured:
        """Iterate from a random start."""
        from leyden_asym_perturb.experiments import GAMES, curve, method_of, random_starts

        name, game_name = str(cell.options["method"]), str(cell.options["game"])
        game, mu = GAMES[game_name](), _number(cell.setting.get("mu", 0.0))
        method = method_of(name, game, 0.01, mu, **random_starts(game, cell.seed))
        marks, found = curve(method, int(_number(cell.options["iterations"])))
        last = float(found[-1])
        measured: dict[str, Any] = {
            "nash_conv": last,
            "iterations": [float(mark) for mark in marks],
            "curve": [float(value) for value in found],
        }
        if name == "AsymP":
            measured |= _asymmetric(method, game_name, mu, last)
        elif name == "SymP" and game_name == "BRPS" and mu == 1:
            measured["symmetric"] = 1e-6 - abs(float(game.worst_case(method.x)) - 1 / 7)
        elif name == "GDA":
            measured["circling"] = last - 0.01
        return measured

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge."""
        below = [Arm("AsymP, BRPS", {"mu": mu}) for mu in (1.0, 2.0)]
        many = Arm("AsymP, M-Ne", {"mu": 1.0})
        asymmetric, optimistic = below[0], Arm("OGDA, BRPS", {})
        bounds: tuple[tuple[str, str, list[Arm]], ...] = (
            ("exact", "exact", [*below, many]),
            ("above", "above", [Arm("AsymP, BRPS", {"mu": 4.0})]),
            ("one-run", "one_run", below),
            ("symmetric", "symmetric", [Arm("SymP, BRPS", {"mu": 1.0})]),
            ("circles", "circling", [Arm("GDA, BRPS", {}), Arm("GDA, M-Ne", {})]),
        )
        return [
            *(bound(self.statement(name), table, slack, arms=arms) for name, slack, arms in bounds),
            better(
                self.statement("optimistic"),
                table,
                asymmetric,
                optimistic,
                self.metric,
                margin=100.0,
                mode="min",
                by="ratio",
            ),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """NashConv against the iteration on both games."""
        from leyden.figures import series_figure

        return {
            game: series_figure(
                _part(table, game),
                "curve",
                _part(table, game).arms(),
                x="iterations",
                x_label="iteration",
                y_label="NashConv",
                log_y=True,
                title=f"{game}: NashConv of the last iterate, eta = 0.01",
            )
            for game in ("BRPS", "M-Ne")
        }


def _asymmetric(method: Any, game: str, mu: float, last: float) -> dict[str, float]:
    """What is stated of asymmetric perturbation, as slacks."""
    x_process = method.processes[0]
    one_run = float(x_process.game.nash_conv(x_process.x, x_process.y))
    if (limit := _BRPS_LIMIT.get(mu)) is not None:
        distance = max(abs(a - b) for a, b in zip(x_process.x[0].tolist(), limit, strict=True))
        return {"one_run_nash_conv": one_run, "above": 1e-6 - distance}
    slacks = {"one_run_nash_conv": one_run, "exact": 1e-8 - last}
    return slacks | ({"one_run": 1e-6 - abs(one_run - 0.16 * mu)} if game == "BRPS" else {})


class Impossibility(Claim):
    """Whether some strength of a symmetric perturbation gives the equilibrium of biased matching pennies."""

    name = "impossibility"
    title = "A thousand strengths of a symmetric perturbation, none of which gives the equilibrium"
    source = "The impossibility for symmetric perturbation, and its experiment on biased matching pennies"
    statements = (
        Statement(
            id="never",
            text="At each of 1000 strengths mu = k / 300 NashConv of the symmetrically perturbed equilibrium "
            "is above 0.05 mu.",
            kind="bound",
            paper="No strength gives the exact equilibrium.",
        ),
        Statement(
            id="asymmetric",
            text="With one player perturbed, each of them gives it in the mirrored pair, to 1e-9.",
            kind="bound",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 0.5, "paper": 0.5}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 1, "paper": 1}
    metric = "least"
    mode = "min"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Both kinds of perturbation; nothing is random."""
        count = scale.pick(smoke=20, laptop=1000)
        return [
            Cell(method=method, seed=0, scale=scale.name, options={"count": count})
            for method in ("symmetric", "asymmetric")
        ]

    def run(self, cell: Cell) -> Measured:
        """Solve all strengths at once."""
        import torch

        from leyden_asym_perturb.experiments import pennies_solutions

        count = int(_number(cell.options["count"]))
        strengths = torch.arange(1, 1001, 1000 // count, dtype=torch.float64) / 300
        symmetric = cell.method == "symmetric"
        found = pennies_solutions(strengths, 20_000, symmetric=symmetric)
        slack = found / strengths - 0.05 if symmetric else 1e-9 - found
        return {
            "least": float(found.min()),
            f"{cell.method}_slack": float(slack.min()),
            "strengths": strengths.tolist(),
            "found": found.clamp(min=_FLOOR).tolist(),
        }

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge."""
        return [
            bound(self.statement("never"), table, "symmetric_slack", unit="of mu"),
            bound(self.statement("asymmetric"), table, "asymmetric_slack"),
        ]

    def figure(self, table: Table) -> Figure:
        """NashConv against the strength."""
        from leyden.figures import series_figure

        return series_figure(
            table,
            "found",
            table.arms(),
            x="strengths",
            x_label="mu",
            y_label="NashConv of the perturbed solution",
            log_y=True,
            title="Biased matching pennies: what each strength gives",
        )


class ParameterFree(Claim):
    """Random matrices solved without a choice of mu, beside tuned methods that need none."""

    name = "parameter-free"
    title = "Random 10 x 10 matrices without a choice of mu, beside tuned optimism and extragradient"
    source = "Algorithm 1 and its guarantee of O(log 1/eps) iterations"
    statements = (
        Statement(
            id="solved",
            text="Every matrix is solved to a NashConv of 1e-8 within 200,000 iterations.",
            kind="bound",
            paper="O(log 1/eps) iterations for any start of mu.",
        ),
        Statement(
            id="value",
            text="The value lies between the certificate's bounds, to 1e-8.",
            kind="bound",
        ),
        Statement(
            id="linear",
            text="Once mu is small enough accuracy costs a constant: from 1e-6 to 1e-8 at most 1.5 times the "
            "iterations from 1e-4 to 1e-6.",
            kind="not worse",
            paper="O(log 1/eps), where symmetric perturbation needs 1/eps.",
        ),
        Statement(
            id="optimism-is-faster",
            text="OGDA with a tuned step needs fewer gradients to 1e-6, of at most 100,000.",
            kind="better",
        ),
        Statement(
            id="extragradient-is-faster",
            text="Extragradient with a tuned step needs fewer gradients to 1e-6, of at most 100,000.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 4.0, "paper": 15.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 6, "paper": 30}
    metric = "gradients"
    mode = "min"
    validation = "val_gradients"
    reference = "AsymP, auto"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """The solver, which has nothing to tune, and two methods at three step sizes."""
        options = {"budget": scale.pick(smoke=3_000, laptop=200_000)}
        grid: list[tuple[str, Mapping[str, Scalar]]] = [
            ("AsymP, auto", {}),
            *(("OGDA", {"eta": eta}) for eta in (0.25, 0.5, 0.7)),
            *(("extragradient", {"eta": eta}) for eta in (0.5, 0.9, 1.3)),
        ]
        return [
            Cell(method=method, seed=seed, setting=setting, scale=scale.name, options=options)
            for seed in range(scale.seeds)
            for method, setting in grid
        ]

    def run(self, cell: Cell) -> Measured:
        """Solve a matrix, and another one for the choice of the step."""
        budget = int(_number(cell.options["budget"]))
        if cell.method == "AsymP, auto":
            return _solve_alone(cell.seed, budget)
        return _tuned(cell.method, cell.seed, _number(cell.setting["eta"]), min(_GRADIENTS * budget, _MOST))

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge."""
        solver = Arm("AsymP, auto", {})
        slow, fast = (table.by_seed(solver, name) for name in ("from_6_to_8", "from_4_to_6"))
        faster = [
            better(
                self.statement(name),
                table,
                best(table, method, self.validation, "min"),
                solver,
                self.metric,
                mode="min",
                by="ratio",
            )
            for name, method in (
                ("optimism-is-faster", "OGDA"),
                ("extragradient-is-faster", "extragradient"),
            )
        ]
        return [
            bound(self.statement("solved"), table, "accuracy"),
            bound(self.statement("value"), table, "value_slack"),
            not_worse(
                self.statement("linear"), table, slow, fast, "iterations", margin=1.5, mode="min", by="ratio"
            ),
            *faster,
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The methods at their best, and what the step size changes."""
        from leyden.figures import methods_figure, setting_figure

        chosen = {method: best(table, method, self.validation, "min") for method in table.methods}
        tuned = {method: one for method, one in chosen.items() if method != self.reference}
        return {
            "methods": methods_figure(
                table,
                self.metric,
                list(chosen.values()),
                mode="min",
                reference=self.reference,
                title="Gradients to a NashConv of 1e-6, settings chosen on another matrix",
            ),
            "settings": setting_figure(
                table,
                self.metric,
                selections=tuned,
                mode="min",
                log_y=True,
                title="Gradients to a NashConv of 1e-6, by eta in units of 1 / norm",
            ),
        }


def _solve_alone(seed: int, budget: int) -> dict[str, float]:
    from leyden_asym_perturb.games import random_matrix
    from leyden_asym_perturb.solver import Solver

    game = random_matrix(10, seed)
    solver = Solver(game, eps=1e-8)
    needed = {power: float(budget) for power in (4, 6, 8)}
    for count in range(0, budget + 1, solver.check_every):
        finished = solver.advance(solver.check_every)
        for power, known in needed.items():
            if known == budget and float(solver.best) <= 10.0**-power:
                needed[power] = count + solver.check_every
        if finished:
            break
    value, found = game.solve_lp().value, float(solver.best)
    lower, upper = float(game.guaranteed(solver.best_y)), float(game.worst_case(solver.best_x))
    gradients = float(min(_GRADIENTS * needed[6], _MOST))
    return {
        "gradients": gradients,
        "val_gradients": gradients,
        "accuracy": 1e-8 - found,
        "value_slack": 1e-8 + min(value - lower, upper - value),
        "from_4_to_6": max(needed[6] - needed[4], 10.0),
        "from_6_to_8": max(needed[8] - needed[6], 10.0),
        "mu": float(solver.best_mu),
    }


def _tuned(method: str, seed: int, eta: float, budget: int) -> dict[str, float]:
    """Gradients to 1e-6 on a matrix, and on another one for the choice of the step in units of 1 / norm."""
    import torch

    from leyden_asym_perturb.experiments import iterations_needed, method_of
    from leyden_asym_perturb.games import random_matrix
    from leyden_asym_perturb.matrix_game import MatrixGame

    both = MatrixGame(torch.cat([random_matrix(10, one).payoff for one in (seed, 1000 + seed)]))
    runner = method_of(method, both, eta / both.norm[:, None])
    cost = 2 if method == "OGDA" else 4
    judged, other = iterations_needed(runner, 1e-6, budget // cost)
    return {"gradients": cost * judged, "val_gradients": cost * other}


class Noise(Claim):
    """Last iterates under noisy gradients."""

    name = "noise"
    title = "Noisy gradients: exploitability of the last iterate on two small games"
    source = (
        "Robustness of perturbed dynamics to noisy feedback (E3); ours, the paper's full feedback is exact"
    )
    statements = (
        Statement(
            id="optimism",
            text="BRPS, noise of 0.1: at most 0.6 times the exploitability of OGDA.",
            kind="better",
        ),
        Statement(
            id="symmetric",
            text="BRPS, noise of 0.1: at most 0.3 times that of a symmetric perturbation of that strength.",
            kind="better",
        ),
        Statement(
            id="weak-symmetric",
            text="BRPS, noise of 0.1: smaller than that of a symmetric perturbation of a tenth of the "
            "strength.",
            kind="better",
        ),
        Statement(
            id="many",
            text="M-Ne, noise of 0.1: at most 0.6 times the exploitability of OGDA.",
            kind="better",
        ),
        Statement(
            id="loud",
            text="Under a noise of 1 it is at least a tenth better than the symmetric perturbation (BRPS).",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 4.0, "paper": 10.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 5, "paper": 20}
    metric = "exploitability"
    mode = "min"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Five methods on BRPS and M-Ne, at two levels on BRPS."""
        methods = (("AsymP", 1.0), ("SymP", 1.0), ("SymP", 0.1), ("OGDA", 0.0), ("GDA", 0.0))
        return [
            Cell(
                method=f"{method}, {game}, noise {level:g}",
                seed=seed,
                setting={"mu": mu} if mu else {},
                scale=scale.name,
                options={
                    "method": method,
                    "game": game,
                    "level": level,
                    "iterations": scale.pick(smoke=300, laptop=10_000, paper=20_000),
                },
            )
            for seed in range(scale.seeds)
            for game, level in (("BRPS", 0.1), ("M-Ne", 0.1), ("BRPS", 1.0))
            for method, mu in methods
        ]

    def run(self, cell: Cell) -> Measured:
        """Iterate from a random start."""
        from leyden_asym_perturb.experiments import (
            GAMES,
            gaussian,
            late_exploitability,
            method_of,
            random_starts,
        )

        name, mu = str(cell.options["method"]), _number(cell.setting.get("mu", 0.0))
        game = GAMES[str(cell.options["game"])]()
        noise = gaussian(cell.seed, _number(cell.options["level"]))
        # of the mirrored pair the process of x is enough
        chosen = "AsymP of x" if name == "AsymP" else name
        method = method_of(chosen, game, 0.01, mu, noise=noise, **random_starts(game, cell.seed))
        iterations = int(_number(cell.options["iterations"]))
        return {"exploitability": late_exploitability(method, iterations)}

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge."""

        def beats(statement: str, where: str, other: str, mu: float, margin: float) -> Verdict:
            baseline = Arm(f"{other}, {where}", {"mu": mu} if mu else {})
            return better(
                self.statement(statement),
                table,
                Arm(f"AsymP, {where}", {"mu": 1.0}),
                baseline,
                self.metric,
                margin=margin,
                mode="min",
                by="ratio",
            )

        return [
            beats("optimism", "BRPS, noise 0.1", "OGDA", 0.0, 1 / 0.6),
            beats("symmetric", "BRPS, noise 0.1", "SymP", 1.0, 1 / 0.3),
            beats("weak-symmetric", "BRPS, noise 0.1", "SymP", 0.1, 1.0),
            beats("many", "M-Ne, noise 0.1", "OGDA", 0.0, 1 / 0.6),
            beats("loud", "BRPS, noise 1", "SymP", 1.0, 1.1),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """A picture for each game and level."""
        from leyden.figures import methods_figure

        places = {
            "brps": "BRPS, noise 0.1",
            "many-equilibria": "M-Ne, noise 0.1",
            "brps-loud": "BRPS, noise 1",
        }
        return {
            name: methods_figure(
                _part(table, where),
                self.metric,
                mode="min",
                title=f"{where}: exploitability of x, last tenth of the run",
            )
            for name, where in places.items()
        }


class _Trees(Claim):
    """What the claims on game trees share: every method tuned from another start, judged at equal updates."""

    metric = "nash_conv"
    mode = "min"
    validation = "val_nash_conv"
    reference = ""

    def run(self, cell: Cell) -> Measured:
        """Run a method from two random starts, one for tuning and one to be judged."""
        from leyden_asym_perturb.experiments import GAMES, curve, method_of, random_starts

        name, game = str(cell.options["method"]), GAMES[str(cell.options["game"])]()
        updates = int(_number(cell.options["updates"]))
        cost = 2 if name == "AsymP" else 1
        starts = random_starts(game, cell.seed, 2)
        method = method_of(
            name,
            game,
            _number(cell.setting.get("eta", 1.0)),
            _number(cell.setting.get("mu", 0.0)),
            **starts,
        )
        marks, found = curve(method, updates // cost)
        return {
            "nash_conv": max(float(found[-1][1]), _FLOOR),
            "val_nash_conv": max(float(found[-1][0]), _FLOOR),
            "updates": [float(cost * mark) for mark in marks],
            "curve": [max(float(value[1]), _FLOOR) for value in found],
        }

    def judge_pair(
        self, table: Table, statement: str, game: str, method: str, other: str, margin: float = 1.0
    ) -> Verdict:
        """Whether one tuned method is better than another by a factor."""
        arm, baseline = (best(table, f"{name}, {game}", self.validation, "min") for name in (method, other))
        return better(
            self.statement(statement),
            table,
            arm,
            baseline,
            self.metric,
            margin=margin,
            mode="min",
            by="ratio",
        )

    def curves(self, table: Table, game: str) -> Figure:
        """NashConv against updates of the tuned methods."""
        from leyden.figures import series_figure

        part = _part(table, game)
        arms: list[Arm | Selection] = [best(part, method, self.validation, "min") for method in part.methods]
        return series_figure(
            part,
            "curve",
            arms,
            x="updates",
            x_label="strategy updates of each player",
            y_label="NashConv",
            log_y=True,
            title=f"{game}: NashConv at equal numbers of updates, tuned",
        )


def _tree_cells(
    scale: Scale, game: str, updates: int, grids: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Cell]:
    return [
        Cell(
            method=f"{method}, {game}",
            seed=seed,
            setting=setting,
            scale=scale.name,
            options={"method": method, "game": game, "updates": updates},
        )
        for seed in range(scale.seeds)
        for method, settings in grids.items()
        for setting in settings
    ]


def _rates(*rates: float) -> tuple[dict[str, float], ...]:
    return tuple({"eta": rate} for rate in rates)


def _strengths(eta: float, *strengths: float) -> tuple[dict[str, float], ...]:
    return tuple({"eta": eta, "mu": mu} for mu in strengths)


class Trees(_Trees):
    """Kuhn poker and Goofspiel: perturbed, optimistic and regret-matching methods, all tuned."""

    name = "trees"
    title = "Kuhn poker and Goofspiel-4: NashConv after equal numbers of strategy updates, all tuned"
    source = "Section 6, extensive-form games"
    statements = (
        Statement(
            id="kuhn-symmetric",
            text="Kuhn: NashConv is at least 100 times smaller than that of the symmetric perturbation.",
            kind="better",
            paper="Competitive or best on all games; the others stall or are slower.",
        ),
        Statement(
            id="kuhn-plain",
            text="Kuhn: at least 100 times smaller than that of plain DGDA.",
            kind="better",
            paper="DGDA does not converge.",
        ),
        Statement(
            id="kuhn-cfr",
            text="Kuhn: smaller than that of the average of CFR+.",
            kind="better",
            paper="Lower than CFR, CFR+, DCFR and LCFR on most games.",
        ),
        Statement(
            id="kuhn-dcfr",
            text="Kuhn: smaller than that of the average of DCFR.",
            kind="better",
            paper="Lower than CFR, CFR+, DCFR and LCFR on most games.",
        ),
        Statement(
            id="kuhn-optimism",
            text="Kuhn: smaller than that of a tuned DOGDA.",
            kind="better",
            paper="Competitive or best on all games.",
        ),
        Statement(
            id="kuhn-predictive",
            text="Kuhn: smaller than that of the average of PCFR+, which the paper does not compare with.",
            kind="better",
        ),
        Statement(
            id="goofspiel-symmetric",
            text="Goofspiel: NashConv is at least 100 times smaller than that of the symmetric perturbation.",
            kind="better",
            paper="Competitive or best on all games; the others stall or are slower.",
        ),
        Statement(
            id="goofspiel-cfr",
            text="Goofspiel: smaller than that of the average of CFR+.",
            kind="better",
            paper="Lower than CFR, CFR+, DCFR and LCFR on most games.",
        ),
        Statement(
            id="goofspiel-dcfr",
            text="Goofspiel: smaller than that of the average of DCFR.",
            kind="better",
            paper="Lower than CFR, CFR+, DCFR and LCFR on most games.",
        ),
        Statement(
            id="goofspiel-optimism",
            text="Goofspiel: smaller than that of a tuned DOGDA.",
            kind="better",
            paper="Competitive or best on all games.",
        ),
        Statement(
            id="goofspiel-predictive",
            text="Goofspiel: smaller than that of the average of PCFR+.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 4.0, "paper": 30.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 3, "paper": 10}

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Four settings of every method that has one."""
        short = scale.name == "smoke"
        grids: dict[str, dict[str, Sequence[Mapping[str, Any]]]] = {
            "Kuhn": {
                "AsymP": _strengths(2.0, 0.02, 0.03, 0.04, 0.05),
                "SymP": _strengths(1.0, 0.0001, 0.001, 0.01, 0.03),
                "GDA": _rates(0.25, 0.5, 1.0, 2.0),
                "OGDA": _rates(0.5, 1.0, 2.0, 4.0),
            },
            "Goofspiel-4": {
                "AsymP": _strengths(1.0, 0.04, 0.05, 0.06, 0.08),
                "SymP": _strengths(1.0, 0.0001, 0.001, 0.01, 0.05),
                "GDA": _rates(0.1, 0.5, 1.0, 2.0),
                "OGDA": _rates(0.1, 0.5, 1.0, 2.0),
            },
        }
        cells = []
        for game, tuned in grids.items():
            whole = {**tuned, **{variant: ({},) for variant in ("CFR+", "DCFR", "PCFR+")}}
            chosen = {name: settings[:1] if short else settings for name, settings in whole.items()}
            cells += _tree_cells(scale, game, scale.pick(smoke=40, laptop=800, paper=4000), chosen)
        return cells

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on the second start, with the settings that the first one chose."""
        pairs = (
            ("kuhn-symmetric", "Kuhn", "SymP", 100.0),
            ("kuhn-plain", "Kuhn", "GDA", 100.0),
            ("kuhn-cfr", "Kuhn", "CFR+", 1.0),
            ("kuhn-dcfr", "Kuhn", "DCFR", 1.0),
            ("kuhn-optimism", "Kuhn", "OGDA", 1.0),
            ("kuhn-predictive", "Kuhn", "PCFR+", 1.0),
            ("goofspiel-symmetric", "Goofspiel-4", "SymP", 100.0),
            ("goofspiel-cfr", "Goofspiel-4", "CFR+", 1.0),
            ("goofspiel-dcfr", "Goofspiel-4", "DCFR", 1.0),
            ("goofspiel-optimism", "Goofspiel-4", "OGDA", 1.0),
            ("goofspiel-predictive", "Goofspiel-4", "PCFR+", 1.0),
        )
        return [
            self.judge_pair(table, statement, game, "AsymP", other, margin)
            for statement, game, other, margin in pairs
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The curves of both games."""
        return {game: self.curves(table, game) for game in ("Kuhn", "Goofspiel-4")}


class Leduc(_Trees):
    """Leduc poker, where the paper itself names an exception."""

    name = "leduc"
    title = "Leduc poker: NashConv after equal numbers of strategy updates, all tuned"
    source = "Section 6, comparison with the CFR family: Leduc is the main exception"
    statements = (
        Statement(
            id="cfr-is-better",
            text="The average of CFR+ has a NashConv at least 3 times smaller than that of AsymP-DGDA.",
            kind="better",
            paper="Leduc is the main exception.",
        ),
        Statement(
            id="predictive-is-better",
            text="So has the average of PCFR+.",
            kind="better",
        ),
        Statement(
            id="plain",
            text="AsymP-DGDA is better than DGDA by a factor of 2.",
            kind="better",
            paper="The others stall or are slower.",
        ),
        Statement(
            id="optimism",
            text="AsymP-DGDA is better than a tuned DOGDA.",
            kind="better",
            paper="Competitive or best.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 4.0, "paper": 30.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 3, "paper": 5}

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Three settings of every method that has one."""
        grids: dict[str, Sequence[Mapping[str, Any]]] = {
            "AsymP": _strengths(4.0, 0.001, 0.002, 0.004),
            "GDA": _rates(2.0, 4.0, 8.0),
            "OGDA": _rates(1.0, 2.0, 4.0),
            "CFR+": ({},),
            "PCFR+": ({},),
        }
        if scale.name == "smoke":
            grids = {name: settings[:1] for name, settings in grids.items()}
        return _tree_cells(scale, "Leduc", scale.pick(smoke=10, laptop=2000, paper=10_000), grids)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on the second start, with the settings that the first one chose."""
        return [
            self.judge_pair(table, "cfr-is-better", "Leduc", "CFR+", "AsymP", 3.0),
            self.judge_pair(table, "predictive-is-better", "Leduc", "PCFR+", "AsymP", 3.0),
            self.judge_pair(table, "plain", "Leduc", "AsymP", "GDA", 2.0),
            self.judge_pair(table, "optimism", "Leduc", "AsymP", "OGDA"),
        ]

    def figure(self, table: Table) -> Figure:
        """The curves."""
        return self.curves(table, "Leduc")


class Thresholds(Claim):
    """How large a perturbation may be, by linear programming."""

    name = "thresholds"
    title = "The largest harmless perturbation of random matrices, by linear programming"
    source = "Corollary 3.2: the interval of mu; its length is ours"
    statements = (
        Statement(
            id="shrinks",
            text="From 5 to 40 actions the threshold falls as a power of the size, with an exponent between "
            "-2 and -0.5.",
            kind="rate",
        ),
        Statement(
            id="sharp",
            text="At 0.95 times the threshold the solution is within 1e-5 of the equilibrium strategy of "
            "least norm.",
            kind="bound",
            paper="For small enough mu the distance is exactly 0.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 1.5, "paper": 10.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 60, "paper": 100}
    metric = "threshold"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Random matrices of four sizes."""
        sizes = scale.pick(smoke=(5, 10), laptop=(5, 10, 20, 40))
        return [
            Cell(method="LP", seed=seed, setting={"size": size}, scale=scale.name)
            for seed in range(scale.seeds)
            for size in sizes
        ]

    def run(self, cell: Cell) -> Measured:
        """Compute the threshold, and for small matrices what the iteration gives near it."""
        from leyden_asym_perturb.fixed_mu import asymp_gda
        from leyden_asym_perturb.games import random_matrix
        from leyden_asym_perturb.linear_program import invariance_threshold, least_norm_strategy

        size = int(_number(cell.setting["size"]))
        A = random_matrix(size, cell.seed).payoff[0]
        threshold = invariance_threshold(A)
        measured = {"threshold": threshold}
        if size == 5 and cell.seed % 8 == 0:  # a run takes longer than many programs
            found = asymp_gda(A, 0.95 * threshold, max_iters=30_000, tol=1e-15).strategy
            measured["sharp"] = 1e-5 - float((found - least_norm_strategy(A)).norm())
        return measured

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge."""
        sizes, found = table.along("LP", "size", "threshold")
        known = Table([result for result in table if "sharp" in result.measured or result.status != "done"])
        return [
            rate(self.statement("shrinks"), sizes, found, -2.0, -0.5),
            bound(self.statement("sharp"), known, "sharp"),
        ]

    def figure(self, table: Table) -> Figure:
        """The threshold against the size."""
        from leyden.figures import setting_figure

        return setting_figure(
            table,
            self.metric,
            log_y=True,
            title="The largest harmless perturbation of random matrices, by their size",
        )


def _part(table: Table, where: str) -> Table:
    """The results of one game or level; in pictures of its own a method looks the same in each of them."""
    return Table([result for result in table if result.cell.method.endswith(f", {where}")])


def _number(value: Scalar) -> float:
    return math.nan if value is None else float(value)
