"""A primal-dual interior-point method for a batch of convex quadratic programs (Mehrotra, 1992).

It is the forward solver ``"ipm"`` of Section 3.4's problem class, ``min ½yᵀQy + qᵀy, Ay = b, Gy <= h``. Every
iteration factorises the condensed matrix ``Q + Gᵀ diag(λ/s) G`` of the samples that are not done. It stops
early rather than late: what it hands on is polished on the active set, which gives the last digits. All in
float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leyden_ffolayer.reduced_kkt import apply, combine, lower_solve

_STEP = 0.995
_DAMPING = 1e-12
_BLOW_UP = 1e14


@dataclass
class Iterates:
    """Where the samples of a batch stand.

    Attributes:
        y: decisions, of shape (batch, variables).
        slack: s > 0, of shape (batch, inequalities).
        lam: multipliers λ > 0 of the inequalities.
        nu: multipliers ν of the equalities, of shape (batch, equalities).
        residual: the largest violation of stationarity, feasibility and complementarity, relative to the
            problem's own size, of shape (batch,).
        iterations: how many each sample took.
    """

    y: Float[Tensor, "batch variables"]
    slack: Float[Tensor, "batch inequalities"]
    lam: Float[Tensor, "batch inequalities"]
    nu: Float[Tensor, "batch equalities"]
    residual: Float[Tensor, " batch"]
    iterations: Tensor

    def take(self, samples: Tensor) -> Iterates:
        """Those of some samples, given by their places or a mask."""
        return Iterates(*(value[samples] for value in vars(self).values()))

    def put(self, samples: Tensor, values: Iterates) -> None:
        """Overwrite those of some samples."""
        for name, value in vars(self).items():
            value[samples] = getattr(values, name)


@dataclass(frozen=True)
class Program:
    """A batch of quadratic programs; matrices are one for all samples, or have the batch in front.

    Attributes:
        Q: symmetric and positive semidefinite.
        q: of shape (batch, variables).
        G: inequality matrix.
        h: of shape (batch, inequalities).
        A: equality matrix.
        b: of shape (batch, equalities).
    """

    Q: Tensor
    q: Float[Tensor, "batch variables"]
    G: Tensor
    h: Float[Tensor, "batch inequalities"]
    A: Tensor
    b: Float[Tensor, "batch equalities"]

    def take(self, samples: Tensor) -> Program:
        """Some samples of the batch."""
        values = {
            name: value if value.dim() == 2 and name in "QGA" else value[samples]
            for name, value in vars(self).items()
        }
        return Program(**values)


def start(program: Program, structure: Structure) -> Iterates:
    """A first point: the least-squares one of Mehrotra, with slacks and multipliers made positive.

    Args:
        program: the programs.
        structure: theirs.

    Returns:
        The point.
    """
    batch, count = program.h.shape
    nu = program.b.new_zeros(program.b.shape)
    ones = program.h.new_ones(batch, count)
    system = _system(program, structure, ones)
    y, nu = system.solve(-program.q + structure.pull(program, program.h), program.b)
    rest = structure.reach(program, y) - program.h
    unknown = y.new_full((batch,), torch.inf)
    iterations = torch.zeros_like(unknown, dtype=torch.int64)
    if count == 0:
        return Iterates(y, ones, ones, nu, unknown, iterations)
    scale = 1 + rest.abs().amax(dim=1, keepdim=True)
    low = (-rest).amin(dim=1, keepdim=True)
    slack = torch.where(low > 1e-3 * scale, -rest, -rest - low + scale * 0.1 + 1e-3)
    low = rest.amin(dim=1, keepdim=True)
    lam = torch.where(low > 1e-3 * scale, rest, rest - low + scale * 0.1 + 1e-3)
    return Iterates(y, slack, lam, nu, unknown, iterations)


def advance(
    program: Program, structure: Structure, iterates: Iterates, *, tolerance: float, most: int
) -> Bool[Tensor, " batch"]:
    """Iterate until every sample has reached a tolerance, broken down, or used up its iterations.

    Args:
        program: the programs.
        structure: theirs.
        iterates: where they stand; changed.
        tolerance: of `Iterates.residual`.
        most: how many iterations a sample may have taken in all.

    Returns:
        Which samples reached the tolerance.
    """
    alive = torch.ones_like(iterates.residual, dtype=torch.bool)
    while True:
        places = alive.nonzero().flatten()
        if len(places) == 0:
            break
        part = program if len(places) == len(alive) else program.take(places)
        state = iterates.take(places)
        residuals = Residuals(part, state, structure)
        state.residual = residuals.relative
        iterates.residual[places] = state.residual
        going = (state.residual > tolerance) & (state.iterations < most)
        going &= (state.lam.amax(dim=1) if state.lam.shape[1] else state.residual) < _BLOW_UP
        if not bool(going.any()):
            break
        if not bool(going.all()):
            alive[places[~going]] = False
            continue
        if not _step(part, structure, state, residuals):
            break
        broken = ~(torch.isfinite(state.y).all(dim=1) & torch.isfinite(state.lam).all(dim=1))
        state.iterations = state.iterations + 1
        if bool(broken.any()):
            alive[places[broken]] = False
            good = (~broken).nonzero().flatten()
            iterates.put(places[good], state.take(good))
        else:
            iterates.put(places, state)
    return iterates.residual <= tolerance


class Residuals:
    """What is left of the optimality conditions at a point.

    Attributes:
        dual: of stationarity, of shape (batch, variables).
        inequality: ``Gy + s - h``.
        equality: ``Ay - b``.
        products: ``sλ``.
        mean: their mean, of shape (batch, 1).
        relative: the largest of all, relative to the problem's own size, of shape (batch,).
    """

    def __init__(self, program: Program, state: Iterates, structure: Structure) -> None:
        curvature = structure.curve(program, state.y)
        pull = structure.pull(program, state.lam) + combine(program.A, state.nu)
        self.dual = curvature + program.q + pull
        reach = structure.reach(program, state.y)
        self.inequality = reach + state.slack - program.h
        self.equality = apply(program.A, state.y) - program.b
        self.products = state.slack * state.lam
        count = state.slack.shape[1]
        self.mean = self.products.sum(dim=1, keepdim=True) / max(count, 1)
        forces = torch.stack([_largest(curvature), _largest(program.q), _largest(pull)]).amax(dim=0)
        lengths = torch.stack([_largest(reach), _largest(program.h), _largest(program.b)]).amax(dim=0)
        distances = torch.stack([_largest(self.inequality), _largest(self.equality)]).amax(dim=0)
        value = (state.y * program.q).sum(dim=1).abs() + (state.y * curvature).sum(dim=1).abs()
        gap = self.products.sum(dim=1)
        self.relative = torch.stack(
            [_largest(self.dual) / (1e-300 + forces), distances / (1e-12 + lengths), gap / (1e-12 + value)]
        ).amax(dim=0)


class _Condensed:
    """The factorised system of an iteration, ``[Q + Gᵀ diag(d) G, Aᵀ; A, 0]``."""

    def __init__(self, program: Program, structure: Structure, weights: Tensor) -> None:
        self._A = program.A
        matrix = structure.gram(program, weights) + program.Q
        size = matrix.shape[-1]
        level = matrix.diagonal(dim1=1, dim2=2).mean(dim=1)
        # Relative to Q: relative to the whole, which grows without bound, it would stall the last digits.
        own = program.Q.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
        matrix.diagonal(dim1=1, dim2=2).add_((_DAMPING * own + 1e-16 * level + 1e-300)[:, None])
        self._penalty = 0.0 * level
        if program.b.shape[1]:
            # A multiple of AᵀA changes no solution and makes a singular matrix definite.
            gram = program.A.mT @ program.A
            self._penalty = level / (1e-300 + gram.diagonal(dim1=-2, dim2=-1).mean(dim=-1))
            matrix = matrix + self._penalty[:, None, None] * gram
        self._root, failed = torch.linalg.cholesky_ex(matrix)
        self.failed = bool(failed.any())
        if self.failed:
            more = 1e-8 * level[:, None, None] * torch.eye(size, dtype=matrix.dtype, device=matrix.device)
            self._root, failed = torch.linalg.cholesky_ex(matrix + more)
            self.failed = bool(failed.any())
        if program.b.shape[1] and not self.failed:
            rows = program.A if program.A.dim() == 3 else program.A.expand(len(weights), -1, -1)
            self._half = torch.linalg.solve_triangular(self._root, rows.mT, upper=False)
            schur = self._half.mT @ self._half
            damping = 1e-12 * schur.diagonal(dim1=1, dim2=2).mean(dim=1) + 1e-300
            schur.diagonal(dim1=1, dim2=2).add_(damping[:, None])
            self._schur, failed = torch.linalg.cholesky_ex(schur)
            self.failed = bool(failed.any())

    def solve(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for the steps of y and ν."""
        if second.shape[1] == 0:
            scaled = lower_solve(self._root, first)
            return lower_solve(self._root, scaled, transposed=True), second
        first = first + self._penalty[:, None] * combine(self._A, second)
        scaled = lower_solve(self._root, first)
        right = apply(self._half.mT, scaled) - second
        nu = torch.cholesky_solve(right.unsqueeze(-1), self._schur).squeeze(-1)
        return lower_solve(self._root, scaled - apply(self._half, nu), transposed=True), nu


