"""What the abstract says of harm, as experiments on two cores; what does not hold is stated as well.

Where a method is tuned, every method gets the same number of learning rates, is tuned on validation data and
judged on test data. Labels are noisy in training alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from leyden.claims import Arm, Cell, Claim, Measured, Mode, Scalar, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import Side, best, better, bound, not_worse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rates = Sequence[float]

_SGD: Mapping[str, Any] = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05, "momentum": 0.9}}
_ADAMW: Mapping[str, Any] = {
    "class_path": "torch.optim.AdamW",
    "init_args": {"lr": 0.003, "weight_decay": 0.0},
}
_CONFLICT_FREE: Mapping[str, Any] = {
    "max_upweight": 1e6,
    "n_iter": 100,
    "normalize": False,
    "affine": "leyden_harm.baselines.without_history",
}


def _weighted(price: float, *, normalize: bool = True) -> Mapping[str, Any]:
    return {"max_upweight": price, "normalize": normalize}


class TrueHarm(Claim):
    """R1: whether harm falls on true losses of the whole network, though the weights see the last layer."""

    name = "true-harm"
    title = "Harm on true losses, with and without weights from the last layer"
    source = (
        "Abstract: less interference between samples; the last layer stands for the whole (no figures given)"
    )
    statements = (
        Statement(
            id="sgd",
            text="Under SGD with momentum, the weights (tau = 4) lower the harm mass to at most 0.7 times.",
            kind="better",
            paper="The update harms fewer samples of the batch.",
        ),
        Statement(
            id="adamw",
            text="Under AdamW on noisy labels, they (tau = 4) lower the harm mass to at most 0.6 times.",
            kind="better",
            paper="The same, integrated in AdamW.",
        ),
        Statement(
            id="adamw-rate",
            text="There, too, the share of the samples made worse falls to at most 0.85 times.",
            kind="better",
            paper="The update harms fewer samples of the batch.",
        ),
        Statement(
            id="proxy",
            text="The last layer's products of gradients correlate with the whole network's by 0.85.",
            kind="better",
            paper="The last layer's gradients capture the second-order statistics of the full ones.",
        ),
        Statement(
            id="price",
            text="A higher price buys less harm: with tau = 16 at most 0.8 times that with tau = 1 (SGD).",
            kind="better",
        ),
        Statement(
            id="normalized",
            text="Weights that keep their sum lower the mass to at most 0.8 times (AdamW, noisy, tau = 4).",
            kind="better",
        ),
        Statement(
            id="history",
            text="Weights that know the momentum leave at most 0.8 times the mass of conflict-free ones that "
            "do not (SGD, tau = 4, against the dual projection).",
            kind="better",
            paper="Harm comes from averaging and from the optimizer's history.",
        ),
        Statement(
            id="lower-momentum",
            text="They leave less harm than a momentum of 0.5 at the same effective rate (SGD, tau = 4).",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 3.0, "paper": 15.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 4, "paper": 20}
    metric = "harm_mass"
    mode: ClassVar[Mode] = "min"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Two optimizers, with and without noise, as they are and weighted."""
        chosen = list(_HARM_ARMS)
        if scale.name == "smoke":
            chosen = ["SGD", "SGD, weighted (tau=4)"]
        return [
            Cell(
                method=method, seed=seed, scale=scale.name, options={"epochs": scale.pick(smoke=2, laptop=15)}
            )
            for seed in range(scale.seeds)
            for method in chosen
        ]

    def run(self, cell: Cell) -> Measured:
        """Train with a probe of every twentieth step."""
        from leyden_harm.probe import HarmProbe

        optimizer, noise, weights = _HARM_ARMS[cell.method]
        probe = HarmProbe(every=20, gram=True, figure=False)
        metrics = _train(cell, optimizer, noise, weights, [probe])
        count = len(probe.probed)

        def mean(name: str) -> float:
            return sum(float(getattr(one, name)) for one in probe.probed) / count

        return {
            "harm_mass": mean("mass"),
            "harm_rate": mean("rate"),
            "harm_mass_first_order": mean("mass_first_order"),
            "gram_correlation": mean("gram_correlation"),
            "steps": [float(one.step) for one in probe.probed],
            "masses": [one.mass for one in probe.probed],
            "test_loss": metrics["test_loss"],
            "test_accuracy": metrics["test_accuracy"],
        }

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge over the same seeds."""

        def less(statement: str, arm: str, other: str, factor: float, metric: str = "harm_mass") -> Verdict:
            return better(
                self.statement(statement),
                table,
                Arm(arm),
                Arm(other),
                metric,
                margin=1 / factor,
                mode="min",
                by="ratio",
            )

        weighted = "SGD, weighted (tau=4)"
        noisy = "AdamW, noisy, weighted (tau=4)"
        return [
            less("sgd", weighted, "SGD", 0.7),
            less("adamw", noisy, "AdamW, noisy", 0.6),
            less("adamw-rate", noisy, "AdamW, noisy", 0.85, "harm_rate"),
            better(self.statement("proxy"), table, Arm("AdamW, noisy"), 0.85, "gram_correlation"),
            less("price", "SGD, weighted (tau=16)", "SGD, weighted (tau=1)", 0.8),
            less("normalized", "AdamW, noisy, weighted (tau=4, sum kept)", "AdamW, noisy", 0.8),
            less("history", weighted, "SGD, conflict-free without history", 0.8),
            less("lower-momentum", weighted, "SGD (momentum 0.5)", 1.0),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The mass of every arm, and that of two pairs of them over the run."""
        from leyden.figures import methods_figure, series_figure

        figures = {
            "methods": methods_figure(table, "harm_mass", mode="min", title="Harm mass on true losses")
        }
        for key, plain in (("sgd", "SGD"), ("adamw", "AdamW, noisy")):
            figures[key] = series_figure(
                table,
                "masses",
                [Arm(plain), Arm(f"{plain}, weighted (tau=4)")],
                x="steps",
                x_label="optimizer step",
                y_label="harm mass",
                title=f"Harm mass over the run, {plain}",
            )
        return figures


