"""The layers beside qpth and cvxpylayers: forward and backward pass, batch sizes, memory.

Every round calls every layer once, in another order each time, so that what else the machine does hits all
alike; reported is the fastest round of each. Memory is what the largest resident set of a process grows by in
the backward pass, each layer in a process of its own.

``python benchmarks/layers.py [dense] [box] [batch] [memory] [--quick] [--cpu]``; without names: all. With
``--cpu`` it is the processor's time, of all threads, which other work on the machine disturbs less.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import cvxpy
import torch
from cvxpylayers.torch import CvxpyLayer
from leyden_ffolayer import FFOLayer, FFOQPLayer
from leyden_ffolayer.problems import Problem, box_problem, dense_problem
from torch import Tensor

cp: Any = cvxpy
QUICK = "--quick" in sys.argv
CLOCK = time.process_time if "--cpu" in sys.argv else time.perf_counter
NAMES = [name for name in sys.argv[1:] if not name.startswith("-")]
NONE = torch.tensor([], dtype=torch.float64)
Call = Callable[[list[Tensor]], Tensor]

try:
    from qpth.qp import QPFunction
except ImportError:
    QPFunction = None


def with_cvxpy(layer: type, problem: Problem, sizes: bool, **arguments: Any) -> Call:
    """The program as a cvxpy layer whose parameters are q and h."""
    n, m = problem.G.shape[1], len(problem.G)
    y, q, h = cp.Variable(n), cp.Parameter(n), cp.Parameter(m)
    root = torch.linalg.cholesky(problem.Q).T.numpy()
    quadratic = (
        cp.sum_squares(y) if torch.equal(problem.Q, torch.eye(n).double()) else cp.sum_squares(root @ y)
    )
    G: Any = problem.G.numpy()
    if sizes:
        from scipy.sparse import csc_matrix

        G = csc_matrix(G)
    program = cp.Problem(cp.Minimize(0.5 * quadratic + q @ y), [G @ y <= h])
    made = layer(program, [q, h], [y])
    return lambda leaves: made(*leaves, **arguments)[0]


def with_qp(layer: Any, problem: Problem) -> Call:
    """The program as a call with the arguments of qpth."""
    return lambda leaves: layer(problem.Q, leaves[0], problem.G, leaves[1], NONE, NONE)


class Arm:
    """A layer on a problem, with the times that it took and the gradients that it gave."""

    def __init__(self, call: Call, problem: Problem) -> None:
        self.call = call
        self.problem = problem
        self.times: list[tuple[float, float]] = []
        self.found: tuple[Tensor, ...] = ()

    def run(self) -> None:
        h = self.problem.h.expand(len(self.problem.q), -1).clone()
        leaves = [self.problem.q.clone().requires_grad_(), h.requires_grad_()]
        start = CLOCK()
        y = self.call(leaves)
        middle = CLOCK()
        self.found = torch.autograd.grad((self.problem.c * y).sum(), leaves)
        self.times.append((middle - start, CLOCK() - middle))

    @property
    def best(self) -> tuple[float, float]:
        return min(t[0] for t in self.times), min(t[1] for t in self.times)


def interleaved(arms: dict[str, Arm], rounds: int, *, once: tuple[str, ...] = ()) -> None:
    for place in range(rounds):
        order = [name for name in arms if place == 0 or name not in once]
        random.shuffle(order)
        for name in order:
            arms[name].run()


def table(title: str, arms: dict[str, Arm], reference: str) -> None:
    print(f"\n## ffolayer: {title}\n")
    print(
        "| layer | forward, ms | backward, ms | both, ms | both, ratio | gradient error |\n"
        "|---|---|---|---|---|---|"
    )
    exact = torch.cat([value.flatten() for value in arms[reference].found])
    own = sum(arms[reference].best)
    for name, arm in arms.items():
        forward, backward = arm.best
        found = torch.cat([value.flatten() for value in arm.found])
        error = float((found - exact).norm() / exact.norm())
        print(
            f"| {name} | {forward * 1e3:.1f} | {backward * 1e3:.2f} | {(forward + backward) * 1e3:.1f} "
            f"| {(forward + backward) / own:.2f} | {error:.0e} |"
        )


def dense() -> None:
    problem = dense_problem(200)
    arms = {"FFOQPLayer": Arm(with_qp(FFOQPLayer(), problem), problem)}
    if QPFunction is not None:
        arms["qpth"] = Arm(with_qp(QPFunction(verbose=-1, check_Q_spd=False), problem), problem)
    slow = ("cvxpylayers", "cvxpylayers, dense")
    arms[slow[0]] = Arm(with_cvxpy(CvxpyLayer, problem, False), problem)
    arms[slow[1]] = Arm(with_cvxpy(CvxpyLayer, problem, False, solver_args={"mode": "dense"}), problem)
    interleaved(arms, 3 if QUICK else 8, once=slow if QUICK else ())
    table("dense program, n = m = 200, batch 8", arms, "FFOQPLayer")
    factors = []
    matrices = problem.Q.expand(8, -1, -1).contiguous()
    for _ in range(10):
        start = CLOCK()
        torch.linalg.cholesky(matrices)
        factors.append(CLOCK() - start)
    own = arms["FFOQPLayer"].best[1]
    print(f"\nCholesky factorisation of 8 matrices of 200 x 200: {min(factors) * 1e3:.2f} ms; "
          f"the backward pass takes {own / min(factors):.2f} times that")  # fmt: skip


def box() -> None:
    problem = box_problem(500)
    arms = {
        "FFOQPLayer": Arm(with_qp(FFOQPLayer(), problem), problem),
        "FFOLayer": Arm(with_cvxpy(FFOLayer, problem, True), problem),
        "cvxpylayers": Arm(with_cvxpy(CvxpyLayer, problem, True), problem),
    }
    if QPFunction is not None and not QUICK:
        arms["qpth"] = Arm(with_qp(QPFunction(verbose=-1, check_Q_spd=False), problem), problem)
    interleaved(arms, 3 if QUICK else 8, once=("qpth",))
    table("box program, n = 500, m = 1001, batch 8", arms, "FFOQPLayer")


def batch() -> None:
    print("\n## ffolayer: batch sizes, dense program, n = m = 50\n")
    print("| batch | FFOQPLayer, ms a sample | against a batch of 1 | qpth | ratio |\n|---|---|---|---|---|")
    alone = 0.0
    for size in (1, 8, 64, 512):
        problem = dense_problem(50, batch=size)
        arms = {"FFOQPLayer": Arm(with_qp(FFOQPLayer(), problem), problem)}
        if QPFunction is not None:
            arms["qpth"] = Arm(with_qp(QPFunction(verbose=-1, check_Q_spd=False), problem), problem)
        interleaved(arms, 3 if QUICK or size > 100 else 8)
        each = [sum(arm.best) / size * 1e3 for arm in arms.values()]
        peer = f"{each[1]:.3f} | {each[1] / each[0]:.1f}" if len(each) > 1 else "| "
        alone = alone or each[0]
        print(f"| {size} | {each[0]:.3f} | {each[0] / alone:.3f} | {peer} |")


def memory() -> None:
    print("\n## ffolayer: memory of the backward pass, all arguments with gradient, MB\n")
    print("| program | FFOQPLayer | qpth | share |\n|---|---|---|---|")
    for n, m in ((400, 800), (500, 1000)):
        grown = []
        for layer in ("ffo", "qpth"):
            done = subprocess.run(
                [sys.executable, __file__, "--grown", layer, str(n), str(m)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            grown.append(json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else float("nan"))
        print(
            f"| n = {n}, m = {m}, batch 8, shared Q | {grown[0]:.0f} | {grown[1]:.0f} "
            f"| {grown[0] / grown[1]:.2f} |"
        )


def grown(layer: str, n: int, m: int) -> None:
    """Print by how many MB the largest resident set grows in the backward pass."""
    problem = dense_problem(n, m)
    leaves = [value.clone().requires_grad_() for value in (problem.Q, problem.q, problem.G, problem.h)]
    called = FFOQPLayer() if layer == "ffo" else QPFunction(verbose=-1, check_Q_spd=False, maxIter=20)
    y = called(leaves[0], leaves[1], leaves[2], leaves[3], NONE, NONE)
    loss = (problem.c * y).sum()
    # The forward pass has a peak of its own; from here on only what is alive counts.
    with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123
        file.write("5")
    before = _peak()
    loss.backward()
    print(json.dumps(_peak() - before))


def _peak() -> float:
    with open("/proc/self/status") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("VmHWM"):
                return float(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if "--grown" in sys.argv:
        place = sys.argv.index("--grown")
        grown(sys.argv[place + 1], int(sys.argv[place + 2]), int(sys.argv[place + 3]))
    else:
        for name, run in (("dense", dense), ("box", box), ("batch", batch), ("memory", memory)):
            if not NAMES or name in NAMES:
                run()
