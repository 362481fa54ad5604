"""The claims refute what is wrong, and what they measure is measured right."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from leyden.claims import Cell, CellResult, Claim, Scale, Table
from leyden_asym_perturb import MatrixGame, biased_rps, kuhn_poker, many_equilibria, random_matrix
from leyden_asym_perturb.baselines import CounterfactualRegret, MirroredAsymP, OptimisticGDA, PerturbedGDA
from leyden_asym_perturb.claims import (
    Impossibility,
    LastIterate,
    Leduc,
    Noise,
    ParameterFree,
    Thresholds,
    Trees,
    _solve_alone,
    _tuned,
)
from leyden_asym_perturb.experiments import (
    curve,
    gaussian,
    iterations_needed,
    late_exploitability,
    method_of,
    pennies_solutions,
    random_starts,
)
from leyden_asym_perturb.solver import Solver

CLAIMS: tuple[type[Claim], ...] = (LastIterate, Impossibility, ParameterFree, Noise, Trees, Leduc, Thresholds)


def test_listing_claims_imports_nothing_heavy() -> None:
    code = (
        "import sys, leyden_asym_perturb.claims, leyden_asym_perturb.plugin; print(*{'torch', 'lightning', "
        "'mlflow', 'numpy', 'scipy', 'pyspiel', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def done(method: str, seed: int, setting: dict[str, Any] | None = None, **measured: Any) -> CellResult:
    cell = Cell(method=method, seed=seed, setting=setting or {})
    return CellResult(cell=cell, status="done", measured=measured)


def outcomes(claim: Claim, results: list[CellResult]) -> dict[str, str]:
    return {verdict.statement: verdict.outcome for verdict in claim.judge(Table(results))}


def last_iterates(**wrong: float) -> list[CellResult]:
    """Results as the paper has them, but for what is given."""
    found = {"exact": 1e-8, "above": 1e-6, "one_run": 1e-6, "symmetric": 1e-6, "circling": 0.2, "ogda": 1e-2}
    found |= wrong
    results = []
    for seed in range(6):
        asymmetric = {"exact": found["exact"], "nash_conv": 1e-12 * (1 + seed)}
        results += [
            done("AsymP, BRPS", seed, {"mu": mu}, one_run=found["one_run"], **asymmetric) for mu in (1.0, 2.0)
        ]
        results += [
            done("AsymP, M-Ne", seed, {"mu": 1.0}, **asymmetric),
            done("AsymP, BRPS", seed, {"mu": 4.0}, above=found["above"], nash_conv=0.5),
            done("SymP, BRPS", seed, {"mu": 1.0}, symmetric=found["symmetric"], nash_conv=0.3),
            done("OGDA, BRPS", seed, nash_conv=found["ogda"] * (1 + 0.1 * seed)),
            *(done(f"GDA, {game}", seed, circling=found["circling"]) for game in ("BRPS", "M-Ne")),
        ]
    return results


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("exact", {"exact": -1e-9}),
        ("above", {"above": -1e-9}),
        ("one-run", {"one_run": -1e-9}),
        ("symmetric", {"symmetric": -1e-9}),
        ("circles", {"circling": -1e-3}),
        ("optimistic", {"ogda": 1e-12}),
    ],
)
def test_each_wrong_limit_refutes_its_statement_alone(statement: str, wrong: dict[str, float]) -> None:
    assert set(outcomes(LastIterate(), last_iterates()).values()) == {"holds"}
    found = outcomes(LastIterate(), last_iterates(**wrong))
    assert {name for name, outcome in found.items() if outcome != "holds"} == {statement}


def test_limits_are_measured_with_the_right_sign() -> None:
    """Of 300 iterations, which do not suffice: no limit is reached, and the slacks say by how much."""
    claim = LastIterate()
    for cell in claim.cells(Scale("smoke", 1)):
        measured = claim.run(cell)
        if cell.method == "GDA, BRPS":
            assert measured["circling"] == pytest.approx(float(measured["nash_conv"]) - 0.01)  # type: ignore[arg-type]
        elif cell.method == "AsymP, BRPS" and cell.setting["mu"] == 1.0:
            assert measured["exact"] == pytest.approx(1e-8 - float(measured["nash_conv"]))  # type: ignore[arg-type]
            assert float(measured["exact"]) < -1e-3  # type: ignore[arg-type]
            assert float(measured["one_run"]) < -1e-3  # type: ignore[arg-type]
        elif cell.method == "AsymP, BRPS" and cell.setting["mu"] == 4.0:
            assert -0.5 < float(measured["above"]) < 0  # type: ignore[arg-type]
        elif cell.method == "SymP, BRPS" and cell.setting["mu"] == 1.0:
            assert -0.5 < float(measured["symmetric"]) < 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "mu", "slacks"),
    [("AsymP", 2.0, ("exact", "one_run")), ("AsymP", 4.0, ("above",)), ("SymP", 1.0, ("symmetric",))],
)
def test_limits_are_reached_where_they_are_stated(method: str, mu: float, slacks: tuple[str, ...]) -> None:
    options = {"method": method, "game": "BRPS", "iterations": 2_500}
    cell = Cell(method=f"{method}, BRPS", seed=0, setting={"mu": mu}, options=options)
    measured = LastIterate().run(cell)
    for name in slacks:
        assert 0 < float(measured[name]) <= 1e-6  # type: ignore[arg-type]


def test_perturbed_pennies_are_what_their_closed_form_says() -> None:
    """Both players perturbed, inside: A y + mu x and -Aᵀ x + mu y are constant."""
    strengths = torch.tensor([0.1, 0.5, 3.0], dtype=torch.float64)
    symmetric = pennies_solutions(strengths, 1_500, symmetric=True)
    # with x = (p, 1 - p) and y = (q, 1 - q): a cost of 1/3 pq - 2/3 (p + q - 2pq) + (1 - p)(1 - q) to x
    for mu, found in zip(strengths.tolist(), symmetric.tolist(), strict=True):
        slope, offset = 1 / 3 + 4 / 3 + 1, -5 / 3
        matrix = torch.tensor([[2 * mu, slope], [-slope, 2 * mu]], dtype=torch.float64)
        right = torch.tensor([mu - offset, mu + offset], dtype=torch.float64)
        p, q = torch.linalg.solve(matrix, right).tolist()
        gain = max(0, -(slope * q + offset)) + (slope * q + offset) * p
        other = max(0, slope * p + offset) - (slope * p + offset) * q
        assert 0 < p < 1
        assert 0 < q < 1
        assert found == pytest.approx(gain + other, rel=1e-6)
    assert float(pennies_solutions(strengths, 1_500, symmetric=False).max()) <= 1e-9


def test_an_equilibrium_by_symmetric_perturbation_refutes_the_impossibility() -> None:
    fine = done("asymmetric", 0, asymmetric_slack=1e-9, least=0.0)
    for slack, expected in ((0.01, "holds"), (-0.01, "does not hold")):
        found = outcomes(Impossibility(), [done("symmetric", 0, symmetric_slack=slack, least=0.1), fine])
        assert found == {"never": expected, "asymmetric": "holds"}


def test_strengths_are_judged_by_the_worst_in_units_of_mu(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(strengths: torch.Tensor, iterations: int, *, symmetric: bool) -> torch.Tensor:
        return 0.06 * strengths if symmetric else torch.where(strengths > 3, 2e-9, 0.0)

    monkeypatch.setattr("leyden_asym_perturb.experiments.pennies_solutions", found)
    claim = Impossibility()
    symmetric, asymmetric = (claim.run(cell) for cell in claim.cells(Scale("smoke", 1)))
    assert symmetric["symmetric_slack"] == pytest.approx(0.01)
    assert asymmetric["asymmetric_slack"] == pytest.approx(-1e-9)


def parameter_free(**changed: Any) -> list[CellResult]:
    """Results of which all statements hold, but for what is given."""
    given: dict[str, Any] = {
        "accuracy": 1e-9,
        "value_slack": 1e-9,
        "slow": 100.0,
        "OGDA": 0.5,
        "extragradient": 0.5,
    }
    given |= changed
    results = []
    for seed in range(6):
        vary = 1 + 0.02 * (seed % 3)
        own = {
            "gradients": 1e4,
            "val_gradients": 1e4,
            "from_4_to_6": 100.0,
            "from_6_to_8": given["slow"] * vary,
        }
        own |= {"accuracy": given["accuracy"], "value_slack": given["value_slack"]}
        results.append(done("AsymP, auto", seed, **own))
        for method in ("OGDA", "extragradient"):
            # the second setting looks worse on the matrix of the choice and is far better on the judged one
            results.append(
                done(method, seed, {"eta": 0.5}, gradients=1e4 * given[method] * vary, val_gradients=1e3)
            )
            results.append(done(method, seed, {"eta": 0.9}, gradients=10.0 * vary, val_gradients=2e3))
    return results


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("solved", {"accuracy": -1e-9}),
        ("value", {"value_slack": -1e-9}),
        ("linear", {"slow": 200.0}),
        ("optimism-is-faster", {"OGDA": 2.0}),
        ("extragradient-is-faster", {"extragradient": 2.0}),
    ],
)
def test_matrices_are_judged_by_what_was_not_looked_at(statement: str, changed: dict[str, float]) -> None:
    assert set(outcomes(ParameterFree(), parameter_free()).values()) == {"holds"}
    found = outcomes(ParameterFree(), parameter_free(**changed))
    assert {name for name, outcome in found.items() if outcome != "holds"} == {statement}


def test_gradients_are_counted_alike() -> None:
    """An iteration of the pair needs four gradients, of OGDA two, of extragradient four."""
    ours = _solve_alone(3, 3_000)
    assert ours["accuracy"] >= 0
    assert ours["value_slack"] >= 0
    game = random_matrix(10, 3)
    solver = Solver(game, eps=1e-6)
    solver.advance(3_000)
    assert ours["gradients"] == 4 * int(solver.iteration)
    for method, cost, eta, budget in (("OGDA", 2, 0.5, 3_000), ("extragradient", 4, 0.9, 4_000)):
        found = _tuned(method, 3, eta, budget)
        runner = method_of(method, game, eta / game.norm[:, None])
        assert found["gradients"] == cost * iterations_needed(runner, 1e-6, budget // cost)[0] < budget
        assert found["val_gradients"] != found["gradients"]
    assert _tuned("OGDA", 3, 0.5, 40)["gradients"] == 40


def test_a_louder_last_iterate_refutes_its_lead() -> None:
    def results(own: float) -> list[CellResult]:
        found = []
        for seed in range(6):
            vary = 1 + 0.01 * seed
            for where in ("BRPS, noise 0.1", "M-Ne, noise 0.1", "BRPS, noise 1"):
                found += [
                    done(f"AsymP, {where}", seed, {"mu": 1.0}, exploitability=own * vary),
                    done(f"SymP, {where}", seed, {"mu": 1.0}, exploitability=1.0),
                    done(f"SymP, {where}", seed, {"mu": 0.1}, exploitability=0.5),
                    done(f"OGDA, {where}", seed, exploitability=0.6),
                ]
        return found

    assert set(outcomes(Noise(), results(0.1)).values()) == {"holds"}
    # between the margins: 0.6 * 0.6 and 0.3 * 1 are below 0.4, which 0.5 and 1 / 1.1 are not
    assert outcomes(Noise(), results(0.4)) == {
        "optimism": "does not hold",
        "symmetric": "does not hold",
        "weak-symmetric": "holds",
        "many": "does not hold",
        "loud": "holds",
    }


def tree_results(game: str, own: float, others: dict[str, float]) -> list[CellResult]:
    """Of every method a setting that was chosen, and a better one that the other start did not choose."""
    results = []
    for seed in range(6):
        for method, found in {"AsymP": own, **others}.items():
            value = found * (1 + 0.02 * (seed % 3))
            results += [
                done(f"{method}, {game}", seed, {"eta": 1.0}, nash_conv=value, val_nash_conv=1e-6),
                done(f"{method}, {game}", seed, {"eta": 2.0}, nash_conv=1e-15, val_nash_conv=1e-5),
            ]
    return results


def test_trees_are_judged_by_the_setting_that_the_other_start_chose() -> None:
    others = {"SymP": 1.0, "GDA": 1.0, "CFR+": 1e-2, "DCFR": 1e-2, "OGDA": 1e-2, "PCFR+": 1e-2}
    for own, weak in ((1e-3, "holds"), (0.1, "does not hold")):
        results = [one for game in ("Kuhn", "Goofspiel-4") for one in tree_results(game, own, others)]
        found = outcomes(Trees(), results)
        strong = {"kuhn-symmetric", "kuhn-plain", "goofspiel-symmetric"}
        assert {found[name] for name in strong} == {weak}
        assert {found[name] for name in found.keys() - strong} == {weak}
    # ten times is enough for none of those that ask for a hundred
    results = [
        one for game in ("Kuhn", "Goofspiel-4") for one in tree_results(game, 1e-3, {**others, "SymP": 0.01})
    ]
    assert outcomes(Trees(), results)["kuhn-symmetric"] == "does not hold"


def test_on_leduc_regret_matching_has_to_be_better_by_three() -> None:
    others = {"GDA": 0.1, "OGDA": 0.1, "CFR+": 1e-3, "PCFR+": 1e-3}
    expected = ("cfr-is-better", "predictive-is-better", "plain", "optimism")
    assert outcomes(Leduc(), tree_results("Leduc", 0.01, others)) == dict.fromkeys(expected, "holds")
    found = outcomes(Leduc(), tree_results("Leduc", 0.002, others))
    assert (found["cfr-is-better"], found["predictive-is-better"]) == ("does not hold",) * 2
    found = outcomes(Leduc(), tree_results("Leduc", 0.08, others))
    assert (found["plain"], found["optimism"]) == ("does not hold", "holds")


def test_a_threshold_that_does_not_fall_or_is_not_sharp_is_refuted() -> None:
    def results(power: float, sharp: float) -> list[CellResult]:
        return [
            done("LP", seed, {"size": size}, threshold=(1 + 0.1 * seed) * size**power, sharp=sharp)
            for seed in range(6)
            for size in (5, 10, 20, 40)
        ]

    assert outcomes(Thresholds(), results(-1.0, 1e-5)) == {"shrinks": "holds", "sharp": "holds"}
    assert outcomes(Thresholds(), results(-0.1, 1e-5))["shrinks"] == "does not hold"
    assert outcomes(Thresholds(), results(-3.0, 1e-5))["shrinks"] == "does not hold"
    assert outcomes(Thresholds(), results(-1.0, -1e-6))["sharp"] == "does not hold"


def test_methods_that_are_tuned_get_equally_many_settings() -> None:
    for claim, free in ((Trees(), {"CFR+", "DCFR", "PCFR+"}), (Leduc(), {"CFR+", "PCFR+"})):
        table = Table(CellResult(cell=cell, status="failed") for cell in claim.cells(Scale("laptop", 1)))
        counts = {method: len(table.arms(method)) for method in table.methods}
        tuned = {count for method, count in counts.items() if method.split(",")[0] not in free}
        assert len(tuned) == 1
        assert tuned != {1}
    options = ParameterFree().cells(Scale("laptop", 1))
    assert [sum(cell.method == name for cell in options) for name in ("OGDA", "extragradient")] == [3, 3]


def test_equal_updates_are_half_as_many_iterations_of_a_pair() -> None:
    claim = Trees()
    cells = {cell.method: cell for cell in claim.cells(Scale("smoke", 1)) if cell.method.endswith("Kuhn")}
    found = {method: claim.run(cell) for method, cell in cells.items()}
    assert {run["updates"][-1] for run in found.values()} == {40.0}  # type: ignore[index]
    game = kuhn_poker()
    starts = random_starts(game, 0, 2)
    pair = method_of("AsymP", game, 2.0, 0.02, **starts)
    for _ in range(20):
        pair.step()
    chosen, judged = game.nash_conv(*pair.answer()).tolist()
    assert found["AsymP, Kuhn"]["nash_conv"] == pytest.approx(judged)
    assert found["AsymP, Kuhn"]["val_nash_conv"] == pytest.approx(chosen)


def test_names_make_the_methods() -> None:
    game = kuhn_poker()
    pair = method_of("AsymP", game, 0.5, 0.2)
    assert isinstance(pair, MirroredAsymP)
    keeps = [[float(keep) for keep in process.keep] for process in pair.processes]
    assert keeps == [pytest.approx([0.9, 1.0]), pytest.approx([1.0, 0.9])]
    symmetric = method_of("SymP", game, 0.5, 0.2)
    assert isinstance(symmetric, PerturbedGDA)
    assert [float(keep) for keep in symmetric.keep] == pytest.approx([0.9, 0.9])
    one = method_of("AsymP of x", game, 0.5, 0.2)
    assert isinstance(one, PerturbedGDA)
    assert [float(keep) for keep in one.keep] == pytest.approx([0.9, 1.0])
    plain = method_of("GDA", game, 0.5, 0.2)
    assert isinstance(plain, PerturbedGDA)
    assert [float(keep) for keep in plain.keep] == [1.0, 1.0]
    for name, geometry in (("OGDA", "euclidean"), ("OMWU", "entropic")):
        optimistic = method_of(name, game, 0.5)
        assert isinstance(optimistic, OptimisticGDA)
        assert optimistic.geometry == geometry
    for name in ("CFR", "CFR+", "DCFR", "LCFR", "PCFR+"):
        regret = method_of(name, game, 0.5)
        assert isinstance(regret, CounterfactualRegret)
        assert regret.variant == name.lower()


def test_random_starts_are_strategies_and_each_seed_has_its_own() -> None:
    for game in (many_equilibria(), kuhn_poker()):
        starts = random_starts(game, 3, 4)
        for player, name in enumerate(("x0", "y0")):
            for one in starts[name]:
                torch.testing.assert_close(game.admit(player, one)[0], one)
            assert len({tuple(one.tolist()) for one in starts[name]}) == 4
        assert torch.equal(random_starts(game, 3, 4)["x0"], starts["x0"])
        assert not torch.equal(random_starts(game, 4, 4)["x0"], starts["x0"])


def test_curves_end_with_the_last_iteration() -> None:
    game = biased_rps()
    start = random_starts(game, 0)
    marks, found = curve(PerturbedGDA(game, eta=0.1, mu_x=1.0, **start), 137, points=8)
    assert marks[0] == 1
    assert marks[-1] == 137
    assert len(marks) == len(found) <= 10
    method = PerturbedGDA(game, eta=0.1, mu_x=1.0, **start)
    for _ in range(137):
        method.step()
    assert float(found[-1]) == float(game.nash_conv(method.x, method.y))


def test_iterations_are_counted_for_each_game_of_a_batch() -> None:
    games = MatrixGame(torch.cat([random_matrix(4, seed).payoff for seed in (0, 1)]))
    method = OptimisticGDA(games, eta=0.5 / games.norm[:, None])  # type: ignore[arg-type]
    together = iterations_needed(method, 1e-4, 5_000)
    for place, payoff in enumerate(games.payoff):
        alone = MatrixGame(payoff)
        runner = OptimisticGDA(alone, eta=float(0.5 / games.norm[place]))
        assert iterations_needed(runner, 1e-4, 5_000) == [together[place]]
    assert together[0] != together[1]
    assert iterations_needed(OptimisticGDA(games, eta=1e-3), 1e-4, 50) == [50.0, 50.0]


def test_late_exploitability_is_the_mean_over_the_last_tenth_above_the_value() -> None:
    game = MatrixGame(biased_rps().payoff[0] + 2.0, 2.0)
    start = random_starts(game, 1)
    method = PerturbedGDA(game, eta=0.1, **start)
    excess = []
    for _ in range(50):
        method.step()
        excess.append(float(game.worst_case(method.x)) - 2.0)
    found = late_exploitability(PerturbedGDA(game, eta=0.1, **start), 50)
    assert found == pytest.approx(sum(excess[45:]) / 5)
    assert not math.isclose(found, sum(excess) / 50)


def test_noise_has_its_scale_and_its_seed() -> None:
    zeros = torch.zeros(20_000, dtype=torch.float64)
    noisy = gaussian(3, 0.1)
    first = noisy(zeros)
    assert float(first.std()) == pytest.approx(0.1, rel=0.03)
    assert float(first.mean()) == pytest.approx(0.0, abs=0.003)
    assert not torch.equal(noisy(zeros), first)
    assert torch.equal(gaussian(3, 0.1)(zeros), first)
    torch.testing.assert_close(gaussian(3, 0.1)(zeros + 5.0), first + 5.0)
