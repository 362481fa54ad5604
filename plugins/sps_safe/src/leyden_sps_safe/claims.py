"""What the paper says of its step sizes, as experiments on two cores; what does not hold is stated as well.

Every tuned method gets the same number of settings, is tuned on validation data and judged on test data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from leyden.claims import Arm, Cell, Claim, Measured, Mode, Scalar, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import Judge, Selection, best, better, bound, not_worse, rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Grid = Mapping[str, tuple[str, Sequence[float]]]
"""For each method the name of the value that is tuned, and the values tried."""

_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SPS": ("leyden_sps_safe.SPS", {}),
    "SPSSafe": ("leyden_sps_safe.SPSSafe", {}),
    "IMASPSSafe": ("leyden_sps_safe.IMASPSSafe", {"lambd": 9.0}),
    "SPSMax": ("leyden_sps_safe.SPSMax", {}),
    "ALIG": ("leyden_sps_safe.ALIG", {}),
    "SGD": ("torch.optim.SGD", {"momentum": 0.9}),
    "Adam": ("torch.optim.Adam", {}),
}


class Digits(Claim):
    """Accuracy, robustness to M and gradients on clean handwritten digits."""

    name = "digits"
    title = "Clean digits without a learning rate: accuracy, the choice of M, the gradients"
    source = "Experiments on deep networks (ResNet-20 and 32, CIFAR-10 and 100), here a small MLP on digits"
    statements = (
        Statement(
            id="robust-to-M",
            text="From M = 0.001 to M = 1, the worst choice costs at most 0.02 of test accuracy.",
            kind="not worse",
            paper="The accuracy is stable over M (ResNets on CIFAR).",
        ),
        Statement(
            id="untuned",
            text="SPSSafe with its default M = 1 is within 0.02 of SGD with momentum and a tuned rate.",
            kind="not worse",
            paper="Competitive with the baselines without tuning a learning rate.",
        ),
        Statement(
            id="defaults",
            text="Without tuning, SPSSafe (M = 1) is better than Adam with its default rate of 0.001.",
            kind="better",
        ),
        Statement(
            id="tuned-plain",
            text="Tuned with the same budget, SPSSafe is within 0.01 of SGD with momentum.",
            kind="not worse",
            paper="Competitive accuracy (ResNets on CIFAR).",
        ),
        Statement(
            id="tuned-momentum",
            text="Tuned with the same budget, IMASPSSafe (lambda = 9) is within 0.01 of Adam.",
            kind="not worse",
            paper="Competitive with adaptive baselines (ResNets on CIFAR).",
        ),
        Statement(
            id="sgd-is-better",
            text="Where a rate can be tuned, SGD with momentum is better than SPSSafe, tuned as well.",
            kind="better",
        ),
        Statement(
            id="gradients-stay",
            text="Late in training, the squared gradient norm of SPSSafe (M = 1) is at least 3 times that of "
            "tuned SGD (median over 45 steps).",
            kind="better",
            paper="Gradient norms do not collapse.",
        ),
        Statement(
            id="training-loss",
            text="The larger gradients have a price: tuned SGD ends with a training loss less than a third "
            "of that of SPSSafe (M = 1).",
            kind="better",
        ),
        Statement(
            id="unsafe-is-enough",
            text="On clean data the safeguard is not needed: SPS_max with a bound that never acts (100) is "
            "within 0.02 of tuned SPSSafe.",
            kind="not worse",
        ),
        Statement(
            id="update-length",
            text="No update is longer than the loss over the root of M, though the network is not convex.",
            kind="bound",
            paper="0 <= step <= (loss - lower bound) / max(squared norm, M), for any loss.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 2.0, "paper": 5.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 8, "paper": 20}
    metric = "test_accuracy"
    validation = "val_accuracy"
    reference = "SGD"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Five methods, four settings each."""
        grid: Grid = {
            "SPSSafe": ("M", (0.001, 0.1, 1.0, 10.0)),
            "IMASPSSafe": ("M", (0.001, 0.1, 1.0, 10.0)),
            "SPSMax": ("gamma_b", (0.1, 1.0, 10.0, 100.0)),
            "SGD": ("lr", (0.03, 0.1, 0.2, 0.3)),
            "Adam": ("lr", (0.001, 0.003, 0.01, 0.03)),
        }
        short: Grid = {"SPSSafe": ("M", (0.1, 1.0)), "SPSMax": ("gamma_b", (100.0,)), "SGD": ("lr", (0.1,))}
        epochs = scale.pick(smoke=1, laptop=20)
        return _cells(scale, scale.pick(smoke=short, laptop=grid), epochs)

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        return _train("digits", cell)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the settings that validation data chose."""
        tuned = {method: best(table, method, "val_accuracy") for method in _METHODS}
        default = Arm("SPSSafe", {"M": 1.0})
        robust = [Arm("SPSSafe", {"M": M}) for M in (0.001, 0.1, 1.0)]
        worst, finest = _extremes(table, robust, self.metric)
        judge = Judge(self, table, unit="accuracy")
        return [
            judge.not_worse("robust-to-M", worst, finest, 0.02),
            judge.not_worse("untuned", default, tuned["SGD"], 0.02),
            judge.better("defaults", default, Arm("Adam", {"lr": 0.001})),
            judge.not_worse("tuned-plain", tuned["SPSSafe"], tuned["SGD"], 0.01),
            judge.not_worse("tuned-momentum", tuned["IMASPSSafe"], tuned["Adam"], 0.01),
            judge.better("sgd-is-better", tuned["SGD"], tuned["SPSSafe"]),
            better(
                self.statement("gradients-stay"),
                table,
                default,
                tuned["SGD"],
                "late_grad_norm_sq",
                margin=3.0,
                by="ratio",
            ),
            better(
                self.statement("training-loss"),
                table,
                tuned["SGD"],
                default,
                "train_loss",
                margin=3.0,
                mode="min",
                by="ratio",
            ),
            judge.not_worse("unsafe-is-enough", Arm("SPSMax", {"gamma_b": 100.0}), tuned["SPSSafe"], 0.02),
            bound(
                self.statement("update-length"),
                table,
                "update_slack",
                arms=["SPSSafe"],
                tolerance=1e-3,
                unit="of the bound",
            ),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The default figures, and the gradients of four arms."""
        from leyden.figures import default_figure, series_figure

        others = [best(table, method, "val_accuracy") for method in _METHODS[1:]]
        arms: list[Arm | Selection] = [Arm("SPSSafe", {"M": 1.0}), *others]
        gradients = series_figure(
            table,
            "grad_norm_sq",
            arms,
            x="steps",
            x_label="optimizer step",
            log_y=True,
            title="Squared gradient norm over the run",
        )
        return {**default_figure(self, table), "gradients": gradients}


