"""Cone programs and their gradients, one sample at a time; NumPy and SciPy in float64.

``min ½zᵀPz + qᵀz`` subject to ``Az + s = b, s in K``, with multipliers d (Section 3.6 of Zhao and others,
2025). Linear rows and second-order cones have a closed form: the active set makes the ghost problem an
equality-constrained quadratic program. Everywhere else the same program is solved again with its objective
moved a little, which needs nothing of the solver but its solution.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

from leyden_ffolayer.conic import (
    Array,
    Cones,
    ForwardSolver,
    Solved,
    Units,
    row_norms,
    solve_cone_program,
    units_of,
)

Mode = Literal["auto", "active_set", "ghost_fd", "perturb"]
MODES: tuple[str, ...] = ("auto", "active_set", "ghost_fd", "perturb")

_REGULARISATION = 1e-12
_ROUNDS, _ROUNDS_OF_ALL = 8, 3
_OPTIMAL, _LOOSE = 1e-9, 1e-6
_SMALL_LENGTH, _SMALL_FORCE, _SMALL_PRESSURE = 1e-5, 1e-3, 1e-4
_COARSE = 1e-3
"""Share of the numbers around it below which a solver's accuracy does not count."""

_FEW_ENTRIES = 40_000
"""Up to so many entries equality rows are looked through for dependent ones, in milliseconds."""

_SMALL = 120
"""Up to so many unknowns a dense factorisation is faster than a sparse one."""

_DEPENDENT = 1e-9
"""Pivots of the regularised matrix below it tell that the exact one may be singular."""

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
    _system: _System = field(repr=False)

    @property
    def dependent(self) -> bool:
        """Whether the kept rows depend on each other."""
        return self._system.dependent

    def solve(self, first: Array, second: Array) -> tuple[Array, Array]:
        """Solve ``[H Bᵀ; B 0] [u; w] = [first; second]``."""
        return self._system.solve(first, second)

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
    cones, sizes = program.cones, _sizes(program, point)
    lam, slack = point.d / sizes.pressures, point.s / sizes.lengths
    start, stop = cones.zero, cones.zero + cones.nonneg
    inequalities = start + (lam[start:stop] > slack[start:stop]).nonzero()[0]
    linear, tangent = [np.arange(cones.zero), inequalities], []
    for block in cones.second_order_blocks():
        s, d = point.s[block] / sizes.lengths[block].max(), point.d[block] / sizes.pressures[block].max()
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
    return Factored(program, active, H, B, curved, _System(H, B))


def polish(program: ConeProgram, point: Point) -> tuple[Point, Factored] | None:
    """Newton's method on the active set; for linear rows one step is exact.

    Args:
        program: a program of linear rows and second-order cones.
        point: an approximate solution.

    Returns:
        A solution whose optimality conditions hold to 1e-9, with the factorised matrix there; None if some
        rounds of correcting the active set find none.
    """
    active = find_active_set(program, point)
    for place in range(_ROUNDS):
        found = _newton(program, point, active)
        if found is None:
            return None
        candidate, factored = found
        worst, corrected = _judge(program, candidate, active, every_row=place < _ROUNDS_OF_ALL)
        if worst <= _OPTIMAL:
            if program.cones.soc:
                candidate = Point(candidate.z, candidate.s, candidate.d)
                factored = factorise(program, candidate, active) if factored.curved else factored
            return candidate, factored
        if corrected is None:
            return None
        if corrected.tangent != active.tangent:  # a boundary is found from outside
            point = Point(candidate.z, candidate.s, candidate.d)
        active = corrected
    return None


