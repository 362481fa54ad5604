"""What people's configurations have besides a model: loggers, bars, checkpoints, odd keys, odd strategies."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from compare_testbed import compare_here, install_tried, project_in, report, stored, write_config
from leyden.claims import Arm, Cell, CellResult, Measured, Table
from leyden.comparison.arms import Contender
from leyden.comparison.document import ArmFile
from leyden.comparison.fits import Fits
from leyden.comparison.outcome import Question, claim_of
from leyden.configuration import load_config, merged
from leyden.errors import LeydenError, UsageError
from leyden.figures import series_figure
from leyden.lightning import fit_config
from leyden.report import Report, to_terminal
from leyden.spool import open_run
from leyden.tracking import use_run
from leyden_callbacks import keeps_figures
from lightning.pytorch import LightningModule
from rich.console import Console


@pytest.fixture(autouse=True)
def project(tmp_path: Path, install: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the user's module; the plugins are installed elsewhere."""
    install_tried(install)
    with project_in(tmp_path, monkeypatch) as work:
        yield work


def trained(**trainer: Any) -> dict[str, Any]:
    """A configuration's ``trainer:`` for a moment's training."""
    return {"max_epochs": 1, "accelerator": "cpu", **trainer}


def tracked_fit(stage: str) -> Measured:
    """What one fit of the baseline measured; its run is in the folder ``session``."""
    arm = ArmFile(document=load_config(Path("mine.yaml")), keys={}, files=("mine.yaml",)).store(Path("arms"))
    options = {"stage": stage, "document": arm, "metric": "val_loss", "test": "test_loss"}
    Path("session").mkdir()
    with use_run(open_run(Path("session"), "cell", experiment="e")):
        return Fits().run(Cell(method="baseline", seed=0, scale="", options=options))


def test_a_bar_and_a_checkpoint_by_another_name_are_left_out() -> None:
    callbacks = [{"class_path": "RichProgressBar"}, {"class_path": "mine.Keeper"}]
    write_config(trainer=trained(callbacks=callbacks))
    status, output = compare_here("tried.Steady", trials=0, seeds=1)
    assert status == 0, output
    assert "Keeper is left out: a comparison writes no checkpoints." in report()
    assert list(Path.cwd().rglob("*.ckpt")) == []


@pytest.mark.parametrize("callback", ["RichProgressBar", "mine.Keeper"])
def test_one_callback_without_a_list_is_seen_by_a_quiet_fit(callback: str) -> None:
    write_config(trainer=trained(callbacks={"class_path": callback}))
    fitted = fit_config("mine.yaml")
    assert callback.rpartition(".")[2] in [type(each).__name__ for each in fitted.trainer.callbacks]  # type: ignore[attr-defined]
    assert bool(list(Path.cwd().rglob("*.ckpt"))) == (callback == "mine.Keeper")


def test_a_model_finds_the_logger_that_it_was_written_for_and_its_run_is_logged_all_the_same() -> None:
    write_config(model={"class_path": "mine.Talkative"}, trainer=trained(logger=True))
    measured = tracked_fit("judge")
    assert math.isfinite(measured["test_loss"])  # type: ignore[arg-type]
    spool = b"".join(path.read_bytes() for path in Path("session").rglob("*") if path.is_file())
    assert b"val_loss" in spool
    assert b"class_path: mine.Talkative" in spool
    assert not Path("None").exists()


@pytest.mark.parametrize(("stage", "drawn"), [("tune", False), ("judge", True)])
def test_callbacks_draw_in_the_fits_that_judge_alone(
    stage: str, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        LightningModule, "on_train_start", lambda model: seen.append(keeps_figures(model.trainer))
    )
    write_config(trainer=trained())
    tracked_fit(stage)
    assert seen == [drawn]


def test_keys_that_are_numbers_or_have_dots_reach_the_model_and_are_tuned() -> None:
    weights = {0: 1.0, "net.0": 2}
    write_config(model={"class_path": "mine.Weighted", "init_args": {"weights": weights}}, trainer=trained())
    status, output = compare_here("tried.Steady", tune=["model.init_args.weights.0=0.5..0.9"])
    assert status == 0, output
    left = yaml.safe_load(report(file="baseline.yaml"))["model"]["init_args"]["weights"]
    assert left.keys() == weights.keys()
    assert 0.5 <= left[0] <= 0.9
    with pytest.raises(UsageError, match=r"has no 'model.init_args.weights.1'; there is '0', 'net.0'"):
        compare_here("tried.Steady", tune=["model.init_args.weights.1=0.5..0.9"])


def test_only_keys_of_the_first_level_are_dotted() -> None:
    base = {"a": {"x.y": 1, 0: 2}}
    assert merged(base, {"a": {"x.y": 3, 1: 4}, "b.c": 5}) == {"a": {"x.y": 3, 0: 2, 1: 4}, "b": {"c": 5}}


def test_what_is_compared_are_the_weights_at_the_end_though_nothing_was_trained_since_the_validation() -> (
    None
):
    write_config(trainer=trained(callbacks=[{"class_path": "mine.Zeroing"}]))
    compare_here("tried.Steady", trials=1, seeds=1)
    measured = [result["measured"] for result in stored() if result["cell"]["options"]["stage"] != "probe"]
    assert len(measured) == 4
    assert [each["val_loss"] for each in measured] == pytest.approx([math.log(3)] * 4)


