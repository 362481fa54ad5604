"""What the paper says of warm-up, as experiments on two cores; what does not hold is stated as well.

Every tuned method gets the same number of settings, is tuned on validation data and judged on test data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from leyden.claims import Arm, Cell, Claim, Measured, Mode, Scalar, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import Judge, best, better, bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Setting = dict[str, Scalar]
Grid = Mapping[str, Sequence[Setting]]
"""For each method the settings tried."""


class Descent(Claim):
    """The theory on functions whose constants are known."""

    name = "descent"
    title = "Gradient descent on a function with known H0 and H1: steps, inequalities, bounds"
    source = "Section 3 (step size, descent, both complexity bounds); the experiment is ours"
    statements = (
        Statement(
            id="gradient",
            text="At every iterate the squared gradient is at most 2 H0 gap + H1 gap².",
            kind="bound",
            paper="A lemma of (H0, H1)-smooth functions.",
        ),
        Statement(
            id="descent",
            text="Every step decreases the loss by 0.94 times step times squared gradient; with a0 = a1 = 1, "
            "by half of that product.",
            kind="bound",
            paper="The loss decreases at every step.",
        ),
        Statement(
            id="pl",
            text="No run takes more steps than the bound under the PL inequality.",
            kind="bound",
            paper="Complexity under PL; its displayed formula lacks two guards.",
        ),
        Statement(
            id="convex",
            text="No run takes more steps than the bound for convex functions.",
            kind="bound",
            paper="Complexity under the aiming condition, of order H0 D² / eps + H1 D².",
        ),
        Statement(
            id="near",
            text="From distance 2, the fixed step that is safe at the start takes at least 2.4 times as many "
            "steps.",
            kind="better",
            paper="Fixed steps pay for the curvature of the start.",
        ),
        Statement(
            id="far",
            text="From distance 12, it takes 18 times as many or more.",
            kind="better",
            paper="Fixed steps pay for the curvature of the start.",
        ),
        Statement(
            id="constants",
            text="The paper's constants are cautious: from everywhere, a0 = a1 = 1 takes at least 8 times "
            "fewer steps.",
            kind="bound",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 0.5, "paper": 2.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 8, "paper": 20}
    metric = "steps"
    mode: ClassVar[Mode] = "min"
    imports = ("numpy",)

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Three step sizes from four distances."""
        distances = scale.pick(smoke=(2.0, 5.0), laptop=(2.0, 5.0, 8.0, 12.0))
        return [
            Cell(method=method, seed=seed, setting={"R": distance}, scale=scale.name)
            for seed in range(scale.seeds)
            for method in _STEPS
            for distance in distances
        ]

    def run(self, cell: Cell) -> Measured:
        """Descend to a gap of 1e-6."""
        from leyden_warmup.problems import descend, exponentials, starts
        from leyden_warmup.step_size import h0h1_bound, pl_bound

        problem, (a0, a1) = exponentials(cell.seed), _STEPS[cell.method]
        distance = float(cell.setting["R"])  # type: ignore[arg-type]
        order = (2.0, 5.0, 8.0, 12.0)
        start = starts(problem, order)[order.index(distance)]
        gap = problem.evaluate(start)[0] - problem.f_star
        first = 1 / (a0 * problem.H0 + a1 * problem.H1 * gap)

        def step_size(loss: float) -> float:
            if cell.method == "fixed step":
                return first
            return 1 / (a0 * problem.H0 + a1 * problem.H1 * max(loss - problem.f_star, 0))

        run = descend(problem, start, step_size, gap=1e-6)
        places = sorted({round(math.exp(x * math.log(run.steps) / 60)) for x in range(61)})
        measured: dict[str, float | list[float]] = {
            "steps": float(run.steps),
            "gradient_slack": run.gradient_slack,
            "places": [float(place) for place in places],
            "gaps": [max(run.losses[place] - problem.f_star, 1e-16) for place in places],
        }
        if cell.method != "fixed step":
            constants = problem.H0, problem.H1
            measured |= {
                "descent_slack": run.decrease - (0.94 if a0 == 10 else 0.5),
                "pl_slack": 1 - run.steps / pl_bound(*constants, problem.mu, gap, 1e-6),
                "convex_slack": 1 - run.steps / h0h1_bound(*constants, distance, 1e-6),
            }
        return measured

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge the inequalities in every cell and the numbers of steps at two distances."""
        own = ["paper's step", "short step"]

        def fewer(statement: str, distance: float, margin: float) -> Verdict:
            own, fixed = (Arm(method, {"R": distance}) for method in ("paper's step", "fixed step"))
            return better(
                self.statement(statement), table, own, fixed, "steps", mode="min", by="ratio", margin=margin
            )

        slacks = {}
        for arm in table.arms("paper's step"):
            short = table.by_seed(Arm("short step", arm.setting), "steps")
            for seed, steps in table.by_seed(arm, "steps").items():
                slacks[f"{arm} seed {seed}"] = steps / short[seed] - 8 if seed in short else math.nan
        return [
            bound(self.statement("gradient"), table, "gradient_slack", tolerance=1e-9),
            bound(self.statement("descent"), table, "descent_slack", arms=own, tolerance=1e-9),
            bound(self.statement("pl"), table, "pl_slack", arms=own),
            bound(self.statement("convex"), table, "convex_slack", arms=own),
            fewer("near", 2.0, 2.4),
            fewer("far", 12.0, 18.0),
            bound(self.statement("constants"), slacks),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The gap over the steps, from the nearest and the farthest start."""
        from leyden.figures import series_figure

        figures = {}
        for distance in (2.0, 12.0):
            arms = [Arm(method, {"R": distance}) for method in _STEPS]
            figures[f"from_{distance:g}"] = figure = series_figure(
                table,
                "gaps",
                arms,
                x="places",
                x_label="step",
                y_label="f - f*",
                log_y=True,
                title=f"Gradient descent from distance {distance:g}",
            )
            figure.axes[0].set_xscale("log")
        return figures


