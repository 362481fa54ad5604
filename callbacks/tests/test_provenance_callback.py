from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from leyden.logger import LeydenLogger
from leyden.settings import TrackingSettings
from leyden.spool import RunWriter
from leyden.tracking import Session, resolve_store, use_run
from leyden_callbacks import GradientNorm, Provenance
from leyden_callbacks.gradient_norm import for_tracked_runs
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger
from loss_feed_testbed import LinearLoss, loader, plain, rows, trainer


class Kept(RunWriter):
    """A run that keeps what is written to it in memory."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), uuid.uuid4().hex, "run", "experiment")
        self.tagged: list[dict[str, object]] = []
        self.numbers: list[tuple[int, dict[str, Any]]] = []

    def tags(self, values: Mapping[str, object]) -> None:
        self.tagged.append(dict(values))

    def metrics(self, values: Mapping[str, Any], step: int = 0) -> None:
        self.numbers.append((step, dict(values)))

    def params(self, values: Mapping[str, object]) -> None: ...


class Data(pl.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.rows = rows(4)

    def train_dataloader(self) -> Any:
        return loader(self.rows)

    def test_dataloader(self) -> Any:
        return loader(self.rows)

    def fingerprint(self) -> str:
        return f"{float(self.rows.sum()):.6f}"


class Trained(LinearLoss):
    def __init__(self) -> None:
        super().__init__(plain)

    def test_step(self, batch: Any, batch_idx: int) -> None: ...


def fit(callbacks: list[pl.Callback], data: Any = None, **options: Any) -> pl.Trainer:
    run = trainer(callbacks, **options)
    run.fit(Trained(), datamodule=data or Data())
    return run


def test_a_run_is_told_versions_commit_seed_and_the_data_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "31")
    with use_run(Kept()) as run:
        fit([Provenance()], logger=LeydenLogger())
    (tags,) = run.tagged
    assert tags["leyden.torch"] == torch.__version__
    assert tags["leyden.lightning"] == pl.__version__
    assert tags["leyden.leyden-callbacks"]
    assert tags["leyden.seed"] == "31"
    assert tags["leyden.data_fingerprint"] == f"{float(rows(4).sum()):.6f}"
    assert all(name.startswith("leyden.") and isinstance(value, str) for name, value in tags.items())


def test_a_run_is_told_once_by_copies_stages_and_trainers_together() -> None:
    callbacks = [Provenance(), Provenance()]
    with use_run(Kept()) as first:
        run = fit(callbacks, logger=LeydenLogger())
        run.test(Trained(), datamodule=Data(), verbose=False)
        fit(callbacks, logger=LeydenLogger())
    with use_run(Kept()) as second:
        trainer(callbacks, logger=LeydenLogger()).test(Trained(), datamodule=Data(), verbose=False)
    assert [len(one.tagged) for one in (first, second)] == [1, 1]


def test_only_rank_zero_writes() -> None:
    with use_run(Kept()) as run:
        elsewhere: Any = SimpleNamespace(is_global_zero=False, loggers=[LeydenLogger()], datamodule=None)
        Provenance().setup(elsewhere, Trained(), "fit")
        assert not run.tagged
        elsewhere.is_global_zero = True
        Provenance().setup(elsewhere, Trained(), "fit")
        assert run.tagged


def test_data_without_a_fingerprint_is_left_out() -> None:
    with use_run(Kept()) as run:
        run_trainer = trainer([Provenance()], logger=LeydenLogger())
        run_trainer.fit(Trained(), loader(rows(2)))
    assert "leyden.data_fingerprint" not in run.tagged[0]
    assert "leyden.python" in run.tagged[0]


def test_a_failure_is_a_warning_that_stops_nothing() -> None:
    class Broken(Data):
        def fingerprint(self) -> str:
            raise OSError("the disk is gone")

    with use_run(Kept()), pytest.warns(UserWarning, match="provenance.*the disk is gone"):
        run = fit([Provenance()], Broken(), logger=LeydenLogger())
    assert run.global_step == 4


def test_other_loggers_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> dict[str, str]:
        raise AssertionError("asked for nothing")

    monkeypatch.setattr("leyden_callbacks.provenance.provenance", never)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the provenance")
        for logger in (False, CSVLogger(tmp_path)):
            fit([Provenance()], logger=logger)


def test_the_contributed_gradient_norm_acts_in_tracked_runs() -> None:
    with use_run(Kept()) as run:
        fit([for_tracked_runs(), GradientNorm(every=3)], logger=LeydenLogger())
    assert [step for step, values in run.numbers if "gradient_norm" in values] == [0]
    value = next(values["gradient_norm"] for _, values in run.numbers if "gradient_norm" in values)
    assert value == pytest.approx(float(rows(4)[0].norm()))


@pytest.mark.slow
def test_tags_arrive_in_mlflow_through_either_logger(tmp_path: Path) -> None:
    store = resolve_store(TrackingSettings(uri="sqlite:///store.db"), tmp_path)
    with (
        Session.open(store) as session,
        session.run("ours", experiment="provenance") as run,
        use_run(run),
    ):
        fit([Provenance()], logger=LeydenLogger())
    theirs = MLFlowLogger("provenance", run_name="theirs", tracking_uri=store.uri)
    fit([Provenance()], logger=theirs)

    from mlflow import MlflowClient

    client = MlflowClient(store.uri)
    experiment = client.get_experiment_by_name("provenance")
    found = {one.info.run_name: one.data.tags for one in client.search_runs([experiment.experiment_id])}
    assert set(found) == {"ours", "theirs"}
    for tags in found.values():
        assert tags["leyden.torch"] == torch.__version__
        assert tags["leyden.data_fingerprint"] == f"{float(rows(4).sum()):.6f}"
