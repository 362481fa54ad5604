"""A comparison works in projects that have never heard of Leyden, and treats every arm alike.

The fits run in this process, without tracking; `test_compare_processes` has workers, store and signals.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compare_testbed import (
    arm_config,
    compare_here,
    install_tried,
    project_in,
    report,
    run_cells_here,
    stored,
    write_config,
)
from leyden.comparison import running
from leyden.comparison.fits import TUNING_SEED
from leyden.errors import LeydenError, UsageError

LINE = {"class_path": "mine.Blobs", "init_args": {"classes": 0}}
"""Data whose targets are a linear function of the inputs."""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, install: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the user's module; the plugins are installed elsewhere."""
    install_tried(install)
    with project_in(tmp_path, monkeypatch) as work:
        yield work


def test_a_classifier_is_compared_tuned_judged_and_reported() -> None:
    write_config()
    status, output = compare_here("tried.Steady", trials=5, seeds=3)
    assert status == 0, output
    assert "Steady is better than the baseline." in output
    verdicts = json.loads(report(file="verdicts.json"))
    assert (verdicts["plugin"], verdicts["claim"], verdicts["scale"]) == ("compare", "mine", "")
    assert [verdict["kind"] for verdict in verdicts["verdicts"]] == ["better"]
    assert verdicts["verdicts"][0]["pairs"] == 3
    table = report()
    assert re.search(r"\| baseline \| lr=[\d.e-]+ · best of 5 \| \d", table)
    assert re.search(r"\| Steady \| lr=[\d.e-]+ · best of 5 \| \d", table)
    assert "| Difference to baseline [95 %] | Training time [95 %] | Peak memory [95 %] |" in table
    assert "judged by test loss" in table
    page = report(file="report.html")
    assert "Claimed in" not in page
    assert "The paper says" not in page
    assert page.count("<img") == 3
    assert {path.stem for path in Path("leyden-reports/compare/mine").glob("*.png")} == {
        "final",
        "by-step",
        "by-time",
    }


def test_every_arm_gets_the_same_trials_and_the_same_seeds_and_no_seed_does_both() -> None:
    write_config()
    compare_here("tried.Steady", "tried.Restless", trials=5, seeds=2)
    seeds: dict[tuple[str, str], list[int]] = {}
    for result in stored():
        cell = result["cell"]
        seeds.setdefault((cell["method"], cell["options"]["stage"]), []).append(cell["seed"])
    for arm in ("baseline", "Steady", "Restless"):
        assert seeds[arm, "tune"] == [TUNING_SEED] * 5
        assert sorted(seeds[arm, "judge"]) == [0, 1]


def test_the_setting_with_the_best_validation_metric_is_judged_and_in_the_arms_configuration() -> None:
    write_config()
    compare_here("tried.Steady", trials=5, seeds=1)
    for arm, key in (("baseline", "lr"), ("Steady", "lr")):
        trials = {
            result["cell"]["setting"][key]: result["measured"]["val_loss"]
            for result in stored()
            if result["cell"]["method"] == arm and result["cell"]["options"]["stage"] == "tune"
        }
        best = min(trials, key=trials.__getitem__)
        judged = {
            result["cell"]["setting"][key]
            for result in stored()
            if result["cell"]["method"] == arm and result["cell"]["options"]["stage"] == "judge"
        }
        assert len(trials) == 5
        assert judged == {best}
        assert arm_config(arm)["optimizer"]["init_args"]["lr"] == best


def test_the_configuration_that_is_left_of_an_arm_trains() -> None:
    from leyden.lightning import run_config

    write_config()
    compare_here("tried.Bend scale=0.5", trials=0)
    path = "leyden-reports/compare/mine/Bend.yaml"
    assert "test_loss" in run_config(path, {"trainer.max_epochs": 1})
    assert f"leyden fit --config {path}" in Path(path).read_text()


@pytest.mark.parametrize("tried", ["tried.Restless lr=0.1", "tried.Bend"])
def test_the_batches_do_not_depend_on_what_a_method_draws(tried: str) -> None:
    diary = {"class_path": "mine.Diary"}
    write_config(trainer={"max_epochs": 3, "accelerator": "cpu", "callbacks": [diary]})
    compare_here(tried, trials=0)
    by_seed: dict[str, list[str]] = {}
    for path in Path.cwd().glob("diary-*"):
        by_seed.setdefault(path.name.rpartition("-")[2], []).append(path.read_text())
    judged = [by_seed[seed] for seed in ("0", "1")]
    for base, other in judged:
        assert base == other
        assert len(base.split()) == 12
        assert base.split()[:4] != base.split()[4:8]  # it is shuffled, and anew in each epoch
    assert judged[0] != judged[1]


