"""Cone programs and their gradients, one sample at a time; NumPy and SciPy in float64.

``min ½zᵀPz + qᵀz`` subject to ``Az + s = b, s in K``, with multipliers d (Section 3.6 of Zhao and others,
2025). Linear rows and second-order cones have a closed form: the active set makes the ghost problem an
equality-constrained quadratic program. Everywhere else the same program is solved again with its objective
moved a little, which needs nothing of the solver but its solution.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

from leyden_ffolayer.conic import Array, Cones, ForwardSolver, Solved, solve_cone_program

Mode = Literal["auto", "active_set", "ghost_fd", "perturb"]
MODES: tuple[str, ...] = ("auto", "active_set", "ghost_fd", "perturb")

_REGULARISATION = 1e-12
_ROUNDS = 5
_OPTIMAL = 1e-9
_SMALL = 120
"""Up to so many unknowns a dense factorisation is faster than a sparse one."""

INNER_TOLERANCE = 1e-11
"""Accuracy asked of the solver where solutions are subtracted from each other."""


class ConeProgram(NamedTuple):
    """A cone program; P with both triangles, A by rows."""

    P: sp.csr_matrix
    q: Array
    A: sp.csr_matrix
    b: Array
    cones: Cones


@dataclass
class Point:
    """Primal solution, slacks and multipliers of a program.

    Attributes:
        z: of shape (variables,).
        s: of shape (rows,), in the cone.
        d: of shape (rows,), in the dual cone.
    """

    z: Array
    s: Array
    d: Array


@dataclass
class ActiveSet:
    """Which rows act at a solution, by cone.

    Attributes:
        linear: places of the rows that are kept as they are: equalities, active inequalities, and all rows of
            a second-order cone at whose tip the slack lies.
        tangent: second-order cones on whose boundary slack and multiplier lie.
        inequalities: how many of the linear rows are inequalities.
    """

    linear: Array
    tangent: list[slice]
    inequalities: int = 0


@dataclass
class Factored:
    """The reduced KKT matrix at a point, factorised.

    Attributes:
        program: the program.
        active: the active set.
        H: the objective's matrix with the curvature of the tangent cones.
        B: the kept rows, linear ones first.
        curved: for each tangent cone its rows, the unit vector v̂, and d₀ / ‖v‖.
    """

    program: ConeProgram
    active: ActiveSet
    H: sp.csr_matrix
    B: sp.csr_matrix
    curved: list[tuple[slice, Array, float]]
    _solve: Any = field(repr=False, default=None)
    dependent: bool = False

    def solve(self, first: Array, second: Array) -> tuple[Array, Array]:
        """Solve ``[H Bᵀ; B 0] [u; w] = [first; second]``."""
        u, w, self.dependent = self._solve(first, second)
        return u, w

    def direction(self, c: Array, c_dual: Array) -> tuple[Array, Array]:
        """The derivatives u of z and w of d along the loss's gradient.

        Args:
            c: the loss's gradient with respect to z.
            c_dual: with respect to d.

        Returns:
            u of shape (variables,) and w of shape (rows,).
        """
        program, active = self.program, self.active
        first = -c
        second = [-c_dual[active.linear]]
        for block, unit, bend in self.curved:
            inner = c_dual[block][1:]
            across = inner - unit * (unit @ inner)
            first = first - bend * (program.A[block.start + 1 : block.stop].T @ across)
            second.append(np.array([-(c_dual[block][0] - unit @ inner)]))
        u, kept = self.solve(first, np.concatenate(second))
        w = np.zeros(len(program.b))
        count = len(active.linear)
        w[active.linear] = kept[:count]
        for place, (block, unit, bend) in enumerate(self.curved):
            rows = slice(block.start + 1, block.stop)
            moved = -(program.A[rows] @ u) - c_dual[rows]
            across = moved - unit * (unit @ moved)
            w[block.start] = kept[count + place]
            w[rows] = -kept[count + place] * unit - bend * across
        return u, w


def find_active_set(program: ConeProgram, point: Point) -> ActiveSet:
    """The active set of a point, by comparing multipliers with slacks (Section 3.5).

    Args:
        program: the program.
        point: an approximate solution.

    Returns:
        The active set.
    """
    cones = program.cones
    force, length = _sizes(program, point)
    norms = _row_norms(program.A)
    lam, slack = point.d * norms / force, point.s / norms / length
    start, stop = cones.zero, cones.zero + cones.nonneg
    inequalities = start + (lam[start:stop] > slack[start:stop]).nonzero()[0]
    linear, tangent = [np.arange(cones.zero), inequalities], []
    for block in cones.second_order_blocks():
        own = norms[block].max()
        s, d = point.s[block] / own / length, point.d[block] * own / force
        room, depth = s[0] - np.linalg.norm(s[1:]), d[0] - np.linalg.norm(d[1:])
        if d[0] <= room:
            continue
        if s[0] <= depth or len(s) == 1:
            linear.append(np.arange(block.start, block.stop))
        else:
            tangent.append(block)
    return ActiveSet(np.concatenate(linear), tangent, len(inequalities))


def factorise(program: ConeProgram, point: Point, active: ActiveSet) -> Factored:
    """Factorise the reduced KKT matrix of Section 3.6 at a point.

    Args:
        program: the program.
        point: where cones are linearised.
        active: the active set.

    Returns:
        The factorised matrix.
    """
    H, rows, curved = program.P, [program.A[active.linear]], []
    for block in active.tangent:
        inner = point.s[block][1:]
        size = float(np.linalg.norm(inner))
        unit = inner / size
        bend = float(point.d[block.start]) / size
        matrix = program.A[block.start + 1 : block.stop]
        across = matrix - sp.csr_matrix(unit[:, None]) @ sp.csr_matrix((matrix.T @ unit)[None, :])
        H = H + bend * (matrix.T @ across)
        rows.append(program.A[block.start] - sp.csr_matrix((matrix.T @ unit)[None, :]))
        curved.append((block, unit, bend))
    B = sp.vstack(rows, format="csr") if len(rows) > 1 else rows[0].tocsr()
    H = sp.csr_matrix(H)
    return Factored(program, active, H, B, curved, _solver(H, B))


def polish(program: ConeProgram, point: Point) -> tuple[Point, Factored] | None:
    """Newton's method on the active set; for linear rows one step is exact.

    Args:
        program: a program of linear rows and second-order cones.
        point: an approximate solution.

    Returns:
        A solution whose optimality conditions hold to 1e-9, with the factorised matrix there; None if five
        rounds of correcting the active set find none.
    """
    active = find_active_set(program, point)
    for _ in range(_ROUNDS):
        found = _newton(program, point, active)
        if found is None:
            return None
        candidate, factored = found
        worst, corrected = _judge(program, candidate, active)
        if worst <= _OPTIMAL:
            if program.cones.soc:
                candidate = Point(candidate.z, candidate.s, candidate.d)
                factored = factorise(program, candidate, active) if factored.curved else factored
            return candidate, factored
        if corrected is None:
            return None
        active = corrected
    return None


def optimality(program: ConeProgram, point: Point) -> float:
    """The largest violation of the optimality conditions, relative to the program's own size.

    Args:
        program: the program.
        point: a point whose s and d lie in their cones.

    Returns:
        The largest of stationarity, feasibility and complementarity.
    """
    force, length = _sizes(program, point)
    stationarity = program.P @ point.z + program.q + program.A.T @ point.d
    balance = (program.A @ point.z + point.s - program.b) / _row_norms(program.A)
    value = abs(program.q @ point.z) + abs(point.z @ (program.P @ point.z))
    gap = abs(point.s @ point.d) / (1e-12 + value)
    return float(max(_largest(stationarity) / force, _largest(balance) / length, gap))


class Resolver(NamedTuple):
    """How a program is solved again: solver, and the most iterations."""

    solver: ForwardSolver
    max_iterations: int = 0
    tolerance: float = INNER_TOLERANCE

    def __call__(self, program: ConeProgram) -> Solved:
        """Solve it."""
        return solve_cone_program(
            sp.triu(program.P, format="csc"),
            program.q,
            program.A.tocsc(),
            program.b,
            program.cones,
            solver=self.solver,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )


def central_difference(
    program: ConeProgram, c: Array, c_dual: Array, *, resolve: Resolver, delta: float | None = None
) -> tuple[Array, Array]:
    """The derivatives of z and d from two solutions of the moved program, Section 3.6.

    It is legitimate because the derivative of the solution map is symmetric. The error of the solver counts
    by the inverse of delta, and on exponential cones it is the root of the solver's tolerance; hence the
    large default there.

    Args:
        program: the program.
        c: the loss's gradient with respect to z.
        c_dual: with respect to d.
        resolve: the solver.
        delta: the move; None: 1e-2 (exponential and power cones) or 1e-4, times
            ``max(1, ‖q‖) / ‖(c, c_dual)‖``.

    Returns:
        u and w.

    Raises:
        RuntimeError: if one of the moved programs was not solved.
    """
    size = float(np.sqrt(c @ c + c_dual @ c_dual))
    if delta is None:
        share = 1e-2 if program.cones.exp or program.cones.power else 1e-4
        delta = share * max(1.0, float(np.linalg.norm(program.q))) / size
    ends = []
    for sign in (1, -1):
        moved = program._replace(q=program.q + sign * delta * c, b=program.b - sign * delta * c_dual)
        found = resolve(moved)
        if found.outcome in ("impossible", "stopped") and not found.residual < 1e-7:
            raise RuntimeError(f"{found.status} after {found.iterations} iterations for the moved program")
        ends.append(found)
    ahead, behind = ends
    return (ahead.primal - behind.primal) / (2 * delta), (ahead.dual - behind.dual) / (2 * delta)


def forward_difference(
    program: ConeProgram, point: Point, c: Array, c_dual: Array, *, resolve: Resolver, delta: float
) -> tuple[Array, Array]:
    """The same from one moved program and the solution itself, with an error of the order of delta.

    Args:
        program: the program.
        point: its solution.
        c: the loss's gradient with respect to z.
        c_dual: with respect to d.
        resolve: the solver.
        delta: the move.

    Returns:
        u and w.
    """
    found = resolve(program._replace(q=program.q + delta * c, b=program.b - delta * c_dual))
    return (found.primal - point.z) / delta, (found.dual - point.d) / delta


def _newton(program: ConeProgram, point: Point, active: ActiveSet) -> tuple[Point, Factored] | None:
    """Solve the equations of an active set; more than one step where there are tangent cones."""
    z, d = point.z, np.zeros_like(point.d)
    d[active.linear] = point.d[active.linear]
    for block in active.tangent:
        d[block] = point.d[block]
    tips = _tips(program.cones, active)
    factored = None
    for _ in range(8 if active.tangent else 1):
        s = program.b - program.A @ z
        here = Point(z, s, d)
        for block in active.tangent:
            inner = s[block][1:]
            size = np.linalg.norm(inner)
            if not size > 0:
                return None
            d[block] = d[block.start] * np.concatenate([[1.0], -inner / size])
        factored = factorise(program, here, active)
        right = [s[active.linear]]
        right += [np.array([s[block.start] - np.linalg.norm(s[block][1:])]) for block in active.tangent]
        u, w = factored.solve(-(program.P @ z + program.q + program.A.T @ d), np.concatenate(right))
        z = z + u
        d = d.copy()
        count = len(active.linear)
        d[active.linear] += w[:count]
        for place, block in enumerate(active.tangent):
            d[block.start] += w[count + place]
        if _largest(u) <= 1e-13 * (1e-300 + _largest(z)):
            break
    s = program.b - program.A @ z
    for block in active.tangent:
        inner = s[block][1:]
        d[block] = d[block.start] * np.concatenate([[1.0], -inner / max(np.linalg.norm(inner), 1e-300)])
        s[block.start] = np.linalg.norm(inner)
    s[active.linear] = 0.0
    for block in tips:
        s[block] = 0.0
    assert factored is not None
    if not (np.isfinite(z).all() and np.isfinite(d).all()):
        return None
    return Point(z, s, d), factored


def _judge(program: ConeProgram, point: Point, active: ActiveSet) -> tuple[float, ActiveSet | None]:
    """How far a point is from optimal, and the corrected active set, where a linear row is the reason."""
    cones = program.cones
    force, length = _sizes(program, point)
    norms = _row_norms(program.A)
    rest = (program.b - program.A @ point.z) / norms / length
    pressures = point.d * norms / force
    stationarity = _largest(program.P @ point.z + program.q + program.A.T @ point.d) / force
    worst = max(stationarity, _largest(rest[active.linear]))
    start, stop = cones.zero, cones.zero + cones.nonneg
    lowest, deepest = -pressures[start:stop], -rest[start:stop]
    worst = max(worst, lowest.max(initial=0.0), deepest.max(initial=0.0))
    for block in cones.second_order_blocks():
        own = norms[block].max()
        for vector in (rest[block] * norms[block] / own, pressures[block] / norms[block] * own):
            worst = max(worst, float(np.linalg.norm(vector[1:]) - vector[0]))
    kept = active.linear[(active.linear >= start) & (active.linear < stop)]
    others = active.linear[(active.linear < start) | (active.linear >= stop)]
    changed = set(kept.tolist())
    if len(lowest) and lowest.max() > _OPTIMAL:
        changed.discard(start + int(lowest.argmax()))
    inactive = deepest.copy()
    inactive[kept - start] = -np.inf
    if len(inactive) and inactive.max() > _OPTIMAL:
        changed.add(start + int(inactive.argmax()))
    if changed == set(kept.tolist()):
        return worst, None
    ordered = np.array(sorted(changed), dtype=int)
    split = int((others < start).sum())
    linear = np.concatenate([others[:split], ordered, others[split:]])
    return worst, ActiveSet(linear, active.tangent, len(ordered))


def _tips(cones: Cones, active: ActiveSet) -> list[slice]:
    kept = set(active.linear.tolist())
    return [block for block in cones.second_order_blocks() if block.start in kept]


def _sizes(program: ConeProgram, point: Point) -> tuple[float, float]:
    """How large gradients and how large distances are."""
    pull = program.A.T @ point.d
    force = max(_largest(program.q), _largest(program.P @ point.z), _largest(pull))
    length = max(_largest(point.z), _largest(program.b / _row_norms(program.A)))
    return force + 1e-300, length + 1e-300


def _row_norms(A: sp.csr_matrix) -> Array:
    squares = np.bincount(
        np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), weights=A.data**2, minlength=A.shape[0]
    )
    return np.where(squares > 0, np.sqrt(squares), 1.0)


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


def _solver(H: sp.csr_matrix, B: sp.csr_matrix) -> Any:
    """A function that solves with the reduced KKT matrix, by a quasi-definite LU and refinement."""
    size, count = H.shape[0], B.shape[0]
    level = _largest(H.data) or 1.0
    lengths = _row_norms(B)
    rows = sp.diags(1 / lengths) @ B
    exact = sp.bmat([[H / level, rows.T], [rows, None]], format="csc") if count else sp.csc_matrix(H / level)
    signs = np.concatenate([np.full(size, _REGULARISATION), np.full(count, -_REGULARISATION)])
    if size + count <= _SMALL:
        dense = exact.toarray()
        factors = scipy.linalg.lu_factor(dense + np.diag(signs), check_finite=False)
        multiply = dense.__matmul__

        def once(right: Array) -> Array:
            return np.asarray(scipy.linalg.lu_solve(factors, right, check_finite=False))
    else:
        lu = scipy.sparse.linalg.splu(exact + sp.diags(signs, format="csc"), permc_spec="MMD_AT_PLUS_A")
        once, multiply = lu.solve, exact.__matmul__

    def solve(first: Array, second: Array) -> tuple[Array, Array, bool]:
        right = np.concatenate([first / level, second / lengths])
        scale = _largest(right) + 1e-300
        found = once(right)
        rest = right - multiply(found)
        for _ in range(4):
            if not _largest(rest) > 1e-14 * scale:
                break
            better = found + once(rest)
            left = right - multiply(better)
            if not _largest(left) < _largest(rest):
                break
            found, rest = better, left
        poor = not _largest(rest) <= 1e-8 * scale
        if poor:
            found = np.linalg.lstsq(exact.toarray(), right, rcond=1e-13)[0]
        return found[:size], found[size:] * level / lengths, poor

    return solve