def optimality(program: ConeProgram, point: Point) -> float:
    """The largest violation of the optimality conditions, relative to the program's own size.

    Where there is a closed form, each condition is measured by the numbers that it adds up.

    Args:
        program: the program.
        point: a point whose s and d lie in their cones.

    Returns:
        The largest of stationarity, feasibility and complementarity.
    """
    stationarity = program.P @ point.z + program.q + program.A.T @ point.d
    balance = program.A @ point.z + point.s - program.b
    sizes = _sizes(program, point, least=_COARSE)
    if not program.cones.has_closed_form:  # the accuracy of solvers there does not reach small parts
        value = abs(program.q @ point.z) + abs(point.z @ (program.P @ point.z))
        gap = abs(point.s @ point.d) / (1e-12 + value)
        worst = max(_largest(stationarity) / sizes.force, _largest(balance / sizes.largest_lengths))
        return float(max(worst, gap))
    lengths, pressures = sizes.lengths, sizes.pressures
    products = point.s / lengths * (point.d / pressures)
    for block in program.cones.second_order_blocks():
        lengths[block], pressures[block] = lengths[block].max(), pressures[block].max()
        products[block] = point.s[block] / lengths[block] @ (point.d[block] / pressures[block])
    return max(_largest(stationarity / sizes.forces), _largest(balance / lengths), _largest(products))


