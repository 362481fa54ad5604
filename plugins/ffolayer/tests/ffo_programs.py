"""The programs that people write with cvxpylayers, each with a problem of its kind and values for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy
import numpy as np
import torch
from torch import Tensor

cp: Any = cvxpy


@dataclass
class Written:
    """A program and values of its parameters, in order."""

    problem: Any
    parameters: list[Any]
    variables: list[Any]
    values: list[Tensor]
    gp: bool = False
    tolerance: float = 1e-5
    batched: tuple[int, ...] = (0,)
    """Which parameters get a batch in the batched test; their values are then varied a little."""


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def least_squares() -> Written:
    x, A, b = cp.Variable(4), cp.Parameter((7, 4)), cp.Parameter(7)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b) + 0.1 * cp.sum_squares(x)))
    return Written(problem, [A, b], [x], [normal(0, 7, 4), normal(1, 7)], batched=(1,))


def nonnegative_least_deviations() -> Written:
    x, A, b = cp.Variable(2), cp.Parameter((3, 2)), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(0.5 * cp.pnorm(A @ x - b, p=1)), [x >= 0])
    return Written(problem, [A, b], [x], [normal(2, 3, 2).abs(), normal(3, 3).abs()], batched=(0, 1))


def relu() -> Written:
    y = cp.Variable(5)
    point = cp.Parameter(5)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - point)), [y >= 0])
    return Written(problem, [point], [y], [normal(4, 5)])


def quadratic_program() -> Written:
    n, m, p = 10, 6, 3
    x = cp.Variable(n)
    S, q, A, b, G, h = (cp.Parameter(s) for s in ((n, n), n, (p, n), p, (m, n), m))
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(S @ x) + q @ x), [A @ x == b, G @ x <= h])
    inside, rows, equal = normal(5, n), normal(6, m, n), normal(7, p, n)
    values = [normal(8, n, n), 3 * normal(9, n), equal, equal @ inside, rows, rows @ inside + uniform(10, m)]
    return Written(problem, [S, q, A, b, G, h], [x], values, batched=(1,))


def lqr() -> Written:
    states, controls, horizon = 3, 2, 4
    x, u = cp.Variable((states, horizon + 1)), cp.Variable((controls, horizon))
    A, B = cp.Parameter((states, states)), cp.Parameter((states, controls))
    start, weight = cp.Parameter(states), cp.Parameter((states, states))
    cost = cp.sum_squares(weight @ x[:, 1:]) + 0.5 * cp.sum_squares(u)
    constraints = [x[:, 0] == start]
    constraints += [x[:, t + 1] == A @ x[:, t] + B @ u[:, t] for t in range(horizon)]
    values = [0.6 * normal(11, states, states), normal(12, states, controls), normal(13, states)]
    values.append(torch.eye(states, dtype=torch.float64) + 0.3 * normal(14, states, states))
    return Written(
        cp.Problem(cp.Minimize(cost), constraints), [A, B, start, weight], [u], values, batched=(2,)
    )


def constrained_lqr() -> Written:
    states, controls = 4, 2
    u, ahead = cp.Variable(controls), cp.Variable(states)
    root, linear, here, most = (
        cp.Parameter(s) if s != "most" else cp.Parameter(nonneg=True)
        for s in ((states, states), states, states, "most")
    )
    A, B = 0.8 * normal(15, states, states).numpy(), normal(16, states, controls).numpy()
    cost = cp.sum_squares(root @ ahead) + linear @ ahead + 0.1 * cp.sum_squares(u)
    problem = cp.Problem(cp.Minimize(cost), [ahead == A @ here + B @ u, cp.norm(u) <= most])
    values = [normal(17, states, states), normal(18, states), 2 * normal(19, states)]
    values.append(torch.tensor(0.4, dtype=torch.float64))
    return Written(problem, [root, linear, here, most], [u], values, batched=(2,))


def data_poisoning() -> Written:
    rows, features = 12, 2
    theta, offset = cp.Variable((features, 1)), cp.Variable()
    X = cp.Parameter((rows, features))
    points = normal(20, rows, features)
    labels = (points[:, :1] - 0.4 * points[:, 1:] + 0.4 * normal(21, rows, 1) > 0).double().numpy()
    scores = X @ theta + offset
    likelihood = cp.sum(cp.multiply(labels, scores) - cp.logistic(scores)) / rows
    cost = -likelihood + 0.05 * cp.norm1(theta) + 0.05 * cp.sum_squares(theta) + 0.01 * offset**2
    return Written(cp.Problem(cp.Minimize(cost)), [X], [theta, offset], [points], tolerance=5e-3)


def supply_chain() -> Written:
    nodes, links = 4, 7
    buy, ship, sell = cp.Variable(2), cp.Variable(links), cp.Variable(2)
    after = cp.Variable(nodes)
    held, price, demand, root, slope = (cp.Parameter(s) for s in (nodes, 2, 2, (nodes, nodes), nodes))
    leaving = np.zeros((nodes, links))
    arriving = np.zeros((nodes, links))
    for link, (start, end) in enumerate(((0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (3, 2), (0, 1))):
        leaving[start, link] = arriving[end, link] = 1
    bought, sold = np.eye(nodes)[:, :2], np.eye(nodes)[:, 2:]
    change = arriving @ ship - leaving @ ship + bought @ buy - sold @ sell
    cost = price @ buy - 1.5 * cp.sum(sell) + 0.2 * cp.sum(ship) + 0.1 * cp.sum_squares(ship)
    cost += 0.1 * cp.sum_squares(buy) + cp.sum_squares(root @ after) + slope @ after
    limits = [after == held + change, after >= 0, after <= 3, ship >= 0, ship <= 2, buy >= 0, sell >= 0]
    limits += [sell <= demand, leaving @ ship + sold @ sell <= held]
    values = [1 + uniform(22, nodes), 0.1 * uniform(23, 2), 0.5 + uniform(24, 2)]
    values += [0.3 * torch.eye(nodes, dtype=torch.float64) + 0.1 * normal(25, nodes, nodes)]
    values += [-0.3 * uniform(26, nodes)]
    return Written(
        cp.Problem(cp.Minimize(cost), limits),
        [held, price, demand, root, slope],
        [buy, ship, sell],
        values,
        batched=(0, 1),
    )


def markowitz() -> Written:
    n = 8
    weights, returns, root, before = cp.Variable(n), cp.Parameter(n), cp.Parameter((n, n)), cp.Parameter(n)
    gain = returns @ weights - cp.sum_squares(root @ weights) - 0.02 * cp.norm1(weights - before)
    problem = cp.Problem(cp.Maximize(gain), [cp.sum(weights) == 1, weights >= 0])
    values = [0.1 * normal(27, n), 0.4 * torch.eye(n, dtype=torch.float64) + 0.1 * normal(28, n, n)]
    values.append(torch.full((n,), 1 / n, dtype=torch.float64))
    return Written(problem, [returns, root, before], [weights], values, batched=(0,))


def optimal_transport() -> Written:
    n = 4
    plan, costs = cp.Variable((n, n)), cp.Parameter((n, n))
    source, target = np.full(n, 1 / n), np.array([0.1, 0.2, 0.3, 0.4])
    constraints = [plan >= 0, cp.sum(plan, axis=1) == source, cp.sum(plan, axis=0) == target]
    cost = cp.sum(cp.multiply(costs, plan)) + 0.2 * cp.sum_squares(plan)
    return Written(cp.Problem(cp.Minimize(cost), constraints), [costs], [plan], [normal(29, n, n).abs()])


def entropic_transport() -> Written:
    n = 3
    plan, costs = cp.Variable((n, n)), cp.Parameter((n, n))
    source, target = np.full(n, 1 / n), np.array([0.2, 0.3, 0.5])
    constraints = [cp.sum(plan, axis=1) == source, cp.sum(plan, axis=0) == target]
    cost = cp.sum(cp.multiply(costs, plan)) - 0.3 * cp.sum(cp.entr(plan))
    problem = cp.Problem(cp.Minimize(cost), constraints)
    return Written(problem, [costs], [plan], [normal(30, n, n).abs()], tolerance=5e-3)


def sudoku() -> Written:
    """OptNet's 2 x 2 Sudoku: 64 variables, learned equality rows."""
    cells, rows = 64, 12
    y, A, b, puzzle = cp.Variable(cells), cp.Parameter((rows, cells)), cp.Parameter(rows), cp.Parameter(cells)
    problem = cp.Problem(cp.Minimize(0.05 * cp.sum_squares(y) - puzzle @ y), [A @ y == b, y >= 0])
    matrix = uniform(31, rows, cells)
    values = [matrix, matrix @ (0.1 + uniform(32, cells)), (uniform(33, cells) > 0.8).double()]
    return Written(problem, [A, b, puzzle], [y], values, batched=(2,))


