"""What a comparison is asked to compare, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.comparison.arms import Contender, Refusal
from leyden.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the user wants a comparison to be run.

    Attributes:
        trials: how many settings of each arm are tried.
        seeds: with how many seeds each arm is judged.
        metric: the validation metric; None: `leyden.comparison.probing.choose_metric` chooses.
        mode: ``"max"`` or ``"min"``; None: the metric's name tells.
        jobs: how many fits run at the same time.
        executor: ``"loky"`` or ``"ray"``.
        resume: whether to go on with an earlier invocation.
        command: what asks for the same comparison.
    """

    trials: int
    seeds: int
    metric: str | None
    mode: str | None
    jobs: int
    executor: str
    resume: bool
    command: str

    @property
    def budget(self) -> dict[str, Any]:
        """What the results depend on."""
        return {"trials": self.trials, "seeds": self.seeds, "metric": self.metric, "mode": self.mode}


@dataclass(kw_only=True)
class Asked:
    """What one invocation of a comparison compares, as far as that is known.

    Attributes:
        name: the comparison's name.
        arms: the arms, the baseline first; those that cannot work are taken out.
        refusals: what is tried and does not apply.
        files: where the configuration was read from.
        plan: what the user asked for.
        console: where to print.
        notes: what the report should tell.
        said: what was printed already.
    """

    name: str
    arms: list[Contender]
    refusals: list[Refusal]
    files: Sequence[Path]
    plan: Plan
    console: Console
    notes: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The comparison as a person names it."""
        return f"compare {self.name}"

    def check(self) -> None:
        """Refuse a comparison in which nothing is left to compare.

        Raises:
            UsageError: with the reasons.
        """
        if len(self.arms) < 2:
            raise UsageError(f"nothing to compare: {'; '.join(map(str, self.refusals))}")

    def settings(self) -> dict[str, Any]:
        """What was asked for, for the report and the run."""
        return {
            "config": [str(path) for path in self.files],
            "arms": [arm.name for arm in self.arms],
            **{key: value for key, value in self.plan.budget.items() if value is not None},
            "jobs": self.plan.jobs,
            "executor": self.plan.executor,
        }
