"""What the paper says of its layer, as experiments on two cores; what does not hold is stated as well."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from leyden.claims import Arm, Cell, Claim, Measured, Mode, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import Selection, best, better, bound, not_worse, rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DEFAULT, _DENSE = "cvxpylayers", "cvxpylayers, dense"


class Gradients(Claim):
    """Gradients of dense quadratic programs, beside cvxpylayers (experiment E1)."""

    name = "gradients"
    title = "Dense quadratic programs: how far gradients are from the truth"
    source = "Theorem 4.1 (v2: 4.5); E1 of the specification, on random dense programs"
    statements = (
        Statement(
            id="exact",
            text="The relative error of the layer's gradient is at most 1e-8 in every program.",
            kind="bound",
            paper="Theorem 4.1: under the right active set the gradient is exact in the limit.",
        ),
        Statement(
            id="lsqr-is-not",
            text="At n = 100 the default gradient of cvxpylayers is at least 1000 times farther off.",
            kind="better",
        ),
        Statement(
            id="dense-is",
            text="With mode='dense' cvxpylayers is right as well: within 1e-4 of the truth in every program.",
            kind="bound",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 1.0, "paper": 4.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 5, "paper": 10}
    metric = "gradient_error"
    mode: ClassVar[Mode] = "min"
    reference = _DEFAULT

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Three layers at some sizes."""
        sizes = scale.pick(smoke=(10,), laptop=(20, 50, 100), paper=(20, 50, 100, 200))
        return [
            Cell(method=method, seed=seed, setting={"n": size}, scale=scale.name)
            for seed in range(scale.seeds)
            for size in sizes
            for method in ("FFOQPLayer", _DEFAULT, _DENSE)
        ]

    def run(self, cell: Cell) -> Measured:
        """Differentiate one batch."""
        import torch

        from leyden_ffolayer.baselines import CvxpyQPLayer
        from leyden_ffolayer.problems import dense_problem
        from leyden_ffolayer.qp_layer import FFOQPLayer

        problem = dense_problem(int(cell.setting["n"] or 0), batch=4, seed=cell.seed)
        layer: Any = FFOQPLayer()
        if cell.method != "FFOQPLayer":
            layer = CvxpyQPLayer("dense", 1e-8) if cell.method == _DENSE else CvxpyQPLayer()
        q = problem.q.clone().requires_grad_()
        y = layer(problem.Q, q, problem.G, problem.h)
        (found,) = torch.autograd.grad((problem.c * y).sum(), q)
        expected = _projected(problem)
        return {
            "gradient_error": float((found - expected).norm() / expected.norm()),
            "exact_slack": 1e-8 - float((found - expected).norm() / expected.norm()),
            "dense_slack": 1e-4 - float((found - expected).norm() / expected.norm()),
        }

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement."""
        largest = max((int((arm.setting or {}).get("n") or 0) for arm in table.arms()), default=100)
        size = min(largest, 100)
        return [
            bound(self.statement("exact"), table, "exact_slack", arms=["FFOQPLayer"]),
            better(
                self.statement("lsqr-is-not"),
                table,
                Arm("FFOQPLayer", {"n": size}),
                Arm(_DEFAULT, {"n": size}),
                self.metric,
                margin=1000.0,
                mode="min",
                by="ratio",
            ),
            bound(self.statement("dense-is"), table, "dense_slack", arms=[_DENSE]),
        ]

    def figure(self, table: Table) -> Figure:
        """Error against size."""
        from leyden.figures import setting_figure

        return setting_figure(
            table, self.metric, mode="min", log_y=True, title="Relative gradient error against the size"
        )


class Rate(Claim):
    """The error of the finite perturbation is of its order (experiment E4)."""

    name = "rate"
    title = "A non-quadratic program: the error against the perturbation"
    source = "Section 4, the estimate's error O(delta)"
    statements = (
        Statement(
            id="first-order",
            text="From delta = 0.1 to 0.0001 the error falls like delta (exponent between 0.9 and 1.1).",
            kind="rate",
            paper="The error of the hypergradient is O(delta).",
        ),
        Statement(
            id="limit",
            text="The limit, one linear system, is at least 100 times nearer to finite differences than "
            "delta = 0.01 is.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 0.5, "paper": 0.5}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 8, "paper": 20}
    metric = "gradient_error"
    mode: ClassVar[Mode] = "min"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Some perturbations, and the limit."""
        deltas = scale.pick(smoke=(1e-1, 1e-2), laptop=(1e-1, 1e-2, 1e-3, 1e-4))
        options = {"differences": scale.pick(smoke=False, laptop=True)}
        return [
            Cell(method=method, seed=seed, setting=setting, scale=scale.name, options=options)
            for seed in range(scale.seeds)
            for method, setting in [
                *(("ghost problem", {"delta": delta}) for delta in deltas),
                ("limit", {}),
            ]
        ]

    def run(self, cell: Cell) -> Measured:
        """Compare with the limit, and with central differences of the solution."""
        from leyden_ffolayer.experiments import smooth_problem

        problem = smooth_problem(cell.seed)
        delta = cell.setting.get("delta")
        found = problem.gradient(None if delta is None else float(delta))
        exact = problem.gradient(None)
        measured = {"gradient_error": float((found - exact).norm() / exact.norm())}
        if delta in (None, 0.01) and cell.options["differences"]:
            differences = problem.differences()
            measured["difference_error"] = float((found - differences).norm() / differences.norm())
        return measured

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement."""
        places, errors = table.along("ghost problem", "delta", "gradient_error")
        return [
            rate(self.statement("first-order"), places, errors, 0.9, 1.1),
            better(
                self.statement("limit"),
                table,
                Arm("limit"),
                Arm("ghost problem", {"delta": 0.01}),
                "difference_error",
                margin=100.0,
                mode="min",
                by="ratio",
            ),
        ]

    def figure(self, table: Table) -> Figure:
        """Error against the perturbation."""
        from leyden.figures import setting_figure

        return setting_figure(
            table,
            self.metric,
            ["ghost problem"],
            mode="min",
            log_y=True,
            title="Relative gradient error against the perturbation",
        )


class LearnConstraints(Claim):
    """Learning the constraints of a program from its solutions (experiment E3)."""

    name = "learn-constraints"
    title = "Learning constraints: what the dropped half of the gradient costs"
    source = "Section 4.3 of the specification: the released code lacks a term of the paper's formula"
    statements = (
        Statement(
            id="learns",
            text="At the rate that validation pairs choose, the test error falls by a factor of at least 1e5 "
            "within 250 steps.",
            kind="bound",
            paper="Constraints can be learned through the layer (Sudoku).",
        ),
        Statement(
            id="term",
            text="The term that the released code lacks matters: with it the final error is at least 10 "
            "times smaller, each formula at its best rate.",
            kind="better",
        ),
        Statement(
            id="released-learns",
            text="Without the term the test error still falls by a factor of at least 1e5, at its best rate.",
            kind="bound",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 3.0, "paper": 8.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 8, "paper": 20}
    metric = "test_error"
    validation = "log_validation_error"
    unit = "squared"
    mode: ClassVar[Mode] = "min"
    reference = "released formula"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Both formulas, at some learning rates."""
        steps = scale.pick(smoke=20, laptop=250)
        rates = scale.pick(smoke=(0.03,), laptop=(0.01, 0.03, 0.1, 0.3))
        return [
            Cell(
                method=f"{formula} formula",
                seed=seed,
                setting={"rate": rate},
                scale=scale.name,
                options={"steps": steps},
            )
            for seed in range(scale.seeds)
            for formula in ("paper", "released")
            for rate in rates
        ]

    def run(self, cell: Cell) -> Measured:
        """Learn."""
        from leyden_ffolayer.experiments import learn_constraints

        steps, errors = [], []

        def note(step: int, error: float) -> None:
            steps.append(float(step))
            errors.append(error)

        learned = learn_constraints(
            cell.seed,
            formula="paper" if cell.method.startswith("paper") else "released",
            steps=int(cell.options["steps"] or 0),
            rate=float(cell.setting["rate"] or 0),
            on_step=note,
        )
        return {
            "test_error": learned.after,
            "log_validation_error": math.log10(learned.validation),
            "fall_slack": math.log10(learned.before / learned.after) - 5,
            "steps": steps,
            "errors": errors,
        }

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement."""
        paper, released = self._tuned(table)
        return [
            bound(self.statement("learns"), table, "fall_slack", arms=_arms(paper), unit="decades"),
            better(
                self.statement("term"),
                table,
                paper,
                released,
                self.metric,
                margin=10.0,
                mode="min",
                by="ratio",
            ),
            bound(
                self.statement("released-learns"), table, "fall_slack", arms=_arms(released), unit="decades"
            ),
        ]

    def _tuned(self, table: Table) -> tuple[Selection, Selection]:
        """Both formulas at the rates that their validation pairs choose."""
        paper, released = (
            best(table, f"{formula} formula", self.validation, "min") for formula in ("paper", "released")
        )
        return paper, released

    def figure(self, table: Table) -> Figure:
        """Test error over the steps."""
        from leyden.figures import series_figure

        return series_figure(
            table,
            "errors",
            [arm for tuned in self._tuned(table) for arm in _arms(tuned)],
            x="steps",
            x_label="Adam step",
            y_label="mean squared error on fresh pairs",
            log_y=True,
            title="Learning five constraints of ten decisions",
        )


class Decisions(Claim):
    """Decision-focused learning on generated data, beside cvxpylayers (experiment E2)."""

    name = "decisions"
    title = "Decision-focused learning on the generated set: the same curve, in less time"
    source = "Section 5, synthetic decision-focused learning (there 640 features and 800 decisions)"
    statements = (
        Statement(
            id="same-loss",
            text="The final test decision loss is within 2 % of that with cvxpylayers, for every seed.",
            kind="bound",
            paper="The same loss curves as with exact layers.",
        ),
        Statement(
            id="same-loss-exact",
            text="It is within 2 % of that with cvxpylayers at full accuracy (dense adjoint, eps = 1e-9), "
            "for every seed.",
            kind="bound",
            paper="The same loss curves as with exact layers.",
        ),
        Statement(
            id="same-loss-qpth",
            text="It is within 2 % of that with qpth, for every seed, where qpth is installed.",
            kind="bound",
            paper="The same loss curves as with exact layers.",
        ),
        Statement(
            id="faster",
            text="Training takes less wall time than with cvxpylayers.",
            kind="better",
            paper="The backward pass is 2 to 5 times faster than CvxpyLayer's.",
        ),
        Statement(
            id="beats-two-stage",
            text="After as many epochs, its test decision loss is lower than that of two-stage training.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.3, "laptop": 2.0, "paper": 10.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 4, "paper": 8}
    metric = "test_decision_loss"
    mode: ClassVar[Mode] = "min"
    reference = _DEFAULT
    ratios: ClassVar[Mapping[str, str]] = {"seconds": "time"}

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Two layers, and training without one."""
        options = {
            "epochs": scale.pick(smoke=1, laptop=4),
            "rows": scale.pick(smoke=64, laptop=320),
            "size": scale.pick(smoke=8, laptop=60),
        }
        return [
            Cell(method=method, seed=seed, scale=scale.name, options=options)
            for seed in range(scale.seeds)
            for method in ("FFOQPLayer", _DEFAULT, _DENSE, *_qpth(), "two-stage")
        ]

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        size = int(cell.options["size"] or 0)
        layer: dict[str, Any] = {"class_path": "leyden_ffolayer.FFOQPLayer"}
        if cell.method == _DEFAULT:
            layer = {"class_path": "leyden_ffolayer.baselines.CvxpyQPLayer"}
        elif cell.method == _DENSE:
            layer = {
                "class_path": "leyden_ffolayer.baselines.CvxpyQPLayer",
                "init_args": {"adjoint": "dense", "eps": 1e-9},
            }
        if cell.method == "qpth":
            layer = {"class_path": "leyden_ffolayer.baselines.QpthLayer"}
        changes = {
            "model.init_args.layer": layer,
            "model.init_args.training": "two-stage" if cell.method == "two-stage" else "decision",
            "model.init_args.predictor.init_args.sizes": [32, 128, 128, size],
            "model.init_args.program.init_args": {"size": size, "least_sum": -0.25 * size},
            "data.init_args.num_costs": size,
            "data.init_args.train_size": cell.options["rows"],
            "optimizer.init_args.lr": 0.003,
        }
        return _train("synthetic", cell, changes)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement."""
        ours = table.by_seed(Arm("FFOQPLayer"), self.metric)

        def slacks(method: str) -> dict[str, float]:
            theirs = table.by_seed(Arm(method), self.metric)
            return {
                f"seed {seed}": 0.02 - abs(ours[seed] - theirs[seed]) / abs(theirs[seed])
                for seed in ours
                if seed in theirs
            }

        return [
            bound(self.statement("same-loss"), slacks(_DEFAULT), unit="of the loss"),
            bound(self.statement("same-loss-exact"), slacks(_DENSE), unit="of the loss"),
            bound(self.statement("same-loss-qpth"), slacks("qpth"), unit="of the loss"),
            better(
                self.statement("faster"), table, "FFOQPLayer", _DEFAULT, "seconds", mode="min", by="ratio"
            ),
            better(
                self.statement("beats-two-stage"), table, "FFOQPLayer", "two-stage", self.metric, mode="min"
            ),
        ]


class Triage(Claim):
    """Whom to treat: end-to-end against two-stage training on the diabetes table."""

    name = "triage"
    title = "Three of ten patients: is a predictor better trained on what its choices save?"
    source = "ours, on real data: the motive of decision-focused learning (Section 1)"
    statements = (
        Statement(
            id="end-to-end-wins",
            text="Tuned with the same budget, end-to-end training of the network has a lower test regret "
            "than two-stage training.",
            kind="better",
            paper="Training through the program serves the decisions.",
        ),
        Statement(
            id="own-loss",
            text="On the loss that it is trained on, the cost of the treated patients without the program's "
            "quadratic term, it is better on test groups, both tuned on that loss.",
            kind="better",
        ),
        Statement(
            id="keeps-up",
            text="Tuned with the same budget, its test regret is at most 0.03 higher.",
            kind="not worse",
        ),
        Statement(
            id="small-model",
            text="With a predictor that sees two measurements alone (body mass index and blood pressure), "
            "end-to-end training has a lower test regret.",
            kind="better",
        ),
        Statement(
            id="predicts-worse",
            text="The price: two-stage training predicts the progression better (test error, network).",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.3, "laptop": 4.0, "paper": 12.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 6, "paper": 20}
    metric = "test_regret"
    validation = "val_regret"
    mode: ClassVar[Mode] = "min"
    reference = "two-stage, network"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Two trainings of two predictors, three learning rates each."""
        rates = scale.pick(smoke=(0.01,), laptop=(0.003, 0.01, 0.03))
        options = {"epochs": scale.pick(smoke=1, laptop=12), "rows": scale.pick(smoke=32, laptop=256)}
        return [
            Cell(
                method=f"{training}, {predictor}",
                seed=seed,
                setting={"lr": lr},
                scale=scale.name,
                options=options,
            )
            for seed in range(scale.seeds)
            for predictor in ("network", "two measurements")
            for training in ("end-to-end", "two-stage")
            for lr in rates
        ]

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        training, _, predictor = cell.method.partition(", ")
        changes: dict[str, Any] = {
            "model.init_args.training": "decision" if training == "end-to-end" else "two-stage",
            "data.init_args.train_size": cell.options["rows"],
            "data.init_args.val_size": 128,
            "data.init_args.test_size": 256,
            "optimizer.init_args.lr": cell.setting["lr"],
            "trainer.callbacks": [],
        }
        if predictor == "two measurements":
            changes["model.init_args.predictor"] = {
                "class_path": "leyden_ffolayer.decision.ChosenFeatures",
                "init_args": {
                    "features": [2, 3],
                    "inner": {"class_path": "leyden.tasks.mlp", "init_args": {"sizes": [2, 1]}},
                },
            }
        return _train("triage", cell, changes)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test groups, with the rates that validation groups chose."""
        tuned = {
            method: best(table, method, self.validation, "min")
            for predictor in ("network", "two measurements")
            for method in (f"end-to-end, {predictor}", f"two-stage, {predictor}")
        }
        networks = tuned["end-to-end, network"], tuned["two-stage, network"]
        small = tuned["end-to-end, two measurements"], tuned["two-stage, two measurements"]
        own = (
            best(table, "end-to-end, network", "val_decision_loss", "min"),
            best(table, "two-stage, network", "val_decision_loss", "min"),
        )
        return [
            better(self.statement("end-to-end-wins"), table, *networks, self.metric, mode="min"),
            better(self.statement("own-loss"), table, *own, "test_decision_loss", mode="min"),
            not_worse(self.statement("keeps-up"), table, *networks, self.metric, margin=0.03, mode="min"),
            better(self.statement("small-model"), table, *small, self.metric, mode="min"),
            better(
                self.statement("predicts-worse"), table, *networks[::-1], "test_prediction_loss", mode="min"
            ),
        ]


def _qpth() -> tuple[str, ...]:
    """The method qpth, where it is installed."""
    return ("qpth",) if importlib.util.find_spec("qpth") else ()


def _arms(tuned: Selection) -> list[Arm]:
    """The tuned arm, if there is one."""
    return [] if tuned.arm is None else [tuned.arm]


def _projected(problem: Any) -> Any:
    """The gradient by projecting on the null space of the active rows, which a solver of its own finds."""
    import numpy as np
    import torch
    from scipy.optimize import nnls

    root = torch.linalg.cholesky(problem.Q).numpy().T
    inverse = np.linalg.inv(root)
    G, h = problem.G.numpy() @ inverse, problem.h.numpy()
    rows = []
    for q, c in zip(problem.q.numpy() @ inverse, problem.c.numpy() @ inverse, strict=True):
        # In z = root @ y: min ½‖z‖² + qᵀz, Gz <= h, the least-distance problem of Lawson and Hanson
        E = np.vstack([-G.T, -(h + G @ q)[None]])
        f = np.zeros(len(q) + 1)
        f[-1] = 1.0
        lam, _ = nnls(E, f, maxiter=50 * len(h))
        active = G[lam > 1e-12 * lam.max()] if lam.any() else G[:0]
        rows.append(-inverse @ (c - active.T @ np.linalg.lstsq(active.T, c, rcond=None)[0]))
    return torch.from_numpy(np.stack(rows))


def _train(config: str, cell: Cell, changes: Mapping[str, Any]) -> Measured:
    """Train and test a shipped configuration."""
    import time

    from leyden.lightning import run_config

    start = time.perf_counter()
    metrics = run_config(
        Path(__file__).with_name("configs") / f"{config}.yaml",
        {
            "seed_everything": cell.seed,
            "data.init_args.seed": cell.seed,
            "trainer.max_epochs": cell.options["epochs"],
            "trainer.check_val_every_n_epoch": cell.options["epochs"],
            **changes,
        },
    )
    seconds = time.perf_counter() - start
    names = ("decision_loss", "regret", "prediction_loss")
    kept = {f"{stage}_{name}": metrics[f"{stage}/{name}"] for stage in ("val", "test") for name in names}
    return {**kept, "seconds": seconds}