def geometric_program() -> Written:
    x, y, z = (cp.Variable(pos=True) for _ in range(3))
    a, b, c = cp.Parameter(pos=True), cp.Parameter(pos=True), cp.Parameter()
    problem = cp.Problem(cp.Minimize(1 / (x * y * z)), [a * (x * y + x * z + y * z) <= b, x >= y**c])
    values = [torch.tensor(v, dtype=torch.float64) for v in (2.0, 1.0, 0.5)]
    return Written(problem, [a, b, c], [x, y, z], values, gp=True, tolerance=5e-3, batched=(0, 1))


def relu_network() -> Written:
    """A ReLU of a product of two parameters, which a variable in between makes DPP."""
    outputs, inputs = 4, 3
    y, between = cp.Variable(outputs), cp.Variable((outputs, inputs))
    weight, bias, point = cp.Parameter((outputs, inputs)), cp.Parameter(outputs), cp.Parameter(inputs)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - between @ point - bias)), [y >= 0, between == weight])
    values = [normal(34, outputs, inputs), normal(35, outputs), normal(36, inputs)]
    return Written(problem, [weight, bias, point], [y], values, batched=(2,))


def elastic_net() -> Written:
    rows = 20
    slope, offset = cp.Variable(1), cp.Variable()
    X, Y = cp.Parameter((rows, 1)), cp.Parameter(rows)
    sparse, small = cp.Parameter(nonneg=True), cp.Parameter(nonneg=True)
    loss = cp.sum(cp.square(X @ slope + offset - Y)) / rows
    problem = cp.Problem(cp.Minimize(loss + sparse * cp.norm1(slope) + small * cp.sum_squares(slope)))
    points = normal(37, rows, 1)
    values = [points, -0.7 * points[:, 0] + 0.5 * normal(38, rows)]
    values += [torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.2, dtype=torch.float64)]
    return Written(problem, [X, Y, sparse, small], [slope, offset], values, batched=(3,))