def _system(program: Program, structure: Structure, weights: Tensor) -> _Condensed | _Woodbury:
    if structure.diagonal is not None:
        return _Woodbury(structure, weights)
    return _Condensed(program, structure, weights)


def _step(program: Program, structure: Structure, state: Iterates, residuals: Residuals) -> bool:
    """One predictor and corrector; returns whether the matrix could be factorised."""
    weights = state.lam / state.slack
    system = _system(program, structure, weights)
    if system.failed:
        return False

    def direction(products: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rest = (state.lam * residuals.inequality - products) / state.slack
        dy, dnu = system.solve(-residuals.dual - structure.pull(program, rest), -residuals.equality)
        reach = structure.reach(program, dy)
        return dy, -residuals.inequality - reach, weights * reach + rest, dnu

    count = state.slack.shape[1]
    if count == 0:
        dy, _, _, dnu = direction(residuals.products)
        state.y, state.nu = state.y + dy, state.nu + dnu
        return True
    _, ds, dlam, _ = direction(residuals.products)
    length = _longest(state, ds, dlam)
    ahead = ((state.slack + length * ds) * (state.lam + length * dlam)).sum(dim=1, keepdim=True) / count
    centring = (ahead / residuals.mean).clamp(0, 1) ** 3
    dy, ds, dlam, dnu = direction(residuals.products + ds * dlam - centring * residuals.mean)
    length = (_STEP * _longest(state, ds, dlam)).clamp(max=1)
    state.y = state.y + length * dy
    state.slack = state.slack + length * ds
    state.lam = state.lam + length * dlam
    state.nu = state.nu + length * dnu
    return True


def _longest(state: Iterates, ds: Tensor, dlam: Tensor) -> Tensor:
    """The longest step, at most 1, that keeps slacks and multipliers from turning negative."""
    ratios = torch.stack([(-ds / state.slack).amax(dim=1), (-dlam / state.lam).amax(dim=1)]).amax(dim=0)
    return (1 / ratios.clamp(min=1.0))[:, None]


class Structure(NamedTuple):
    """What of the matrices makes an iteration cheap; the same for all iterations.

    Attributes:
        single: which rows of G have a single entry, such as bounds; None: not enough of them, or not one G
            and one A for the whole batch.
        bounds: the places of those rows.
        places: the variable of each.
        entries: its entry.
        rest: the places of the other rows.
        others: the other rows.
        diagonal: the diagonal of Q, where Q has nothing else, few rows of G have several entries and there
            are no equalities.
    """

    single: Tensor | None = None
    bounds: Tensor | None = None
    places: Tensor | None = None
    entries: Tensor | None = None
    rest: Tensor | None = None
    others: Tensor | None = None
    diagonal: Tensor | None = None

    def reach(self, program: Program, y: Float[Tensor, "batch variables"]) -> Tensor:
        """The products ``Gy``."""
        if self.bounds is None or self.rest is None or self.others is None:
            return apply(program.G, y)
        assert self.places is not None
        assert self.entries is not None
        found = y.new_empty(len(y), len(self.bounds) + len(self.rest))
        found[:, self.bounds] = y[:, self.places] * self.entries
        found[:, self.rest] = y @ self.others.T
        return found

    def pull(self, program: Program, lam: Float[Tensor, "batch inequalities"]) -> Tensor:
        """The products ``Gᵀλ``."""
        if self.bounds is None or self.rest is None or self.others is None:
            return combine(program.G, lam)
        assert self.places is not None
        assert self.entries is not None
        found = lam[:, self.rest] @ self.others
        return found.index_add_(1, self.places, lam[:, self.bounds] * self.entries)

    def pins(self, indices: Tensor, equalities: int) -> tuple[Tensor, Tensor]:
        """Variable and entry of rows with a single entry, 0 for others, after so many equality rows.

        Args:
            indices: which rows of G, of shape (batch, rows).
            equalities: how many rows of A stand before them.

        Returns:
            Places and entries, both of shape (batch, equalities + rows).
        """
        assert self.single is not None
        assert self.bounds is not None
        assert self.places is not None
        assert self.entries is not None
        places = torch.zeros_like(self.single, dtype=torch.int64).index_put_((self.bounds,), self.places)
        entries = self.entries.new_zeros(len(self.single)).index_put_((self.bounds,), self.entries)
        none = places.new_zeros(len(indices), equalities)
        return torch.cat([none, places[indices]], dim=1), torch.cat([none.double(), entries[indices]], dim=1)

    def curve(self, program: Program, y: Float[Tensor, "batch variables"]) -> Tensor:
        """The products ``Qy``."""
        return apply(program.Q, y) if self.diagonal is None else y * self.diagonal

    def gram(self, program: Program, weights: Float[Tensor, "batch inequalities"]) -> Tensor:
        """The matrices ``Gᵀ diag(d) G``; rows with a single entry only touch the diagonal."""
        if self.rest is None or self.others is None:
            scaled = program.G * weights.sqrt().unsqueeze(-1)
            return scaled.mT @ scaled
        scaled = self.others * weights[:, self.rest].sqrt().unsqueeze(-1)
        found = scaled.mT @ scaled
        found.diagonal(dim1=1, dim2=2).add_(self.bounds_gram(weights))
        return found

    def bounds_gram(self, weights: Float[Tensor, "batch inequalities"]) -> Tensor:
        """What the rows with a single entry add to the diagonal of ``Gᵀ diag(d) G``."""
        assert self.bounds is not None
        assert self.places is not None
        assert self.entries is not None
        assert self.others is not None
        found = weights.new_zeros(len(weights), self.others.shape[1])
        return found.index_add_(1, self.places, weights[:, self.bounds] * self.entries.square())


def structure_of(program: Program) -> Structure:
    """Look at the matrices of a program.

    Args:
        program: the programs.

    Returns:
        Their structure.
    """
    G, Q = program.G, program.Q
    if G.dim() == 3 or program.A.dim() == 3 or len(G) == 0:
        return Structure()
    single = (G != 0).sum(dim=1) == 1
    if int(single.sum()) * 4 < len(G):
        return Structure()
    bounds, rest = single.nonzero().flatten(), (~single).nonzero().flatten()
    places = G[bounds].abs().argmax(dim=1)
    entries = G[bounds, places]
    few = len(rest) * 4 <= G.shape[1] and program.b.shape[1] == 0
    diagonal = Q.diagonal() if few and Q.dim() == 2 and _is_diagonal(Q) else None
    return Structure(single, bounds, places, entries, rest, G[rest], diagonal)


def _is_diagonal(matrix: Tensor) -> bool:
    return int(matrix.count_nonzero()) == int(matrix.diagonal().count_nonzero())


class _Woodbury:
    """The condensed system where Q is diagonal and few rows are no bounds: a diagonal and a small matrix."""

    failed = False

    def __init__(self, structure: Structure, weights: Tensor) -> None:
        assert structure.diagonal is not None
        assert structure.others is not None
        assert structure.rest is not None
        self._rows = structure.others
        diagonal = structure.diagonal + structure.bounds_gram(weights)
        self._diagonal = diagonal + _DAMPING * structure.diagonal.mean() + 1e-300
        inner = (self._rows / self._diagonal.unsqueeze(1)) @ self._rows.T
        inner.diagonal(dim1=1, dim2=2).add_(1 / weights[:, structure.rest])
        self._inner, failed = torch.linalg.cholesky_ex(inner)
        self.failed = bool(failed.any())

    def solve(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for the step of y; there is no ν."""
        scaled = first / self._diagonal
        if len(self._rows):
            right = (scaled @ self._rows.T).unsqueeze(-1)
            weights = torch.cholesky_solve(right, self._inner).squeeze(-1)
            scaled = scaled - (weights @ self._rows) / self._diagonal
        return scaled, second


def _largest(values: Tensor) -> Tensor:
    if values.shape[1] == 0:
        return values.new_zeros(len(values))
    return values.abs().amax(dim=1)
