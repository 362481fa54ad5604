"""Quadratic programs and their gradients, on tensors; usable without a module.

``min ½yᵀQy + qᵀy`` subject to ``Ay = b`` and ``Gy <= h``. The forward pass is any solver, followed by a
*polish* on the active set (Section 3.5 of Zhao and others, 2025); the backward pass is the closed-form limit
of the first-order hypergradient (Section 3.4): one linear system on the active rows, then the table of
gradients. All in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leyden_ffolayer.conic import Cones, ForwardSolver, solve_cone_program
from leyden_ffolayer.interior_point import (
    Iterates,
    Program,
    Residuals,
    Structure,
    advance,
    start,
    structure_of,
)
from leyden_ffolayer.pinned_kkt import PinnedKKT, factorise_pinned, packed
from leyden_ffolayer.reduced_kkt import ReducedKKT, apply, combine, factorise

QPSolver = Literal["ipm", "clarabel", "osqp"]
QP_SOLVERS: tuple[str, ...] = ("ipm", "clarabel", "osqp")

_EARLY, _LATE = 1e-4, 1e-9
_EVEN_UNITS = 16.0
_OPTIMAL, _LOOSE = 1e-9, 1e-6
_SMALL_LENGTH, _SMALL_FORCE, _SMALL_PRESSURE = 1e-5, 1e-3, 1e-4
_ROUNDS, _ROUNDS_OF_ALL = 8, 3
"""How often an active set is corrected, and how often of these at all its rows at once."""

_ROUGH = 1e-6
"""A solution that is not polished and violates the optimality conditions by more than this is none."""


class Failure(NamedTuple):
    """A sample without solution: its place, the solver's word, and how far the solver got."""

    sample: int
    status: str
    iterations: int
    residual: float


@dataclass
class Solution:
    """The solutions of a batch.

    Attributes:
        y: decisions, NaN where there is none.
        lam: multipliers of the inequalities, 0 or more.
        nu: multipliers of the equalities.
        slack: ``h - Gy``, 0 or more.
        active: which inequalities are active.
        polished: which samples were solved on their active set to machine precision.
        residual: the largest violation of the optimality conditions, relative to the problem's size.
        scaling: in what units it was solved.
        failures: the samples without solution.
        systems: the factorised reduced KKT matrices, each with the samples that it serves and the
            inequalities that its rows stand for; empty unless asked for.
    """

    y: Float[Tensor, "batch variables"]
    lam: Float[Tensor, "batch inequalities"]
    nu: Float[Tensor, "batch equalities"]
    slack: Float[Tensor, "batch inequalities"]
    active: Bool[Tensor, "batch inequalities"]
    polished: Bool[Tensor, " batch"]
    residual: Float[Tensor, " batch"]
    scaling: Scaling
    failures: list[Failure] = field(default_factory=list)
    systems: list[System] = field(default_factory=list)


class System(NamedTuple):
    """A factorised KKT matrix of some samples."""

    samples: Tensor
    rows: Tensor
    kkt: ReducedKKT | PinnedKKT


class Scaling(NamedTuple):
    """The units in which a batch is solved: rows of length 1, variables of about the same curvature.

    Attributes:
        inequalities: the lengths that rows had, of shape (rows,) or (batch, rows).
        equalities: likewise.
        variables: the unit of each variable, of shape (variables,); all 1 unless curvatures lie far apart.
    """

    inequalities: Tensor
    equalities: Tensor
    variables: Float[Tensor, " variables"]


def active_rows(
    multipliers: Float[Tensor, "batch rows"],
    slacks: Float[Tensor, "batch rows"],
    *,
    force: Tensor | float = 1.0,
    length: Tensor | float = 1.0,
) -> Bool[Tensor, "batch rows"]:
    """The scale-free test of Section 3.5: a row is active if its multiplier exceeds its slack.

    Args:
        multipliers: λ, times the length of the row.
        slacks: s, divided by the length of the row.
        force: sizes by which multipliers are measured, one or of shape (batch, rows).
        length: sizes by which slacks are measured, likewise.

    Returns:
        Which rows are active.

    >>> active_rows(torch.tensor([[1e-4, 1e-9]]), torch.tensor([[1e-9, 1e-4]]))
    tensor([[ True, False]])
    """
    return multipliers / force > slacks / length