class NoisyDigits(Claim):
    """What the safeguard is for: digits of which 40 % have a random label."""

    name = "noisy-digits"
    title = "Noisy digits: what the safeguard saves, and which M does"
    source = "The paper's motive (Section 1): losses that do not vanish while gradients do"
    statements = (
        Statement(
            id="needed",
            text="With M = 1, 3 or 10, the test accuracy of SPSSafe is at least 0.3 above that of SPS, which "
            "has no safeguard.",
            kind="better",
            paper="SPS blows up where gradients are small and losses are not; SPS_safe does not.",
        ),
        Statement(
            id="any-M",
            text="M need not be chosen: M = 0.3 is within 0.1 of M = 3.",
            kind="not worse",
            paper="Robust to the choice of M.",
        ),
        Statement(
            id="tuned-sgd",
            text="Tuned with the same budget, SPSSafe is within 0.02 of SGD with momentum.",
            kind="not worse",
            paper="Competitive with the baselines.",
        ),
        Statement(
            id="tuned-adam",
            text="Tuned with the same budget, SPSSafe is within 0.02 of Adam.",
            kind="not worse",
            paper="Competitive with adaptive baselines.",
        ),
        Statement(
            id="tuned-sps-max",
            text="Tuned with the same budget, SPSSafe is within 0.02 of SPS_max.",
            kind="not worse",
            paper="SPS_max hides a learning rate in its bound.",
        ),
        Statement(
            id="momentum-widens",
            text="Momentum widens the window: at M = 0.3, IMASPSSafe (lambda = 9) is at least 0.3 better "
            "than SPSSafe.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 3.0, "paper": 8.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 8, "paper": 20}
    metric = "test_accuracy"
    validation = "val_accuracy"
    reference = "SGD"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Plain SPS, and five methods with four settings each."""
        grid: Grid = {
            "SPS": ("c", (1.0,)),
            "SPSSafe": ("M", (0.3, 1.0, 3.0, 10.0)),
            "IMASPSSafe": ("M", (0.3, 1.0, 3.0, 10.0)),
            "SPSMax": ("gamma_b", (0.1, 0.3, 1.0, 3.0)),
            "SGD": ("lr", (0.01, 0.03, 0.1, 0.3)),
            "Adam": ("lr", (0.0003, 0.001, 0.003, 0.01)),
        }
        short: Grid = {"SPS": ("c", (1.0,)), "SPSSafe": ("M", (0.3, 3.0))}
        return _cells(scale, scale.pick(smoke=short, laptop=grid), scale.pick(smoke=1, laptop=150))

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        return _train("noisy-digits", cell)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the settings that validation data chose."""
        tuned = {method: best(table, method, "val_accuracy") for method in _METHODS}
        window, _ = _extremes(table, [Arm("SPSSafe", {"M": M}) for M in (1.0, 3.0, 10.0)], self.metric)
        judge = Judge(self, table, unit="accuracy")
        small, middle = Arm("SPSSafe", {"M": 0.3}), Arm("SPSSafe", {"M": 3.0})
        averaged = Arm("IMASPSSafe", {"M": 0.3})
        return [
            judge.better("needed", window, Arm("SPS", {"c": 1.0}), 0.3),
            judge.not_worse("any-M", small, middle, 0.1),
            judge.not_worse("tuned-sgd", tuned["SPSSafe"], tuned["SGD"], 0.02),
            judge.not_worse("tuned-adam", tuned["SPSSafe"], tuned["Adam"], 0.02),
            judge.not_worse("tuned-sps-max", tuned["SPSSafe"], tuned["SPSMax"], 0.02),
            judge.better("momentum-widens", averaged, small, 0.3),
        ]


class SigmoidMLP(Claim):
    """A negative result: vanishing gradients of a deep sigmoid network are not overcome."""

    name = "sigmoid-mlp"
    title = "A deep sigmoid network: no Polyak step size trains it, Adam does"
    source = "ours, against the title's 'robust performance without small (sub)gradients'"
    statements = (
        Statement(
            id="trains",
            text="Tuned with the same budget, SPSSafe is within 0.05 of Adam.",
            kind="not worse",
            paper="Robust performance without small (sub)gradients (title).",
        ),
        Statement(
            id="adam-wins",
            text="The test accuracy of tuned Adam is at least 0.3 above the best of SPSSafe, IMASPSSafe, "
            "SPS_max and ALI-G.",
            kind="better",
        ),
        Statement(
            id="like-sgd",
            text="SPSSafe does no worse than SGD with momentum, which fails as well (margin 0.05).",
            kind="not worse",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 1.5, "paper": 4.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 3, "paper": 10}
    metric = "test_accuracy"
    validation = "val_accuracy"
    reference = "Adam"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Six methods, four settings each."""
        grid: Grid = {
            "SPSSafe": ("M", (0.01, 0.1, 1.0, 10.0)),
            "IMASPSSafe": ("M", (0.01, 0.1, 1.0, 10.0)),
            "SPSMax": ("gamma_b", (1.0, 3.0, 10.0, 30.0)),
            "ALIG": ("max_step", (1.0, 3.0, 10.0, 30.0)),
            "SGD": ("lr", (0.03, 0.1, 0.3, 1.0)),
            "Adam": ("lr", (0.001, 0.003, 0.01, 0.03)),
        }
        short: Grid = {"SPSSafe": ("M", (0.1,)), "Adam": ("lr", (0.01,))}
        return _cells(scale, scale.pick(smoke=short, laptop=grid), scale.pick(smoke=1, laptop=20))

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        return _train("sigmoid-mlp", cell)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the settings that validation data chose."""
        polyak = ("SPSSafe", "IMASPSSafe", "SPSMax", "ALIG")
        tuned = {method: best(table, method, "val_accuracy") for method in (*polyak, "SGD", "Adam")}
        chosen = max(
            (tuned[method] for method in polyak),
            key=lambda selection: -math.inf if selection.arm is None else selection.value,
        )
        unit = "accuracy"
        return [
            not_worse(
                self.statement("trains"),
                table,
                tuned["SPSSafe"],
                tuned["Adam"],
                self.metric,
                margin=0.05,
                unit=unit,
            ),
            better(
                self.statement("adam-wins"), table, tuned["Adam"], chosen, self.metric, margin=0.3, unit=unit
            ),
            not_worse(
                self.statement("like-sgd"),
                table,
                tuned["SPSSafe"],
                tuned["SGD"],
                self.metric,
                margin=0.05,
                unit=unit,
            ),
        ]


class Convex(Claim):
    """The paper's theorems on a hinge loss whose minimum is known."""

    name = "convex"
    title = "A hinge loss with known minimum: the theorems in numbers"
    source = "Theorems 3.1, 3.4 and 3.5, and the convex experiments (generated hinge loss)"
    statements = (
        Statement(
            id="descent",
            text="At every step and for every sample, the distance to the solution obeys the per-step "
            "inequality, with momentum too.",
            kind="bound",
            paper="The inequality behind Theorems 3.1, 3.4 and 3.5 (constants derived by us).",
        ),
        Statement(
            id="theorems",
            text="Every run ends below the bound of its theorem.",
            kind="bound",
            paper="Theorem 3.1 (average iterate), 3.4 (constant lambda) and 3.5 (last iterate, lambda = t).",
        ),
        Statement(
            id="neighbourhood",
            text="The last iterate of SPSSafe is nearer with M = 4 G^2 than with M = 1: at most 0.75 times "
            "the gap.",
            kind="better",
            paper="The neighbourhood's radius shrinks as M grows up to G^2.",
        ),
        Statement(
            id="average-likes-small-M",
            text="The average iterate goes the other way: with M = 1 its gap is smaller than with M = 4 G^2.",
            kind="better",
        ),
        Statement(
            id="last-iterate",
            text="With lambda = t, the last iterate of IMASPSSafe has at most half the gap of that of "
            "SPSSafe (M = 1 in both).",
            kind="better",
            paper="Theorem 3.5: a guarantee on the last iterate.",
        ),
        Statement(
            id="rate",
            text="On separable data the gap of the average falls like the inverse root of the steps "
            "(exponent between -0.6 and -0.4 over the last decade).",
            kind="rate",
            paper="O(1 / root T) for every M where the problem is interpolated.",
        ),
        Statement(
            id="robust-to-M",
            text="From M = 1 to M = G^2 = 79.8 the gap of the average grows by a factor of at most 2.",
            kind="not worse",
            paper="Robust to the choice of M.",
        ),
        Statement(
            id="sgd-is-not",
            text="SGD's rate matters: 1 in place of 0.01 makes the gap at least 50 times larger.",
            kind="better",
            paper="A constant step must be tuned.",
        ),
        Statement(
            id="as-good-as-sgd",
            text="At its best M, SPSSafe is as good as SGD at its best rate (both in hindsight).",
            kind="not worse",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 3.0, "paper": 8.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 5, "paper": 20}
    metric = "average_gap"
    unit = "loss"
    mode: ClassVar[Mode] = "min"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Eight methods, five settings each; two oracles; the separable data."""
        grid: Grid = {
            "SPSSafe": ("M", (1.0, 50.0, _G2, 4 * _G2, 64 * _G2)),
            "IMASPSSafe, lambda=9": ("M", (1.0, 50.0, _G2, 4 * _G2, 64 * _G2)),
            "IMASPSSafe, lambda=t": ("M", (1.0, 50.0, _G2, 4 * _G2, 64 * _G2)),
            "SPSMax": ("gamma_b", (0.001, 0.01, 0.1, 1.0, 10.0)),
            "ALIG": ("max_step", (0.001, 0.01, 0.1, 1.0, 10.0)),
            "DecSPS": ("c", (0.1, 1.0, 3.0, 10.0, 30.0)),
            "AdaGradNorm": ("lr", (0.1, 0.3, 1.0, 3.0, 10.0)),
            "SGD": ("lr", (0.001, 0.003, 0.01, 0.1, 1.0)),
            "SPS_+ (oracle)": ("", ()),
            "IMA-SPS (oracle)": ("", ()),
            "SPSSafe, separable": ("M", (1.0, _G2)),
        }
        short: Grid = {
            "SPSSafe": ("M", (1.0, 4 * _G2)),
            "IMASPSSafe, lambda=9": ("M", (_G2,)),
            "SPS_+ (oracle)": ("", ()),
        }
        return _cells(scale, scale.pick(smoke=short, laptop=grid), scale.pick(smoke=200, laptop=5000))

    def run(self, cell: Cell) -> Measured:
        """Run one method from 0 with one sequence of samples."""
        from leyden_sps_safe.bounds import suboptimality_bound
        from leyden_sps_safe.convex import descend, hinge_problem

        problem = hinge_problem(0.0 if cell.method.endswith("separable") else 0.15)
        steps = int(cell.options["length"])  # type: ignore[arg-type]
        path = descend(problem, lambda params: _convex_method(cell, params), steps=steps, seed=cell.seed)
        late = [place for place, step in enumerate(path.steps) if step >= steps / 10]
        measured: dict[str, float | Sequence[float]] = {
            "average_gap": path.average,
            "last_gap": path.last,
            "steps": [float(step) for step in path.steps],
            "average_gaps": list(path.averages),
            "last_gaps": list(path.iterates),
            "late_steps": [float(path.steps[place]) for place in late],
            "late_average_gaps": [path.averages[place] for place in late],
        }
        if math.isfinite(path.least_slack):
            averaging = 9.0 if cell.method.endswith("lambda=9") else 0.0
            limit = suboptimality_bound(
                distance=problem.distance,
                deviation=problem.deviation,
                steps=steps,
                safeguard=float(cell.setting["M"]),  # type: ignore[arg-type]
                squared_gradient_bound=problem.squared_gradient_bound,
                averaging=averaging,
                initial_gap=problem.gap(problem.solution * 0),
            )
            gap = path.last if cell.method.endswith("lambda=t") else path.average
            measured |= {"descent_slack": path.least_slack, "theorem_slack": limit - gap}
        return measured

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement."""
        one, largest, beyond = (Arm("SPSSafe", {"M": M}) for M in (1.0, _G2, 4 * _G2))
        slow, fast = (Arm("SGD", {"lr": lr}) for lr in (0.01, 1.0))
        at_best = {method: best(table, method, self.metric, "min") for method in ("SPSSafe", "SGD")}
        separable = Arm("SPSSafe, separable", {"M": 1.0})
        averaged = Arm("IMASPSSafe, lambda=t", {"M": 1.0})
        places = table.series(separable, "late_steps")
        judge = Judge(self, table, by="ratio")
        return [
            bound(
                self.statement("descent"), table, "descent_slack", tolerance=1e-10, unit="squared distance"
            ),
            bound(self.statement("theorems"), table, "theorem_slack", unit="loss"),
            judge.better("neighbourhood", beyond, one, 1 / 0.75, metric="last_gap"),
            judge.better("average-likes-small-M", one, beyond, 1.0, metric="average_gap"),
            judge.better("last-iterate", averaged, one, 2.0, metric="last_gap"),
            rate(
                self.statement("rate"),
                places[0] if places else [],
                table.series_by_seed(separable, "late_average_gaps"),
                -0.6,
                -0.4,
            ),
            judge.not_worse("robust-to-M", largest, one, 2.0),
            judge.better("sgd-is-not", slow, fast, 50.0, metric="average_gap"),
            judge.not_worse("as-good-as-sgd", at_best["SPSSafe"], at_best["SGD"], 1.0),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The gaps of the average and of the last iterate over the run, and against the setting."""
        from leyden.figures import series_figure, setting_figure

        arms = [
            *(Arm("SPSSafe", {"M": M}) for M in (1.0, _G2, 64 * _G2)),
            Arm("IMASPSSafe, lambda=t", {"M": 1.0}),
            Arm("SGD", {"lr": 0.01}),
            Arm("SPS_+ (oracle)"),
        ]
        methods = ("SPSSafe", "IMASPSSafe, lambda=t", "SPSMax", "SGD", "AdaGradNorm")
        settings = {
            f"{metric}_by_setting": setting_figure(
                table, metric, methods, mode="min", unit="loss", log_y=True, title=title
            )
            for metric, title in (
                ("average_gap", "The average iterate after the run, by setting"),
                ("last_gap", "The last iterate after the run, by setting"),
            )
        }
        drawn = {
            name: series_figure(
                table, name, arms, x="steps", x_label="step", unit="loss", log_y=True, title=title
            )
            for name, title in (
                ("average_gaps", "Suboptimality of the average iterate"),
                ("last_gaps", "Suboptimality of the last iterate"),
            )
        }
        return {**settings, **drawn}


_METHODS = ("SPSSafe", "IMASPSSafe", "SPSMax", "SGD", "Adam")
_G2 = 79.812
"""The largest squared gradient norm of the hinge problem, rounded."""


def _cells(scale: Scale, grid: Grid, length: int) -> list[Cell]:
    """A cell for every seed, method and setting; a method without a value to tune has one setting."""
    cells = []
    for seed in range(scale.seeds):
        for method, (name, values) in grid.items():
            settings: list[dict[str, Scalar]] = [{name: value} for value in values] or [{}]
            for setting in settings:
                options: dict[str, Scalar] = {"length": length}
                cells.append(
                    Cell(method=method, seed=seed, setting=setting, scale=scale.name, options=options)
                )
    return cells


def _train(config: str, cell: Cell) -> Measured:
    """Train and test a shipped configuration with the cell's optimizer."""
    from leyden.lightning import run_config

    from leyden_sps_safe.monitor import SPSMonitor
    from leyden_sps_safe.recording import Recorder

    path, fixed = _OPTIMIZERS[cell.method]
    epochs = cell.options["length"]
    recorder = Recorder()
    metrics = run_config(
        Path(__file__).with_name("configs") / f"{config}.yaml",
        {
            "seed_everything": cell.seed,
            "data.init_args.seed": cell.seed,
            "optimizer": {"class_path": path, "init_args": {**fixed, **cell.setting}},
            "trainer.max_epochs": epochs,
            "trainer.check_val_every_n_epoch": epochs,
        },
        callbacks=[recorder, SPSMonitor(figure=False)],
    )
    kept = ("val_accuracy", "test_accuracy", "val_loss", "test_loss", "train_loss")
    return {**{name: metrics[name] for name in kept}, **recorder.measured()}


def _convex_method(cell: Cell, params: Any) -> Any:
    import torch

    import leyden_sps_safe as methods

    builders: dict[str, Any] = {
        "SPSSafe": methods.SPSSafe,
        "SPSSafe, separable": methods.SPSSafe,
        "IMASPSSafe, lambda=9": lambda p, **setting: methods.IMASPSSafe(p, 9.0, **setting),
        "IMASPSSafe, lambda=t": lambda p, **setting: methods.IMASPSSafe(p, "t", **setting),
        "SPSMax": methods.SPSMax,
        "ALIG": methods.ALIG,
        "DecSPS": methods.DecSPS,
        "AdaGradNorm": methods.AdaGradNorm,
        "SGD": torch.optim.SGD,
        "SPS_+ (oracle)": methods.SPSPlus,
        "IMA-SPS (oracle)": lambda p: methods.IMASPS(p, 9.0),
    }
    return builders[cell.method](params, **cell.setting)


def _extremes(table: Table, arms: Sequence[Arm], metric: str) -> tuple[Arm, Arm]:
    """The arms with the lowest and the highest mean; the first and the last where nothing was measured."""
    means = {}
    for place, arm in enumerate(arms):
        values = table.by_seed(arm, metric).values()
        if values:
            means[place] = math.fsum(values) / len(values)
    if not means:
        return arms[0], arms[-1]
    return arms[min(means, key=means.__getitem__)], arms[max(means, key=means.__getitem__)]
