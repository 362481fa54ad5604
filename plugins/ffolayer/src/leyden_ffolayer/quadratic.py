"""Quadratic programs and their gradients, on tensors; usable without a module.

``min ½yᵀQy + qᵀy`` subject to ``Ay = b`` and ``Gy <= h``. The forward pass is any solver, followed by a
*polish* on the active set (Section 3.5 of Zhao and others, 2025); the backward pass is the closed-form limit
of the first-order hypergradient (Section 3.4): one linear system on the active rows, then the table of
gradients. All in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    Structure,
    _Residuals,
    advance,
    start,
    structure_of,
)
from leyden_ffolayer.pinned_kkt import PinnedKKT, factorise_pinned
from leyden_ffolayer.reduced_kkt import ReducedKKT, apply, combine, factorise

QPSolver = Literal["ipm", "clarabel", "osqp"]
QP_SOLVERS: tuple[str, ...] = ("ipm", "clarabel", "osqp")

_EARLY, _LATE = 1e-4, 1e-9
_ROUNDS = 5
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
    failures: list[Failure] = field(default_factory=list)
    systems: list[System] = field(default_factory=list)


class System(NamedTuple):
    """A factorised KKT matrix of some samples."""

    samples: Tensor
    rows: Tensor
    kkt: ReducedKKT | PinnedKKT


class Scaled(NamedTuple):
    """Programs whose constraint rows have length 1, and the lengths that they had."""

    program: Program
    inequality_lengths: Tensor
    equality_lengths: Tensor


def active_rows(
    multipliers: Float[Tensor, "batch rows"],
    slacks: Float[Tensor, "batch rows"],
    *,
    force: Float[Tensor, " batch"] | float = 1.0,
    length: Float[Tensor, " batch"] | float = 1.0,
) -> Bool[Tensor, "batch rows"]:
    """The scale-free test of Section 3.5: a row is active if its multiplier exceeds its slack.

    Args:
        multipliers: λ, times the length of the row.
        slacks: s, divided by the length of the row.
        force: size of the objective's gradient, by which multipliers are measured.
        length: size of the decision, by which slacks are measured.

    Returns:
        Which rows are active.

    >>> active_rows(torch.tensor([[1e-4, 1e-9]]), torch.tensor([[1e-9, 1e-4]]))
    tensor([[ True, False]])
    """
    strength = multipliers / torch.as_tensor(force).reshape(-1, 1)
    return strength > slacks / torch.as_tensor(length).reshape(-1, 1)


def scale_rows(program: Program) -> Scaled:
    """Divide every constraint by the length of its row.

    Args:
        program: the programs.

    Returns:
        The scaled programs with the lengths; a row of zeros keeps its own scale.
    """
    lengths = []
    matrices = []
    for matrix in (program.G, program.A):
        length = torch.linalg.vector_norm(matrix, dim=-1)
        length = torch.where(length > 0, length, 1.0)
        matrices.append(matrix / length.unsqueeze(-1))
        lengths.append(length)
    inner = Program(
        program.Q, program.q, matrices[0], program.h / lengths[0], matrices[1], program.b / lengths[1]
    )
    return Scaled(inner, lengths[0], lengths[1])


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
    scaled = scale_rows(program)
    inner = scaled.program
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
    return keeper.finished(scaled, failures)


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
        self.settled = torch.zeros(len(program.q), dtype=torch.bool)
        self.polished = self.settled.clone()
        self.active = torch.zeros(state.slack.shape, dtype=torch.bool)
        self.systems: list[System] = []
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
        mask = _guess(self.program.take(samples), self.state.take(samples))
        for place in range(_ROUNDS):
            part = self.program.take(samples)
            system = self._factorised(part, samples, mask, careful=careful)
            found, fault = _on_active_set(part, system)
            good = fault.worst <= 1e-9
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
            samples, mask = samples[left], fault.corrected(mask, every_row=place == 0)[left]

    def solve_each(
        self, samples: Tensor, solver: ForwardSolver, tolerance: float, most: int, polish: bool
    ) -> list[Failure]:
        """Solve samples one after another; returns those without solution."""
        found = {int(sample): self._solve_one(int(sample), solver, tolerance, most) for sample in samples}
        failures = {sample: failure for sample, failure in found.items() if failure is not None}
        stopped = [sample for sample, failure in failures.items() if failure.status.startswith("stopped")]
        usable = [sample for sample in found if sample not in failures or sample in stopped]
        if polish and usable:
            places = torch.tensor(usable)
            fine = torch.isfinite(self.state.y[places]).all(dim=1)
            if bool(fine.any()):
                self.polish(places[fine])
        rough = self.state.residual <= max(_ROUGH, 100 * tolerance)
        for sample in list(failures):
            if self.settled[sample] or (sample in stopped and rough[sample]):
                del failures[sample]
        self.settled[samples] = True
        return list(failures.values())

    def finished(self, scaled: Scaled, failures: list[Failure]) -> Solution:
        """Everything in the units of the given programs."""
        state, program = self.state, self.program
        lost = torch.tensor([failure.sample for failure in failures], dtype=torch.int64)
        rough = self.settled & ~self.polished
        rough[lost] = False
        places = rough.nonzero().flatten()
        if len(places):
            part = program.take(places)
            self.active[places] = _guess(part, state.take(places))
            if self._for_gradients:
                self.systems.append(self._factorised(part, places, self.active[places]))
        slack = (program.h - apply(program.G, state.y)).clamp(min=0)
        slack = torch.where(self.active, 0.0, slack)
        lam = torch.where(self.active | ~self.polished[:, None], state.lam.clamp(min=0), 0.0)
        y = state.y.clone()
        y[lost] = torch.nan
        return Solution(
            y=y,
            lam=lam / scaled.inequality_lengths,
            nu=state.nu / scaled.equality_lengths,
            slack=slack * scaled.inequality_lengths,
            active=self.active,
            polished=self.polished,
            residual=state.residual,
            failures=failures,
            systems=self.systems,
        )

    def _factorised(self, part: Program, samples: Tensor, mask: Tensor, *, careful: bool = True) -> System:
        root = self._root
        if root is not None and root.dim() == 3:
            root = root[samples]
        indices, rows, kept = pack_rows(part, mask)
        kkt: ReducedKKT | PinnedKKT
        if self._structure.single is not None and indices.shape[1] * 4 > part.Q.shape[-1]:
            bounds = self._structure.single[indices]
            none = bounds.new_zeros(len(bounds), part.b.shape[1])
            single = torch.cat([none, bounds], dim=1)
            kkt = factorise_pinned(part.Q, rows, kept, single, careful=careful)
        else:
            kkt = factorise(part.Q, rows, kept, root=root, careful=careful)
        return System(samples, indices, kkt)

    def _solve_one(self, sample: int, solver: ForwardSolver, tolerance: float, most: int) -> Failure | None:
        one = self.program.take(torch.tensor([sample]))
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
        place = torch.tensor([sample])
        state.residual[sample] = _Residuals(one, state.take(place)).relative[0]
        if found.outcome == "stopped" or float(state.residual[sample]) > max(_ROUGH, 100 * tolerance):
            residual = float(state.residual[sample])
            return Failure(sample, f"stopped: {found.status}", found.iterations, residual)
        return None


def pack_rows(program: Program, mask: Bool[Tensor, "batch rows"]) -> tuple[Tensor, Tensor, Tensor]:
    """The equality rows and the active inequality rows of each sample, padded to one number.

    Args:
        program: the programs.
        mask: which inequalities are active.

    Returns:
        The place of each inequality row, of shape (batch, most active); all rows, equalities first; and
        which of those are no padding.
    """
    batch, most = len(mask), int(mask.sum(dim=1).max()) if mask.shape[1] else 0
    order = mask.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    kept = mask.gather(1, order)
    if program.G.dim() == 2:
        rows = program.G[order]
    else:
        rows = program.G.gather(1, order.unsqueeze(-1).expand(-1, -1, program.G.shape[2]))
    rows = rows * kept.unsqueeze(-1)
    equalities = program.A if program.A.dim() == 3 else program.A.expand(batch, -1, -1)
    all_kept = torch.cat([kept.new_ones(batch, equalities.shape[1]), kept], dim=1)
    return order, torch.cat([equalities, rows], dim=1), all_kept


class _Fault(NamedTuple):
    """How far a solution on an active set is from optimal, and where."""

    worst: Tensor
    pressures: Tensor
    violations: Tensor
    active: Tensor

    def corrected(self, mask: Tensor, *, every_row: bool) -> Tensor:
        """The active set without its most negative multiplier and with the most violated row.

        Where many rows are wrong it pays to correct every one at once, but that may go in circles.
        """
        if every_row:
            return (mask & (self.pressures > -1e-9)) | (~mask & (self.violations > 1e-9))
        changed = mask.clone()
        if mask.shape[1] == 0:
            return changed
        rows = torch.arange(len(mask))
        lowest, place = torch.where(mask, self.pressures, torch.inf).min(dim=1)
        drop = lowest < -1e-9
        changed[rows[drop], place[drop]] = False
        highest, place = torch.where(mask, -torch.inf, self.violations).max(dim=1)
        add = highest > 1e-9
        changed[rows[add], place[add]] = True
        return changed


def _on_active_set(program: Program, system: System) -> tuple[Iterates, _Fault]:
    """Solve with the active inequalities as equalities."""
    equalities = program.b.shape[1]
    right = torch.cat([program.b, program.h.gather(1, system.rows)], dim=1)
    y, multipliers = system.kkt.solve(-program.q, right)
    lam = torch.zeros_like(program.h)
    kept = system.kkt.kept[:, equalities:]
    lam.scatter_add_(1, system.rows, multipliers[:, equalities:] * kept)
    active = torch.zeros_like(program.h).scatter_add_(1, system.rows, kept.to(lam.dtype)) > 0
    nu = multipliers[:, :equalities]
    curvature = apply(program.Q, y)
    pull = combine(program.G, lam) + combine(program.A, nu)
    reach = apply(program.G, y)
    force, length = _sizes(program, y, curvature, pull, reach)
    violations = (reach - program.h) / length
    balance = (apply(program.A, y) - program.b).abs() / length
    pressures = lam / force
    worst = torch.stack(
        [
            _most((curvature + program.q + pull).abs() / force),
            _most(violations),
            _most(balance),
            _most(-pressures),
            _most(torch.where(active, violations.abs(), 0.0)),
        ]
    ).amax(dim=0)
    worst = torch.where(torch.isfinite(worst), worst, torch.inf)
    slack = (program.h - reach).clamp(min=0)
    zeros = torch.zeros(len(y), dtype=torch.int64)
    found = Iterates(y, slack, lam, nu, worst.clamp(min=0), zeros)
    return found, _Fault(worst, pressures, violations, active)


def _guess(program: Program, state: Iterates) -> Tensor:
    """The active set that a point suggests."""
    curvature = apply(program.Q, state.y)
    pull = combine(program.G, state.lam) + combine(program.A, state.nu)
    force, length = _sizes(program, state.y, curvature, pull, apply(program.G, state.y))
    return active_rows(state.lam, state.slack, force=force, length=length)


def _sizes(
    program: Program, y: Tensor, curvature: Tensor, pull: Tensor, reach: Tensor
) -> tuple[Tensor, Tensor]:
    """How large gradients and how large distances are, of shape (batch, 1)."""
    force = torch.stack([_most(v.abs()) for v in (curvature, program.q, pull)]).amax(dim=0)
    length = torch.stack([_most(v.abs()) for v in (y, reach, program.h, program.b)]).amax(dim=0)
    return (force + 1e-300)[:, None], (length + 1e-300)[:, None]


def _most(values: Tensor) -> Tensor:
    return values.amax(dim=1) if values.shape[1] else values.new_zeros(len(values))


class Direction(NamedTuple):
    """The derivative of primal and dual solution along the perturbed objective (Section 3.4): u and w."""

    u: Float[Tensor, "batch variables"]
    w_inequality: Float[Tensor, "batch inequalities"]
    w_equality: Float[Tensor, "batch equalities"]


def direction(
    solution: Solution,
    scaled_lengths: tuple[Tensor, Tensor],
    c: Float[Tensor, "batch variables"],
    c_lam: Float[Tensor, "batch inequalities"] | None = None,
    c_nu: Float[Tensor, "batch equalities"] | None = None,
) -> Direction:
    """Solve the reduced KKT system for a loss's gradient, Section 3.4.

    Args:
        solution: a solution with its factorised systems.
        scaled_lengths: the lengths of inequality and equality rows.
        c: the loss's gradient with respect to the decision.
        c_lam: with respect to the inequality multipliers; None: 0.
        c_nu: with respect to the equality multipliers.

    Returns:
        u, and w on all rows, 0 on inactive ones; 0 for samples without solution.
    """
    u, w_inequality, w_equality = (torch.zeros_like(v) for v in (solution.y, solution.lam, solution.nu))
    rows_of, equalities_of = scaled_lengths
    for samples, rows, kkt in solution.systems:
        equalities = solution.nu.shape[1]
        right = torch.zeros_like(kkt.rows[:, :, 0])
        if c_nu is not None:
            right[:, :equalities] = -_of(c_nu / equalities_of, samples)
        if c_lam is not None:
            right[:, equalities:] = -_of(c_lam / rows_of, samples).gather(1, rows)
        step, multipliers = kkt.solve(-c[samples], right)
        u[samples] = step
        w_equality[samples] = multipliers[:, :equalities]
        spread = torch.zeros_like(w_inequality[samples])
        spread.scatter_add_(1, rows, multipliers[:, equalities:])
        w_inequality[samples] = spread
    return Direction(u, w_inequality / rows_of, w_equality / equalities_of)


def _of(values: Tensor, samples: Tensor) -> Tensor:
    return values[samples]


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
    y = torch.where(torch.isfinite(solution.y), solution.y, 0.0)
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
            multipliers, w = (solution.lam, w_h) if name == "G" else (solution.nu, w_b)
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