class Resolver(NamedTuple):
    """How a program is solved again: the solver, the program's units, and the most iterations."""

    solver: ForwardSolver
    units: Units | None = None
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
            units=self.units,
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
            ``max(1, ‖q‖) / ‖(c, c_dual)‖``, all measured in the program's own units.

    Returns:
        u and w.

    Raises:
        RuntimeError: if one of the moved programs was not solved.
    """
    resolve = resolve._replace(units=units_of(program.P, program.q, program.A, program.b))
    assert resolve.units is not None
    if delta is None:
        length, force = resolve.units
        share = 1e-2 if program.cones.exp or program.cones.power else 1e-4
        size = np.hypot(np.linalg.norm(c), np.linalg.norm(c_dual) * force / length)
        delta = float(share * max(force, float(np.linalg.norm(program.q))) / size)
    ends = []
    for sign in (1, -1):
        moved = program._replace(q=program.q + sign * delta * c, b=program.b - sign * delta * c_dual)
        found = resolve(moved)
        if found.outcome == "impossible" or (found.outcome == "stopped" and not found.residual < 1e-7):
            raise RuntimeError(f"{found.status} after {found.iterations} iterations for the moved program")
        ends.append(found)
    ahead, behind = ends
    u, w = (ahead.primal - behind.primal) / (2 * delta), (ahead.dual - behind.dual) / (2 * delta)
    return u, _of_least_norm(program, w)


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
    return (found.primal - point.z) / delta, _of_least_norm(program, (found.dual - point.d) / delta)


def _of_least_norm(program: ConeProgram, w: Array) -> Array:
    """The multipliers without what dependent equality rows leave undetermined, which solvers fill at will."""
    count = program.cones.zero
    if not 0 < count * len(program.q) <= _FEW_ENTRIES:
        return w
    rows = program.A[:count].toarray()
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    seen = left[:, values > 1e-10 * values.max(initial=0.0)]
    return np.concatenate([seen @ (seen.T @ w[:count]), w[count:]])


def _newton(program: ConeProgram, point: Point, active: ActiveSet) -> tuple[Point, Factored] | None:
    """Solve the equations of an active set; more than one step where there are tangent cones."""
    z, d = point.z, np.zeros_like(point.d)
    d[active.linear] = point.d[active.linear]
    for block in active.tangent:
        d[block] = point.d[block]
    tips = _tips(program.cones, active)
    factored = None
    for _ in range(8 if active.tangent else 2):
        s = program.b - program.A @ z
        here = Point(z, s, d)
        for block in active.tangent:
            inner = s[block][1:]
            size = np.linalg.norm(inner)
            if not size > 0:
                return None
            d[block] = d[block.start] * np.concatenate([[1.0], -inner / size])
        if factored is None or active.tangent:
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


def _judge(
    program: ConeProgram, point: Point, active: ActiveSet, *, every_row: bool
) -> tuple[float, ActiveSet | None]:
    """How far a point is from optimal, and the corrected active set, if it is the reason."""
    cones, sizes = program.cones, _sizes(program, point)
    rest = program.b - program.A @ point.z
    slope = program.P @ point.z + program.q + program.A.T @ point.d
    worst = max(_largest(slope / sizes.forces), _largest((rest / sizes.largest_lengths)[active.linear]))
    start, stop = cones.zero, cones.zero + cones.nonneg
    inequalities = slice(start, stop)
    pressures = (point.d / sizes.pressures)[inequalities]
    violations = -(rest / sizes.lengths)[inequalities]
    kept = active.linear[(active.linear >= start) & (active.linear < stop)]
    mask = np.zeros(cones.nonneg, dtype=bool)
    mask[kept - start] = True
    # a guess may hold both sides of a narrow interval, which cannot both be satisfied
    loose = mask & (np.abs(violations) > _LOOSE)
    violations[mask] = -np.inf
    worst = max(worst, float(loose.any()), -pressures.min(initial=0.0), violations.max(initial=0.0))
    tips = _tips(cones, active)
    tangent, freed = [], []
    for block in cones.second_order_blocks():
        slack, force = rest[block] / sizes.lengths[block].max(), point.d[block] / sizes.pressures[block].max()
        room, depth = (float(vector[0] - np.linalg.norm(vector[1:])) for vector in (slack, force))
        worst = max(worst, -room, -depth)
        acts = force[0] >= -_OPTIMAL if block in active.tangent else room < -_OPTIMAL
        if block in tips:
            freed += [block] if depth < -_OPTIMAL else []
        elif acts and len(slack) > 1:
            tangent.append(block)
    changed = mask.copy()
    if every_row:
        changed[loose | (pressures < -_OPTIMAL)] = False
        changed[violations > _OPTIMAL] = True
    elif len(mask):
        lowest, highest = int(pressures.argmin()), int(violations.argmax())
        changed[lowest] &= not pressures[lowest] < -_OPTIMAL
        changed[highest] |= violations[highest] > _OPTIMAL
    if (changed == mask).all() and tangent == active.tangent and not freed:
        return worst, None
    ordered = start + changed.nonzero()[0]
    others = active.linear[(active.linear < start) | (active.linear >= stop)]
    for block in freed:
        others = others[(others < block.start) | (others >= block.stop)]
    split = int((others < start).sum())
    linear = np.concatenate([others[:split], ordered, others[split:]])
    return worst, ActiveSet(linear, tangent, len(ordered))


def _tips(cones: Cones, active: ActiveSet) -> list[slice]:
    kept = set(active.linear.tolist())
    return [block for block in cones.second_order_blocks() if block.start in kept]


class _Sizes(NamedTuple):
    """What is large and what is small in a program, at a point, as in `leyden_ffolayer.quadratic`.

    What rounding leaves is here a share of the largest numbers around, those of rows and variables that
    share one, so that parts of a program that nothing joins are judged each by its own numbers.

    Attributes:
        lengths: what a slack is measured by, of shape (rows,).
        largest_lengths: the same by the largest numbers of the whole program.
        forces: what a component of the gradient is measured by, of shape (variables,).
        pressures: what a multiplier is measured by, of shape (rows,).
        force: the largest component of the gradient, as it adds up.
    """

    lengths: Array
    largest_lengths: Array
    forces: Array
    pressures: Array
    force: float


def _sizes(program: ConeProgram, point: Point, *, least: float = 0.0) -> _Sizes:
    rows, norms, size = abs(program.A).tocoo(), row_norms(program.A), np.abs(point.z)
    lengths = rows @ size + np.abs(program.b)
    own = abs(program.P) @ size + np.abs(program.q)
    forces = own + rows.T @ np.abs(point.d)
    length = max(_largest(point.z), _largest(lengths / norms)) + 1e-300
    near_lengths, near_forces = _near(program, rows, lengths, own, forces, length)
    near_lengths = np.minimum(near_lengths, length * norms)
    near_pressures = _row_largest(rows, near_forces[rows.col])
    return _Sizes(
        lengths=lengths + max(_SMALL_LENGTH, least) * near_lengths + 1e-300,
        largest_lengths=length * norms,
        forces=forces + max(_SMALL_FORCE, least) * near_forces + 1e-300,
        pressures=((rows @ forces) / norms + max(_SMALL_PRESSURE, least) * near_pressures + 1e-300) / norms,
        force=_largest(forces) + 1e-300,
    )


def _near(
    program: ConeProgram, rows: sp.coo_matrix, lengths: Array, own: Array, forces: Array, length: float
) -> tuple[Array, Array]:
    """The largest lengths of rows that share a variable, and forces of variables that share a row.

    Sums of those are what rounding can spoil; numbers of a part that nothing joins to a row cannot.
    """
    nonzero = np.where(rows.data > 0, rows.data, 1.0)
    curvatures = program.P.diagonal()
    reach = np.divide(own, curvatures, out=np.zeros_like(own), where=curvatures > 0)
    np.maximum.at(reach, rows.col, (rows.data > 0) * lengths[rows.row] / nonzero)
    reach = np.minimum(reach, length)
    most = _largest(forces)
    forces = np.maximum(forces, abs(program.P) @ reach)
    pushes = np.zeros(len(lengths))
    np.maximum.at(pushes, rows.row, (rows.data > 0) * forces[rows.col] / nonzero)
    near_forces = np.zeros_like(forces)
    np.maximum.at(near_forces, rows.col, rows.data * pushes[rows.row])
    near_forces = np.maximum(np.minimum(near_forces, most), forces)
    return _row_largest(rows, rows.data * reach[rows.col]), near_forces


def _row_largest(rows: sp.coo_matrix, values: Array) -> Array:
    """The largest value of each row's entries, 0 for rows without."""
    found = np.zeros(rows.shape[0])
    np.maximum.at(found, rows.row, values)
    return found


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


