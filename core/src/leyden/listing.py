"""What ``leyden plugins`` and ``leyden claims`` print."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from leyden.claims import SCALES, Claim
from leyden.formatting import count
from leyden.manager import Manager, Plugin
from leyden.model import Component, Range, Space

_COLOURS = {"holds": "green", "does not hold": "red", "undecided": "yellow"}
_USES = {
    "optimizer": "def configure_optimizers(self):\n    return {name}(self.parameters())",
    "lr_scheduler": "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nscheduler = {name}(optimizer)",
    "callback": "trainer = lightning.Trainer(callbacks=[{name}()])\ntrainer.fit(model)",
    "module": "model = {name}(...)\nlightning.Trainer().fit(model)",
    "layer": "layer = {name}(...)\noutput = layer(input)",
    "loss": "criterion = {name}(...)\nloss = criterion(output, target)",
    "metric": "metric = {name}(...)\nmetric.update(output, target)",
    "datamodule": "data = {name}()\nlightning.Trainer().fit(model, data)",
    "function": "result = {name}(...)",
}


def list_plugins(console: Console, manager: Manager) -> None:
    """Print every installed plugin, then what is wrong with those that cannot be used."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("plugin", "version", "paper", "brings"):
        table.add_column(heading, overflow="fold")
    for plugin in manager.plugins.values():
        if plugin.error is not None:
            paper, brings = "", "[red]cannot be used, see below[/red]"
        elif not plugin.enabled:
            paper, brings = "", "[dim]turned off in plugins.toml[/dim]"
        else:
            paper = f"{plugin.paper.summary} ({plugin.paper.venue})" if plugin.paper else "shared by plugins"
            brings = _brings(plugin)
        table.add_row(f"[bold]{plugin.name}[/bold]", plugin.version, escape(paper), brings)
    if manager.plugins:
        console.print(table)
    else:
        console.print("no plugin is installed; try: pip install leyden-sps-safe")
    _print_problems(console, [*manager.problems, *manager.missing])


def show_plugin(console: Console, manager: Manager, plugin: Plugin) -> None:
    """Print one plugin's paper, components, configurations, claims and a use of three lines."""
    console.print(f"[bold]{plugin.name}[/bold] {plugin.version}, installed as {plugin.distribution}")
    if paper := plugin.paper:
        lines = [
            paper.title,
            f"{', '.join(paper.authors)}. {paper.venue}. {paper.url}",
            f"In short: {paper.summary}",
            f"Code: {paper.code}" if paper.code else "",
            f"Exactness: {paper.exact}" if paper.exact else "",
        ]
        _section(console, "Paper", "\n".join(filter(None, lines)))
    if plugin.components:
        table = _grid(names=2)
        for component in plugin.components:
            table.add_row(
                f"[dim]{component.kind}[/dim]", f"[bold]{component.path}[/bold]", escape(component.summary)
            )
        _section(console, "Components", table)
        searched = [component for component in plugin.components if component.search]
        if searched:
            table = _grid(names=1)
            for component in searched:
                table.add_row(f"[bold]{component.name}[/bold]", escape(search_text(component.search)))
            _section(console, "What leyden compare tunes", table)
    if plugin.option_specs:
        values = manager.options(plugin.name)
        table = _grid(names=1)
        for option in plugin.option_specs:
            table.add_row(f"[bold]{option.name}[/bold] = {values[option.name]!r}", escape(option.summary))
        _section(console, "Options, in plugins.toml", table)
    if plugin.configs:
        _section(console, "Configurations", "\n".join(f"{plugin.name}/{name}" for name in plugin.configs))
    claims = [claim for owner, claim in manager.claims() if owner is plugin]
    if claims:
        table = _grid(names=1)
        for claim in claims:
            table.add_row(f"[bold]{plugin.name}/{claim.name}[/bold]", escape(claim.title))
        _section(console, "Claims", table)
    if plugin.components:
        _section(console, "Use", three_lines(plugin.components[0]))
        if plugin.configs:
            console.print(f"  [dim]or[/dim] leyden fit --config {plugin.name}/{next(iter(plugin.configs))}")
    _print_problems(console, [problem for problem in manager.problems if f"'{plugin.name}'" in problem])