def scale(program: Program, *, definite: bool = True) -> tuple[Program, Scaling]:
    """Divide every constraint by the length of its row, and measure variables in units of their own.

    Args:
        program: the programs.
        definite: whether Q is positive definite; else variables keep their units, since a small curvature may
            be nothing but rounding.

    Returns:
        The scaled programs, and their units; a row of zeros keeps its own.

    >>> one, none = torch.ones(1, 1), torch.zeros(0, 1)
    >>> program = Program(one, one, 5 * one, 10 * one, none, none.T)
    >>> scale(program)[0].h
    tensor([[2.]])
    """
    units = _variable_units(program) if definite else torch.ones_like(program.q[0])
    if bool((units != 1).any()):
        program = replace(
            program, Q=program.Q * units * units.unsqueeze(1), q=program.q * units, G=program.G * units,
            A=program.A * units,
        )  # fmt: skip
    G, inequalities = _of_length_1(program.G)
    A, equalities = _of_length_1(program.A)
    inner = replace(program, G=G, h=program.h / inequalities, A=A, b=program.b / equalities)
    return inner, Scaling(inequalities, equalities, units)


def _of_length_1(matrix: Tensor) -> tuple[Tensor, Tensor]:
    if matrix.shape[-2] == 0:
        return matrix, matrix.new_zeros(matrix.shape[:-1])
    # by the largest entry first: the square of an entry may be 0 or infinite
    largest = matrix.abs().amax(dim=-1)
    largest = torch.where(largest > 0, largest, 1.0)
    matrix = matrix / largest.unsqueeze(-1)
    lengths = torch.linalg.vector_norm(matrix, dim=-1)
    lengths = torch.where(lengths > 0, lengths, 1.0)
    return matrix / lengths.unsqueeze(-1), largest * lengths


def _variable_units(program: Program) -> Tensor:
    """Units in which curvatures are about 1, powers of two, so that nothing is rounded.

    They matter where units lie far apart: tolerances are relative to the largest numbers of a program, and
    would let variables of small numbers pass unsolved. A variable has a small unit if its curvature, its cost
    and its entries in rows with several entries are all small beside those of others.
    """
    curvatures = program.Q.diagonal(dim1=-2, dim2=-1).sqrt()
    sizes = torch.zeros_like(program.q[0])
    for numbers in (curvatures, program.q, _cross_entries(program.G), _cross_entries(program.A)):
        columns = numbers.abs().reshape(-1, len(sizes))
        if columns.numel() and bool(columns.any()):
            largest = columns.amax(dim=0)
            sizes = torch.maximum(sizes, largest / largest.amax())
    if float(sizes.amax()) < _EVEN_UNITS * float(sizes.amin()):
        return torch.ones_like(sizes)
    return torch.exp2(-torch.log2(sizes / sizes.amax()).round())


def _cross_entries(matrix: Tensor) -> Tensor:
    """Rows of length 1; those with a single entry compare no variables, and count as 0."""
    several = (matrix != 0).sum(dim=-1, keepdim=True) > 1
    return _of_length_1(matrix)[0] * several


def solve(
    program: Program,
    *,
    solver: QPSolver = "ipm",
    tolerance: float = 1e-10,
    polish: bool = True,
    max_iterations: int = 100,
    for_gradients: bool = True,
    root: Tensor | None = None,
) -> Solution:
    """Solve a batch of quadratic programs.

    Args:
        program: the programs, float64 and finite.
        solver: the batched interior-point method, or Clarabel or OSQP one sample after another. A sample at
            which the first fails goes to Clarabel, which can tell why there is no solution.
        tolerance: accuracy asked of the solver.
        polish: whether to solve on the active set afterwards.
        max_iterations: of the solver, for each sample.
        for_gradients: whether to keep what the backward pass needs.
        root: the Cholesky factor of Q, where it is known.

    Returns:
        The solutions, with the samples that have none in ``failures``.
    """
    inner, scaling = scale(program, definite=root is not None)
    if root is not None:
        root = root * scaling.variables.unsqueeze(1)
    structure = structure_of(inner)
    state = start(inner, structure)
    keeper = _Keeper(inner, structure, state, root=root, for_gradients=for_gradients)
    if solver == "ipm":
        for stage in (_EARLY, _LATE, 1e-12) if polish else (max(tolerance, 1e-12),):
            open_ = keeper.open()
            if len(open_) == 0:
                break
            part = state.take(open_)
            reached = advance(inner.take(open_), structure, part, tolerance=stage, most=max_iterations)
            state.put(open_, part)
            usable = part.residual < 1e-2
            if polish and bool(usable.any()):
                careful = stage != _EARLY
                keeper.polish(open_[usable], careful=careful)
            if stage == _LATE and bool(reached.all()) and not polish:
                break
        keeper.settle(_ROUGH if polish else max(10 * tolerance, 1e-9))
    failures = []
    open_ = keeper.open()
    if len(open_):
        called: ForwardSolver = "osqp" if solver == "osqp" else "clarabel"
        failures = keeper.solve_each(open_, called, tolerance, max_iterations, polish)
    return keeper.finished(scaling, failures)


