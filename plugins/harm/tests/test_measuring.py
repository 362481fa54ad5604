"""Rate and mass of harm, and how matrices correlate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from leyden_harm import harm_of_losses
from leyden_harm.measuring import gram_correlation, harm_of_totals, harm_totals


def test_rate_counts_and_mass_weighs_what_got_worse() -> None:
    found = harm_of_losses(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.5, 2.0, 2.0, 3.5]))
    assert found.rate.item() == 0.25
    assert found.mass.item() == pytest.approx(0.5 / 2.0)


def test_a_step_that_moves_nothing_harms_nobody() -> None:
    assert harm_of_losses(torch.ones(3), torch.ones(3)) == (0, 0)


def test_totals_of_parts_add_up_to_the_whole() -> None:
    changes = torch.randn(20, generator=torch.Generator().manual_seed(0))
    parts = harm_totals(changes[:7]) + harm_totals(changes[7:])
    torch.testing.assert_close(
        torch.stack(harm_of_totals(parts)), torch.stack(harm_of_losses(0 * changes, changes))
    )


def test_the_correlation_leaves_the_diagonal_out() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(6, 6, generator=generator).double() for _ in range(2))
    first, second = first + first.T, second + second.T
    off = ~np.eye(6, dtype=bool)
    expected = np.corrcoef(first.numpy()[off], second.numpy()[off])[0, 1]
    assert gram_correlation(first, second).item() == pytest.approx(expected)
    first.fill_diagonal_(100.0)
    assert gram_correlation(first, second).item() == pytest.approx(expected)
