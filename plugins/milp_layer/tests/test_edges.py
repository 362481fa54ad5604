"""Edge cases and bad input: contradictions, empty disjuncts, too many scenarios, far points, ties."""

from __future__ import annotations

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from leyden_milp_layer import (
    ContradictionError,
    Disjunction,
    DisjunctiveProjection,
    Polyhedron,
    RuleConstrainedModule,
    RulePenaltyLoss,
    RuleSatisfaction,
    RuleSet,
    any_of,
    at_least,
    at_most,
    certify,
    equals,
    feature,
    halfspace,
    implies,
    output,
    total,
)

F64 = torch.float64


def gaps(count: int = 2, **settings: Any) -> RuleSet:
    rules = [any_of(at_most(i, 0.25), at_least(i, 0.75)) for i in range(count)]
    return RuleSet(count, 0, 1, rules=rules, **settings)


def quarrel() -> RuleSet:
    """Three rules of which two contradict each other where the feature is positive."""
    return RuleSet(
        2,
        0,
        1,
        [total() <= 1.5],
        [
            implies(feature(0) > 0, at_least("a", 0.9), name="high"),
            implies(feature(0) > 0, at_most("b", 0.5), name="bystander"),
            implies(feature(0) > 0, at_most("a", 0.2), name="low"),
        ],
        outputs=["a", "b"],
        features=["t"],
    )


def test_contradictory_rules_are_named_with_the_sample_and_no_bystander() -> None:
    with pytest.raises(
        ContradictionError, match=r"^sample 1: rules 'high', 'low' contradict each other"
    ) as caught:
        DisjunctiveProjection(quarrel())(torch.rand(3, 2), torch.tensor([[-1.0], [1.0], [-1.0]]))
    assert caught.value.sample == 1
    assert caught.value.rules == ("high", "low")
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("strategy", ["milp", "lifted"])
def test_every_strategy_finds_the_contradiction(strategy: Any) -> None:
    with pytest.raises(ContradictionError, match="'high', 'low'"):
        DisjunctiveProjection(quarrel(), strategy=strategy)(torch.rand(1, 2), torch.ones(1, 1))


@pytest.mark.parametrize("relaxation", ["cnf", "pdnf"])
def test_relaxations_find_the_contradiction(relaxation: Any) -> None:
    point, x = torch.tensor([[1.4, 1.4]]), torch.ones(1, 1)
    with pytest.raises(ContradictionError, match="'high', 'low'"):
        DisjunctiveProjection(quarrel(), relaxation=relaxation)(point, x)
    layer = DisjunctiveProjection(quarrel(), relaxation=relaxation, on_infeasible="global_only")
    assert float(layer(point, x).sum()) == pytest.approx(1.5)
    assert layer.last_info is not None
    assert layer.last_info.status == ("global_only",)


def test_global_only_projects_a_contradictory_sample_on_the_global_constraints_and_says_so() -> None:
    layer = DisjunctiveProjection(quarrel(), on_infeasible="global_only")
    raw = torch.tensor([[1.4, 1.4], [0.3, 0.4]], dtype=F64)
    projected = layer(raw, torch.tensor([[1.0], [-1.0]]))
    assert layer.last_info is not None
    assert layer.last_info.status == ("global_only", "inside")
    assert float(projected[0].sum()) == pytest.approx(1.5)
    assert torch.equal(projected[1], raw[1])


def test_identity_is_never_silent() -> None:
    layer = DisjunctiveProjection(quarrel(), on_infeasible="identity")
    raw = torch.tensor([[1.4, 1.4]], requires_grad=True)
    with pytest.warns(UserWarning, match="contradict each other"):
        projected = layer(raw, torch.ones(1, 1))
    assert torch.equal(projected, raw)
    assert layer.last_info is not None
    assert layer.last_info.status == ("identity",)
    projected.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(raw.grad, torch.ones_like(raw))