_HARM_ARMS: Mapping[str, tuple[Mapping[str, Any], float, Mapping[str, Any] | None]] = {
    "SGD": (_SGD, 0.0, None),
    "SGD (momentum 0.5)": (
        {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.25, "momentum": 0.5}},
        0.0,
        None,
    ),
    "SGD, conflict-free without history": (_SGD, 0.0, _CONFLICT_FREE),
    "SGD, weighted (tau=1)": (_SGD, 0.0, _weighted(1.0, normalize=False)),
    "SGD, weighted (tau=4)": (_SGD, 0.0, _weighted(4.0, normalize=False)),
    "SGD, weighted (tau=16)": (_SGD, 0.0, _weighted(16.0, normalize=False)),
    "AdamW, noisy": (_ADAMW, 0.3, None),
    "AdamW, noisy, weighted (tau=4)": (_ADAMW, 0.3, _weighted(4.0, normalize=False)),
    "AdamW, noisy, weighted (tau=4, sum kept)": (_ADAMW, 0.3, _weighted(4.0)),
}
"""For each arm of `TrueHarm` the optimizer, the share of noisy labels, and the arguments of the callback."""

_SGD_RATES: Rates = (0.02, 0.05, 0.1, 0.2)
_ADAMW_RATES: Rates = (0.001, 0.003, 0.01, 0.03)
_LOW_MOMENTUM = {"class_path": "torch.optim.SGD", "init_args": {"momentum": 0.5}}
_LOW_BETA = {"class_path": "torch.optim.AdamW", "init_args": {"betas": [0.5, 0.999], "weight_decay": 0.0}}

_TUNED: Mapping[str, tuple[Mapping[str, Any], Rates, Mapping[str, Any] | None]] = {
    "SGD": (_SGD, _SGD_RATES, None),
    "SGD (momentum 0.5)": (_LOW_MOMENTUM, tuple(5 * rate for rate in _SGD_RATES), None),
    "SGD, conflict-free without history": (_SGD, tuple(rate / 4 for rate in _SGD_RATES), _CONFLICT_FREE),
    "SGD, weighted (tau=1)": (_SGD, _SGD_RATES, _weighted(1.0)),
    "SGD, weighted (tau=4)": (_SGD, _SGD_RATES, _weighted(4.0)),
    "AdamW": (_ADAMW, _ADAMW_RATES, None),
    "AdamW (beta1 0.5)": (_LOW_BETA, _ADAMW_RATES, None),
    "AdamW, weighted (tau=1)": (_ADAMW, _ADAMW_RATES, _weighted(1.0)),
}
"""For each tuned method the optimizer, the learning rates tried, and the arguments of the callback.

The weights without history add up to more than one, so that their steps are longer and their rates smaller.
"""


