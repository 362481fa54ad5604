"""Bad input and corner cases: each is refused, told or handled as documented."""

from __future__ import annotations

import dataclasses
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from leyden_hankel import (
    Completion,
    HankelCompletion,
    JacobiPGD,
    SpectralSignal,
    complete,
    esprit,
    estimate_rank,
    hsnld,
    match_frequencies,
    relative_error,
    spectral_signal,
)
from leyden_hankel import completion as completion_module
from leyden_hankel import solver as solver_module
from leyden_hankel.completion import prepare
from leyden_hankel.frequencies import exponentials, fit_amplitudes
from torch import Tensor

NAN = complex(math.nan, 0)


def drawn(*args: Any, seed: int = 0, **kwargs: Any) -> SpectralSignal:
    return spectral_signal(*args, generator=torch.Generator().manual_seed(seed), **kwargs)


SIGNAL = drawn(63, 3, samples=40)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rank": 33}, "^rank: expected at most 32"),
        ({"rank": 21}, "^rank: expected at most half of the 40 observed samples"),
        ({"rank": 0}, "^rank"),
        ({"mask": torch.zeros(63, dtype=torch.bool)}, "^mask: expected observed samples, got none"),
        ({"mask": torch.ones(62, dtype=torch.bool)}, r"^mask: expected shape \(63,\), got \(62,\)"),
        ({"mask": torch.full((63,), 0.5)}, "^mask: expected bool"),
        ({"observed": torch.zeros(63)}, "^observed: expected a sample that is not 0"),
        ({"observed": torch.full((63,), math.inf)}, "^observed: expected finite samples"),
        ({"observed": torch.ones(63, dtype=torch.float16)}, "^observed: expected complex64, complex128"),
        ({"observed": torch.ones(2), "mask": None}, "^shape: expected sizes of at least 3"),
        (
            {"outlier_fraction": 0.5, "step": "fixed"},
            "^outlier_fraction: expected a number from 0 to below 0.5",
        ),
        ({"outlier_fraction": 0.1}, "^step: expected 'fixed' or a number with outlier_fraction=0.1"),
        ({"step": "newton"}, "^step: expected auto, exact, fixed or a number"),
        ({"step": 0.0}, "^step"),
        ({"step": None}, "^step: expected auto"),
        ({"step": True}, "^step: expected auto"),
        ({"tol": None}, "^tol: expected a finite number"),
        ({"damping": "a"}, "^damping: expected a finite number"),
        ({"outlier_fraction": None}, "^outlier_fraction: expected a number"),
        ({"step": "fixed", "outlier_fraction": 0.1, "consistent": True}, "^consistent: expected False"),
        ({"observed": torch.tensor(1.0)}, "^observed: expected a signal"),
        ({"signal_dims": 1.0}, "^signal_dims: expected 1 to 1"),
        ({"preconditioner": "diagonal"}, "^preconditioner: expected one of"),
        ({"tol": -1.0}, "^tol"),
        ({"damping": math.nan}, "^damping"),
        ({"max_iter": 0}, "^max_iter"),
        ({"signal_dims": 2}, "^signal_dims: expected 1 to 1, got 2"),
        ({"truth": torch.ones(5)}, r"^truth: expected shape \(63,\), got \(5,\)"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], text: str) -> None:
    given = {"observed": SIGNAL.y, "mask": SIGNAL.mask, "rank": 3, **arguments}
    with pytest.raises(ValueError, match=text):
        complete(**given)


def test_nan_at_an_observed_sample_is_named_and_elsewhere_changes_no_bit() -> None:
    plain = complete(SIGNAL.y, SIGNAL.mask, 3)
    spoilt = torch.where(
        SIGNAL.mask, SIGNAL.y, torch.tensor(complex(math.nan, math.inf), dtype=SIGNAL.y.dtype)
    )
    other = complete(spoilt, SIGNAL.mask, 3)
    assert torch.equal(torch.view_as_real(plain.x), torch.view_as_real(other.x))
    assert torch.equal(torch.view_as_real(plain.Z), torch.view_as_real(other.Z))
    with pytest.raises(ValueError, match=r"^observed: expected finite samples"):
        complete(spoilt, torch.ones(63, dtype=torch.bool), 3)