def bounded_lqr() -> Written:
    """Column vectors, a constant quadratic form and a norm of the largest entry, as in their example."""
    states, controls = 5, 2
    here, root, linear = cp.Parameter((states, 1)), cp.Parameter((states, states)), cp.Parameter(states)
    u, ahead = cp.Variable((controls, 1)), cp.Variable((states, 1))
    A, B = 0.5 * normal(39, states, states).numpy(), normal(40, states, controls).numpy()
    cost = cp.quad_form(u, np.eye(controls)) + cp.sum_squares(root @ ahead) + linear @ ahead
    problem = cp.Problem(cp.Minimize(cost), [ahead == A @ here + B @ u, cp.norm(u, "inf") <= 0.3])
    values = [
        0.5 * normal(41, states, 1),
        torch.eye(states, dtype=torch.float64),
        torch.zeros(states).double(),
    ]
    values[1] = values[1] + 0.1 * normal(42, states, states)
    return Written(problem, [here, root, linear], [u], values, batched=(0,))


def signal_denoising() -> Written:
    n = 10
    y, change = cp.Variable(n), cp.Variable(n)
    signal, weight, smooth = cp.Parameter(n), cp.Parameter((n, n)), cp.Parameter(pos=True)
    cost = cp.sum_squares(weight @ change) + smooth * cp.sum_squares(cp.diff(y))
    problem = cp.Problem(cp.Minimize(cost), [change == signal - y])
    values = [normal(43, n), torch.eye(n, dtype=torch.float64) + 0.1 * normal(44, n, n)]
    return Written(problem, [signal, weight, smooth], [y], [*values, torch.tensor(0.5, dtype=torch.float64)])


def portfolio_with_a_price_of_risk() -> Written:
    n = 5
    weights, returns, budget = cp.Variable(n), cp.Parameter(n), cp.Parameter(pos=True)
    F = 0.1 * normal(45, n, n).numpy()
    root = np.linalg.cholesky(F.T @ F + 0.05 * np.eye(n))
    risk = cp.norm(root.T @ weights, 2) <= budget
    problem = cp.Problem(cp.Maximize(returns @ weights), [risk, cp.sum(weights) == 1, weights >= 0])
    values = [(0.03 * normal(46, n) + 0.06).abs(), torch.tensor(0.2, dtype=torch.float64)]
    return Written(problem, [returns, budget], [weights, risk.dual_variables[0]], values)


def robust_regression() -> Written:
    x, b, radius = cp.Variable(6), cp.Parameter(15), cp.Parameter(nonneg=True)
    rows = normal(47, 15, 6).numpy()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(rows @ x - b) + radius * cp.norm(x, 2)))
    return Written(problem, [b, radius], [x], [normal(48, 15), torch.tensor(1.3, dtype=torch.float64)])


def circuit_sizing() -> Written:
    widths, area, power = cp.Variable(3, pos=True), cp.Parameter(pos=True), cp.Parameter(pos=True)
    delay = sum(c * cp.inv_pos(widths[i]) for i, c in enumerate((1.0, 1.5, 0.8)))
    limits = [cp.sum(widths) <= area, np.array([0.5, 0.8, 0.6]) @ widths <= power, widths >= 0.1]
    values = [torch.tensor(v, dtype=torch.float64) for v in (5.0, 3.0)]
    problem = cp.Problem(cp.Minimize(delay), limits)
    return Written(problem, [area, power], [widths], values, gp=True, tolerance=5e-3)


def without_constraints() -> Written:
    x, q = cp.Variable(4), cp.Parameter(4)
    return Written(cp.Problem(cp.Minimize(cp.sum_squares(x) + q @ x)), [q], [x], [normal(49, 4)])


PROGRAMS: dict[str, Callable[[], Written]] = {
    made.__name__: made
    for made in (
        least_squares,
        nonnegative_least_deviations,
        relu,
        quadratic_program,
        lqr,
        constrained_lqr,
        data_poisoning,
        supply_chain,
        markowitz,
        optimal_transport,
        entropic_transport,
        sudoku,
        geometric_program,
        relu_network,
        elastic_net,
        bounded_lqr,
        signal_denoising,
        portfolio_with_a_price_of_risk,
        robust_regression,
        circuit_sizing,
        without_constraints,
    )
}
