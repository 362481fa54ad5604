"""What the fits of a comparison log: all where they judge, less where they tune."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from leyden.claims import Cell
from leyden.comparison.document import ArmFile
from leyden.comparison.fits import Fits
from leyden.tracking import open_run, use_run

ASKING = """
import json
from pathlib import Path
from leyden_callbacks import keeps_figures
from lightning.pytorch.callbacks import Callback


class Asking(Callback):
    def on_train_end(self, trainer, pl_module):
        Path("asked.json").write_text(json.dumps(keeps_figures(trainer)))
"""

DOCUMENT: dict[str, Any] = {
    "model": {
        "class_path": "leyden.tasks.Classification",
        "init_args": {
            "backbone": {"class_path": "leyden.tasks.mlp", "init_args": {"sizes": [64, 10]}},
            "num_classes": 10,
        },
    },
    "data": {"class_path": "leyden_datamodules.Digits", "init_args": {"batch_size": 250}},
    "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
    "trainer": {
        "max_epochs": 2,
        "accelerator": "cpu",
        "devices": 1,
        "log_every_n_steps": 1,
        "callbacks": [{"class_path": "asking.Asking"}],
    },
}


@pytest.fixture
def fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Any]:
    """Fit once in a stage with a seed: what was measured, the steps of what was logged, the answer."""
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    document = ArmFile(document=DOCUMENT, keys={}, files=()).store(Path("arms"))
    options = {"document": document, "metric": "val_accuracy", "test": "test_accuracy"}

    def fit(stage: str, seed: int) -> Any:
        spool = tmp_path / f"{stage}-{seed}"
        spool.mkdir()
        run = open_run(spool, "cell", experiment="e")
        with use_run(run):
            measured = Fits().run(Cell(method="baseline", seed=seed, options={**options, "stage": stage}))
        logged: dict[str, list[int]] = {}
        for line in filter(None, (spool / f"{run.key}.jsonl").read_text().splitlines()):
            record = json.loads(line)
            for name in record["values"] if record["kind"] == "metrics" else ():
                logged.setdefault(name, []).append(record["step"])
        return measured, logged, json.loads(Path("asked.json").read_text())

    return fit


def test_fits_that_judge_log_each_step_and_those_that_tune_each_epoch(
    fitted: Callable[[str, int], Any],
) -> None:
    _, judging, _ = fitted("judge", 0)
    _, tuning, _ = fitted("tune", 1_000_003)
    assert judging["train_loss_step"] == list(range(8))
    assert "train_loss_step" not in tuning
    assert judging["val_accuracy"] == tuning["val_accuracy"] == [3, 7]


def test_memory_is_measured_where_it_is_judged_and_pictures_are_drawn_for_the_first_seed(
    fitted: Callable[[str, int], Any],
) -> None:
    stages = [("judge", 0), ("judge", 1), ("tune", 1_000_003)]
    found = {stage: fitted(*stage) for stage in stages}
    assert [found[stage][2] for stage in stages] == [True, False, False]
    assert ["peak_megabytes" in found[stage][0] for stage in stages] == [True, True, False]