class _Keeper:
    """Keeps what is settled of a batch while it is solved."""

    def __init__(
        self,
        program: Program,
        structure: Structure,
        state: Iterates,
        *,
        root: Tensor | None,
        for_gradients: bool,
    ) -> None:
        self.program = program
        self.state = state
        self.settled = torch.zeros_like(state.residual, dtype=torch.bool)
        self.polished = self.settled.clone()
        self.active = torch.zeros_like(state.slack, dtype=torch.bool)
        self.systems: list[System] = []
        self._absolute = Program(**{name: value.abs() for name, value in vars(program).items()})
        self._root = root
        self._for_gradients = for_gradients
        self._structure = structure

    def open(self) -> Tensor:
        """The samples that are not settled."""
        return (~self.settled).nonzero().flatten()

    def settle(self, tolerance: float) -> None:
        """Settle the samples whose residual is small enough."""
        self.settled |= self.state.residual <= tolerance

    def polish(self, samples: Tensor, *, careful: bool = True) -> None:
        """Solve on the active set; settle the samples where that satisfies the optimality conditions.

        Args:
            samples: places of the samples.
            careful: whether dependent rows are worth their cost; early guesses of the set often have some.
        """
        part, absolute = self.program.take(samples), self._absolute.take(samples)
        mask = _guess(absolute, self.state.take(samples))
        for place in range(_ROUNDS):
            system = self._factorised(part, samples, mask, careful=careful)
            found, fault = _on_active_set(part, absolute, system)
            good = fault.worst <= _OPTIMAL
            if system.kkt.unusable is not None:
                good &= ~system.kkt.unusable
            if bool(good.any()):
                places = good.nonzero().flatten()
                self.state.put(samples[places], found.take(places))
                self.settled[samples[places]] = True
                self.polished[samples[places]] = True
                self.active[samples[places]] = mask[places]
                if self._for_gradients:
                    whole = len(places) == len(samples)
                    kkt = system.kkt if whole else system.kkt.take(places)
                    self.systems.append(System(samples[places], system.rows[places], kkt))
            left = ~good
            if system.kkt.unusable is not None:
                left &= ~system.kkt.unusable
            left = left.nonzero().flatten()
            if len(left) == 0:
                return
            mask = fault.corrected(mask, every_row=place < _ROUNDS_OF_ALL)[left]
            samples, part, absolute = samples[left], part.take(left), absolute.take(left)

    def solve_each(
        self, samples: Tensor, solver: ForwardSolver, tolerance: float, most: int, polish: bool
    ) -> list[Failure]:
        """Solve samples one after another; returns those without solution."""
        found = {int(sample): self._solve_one(int(sample), solver, tolerance, most) for sample in samples}
        failures = {sample: failure for sample, failure in found.items() if failure is not None}
        stopped = [sample for sample, failure in failures.items() if failure.status.startswith("stopped")]
        usable = [sample for sample in found if sample not in failures or sample in stopped]
        if polish and usable:
            places = samples.new_tensor(usable)
            fine = torch.isfinite(self.state.y[places]).all(dim=1)
            if bool(fine.any()):
                self.polish(places[fine])
        rough = self.state.residual <= max(_ROUGH, 100 * tolerance)
        for sample in list(failures):
            if self.settled[sample] or (sample in stopped and rough[sample]):
                del failures[sample]
        self.settled[samples] = True
        return list(failures.values())

    def finished(self, scaling: Scaling, failures: list[Failure]) -> Solution:
        """Everything in the units of the given programs."""
        state, program = self.state, self.program
        lost = state.iterations.new_tensor([failure.sample for failure in failures])
        rough = self.settled & ~self.polished
        rough[lost] = False
        places = rough.nonzero().flatten()
        if len(places):
            part = program.take(places)
            self.active[places] = _guess(self._absolute.take(places), state.take(places))
            if self._for_gradients:
                self.systems.append(self._factorised(part, places, self.active[places]))
        slack = (program.h - apply(program.G, state.y)).clamp(min=0)
        slack = torch.where(self.active, 0.0, slack)
        lam = state.lam.clamp(min=0)
        y, nu = state.y.clone(), state.nu.clone()
        for value in (y, lam, nu, slack):
            value[lost] = torch.nan
        return Solution(
            y=y * scaling.variables,
            lam=lam / scaling.inequalities,
            nu=nu / scaling.equalities,
            slack=slack * scaling.inequalities,
            active=self.active,
            polished=self.polished,
            residual=state.residual,
            scaling=scaling,
            failures=failures,
            systems=self.systems,
        )

    def _factorised(self, part: Program, samples: Tensor, mask: Tensor, *, careful: bool = True) -> System:
        root = self._root
        if root is not None and root.dim() == 3:
            root = root[samples]
        indices, own = packed(mask)
        kept = torch.cat([own.new_ones(len(own), part.b.shape[1]), own], dim=1)

        kkt: ReducedKKT | PinnedKKT
        structure = self._structure
        if structure.bounds is not None and indices.shape[1] * 4 > part.Q.shape[-1]:
            places, entries = structure.pins(indices, part.b.shape[1])
            rows = torch.cat([part.A, part.G])

            def rows_at(chosen: Tensor) -> Tensor:
                equalities = part.b.shape[1]
                inequality = indices.gather(1, (chosen - equalities).clamp(min=0)) + equalities
                return rows[torch.where(chosen < equalities, chosen, inequality)]

            kkt = factorise_pinned(part.Q, kept, places, entries, rows_at, careful=careful)
        else:
            kkt = factorise(part.Q, _rows(part, indices, own), kept, root=root, careful=careful)
        return System(samples, indices, kkt)

    def _solve_one(self, sample: int, solver: ForwardSolver, tolerance: float, most: int) -> Failure | None:
        place = self.state.iterations.new_tensor([sample])
        one = self.program.take(place)
        matrices = [matrix if matrix.dim() == 2 else matrix[0] for matrix in (one.Q, one.G, one.A)]
        Q, G, A = (sp.csc_matrix(matrix.numpy()) for matrix in matrices)
        equalities = one.b.shape[1]
        rows = sp.vstack([A, G], format="csc")
        found = solve_cone_program(
            sp.triu(Q, format="csc"), one.q[0].numpy(), rows, np.concatenate([one.b[0], one.h[0]]),
            Cones(zero=equalities, nonneg=one.h.shape[1]), solver=solver, tolerance=tolerance,
            max_iterations=most,
        )  # fmt: skip
        state = self.state
        state.iterations[sample] = found.iterations
        if found.outcome == "impossible":
            return Failure(sample, found.status, found.iterations, found.residual)
        state.y[sample] = torch.from_numpy(found.primal)
        state.nu[sample] = torch.from_numpy(found.dual[:equalities])
        state.lam[sample] = torch.from_numpy(np.maximum(found.dual[equalities:], 0))
        state.slack[sample] = torch.from_numpy(np.maximum(found.slack[equalities:], 0))
        state.residual[sample] = Residuals(one, state.take(place), Structure()).relative[0]
        if found.outcome == "stopped" or float(state.residual[sample]) > max(_ROUGH, 100 * tolerance):
            residual = float(state.residual[sample])
            return Failure(sample, f"stopped: {found.status}", found.iterations, residual)
        return None