def test_global_constraints_without_a_common_point_are_told_apart_from_rules() -> None:
    rules = RuleSet(2, 0, 1, [total() >= 3], [at_least(0, 0.5)])
    with pytest.raises(ContradictionError, match="bounds and global constraints have no common point"):
        DisjunctiveProjection(rules, on_infeasible="global_only")(torch.rand(1, 2))


def test_contradictory_samples_are_left_out_of_the_satisfaction_rate() -> None:
    metric = RuleSatisfaction(quarrel())
    metric.update(torch.tensor([[0.1, 0.1], [0.1, 0.1]]), torch.tensor([[1.0], [-1.0]]))
    rates = metric.compute()
    assert rates["contradictory"] == 1
    assert rates["csat"] == 1
    assert math.isnan(rates["csat/high"])


def test_without_an_active_rule_a_point_inside_keeps_every_bit_and_its_gradient() -> None:
    for dtype in (torch.float32, F64, torch.bfloat16):
        raw = torch.rand(5, 2).to(dtype) * 0.7
        raw.requires_grad_()
        projected = DisjunctiveProjection(quarrel())(raw, -torch.ones(5, 1))
        assert torch.equal(projected, raw)
        seen = torch.randn(5, 2).to(dtype)
        projected.backward(seen)  # type: ignore[no-untyped-call]
        assert torch.equal(raw.grad, seen)


@pytest.mark.parametrize("bound", [math.inf, math.nan])
def test_a_missing_bound_is_an_error_at_construction(bound: float) -> None:
    with pytest.raises(ValueError, match=r"^upper: expected a finite bound for every output"):
        RuleSet(2, 0, [1.0, bound])
    with pytest.raises(ValueError, match=r"^lower: expected a finite bound"):
        RuleSet(2, -bound, 1)
    with pytest.raises(ValueError, match=r"^lower: expected at most"):
        RuleSet(2, [0, 2], 1)


def test_an_empty_disjunct_is_dropped_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="rule 'rule 1': disjunct 0 is empty and is dropped"):
        rules = RuleSet(1, 0, 1, rules=[any_of(at_least(0, 2.0), at_least(0, 0.5))])
    assert float(DisjunctiveProjection(rules)(torch.zeros(1, 1, dtype=F64))) == pytest.approx(0.5)


def test_a_rule_with_only_empty_disjuncts_contradicts_every_sample() -> None:
    with pytest.warns(UserWarning, match="'never' has no disjunct left"):
        rules = RuleSet(1, 0, 1, rules=[any_of(at_least(0, 2.0), at_most(0, -1.0), name="never")])
    for settings in ({}, {"strategy": "milp"}, {"strategy": "lifted"}, {"relaxation": "cnf"}):
        with pytest.raises(ContradictionError, match="rule 'never' contradicts the global constraints"):
            DisjunctiveProjection(rules, **settings)(torch.zeros(1, 1))  # type: ignore[arg-type]
    assert not certify(rules, torch.zeros(1, 1)).holds


def test_many_scenarios_switch_to_the_mixed_integer_program_or_raise_with_their_number() -> None:
    rules = gaps(9)
    raw = torch.rand(2, 9, generator=torch.Generator().manual_seed(1), dtype=F64)
    layer = DisjunctiveProjection(rules)
    projected = layer(raw)
    assert layer.last_info is not None
    assert layer.last_info.scenarios.tolist() == [512, 512]
    assert layer.last_info.lps.tolist() == [2, 2]
    assert certify(rules, projected).holds
    torch.testing.assert_close(projected, DisjunctiveProjection(rules, max_scenarios=512)(raw))
    with pytest.raises(ValueError, match=r"^strategy: sample 0 has 512 scenarios, above max_scenarios=256"):
        DisjunctiveProjection(rules, strategy="enumerate")(raw)
    with pytest.raises(ValueError, match="512 scenarios"):
        DisjunctiveProjection(rules, norm="l2")(raw)


