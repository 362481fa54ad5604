"""Weights of a batch by this solver, one problem or many together, beside torchjd's projection by quadprog.

Both solve the dual projection (no history, no price) of random last layers: min vᵀKv over v >= 1/B. Times are medians of
interleaved rounds a problem; an objective's excess is relative to the best of the two. ``--quick`` takes seconds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from leyden_harm import solve_box_qp
from leyden_harm.problems import box_problem
from torch import Tensor

QUICK = "--quick" in sys.argv
ROUNDS = 5 if QUICK else 25
TOGETHER = 16
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
    start = time.perf_counter()
    compute()
    return time.perf_counter() - start


def objective(K: Tensor, weights: Tensor) -> Tensor:
    """vᵀKv, with what the constraint K v >= 0 lacks charged by its size."""
    return (weights.unsqueeze(-2) @ K @ weights.unsqueeze(-1)).squeeze()


threads = torch.get_num_threads()
print(f"## harm: the solver, float32, {threads} thread(s), medians of {ROUNDS}, a problem\n")
print(
    "| batch | method | µs | torchjd's time over it | objective above the best | smallest margin, of the largest |"
)
print("|---|---|---|---|---|---|")
for batch in BATCHES:
    problems = [box_problem(batch, seed, momentum=0.0)[0].float() for seed in range(TOGETHER)]
    stacked = torch.stack(problems)
    methods: dict[str, tuple[Callable[[], object], int]] = {
        "torchjd DualProj, quadprog": (lambda: dual_projection(problems[0]), 1),
    }
    if not QUICK and batch <= 64:
        methods["torchjd UPGrad, quadprog (a program a row)"] = (lambda: upgrad(problems[0]), 1)
    for n_iter in ITERATIONS:
        methods[f"solve_box_qp, {n_iter} iterations, one"] = (lambda n=n_iter: ours(problems[0], n), 1)  # type: ignore[misc]
        methods[f"solve_box_qp, {n_iter} iterations, {TOGETHER} together"] = (
            lambda n=n_iter: ours(stacked, n),  # type: ignore[misc]
            TOGETHER,
        )
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(ROUNDS + 2):
        for name, (compute, count) in methods.items():
            times[name].append(seconds(compute) / count)
    K = problems[0].double()
    weights = {name: torch.as_tensor(compute()).double() for name, (compute, _) in methods.items()}
    weights = {name: value if value.dim() == 1 else value[0] for name, value in weights.items()}
    values = {name: float(objective(K, value)) for name, value in weights.items() if "UPGrad" not in name}
    least = min(values.values())
    reference = statistics.median(times["torchjd DualProj, quadprog"][2:])
    for name in methods:
        took = statistics.median(times[name][2:])
        excess = f"{values[name] / least - 1:.1e}" if name in values else "another problem"
        margins = K @ weights[name]
        print(
            f"| {batch} | {name} | {took * 1e6:.0f} | {reference / took:.1f} | {excess} "
            f"| {float(margins.min() / margins.abs().max()):.1e} |"
        )