def test_nan_means_missing_where_there_is_no_mask() -> None:
    gaps = torch.where(SIGNAL.mask, SIGNAL.y, torch.tensor(NAN, dtype=SIGNAL.y.dtype))
    plain, other = complete(SIGNAL.y, SIGNAL.mask, 3), complete(gaps.numpy(), rank=3)
    assert torch.equal(torch.view_as_real(plain.x), torch.view_as_real(other.x))


def test_the_fault_of_a_batch_names_its_signal() -> None:
    y = torch.stack([SIGNAL.y, torch.zeros_like(SIGNAL.y)])
    with pytest.raises(ValueError, match="got zeros alone in signal 1 of the batch"):
        HankelCompletion(63, 3)(y, SIGNAL.mask.expand(2, 63))


def test_the_signal_of_a_batch_with_the_fewest_samples_bounds_the_rank() -> None:
    masks = torch.stack([SIGNAL.mask, torch.arange(63) < 5])
    with pytest.raises(ValueError, match=r"^rank: expected at most half of the 5 observed samples, got 3"):
        HankelCompletion(63, 3)(SIGNAL.truth.expand(2, 63), masks)


def test_the_values_of_the_completed_matrix_are_those_of_the_dense_one() -> None:
    found = complete(SIGNAL.y, SIGNAL.mask, 3, max_iter=1)
    turned = dataclasses.replace(
        found, Z=found.Z @ torch.tensor([[1, 2j, 0], [0, 1, 0.5], [0, 0, 3]]).to(found.Z)
    )
    for completion in (found, turned):
        matrix = completion.Z @ completion.Z.mT
        torch.testing.assert_close(completion.singular_values, torch.linalg.svdvals(matrix)[:3])
        condition = torch.linalg.cond(completion.Z) ** 2
        assert float(completion.gram_condition) == pytest.approx(float(condition), rel=1e-8)


def test_a_rank_given_too_high_still_recovers_and_is_told() -> None:
    signal = drawn(1023, 10, samples=300, separation=True)
    with pytest.warns(UserWarning, match="numerical rank is 10"):
        found = complete(signal.y, signal.mask, 12, truth=signal.truth)
    assert bool(found.converged)
    assert found.history["rel_error"][-1] <= 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        complete(signal.y, signal.mask, 10)  # the right rank, and no warning


