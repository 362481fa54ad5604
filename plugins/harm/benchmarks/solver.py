"""Weights of a batch by this solver, one problem or many together, beside torchjd's projection by quadprog.

Both solve the dual projection (no history, no price) of random last layers: min vᵀKv over v >= 1/B. Times,
of CPU, are medians of interleaved rounds, for a problem; the excess of an objective is relative to the best.
``--quick`` takes seconds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from leyden_harm import solve_box_qp
from leyden_harm.problems import box_problem
from torch import Tensor

QUICK = "--quick" in sys.argv
ROUNDS = 5 if QUICK else 25
TOGETHER = 32
BATCHES = (32, 128) if QUICK else (16, 32, 64, 128)
ITERATIONS = (20, 100)
NO_PRICE = 1e6

try:
    from torchjd.aggregation import DualProjWeighting, UPGradWeighting
    from torchjd.linalg import QuadprogProjector

    DualProjWeighting(projector=QuadprogProjector())(torch.eye(2))
except ImportError as error:
    print(f"## harm: the solver\n\nnot measured, since torchjd cannot be used here: {error}")
    raise SystemExit from None

projector = QuadprogProjector(norm_eps=1e-30, reg_eps=1e-8)
dual_projection = DualProjWeighting(projector=projector)
upgrad = UPGradWeighting(projector=projector)


def ours(K: Tensor, n_iter: int) -> Tensor:
    lam, _ = solve_box_qp(K, K.mean(-1), NO_PRICE, n_iter)
    return lam + 1 / K.shape[-1]


def seconds(compute: Callable[[], object]) -> float:
    """Of this process's CPU, which other processes do not lengthen much."""
    start = time.process_time()
    compute()
    return time.process_time() - start


def methods_for(problems: list[Tensor]) -> dict[str, tuple[Callable[[], Any], int]]:
    """For each method what it computes, and how many problems that is."""
    stacked = torch.stack(problems)
    methods: dict[str, tuple[Callable[[], Any], int]] = {
        "torchjd DualProj, quadprog": (partial(dual_projection, problems[0]), 1)
    }
    if not QUICK and len(problems[0]) <= 64:
        methods["torchjd UPGrad, quadprog (a program a row)"] = (partial(upgrad, problems[0]), 1)
    for n_iter in ITERATIONS:
        methods[f"solve_box_qp, {n_iter} iterations"] = (partial(ours, problems[0], n_iter), 1)
        name = f"solve_box_qp, {n_iter} iterations, {TOGETHER} together"
        methods[name] = (partial(ours, stacked, n_iter), TOGETHER)
    return methods


threads = torch.get_num_threads()
print(f"## harm: the solver, float32, {threads} thread(s), medians of {ROUNDS}, for a problem\n")
print("| batch | method | µs | times faster than quadprog | objective above the best | least margin |")
print("|---|---|---|---|---|---|")
for batch in BATCHES:
    problems = [box_problem(batch, seed, momentum=0.0)[0].float() for seed in range(TOGETHER)]
    methods = methods_for(problems)
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(ROUNDS + 2):
        for name, (compute, count) in methods.items():
            times[name].append(seconds(compute) / count)
    K = problems[0].double()
    weights = {name: compute().double() for name, (compute, _) in methods.items()}
    weights = {name: value if value.dim() == 1 else value[0] for name, value in weights.items()}
    values = {name: float(value @ K @ value) for name, value in weights.items() if "UPGrad" not in name}
    reference = statistics.median(times["torchjd DualProj, quadprog"][2:])
    for name in methods:
        took = statistics.median(times[name][2:])
        excess = f"{values[name] / min(values.values()) - 1:.1e}" if name in values else "another problem"
        margins = K @ weights[name]
        print(
            f"| {batch} | {name} | {took * 1e6:.0f} | {reference / took:.1f} | {excess} "
            f"| {float(margins.min() / margins.abs().max()):.1e} |"
        )
