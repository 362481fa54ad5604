"""Cost of an iteration, and processor time to NashConv 1e-3, beside OpenSpiel and linear programming.

`OMP_NUM_THREADS=1 python benchmarks/trees.py [--quick]`; needs the extra `[peers]`. All methods are measured
in turn, round after round; what is shown is the median. OpenSpiel's solvers are looked at from time to time,
and the looking is not counted; the certificates of `asymp_solve` are. On Leduc OpenSpiel's Python
solvers would take a minute; they need the iterations of its solver in C++.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import pyspiel
import torch
from leyden_asym_perturb import MatrixGame, SequenceFormGame, asymp_solve
from leyden_asym_perturb.baselines import CounterfactualRegret
from leyden_asym_perturb.solver import Solver
from open_spiel.python.algorithms import cfr, discounted_cfr, exploitability

EPS, BUDGET = 1e-3, 20_000
GOOFSPIEL = "goofspiel(imp_info=True,num_cards=4,points_order=descending)"
NAMES = {
    "Kuhn": "kuhn_poker",
    "Goofspiel-4": f"turn_based_simultaneous_game(game={GOOFSPIEL})",
    "Leduc": "leduc_poker",
}
KNOWN = {"Kuhn": (4.8, 0.04), "Goofspiel-4": (1.4, 0.05), "Leduc": (5.5, 0.0005)}
"""Step size and strength that a scan found good: the counterpart of tuning."""

PEERS: dict[str, Callable[[Any], Any]] = {
    "OpenSpiel CFR+ (Python)": cfr.CFRPlusSolver,
    "OpenSpiel DCFR (Python)": discounted_cfr.DCFRSolver,
    "OpenSpiel CFR+ (C++)": pyspiel.CFRPlusSolver,
}
OURS = "AsymP-DGDA, both processes"
REGRETS = "CFR+ of this package"


def iteration(game: SequenceFormGame, theirs: Any, rounds: int) -> dict[str, float]:
    """Median processor time of an iteration, in ms."""
    solver = Solver(game, eps=1e-300, mu=0.01)
    regrets = CounterfactualRegret(game)
    peers = {name: kind(theirs) for name, kind in PEERS.items()}
    runs: dict[str, tuple[Callable[[], Any], int]] = {
        OURS: (lambda: solver._iterate(20), 20),
        REGRETS: (lambda: [regrets.step() for _ in range(20)], 20),
        **{name: (peer.evaluate_and_update_policy, 1) for name, peer in peers.items()},
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):  # the first is for warming up
        for name, (call, count) in runs.items():
            times[name].append(1e3 * timed(call) / count)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def to_accuracy(
    name: str, game: SequenceFormGame, theirs: Any, rounds: int, slow: bool
) -> dict[str, tuple[float, int]]:
    """Median processor time until NashConv is `EPS`, in ms, and the iterations it took."""
    eta, mu = KNOWN[name]
    runs: dict[str, Callable[[], tuple[float, int]]] = {
        "asymp_solve, nothing chosen": lambda: solve(game),
        f"asymp_solve, mu = {mu:g}, eta = {eta:g}": lambda: solve(game, mu=mu, eta=eta),
        REGRETS: lambda: own_regrets(game),
        "linear program (HiGHS), exact": lambda: (1e3 * timed(game.solve_lp), 0),
        **{
            label: (lambda kind=kind: peer(theirs, kind))
            for label, kind in PEERS.items()
            if slow or "C++" in label
        },  # type: ignore[misc]
    }
    found: dict[str, list[tuple[float, int]]] = {label: [] for label in runs}
    for _ in range(rounds):
        for label, run in runs.items():
            found[label].append(run())
    return {
        label: (statistics.median(spent for spent, _ in values), values[0][1])
        for label, values in found.items()
    }


def solve(game: SequenceFormGame, **given: float) -> tuple[float, int]:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = asymp_solve(game, EPS, max_iters=BUDGET, **given)  # type: ignore[arg-type]
    spent = 1e3 * (time.process_time() - start)
    return (spent, int(found.iters)) if found.converged else (float("inf"), BUDGET)


def own_regrets(game: SequenceFormGame) -> tuple[float, int]:
    method, spent, count = CounterfactualRegret(game), 0.0, 0
    while True:
        start = time.process_time()
        for _ in range(10):
            method.step()
        good = float(game.nash_conv(*method.answer())) <= EPS
        spent, count = spent + time.process_time() - start, count + 10
        if good:
            return 1e3 * spent, count


def peer(theirs: Any, kind: Callable[[Any], Any]) -> tuple[float, int]:
    solver, spent, count, step = kind(theirs), 0.0, 0, 4
    while True:
        start = time.process_time()
        for _ in range(step):
            solver.evaluate_and_update_policy()
        spent, count = spent + time.process_time() - start, count + step
        average = solver.average_policy()
        python = not kind.__module__.startswith("pyspiel")
        found = exploitability.nash_conv(theirs, average) if python else pyspiel.nash_conv(theirs, average)
        if found <= EPS:
            return 1e3 * spent, count
        step = max(4, count // 8)


def batches(rounds: int, sizes: tuple[int, ...] = (1, 10, 100, 1000)) -> dict[int, float]:
    """Microseconds of an iteration for each game of a batch of random 10 x 10 games."""
    found = {}
    for games in sizes:
        solver = Solver(MatrixGame(torch.randn(games, 10, 10, dtype=torch.float64)), eps=1e-300, mu=0.1)
        times = [timed(lambda solver=solver: solver._iterate(50)) / 50 for _ in range(rounds)]  # type: ignore[misc]
        found[games] = 1e6 * statistics.median(times) / games
    return found


def timed(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out Leduc")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rounds = 3
    games = {
        name: (SequenceFormGame.from_openspiel(text), pyspiel.load_game(text))
        for name, text in NAMES.items()
        if not (quick and name == "Leduc")
    }
    with torch.no_grad():
        costs = {name: iteration(*pair, rounds) for name, pair in games.items()}
        print("ms an iteration, in brackets the ratio to the first row\n")
        show(
            list(games),
            {label: [with_ratio(costs[name], label, OURS) for name in games] for label in costs["Kuhn"]},
        )
        print(f"\nms of processor time to NashConv {EPS:g}, in brackets the iterations\n")
        reached = {
            name: to_accuracy(name, *pair, 1 if name == "Leduc" else rounds, slow=name != "Leduc")
            for name, pair in games.items()
        }
        labels = dict.fromkeys(label.replace(*_generic(name)) for name in reached for label in reached[name])
        show(
            list(games),
            {
                label: [entry(reached[name], label.replace(*reversed(_generic(name)))) for name in games]
                for label in labels
            },
        )
        print("\nus an iteration for each of a batch of random 10 x 10 games\n")
        by_size = batches(rounds)
        show([str(size) for size in by_size], {"us a game": [f"{value:.2f}" for value in by_size.values()]})


def _generic(name: str) -> tuple[str, str]:
    eta, mu = KNOWN[name]
    return f"mu = {mu:g}, eta = {eta:g}", "mu and eta chosen by a scan"


def with_ratio(costs: dict[str, float], label: str, first: str) -> str:
    return f"{costs[label]:.3g} ({costs[label] / costs[first]:.2g})"


def entry(reached: dict[str, tuple[float, int]], label: str) -> str:
    if label not in reached:
        return ""
    spent, count = reached[label]
    if spent == float("inf"):
        return f"not in {count}"
    return f"{spent:.3g} ({count})" if count else f"{spent:.3g}"


def show(columns: list[str], rows: dict[str, list[str]]) -> None:
    print("| | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for label, cells in rows.items():
        print(f"| {label} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
