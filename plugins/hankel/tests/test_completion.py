"""The solver on signals whose answer is known."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from leyden_hankel import (
    HankelCompletion,
    SpectralSignal,
    complete,
    fiht,
    hsnld,
    match_frequencies,
    pgd,
    relative_error,
    shgd,
    spectral_signal,
)
from leyden_hankel.completion import prepare
from leyden_hankel.solver import Settings, iterate, start
from torch import Tensor


def drawn(*args: Any, seed: int = 0, **kwargs: Any) -> SpectralSignal:
    return spectral_signal(*args, generator=torch.Generator().manual_seed(seed), **kwargs)


def solved(signal: SpectralSignal, rank: int, **kwargs: Any) -> Any:
    return complete(signal.y, signal.mask, rank, truth=signal.truth, **kwargs)


def first_below(errors: Tensor, level: float) -> float:
    """The first iteration whose error is at most a level, counted from 1; infinite if there is none."""
    places = (errors <= level).nonzero()
    return float(places[0]) + 1 if len(places) else math.inf


def test_acceptance_5_block_jacobi_is_scaled_gradient_descent_from_conjugate_factors() -> None:
    signal = drawn(127, 4, seed=1, samples=60)
    for iterations in (1, 5, 20):
        own = complete(
            signal.y,
            signal.mask,
            4,
            preconditioner="block_jacobi",
            step="fixed",
            max_iter=iterations,
            tol=0.0,
        )
        other = hsnld(signal.y, signal.mask, 4, max_iter=iterations, tol=0.0)
        assert relative_error(own.x, other.x) <= 1e-9


def test_projected_gradient_descent_from_conjugate_factors_is_the_symmetric_one() -> None:
    signal = drawn(127, 4, seed=1, samples=60)
    own = shgd(signal.y, signal.mask, 4, step=0.5, clip=False, max_iter=20, tol=0.0)
    other = pgd(signal.y, signal.mask, 4, step=0.5, max_iter=20, tol=0.0)
    plain = complete(signal.y, signal.mask, 4, preconditioner="none", step=0.5, max_iter=1, tol=0.0)
    first = shgd(signal.y, signal.mask, 4, step=0.5, clip=False, max_iter=1, tol=0.0)
    assert relative_error(own.x, other.x) <= 1e-9
    assert relative_error(plain.x, first.x) <= 1e-9


@pytest.mark.parametrize("kappa", [1, 5, 20])
def test_acceptance_5_the_tangent_step_needs_the_iterations_of_fiht(kappa: float) -> None:
    signal = drawn(1023, 10, seed=int(kappa), samples=300, kappa=kappa, separation=True)
    own = solved(signal, 10, step="fixed", max_iter=40, tol=0.0)
    other = fiht(signal.y, signal.mask, 10, max_iter=40, tol=0.0, truth=signal.truth)
    counts = [first_below(errors, 1e-6) for errors in (own.history["rel_error"], other.history["rel_error"])]
    assert abs(counts[0] - counts[1]) <= 2
    assert max(counts) < 30


def test_acceptance_6_the_iterations_do_not_depend_on_the_condition_number() -> None:
    needed: dict[float, list[float]] = {}
    for kappa in (1, 10, 100, 1000, 10000):
        for seed in (0, 1, 2):
            signal = drawn(1023, 10, seed=seed, samples=300, kappa=kappa, separation=True)
            errors = solved(signal, 10, tol=1e-11, max_iter=100).history["rel_error"]
            needed.setdefault(kappa, []).append(first_below(errors, 1e-10) - first_below(errors, 1e-3))
    assert max(max(counts) for counts in needed.values()) <= 24
    means = [statistics.fmean(counts) for counts in needed.values()]
    assert max(means) / min(means) <= 1.35


def test_acceptance_6_gradient_descent_needs_ten_times_as_many_at_kappa_20() -> None:
    signal = drawn(1023, 10, samples=300, kappa=20, separation=True)
    own = first_below(solved(signal, 10).history["rel_error"], 1e-3)
    slow = shgd(signal.y, signal.mask, 10, max_iter=int(10 * own), tol=0.0, truth=signal.truth)
    assert first_below(slow.history["rel_error"], 1e-3) >= 10 * own


@pytest.mark.parametrize(
    ("shape", "rank", "samples", "damping"),
    [
        (1023, 10, 300, True),
        ((63, 63), 10, 400, False),
        ((63, 63), 10, 400, True),
        ((31, 31, 15), 8, 600, False),
    ],
)
def test_acceptance_9_one_to_three_dimensions_damped_or_not(
    shape: int | tuple[int, ...], rank: int, samples: int, damping: bool
) -> None:
    for seed in (0, 1, 2):
        signal = drawn(shape, rank, seed=seed, samples=samples, damping=damping)
        found = solved(signal, rank, tol=1e-9, max_iter=130)
        assert found.history["rel_error"].min() <= 1e-8
        assert not found.history["objective"].isnan().any()


@pytest.mark.parametrize(("samples", "ratio"), [(200, 0.40), (400, 0.27)])
def test_acceptance_10_the_error_is_proportional_to_the_noise(samples: int, ratio: float) -> None:
    for noise_db in (20, 40, 60):
        errors = []
        for seed in range(5):
            signal = drawn(1023, 10, seed=seed, samples=samples, noise_db=noise_db)
            errors.append(float(relative_error(complete(signal.y, signal.mask, 10).x, signal.truth)))
        assert statistics.median(errors) / 10 ** (-noise_db / 20) == pytest.approx(ratio, rel=0.25)


@pytest.mark.parametrize("alpha", [0.1, 0.2])
def test_acceptance_11_outliers_are_set_aside(alpha: float) -> None:
    for seed in range(5):
        signal = drawn(1023, 10, seed=seed, samples=500, kappa=10, outliers=alpha)
        found = solved(signal, 10, step="fixed", outlier_fraction=alpha, max_iter=60, tol=0.0)
        assert found.history["rel_error"].min() <= 1e-6


def test_acceptance_11_without_the_robust_mode_outliers_ruin_the_answer() -> None:
    signal = drawn(1023, 10, samples=500, kappa=10, outliers=0.1)
    assert relative_error(complete(signal.y, signal.mask, 10).x, signal.truth) >= 0.5


def test_acceptance_12_frequencies_damping_and_amplitudes_are_exact_without_noise() -> None:
    signal = drawn(255, 5, samples=120, damping=True, separation=True)
    found = complete(signal.y, signal.mask, 5, tol=1e-13)
    assert match_frequencies(found.frequencies, signal.frequencies).max() <= 1e-10
    order = (found.frequencies.unsqueeze(1) - signal.frequencies).abs().argmin(dim=1)
    torch.testing.assert_close(found.damping, signal.damping[order], rtol=0, atol=1e-9)
    torch.testing.assert_close(found.amplitudes, signal.amplitudes[order], rtol=0, atol=1e-8)


@pytest.mark.parametrize(("shape", "samples"), [((15, 18), 130), ((9, 11, 8), 300)])
def test_frequencies_of_several_dimensions_stay_together(shape: tuple[int, ...], samples: int) -> None:
    signal = drawn(shape, 3, samples=samples)
    found = complete(signal.y, signal.mask, 3, tol=1e-13)
    assert match_frequencies(found.frequencies, signal.frequencies).max() <= 1e-10


def test_lines_that_share_a_frequency_along_one_dimension_are_told_apart() -> None:
    times = torch.arange(15, dtype=torch.float64)
    first, second, third = (torch.exp(2j * torch.pi * f * times) for f in (0.1, 0.33, 0.7))
    truth = torch.outer(first, second) + 2 * torch.outer(first, third) + 3j * torch.outer(second, third)
    mask = torch.rand(15, 15, generator=torch.Generator().manual_seed(0)) < 0.6
    found = complete(truth, mask, 3, tol=1e-12)
    expected = torch.tensor([[0.33, 0.7], [0.1, 0.7], [0.1, 0.33]], dtype=torch.float64)
    torch.testing.assert_close(found.frequencies, expected, rtol=0, atol=1e-9)


def test_acceptance_12_directions_of_arrival_from_one_snapshot() -> None:
    errors = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        while True:
            frequencies = torch.rand(4, dtype=torch.float64, generator=generator)
            turns = (frequencies.unsqueeze(1) - frequencies).remainder(1)
            if (torch.minimum(turns, 1 - turns) + torch.eye(4)).min() >= 0.1:
                break
        steering = torch.exp(2j * torch.pi * torch.arange(63).unsqueeze(1) * frequencies)
        phases = torch.rand(4, dtype=torch.float64, generator=generator)
        truth = steering @ torch.exp(2j * torch.pi * phases)
        sensors = torch.randperm(63, generator=generator)[:24]
        noise = torch.complex(*torch.randn(2, 24, dtype=torch.float64, generator=generator))
        observed = torch.full((63,), complex(math.nan, 0), dtype=truth.dtype)
        observed[sensors] = truth[sensors] + noise * (0.1 * truth[sensors].norm() / noise.norm())
        found = complete(observed, rank=4)
        errors.append(float(match_frequencies(found.frequencies, frequencies).max()))
    assert statistics.median(errors) <= 8e-4


def test_acceptance_13_a_long_signal_is_solved() -> None:
    signal = drawn(65535, 10, samples=6553, kappa=100)
    found = solved(signal, 10, tol=1e-6)
    assert found.history["rel_error"][-1] <= 1e-5


def test_acceptance_14_a_batch_gives_what_a_loop_gives() -> None:
    signals = [drawn(255, 4, seed=seed, samples=80) for seed in range(64)]
    y, mask, truth = (torch.stack([getattr(s, name) for s in signals]) for name in ("y", "mask", "truth"))
    solver = HankelCompletion(255, 4)
    together = solver(y, mask)
    for place in (0, 7, 20, 63):
        alone = solver(y[place], mask[place])
        assert relative_error(together.x[place], alone.x) <= 1e-8
        assert together.iters[place] == alone.iters
    single = solver(y.to(torch.complex64), mask)
    assert single.x.dtype == torch.complex64
    exact = relative_error(together.x, truth, signal_dims=1) <= 1e-5
    assert exact.double().mean() >= 0.95
    assert relative_error(single.x.to(truth.dtype), together.x, signal_dims=1)[exact].max() <= 5e-6


@pytest.mark.parametrize(
    "settings", [{"preconditioner": "none"}, {"preconditioner": "block_jacobi", "damping": 0.3}]
)
def test_in_a_batch_every_direction_is_that_of_the_signal_alone(settings: dict[str, Any]) -> None:
    signals = [drawn(63, 3, seed=seed, samples=40) for seed in (0, 1)]
    y, mask = torch.stack([s.y for s in signals]), torch.stack([s.mask for s in signals])
    solver = HankelCompletion(63, 3, step="fixed", max_iter=5, tol=0.0, **settings)
    together = solver(y, mask)
    for place, signal in enumerate(signals):
        assert relative_error(together.x[place], solver(signal.y, signal.mask).x) <= 1e-12


def test_a_signal_that_has_converged_keeps_every_bit_while_others_go_on() -> None:
    signals = [drawn(127, 3, seed=0, samples=100), drawn(127, 3, seed=1, samples=30)]
    y, mask = torch.stack([s.y for s in signals]), torch.stack([s.mask for s in signals])
    found = HankelCompletion(127, 3)(y, mask)
    assert found.iters[0] < found.iters[1]
    values = found.history["objective"][int(found.iters[0]) - 1 :, 0]
    assert bool((values == values[0]).all())


def test_acceptance_8_searched_steps_recover_from_few_samples_what_fixed_ones_and_fiht_do_not() -> None:
    signals = [drawn(127, 8, seed=seed, samples=40) for seed in range(12)]
    y, mask, truth = (torch.stack([getattr(s, name) for s in signals]) for name in ("y", "mask", "truth"))

    def recovered(step: str) -> int:
        x = HankelCompletion(127, 8, step=step)(y, mask).x  # type: ignore[arg-type]
        return int((relative_error(x, truth, signal_dims=1) <= 1e-3).sum())

    thresholded = [fiht(s.y, s.mask, 8, max_iter=100) for s in signals[:6]]
    others = [relative_error(f.x, s.truth) <= 1e-3 for f, s in zip(thresholded, signals[:6], strict=True)]
    assert recovered("auto") >= 8
    assert recovered("fixed") <= 5
    assert sum(map(bool, others)) <= 2


def test_what_is_updated_in_place_is_computed_anew_every_20_iterations() -> None:
    signal = drawn(63, 3, samples=40)
    settings = Settings(rank=3, step="exact", tol=0.0)
    task = prepare(signal.y, signal.mask, (63,), settings)
    state = start(task.problem, settings)
    equal = []
    for _ in range(20):
        state = iterate(task.problem, settings, state)
        spectrum = task.problem.operator.fft(state.factor)
        equal.append(torch.equal(torch.view_as_real(spectrum), torch.view_as_real(state.spectrum)))
        assert torch.allclose(spectrum, state.spectrum, rtol=0, atol=1e-12 * float(spectrum.abs().max()))
    assert equal[19]
    assert not any(equal[:19])


def test_after_a_rise_of_the_objective_one_step_is_searched_for() -> None:
    signal = drawn(16384, 10, seed=1, samples=2048, kappa=10, separation=True)
    steps = complete(signal.y, signal.mask, 10, max_iter=8).history
    rises = [1 + place for place in (steps["objective"].diff() > 0).nonzero().flatten().tolist()]
    searched = (steps["step_size"] != 1).nonzero().flatten().tolist()
    assert rises
    assert searched == [0, *(place + 1 for place in rises)]


def test_a_short_first_step_has_nine_more_searched_for() -> None:
    signal = drawn(127, 8, seed=3, samples=40)
    steps = complete(signal.y, signal.mask, 8, max_iter=12, tol=0.0).history["step_size"]
    assert steps[0] < 0.8
    assert bool((steps[:10] != 1).all())
    assert bool((steps[10:] == 1).all())


def test_single_precision_converges_to_its_own_rounding() -> None:
    signals = [drawn(255, 4, samples=80, seed=64_000 + place) for place in range(32)]
    y, mask, truth = (torch.stack([getattr(s, name) for s in signals]) for name in ("y", "mask", "truth"))
    double = HankelCompletion(255, 4)(y, mask)
    single = HankelCompletion(255, 4)(y.to(torch.complex64), mask)
    found = relative_error(double.x, truth, signal_dims=1) <= 1e-5
    assert int(found.sum()) >= 30
    assert single.converged[found].all()
    assert int(single.iters[found].max()) <= int(double.iters[found].max()) + 5
    assert relative_error(single.x.to(truth.dtype), truth, signal_dims=1)[found].max() <= 5e-6
    # Nothing converges with a tolerance of 0; the objective of what is returned is noise by then.
    unending = HankelCompletion(255, 4, tol=0.0, max_iter=60)(y.to(torch.complex64), mask)
    assert relative_error(unending.x.to(truth.dtype), truth, signal_dims=1)[found].max() <= 5e-6


def test_the_best_of_what_did_not_converge_is_the_last_whose_objective_is_equal_to_rounding() -> None:
    signal = drawn(255, 4, samples=80, seed=64_000)
    unending = HankelCompletion(255, 4, tol=0.0, max_iter=60)(signal.y, signal.mask)
    assert not unending.converged
    assert int(unending.iters) == 60
    assert relative_error(unending.x, signal.truth) <= 1e-13
    ended = HankelCompletion(255, 4, tol=1e-16, max_iter=120)(signal.y, signal.mask)
    assert ended.converged
    assert int(ended.iters) < 60
    assert relative_error(ended.x, signal.truth) <= 1e-13