def test_a_scheduler_in_the_configuration_is_kept_under_an_optimizer_and_replaced_by_a_scheduler() -> None:
    scheduler = {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1}}
    write_config(
        model={"class_path": "mine.Regression"},
        data=LINE,
        lr_scheduler=scheduler,
    )
    status, output = compare_here("tried.Steady", "tried.Halving", trials=2)
    assert status == 0, output
    assert arm_config("Steady")["lr_scheduler"] == scheduler
    assert arm_config("Halving")["lr_scheduler"]["class_path"].endswith("Halving")
    assert arm_config("Halving")["optimizer"]["class_path"] == "torch.optim.SGD"
    assert "There is no test for this metric" in report()
    assert "judged by mse" in report()


def test_an_arm_that_keeps_the_baselines_optimizer_tunes_its_rate_as_well() -> None:
    write_config()
    compare_here("tried.Quiet", "tried.Steady", trials=1, seeds=1)
    settings = {result["cell"]["method"]: set(result["cell"]["setting"]) for result in stored()}
    tuned = {
        result["cell"]["method"]: set(result["cell"]["setting"])
        for result in stored()
        if result["cell"]["options"]["stage"] == "tune"
    }
    assert settings.keys() == {"baseline", "Quiet", "Steady"}
    assert tuned == {"baseline": {"lr"}, "Quiet": {"lr"}, "Steady": {"lr"}}
    assert arm_config("Quiet")["trainer"]["callbacks"][0]["class_path"].endswith("Quiet")


def test_two_optimizers_by_hand_take_no_optimizer_of_a_plugin_and_the_rest_is_compared() -> None:
    write_config(
        model={"class_path": "mine.Adversaries", "init_args": {"lr": 0.05}},
        data={"class_path": "mine.Blobs"},
        optimizer=None,
    )
    status, output = compare_here("tried.Steady", "tried.Quiet", trials=1)
    assert status == 0, output
    assert "Steady does not apply: the model trains with 2 optimizers" in output
    assert "Steady does not apply" in report()
    assert "| Steady |" not in report()
    assert "model.init_args.lr from 0.005 to 0.5" in report()
    with pytest.raises(UsageError, match=r"nothing to compare: Steady does not apply: .* 2 optimizers"):
        compare_here("tried.Steady")


def test_by_hand_no_optimizer_that_needs_the_loss_and_no_scheduler_applies() -> None:
    write_config(model={"class_path": "mine.ByHand"}, data=LINE)
    status, output = compare_here("tried.Needy", "tried.Halving", "tried.Steady", trials=0)
    assert status == 0, output
    assert "Needy does not apply: Needy needs the loss of each step" in output
    assert "Halving does not apply: under manual optimization" in output
    assert "| Steady |" in report()


def test_a_model_with_an_optimizer_of_its_own_is_given_another_and_what_is_lost_is_told() -> None:
    write_config(
        model={"class_path": "mine.Independent"},
        data=LINE,
        optimizer=None,
    )
    status, output = compare_here("tried.Steady", "tried.Halving", trials=2)
    assert status == 0, output
    assert "Steady runs without the scheduler" in report()
    assert "Steady gets all parameters in one group; the 2 groups that the model's own" in report()
    assert "Halving does not apply: a scheduler of the configuration needs 'optimizer:'" in output
    assert arm_config("Steady")["optimizer"]["class_path"].endswith("Steady")
    assert "optimizer" not in arm_config("baseline")
    assert set(stored_settings("Steady")) == {"lr"}


def stored_settings(arm: str) -> dict[str, Any]:
    """The setting of one trial of an arm."""
    return next(
        result["cell"]["setting"]
        for result in stored()
        if result["cell"]["method"] == arm and result["cell"]["options"]["stage"] == "tune"
    )


