"""The logger inside Lightning, and the model as an MLflow model."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from empty_store import empty_database
from leyden import tracking
from leyden.errors import TrackingError
from leyden.logger import LeydenLogger, flatten, log_model
from leyden.spool import RunWriter, read_chunk
from leyden.tracking import open_run, use_run
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Line(LightningModule):
    """Fits a line; logs five numbers a step."""

    def __init__(self, width: int = 3, optimizer: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(2, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self(batch[0]).square().mean()
        self.log_dict({f"m{i}": loss + i for i in range(5)})
        return loss

    def test_step(self, batch: list[Tensor], index: int) -> None:
        self.log("test_loss", self(batch[0]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Stopped(Line):
    """Raises in its third step."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        if index == 2:
            raise self.error
        return super().training_step(batch, index)


def loader() -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.ones(40, 2)), batch_size=4)


def trainer(logger: LeydenLogger, **options: Any) -> Trainer:
    return Trainer(
        logger=logger,
        max_epochs=2,
        log_every_n_steps=1,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def spooled(tmp_path: Path) -> RunWriter:
    """A run in a session that no helper process serves."""
    session = tmp_path / "session"
    session.mkdir()
    return open_run(session, "cell", experiment="claim")


@pytest.fixture
def session(directory: Path) -> Iterator[None]:
    """Lets loggers open the process's session on a store in the directory, and closes it."""
    shutil.copy(empty_database(), directory / "leyden.db")
    yield
    if tracking._process_session is not None:
        tracking._process_session.close()


def only_run(directory: Path) -> tuple[Any, Any]:
    """The only run in the directory's store, and a client."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{directory}/leyden.db")
    (run,) = client.search_runs([item.experiment_id for item in client.search_experiments()])
    return run, client


def records(run: RunWriter, kind: str) -> list[Any]:
    chunk = read_chunk(run.session / f"{run.key}.jsonl", 0, values=10**9)
    return [record for record in chunk.records if record["kind"] == kind]


def test_a_trainer_without_an_active_run_logs_to_one_of_its_own(session: None, directory: Path) -> None:
    logger = LeydenLogger(experiment="mine", run_name="first", tags={"why": "test"})
    model = Line(optimizer={"lr": 0.1, "betas": [0.9, 0.99]})
    fitting = trainer(logger)
    fitting.fit(model, loader())
    fitting.test(model, loader(), verbose=False)
    twin = pickle.loads(pickle.dumps(logger))
    twin.log_metrics({"from_a_copy": torch.tensor(1.5)}, step=3)
    log_model(logger.experiment, model, torch.ones(2, 2))
    assert fitting.checkpoint_callback is not None
    checkpoint = Path(fitting.checkpoint_callback.best_model_path)  # type: ignore[attr-defined]
    assert checkpoint.parent == Path("leyden-runs", "mine", str(logger.version), "checkpoints")
    assert tracking._process_session is not None
    assert tracking._process_session.close()
    run, client = only_run(directory)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert client.get_experiment(run.info.experiment_id).name == "mine"
    assert run.data.tags["why"] == "test"
    assert run.data.params == {"width": "3", "optimizer.lr": "0.1", "optimizer.betas": "[0.9, 0.99]"}
    for index in range(5):
        history = client.get_metric_history(run.info.run_id, f"m{index}")
        assert sorted(value.step for value in history) == list(range(20))
    assert {"test_loss", "from_a_copy"} <= run.data.metrics.keys()

    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{directory}/leyden.db")
    served = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model")
    x = torch.randn(5, 2)
    assert torch.allclose(torch.as_tensor(served.predict(x.numpy())), model(x))
    assert served.metadata.signature.inputs.is_tensor_spec()
    files = Path(client.download_artifacts(run.info.run_id, "model"))
    assert f"torch=={torch.__version__.split('+')[0]}" in (files / "requirements.txt").read_text()


def test_a_trainer_inside_an_active_run_logs_to_it_and_does_not_end_it(spooled: RunWriter) -> None:
    with use_run(spooled):
        logger = LeydenLogger()
    trainer(logger, enable_checkpointing=False).fit(Line(), loader())
    assert logger.experiment is spooled
    assert (logger.name, logger.version) == ("claim", spooled.key[:12])
    assert [r["step"] for r in records(spooled, "metrics") if "m0" in r["values"]] == list(range(20))
    assert records(spooled, "end") == []


def test_a_copy_logs_to_the_same_run(spooled: RunWriter) -> None:
    with use_run(spooled):
        logger = LeydenLogger()
    for copied in (copy.deepcopy(logger), pickle.loads(pickle.dumps(logger)), copy.copy(logger)):
        copied.log_metrics({"loss": 1.0}, step=1)
    assert len(records(spooled, "metrics")) == 3


def test_a_copy_made_before_the_run_is_opened_shares_it(spooled: RunWriter) -> None:
    logger = LeydenLogger()
    copied = copy.deepcopy(logger)
    with use_run(spooled):
        assert logger.experiment is spooled
    assert copied.experiment is spooled


@pytest.mark.parametrize(
    ("error", "status"), [(ArithmeticError("loss is NaN"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_fit_that_stops_early_ends_the_run_as_what_stopped_it(
    error: BaseException, status: str, spooled: RunWriter
) -> None:
    logger = LeydenLogger()
    logger._handle.run, logger._handle.owned = spooled, True
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((ArithmeticError, SystemExit)):
            trainer(logger, enable_checkpointing=False).fit(Stopped(error), loader())
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [record["status"] for record in records(spooled, "end")] == [status]


def test_other_ranks_than_zero_open_nothing_and_log_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = LeydenLogger(experiment="e")
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.log_hyperparams({"lr": 0.1})
    logger.experiment.tags({"a": 1})
    logger.log_text("x", "x.txt")
    logger.finalize("success")
    pickle.dumps(logger)
    assert (logger.name, logger.version) == ("e", None)
    assert list(directory.iterdir()) == []


def test_metrics_may_be_tensors_of_any_kind(spooled: RunWriter) -> None:
    with use_run(spooled):
        logger = LeydenLogger()
    logger.log_metrics(
        {"a": torch.tensor([2.0], dtype=torch.bfloat16), "b": torch.tensor(3), "c": True}, step=7
    )
    logger.log_metrics({"later": 1})
    first, second = records(spooled, "metrics")
    assert first["values"] == {"a": 2.0, "b": 3.0, "c": 1.0}
    assert (first["step"], second["step"]) == (7, 7)
    with pytest.raises(ValueError, match="metric 'many': expected one number"):
        logger.log_metrics({"many": torch.ones(3)})


def test_what_lightning_notes_for_itself_is_no_parameter(spooled: RunWriter) -> None:
    with use_run(spooled):
        logger = LeydenLogger()
    logger.log_hyperparams({"lr": 0.1, "_instantiator": "lightning.pytorch.cli.instantiate_module"})
    (record,) = records(spooled, "params")
    assert record["values"] == {"lr": "0.1"}


def test_tensors_on_a_device_are_fetched_with_one_synchronisation(spooled: RunWriter) -> None:
    fetched: list[str] = []

    class OnDevice(Tensor):
        """A tensor that claims to lie on a GPU and tells when it is fetched."""

        device = torch.device("cuda:0")  # type: ignore[assignment]

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(function, "__name__", "") in ("item", "tolist", "__float__", "cpu"):
                fetched.append(function.__name__)
            return super().__torch_function__(function, types, args, kwargs or {})

    with use_run(spooled):
        logger = LeydenLogger()
    logger.log_metrics({f"m{i}": torch.tensor(float(i)).as_subclass(OnDevice) for i in range(5)}, step=1)
    (record,) = records(spooled, "metrics")
    assert record["values"] == {f"m{i}": float(i) for i in range(5)}
    assert fetched == ["tolist"]


def test_hyper_parameters_are_flattened_to_dotted_names() -> None:
    nested = Namespace(model=Namespace(width=3, layers=[1, 2]), data={"path": Path("x"), "none": None})
    assert flatten(nested) == {
        "model.width": 3,
        "model.layers": "[1, 2]",
        "data.path": "x",
        "data.none": "None",
    }


def test_pictures_are_kept_as_artifacts(spooled: RunWriter) -> None:
    from matplotlib.figure import Figure

    with use_run(spooled):
        logger = LeydenLogger()
    figure = Figure()
    figure.add_subplot().plot([0, 1])
    logger.log_figure("curve", figure)
    logger.log_image("digit", [torch.rand(8, 8), torch.rand(3, 8, 8), torch.rand(8, 8, 1).numpy()], step=2)
    kept = [Path(record["path"]) for record in records(spooled, "artifact")]
    names = ["curve.png", "digit_0_step2.png", "digit_1_step2.png", "digit_2_step2.png"]
    assert [path.name for path in kept] == names
    assert all((spooled.session / path).read_bytes().startswith(b"\x89PNG") for path in kept)
    assert {record["folder"] for record in records(spooled, "artifact")} == {"figures"}


def test_a_logger_without_figures_keeps_none(spooled: RunWriter) -> None:
    from matplotlib.figure import Figure

    with use_run(spooled):
        logger = LeydenLogger(figures=False)
    logger.log_figure("curve", Figure())
    logger.log_image("digit", [torch.rand(8, 8)])
    assert records(spooled, "artifact") == []


def test_a_model_that_cannot_run_on_its_example_is_said_in_one_line(spooled: RunWriter) -> None:
    with pytest.raises(TrackingError, match="the model cannot be saved: mat1 and mat2") as caught:
        log_model(spooled, nn.Linear(2, 2), torch.ones(2, 3))
    assert "\n" not in str(caught.value)
    assert records(spooled, "artifact") == []


@pytest.mark.slow
def test_a_script_that_is_terminated_in_training_leaves_a_killed_run(directory: Path) -> None:
    shutil.copy(empty_database(), directory / "leyden.db")
    program = """
import time, torch
from lightning.pytorch import LightningModule, Trainer
from leyden.logger import LeydenLogger

class Slow(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, index):
        time.sleep(0.01)
        print(f"step {index}", flush=True)
        self.log("loss", 1.0)
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

trainer = Trainer(logger=LeydenLogger(run_name="slow"), max_epochs=1, log_every_n_steps=1, accelerator="cpu",
                  enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
trainer.fit(Slow(), torch.utils.data.DataLoader(torch.ones(100_000, 2)))
"""
    environment = {**os.environ, "LEYDEN_CALLBACKS": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline() != "step 20\n":
            assert process.poll() is None
        process.terminate()
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    run, client = only_run(directory)
    assert run.info.status == "KILLED"
    assert len(client.get_metric_history(run.info.run_id, "loss")) >= 20
