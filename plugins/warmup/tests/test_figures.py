"""The pictures that the callbacks leave with a run."""

from __future__ import annotations

import math

import pytest
import torch
from leyden_warmup.history import History, draw_rates


def test_a_long_history_is_thinned_evenly() -> None:
    history = History(most=10)
    for step in range(100):
        history.add(step, (torch.tensor(step / 2), 3.0))
    assert history.steps == list(range(0, 100, 16))
    assert history.columns() == [[step / 2 for step in history.steps], [3.0] * len(history)]


def test_a_group_that_is_added_in_the_middle_has_no_rates_before() -> None:
    history = History()
    history.add(0, (0.5, 0.1))
    history.add(1, (0.6, 0.1, 0.02))
    *_, added = history.columns()
    assert math.isnan(added[0])
    assert added[1] == 0.02
    left, _ = draw_rates(history).axes
    assert [line.get_xydata()[1, 1] for line in left.lines] == pytest.approx([0.06, 0.1, 0.012, 0.02])


@pytest.mark.parametrize("groups", [1, 2])
def test_every_group_has_a_line_with_and_one_without_the_warm_up(groups: int) -> None:
    history = History()
    for step in range(5):
        history.add(step, (0.5, *[0.1 * (1 + group) for group in range(groups)]))
    left, _ = draw_rates(history).axes
    levels = [line.get_xydata()[0, 1] for line in left.lines]
    assert levels == pytest.approx(
        [level for group in range(groups) for level in (0.05 * (1 + group), 0.1 * (1 + group))]
    )