@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_iterating_on_with_too_high_a_rank_does_not_blow_up(damping: float) -> None:
    signal = drawn(1023, 10, samples=300, separation=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = complete(
            signal.y, signal.mask, 12, truth=signal.truth, damping=damping, max_iter=150, tol=0.0
        )
    assert found.history["rel_error"][20:].max() <= 1e-4


def test_a_gram_matrix_that_is_exactly_singular_raises_nothing() -> None:
    t = torch.arange(31, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = complete(torch.exp(0.7j * t), rank=3, max_iter=30)
    assert relative_error(found.x, torch.exp(0.7j * t)) <= 1e-7


def test_a_rank_given_too_low_ends_at_a_stationary_point_and_tells_the_objective() -> None:
    signal = drawn(255, 4, samples=150)
    found = complete(signal.y, signal.mask, 2)
    assert found.history["objective"][-1] > 1e-3
    assert relative_error(found.x, signal.truth) > 1e-2


@pytest.mark.parametrize("size", [64, 32])
def test_even_sizes_are_padded_and_cut_again(size: int) -> None:
    signal = drawn(size, 2, samples=size // 2)
    found = complete(signal.y, signal.mask, 2, tol=1e-10)
    assert found.x.shape == (size,)
    assert relative_error(found.x, signal.truth) <= 1e-7


def test_three_samples_are_enough_for_a_signal() -> None:
    t = torch.arange(3, dtype=torch.float64)
    found = complete(torch.exp(1j * t), rank=1)
    assert found.frequencies.item() == pytest.approx(1 / (2 * math.pi))


def test_fewer_samples_than_unknowns_are_told() -> None:
    signal = drawn((15, 15), 10, samples=25)
    with pytest.warns(UserWarning, match="25 observed samples for 30 unknowns"):
        complete(signal.y, signal.mask, 10, max_iter=3)


@pytest.mark.parametrize("axis", [0, 1])
def test_regular_decimation_is_told(axis: int) -> None:
    mask = torch.zeros(15, 15, dtype=torch.bool)
    mask[(slice(1, None, 3), slice(None)) if axis == 0 else (slice(None), slice(0, None, 3))] = True
    signal = drawn((15, 15), 2)
    with pytest.warns(UserWarning, match=f"multiples of 3 apart along axis {axis}"):
        complete(signal.truth, mask, 2, max_iter=3)


PLACES = torch.stack(torch.meshgrid(torch.arange(15), torch.arange(15), indexing="ij"))


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (PLACES[0] == 4, "stand at one place along axis 0"),
        (PLACES[1] == 0, "stand at one place along axis 1"),
        (PLACES[0] == PLACES[1], "lie on a line or a plane"),
        ((PLACES[0] + PLACES[1]) % 2 == 1, "lie on a lattice of one in 2 places"),
        ((PLACES[0] + 2 * PLACES[1]) % 5 == 0, "lie on a lattice of one in 5 places"),
        ((PLACES[0] % 2 + PLACES[1] % 3) == 0, "are multiples of 2 apart along axis 0"),
    ],
)
def test_samples_on_a_line_or_a_lattice_are_told(mask: Tensor, text: str) -> None:
    signal = drawn((15, 15), 2)
    with pytest.warns(UserWarning, match=f"all observed samples {text}"):
        complete(signal.truth, mask, 2, max_iter=2)
    more = mask.clone()
    more[3:5, 3:5] = True  # a unit square reaches every place
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        complete(signal.truth, more, 2, max_iter=2)


def test_of_a_batch_one_signal_with_ambiguous_samples_is_enough() -> None:
    signal, times = drawn(63, 2), torch.arange(63)
    masks = torch.stack([times >= 0, times % 4 == 1])
    with pytest.warns(UserWarning, match="multiples of 4 apart along axis 0"):
        HankelCompletion(63, 2, max_iter=2)(signal.truth.expand(2, 63), masks)


def test_warnings_point_at_the_line_that_called() -> None:
    decimated = torch.arange(63) % 2 == 0
    for call in (
        lambda: complete(SIGNAL.truth, decimated, 3),
        lambda: HankelCompletion(63, 3)(SIGNAL.truth, decimated),
        lambda: complete(SIGNAL.truth, rank=5),
        lambda: HankelCompletion(63, 5)(SIGNAL.truth),
    ):
        with pytest.warns(UserWarning, match="samples are|numerical rank") as told:
            call()
        assert [Path(warning.filename).name for warning in told] == [Path(__file__).name]


def test_the_answer_to_a_decimated_signal_is_wrong_though_the_objective_vanishes() -> None:
    signal = drawn(127, 3, seed=0)
    mask = torch.arange(127) % 3 == 0
    with pytest.warns(UserWarning, match="frequencies are known up to multiples of 1/3"):
        found = complete(signal.truth, mask, 3)
    assert found.history["objective"][-1] <= 1e-8 * found.history["objective"][0]
    assert relative_error(found.x, signal.truth) > 0.1


def test_with_all_samples_it_takes_noise_out() -> None:
    signal = drawn(255, 3, noise_db=20)
    found = complete(signal.y, signal.mask, 3)
    assert relative_error(found.x, signal.truth) <= 0.5 * relative_error(signal.y, signal.truth)


def test_real_samples_give_a_real_signal_and_a_cosine_counts_twice() -> None:
    t = torch.arange(101, dtype=torch.float64)
    truth = torch.cos(0.7 * t) + 0.3 * torch.cos(1.9 * t + 1)
    found = complete(torch.where(t % 7 < 4, truth, math.nan), rank=4, tol=1e-10)
    assert found.x.dtype == torch.float64
    assert relative_error(found.x, truth) <= 1e-8


def test_what_of_a_real_signal_does_not_come_out_real_stays_complex() -> None:
    t = torch.arange(101, dtype=torch.float64)
    mask = torch.rand(101, generator=torch.Generator().manual_seed(0)) < 0.4
    found = complete(torch.cos(0.7 * t), mask, 1)  # a line short: one of two conjugate ones is found
    assert found.x.dtype == torch.complex128


def test_a_defective_pole_is_completed_and_its_frequency_known_to_half_the_digits() -> None:
    t = torch.arange(63, dtype=torch.float64)
    truth = (1 + 0.1 * t) * torch.exp(1.3j * t)
    mask = torch.rand(63, generator=torch.Generator().manual_seed(0)) < 0.6
    found = complete(truth, mask, 2, tol=1e-13)
    assert relative_error(found.x, truth) <= 1e-9
    distances = (found.frequencies - 1.3 / (2 * math.pi)).abs()
    assert distances.max() <= 1e-4


def test_equal_singular_values_are_no_trap() -> None:
    t = torch.arange(31, dtype=torch.float64)
    truth = torch.cos(2 * math.pi * 0.25 * t)
    found = complete(truth, t % 5 != 2, 2, tol=1e-12)
    assert relative_error(found.x, truth) <= 1e-10


def test_divergence_ends_with_the_best_iterate_and_is_told() -> None:
    signal = drawn((63, 63), 10, samples=400, damping=True)
    found = complete(signal.y, signal.mask, 10, step="fixed", truth=signal.truth)
    assert not bool(found.converged)
    assert torch.isfinite(torch.view_as_real(found.x)).all()
    values = found.history["objective"]
    rises = (values.diff() > 0).int()
    assert rises[-3:].tolist() == [1, 1, 1]  # the third rise running is the end
    assert int(found.iters) < 30
    best = int(values.argmin())
    assert relative_error(found.x, signal.truth) == pytest.approx(float(found.history["rel_error"][best]))


def test_signals_of_any_size_are_scaled_exactly() -> None:
    plain = complete(SIGNAL.y, SIGNAL.mask, 3)
    for power in (-40, 60):
        scaled = complete(SIGNAL.y * 4.0**power, SIGNAL.mask, 3)
        assert torch.equal(torch.view_as_real(scaled.x * 4.0**-power), torch.view_as_real(plain.x))
        objective = scaled.history["objective"] * 4.0 ** (-2 * power)
        assert torch.equal(objective, plain.history["objective"])
    largest = SIGNAL.y.abs().max()
    for top in (1.7e308, 1e-307):  # next to the ends of the numbers
        there = complete(SIGNAL.y / largest * top, SIGNAL.mask, 3).x
        assert relative_error(there / top * largest, SIGNAL.truth) <= 1e-6
    single = SIGNAL.y.to(torch.complex64) * 1e-30  # whose squares are below the smallest number
    assert relative_error(complete(single, SIGNAL.mask, 3).x * 1e30, SIGNAL.truth) <= 1e-5


def test_observed_samples_are_put_back_where_asked() -> None:
    signal = drawn(63, 3, samples=40, noise_db=20)
    found = complete(signal.y, signal.mask, 3, consistent=True)
    torch.testing.assert_close(found.x[signal.mask], signal.y[signal.mask], rtol=1e-14, atol=0)
    assert not torch.allclose(complete(signal.y, signal.mask, 3).x[signal.mask], signal.y[signal.mask])


@pytest.mark.parametrize(("rank", "noise_db"), [(1, None), (5, None), (5, 30)])
def test_the_rank_is_found_where_it_is_not_given(rank: int, noise_db: float | None) -> None:
    signal = drawn(255, rank, samples=120, separation=True, noise_db=noise_db)
    assert estimate_rank(signal.y, signal.mask) == rank
    assert complete(signal.y, signal.mask).rank == rank


def test_the_rank_is_found_despite_outliers_and_not_sought_beyond_a_limit() -> None:
    signal = drawn(255, 3, samples=150, separation=True, outliers=0.05)
    assert estimate_rank(signal.y, signal.mask, outlier_fraction=0.05) == 3
    assert estimate_rank(signal.y, signal.mask, outlier_fraction=0.05, max_rank=2) <= 2


def test_the_rank_of_a_batch_is_one_for_all_its_signals() -> None:
    signals = [drawn(63, 2, seed=seed, samples=45) for seed in (0, 1)]
    y, mask, truth = (torch.stack([getattr(s, name) for s in signals]) for name in ("y", "mask", "truth"))
    found = complete(y, mask, signal_dims=1)
    assert found.rank == 2
    assert relative_error(found.x, truth, signal_dims=1).max() <= 1e-6


def test_too_few_samples_to_estimate_a_rank_from_are_told() -> None:
    with pytest.raises(ValueError, match=r"^rank: expected at least 8 observed samples"):
        complete(torch.exp(1j * torch.arange(7)))


def test_gradients_through_the_iterations_match_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    signal = drawn(15, 1, samples=9, noise_db=20)
    solver = HankelCompletion(15, 1, step="fixed", max_iter=4, tol=0.0)
    constant = solver_module.start(
        prepare(signal.y, signal.mask, (15,), solver.settings).problem, solver.settings
    )
    monkeypatch.setattr(  # differences see the start move, gradients by contract do not
        completion_module, "start", lambda p, s: solver_module.start_at(p, s, constant.factor)
    )

    def function(real: torch.Tensor) -> torch.Tensor:
        y = torch.complex(real, signal.y.imag)
        return torch.view_as_real(solver(y, signal.mask, differentiable=True).x).square().sum()

    given = signal.y.real.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(given), given)
    assert gradient.abs().max() > 0
    for place in signal.mask.nonzero().flatten().tolist():
        step = torch.zeros(15, dtype=torch.float64).index_fill(0, torch.tensor([place]), 1e-6)
        difference = (function(given.detach() + step) - function(given.detach() - step)) / 2e-6
        assert float(gradient[place]) == pytest.approx(float(difference), rel=1e-5, abs=1e-6)
    assert gradient[~signal.mask].abs().max() == 0


