"""The fit of H0 and H1 against an independent solver, and curvature along a step of a quadratic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from leyden_warmup import fit_h0h1, secant_curvature
from leyden_warmup.history import draw_curvature
from scipy.optimize import nnls


def test_noiseless_points_give_the_constants_back() -> None:
    losses = torch.linspace(0.1, 4.0, 17, dtype=torch.float64)
    fit = fit_h0h1(losses, 2 + 3 * losses)
    assert [fit.H0, fit.H1, fit.C, fit.r] == pytest.approx([2, 3, 3, 1], abs=1e-8)
    assert fit.max_lr == pytest.approx(1 / 20)
    shifted = fit_h0h1((losses + 5).tolist(), (2 + 3 * losses).tolist(), f_star=5.0)
    assert list(shifted) == pytest.approx(list(fit), abs=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_the_fit_is_that_of_an_independent_solver(seed: int) -> None:
    generator = np.random.default_rng(seed)
    losses = generator.uniform(0.5, 3, 12)
    curvatures = np.abs(generator.normal(1) + generator.normal() * losses + generator.normal(size=12))
    (H0, H1), _ = nnls(np.column_stack([np.ones(12), losses]), curvatures)
    fit = fit_h0h1(losses.tolist(), curvatures.tolist())
    assert list(fit[:2]) == pytest.approx([H0, H1], abs=1e-9)
    assert fit.r == pytest.approx(np.corrcoef(losses, curvatures)[0, 1])


def test_curvature_that_falls_with_the_loss_has_no_warm_up_signal() -> None:
    fit = fit_h0h1([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0])
    assert (fit.H0, fit.H1, fit.C) == (2.5, 0.0, 0.0)
    assert fit.r == pytest.approx(-1)


def test_a_line_through_the_origin_has_an_infinite_parameter() -> None:
    fit = fit_h0h1([1.0, 2.0, 3.0], [0.5, 2.0, 4.0])
    assert fit.H0 == 0
    assert math.isinf(fit.C)
    assert math.isinf(fit.max_lr)


@pytest.mark.parametrize(
    ("losses", "curvatures"),
    [
        ([], []),
        ([1.0, 2.0], [1.0, 2.0]),
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, math.nan], [1.0, 2.0, 3.0]),
    ],
)
def test_too_few_points_or_one_loss_give_nan_and_a_warning(losses: Any, curvatures: Any) -> None:
    with pytest.warns(UserWarning, match="no fit of H0 and H1"):
        assert all(math.isnan(value) for value in fit_h0h1(losses, curvatures))


def test_points_that_are_not_finite_are_left_out() -> None:
    fit = fit_h0h1([0.0, 1.0, 2.0, 3.0], [2.0, 5.0, math.inf, 11.0])
    assert list(fit[:2]) == pytest.approx([2, 3])


def test_different_numbers_of_points_are_refused() -> None:
    with pytest.raises(ValueError, match="curvatures: expected 3 of them, as many as losses, got 2"):
        fit_h0h1([1.0, 2.0, 3.0], [1.0, 2.0])


def test_a_lower_bound_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^f_star: expected a finite number, got nan"):
        fit_h0h1([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], f_star=math.nan)


def test_along_a_step_on_a_quadratic_curvature_lies_between_the_eigenvalues() -> None:
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))
    values = torch.linspace(0.5, 8, 6, dtype=torch.float64)
    quadratic = basis @ torch.diag(values) @ basis.T
    for _ in range(200):
        step = torch.randn(6, generator=generator, dtype=torch.float64)
        halves = [(quadratic @ step)[:2], (quadratic @ step)[2:]]
        curvature = float(secant_curvature(halves, [step[:2], step[2:]]))
        assert 0.5 - 1e-12 <= curvature <= 8 + 1e-12
    top = basis[:, -1]
    assert float(secant_curvature([quadratic @ top], [top])) == pytest.approx(8, rel=1e-12)


def test_where_nothing_moved_there_is_no_curvature() -> None:
    assert bool(secant_curvature([torch.zeros(2)], [torch.zeros(2)]).isnan())


def test_low_precision_is_measured_in_float32() -> None:
    change = [torch.full((2000,), 300.0, dtype=torch.float16)]
    assert float(secant_curvature(change, [torch.ones(2000)])) == pytest.approx(300, rel=1e-5)


@pytest.mark.parametrize("curvatures", [[2.0, 5.0, 8.0], [8.0, 5.0, 2.0]])
def test_the_picture_shows_every_measurement_and_the_line(curvatures: list[float]) -> None:
    losses = [0.0, 1.0, 2.0]
    fit = fit_h0h1(losses, curvatures)
    figure = draw_curvature(losses, curvatures, fit)
    (axes,) = figure.axes
    assert axes.collections[0].get_offsets().tolist() == [
        list(pair) for pair in zip(losses, curvatures, strict=True)
    ]
    line = axes.lines[0].get_xydata()
    assert [y for _, y in line] == pytest.approx([fit.H0 + fit.H1 * x for x, _ in line])
    assert ("no warm-up signal" in figure.get_suptitle()) == (fit.H1 == 0)