def list_claims(console: Console, manager: Manager, reports: Path) -> None:
    """Print every claim: what the paper says, how long it takes, and the last verdict of a run here.

    Args:
        console: where to print.
        manager: the plugins.
        reports: the folder that ``leyden reproduce`` writes its reports to.
    """
    found = manager.claims()
    for plugin, claim in found:
        title, source = escape(claim.title), escape(claim.source)
        console.print(f"[bold]{plugin.name}/{claim.name}[/bold]  {title} [dim]({source})[/dim]")
        times = [_minutes(claim, scale) for scale in SCALES if scale in claim.minutes]
        console.print(f"  [dim]takes[/dim] {', '.join(times)}")
        verdicts, where = last_verdicts(reports / plugin.name / claim.name)
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
        for statement in claim.statements:
            outcome = verdicts.get(statement.id, "")
            colour = _COLOURS.get(outcome, "dim")
            verdict = f"[{colour}]{outcome or 'not run here'}[/{colour}]"
            verdict += f" [dim]({where})[/dim]" if outcome else ""
            said = f"the paper says: {statement.paper}" if statement.paper else "a check of our own"
            table.add_row(verdict, f"{escape(statement.text)}\n[dim]{escape(said)}[/dim]")
        console.print(Padding(table, (0, 0, 1, 2), expand=False))
    if not found:
        console.print("no installed plugin makes a claim; try: pip install leyden-sps-safe")
    _print_problems(console, manager.problems)


def last_verdicts(reports: Path) -> tuple[dict[str, str], str]:
    """The outcome of each statement in the newest report of a claim, and that report's scale and day."""
    newest = sorted(reports.glob("*/verdicts.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest:
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError
        ):  # cut short; an older one may be whole
            report: Any = json.loads(path.read_text())
            outcomes = {verdict["statement"]: verdict["outcome"] for verdict in report["verdicts"]}
            return outcomes, f"{report['scale']}, {report['date'][:10]}"
    return {}, ""


def search_text(search: Mapping[str, Space]) -> str:
    """A search space in words.

    >>> search_text({"M": Range(0.001, 10), "nesterov": (False, True)})
    'M: 0.001 to 10, logarithmic; nesterov: False, True'
    """
    return "; ".join(f"{name}: {space_text(space)}" for name, space in search.items())


def space_text(space: Space) -> str:
    """What tuning may try for one argument, in words."""
    return str(space) if isinstance(space, Range) else ", ".join(map(str, space))


def three_lines(component: Component) -> str:
    """How a component is used in Python."""
    module = component.path.rpartition(".")[0]
    return f"from {module} import {component.name}\n" + _USES[component.kind].format(name=component.name)


def _brings(plugin: Plugin) -> str:
    counts = Counter(component.kind.replace("_", " ") for component in plugin.components)
    counts |= Counter({"configuration": len(plugin.configs), "claim": len(plugin.claims)})
    return ", ".join(count(amount, kind) for kind, amount in counts.items() if amount)


def _minutes(claim: type[Claim], scale: str) -> str:
    minutes = claim.minutes[scale]
    time = f"{minutes:g} min" if minutes >= 1 else f"{60 * minutes:.0f} s"
    seeds = f" with {count(claim.seeds[scale], 'seed')}" if scale in claim.seeds else ""
    return f"{scale} {time}{seeds}"


def _grid(*, names: int) -> Table:
    """A table without lines; its first columns hold names, which stay whole in a narrow terminal."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(names):
        table.add_column(no_wrap=True, overflow="fold")
    return table


def _section(console: Console, heading: str, content: str | Table) -> None:
    console.print(f"\n[bold]{heading}[/bold]")
    if isinstance(content, Table):
        console.print(Padding(content, (0, 0, 0, 2), expand=False))
        return
    for line in content.splitlines():
        wrapped = textwrap.fill(line, console.width - 2, initial_indent="  ", subsequent_indent="  ")
        console.print(wrapped, markup=False, soft_wrap=True)


def _print_problems(console: Console, problems: list[str]) -> None:
    if problems:
        console.print()
    for problem in problems:
        console.print(f"[red]problem:[/red] {escape(problem)}", soft_wrap=True)