def test_gradients_need_a_fixed_step() -> None:
    with pytest.raises(ValueError, match=r"^differentiable: expected step='fixed' and at most 50"):
        HankelCompletion(63, 3)(SIGNAL.y, SIGNAL.mask, differentiable=True)


def test_a_completion_can_be_pickled_and_a_batch_has_no_common_lines() -> None:
    found = HankelCompletion(63, 3)(SIGNAL.y.expand(2, 63), SIGNAL.mask)
    copy: Completion = pickle.loads(pickle.dumps(found))
    assert torch.equal(torch.view_as_real(copy.x), torch.view_as_real(found.x))
    with pytest.raises(ValueError, match=r"^lines: expected one signal, got a batch of shape \(2,\)"):
        _ = found.frequencies
    assert match_frequencies(esprit(found.Z[0], 63).frequencies, SIGNAL.frequencies).max() <= 1e-6


def test_a_factor_of_another_signal_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Z: expected shape \(32, rank\)"):
        esprit(torch.ones(30, 2, dtype=torch.complex128), 63)
    with pytest.raises(ValueError, match=r"^Z: expected fewer columns"):
        esprit(torch.ones(4, 4, dtype=torch.complex128), 7)


def test_numpy_arrays_and_integers_are_taken_for_masks() -> None:
    found = complete(SIGNAL.y.numpy(), SIGNAL.mask.numpy().astype(np.int64), 3)
    assert relative_error(found.x, SIGNAL.truth) <= 1e-6