def _rows(program: Program, indices: Tensor, kept: Tensor) -> Tensor:
    """The equality rows and the chosen inequality rows, zero where padded."""
    if program.G.dim() == 2:
        chosen = program.G[indices]
    else:
        chosen = program.G.gather(1, indices.unsqueeze(-1).expand(-1, -1, program.G.shape[2]))
    chosen = chosen * kept.unsqueeze(-1)
    equalities = program.A if program.A.dim() == 3 else program.A.expand(len(kept), -1, -1)
    return torch.cat([equalities, chosen], dim=1)


class _Fault(NamedTuple):
    """How far a solution on an active set is from optimal, and where."""

    worst: Tensor
    pressures: Tensor
    violations: Tensor
    loose: Tensor

    def corrected(self, mask: Tensor, *, every_row: bool) -> Tensor:
        """The active set without its most negative multiplier and with the most violated row.

        Where many rows are wrong it pays to correct every one at once, but that may go in circles. Then
        rows go, too, that cannot all be satisfied: a guess may hold both sides of a narrow interval.
        """
        if every_row:
            kept = mask & (self.pressures > -_OPTIMAL) & ~self.loose
            return kept | (~mask & (self.violations > _OPTIMAL))
        changed = mask.clone()
        if mask.shape[1] == 0:
            return changed
        rows = torch.arange(len(mask), device=mask.device)
        lowest, place = torch.where(mask, self.pressures, torch.inf).min(dim=1)
        drop = lowest < -_OPTIMAL
        changed[rows[drop], place[drop]] = False
        highest, place = torch.where(mask, -torch.inf, self.violations).max(dim=1)
        add = highest > _OPTIMAL
        changed[rows[add], place[add]] = True
        return changed


