"""HiGHS, the only solver of this package: linear and mixed-integer programs, one thread each.

Values are read from basic solutions of the simplex method alone. An interior-point method may end between
scenarios, where no rule need hold (Section 3.4, a consequence of the paper's proposition).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

INFINITY = float("inf")


@dataclass(frozen=True)
class Program:
    """``min cost x`` over ``row_lower <= matrix x <= row_upper`` and bounds; columns may be whole numbers.

    Attributes:
        cost: shape ``(columns,)``.
        matrix: shape ``(rows, columns)``, dense or sparse.
        row_lower: shape ``(rows,)``.
        row_upper: shape ``(rows,)``.
        lower: shape ``(columns,)``.
        upper: shape ``(columns,)``.
        integral: which columns are whole numbers; None: none.
    """

    cost: Array
    matrix: Any
    row_lower: Array
    row_upper: Array
    lower: Array
    upper: Array
    integral: Mask | None = None


@dataclass(frozen=True)
class Solution:
    """An optimal basic solution.

    Attributes:
        values: of the columns.
        objective: the smallest cost.
        basic_columns: which columns are basic (of a linear program).
        basic_rows: which rows are basic.
    """

    values: Array
    objective: float
    basic_columns: Mask
    basic_rows: Mask


class SolverError(RuntimeError):
    """HiGHS ended without an answer."""


def minimize(program: Program) -> Solution | None:
    """Solve a program.

    Args:
        program: what is solved.

    Returns:
        The solution, or None where there is no feasible point.

    Raises:
        SolverError: if HiGHS ends otherwise.
    """
    solver = _solver()
    if program.integral is not None:
        for option, value in (
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.0),
            ("mip_feasibility_tolerance", 1e-9),
        ):
            solver.setOptionValue(option, value)
    solver.passModel(_model(program))
    solver.run()
    return _solution(solver, linear=program.integral is None)


def is_empty(A: Array, b: Array, equality: Mask) -> bool:
    """Whether HiGHS finds that no point satisfies ``A y <= b``, with equality where that is said.

    Args:
        A: shape ``(rows, outputs)``; rows and outputs about 1 in size.
        b: shape ``(rows,)``.
        equality: shape ``(rows,)``.
    """
    n = A.shape[1]
    free = np.full(n, INFINITY)
    lower = np.where(equality, b, -INFINITY)
    try:
        return minimize(Program(np.zeros(n), A, lower, b, -free, free)) is None
    except SolverError:
        return False  # undecided: what is kept is looked at again with every point


class WarmProjection:
    """The l1 projection onto one polyhedron as a linear program that stays in HiGHS from point to point.

    Only the right-hand sides of the ``2 n`` epigraph rows change, so that the dual simplex method goes on
    from the last basis (Section 3.4, step d).

    Args:
        A: shape ``(rows, outputs)``.
        b: shape ``(rows,)``.
        equality: shape ``(rows,)``.
        weights: positive, shape ``(outputs,)``.
    """

    def __init__(self, A: Array, b: Array, equality: Mask, weights: Array) -> None:
        self.n = A.shape[1]
        program = projection_program(A, b, equality, np.zeros(self.n), relative(weights))
        self._solver = _solver()
        self._solver.passModel(_model(program))
        self._epigraph = np.arange(2 * self.n, dtype=np.int32)

    def nearest(self, point: Array) -> Array | None:
        """The nearest point of the polyhedron, or None where it is empty.

        Args:
            point: shape ``(outputs,)``.

        Raises:
            SolverError: if HiGHS ends without an answer.
        """
        upper = np.concatenate([point, -point])
        self._solver.changeRowsBounds(
            2 * self.n, self._epigraph, np.full(2 * self.n, -INFINITY), np.ascontiguousarray(upper)
        )
        self._solver.run()
        found = _solution(self._solver, linear=True)
        if found is None:
            return None
        nearest = found.values[: self.n].copy()
        # a row of the epigraph that is tight on both sides says that the coordinate stays: bit for bit
        stays = found.values[self.n :] <= 1e-12
        nearest[stays] = point[stays]
        return nearest


def relative(weights: Array) -> Array:
    """Weights of which the largest is 1, whose optimum is the same: HiGHS' tolerances are absolute.

    Args:
        weights: not negative.
    """
    largest = weights.max()
    return weights / largest if largest > 0 else weights


def projection_program(A: Array, b: Array, equality: Mask, point: Array, weights: Array) -> Program:
    """The linear program in ``(y, eta)`` of the weighted l1 projection, epigraph rows first.

    Args:
        A: shape ``(rows, outputs)``.
        b: shape ``(rows,)``.
        equality: shape ``(rows,)``.
        point: what is projected, shape ``(outputs,)``.
        weights: positive, shape ``(outputs,)``.

    Returns:
        The program; columns are the outputs, then their distances.
    """
    n = len(point)
    eye = np.eye(n)
    matrix = np.block([[eye, -eye], [-eye, -eye], [A, np.zeros((len(b), n))]])
    upper = np.concatenate([point, -point, b])
    lower = np.concatenate([np.full(2 * n, -INFINITY), np.where(equality, b, -INFINITY)])
    free = np.full(n, INFINITY)
    return Program(
        np.concatenate([np.zeros(n), weights]),
        matrix,
        lower,
        upper,
        np.concatenate([-free, np.zeros(n)]),
        np.concatenate([free, free]),
    )


class _Highs(highspy.Highs):
    """HiGHS without its Python callbacks, whose set-up takes 20 ms and prints a banner."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()


def _solver() -> Any:
    solver = _Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("presolve", "off"),
        ("solver", "simplex"),
        ("primal_feasibility_tolerance", 1e-9),
        ("dual_feasibility_tolerance", 1e-9),
    ):
        solver.setOptionValue(option, value)
    return solver


def _model(program: Program) -> Any:
    matrix = csc_array(program.matrix)
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = matrix.shape
    model.col_cost_ = program.cost
    model.col_lower_, model.col_upper_ = program.lower, program.upper
    model.row_lower_, model.row_upper_ = program.row_lower, program.row_upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = matrix.indptr.astype(np.int32)
    model.a_matrix_.index_ = matrix.indices.astype(np.int32)
    model.a_matrix_.value_ = matrix.data.astype(float)
    if program.integral is not None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[int(whole)] for whole in program.integral]
    return model


def _solution(solver: Any, *, linear: bool) -> Solution | None:
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise SolverError(f"HiGHS ended with {solver.modelStatusToString(status)}")
    found = solver.getSolution()
    values = np.array(found.col_value)
    columns = rows = np.zeros(0, dtype=bool)
    if linear:
        basis = solver.getBasis()
        basic = highspy.HighsBasisStatus.kBasic
        columns = np.array([status == basic for status in basis.col_status])
        rows = np.array([status == basic for status in basis.row_status])
    return Solution(values, float(solver.getInfo().objective_function_value), columns, rows)