@pytest.mark.parametrize(
    "settings", [{}, {"solver": "highs"}, {"strategy": "milp"}, {"strategy": "lifted"}, {"norm": "l2"}]
)
def test_equality_rows_are_kept_as_equalities(settings: dict[str, Any]) -> None:
    sides = Polyhedron(A_eq=[[1.0, -1.0, 0.0]], b_eq=[0.1])
    rules = RuleSet(3, 0, 1, [total().equals(1.2)], [sides | equals(2, 0.9)])
    raw = torch.rand(6, 3, generator=torch.Generator().manual_seed(2), dtype=F64)
    projected = DisjunctiveProjection(rules, **settings)(raw)
    assert certify(rules, projected, tol=1e-9).holds
    torch.testing.assert_close(projected.sum(dim=1), torch.full((6,), 1.2, dtype=F64))


def test_equality_rows_are_violated_from_both_sides() -> None:
    rules = RuleSet(2, 0, 1, rules=[equals(0, 0.5)])
    assert certify(rules, torch.tensor([[0.4, 0.0], [0.6, 0.0], [0.5, 0.0]])).violators() == [0, 1]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_an_error_with_its_sample(wrong: float) -> None:
    raw = torch.rand(4, 2)
    raw[2, 1] = wrong
    with pytest.raises(ValueError, match=r"^y_hat: sample 2 is not finite"):
        DisjunctiveProjection(gaps())(raw)


def test_a_row_that_is_not_finite_is_an_error_with_rule_and_sample() -> None:
    rules = RuleSet(1, 0, 1, rules=[implies(feature(0) > -9, at_least(0, 1 / feature(0)), name="inverse")])
    with pytest.raises(ValueError, match=r"^rule 'inverse', disjunct 0 is not finite at sample 1"):
        DisjunctiveProjection(rules)(torch.rand(2, 1), torch.tensor([[2.0], [0.0]]))


@pytest.mark.parametrize("settings", [{}, {"solver": "highs"}, {"strategy": "milp"}, {"norm": "l2"}])
def test_a_point_far_away_is_projected_as_one_on_the_boundary(settings: dict[str, Any]) -> None:
    rules = RuleSet(3, 0, 1, [total() <= 2], [any_of(at_most(0, 0.2), at_least(0, 0.8))])
    far = torch.tensor([[1e8, -1e8, 3e7], [-1e8, 0.3, 0.4], [1e8, 1e8, 1e8]], dtype=F64)
    projected = DisjunctiveProjection(rules, **settings)(far)
    assert certify(rules, projected, tol=1e-9).holds
    if not settings.get("norm"):
        near = DisjunctiveProjection(rules, **settings)(far.clamp(0, 1))
        moves = ((one - far.clamp(0, 1)).abs().sum(dim=1) for one in (projected, near))
        torch.testing.assert_close(*moves, rtol=0, atol=1e-12)


def test_ties_go_to_the_lowest_scenario() -> None:
    rules = RuleSet(1, 0, 1, rules=[any_of(at_least(0, 0.75), at_most(0, 0.25))])
    layer = DisjunctiveProjection(rules)
    assert float(layer(torch.tensor([[0.5]], dtype=F64))) == 0.75
    turned = RuleSet(1, 0, 1, rules=[any_of(at_most(0, 0.25), at_least(0, 0.75))])
    assert float(DisjunctiveProjection(turned)(torch.tensor([[0.5]], dtype=F64))) == 0.25


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_coefficient_that_vanishes_for_one_sample_is_there_for_the_next(norm: Any) -> None:
    either = (output(0) * feature(0) + output(1) >= 0.6) | (output(0) - feature(0) * output(1) >= 0.95)
    rules = RuleSet(2, 0, 1, rules=[either])
    layer = DisjunctiveProjection(rules, norm=norm)
    raw = torch.tensor([[0.5, 0.2]], dtype=F64)
    for x in (0.0, 1.0, 0.0, 0.5):
        features = torch.tensor([[x]], dtype=F64)
        projected = layer(raw, features)
        assert certify(rules, projected, features).holds
        torch.testing.assert_close(projected, DisjunctiveProjection(rules, norm=norm)(raw, features))
    both = layer(raw.expand(2, 2), torch.tensor([[0.0], [1.0]], dtype=F64))
    torch.testing.assert_close(both[1:], layer(raw, torch.ones(1, 1, dtype=F64)))


