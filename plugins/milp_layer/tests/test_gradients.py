"""Gradients of every backward rule and relaxation; acceptance of the exact one is in test_acceptance."""

from __future__ import annotations

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
    feature,
    total,
)
from leyden_milp_layer.random_rules import random_problems
from torch import Tensor

F64 = torch.float64


def corner() -> RuleSet:
    return RuleSet(3, 0, 1, [total() <= 1.5], [at_least(0, 0.8) | at_most(0, 0.1)])


def gradient(raw: Tensor, seen: Tensor, rules: RuleSet | None = None, **settings: Any) -> Tensor:
    raw = raw.clone().requires_grad_()
    DisjunctiveProjection(rules or corner(), **settings)(raw).backward(seen)
    assert raw.grad is not None
    return raw.grad


def test_the_closed_form_of_a_corner() -> None:
    # y0 is at 0.8, the sum at 1.5 by the cheapest of the others: y1 gives way to y2, which follows
    raw = torch.tensor([[0.7, 0.6, 0.3]], dtype=F64)
    projected = DisjunctiveProjection(corner())(raw)
    torch.testing.assert_close(projected, torch.tensor([[0.8, 0.4, 0.3]], dtype=F64))
    seen = torch.tensor([[1.0, 2.0, 4.0]], dtype=F64)
    torch.testing.assert_close(gradient(raw, seen), torch.tensor([[0.0, 0.0, 2.0]], dtype=F64))


def test_straight_through_passes_the_gradient_unchanged() -> None:
    raw, seen = torch.tensor([[0.7, 0.6, 0.3]]), torch.tensor([[1.0, 2.0, 4.0]])
    assert torch.equal(gradient(raw, seen, backward="straight_through"), seen)
    assert torch.equal(gradient(raw, seen, backward="straight_through", relaxation="cnf"), seen)


def test_the_smoothed_gradient_is_that_of_the_smoothed_projection() -> None:
    from leyden_milp_layer.quadratic import nearest_smoothed

    rules = RuleSet(3, 0, 1, rules=[total() <= 1.2])
    bank = rules.at(None, 1)
    A, b = bank.A[0].numpy(), bank.b[0].numpy()
    generator = torch.Generator().manual_seed(0)
    interior = 0
    for _ in range(30):
        raw = torch.rand(1, 3, generator=generator, dtype=F64) * 1.2
        seen = torch.randn(1, 3, generator=generator, dtype=F64)
        step = torch.randn(1, 3, generator=generator, dtype=F64)
        slopes = []
        for mu in (0.2, 5.0):
            found = gradient(raw, seen, rules, backward="smoothed", mu=mu)
            values = []
            for h in (1e-6, 0.0, -1e-6):
                solved = nearest_smoothed(
                    A, b, rules.layout.equality, (raw + h * step)[0].numpy(), torch.ones(3).numpy(), mu
                )
                assert solved is not None
                values.append(float(torch.from_numpy(solved[0]) @ seen[0]))
            if abs(values[0] - 2 * values[1] + values[2]) > 1e-9:
                continue
            slopes.append(found)
            assert float((found * step).sum()) == pytest.approx((values[0] - values[2]) / 2e-6, abs=1e-4)
        exact = gradient(raw, seen, rules)
        interior += any(not torch.allclose(slope, exact) for slope in slopes)
    assert interior > 3  # where it differs from the exact gradient


def test_a_small_smoothing_gives_the_exact_gradient() -> None:
    raw, seen = torch.tensor([[0.7, 0.6, 0.3]], dtype=F64), torch.tensor([[1.0, 2.0, 4.0]], dtype=F64)
    weights = [1.0, 1.0, 1.5]  # no tie
    smoothed = gradient(raw, seen, backward="smoothed", mu=1e-3, weights=weights)
    torch.testing.assert_close(smoothed, gradient(raw, seen, weights=weights))


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_what_moved_and_what_is_active_is_told_in_the_units_of_the_outputs(unit: float) -> None:
    limit = torch.tensor(1.2 * unit, dtype=F64, requires_grad=True)
    rules = RuleSet(2, 0, unit, rules=[Disjunction([Polyhedron([[1.0, 1.0]], lambda x: limit.reshape(1))])])
    raw = torch.tensor([[0.9, 0.8]], dtype=F64).mul(unit).requires_grad_()
    projected = DisjunctiveProjection(rules)(raw, torch.zeros(1, 1))
    torch.testing.assert_close(projected / unit, torch.tensor([[0.4, 0.8]], dtype=F64))
    found = torch.autograd.grad(projected, [raw, limit], torch.tensor([[1.0, 3.0]], dtype=F64))
    torch.testing.assert_close(found[0], torch.tensor([[0.0, 2.0]], dtype=F64))
    assert float(found[1]) == pytest.approx(1.0)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("wide", [False, True])
