"""Calls to the solvers that the layers can use for the forward pass: Clarabel, OSQP and SCS.

A cone program is ``min ½zᵀPz + qᵀz`` subject to ``Az + s = b, s in K`` (Section 3.6 of Zhao and others,
2025), with the cones in cvxpy's order: zero, nonnegative, second-order, positive semidefinite, exponential,
power. Semidefinite blocks are upper triangles by columns, off-diagonal entries times √2. NumPy and SciPy in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

ForwardSolver = Literal["clarabel", "osqp", "scs"]
SOLVERS: tuple[str, ...] = ("clarabel", "osqp", "scs")

Array = np.ndarray[Any, Any]

_SMALL, _LARGE = 1e-2, 1e2


@dataclass(frozen=True)
class Cones:
    """The cones of a program, in order.

    Attributes:
        zero: number of equality rows.
        nonneg: number of inequality rows.
        soc: sizes of the second-order cones.
        psd: orders of the semidefinite blocks.
        exp: number of exponential cones.
        power: exponents of the three-dimensional power cones.
    """

    zero: int = 0
    nonneg: int = 0
    soc: tuple[int, ...] = ()
    psd: tuple[int, ...] = ()
    exp: int = 0
    power: tuple[float, ...] = ()

    @property
    def is_polyhedral(self) -> bool:
        """Whether there are linear rows only."""
        return not (self.soc or self.psd or self.exp or self.power)

    @property
    def has_closed_form(self) -> bool:
        """Whether the active set alone gives the derivative: linear rows and second-order cones."""
        return not (self.psd or self.exp or self.power)

    def second_order_blocks(self) -> list[slice]:
        """The rows of each second-order cone."""
        ends = np.cumsum([self.zero + self.nonneg, *self.soc]).tolist()
        return [slice(start, end) for start, end in pairwise(ends)]

    def psd_blocks(self) -> list[tuple[slice, int]]:
        """The rows of each semidefinite block, and its order."""
        start = self.zero + self.nonneg + sum(self.soc)
        blocks = []
        for order in self.psd:
            size = order * (order + 1) // 2
            blocks.append((slice(start, start + size), order))
            start += size
        return blocks


@dataclass(frozen=True)
class Solved:
    """What a solver found.

    Attributes:
        primal: z.
        slack: s.
        dual: the multipliers d in the dual cone, with ``Pz + q + Aᵀd = 0``.
        status: the solver's own word.
        outcome: what it means: a solution, a rough one (the solver says that its accuracy is reduced), no
            solution because the program has none, or a solver that stopped early.
        iterations: how many the solver took.
        residual: the largest violation that the solver reports; NaN if it reports none.
    """

    primal: Array
    slack: Array
    dual: Array
    status: str
    outcome: Literal["solved", "rough", "impossible", "stopped"]
    iterations: int
    residual: float


def solve_cone_program(
    P: sp.csc_matrix,
    q: Array,
    A: sp.csc_matrix,
    b: Array,
    cones: Cones,
    *,
    solver: ForwardSolver = "clarabel",
    tolerance: float = 1e-9,
    max_iterations: int = 0,
    verbose: bool = False,
    units: Units | None = None,
) -> Solved:
    """Solve a cone program.

    Args:
        P: the upper triangle of the objective's matrix, of shape (variables, variables).
        q: of shape (variables,).
        A: of shape (rows, variables).
        b: of shape (rows,).
        cones: the cones of the rows.
        solver: which solver; OSQP takes linear rows only.
        tolerance: absolute and relative accuracy that is asked of the solver.
        max_iterations: the most it may take; 0 leaves the solver's own limit.
        verbose: whether the solver prints what it does.
        units: the program's sizes; None: see `units_of`.

    Returns:
        What it found; a program without solution is an outcome, not an exception.

    Raises:
        ValueError: if the solver does not know one of the cones.
    """
    call = {"clarabel": _clarabel, "osqp": _osqp, "scs": _scs}[solver]

    def solved(units: Units) -> Solved:
        return _in_units(
            call(
                P * (units.length / units.force), q / units.force, A, b / units.length, cones, tolerance,
                max_iterations, verbose,
            ), units,
        )  # fmt: skip

    units = units or units_of(P, q, A, b)
    found = solved(units)
    largest = _largest_units(q, A, b)
    if found.outcome == "impossible" and largest != units:
        # costs far above the tolerance look like a direction of descent without end
        again = solved(largest)
        found = again if again.outcome in ("solved", "rough") else found
    return found


def _in_units(found: Solved, units: Units) -> Solved:
    return replace(
        found, primal=found.primal * units.length, slack=found.slack * units.length,
        dual=found.dual * units.force,
    )  # fmt: skip


class Units(NamedTuple):
    """The sizes of a program: of its decisions and slacks, and of its objective's gradient and multipliers.

    A solver's tolerances are absolute below 1, so that it would stop far too early on a program of small
    numbers. Divided by their units, programs of every size are one to it; all are powers of two, so that
    nothing is rounded.
    """

    length: float = 1.0
    force: float = 1.0


def units_of(P: sp.spmatrix, q: Array, A: sp.spmatrix, b: Array) -> Units:
    """The units of a program: 1 for what is neither small nor large.

    Args:
        P: the objective's matrix, or its upper triangle.
        q: of shape (variables,).
        A: of shape (rows, variables).
        b: of shape (rows,).

    Returns:
        The units.

    >>> units_of(sp.eye(1, format="csc"), np.array([2.0**-20]), sp.csc_matrix((0, 1)), np.zeros(0))
    Units(length=9.5367431640625e-07, force=9.5367431640625e-07)
    """
    curvature = float(np.abs(P.data).max(initial=0.0))
    length, force = _size(b / row_norms(A)), _size(q)
    if curvature:
        reach = float(np.abs(q).max(initial=0.0)) / curvature
        # Right-hand sides may all be large because no row is near.
        length = min(length, max(reach, 1.0)) if reach and length else length or reach
    length = length or 1.0
    if force < 1 and curvature:
        force = max(force, min(curvature * length, 1.0) if force else curvature * length)
    return Units(_power_of_two(length), _power_of_two(force or 1.0))


def _largest_units(q: Array, A: sp.spmatrix, b: Array) -> Units:
    """The sizes of the largest numbers, where small ones stand beside them."""
    largest = (float(np.abs(values).max(initial=0.0)) for values in (b / row_norms(A), q))
    return Units(*(_power_of_two(max(size, 1.0)) for size in largest))


def _size(values: Array) -> float:
    """1 unless all numbers are small or all are large; 0 if there are none but zeros."""
    sizes = np.abs(values[values != 0])
    if not len(sizes):
        return 0.0
    return float(sizes.max() if sizes.max() < _SMALL else sizes.min() if sizes.min() > _LARGE else 1.0)


def row_norms(A: sp.spmatrix) -> Array:
    """The lengths of a sparse matrix's rows; 1 for rows of zeros.

    >>> row_norms(sp.csc_matrix([[3.0, 4.0], [0.0, 0.0]]))
    array([5., 1.])
    """
    entries = A.tocoo()
    squares = np.bincount(entries.row, weights=entries.data**2, minlength=A.shape[0])
    return np.where(squares > 0, np.sqrt(squares), 1.0)


def _power_of_two(size: float) -> float:
    return 1.0 if _SMALL <= size <= _LARGE else float(2.0 ** round(math.log2(size)))


def _clarabel(
    P: sp.csc_matrix, q: Array, A: sp.csc_matrix, b: Array, cones: Cones, tolerance: float, most: int,
    verbose: bool,
) -> Solved:  # fmt: skip
    import clarabel

    settings = clarabel.DefaultSettings()
    settings.verbose = verbose
    settings.max_threads = 1
    settings.presolve_enable = False
    for name in ("tol_feas", "tol_gap_abs", "tol_gap_rel"):
        setattr(settings, name, tolerance)
    if most:
        settings.max_iter = most
    kinds: list[Any] = []
    if cones.zero:
        kinds.append(clarabel.ZeroConeT(cones.zero))
    if cones.nonneg:
        kinds.append(clarabel.NonnegativeConeT(cones.nonneg))
    kinds += [clarabel.SecondOrderConeT(size) for size in cones.soc]
    kinds += [clarabel.PSDTriangleConeT(order) for order in cones.psd]
    kinds += [clarabel.ExponentialConeT()] * cones.exp
    kinds += [clarabel.PowerConeT(exponent) for exponent in cones.power]
    found = clarabel.DefaultSolver(P, q, A, b, kinds, settings).solve()
    status = str(found.status)
    outcome: Any = "stopped"
    if status in ("Solved", "AlmostSolved"):
        outcome = "solved" if status == "Solved" else "rough"
    elif "Infeasible" in status:
        outcome = "impossible"
    return Solved(
        np.asarray(found.x),
        np.asarray(found.s),
        np.asarray(found.z),
        status,
        outcome,
        int(found.iterations),
        float(max(found.r_prim, found.r_dual)),
    )


def _osqp(
    P: sp.csc_matrix, q: Array, A: sp.csc_matrix, b: Array, cones: Cones, tolerance: float, most: int,
    verbose: bool,
) -> Solved:  # fmt: skip
    import osqp

    if not cones.is_polyhedral:
        raise ValueError("solver: expected one that knows every cone of the problem, got 'osqp', "
                         "which knows linear rows only")  # fmt: skip
    lower = np.concatenate([b[: cones.zero], np.full(cones.nonneg, -np.inf)])
    problem = osqp.OSQP()
    problem.setup(
        P=sp.csc_matrix(P), q=q, A=sp.csc_matrix(A), l=lower, u=b, verbose=verbose, eps_abs=tolerance,
        eps_rel=tolerance, max_iter=most or 100_000, eps_prim_inf=1e-9, eps_dual_inf=1e-9,
    )  # fmt: skip
    found = problem.solve(raise_error=False)
    status = str(found.info.status)
    outcome: Any = "stopped"
    if status in ("solved", "solved inaccurate"):
        outcome = "solved" if status == "solved" else "rough"
    elif "infeasible" in status:
        outcome = "impossible"
    primal, dual = np.asarray(found.x, dtype=float), np.asarray(found.y, dtype=float)
    slack = np.zeros(len(b))
    if outcome != "impossible":
        slack[cones.zero :] = np.maximum(b - A @ primal, 0)[cones.zero :]
        dual[cones.zero :] = np.maximum(dual[cones.zero :], 0)
    residual = float(max(found.info.prim_res, found.info.dual_res))
    return Solved(primal, slack, dual, status, outcome, int(found.info.iter), residual)


def _scs(
    P: sp.csc_matrix, q: Array, A: sp.csc_matrix, b: Array, cones: Cones, tolerance: float, most: int,
    verbose: bool,
) -> Solved:  # fmt: skip
    import scs

    order = scs_order(cones, len(b))
    data = {"P": sp.csc_matrix(P), "c": q, "A": sp.csc_matrix(A.tocsr()[order]), "b": b[order]}
    cone = {"z": cones.zero, "l": cones.nonneg, "q": list(cones.soc), "s": list(cones.psd), "ep": cones.exp}
    cone["p"] = list(cones.power)
    found = scs.SCS(
        data, cone, verbose=verbose, eps_abs=tolerance, eps_rel=tolerance, max_iters=most or 100_000
    ).solve()
    info = found["info"]
    status = str(info["status"])
    outcome: Any = {1: "solved", 2: "rough", -1: "impossible", -2: "impossible"}.get(
        info["status_val"], "stopped"
    )
    if outcome == "rough" and info["iter"] >= (most or 100_000):
        outcome = "stopped"
    slack, dual = np.empty(len(b)), np.empty(len(b))
    slack[order], dual[order] = found["s"], found["y"]
    residual = float(max(info["res_pri"], info["res_dual"]))
    return Solved(np.asarray(found["x"]), slack, dual, status, outcome, int(info["iter"]), residual)


def scs_order(cones: Cones, rows: int) -> Array:
    """Where each row of SCS's order, lower triangles by columns, stands in ours.

    Args:
        cones: the cones.
        rows: number of rows in all.

    Returns:
        A permutation of the rows, of shape (rows,); the identity without semidefinite blocks.

    >>> scs_order(Cones(psd=(3,)), 6).tolist()
    [0, 1, 3, 2, 4, 5]
    """
    order = np.arange(rows)
    for block, size in cones.psd_blocks():
        # Row j of the lower triangle's column i is column j, row i of the upper triangle.
        upper = [j * (j + 1) // 2 + i for i in range(size) for j in range(i, size)]
        order[block] = block.start + np.array(upper, dtype=int)
    return order


def cones_of(dimensions: Any) -> Cones:
    """The cones as cvxpy's ``ConeDims`` has them.

    Args:
        dimensions: an object with ``zero``, ``nonneg``, ``soc``, ``psd``, ``exp`` and ``p3d``.

    Returns:
        The cones.

    Raises:
        ValueError: if there are power cones of more than three dimensions.
    """
    if getattr(dimensions, "pnd", None):
        raise ValueError(
            "problem: expected power cones of three dimensions only, "
            f"got {len(dimensions.pnd)} of more dimensions"
        )
    return Cones(
        int(dimensions.zero),
        int(dimensions.nonneg),
        tuple(int(size) for size in dimensions.soc),
        tuple(int(order) for order in dimensions.psd),
        int(dimensions.exp),
        _floats(dimensions.p3d),
    )


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
