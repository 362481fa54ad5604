"""The contract between Leyden and a plugin: every hook a plugin may implement.

A plugin is a module named by an entry point of the group ``leyden``. It states ``LEYDEN_API = 1`` and
implements the hooks it needs, marked with `hookimpl`; it imports neither torch nor lightning, so that listing
fifty plugins costs nothing. Whatever is heavy is named by a dotted path and imported when it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pluggy

from leyden.model import Check, Component, Option, Paper, Run, RunResult

hookspec = pluggy.HookspecMarker("leyden")
hookimpl = pluggy.HookimplMarker("leyden")


@hookspec
def leyden_paper() -> Paper | None:
    """Return the paper that the plugin implements, or None for a shared package.

    Called when plugins are listed.
    """


@hookspec
def leyden_components() -> Iterable[Component]:  # type: ignore[empty-body]
    """Return what the plugin contributes.

    Called when plugins are listed and when a configuration is resolved.
    """


@hookspec
def leyden_claims() -> Iterable[str]:  # type: ignore[empty-body]
    """Return the dotted paths of the plugin's `leyden.claims.Claim` classes.

    Called by ``leyden claims`` and ``reproduce``. The module that holds them imports torch inside functions
    only.
    """


@hookspec
def leyden_callbacks(options: Mapping[str, Any]) -> Iterable[str]:  # type: ignore[empty-body]
    """Return the dotted paths of the self-gating callbacks that every Trainer gets.

    Each is called without arguments. It must be stateless until it decides to act, idempotent (only the first
    of its type in ``trainer.callbacks`` acts) and free for a Trainer that does not need it. Called once for
    each Trainer.

    Args:
        options: the plugin's options, from plugins.toml or their defaults. An implementation may leave it
            out.
    """


@hookspec
def leyden_options() -> Iterable[Option]:  # type: ignore[empty-body]
    """Return the settings that the plugin reads from ``[plugins.NAME.options]``.

    Called when they are checked.
    """


@hookspec
def leyden_checks() -> Iterable[Check]:  # type: ignore[empty-body]
    """Return checks of the plugin's own for ``leyden doctor``."""


@hookspec
def leyden_run_start(run: Run) -> None:
    """Called when a run or a claim starts: the tracking store has answered and nothing trains yet."""


@hookspec
def leyden_run_end(run: Run, result: RunResult) -> None:
    """Called when it ended, also when it failed or was stopped by a signal that a process can see."""
