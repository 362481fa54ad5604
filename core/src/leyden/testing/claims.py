"""What a claim owes: its cells run at smoke scale, and every statement gets a verdict whatever happened."""

from __future__ import annotations

import json
import math
import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, get_args

import torch

from leyden.claims import SCALES, Cell, CellResult, Claim, Measured, Scale, Table
from leyden.manager import load_object
from leyden.model import Outcome, Verdict
from leyden.testing.fitting import quiet
from leyden.testing.kit import Case

CLOCKED = re.compile(r"second|time|_ms|_s$|speed|per_s|rate_of", re.IGNORECASE)
"""Names of what a clock measured: it may differ between two runs of a cell."""


def claim_cases(path: str) -> Iterator[Case]:
    """The cases of a claim; the smoke run is shared between them.

    Args:
        path: dotted path of the claim's class.

    Yields:
        A case for each thing that a claim owes.
    """
    smoke = _Smoke(path)
    checks: tuple[tuple[str, str, Callable[[], Iterable[str]]], ...] = (
        ("cells", "Its cells are distinct, picklable jobs at every scale.", lambda: cells(smoke)),
        ("smoke", "Every cell runs at smoke scale and measures numbers.", lambda: runs(smoke)),
        ("repeatable", "A cell run twice measures the same.", lambda: repeatable(smoke)),
        ("verdicts", "Every statement gets a verdict, also where cells failed.", lambda: verdicts(smoke)),
        ("figure", "Its figure is drawn, also where cells failed.", lambda: figure(smoke)),
    )
    for name, text, find in checks:
        yield Case(path.rpartition(".")[2], name, text, find)


def cells(smoke: _Smoke) -> Iterator[str]:
    """At every scale there are cells, each distinct, of that scale and picklable."""
    for name in SCALES:
        listed = smoke.claim.cells(Scale(name, max(1, smoke.claim.seeds[name])))
        if not listed:
            yield f"there are no cells at scale '{name}'"
        digests = [cell.digest for cell in listed]
        if len(set(digests)) != len(digests):
            yield f"at scale '{name}' {len(digests) - len(set(digests))} cells are equal to others"
        if any(cell.scale != name for cell in listed):
            yield f"at scale '{name}' there are cells of another scale"
        if any(pickle.loads(pickle.dumps(cell)) != cell for cell in listed):
            yield f"at scale '{name}' there are cells that pickling changes"


def runs(smoke: _Smoke) -> Iterator[str]:
    """Every cell runs and measures numbers, the claim's metric among them."""
    for result in smoke.results:
        if result.status != "done":
            yield f"cell '{result.cell.name}' raised\n{result.error}"
            continue
        odd = [name for name, value in result.measured.items() if not _is_number_or_series(value)]
        if odd:
            yield f"cell '{result.cell.name}' measured no number or list of numbers: {', '.join(odd)}"
    measured = {name for result in smoke.results for name in result.measured}
    for what in ("metric", "validation"):
        name = getattr(smoke.claim, what)
        if name and measured and name not in measured:
            yield f"no cell measured the claim's {what} '{name}'; they measured {', '.join(sorted(measured))}"


def repeatable(smoke: _Smoke) -> Iterator[str]:
    """The first cell, run once more after other random numbers were drawn, measures the same."""
    first = smoke.results[0]
    if first.status != "done":
        return
    torch.manual_seed(12345)
    again = _run(smoke.claim, first.cell).measured
    for name, value in first.measured.items():
        if not CLOCKED.search(name) and json.dumps(value) != json.dumps(again.get(name)):
            values = f"{value!r:.40} and {again.get(name)!r:.40}"
            yield f"cell '{first.cell.name}' run twice measures '{name}' as {values}"


def verdicts(smoke: _Smoke) -> Iterator[str]:
    """`Claim.judge` gives one verdict for each statement, of its kind, and raises for nothing missing."""
    broken = [CellResult(cell=cell, status="failed", error="broken on purpose") for cell in smoke.cells]
    tables = {
        "the smoke run": smoke.results,
        "a run whose cells all failed": broken,
        "a run whose last half failed": [*smoke.results[: len(broken) // 2], *broken[len(broken) // 2 :]],
        "a run without cells": [],
    }
    kinds = {statement.id: statement.kind for statement in smoke.claim.statements}
    for name, results in tables.items():
        try:
            judged = list(smoke.claim.judge(Table(results)))
        except Exception as error:
            yield f"judging {name} raises {type(error).__name__}: {error}"
            continue
        wrong = [verdict for verdict in judged if not isinstance(verdict, Verdict)]
        if wrong:
            yield f"judging {name} gives {wrong[0]!r:.40}, which is no Verdict"
            continue
        if sorted(verdict.statement for verdict in judged) != sorted(kinds):
            given = ", ".join(verdict.statement for verdict in judged) or "none"
            yield f"judging {name} gives verdicts on {given}; the statements are {', '.join(kinds)}"
        for verdict in judged:
            kind = kinds.get(verdict.statement, verdict.kind)
            if verdict.kind != kind:
                yield f"statement '{verdict.statement}' is of kind '{kind}', judged as '{verdict.kind}'"
            if verdict.outcome not in get_args(Outcome):
                yield f"statement '{verdict.statement}' has the outcome '{verdict.outcome}'"
            if not any(result.status == "done" for result in results) and verdict.outcome != "undecided":
                yield f"statement '{verdict.statement}' is judged '{verdict.outcome}' in {name}"


def figure(smoke: _Smoke) -> Iterator[str]:
    """`Claim.figure` gives a figure, several by name, or None for the default one."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.use("Agg")
    broken = [CellResult(cell=cell, status="failed", error="broken on purpose") for cell in smoke.cells]
    for name, results in (("the smoke run", smoke.results), ("a run whose cells all failed", broken)):
        try:
            with quiet():
                drawn: Any = smoke.claim.figure(Table(results))
        except Exception as error:
            yield f"drawing {name} raises {type(error).__name__}: {error}"
            continue
        figures = list(drawn.values()) if isinstance(drawn, Mapping) else [drawn]
        if drawn is not None and not all(isinstance(one, Figure) for one in figures):
            yield f"drawing {name} gives {drawn!r:.60}, which is no figure"


class _Smoke:
    """A claim and its run at smoke scale, which happens once, when it is first asked for."""

    def __init__(self, path: str) -> None:
        self._path = path

    @cached_property
    def claim(self) -> Claim:
        claim: Claim = load_object(self._path)()
        return claim

    @cached_property
    def cells(self) -> list[Cell]:
        return list(self.claim.cells(Scale("smoke", max(1, self.claim.seeds["smoke"]))))

    @cached_property
    def results(self) -> list[CellResult]:
        return [_run(self.claim, cell) for cell in self.cells]


def _run(claim: Claim, cell: Cell) -> CellResult:
    try:
        with quiet():
            measured: Measured = claim.run(cell)
    except Exception:
        return CellResult(cell=cell, status="failed", error=traceback.format_exc(limit=-5))
    return CellResult(cell=cell, status="done", measured=measured)


def _is_number_or_series(value: Any) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(_is_number(item) for item in value)
    return _is_number(value)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, complex)
        and (value == value or math.isnan(value))
    )
