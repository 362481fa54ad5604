from __future__ import annotations

import pytest
import torch
from leyden_asym_perturb import project_simplex


def by_bisection(points: torch.Tensor) -> torch.Tensor:
    """The projections of rows by bisection of their thresholds, an independent way."""
    points = points - points.amax(-1, keepdim=True)
    low, high = -torch.ones_like(points[:, :1]), torch.zeros_like(points[:, :1])
    for _ in range(200):
        middle = (low + high) / 2
        over = (points - middle).clamp(min=0).sum(-1, keepdim=True) > 1
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    return (points - (low + high) / 2).clamp(min=0)


def test_the_projection_is_that_of_bisection_on_a_thousand_points() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in range(1, 51):
        scales = 10 ** torch.empty(20, 1, dtype=torch.float64).uniform_(-3, 6, generator=generator)
        points = scales * torch.randn(20, size, dtype=torch.float64, generator=generator)
        found = project_simplex(points)
        assert bool(((found - by_bisection(points)).abs() <= 1e-9 * scales.clamp(min=1)).all())
        assert float((found.sum(-1) - 1).abs().max()) <= 1e-12
        assert bool((found >= 0).all())
        assert torch.equal(project_simplex(points[0]), found[0])


def test_points_of_the_simplex_stay_and_other_dimensions_work() -> None:
    points = torch.distributions.Dirichlet(torch.ones(5, dtype=torch.float64)).sample((3, 4))
    torch.testing.assert_close(project_simplex(points), points)
    torch.testing.assert_close(project_simplex(points.mT, dim=-2).mT, points)
    pairs = torch.tensor([[0.3, 0.4], [5.0, 1.0], [-2.0, -2.0]], dtype=torch.float64)
    torch.testing.assert_close(
        project_simplex(pairs), torch.tensor([[0.45, 0.55], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    )
    torch.testing.assert_close(project_simplex(pairs.T, dim=0).T, project_simplex(pairs))


def test_a_nan_is_seen() -> None:
    for size in (1, 2, 3):
        point = torch.zeros(size)
        point[0] = torch.nan
        assert bool(project_simplex(point).isnan().any())


def test_what_has_no_coordinates_in_floating_point_is_named() -> None:
    for wrong in (torch.tensor([1, 2, 3]), torch.tensor([1, 2]), torch.zeros(0), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"^v: expected"):
            project_simplex(wrong)
    with pytest.raises(ValueError, match=r"^v: expected"):
        project_simplex(torch.zeros(3, dtype=torch.complex64))


def test_its_gradient_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (2, 3, 7):
        points = torch.randn(20, size, dtype=torch.float64, generator=generator, requires_grad=True)
        assert torch.autograd.gradcheck(project_simplex, (points,))


def test_far_from_the_simplex_no_digits_are_lost() -> None:
    point = torch.tensor([0.25, 0.5, 0.125, -3.0], dtype=torch.float64)
    torch.testing.assert_close(project_simplex(2.0**40 + point), project_simplex(point), rtol=0, atol=1e-15)
