"""A comparison takes no difference for a method's that comes from elsewhere, and no result for another's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compare_testbed import (
    compare_here,
    install_tried,
    project_in,
    report,
    stored,
    write_config,
)
from leyden.comparison import watch
from leyden.comparison.identity import identity
from leyden.errors import UsageError

HOOKS = """
from leyden.hookspecs import hookimpl
from leyden.model import Component

LEYDEN_API = 1


@hookimpl
def leyden_components():
    return [Component(kind="callback", path="{package}.parts.Drawn", summary="D.")]
"""

PARTS = '''
import torch
from lightning.pytorch import Callback


class Drawn(Callback):
    """Draws when it is made, and does nothing."""

    def __init__(self) -> None:
        torch.rand(5)
'''


@pytest.fixture(autouse=True)
def project(tmp_path: Path, install: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the user's module; the plugins are installed elsewhere."""
    install_tried(install)
    install("drawn", HOOKS, files={"parts.py": PARTS})
    with project_in(tmp_path, monkeypatch) as work:
        yield work


def test_a_callback_that_draws_when_it_is_made_leaves_the_initial_values_as_they_are() -> None:
    write_config(trainer={"max_epochs": 1, "accelerator": "cpu"})
    compare_here("drawn", trials=0)
    found = {
        (result["cell"]["method"], result["cell"]["seed"]): result["measured"]["test_loss"]
        for result in stored()
        if result["cell"]["options"]["stage"] == "judge"
    }
    assert len(found) == 4
    for seed in (0, 1):
        assert found["Drawn", seed] == found["baseline", seed]
    assert found["baseline", 0] != found["baseline", 1]


def test_the_metric_is_of_the_end_of_training_where_the_last_validation_was_before(project: Path) -> None:
    validated_late = {"check_val_every_n_epoch": 2, "max_epochs": 3}
    for name, trainer in (("late", validated_late), ("always", {"max_epochs": 3})):
        write_config(f"{name}.yaml", trainer={**trainer, "accelerator": "cpu"})
        compare_here("tried.Steady lr=0.1", config=f"{name}.yaml", trials=0)
    late, always = (
        {
            (result["cell"]["method"], result["cell"]["seed"]): result["measured"]["val_loss"]
            for result in stored(name)
            if result["cell"]["options"]["stage"] == "judge"
        }
        for name in ("late", "always")
    )
    assert len(late) == 4
    assert late == pytest.approx(always)


def test_a_change_in_a_module_that_the_users_module_imports_is_another_comparison(project: Path) -> None:
    from leyden.comparison.arms import baseline, contenders, read_configs
    from leyden.manager import manager

    (project / "deeper.py").write_text("SIZE = 1\n")
    (project / "helper.py").write_text("def late():\n    from deeper import SIZE\n    return SIZE\n")
    (project / "unused.py").write_text("SIZE = 1\n")
    (project / "named.py").write_text("SIZE = 1\n")
    mine = project / "mine.py"
    mine.write_text("import helper\n" + mine.read_text())
    write_config(data={"class_path": "mine.Blobs", "init_args": {"made_by": ["named.make"]}})

    def now() -> str:
        base = baseline(read_configs(["mine.yaml"])[0], ["lr=0.01..1"])
        return identity([base, *contenders(base, [["tried.Steady"]], manager())], {})  # type: ignore[list-item]

    first = now()
    (project / "unused.py").write_text("SIZE = 2\n")
    assert now() == first
    for name in ("helper", "deeper", "named"):
        before = now()
        with (project / f"{name}.py").open("a") as file:
            file.write("# another line\n")
        assert now() != before, name


@pytest.mark.parametrize(("megabytes", "told"), [(0.5, False), (3.9, False), (4.1, True), (40.0, True)])
@pytest.mark.parametrize("kind", ["mark", "sampled"])
def test_too_little_memory_to_be_told_from_chance_is_not_measured(
    megabytes: float, told: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = megabytes * watch.MEGABYTE
    if kind == "mark":
        monkeypatch.setattr(watch, "_status", lambda name: 0.0)
        monkeypatch.setattr(watch.Path, "write_text", lambda *args: 1)
        memory: Any = watch._HighWaterMark(held)
    else:
        memory = watch._Sampled(0.0)
        memory._stop.set()
        memory._thread.join()
        memory._base, memory._highest = 0.0, held
    assert memory.peak() == held if told else math.isnan(memory.peak())


def test_the_command_in_an_arms_configuration_is_quoted() -> None:
    write_config("it's mine.yaml", trainer={"max_epochs": 1, "accelerator": "cpu"})
    compare_here("tried.Quiet", config="it's mine.yaml", trials=0)
    heading = report("it's mine", "Quiet.yaml").splitlines()[0]
    assert heading.endswith("""leyden fit --config 'leyden-reports/compare/it'"'"'s mine/Quiet.yaml'""")


@pytest.mark.parametrize("key", ["model", "data", "optimizer", "lr_scheduler"])
def test_a_part_that_names_no_class_is_one_line(key: str) -> None:
    write_config(**{key: {"init_args": {"width": 3}}})
    with pytest.raises(UsageError, match=rf"^--config mine.yaml: '{key}:' names no class; it needs a class_"):
        compare_here("tried.Quiet")