class _System:
    """The reduced KKT matrix by a quasi-definite LU, whose solutions are refined against the exact matrix.

    Variables are measured by their curvature and rows by their length, so that the regularisation is small
    beside each of them.
    """

    def __init__(self, H: sp.csr_matrix, B: sp.csr_matrix) -> None:
        size, count = H.shape[0], B.shape[0]
        self._units = _variable_units(H, B)
        H = sp.diags(self._units) @ H @ sp.diags(self._units)
        B = B @ sp.diags(self._units)
        self._size = size
        self._level = _largest(H.data) or 1.0
        self._lengths = row_norms(B)
        rows = sp.diags(1 / self._lengths) @ B
        H = sp.csc_matrix(H / self._level)
        self._exact = sp.bmat([[H, rows.T], [rows, None]], format="csc") if count else H
        self._multiply: Callable[[Array], Array]
        if size + count <= _SMALL:
            dense = self._exact.toarray()
            self._multiply, self._absolute = dense.__matmul__, np.abs(dense)
        else:
            self._multiply, self._absolute = self._exact.__matmul__, abs(self._exact)
        self._once, least = self._factorised(0.0)
        self.dependent = False
        if least < _DEPENDENT and not self._meets_all():
            self._once, _ = self._factorised(_REGULARISATION)
            self.dependent = bool(count) and self._rows_contradict(count)

    def solve(self, first: Array, second: Array) -> tuple[Array, Array]:
        """Solve for u and w; where rows contradict each other, as well as can be."""
        right = np.concatenate([first * self._units / self._level, second / self._lengths])
        found, rest = self._refined(right)
        if not rest <= 1e-8:
            found = np.linalg.lstsq(self._exact.toarray(), right, rcond=1e-13)[0]
        u, w = found[: self._size], found[self._size :]
        return u * self._units, w * self._level / self._lengths

    def _factorised(self, regularisation: float) -> tuple[Callable[[Array], Array], float]:
        """The solution by an LU, and its smallest pivot; 0 where there is none."""
        count = self._exact.shape[0] - self._size
        signs = np.concatenate([np.full(self._size, regularisation), np.full(count, -regularisation)])
        if isinstance(self._absolute, np.ndarray):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
                factors = scipy.linalg.lu_factor(self._exact.toarray() + np.diag(signs), check_finite=False)
            least = np.abs(factors[0].diagonal()).min(initial=1.0)
            return lambda right: scipy.linalg.lu_solve(factors, right, check_finite=False), float(least)
        try:
            lu = scipy.sparse.linalg.splu(
                self._exact + sp.diags(signs, format="csc"), permc_spec="MMD_AT_PLUS_A"
            )
        except RuntimeError:  # exactly singular
            return np.zeros_like, 0.0
        return lu.solve, float(np.abs(lu.U.diagonal()).min(initial=1.0))

    def _refined(self, right: Array) -> tuple[Array, float]:
        """A solution, and what is left of the right-hand side, as a share of it.

        It is refined until every equation holds to the rounding of its own terms, so that small unknowns
        are as accurate as large ones.
        """
        found = self._once(right)
        rest = right - self._multiply(found)
        worst = self._share(rest, found, right)
        for _ in range(4):
            if not worst > 1e-15:
                break
            better = found + self._once(rest)
            left = right - self._multiply(better)
            share = self._share(left, better, right)
            if not share < worst:
                break
            found, rest, worst = better, left, share
        return found, _largest(rest) / (_largest(right) + 1e-300)

    def _share(self, rest: Array, found: Array, right: Array) -> float:
        """What is left of an equation as a share of its terms, the largest of all."""
        return _largest(rest / (self._absolute @ np.abs(found) + np.abs(right) + 1e-300))

    def _meets_all(self) -> bool:
        """Whether the factors solve for any right-hand side."""
        drawn = np.random.default_rng(0).standard_normal(self._exact.shape[0])
        with np.errstate(all="ignore"):
            return self._refined(drawn)[1] <= 1e-8

    def _rows_contradict(self, count: int) -> bool:
        """Whether there are right-hand sides that the rows cannot all meet."""
        drawn = np.random.default_rng(0).standard_normal(count)
        return self._refined(np.concatenate([np.zeros(self._size), drawn]))[1] > 1e-8


