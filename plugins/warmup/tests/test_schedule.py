"""The multiplier in closed form, and what a warm-up remembers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from leyden.testing.host_sync import host_syncs
from leyden_warmup import warmup_multiplier
from leyden_warmup.schedule import FORMS, Schedule, WarmupState
from torch import Tensor

LOSSES = 10 * torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


CPU = torch.device("cpu")


def walk(schedule: Schedule, losses: list[float]) -> list[float]:
    """The multipliers, in numbers and in tensors, which are the same to the bit."""
    numbers, tensors = WarmupState.initial(), WarmupState.initial(CPU)
    multipliers = []
    for loss in losses:
        numbers = schedule.advance(numbers, loss)
        tensors = schedule.advance(tensors, torch.tensor(loss, dtype=torch.float64))
        assert str(tensors.numbers()) == str(numbers.numbers())
        assert all(isinstance(value, Tensor) for value in tensors[1:])
        assert not any(isinstance(value, Tensor) for value in numbers)
        multipliers.append(float(numbers.multiplier))
    return multipliers


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "settings", [{}, {"ema": 0.9}, {"monotone": True}, {"release_at": 0.6}, {"max_steps": 50}]
)
def test_numbers_and_tensors_give_the_same_bits(form: Any, settings: dict[str, Any]) -> None:
    losses = [*LOSSES[:80].tolist(), math.nan, -1.0, math.inf, 3.0]
    assert len(walk(Schedule(C=0.3, form=form, **settings), losses)) == 84


@pytest.mark.parametrize("C", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("f_star", [0.0, 2.5])
def test_the_forms_are_their_formulas(C: float, f_star: float) -> None:
    for form, formula in (
        ("smooth", lambda gap: 1 / (1 + C * gap)),
        ("clipped", lambda gap: min(1.0, 1 / (C * gap)) if gap > 0 else 1.0),
        ("rational", lambda gap: 2 * C * gap / (1 + (C * gap) ** 2) if C * gap > 1 else 1.0),
    ):
        expected = torch.tensor([formula(max(float(loss) - f_star, 0)) for loss in LOSSES])
        found = warmup_multiplier(LOSSES, C=C, f_star=f_star, form=form)  # type: ignore[arg-type]
        assert (found - expected.double()).abs().max() <= 1e-7
        exact = [formula(max(float(loss) - f_star, 0)) for loss in LOSSES]
        assert max(abs(float(a) - b) for a, b in zip(found, exact, strict=True)) <= 1e-12


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
def test_smooth_is_at_most_clipped_and_at_least_half_of_it(C: float) -> None:
    smooth, clipped = (warmup_multiplier(LOSSES, C=C, form=form) for form in ("smooth", "clipped"))  # type: ignore[arg-type]
    assert bool((smooth <= clipped).all())
    assert bool((clipped <= 2 * smooth).all())


def test_rational_is_the_rate_of_riabinin_over_its_peak() -> None:
    K0, K2 = 0.3, 1.7
    rate = LOSSES / (K0 + K2 * LOSSES**2)
    peak = 1 / (2 * math.sqrt(K0 * K2))
    at_peak = math.sqrt(K0 / K2)
    beyond = at_peak < LOSSES
    found = warmup_multiplier(LOSSES, C=1 / at_peak, form="rational")
    torch.testing.assert_close(found[beyond], (rate / peak)[beyond], rtol=1e-12, atol=0)
    assert bool((found[~beyond] == 1).all())


def test_the_multiplier_is_the_theory_step_over_its_largest() -> None:
    from leyden_warmup import h0h1_step_size

    H0, H1 = 0.7, 3.1
    ratio = h0h1_step_size(LOSSES, H0=H0, H1=H1) * 10 * H0
    torch.testing.assert_close(warmup_multiplier(LOSSES, C=2 * H1 / H0), ratio, rtol=1e-12, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_below_f_star_leaves_the_rate_alone(form: Any) -> None:
    assert warmup_multiplier(torch.tensor(-3.0), form=form) == 1
    assert warmup_multiplier(torch.tensor(1.0), f_star=2.0, form=form) == 1


def test_the_average_starts_with_the_first_loss() -> None:
    losses = [4.0, 2.0, 1.0]
    averages = [4.0, 0.75 * 4 + 0.25 * 2, 0.75 * (0.75 * 4 + 0.25 * 2) + 0.25 * 1]
    expected = [1 / (1 + average) for average in averages]
    assert walk(Schedule(ema=0.75), losses) == pytest.approx(expected, abs=1e-12)


def test_without_an_average_each_loss_counts_alone() -> None:
    assert walk(Schedule(), [4.0, 2.0, 1.0]) == pytest.approx([1 / 5, 1 / 3, 1 / 2])


def test_a_monotone_multiplier_never_goes_down_and_starts_below_one() -> None:
    assert walk(Schedule(monotone=True), [4.0, 1.0, 3.0, 0.5]) == pytest.approx(
        [1 / 5, 1 / 2, 1 / 2, 1 / 1.5]
    )
    assert walk(Schedule(), [4.0, 1.0, 3.0])[2] == pytest.approx(1 / 4)


def test_from_max_steps_on_the_multiplier_is_one() -> None:
    assert walk(Schedule(max_steps=2), [4.0, 4.0, 4.0, 9.0]) == pytest.approx([1 / 5, 1 / 5, 1, 1])
    assert walk(Schedule(max_steps=0), [4.0]) == [1]


def test_a_multiplier_that_reaches_release_at_is_one_for_good() -> None:
    assert walk(Schedule(release_at=0.4), [4.0, 1.0, 9.0, 9.0]) == pytest.approx([1 / 5, 1, 1, 1])
    both = Schedule(release_at=0.4, max_steps=1)
    assert walk(both, [4.0, 9.0, 9.0]) == pytest.approx([1 / 5, 1, 1])


def test_the_step_of_the_release_is_kept() -> None:
    state = WarmupState.initial()
    seen: list[float] = []
    for loss in (4.0, 1.0, 9.0):
        state = Schedule(release_at=0.4).advance(state, torch.tensor(loss))
        seen.append(float(state.released_at))
    assert seen == [-1, 1, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_loss_that_is_not_finite_keeps_the_multiplier_and_the_average(bad: float, ema: float) -> None:
    with_it, without = (walk(Schedule(ema=ema), losses) for losses in ([4.0, bad, 1.0], [4.0, 1.0]))
    assert with_it[0] == with_it[1] == without[0]
    assert with_it[2] == without[1]


def test_before_any_finite_loss_the_multiplier_is_one() -> None:
    assert walk(Schedule(monotone=True), [math.nan, 4.0]) == pytest.approx([1, 1 / 5])


def test_what_was_odd_is_remembered() -> None:
    state = WarmupState.initial()
    for loss in (3.0, math.nan, -2.0, 5.0):
        state = Schedule().advance(state, torch.tensor(loss))
    assert bool(state.odd)
    assert float(state.lowest) == -2


@pytest.mark.parametrize("device", [None, CPU])
def test_numbers_bring_the_state_back_bit_for_bit(device: torch.device | None) -> None:
    state, schedule = WarmupState.initial(device), Schedule(ema=0.9, release_at=0.9)
    for loss in (math.nan, 4.0 / 3, 2.0 / 7):
        state = schedule.advance(state, torch.tensor(loss))
    again = WarmupState.of_numbers(state.numbers(), device)
    assert str(again) == str(state)
    assert again.numbers() == state.numbers()
    assert again.steps == 3


def test_a_step_reads_nothing_from_the_device() -> None:
    loss = torch.tensor(2.0)
    for form in FORMS:
        schedule = Schedule(form=form, ema=0.9, monotone=True, max_steps=9, release_at=0.9)  # type: ignore[arg-type]
        state = WarmupState.initial(CPU)
        tensors: list[Any] = [loss, *state[1:]]
        assert host_syncs(lambda s=schedule, t=state: s.advance(s.advance(t, loss), loss), tensors) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("C", 0.0),
        ("C", -1.0),
        ("C", math.nan),
        ("C", math.inf),
        ("C", True),
        ("f_star", math.nan),
        ("form", "linear"),
        ("ema", 1.0),
        ("ema", -0.1),
        ("ema", math.nan),
        ("max_steps", -1),
        ("max_steps", 1.5),
        ("max_steps", True),
        ("release_at", 0.0),
        ("release_at", 1.5),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        Schedule(**{name: value})