def test_frequencies_just_below_a_whole_turn_are_zero_and_below_one() -> None:
    times = torch.arange(16, dtype=torch.float64)
    for turn in (1e-16, 1e-18):  # the angle over a turn, made positive, rounds to 1
        column = torch.complex(torch.ones_like(times), -turn * times).unsqueeze(1)
        assert esprit(column, 31).frequencies.tolist() == [0]


def test_amplitudes_of_close_lines_have_all_digits() -> None:
    poles = torch.polar(torch.ones(2, 1).double(), 2 * math.pi * torch.tensor([[0.2], [0.201]]).double())
    amplitudes = torch.tensor([1 + 2j, -1.5], dtype=torch.complex128)
    assert (fit_amplitudes(exponentials((127,), poles) @ amplitudes, poles) - amplitudes).norm() <= 1e-15


def test_dependent_columns_give_the_lines_that_there_are_and_nan_is_named() -> None:
    column = torch.exp(0.7j * torch.arange(16, dtype=torch.float64)).unsqueeze(1)
    lines = esprit(torch.cat([column, 2 * column, 0 * column], dim=1), 31)
    assert lines.frequencies.tolist() == pytest.approx([0.7 / (2 * math.pi)])
    assert len(lines.amplitudes) == 1
    with pytest.raises(ValueError, match=r"^Z: expected finite numbers"):
        esprit(column * math.nan, 31)


