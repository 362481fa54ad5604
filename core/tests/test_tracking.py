"""The spool and what the helper process makes of it, here in one process."""

from __future__ import annotations

import copy
import json
import math
import multiprocessing
import os
import pickle
import re
import shutil
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from empty_store import empty_database
from leyden.errors import TrackingError, UsageError
from leyden.settings import TrackingSettings
from leyden.shipper import Shipper, clean_key, cut, recover
from leyden.spool import (
    ProcessIdentity,
    RunWriter,
    SessionFile,
    mark_closed,
    masked,
    open_run,
    read_chunk,
    status_of,
)
from leyden.store import Held, MlflowStore, reason
from leyden.tracking import active_run, resolve_store, use_run


@pytest.fixture
def store(tmp_path: Path) -> MlflowStore:
    shutil.copy(empty_database(), tmp_path / "leyden.db")
    store = MlflowStore(f"sqlite:///{tmp_path}/leyden.db", (tmp_path / "leyden-artifacts").as_uri())
    store.connect()
    return store


@pytest.fixture
def session(tmp_path: Path) -> Path:
    session = tmp_path / ".leyden" / "tracking" / "session"
    SessionFile(f"sqlite:///{tmp_path}/leyden.db", None, ProcessIdentity.current()).save(session)
    return session


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def shipper(session: Path, store: MlflowStore, said: list[str]) -> Shipper:
    return Shipper(session, store, said.append)


def run_of(store: MlflowStore, writer: RunWriter) -> Any:
    run_id = store.find(writer.key)
    assert run_id is not None
    return store.client.get_run(run_id)


def history(store: MlflowStore, writer: RunWriter, name: str) -> list[tuple[int, float]]:
    metrics = store.client.get_metric_history(run_of(store, writer).info.run_id, name)
    return sorted((metric.step, metric.value) for metric in metrics)


def artifacts(store: MlflowStore, writer: RunWriter, folder: str | None = None) -> set[str]:
    return {item.path for item in store.client.list_artifacts(run_of(store, writer).info.run_id, folder)}


def log_hundred(session: Path, pickled: bytes, offset: int) -> None:
    writer: RunWriter = pickle.loads(pickled)
    for step in range(offset, offset + 100):
        writer.metrics({"loss": step, "padding": 0.123456789}, step=step)


# --- the spool


def test_a_record_is_on_disk_after_one_write(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_run(session, "run", experiment="e")
    writes: list[int] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda *args: writes.append(args[0]) or real(*args))
    writer.metrics({"loss": 1.0, "accuracy": 0.5}, step=3)
    monkeypatch.undo()
    assert len(writes) == 1
    (_, record) = read_chunk(session / f"{writer.key}.jsonl", 0).records
    assert (record["step"], record["values"]) == (3, {"loss": 1.0, "accuracy": 0.5})


def test_a_last_line_that_a_crash_cut_short_costs_only_itself(session: Path) -> None:
    writer = open_run(session, "run", experiment="e")
    path = session / f"{writer.key}.jsonl"
    for step in range(3):
        writer.metrics({"loss": step}, step=step)
    path.write_bytes(path.read_bytes()[:-10])
    reading = read_chunk(path, 0)
    assert [record.get("step") for record in reading.records] == [None, 0, 1]
    assert reading.torn == 0  # it may be on its way still
    assert read_chunk(path, 0, final=True).torn == 1