def test_weights_and_units_are_in_the_gradient(norm: Any, wide: bool) -> None:
    checked = 0
    for seed in range(30):
        generator = np.random.default_rng(seed)
        n = int(generator.integers(2, 5))
        unit = 10.0 ** generator.integers(-4, 5, n) if wide else np.ones(n)
        rows = [generator.normal(size=(1, n)) for _ in range(4)]
        halves = [Polyhedron(row / unit, row @ generator.random(n)) for row in rows]
        rules = RuleSet(n, 0, unit.tolist(), [], [halves[0] | halves[1], halves[2] | halves[3]])
        weights = generator.uniform(0.3, 3.0, n) / (unit if norm == "l1" else unit**2)
        layer = DisjunctiveProjection(rules, norm=norm, weights=weights.tolist(), on_infeasible="global_only")
        point = torch.from_numpy(generator.normal(0.5, 0.8, (1, n)) * unit).requires_grad_()
        seen, step = (torch.from_numpy(generator.normal(size=(1, n))) for _ in range(2))
        seen, step = seen / torch.from_numpy(unit), step * torch.from_numpy(unit)
        value = layer(point)
        assert layer.last_info is not None
        if layer.last_info.status[0] != "projected":
            continue
        (slope,) = torch.autograd.grad(value, point, seen)
        with torch.no_grad():
            ahead, here, behind = (float((layer(point + h * step) * seen).sum()) for h in (1e-6, 0, -1e-6))
        if abs(ahead - 2 * here + behind) > 1e-9:
            continue
        checked += 1
        assert float((slope * step).sum()) == pytest.approx((ahead - behind) / 2e-6, rel=1e-4, abs=1e-5)
    assert checked > 15


@pytest.mark.parametrize("settings", [{"relaxation": "cnf"}, {"relaxation": "pdnf", "num_dnf_rules": 1}])
def test_relaxations_agree_with_central_differences(settings: dict[str, Any]) -> None:
    checked = 0
    generator = torch.Generator().manual_seed(1)
    for rules, point in random_problems(30, seed=5):
        layer = DisjunctiveProjection(rules, **settings)
        seen = torch.randn(point.shape, generator=generator, dtype=F64)
        step = torch.randn(point.shape, generator=generator, dtype=F64)
        found = float((gradient(point, seen, rules, **settings) * step).sum())
        ahead, here, behind = (float((layer(point + h * step) * seen).sum()) for h in (1e-6, 0.0, -1e-6))
        if abs(ahead - 2 * here + behind) > 1e-9:
            continue
        checked += 1
        assert found == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-5)
    assert checked > 20


@pytest.mark.parametrize("unit", [1e-6, 8.0, 1e6])
def test_relaxations_of_outputs_in_other_units_are_those_of_outputs_of_one(unit: float) -> None:
    for relaxation in ("cnf", "pdnf"):
        found = []
        for size in (1.0, unit):
            gap = any_of(at_most(0, 0.25 * size), at_least(0, 0.75 * size))
            rules = RuleSet(2, 0, size, [total() >= 0.8 * size], [gap])
            raw = torch.tensor([[0.5, 0.1]], dtype=F64).mul(size).requires_grad_()
            projected = DisjunctiveProjection(rules, relaxation=relaxation)(raw)  # type: ignore[arg-type]
            (slope,) = torch.autograd.grad(projected, raw, torch.tensor([[1.0, 3.0]], dtype=F64))
            found.append((projected.detach() / size, slope))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-8)


def test_relaxations_refuse_rows_with_gradients() -> None:
    level = torch.tensor(0.5, dtype=F64, requires_grad=True)
    rules = RuleSet(2, 0, 1, rules=[any_of(at_most(0, 0.1), at_least(0, level))])
    with pytest.raises(ValueError, match=r"^relaxation: rows that carry gradients"):
        DisjunctiveProjection(rules, relaxation="cnf")(torch.rand(1, 2))


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_level_that_depends_on_a_parameter_is_learned(norm: Any) -> None:
    level = torch.tensor(0.9, dtype=F64, requires_grad=True)
    rules = RuleSet(2, 0, 1, rules=[any_of(at_most(0, 0.05), at_least(0, level))])
    layer = DisjunctiveProjection(rules, norm=norm)
    optimizer = torch.optim.SGD([level], lr=0.2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = (layer(torch.tensor([[0.5, 0.3]], dtype=F64))[0, 0] - 0.6).square()
        loss.backward()
        optimizer.step()
    assert float(level.detach()) == pytest.approx(0.6, abs=1e-3)


def test_gradients_reach_the_features() -> None:
    rules = RuleSet(1, 0, 1, rules=[at_least(0, 0.5 * feature(0))])
    x = torch.tensor([[1.0], [0.2]], requires_grad=True)
    DisjunctiveProjection(rules)(torch.tensor([[0.1], [0.3]]), x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.5], [0.0]]


def test_a_repaired_relaxation_has_a_gradient() -> None:
    for rules, point in random_problems(8, seed=11):
        seen = torch.ones_like(point)
        assert torch.isfinite(gradient(point, seen, rules, relaxation="cnf", repair="dnf")).all()


def test_types_go_in_and_out() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        raw = torch.tensor([[0.7, 0.6, 0.3]]).to(dtype)
        assert DisjunctiveProjection(corner())(raw).dtype == dtype
        assert gradient(raw, torch.ones_like(raw)).dtype == dtype


def test_no_gradient_is_asked_for_in_inference_mode() -> None:
    raw = torch.tensor([[0.7, 0.6, 0.3]], requires_grad=True)
    with torch.inference_mode():
        projected = DisjunctiveProjection(corner())(raw)
    assert not projected.requires_grad
