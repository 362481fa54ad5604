"""A claim that passes the kit, and variants of it that break one thing each."""

from __future__ import annotations

import math
import random
from typing import ClassVar

from leyden.claims import Arm, Cell, Claim, Statement
from leyden.model import Verdict


class Grows(Claim):
    """A number grows with its index."""

    name = "grows"
    title = "A number grows with its index"
    source = "ours"
    statements = (Statement(id="grows", text="The number of 'more' is larger.", kind="better"),)
    minutes: ClassVar = {"smoke": 0.1, "laptop": 0.1, "paper": 0.1}
    seeds: ClassVar = {"smoke": 2, "laptop": 3, "paper": 3}
    metric = "number"

    def cells(self, scale):
        methods = ("less", "more")
        return [Cell(method=m, seed=s, scale=scale.name) for m in methods for s in range(scale.seeds)]

    def run(self, cell):
        return {"number": cell.seed + (cell.method == "more"), "seconds": random.random()}

    def judge(self, table):
        more, less = (table.by_seed(Arm(method), "number") for method in ("more", "less"))
        paired = [more[seed] - less[seed] for seed in more if seed in less]
        return [self.verdict(min(paired, default=math.nan))]

    def verdict(self, difference, **changes):
        outcome = "undecided" if math.isnan(difference) else "holds" if difference > 0 else "does not hold"
        given = {
            "statement": "grows",
            "text": "The number of 'more' is larger.",
            "kind": "better",
            "outcome": outcome,
            "estimate": difference,
            "low": difference,
            "high": difference,
            "threshold": 0.0,
        }
        return Verdict(**{**given, **changes})


class Untitled(Grows):
    title = ""


class Untimed(Grows):
    minutes: ClassVar = {"smoke": 0.1, "laptop": 0.1}


class Stated(Grows):
    statements = Grows.statements * 2


class SameCells(Grows):
    def cells(self, scale):
        return [Cell(method="more", seed=0, scale=scale.name)] * 2


class WithoutCells(Grows):
    def cells(self, scale):
        return [] if scale.name == "paper" else super().cells(scale)


class OtherScale(Grows):
    def cells(self, scale):
        return [Cell(method="more", seed=seed) for seed in range(2)]


class Raises(Grows):
    def run(self, cell):
        raise ArithmeticError("this cell cannot be run")


class MeasuresText(Grows):
    def run(self, cell):
        return {"number": "many"}


class MeasuresElse(Grows):
    def run(self, cell):
        return {"other": 1.0}


class Chance(Grows):
    def run(self, cell):
        return {"number": random.random()}


class NoVerdict(Grows):
    def judge(self, table):
        return []


class NeedsAllCells(Grows):
    def judge(self, table):
        return [self.verdict(table.by_seed(Arm("more"), "number")[0])]


class OtherKind(Grows):
    def judge(self, table):
        return [self.verdict(math.nan, kind="bound")]


class JudgesNothing(Grows):
    def judge(self, table):
        return [self.verdict(1.0)]


class WrongFigure(Grows):
    def figure(self, table):
        return "a picture"


class FigureNeedsCells(Grows):
    def figure(self, table):
        return table.by_seed(Arm("more"), "number")[0] and None
