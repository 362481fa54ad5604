"""Games in sequence form: sizes and values that are known, OpenSpiel, the iteration on trees."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from leyden_asym_perturb import (
    Chance,
    Decision,
    MatrixGame,
    SequenceFormGame,
    Terminal,
    asymp_gda,
    asymp_solve,
    biased_rps,
    goofspiel,
    kuhn_poker,
    leduc_poker,
    liars_dice,
    project_simplex,
)
from leyden_asym_perturb import treeplex as tp
from leyden_asym_perturb.baselines import CounterfactualRegret, MultiplicativeWeights, OptimisticGDA, run
from leyden_asym_perturb.sequence_form import _stretch
from leyden_asym_perturb.solver import Solver
from torch import Tensor

UNIFORM = {"kuhn": 11 / 12, "leduc": 4.7472222, "goofspiel": 1.4166667, "liars_dice": 1.5614886}
OPENSPIEL = {
    "kuhn": "kuhn_poker",
    "leduc": "leduc_poker",
    "goofspiel": "goofspiel(imp_info=True,num_cards=4,points_order=descending)",
}


@pytest.fixture(scope="module")
def games() -> dict[str, SequenceFormGame]:
    return {"kuhn": kuhn_poker(), "leduc": leduc_poker(), "goofspiel": goofspiel()}


def random_strategies(game: SequenceFormGame, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    both = []
    for tree in game.trees:
        weights = torch.rand(tree.num_sequences, dtype=torch.float64, generator=generator)
        weights[0] = 1
        for part in tree.views(weights):
            part /= part.sum(-1, keepdim=True)
        both.append(weights)
    return both[0], both[1]


@pytest.mark.parametrize(
    ("name", "sequences", "sets", "value"),
    [("kuhn", 13, 6, 1 / 18), ("leduc", 1093, 468, 0.085606424078), ("goofspiel", 175, 81, 0.0)],
)
def test_sizes_values_and_uniform_play_are_those_known(
    games: dict[str, SequenceFormGame], name: str, sequences: int, sets: int, value: float
) -> None:
    game = games[name]
    assert [tree.num_sequences for tree in game.trees] == [sequences] * 2
    assert [len(tree.info_sets) for tree in game.trees] == [sets] * 2
    assert tuple(game.A.shape) == (sequences, sequences)
    assert game.A.layout == torch.sparse_csr
    solved = game.solve_lp()
    assert solved.value == pytest.approx(value, abs=1e-9)
    assert game.value == pytest.approx(value, abs=1e-9)
    assert float(game.nash_conv(solved.x, solved.y)) == pytest.approx(0, abs=1e-9)
    tolerance = 1e-12 if name == "kuhn" else 1e-6
    assert float(game.nash_conv(*game.uniform())) == pytest.approx(UNIFORM[name], abs=tolerance)


def test_payoffs_are_weighed_by_all_of_chance_and_added_up() -> None:
    """Two draws of a coin one after the other, of which nobody sees anything; then both players move."""

    def end(bonus: float) -> Decision:
        ways = {str(i): {str(j): bonus + 10 * i + j for j in range(2)} for i in range(2)}
        return Decision(
            0,
            "x",
            {
                i: Decision(1, "y", {j: Terminal((-cost, cost)) for j, cost in row.items()})
                for i, row in ways.items()
            },
        )

    inner = Chance([(0.25, end(4.0)), (0.75, end(8.0)), (0.0, Terminal((1.0, 1.0)))])
    game = SequenceFormGame.from_tree(Chance([(0.4, inner), (0.6, end(1.0))]))
    bonus = 0.4 * (0.25 * 4 + 0.75 * 8) + 0.6
    expected = bonus + torch.tensor([[0.0, 1.0], [10.0, 11.0]], dtype=torch.float64)
    torch.testing.assert_close(game.A.to_dense()[1:, 1:], expected)


def test_kuhn_has_thirty_payoffs(games: dict[str, SequenceFormGame]) -> None:
    assert games["kuhn"].A.values().numel() == 30


def test_liars_dice_is_sparse_and_solved_by_linear_programming() -> None:
    large = liars_dice()
    assert [tree.num_sequences for tree in large.trees] == [24_571] * 2
    assert large.A.values().numel() == 147_420
    assert float(large.nash_conv(*large.uniform())) == pytest.approx(UNIFORM["liars_dice"], abs=1e-6)
    solved = large.solve_lp()
    assert solved.value == pytest.approx(7 / 258, abs=1e-9)
    assert float(large.nash_conv(solved.x, solved.y)) < 1e-9


def test_liars_dice_of_four_sides_has_the_sets_of_its_bids() -> None:
    game = liars_dice(4)
    assert [len(tree.info_sets) for tree in game.trees] == [4 * 2**7] * 2
    assert game.A.values().numel() < 0.05 * game.A.shape[0] * game.A.shape[1]


@pytest.mark.parametrize("name", ["kuhn", "goofspiel", "leduc"])
def test_openspiel_agrees_on_native_games_and_on_nash_conv(
    games: dict[str, SequenceFormGame], name: str
) -> None:
    pyspiel = pytest.importorskip("pyspiel")
    policy_module = pytest.importorskip("open_spiel.python.policy")
    exploitability = pytest.importorskip("open_spiel.python.algorithms.exploitability")
    ours = SequenceFormGame.from_openspiel(OPENSPIEL[name])
    native = games[name]
    assert [tree.num_sequences for tree in ours.trees] == [tree.num_sequences for tree in native.trees]
    assert ours.solve_lp().value == pytest.approx(native.solve_lp().value, abs=1e-9)
    theirs = pyspiel.load_game(OPENSPIEL[name])
    if theirs.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        theirs = pyspiel.convert_to_turn_based(theirs)
    for seed in range(5 if name == "kuhn" else 1):
        strategies = random_strategies(ours, seed)
        tabular = policy_module.TabularPolicy(theirs)
        for player, strategy in enumerate(strategies):
            for label, chances in ours.policy(player, strategy).items():
                state = tabular.states[tabular.state_lookup[label]]
                row = tabular.policy_for_key(label)
                row[:] = 0
                for action in state.legal_actions():
                    row[action] = chances[state.action_to_string(player, action)]
        expected = exploitability.nash_conv(theirs, tabular)
        assert float(ours.nash_conv(*strategies)) == pytest.approx(expected, abs=1e-9)


def test_matrix_games_of_openspiel_become_costs() -> None:
    pytest.importorskip("pyspiel")
    game = MatrixGame.from_openspiel("matrix_rps")
    assert game.payoff[0, 0, 1] == 1  # rock against paper loses
    with pytest.raises(ValueError, match="game"):
        MatrixGame.from_openspiel("kuhn_poker")


def test_asymp_dgda_solves_kuhn_below_the_threshold_and_not_above(games: dict[str, SequenceFormGame]) -> None:
    assert asymp_solve(games["kuhn"], 1e-10, mu=0.02, eta=1.0, max_iters=4_000).nash_conv <= 1e-10
    with pytest.warns(UserWarning, match="NashConv"):
        above = asymp_solve(games["kuhn"], 1e-10, mu=0.1, eta=1.0, max_iters=1_500)
    assert above.nash_conv >= 1e-2


def test_the_official_propagation_bears_smaller_perturbations_only(
    games: dict[str, SequenceFormGame],
) -> None:
    exact, official = (
        asymp_gda(games["kuhn"], 0.03, 1.0, max_iters=1_500, tol=0, perturbation=kind)
        for kind in ("gradient", "official")
    )
    value = 1 / 18
    assert float(exact.bound) - value < 1e-9
    assert float(official.bound) - value == pytest.approx(7.2e-3, rel=0.05)


def test_kuhn_and_goofspiel_are_solved_without_a_choice(games: dict[str, SequenceFormGame]) -> None:
    for name, most in (("kuhn", 200), ("goofspiel", 450)):
        found = asymp_solve(games[name], 1e-6, max_iters=6_000)
        assert found.converged
        assert found.iters <= most
        value = games[name].value
        assert value is not None
        assert found.lower - 1e-12 <= value <= found.upper + 1e-12


def test_the_step_is_stable_where_play_concentrates(games: dict[str, SequenceFormGame]) -> None:
    """On Goofspiel the norm at uniform play is too small for the equilibrium."""
    game = games["goofspiel"]
    solver = Solver(game, eps=1e-300, mu=0.01)
    solver.advance(1500)
    x, y = solver.best_x[0], solver.best_y[0]
    here = float(_stretch(game.rows, game.columns, game.trees, x, y))
    uniform = float(_stretch(game.rows, game.columns, game.trees, *game.uniform()))
    assert uniform < 0.9 * float(game.norm)
    assert float(solver.step_size) * here < 2
    assert float(solver.best) < 1e-3


def test_a_tree_of_one_set_is_the_matrix_game_step_by_step() -> None:
    matrix = biased_rps()
    tree = SequenceFormGame.from_tree(rps_tree())
    torch.testing.assert_close(tree.A.to_dense()[1:, 1:], matrix.payoff[0])
    solvers = [Solver(game, eps=1e-30, mu=1.0, eta=0.1) for game in (matrix, tree)]
    for _ in range(200):
        for solver in solvers:
            solver.advance(1)
        torch.testing.assert_close(solvers[1].x[..., 1:], solvers[0].x, rtol=0, atol=1e-12)
        torch.testing.assert_close(solvers[1].y[..., 1:], solvers[0].y, rtol=0, atol=1e-12)


def rps_tree() -> Decision:
    costs = biased_rps().payoff[0].tolist()
    return Decision(
        0,
        "x",
        {
            str(i): Decision(1, "y", {str(j): Terminal((-cost, cost)) for j, cost in enumerate(row)})
            for i, row in enumerate(costs)
        },
    )


@pytest.mark.parametrize("name", ["kuhn", "goofspiel"])
def test_passes_over_the_tree_agree_with_the_plans(games: dict[str, SequenceFormGame], name: str) -> None:
    game = games[name]
    strategies = random_strategies(game, 1)
    for player, (tree, own) in enumerate(zip(game.trees, strategies, strict=True)):
        cost = game.costs(player, strategies[1 - player])
        answer = tp.best_response(tree, cost)
        assert float(tp.to_sequence(tree, answer) @ cost) == pytest.approx(float(tp.least_cost(tree, cost)))
        plan = tp.to_sequence(tree, own)
        torch.testing.assert_close(tp.to_behaviour(tree, plan), own)
        constraints = torch.from_numpy(game.constraints[player].toarray())
        expected = torch.zeros(len(constraints), dtype=torch.float64)
        expected[0] = 1
        torch.testing.assert_close(constraints @ plan, expected)
        by_sets = sum(
            0.5 * float(plan[one.parent]) * float(own[first : first + len(one.actions)].square().sum())
            for one, first in numbered(tree)
        )
        assert float(tp.dilated_norm(tree, own)) == pytest.approx(by_sets)


def numbered(tree: tp.Treeplex) -> list[tuple[tp.InfoSet, int]]:
    """The information sets with the number of their first sequence."""
    firsts, place = [], 1
    for one in tree.info_sets:
        firsts.append((one, place))
        place += len(one.actions)
    return firsts


def test_a_step_minimises_its_model(games: dict[str, SequenceFormGame]) -> None:
    """The step of Section 3.5 is the argmin of linear cost, linearised perturbation and divergence."""
    game, eta, mu = games["kuhn"], 0.7, 0.05
    tree = game.trees[0]
    own, opponent = random_strategies(game, 2)
    cost = game.costs(0, opponent)
    keep = torch.full((1,), 1 - eta * mu, dtype=torch.float64)
    new = tp.dilated_step(tree, own, eta * cost, keep)

    def model(behaviour: Tensor) -> float:
        plan = tp.to_sequence(tree, behaviour)
        total = float(plan @ cost)
        for one, first in numbered(tree):
            b, old = behaviour[first : first + len(one.actions)], own[first : first + len(one.actions)]
            reach = plan[one.parent]
            linear = (old * (b - old)).sum() + 0.5 * old.square().sum()  # of the regulariser, at the old one
            total += float(reach * (mu * linear + 0.5 * (b - old).square().sum() / eta))
        return total

    least = model(new)
    for seed in range(50):
        other = random_strategies(game, 100 + seed)[0]
        for share in (0.01, 0.1, 1.0):
            assert model((1 - share) * new + share * other) >= least - 1e-12


def test_the_gap_is_what_best_responses_gain_in_the_perturbed_game(
    games: dict[str, SequenceFormGame],
) -> None:
    game = games["goofspiel"]
    solver = Solver(game, eps=1e-30, mu=0.05, eta=1.0)
    solver.advance(600)
    solver.measure_gaps()
    assert all(0 <= gap + 1e-14 < 1e-6 for gap in solver.gaps[0].tolist())
    start = game.uniform()
    rough = game.perturbed_gap(0, *start, torch.tensor(0.05, dtype=torch.float64))
    assert float(rough) > 0.1


def test_the_radius_bounds_how_the_regulariser_changes(games: dict[str, SequenceFormGame]) -> None:
    for game in (games["kuhn"], games["goofspiel"]):
        for seed in range(20):
            near, far = random_strategies(game, seed)[0], random_strategies(game, 50 + seed)[0]
            tree = game.trees[0]
            plan = tp.to_sequence(tree, far)
            moved = sum(
                float(plan[one.parent]) * float((far - near)[first : first + len(one.actions)].square().sum())
                for one, first in numbered(tree)
            )
            change = float(tp.dilated_norm(tree, near) - tp.dilated_norm(tree, far))
            assert abs(change) <= float(game.radius[0]) * moved**0.5 + 1e-12
    # by hand: three sets with slope (1 + 1 / 2) / √2, each above a set of slope 1 / √2
    assert tp.radius(games["kuhn"].trees[0]) == pytest.approx((3 * (1.125 + 0.5)) ** 0.5)
    assert tp.radius(SequenceFormGame.from_tree(rps_tree()).trees[0]) == pytest.approx((2 / 3) ** 0.5)


@pytest.mark.parametrize(
    ("variant", "iterations", "bound"),
    [("cfr", 500, 0.05), ("cfr+", 500, 1e-3), ("dcfr", 500, 1e-3), ("lcfr", 500, 0.01), ("pcfr+", 500, 1e-5)],
)
def test_the_cfr_family_converges_on_average(
    games: dict[str, SequenceFormGame], variant: Any, iterations: int, bound: float
) -> None:
    method = CounterfactualRegret(games["kuhn"], variant=variant)
    assert run(method, iterations)[-1][1] < bound


@pytest.mark.parametrize("variant", ["cfr+", "dcfr", "lcfr", "cfr"])
def test_the_cfr_family_is_openspiels(variant: Any) -> None:
    pyspiel = pytest.importorskip("pyspiel")
    cfr = pytest.importorskip("open_spiel.python.algorithms.cfr")
    discounted = pytest.importorskip("open_spiel.python.algorithms.discounted_cfr")
    exploitability = pytest.importorskip("open_spiel.python.algorithms.exploitability")
    classes: dict[str, Callable[[Any], Any]] = {
        "cfr": cfr.CFRSolver,
        "cfr+": cfr.CFRPlusSolver,
        "dcfr": discounted.DCFRSolver,
        "lcfr": discounted.LCFRSolver,
    }
    theirs = pyspiel.load_game("kuhn_poker")
    solver = classes[variant](theirs)
    method = CounterfactualRegret(SequenceFormGame.from_openspiel(theirs), variant=variant)
    for _ in range(20):
        solver.evaluate_and_update_policy()
        method.step()
    expected = exploitability.nash_conv(theirs, solver.average_policy())
    assert float(method.game.nash_conv(*method.answer())) == pytest.approx(expected, rel=1e-9)


def test_optimism_converges_on_kuhn_and_weights_go_round(games: dict[str, SequenceFormGame]) -> None:
    assert run(OptimisticGDA(games["kuhn"], eta=1.0), 1_000)[-1][1] < 1e-12
    assert run(MultiplicativeWeights(games["kuhn"], eta=0.1), 500)[-1][1] > 1e-2
    assert run(OptimisticGDA(games["kuhn"], eta=0.5, geometry="entropic"), 1_000)[-1][1] < 0.06


def test_strategies_have_names(games: dict[str, SequenceFormGame]) -> None:
    game = games["kuhn"]
    solved = game.solve_lp()
    named = game.policy(1, solved.y)
    assert named["2b"] == {"pass": 0.0, "bet": 1.0}  # the best card calls
    torch.testing.assert_close(game.strategy(1, named), solved.y)


def test_unreached_sets_keep_a_strategy(games: dict[str, SequenceFormGame]) -> None:
    game = games["kuhn"]
    pure = tp.best_response(game.trees[0], game.costs(0, game.uniform()[1]))
    found = asymp_solve(game, 1e-3, x0=pure, max_iters=2_000)
    assert found.converged
    assert bool(torch.isfinite(found.x).all())


@pytest.mark.parametrize(
    ("root", "text"),
    [
        (Terminal((1.0, 1.0)), "zero-sum"),
        (Terminal((1.0, -1.0, 0.0)), "two players"),  # type: ignore[arg-type]
        (Chance([(0.4, Terminal((0.0, 0.0)))]), "chance"),
        (Decision(2, "a", {"l": Terminal((0.0, 0.0))}), "two players"),
        (3, "a Decision, a Chance or a Terminal"),
        (lambda: None, "a Decision, a Chance or a Terminal"),
        (Terminal(1.0), "two players"),  # type: ignore[arg-type]
        (Terminal(("a", "b")), "two players"),  # type: ignore[arg-type]
        (Terminal((math.nan, 0.0)), "finite"),
        (Decision("0", "a", {"l": Terminal((0.0, 0.0))}), "move of player '0'"),  # type: ignore[arg-type]
        (Decision(0, "a", {}), "no actions"),
        (
            Decision(
                0,
                "a",
                {
                    "l": Decision(0, "b", {"l": Terminal((0.0, 0.0))}),
                    "r": Decision(0, "b", {"l": Terminal((0.0, 0.0))}),
                },
            ),
            "perfect recall",
        ),
    ],
)
def test_a_tree_that_is_no_game_is_named(root: Any, text: str) -> None:
    with pytest.raises(ValueError, match=rf"^game: .*{text}"):
        SequenceFormGame.from_tree(root)


@pytest.mark.parametrize("player", [0, 1])
def test_a_player_who_never_moves_has_no_choice(player: int) -> None:
    ends = {"l": Terminal((1.0, -1.0)), "r": Terminal((0.0, 0.0))}
    game = SequenceFormGame.from_tree(Decision(player, "a", ends))
    best = "lr"[player]
    for solved in (asymp_solve(game, 1e-10), game.solve_lp()):
        assert game.policy(player, (solved.x, solved.y)[player])[("a")][best] == pytest.approx(1)
        assert (solved.y, solved.x)[player].tolist() == [1.0]
    nothing = asymp_solve(SequenceFormGame.from_tree(Terminal((2.0, -2.0))))
    assert (nothing.upper, nothing.lower, nothing.converged) == (-2.0, -2.0, True)


def test_actions_have_names_and_no_order() -> None:
    first = Decision(0, "a", {"l": Terminal((1.0, -1.0)), "r": Terminal((0.0, 0.0))})
    turned = Decision(0, "a", {"r": Terminal((0.0, 0.0)), "l": Terminal((3.0, -3.0))})
    game = SequenceFormGame.from_tree(Chance([(0.5, first), (0.5, turned)]))
    assert game.solve_lp().value == pytest.approx(-2.0)
    other = Decision(0, "a", {"r": Terminal((0.0, 0.0)), "m": Terminal((3.0, -3.0))})
    with pytest.raises(ValueError, match=r"^game: information set 'a'"):
        SequenceFormGame.from_tree(Chance([(0.5, first), (0.5, other)]))


def test_wrong_names_of_a_strategy_are_told(games: dict[str, SequenceFormGame]) -> None:
    game = games["kuhn"]
    for policy, text in (
        ({"9": {"pass": 1.0}}, "no information set '9'"),
        ({"0": {"pas": 1.0}}, "no action 'pas'"),
        ({"0": {"pass": 3.0, "bet": 2.0}}, "sum 1"),
        ({"0": {"pass": 2.0, "bet": -1.0}}, "sum 1"),
    ):
        with pytest.raises(ValueError, match=rf"^policy: .*{text}"):
            game.strategy(0, policy)
    assert game.strategy(0, {"0": {"bet": 1.0}})[1:3].tolist() == [0.0, 1.0]
    for length in (5, 20):
        with pytest.raises(ValueError, match=r"^behaviour: expected shape \(13,\)"):
            game.policy(0, torch.ones(length))
    for player in (2, -1):
        with pytest.raises(ValueError, match=r"^player: expected 0 or 1"):
            game.policy(player, torch.ones(13))


def test_strategies_in_float32_are_understood(games: dict[str, SequenceFormGame]) -> None:
    for game in games.values():
        x, y = game.uniform()
        assert float(game.nash_conv(x.float(), y.float())) == pytest.approx(
            float(game.nash_conv(x, y)), rel=1e-6
        )


def test_a_plan_that_does_not_reach_a_set_is_uniform_there(games: dict[str, SequenceFormGame]) -> None:
    game = games["kuhn"]
    betting = game.strategy(0, {card: {"bet": 1.0} for card in "012"})
    back = game.to_behaviour(0, game.to_sequence(0, betting))
    assert game.policy(0, back)["0pb"] == {"pass": 0.5, "bet": 0.5}
    assert game.policy(0, back)["0"] == {"pass": 0.0, "bet": 1.0}


def test_the_first_perturbation_is_an_eighth_of_the_largest_payoff(
    games: dict[str, SequenceFormGame],
) -> None:
    assert float(games["kuhn"].first_mu()) == pytest.approx((2 / 6) / 8)
    nothing = SequenceFormGame.from_tree(Decision(0, "a", {"l": Terminal((0.0, 0.0))}))
    assert float(nothing.first_mu()) == 1.0


def test_a_start_is_projected_at_every_set(games: dict[str, SequenceFormGame]) -> None:
    game = games["goofspiel"]
    tree = game.trees[1]
    start = 3 * torch.randn(
        tree.num_sequences, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    admitted = game.admit(1, start)
    assert float(admitted[0, 0]) == 1.0
    for part in tree.views(admitted):
        torch.testing.assert_close(part.sum(-1), torch.ones_like(part[..., 0]))
        assert bool((part >= 0).all())
    first = start[1:5].double()
    torch.testing.assert_close(admitted[0, 1:5], project_simplex(first))


def test_each_player_of_goofspiel_sees_its_own_wins(games: dict[str, SequenceFormGame]) -> None:
    """Whoever played the lowest card has not won, the highest not lost."""
    game = games["goofspiel"]
    for player in (0, 1):
        labels = set(game.policy(player, game.uniform()[player]))
        assert {"1|-", "1|=", "4|+", "4|="} <= labels
        assert not labels & {"1|+", "4|-"}