class Logistic(Claim):
    """The theory on real data without a minimizer: logistic regression of two kinds of digits."""

    name = "logistic"
    title = "Logistic regression of two digits, where H0 = 0: the loss falls like no fixed step lets it"
    source = "Section 3 (classes with H0 = 0); the experiment is ours"
    statements = (
        Statement(
            id="converges",
            text="From 0, the step 1 / (H1 f) is below 1e-20 after 5000 steps.",
            kind="bound",
            paper="Where H0 = 0, convergence is linear.",
        ),
        Statement(
            id="fixed",
            text="The fixed step 4 / H1 is a million times above it, or more, at the end.",
            kind="better",
            paper="A fixed step is slower.",
        ),
        Statement(
            id="start",
            text="From a bad start, it needs at least 20 times fewer steps to a loss of 1e-3.",
            kind="better",
            paper="Fixed steps pay for the curvature of the start.",
        ),
        Statement(
            id="monotone",
            text="No step of any of the three increases the loss.",
            kind="bound",
            paper="The loss decreases at every step.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 0.5, "paper": 0.5}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 4, "paper": 9}
    metric = "last_loss"
    mode: ClassVar[Mode] = "min"
    imports = ("numpy", "sklearn.datasets")

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Three step sizes; the seed is the digit that 0 is told from, less 1."""
        steps = scale.pick(smoke=200, laptop=5000)
        return [
            Cell(method=method, seed=seed, scale=scale.name, options={"steps": steps})
            for seed in range(min(scale.seeds, 9))
            for method in ("1 / (H1 f)", "paper's step", "fixed step")
        ]

    def run(self, cell: Cell) -> Measured:
        """Descend from 0 and from a bad start."""
        import numpy as np

        from leyden_warmup.problems import descend, logistic, signed_digits

        classes = (0, 1 + cell.seed % 9)
        problem, steps = logistic(classes), int(cell.options["steps"])  # type: ignore[arg-type]

        def step_size(loss: float) -> float:
            if cell.method == "fixed step":
                return 4 / problem.H1
            factor = 20 if cell.method == "paper's step" else 1
            return 1 / (factor * problem.H1 * max(loss, 1e-300))

        centre = signed_digits(classes).mean(axis=0)
        ahead = descend(problem, np.zeros(65), step_size, most=steps)
        back = descend(problem, -3 * centre / np.linalg.norm(centre), step_size, gap=1e-3, most=8 * steps)
        places = sorted({round(math.exp(x * math.log(steps) / 60)) for x in range(61)})
        last = max(ahead.losses[-1], 1e-300)
        return {
            "last_loss": last,
            "depth": -20 - math.log10(last),
            "steps_back": float(back.steps),
            "fall": -max(float(np.diff(run.losses).max()) for run in (ahead, back)),
            "places": [float(place) for place in places],
            "losses": [max(ahead.losses[place], 1e-40) for place in places],
        }

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge the ends of the runs."""
        own, fixed = Arm("1 / (H1 f)"), Arm("fixed step")

        def ahead(statement: str, metric: str, margin: float) -> Verdict:
            return better(
                self.statement(statement), table, own, fixed, metric, mode="min", by="ratio", margin=margin
            )

        return [
            bound(self.statement("converges"), table, "depth", arms=[own], unit="decades"),
            ahead("fixed", "last_loss", 1e6),
            ahead("start", "steps_back", 20.0),
            bound(self.statement("monotone"), table, "fall"),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The loss over the steps."""
        from leyden.figures import series_figure

        arms = [Arm(method) for method in table.methods]
        title = "Logistic regression from 0"
        figure = series_figure(table, "losses", arms, x="places", log_y=True, title=title)
        figure.axes[0].set_xscale("log")
        return {"losses": figure}


class DigitsRange(Claim):
    """Which learning rates train a network whose initial weights are large."""

    name = "digits-range"
    title = "Digits from large initial weights: the range of learning rates, and the best of it"
    source = "Section 5 (ResNet-50 and ViT on ImageNet32), here a small MLP on digits under plain SGD"
    statements = (
        Statement(
            id="range",
            text="At a rate of 0.8, the warm-up (C = 1) is better than none by 0.2.",
            kind="better",
            paper="Warm-up lets training take rates at which it fails without.",
        ),
        Statement(
            id="linear-range",
            text="At a rate of 0.8, it is better by 0.2 than the better of two linear warm-ups, of 20 and 60 "
            "steps.",
            kind="better",
        ),
        Statement(
            id="moderate",
            text="At a rate of 0.2, it is within 0.02 of none.",
            kind="not worse",
            paper="Warm-up costs little.",
        ),
        Statement(
            id="none",
            text="Tuned with the same budget, it is within 0.005 of no warm-up.",
            kind="not worse",
            paper="The loss-driven schedule improves over none.",
        ),
        Statement(
            id="better",
            text="Tuned with the same budget, it is better than no warm-up.",
            kind="better",
            paper="The loss-driven schedule improves over none.",
        ),
        Statement(
            id="linear",
            text="Tuned with the same budget, it is within 0.01 of a linear warm-up of tuned length.",
            kind="not worse",
            paper="The loss-driven schedule matches a tuned linear warm-up.",
        ),
        Statement(
            id="schedule-free",
            text="Tuned with the same budget, it is within 0.01 of schedule-free SGD.",
            kind="not worse",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.3, "laptop": 3.0, "paper": 8.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 6, "paper": 20}
    metric = "test_accuracy"
    validation = "val_accuracy"
    reference = "none"
    imports = ("lightning", "schedulefree")

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Four methods, eight settings each."""
        rates = (0.1, 0.2, 0.4, 0.8)
        grid: Grid = {
            "none": [{"lr": rate} for rate in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)],
            "linear": [{"lr": rate, "warmup": length} for rate in rates for length in (20, 60)],
            "LossWarmup": [{"lr": rate, "C": C} for rate in rates for C in (0.3, 1.0)],
            "schedule-free": [
                {"lr": rate, "warmup_steps": length} for rate in (0.1, 0.3, 1.0, 3.0) for length in (0, 60)
            ],
        }
        short: Grid = {
            "none": [{"lr": 0.8}],
            "linear": [{"lr": 0.8, "warmup": 20}],
            "LossWarmup": [{"lr": 0.8, "C": 1.0}],
            "schedule-free": [{"lr": 1.0, "warmup_steps": 0}],
        }
        return _cells(scale, scale.pick(smoke=short, laptop=grid), scale.pick(smoke=1, laptop=12))

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        epochs = cell.options["length"]
        optimizer = ("torch.optim.SGD", "schedulefree.SGDScheduleFree")
        return _train(
            "digits",
            cell,
            optimizer,
            {
                "trainer.max_epochs": epochs,
                "trainer.check_val_every_n_epoch": epochs,
            },
            ("val_accuracy", "test_accuracy", "train_loss"),
        )

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the settings that validation data chose."""
        tuned = {method: best(table, method, self.validation) for method in _METHODS}
        hot, mild = (Arm("LossWarmup", {"lr": rate, "C": 1.0}) for rate in (0.8, 0.2))
        hot_linear = _better_of(
            table, [Arm("linear", {"lr": 0.8, "warmup": length}) for length in (20, 60)], self.metric
        )
        judge = Judge(self, table, unit="accuracy")
        return [
            judge.better("range", hot, Arm("none", {"lr": 0.8}), 0.2),
            judge.better("linear-range", hot, hot_linear, 0.2),
            judge.not_worse("moderate", mild, Arm("none", {"lr": 0.2}), 0.02),
            judge.not_worse("none", tuned["LossWarmup"], tuned["none"], 0.005),
            judge.better("better", tuned["LossWarmup"], tuned["none"], 0.0),
            judge.not_worse("linear", tuned["LossWarmup"], tuned["linear"], 0.01),
            judge.not_worse("schedule-free", tuned["LossWarmup"], tuned["schedule-free"], 0.01),
        ]


class Language(Claim):
    """A small language model, whose best loss is far from 0."""

    name = "language"
    title = "A small transformer on random text under AdamW and a cosine: with f* and without"
    source = "Section 5 (language models of 70M to 410M parameters on FineWeb), here 0.1M on random text"
    statements = (
        Statement(
            id="none",
            text="At a rate of 0.03, the warm-up (C = 0.3, f* = 0) is better than none by 0.05 nats.",
            kind="better",
            paper="Both warm-ups beat none.",
        ),
        Statement(
            id="linear",
            text="At a rate of 0.03, it is within 0.03 nats of a linear warm-up of 40 steps.",
            kind="not worse",
            paper="Parity with a linear warm-up.",
        ),
        Statement(
            id="tuned-none",
            text="Tuned with the same budget, f* among what is tuned, it is better than none.",
            kind="better",
            paper="The loss-driven schedule improves over none.",
        ),
        Statement(
            id="tuned-linear",
            text="Tuned with the same budget, it is within 0.02 nats of a linear warm-up of tuned length.",
            kind="not worse",
            paper="The loss-driven schedule matches a tuned linear warm-up.",
        ),
        Statement(
            id="tuned-schedule-free",
            text="Tuned with the same budget, it is within 0.02 nats of schedule-free AdamW.",
            kind="not worse",
        ),
        Statement(
            id="f-star",
            text="f* matters: at a rate of 0.01 with C = 1, f* = 0 costs at least 0.1 nats beside f* = 2.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.3, "laptop": 7.5, "paper": 25.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 4, "paper": 12}
    metric = "test_loss"
    unit = "nats"
    validation = "val_loss"
    mode: ClassVar[Mode] = "min"
    reference = "none"
    imports = ("lightning", "schedulefree")

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Four methods, six settings each."""
        grid: Grid = {
            "none": [{"lr": rate} for rate in (0.003, 0.006, 0.01, 0.015, 0.02, 0.03)],
            "linear": [
                {"lr": rate, "warmup": length}
                for rate, length in ((0.01, 40), (0.03, 20), (0.03, 40), (0.03, 80), (0.05, 40), (0.05, 80))
            ],
            "LossWarmup": [
                {"lr": rate, "C": C, "f_star": f_star}
                for rate, C, f_star in (
                    (0.03, 0.1, 0.0),
                    (0.03, 0.3, 0.0),
                    (0.05, 0.3, 0.0),
                    (0.01, 1.0, 0.0),
                    (0.01, 1.0, 2.0),
                    (0.03, 3.0, 2.0),
                )
            ],
            "schedule-free": [
                {"lr": rate, "warmup_steps": length}
                for rate, length in ((0.003, 0), (0.01, 0), (0.03, 0), (0.03, 40), (0.03, 80), (0.06, 40))
            ],
        }
        short: Grid = {
            "none": [{"lr": 0.03}],
            "linear": [{"lr": 0.03, "warmup": 40}],
            "LossWarmup": [{"lr": 0.03, "C": 0.3, "f_star": 0.0}],
            "schedule-free": [{"lr": 0.03, "warmup_steps": 0}],
        }
        return _cells(scale, scale.pick(smoke=short, laptop=grid), scale.pick(smoke=10, laptop=150))

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        optimizer = ("torch.optim.AdamW", "schedulefree.AdamWScheduleFree")
        steps = cell.options["length"]
        # A run that ends before its epoch does would not be validated.
        length = {"trainer.max_steps": steps, "trainer.val_check_interval": steps}
        return _train("language", cell, optimizer, length, ("val_loss", "test_loss"))

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the settings that validation data chose."""
        tuned = {method: best(table, method, self.validation, self.mode) for method in _METHODS}
        hot = Arm("LossWarmup", {"lr": 0.03, "C": 0.3, "f_star": 0.0})
        far, near = (Arm("LossWarmup", {"lr": 0.01, "C": 1.0, "f_star": f_star}) for f_star in (0.0, 2.0))
        judge = Judge(self, table, unit=self.unit)
        return [
            judge.better("none", hot, Arm("none", {"lr": 0.03}), 0.05),
            judge.not_worse("linear", hot, Arm("linear", {"lr": 0.03, "warmup": 40}), 0.03),
            judge.better("tuned-none", tuned["LossWarmup"], tuned["none"], 0.0),
            judge.not_worse("tuned-linear", tuned["LossWarmup"], tuned["linear"], 0.02),
            judge.not_worse("tuned-schedule-free", tuned["LossWarmup"], tuned["schedule-free"], 0.02),
            judge.better("f-star", near, far, 0.1),
        ]


class Curvature(Claim):
    """Whether curvature follows the loss: only from large initial weights, in small networks."""

    name = "curvature"
    title = "Does curvature grow with the loss? Deep linear networks and an MLP, by the size of the start"
    source = "Section 4 (curvature is about linear in the loss early in training), here small networks"
    statements = (
        Statement(
            id="deep-linear",
            text="In a deep linear network from a large start (2), sharpness and loss correlate above 0.9.",
            kind="better",
            paper="Deep linear networks are (H0, H1)-smooth.",
        ),
        Statement(
            id="deep-linear-small",
            text="From a small start (0.3) it is the other way round: below -0.5.",
            kind="better",
        ),
        Statement(
            id="ordinary",
            text="In an MLP from torch's own initial weights, sharpness and loss correlate above 0.5.",
            kind="better",
            paper="Curvature is about linear in the loss early in training (transformers, ResNet-50).",
        ),
        Statement(
            id="large",
            text="From weights 4 times as large, they correlate above 0.2.",
            kind="better",
        ),
        Statement(
            id="probe",
            text="The probe's curvature, in one direction, is below 1.1 times the sharpness of its batch "
            "(median).",
            kind="better",
        ),
        Statement(
            id="proxy",
            text="The paper's proxy, with two batches, is more than 3 times the probe's value (medians).",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.3, "laptop": 2.0, "paper": 6.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 5, "paper": 15}
    metric = "correlation"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Two kinds of network from several starts."""
        starts: Grid = {
            "deep linear": [{"scale": s} for s in scale.pick(smoke=(2.0,), laptop=(0.3, 1.0, 2.0, 3.0))],
            "MLP": [{"scale": s} for s in scale.pick(smoke=(1.0,), laptop=(1.0, 2.5, 4.0))],
        }
        return _cells(scale, starts, scale.pick(smoke=1, laptop=6))

    def run(self, cell: Cell) -> Measured:
        """Train, and measure sharpness beside the loss."""
        return _deep_linear(cell) if cell.method == "deep linear" else _sharpness_of_mlp(cell)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge the correlations, and the probe beside the sharpness."""

        def above(statement: str, arm: Arm, least: float, metric: str = "correlation") -> Verdict:
            return better(self.statement(statement), table, arm, least, metric, unit="correlation")

        ordinary = Arm("MLP", {"scale": 1.0})
        unit = "times the sharpness of the batch"
        proxy, probe = (table.by_seed(ordinary, name) for name in ("proxy_ratio", "probe_ratio"))
        return [
            above("deep-linear", Arm("deep linear", {"scale": 2.0}), 0.9),
            better(
                self.statement("deep-linear-small"),
                table,
                Arm("deep linear", {"scale": 0.3}),
                -0.5,
                "correlation",
                mode="min",
                unit="correlation",
            ),
            above("ordinary", ordinary, 0.5),
            above("large", Arm("MLP", {"scale": 4.0}), 0.2),
            better(self.statement("probe"), table, ordinary, 1.1, "probe_ratio", mode="min", unit=unit),
            better(self.statement("proxy"), table, proxy, probe, unit, by="ratio", margin=3.0),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The correlation by the size of the start, and sharpness against loss of one seed."""
        from leyden.figures import setting_figure

        figures = {
            "correlation": setting_figure(
                table, "correlation", title="Correlation of sharpness and loss, by the size of the start"
            )
        }
        if drawn := _scatter(table):
            figures["curvature"] = drawn
        return figures


_STEPS = {"paper's step": (10.0, 20.0), "short step": (1.0, 1.0), "fixed step": (10.0, 20.0)}
_METHODS = ("none", "linear", "LossWarmup", "schedule-free")


def _cells(scale: Scale, grid: Grid, length: int) -> list[Cell]:
    """A cell for every seed, method and setting."""
    return [
        Cell(method=method, seed=seed, setting=setting, scale=scale.name, options={"length": length})
        for seed in range(scale.seeds)
        for method, settings in grid.items()
        for setting in settings
    ]


def _train(
    config: str, cell: Cell, optimizers: tuple[str, str], length: Mapping[str, Any], kept: Sequence[str]
) -> Measured:
    """Train and test a shipped configuration with the cell's warm-up."""
    from leyden.lightning import run_config

    setting = dict(cell.setting)
    plain, free = optimizers
    chosen: dict[str, Any] = {"class_path": plain, "init_args": {"lr": setting.pop("lr")}}
    cosine = 150 if config == "language" else None
    schedule: dict[str, Any] = {"warmup": 1, "cosine": cosine}
    callbacks: list[dict[str, Any]] = []
    if cell.method == "LossWarmup":
        callbacks = [{"class_path": "leyden_warmup.LossWarmup", "init_args": {**setting, "figure": False}}]
    elif cell.method == "linear":
        schedule |= setting
    elif cell.method == "schedule-free":
        chosen = {"class_path": free, "init_args": {**chosen["init_args"], **setting}}
        schedule["cosine"] = None
        callbacks = [{"class_path": "leyden_warmup.baselines.ScheduleFreeMode"}]
    metrics = run_config(
        Path(__file__).with_name("configs") / f"{config}.yaml",
        {
            "seed_everything": cell.seed,
            "data.init_args.seed": cell.seed,
            "optimizer": chosen,
            "lr_scheduler": {"class_path": "leyden_warmup.baselines.LinearWarmup", "init_args": schedule},
            "model.init_args.interval": "step",
            "trainer.callbacks": callbacks,
            **length,
        },
    )
    return {name: metrics[name] for name in kept}


def _deep_linear(cell: Cell) -> Measured:
    from leyden_warmup.curvature import fit_h0h1
    from leyden_warmup.problems import deep_linear

    steps = 400 if cell.scale != "smoke" else 50
    losses, sharpness = deep_linear(float(cell.setting["scale"]), steps=steps, seed=cell.seed)  # type: ignore[arg-type]
    fit = fit_h0h1(losses, sharpness)
    every = max(steps // 50, 1)
    return {"correlation": fit.r, "H1": fit.H1, "losses": losses[::every], "sharpness": sharpness[::every]}


def _sharpness_of_mlp(cell: Cell) -> Measured:
    from statistics import median

    from leyden.lightning import run_config
    from torch.nn.functional import cross_entropy

    from leyden_warmup.curvature import fit_h0h1
    from leyden_warmup.probe import SmoothnessProbe
    from leyden_warmup.sharpness import Sharpness

    def loss_of(module: Any, batch: Any) -> Any:
        images, labels = batch
        return cross_entropy(module(images), labels)

    def loss_of_all(module: Any, batch: Any) -> Any:
        return loss_of(module, module.trainer.datamodule.train)

    exact = Sharpness(4, loss_of_all)
    of_batch = Sharpness(4, loss_of)
    probe, proxy = (SmoothnessProbe(4, kind, figure=False) for kind in ("same", "consecutive"))
    run_config(
        Path(__file__).with_name("configs") / "digits.yaml",
        {
            "seed_everything": cell.seed,
            "data.init_args.seed": cell.seed,
            "model.init_args.backbone.init_args.gain": cell.setting["scale"],
            # torch's own weights are so small that the loss hardly moves at the rate that larger ones take
            "optimizer.init_args.lr": 0.3 if cell.setting["scale"] == 1 else 0.1,
            "trainer.max_epochs": cell.options["length"],
            "trainer.callbacks": [],
        },
        callbacks=[exact, of_batch, probe, proxy],
        test=False,
    )
    fit = fit_h0h1(exact.losses, exact.values)

    def ratio(measured: SmoothnessProbe) -> float:
        return median(
            value / of_batch.values[step // 4]
            for step, value in zip(measured.steps, measured.curvatures, strict=True)
        )

    return {
        "correlation": fit.r,
        "H1": fit.H1,
        "probe_correlation": fit_h0h1(probe.losses, probe.curvatures).r,
        "proxy_correlation": fit_h0h1(proxy.losses, proxy.curvatures).r,
        "probe_ratio": ratio(probe),
        "proxy_ratio": ratio(proxy),
        "losses": exact.losses,
        "sharpness": exact.values,
    }


def _better_of(table: Table, arms: Sequence[Arm], metric: str) -> Arm:
    """The arm with the highest mean; the first where nothing was measured."""

    def mean(arm: Arm) -> float:
        values = table.by_seed(arm, metric).values()
        return math.fsum(values) / len(values) if values else -math.inf

    return max(arms, key=mean)


def _scatter(table: Table) -> Figure | None:
    """Sharpness against loss over the runs of the first seed, a panel for each kind of network."""
    from leyden.figures import new_figure, place_legend, styles

    kinds = [kind for kind in table.methods if any(table.series(arm, "losses") for arm in table.arms(kind))]
    if not kinds:
        return None
    figure, axes = new_figure(
        len(kinds),
        title="Sharpness against loss along training, first seed",
        alt="Sharpness against loss along training, for each size of the start.",
        share_y=False,
    )
    handles, names = [], []
    for ax, kind in zip(axes, kinds, strict=True):
        arms = [arm for arm in table.arms(kind) if table.series(arm, "losses")]
        for arm, style in zip(arms, styles(map(str, arms)).values(), strict=True):
            losses, sharpness = (table.series(arm, name)[0] for name in ("losses", "sharpness"))
            handles += ax.plot(losses, sharpness, color=style.color, marker=style.marker, ms=4, lw=0.8)
            names.append(str(arm))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel(f"loss of the {kind} network" if kind != "MLP" else "training loss of the MLP")
        ax.set_ylabel("largest eigenvalue of the Hessian")
    place_legend(figure, handles, names)
    return figure