@pytest.mark.parametrize("settings", [{}, {"solver": "highs"}, {"norm": "l2"}])
def test_what_is_equal_to_a_billionth_is_a_tie(settings: dict[str, Any]) -> None:
    layer = DisjunctiveProjection(
        RuleSet(1, 0, 1, rules=[any_of(at_most(0, 0.25), at_least(0, 0.75))]), **settings
    )
    raw = torch.tensor([[0.5 + 2e-10], [0.5 + 1e-8], [0.5 - 1e-8]], dtype=F64)
    assert layer(raw)[:, 0].tolist() == pytest.approx([0.25, 0.75, 0.25])


@pytest.mark.parametrize("backward", ["active_set", "straight_through", "smoothed"])
def test_a_degenerate_active_set_gives_a_finite_gradient(backward: Any) -> None:
    # three rows through one corner, two of them the same
    rows = Polyhedron([[1.0, 1.0], [2.0, 2.0], [1.0, 0.0]], [1.0, 2.0, 0.5])
    rules = RuleSet(2, 0, 1, rules=[Disjunction([rows])])
    raw = torch.tensor([[0.9, 0.9], [0.5, 0.5], [0.5, 0.9]], dtype=F64, requires_grad=True)
    projected = DisjunctiveProjection(rules, backward=backward)(raw)
    projected.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(raw.grad).all()


def test_a_batch_of_none_is_empty() -> None:
    for settings in ({}, {"strategy": "milp"}, {"relaxation": "cnf"}, {"norm": "l2"}, {"repair": "dnf"}):
        raw = torch.zeros(0, 2, requires_grad=True)
        projected = DisjunctiveProjection(gaps(), **settings)(raw)  # type: ignore[arg-type]
        assert projected.shape == (0, 2)
        projected.sum().backward()
    metric = RuleSatisfaction(gaps())
    metric.update(torch.zeros(0, 2))
    assert metric.rows == 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"norm": "l3"}, "norm: expected one of 'l1', 'l2', got 'l3'"),
        ({"relaxation": "hull"}, "relaxation: expected one of"),
        ({"strategy": "guess"}, "strategy: expected one of"),
        ({"backward": "none"}, "backward: expected one of"),
        ({"on_infeasible": "ignore"}, "on_infeasible: expected one of"),
        ({"repair": "cnf"}, "repair: expected one of"),
        ({"solver": "cplex"}, "solver: expected one of 'pivoting', 'highs'"),
        ({"mu": 0.0}, "mu: expected a finite number above 0"),
        ({"tol": math.nan}, "tol: expected a finite number above 0"),
        ({"cache_size": 0}, "cache_size: expected a whole number of at least 1"),
        ({"num_dnf_rules": -2}, "num_dnf_rules: expected a whole number of at least -1"),
        ({"weights": [1.0]}, "weights: expected 2 positive numbers"),
        ({"weights": [1.0, 0.0]}, "weights: expected 2 positive numbers"),
        ({"rule_order": ["rule 3"]}, "rule_order: expected names or indices of rules"),
        ({"norm": "l2", "strategy": "milp"}, "norm: 'l2' is exact one scenario at a time"),
    ],
)
def test_a_wrong_argument_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        DisjunctiveProjection(gaps(), **settings)