class _Digits(Claim):
    """R2: digits with every method's learning rate tuned."""

    metric = "test_accuracy"
    validation = "val_accuracy"
    noise: ClassVar[float]
    methods: ClassVar[tuple[str, ...]]

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Every method with four learning rates."""
        methods = scale.pick(smoke=("AdamW", "AdamW, weighted (tau=1)"), laptop=self.methods)
        return [
            Cell(
                method=method,
                seed=seed,
                setting={"lr": rate},
                scale=scale.name,
                options={"epochs": scale.pick(smoke=1, laptop=12)},
            )
            for seed in range(scale.seeds)
            for method in methods
            for rate in (_TUNED[method][1] if scale.name != "smoke" else (0.003,))
        ]

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        optimizer, _, weights = _TUNED[cell.method]
        metrics = _train(cell, optimizer, self.noise, weights)
        return {name: metrics[name] for name in ("val_accuracy", "val_loss", "test_accuracy", "test_loss")}

    def _compare(
        self,
        rule: Any,
        statement: str,
        table: Table,
        arm: Side,
        other: Side,
        margin: float = 0.0,
        metric: str = "test_accuracy",
    ) -> Verdict:
        mode: Mode = "min" if metric == "test_loss" else "max"
        unit = "nats" if metric == "test_loss" else "accuracy"
        verdict: Verdict = rule(
            self.statement(statement), table, arm, other, metric, margin=margin, mode=mode, unit=unit
        )
        return verdict


class NoisyLabels(_Digits):
    """Test accuracy and loss where three in ten training labels are random."""

    name = "noisy-labels"
    title = "Digits of which three in ten have a random label: does less harm generalise better?"
    source = "Abstract: better generalisation in image classification (no figures), here an MLP on digits"
    noise = 0.3
    methods = tuple(_TUNED)
    statements = (
        Statement(
            id="fixed-loss",
            text="With AdamW at 0.003, the weights (tau = 1) lower the test loss by at least 0.03.",
            kind="better",
            paper="Better generalisation.",
        ),
        Statement(
            id="fixed-accuracy",
            text="With AdamW at 0.003, the weights (tau = 1) raise the test accuracy.",
            kind="better",
            paper="Better generalisation.",
        ),
        Statement(
            id="tuned-adamw",
            text="Every rate tuned, AdamW with the weights (tau = 1) is more accurate than without.",
            kind="better",
            paper="Better generalisation.",
        ),
        Statement(
            id="tuned-adamw-loss",
            text="Every rate tuned (on validation loss), its test loss is lower as well.",
            kind="better",
            paper="Better generalisation.",
        ),
        Statement(
            id="tuned-sgd",
            text="Every rate tuned, SGD with the weights (tau = 1) is more accurate than without.",
            kind="better",
            paper="Better generalisation.",
        ),
        Statement(
            id="momentum",
            text="Tuned, SGD with the weights (tau = 1) is more accurate than SGD with a momentum of 0.5.",
            kind="better",
        ),
        Statement(
            id="beta",
            text="Tuned, AdamW with the weights (tau = 1) is more accurate than AdamW with beta1 = 0.5.",
            kind="better",
        ),
        Statement(
            id="conflict-free",
            text="Tuned, SGD with the weights (tau = 1) is more accurate than with conflict-free ones.",
            kind="better",
        ),
        Statement(
            id="too-small-a-rate",
            text="A high price hurts where the rate is too small: at SGD's 0.02, tau = 4 raises the test "
            "loss by at least 0.1.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 4.0, "paper": 15.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 6, "paper": 20}
    reference = "AdamW"

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the rates that validation data chose."""
        tuned = {method: best(table, method, "val_accuracy") for method in self.methods}
        by_loss = {
            method: best(table, method, "val_loss", "min") for method in ("AdamW", "AdamW, weighted (tau=1)")
        }
        plain, weighted = (Arm(name, {"lr": 0.003}) for name in ("AdamW", "AdamW, weighted (tau=1)"))
        small, small_weighted = (Arm(name, {"lr": 0.02}) for name in ("SGD", "SGD, weighted (tau=4)"))
        adamw, sgd = tuned["AdamW, weighted (tau=1)"], tuned["SGD, weighted (tau=1)"]
        return [
            self._compare(better, "fixed-loss", table, weighted, plain, 0.03, "test_loss"),
            self._compare(better, "fixed-accuracy", table, weighted, plain),
            self._compare(better, "tuned-adamw", table, adamw, tuned["AdamW"]),
            self._compare(
                better,
                "tuned-adamw-loss",
                table,
                by_loss["AdamW, weighted (tau=1)"],
                by_loss["AdamW"],
                metric="test_loss",
            ),
            self._compare(better, "tuned-sgd", table, sgd, tuned["SGD"]),
            self._compare(better, "momentum", table, sgd, tuned["SGD (momentum 0.5)"]),
            self._compare(better, "beta", table, adamw, tuned["AdamW (beta1 0.5)"]),
            self._compare(better, "conflict-free", table, sgd, tuned["SGD, conflict-free without history"]),
            self._compare(better, "too-small-a-rate", table, small, small_weighted, 0.1, "test_loss"),
        ]


