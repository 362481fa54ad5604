"""`leyden compare`: what plugins bring, tried in a project of the user's own against what is there."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leyden.comparison.arms import Refusal, baseline, contenders, read_configs
from leyden.comparison.asked import Plan
from leyden.comparison.fits import Fits
from leyden.comparison.identity import identity
from leyden.comparison.probing import check_mode
from leyden.comparison.running import Comparing
from leyden.comparison.search import ROUND
from leyden.errors import UsageError
from leyden.execute import (
    check_executor,
    default_jobs,
    start_workers,
    stop_workers,
    termination_as_exit,
)
from leyden.manager import manager
from leyden.progress import say
from leyden.reproduce import RESULTS, tracking_session
from leyden.results import Results, own_results
from leyden.worker import find_modules_in

if TYPE_CHECKING:
    from rich.console import Console

TRIALS, SEEDS = 8, 5
"""How many settings of each arm are tried, and with how many seeds the best one is judged, by default."""


def compare(
    configs: Sequence[str],
    tries: Sequence[Sequence[str]],
    *,
    tune: Sequence[str] = (),
    trials: int = TRIALS,
    seeds: int = SEEDS,
    metric: str | None = None,
    mode: str | None = None,
    dry_run: bool = False,
    jobs: int | None = None,
    executor: str | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> int:
    """Compare what plugins bring with a LightningCLI configuration, each tuned by the same budget.

    Args:
        configs: the configuration's files, or names of shipped ones; later ones win.
        tries: for each thing tried its words: ``PLUGIN`` or ``PLUGIN.COMPONENT``, then ``key=value`` to fix
            an argument and ``key=low..high`` or ``key=a,b`` to say what is tried for it.
        tune: what is tried for the baseline, ``key=low..high`` or ``key=a,b``; keys are dotted keys of the
            configuration, and ``lr`` means the optimizer's. Without any, the learning rate is tuned.
        trials: how many settings of each arm are tried; 0 tunes nothing.
        seeds: with how many seeds each arm is judged at its best setting.
        metric: the validation metric that chooses; by default ``val_loss`` or the only one.
        mode: ``"max"`` or ``"min"``; by default what the metric's name tells.
        dry_run: say what would run and how long, and stop there.
        jobs: how many fits run at the same time; plugins.toml's number, or one a core, if None.
        executor: ``"loky"`` or ``"ray"``; plugins.toml's if None.
        resume: go on where the newest invocation of the same comparison stopped.
        console: where to print; standard output if None.

    Returns:
        The exit status: 0 if every arm was judged, whatever the verdicts; 1 if a fit that judges failed or an
        arm has no setting that trains; 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        UsageError: if a name, a key or a number is wrong, or nothing that is tried applies.
        LeydenError: if the baseline cannot be trained, or the tracking store or the working directory cannot
            be used.
    """
    if console is None:
        from rich.console import Console

        console = Console()
    find_modules_in(Path.cwd())
    plugins = manager()
    settings = plugins.settings
    for name, number, least in (("trials", trials, 0), ("seeds", seeds, 1), ("jobs", jobs, 1)):
        if number is not None and number < least:
            raise UsageError(f"--{name} {number}: must be at least {least}")
    check_mode(mode)
    chosen = executor or settings.execute.executor
    check_executor(chosen)
    plan = Plan(
        trials=trials,
        seeds=seeds,
        metric=metric,
        mode=mode,
        jobs=jobs or settings.execute.jobs or default_jobs(chosen),
        executor=chosen,
        resume=resume,
        command=_command(configs, tries, tune, trials, seeds, metric, mode),
    )
    document, files = read_configs(configs)
    try:
        with termination_as_exit():
            at_once = (1 + len(tries)) * max(seeds, ROUND if trials else 1)
            # they import while this process reads on
            start_workers(plan.executor, min(plan.jobs, at_once), Fits.imports)
            base = baseline(document, tune)
            tried = contenders(base, tries, plugins)
            comparing = Comparing(
                name="-".join(dict.fromkeys(path.stem for path in files)),
                arms=[base, *(arm for arm in tried if not isinstance(arm, Refusal))],
                refusals=[arm for arm in tried if isinstance(arm, Refusal)],
                files=files,
                plan=plan,
                plugins=plugins,
                console=console,
            )
            comparing.check()
            code = identity(comparing.arms, plan.budget)
            if dry_run:
                with _throwaway_results() as results:
                    comparing.foretell(results)
                return 0
            root = Path.cwd() / RESULTS / "compare" / comparing.name
            with (
                tracking_session(settings.tracking, console, wait=False) as session,
                own_results(root, code=code, resume=resume) as results,
            ):
                return 0 if comparing.run(results, session) else 1
    except (KeyboardInterrupt, SystemExit) as stop:
        if not dry_run:
            say(console, f"Stopped; what was measured is stored. To go on: {plan.command} --resume")
        return stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130
    finally:
        stop_workers()


@contextlib.contextmanager
def _throwaway_results() -> Iterator[Results]:
    with tempfile.TemporaryDirectory() as folder:
        yield Results(Path(folder))


def _command(
    configs: Sequence[str],
    tries: Sequence[Sequence[str]],
    tune: Sequence[str],
    trials: int,
    seeds: int,
    metric: str | None,
    mode: str | None,
) -> str:
    """The command that asks for the same comparison."""
    parts = ["leyden", "compare"]
    for config in configs:
        parts += ["--config", config]
    for words in tries:
        parts += ["--try", *words]
    parts += ["--tune", *tune] if tune else []
    parts += ["--trials", str(trials)] if trials != TRIALS else []
    parts += ["--seeds", str(seeds)] if seeds != SEEDS else []
    parts += ["--metric", metric] if metric else []
    parts += ["--mode", mode] if mode else []
    return shlex.join(parts)