def test_a_line_cut_short_by_a_full_disk_does_not_spoil_the_next(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_run(session, "run", experiment="e")
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: real(descriptor, line[: len(line) // 2]))
    with pytest.raises(TrackingError, match="disk is full"):
        writer.metrics({"loss": 1.0}, step=1)
    monkeypatch.undo()
    writer.metrics({"loss": 2.0}, step=2)
    chunk = read_chunk(session / f"{writer.key}.jsonl", 0)
    assert [record.get("step") for record in chunk.records] == [None, 2]
    assert chunk.torn == 1


def test_reading_goes_on_where_the_last_chunk_ended(session: Path) -> None:
    writer = open_run(session, "run", experiment="e")
    for step in range(10):
        writer.metrics({"a": 0, "b": 0}, step=step)
    path, offset, steps = session / f"{writer.key}.jsonl", 0, []
    while (chunk := read_chunk(path, offset, values=6)).records:
        assert sum(len(record.get("values", ())) for record in chunk.records) <= 6
        steps += [record["step"] for record in chunk.records if record["kind"] == "metrics"]
        offset = chunk.end
    assert steps == list(range(10))


def test_copies_of_a_writer_write_to_the_same_run(session: Path) -> None:
    writer = open_run(session, "run", experiment="e")
    for twin in (copy.deepcopy(writer), pickle.loads(pickle.dumps(writer))):
        twin.metrics({"loss": 1.0})
        twin.end()
    records = read_chunk(session / f"{writer.key}.jsonl", 0).records
    assert [record["kind"] for record in records] == ["open", "metrics", "end", "metrics", "end"]


def test_processes_that_write_to_one_run_at_once_tear_no_line(session: Path) -> None:
    writer = open_run(session, "run", experiment="e")
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=log_hundred, args=(session, pickle.dumps(writer), 100 * index))
        for index in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    chunk = read_chunk(session / f"{writer.key}.jsonl", 0, values=10**6)
    assert chunk.torn == 0
    assert sorted(record["step"] for record in chunk.records[1:]) == list(range(400))


def test_what_is_not_a_number_is_named(session: Path) -> None:
    writer = open_run(session, "run", experiment="e")
    with pytest.raises(ValueError, match="metric 'loss': expected one number, got str 'high'"):
        writer.metrics({"loss": "high"})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/outside.txt", "a/../../outside.txt"])
def test_no_text_is_kept_outside_the_artifacts(session: Path, name: str) -> None:
    writer = open_run(session, "run", experiment="e")
    with pytest.raises(ValueError, match="not a place among a run's artifacts"):
        writer.text("x", name)


def test_a_missing_artifact_is_named(session: Path, tmp_path: Path) -> None:
    writer = open_run(session, "run", experiment="e")
    with pytest.raises(TrackingError, match=r"cannot keep the artifact .*missing\.png: No such file"):
        writer.artifact(tmp_path / "missing.png")


def test_logging_to_a_closed_session_says_so(session: Path) -> None:
    writer = pickle.loads(pickle.dumps(open_run(session, "run", experiment="e")))
    for path in sorted(session.rglob("*"), reverse=True):
        path.unlink()
    session.rmdir()
    with pytest.raises(TrackingError, match="its tracking session is closed"):
        writer.metrics({"loss": 1.0})


def test_the_status_tells_how_a_process_was_ended() -> None:
    class SIGTERMException(SystemExit):
        """What Lightning raises after SIGTERM."""

    for error in (KeyboardInterrupt(), SystemExit(143), SystemExit(130), SystemExit(129), SIGTERMException()):
        assert status_of(error) == "KILLED"
    for error in (ValueError("x"), SystemExit(1), SystemExit("words")):
        assert status_of(error) == "FAILED"
    for ended_well in (None, SystemExit(0), SystemExit()):
        assert status_of(ended_well) == "FINISHED"


def test_a_process_is_not_taken_for_another_of_its_number() -> None:
    me = ProcessIdentity.current()
    assert me.alive()
    assert not ProcessIdentity(me.pid, me.started - 100.0, me.host).alive()


def test_the_active_run_is_the_innermost(session: Path) -> None:
    outer, inner = (open_run(session, name, experiment="e") for name in ("outer", "inner"))
    assert active_run() is None
    with use_run(outer):
        with use_run(inner):
            assert active_run() is inner
        assert active_run() is outer
    assert active_run() is None


# --- which store


def test_the_variable_beats_the_settings_and_they_beat_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert resolve_store(directory=tmp_path).uri == f"sqlite:///{tmp_path}/leyden.db"
    (tmp_path / "plugins.toml").write_text('[tracking]\nuri = "sqlite:///runs/mine.db"\n')
    store = resolve_store(directory=tmp_path)
    assert store.uri == f"sqlite:///{tmp_path}/runs/mine.db"
    assert store.artifact_location == (tmp_path / "runs" / "leyden-artifacts").as_uri()
    assert resolve_store(TrackingSettings(uri="http://host:5000"), tmp_path).uri == "http://host:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://other")
    assert resolve_store(TrackingSettings(uri="http://host:5000"), tmp_path).uri == "https://other"
    assert resolve_store(directory=tmp_path).artifact_location is None


@pytest.mark.parametrize("uri", ["file:./mlruns", "mlruns", "/data/mlruns"])
def test_a_plain_folder_is_no_store(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UsageError, match=f"MLFLOW_TRACKING_URI '{uri}'.*sqlite:///leyden.db"):
        resolve_store(directory=tmp_path)


def test_a_misspelt_kind_of_store_is_told_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(
        UsageError, match=r"tracking.uri in plugins.toml 'sqlte:///x.db'.*did you mean 'sqlite'"
    ):
        resolve_store(TrackingSettings(uri="sqlte:///x.db"), tmp_path)
    dialect = TrackingSettings(uri="postgresql+psycopg://host/runs")
    assert resolve_store(dialect, tmp_path).uri == dialect.uri


def test_a_password_is_not_shown() -> None:
    assert masked("https://me:secret@host:5000/path") == "https://***@host:5000/path"


# --- shipping


def test_everything_that_is_logged_arrives(
    session: Path, store: MlflowStore, shipper: Shipper, tmp_path: Path
) -> None:
    folder = tmp_path / "reports" / "today"
    folder.mkdir(parents=True)
    (folder / "table.md").write_text("| a |")
    with open_run(session, "run", experiment="e", params={"seed": 1}, tags={"kind": "test"}) as writer:
        for step in range(700):
            writer.metrics({"loss": 1 / (step + 1), "accuracy": step}, step=step)
        writer.params({"lr": 0.1})
        writer.text("seed: 1\n", "config/resolved.yaml")
        writer.artifact(folder / "table.md")
        writer.artifact(folder, "reports")
    (folder / "table.md").unlink()
    shipper.finish("FINISHED")
    run = run_of(store, writer)
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params == {"seed": "1", "lr": "0.1"}
    assert run.data.tags["kind"] == "test"
    assert history(store, writer, "loss") == [(step, 1 / (step + 1)) for step in range(700)]
    assert artifacts(store, writer) == {"config", "table.md", "reports"}
    assert artifacts(store, writer, "reports/today") == {"reports/today/table.md"}
    assert run.info.artifact_uri.startswith((tmp_path / "leyden-artifacts").as_uri())
    assert not list((session / "files").rglob("*.md"))


def test_shipping_again_doubles_nothing(session: Path, store: MlflowStore, said: list[str]) -> None:
    with open_run(session, "run", experiment="e", params={"seed": 1}) as writer:
        for step in range(50):
            writer.metrics({"loss": step}, step=step)
    Shipper(session, store, said.append).finish("FINISHED")
    progress = session / f"{writer.key}.json"
    progress.write_text(json.dumps({**json.loads(progress.read_text()), "offset": 0}))
    Shipper(session, store, said.append).finish("FINISHED")
    assert history(store, writer, "loss") == [(step, step) for step in range(50)]
    assert said == []


def test_a_run_created_before_a_crash_is_found_again(
    session: Path, store: MlflowStore, said: list[str]
) -> None:
    with open_run(session, "run", experiment="e") as writer:
        writer.metrics({"loss": 1.0})
    Shipper(session, store, said.append).finish("FINISHED")
    # As if the process had died between the creation and the note of it.
    (session / f"{writer.key}.json").write_text(json.dumps({"attempted": True}))
    Shipper(session, store, said.append).finish("FINISHED")
    experiment = store.experiment("e")
    assert len(store.client.search_runs([experiment])) == 1


def test_a_crash_between_the_creation_of_a_run_and_the_note_of_it_doubles_nothing(
    session: Path, store: MlflowStore, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = store.client.create_run

    def die_after(*args: Any, **kwargs: Any) -> None:
        create(*args, **kwargs)
        raise KeyboardInterrupt

    with open_run(session, "run", experiment="e") as writer:
        writer.metrics({"loss": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(store.client, "create_run", die_after)
        with pytest.raises(KeyboardInterrupt):
            Shipper(session, store, said.append).finish("FINISHED")
    Shipper(session, store, said.append).finish("FINISHED")
    assert len(store.client.search_runs([store.experiment("e")])) == 1
    assert history(store, writer, "loss") == [(0, 1.0)]


def test_everything_is_shipped_at_once_where_nobody_ships_later(
    session: Path, store: MlflowStore, shipper: Shipper
) -> None:
    with open_run(session, "run", experiment="e") as writer:
        for step in range(2500):
            writer.metrics({"loss": step}, step=step)
    shipper.ship(everything=True)
    assert len(history(store, writer, "loss")) == 2500


def test_a_child_gets_its_parent_whatever_ships_first(
    session: Path, store: MlflowStore, shipper: Shipper, tmp_path: Path, said: list[str]
) -> None:
    parent = open_run(session, "parent", experiment="e")
    child = open_run(session, "child", experiment="e", parent=parent.key)
    for writer in (child, parent):
        writer.end()
    opened = session / f"{parent.key}.jsonl"  # as on a machine whose clock is behind
    opened.write_text(re.sub(r'"time":\d+', f'"time":{10**13}', opened.read_text()))
    shipper.finish("FINISHED")
    identity = run_of(store, parent).info.run_id
    assert run_of(store, child).data.tags["mlflow.parentRunId"] == identity
    later = tmp_path / ".leyden" / "tracking" / "later"
    SessionFile(store.uri, None, ProcessIdentity.current()).save(later)
    resumed = open_run(later, "resumed", experiment="e", parent=parent.key)
    Shipper(later, store, said.append).finish("FINISHED")
    assert run_of(store, resumed).data.tags["mlflow.parentRunId"] == identity


def test_a_run_without_an_end_gets_the_one_that_is_true(
    session: Path, store: MlflowStore, shipper: Shipper
) -> None:
    mine = open_run(session, "mine", experiment="e")
    workers = open_run(session, "worker's", experiment="e")
    other = session / f"{workers.key}.jsonl"
    other.write_text(other.read_text().replace(f'"pid":{os.getpid()}', '"pid":1'))
    failed = open_run(session, "failed", experiment="e")
    failed.end("FAILED")
    shipper.finish("FINISHED", owner=ProcessIdentity.current())
    assert run_of(store, mine).info.status == "FINISHED"
    assert run_of(store, workers).info.status == "KILLED"
    assert run_of(store, failed).info.status == "FAILED"


def test_a_run_whose_process_is_gone_is_ended_as_killed_when_it_last_logged(
    session: Path, store: MlflowStore, shipper: Shipper
) -> None:
    gone = open_run(session, "gone", experiment="e")
    gone.metrics({"loss": 1.0})
    path = session / f"{gone.key}.jsonl"
    process = ProcessIdentity.current()
    path.write_text(path.read_text().replace(str(process.started), str(process.started - 1000.0)))
    alive = open_run(session, "alive", experiment="e")
    shipper.ship(everything=True)
    shipper.end_the_dead()
    info = run_of(store, gone).info
    assert info.status == "KILLED"
    assert info.end_time == read_chunk(path, 0).records[-1]["time"]
    assert run_of(store, alive).info.status == "RUNNING"


def test_values_that_are_no_ordinary_numbers_do_not_stop_a_run(
    session: Path, store: MlflowStore, shipper: Shipper
) -> None:
    writer = open_run(session, "run", experiment="e")
    writer.metrics({"nan": math.nan, "up": math.inf, "down": -math.inf, "fine": 1.0}, step=1)
    writer.metrics({"fine": 2.0}, step=2**70)
    shipper.finish("FINISHED")
    metrics = run_of(store, writer).data.metrics
    assert math.isnan(metrics["nan"])
    assert metrics["up"] == -metrics["down"] > 1e308
    assert history(store, writer, "fine") == [(1, 1.0), (2**63 - 1, 2.0)]


def test_names_that_mlflow_does_not_take_are_changed_not_lost(
    session: Path, store: MlflowStore, shipper: Shipper, said: list[str]
) -> None:
    names = [
        "loss (mean)",
        "../up",
        "/root",
        "a//b",
        "a/../b",
        "",
        ".",
        "x" * 300,
        "x" * 299 + "y",
        "ü=1",
        "a\0b",
    ]
    writer = open_run(session, "run", experiment="e")
    writer.metrics(dict.fromkeys(names, 1.0))
    writer.params(dict.fromkeys(names, "value"))
    writer.tags(dict.fromkeys(names, "value"))
    shipper.finish("FINISHED")
    data = run_of(store, writer).data
    assert said == []
    assert len({clean_key(name) for name in names}) == len(data.metrics) == len(data.params) >= len(names) - 2
    assert data.metrics.keys() == data.params.keys() <= data.tags.keys()


def test_long_values_are_cut_and_kept_whole_as_files(
    session: Path, store: MlflowStore, shipper: Shipper
) -> None:
    text, tag = "p" * 9000, "t" * 9000
    writer = open_run(session, "run", experiment="e", params={"long": text, "short": "s"})
    writer.tags({"tag": tag})
    shipper.finish("FINISHED")
    run = run_of(store, writer)
    assert run.data.params == {"long": cut(text, 6000), "short": "s"}
    assert len(run.data.tags["tag"]) == 8000
    for name, value in (("long", text), ("tag", tag)):
        path = store.client.download_artifacts(run.info.run_id, f"long/{name}.txt")
        assert Path(path).read_text() == value


def test_many_parameters_and_metrics_of_one_record_are_sent_in_parts(
    session: Path, store: MlflowStore, shipper: Shipper
) -> None:
    writer = open_run(session, "run", experiment="e", params={f"p{i}": i for i in range(250)})
    writer.metrics({f"m{i}": i for i in range(2500)})
    shipper.finish("FINISHED")
    data = run_of(store, writer).data
    assert data.params == {f"p{i}": str(i) for i in range(250)}
    assert data.metrics == {f"m{i}": i for i in range(2500)}


def test_a_parameter_that_changes_keeps_its_first_value_and_loses_none(
    session: Path, store: MlflowStore, said: list[str]
) -> None:
    writer = open_run(session, "run", experiment="e", params={"lr": 0.1})
    Shipper(session, store, said.append).ship(everything=True)
    writer.params({"lr": 0.2, "momentum": 0.9})
    Shipper(session, store, said.append).finish("FINISHED")
    data = run_of(store, writer).data
    assert data.params == {"lr": "0.1", "momentum": "0.9"}
    assert data.tags["param.lr"] == "0.2"
    assert said == []


def test_one_value_that_the_store_cannot_take_is_told_and_the_rest_arrives(
    session: Path,
    store: MlflowStore,
    shipper: Shipper,
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mlflow.exceptions import MlflowException

    writer = open_run(session, "run", experiment="e")
    for step in range(40):
        writer.metrics({"poison" if step == 17 else "loss": step}, step=step)
    real = store.client.log_batch

    def log_batch(run_id: str, **items: Any) -> None:
        if any(metric.key == "poison" for metric in items.get("metrics", ())):
            raise MlflowException("numeric field overflow")  # its code is INTERNAL_ERROR
        real(run_id, **items)

    monkeypatch.setattr(store.client, "log_batch", log_batch)
    shipper.finish("FINISHED")
    assert [step for step, _ in history(store, writer, "loss")] == [i for i in range(40) if i != 17]
    assert len(said) == 1
    assert said[0].startswith("run 'run': the store refused metric 'poison' (numeric field overflow)")
    (kept,) = (tmp_path / ".leyden" / "refused" / writer.key / "metrics.jsonl").read_text().splitlines()
    assert (json.loads(kept)["key"], json.loads(kept)["value"]) == ("poison", 17.0)


def test_a_store_that_breaks_down_gets_everything_later(
    session: Path, store: MlflowStore, shipper: Shipper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    writer = open_run(session, "run", experiment="e")
    shipper.ship()
    writer.metrics({"loss": 1.0}, step=1)
    writer.text("x", "x.txt")
    with monkeypatch.context() as patch:
        for name in ("log_batch", "set_tag", "log_artifact", "set_terminated"):
            patch.setattr(store.client, name, broken)
        with pytest.raises(Held, match="Connection refused"):
            shipper.finish("FINISHED")
        writer.metrics({"loss": 2.0}, step=2)
    shipper.finish("FINISHED")
    assert history(store, writer, "loss") == [(1, 1.0), (2, 2.0)]
    assert artifacts(store, writer) == {"x.txt"}
    assert shipper.unshipped() == []


def test_values_do_not_wait_for_artifacts_that_cannot_be_stored(
    session: Path,
    store: MlflowStore,
    shipper: Shipper,
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def out_of_reach(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", "/mlruns")

    monkeypatch.setattr(store.client, "log_artifact", out_of_reach)
    writer = open_run(session, "run", experiment="e")
    writer.text("figure", "figure.txt")
    writer.metrics({"loss": 1.0})
    writer.end()
    shipper.finish("FINISHED")
    assert run_of(store, writer).info.status == "FINISHED"
    assert history(store, writer, "loss") == [(0, 1.0)]
    (kept,) = (tmp_path / ".leyden" / "refused").rglob("figure.txt")
    assert kept.read_text() == "figure"
    assert len(said) == 1
    assert str(tmp_path / ".leyden" / "refused") in said[0]


def test_an_artifact_that_finds_the_disk_full_waits_for_room(
    session: Path, store: MlflowStore, shipper: Shipper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    writer = open_run(session, "run", experiment="e")
    writer.text("figure", "figure.txt")
    with monkeypatch.context() as patch:
        patch.setattr(store.client, "log_artifact", full)
        with pytest.raises(Held, match="the disk is full"):
            shipper.finish("FINISHED")
    assert not (tmp_path / ".leyden" / "refused").exists()
    shipper.finish("FINISHED")
    assert artifacts(store, writer) == {"figure.txt"}


def test_a_run_that_logs_much_does_not_keep_the_others_waiting(
    session: Path, store: MlflowStore, shipper: Shipper
) -> None:
    busy, modest = (open_run(session, name, experiment="e") for name in ("busy", "modest"))
    for step in range(5000):
        busy.metrics({"loss": step}, step=step)
    modest.metrics({"loss": 1.0})
    calls = iter(range(8))
    shipper.ship(everything=True, stop=lambda: next(calls) >= 6)
    assert history(store, modest, "loss") == [(0, 1.0)]
    assert 0 < len(history(store, busy, "loss")) < 5000


def test_a_run_that_the_user_deleted_is_put_aside_and_the_others_go_on(
    session: Path, store: MlflowStore, shipper: Shipper, said: list[str], tmp_path: Path
) -> None:
    deleted, other = (open_run(session, name, experiment="e") for name in ("deleted", "other"))
    shipper.ship()
    store.client.delete_run(deleted.run_id())
    for writer in (deleted, other):
        writer.metrics({"loss": 1.0})
    shipper.finish("FINISHED")
    assert history(store, other, "loss") == [(0, 1.0)]
    assert (tmp_path / ".leyden" / "refused" / deleted.key / f"{deleted.key}.jsonl").exists()
    assert len(said) == 1
    assert "run 'deleted' was not shipped" in said[0]


def test_a_deleted_experiment_holds_its_runs_and_no_others(
    session: Path, store: MlflowStore, shipper: Shipper
) -> None:
    store.client.delete_experiment(store.client.create_experiment("gone"))
    held, other = (open_run(session, name, experiment=name) for name in ("gone", "other"))
    with pytest.raises(Held, match="experiment 'gone' was deleted; run `mlflow experiments restore"):
        shipper.finish("FINISHED")
    assert run_of(store, other).info.status == "FINISHED"
    experiment = store.client.get_experiment_by_name("gone")
    assert experiment is not None
    store.client.restore_experiment(experiment.experiment_id)
    shipper.finish("FINISHED")
    assert run_of(store, held).info.status == "FINISHED"


def test_what_does_not_begin_like_a_run_is_kept(
    session: Path, store: MlflowStore, shipper: Shipper, said: list[str], tmp_path: Path
) -> None:
    (session / "strange.jsonl").write_text("not a record\n")
    shipper.finish("FINISHED")
    assert (tmp_path / ".leyden" / "refused" / "strange" / "strange.jsonl").read_text() == "not a record\n"
    assert len(said) == 1


# --- recovery


def leave_session(folder: Path, store: MlflowStore, owner: ProcessIdentity) -> tuple[Path, RunWriter]:
    """A session with a run of a process that is gone."""
    session = folder / ".leyden" / "tracking" / "left"
    SessionFile(store.uri, store.artifact_location, owner).save(session)
    writer = open_run(session, "left", experiment="e")
    writer.metrics({"loss": 1.0})
    spool = session / f"{writer.key}.jsonl"
    me = json.dumps(asdict(ProcessIdentity.current()), separators=(",", ":"))
    assert me in spool.read_text()
    spool.write_text(spool.read_text().replace(me, json.dumps(asdict(owner))))
    return session, writer


def test_a_session_of_a_process_that_is_gone_is_shipped_and_removed(
    session: Path, store: MlflowStore, said: list[str], tmp_path: Path
) -> None:
    me = ProcessIdentity.current()
    left, writer = leave_session(tmp_path, store, replace(me, started=me.started - 1000.0))
    recover(session, store, said.append)
    assert run_of(store, writer).info.status == "KILLED"
    assert history(store, writer, "loss") == [(0, 1.0)]
    assert session.exists()
    assert not left.exists()


def test_a_session_whose_worker_still_writes_is_left_alone(
    session: Path, store: MlflowStore, said: list[str], tmp_path: Path
) -> None:
    me = ProcessIdentity.current()
    gone = replace(me, started=me.started - 1000.0)
    left, _ = leave_session(tmp_path, store, gone)
    worker = open_run(left, "worker's", experiment="e")
    recover(session, store, said.append)
    assert left.exists()
    spool = left / f"{worker.key}.jsonl"
    spool.write_text(spool.read_text().replace(str(me.started), str(gone.started)))
    recover(session, store, said.append)
    assert not left.exists()
    assert run_of(store, worker).info.status == "KILLED"


def test_a_session_on_another_host_is_recovered_only_when_its_heart_has_stopped(
    session: Path, store: MlflowStore, said: list[str], tmp_path: Path
) -> None:
    left, writer = leave_session(tmp_path, store, ProcessIdentity(1, 0.0, "elsewhere"))
    recover(session, store, said.append)
    assert left.exists()
    assert store.find(writer.key) is None
    os.utime(left / "session.json", (0, 0))
    recover(session, store, said.append)
    assert not left.exists()
    assert run_of(store, writer).info.status == "KILLED"


def test_a_session_that_was_closed_with_something_left_ends_as_it_was_closed(
    session: Path, store: MlflowStore, said: list[str], tmp_path: Path
) -> None:
    left, writer = leave_session(tmp_path, store, ProcessIdentity.current())
    recover(session, store, said.append)
    assert left.exists()  # its owner is this process, which is alive
    mark_closed(left, "FAILED")
    recover(session, store, said.append)
    assert run_of(store, writer).info.status == "FAILED"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"uri": 1}'])
def test_a_session_that_cannot_be_read_keeps_no_new_one_from_starting(
    content: str, session: Path, store: MlflowStore, said: list[str], tmp_path: Path
) -> None:
    strange = tmp_path / ".leyden" / "tracking" / "strange"
    strange.mkdir()
    (strange / "session.json").write_text(content)
    recover(session, store, said.append)
    assert strange.exists()
    assert len(said) == 1
    assert str(strange) in said[0]


def test_the_reason_of_a_failure_is_told_in_a_few_words() -> None:
    from mlflow.exceptions import MlflowException

    pool = "HTTPConnectionPool(host='h', port=1): Max retries exceeded with url: /api (Caused by "
    for error, words in [
        (
            MlflowException(pool + "NewConnectionError('<x>: [Errno 111] Connection refused'))"),
            "Connection refused",
        ),
        (MlflowException(pool + "ConnectTimeoutError(<x>, 'Connection to h timed out.'))"), "timed out"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (
            MlflowException("(sqlite3.OperationalError) database or disk is full\n[SQL: INSERT]"),
            "the disk is full",
        ),
        (MlflowException("(x.Error) first line\nsecond line"), "first line"),
        (OSError(28, "No space left on device"), "the disk is full"),
        (ValueError(), "ValueError"),
    ]:
        assert reason(error) == words


# --- files that are no store


def spoil_with_text(path: Path, template: Path) -> None:
    path.write_text("name,value\n" * 100)


def spoil_with_tables_of_another_program(path: Path, template: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE songs (title TEXT)")
    database.close()


def spoil_in_the_middle(path: Path, template: Path) -> None:
    content = bytearray(template.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 64] = os.urandom(64)
    path.write_bytes(content)


def spoil_with_a_folder(path: Path, template: Path) -> None:
    path.mkdir()


def spoil_with_another_version(path: Path, template: Path) -> None:
    path.write_bytes(template.read_bytes())
    database = sqlite3.connect(path)
    database.execute("UPDATE alembic_version SET version_num = '90e64c465722'")
    database.commit()
    database.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_with_text, "is not an SQLite database"),
        (spoil_with_tables_of_another_program, "is a database of another program"),
        (spoil_in_the_middle, "damaged"),
        (spoil_with_a_folder, "is a folder"),
        (spoil_with_another_version, "another MLflow wrote it"),
    ],
)
def test_a_file_that_is_no_store_is_refused_and_left_as_it_was(
    spoil: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "leyden.db"
    spoil(path, empty_database())
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(TrackingError, match=words) as caught:
        MlflowStore(f"sqlite:///{path}", None).connect()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    if before is not None and spoil is not spoil_with_another_version:
        assert path.read_bytes() == before


def test_a_path_with_odd_characters_is_a_store(tmp_path: Path, said: list[str]) -> None:
    folder = tmp_path / "my 100% runs ü+#1"
    folder.mkdir()
    resolved = resolve_store(TrackingSettings(), folder)
    store = MlflowStore(resolved.uri, resolved.artifact_location)
    store.connect()
    session = folder / ".leyden" / "tracking" / "session"
    SessionFile(resolved.uri, None, ProcessIdentity.current()).save(session)
    writer = open_run(session, "run", experiment="e")
    writer.text("x", "x.txt")
    Shipper(session, store, said.append).finish("FINISHED")
    assert artifacts(store, writer) == {"x.txt"}
    assert list((folder / "leyden-artifacts").rglob("x.txt"))
    assert said == []