class CleanLabels(_Digits):
    """A negative result: on clean data, at the best learning rate, less harm buys no accuracy."""

    name = "clean-labels"
    title = "Clean digits: at the best learning rate the weights change nothing"
    source = "ours, against the abstract's 'better generalisation'"
    noise = 0.0
    methods = (
        "SGD",
        "SGD (momentum 0.5)",
        "SGD, weighted (tau=1)",
        "AdamW",
        "AdamW (beta1 0.5)",
        "AdamW, weighted (tau=1)",
    )
    statements = (
        Statement(
            id="better-sgd",
            text="Every rate tuned, SGD with the weights (tau = 1) is more accurate than without.",
            kind="better",
            paper="Better generalisation.",
        ),
        Statement(
            id="better-adamw",
            text="Every rate tuned, AdamW with the weights (tau = 1) is more accurate than without.",
            kind="better",
            paper="Better generalisation.",
        ),
        Statement(
            id="harmless-sgd",
            text="Tuned, the weights cost SGD at most 0.01 of accuracy.",
            kind="not worse",
        ),
        Statement(
            id="harmless-adamw",
            text="Tuned, the weights cost AdamW at most 0.01 of accuracy.",
            kind="not worse",
        ),
        Statement(
            id="no-gain",
            text="Nor are they worth more than 0.01: tuned SGD without them is within 0.01.",
            kind="not worse",
        ),
        Statement(
            id="small-rate",
            text="At a small learning rate (SGD, 0.02) they are worth something.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 3.0, "paper": 9.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 6, "paper": 20}
    reference = "SGD"

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the rates that validation data chose."""
        tuned = {method: best(table, method, "val_accuracy") for method in self.methods}
        sgd, weighted_sgd = tuned["SGD"], tuned["SGD, weighted (tau=1)"]
        adamw, weighted_adamw = tuned["AdamW"], tuned["AdamW, weighted (tau=1)"]
        slow, weighted_slow = (Arm(name, {"lr": 0.02}) for name in ("SGD", "SGD, weighted (tau=1)"))
        return [
            self._compare(better, "better-sgd", table, weighted_sgd, sgd),
            self._compare(better, "better-adamw", table, weighted_adamw, adamw),
            self._compare(not_worse, "harmless-sgd", table, weighted_sgd, sgd, 0.01),
            self._compare(not_worse, "harmless-adamw", table, weighted_adamw, adamw, 0.01),
            self._compare(not_worse, "no-gain", table, sgd, weighted_sgd, 0.01),
            self._compare(better, "small-rate", table, weighted_slow, slow),
        ]


class Solver(Claim):
    """R3: how much of the optimum a few iterations reach."""

    name = "solver"
    title = "The solver on random last layers: what a few iterations reach"
    source = "Abstract: a few iterations that suit a GPU (no figures given)"
    statements = (
        Statement(
            id="nine-tenths",
            text="20 iterations reach at least 0.9 of the optimal dual value.",
            kind="bound",
            paper="A few iterations are enough.",
        ),
        Statement(
            id="near-harm",
            text="The harm left by 20 iterations exceeds the optimum's by at most 0.03 of the plain one.",
            kind="bound",
            paper="A few iterations are enough.",
        ),
        Statement(
            id="never-more",
            text="After 1, 5, 10, 20 or 50 iterations harm is never above that of the plain update.",
            kind="bound",
        ),
        Statement(
            id="certified",
            text="The optimum is one: its duality gap is below a billionth of its value.",
            kind="bound",
        ),
        Statement(
            id="unscaled",
            text="Without rescaling the variables, the same 20 iterations reach 0.9 as well.",
            kind="bound",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 1.0, "paper": 3.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 2, "laptop": 8, "paper": 20}
    metric = "reached"
    imports = ("torch",)

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Both forms of the solver, two sizes, three prices."""
        sizes = scale.pick(smoke=(64,), laptop=(64, 128))
        return [
            Cell(
                method=method,
                seed=seed,
                setting={"batch": size, "tau": price},
                scale=scale.name,
                options={"exact": scale.pick(smoke=2000, laptop=5000)},
            )
            for seed in range(scale.seeds)
            for method in ("rescaled", "as it is")
            for size in sizes
            for price in (1.0, 4.0, 16.0)
        ]

    def run(self, cell: Cell) -> Measured:
        """Solve to the end, and for a few iterations."""
        from leyden_harm.box_qp import solve_box_qp
        from leyden_harm.problems import box_problem
        from leyden_harm.reweighting import total_harm

        size = int(cell.setting["batch"])  # type: ignore[arg-type]
        upper = float(cell.setting["tau"]) / size  # type: ignore[arg-type]
        K, s0 = box_problem(size, cell.seed)
        _, solved = solve_box_qp(K, s0, upper, int(cell.options["exact"]))  # type: ignore[arg-type]
        plain, optimum = float(total_harm(s0)), float(total_harm(solved.margins))
        counts = (1, 5, 10, 20, 50)
        few = {n: solve_box_qp(K, s0, upper, n, rescale=cell.method == "rescaled")[1] for n in counts}
        reached = {n: float(info.dual / solved.primal) for n, info in few.items()}
        left = {n: float(total_harm(info.margins)) for n, info in few.items()}
        return {
            "reached": reached[20],
            "reached_slack": reached[20] - 0.9,
            "harm_slack": 0.03 - (left[20] - optimum) / plain,
            "never_more_slack": min(1 - value / plain for value in left.values()),
            "gap_slack": 1e-9 - float(solved.gap / solved.primal),
            "iterations": [float(n) for n in counts],
            "values": list(reached.values()),
        }

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Every problem counts."""

        def every(statement: str, metric: str, method: str = "rescaled", tolerance: float = 0.0) -> Verdict:
            return bound(self.statement(statement), table, metric, arms=[method], tolerance=tolerance)

        return [
            every("nine-tenths", "reached_slack"),
            every("near-harm", "harm_slack"),
            every("never-more", "never_more_slack", tolerance=1e-6),
            every("certified", "gap_slack"),
            every("unscaled", "reached_slack", "as it is"),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """What is reached against the number of iterations, at the largest price."""
        from leyden.figures import series_figure

        size = max((int(arm.setting["batch"]) for arm in table.arms() if arm.setting), default=64)  # type: ignore[arg-type]
        arms = [
            Arm(method, {"batch": size, "tau": price}) for method in table.methods for price in (1.0, 16.0)
        ]
        return {
            "values": series_figure(
                table,
                "values",
                arms,
                x="iterations",
                x_label="iterations",
                y_label="dual value, of the optimal one",
                title="What a few iterations of the solver reach",
            )
        }


def _train(
    cell: Cell,
    optimizer: Mapping[str, Any],
    noise: float,
    weights: Mapping[str, Any] | None,
    callbacks: Sequence[Any] = (),
) -> dict[str, float]:
    """Train and test the shipped classifier of digits."""
    from leyden.lightning import run_config

    arguments: dict[str, Scalar] = {**optimizer["init_args"], **cell.setting}
    acting = (
        [] if weights is None else [{"class_path": "leyden_harm.HarmReduction", "init_args": dict(weights)}]
    )
    epochs = cell.options["epochs"]
    return run_config(
        Path(__file__).with_name("configs") / "digits.yaml",
        {
            "seed_everything": cell.seed,
            "data.init_args.seed": cell.seed,
            "data.init_args.label_noise": noise,
            "optimizer": {"class_path": optimizer["class_path"], "init_args": arguments},
            "trainer.callbacks": acting,
            "trainer.max_epochs": epochs,
            "trainer.check_val_every_n_epoch": epochs,
        },
        callbacks=callbacks,
    )
