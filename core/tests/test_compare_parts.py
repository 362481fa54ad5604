"""The parts of a comparison: what is tried, what is measured, which metric judges."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compare_testbed import install_tried
from compared_project import Blobs, Classifier
from leyden.claims import Arm, Cell, CellResult, Table
from leyden.comparison import arms, watch
from leyden.comparison.arms import Contender
from leyden.comparison.document import configured
from leyden.comparison.fits import prepared
from leyden.comparison.order import pin_data
from leyden.comparison.probing import Facts, choose_metric, choose_mode, expected_seconds, metric_of_test
from leyden.comparison.search import ROUND, Search
from leyden.comparison.space import FACTOR, at_edges, parse_pair, placed, value_at
from leyden.comparison.swap import swapped
from leyden.comparison.watch import MEGABYTE, Watch
from leyden.errors import UsageError
from leyden.formatting import TIMES
from leyden.intervals import Interval
from leyden.manager import manager
from leyden.model import Range, Space
from leyden.summary import ratio_text, summary_rows
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

# What the command line says.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=0.001..0.1", ("lr", None, Range(0.001, 0.1, log=True))),
        ("lr=1e-3..1e-1", ("lr", None, Range(0.001, 0.1, log=True))),
        ("decay=0.5..0.9", ("decay", None, Range(0.5, 0.9, log=False))),
        ("decay=0..0.9", ("decay", None, Range(0.0, 0.9, log=False))),
        ("width=4..64", ("width", None, Range(4, 64, log=True, integer=True))),
        ("shift=-1..1", ("shift", None, Range(-1, 1, log=False, integer=True))),
        ("nesterov=true,false", ("nesterov", None, (True, False))),
        ("M=0.5", ("M", 0.5, None)),
        ("M=auto", ("M", "auto", None)),
        ("betas=[0.9, 0.99]", ("betas", [0.9, 0.99], None)),
        ("lr=1e-3", ("lr", 0.001, None)),
    ],
)
def test_a_pair_is_a_value_a_range_or_a_choice(text: str, expected: tuple[Any, ...]) -> None:
    assert parse_pair("--try x", text) == expected


@pytest.mark.parametrize("text", ["lr", "=1", "lr=", "lr=1..", "lr=..1", "lr=a..1", "lr=1..1", "c=1,1"])
def test_a_pair_that_says_nothing_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(UsageError, match=r"--tune .*" + text.partition("=")[0]):
        parse_pair("--tune", text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 1, "high": 1}, "low of a range must be below high"),
        ({"low": 0, "high": 1}, "low of a logarithmic range must be above 0"),
        ({"low": math.nan, "high": 1}, "low of a range must be a finite number"),
        ({"low": 1, "high": math.inf}, "high of a range must be a finite number"),
        ({"low": 1, "high": 2.5, "integer": True}, "high of a range of whole numbers"),
        ({"low": True, "high": 2}, "low of a range must be a finite number"),
    ],
)
def test_a_range_that_makes_no_sense_names_its_end(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Range(**arguments)


def test_a_range_holds_the_numbers_between_its_ends() -> None:
    reach = Range(1, 8, integer=True)
    assert [value in reach for value in (1, 8, 2.0, 2.5, 0, 9, True, "2")] == [True] * 3 + [False] * 5


def test_a_value_is_found_in_the_configuration_and_else_among_the_defaults_of_its_class() -> None:
    document = {
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.3}},
        "trainer": {"callbacks": [{"class_path": "a.B", "init_args": {"every": 5}}]},
    }
    assert value_at(document, "optimizer.init_args.lr") == 0.3
    assert value_at(document, "optimizer.init_args.momentum") == 0
    assert value_at(document, "trainer.callbacks.0.init_args.every") == 5
    assert value_at({"optimizer": {"class_path": "torch.optim.SGD"}}, "optimizer.init_args.lr") == 0.001
    changed = configured(document, {"e": "trainer.callbacks.0.init_args.every"}, {"e": 9})
    assert changed["trainer"]["callbacks"][0]["init_args"]["every"] == 9
    assert value_at(document, "trainer.callbacks.0.init_args.every") == 5


# What tuning tries.


def contender(**space: Space) -> Contender:
    return Contender(
        name="A",
        document={},
        place="",
        space=space,
        keys={name: name for name in space},
        defaults={"x": 1.0} if "x" in space else {},
    )


def searched(
    loss: Callable[[dict[str, Any]], float | None], trials: int = 12, seed: int = 1, **space: Space
) -> list[list[dict[str, Any]]]:
    search = Search(contender(**space), trials=trials, mode="min", seed=seed)
    rounds = []
    while round_ := search.ask():
        rounds.append(round_)
        search.tell(round_, [loss(setting) for setting in round_])
    return rounds


def bowl(setting: dict[str, Any]) -> float:
    return abs(math.log10(setting["x"]) + 1.7)


def test_a_search_begins_with_the_arms_own_setting_and_goes_on_in_rounds_of_a_fixed_size() -> None:
    rounds = searched(bowl, trials=10, x=Range(0.001, 10))
    assert rounds[0][0] == {"x": 1.0}
    assert [len(round_) for round_ in rounds] == [ROUND, ROUND, 2]
    values = [setting["x"] for round_ in rounds for setting in round_]
    assert len(set(values)) == 10
    assert all(0.001 <= value <= 10 for value in values)


def test_the_first_round_is_spread_over_the_space() -> None:
    for seed in range(20):
        (first, *_) = searched(bowl, seed=seed, trials=4, x=Range(0.001, 1000))
        places = sorted((math.log10(setting["x"]) + 3) / 2 for setting in first[1:])
        # one in each third, but for the rounding to three digits
        assert all(third - 0.01 < place < third + 1.01 for third, place in enumerate(places))


def test_a_search_is_the_same_again_and_goes_where_it_was_good() -> None:
    once = searched(bowl, trials=40, x=Range(0.001, 10))
    assert once == searched(bowl, trials=40, x=Range(0.001, 10))
    later = [bowl(setting) for round_ in once[5:] for setting in round_]
    assert sorted(later)[len(later) // 2] < 0.6  # drawn evenly, the middle one would be at 1
    other = searched(lambda setting: -bowl(setting), trials=40, x=Range(0.001, 10))
    assert once[0] == other[0]
    assert once[1:] != other[1:]


def test_settings_that_fail_are_avoided_and_count() -> None:
    def fails_below_one(setting: dict[str, Any]) -> float | None:
        return None if setting["x"] < 1 else abs(math.log10(setting["x"]) - 2)

    rounds = searched(fails_below_one, trials=40, x=Range(0.001, 1000))
    assert sum(map(len, rounds)) == 40
    late = [setting["x"] for round_ in rounds[4:] for setting in round_]
    assert sum(value < 1 for value in late) < len(late) / 3


def test_of_a_small_space_every_setting_is_tried_once() -> None:
    rounds = searched(lambda setting: 0.0, trials=30, x=(1.0, 2.0), y=("a", "b", "c"))
    tried = [tuple(sorted(setting.items())) for round_ in rounds for setting in round_]
    assert len(tried) == len(set(tried))
    assert len([setting for setting in tried if len(setting) == 2]) == 6
    assert searched(lambda setting: 0.0, trials=30) == []


def test_only_a_value_at_the_end_of_its_range_is_at_an_edge() -> None:
    reach = {"x": Range(0.001, 1000), "y": Range(0, 10, log=False), "z": ("a", "b")}
    assert at_edges({"x": 1.0, "y": 5, "z": "a"}, reach) == ()
    assert at_edges({"x": 0.0011}, reach)[0].startswith("x=0.0011 is at the lower end of its range")
    assert "upper end" in at_edges({"y": 9.9}, reach)[0]
    assert at_edges({"x": 5000.0}, reach) == ()


def test_a_fraction_of_a_space_is_a_value_inside_it() -> None:
    for fraction in (0.0, 0.3333, 0.999999):
        for reach in (Range(0.00123456, 0.00123999), Range(1, 3, integer=True), Range(-5, 5, log=False)):
            assert placed(fraction, reach) in reach
    assert FACTOR > 1


# What the short fits tell.


def facts(**logged: float) -> Facts:
    return Facts.of({name.replace("__", ":"): value for name, value in logged.items()})


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("val_loss", "min"),
        ("val/MSE", "min"),
        ("valRmse", "min"),
        ("perplexity", "min"),
        ("val_accuracy", "max"),
        ("val_acc/dataloader_idx_0", "max"),
        ("MulticlassF1", "max"),
        ("val_auroc", "max"),
        ("r2", "max"),
    ],
)
def test_the_name_of_a_metric_tells_which_way_is_better(metric: str, mode: str) -> None:
    assert choose_mode(metric, None) == mode
    assert choose_mode(metric, "max") == "max"


@pytest.mark.parametrize("metric", ["quality", "accuracy_loss", "glossary", "race"])
def test_a_name_that_does_not_tell_asks_for_the_mode(metric: str) -> None:
    with pytest.raises(UsageError, match="give --mode max or min"):
        choose_mode(metric, None)
    with pytest.raises(UsageError, match="--mode 'mix': expected 'max' or 'min'"):
        choose_mode(metric, "mix")


def test_the_metric_is_val_loss_or_the_only_one() -> None:
    assert choose_metric(facts(val__a=1.0, val__val_loss=2.0), None) == "val_loss"
    assert choose_metric(facts(val__a=1.0), None) == "a"
    assert choose_metric(facts(val__a=1.0, val__b=2.0), "b") == "b"


def test_arms_with_different_losses_are_not_judged_by_val_loss() -> None:
    both = facts(val__a=1.0, val__val_loss=2.0)
    with pytest.raises(UsageError, match=r"Mine changes the loss, so val_loss is .* by --metric: a$"):
        choose_metric(both, None, ["Mine"])
    with pytest.raises(UsageError, match=r"--metric: log one that is no loss$"):
        choose_metric(facts(val__val_loss=2.0), None, ["Mine"])
    assert choose_metric(both, "a", ["Mine"]) == "a"
    assert choose_metric(both, "val_loss", ["Mine"]) == "val_loss"
    assert choose_metric(facts(val__a=1.0), None, ["Mine"]) == "a"


@pytest.mark.parametrize(
    ("logged", "metric", "expected"),
    [
        ({"test_loss"}, "val_loss", "test_loss"),
        ({"test/acc", "val/acc"}, "val/acc", "test/acc"),
        ({"mse"}, "mse", "mse"),
        ({"test_value"}, "value", ""),
        ({"test_interval"}, "interval", ""),
        ({"test_loss"}, "validation_loss", "test_loss"),
        (set(), "val_loss", ""),
    ],
)
def test_the_judging_metric_is_the_same_one_of_the_test(logged: set[str], metric: str, expected: str) -> None:
    found = Facts.of({f"test:{name}": 1.0 for name in logged})
    assert metric_of_test(found, metric) == expected


def test_the_expected_time_is_the_sum_of_the_fits_over_the_jobs() -> None:
    known = {"baseline": Facts.of({"fit_seconds": 2.0}), "A": Facts.of({"fit_seconds": 4.0})}
    assert expected_seconds({"baseline": 3, "A": 3}, known, 2) == 9.0
    unknown = {**known, "A": Facts.of({})}
    assert expected_seconds({"baseline": 3, "A": 3}, unknown, 2) == 6.0
    assert math.isnan(expected_seconds({"baseline": 3}, {"baseline": Facts.of({})}, 2))


def test_a_fit_writes_no_checkpoints_and_keeps_every_other_callback() -> None:
    stop = {"class_path": "EarlyStopping", "init_args": {"monitor": "x"}}
    document = {"trainer": {"callbacks": [{"class_path": "ModelCheckpoint"}, stop, "OnExceptionCheckpoint"]}}
    made = prepared(document, 7)
    assert made["seed_everything"] == 7
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False}
    assert made["trainer"] == {"callbacks": [stop], "devices": 1, **quiet}
    assert prepared({}, 7)["trainer"]["callbacks"] == []


# What is the same for every arm.


def test_what_a_component_draws_when_it_is_put_in_changes_nothing_that_is_drawn_later(
    install: Callable[..., str],
) -> None:
    install_tried(install)
    torch.manual_seed(1)
    alone = torch.rand(3)
    torch.manual_seed(1)
    model = swapped(Classifier(), "made_tried.parts.bend", {"scale": 2.0})
    built = torch.rand(3)
    torch.manual_seed(1)
    Classifier()
    assert torch.equal(built, torch.rand(3))
    assert not torch.equal(built, alone)
    assert type(model.net[1]).__name__ == "Bend"
    with pytest.raises(TypeError, match=r"torch.manual_seed must return a LightningModule, got Generator"):
        swapped(1, "torch.manual_seed")  # type: ignore[arg-type]


def test_data_follow_from_the_seed_alone_and_not_from_what_was_drawn_before() -> None:
    def rows(seed: int, drawn: int) -> list[list[int]]:
        torch.manual_seed(5)
        torch.rand(drawn)
        data = Blobs()
        pin_data(data, seed)
        data.setup("fit")
        found = [list(data.parts[0].indices)]
        for _ in range(2):
            loader = data.train_dataloader()
            found += [list(loader.sampler), list(loader.sampler)]
        return found

    first = rows(3, drawn=0)
    assert first == rows(3, drawn=9)
    assert first[0] != rows(4, drawn=0)[0]
    assert first[1] != first[2]  # a second epoch has another order


def test_a_pinned_data_module_survives_being_pickled() -> None:
    data = Blobs()
    pin_data(data, 3)
    twin = pickle.loads(pickle.dumps(data))
    for module in (data, twin):
        module.setup("fit")
    assert list(twin.train_dataloader().sampler) == list(data.train_dataloader().sampler)


# What is measured.


class Hungry(LightningModule):
    """Holds forty megabytes for a moment in its second step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.index = 0

    def training_step(self, batch, index):
        time.sleep(0.02)
        if index == 1:
            held = torch.ones(40 * MEGABYTE, dtype=torch.uint8)
            time.sleep(0.1)
            del held
        return self.layer(batch).square().mean()

    def validation_step(self, batch, index):
        self.log("x", float(self.current_epoch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("sampled", [False, True])
def test_the_peak_of_the_memory_and_the_time_of_the_training_are_measured(
    sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sampled:
        monkeypatch.setattr(watch, "_status", lambda name: int("no such thing"))
    before = torch.ones(200 * MEGABYTE, dtype=torch.uint8)
    del before  # what an earlier fit held does not count
    watched = Watch("x")
    loader = DataLoader(torch.ones(4, 1), 1)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[watched],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Hungry(), loader, loader)
    assert 38 <= watched.peak_megabytes < 80
    assert watched.steps == [4.0, 8.0]
    assert watched.values == [0.0, 1.0]
    assert 0.02 * 4 < watched.seconds[0] < watched.seconds[1] <= watched.training_seconds


def measured(method: str, seed: int, score: float, seconds: float) -> CellResult:
    values = {"score": score, "training_seconds": seconds}
    return CellResult(cell=Cell(method=method, seed=seed, scale=""), status="done", measured=values)


def test_the_ratio_to_the_baseline_is_a_geometric_mean_over_pairs() -> None:
    from leyden.comparison.outcome import Question, claim_of

    table = Table(
        [
            measured("baseline", 0, 1.0, 1.0),
            measured("baseline", 1, 1.5, 10.0),
            measured("A", 1, 2.0, 80.0),
            measured("A", 0, 2.0, 2.0),
        ]
    )
    arms = [Contender(name=name, document={}, place="") for name in ("baseline", "A")]
    claim = claim_of(Question(name="q", arms=arms, validation="v", test="score", mode="max"))
    base, other = summary_rows(claim, table)
    assert base.ratios == {}
    assert other.ratios["training_seconds"].mean == pytest.approx(4.0)
    assert math.isnan(other.ratios["peak_megabytes"].mean)
    assert ratio_text(other.ratios["peak_megabytes"]) == "not measured"
    assert ratio_text(Interval(1.0, 0.5, 2.0)) == f"{TIMES}1.00 [0.500, 2.00]"
    (verdict,) = claim.judge(table)
    assert verdict.estimate == pytest.approx(0.75)
    assert verdict.text == "A is better than the baseline."
    assert Arm("A") in [Arm(arm.method) for arm in table.arms()]


# What plugins declare.


def test_a_plugin_shows_what_is_tuned_and_a_wrong_declaration_is_named(
    install: Callable[..., str], tmp_path: Path
) -> None:
    from io import StringIO

    from leyden.listing import show_plugin
    from rich.console import Console

    install_tried(install)
    output = StringIO()
    show_plugin(Console(file=output, width=120), manager(), manager().plugin("tried"))
    assert "What leyden compare tunes" in output.getvalue()
    assert "lr: 0.01 to 1, logarithmic" in output.getvalue()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("search={'lr': [1, 2]}", "search of 'lr' must be a Range or a tuple"),
        ("search={'lr': ()}", "search of 'lr' must be a Range or a tuple"),
        ("swap='nowhere'", "expected dotted paths, got 'nowhere'"),
    ],
)
def test_a_wrong_declaration_is_named(install: Callable[..., str], declared: str, message: str) -> None:
    hooks = f"""
        from leyden.hookspecs import hookimpl
        from leyden.model import Component

        LEYDEN_API = 1

        @hookimpl
        def leyden_components():
            return [Component(kind="optimizer", path="made_odd.Stepper", summary="S.", {declared})]
    """
    install("odd", hooks)
    assert message in (manager().plugins["odd"].error or "")


def test_a_component_of_the_baselines_name_is_told_apart_from_the_baseline(
    install: Callable[..., str],
) -> None:
    hooks = (
        "from leyden.hookspecs import hookimpl\nfrom leyden.model import Component\nLEYDEN_API = 1\n"
        "@hookimpl\ndef leyden_components():\n"
        "    return [Component(kind='callback', path='{package}.parts.baseline', summary='B.')]\n"
    )
    parts = "from lightning.pytorch import Callback\nclass baseline(Callback): pass\n"
    install("twin", hooks, files={"parts.py": parts})
    base = arms.baseline({"model": {"class_path": "torch.nn.Identity"}}, [])
    (tried,) = arms.contenders(base, [["twin"]], manager())
    assert (base.name, tried.name) == ("baseline", "twin.baseline")