def test_wrong_shapes_and_types_are_told() -> None:
    layer = DisjunctiveProjection(quarrel())
    with pytest.raises(ValueError, match=r"y_hat: expected shape \(batch, 2\), got \(4, 3\)"):
        layer(torch.rand(4, 3), torch.rand(4, 1))
    with pytest.raises(ValueError, match=r"x: expected shape \(4, features\), got \(3, 1\)"):
        layer(torch.rand(4, 2), torch.rand(3, 1))
    with pytest.raises(ValueError, match=r"x: expected shape \(4, 1\), got \(4, 2\)"):
        layer(torch.rand(4, 2), torch.rand(4, 2))
    with pytest.raises(ValueError, match="x: expected features, since a rule depends on them"):
        layer(torch.rand(4, 2))
    with pytest.raises(ValueError, match="y_hat: expected a floating type"):
        layer(torch.zeros(4, 2, dtype=torch.int64), torch.rand(4, 1))
    with pytest.raises(ValueError, match="rules: expected a RuleSet or a rule file"):
        DisjunctiveProjection(3)  # type: ignore[arg-type]


def test_a_checkpoint_of_other_rules_warns_and_one_of_the_same_does_not() -> None:
    saved = DisjunctiveProjection(gaps()).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DisjunctiveProjection(gaps()).load_state_dict(saved)
        DisjunctiveProjection(gaps()).load_state_dict({}, strict=True)
    with pytest.warns(UserWarning, match="made with other rules"):
        DisjunctiveProjection(RuleSet(2, 0, 1, rules=[at_most(0, 0.5)])).load_state_dict(saved)


def test_a_penalty_of_a_wrong_factor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^rho: expected a finite number of at least 0"):
        RulePenaltyLoss(gaps(), rho=-1.0)


def crossing() -> RuleSet:
    """A rule whose first disjunct is empty, which no single row tells, and whose second is not."""
    apart = output(0) - output(1)
    empty = (apart <= -0.1 - 0.1 * feature(0)) & (apart >= 0.1)
    return RuleSet(2, 0, 1, rules=[any_of(empty, (total() >= 1.6) & (apart >= 0.1))])


def test_the_cache_forgets_the_oldest_samples() -> None:
    layer = DisjunctiveProjection(crossing(), cache_size=3)
    for place in range(10):
        layer(torch.full((1, 2), 0.5), torch.tensor([[place / 100]]))
    assert len(layer._enumeration._empty) == 3


def test_an_empty_scenario_is_solved_for_once() -> None:
    layer = DisjunctiveProjection(crossing())
    raw, x = torch.tensor([[0.5, 0.5]], dtype=F64), torch.zeros(1, 1)
    first = layer(raw, x)
    assert layer.last_info is not None
    programs = int(layer.last_info.lps)
    assert torch.equal(layer(raw, x), first)
    assert int(layer.last_info.lps) < programs


@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_remembered_of_a_sample_is_not_used_for_another(batch: int) -> None:
    # at 0 the nearer disjunct is empty, at 1 it is not
    near = at_least(0, 0.6) & at_most(0, 0.5 + 0.3 * feature(0))
    layer = DisjunctiveProjection(RuleSet(1, 0, 1, rules=[any_of(near, at_most(0, 0.1))]))
    raw = torch.full((batch, 1), 0.5, dtype=F64)
    for x, expected in ((0.0, 0.1), (1.0, 0.6), (0.0, 0.1)):
        assert layer(raw, torch.full((batch, 1), x))[0, 0] == pytest.approx(expected)


