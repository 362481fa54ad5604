"""Bad input and odd games: an error names the argument, a budget that ends is said, nothing hides."""

from __future__ import annotations

import copy
import logging
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from leyden_asym_perturb import (
    AsymPGameModule,
    Decision,
    MatrixGame,
    SequenceFormGame,
    Terminal,
    asymp_gda,
    asymp_solve,
    biased_rps,
    goofspiel,
    invariance_threshold,
    kuhn_poker,
    leduc_poker,
    liars_dice,
    nash_conv,
    perturbed_gap,
    random_matrix,
    solve_matrix_game_lp,
)
from leyden_asym_perturb.game import POWER_SAFETY, spectral_norm
from leyden_asym_perturb.solver import Solver, _distance

BRPS = biased_rps().payoff[0]


@pytest.mark.parametrize(
    ("payoff", "text"),
    [
        ([[1.0, math.nan]], "finite"),
        ([[math.inf, 1.0]], "finite"),
        (torch.zeros(0, 3), "at least one entry"),
        (torch.zeros(3), "shape"),
        (torch.zeros(1, 1, 1, 1), "shape"),
        (torch.zeros(2, 2, dtype=torch.complex64), "real"),
        ([["a", "b"]], "numbers"),
    ],
)
def test_a_payoff_that_is_none_is_named(payoff: Any, text: str) -> None:
    for use in (MatrixGame, asymp_solve, lambda A: asymp_gda(A, 1.0)):
        with pytest.raises(ValueError, match=rf"^payoff: .*{text}"):
            use(payoff)


