"""What users of the field have beside it, the signals it is tried on, and the pictures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from leyden_hankel import (
    HankelCompletion,
    HankelOperator,
    complete,
    emac,
    fiht,
    hsnld,
    ist,
    match_frequencies,
    pgd,
    relative_error,
    shgd,
    spectral_init,
    spectral_signal,
)
from leyden_hankel.experiments import arrival_errors, decay_signal
from leyden_hankel.pictures import iterations_figure, spectrum_figure


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_convex_program_agrees_where_both_are_exact() -> None:
    signal = spectral_signal(15, 1, samples=12, generator=generator())
    convex = emac(signal.y, signal.mask, 1)
    assert relative_error(convex.x, signal.truth) <= 1e-6
    assert relative_error(complete(signal.y, signal.mask, 1, tol=1e-12).x, convex.x) <= 1e-6
    assert match_frequencies(convex.frequencies, signal.frequencies).max() <= 1e-6


def test_soft_thresholding_finds_lines_on_its_grid_and_misses_others() -> None:
    t = torch.arange(64, dtype=torch.float64)
    mask = torch.rand(64, generator=generator()) < 0.6
    on_grid, off_grid = (torch.exp(2j * torch.pi * place / 63 * t[:63]) for place in (9.0, 9.5))
    errors = [
        relative_error(ist(signal, mask[:63], max_iter=800, decay=0.97).x, signal)
        for signal in (on_grid, off_grid)
    ]
    assert errors[0] <= 1e-4
    assert errors[1] >= 0.05
    assert relative_error(complete(off_grid, mask[:63], 1).x, off_grid) <= 1e-6


def test_gradient_descent_gets_there_where_lines_are_alike() -> None:
    signal = spectral_signal(127, 3, samples=80, kappa=1, separation=True, generator=generator())
    found = shgd(signal.y, signal.mask, 3, truth=signal.truth)
    assert bool(found.converged)
    assert found.history["rel_error"][-1] <= 1e-5


@pytest.mark.parametrize("method", [shgd, pgd, fiht, hsnld])
def test_a_rivals_factor_is_that_of_its_signal(method: Any) -> None:
    signal = spectral_signal(63, 2, samples=50, kappa=1, separation=True, generator=generator())
    found = method(100 * signal.y, signal.mask, 2, max_iter=200)
    assert relative_error(found.x, 100 * signal.truth) <= 1e-4
    operator = HankelOperator((63,))
    torch.testing.assert_close(operator.lift_adjoint(operator.fft(found.Z)), found.x, rtol=1e-3, atol=1e-1)


@pytest.mark.parametrize("method", [shgd, pgd, fiht, hsnld, ist])
def test_a_rival_completes_real_samples_with_real_ones(method: Any) -> None:
    times = torch.arange(63, dtype=torch.float64)
    found = method(torch.where(times % 5 != 2, torch.cos(0.7 * times), torch.nan), rank=2)
    assert found.x.dtype == torch.float64


def test_rows_are_clipped_at_the_length_that_the_start_allows() -> None:
    signal = spectral_signal(63, 4, samples=24, generator=generator(3))
    start = spectral_init(signal.y, signal.mask, 4)
    squares = start.abs().square().sum(dim=0)
    longest = (2 * (start.abs().square() / squares).sum(dim=1).max() * squares.max()).sqrt()
    lengths = {
        clip: shgd(signal.y, signal.mask, 4, step=1.9, clip=clip, max_iter=15).Z.norm(dim=1).max()
        for clip in (True, False)
    }
    assert float(lengths[True]) == pytest.approx(float(longest), rel=1e-9)
    assert lengths[False] > 1e6


def test_scaled_descent_sets_the_samples_aside_that_block_jacobi_does() -> None:
    signal = spectral_signal(127, 3, samples=90, kappa=2, outliers=0.1, generator=generator(1))
    for iterations in (1, 5, 40):
        own = complete(
            signal.y,
            signal.mask,
            3,
            preconditioner="block_jacobi",
            step="fixed",
            outlier_fraction=0.1,
            max_iter=iterations,
            tol=0.0,
        )
        other = hsnld(signal.y, signal.mask, 3, outlier_fraction=0.1, max_iter=iterations, tol=0.0)
        assert relative_error(other.x, own.x) <= 1e-9
    assert relative_error(other.x, signal.truth) <= 1e-3


def test_signals_are_drawn_as_described() -> None:
    signal = spectral_signal(
        255, 6, samples=100, kappa=50, separation=True, damping=True, noise_db=20, generator=generator()
    )
    moduli = signal.amplitudes.abs()
    assert moduli.min() == pytest.approx(1 / 50)
    assert moduli.max() == pytest.approx(1)
    ordered = signal.frequencies.sort().values
    assert (ordered.diff() >= 1.5 / 255 * (1 - 1e-9)).all()
    assert ((signal.damping >= 2 / 255) & (signal.damping <= 4 / 255)).all()
    seen = torch.where(signal.mask, signal.truth, torch.zeros((), dtype=signal.truth.dtype))
    assert torch.linalg.vector_norm(signal.y - seen) / torch.linalg.vector_norm(seen) == pytest.approx(0.1)
    assert not torch.equal(ordered, signal.frequencies)  # strengths have nothing to do with places
    assert not bool(signal.y[~signal.mask].any())
    plain = spectral_signal(255, 60, generator=generator()).amplitudes.abs()
    assert plain.min() >= 2
    assert 1 + 0.9 * 10**0.5 <= plain.max() <= 1 + 10**0.5
    odd = spectral_signal(255, 3, samples=25, outliers=0.1, generator=generator())
    assert int(((odd.y - odd.truth)[odd.mask].abs() > 1e-12).sum()) == 3
    wrong = spectral_signal(255, 3, samples=100, outliers=0.2, generator=generator())
    apart = (wrong.y - wrong.truth)[wrong.mask].abs()
    assert int((apart > 1e-12).sum()) == 20
    assert apart.max() <= 10 * 2**0.5 * wrong.truth.abs().mean()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"rank": 0}, "rank"),
        ({"samples": 64}, "samples"),
        ({"kappa": 0.5}, "kappa"),
        ({"separation": True, "rank": 43}, "separation"),
        ({"outliers": 1.0}, "outliers"),
        ({"noise_db": float("nan")}, "noise_db"),
        ({"shape": 2}, "shape"),
    ],
)
def test_signals_that_cannot_be_drawn_are_named(arguments: dict[str, object], name: str) -> None:
    given: dict[str, object] = {"shape": 63, "rank": 3, **arguments}
    with pytest.raises(ValueError, match=f"^{name}: "):
        spectral_signal(**given)  # type: ignore[arg-type]


def test_an_nmr_like_signal_is_completed_to_half_of_its_noise_and_strong_lines_are_found() -> None:
    signal = decay_signal(0)
    found = complete(signal.y, signal.mask, 8)
    assert relative_error(found.x, signal.truth) <= 0.026
    strong = signal.amplitudes.abs() >= 2.5
    assert match_frequencies(found.frequencies, signal.frequencies)[strong].max() <= 2e-3
    assert relative_error(ist(signal.y, signal.mask).x, signal.truth) >= 0.3


def test_an_array_finds_its_directions() -> None:
    assert arrival_errors(0)["frequency_error"] <= 2e-3


def test_frequencies_match_around_the_circle_and_what_is_left_over_is_told() -> None:
    found, true = torch.tensor([0.99, 0.5]), torch.tensor([0.01, 0.25, 0.49])
    assert match_frequencies(found, true).tolist() == pytest.approx([0.02, float("inf"), 0.01])
    pairs = torch.tensor([[0.2, 0.9], [0.5, 0.5]])
    assert match_frequencies(pairs, torch.tensor([[0.23, 0.1]])).tolist() == pytest.approx([0.2])
    with pytest.raises(ValueError, match=r"^found: expected 1 dimensions, got 2"):
        match_frequencies(torch.zeros(2, 2), true)


def test_errors_of_a_batch_are_told_apart() -> None:
    x, truth = torch.ones(2, 4), torch.tensor([[1.0], [2.0]]).expand(2, 4)
    assert relative_error(x, truth, signal_dims=1).tolist() == pytest.approx([0, 0.5])
    with pytest.raises(ValueError, match=r"^truth: expected shape \(2, 4\)"):
        relative_error(x, truth[0])


def test_the_pictures_show_lines_residual_and_iterations() -> None:
    signal = decay_signal(0)
    found = complete(signal.y, signal.mask, 8, truth=signal.truth)
    above, below = spectrum_figure(found, signal.y, signal.mask).axes
    labels = [text.get_text() for text in above.get_legend().get_texts()]
    assert labels == ["observed, zero-filled", "completed", "lines found"]
    (ticks,) = above.collections
    places = sorted(segment[0][0] for segment in ticks.get_segments())
    assert places == pytest.approx(sorted(found.frequencies.tolist()))
    completed = above.lines[1].get_ydata()
    assert max(below.lines[0].get_ydata()) < 0.05 * max(completed)  # type: ignore[type-var]
    (ax,) = iterations_figure(found).axes
    assert len(ax.lines) == 3
    assert len(ax.lines[0].get_xdata()) == int(found.iters)  # type: ignore[arg-type]
    assert ax.lines[2].get_ydata()[0] == 1  # type: ignore[index]
    batch = HankelCompletion(511, 8)(torch.stack([signal.y, 2 * signal.y]), signal.mask)
    single, pair = (
        spectrum_figure(one, y, signal.mask.expand(y.shape)).axes[1].lines[0].get_ydata()
        for one, y in ((found, signal.y), (batch, torch.stack([signal.y, 2 * signal.y])))
    )
    assert max(abs(pair - single)) <= 1e-6 * max(single)  # type: ignore[operator,type-var]
    history = {**found.history, "rel_change": torch.zeros_like(found.history["rel_change"])}
    (ax,) = iterations_figure(dataclasses.replace(found, history=history)).axes
    assert np.isnan(ax.lines[1].get_ydata()).all()  # nothing is zero on a logarithmic axis
    square = HankelCompletion((15, 15), 1)(torch.ones(15, 15), torch.ones(15, 15, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^completion: expected a signal of one dimension"):
        spectrum_figure(square)
