"""Choosing settings to try: a fixed first round, then Optuna's tree of Parzen estimators, in rounds.

Rounds have a fixed size, so what is tried does not depend on how many fits run at once, and a resumed
comparison asks the same again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from leyden.claims import Mode, Scalar
from leyden.comparison.arms import Contender
from leyden.comparison.space import nearest, placed, rounded
from leyden.model import Range, Space

ROUND = 4
"""How many settings of an arm are chosen before the results of any of them are looked at."""

_TRIES_FOR_A_NEW_ONE = 80
_TRIES_OF_THE_ESTIMATORS = 20
Setting = dict[str, Scalar]


class Search:
    """The settings that an arm tries.

    The first is the arm's own, moved into the space where it lies outside. The rest of the first round is
    spread over the space (a Latin hypercube), and later rounds follow the tree of Parzen estimators. A
    setting is tried once: of a small space there may be fewer settings than trials.

    Args:
        arm: the arm.
        trials: how many settings.
        mode: whether a larger or a smaller value is better.
        seed: of the search.
    """

    def __init__(self, arm: Contender, *, trials: int, mode: Mode, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = dict(arm.space)
        self._left = trials if arm.space else 0
        self._first = own_setting(arm)
        self._mode = mode
        self._draw = random.Random(seed)
        self._distributions = {name: _distribution(space) for name, space in self._space.items()}
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)
        direction: Literal["maximize", "minimize"] = "maximize" if mode == "max" else "minimize"
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        self._values: dict[tuple[Any, ...], float | None] = {}
        self._open: dict[tuple[Any, ...], Any] = {}

    def ask(self) -> list[Setting]:
        """The settings of the next round; none when the budget or the space is used up."""
        round_ = self._spread() if not self._values else self._estimated()
        self._left = self._left - len(round_) if round_ else 0
        return round_

    def tell(self, settings: Sequence[Setting], values: Sequence[float | None]) -> None:
        """Tell what the settings of a round gave; None for one that failed, which counts as the worst."""
        for setting, value in zip(settings, values, strict=True):
            self._values[_key(setting)] = value
        finished = [value for value in self._values.values() if value is not None and math.isfinite(value)]
        worst = (min if self._mode == "max" else max)(finished, default=None)
        for setting, value in zip(settings, values, strict=True):
            self._record(setting, worst if value is None or not math.isfinite(value) else value)

    def _spread(self) -> list[Setting]:
        """The arm's own setting and a Latin hypercube; where values coincide, further points drawn evenly."""
        amount = min(ROUND, self._left)
        if not amount:
            return []
        columns = []
        for _ in self._space:
            strata = list(range(ROUND - 1))
            self._draw.shuffle(strata)
            columns.append([(stratum + self._draw.random()) / len(strata) for stratum in strata])
        points = [list(point) for point in zip(*columns, strict=True)]
        points += [[self._draw.random() for _ in self._space] for _ in range(_TRIES_FOR_A_NEW_ONE)]
        return _distinct([self._first, *map(self._at, points)], amount)

    def _at(self, point: Sequence[float]) -> Setting:
        """The setting at a point of the unit cube."""
        return {name: placed(x, space) for x, (name, space) in zip(point, self._space.items(), strict=True)}

    def _estimated(self) -> list[Setting]:
        found: list[Setting] = []
        for attempt in range(_TRIES_FOR_A_NEW_ONE):
            if len(found) == min(ROUND, self._left):
                break
            if attempt >= _TRIES_OF_THE_ESTIMATORS:  # they insist on what was tried; any other will do
                setting = self._at([self._draw.random() for _ in self._space])
                if _key(setting) not in self._values and setting not in found:
                    found.append(setting)
                continue
            trial = self._study.ask(self._distributions)
            setting = {name: self._rounded(name, trial.params[name]) for name in self._space}
            if _key(setting) in self._values or setting in found:
                self._study.tell(trial, values=None, state=_failed())
                continue
            self._open[_key(setting)] = trial
            found.append(setting)
        return found

    def _rounded(self, name: str, value: Any) -> Scalar:
        space = self._space[name]
        return rounded(value, space) if isinstance(space, Range) else value

    def _record(self, setting: Setting, value: float | None) -> None:
        import optuna

        if trial := self._open.pop(_key(setting), None):
            if value is None:
                self._study.tell(trial, values=None, state=_failed())
            else:
                self._study.tell(trial, value)
        elif value is not None and all(
            name in setting and _holds(self._space[name], setting[name]) for name in self._space
        ):
            self._study.add_trial(
                optuna.trial.create_trial(params=setting, distributions=self._distributions, value=value)
            )


def own_setting(arm: Contender) -> Setting:
    """The setting of an arm before anything is tuned, as far as its values are known."""
    return {name: nearest(value, arm.space[name]) for name, value in arm.defaults.items()}


def _distribution(space: Space) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(space, Range):
        return CategoricalDistribution(space)
    if space.integer:
        return IntDistribution(int(space.low), int(space.high), log=space.log)
    return FloatDistribution(space.low, space.high, log=space.log)


def _failed() -> Any:
    from optuna.trial import TrialState

    return TrialState.FAIL


def _holds(space: Space, value: Scalar) -> bool:
    return value in space


def _key(setting: Mapping[str, Scalar]) -> tuple[Any, ...]:
    return tuple(sorted((name, str(value)) for name, value in setting.items()))


def _distinct(settings: Sequence[Setting], amount: int) -> list[Setting]:
    return list({_key(setting): setting for setting in settings}.values())[:amount]
