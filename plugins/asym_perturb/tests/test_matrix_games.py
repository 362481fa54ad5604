"""AsymP-GDA on matrices: closed forms of biased rock, paper, scissors, and linear programming."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from leyden_asym_perturb import (
    MatrixGame,
    asymp_gda,
    asymp_solve,
    biased_pennies,
    biased_rps,
    invariance_threshold,
    many_equilibria,
    nash_conv,
    perturbed_gap,
    random_matrix,
    solve_matrix_game_lp,
)
from leyden_asym_perturb.baselines import (
    Extragradient,
    Method,
    MirroredAsymP,
    OptimisticGDA,
    PerturbedGDA,
    run,
)
from leyden_asym_perturb.game import STEP_SHARE, default_step
from leyden_asym_perturb.solver import Solver, SolveResult
from torch import Tensor

BRPS = biased_rps().payoff[0]
EQUILIBRIUM = torch.tensor([0.2, 0.6, 0.2], dtype=torch.float64)


def starts(seed: int, size: int = 3) -> tuple[Tensor, Tensor]:
    """Two random points of the simplex."""
    generator = np.random.default_rng(seed)
    x, y = (torch.from_numpy(generator.dirichlet(np.ones(size))) for _ in range(2))
    return x, y


@pytest.mark.parametrize("mu", [0.1, 1.0, 2.0])
def test_below_the_threshold_the_perturbed_player_reaches_its_equilibrium(mu: float) -> None:
    games = MatrixGame(BRPS.expand(5, 3, 3))
    x0, y0 = (torch.stack(side) for side in zip(*map(starts, range(5)), strict=True))
    of_x = asymp_gda(games, mu, 0.05, "x", x0, y0, max_iters=50_000, tol=1e-13)
    of_y = asymp_gda(games, mu, 0.05, "y", x0, y0, max_iters=50_000, tol=1e-13)
    assert float(of_x.bound.max()) <= 1e-10
    assert -float(of_y.bound.min()) <= 1e-10


def test_a_process_of_y_tells_what_its_strategy_earns_and_stops_in_time() -> None:
    value = 3.0  # so that nothing is symmetric
    found = asymp_gda(BRPS + value, 1.0, 0.05, "y", *starts(2), max_iters=17, tol=0)
    assert found.iters == 17
    assert float(found.bound) == pytest.approx(float(((BRPS + value) @ found.strategy).min()))
    method = PerturbedGDA(
        biased_rps(), eta=0.05, mu_y=1.0, **dict(zip(("x0", "y0"), (s[None] for s in starts(2)), strict=True))
    )
    run(method, 17)
    torch.testing.assert_close(found.strategy, method.y[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.companion, method.x[0], rtol=0, atol=1e-12)


def test_the_companion_is_biased_and_solving_does_not_return_it() -> None:
    process = asymp_gda(BRPS, 1.0, 0.05, max_iters=20_000, tol=1e-20)
    expected = torch.tensor([0.28, 0.60, 0.12], dtype=torch.float64)
    torch.testing.assert_close(process.companion, expected, rtol=0, atol=1e-8)
    one_run = float(nash_conv(BRPS, process.strategy, process.companion))
    assert one_run == pytest.approx(0.160, abs=1e-8)
    solved = asymp_solve(BRPS, mu=1.0)
    torch.testing.assert_close(solved.y, EQUILIBRIUM, rtol=0, atol=1e-6)
    assert solved.nash_conv <= 1e-8


@pytest.mark.parametrize(("mu", "expected"), [(4.0, [0.275, 0.525, 0.2]), (8.0, [0.3375, 0.4625, 0.2])])
def test_above_the_threshold_the_solution_moves_as_computed(mu: float, expected: list[float]) -> None:
    found = asymp_gda(BRPS, mu, 0.05, tol=1e-20).strategy
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-8)


def test_the_threshold_of_biased_rps_is_five_halves_and_scales() -> None:
    assert invariance_threshold(BRPS) == pytest.approx(2.5, abs=1e-6)
    assert invariance_threshold(BRPS, "y") == pytest.approx(2.5, abs=1e-6)
    for factor in (1e-3, 7.0, 1e4):
        assert invariance_threshold(factor * BRPS) == pytest.approx(2.5 * factor, rel=1e-6)
        assert invariance_threshold(factor * BRPS + factor) == pytest.approx(2.5 * factor, rel=1e-6)


def test_where_the_least_norm_is_uniform_every_perturbation_is_harmless() -> None:
    assert invariance_threshold(many_equilibria().payoff[0], "y") == math.inf
    assert invariance_threshold(torch.ones(3, 4)) == math.inf


@pytest.mark.parametrize("side", ["x", "y"])
def test_the_threshold_is_where_the_solution_starts_to_move(side: Literal["x", "y"]) -> None:
    payoffs = [random_matrix(5, seed).payoff[0] for seed in (2, 3, 5, 7, 8, 12)]  # no tiny thresholds
    scaled = MatrixGame(torch.stack([A / invariance_threshold(A, side) for A in payoffs]))
    below, nearly, above = (
        asymp_gda(scaled, mu, None, side, max_iters=3_000, tol=1e-13).strategy for mu in (0.8, 0.95, 1.1)
    )
    assert float((below - nearly).norm(dim=-1).max()) < 1e-5
    assert float((below - above).norm(dim=-1).min()) > 1e-4


def test_symmetric_perturbation_converges_and_is_biased() -> None:
    method = PerturbedGDA(biased_rps(), eta=0.05, mu_x=1.0, mu_y=1.0)
    run(method, 5_000)
    expected = torch.tensor([[2 / 7, 4 / 7, 1 / 7]], dtype=torch.float64)
    torch.testing.assert_close(method.x, expected, rtol=0, atol=1e-8)
    assert float(biased_rps().worst_case(method.x)) == pytest.approx(1 / 7, abs=1e-8)


def test_the_rate_is_the_root_of_one_minus_eta_mu() -> None:
    method = PerturbedGDA(biased_rps(), eta=0.1, mu_x=1.0)
    distances = []
    for _ in range(300):
        method.step()
        distances.append(float((method.x[0] - EQUILIBRIUM).norm()))
    slope = np.polyfit(range(100, 300), np.log(distances[100:]), 1)[0]
    assert math.exp(slope) == pytest.approx(math.sqrt(0.9), abs=0.002)


def test_named_games_are_solved_and_their_values_are_those_of_linear_programming() -> None:
    for game in (biased_rps(), many_equilibria(), biased_pennies()):
        found = asymp_solve(game)
        assert found.converged
        assert found.nash_conv <= 1e-8
        assert found.lower - 1e-12 <= game.solve_lp().value <= found.upper + 1e-12
        assert game.value == pytest.approx(game.solve_lp().value, abs=1e-12)


def test_random_games_are_solved_without_a_choice_of_mu() -> None:
    games = [random_matrix(10, seed) for seed in range(20)]
    batch = MatrixGame(torch.cat([game.payoff for game in games]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver = Solver(batch, eps=1e-8)
        while int(solver.done.sum()) < 18 and int(solver.iteration) < 12_000:
            solver.advance(500)
        found = solver.result()
    assert isinstance(found, SolveResult)
    assert isinstance(found.converged, Tensor)
    assert isinstance(found.lower, Tensor)
    assert isinstance(found.upper, Tensor)
    assert int(found.converged.sum()) >= 18
    for place, game in enumerate(games):
        if bool(found.converged[place]):
            assert (
                float(found.lower[place]) - 1e-8 <= game.solve_lp().value <= float(found.upper[place]) + 1e-8
            )


def test_the_rate_is_linear_in_the_accuracy() -> None:
    eta = 1 / (math.sqrt(11) + 1)
    needed = [
        asymp_solve(BRPS, eps, mu=1.0, eta=eta, check_every=1).iters for eps in (1e-4, 1e-6, 1e-8, 1e-10)
    ]
    steps = np.diff(needed)
    assert steps.max() / steps.min() <= 1.15
    assert needed == pytest.approx([73, 108, 143, 178], abs=3)


def test_alternating_converges_where_simultaneous_does_not() -> None:
    x0, y0 = (one[None] for one in starts(0))
    alternating, simultaneous = (
        PerturbedGDA(biased_rps(), eta=0.3, mu_x=1.0, simultaneous=flag, x0=x0, y0=y0)
        for flag in (False, True)
    )
    run(alternating, 400)
    run(simultaneous, 20_000)
    assert float(biased_rps().worst_case(alternating.x)) <= 1e-10
    assert float(biased_rps().worst_case(simultaneous.x)) > 0.1


def test_optimism_and_extragradient_converge_and_plain_descent_does_not() -> None:
    game = biased_rps()
    norm = math.sqrt(11)
    assert run(OptimisticGDA(game, eta=0.5 / norm), 400)[-1][1] < 1e-8
    assert run(Extragradient(game, eta=0.9 / norm), 400)[-1][1] < 1e-8
    start = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    assert run(PerturbedGDA(game, eta=0.1, x0=start, y0=start), 5_000)[-1][1] > 0.1


def test_noise_hurts_asymmetric_perturbation_least() -> None:
    games = MatrixGame(BRPS.expand(10, 3, 3))
    x0, y0 = (torch.stack(side) for side in zip(*map(starts, range(10)), strict=True))
    given: dict[str, Any] = {"eta": 0.01, "x0": x0, "y0": y0}
    asymmetric = PerturbedGDA(games, mu_x=1.0, noise=gaussian(), **given)
    symmetric = PerturbedGDA(games, mu_x=1.0, mu_y=1.0, noise=gaussian(), **given)
    optimistic = OptimisticGDA(games, noise=gaussian(), **given)
    found = mean_excess(asymmetric)
    assert found <= 0.6 * mean_excess(optimistic)
    assert found <= 0.3 * mean_excess(symmetric)


def gaussian() -> Callable[[Tensor], Tensor]:
    """Noise of standard deviation 0.1."""
    generator = torch.Generator().manual_seed(1)
    return lambda costs: costs + 0.1 * torch.randn(costs.shape, dtype=costs.dtype, generator=generator)


def mean_excess(method: Method, steps: int = 8_000) -> float:
    """The exploitability of x, over games and the last tenth of the steps."""
    total = 0.0
    for step in range(steps):
        method.step()
        if step >= 0.9 * steps:
            total += float(method.game.worst_case(method.x).mean()) / (0.1 * steps)
    return total


def test_a_batch_gives_what_single_games_give() -> None:
    generator = torch.Generator().manual_seed(3)
    payoffs = torch.randn(32, 4, 5, dtype=torch.float64, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = asymp_solve(MatrixGame(payoffs), 1e-6, max_iters=1_500)
        for place, payoff in enumerate(payoffs):
            single = asymp_solve(payoff, 1e-6, max_iters=1_500)
            torch.testing.assert_close(batch.x[place], single.x, rtol=0, atol=1e-12)
            torch.testing.assert_close(batch.y[place], single.y, rtol=0, atol=1e-12)
            assert isinstance(batch.nash_conv, Tensor)
            assert float(batch.nash_conv[place]) == pytest.approx(single.nash_conv, abs=1e-12)
            assert isinstance(batch.iters, Tensor)
            assert int(batch.iters[place]) == single.iters


def test_the_gap_bounds_the_distance_and_vanishes_at_the_solution() -> None:
    for seed in range(20):
        x, y = starts(seed)
        gap = float(perturbed_gap(BRPS, 1.0, x, y))
        assert gap >= 0.5 * float((x - EQUILIBRIUM).square().sum()) - 1e-12
        assert (
            float(perturbed_gap(BRPS, 1.0, x, y, "y"))
            >= 0.5 * float((y - EQUILIBRIUM).square().sum()) - 1e-12
        )
    companion = torch.tensor([0.28, 0.60, 0.12], dtype=torch.float64)
    assert float(perturbed_gap(BRPS, 1.0, EQUILIBRIUM, companion)) == pytest.approx(0, abs=1e-14)


def sharpness(A: Tensor, equilibrium: Tensor) -> float:
    """The least slope of g around an equilibrium strategy inside the simplex of three actions."""
    angles = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)[:, None]
    across = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64) / math.sqrt(2)
    along = torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64) / math.sqrt(6)
    return float(((angles.cos() * across + angles.sin() * along) @ A).amax(-1).min())


def test_below_half_the_sharpness_nash_conv_is_at_most_twice_the_gaps() -> None:
    alpha = sharpness(BRPS, EQUILIBRIUM)
    steepest = math.sqrt(2 / 3)
    points = [starts(seed) + starts(1000 + seed) for seed in range(500)]
    # near the solution, too, where the gaps are small
    points += [
        tuple(0.02 * one + 0.98 * EQUILIBRIUM for one in point)
        for point in points  # type: ignore[misc]
    ]

    def excess(mu: float) -> float:
        return max(
            float(nash_conv(BRPS, x, y))
            - 2 * float(perturbed_gap(BRPS, mu, x, other_y) + perturbed_gap(BRPS, mu, other_x, y, "y"))
            for x, y, other_x, other_y in points
        )

    assert excess(alpha / (2 * steepest)) <= 1e-12
    far_above = asymp_gda(BRPS, 4.0, tol=1e-14)
    assert float(nash_conv(BRPS, far_above.strategy, EQUILIBRIUM)) > 0.05 > 4 * float(far_above.gap)


def test_rounds_end_above_half_the_sharpness_and_without_delay() -> None:
    halved = asymp_solve(BRPS, max_iters=1_000)
    assert [one.mu for one in halved.history] == [12.0, 6.0, 3.0]
    assert halved.history[-1].iters <= 60
    assert halved.iters <= 100
    for seed in range(40):
        A = torch.from_numpy(np.random.default_rng(seed).standard_normal((3, 3)))
        both = solve_matrix_game_lp(A)
        if min(float(both.x.min()), float(both.y.min())) <= 0.01:
            continue
        found = asymp_solve(A - both.value)
        sharp = min(sharpness(A, both.x), sharpness(-A.mT, both.y))
        assert found.converged
        assert all(one.mu > sharp / (2 * math.sqrt(2 / 3)) for one in found.history)


def test_the_certificate_is_right_whatever_mu_is() -> None:
    with pytest.warns(UserWarning, match="NashConv"):
        found = asymp_solve(BRPS, 1e-8, mu=50.0, max_iters=500)
    assert not found.converged
    assert found.nash_conv == pytest.approx(float(nash_conv(BRPS, found.x, found.y)), abs=1e-14)
    assert found.lower <= 0 <= found.upper


def test_the_linear_program_gives_equilibria() -> None:
    for seed in range(5):
        A = torch.from_numpy(np.random.default_rng(seed).standard_normal((7, 4)))
        found = solve_matrix_game_lp(A)
        assert float(nash_conv(A, found.x, found.y)) < 1e-9
        assert float(found.x @ A @ found.y) == pytest.approx(found.value, abs=1e-9)


def test_gains_and_costs_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "gains.csv").write_text(
        "# row player's gains\n-0.333333333333,0.666666666667\n0.666666666667,-1\n"
    )
    game = MatrixGame.from_csv(tmp_path / "gains.csv", row="maximizes")
    torch.testing.assert_close(game.payoff, biased_pennies().payoff, rtol=0, atol=1e-9)
    found = asymp_solve(game)
    torch.testing.assert_close(found.x, torch.tensor([5 / 8, 3 / 8], dtype=torch.float64), rtol=0, atol=1e-6)
    assert found.lower <= -1 / 24 + 1e-8
    (tmp_path / "words.csv").write_text("1,two\n3,4\n")
    with pytest.raises(ValueError, match=r"words\.csv"):
        MatrixGame.from_csv(tmp_path / "words.csv")


def test_the_default_step_is_a_share_of_the_longest_stable_one() -> None:
    for norm, mu in ((3.0, 0.0), (3.0, 1.0), (0.1, 50.0), (0.0, 2.0)):
        eta = float(default_step(torch.tensor([norm]), torch.tensor([mu]))[0]) / STEP_SHARE
        assert eta**2 * norm**2 + 2 * eta * mu == pytest.approx(4.0, rel=1e-5)
    assert STEP_SHARE < 1
    assert float(default_step(torch.zeros(1), torch.zeros(1))) == 1.0


def test_the_solver_is_the_method_step_by_step() -> None:
    game = random_matrix(5, 3)
    x0, y0 = starts(1, 5)
    solver = Solver(game, eps=1e-300, mu=0.3, eta=0.1, x0=x0, y0=y0)
    method = MirroredAsymP(game, eta=0.1, mu=0.3, x0=x0[None], y0=y0[None])
    for _ in range(30):
        solver.advance(1)
        method.step()
        torch.testing.assert_close(solver.x[:, 0], method.x, rtol=0, atol=1e-13)
        torch.testing.assert_close(solver.y[:, 1], method.y, rtol=0, atol=1e-13)
    assert float(solver.current) == pytest.approx(float(game.nash_conv(method.x, method.y)), abs=1e-12)


def test_gaps_of_games_are_those_of_the_function() -> None:
    game, mu = random_matrix(4, 2), torch.tensor([0.7], dtype=torch.float64)
    x, y = starts(3, 4)
    for player, side, pair in ((0, "x", (x, y)), (1, "y", (y, x))):
        ours = game.perturbed_gap(player, pair[0][None], pair[1][None], mu)
        expected = perturbed_gap(game.payoff[0], 0.7, x, y, side)  # type: ignore[arg-type]
        assert float(ours) == pytest.approx(float(expected), abs=1e-13)
