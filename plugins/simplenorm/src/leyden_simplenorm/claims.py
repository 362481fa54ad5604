"""What the paper says of SimpleNorm, as experiments on two cores; what does not hold is stated as well.

Every tuned method gets the same learning rates, is tuned on validation text and judged on test text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from leyden.claims import Arm, Cell, Claim, Measured, Mode, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import Judge, best, better, bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIMPLE = "SimpleNorm"
_PRE = "pre-norm"
_QK = "pre-norm + QK-norm"
_WIDE = "pre-norm, width-aware init"
_WIDE_QK = "pre-norm + QK-norm, width-aware init"

_METHODS: Mapping[str, Mapping[str, Any]] = {
    _SIMPLE: {"block_norm": "simple"},
    _PRE: {"block_norm": "pre"},
    _QK: {"block_norm": "pre_qk"},
    _WIDE: {"block_norm": "pre", "init_std": None},
    _WIDE_QK: {"block_norm": "pre_qk", "init_std": None},
}
"""What each method changes in ``configs/python-docs.yaml``; the first three start as in the authors' code."""

_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


class LearningRates(Claim):
    """Loss and its dependence on the learning rate, of a small model of Python's documentation."""

    name = "learning-rates"
    title = "A language model at five learning rates: how good it gets, and how much the rate matters"
    source = "Training losses of the 7B runs on C4, and tolerance of learning rates; here 0.2 M parameters"
    statements = (
        Statement(
            id="beats-pre",
            text="Tuned with the same budget, from the official initial weights, SimpleNorm's test loss is "
            "more than 0.04 below pre-norm's.",
            kind="better",
            paper="2.208 against 2.311 (Llama-2 at its own rate) after 60K steps of the 7B model.",
        ),
        Statement(
            id="beats-qk",
            text="Tuned with the same budget, from the official initial weights, it is more than 0.04 below "
            "pre-norm with QK-norm.",
            kind="better",
            paper="2.208 against 2.290 after 60K steps of the 7B model.",
        ),
        Statement(
            id="flat",
            text="From the rate 0.001 to 0.1 the loss of SimpleNorm varies by at most 0.25.",
            kind="bound",
            paper="Stable over a wide range of learning rates.",
        ),
        Statement(
            id="flatter",
            text="That is at most 0.6 times what the loss of pre-norm varies.",
            kind="better",
            paper="Stable over a wide range of learning rates.",
        ),
        Statement(
            id="small-rates",
            text="At the rate 0.001 the loss of SimpleNorm is more than 0.2 below that of pre-norm with "
            "QK-norm.",
            kind="better",
        ),
        Statement(
            id="width-aware",
            text="Against pre-norm whose initial weights suit the width, tuned as well, SimpleNorm is no "
            "more than 0.03 worse.",
            kind="not worse",
        ),
        Statement(
            id="beats-width-aware",
            text="It is more than 0.04 better than that, too.",
            kind="better",
        ),
        Statement(
            id="beats-width-aware-qk",
            text="It is more than 0.04 better than pre-norm with QK-norm whose initial weights suit the "
            "width.",
            kind="better",
        ),
        Statement(
            id="larger-rate",
            text="The best learning rate of SimpleNorm is at least 3 times that of pre-norm.",
            kind="better",
            paper="Tolerates learning rates 3 to 10 times the usual.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.3, "laptop": 12.0, "paper": 40.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 3, "paper": 10}
    metric = "test_loss"
    unit = "nats a character"
    mode: ClassVar[Mode] = "min"
    validation = "val_loss"
    reference = _QK
    text: ClassVar[str] = "PythonDocs"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Five methods, five rates each."""
        methods = scale.pick(smoke=(_SIMPLE, _PRE), laptop=tuple(_METHODS))
        rates = scale.pick(smoke=(3e-3,), laptop=_RATES)
        return _cells(scale, methods, rates, scale.pick(smoke=3, laptop=200))

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        return _train(self.text, cell)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test text, with the rates that validation text chose."""
        tuned = {method: best(table, method, self.validation, "min") for method in _METHODS}
        simple = tuned[_SIMPLE]
        spread = {method: _spread(table, method, self.metric) for method in (_SIMPLE, _PRE)}
        rate = {method: _best_rate(table, method, self.validation) for method in (_SIMPLE, _PRE)}
        low = {method: Arm(method, {"lr": 1e-3}) for method in (_SIMPLE, _QK)}
        judge = Judge(self, table, unit=self.unit)
        return [
            judge.better("beats-pre", simple, tuned[_PRE], 0.04),
            judge.better("beats-qk", simple, tuned[_QK], 0.04),
            bound(
                self.statement("flat"),
                {f"seed {seed}": 0.25 - value for seed, value in spread[_SIMPLE].items()},
                unit=self.unit,
            ),
            better(
                self.statement("flatter"), table, spread[_SIMPLE], spread[_PRE], "spread of the test loss",
                margin=1 / 0.6, mode="min", by="ratio",
            ),
            judge.better("small-rates", low[_SIMPLE], low[_QK], 0.2),
            judge.not_worse("width-aware", simple, tuned[_WIDE], 0.03),
            judge.better("beats-width-aware", simple, tuned[_WIDE], 0.04),
            judge.better("beats-width-aware-qk", simple, tuned[_WIDE_QK], 0.04),
            better(
                self.statement("larger-rate"), table, rate[_SIMPLE], rate[_PRE], "best rate by validation",
                margin=3.0, mode="max", by="ratio",
            ),
        ]  # fmt: skip

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The loss against the learning rate, and the methods at their best."""
        from leyden.figures import methods_figure, setting_figure

        tuned = {method: best(table, method, self.validation, "min") for method in table.methods}
        return {
            "lr_tolerance": setting_figure(
                table, self.metric, selections=tuned, mode="min", unit=self.unit,
                title=f"Test loss against the learning rate ({self.text})",
            ),
            "methods": methods_figure(
                table, self.metric, list(tuned.values()), mode="min", unit=self.unit,
                reference=self.reference, title=f"Test loss at each method's best rate ({self.text})",
            ),
        }  # fmt: skip


class LearningRatesKJV(LearningRates):
    """The same on the first 1.2 million characters of the King James Bible."""

    name = "learning-rates-kjv"
    title = "The same on the King James Bible, at its first 1.2 million characters"
    text: ClassVar[str] = "KingJames"


class Tolerance(Claim):
    """Learning rates that are ten and a hundred times too large, and the spikes that they bring."""

    name = "tolerance"
    title = "Learning rates that are far too large: who still learns, and whose loss jumps"
    source = "Tolerance of learning rates 3 to 10 times the usual, and loss spikes (figure of the 7B runs)"
    statements = (
        Statement(
            id="survives",
            text="At the rate 0.3, after 120 steps, the loss of SimpleNorm is more than 0.3 below that of "
            "pre-norm.",
            kind="better",
            paper="Llama-2 at rate 1e-3 diverged to a plateau (4.115), SimpleGPT did not (2.331).",
        ),
        Statement(
            id="survives-qk",
            text="It is more than 0.1 below that of pre-norm with QK-norm there.",
            kind="better",
        ),
        Statement(
            id="survives-one",
            text="At the rate 1.0 it is more than 0.3 below both.",
            kind="better",
        ),
        Statement(
            id="spikes",
            text="At the rate 0.1 the largest spike of its training loss is at most half that of pre-norm "
            "with QK-norm.",
            kind="better",
            paper="Visible loss spikes of the QK-norm run are absent in the SimpleGPT run.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 4.0, "paper": 13.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 3, "paper": 10}
    metric = "test_loss"
    unit = "nats a character"
    mode: ClassVar[Mode] = "min"
    reference = _QK
    text: ClassVar[str] = "PythonDocs"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Three methods, four rates, 120 steps."""
        methods = scale.pick(smoke=(_SIMPLE, _PRE), laptop=(_SIMPLE, _PRE, _QK))
        rates = scale.pick(smoke=(0.3,), laptop=(0.01, 0.1, 0.3, 1.0))
        return _cells(scale, methods, rates, scale.pick(smoke=3, laptop=120))

    def run(self, cell: Cell) -> Measured:
        """Train and test."""
        return _train(self.text, cell)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test text."""
        judge = Judge(self, table, unit=self.unit)
        methods, rates = (_SIMPLE, _PRE, _QK), (0.1, 0.3, 1.0)
        at = {(method, lr): Arm(method, {"lr": lr}) for method in methods for lr in rates}
        others = [at[method, 1.0] for method in (_PRE, _QK)]
        nearer = min(others, key=lambda arm: _mean(table.by_seed(arm, self.metric)))
        return [
            judge.better("survives", at[_SIMPLE, 0.3], at[_PRE, 0.3], 0.3),
            judge.better("survives-qk", at[_SIMPLE, 0.3], at[_QK, 0.3], 0.1),
            judge.better("survives-one", at[_SIMPLE, 1.0], nearer, 0.3),
            better(
                self.statement("spikes"), table, at[_SIMPLE, 0.1], at[_QK, 0.1], "max_spike",
                margin=2.0, mode="min", by="ratio",
            ),
        ]  # fmt: skip

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """Loss and largest spike against the learning rate."""
        from leyden.figures import setting_figure

        return {
            "lr_tolerance": setting_figure(
                table, self.metric, mode="min", unit=self.unit,
                title=f"Test loss after 120 steps at large learning rates ({self.text})",
            ),
            "spikes": setting_figure(
                table, "max_spike", mode="min", unit=self.unit,
                title=f"Largest spike of the training loss ({self.text})",
            ),
        }  # fmt: skip


class Curvature(Claim):
    """The Hessian of a loss in a map's input, as the weights are multiplied."""

    name = "curvature"
    title = "Curvature of a loss in a map's input, against the size of the weights"
    source = "Smoothness of the activation Hessian: |H_xx| <= |W|^2 |H_z| of a plain map"
    statements = (
        Statement(
            id="invariant",
            text="With SimpleNorm, multiplying the weights by 4, 16 and 64 changes the spectral norm of the "
            "Hessian by less than one in a million, for both losses.",
            kind="bound",
            paper="The curvature is controlled by the shape of the weights, not by their size.",
        ),
        Statement(
            id="grows",
            text="With a plain map and a quadratic loss it grows with the square of the factor, to 1e-9.",
            kind="bound",
            paper="|H_xx| <= |W|^2 |H_z| of a plain map.",
        ),
        Statement(
            id="grows-cross-entropy",
            text="With a plain map and cross-entropy, 16 times the weights have at least 10 times the "
            "curvature.",
            kind="better",
        ),
        Statement(
            id="two-terms",
            text="The Hessian is the sum of its two terms, to 1e-9.",
            kind="bound",
        ),
        Statement(
            id="small-weights",
            text="It is invariance and not smallness: at the initial size (0.02) and with cross-entropy the "
            "plain map has at most a quarter of SimpleNorm's curvature.",
            kind="better",
        ),
        Statement(
            id="first-term",
            text="The first of the two terms is at least 3 times the second, with cross-entropy.",
            kind="better",
            paper="The first term dominates.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 0.3, "paper": 0.5}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 8, "paper": 30}
    metric = "curvature"
    mode: ClassVar[Mode] = "min"
    imports: ClassVar[tuple[str, ...]] = ("torch",)

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Two maps, two losses, four factors of the weights."""
        factors = scale.pick(smoke=(1.0, 16.0), laptop=(1.0, 4.0, 16.0, 64.0))
        return [
            Cell(
                method=f"{kind}, {loss}",
                seed=seed,
                setting={"factor": factor},
                scale=scale.name,
                options={"width": scale.pick(smoke=16, laptop=64)},
            )
            for seed in range(scale.seeds)
            for kind in ("SimpleNorm", "plain")
            for loss in ("quadratic", "cross-entropy")
            for factor in factors
        ]

    def run(self, cell: Cell) -> Measured:
        """The Hessian at one random point."""
        from leyden_simplenorm.measuring import curvature_at

        kind, loss = cell.method.split(", ")
        return curvature_at(
            kind=kind,
            loss=loss,
            factor=float(cell.setting["factor"]),  # type: ignore[arg-type]
            width=int(cell.options["width"]),  # type: ignore[arg-type]
            seed=cell.seed,
        )

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement."""
        at = {
            (kind, factor): Arm(f"{kind}, cross-entropy", {"factor": factor})
            for kind in ("SimpleNorm", "plain")
            for factor in (1.0, 16.0)
        }
        apart = [f"SimpleNorm, {loss}" for loss in ("quadratic", "cross-entropy")]
        first = table_value(table, at["SimpleNorm", 1.0], "first_term")
        second = table_value(table, at["SimpleNorm", 1.0], "second_term")
        return [
            bound(
                self.statement("invariant"),
                {
                    name: 1e-6 - value
                    for method in apart
                    for name, value in _changes(table, method, 0).items()
                },
                unit="relative",
            ),
            bound(
                self.statement("grows"),
                {name: 1e-9 - value for name, value in _changes(table, "plain, quadratic", 2).items()},
                unit="relative",
            ),
            better(
                self.statement("grows-cross-entropy"), table, at["plain", 16.0], at["plain", 1.0],
                self.metric, margin=10.0, by="ratio",
            ),
            bound(self.statement("two-terms"), table, "terms_slack", arms=apart, unit="relative"),
            better(
                self.statement("small-weights"), table, at["plain", 1.0], at["SimpleNorm", 1.0],
                self.metric, margin=4.0, mode="min", by="ratio",
            ),
            better(
                self.statement("first-term"), table, first, second, "spectral norm of the terms",
                margin=3.0, by="ratio",
            ),
        ]  # fmt: skip

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The spectral norm against the factor."""
        from leyden.figures import setting_figure

        return {
            "curvature": setting_figure(
                table, self.metric, mode="min", log_y=True,
                title="Spectral norm of the Hessian in the input, against the factor of the weights",
            )
        }  # fmt: skip


class Scales(Claim):
    """The scale of activations over a training."""

    name = "scales"
    title = "The scale of activations over a training: fixed by the gains, or drifting"
    source = "Motivation: activation scales drift during training, SimpleNorm fixes them"
    statements = (
        Statement(
            id="bounds",
            text="At every step watched and in every map, the root mean square of every token's output lies "
            "between the smallest and the largest gain (as far as epsilon allows), to 1e-5.",
            kind="bound",
            paper="min|gain| sqrt(d) <= |output| <= max|gain| sqrt(d).",
        ),
        Statement(
            id="pre-drifts",
            text="With pre-norm, the outputs of the attention and feed-forward parts grow at least to twice "
            "their first scale.",
            kind="better",
            paper="Activation scales drift.",
        ),
        Statement(
            id="simple-stays",
            text="With SimpleNorm they stay within a factor of 2 of their first scale.",
            kind="bound",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.2, "laptop": 1.0, "paper": 3.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 3, "paper": 10}
    metric = "drift"
    mode: ClassVar[Mode] = "min"
    reference = _PRE

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Three methods at the best rates of the experiment that the rates come from."""
        rates = {_SIMPLE: 3e-3, _PRE: 1e-2, _QK: 3e-2}
        methods = scale.pick(smoke=(_SIMPLE, _PRE), laptop=tuple(rates))
        steps = scale.pick(smoke=3, laptop=200)
        return [
            Cell(
                method=method,
                seed=seed,
                setting={"lr": rates[method]},
                scale=scale.name,
                options={"steps": steps, "every": scale.pick(smoke=1, laptop=10)},
            )
            for seed in range(scale.seeds)
            for method in methods
        ]

    def run(self, cell: Cell) -> Measured:
        """Train with the monitor."""
        from leyden_simplenorm.measuring import GainBounds

        watch = GainBounds(int(cell.options["every"]))  # type: ignore[arg-type]
        return {**_train("PythonDocs", cell, [watch]), **watch.measured()}

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement."""
        drift = {
            f"seed {seed}": 2 - value for seed, value in table_value(table, Arm(_SIMPLE), "drift").items()
        }
        return [
            bound(
                self.statement("bounds"), table, "gain_slack", arms=[_SIMPLE], tolerance=1e-5, unit="relative"
            ),
            better(
                self.statement("pre-drifts"), table, Arm(_PRE), 1.0, "drift",
                margin=2.0, mode="max", by="ratio",
            ),
            bound(self.statement("simple-stays"), drift, unit="of the factor"),
        ]  # fmt: skip

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """The scale of the parts' outputs over the run."""
        from leyden.figures import series_figure

        return {
            "scales": series_figure(
                table, "scale", [Arm(method) for method in table.methods], x="steps",
                x_label="optimizer step", log_y=True,
                y_label="rms, median over tokens",
                title="Scale of what attention and feed-forward parts add to the residual stream",
            )
        }  # fmt: skip


def table_value(table: Table, arm: Arm, metric: str) -> dict[int, float]:
    """A metric of an arm by seed, where it was measured."""
    return {seed: value for seed, value in table.by_seed(arm, metric).items() if math.isfinite(value)}


def _cells(scale: Scale, methods: Sequence[str], rates: Sequence[float], steps: int) -> list[Cell]:
    return [
        Cell(
            method=method, seed=seed, setting={"lr": rate}, scale=scale.name, options={"steps": steps}
        )
        for seed in range(scale.seeds)
        for method in methods
        for rate in rates
    ]  # fmt: skip


def _train(text: str, cell: Cell, callbacks: Sequence[Any] = ()) -> Measured:
    """Train and test a model of characters; the head has a place for each of them."""
    import leyden_datamodules
    from leyden.lightning import run_config

    from leyden_simplenorm.sweep import TrainingLosses, largest_spike

    steps = cell.options["steps"]
    subset = 100_000 if cell.scale == "smoke" else 1_200_000
    data = {"batch_size": 16, "length": 64, "tokens": "characters", "subset": subset, "seed": cell.seed}
    vocabulary = getattr(leyden_datamodules, text)(**data).num_tokens
    losses = TrainingLosses()
    metrics = run_config(
        Path(__file__).with_name("configs") / "python-docs.yaml",
        {
            "seed_everything": cell.seed,
            "data": {"class_path": f"leyden_datamodules.{text}", "init_args": data},
            "model.init_args.vocab_size": vocabulary,
            **{f"model.init_args.{key}": value for key, value in _METHODS[cell.method].items()},
            "model.init_args.lr": cell.setting["lr"],
            "trainer.max_steps": steps,
            "trainer.val_check_interval": steps,
            "trainer.callbacks": [],
        },
        callbacks=[losses, *callbacks],
    )
    return {
        "val_loss": metrics["val/loss"],
        "test_loss": metrics["test/loss"],
        "max_spike": largest_spike(losses.numbers()),
    }


def _spread(table: Table, method: str, metric: str) -> dict[int, float]:
    """By how much a metric varies over the settings of a method, by seed; of seeds that have all of them."""
    columns = [table.by_seed(arm, metric) for arm in table.arms(method)]
    seeds = [seed for seed in table.seeds if columns and all(seed in column for column in columns)]
    found = {seed: [column[seed] for column in columns] for seed in seeds}
    return {seed: max(values) - min(values) for seed, values in found.items()}


def _best_rate(table: Table, method: str, metric: str) -> dict[int, float]:
    """The learning rate of the smallest metric, by seed; of seeds that have all of them."""
    columns = {
        float((arm.setting or {})["lr"]): table.by_seed(arm, metric)  # type: ignore[arg-type]
        for arm in table.arms(method)
    }
    seeds = [seed for seed in table.seeds if columns and all(seed in one for one in columns.values())]
    by_seed = {seed: {rate: values[seed] for rate, values in columns.items()} for seed in seeds}
    return {seed: min(losses, key=losses.__getitem__) for seed, losses in by_seed.items()}


def _changes(table: Table, method: str, power: int) -> dict[str, float]:
    """By how much curvature differs, relatively, from its value at factor 1 times a power of the factor."""
    start = table.by_seed(Arm(method, {"factor": 1.0}), "curvature")
    found = {}
    for arm in table.arms(method):
        factor = float((arm.setting or {})["factor"])  # type: ignore[arg-type]
        for seed, value in table.by_seed(arm, "curvature").items():
            if factor != 1.0 and seed in start:
                found[f"{arm} seed {seed}"] = abs(value / (start[seed] * factor**power) - 1)
    return found


def _mean(values: Mapping[int, float]) -> float:
    return math.fsum(values.values()) / len(values) if values else math.inf
