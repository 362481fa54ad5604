"""The layer: outputs in, the nearest outputs that satisfy every active rule out, with gradients.

``y*(x) = argmin { ||y - y_hat||_1 : y in F(x) }``, Section 3.2 of Pal and Li (2026).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from leyden_milp_layer.differentiation import Optimum, RelaxedOptimum, Selected, StraightThrough
from leyden_milp_layer.highs import WarmProjection
from leyden_milp_layer.lifted import Sample, relax
from leyden_milp_layer.mixed_integer import best_choice, irreducible_conflict
from leyden_milp_layer.pivoting import OPTIMAL, nearest_points
from leyden_milp_layer.quadratic import nearest_l2, nearest_smoothed
from leyden_milp_layer.rule_file import load_rules
from leyden_milp_layer.rules import RowBank, RuleSet
from leyden_milp_layer.scenarios import (
    CONTRADICTION,
    INSIDE,
    PROJECTED,
    TOO_MANY,
    Choices,
    Enumeration,
    Outcome,
    Problem,
    scenario_rows,
)
from leyden_milp_layer.units import Units

Array = NDArray[np.float64]
Norm = Literal["l1", "l2"]
Relaxation = Literal["dnf", "cnf", "pdnf"]
Strategy = Literal["auto", "enumerate", "milp", "lifted"]
Backward = Literal["active_set", "straight_through", "smoothed"]
OnInfeasible = Literal["raise", "global_only", "identity"]
T = TypeVar("T")
S = TypeVar("S")


class ContradictionError(RuntimeError):
    """The rules that apply to a sample exclude each other.

    Args:
        sample: its place in the batch.
        rules: names of the rules, none where bounds and global constraints exclude each other.

    Attributes:
        sample: its place in the batch.
        rules: names of rules that contradict each other while any of them less does not; empty where bounds
            and global constraints do so alone.
    """

    def __init__(self, sample: int, rules: Sequence[str]) -> None:
        self.sample, self.rules = sample, tuple(rules)
        named = ", ".join(f"'{name}'" for name in rules)
        what = f"rules {named} contradict" if len(rules) > 1 else f"rule {named} contradicts"
        others = "each other and the global constraints" if len(rules) > 1 else "the global constraints"
        text = f"{what} {others}" if rules else "bounds and global constraints have no common point"
        super().__init__(f"sample {sample}: {text}")


@dataclass(frozen=True)
class ProjectionInfo:
    """What the last call of a `DisjunctiveProjection` did.

    Attributes:
        status: of each sample ``"inside"`` (nothing to correct), ``"projected"``, ``"relaxed"`` (rules may be
            violated), ``"global_only"`` or ``"identity"`` (rules contradict each other, see
            ``on_infeasible``).
        scenario: the lexicographic index of the chosen scenario, -1 where there is none; shape ``(batch,)``.
        chosen: the disjunct of each rule, -1 where it is not active; shape ``(batch, rules)``.
        distance: in the layer's norm, of a relaxation the value of its program; shape ``(batch,)``.
        scenarios: how many scenarios each sample has; shape ``(batch,)``.
        lps: how many programs each sample took, linear, quadratic or mixed-integer; 0 where closed forms were
            enough; shape ``(batch,)``.
        seconds: how long the forward pass took.
        y_hat: what was projected, detached.
        output: the output, detached.
        features: the features, detached; None where there were none.
        order: for a relaxation, the rules that were expanded for each sample.
        variables: of a relaxation's program, shape ``(batch,)``; empty otherwise.
    """

    status: tuple[str, ...]
    scenario: Int[Tensor, " batch"]
    chosen: Int[Tensor, "batch rules"]
    distance: Float[Tensor, " batch"]
    scenarios: Int[Tensor, " batch"]
    lps: Int[Tensor, " batch"]
    seconds: float
    y_hat: Float[Tensor, "batch outputs"]
    output: Float[Tensor, "batch outputs"]
    features: Float[Tensor, "batch features"] | None
    order: tuple[tuple[int, ...], ...] = ()
    variables: Int[Tensor, " batch"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))


class DisjunctiveProjection(nn.Module):
    """Project outputs onto the nearest point that satisfies the rules, Section 3.2 of Pal and Li (2026).

    Work is done in float64 on the CPU; the output has the type and device of the input. A row of the input
    that is not finite is an error that names the sample. A copy or pickle rebuilds its solver handles; the
    state holds a hash of the rules, and loading one of other rules warns.

    Args:
        rules: the rules, or the path of a rule file (see `load_rules`).
        norm: ``"l1"``, the paper's, or ``"l2"``; both exact, one scenario at a time.
        weights: positive factors of the distance, one for each output; None: 1.
        relaxation: ``"dnf"`` is exact; ``"cnf"`` (a hull for each rule) and ``"pdnf"`` may violate rules.
        num_dnf_rules: for ``"pdnf"``, how many rules are expanded into scenarios; -1: all, which is exact.
        rule_order: for ``"pdnf"``, the names or indices of the rules to expand first; None: at each step the
            one that is violated most.
        strategy: ``"enumerate"`` visits scenarios in the order of a lower bound, ``"milp"`` asks HiGHS for
            the best one, ``"lifted"`` solves the linear program of the hull; ``"auto"`` enumerates up to
            ``max_scenarios`` and then asks HiGHS. All give the same distance.
        backward: ``"active_set"`` is the exact gradient almost everywhere; ``"straight_through"`` passes the
            gradient unchanged; ``"smoothed"`` differentiates the projection with ``mu ||y - y_hat||^2``
            added.
        mu: factor of that term, above 0.
        tol: how far a coordinate counts as unmoved and a row as active, relative to the size of the bounds,
            above 0.
        on_infeasible: what becomes of a sample whose rules contradict each other: ``"raise"`` an error that
            names them, ``"global_only"`` drops its rules, ``"identity"`` returns it as it is, with a warning.
        cache_size: for how many samples it remembers which scenarios are empty.
        repair: ``"dnf"`` projects what a relaxation leaves violated; None: nothing does.
        max_scenarios: how many scenarios of a sample are enumerated or put into a lifted program at most.
        solver: ``"pivoting"`` projects a whole batch onto its scenarios at once and leaves to HiGHS what it
            cannot certify; ``"highs"`` keeps a linear program warm for each scenario.
        workers: threads for the strategies that solve one program for each sample.

    Attributes:
        last_info: what the last call did.

    Raises:
        ValueError: if an argument is wrong; the text names it.

    >>> from leyden_milp_layer import at_least, at_most, total
    >>> rules = RuleSet(2, 0, 1, [total() >= 0.8], [at_most(i, 0.25) | at_least(i, 0.75) for i in (0, 1)])
    >>> DisjunctiveProjection(rules)(torch.tensor([[0.5, 0.1]]))
    tensor([[0.7500, 0.1000]])
    """

    rules_hash: Tensor

    def __init__(
        self,
        rules: RuleSet | str,
        norm: Norm = "l1",
        weights: Sequence[float] | None = None,
        relaxation: Relaxation = "dnf",
        num_dnf_rules: int = -1,
        rule_order: Sequence[int | str] | None = None,
        strategy: Strategy = "auto",
        backward: Backward = "active_set",
        mu: float = 1e-2,
        tol: float = 1e-7,
        on_infeasible: OnInfeasible = "raise",
        cache_size: int = 4096,
        *,
        repair: Literal["dnf"] | None = None,
        max_scenarios: int = 256,
        solver: Literal["pivoting", "highs"] = "pivoting",
        workers: int = 1,
    ) -> None:
        super().__init__()
        if isinstance(rules, str | Path):
            rules = load_rules(str(rules))
        if not isinstance(rules, RuleSet):
            raise ValueError(f"rules: expected a RuleSet or a rule file, got {type(rules).__name__}")
        for name, value, allowed in (
            ("norm", norm, ("l1", "l2")),
            ("relaxation", relaxation, ("dnf", "cnf", "pdnf")),
            ("strategy", strategy, ("auto", "enumerate", "milp", "lifted")),
            ("backward", backward, ("active_set", "straight_through", "smoothed")),
            ("on_infeasible", on_infeasible, ("raise", "global_only", "identity")),
            ("repair", repair, (None, "dnf")),
            ("solver", solver, ("pivoting", "highs")),
        ):
            if value not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")
        for name, number in (("mu", mu), ("tol", tol)):
            if not 0 < number < math.inf:
                raise ValueError(f"{name}: expected a finite number above 0, got {number!r}")
        for name, whole, least in (
            ("cache_size", cache_size, 1),
            ("max_scenarios", max_scenarios, 1),
            ("workers", workers, 1),
            ("num_dnf_rules", num_dnf_rules, -1),
        ):
            if isinstance(whole, bool) or not isinstance(whole, int) or whole < least:
                raise ValueError(f"{name}: expected a whole number of at least {least}, got {whole!r}")
        if norm == "l2" and (relaxation != "dnf" or strategy in ("milp", "lifted") or backward == "smoothed"):
            raise ValueError(
                "norm: 'l2' is exact one scenario at a time: it takes relaxation 'dnf', strategy 'auto' or "
                "'enumerate', and backward 'active_set' or 'straight_through'"
            )
        self.rules = rules
        self.norm, self.relaxation, self.strategy, self.backward_rule = norm, relaxation, strategy, backward
        self.num_dnf_rules, self.on_infeasible, self.repair = num_dnf_rules, on_infeasible, repair
        self.mu, self.tol, self.workers, self.max_scenarios = mu, tol, workers, max_scenarios
        self.rule_order = None if rule_order is None else [self._rule(one) for one in rule_order]
        self.weights = self._weights(weights)
        self.last_info: ProjectionInfo | None = None
        self._units = Units(rules)
        unit = self._units.outputs
        self._weights_in_units = self.weights * (unit if norm == "l1" else unit**2)
        self._enumeration = Enumeration(
            rules.layout,
            self._units.lower,
            self._units.upper,
            self._weights_in_units,
            norm=norm,
            limit=max_scenarios,
            cache_size=cache_size,
            solver=solver,
        )
        digest = bytes.fromhex(rules.fingerprint())
        self.register_buffer("rules_hash", torch.tensor(list(digest), dtype=torch.uint8))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        y_hat: Float[Tensor, "batch outputs"],
        x: Float[Tensor, "batch features"] | None = None,
    ) -> Float[Tensor, "batch outputs"]:
        """The nearest outputs that satisfy the rules.

        Args:
            y_hat: raw outputs, of a floating type.
            x: features of the samples, for rules that depend on them.

        Returns:
            The outputs; a sample that satisfies its rules is returned bit for bit. A batch of no samples
            gives one.

        Raises:
            ValueError: if a shape or type is wrong, if a number is NaN or infinite (the text names the
                sample), or if ``strategy`` or ``relaxation`` meets more scenarios than ``max_scenarios``.
            ContradictionError: if the rules of a sample contradict each other and ``on_infeasible`` is
                ``"raise"``.
        """
        self._check(y_hat)
        began = time.perf_counter()
        batch = len(y_hat)
        bank = self.rules.at(x, batch)
        point = y_hat.to("cpu", torch.float64)
        problem = self._units.problem(bank, point.detach().numpy())
        relaxed = self.relaxation != "dnf"
        output, info = self._relax(point, bank, problem) if relaxed else self._project(point, bank, problem)
        if relaxed and self.repair == "dnf" and batch:
            output, info = self._repaired(output, bank, problem, info)
        # what was inside keeps its bits, whatever the types
        result = output.to(y_hat.device, y_hat.dtype)
        features = None if x is None else x.detach()
        self.last_info = ProjectionInfo(
            **info,
            seconds=time.perf_counter() - began,
            y_hat=y_hat.detach(),
            output=result.detach(),
            features=features,
        )
        return result

    @torch.no_grad()
    def without_rule(
        self,
        y_hat: Float[Tensor, "batch outputs"],
        x: Float[Tensor, "batch features"] | None,
        rule: int,
    ) -> Float[Tensor, "batch outputs"]:
        """The exact projection as it were without one of the rules; to attribute errors to rules.

        Args:
            y_hat: raw outputs.
            x: features.
            rule: the index of the rule that is left out.

        Returns:
            The outputs; a sample whose other rules contradict each other is returned as it is.
        """
        self._check(y_hat)
        bank = self.rules.at(x, len(y_hat))
        active = bank.active.numpy().copy()
        active[:, rule] = False
        points = y_hat.to("cpu", torch.float64).numpy()
        outcome = self._solve(self._units.problem(bank, points, active))
        return torch.from_numpy(outcome.points * self._units.outputs).to(y_hat.device, y_hat.dtype)

    def extra_repr(self) -> str:
        """The settings that matter."""
        rules = f"{self.rules.n} outputs, {len(self.rules.rules)} rules"
        return f"{rules}, norm={self.norm!r}, relaxation={self.relaxation!r}, strategy={self.strategy!r}"

    def _project(self, point: Tensor, bank: RowBank, problem: Problem) -> tuple[Tensor, dict[str, Any]]:
        """The exact projection, and its gradient."""
        outcome = self._solve(problem)
        contradictory = outcome.status == CONTRADICTION
        names = np.array(["inside", "projected", self.on_infeasible])[np.minimum(outcome.status, 2)]
        if contradictory.any():
            outcome = self._contradictory(problem, outcome, contradictory)
        value = torch.from_numpy(outcome.points * self._units.outputs)
        info = _info(names.tolist(), outcome)
        if not _wants_gradient(point, bank):
            return value, info
        if self.backward_rule == "straight_through":
            return _applied(StraightThrough, point, value), info
        return self._differentiable(point, bank, problem, outcome, value), info

    def _solve(self, problem: Problem) -> Outcome:
        """The best scenario of every sample."""
        if self.strategy in ("auto", "enumerate"):
            outcome = self._enumeration.project(problem)
            many = np.flatnonzero(outcome.status == TOO_MANY)
            if len(many) and (self.strategy == "enumerate" or self.norm == "l2"):
                count = int(outcome.scenarios[many[0]])
                hint = "strategy 'milp' takes any number" if self.norm == "l1" else "norm 'l1' takes more"
                raise ValueError(
                    f"strategy: sample {many[0]} has {count} scenarios, above max_scenarios="
                    f"{self.max_scenarios}; {hint}"
                )
            return self._one_by_one(problem, outcome, many.tolist(), self._by_milp) if len(many) else outcome
        batch, rules = problem.active.shape
        empty = Outcome(
            problem.points.copy(),
            np.full((batch, rules), -1, dtype=np.int64),
            np.full(batch, -1, dtype=np.int64),
            np.full(batch, np.inf),
            np.full(batch, CONTRADICTION, dtype=np.int64),
            np.array([self._count(active) for active in problem.active], dtype=np.int64),
            np.zeros(batch, dtype=np.int64),
        )
        if self.strategy == "lifted":
            self._check_size("strategy", problem, rules)
        by = self._by_milp if self.strategy == "milp" else self._by_lifted
        return self._one_by_one(problem, empty, range(batch), by)

    def _one_by_one(
        self,
        problem: Problem,
        outcome: Outcome,
        samples: Iterable[int],
        choose: Callable[[Problem, int], tuple[int, ...] | None],
    ) -> Outcome:
        """Choose a scenario for each sample by a program of its own, and project onto it."""
        samples = list(samples)
        for sample, choice in zip(
            samples, self._mapped(lambda one: choose(problem, one), samples), strict=True
        ):
            outcome.solved[sample] += 1
            if choice is None:
                outcome.status[sample] = CONTRADICTION
                continue
            rules = np.flatnonzero(problem.active[sample])
            point = problem.points[sample]
            rows = scenario_rows(self.rules.layout, rules, choice)
            A, b = problem.rows_of(sample)
            nearest = self._onto(A[rows], b[rows], self.rules.layout.equality[rows], point)
            outcome.points[sample] = nearest
            outcome.chosen[sample, rules] = choice
            outcome.scenario[sample] = self._index(rules, choice)
            outcome.distance[sample] = np.abs(nearest - point) @ self._weights_in_units
            outcome.status[sample] = INSIDE if (nearest == point).all() else PROJECTED
            outcome.solved[sample] += 1
        return outcome

    def _by_milp(self, problem: Problem, sample: int) -> tuple[int, ...] | None:
        A, b = problem.rows_of(sample)
        rules = np.flatnonzero(problem.active[sample])
        units = self._units
        start = np.clip(problem.points[sample], units.lower, units.upper)
        return best_choice(
            self.rules.layout, A, b, rules, units.lower, units.upper, start, self._weights_in_units
        )

    def _by_lifted(self, problem: Problem, sample: int) -> tuple[int, ...] | None:
        one = self._sample(problem, sample)
        found = relax(one, len(one.rules), one.rules)
        # at a vertex one share is 1 (the proposition of Section 3.4)
        return None if found is None else found.scenarios[int(np.argmax(found.shares[0]))]

    def _relax(self, point: Tensor, bank: RowBank, problem: Problem) -> tuple[Tensor, dict[str, Any]]:
        """The optimum of the CNF or partial DNF relaxation, and its gradient with respect to the point."""
        if torch.is_grad_enabled() and (bank.A.requires_grad or bank.b.requires_grad):
            raise ValueError("relaxation: rows that carry gradients need relaxation 'dnf'")
        count = 0 if self.relaxation == "cnf" else self.num_dnf_rules
        batch, rules = problem.active.shape
        count = rules if count < 0 else count
        self._check_size("num_dnf_rules", problem, count)
        found = self._mapped(
            lambda one: relax(self._sample(problem, one), count, self.rule_order), range(batch)
        )
        names = ["relaxed"] * batch
        points = problem.points.copy()
        distance = np.full(batch, np.inf)
        bounds = (self._units.lower, self._units.upper)
        for sample, one in enumerate(found):
            if one is None:
                if self.on_infeasible == "raise":
                    raise self._conflict(problem, sample)
                names[sample] = self.on_infeasible
                points[sample] = self._without_rules(problem, sample)
            else:
                points[sample] = one.point
                clipped = np.abs(np.clip(problem.points[sample], *bounds) - problem.points[sample])
                distance[sample] = one.distance + clipped @ self._weights_in_units
        inside = torch.from_numpy((problem.points >= bounds[0]) & (problem.points <= bounds[1]))
        info = {
            "status": tuple(names),
            "scenario": torch.full((batch,), -1),
            "chosen": torch.full((batch, rules), -1),
            "distance": torch.from_numpy(distance),
            "scenarios": torch.tensor([self._count(active) for active in problem.active], dtype=torch.int64),
            "lps": torch.tensor(
                [1 if one is None else len(one.order) + 1 for one in found], dtype=torch.int64
            ),
            "order": tuple(() if one is None else one.order for one in found),
            "variables": torch.tensor(
                [0 if one is None else one.variables for one in found], dtype=torch.int64
            ),
        }
        unit = torch.from_numpy(self._units.outputs)
        value = torch.from_numpy(points)
        if not (torch.is_grad_enabled() and point.requires_grad):
            return value * unit, info
        if self.backward_rule == "straight_through":
            return _applied(StraightThrough, point, value * unit), info
        return _applied(RelaxedOptimum, point / unit, value, found, inside) * unit, info

    def _repaired(
        self, output: Tensor, bank: RowBank, problem: Problem, info: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Project what the relaxation left violated; the rest is inside and keeps its bits."""
        again = replace(problem, points=output.detach().numpy() / self._units.outputs)
        repaired, told = self._project(output, bank, again)
        away = np.abs(repaired.detach().numpy() / self._units.outputs - problem.points)
        moved = away @ self._weights_in_units
        told["distance"] = torch.from_numpy(moved)
        told["lps"] = told["lps"] + info["lps"]
        told["order"], told["variables"] = info["order"], info["variables"]
        told["status"] = tuple("projected" if one == "inside" else one for one in told["status"])
        return repaired, told

    def _differentiable(
        self, point: Tensor, bank: RowBank, problem: Problem, outcome: Outcome, value: Tensor
    ) -> Tensor:
        """Attach the gradient of the chosen scenario."""
        rows = torch.from_numpy(self._chosen_rows(outcome))
        sample = torch.arange(len(rows))[:, None]
        pad = rows == self.rules.layout.rows
        rows = rows.clamp(max=self.rules.layout.rows - 1)
        A = bank.A[sample % len(bank.A), rows].masked_fill(pad[:, :, None], 0.0)
        b = bank.b[sample % len(bank.b), rows].masked_fill(pad, 0.0)
        equality = torch.from_numpy(self.rules.layout.equality)[rows] & ~pad
        unit = torch.from_numpy(self._units.outputs)
        at, multiplier = value, None
        if self.norm == "l2":
            root = torch.from_numpy(np.sqrt(self.weights))
            multiplier = self._multipliers(A.detach() / root, b.detach(), equality, point.detach() * root)
            optimum = Optimum(
                value * root,
                torch.zeros_like(value, dtype=torch.bool),
                equality | (multiplier > 0),
                torch.ones_like(unit),
                multiplier,
            )
            result = _applied(Selected, point * root, A / root, b, value * root, optimum)
            return torch.where(torch.from_numpy(outcome.status == INSIDE)[:, None], point, result / root)
        if self.backward_rule == "smoothed":
            at, multiplier = self._smoothed(A.detach(), b.detach(), equality, point.detach())
        reach = (A.detach().abs() * unit).amax(dim=2)
        over = torch.einsum("brn,bn->br", A.detach(), at) - b.detach()
        active = equality | ((over.abs() <= self.tol * (reach + b.detach().abs())) & ~pad)
        follows = (at - point.detach()).abs() <= self.tol * unit
        # where a quadratic term measures the move, other units would be another measure
        scale = unit if multiplier is None else torch.ones_like(unit)
        return _applied(Selected, point, A, b, value, Optimum(at, follows, active, scale, multiplier))

    def _chosen_rows(self, outcome: Outcome) -> NDArray[np.int64]:
        """The rows of every sample's scenario, filled up with the number of rows."""
        layout = self.rules.layout
        lists: list[list[int]] = []
        for sample, chosen in enumerate(outcome.chosen):
            if outcome.status[sample] == CONTRADICTION and self.on_infeasible == "identity":
                lists.append([])
                continue
            rules = np.flatnonzero(chosen >= 0)
            lists.append(scenario_rows(layout, rules, chosen[rules].tolist()))
        width = max(map(len, lists), default=0)
        rows = np.full((len(lists), max(width, 1)), layout.rows, dtype=np.int64)
        for place, one in enumerate(lists):
            rows[place, : len(one)] = one
        return rows

    def _multipliers(self, A: Tensor, b: Tensor, equality: Tensor, point: Tensor) -> Tensor:
        """The multipliers of the Euclidean projection onto each scenario."""
        found = np.zeros(b.shape)
        for sample in range(len(b)):
            solved = nearest_l2(
                A[sample].numpy(), b[sample].numpy(), equality[sample].numpy(), point[sample].numpy()
            )
            if solved is not None:
                found[sample] = solved[1]
        return torch.from_numpy(found)

    def _smoothed(self, A: Tensor, b: Tensor, equality: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
        """The minimizers with the quadratic term, and their multipliers over twice its factor."""
        at, multiplier = point.clone(), torch.zeros_like(b)
        start = point.clamp(torch.from_numpy(self.rules.lower), torch.from_numpy(self.rules.upper))
        for sample in range(len(b)):
            solved = nearest_smoothed(
                A[sample].numpy(),
                b[sample].numpy(),
                equality[sample].numpy(),
                point[sample].numpy(),
                self.weights,
                self.mu,
            )
            if solved is None:  # the rows hold to rounding alone
                at[sample] = start[sample]
                continue
            at[sample] = torch.from_numpy(solved[0])
            multiplier[sample] = torch.from_numpy(solved[1]) / (2 * self.mu)
        return at, multiplier

    def _contradictory(self, problem: Problem, outcome: Outcome, which: NDArray[np.bool_]) -> Outcome:
        """Raise, or give the contradictory samples what ``on_infeasible`` says."""
        samples = np.flatnonzero(which)
        if self.on_infeasible == "raise":
            raise self._conflict(problem, int(samples[0]))
        for sample in samples:
            outcome.points[sample] = self._without_rules(problem, int(sample))
            away = np.abs(outcome.points[sample] - problem.points[sample])
            outcome.distance[sample] = away @ self._weights_in_units
        return outcome

    def _without_rules(self, problem: Problem, sample: int) -> Array:
        """A contradictory sample under the global constraints alone, or as it is."""
        if self.on_infeasible == "identity":
            warnings.warn(
                "the rules of a sample contradict each other; on_infeasible='identity' returns it as it is",
                stacklevel=2,
            )
            unprojected: Array = problem.points[sample]
            return unprojected
        A, b = problem.rows_of(sample)
        alone = Problem(
            A[None],
            b[None],
            np.zeros((1, problem.active.shape[1]), dtype=bool),
            problem.points[[sample]],
            self.rules.varies,
        )
        outcome = self._enumeration.project(alone)
        if outcome.status[0] == CONTRADICTION:
            raise self._conflict(alone, 0, sample)
        alone_point: Array = outcome.points[0]
        return alone_point

    def _conflict(self, problem: Problem, sample: int, named: int | None = None) -> ContradictionError:
        A, b = problem.rows_of(sample)
        rules = irreducible_conflict(
            self.rules.layout,
            A,
            b,
            np.flatnonzero(problem.active[sample]),
            self._units.lower,
            self._units.upper,
        )
        return ContradictionError(
            sample if named is None else named, [self.rules.names[rule] for rule in rules]
        )

    def _check_size(self, argument: str, problem: Problem, count: int) -> None:
        """Refuse a program with a block for each of too many scenarios, before it is built."""
        sizes = np.array([max(len(spans), 1) for spans in self.rules.layout.disjuncts], dtype=float)
        largest = -np.sort(-np.where(problem.active, sizes, 1.0), axis=1)[:, :count]
        scenarios = largest.prod(axis=1)
        if (scenarios > self.max_scenarios).any():
            sample = int(np.argmax(scenarios > self.max_scenarios))
            raise ValueError(
                f"{argument}: sample {sample} has up to {scenarios[sample]:.0f} scenarios to expand, above "
                f"max_scenarios={self.max_scenarios}; strategy 'milp' of relaxation 'dnf' takes any number"
            )

    def _onto(self, A: Array, b: Array, equality: NDArray[np.bool_], point: Array) -> Array:
        """The projection onto one polyhedron."""
        start = np.clip(point, self._units.lower, self._units.upper)
        found = nearest_points(A[None], b[None], equality[None], start[None], self._weights_in_units)
        nearest: Array | None = found.points[0]
        if found.status[0] != OPTIMAL:
            nearest = WarmProjection(A, b, equality, self._weights_in_units).nearest(start)
        if nearest is None:
            raise RuntimeError("HiGHS chose a scenario without a point")
        return nearest

    def _sample(self, problem: Problem, sample: int) -> Sample:
        A, b = problem.rows_of(sample)
        return Sample(
            self.rules.layout,
            A,
            b,
            [int(rule) for rule in np.flatnonzero(problem.active[sample])],
            np.clip(problem.points[sample], self._units.lower, self._units.upper),
            self._weights_in_units,
        )

    def _index(self, rules: NDArray[np.int64], choice: Sequence[int]) -> int:
        index = 0
        for rule, place in zip(rules, choice, strict=True):
            index = index * len(self.rules.layout.disjuncts[int(rule)]) + place
        return index

    def _count(self, active: NDArray[np.bool_]) -> int:
        return Choices(self.rules.layout, active, 0).count

    def _mapped(self, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
        if self.workers == 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(function, items))

    def _rule(self, key: int | str) -> int:
        names = self.rules.names
        if isinstance(key, str) and key in names:
            return names.index(key)
        if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(names):
            return key
        raise ValueError(f"rule_order: expected names or indices of rules ({', '.join(names)}), got {key!r}")

    def _weights(self, weights: Sequence[float] | None) -> Array:
        found = np.ones(self.rules.n) if weights is None else np.asarray(weights, dtype=float)
        if found.shape != (self.rules.n,) or not (np.isfinite(found) & (found > 0)).all():
            raise ValueError(f"weights: expected {self.rules.n} positive numbers, got {weights}")
        return found

    def _check(self, y_hat: Tensor) -> None:
        if not isinstance(y_hat, Tensor):
            raise ValueError(f"y_hat: expected a tensor, got {type(y_hat).__name__}")
        if y_hat.ndim != 2 or y_hat.shape[1] != self.rules.n:
            raise ValueError(f"y_hat: expected shape (batch, {self.rules.n}), got {tuple(y_hat.shape)}")
        if not y_hat.is_floating_point():
            raise ValueError(f"y_hat: expected a floating type, got {y_hat.dtype}")
        finite = torch.isfinite(y_hat.detach()).all(dim=1)
        if not bool(finite.all()):
            raise ValueError(f"y_hat: sample {int((~finite).nonzero()[0])} is not finite")

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Compare the hash of the rules; the rules themselves come from the configuration."""
        saved = state_dict.get(prefix + "rules_hash")
        if saved is not None and not torch.equal(saved.cpu(), self.rules_hash.cpu()):
            warnings.warn("the checkpoint was made with other rules than this layer has", stacklevel=2)


def _info(names: Sequence[str], outcome: Outcome) -> dict[str, Any]:
    return {
        "status": tuple(names),
        "scenario": torch.from_numpy(outcome.scenario),
        "chosen": torch.from_numpy(outcome.chosen),
        "distance": torch.from_numpy(outcome.distance),
        "scenarios": torch.from_numpy(outcome.scenarios),
        "lps": torch.from_numpy(outcome.solved),
    }


def _applied(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _wants_gradient(point: Tensor, bank: RowBank) -> bool:
    return torch.is_grad_enabled() and (point.requires_grad or bank.A.requires_grad or bank.b.requires_grad)
