"""What the paper says of its layer, as experiments on two cores; what does not hold is stated as well.

Every tuned method gets the same number of settings, is tuned on validation data and judged on test data.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from leyden.claims import Arm, Cell, Claim, Measured, Mode, Scalar, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import Judge, Selection, best, better, bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from leyden_milp_layer.projection import DisjunctiveProjection
    from leyden_milp_layer.training import Split

_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
_RHOS = (0.01, 0.1, 1.0, 10.0)
Grid = Mapping[str, tuple[str, Sequence[float]]]
"""For each method the name of the value that is tuned, and the values tried; none: one setting."""


class Exactness(Claim):
    """Whether the projection is exact, and what relaxations and the released formulation leave violated."""

    name = "exactness"
    title = "Random rule sets: three ways to the same projection, and what relaxations leave violated"
    source = (
        "The proposition on DNF and the hierarchy of relaxations (Section 3); random instances reconstructed"
    )
    statements = (
        Statement(
            id="milp",
            text="Enumeration finds the distance of HiGHS' mixed-integer program, to 1e-7.",
            kind="bound",
            paper="The DNF relaxation is exact.",
        ),
        Statement(
            id="lifted",
            text="Enumeration finds the value of the lifted DNF linear program, to 1e-7.",
            kind="bound",
            paper="The DNF relaxation is exact.",
        ),
        Statement(
            id="satisfied",
            text="Every output satisfies every rule, to 1e-6.",
            kind="bound",
            paper="Exact rule satisfaction.",
        ),
        Statement(
            id="chain",
            text="Expanding one more rule never lowers the distance; with all expanded it is exact, to 1e-8.",
            kind="bound",
            paper="DNF within pDNF within CNF; the optimal distance does not decrease along the chain.",
        ),
        Statement(
            id="cnf",
            text="A hull for each rule is not enough: the CNF relaxation satisfies fewer samples than DNF.",
            kind="better",
            paper="CNF satisfies most rules, DNF all.",
        ),
        Statement(
            id="released",
            text="The released formulation, l2 on the hull, satisfies a tenth of the samples less than DNF.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 1.0, "paper": 3.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 5, "paper": 20}
    metric = "csat"
    reference = "DNF"
    imports: ClassVar[tuple[str, ...]] = ("torch",)

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Three formulations."""
        count = scale.pick(smoke=4, laptop=40)
        return [
            Cell(method=method, seed=seed, scale=scale.name, options={"count": count})
            for seed in range(scale.seeds)
            for method in ("DNF", "CNF", "hull in l2 (released)")
        ]

    def run(self, cell: Cell) -> Measured:
        """Project random points."""
        from leyden_milp_layer.random_rules import random_problems

        problems = list(random_problems(int(cell.options["count"]), cell.seed))  # type: ignore[arg-type]
        measure = {"DNF": _exact, "CNF": _relaxed}.get(cell.method, _released)
        return measure(problems)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement."""
        return [
            *(
                bound(self.statement(id), table, f"{id}_slack", arms=["DNF"], unit="distance")
                for id in ("milp", "lifted", "satisfied", "chain")
            ),
            better(self.statement("cnf"), table, "DNF", "CNF", "csat", unit="csat"),
            better(
                self.statement("released"),
                table,
                "DNF",
                "hull in l2 (released)",
                "csat",
                margin=0.1,
                unit="csat",
            ),
        ]


class Cooling(Claim):
    """Training through the layer on cooling control: error and satisfaction, in and out of distribution."""

    name = "cooling"
    title = "Cooling control: seven rules, 150 samples, tested in mild and in hot weather"
    source = (
        "Synthetic cooling control (Section 5); data and rules reconstructed, 150 training samples for 500"
    )
    statements = (
        Statement(
            id="satisfied",
            text="With DNF, trained through or only at inference, every rule holds at every test sample.",
            kind="bound",
            paper="CSAT 100 %, IID and OOD.",
        ),
        Statement(
            id="ood",
            text="In hot weather DNF, fine-tuned, has at most 0.7 times the base network's squared error.",
            kind="better",
            paper="OOD MSE: base high, DNF lowest.",
        ),
        Statement(
            id="iid",
            text="In mild weather DNF, fine-tuned, has no larger squared error than the base network.",
            kind="not worse",
            paper="No accuracy is lost in distribution.",
        ),
        Statement(
            id="penalty-csat",
            text="In hot weather its satisfaction rate is at least 0.2 above that of penalty fine-tuning, "
            "whose factor is chosen for satisfaction here.",
            kind="better",
            paper="Penalties stay below DNF.",
        ),
        Statement(
            id="penalty-ood",
            text="In hot weather its squared error is below that of the better of the two penalties.",
            kind="better",
            paper="Penalties are only slightly better than the base network.",
        ),
        Statement(
            id="cnf-ood",
            text="In hot weather its squared error is below that of CNF, fine-tuned alike.",
            kind="better",
            paper="CNF clearly lower than penalties, DNF lowest.",
        ),
        Statement(
            id="pdnf-ood",
            text="In hot weather its squared error is below that of partial DNF with two rules expanded.",
            kind="better",
            paper="MSE falls with every rule that is expanded.",
        ),
        Statement(
            id="training-adds",
            text="Training through the layer lowers the squared error in hot weather by a tenth, against "
            "projecting the base network's outputs at inference.",
            kind="better",
            paper="Post-processing is below end-to-end training.",
        ),
        Statement(
            id="straight-through",
            text="Straight-through, without exact gradient, ends within 1.1 times its error in hot weather.",
            kind="not worse",
        ),
        Statement(
            id="oracle",
            text="The projection at inference is that of HiGHS' mixed-integer program, to 1e-6 in distance.",
            kind="bound",
            paper="The DNF layer equals the MILP oracle.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.3, "laptop": 8.0, "paper": 30.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 5, "paper": 10}
    metric = "ood_mse"
    mode: ClassVar[Mode] = "min"
    validation = "val_mse"
    reference = "base"
    imports: ClassVar[tuple[str, ...]] = ("torch",)

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """The base network, two penalties, three relaxations, DNF at inference and two of its gradients."""
        rate, rho = ("lr", _RATES), ("rho", _RHOS)
        grid: Grid = {
            "base": ("", ()),
            "penalty, from scratch": rho,
            "penalty, fine-tuned": rho,
            "DNF at inference": ("", ()),
            "CNF": rate,
            "pDNF(2)": rate,
            "DNF": rate,
            "DNF, straight-through": rate,
            "MILP oracle": ("", ()),
        }
        short: Grid = {
            "base": ("", ()),
            "penalty, fine-tuned": ("rho", (1.0,)),
            "DNF at inference": ("", ()),
            "CNF": ("lr", (3e-3,)),
            "DNF": ("lr", (3e-3,)),
            "MILP oracle": ("", ()),
        }
        sizes: dict[str, Scalar] = scale.pick(
            smoke={"train": 30, "test": 12, "steps": 40, "epochs": 1},
            laptop={"train": 150, "test": 100, "steps": 400, "epochs": 6},
            paper={"train": 500, "test": 300, "steps": 400, "epochs": 6},
        )
        return _cells(scale, scale.pick(smoke=short, laptop=grid), sizes)

    def run(self, cell: Cell) -> Measured:
        """Train, fine-tune as the method says, and test in both domains."""
        return _cooling(cell)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the settings that validation data chose."""
        names = (
            "penalty, from scratch",
            "penalty, fine-tuned",
            "CNF",
            "pDNF(2)",
            "DNF",
            "DNF, straight-through",
        )
        tuned = {name: best(table, name, "val_mse", "min") for name in names}
        dnf = tuned["DNF"]
        penalties = [tuned["penalty, from scratch"], tuned["penalty, fine-tuned"]]
        lower = min(penalties, key=lambda one: _mean(table, one, "ood_mse"))
        strictest = best(table, "penalty, fine-tuned", "val_csat", "max")
        error = Judge(self, table, by="ratio")
        return [
            bound(
                self.statement("satisfied"),
                table,
                "csat_slack",
                arms=["DNF", "DNF, straight-through", "DNF at inference"],
                unit="csat",
            ),
            error.better("ood", dnf, "base", 1 / 0.7),
            error.not_worse("iid", dnf, "base", metric="iid_mse"),
            Judge(self, table, "ood_csat", mode="max", unit="csat").better(
                "penalty-csat", dnf, strictest, 0.2
            ),
            error.better("penalty-ood", dnf, lower),
            error.better("cnf-ood", dnf, tuned["CNF"]),
            error.better("pdnf-ood", dnf, tuned["pDNF(2)"]),
            error.better("training-adds", dnf, "DNF at inference", 1 / 0.9),
            error.not_worse("straight-through", tuned["DNF, straight-through"], dnf, 1.1),
            bound(self.statement("oracle"), table, "oracle_slack", arms=["MILP oracle"], unit="distance"),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """Error and satisfaction of every method in both domains."""
        from leyden.figures import methods_figure

        chosen = [
            best(table, method, "val_mse", "min") if len(table.arms(method)) > 1 else Arm(method)
            for method in table.methods
        ]
        return {
            "ood_mse": methods_figure(
                table, "ood_mse", chosen, mode="min", reference="base", title="Squared error in hot weather"
            ),
            "ood_csat": methods_figure(
                table, "ood_csat", chosen, title="Share of hot-weather samples that satisfy every rule"
            ),
        }


class Expansion(Claim):
    """Rules expanded one after the other: how satisfaction and distance go from CNF to DNF."""

    name = "expansion"
    title = "From CNF to DNF: expanding the seven rules of cooling control one after the other"
    source = "The ablation of basic steps (Section 5); data reconstructed"
    statements = (
        Statement(
            id="monotone",
            text="No expansion lowers a sample's distance, to 1e-8.",
            kind="bound",
            paper="The optimal distance does not decrease along the chain.",
        ),
        Statement(
            id="exact",
            text="With all seven expanded, every rule holds at every sample.",
            kind="bound",
            paper="DNF: CSAT 100 %.",
        ),
        Statement(
            id="gain",
            text="From CNF to DNF the satisfaction rate rises by at least 0.1.",
            kind="better",
            paper="CSAT rises with the number of expanded rules.",
        ),
        Statement(
            id="few-steps",
            text="Three expanded rules bring at least half of the rise.",
            kind="better",
            paper="Most of the gain comes within few steps.",
        ),
        Statement(
            id="error",
            text="DNF's squared error to the target is below CNF's.",
            kind="better",
            paper="MSE falls monotonically.",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 2.0, "paper": 8.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 5, "paper": 20}
    metric = "csat_all"
    imports: ClassVar[tuple[str, ...]] = ("torch",)

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """One chain a seed."""
        count = scale.pick(smoke=3, laptop=40)
        return [
            Cell(method="pDNF", seed=seed, scale=scale.name, options={"count": count})
            for seed in range(scale.seeds)
        ]

    def run(self, cell: Cell) -> Measured:
        """Expand rule after rule for every sample."""
        return _expansion(int(cell.options["count"]), cell.seed)  # type: ignore[arg-type]

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge every statement."""
        arm = Arm("pDNF")
        all_rules, none, three = (table.by_seed(arm, f"csat_{name}") for name in ("all", "none", "three"))
        half = {seed: (all_rules[seed] + none[seed]) / 2 for seed in all_rules.keys() & none.keys()}
        exact, relaxed = (table.by_seed(arm, f"mse_{name}") for name in ("all", "none"))
        return [
            bound(self.statement("monotone"), table, "chain_slack", arms=["pDNF"], unit="distance"),
            bound(self.statement("exact"), table, "csat_slack", arms=["pDNF"], unit="csat"),
            better(self.statement("gain"), table, all_rules, none, "csat", margin=0.1, unit="csat"),
            better(self.statement("few-steps"), table, three, half, "csat", unit="csat"),
            better(self.statement("error"), table, exact, relaxed, "mse", mode="min", by="ratio"),
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """Satisfaction, distance and size of the program against the number of expanded rules."""
        from leyden.figures import series_figure

        drawn = {}
        for name, title in (
            ("csat", "Share of samples that satisfy every rule"),
            ("distance", "Mean distance of the relaxation"),
            ("variables", "Variables of the linear program"),
        ):
            drawn[name] = series_figure(
                table,
                f"{name}_by_count",
                [Arm("pDNF")],
                x="counts",
                x_label="rules expanded",
                y_label=name,
                title=title,
            )
        return drawn


class Wine(Claim):
    """Real data: six labelled wines, and four expert rules."""

    name = "wine"
    title = "Wine with two labelled rows of each cultivar, and four expert rules that are right on the data"
    source = "In place of single-cell data with marker-gene rules (Section 5), which is not public offline"
    statements = (
        Statement(
            id="satisfied",
            text="With DNF every rule holds at every test wine, before fine-tuning and after.",
            kind="bound",
            paper="CSAT 100 %.",
        ),
        Statement(
            id="accuracy",
            text="DNF, fine-tuned, is better than the base network by 0.03 of accuracy.",
            kind="better",
            paper="DNF has the best macro-F1 (scRNA-seq, 13 labelled cells).",
        ),
        Statement(
            id="macro-f1",
            text="DNF, fine-tuned, has a better macro-F1 than the base network.",
            kind="better",
            paper="DNF has the best macro-F1.",
        ),
        Statement(
            id="penalty",
            text="DNF, fine-tuned, is more accurate than the better of the two penalties.",
            kind="better",
            paper="Penalties stay below DNF.",
        ),
        Statement(
            id="training-adds",
            text="Fine-tuning through the layer is more accurate than projecting at inference alone.",
            kind="better",
            paper="Post-processing is below end-to-end training.",
        ),
        Statement(
            id="vote",
            text="The rules alone do not explain it: DNF, fine-tuned, is more accurate by 0.05 than guessing "
            "among the classes that the rules leave.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.1, "laptop": 2.0, "paper": 5.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 8, "paper": 30}
    metric = "test_accuracy"
    validation = "val_accuracy"
    reference = "base"
    imports: ClassVar[tuple[str, ...]] = ("torch",)

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """The base network, two penalties, CNF, DNF at inference and fine-tuned, and the rules alone."""
        rate, rho = ("lr", _RATES), ("rho", _RHOS)
        grid: Grid = {
            "base": ("", ()),
            "penalty, from scratch": rho,
            "penalty, fine-tuned": rho,
            "DNF at inference": ("", ()),
            "CNF": rate,
            "DNF": rate,
            "rules alone": ("", ()),
        }
        short: Grid = {
            "base": ("", ()),
            "penalty, fine-tuned": ("rho", (1.0,)),
            "DNF at inference": ("", ()),
            "DNF": ("lr", (3e-3,)),
            "rules alone": ("", ()),
        }
        sizes: dict[str, Scalar] = scale.pick(
            smoke={"steps": 30, "epochs": 2}, laptop={"steps": 300, "epochs": 50}
        )
        return _cells(scale, scale.pick(smoke=short, laptop=grid), sizes)

    def run(self, cell: Cell) -> Measured:
        """Train, fine-tune as the method says, and test."""
        return _wine(cell)

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test data, with the settings that validation data chose."""
        dnf = best(table, "DNF", self.validation)
        penalties = [
            best(table, f"penalty, {how}", self.validation) for how in ("from scratch", "fine-tuned")
        ]
        penalty = max(penalties, key=lambda one: _mean(table, one, self.metric, worst=-1.0))

        judge = Judge(self, table, unit="accuracy")
        return [
            bound(
                self.statement("satisfied"),
                table,
                "csat_slack",
                arms=["DNF", "DNF at inference"],
                unit="csat",
            ),
            judge.better("accuracy", dnf, "base", 0.03),
            judge.better("macro-f1", dnf, "base", metric="test_macro_f1"),
            judge.better("penalty", dnf, penalty),
            judge.better("training-adds", dnf, "DNF at inference"),
            judge.better("vote", dnf, "rules alone", 0.05),
        ]


def _cells(scale: Scale, grid: Grid, options: Mapping[str, Scalar]) -> list[Cell]:
    """A cell for every seed, method and setting."""
    cells = []
    for seed in range(scale.seeds):
        for method, (name, values) in grid.items():
            settings: list[dict[str, Scalar]] = [{name: value} for value in values] or [{}]
            cells += [
                Cell(method=method, seed=seed, setting=setting, scale=scale.name, options=options)
                for setting in settings
            ]
    return cells


def _mean(table: Table, selection: Selection, metric: str, worst: float = float("inf")) -> float:
    """The mean over seeds of a tuned method's metric; ``worst`` where nothing was measured."""
    values = [] if selection.arm is None else list(table.by_seed(selection.arm, metric).values())
    return sum(values) / len(values) if values else worst


def _exact(problems: Sequence[Any]) -> Measured:
    from leyden_milp_layer.certificate import certify
    from leyden_milp_layer.lifted import chain, samples_of
    from leyden_milp_layer.projection import DisjunctiveProjection

    milp = lifted = violated = descent = 0.0
    held = 0
    for rules, point in problems:
        layer = DisjunctiveProjection(rules)
        output = layer(point)
        distance = _distance(layer)
        certificate = certify(rules, output)
        held += certificate.holds
        violated = max(violated, float(certificate.violation.max()), float(certificate.common.max()))
        for strategy in ("milp", "lifted"):
            other = DisjunctiveProjection(rules, strategy=strategy)
            other(point)
            gap = abs(_distance(other) - distance)
            milp, lifted = (max(milp, gap), lifted) if strategy == "milp" else (milp, max(lifted, gap))
        (sample,) = samples_of(rules, point)
        outside = float((point.numpy() - sample.point).__abs__().sum())
        values = [one.distance + outside for one in chain(sample)]
        decrease = max((before - after for before, after in itertools.pairwise(values)), default=0.0)
        descent = max(descent, decrease, abs(values[-1] - distance))
    return {
        "csat": held / len(problems),
        "milp_slack": 1e-7 - milp,
        "lifted_slack": 1e-7 - lifted,
        "satisfied_slack": 1e-6 - violated,
        "chain_slack": 1e-8 - descent,
    }


def _relaxed(problems: Sequence[Any]) -> Measured:
    from leyden_milp_layer.certificate import certify
    from leyden_milp_layer.projection import DisjunctiveProjection

    held = 0
    gaps = []
    for rules, point in problems:
        layer, exact = DisjunctiveProjection(rules, relaxation="cnf"), DisjunctiveProjection(rules)
        held += certify(rules, layer(point)).holds
        exact(point)
        gaps.append(_distance(exact) - _distance(layer))
    return {"csat": held / len(problems), "gap": sum(gaps) / len(gaps), "largest_gap": max(gaps)}


def _released(problems: Sequence[Any]) -> Measured:
    import torch

    from leyden_milp_layer.baselines import hull_l2
    from leyden_milp_layer.certificate import certify
    from leyden_milp_layer.lifted import samples_of

    held = 0
    for rules, point in problems:
        found = hull_l2(samples_of(rules, point)[0], point[0].numpy())
        # it is found to about 1e-5; a violation by that is not counted
        held += found is not None and certify(rules, torch.from_numpy(found)[None], tol=1e-4).holds
    return {"csat": held / len(problems)}


def _distance(layer: DisjunctiveProjection) -> float:
    assert layer.last_info is not None
    return float(layer.last_info.distance[0])


def _cooling(cell: Cell) -> Measured:
    import torch

    from leyden_milp_layer.certificate import certify
    from leyden_milp_layer.cooling import cooling_rules
    from leyden_milp_layer.evaluation import RulePenaltyLoss
    from leyden_milp_layer.projection import DisjunctiveProjection
    from leyden_milp_layer.training import fine_tune, predict

    rules = cooling_rules()
    sizes = {name: int(cell.options[name]) for name in ("train", "test", "steps", "epochs")}  # type: ignore[arg-type]
    train, val, tests = _cooling_data(cell.seed, sizes["train"], sizes["test"])
    loss = torch.nn.functional.mse_loss
    rho = float(cell.setting.get("rho", 0.0))  # type: ignore[arg-type]
    scratch = cell.method == "penalty, from scratch"
    network = _cooling_base(cell.seed, sizes["train"], sizes["test"], sizes["steps"], rho if scratch else 0.0)
    relaxation: Any = {"CNF": "cnf", "pDNF(2)": "pdnf"}.get(cell.method, "dnf")
    layer: DisjunctiveProjection | None = None
    if cell.method.startswith(("DNF", "CNF", "pDNF", "MILP")):
        layer = DisjunctiveProjection(
            rules,
            relaxation=relaxation,
            num_dnf_rules=2 if cell.method == "pDNF(2)" else -1,
            strategy="milp" if cell.method == "MILP oracle" else "auto",
            backward="straight_through" if "straight" in cell.method else "active_set",
        )
    if cell.method == "penalty, fine-tuned" or "lr" in cell.setting:
        network = fine_tune(
            network,
            train,
            loss,
            optimizer=torch.optim.Adam,
            lr=float(cell.setting.get("lr", 3e-3)),  # type: ignore[arg-type]
            epochs=sizes["epochs"],
            batch_size=50,
            seed=cell.seed,
            layer=layer,
            penalty=RulePenaltyLoss(rules, rho) if rho else None,
        )
    outputs = predict(network, val, layer)
    measured = {
        "val_mse": float(loss(outputs, val.targets)),
        "val_csat": certify(rules, outputs, val.features).csat,
    }
    for domain, test in tests.items():
        outputs = predict(network, test, layer)
        measured[f"{domain}_mse"] = float(loss(outputs, test.targets))
        measured[f"{domain}_csat"] = certify(rules, outputs, test.features).csat
    measured["csat_slack"] = min(measured["iid_csat"], measured["ood_csat"]) - 1.0
    if cell.method == "MILP oracle" and layer is not None and layer.last_info is not None:
        exact = DisjunctiveProjection(rules)
        predict(network, tests["ood"], exact)
        assert exact.last_info is not None
        apart = (exact.last_info.distance - layer.last_info.distance).abs().max()
        measured["oracle_slack"] = 1e-6 - float(apart)
    return measured


@functools.lru_cache(maxsize=2)
def _cooling_data(seed: int, train: int, test: int) -> tuple[Split, Split, dict[str, Split]]:
    """Training, validation and test rows of a seed, which the methods share."""
    from leyden_milp_layer.cooling import cooling_rules, cooling_samples
    from leyden_milp_layer.data import cooling_inputs
    from leyden_milp_layer.training import Split

    rules = cooling_rules()

    def split(count: int, domain: Any, place: int) -> Split:
        features, targets = cooling_samples(count, domain, 1000 * seed + place, rules=rules)
        return Split(cooling_inputs(features).float(), features.float(), targets.float())

    tests = {"iid": split(test, "iid", 2), "ood": split(test, "ood", 3)}
    return split(train, "iid", 0), split(test, "iid", 1), tests


@functools.lru_cache(maxsize=2 + len(_RHOS))
def _cooling_base(seed: int, train: int, test: int, steps: int, rho: float) -> Any:
    """The base network of a seed, with a penalty where ``rho`` is above 0; fine-tuning copies it."""
    import torch
    from leyden.tasks import mlp

    from leyden_milp_layer.cooling import cooling_rules
    from leyden_milp_layer.evaluation import RulePenaltyLoss
    from leyden_milp_layer.training import train_base

    torch.manual_seed(seed)
    return train_base(
        mlp([6, 32, 32, 4]),
        _cooling_data(seed, train, test)[0],
        torch.nn.functional.mse_loss,
        optimizer=torch.optim.Adam,
        lr=1e-2,
        steps=steps,
        penalty=RulePenaltyLoss(cooling_rules(), rho) if rho else None,
    )


def _expansion(count: int, seed: int) -> Measured:
    import numpy as np
    import torch

    from leyden_milp_layer.certificate import certify
    from leyden_milp_layer.cooling import cooling_rules, cooling_samples
    from leyden_milp_layer.lifted import chain, samples_of

    rules = cooling_rules()
    features, targets = cooling_samples(count, "ood", 500 + seed, rules=rules)
    noise = np.random.default_rng(seed).normal(0, 0.15, targets.shape)
    raw = targets + torch.from_numpy(noise)
    total = len(rules.rules)
    outputs = torch.empty(total + 1, *raw.shape, dtype=torch.float64)
    distances = torch.empty(total + 1, count, dtype=torch.float64)
    sizes = torch.empty(total + 1, count, dtype=torch.float64)
    for sample, one in enumerate(samples_of(rules, raw, features)):
        found = None
        for expanded, found in enumerate(chain(one)):
            outputs[expanded, sample] = torch.from_numpy(found.point)
            distances[expanded, sample], sizes[expanded, sample] = found.distance, found.variables
        assert found is not None
        rest = len(found.order) + 1  # with all its rules expanded, a sample stays as it is
        outputs[rest:, sample] = outputs[rest - 1, sample]
        distances[rest:, sample], sizes[rest:, sample] = found.distance, found.variables
    rates = [certify(rules, one, features).csat for one in outputs]
    errors = [float((one - targets).square().mean()) for one in outputs]
    chain_slack = 1e-8 + float((distances[1:] - distances[:-1]).min())
    return {
        "csat_none": rates[0],
        "csat_three": rates[3],
        "csat_all": rates[-1],
        "mse_none": errors[0],
        "mse_all": errors[-1],
        "chain_slack": chain_slack,
        "csat_slack": rates[-1] - 1.0,
        "counts": [float(place) for place in range(total + 1)],
        "csat_by_count": rates,
        "mse_by_count": errors,
        "distance_by_count": distances.mean(dim=1).tolist(),
        "variables_by_count": sizes.mean(dim=1).tolist(),
    }


def _wine(cell: Cell) -> Measured:
    import torch
    from torchmetrics.functional.classification import multiclass_f1_score

    from leyden_milp_layer.certificate import certify
    from leyden_milp_layer.evaluation import RulePenaltyLoss
    from leyden_milp_layer.module import ScoreCrossEntropy
    from leyden_milp_layer.projection import DisjunctiveProjection
    from leyden_milp_layer.rule_file import load_rules
    from leyden_milp_layer.training import fine_tune, predict

    rules = load_rules("milp_layer/wine")
    train, val, test = _wine_data(cell.seed)
    steps, epochs = int(cell.options["steps"]), int(cell.options["epochs"])  # type: ignore[arg-type]
    rho = float(cell.setting.get("rho", 0.0))  # type: ignore[arg-type]
    scratch = cell.method == "penalty, from scratch"
    layer: DisjunctiveProjection | None = None
    if cell.method.startswith(("DNF", "CNF", "rules")):
        layer = DisjunctiveProjection(rules, relaxation="cnf" if cell.method == "CNF" else "dnf")
    loss = ScoreCrossEntropy()
    network: torch.nn.Module
    if cell.method == "rules alone":
        network = _guess(cell.seed)
    else:
        network = _wine_base(cell.seed, steps, rho if scratch else 0.0)
    if cell.method == "penalty, fine-tuned" or "lr" in cell.setting:
        network = fine_tune(
            network,
            train,
            loss,
            optimizer=torch.optim.AdamW,
            lr=float(cell.setting.get("lr", 3e-3)),  # type: ignore[arg-type]
            epochs=epochs,
            batch_size=6,
            seed=cell.seed,
            layer=layer,
            penalty=RulePenaltyLoss(rules, rho) if rho else None,
        )
    outputs = predict(network, test, layer)
    labels = outputs.argmax(dim=1)
    csat = certify(rules, outputs, test.features).csat
    return {
        "val_accuracy": float((predict(network, val, layer).argmax(dim=1) == val.targets).double().mean()),
        "test_accuracy": float((labels == test.targets).double().mean()),
        "test_macro_f1": float(multiclass_f1_score(labels, test.targets, 3, average="macro")),
        "csat": csat,
        "csat_slack": csat - 1.0,
    }


@functools.lru_cache(maxsize=2)
def _wine_data(seed: int) -> tuple[Split, Split, Split]:
    """Training, validation and test rows of a seed, which the methods share."""
    from leyden_milp_layer.data import WineRulesDataModule
    from leyden_milp_layer.training import Split

    data = WineRulesDataModule(seed=seed)
    return Split(*data.train), Split(*data.val), Split(*data.test)


@functools.lru_cache(maxsize=2 + len(_RHOS))
def _wine_base(seed: int, steps: int, rho: float) -> Any:
    """The base network of a seed, with a penalty where ``rho`` is above 0; fine-tuning copies it."""
    import torch
    from leyden.tasks import mlp

    from leyden_milp_layer.evaluation import RulePenaltyLoss
    from leyden_milp_layer.module import ScoreCrossEntropy
    from leyden_milp_layer.rule_file import load_rules
    from leyden_milp_layer.training import train_base

    torch.manual_seed(seed)
    return train_base(
        torch.nn.Sequential(mlp([13, 8, 3]), torch.nn.Softmax(dim=1)),
        _wine_data(seed)[0],
        ScoreCrossEntropy(),
        optimizer=torch.optim.AdamW,
        lr=3e-3,
        steps=steps,
        penalty=RulePenaltyLoss(load_rules("milp_layer/wine"), rho) if rho else None,
    )


def _guess(seed: int) -> Any:
    """A network that knows nothing: random scores, so that only the rules decide."""
    import torch

    class Guess(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            generator = torch.Generator().manual_seed(seed)
            return torch.rand(len(inputs), 3, generator=generator).softmax(dim=1)

    return Guess()