def test_whole_numbers_become_float64() -> None:
    assert MatrixGame(torch.eye(3, dtype=torch.int64)).payoff.dtype == torch.float64
    assert MatrixGame(np.eye(2, dtype=np.int32)).payoff.dtype == torch.float64


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"mu": -1.0}, "mu"),
        ({"mu": math.nan}, "mu"),
        ({"mu_init": 0.0}, "mu_init"),
        ({"eta": 0.0}, "eta"),
        ({"eta": math.inf}, "eta"),
        ({"eps": 0.0}, "eps"),
        ({"eps": math.nan}, "eps"),
        ({"max_iters": -1}, "max_iters"),
        ({"check_every": 0}, "check_every"),
        ({"max_halvings": -1}, "max_halvings"),
        ({"x0": torch.tensor([0.5, 0.5])}, "x0"),
        ({"y0": torch.tensor([0.5, math.nan, 0.5])}, "y0"),
    ],
)
def test_an_argument_out_of_range_is_named(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        asymp_solve(BRPS, **given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"mu": -1.0}, "mu"),
        ({"eta": -1.0}, "eta"),
        ({"side": "z"}, "side"),
        ({"perturbation": "b"}, "perturbation"),
    ],
)
def test_an_argument_of_a_process_is_named(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        asymp_gda(BRPS, **{"mu": 1.0, **given})


def test_what_is_no_game_is_named() -> None:
    for wrong in ("kuhn", None):
        with pytest.raises(ValueError, match=r"^game: expected"):
            asymp_solve(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^game: expected"):
        AsymPGameModule(torch.eye(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^cards: expected"):
        goofspiel(1)
    with pytest.raises(ValueError, match=r"^sides: expected"):
        liars_dice(1)
    with pytest.raises(ValueError, match=r"^row: expected"):
        MatrixGame([[1.0]], row="plays")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^value: expected"):
        MatrixGame([[1.0]], math.nan)
    with pytest.raises(ValueError, match=r"^side: expected"):
        invariance_threshold(BRPS, "z")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a batch of 2"):
        MatrixGame(torch.zeros(2, 3, 3)).solve_lp()


def test_openspiel_games_that_do_not_fit_are_named() -> None:
    pytest.importorskip("pyspiel")
    with pytest.raises(ValueError, match=r"^game: OpenSpiel does not load 'kuhn_pokr'"):
        SequenceFormGame.from_openspiel("kuhn_pokr")
    with pytest.raises(ValueError, match=r"^game: expected two players"):
        SequenceFormGame.from_openspiel("kuhn_poker(players=3)")
    with pytest.raises(ValueError, match=r"^game: expected a zero-sum game"):
        SequenceFormGame.from_openspiel("matrix_pd")
    with pytest.raises(ValueError, match=r"^game: expected a zero-sum game"):
        MatrixGame.from_openspiel("matrix_pd")


def test_a_step_beyond_the_bound_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="the bound is 4"):
        asymp_gda(BRPS, 1.0, 2.0, max_iters=10)
    with pytest.warns(UserWarning, match="the bound is 4"):
        Solver(biased_rps(), eps=1e-3, mu=1.0, eta=2.0)


def test_no_perturbation_is_plain_descent_ascent() -> None:
    start = torch.tensor([0.4, 0.3, 0.3], dtype=torch.float64)
    with pytest.warns(UserWarning, match="NashConv"):
        found = asymp_solve(BRPS, mu=0.0, eta=0.05, x0=start, y0=start, max_iters=2000)
    assert found.nash_conv > 1e-3
    assert not found.converged


def test_where_everything_is_equal_uniform_play_is_the_answer_at_once() -> None:
    for size in ((3, 4), (1, 1), (2, 1)):
        found = asymp_solve(torch.full(size, 7.0))
        assert (found.nash_conv, found.iters, found.converged) == (0.0, 0, True)
        torch.testing.assert_close(found.x, torch.full((size[0],), 1 / size[0], dtype=torch.float64))


def test_a_player_with_one_strategy_has_no_choice() -> None:
    row = torch.tensor([[3.0, -1.0, 2.0]])
    found = asymp_solve(row)
    assert found.x.tolist() == [1.0]
    assert found.converged
    assert found.upper == pytest.approx(3.0)
    other = asymp_solve(row.T)
    assert other.y.tolist() == [1.0]
    assert other.lower == pytest.approx(-1.0, abs=1e-7)


def test_duplicate_and_dominated_actions_leave_the_value() -> None:
    more = torch.cat((BRPS, BRPS[:1], BRPS[:1] + 5.0))
    more = torch.cat((more, more[:, 1:2], more[:, :1] - 4.0), dim=1)
    found = asymp_solve(more)
    assert found.converged
    assert found.lower - 1e-12 <= 0.0 <= found.upper + 1e-12
    assert solve_matrix_game_lp(more).value == pytest.approx(0.0, abs=1e-9)


def test_adding_a_constant_and_scaling_change_nothing_but_the_value() -> None:
    plain = asymp_solve(BRPS)
    shifted = asymp_solve(BRPS + 1000.0, eps=1e-8, max_iters=1_000)
    assert abs(shifted.iters - plain.iters) <= 10
    scaled = asymp_solve(1e4 * BRPS, eps=1e-4)
    torch.testing.assert_close(scaled.x, plain.x, rtol=0, atol=1e-7)


def test_a_start_off_the_simplex_is_projected_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="leyden_asym_perturb.arguments"):
        found = asymp_solve(BRPS, x0=torch.tensor([5.0, 1.0, 1.0]))
    assert found.converged
    assert "x0 is no point of the simplex" in caplog.text
    game = kuhn_poker()
    assert asymp_solve(game, 1e-3, x0=torch.full((13,), 3.0)).converged
    with pytest.raises(ValueError, match=r"^x0: expected shape"):
        asymp_solve(game, x0=torch.ones(3))
    with pytest.raises(ValueError, match=r"^y0: expected finite"):
        asymp_solve(game, y0=torch.full((13,), math.nan))


def test_an_exhausted_budget_gives_the_best_pair_and_says_so() -> None:
    with pytest.warns(UserWarning, match=r"30 iterations reached NashConv .*, eps is 1e-12"):
        found = asymp_solve(BRPS, 1e-12, max_iters=30)
    assert not found.converged
    assert found.nash_conv == pytest.approx(float(nash_conv(BRPS, found.x, found.y)))
    assert found.nash_conv <= float(nash_conv(BRPS, *(torch.full((3,), 1 / 3, dtype=torch.float64),) * 2))
    with pytest.warns(UserWarning, match="0 iterations"):
        assert asymp_solve(BRPS, max_iters=0).x.tolist() == pytest.approx([1 / 3] * 3)


def test_a_nan_in_the_loop_ends_the_run_and_tells_where() -> None:
    solver = Solver(biased_rps(), eps=1e-12, mu=0.5)
    solver.advance(20)
    solver.x[0, 0, 0] = math.nan
    with pytest.raises(FloatingPointError, match=r"iteration 30 with mu = 0\.5"):
        solver.advance(20)


def test_large_matrices_get_their_norm_by_power_iteration() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(1100, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    large = left @ right.T
    exact = float(torch.linalg.matrix_norm(large, 2))
    assert exact <= float(spectral_norm(large)) <= POWER_SAFETY * exact * (1 + 1e-9)


def test_halving_ends_where_it_is_told_to_and_may_start_anew() -> None:
    with pytest.warns(UserWarning, match="NashConv"):
        found = asymp_solve(BRPS, mu_init=40.0, max_halvings=2, max_iters=3000)
    assert found.rounds == 2
    assert found.mu == 10.0
    cold = asymp_solve(BRPS, warm_start=False)
    assert cold.converged
    assert not torch.equal(cold.x, asymp_solve(BRPS).x)


def test_a_payoff_may_have_any_strides_rights_and_byte_order_and_is_copied() -> None:
    array = BRPS.numpy().copy()
    kinds: list[Any] = [
        array[::-1][::-1],
        np.broadcast_to(array, (3, 3)),
        array.astype(">f8"),
        array.astype(np.longdouble),
        torch.from_numpy(array).to_sparse(),
        torch.from_numpy(array).requires_grad_(),
    ]
    for kind in kinds:
        game = MatrixGame(kind)
        torch.testing.assert_close(game.payoff[0], BRPS)
        assert not game.payoff.requires_grad
    torch.testing.assert_close(MatrixGame(array[::-1]).payoff[0], BRPS.flip(0))
    mine = BRPS.clone()
    game = MatrixGame(mine)
    mine.zero_()
    torch.testing.assert_close(game.payoff[0], BRPS)
    torch.testing.assert_close(game.rows[0].mT, game.payoff[0])


def test_a_payoff_that_would_overflow_is_named() -> None:
    for use in (MatrixGame, solve_matrix_game_lp, invariance_threshold):
        with pytest.raises(ValueError, match=r"^payoff: .*1e\+300"):
            use([[1e308, -1e308], [-1e308, 1e308]])  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [1e-200, 1e-10, 1e160])
def test_the_scale_of_the_payoffs_changes_no_iteration(scale: float) -> None:
    plain, scaled = asymp_solve(BRPS, 1e-8), asymp_solve(scale * BRPS, 1e-8 * scale)
    assert scaled.converged
    assert scaled.iters == plain.iters
    assert scaled.rounds == plain.rounds
    assert scaled.nash_conv / scale == pytest.approx(plain.nash_conv, rel=1e-3)


@pytest.mark.parametrize(
    ("scale", "shift"), [(1e-12, 0.0), (1e-9, 0.0), (1e12, 0.0), (1e150, 0.0), (1.0, 1e10)]
)
def test_linear_programs_see_small_large_and_shifted_payoffs(scale: float, shift: float) -> None:
    plain = random_matrix(6, 0).payoff[0]
    payoff, value = scale * plain, solve_matrix_game_lp(plain).value
    found = solve_matrix_game_lp(payoff + shift)
    assert float(nash_conv(payoff, found.x, found.y)) <= 1e-9 * scale
    assert found.value == pytest.approx(shift + scale * value, rel=1e-6)
    assert invariance_threshold(scale * BRPS + shift) == pytest.approx(2.5 * scale, rel=1e-6)


def test_a_small_tree_is_solved_by_its_linear_program() -> None:
    payoff = 1e-9 * torch.tensor([[3.0, -1.0], [-2.0, 4.0]], dtype=torch.float64)
    game = SequenceFormGame.from_tree(
        Decision(
            0,
            "x",
            {
                str(i): Decision(1, "y", {str(j): Terminal((-c, c)) for j, c in enumerate(row)})
                for i, row in enumerate(payoff.tolist())
            },
        )
    )
    solved = game.solve_lp()
    assert solved.value == pytest.approx(1e-9, rel=1e-6)
    assert float(game.nash_conv(solved.x, solved.y)) < 1e-15


def test_numbers_of_numpy_are_numbers_and_others_are_named() -> None:
    assert asymp_solve(BRPS, np.float32(1e-3), eta=np.float64(0.05)).converged  # type: ignore[arg-type]
    for wrong in (True, "1", torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"^eps: expected"):
            asymp_solve(BRPS, wrong)  # type: ignore[arg-type]
    for wrong in ("a", torch.tensor(1.0), math.inf):
        with pytest.raises(ValueError, match=r"^value: expected"):
            MatrixGame([[1.0]], wrong)  # type: ignore[arg-type]
    assert MatrixGame([[1.0]], 2, row="maximizes").value == -2.0
    for count in (-1, 2.5, True):
        with pytest.raises(ValueError, match=r"^max_iters: expected"):
            asymp_gda(BRPS, 1.0, max_iters=count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^mu_init: expected None"):
        asymp_solve(BRPS, mu=1.0, mu_init=2.0)
    with pytest.raises(ValueError, match=r"^game: expected its payoffs in float"):
        asymp_solve(biased_rps().half())
    for name, given in {"size": (0, 0), "seed": (3, -1)}.items():
        with pytest.raises(ValueError, match=rf"^{name}: expected"):
            random_matrix(*given)
    with pytest.raises(ValueError, match=r"^games: expected"):
        random_matrix(3, 0, games=0)
    for make in (goofspiel, liars_dice):
        with pytest.raises(ValueError, match="expected a whole number of at least 2"):
            make(2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["uniform", [0.5, 0.5], torch.full((3,), 1 / 3, dtype=torch.complex64)])
def test_a_start_that_is_none_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^x0: expected"):
        asymp_solve(BRPS, x0=wrong)


def test_a_start_with_a_gradient_or_odd_strides_is_a_start_like_others() -> None:
    start = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    plain = asymp_solve(BRPS, x0=start)
    graph = asymp_solve(BRPS, x0=start.clone().requires_grad_())
    assert torch.equal(plain.x, graph.x)
    assert not graph.x.requires_grad
    backwards: Any = np.array([0.2, 0.3, 0.5])[::-1]
    assert torch.equal(asymp_solve(BRPS, x0=backwards).x, plain.x)
    kuhn = kuhn_poker()
    assert not asymp_solve(kuhn, 0.1, x0=kuhn.uniform()[0].requires_grad_()).x.requires_grad
    copy.deepcopy(Solver(biased_rps(), eps=1e-3, x0=start.clone().requires_grad_()))


def test_iterations_after_the_last_check_count() -> None:
    with pytest.warns(UserWarning, match="5 iterations reached"):
        few = asymp_solve(BRPS, 1e-12, mu=1.0, max_iters=5)
    assert few.iters == 5
    with pytest.warns(UserWarning, match="5 iterations reached"):
        exact = asymp_solve(BRPS, 1e-12, mu=1.0, max_iters=5, check_every=5)
    assert torch.equal(few.x, exact.x)
    assert few.nash_conv == exact.nash_conv < 1
    solver = Solver(biased_rps(), eps=1e-12, mu=1.0)
    solver.advance(25)
    before = {name: tensor.clone() for name, tensor in solver.state_dict().items()}
    solver.result()
    assert all(torch.equal(tensor, before[name]) for name, tensor in solver.state_dict().items())


def test_without_payoffs_and_perturbation_nothing_moves() -> None:
    assert asymp_gda(torch.ones(2, 2), 0.0, max_iters=20).strategy.tolist() == [0.5, 0.5]
    with pytest.warns(UserWarning, match="NashConv"):
        both = asymp_solve(torch.stack((torch.ones(3, 3, dtype=torch.float64), BRPS)), mu=0.0, max_iters=20)
    assert both.converged.tolist() == [True, False]  # type: ignore[union-attr]


def test_shapes_and_numbers_of_nash_conv_are_looked_at() -> None:
    x, y = torch.full((2,), 0.5), torch.full((3,), 1 / 3)
    whole = torch.tensor([[1, 0, 2], [0, 1, 0]])
    assert float(nash_conv(whole, x, y)) == pytest.approx(1.0 - 1 / 3)
    for use in (nash_conv, lambda A, x, y: perturbed_gap(A, 1.0, x, y)):
        with pytest.raises(ValueError, match=r"^A: expected shape \(m, n\)"):
            use(torch.eye(2).expand(3, 2, 2), torch.full((3, 2), 0.5), torch.full((3, 2), 0.5))
        with pytest.raises(ValueError, match=r"^x: expected 2 probabilities"):
            use(whole, y, x)
        with pytest.raises(ValueError, match=r"^y: expected 3 probabilities"):
            use(whole, x, torch.ones(3, dtype=torch.int64))
        with pytest.raises(ValueError, match=r"^y: expected torch.float32"):
            use(whole, x, y.double())


def test_games_stay_whole_in_copies() -> None:
    for game in (biased_rps(), kuhn_poker(), leduc_poker()):
        for twin in (copy.deepcopy(game), pickle.loads(pickle.dumps(game))):
            assert torch.equal(twin.nash_conv(*twin.start()), game.nash_conv(*game.start()))


def test_all_of_a_game_is_on_one_device() -> None:
    for game in (biased_rps(), kuhn_poker()):
        assert {buffer.device.type for buffer in game.to("meta").buffers()} == {"meta"}


def test_a_cold_round_starts_anew_and_a_warm_one_goes_on() -> None:
    for warm in (True, False):
        solver = Solver(biased_rps(), eps=1e-12, warm_start=warm)
        while int(solver.rounds) == 0:
            solver.advance(10)
        assert torch.equal(solver.x[0, 0], torch.full((3,), 1 / 3, dtype=torch.float64)) is not warm


def test_one_process_counts_what_the_perturbation_hides() -> None:
    gap, mu, radius = (torch.tensor(number, dtype=torch.float64) for number in (0.02, 1.0, 0.5))
    assert float(_distance(gap, mu, radius)) == pytest.approx(0.02 + 0.5 * 0.2)
    assert float(_distance(-gap, mu, radius)) == 0