def test_of_several_metrics_without_val_loss_one_must_be_named() -> None:
    write_config(
        model={"class_path": "mine.TwoMetrics"},
        data=LINE,
    )
    with pytest.raises(UsageError, match="choose one by --metric: mse, quality"):
        compare_here("tried.Steady")
    with pytest.raises(UsageError, match="unknown metric in --metric 'qualty'; did you mean 'quality'"):
        compare_here("tried.Steady", metric="qualty")
    with pytest.raises(UsageError, match=r"larger quality is better cannot be told.*--mode"):
        compare_here("tried.Steady", metric="quality")
    status, output = compare_here("tried.Steady", metric="quality", mode="max", trials=0)
    assert status == 0, output


def test_where_a_loss_is_tried_a_metric_must_be_named() -> None:
    write_config()
    with pytest.raises(UsageError, match=r"^Graze changes the loss, so val_loss is another quantity"):
        compare_here("tried.Bend", "tried.Graze", trials=0)
    status, output = compare_here("tried.Graze", metric="val_acc", mode="max", trials=0)
    assert status == 0, output


def test_a_model_without_validation_is_refused_in_words() -> None:
    write_config(model={"class_path": "mine.Blind"})
    with pytest.raises(UsageError, match="logs nothing in validation"):
        compare_here("tried.Steady")


def test_early_stopping_acts_and_checkpoints_are_left_out() -> None:
    stopping = {
        "class_path": "lightning.pytorch.callbacks.EarlyStopping",
        "init_args": {"monitor": "val_loss", "patience": 0, "min_delta": 1e9},
    }
    keeping = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"monitor": "val_loss"},
    }
    watching = {"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"}
    callbacks = [stopping, keeping, watching]
    write_config(trainer={"max_epochs": 20, "accelerator": "cpu", "callbacks": callbacks})
    status, output = compare_here("tried.Steady", trials=0)
    assert status == 0, output
    assert "ModelCheckpoint is left out" in report()
    curves = [
        result["measured"]["curve"] for result in stored() if result["cell"]["options"]["stage"] == "judge"
    ]
    assert [len(curve) for curve in curves] == [2] * 4
    assert list(Path.cwd().rglob("*.ckpt")) == []
    assert arm_config("Steady")["trainer"]["callbacks"] == callbacks


def test_settings_that_diverge_lose_and_are_told() -> None:
    write_config()
    status, output = compare_here("tried.Explosive limit=0.2", trials=5, seeds=1)
    assert status == 0, output
    assert re.search(r"Explosive: \d of 5 trials failed and lost; .*loss nan", report())
    assert arm_config("Explosive")["optimizer"]["init_args"]["lr"] <= 0.2


def test_an_arm_of_which_no_setting_trains_is_undecided_and_the_status_is_1() -> None:
    write_config()
    status, output = compare_here("tried.Explosive limit=0.0", "tried.Steady", trials=3)
    assert status == 1
    assert "Explosive: no trial finished, so there is nothing to judge." in report()
    outcomes = {v["statement"]: v["outcome"] for v in json.loads(report(file="verdicts.json"))["verdicts"]}
    assert outcomes["Explosive"] == "undecided"
    assert "no setting of Explosive finished" in output
    assert not Path("leyden-reports/compare/mine/Explosive.yaml").exists()
    assert "| Steady | " in report()


def test_a_best_setting_at_the_end_of_its_range_is_flagged() -> None:
    write_config()
    compare_here("tried.Steady lr=0.0001..0.0002", trials=4, tune=["lr=0.05..0.5"])
    assert "edge: lr=0.0002 is at the upper end of its range (0.0001 to 0.0002)" in report()


def test_what_is_fixed_is_not_tuned_and_what_is_given_a_range_is_tuned_there() -> None:
    write_config()
    compare_here("tried.Steady lr=0.05 momentum=0.5..0.6", trials=3, tune=["model.init_args.width=4,6"])
    settings = [
        result["cell"]["setting"]
        for result in stored()
        if result["cell"]["method"] == "Steady" and result["cell"]["options"]["stage"] == "tune"
    ]
    assert all(setting.keys() == {"momentum", "model.init_args.width"} for setting in settings)
    assert all(0.5 <= setting["momentum"] <= 0.6 for setting in settings)
    assert 0.5 in [setting["momentum"] for setting in settings]  # the nearest to the arm's own 0
    assert {setting["model.init_args.width"] for setting in settings} <= {4, 6}
    assert arm_config("Steady")["optimizer"]["init_args"]["lr"] == 0.05