@pytest.mark.parametrize("unit", [1e-9, 1e-6, 1e6, 1e9])
@pytest.mark.parametrize("other", [1.0, None])
def test_units_of_the_outputs_do_not_matter(unit: float, other: float | None) -> None:
    gap = any_of(at_most(1, 0.25 * unit), at_least(1, 0.75 * unit))
    rules = RuleSet(2, 0, [other or unit, unit], rules=[gap, implies(feature(0) > 0, at_least(0, 0.0))])
    plain = RuleSet(2, 0, 1, rules=[any_of(at_most(1, 0.25), at_least(1, 0.75))])
    points = torch.tensor([[0.3, 0.2501], [0.3, 0.6], [0.3, 0.1]], dtype=F64)
    scaled = points * torch.tensor([other or unit, unit], dtype=F64)
    for settings in ({}, {"strategy": "milp"}, {"solver": "highs"}, {"norm": "l2"}):
        layer = DisjunctiveProjection(rules, **settings)  # type: ignore[arg-type]
        projected = layer(scaled, -torch.ones(3, 1))
        expected = DisjunctiveProjection(plain)(points)
        if settings.get("strategy") != "milp" or other is None or unit > 1e-9:  # a cost below its tolerance
            torch.testing.assert_close(projected[:, 1] / unit, expected[:, 1], rtol=0, atol=1e-9)
        assert certify(rules, projected, -torch.ones(3, 1)).holds
        assert certify(rules, scaled, -torch.ones(3, 1)).violators() == [0, 1]


@pytest.mark.parametrize("factor", [1e-6, 1e6, 1e9])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_multiplying_a_row_changes_neither_output_nor_gradient(factor: float, norm: Any) -> None:
    rows = halfspace([2.0 * factor, factor], 0.9 * factor) & halfspace([0.0, 1.0], 0.4)
    rules = RuleSet(2, 0, 1, rules=[rows | at_least(0, 0.95)])
    plain = RuleSet(
        2, 0, 1, rules=[(halfspace([2.0, 1.0], 0.9) & halfspace([0.0, 1.0], 0.4)) | at_least(0, 0.95)]
    )
    found = []
    for each in (rules, plain):
        raw = torch.tensor([[0.4, 0.10001], [0.3, 0.7]], dtype=F64, requires_grad=True)
        projected = DisjunctiveProjection(each, norm=norm)(raw)
        projected[:, 0].sum().backward()  # type: ignore[no-untyped-call]
        found.append((projected.detach(), raw.grad))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)
    assert (found[1][0].sum(dim=1) - torch.tensor([0.5001, 1.0], dtype=F64)).abs().max() > 1e-6


def test_a_small_threshold_within_wide_bounds_is_kept() -> None:
    rules = RuleSet(1, 0, 1e6, rules=[any_of(at_most(0, 5.0), at_least(0, 10.0))])
    raw = torch.tensor([[5.0001], [9.9999], [1e6]], dtype=F64)
    projected = DisjunctiveProjection(rules)(raw)
    torch.testing.assert_close(projected, torch.tensor([[5.0], [10.0], [1e6]], dtype=F64), rtol=0, atol=1e-5)
    assert certify(rules, projected).holds


def test_a_disjunct_in_small_units_is_not_taken_for_an_empty_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        narrow = output(0) + 1e9 * output(1) <= 1.2
        rules = RuleSet(2, 0, [1.0, 1e-9], rules=[narrow & at_least(1, 0.9e-9), any_of(at_least(0, 0.2))])
    projected = DisjunctiveProjection(rules)(torch.tensor([[0.9, 0.2e-9]], dtype=F64))
    torch.testing.assert_close(projected, torch.tensor([[0.3, 0.9e-9]], dtype=F64), rtol=0, atol=1e-10)


def test_rows_of_a_rule_that_does_not_apply_are_not_evaluated() -> None:
    guarded = implies(feature(0) > 0, at_least(0, 0.1 / feature(0)), name="inverse")
    scaled = implies(feature(0) > 0, output(1) / feature(0) <= 0.5, name="share")
    layer = DisjunctiveProjection(RuleSet(2, 0, 1, rules=[guarded, scaled]))
    x = torch.tensor([[0.0], [0.5], [0.0]], dtype=F64, requires_grad=True)
    raw = torch.tensor([[0.05, 0.9]] * 3, dtype=F64, requires_grad=True)
    projected = layer(raw, x)
    expected = torch.tensor([[0.05, 0.9], [0.2, 0.25], [0.05, 0.9]], dtype=F64)
    torch.testing.assert_close(projected, expected)
    projected.sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == pytest.approx([0.0, -0.1 / 0.25 + 0.5, 0.0])
    layer(raw[:1], x[:1])
    assert layer.last_info is not None
    assert layer.last_info.status == ("inside",)