def _on_active_set(program: Program, absolute: Program, system: System) -> tuple[Iterates, _Fault]:
    """Solve with the active inequalities as equalities."""
    equalities = program.b.shape[1]
    right = torch.cat([program.b, program.h.gather(1, system.rows)], dim=1)
    y, multipliers = system.kkt.solve(-program.q, right)
    lam = torch.zeros_like(program.h)
    kept = system.kkt.kept[:, equalities:]
    lam.scatter_add_(1, system.rows, multipliers[:, equalities:] * kept)
    active = torch.zeros_like(program.h).scatter_add_(1, system.rows, kept.to(lam.dtype)) > 0
    nu = multipliers[:, :equalities]
    reach = apply(program.G, y)
    slope = apply(program.Q, y) + program.q + combine(program.G, lam) + combine(program.A, nu)
    sizes = _sizes(absolute, y, lam, nu)
    violations = (reach - program.h) / sizes.lengths
    loose = active & (violations.abs() > _LOOSE)
    balance = (apply(program.A, y) - program.b).abs() / sizes.length
    pressures = lam / sizes.pressures
    worst = torch.stack(
        [
            _most(slope.abs() / sizes.forces),
            _most(torch.where(active, -torch.inf, violations)),
            _most(balance),
            _most(-pressures),
            _most(torch.where(active, (reach - program.h).abs() / sizes.length, 0.0)),
            _most(loose.to(y.dtype)),
        ]
    ).amax(dim=0)
    worst = torch.where(torch.isfinite(worst), worst, torch.inf)
    slack = (program.h - reach).clamp(min=0)
    found = Iterates(y, slack, lam, nu, worst.clamp(min=0), torch.zeros_like(worst, dtype=torch.int64))
    return found, _Fault(worst, pressures, violations, loose)


def _guess(absolute: Program, state: Iterates) -> Tensor:
    """The active set that a point suggests."""
    sizes = _sizes(absolute, state.y, state.lam, state.nu)
    return active_rows(state.lam, state.slack, force=sizes.pressures, length=sizes.lengths)


class _Sizes(NamedTuple):
    """What is large and what is small in a program, at a point.

    A constraint is measured by the numbers that it adds up, a component of the gradient likewise, and a
    multiplier by the gradient along its row: measured by the largest number of a program, what concerns
    small numbers alone would pass unsolved. None counts as less than a small share of the largest, which
    is what rounding leaves of it.
    """

    lengths: Float[Tensor, "batch inequalities"]
    length: Float[Tensor, "batch 1"]
    forces: Float[Tensor, "batch variables"]
    pressures: Float[Tensor, "batch inequalities"]


def _sizes(absolute: Program, y: Tensor, lam: Tensor, nu: Tensor) -> _Sizes:
    y, lam, nu = y.abs(), lam.abs(), nu.abs()
    lengths = apply(absolute.G, y) + absolute.h
    forces = apply(absolute.Q, y) + absolute.q + combine(absolute.G, lam) + combine(absolute.A, nu)
    length = torch.stack([_most(v) for v in (y, lengths, absolute.b)]).amax(dim=0)[:, None] + 1e-300
    force = _most(forces)[:, None] + 1e-300
    pressures = apply(absolute.G, forces)
    return _Sizes(
        lengths + _SMALL_LENGTH * length, length, forces + _SMALL_FORCE * force,
        pressures + _SMALL_PRESSURE * force,
    )  # fmt: skip


