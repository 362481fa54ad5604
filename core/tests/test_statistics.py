"""Rules against closed forms, against scipy.stats, and against simulation."""

from __future__ import annotations

import doctest
import importlib
import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from leyden.claims import Arm, Cell, CellResult, Claim, Statement, Table
from leyden.statistics import (
    MAX_SEEDS,
    SIGN_TEST_PAIRS,
    Judge,
    best,
    better,
    bound,
    interval,
    not_worse,
    rate,
    seeds_needed,
)

STATEMENT = Statement(id="s", text="A beats B", kind="better")


def result(method, seed, setting=None, status="done", **measured):
    cell = Cell(method=method, seed=seed, setting=setting or {})
    return CellResult(cell=cell, status=status, measured=measured, error="" if status == "done" else "boom")


def two_arms(gains, base=0.5):
    """A table in which A exceeds B by the given gain at each seed, while B itself varies wildly."""
    rows = []
    for seed, gain in enumerate(gains):
        level = base + 10 * math.sin(seed)
        rows += [result("A", seed, acc=level + gain), result("B", seed, acc=level)]
    return Table(rows)


def test_interval_of_three_numbers_is_the_textbook_one():
    # mean 2, s = 1, t(0.975, 2) = 4.30265: 2 -+ 4.30265 / sqrt(3)
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert low == pytest.approx(2 - 4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert high == pytest.approx(2 + 4.302652729911275 / math.sqrt(3), rel=1e-9)


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_interval_equals_scipy_and_ignores_the_order(count):
    values = np.random.default_rng(count).normal(3.0, 2.0, count)
    expected = scipy.stats.t.interval(0.95, count - 1, loc=values.mean(), scale=scipy.stats.sem(values))
    assert interval(values)[1:] == pytest.approx(expected, rel=1e-9)
    assert interval(values[::-1]) == pytest.approx(interval(values), rel=1e-14)


def test_interval_of_one_value_excludes_nothing():
    assert interval([4.0]) == (4.0, -math.inf, math.inf)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [1.0, math.inf, 2.0]])
def test_interval_without_a_mean_says_so_and_drops_nothing_silently(values):
    mean, low, high = interval(values)
    assert math.isnan(mean)
    assert (low, high) == (-math.inf, math.inf)


def test_intervals_of_five_normal_values_cover_the_truth_in_95_of_100_repetitions():
    draws = np.random.default_rng(0).normal(1.0, 3.0, (3000, 5))
    covered = [low <= 1.0 <= high for _, low, high in map(interval, draws)]
    # the standard error of the fraction is 0.004
    assert np.mean(covered) == pytest.approx(0.95, abs=0.013)