def test_no_signal_at_all_is_named_and_arrays_are_taken() -> None:
    solver = HankelCompletion(63, 3)
    with pytest.raises(ValueError, match=r"^observed: expected at least one signal"):
        solver(SIGNAL.y.expand(0, 63), SIGNAL.mask.expand(0, 63))
    assert bool(solver(SIGNAL.y.numpy(), SIGNAL.mask.numpy()).converged)
    for shape in (63.0, None):
        with pytest.raises(ValueError, match=r"^shape: expected sizes"):
            HankelCompletion(shape, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_rank": 0}, "^max_rank: expected a whole number"),
        ({"held_out": 0.99}, "^held_out: expected samples on both sides"),
        ({"held_out": math.nan}, "^held_out: expected a number"),
        ({"signal_dims": 0}, "^signal_dims: expected 1 to 1"),
        ({"mask": SIGNAL.mask[:5]}, "^mask: expected shape"),
        ({"mask": SIGNAL.mask * 0.5}, "^mask: expected bool"),
    ],
)
def test_wrong_arguments_of_the_rank_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        estimate_rank(**{"observed": SIGNAL.y, "mask": SIGNAL.mask, **arguments})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_iter": 0}, "^max_iter"),
        ({"tol": -1.0}, "^tol"),
        ({"step": math.nan}, "^step"),
        ({"outlier_fraction": 0.7}, "^outlier_fraction"),
        ({"truth": torch.ones(4)}, "^truth: expected shape"),
    ],
)
def test_wrong_arguments_of_the_predecessors_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        hsnld(SIGNAL.y, SIGNAL.mask, 3, **arguments)


def test_a_factor_of_zeros_stays_finite_in_every_step_of_the_optimizer() -> None:
    for preconditioner in ("tangent", "block_jacobi", "none"):
        factor = torch.zeros(4, 2, requires_grad=True)
        optimizer = JacobiPGD([factor], preconditioner=preconditioner)  # type: ignore[arg-type]
        (factor @ factor.mT - torch.eye(4)).square().sum().backward()
        optimizer.step()
        assert bool(factor.isfinite().all())
