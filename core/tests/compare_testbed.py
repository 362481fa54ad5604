"""What the tests of ``leyden compare`` share: plugins to try, configurations, a run in this process."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from leyden.claims import Cell
from leyden.compare import compare
from leyden.comparison import running
from leyden.results import Results
from leyden.worker import Job, run_job
from rich.console import Console

HOOKS = """
from leyden.hookspecs import hookimpl
from leyden.model import Component, Range

LEYDEN_API = 1
RATE = Range(0.01, 1)
EVERY = (1, 2)


@hookimpl
def leyden_components():
    return [
        Component(kind="optimizer", path="{package}.parts.Steady", summary="S.", search={"lr": RATE}),
        Component(kind="optimizer", path="{package}.parts.Restless", summary="R."),
        Component(kind="optimizer", path="{package}.parts.Needy", summary="N."),
        Component(kind="optimizer", path="{package}.parts.Explosive", summary="E."),
        Component(kind="lr_scheduler", path="{package}.parts.Halving", summary="H.", search={"every": EVERY}),
        Component(kind="callback", path="{package}.parts.Quiet", summary="Q."),
        Component(kind="layer", path="{package}.parts.Bend", summary="B.", swap="{package}.parts.bend"),
        Component(kind="loss", path="{package}.parts.Miss", summary="M."),
        Component(kind="loss", path="{package}.parts.Graze", summary="G.", swap="{package}.parts.graze"),
    ]
"""

PARTS = '''
import torch
from lightning.pytorch import Callback


class Steady(torch.optim.SGD):
    """SGD by another name."""

    def __init__(self, params, lr: float = 0.1, momentum: float = 0.0):
        if lr <= 0:
            raise ValueError(f"lr must be positive, got {lr}")
        super().__init__(params, lr=lr, momentum=momentum)


class Restless(torch.optim.SGD):
    """Draws from the global generator at every step, and uses nothing of it."""

    def __init__(self, params, lr: float = 0.1):
        super().__init__(params, lr=lr)

    def step(self, closure=None):
        torch.randn(7)
        return super().step(closure)


class Needy(Steady):
    needs_loss = True


class Explosive(torch.optim.SGD):
    """Sets the parameters to NaN where its rate is large."""

    def __init__(self, params, lr: float = 0.1, limit: float = 1.0):
        self.limit = limit
        super().__init__(params, lr=lr)

    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            if group["lr"] > self.limit:
                for parameter in group["params"]:
                    parameter.data.fill_(float("nan"))
        return loss


class Halving(torch.optim.lr_scheduler.StepLR):
    def __init__(self, optimizer, every: int = 1):
        super().__init__(optimizer, every, 0.5)


class Quiet(Callback):
    def __init__(self, volume: float = 1.0):
        self.volume = volume


class Bend(torch.nn.Module):
    """A bent line whose slope is drawn."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.rand(1) * scale)

    def forward(self, x):
        return torch.where(x > 0, x, self.slope * x)


def bend(model, scale: float = 1.0):
    model.net[1] = Bend(scale)
    return model


class Miss(torch.nn.Module):
    pass


class Graze(torch.nn.Module):
    """Its swap leaves the model as it is: what matters is that it is a loss."""

    def __init__(self, scale: float = 1.0):
        super().__init__()


def graze(model, scale: float = 1.0):
    return model
'''

SINGLE = """
from leyden.hookspecs import hookimpl
from leyden.model import Component

LEYDEN_API = 1


@hookimpl
def leyden_components():
    return [Component(kind="optimizer", path="{package}.Stepper", summary="S.")]
"""


def install_tried(install: Callable[..., str]) -> None:
    """Install the plugins ``tried``, with a component of every kind, and ``single``, with one."""
    install("tried", HOOKS, files={"parts.py": PARTS})
    install("single", SINGLE)


def write_config(name: str = "mine.yaml", **changes: Any) -> str:
    """Write the classifier's configuration, some of its top keys replaced or, by None, left out."""
    document = {
        "model": {"class_path": "mine.Classifier"},
        "data": {"class_path": "mine.Blobs"},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        "trainer": {"max_epochs": 2, "accelerator": "cpu", "devices": 1},
        **changes,
    }
    kept = {key: value for key, value in document.items() if value is not None}
    Path(name).write_text(yaml.safe_dump(kept))
    return name


def compare_here(*tries: str, config: Sequence[str] | str = "mine.yaml", **arguments: Any) -> tuple[int, str]:
    """Compare with small numbers; each try is its words. Returns the status and what was printed."""
    output = io.StringIO()
    given: dict[str, Any] = {"trials": 2, "seeds": 2, "jobs": 1, **arguments}
    configs = [config] if isinstance(config, str) else config
    status = compare(
        configs, [words.split() for words in tries], console=Console(file=output, width=250), **given
    )
    return status, output.getvalue()


def run_cells_here(claim: str, cells: Sequence[Cell], *, results: Results, **options: Any) -> None:
    """Do what `leyden.execute.run_cells` does, one cell after the other in this process."""
    for cell in cells:
        if not results.stored(cell):
            run_job(Job(claim=claim, cell=cell, results=results.directory.absolute(), directory=Path.cwd()))
            options["on_done"](results.load(cell))


def stored(name: str = "mine") -> list[Mapping[str, Any]]:
    """Every stored result of a comparison."""
    return [json.loads(path.read_text()) for path in Path(".leyden/results/compare", name).rglob("*.json")]


def report(name: str = "mine", file: str = "table.md") -> str:
    """A file of a comparison's report."""
    return Path("leyden-reports/compare", name, file).read_text()


def arm_config(arm: str, name: str = "mine") -> dict[str, Any]:
    """The configuration that a comparison left of an arm."""
    return yaml.safe_load(report(name, f"{arm}.yaml"))  # type: ignore[no-any-return]


@contextlib.contextmanager
def project_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the user's module, whose fits run in this process and are not tracked."""
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(Path(__file__).with_name("compared_project.py"), work / "mine.py")
    (work / "plugins.toml").write_text("[tracking]\nenabled = false\n")
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "path", [str(work), *sys.path])
    monkeypatch.setattr(running, "run_cells", run_cells_here)
    yield work
    sys.modules.pop("mine", None)