def test_better_is_the_paired_t_interval_not_the_one_of_two_groups():
    gains = [0.02, 0.03, 0.01, 0.025, 0.015]
    verdict = better(STATEMENT, two_arms(gains), "A", "B", "acc")
    expected = scipy.stats.ttest_1samp(gains, 0.0).confidence_interval(0.95)
    assert verdict.outcome == "holds"
    assert (verdict.low, verdict.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert verdict.estimate == pytest.approx(0.02)
    assert (verdict.pairs, verdict.seeds_needed, verdict.threshold) == (5, None, 0.0)


def test_better_holds_exactly_where_scipys_one_sided_test_rejects():
    generator = np.random.default_rng(1)
    outcomes = set()
    for _ in range(60):
        gains = generator.normal(0.4, 1.0, 6)
        verdict = better(STATEMENT, two_arms(gains), "A", "B", "acc", margin=0.1)
        above = scipy.stats.ttest_1samp(gains, 0.1, alternative="greater").pvalue < 0.025
        below = scipy.stats.ttest_1samp(gains, 0.1, alternative="less").pvalue < 0.025
        expected = "holds" if above else "does not hold" if below else "undecided"
        assert verdict.outcome == expected
        outcomes.add(expected)
    assert {"holds", "undecided"} <= outcomes


def test_better_is_rarely_said_of_equal_methods():
    generator = np.random.default_rng(2)
    wrong = 0
    for _ in range(1500):
        verdict = better(STATEMENT, two_arms(generator.normal(0.0, 1.0, 5)), "A", "B", "acc")
        wrong += verdict.outcome == "holds"
    # the nominal rate is 2.5 %, its standard error 0.4 %
    assert wrong / 1500 == pytest.approx(0.025, abs=0.013)


@pytest.mark.parametrize(
    ("margin", "outcome"),
    [(0.0, "holds"), (0.01, "holds"), (0.0101, "undecided"), (0.0299, "undecided"), (0.031, "does not hold")],
)
def test_the_margin_moves_the_threshold_of_better(margin, outcome):
    half = scipy.stats.t.ppf(0.975, 4) * np.std([1, 2, 3, 4, 5], ddof=1) / math.sqrt(5)
    # gains whose interval is [0.0101 - 5e-5, 0.0301 - 5e-5]
    gains = [0.02005 + (k - 3) * 0.01 / half for k in (1, 2, 3, 4, 5)]
    verdict = better(STATEMENT, two_arms(gains), "A", "B", "acc", margin=margin)
    assert (verdict.outcome, verdict.threshold) == (outcome, margin)


@pytest.mark.parametrize(
    ("gain", "outcome"), [(-0.01, "holds"), (0.05, "holds"), (-0.03, "undecided"), (-0.08, "does not hold")]
)
def test_not_worse_allows_a_loss_up_to_its_margin(gain, outcome):
    gains = [gain + noise for noise in (-0.01, 0.01, 0.005, -0.005, 0.0)]
    verdict = not_worse(STATEMENT, two_arms(gains), "A", "B", "acc", margin=0.03)
    assert (verdict.outcome, verdict.kind) == (outcome, "not worse")
    assert verdict.threshold == -0.03


def test_better_of_a_loss_means_smaller():
    table = two_arms([-0.2, -0.3, -0.25, -0.22])
    assert better(STATEMENT, table, "A", "B", "acc", mode="min").outcome == "holds"
    assert better(STATEMENT, table, "A", "B", "acc", mode="min").estimate == pytest.approx(0.2425)
    assert better(STATEMENT, table, "A", "B", "acc", mode="max").outcome == "does not hold"


def test_swapping_the_sides_swaps_the_verdict():
    table = two_arms([0.2, 0.3, 0.25, 0.22])
    forth, back = (better(STATEMENT, table, *sides, "acc") for sides in (("A", "B"), ("B", "A")))
    assert (forth.outcome, back.outcome) == ("holds", "does not hold")
    assert (back.estimate, back.low, back.high) == pytest.approx((-forth.estimate, -forth.high, -forth.low))


def test_a_ratio_is_judged_on_logarithms_and_told_as_a_ratio():
    factors = [3.0, 4.0, 5.0, 3.5, 4.2]
    table = Table(
        [result("A", seed, norm=factor * (seed + 1)) for seed, factor in enumerate(factors)]
        + [result("B", seed, norm=float(seed + 1)) for seed in range(5)]
    )
    verdict = better(STATEMENT, table, "A", "B", "norm", by="ratio", margin=2.0)
    expected = scipy.stats.ttest_1samp(np.log(factors), 0).confidence_interval(0.95)
    assert (verdict.low, verdict.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert verdict.estimate == pytest.approx(scipy.stats.gmean(factors))
    assert (verdict.outcome, verdict.threshold, verdict.unit) == ("holds", 2.0, "ratio")
    assert better(STATEMENT, table, "A", "B", "norm", by="ratio", margin=6.0).outcome == "does not hold"
    worse = not_worse(STATEMENT, table, "A", "B", "norm", by="ratio", margin=4.0, mode="min")
    assert (worse.outcome, worse.threshold) == ("undecided", 0.25)


def test_a_ratio_of_something_that_is_not_positive_is_not_decided():
    table = Table([result("A", s, x=1.0) for s in range(3)] + [result("B", s, x=float(s)) for s in range(3)])
    verdict = better(STATEMENT, table, "A", "B", "x", by="ratio")
    assert verdict.outcome == "undecided"
    assert "seed 0 has no ratio" in verdict.detail


def test_pairs_are_formed_by_seed_and_not_by_position():
    gains = [0.02, 0.03, 0.01]
    straight = two_arms(gains)
    shuffled = Table(sorted(straight, key=lambda row: (row.cell.method, -row.cell.seed)))
    shuffled = Table([shuffled.results[0], *shuffled.results[3:], *shuffled.results[1:3]])
    assert better(STATEMENT, shuffled, "A", "B", "acc").high == pytest.approx(
        better(STATEMENT, straight, "A", "B", "acc").high
    )


def test_a_seed_of_one_side_only_is_left_out_and_told():
    table = Table([*two_arms([0.02, 0.03, 0.01, 0.02]), result("A", 99, acc=1000.0)])
    verdict = better(STATEMENT, table, "A", "B", "acc")
    assert (verdict.pairs, verdict.outcome) == (4, "holds")
    assert "1 seed of one side only" in verdict.detail


def test_a_constant_and_derived_values_can_stand_on_either_side():
    table = two_arms([0.0] * 4)
    spread = {0: 0.011, 1: 0.013, 2: 0.009, 3: 0.012}
    verdict = not_worse(STATEMENT, table, spread, 0.02, "spread", mode="min")
    assert (verdict.outcome, verdict.pairs) == ("holds", 4)
    assert verdict.estimate == pytest.approx(0.02 - 0.01125)
    assert better(STATEMENT, table, 0.005, spread, "spread", mode="min").outcome == "holds"
    assert better(STATEMENT, table, 0.5, 0.4, "spread").outcome == "undecided"


def test_a_derived_value_that_is_nan_is_not_decided():
    assert better(STATEMENT, Table([]), {0: 1.0, 1: 1.1, 2: math.nan}, 0.5, "x").outcome == "undecided"


@pytest.mark.parametrize("gains", [[], [0.5]])
def test_fewer_than_two_pairs_decide_nothing(gains):
    verdict = better(STATEMENT, two_arms(gains), "A", "B", "acc")
    assert (verdict.outcome, verdict.pairs, verdict.seeds_needed) == ("undecided", len(gains), None)
    assert (verdict.low, verdict.high) == (-math.inf, math.inf)
    assert math.isnan(verdict.estimate) == (not gains)


@pytest.mark.parametrize("count", [2, 5, 6, 9])
def test_equal_gains_are_decided_by_the_sign_test(count):
    # binomial test: k of k on one side rejects a fair coin two-sided at 5 % from six on
    rejects = scipy.stats.binomtest(count, count, 0.5).pvalue < 0.05
    verdict = better(STATEMENT, two_arms([0.1] * count, base=0.3), "A", "B", "acc")
    assert verdict.outcome == ("holds" if rejects else "undecided")
    assert verdict.seeds_needed == (None if rejects else SIGN_TEST_PAIRS)
    assert verdict.low == verdict.high == pytest.approx(0.1)
    worse = better(STATEMENT, two_arms([-0.1] * count, base=0.3), "A", "B", "acc")
    assert worse.outcome == ("does not hold" if rejects else "undecided")


def test_rounding_is_not_taken_for_spread():
    pairs = [(0.4, 0.3), (0.3, 0.2), (0.7, 0.6)]
    assert len({a - b for a, b in pairs}) > 1
    table = Table(
        [
            result(method, seed, acc=pair[k])
            for seed, pair in enumerate(pairs)
            for k, method in enumerate("AB")
        ]
    )
    assert better(STATEMENT, table, "A", "B", "acc").outcome == "undecided"


def test_an_estimate_at_the_threshold_can_never_be_decided():
    for gains in ([0.0] * 8, [-0.1, 0.1, -0.2, 0.2]):
        verdict = better(STATEMENT, two_arms(gains), "A", "B", "acc")
        assert (verdict.outcome, verdict.seeds_needed) == ("undecided", None)
        assert "no number of seeds" in verdict.detail


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("how", ["failed", "crashed", "nan", "inf", "absent"])
def test_a_lost_cell_of_either_side_leaves_the_comparison_undecided_and_is_named(side, how):
    rows = list(two_arms([0.5, 0.51, 0.49, 0.5, 0.52]))
    where = next(k for k, row in enumerate(rows) if row.cell.method == side and row.cell.seed == 3)
    broken = {
        "failed": lambda: result(side, 3, status="failed"),
        "crashed": lambda: result(side, 3, status="crashed"),
        "nan": lambda: result(side, 3, acc=math.nan),
        "inf": lambda: result(side, 3, acc=math.inf),
        "absent": lambda: result(side, 3, other=1.0),
    }
    rows[where] = broken[how]()
    verdict = better(STATEMENT, Table(rows), "A", "B", "acc")
    assert (verdict.outcome, verdict.seeds_needed, verdict.pairs) == ("undecided", None, 4)
    assert f"{side} seed 3" in verdict.detail


def test_an_arm_that_the_table_does_not_have_is_undecided():
    verdict = better(STATEMENT, two_arms([0.1, 0.2, 0.3]), "A", "C", "acc")
    assert verdict.outcome == "undecided"
    assert "no cell of C" in verdict.detail


def test_several_cells_of_one_seed_ask_for_a_setting():
    table = Table([result("A", 0, {"M": m}, acc=0.5) for m in (1, 2)])
    with pytest.raises(ValueError, match="several cells of seed 0; give its setting"):
        better(STATEMENT, table, "A", 0.1, "acc")


@pytest.mark.parametrize(
    ("margin", "by"), [(-0.1, "difference"), (0.9, "ratio"), (math.nan, "ratio"), (math.inf, "difference")]
)
def test_a_margin_out_of_range_is_refused_by_name(margin, by):
    for rule in (better, not_worse):
        with pytest.raises(ValueError, match="margin"):
            rule(STATEMENT, Table([]), "A", "B", "acc", margin=margin, by=by)


def test_a_misspelt_mode_is_refused_and_does_not_turn_the_verdict_round():
    table = two_arms([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="'maximum'"):
        better(STATEMENT, table, "A", "B", "acc", mode="maximum")
    with pytest.raises(ValueError, match="'minimum'"):
        best(table, "A", "acc", "minimum")
    with pytest.raises(ValueError, match="by is 'quotient'"):
        not_worse(STATEMENT, table, "A", "B", "acc", by="quotient")


@pytest.mark.parametrize("ratio", [0.05, 0.3, 1.0, 2.5, 50.0])
def test_seeds_needed_is_the_first_number_whose_interval_is_narrow_enough(ratio):
    def half_width(count):
        return scipy.stats.t.ppf(0.975, count - 1) / math.sqrt(count)

    expected = next((count for count in range(2, MAX_SEEDS + 1) if half_width(count) < ratio), None)
    assert seeds_needed(1.0, ratio) == expected
    assert seeds_needed(4.0, 4 * ratio) == expected


@pytest.mark.parametrize("distance", [0.0, -1.0, math.nan, 1e-6])
def test_no_number_of_seeds_is_named_where_none_would_do(distance):
    assert seeds_needed(1.0, distance) is None


def test_the_number_of_seeds_told_would_decide_at_the_same_mean_and_spread():
    gains = [0.5, -0.4, 0.9, 0.1, 0.3]
    verdict = better(STATEMENT, two_arms(gains), "A", "B", "acc")
    assert verdict.outcome == "undecided"
    assert verdict.seeds_needed > 5
    spread, mean = np.std(gains, ddof=1), np.mean(gains)
    for count, outcome in ((verdict.seeds_needed, "holds"), (verdict.seeds_needed - 1, "undecided")):
        # numbers with exactly that mean and standard deviation
        shape = np.linspace(-1, 1, count)
        more = mean + spread * (shape - shape.mean()) / np.std(shape, ddof=1)
        assert better(STATEMENT, two_arms(more), "A", "B", "acc").outcome == outcome
    assert f"{verdict.seeds_needed} seeds" in verdict.detail


def test_a_bound_holds_if_every_slack_does():
    verdict = bound(STATEMENT, {"a": 0.3, "b": 0.0, "c": 2.0}, unit="f")
    assert (verdict.outcome, verdict.estimate, verdict.low, verdict.high) == ("holds", 0.0, 0.0, 2.0)
    assert (verdict.pairs, verdict.kind, verdict.seeds_needed) == (3, "bound", None)
    assert "tightest is b" in verdict.detail


def test_one_violation_refutes_a_bound_whatever_is_missing():
    verdict = bound(STATEMENT, {"a": 100.0, "b": -1e-6, "c": math.nan}, tolerance=1e-7)
    assert (verdict.outcome, verdict.estimate) == ("does not hold", -1e-6)
    assert "violated in 1 of 2 cells" in verdict.detail
    assert "worst: b" in verdict.detail
    assert bound(STATEMENT, {"a": -math.inf}).outcome == "does not hold"


def test_the_tolerance_of_a_bound_is_inclusive():
    assert bound(STATEMENT, {"a": -0.5}, tolerance=0.5).outcome == "holds"
    assert bound(STATEMENT, {"a": -0.5000001}, tolerance=0.5).outcome == "does not hold"
    with pytest.raises(ValueError, match="tolerance"):
        bound(STATEMENT, {}, tolerance=-1.0)


@pytest.mark.parametrize("slacks", [{}, {"a": 1.0, "b": math.nan}, {"a": math.inf}])
def test_a_bound_that_was_not_measured_everywhere_is_undecided(slacks):
    assert bound(STATEMENT, slacks).outcome == "undecided"


def test_a_bound_reads_the_smallest_value_of_a_series_and_waits_for_failed_cells():
    rows = [result("A", 0, slack=[3.0, 0.5, 2.0]), result("A", 1, slack=[1.0]), result("B", 0, other=1.0)]
    verdict = bound(STATEMENT, Table(rows), "slack")
    assert (verdict.outcome, verdict.estimate, verdict.high, verdict.pairs) == ("holds", 0.5, 1.0, 2)
    waiting = bound(STATEMENT, Table([*rows, result("A", 2, status="failed")]), "slack")
    assert waiting.outcome == "undecided"
    assert "A seed 2 failed" in waiting.detail
    assert bound(STATEMENT, Table(rows), "slack", arms=["A", "B"]).outcome == "undecided"
    assert bound(STATEMENT, Table(rows), "slack", arms=["C"]).outcome == "undecided"
    assert bound(STATEMENT, Table([result("A", 0, slack=[1.0, math.nan])]), "slack").outcome == "undecided"


def test_an_exact_power_law_has_its_exponent():
    x = [10.0, 100.0, 1000.0]
    verdict = rate(STATEMENT, x, {s: [(s + 1) * p**-0.5 for p in x] for s in range(6)}, -0.6, -0.4)
    assert verdict.estimate == pytest.approx(-0.5, abs=1e-12)
    assert (verdict.outcome, verdict.threshold, verdict.threshold_high) == ("holds", -0.6, -0.4)


def test_a_rate_is_the_interval_of_scipys_slopes():
    generator = np.random.default_rng(3)
    x = np.logspace(1, 4, 8)
    y = {seed: x**-0.7 * np.exp(generator.normal(0, 0.2, 8)) for seed in range(5)}
    slopes = [scipy.stats.linregress(np.log(x), np.log(values)).slope for values in y.values()]
    expected = scipy.stats.ttest_1samp(slopes, 0).confidence_interval(0.95)
    verdict = rate(STATEMENT, x, y, -0.9, -0.5)
    assert (verdict.low, verdict.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert verdict.outcome == "holds"
    assert rate(STATEMENT, x, y, -math.inf, -0.5).outcome == "holds"
    assert rate(STATEMENT, x, y, -0.5, 0.0).outcome == "does not hold"
    assert rate(STATEMENT, x, y, -2.0, -1.0).outcome == "does not hold"
    narrow = rate(STATEMENT, x, y, verdict.estimate - 1e-3, verdict.estimate + 1.0)
    assert narrow.outcome == "undecided"
    assert narrow.seeds_needed == seeds_needed(float(np.std(slopes, ddof=1)), 1e-3)


@pytest.mark.parametrize("broken", [[1.0, 0.5, 0.0], [1.0, math.nan, 0.2], [1.0, 0.5], [1.0, -0.5, 0.2]])
def test_a_seed_without_a_slope_leaves_the_rate_undecided(broken):
    y = {0: [1.0, 0.5, 0.26], 1: [1.0, 0.5, 0.24], 2: broken}
    verdict = rate(STATEMENT, [1, 2, 4], y, -2, 0)
    assert verdict.outcome == "undecided"
    assert "seed 2" in verdict.detail
    assert rate(STATEMENT, [1, 2, 4], {0: y[0], 1: y[1]}, -2, 0).outcome == "holds"


def test_a_rate_needs_two_places_and_a_range():
    assert rate(STATEMENT, [2, 2], {0: [1.0, 1.1], 1: [1.0, 1.1]}, -1, 1).outcome == "undecided"
    with pytest.raises(ValueError, match="range"):
        rate(STATEMENT, [1, 2], {}, 1.0, 1.0)


def test_a_rate_along_a_setting_reads_the_table_in_the_settings_order():
    rows = [
        result("A", seed, {"n": n}, time=(1 + 0.1 * seed) * n ** (2 + 0.01 * seed))
        for n in (100, 10, 1000)
        for seed in range(3)
    ]
    x, y = Table(rows).along("A", "n", "time")
    assert x == [10, 100, 1000]
    assert sorted(y) == [0, 1, 2]
    assert rate(STATEMENT, x, y, 1.9, 2.1).estimate == pytest.approx(2.01)


def grid(values, key="lr", method="A", seeds=2):
    """Cells whose validation metric is the given value, up to a spread that cancels in the mean."""
    return [
        result(method, seed, {key: setting}, val=value + 0.01 * (-1) ** seed, test=1 - value)
        for setting, value in values.items()
        for seed in range(seeds)
    ]


def test_best_takes_the_best_mean_of_the_validation_metric():
    selection = best(Table(grid({0.1: 0.7, 1.0: 0.9, 10.0: 0.8})), "A", "val")
    assert selection.arm == Arm("A", {"lr": 1.0})
    assert selection.value == pytest.approx(0.9)
    assert (selection.at_edge, len(selection.grid)) == (False, 3)
    assert best(Table(grid({0.1: 0.7, 1.0: 0.9, 10.0: 0.8})), "A", "val", "min").arm == Arm("A", {"lr": 0.1})


def test_best_is_the_best_mean_and_not_the_best_single_seed():
    rows = [
        result("A", 0, {"lr": 1.0}, val=0.99), result("A", 1, {"lr": 1.0}, val=0.1),
        result("A", 0, {"lr": 2.0}, val=0.7), result("A", 1, {"lr": 2.0}, val=0.7),
    ]  # fmt: skip
    assert best(Table(rows), "A", "val").arm == Arm("A", {"lr": 2.0})


@pytest.mark.parametrize("bad", [{"status": "failed"}, {"val": math.nan}, {"val": math.inf}, {"other": 1.0}])
def test_a_setting_that_failed_on_one_seed_loses(bad):
    rows = [*grid({0.1: 0.7, 1.0: 0.9, 10.0: 0.8}), result("A", 2, {"lr": 1.0}, **bad)]
    rows += [result("A", 2, {"lr": lr}, val=0.75) for lr in (0.1, 10.0)]
    selection = best(Table(rows), "A", "val")
    assert selection.arm == Arm("A", {"lr": 10.0})
    assert "seed 2" in selection.grid[1].lost[0]


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ({1.0: 0.5}, 0),
        ({0.1: 0.4, 1.0: 0.5}, 1),
        ({0.1: 0.4, 1.0: 0.5, 10.0: 0.3}, 0),
        ({10.0: 0.3, 1.0: 0.4, 0.1: 0.5}, 1),
    ],
)
def test_a_best_point_at_the_edge_of_its_grid_is_flagged(values, edges):
    assert len(best(Table(grid(values)), "A", "val").edges) == edges


def test_a_name_or_a_switch_has_no_edge():
    for values in ({"relu": 0.5, "tanh": 0.4}, {True: 0.5, False: 0.4}):
        assert not best(Table(grid(values)), "A", "val").at_edge


def test_each_numeric_value_of_a_setting_has_its_own_edge():
    rows = [
        result("A", 0, {"lr": lr, "decay": decay}, val=-abs(math.log10(lr)) - decay)
        for lr in (0.1, 1.0, 10.0)
        for decay in (0.0, 0.1)
    ]
    assert best(Table(rows), "A", "val").edges == ("decay=0 is the smallest tried",)


def test_without_a_setting_that_finished_the_verdict_is_undecided():
    rows = [result("A", seed, {"lr": 1.0}, status="failed") for seed in range(3)]
    rows += [result("B", seed, test=0.5 + 0.01 * seed) for seed in range(3)]
    selection = best(Table(rows), "A", "val")
    assert selection.arm is None
    assert math.isnan(selection.value)
    verdict = better(STATEMENT, Table(rows), selection, "B", "test")
    assert verdict.outcome == "undecided"
    assert "no setting of A finished" in verdict.detail


def test_a_verdict_tells_the_budgets_and_the_edges_of_both_sides():
    rows = grid({0.1: 0.7, 1.0: 0.9, 10.0: 0.8}, seeds=4) + grid({0.1: 0.6, 1.0: 0.5}, method="B", seeds=4)
    table = Table(rows)
    ours, theirs = best(table, "A", "val"), best(table, "B", "val")
    verdict = better(STATEMENT, table, ours, theirs, "test", mode="min")
    assert "best of 3 settings" in verdict.detail
    assert "best of 2 settings" in verdict.detail
    assert "B: lr=0.1 is the smallest tried" in verdict.detail
    assert "baseline was tuned over fewer settings" in verdict.detail
    assert "judged by" not in verdict.detail
    assert (
        "A was chosen by the metric it is judged by" in better(STATEMENT, table, ours, theirs, "val").detail
    )


def test_the_verdict_of_a_tuned_arm_is_that_of_its_chosen_setting():
    table = Table(grid({0.1: 0.7, 1.0: 0.9}, seeds=4))
    tuned = better(STATEMENT, table, best(table, "A", "val"), 0.0, "val")
    fixed = better(STATEMENT, table, Arm("A", {"lr": 1.0}), 0.0, "val")
    assert (tuned.estimate, tuned.low) == (fixed.estimate, fixed.low)


def test_a_series_is_not_a_number_and_has_its_own_reader():
    table = Table([result("A", 3, y=[1.0, 2.0]), result("A", 1, y=[3.0]), result("A", 2, other=1.0)])
    assert table.series_by_seed(Arm("A"), "y") == {3: [1.0, 2.0], 1: [3.0]}
    with pytest.raises(ValueError, match="y of A seed 3 is a series"):
        table.by_seed(Arm("A"), "y")
    twice = Table([*table, result("A", 1, {"M": 2.0}, y=[4.0])])
    with pytest.raises(ValueError, match="several cells of seed 1; give its setting"):
        twice.series_by_seed(Arm("A"), "y")


def test_an_arm_has_its_failed_cells_too_and_the_table_its_seeds():
    table = Table([result("A", 5, status="failed"), result("A", 2, x=1.0), result("B", 0, x=1.0)])
    assert [row.cell.seed for row in table.of(Arm("A"))] == [5, 2]
    assert [row.cell.seed for row in table.select(Arm("A"))] == [2]
    assert table.seeds == (0, 2, 5)


@pytest.mark.parametrize(
    "name", ["statistics", "intervals", "tuning", "formatting", "figures", "rendering", "summary", "claims"]
)
def test_examples_in_docstrings_are_true(name):
    tried = doctest.testmod(importlib.import_module(f"leyden.{name}"))
    assert tried.failed == 0


def test_importing_the_rules_costs_nothing_heavy():
    heavy = ("numpy", "scipy", "matplotlib", "torch", "lightning", "mlflow", "rich")
    code = f"import sys, leyden.statistics; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Toy(Claim):
    name, title, source, minutes, seeds = "toy", "", "", {}, {}
    statements = (
        Statement(id="gains", text="", kind="better"),
        Statement(id="keeps-up", text="", kind="not worse"),
    )
    metric, mode = "loss", "min"

    def cells(self, scale):
        return []

    def run(self, cell):
        return {}

    def judge(self, table):
        return []


def test_a_judge_judges_as_the_rules_do_with_what_the_claim_says():
    claim = Toy()
    rows = [result("A", seed, loss=1.0 + 0.01 * seed, acc=0.9) for seed in range(5)]
    rows += [result("B", seed, loss=2.0 + 0.03 * seed, acc=0.8 - 0.01 * seed) for seed in range(5)]
    table = Table(rows)
    judge = Judge(claim, table, unit="nats")
    gains, keeps_up = claim.statements
    assert judge.better("gains", "A", "B", 0.5) == better(
        gains, table, "A", "B", "loss", margin=0.5, mode="min", unit="nats"
    )
    assert judge.better("gains", "A", "B").outcome == "holds"
    assert judge.better("gains", "B", "A").outcome == "does not hold"
    assert judge.not_worse("keeps-up", "A", "B", 0.1) == not_worse(
        keeps_up, table, "A", "B", "loss", margin=0.1, mode="min", unit="nats"
    )
    other = Judge(claim, table, "acc", mode="max", by="ratio")
    assert other.better("gains", "A", "B", 1.05) == better(
        gains, table, "A", "B", "acc", margin=1.05, by="ratio"
    )
    assert judge.better("gains", "A", "B", metric="acc").outcome == "does not hold"