def _variable_units(H: sp.csr_matrix, B: sp.csr_matrix) -> Array:
    """Units in which curvatures are about 1; a variable without has that of the curved ones in its rows.

    ``w (x - p) = t`` with a curvature of t alone is what cvxpy makes of a weighted square: x is then
    measured by t / w.
    """
    sizes = np.sqrt(np.maximum(H.diagonal(), 0.0))
    flat = sizes == 0
    if flat.any() and B.shape[0]:
        inverse = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=~flat)
        curved = np.sqrt(np.asarray((abs(B) @ sp.diags(inverse)).power(2).sum(axis=1))).ravel()
        beside = _column_largest(B, np.divide(1.0, curved, out=np.zeros_like(curved), where=curved > 0))
        sizes[flat] = np.where(beside > 0, beside, _column_largest(B, 1 / row_norms(B)))[flat]
    largest = sizes.max(initial=0.0) or 1.0
    sizes = np.where(sizes > 1e-13 * largest, sizes, largest)
    if largest < 16 * sizes.min(initial=largest):
        return np.ones_like(sizes)
    return np.exp2(-np.round(np.log2(sizes / largest)))


def _column_largest(B: sp.csr_matrix, factors: Array) -> Array:
    """The largest entry of each column, rows times factors."""
    return np.asarray(abs(sp.diags(factors) @ B).max(axis=0).todense()).ravel()