def test_a_validation_at_the_end_is_not_repeated() -> None:
    write_config(trainer=trained(max_epochs=2))
    compare_here("tried.Steady", trials=0, seeds=1)
    curves = [result["measured"]["curve"] for result in stored() if "curve" in result["measured"]]
    assert [len(curve) for curve in curves] == [2, 2]


def test_what_goes_on_tells_how_much_was_measured_before(project: Path) -> None:
    write_config(trainer=trained())
    asked: dict[str, Any] = {"trials": 1, "seeds": 1}
    assert "measured by" not in compare_here("tried.Steady", "tried.Needy", **asked)[1]
    (failed,) = [path for path in Path(".leyden/results/compare/mine").rglob("*.json") if is_judged(path)][:1]
    failed.write_text(failed.read_text().replace('"done"', '"failed"'))
    again = compare_here("tried.Steady", "tried.Needy", resume=True, **asked)[1]
    assert "6 fits of 3 arms, 5 of them measured by this code and configuration before; 1 at a time" in again
    with (project / "mine.py").open("a") as file:
        file.write("LATER = True\n")
    anew = compare_here("tried.Steady", "tried.Needy", resume=True, **asked)[1]
    assert "6 fits of 3 arms, none of them measured by this code and configuration before" in anew


def is_judged(path: Path) -> bool:
    """Whether a stored result judges."""
    return bool(json.loads(path.read_text())["cell"]["options"]["stage"] == "judge")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "big"}, "--mode 'big': expected 'max' or 'min'"),
        ({"tune": ["lr=1..2", "lr=1..3"]}, "--tune lr=1..3: 'optimizer.init_args.lr' is given twice"),
        (
            {"tune": ["lr=1..2", "optimizer.init_args.lr=1..3"]},
            "--tune optimizer.init_args.lr=1..3: 'optimizer.init_args.lr' is given twice",
        ),
    ],
)
def test_what_the_command_line_has_wrong_is_told_before_anything_is_trained(
    arguments: dict[str, Any], message: str
) -> None:
    write_config()
    with pytest.raises(UsageError) as caught:
        compare_here("tried.Steady", **arguments)
    assert str(caught.value) == message
    assert not Path(".leyden").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"trainer": trained(max_epochs=0)},
            "^no batch is trained: look at the data, trainer.max_epochs and",
        ),
        ({"trainer": trained(limit_train_batches=0)}, "^no batch is trained: "),
        ({"optimizer": None}, "^Classifier has no optimizer: write `optimizer:` in the configuration or let"),
        (
            {"optimizer": {"class_path": "torch.optim.SDG"}},
            r"^mine.yaml:\d+: optimizer.class_path: cannot import 'torch.optim.SDG': .*did you mean 'SGD'",
        ),
    ],
)
def test_a_configuration_with_which_nothing_is_trained_is_one_line(
    changes: dict[str, Any], message: str
) -> None:
    write_config(**changes)
    with pytest.raises(UsageError, match=message):
        compare_here("tried.Steady")


def test_a_strategy_that_starts_processes_is_refused_in_words() -> None:
    write_config(trainer=trained(strategy="ddp_spawn"))
    with pytest.raises(UsageError, match=r"^trainer.strategy: ddp_spawn: it trains in a process of its own"):
        compare_here("tried.Steady")


def test_what_lightning_refuses_is_told_without_the_names_of_its_classes() -> None:
    write_config(data=None)
    with pytest.raises(LeydenError, match=r"^baseline cannot be trained: `train_dataloader` must be"):
        compare_here("tried.Steady")


def test_the_band_of_two_seeds_does_not_dwarf_the_curves() -> None:
    rows = [
        CellResult(
            cell=Cell(method="A", seed=seed, scale=""), status="done", measured={"y": [1.0 + seed, 0.5, 0.4]}
        )
        for seed in (0, 1)
    ]
    (ax,) = series_figure(Table(rows), "y", [Arm("A")]).axes
    low, high = ax.get_ylim()
    assert 0.2 < low < 0.4
    assert 2.0 < high < 2.2


def test_a_split_that_is_drawn_when_the_data_are_made_depends_on_the_seed_and_not_on_the_model() -> None:
    write_config(data={"class_path": "mine.SplitAtOnce"}, trainer=trained())
    compare_here("tried.Steady", tune=["model.init_args.width=4,5"], trials=2, seeds=1)
    widths = {result["cell"]["setting"].get("model.init_args.width") for result in stored()}
    assert widths >= {4, 5}
    splits = {tuple(line.split(maxsplit=1)) for line in Path("splits").read_text().splitlines()}
    assert len(splits) == len({seed for seed, _ in splits}) == 2


def test_a_narrow_terminal_cuts_no_word_off() -> None:
    cells = [Cell(method=name, seed=seed, scale="") for name in ("A", "B") for seed in (0, 1)]
    table = Table([CellResult(cell=cell, status="done", measured={"test_loss": 1.0}) for cell in cells])
    arms = [Contender(name=name, document={}, place="") for name in ("baseline", "A", "B")]
    claim = claim_of(Question(name="q", arms=arms, validation="val_loss", test="test_loss", mode="min"))
    output = io.StringIO()
    shown = Report(claim=claim, table=table, verdicts=[], plugin="compare", scale="")
    to_terminal(Console(file=output, width=24), shown)
    assert "…" not in output.getvalue()
    assert max(map(len, output.getvalue().splitlines())) <= 24
