"""What the layer must do, fact by fact: exactness, satisfaction, gradients, and the two tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from leyden.claims import Cell
from leyden_milp_layer import (
    Disjunction,
    DisjunctiveProjection,
    Polyhedron,
    RuleSatisfaction,
    RuleSet,
    any_of,
    at_least,
    at_most,
    certify,
    cooling_rules,
    cooling_samples,
    integer,
    output,
    total,
)
from leyden_milp_layer.baselines import hull_l2
from leyden_milp_layer.claims import Cooling, Wine
from leyden_milp_layer.lifted import chain, samples_of
from leyden_milp_layer.random_rules import random_problems
from torch import Tensor

Problems = list[tuple[RuleSet, Tensor]]


@pytest.fixture(scope="module")
def problems() -> Problems:
    """The instances of the exactness experiment."""
    return list(random_problems(200, seed=0))


def distance(rules: RuleSet, point: Tensor, **settings: Any) -> tuple[float, Tensor]:
    layer = DisjunctiveProjection(rules, **settings)
    projected = layer(point)
    assert layer.last_info is not None
    return float(layer.last_info.distance[0]), projected


def two_gaps() -> RuleSet:
    """The example of the released code."""
    return RuleSet(2, 0, 1, [total() >= 0.8], [any_of(at_most(i, 0.25), at_least(i, 0.75)) for i in (0, 1)])


def test_enumeration_milp_and_lifted_program_agree_on_two_hundred_instances(problems: Problems) -> None:
    satisfied = 0
    for rules, point in problems:
        enumerated, projected = distance(rules, point)
        satisfied += certify(rules, projected, tol=1e-6).holds
        assert distance(rules, point, strategy="milp")[0] == pytest.approx(enumerated, abs=1e-7)
        assert distance(rules, point, strategy="lifted")[0] == pytest.approx(enumerated, abs=1e-7)
        assert float((projected - point).abs().sum()) == pytest.approx(enumerated, abs=1e-12)
    assert satisfied == 200


def test_both_solvers_of_the_enumeration_agree(problems: Problems) -> None:
    for rules, point in problems[:60]:
        pivoting, highs = distance(rules, point)[0], distance(rules, point, solver="highs")[0]
        assert pivoting == pytest.approx(highs, abs=1e-9)


def test_the_distance_never_decreases_along_the_chain_and_ends_at_dnf(problems: Problems) -> None:
    strict = 0
    for rules, point in problems:
        (sample,) = samples_of(rules, point)
        outside = float(np.abs(point.numpy() - sample.point).sum())
        values = [one.distance + outside for one in chain(sample)]
        assert len(values) == len(rules.rules) + 1
        assert all(later >= earlier - 1e-8 for earlier, later in itertools.pairwise(values))
        exact = distance(rules, point)[0]
        assert values[-1] == pytest.approx(exact, abs=1e-8)
        strict += values[0] < exact - 1e-4
    assert strict > 10


def test_the_layer_relaxes_as_the_chain_does(problems: Problems) -> None:
    for rules, point in problems[:15]:
        (sample,) = samples_of(rules, point)
        outside = float(np.abs(point.numpy() - sample.point).sum())
        for count, one in enumerate(chain(sample)):
            found, projected = distance(rules, point, relaxation="pdnf", num_dnf_rules=count)
            assert found == pytest.approx(one.distance + outside, abs=1e-10)
            np.testing.assert_allclose(projected[0].numpy(), one.point, atol=1e-8)
        first = next(iter(chain(sample))).distance + outside
        assert distance(rules, point, relaxation="cnf")[0] == pytest.approx(first, abs=1e-10)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_projecting_an_output_returns_it(problems: Problems, norm: Any) -> None:
    moved = 0
    for rules, point in problems:
        layer = DisjunctiveProjection(rules, norm=norm)
        once = layer(point)
        moved += not torch.equal(once, point)
        assert (layer(once) - once).abs().max() <= 1e-9
    assert moved > 150


def test_the_example_of_the_released_code_is_solved_and_the_hull_in_l2_violates_it() -> None:
    rules, point = two_gaps(), torch.tensor([[0.5, 0.1]], dtype=torch.float64)
    away, projected = distance(rules, point)
    assert away == pytest.approx(0.25, abs=1e-7)
    torch.testing.assert_close(
        projected, torch.tensor([[0.75, 0.10]], dtype=torch.float64), rtol=0, atol=1e-7
    )
    found = hull_l2(samples_of(rules, point)[0], point[0].numpy())
    assert found is not None
    np.testing.assert_allclose(found, [0.6, 0.2], atol=1e-4)
    certificate = certify(rules, torch.from_numpy(found)[None], tol=1e-3)
    assert not certificate.holds
    assert certificate.violation[0].argmax() == 0  # the first rule


def test_a_tie_gives_a_point_that_satisfies_the_rules_the_same_every_time() -> None:
    rules, point = two_gaps(), torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    layer = DisjunctiveProjection(rules)
    first = layer(point)
    assert certify(rules, first).holds
    torch.testing.assert_close(first, torch.tensor([[0.25, 0.75]], dtype=torch.float64), rtol=0, atol=1e-9)
    for _ in range(20):
        assert torch.equal(layer(point), first)
        assert torch.equal(DisjunctiveProjection(rules)(point), first)
    crowd = torch.cat([torch.rand(30, 2, dtype=torch.float64), point, torch.rand(9, 2, dtype=torch.float64)])
    assert torch.equal(layer(crowd)[30:31], first)
    for strategy in ("milp", "lifted"):
        assert certify(rules, distance(rules, point, strategy=strategy)[1]).holds


def trainable(seed: int) -> tuple[RuleSet, Tensor, list[tuple[Tensor, Tensor]]]:
    """Rules whose rows are tensors that take gradients."""
    generator = np.random.default_rng(seed)
    n = int(generator.integers(2, 6))
    rows, drawn = [], []
    for _ in range(int(generator.integers(1, 4))):
        disjuncts = []
        for _ in range(2):
            A = generator.normal(size=(int(generator.integers(1, 3)), n))
            b = A @ generator.random(n) + 0.02
            pair = torch.from_numpy(A).requires_grad_(), torch.from_numpy(b).requires_grad_()
            rows.append(pair)
            disjuncts.append(Polyhedron(*pair))
        drawn.append(Disjunction(disjuncts))
    rules = RuleSet(n, 0, 1, [total() >= 0.3 * n], drawn)
    return rules, torch.from_numpy(generator.normal(0.5, 0.7, (1, n))).requires_grad_(), rows


def directional_errors(seed: int, settings: dict[str, Any], h: float = 1e-6) -> Iterator[float]:
    """Relative errors of directional derivatives, where the layer is smooth in the direction."""
    rules, point, rows = trainable(seed)
    layer = DisjunctiveProjection(rules, on_infeasible="global_only", **settings)
    generator = torch.Generator().manual_seed(seed)
    value = layer(point)
    assert layer.last_info is not None
    if layer.last_info.status[0] != "projected":
        return
    seen = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    sides, matrices = zip(*((side, matrix) for matrix, side in rows), strict=True)
    for leaves in ([point], list(sides), list(matrices)):
        slopes = torch.autograd.grad(value, leaves, seen, allow_unused=True, retain_graph=True)
        directions = [torch.randn(leaf.shape, generator=generator, dtype=torch.float64) for leaf in leaves]
        pairs = zip(slopes, directions, strict=True)
        expected = sum(float((slope * direction).sum()) for slope, direction in pairs if slope is not None)
        values = []
        with torch.no_grad():
            for step in (h, -2 * h, h):
                for leaf, direction in zip(leaves, directions, strict=True):
                    leaf += step * direction
                values.append(float((layer(point) * seen).sum()))
        ahead, behind, here = values
        if abs(ahead - 2 * here + behind) > 1e-9:
            continue  # a kink, or another scenario
        measured = (ahead - behind) / (2 * h)
        yield abs(measured - expected) / max(abs(measured), abs(expected), 1.0)


@pytest.mark.parametrize("settings", [{}, {"norm": "l2"}], ids=["l1", "l2"])
def test_gradients_of_point_and_rows_agree_with_central_differences(settings: dict[str, Any]) -> None:
    errors = [error for seed in range(100) for error in directional_errors(seed, settings)]
    assert len(errors) > 250
    assert max(errors) <= 1e-5


@pytest.fixture(scope="module")
def cooling() -> dict[str, list[dict[str, Any]]]:
    """Cooling control, three seeds of three methods, as the claim runs them."""
    options = {"train": 150, "test": 100, "steps": 400, "epochs": 6}
    settings: dict[str, dict[str, Any]] = {
        "base": {},
        "penalty, fine-tuned": {"rho": 1.0},
        "DNF at inference": {},
        "DNF": {"lr": 3e-3},
    }
    return {
        method: [
            dict(Cooling().run(Cell(method=method, seed=seed, setting=setting, options=options)))
            for seed in range(3)
        ]
        for method, setting in settings.items()
    }


@pytest.fixture(scope="module")
def wine() -> dict[str, list[dict[str, Any]]]:
    """Wine, eight seeds of three methods, as the claim runs them."""
    settings: dict[str, dict[str, Any]] = {"base": {}, "DNF at inference": {}, "DNF": {"lr": 3e-3}}
    return {
        method: [
            dict(
                Wine().run(
                    Cell(method=method, seed=seed, setting=setting, options={"steps": 300, "epochs": 50})
                )
            )
            for seed in range(8)
        ]
        for method, setting in settings.items()
    }


def test_every_rule_holds_on_both_tasks_for_every_seed_before_and_after_fine_tuning(
    cooling: dict[str, Any], wine: dict[str, Any]
) -> None:
    for method in ("DNF at inference", "DNF"):
        assert [run["iid_csat"] for run in cooling[method]] == [1.0] * 3
        assert [run["ood_csat"] for run in cooling[method]] == [1.0] * 3
        assert [run["csat"] for run in wine[method]] == [1.0] * 8
    assert all(run["ood_csat"] < 0.5 for run in cooling["base"])


def test_cooling_fine_tuned_through_the_layer_beats_base_and_penalty(cooling: dict[str, Any]) -> None:
    def mean(method: str, metric: str) -> float:
        return sum(run[metric] for run in cooling[method]) / 3

    assert mean("DNF", "ood_mse") <= 0.7 * mean("base", "ood_mse")
    assert mean("DNF", "iid_mse") <= mean("base", "iid_mse")
    assert mean("DNF", "ood_csat") - mean("penalty, fine-tuned", "ood_csat") >= 0.2


def test_wine_is_at_least_three_hundredths_more_accurate_with_its_rules(wine: dict[str, Any]) -> None:
    means = {method: sum(run["test_accuracy"] for run in runs) / len(runs) for method, runs in wine.items()}
    assert means["DNF"] >= means["base"] + 0.03


def test_hot_weather_is_projected_as_the_mixed_integer_program_does_with_few_programs() -> None:
    # how fast that is, benchmarks/projection.py measures
    features, targets = cooling_samples(40, "ood", seed=3)
    generator = torch.Generator().manual_seed(0)
    raw = targets + 0.15 * torch.randn(targets.shape, generator=generator, dtype=torch.float64)
    layer = DisjunctiveProjection(cooling_rules())
    layer(raw, features)
    layer(raw, features)
    oracle = DisjunctiveProjection(cooling_rules(), strategy="milp")
    oracle(raw, features)
    assert layer.last_info is not None
    assert oracle.last_info is not None
    torch.testing.assert_close(layer.last_info.distance, oracle.last_info.distance, rtol=0, atol=1e-7)
    assert layer.last_info.lps.double().mean() < 0.25 * layer.last_info.scenarios.double().mean()


def test_three_integers_under_a_knapsack_agree_with_brute_force_on_fifty_instances() -> None:
    generator = np.random.default_rng(7)
    grid = np.array(list(itertools.product(range(4), repeat=3)), dtype=float)
    for _ in range(50):
        sizes = generator.uniform(0.5, 2.0, 3)
        limit = float(generator.uniform(2.0, 8.0))
        capacity = sum((output(i) * float(sizes[i]) for i in range(3)), start=output(0) * 0.0) <= limit
        rules = RuleSet(3, 0, 3, [capacity], [integer(i, 0, 3) for i in range(3)])
        point = generator.uniform(-1, 4, 3)
        fits = grid[grid @ sizes <= limit + 1e-12]
        best = np.abs(fits - point).sum(axis=1).min()
        for strategy in ("enumerate", "milp"):
            found, projected = distance(rules, torch.from_numpy(point)[None], strategy=strategy)
            assert found == pytest.approx(best, abs=1e-9)
            np.testing.assert_allclose(projected, projected.round(), atol=1e-9)


def test_a_relaxation_is_reported_as_it_is_and_repaired_on_request(problems: Problems) -> None:
    plain: list[bool] = []
    repaired: list[bool] = []
    for rules, point in problems[:80]:
        for kept, settings in ((plain, {}), (repaired, {"repair": "dnf"})):
            layer = DisjunctiveProjection(rules, relaxation="cnf", **settings)  # type: ignore[arg-type]
            metric = RuleSatisfaction(rules)
            metric.update(layer(point))
            kept.append(float(metric.compute()["csat"]) == 1.0)
    assert 0.5 < sum(plain) / len(plain) < 1
    assert all(repaired)


def test_the_cnf_value_is_that_of_pyomos_hull_on_twenty_instances(problems: Problems) -> None:
    pytest.importorskip("pyomo.gdp")
    for rules, point in problems[:20]:
        assert distance(rules, point, relaxation="cnf")[0] == pytest.approx(hull_of(rules, point), abs=1e-6)


def hull_of(rules: RuleSet, point: Tensor) -> float:
    """The value of pyomo's hull reformulation, its indicators relaxed."""
    import pyomo.environ as pyo
    from pyomo.gdp import Disjunct
    from pyomo.gdp import Disjunction as PyomoDisjunction

    bank, n = rules.at(None, 1), rules.n
    A, b, layout = bank.A[0].tolist(), bank.b[0].tolist(), rules.layout
    given = point[0].tolist()
    model = pyo.ConcreteModel()
    model.y = pyo.Var(range(n), bounds=(0, 1))
    model.eta = pyo.Var(range(n), bounds=(0, 10))
    model.cost = pyo.Objective(expr=sum(model.eta[i] for i in range(n)))

    def add(block: Any, rows: Any) -> None:
        block.rows = pyo.ConstraintList()
        for row in rows:
            block.rows.add(sum(A[row][i] * model.y[i] for i in range(n)) <= b[row])
        for i in range(n):
            block.rows.add(model.y[i] - given[i] <= model.eta[i])
            block.rows.add(given[i] - model.y[i] <= model.eta[i])

    common = range(layout.bounds, layout.common)
    add(model, common)
    for place, spans in enumerate(layout.disjuncts):
        disjuncts = []
        for number, (start, stop) in enumerate(spans):
            disjunct = Disjunct()
            model.add_component(f"d{place}_{number}", disjunct)
            add(disjunct, [*common, *range(start, stop)])
            disjuncts.append(disjunct)
        model.add_component(f"c{place}", PyomoDisjunction(expr=disjuncts))
    pyo.TransformationFactory("gdp.hull").apply_to(model)
    pyo.TransformationFactory("core.relax_integer_vars").apply_to(model)
    pyo.SolverFactory("appsi_highs").solve(model)
    value = float(pyo.value(model.cost))
    assert math.isfinite(value)
    return value
