"""The solvers against each other and against others': pivoting, least squares, and HiGHS' programs."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from leyden_milp_layer import (
    Disjunction,
    DisjunctiveProjection,
    Polyhedron,
    RuleSet,
    any_of,
    at_least,
    at_most,
    certify,
    equals,
    output,
    total,
    violations,
)
from leyden_milp_layer import pivoting as pivoting_module
from leyden_milp_layer.bounding import Bounding
from leyden_milp_layer.highs import WarmProjection, is_empty, minimize, projection_program
from leyden_milp_layer.lifted import chain, samples_of
from leyden_milp_layer.mixed_integer import irreducible_conflict
from leyden_milp_layer.pivoting import BEYOND, EMPTY, OPTIMAL, UNSOLVED, nearest_points
from leyden_milp_layer.quadratic import nearest_l2, nearest_smoothed
from leyden_milp_layer.random_rules import random_problems
from leyden_milp_layer.scenarios import Choices
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.optimize import minimize as scipy_minimize

F64 = torch.float64
Array = NDArray[np.float64]


def polyhedra(seed: int, count: int) -> tuple[Array, Array, NDArray[np.bool_], Array, Array]:
    """Random polyhedra in the unit box, some empty, some with an equality, and points and weights."""
    generator = np.random.default_rng(seed)
    n, further = int(generator.integers(1, 7)), int(generator.integers(0, 9))
    eye = np.broadcast_to(np.eye(n), (count, n, n))
    rows = generator.normal(size=(count, further, n)) * (generator.random((count, further, n)) < 0.7)
    A = np.concatenate([-eye, eye, rows], axis=1)
    slack = generator.choice([-0.3, 0.0, 0.02], size=(count, further))
    side = np.einsum("lrn,ln->lr", rows, generator.random((count, n))) + slack
    b = np.concatenate([np.zeros((count, n)), np.ones((count, n)), side], axis=1)
    equality = np.zeros(b.shape, dtype=bool)
    if further > 2 and n > 2:
        equality[:, 2 * n] = generator.random(count) < 0.5
    return A, b, equality, generator.normal(0.5, 0.7, (count, n)), generator.uniform(0.5, 2.0, n)


@pytest.mark.parametrize("seed", range(12))
def test_pivoting_gives_the_distance_of_the_linear_program(seed: int) -> None:
    A, b, equality, points, weights = polyhedra(seed, 12)
    found = nearest_points(A, b, equality, points, weights)
    for place in range(len(A)):
        program = projection_program(A[place], b[place], equality[place], points[place], weights)
        reference = minimize(program)
        if reference is None:
            assert found.status[place] == EMPTY
        else:
            assert found.status[place] == OPTIMAL
            assert found.distances[place] == pytest.approx(reference.objective, abs=1e-8)


def test_a_solution_keeps_the_bits_of_coordinates_that_stay() -> None:
    A, b, equality, points, weights = polyhedra(7, 40)
    points = np.clip(points, 0.0, 1.0)
    found = nearest_points(A, b, equality, points, weights)
    solved = found.status == OPTIMAL
    stays = found.points[solved] == points[solved]
    assert 0.3 < stays.mean() < 1
    assert np.abs(found.points[solved] - points[solved])[~stays].min() > 1e-6  # all others moved for a reason


def test_what_lies_beyond_the_cutoff_is_not_finished() -> None:
    A, b, equality, points, weights = polyhedra(5, 40)
    whole = nearest_points(A, b, equality, points, weights)
    cutoff = np.where(np.isfinite(whole.distances), whole.distances * 0.5, np.inf)
    cut = nearest_points(A, b, equality, points, weights, cutoff=cutoff)
    far = (whole.status == OPTIMAL) & (whole.distances > 1e-6)
    assert far.any()
    assert (cut.status[far] == BEYOND).all()
    near = nearest_points(A, b, equality, points, weights, cutoff=whole.distances + 1e-9)
    assert (near.status[far] == OPTIMAL).all()


def test_what_pivoting_cannot_certify_is_left_to_highs(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RuleSet(3, 0, 1, [total() <= 1.5], [any_of(at_most(i, 0.2), at_least(i, 0.8)) for i in range(3)])
    raw = torch.rand(8, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    expected = DisjunctiveProjection(rules)(raw)
    monkeypatch.setattr(pivoting_module, "FEASIBLE", -1.0)  # no vertex passes
    layer = DisjunctiveProjection(rules)
    torch.testing.assert_close(layer(raw), expected, rtol=0, atol=1e-9)
    zeros = (
        np.zeros((1, 1, 1)),
        np.full((1, 1), 2.0),
        np.zeros((1, 1), dtype=bool),
        np.ones((1, 1)),
        np.ones(1),
    )
    assert nearest_points(*zeros).status[0] in (OPTIMAL, UNSOLVED)


def test_a_warm_program_follows_its_points() -> None:
    A, b, equality, points, weights = polyhedra(0, 30)
    warm = WarmProjection(A[0], b[0], equality[0], weights)
    for point in points:
        program = projection_program(A[0], b[0], equality[0], point, weights)
        reference, nearest = minimize(program), warm.nearest(point)
        assert (reference is None) == (nearest is None)
        if reference is not None and nearest is not None:
            assert np.abs(nearest - point) @ weights == pytest.approx(reference.objective, abs=1e-8)


def test_emptiness_is_told() -> None:
    A, b = np.array([[1.0], [-1.0]]), np.array([0.2, -0.5])
    assert is_empty(A, b, np.array([False, False]))
    assert not is_empty(A, b * [1, -1], np.array([False, False]))


@pytest.mark.parametrize("seed", range(4))
def test_the_euclidean_projection_is_that_of_another_solver(seed: int) -> None:
    A, b, equality, points, _ = polyhedra(seed, 6)
    for place in range(len(A)):
        found = nearest_l2(A[place], b[place], equality[place], points[place])
        if is_empty(A[place], b[place], equality[place]):
            assert found is None
            continue
        assert found is not None
        nearest, multiplier = found
        over = A[place] @ nearest - b[place]
        assert over.max() <= 1e-10
        np.testing.assert_allclose(over[equality[place]], 0, atol=1e-10)
        assert multiplier[~equality[place]].min() >= -1e-9  # and so the nearest: the conditions of optimality
        np.testing.assert_allclose(points[place] - nearest, A[place].T @ multiplier, atol=1e-9)
        np.testing.assert_allclose(multiplier * over, 0, atol=1e-9)


@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e9])
def test_a_steep_row_is_tight_like_any_other(factor: float) -> None:
    A, b = np.array([[2 * factor, factor], [0.0, 1.0]]), np.array([0.9 * factor, 0.4])
    found = nearest_l2(A, b, np.zeros(2, dtype=bool), np.array([0.4, 0.10001]))
    assert found is not None
    np.testing.assert_allclose(found[0], [0.399996, 0.100008], atol=1e-12)
    np.testing.assert_allclose(found[1] * [factor, 1.0], [2e-6, 0.0], atol=1e-12)


def test_the_smoothed_minimizer_is_that_of_another_solver() -> None:
    A, b, equality, points, weights = polyhedra(9, 5)
    for place in range(len(A)):
        found = nearest_smoothed(A[place], b[place], equality[place], points[place], weights, 0.5)
        if found is None:
            continue
        point = points[place]

        def cost(y: Array, point: Array = point) -> float:
            return float(np.abs(y - point) @ weights + 0.5 * ((y - point) ** 2).sum())

        limits = [
            {"type": "eq" if equal else "ineq", "fun": lambda y, a=a, s=s: s - a @ y}
            for a, s, equal in zip(A[place], b[place], equality[place], strict=True)
        ]
        start = found[0] + 0.01
        other = scipy_minimize(cost, start, constraints=limits, method="SLSQP", options={"maxiter": 200})
        assert (A[place] @ found[0] - b[place]).max() <= 1e-9
        assert cost(found[0]) <= other.fun + 1e-6


@pytest.mark.parametrize("weights", [None, [0.5, 3.0]])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_weights_and_norm_are_those_of_a_fine_grid(weights: Any, norm: Any) -> None:
    rules = RuleSet(2, 0, 1, [total() >= 0.8], [any_of(at_most(i, 0.25), at_least(i, 0.75)) for i in (0, 1)])
    raw = torch.tensor([[0.5, 0.1], [0.6, 0.6], [0.3, 0.2], [0.9, 0.45]], dtype=F64)
    layer = DisjunctiveProjection(rules, norm=norm, weights=weights)
    layer(raw)
    assert layer.last_info is not None
    axis = np.linspace(0, 1, 201)
    grid = np.array(list(itertools.product(axis, axis)))
    good = certify(rules, torch.from_numpy(grid)).held.all(dim=1).numpy() & (grid.sum(axis=1) >= 0.8 - 1e-9)
    w = np.array(weights or [1.0, 1.0])
    for point, distance in zip(raw.numpy(), layer.last_info.distance.tolist(), strict=True):
        away = np.abs(grid[good] - point)
        best = (away @ w if norm == "l1" else np.sqrt(away**2 @ w)).min()
        assert distance == pytest.approx(best, abs=0.01)
        assert distance <= best + 1e-9


def test_an_irreducible_conflict_cannot_be_made_smaller() -> None:
    thirds = [any_of(at_least(i, 0.6), equals(i, 0.0)) for i in range(3)]
    rules = RuleSet(3, 0, 1, [], [*thirds, total().equals(0.3), at_most(2, 0.5)])
    bank = rules.at(None, 1)
    arrays = bank.A[0].numpy(), bank.b[0].numpy()

    def conflict(which: list[int]) -> list[int]:
        return irreducible_conflict(rules.layout, *arrays, which, rules.lower, rules.upper)

    assert conflict([0, 1, 2, 3, 4]) == [0, 1, 2, 3]


def test_rows_of_a_batch_do_not_see_each_other() -> None:
    rules = RuleSet(4, 0, 1, [total() <= 2], [any_of(at_most(i, 0.3), at_least(i, 0.7)) for i in range(4)])
    raw = torch.rand(60, 4, generator=torch.Generator().manual_seed(4), dtype=F64)
    together = DisjunctiveProjection(rules)(raw)
    alone = torch.cat([DisjunctiveProjection(rules)(row[None]) for row in raw])
    assert torch.equal(together, alone)


def test_workers_change_nothing() -> None:
    rules = RuleSet(4, 0, 1, [total() <= 2], [any_of(at_most(i, 0.3), at_least(i, 0.7)) for i in range(4)])
    raw = torch.rand(6, 4, generator=torch.Generator().manual_seed(5), dtype=F64)
    for settings in ({"strategy": "milp"}, {"relaxation": "cnf"}):
        one, two = (DisjunctiveProjection(rules, workers=count, **settings) for count in (1, 2))  # type: ignore[arg-type]
        assert torch.equal(one(raw), two(raw))


def test_a_rule_order_is_followed() -> None:
    rules = RuleSet(3, 0, 1, [total() <= 1.5], [any_of(at_most(i, 0.3), at_least(i, 0.7)) for i in range(3)])
    raw = torch.full((1, 3), 0.5, dtype=F64)
    layer = DisjunctiveProjection(rules, relaxation="pdnf", num_dnf_rules=2, rule_order=["rule 3", 0])
    layer(raw)
    assert layer.last_info is not None
    assert layer.last_info.order == ((2, 0),)


def test_hundreds_of_rows_in_many_outputs() -> None:
    generator = np.random.default_rng(1)
    n = 30
    A = generator.normal(size=(60, n))
    rows = Polyhedron(A, A @ generator.random(n) + 0.5)
    rules = RuleSet(n, 0, 1, [rows], [Disjunction([total() <= 0.4 * n, total() >= 0.6 * n])])
    raw = torch.from_numpy(generator.normal(0.5, 1.0, (5, n)))
    layers = [DisjunctiveProjection(rules, **settings) for settings in ({}, {"strategy": "milp"})]  # type: ignore[arg-type]
    for layer in layers:
        assert certify(rules, layer(raw), tol=1e-8).holds
    first, second = (layer.last_info for layer in layers)
    assert first is not None
    assert second is not None
    torch.testing.assert_close(first.distance, second.distance, rtol=0, atol=1e-6)


def test_the_most_violated_rule_is_expanded_first() -> None:
    told = 0
    for rules, point in random_problems(60, seed=21):
        (sample,) = samples_of(rules, point)
        relaxed = list(itertools.islice(chain(sample), 2))
        violated = violations(rules, torch.from_numpy(relaxed[0].point)[None]).by_rule[0]
        if (violated > 1e-6).sum() == 1 and len(rules.rules) > 1:
            assert relaxed[1].order == (int(violated.argmax()),)
            told += violated.argmax() > 0
    assert told > 0


def test_the_value_of_a_weighted_relaxation_is_its_weighted_distance() -> None:
    """Each step of the chain moves away from the point, up to the distance that the layer finds."""
    weights = [0.5, 2.0, 3.0]
    rules = RuleSet(3, 0, 1, [total() <= 1.5], [any_of(at_most(i, 0.3), at_least(i, 0.7)) for i in range(3)])
    point = np.array([0.55, 0.4, 0.45])
    (sample,) = samples_of(rules, torch.from_numpy(point)[None])
    relaxed = list(chain(dataclasses.replace(sample, weights=np.array(weights))))
    for one in relaxed:
        assert one.distance == pytest.approx(np.abs(one.point - point) @ weights, abs=1e-9)
    distances = [one.distance for one in relaxed]
    assert min(np.diff(distances)) > -1e-9
    layer = DisjunctiveProjection(rules, weights=weights)
    layer(torch.from_numpy(point)[None])
    assert layer.last_info is not None
    # 0.15, 0.1 and 0.15 to the nearest sides, of weights 0.5, 2 and 3
    assert float(layer.last_info.distance[0]) == pytest.approx(0.725, abs=1e-9)
    assert distances[-1] == pytest.approx(0.725, abs=1e-9)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_an_empty_disjunct_is_told_in_any_unit_of_its_outputs(unit: float) -> None:
    outside = Polyhedron([[1.0, 1.0, 0.0]], [-0.1 * unit])
    with pytest.warns(UserWarning, match="disjunct 0 is empty and is dropped"):
        RuleSet(3, [0, 0, 0], [unit, unit, 1.0], [], [outside | at_least(2, 0.5)])


def test_relaxations_keep_equalities() -> None:
    sides = Polyhedron(A_eq=[[1.0, -1.0, 0.0]], b_eq=[0.1])
    rules = RuleSet(3, 0, 1, [total().equals(1.2)], [sides, equals(2, 0.9) | equals(2, 0.1)])
    raw = torch.rand(6, 3, generator=torch.Generator().manual_seed(2), dtype=F64)
    relaxed = DisjunctiveProjection(rules, relaxation="cnf")(raw)
    torch.testing.assert_close(relaxed.sum(dim=1), torch.full((6,), 1.2, dtype=F64))
    torch.testing.assert_close(relaxed[:, 0] - relaxed[:, 1], torch.full((6,), 0.1, dtype=F64))


def boxed(seed: int, count: int) -> tuple[RuleSet, Array]:
    """Rules most of whose rows concern one output, some with an equality, and points."""
    generator = np.random.default_rng(seed)
    n = int(generator.integers(2, 5))

    def some() -> Polyhedron:
        rows = np.eye(n)[generator.integers(0, n, 2)] * generator.choice([-2.0, 1.0], (2, 1))
        single = Polyhedron(rows, rows @ generator.random(n) + generator.choice([0.0, 0.4], 2))
        a = generator.normal(size=(int(generator.integers(1, 3)), n))
        if generator.random() < 0.2:
            return single & Polyhedron(A_eq=a[:1], b_eq=a[:1] @ generator.random(n))
        return single & Polyhedron(a, a @ generator.random(n) + 0.1) if generator.random() < 0.7 else single

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rules = RuleSet(n, 0, 1, [total() >= 0.2], [Disjunction([some(), some()]) for _ in range(2)])
    return rules, generator.normal(0.5, 0.6, (count, n))


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_bounds_of_scenarios_are_bounds_and_closed_forms_are_projections(norm: Any) -> None:
    solved = empty = open_ones = 0
    for seed in range(40):
        rules, points = boxed(seed, 5)
        bank, layout = rules.at(None, 5), rules.layout
        A, b = bank.A.numpy(), bank.b.numpy()
        weights = np.random.default_rng(seed).uniform(0.5, 2.0, rules.n)
        choices = Choices(layout, np.ones(2, dtype=bool), 99)
        if not choices.count:
            continue
        start = np.clip(points, 0, 1) if norm == "l1" else points
        bounding = Bounding(layout, A, weights, norm)
        columns = bounding.starts[choices.rules] + choices.chosen
        known = bounding.known(A, b, bounding.boxes(A, b), columns, start)
        for sample, (scenario, rows) in itertools.product(range(5), enumerate(choices.rows)):
            rows = rows[rows < layout.rows]
            point, given = start[sample], (A[0, rows], b[0, rows], layout.equality[rows])
            if norm == "l1":
                found = minimize(projection_program(*given, point, weights))
                away = np.inf if found is None else found.objective
            else:
                root = np.sqrt(weights)
                nearest = nearest_l2(given[0] / root, *given[1:], point * root)
                away = np.inf if nearest is None else float(np.linalg.norm(nearest[0] - point * root))
            bound = known.bound[sample, scenario]
            assert bound <= away + 1e-8 * (1 + away if np.isfinite(away) else 0) or away == np.inf
            empty += np.isinf(bound)
            assert not (np.isinf(bound) and np.isfinite(away))
            open_ones += not known.solved[sample, scenario]
            if known.solved[sample, scenario]:
                solved += 1
                assert bound == pytest.approx(away, abs=1e-8)
                where = known.points[sample, scenario]
                over = given[0] @ where - given[1]
                assert np.where(given[2], np.abs(over), over).max() <= 1e-8
                moved = np.abs(where - point)
                assert bound == pytest.approx(
                    moved @ weights if norm == "l1" else np.sqrt(moved**2 @ weights)
                )
    assert solved > 100
    assert open_ones > 20
    assert empty > 20


def test_a_row_that_a_box_cannot_meet_makes_a_scenario_empty_without_a_program() -> None:
    steep = any_of(output(0) + 2 * output(1) >= 1.9, (output(0) - output(1) >= 0.2) & at_most(1, 0.3))
    layer = DisjunctiveProjection(RuleSet(2, 0, 1, rules=[steep, at_most(1, 0.4) | at_most(1, 0.35)]))
    bank = layer.rules.at(None, 1)
    A, b = bank.A.numpy(), bank.b.numpy()
    bounding = Bounding(layer.rules.layout, A, np.ones(2), "l1")
    columns = np.array([[1, 3], [1, 4], [2, 3], [2, 4]])
    known = bounding.known(A, b, bounding.boxes(A, b), columns, np.array([[0.1, 0.6]]))
    assert np.isinf(known.bound[0]).tolist() == [True, True, False, False]
    assert known.solved[0].tolist() == [False, False, True, True]
    np.testing.assert_allclose(known.points[0, 2:], [[0.5, 0.3]] * 2)
    projected = layer(torch.tensor([[0.1, 0.6]], dtype=F64))
    torch.testing.assert_close(projected, torch.tensor([[0.5, 0.3]], dtype=F64))
    assert layer.last_info is not None
    assert layer.last_info.lps.tolist() == [0]


def test_an_output_that_gives_way_to_its_bound_is_exactly_there() -> None:
    rules = RuleSet(2, 0, 1, [total() <= 0.5], [at_least(0, 0.1)])
    projected = DisjunctiveProjection(rules)(torch.tensor([[0.7, 0.9]], dtype=F64))
    assert float(projected[0, 0]) == 0.1 != 0.7 - 0.6
    assert float(projected.sum()) == pytest.approx(0.5, abs=1e-15)


def reference(rules: RuleSet, point: Array, unit: Array) -> float:
    """The distance by scipy, a linear program for each scenario, in units of the outputs."""
    bank, layout, n = rules.at(None, 1), rules.layout, rules.n
    A, b = bank.A[0].numpy() * unit, bank.b[0].numpy()
    length = np.abs(A).max(axis=1)
    A, b = A / length[:, None], b / length
    eye, least = np.eye(n), np.inf
    for choice in itertools.product(*layout.disjuncts):
        rows = np.array([*range(layout.common), *(row for span in choice for row in range(*span))])
        turned = rows[layout.equality[rows]]  # an equality is an inequality in both directions
        wide = np.concatenate([A[rows], -A[turned]])
        epigraph = np.block([[wide, np.zeros((len(wide), n))], [eye, -eye], [-eye, -eye]])
        side = np.concatenate([b[rows], -b[turned], point, -point])
        cost = np.concatenate([np.zeros(n), np.ones(n)])
        found = linprog(cost, A_ub=epigraph, b_ub=side, bounds=[(None, None)] * n + [(0, None)] * n)
        least = min(least, found.fun) if found.status == 0 else least
    return least


@pytest.mark.parametrize("settings", [{}, {"solver": "highs"}])
def test_rules_of_boxes_and_rows_are_projected_onto_as_by_another_solver(settings: dict[str, Any]) -> None:
    programs = 0
    for seed in range(40):
        rules, points = boxed(seed, 3)
        layer = DisjunctiveProjection(rules, on_infeasible="global_only", **settings)
        projected = layer(torch.from_numpy(points))
        info = layer.last_info
        assert info is not None
        programs += int(info.lps.sum())
        for place, status in enumerate(info.status):
            expected = reference(rules, points[place], np.ones(rules.n))
            assert (status == "global_only") == (expected == np.inf)
            if status != "global_only":
                assert float(info.distance[place]) == pytest.approx(expected, abs=1e-8)
                assert certify(rules, projected[[place]], tol=1e-8).holds
    assert programs > 20


@pytest.mark.parametrize("settings", [{}, {"strategy": "milp"}, {"strategy": "lifted"}, {"solver": "highs"}])
def test_rules_in_units_far_apart_are_solved_as_in_units_of_one(settings: dict[str, Any]) -> None:
    checked = 0
    for seed in range(25):
        generator = np.random.default_rng(seed)
        n = int(generator.integers(2, 5))
        unit = 10.0 ** generator.integers(-6, 7, n)
        rules = []
        for _ in range(2):
            disjuncts = []
            for _ in range(2):
                a = generator.normal(size=(2, n)) * (generator.random((2, n)) < 0.7)
                size = 10.0 ** generator.integers(-6, 7, (2, 1))
                a[a.any(axis=1) == 0] = 1.0
                disjuncts.append(
                    Polyhedron(a / unit * size, (a * size) @ generator.random(n) + 0.02 * size[:, 0])
                )
            rules.append(Disjunction(disjuncts))
        made = RuleSet(n, 0, unit.tolist(), [], rules)
        point = generator.normal(0.5, 0.7, n)
        layer = DisjunctiveProjection(
            made, weights=(1 / unit).tolist(), on_infeasible="global_only", **settings
        )
        projected = layer(torch.from_numpy(point * unit)[None])
        expected = reference(made, point, unit)
        assert layer.last_info is not None
        if layer.last_info.status[0] == "global_only":
            assert expected == np.inf
            continue
        checked += 1
        assert float(layer.last_info.distance) == pytest.approx(expected, abs=1e-7)
        assert certify(made, projected).holds
    assert checked > 18