def test_a_component_with_two_values_is_two_arms() -> None:
    write_config()
    compare_here("tried.Steady momentum=0.5", "tried.Steady momentum=0.9", trials=0)
    assert "| Steady momentum=0.5 |" in report()
    assert "| Steady momentum=0.9 |" in report()
    assert arm_config("Steady-momentum-0.9")["optimizer"]["init_args"]["momentum"] == 0.9


def test_an_arm_that_declares_nothing_is_tuned_around_its_rate_as_the_baseline_is() -> None:
    write_config()
    compare_here("tried.Restless", trials=3)
    assert (
        "No --tune was given, so the baseline is tuned over optimizer.init_args.lr from 0.01 to 1."
        in report()
    )
    assert "Restless declares nothing to tune, so Restless is tuned over optimizer.init_args.lr" in report()


def test_a_configuration_without_a_learning_rate_runs_as_it_is() -> None:
    write_config(optimizer={"class_path": "torch.optim.Rprop", "init_args": {"lr": 0.01}})
    write_config("plain.yaml", optimizer={"class_path": "torch.optim.Adadelta", "init_args": {"lr": None}})
    base = running_baseline("plain.yaml")
    assert base.space == {}
    assert "The baseline runs as it is" in base.notes[0]


def running_baseline(config: str) -> Any:
    from leyden.comparison.arms import baseline, read_configs

    document, _ = read_configs([config])
    return baseline(document, [])


def test_later_configurations_win_and_shipped_ones_are_found_by_name() -> None:
    from leyden.comparison.arms import read_configs

    Path("more.yaml").write_text("trainer: {max_epochs: 1}\nckpt_path: null\n")
    document, files = read_configs(["sps_safe/digits", "more.yaml"])
    assert document["trainer"]["max_epochs"] == 1
    assert document["optimizer"]["class_path"] == "leyden_sps_safe.SPSSafe"
    assert "ckpt_path" not in document
    assert [path.name for path in files] == ["digits.yaml", "more.yaml"]
    Path("warm.yaml").write_text("ckpt_path: last.ckpt\n")
    with pytest.raises(UsageError, match=r"ckpt_path 'last.ckpt': a comparison trains from the start"):
        read_configs(["sps_safe/digits", "warm.yaml"])


def test_a_dry_run_says_what_would_run_and_leaves_nothing() -> None:
    write_config()
    status, output = compare_here("tried.Steady", "tried.Miss", trials=8, seeds=5, dry_run=True)
    assert status == 0
    assert "tunes lr: 0.01 to 1, logarithmic" in output
    assert "13 fits" in output
    assert "26 fits, 1 at a time: about " in output
    assert "Judged by test loss (test_loss), smaller is better" in output
    assert "Miss does not apply: a loss has no natural place" in output
    assert not Path("leyden-reports").exists()
    assert not Path(".leyden/results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tired.Steady"], "unknown plugin 'tired'; did you mean 'tried'"),
        (["tried"], "the plugin has several components; name one: tried.Steady, tried.Restless"),
        (["tried.Stedy"], "unknown component 'tried.Stedy'; did you mean 'tried.Steady'"),
        (["tried.Steady momentm=1"], "has no argument 'momentm'; did you mean 'momentum'"),
        (["tried.Steady momentum"], "expected key=value, key=low..high or key=a,b,c"),
        (["tried.Steady lr=1..0.1"], "low of a range must be below high"),
        (["tried.Steady lr=a..b"], "an end of a range must be a number, got 'a'"),
        (["tried.Steady lr=1 lr=2"], "'lr' is given twice"),
        (["tried.Steady", "tried.Steady"], "--try tried.Steady is given twice"),
        (["tried.Steady lr=1", "tried.Steady lr=1.0"], "--try tried.Steady lr=1.0 is given twice"),
        (["tried.Miss"], "nothing to compare: Miss does not apply: a loss has no natural place"),
        (["tried.Steady lr=-1"], "lr must be positive, got -1"),
    ],
)
def test_a_wrong_try_is_one_line_that_names_it(arguments: list[str], message: str) -> None:
    write_config()
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        compare_here(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ("lr=0.1", "--tune lr=0.1: expected key=low..high or key=a,b,c, got the one value 0.1"),
        ("optimizer.init_args.momentm=0..1", "has no 'optimizer.init_args.momentm'; did you mean 'momentum'"),
        ("modl.init_args.width=1..2", "the configuration has no 'modl'; did you mean 'model'"),
        ("trainer.max_epoch=1..2", "the configuration has no 'trainer.max_epoch'; did you mean"),
        ("model.init_args.width", "expected key=value, key=low..high"),
    ],
)
def test_a_wrong_key_to_tune_is_one_line_with_the_nearest_name(tune: str, message: str) -> None:
    write_config()
    with pytest.raises(UsageError, match=re.escape(message)):
        compare_here("tried.Steady", tune=[tune])