def test_a_condition_on_a_feature_that_is_nan_is_an_error() -> None:
    layer = DisjunctiveProjection(quarrel())
    with pytest.raises(ValueError, match=r"^x: 't' is NaN at sample 1, and a rule's condition needs it"):
        layer(torch.rand(2, 2), torch.tensor([[-1.0], [math.nan]]))
    unused = RuleSet(1, 0, 1, rules=[implies(feature(1) > 0, at_least(0, 0.5))])
    projected = DisjunctiveProjection(unused)(torch.zeros(1, 1), torch.tensor([[math.nan, 1.0]]))
    assert projected.tolist() == [[0.5]]


def test_what_is_no_tensor_is_told() -> None:
    layer = DisjunctiveProjection(quarrel())
    with pytest.raises(ValueError, match="y_hat: expected a tensor, got list"):
        layer([[0.1, 0.2]], torch.rand(1, 1))
    with pytest.raises(ValueError, match="x: expected a tensor, got list"):
        layer(torch.rand(1, 2), [[1.0]])


def test_a_batch_of_none_is_empty_with_callables_too() -> None:
    rules = RuleSet(
        1, 0, 1, rules=[at_most(0, lambda x: x[0]), implies(lambda x: x[0] > 0, at_least(0, 0.1))]
    )
    assert DisjunctiveProjection(rules)(torch.zeros(0, 1), torch.zeros(0, 1)).shape == (0, 1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"strategy": "lifted"},
            "strategy: sample 0 has up to 512 scenarios to expand, above max_scenarios=256",
        ),
        ({"relaxation": "pdnf"}, "num_dnf_rules: sample 0 has up to 512 scenarios"),
        ({"relaxation": "pdnf", "num_dnf_rules": 9}, "num_dnf_rules: sample 0 has up to 512 scenarios"),
    ],
)
def test_a_lifted_program_of_too_many_scenarios_is_not_built(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        DisjunctiveProjection(gaps(9), **settings)(torch.full((1, 9), 0.5))
    few = DisjunctiveProjection(gaps(9), relaxation="pdnf", num_dnf_rules=2)
    assert few(torch.full((1, 9), 0.5)).shape == (1, 9)


@pytest.mark.parametrize("solver", ["pivoting", "highs"])
def test_threads_may_share_a_layer(solver: Any) -> None:
    rules = RuleSet(4, 0, 1, [total() <= 2], [any_of(at_most(i, 0.3), at_least(i, 0.7)) for i in range(4)])
    layer = DisjunctiveProjection(rules, solver=solver, cache_size=4)
    raw = torch.rand(12, 8, 4, generator=torch.Generator().manual_seed(8), dtype=F64)
    expected = [DisjunctiveProjection(rules, solver=solver)(one) for one in raw]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(layer, raw))
    assert all(certify(rules, one, tol=1e-9).holds for one in found)
    distances = [
        ((one - each).abs().sum(dim=1), (other - each).abs().sum(dim=1))
        for one, other, each in zip(found, expected, raw, strict=True)
    ]
    for mine, theirs in distances:
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


def test_half_precision_is_projected_in_single_precision_by_the_module() -> None:
    rules = RuleSet(1, 0, 1, rules=[at_least(0, 0.7001)])

    class Half(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs.bfloat16()

    outputs = RuleConstrainedModule(Half(), DisjunctiveProjection(rules))(torch.rand(4, 1) * 0.5)
    assert outputs.dtype == torch.float32
    assert certify(rules, outputs).holds
