"""The conformance kit: whether a plugin keeps its promises to Lightning, to the paper and to whoever uses it.

A plugin's tests hold one line::

    from leyden.testing import conformance

    test_conformance = conformance("my_plugin")

which makes a pytest test of every check that applies to the plugin, its components, configurations and
claims. Without pytest, `check_plugin` and `check_component` return what is wrong as a list of `Finding`.

The kit tries each component on a small classifier. A component that needs something else (orthonormal
parameters, an image, a module of its own) names a function that returns a `Trial` in
``Component(trial=...)``; one whose constructor needs arguments names a function that builds it in
``Component(example=...)``. A check that cannot apply is switched off where everyone can read it, with the
reason: ``Component(exempt={"accumulation": "the constraint holds for each micro-batch, see Limits"})``.

What is checked, by what owes it (`checks` lists all of it, with the names that ``exempt`` takes):

- *The package*: the paper's fields, the components' paths, kinds and summaries, the claims' descriptions;
  nothing heavy is imported when it is listed; ``py.typed``; public names load lazily and misspelt ones raise.
- *Configurations*: each runs through LeydenCLI with ``fast_dev_run``.
- *Claims*: all cells run at smoke scale and measure the same twice; every statement gets a verdict and a
  figure is drawn, also where cells failed.
- *Whatever trains* (optimizers, schedulers, callbacks, modules): two trainings agree bit for bit, also one
  that was interrupted at an epoch's end, in mid-epoch or by signal 9 and resumed; accumulation, clipping,
  bf16 autocast; with ``supports``: a GradScaler, DDP and FSDP2 on two processes.
- *Optimizers*: automatic optimization equals a plain loop; the loss from every source; ``lr`` and schedulers;
  parameter groups, idle parameters, weight decay; skipped and non-finite batches; ``state_dict``, copies; no
  synchronisation with the host; with ``supports``: bf16 parameters, a compiled model.
- *Callbacks*: every stage, copies, saved state, nothing left behind; those that every Trainer gets change
  nothing where they have no business, and act once where they stand twice.
- *Modules*: every stage with a Trainer's defaults, steps, ``max_steps`` and checkpoints counted right.
- *Layers, losses*: gradients, rows of a batch, copies, types, NaN and wrong shapes. *Metrics*: merging,
  resetting. *Schedulers*, *datamodules*: state, determinism.
- *Everything*: wrong arguments raise a ValueError that names them; docstrings explain arguments and shapes
  and name the place in the paper; their examples run.

A training that resumes bit for bit needs a loader and random numbers that resume: `ResumableLoader` and
`RestoreRNG` are public for that. `RecordingLogger` and `RecordingLeydenLogger` keep what a component logs and
draws.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from leyden.errors import LeydenError
from leyden.manager import Plugin, discover
from leyden.model import Component
from leyden.testing import (  # noqa: F401 - importing them registers their checks
    arguments,
    callbacks,
    datamodules,
    documentation,
    layers,
    metrics,
    modules,
    optimizers,
    schedulers,
    trainings,
)
from leyden.testing.claims import claim_cases
from leyden.testing.configs import RUNS_AS_IT_IS, runs_as_it_is
from leyden.testing.kit import OWED, Case, Finding, Subject, component_cases
from leyden.testing.loggers import RecordingLeydenLogger, RecordingLogger
from leyden.testing.metadata import metadata_cases
from leyden.testing.processes import TASKS, process_cases
from leyden.testing.resume import RestoreRNG, ResumableLoader
from leyden.testing.trials import Trial

__all__ = [
    "Finding",
    "RecordingLeydenLogger",
    "RecordingLogger",
    "RestoreRNG",
    "ResumableLoader",
    "Trial",
    "check_component",
    "check_plugin",
    "checks",
    "conformance",
]


def conformance(plugin: str, *, exempt: Mapping[str, str] | None = None) -> Callable[[Case], None]:
    """Make a pytest test of every check that applies to an installed plugin.

    Args:
        plugin: the plugin's name, that of its entry point.
        exempt: cases that cannot apply, by the identity in the test's name (such as ``"faces.yaml-runs"``),
            each with the reason; components say theirs themselves.

    Returns:
        A test function, parametrized over the cases; bind it to a name that begins with ``test_``.
    """
    import pytest

    cases = list(cases_of(plugin, exempt))

    @pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])
    def test_conformance(case: Case) -> None:
        if case.exempt:
            pytest.skip(f"exempt: {case.exempt}")
        findings = case.findings()
        if findings:
            pytest.fail("\n".join([f"Owed: {case.text}", *map(str, findings)]), pytrace=False)

    return test_conformance


def check_plugin(plugin: str, *, exempt: Mapping[str, str] | None = None) -> list[Finding]:
    """Run every check that applies to an installed plugin.

    Args:
        plugin: the plugin's name, that of its entry point.
        exempt: as for `conformance`.

    Returns:
        What is wrong; empty when all is well.
    """
    return [finding for case in cases_of(plugin, exempt) for finding in case.findings()]


def check_component(
    component: Component,
    *,
    only: Sequence[str] = (),
    from_paper: bool = False,
    contributed: bool = False,
) -> list[Finding]:
    """Run the checks that apply to a component, of a plugin or not.

    Args:
        component: what it is and how to build it.
        only: names of the checks to run; empty: all.
        from_paper: whether its docstring must name its place in a paper.
        contributed: whether it is a callback that every Trainer gets.

    Returns:
        What is wrong; empty when all is well.

    Raises:
        ValueError: if ``only`` names a check that does not apply to the component.
    """
    subject = Subject(component, from_paper, contributed)
    cases = {case.check: case for case in (*component_cases(subject), *process_cases([subject]))}
    for name in only:
        if name not in cases:
            raise ValueError(f"only: '{name}' is no check of this component; there are {', '.join(cases)}")
    chosen = [case for name, case in cases.items() if not only or name in only]
    return [finding for case in chosen for finding in case.findings()]


def checks() -> list[tuple[str, str, str]]:
    """Every check of a component.

    Returns:
        For each: its name, as ``exempt`` takes it; what owes it; and what is owed, in a sentence.
    """
    own = [(owed.name, _debtors(owed.kinds, owed.promise), owed.text) for owed in OWED]
    return own + [(name, _debtors(("training",), None), text) for name, text in TASKS.items()]


def cases_of(plugin: str, exempt: Mapping[str, str] | None = None) -> Iterator[Case]:
    """Every case of an installed plugin.

    Args:
        plugin: the plugin's name.
        exempt: as for `conformance`.

    Yields:
        The cases of the package, its components, configurations and claims. A plugin that cannot be used is
        one case, which says why.

    Raises:
        ValueError: if ``exempt`` names a case that there is not.
    """
    reasons = dict(exempt or {})
    for case in _cases(plugin):
        reason = reasons.pop(case.id, case.exempt)
        yield dataclasses.replace(case, exempt=reason)
    if reasons:
        raise ValueError(f"exempt: plugin '{plugin}' has no case {', '.join(sorted(reasons))}")


def _cases(name: str) -> Iterator[Case]:
    manager = discover()
    try:
        plugin = manager.plugin(name)
    except LeydenError as error:
        reason = str(error)
        yield Case(name, "usable", "The plugin is installed and can be imported.", lambda: [reason])
        return
    contributed = set(manager.callback_paths())
    own = sorted(path for path in contributed if _is_of(path, plugin))
    yield from metadata_cases(plugin, own, set(TASKS))
    subjects = [Subject(one, plugin.paper is not None, one.path in contributed) for one in plugin.components]
    for subject in subjects:
        yield from component_cases(subject)
    yield from process_cases(subjects)
    for config, file in plugin.configs.items():
        yield Case(f"{config}.yaml", "runs", RUNS_AS_IT_IS, functools.partial(runs_as_it_is, file))
    for claim in plugin.claims:
        yield from claim_cases(claim)


def _is_of(path: str, plugin: Plugin) -> bool:
    return path.partition(".")[0] == plugin.module.partition(".")[0]


def _debtors(kinds: tuple[str, ...], promise: Any) -> str:
    return ", ".join(kinds) + (f" (with supports={promise!r})" if promise else "")