def _most(values: Tensor) -> Tensor:
    return values.amax(dim=1) if values.shape[1] else values.new_zeros(len(values))


class Direction(NamedTuple):
    """The derivative of primal and dual solution along the perturbed objective (Section 3.4): u and w."""

    u: Float[Tensor, "batch variables"]
    w_inequality: Float[Tensor, "batch inequalities"]
    w_equality: Float[Tensor, "batch equalities"]


def direction(
    solution: Solution,
    c: Float[Tensor, "batch variables"],
    c_lam: Float[Tensor, "batch inequalities"] | None = None,
    c_nu: Float[Tensor, "batch equalities"] | None = None,
) -> Direction:
    """Solve the reduced KKT system for a loss's gradient, Section 3.4.

    Args:
        solution: a solution with its factorised systems.
        c: the loss's gradient with respect to the decision.
        c_lam: with respect to the inequality multipliers; None: 0.
        c_nu: with respect to the equality multipliers.

    Returns:
        u, and w on all rows, 0 on inactive ones; 0 for samples without solution.
    """
    u, w_inequality, w_equality = (torch.zeros_like(v) for v in (solution.y, solution.lam, solution.nu))
    scaling = solution.scaling
    for samples, rows, kkt in solution.systems:
        equalities = solution.nu.shape[1]
        right = c.new_zeros(kkt.kept.shape)
        if c_nu is not None:
            right[:, :equalities] = -(c_nu / scaling.equalities)[samples]
        if c_lam is not None:
            right[:, equalities:] = -(c_lam / scaling.inequalities)[samples].gather(1, rows)
        step, multipliers = kkt.solve(-c[samples] * scaling.variables, right)
        u[samples] = step * scaling.variables
        w_equality[samples] = multipliers[:, :equalities]
        spread = torch.zeros_like(w_inequality[samples])
        spread.scatter_add_(1, rows, multipliers[:, equalities:])
        w_inequality[samples] = spread
    return Direction(u, w_inequality / scaling.inequalities, w_equality / scaling.equalities)


class QPGradients(NamedTuple):
    """The gradients with respect to the six arguments; None where they were not asked for."""

    Q: Tensor | None
    q: Tensor | None
    G: Tensor | None
    h: Tensor | None
    A: Tensor | None
    b: Tensor | None


def gradients(
    solution: Solution, along: Direction, wanted: Sequence[str], shared: Sequence[str]
) -> QPGradients:
    """The table of Section 3.4.

    The terms ``λuᵀ`` and ``νuᵀ`` carry half of the gradient of the constraint matrices.

    Args:
        solution: primal and dual solution.
        along: u and w.
        wanted: the arguments whose gradient is formed.
        shared: the arguments that are one for all samples; their gradient is the sum over the batch, and no
            matrix a sample is ever formed.

    Returns:
        The gradients.
    """
    # a sample without solution has NaN there, and u and w that are 0
    y, lam, nu = (value.nan_to_num(nan=0.0) for value in (solution.y, solution.lam, solution.nu))
    u, w_h, w_b = along
    found: dict[str, Tensor | None] = dict.fromkeys("QqGhAb")
    for name in wanted:
        if name in "qhb":
            vector = {"q": u, "h": -w_h, "b": -w_b}[name]
            found[name] = vector.sum(dim=0) if name in shared else vector
        elif name == "Q":
            product = _outer(u, y, name in shared)
            found[name] = 0.5 * (product + product.mT)
        else:
            multipliers, w = (lam, w_h) if name == "G" else (nu, w_b)
            first = _outer(multipliers, u, name in shared)
            # in place, so that no third matrix is alive at the peak
            found[name] = _add_outer(first, w, y, name in shared)
    return QPGradients(**found)


def _outer(left: Tensor, right: Tensor, shared: bool) -> Tensor:
    if shared:
        return left.T @ right
    return left.unsqueeze(2) * right.unsqueeze(1)


def _add_outer(total: Tensor, left: Tensor, right: Tensor, shared: bool) -> Tensor:
    if shared:
        return total.addmm_(left.T, right)
    return total.baddbmm_(left.unsqueeze(2), right.unsqueeze(1))