@pytest.mark.parametrize("changes", [{"devices": 2}, {"devices": -1}, {"devices": [0, 1]}, {"num_nodes": 2}])
def test_more_than_one_device_a_fit_is_refused_in_words(changes: dict[str, Any]) -> None:
    write_config(trainer={"max_epochs": 1, "accelerator": "cpu", **changes})
    with pytest.raises(
        UsageError, match=f"trainer.{next(iter(changes))}: .* each fit of a comparison has one"
    ):
        compare_here("tried.Steady")


def test_a_wrong_configuration_is_told_with_its_file_and_line() -> None:
    write_config(model={"class_path": "mine.Classifier", "init_args": {"widht": 3}})
    with pytest.raises(UsageError, match=r"mine.yaml:\d+: .* no such argument; did you mean 'width'"):
        compare_here("tried.Steady")


def test_a_baseline_that_cannot_be_trained_is_one_line() -> None:
    write_config(data=LINE)
    with pytest.raises(LeydenError, match="baseline cannot be trained: ") as caught:
        compare_here("tried.Steady")
    assert "\n" not in str(caught.value)


def test_a_plugin_with_one_component_needs_no_name() -> None:
    write_config()
    status, output = compare_here("single size=0.2", trials=0)
    assert status == 0, output
    assert arm_config("Stepper")["optimizer"]["init_args"]["size"] == 0.2


def test_a_resumed_comparison_runs_only_what_is_missing_and_its_table_is_that_of_an_uninterrupted_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_config()
    compare_here("tried.Steady", trials=5, seeds=2)
    whole, fits = comparable(report()), len(stored())
    shutil.rmtree("leyden-reports")
    shutil.rmtree(".leyden/results")

    measured: list[Any] = []

    def stop_after_eight(claim: str, cells: Any, *, on_done: Callable[..., None], **options: Any) -> None:
        def counted(result: Any) -> None:
            measured.append(result)
            on_done(result)
            if len(measured) == 8:
                raise KeyboardInterrupt

        run_cells_here(claim, cells, on_done=counted, **options)

    monkeypatch.setattr(running, "run_cells", stop_after_eight)
    status, output = compare_here("tried.Steady", trials=5, seeds=2)
    assert status == 130
    assert "leyden compare --config mine.yaml --try tried.Steady --trials 5 --seeds 2 --resume" in output
    assert not Path("leyden-reports").exists()
    status, output = compare_here("tried.Steady", trials=5, seeds=2, resume=True)
    assert status == 0, output
    assert len(measured) == fits
    assert comparable(report()) == whole


def comparable(table: str) -> str:
    """A table without what depends on the clock and on the memory that happens to be free."""
    table = re.sub(r" · time .*", "", table)
    return re.sub(r"\| [\N{MULTIPLICATION SIGN}][^|]*\| [^|]*\|(?=\n)", "|", table)


def test_another_budget_or_another_model_is_another_comparison(project: Path) -> None:
    from leyden.comparison.arms import baseline, contenders, read_configs
    from leyden.comparison.identity import identity
    from leyden.manager import manager

    write_config()

    def now(tune: str = "lr=0.01..1", **budget: Any) -> str:
        base = baseline(read_configs(["mine.yaml"])[0], [tune])
        return identity([base, *contenders(base, [["tried.Steady"]], manager())], budget)  # type: ignore[list-item]

    first = now(trials=1)
    assert now(trials=1) == first
    assert now(trials=2) != first
    assert now("lr=0.01..2", trials=1) != first
    with (project / "mine.py").open("a") as file:
        file.write("# another line\n")
    assert now(trials=1) != first
