"""The monitors: what they measure is right, when they look, what they leave behind, and the sweep."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import lightning
import pytest
import torch
from leyden.testing import RecordingLeydenLogger, RecordingLogger
from leyden_simplenorm import (
    ActivationScaleMonitor,
    CurvatureMonitor,
    SimpleGPTModule,
    SimpleNormLinear,
    Tolerance,
    draw_tolerance,
    lr_tolerance_sweep,
    to_simplenorm,
)
from leyden_simplenorm.activation_monitor import draw_scales, row_scales
from leyden_simplenorm.curvature_monitor import draw_curvatures, input_curvatures
from leyden_simplenorm.swap import with_simplenorm
from leyden_simplenorm.sweep import largest_spike
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Net(lightning.LightningModule):
    """Two maps and a loss that is no square."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = SimpleNormLinear(4, width)
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(batch_size: int = 8) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(48, 4, generator=generator), torch.randint(3, (48,), generator=generator)
    return DataLoader(TensorDataset(*rows), batch_size=batch_size)


def fit(module: lightning.LightningModule, *callbacks: Any, logger: Any = False, **arguments: Any) -> Any:
    trainer = lightning.Trainer(
        callbacks=list(callbacks), logger=logger, **{"max_steps": 6, **QUIET, **arguments}
    )
    trainer.fit(module, loader())
    return trainer


def test_scales_are_those_of_the_batch_before_the_step() -> None:
    net = Net()
    monitor, logger = ActivationScaleMonitor(2), RecordingLogger()
    expected = row_scales(net.first(next(iter(loader()))[0]))
    fit(net, monitor, logger=logger)
    assert monitor.steps == [0, 2, 4]
    assert list(monitor.scales) == ["first", "last"]
    assert monitor.scales["first"][0] == pytest.approx(expected.tolist())
    names = {f"act/{module}/rms_{what}" for module in ("first", "last") for what in ("min", "median", "max")}
    logged = {name for _, metrics in logger_rows(logger) for name in metrics if name.startswith("act/")}
    assert logged == names


def logger_rows(logger: Any) -> list[tuple[int, dict[str, float]]]:
    return list(logger.metrics)


def test_patterns_choose_and_a_whole_name_names_any_module() -> None:
    monitor = ActivationScaleMonitor(6, ["f*", "first.norm"])
    fit(Net(), monitor)
    assert set(monitor.scales) == {"first", "first.norm"}


def test_training_is_bit_for_bit_what_it_is_without_the_scale_monitor() -> None:
    with_it, without = Net(), Net()
    fit(with_it, ActivationScaleMonitor(1))
    fit(without)
    assert all(map(torch.equal, with_it.parameters(), without.parameters()))


@pytest.mark.parametrize("make", [ActivationScaleMonitor, CurvatureMonitor])
def test_of_accumulated_batches_the_first_is_watched(make: Callable[..., Any]) -> None:
    monitor, single = make(1), make(1)
    fit(Net(), monitor, max_steps=3, accumulate_grad_batches=2)
    assert monitor.steps == [0, 1, 2]
    fit(Net(), single, max_steps=1)
    values = [
        next(iter((one.scales if hasattr(one, "scales") else one.curvatures).values()))[0]
        for one in (monitor, single)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.parametrize("make", [ActivationScaleMonitor, CurvatureMonitor])
def test_a_monitor_goes_on_where_its_state_ended_and_can_be_copied(make: Callable[..., Any]) -> None:
    monitor = make(2)
    fit(Net(), monitor)
    other = make(2)
    other.load_state_dict(copy.deepcopy(monitor.state_dict()))
    assert other.state_dict() == monitor.state_dict()
    assert copy.deepcopy(monitor).steps == monitor.steps
    fit(Net(), monitor, max_steps=1)
    assert monitor.steps == [0]


@pytest.mark.parametrize("make", [ActivationScaleMonitor, CurvatureMonitor])
def test_an_exception_leaves_no_hook(make: Callable[..., Any]) -> None:
    class Failing(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            super().training_step(batch, batch_idx)
            raise RuntimeError("on purpose")

    net = Failing()
    with pytest.raises(RuntimeError, match=r"on purpose"):
        fit(net, make(1))
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in net.modules())


@pytest.mark.parametrize("make", [ActivationScaleMonitor, CurvatureMonitor])
def test_a_picture_is_kept_at_the_end(make: Callable[..., Any]) -> None:
    logger = RecordingLeydenLogger()
    fit(Net(), make(2), logger=logger)
    assert list(logger.figures) == ["activation_scales" if make is ActivationScaleMonitor else "curvature"]


def test_a_model_whose_modules_are_not_called_is_said_once() -> None:
    with pytest.warns(UserWarning, match=r"saw no output of a module that modules='nothing\*' names in Net"):
        fit(Net(), ActivationScaleMonitor(1, "nothing*"))


def test_curvature_is_the_dense_hessians_spectral_norm() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(SimpleNormLinear(64, 64), nn.Tanh(), nn.Linear(64, 5)).double()
    x = torch.randn(1, 64, dtype=torch.float64, requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(x), torch.tensor([2]))

    dense = torch.autograd.functional.hessian(loss, x).reshape(64, 64)
    expected = torch.linalg.matrix_norm(dense, 2).item()
    found = input_curvatures(loss(x), {"x": x}, iterations=50)["x"].item()
    assert found == pytest.approx(expected, rel=0.02)
    assert found <= expected * (1 + 1e-9)


def test_the_monitor_logs_the_curvature_of_the_modules_own_loss() -> None:
    net = Net().double()
    batch = next(iter(loader()))
    x = batch[0].double().requires_grad_()
    dense = torch.autograd.functional.hessian(lambda x: nn.functional.cross_entropy(net(x), batch[1]), x)
    expected = torch.linalg.matrix_norm(dense.reshape(32, 32), 2).item()
    found = []
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    scaled.autocast_context_manager = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    for arguments in ({}, {"plugins": [scaled]}):
        monitor, logger = CurvatureMonitor(5, 60, "first"), RecordingLogger()
        fit(Net(), monitor, logger=logger, **arguments)
        assert monitor.steps == [0, 5]
        found.append(monitor.curvatures["first"][0])
        assert {name for _, metrics in logger_rows(logger) for name in metrics if "curv" in name} == {
            "curv/first"
        }
    assert found == pytest.approx([expected, expected], rel=0.02)


def test_under_a_scaler_half_precision_keeps_small_curvatures() -> None:
    class Small(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return 1e-3 * super().training_step(batch, batch_idx)

    found = []
    half = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    for arguments in ({}, {"plugins": [half]}):
        monitor = CurvatureMonitor(1, 30, "*")
        fit(Small(), monitor, max_steps=1, **arguments)
        found.append([values[0] for values in monitor.curvatures.values()])
    assert found[1] == pytest.approx(found[0], rel=0.05)


def test_a_checkpointed_part_is_run_again_as_it_was() -> None:
    class Again(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False).tanh())

    found = []
    for net in (Net(), Again()):
        monitor = CurvatureMonitor(1, 5, "*")
        fit(net, monitor, max_steps=2)
        found.append(monitor.curvatures)
        assert not any(one._forward_pre_hooks for one in net.modules())
    assert {name: pytest.approx(values) for name, values in found[0].items()} == found[1]


def test_curvature_of_modules_that_are_not_there_is_said_once() -> None:
    with pytest.warns(UserWarning, match=r"saw no input of a module that layers='nothing' names in Net"):
        fit(Net(), CurvatureMonitor(1, layers="nothing"))


def test_a_model_without_maps_has_no_curvature() -> None:
    with pytest.warns(UserWarning, match=r"saw no input of a module that layers=None names in Own"):
        fit(Own(), CurvatureMonitor(1))


@pytest.mark.parametrize("make", [ActivationScaleMonitor, CurvatureMonitor])
def test_a_batch_that_the_module_skips_leaves_no_hook(make: Callable[..., Any]) -> None:
    class Skipping(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 2 else None

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            assert not any(one._forward_hooks or one._forward_pre_hooks for one in self.modules())

    net, monitor = Skipping(), make(1)
    trainer = lightning.Trainer(max_epochs=2, callbacks=[monitor], logger=False, **QUIET)
    trainer.fit(net, loader(), loader())
    assert monitor.steps == [0, 1, 2, 3]
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in net.modules())


def test_a_loss_that_is_linear_in_an_input_has_no_curvature_there() -> None:
    x = torch.randn(3, requires_grad=True)
    other = torch.randn(3, requires_grad=True)
    assert input_curvatures(2 * x.sum(), {"x": x, "other": other}) == {"x": torch.tensor(0.0)}


def test_attention_is_differentiated_twice_and_training_hardly_changes() -> None:
    rows = torch.randint(11, (16, 7), generator=torch.Generator().manual_seed(2))
    ends = []
    for callbacks in ([CurvatureMonitor(1, 2)], []):
        torch.manual_seed(0)
        model = SimpleGPTModule(11, 16, 1, 2, max_seq_len=6, lr=1e-2)
        trainer = lightning.Trainer(max_steps=3, callbacks=callbacks, logger=False, **QUIET)
        trainer.fit(model, DataLoader(TensorDataset(rows[:, :-1], rows[:, 1:]), batch_size=8))
        ends.append(list(model.parameters()))
        if callbacks:
            assert len(callbacks[0].curvatures) == 3
            assert all(value > 0 for values in callbacks[0].curvatures.values() for value in values)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-4)


def test_what_cannot_be_differentiated_twice_ends_the_watching_and_not_the_training() -> None:
    squash = torch.compile(torch.tanh, backend="aot_eager")

    class Stubborn(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(squash(self.first(x)))

    monitor = CurvatureMonitor(1, layers="first")
    with pytest.warns(UserWarning, match=r"CurvatureMonitor stops: the loss cannot be differentiated twice"):
        trainer = fit(Stubborn(), monitor)
    assert trainer.global_step == 6
    assert not monitor.curvatures


def test_ddp_with_a_static_graph_is_left_alone() -> None:
    class Static(lightning.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.strategy.model.static_graph = True  # as of torch's DistributedDataParallel

    monitor = CurvatureMonitor(1)
    with pytest.warns(UserWarning, match=r"CurvatureMonitor stops: DDP with static_graph=True"):
        trainer = fit(Net(), Static(), monitor)
    assert trainer.global_step == 6
    assert not monitor.curvatures


@pytest.mark.parametrize(
    ("make", "arguments", "named"),
    [
        (ActivationScaleMonitor, {"every_n_steps": 0}, "every_n_steps"),
        (ActivationScaleMonitor, {"modules": []}, "modules"),
        (CurvatureMonitor, {"every_n_steps": 0}, "every_n_steps"),
        (CurvatureMonitor, {"n_power_iter": 0}, "n_power_iter"),
        (CurvatureMonitor, {"layers": [1]}, "layers"),
    ],
)
def test_a_wrong_argument_is_named(make: Any, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named}: expected "):
        make(**arguments)


class Sequences(lightning.LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        rows = (torch.arange(64)[:, None] + torch.arange(7)) % 11
        return DataLoader(TensorDataset(rows[:, :-1], rows[:, 1:]), batch_size=8)

    def val_dataloader(self) -> DataLoader[Any]:
        return self.train_dataloader()


def small(lr: float) -> SimpleGPTModule:
    return SimpleGPTModule(11, 16, 1, 2, max_seq_len=6, lr=lr)


@pytest.fixture(scope="module")
def swept() -> tuple[tuple[Tolerance, ...], Any]:
    logger = RecordingLeydenLogger()
    return lr_tolerance_sweep(small, Sequences(), [1e-5, 2e-2, 1e30], 20, logger=logger), logger


def test_the_sweep_tells_what_learns_what_does_not_and_what_diverges(swept: Any) -> None:
    rows, _ = swept
    assert [row.lr for row in rows] == [1e-5, 2e-2, 1e30]
    assert rows[1].final_loss < rows[0].final_loss - 0.5
    assert not rows[0].diverged
    assert not rows[1].diverged
    assert rows[2].diverged
    assert rows[0].steps == rows[1].steps == 20


def test_the_sweep_keeps_a_picture_and_its_numbers(swept: Any) -> None:
    _, logger = swept
    assert list(logger.figures) == ["lr_tolerance"]


def test_equal_seeds_give_equal_sweeps() -> None:
    first, second = (lr_tolerance_sweep(small, Sequences(), [1e-2], 3) for _ in range(2))
    assert first == second


def test_without_validation_data_the_last_training_losses_count() -> None:
    class TrainingAlone(Sequences):
        def val_dataloader(self) -> Any:
            return []

    (row,) = lr_tolerance_sweep(small, TrainingAlone(), [1e-2], 10)
    assert math.isfinite(row.final_loss)


def test_a_sweeps_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"^lrs: expected finite numbers above 0"):
        lr_tolerance_sweep(small, Sequences(), [0.1, -1.0])
    with pytest.raises(ValueError, match=r"^steps: expected a whole number of at least 2, got 1"):
        lr_tolerance_sweep(small, Sequences(), [0.1], 1)
    with pytest.raises(ValueError, match=r"^metric: expected one that the module logs, got 'loss'"):
        lr_tolerance_sweep(small, Sequences(), [0.1], 2, metric="loss")


def test_data_without_a_validation_split_at_all_or_without_rows() -> None:
    class TrainingAlone(lightning.LightningDataModule):
        rows = 32

        def train_dataloader(self) -> Any:
            rows = (torch.arange(self.rows)[:, None] + torch.arange(7)) % 11
            return DataLoader(TensorDataset(rows[:, :-1], rows[:, 1:]), batch_size=8)

    (row,) = lr_tolerance_sweep(small, TrainingAlone(), [1e-2], 10)
    assert math.isfinite(row.final_loss)
    nothing = TrainingAlone()
    nothing.rows = 0
    with pytest.raises(ValueError, match=r"^datamodule: expected training data of at least one batch"):
        lr_tolerance_sweep(small, nothing, [1e-2], 10)


def test_a_spike_is_measured_from_the_lowest_mean_before() -> None:
    assert largest_spike([3.0, 2.0, 1.0, 0.5]) == 0
    assert largest_spike([3.0, 1.0, 2.0, 4.0]) == 3
    assert largest_spike([4.0] * 40 + [1.0] * 4 + [3.0] + [1.0] * 35) == pytest.approx(2.0)
    assert largest_spike([4.0] * 40 + [1.0] * 2 + [3.0] + [1.0] * 37) == pytest.approx(0.5)


def test_pictures_are_drawn() -> None:
    row = Tolerance(0.1, 1.0, 0.2, False, 5)
    lost = Tolerance(1.0, math.nan, math.inf, True, 2)
    assert len(draw_tolerance({"one": [row, lost], "other": [row]}).axes) == 2
    assert draw_scales([0, 1], {"a.q": [(1.0, 2.0, 3.0)] * 2}).axes[0].lines
    assert draw_curvatures([0, 1], {"a.q": [1.0, 0.0]}).axes[0].lines


def test_a_swap_leaves_the_last_map_as_it_is() -> None:
    from leyden.tasks import Classification, mlp

    model = with_simplenorm(Classification(mlp([4, 8, 8, 3]), num_classes=3))
    kinds = [type(one).__name__ for one in model.backbone if not isinstance(one, nn.ReLU)]
    assert kinds == ["SimpleNormLinear", "SimpleNormLinear", "Linear"]
    with pytest.raises(ValueError, match=r"^include: "):
        with_simplenorm(Classification(mlp([4, 3]), num_classes=3))


def test_a_swap_tells_the_head_from_maps_of_the_same_name_in_blocks() -> None:
    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.ModuleDict({"fc": nn.Linear(4, 4), "other": nn.Linear(4, 4)})
            self.fc = nn.Linear(4, 2)

    model = with_simplenorm(Model())
    assert all(isinstance(one, SimpleNormLinear) for one in model.block.values())
    assert type(model.fc) is nn.Linear


def test_a_converted_model_is_watched_like_any_other() -> None:
    net = Net()
    net.last = nn.Linear(5, 3)
    to_simplenorm(net)
    monitor = ActivationScaleMonitor(1)
    fit(net, monitor, max_steps=1)
    low, _, high = monitor.scales["last"][0]
    assert 0.9 < low <= high <= 1.0 + 1e-6


def test_a_swap_takes_all_other_maps_whatever_the_head_and_they_are_called() -> None:
    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.output = nn.Linear(4, 4)
            self.top = nn.ModuleDict({"fc": nn.Linear(4, 2)})

    model = with_simplenorm(Model(), norm="layer", eps=0.5)
    for one in (model.fc, model.output):
        assert isinstance(one, SimpleNormLinear)
        assert isinstance(one.norm, nn.LayerNorm)
        assert one.norm.eps == 0.5
    assert type(model.top["fc"]) is nn.Linear


def test_a_swap_leaves_a_head_alone_that_is_also_elsewhere() -> None:
    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.middle = nn.Linear(4, 4)
            self.top = nn.ModuleDict({"fc": self.first})

    model = with_simplenorm(Model())
    assert type(model.first) is nn.Linear
    assert model.top["fc"] is model.first
    assert isinstance(model.middle, SimpleNormLinear)


class Shared(Net):
    """Two maps that read the same tensor, which is the batch's or comes out of another parameter."""

    def __init__(self, deep: bool) -> None:
        super().__init__()
        self.other = nn.Linear(4, 5)
        self.before = nn.Parameter(torch.eye(4)) if deep else None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.before is None else x @ self.before
        return self.last(self.first(x).tanh() * self.other(x))


@pytest.mark.parametrize("deep", [False, True])
def test_curvature_is_that_of_the_way_through_the_map_alone(deep: bool) -> None:
    net, monitor = Shared(deep), CurvatureMonitor(1, 100, "first")
    x, targets = next(iter(loader()))
    dense = torch.autograd.functional.hessian(
        lambda z: nn.functional.cross_entropy(net.last(net.first(z).tanh() * net.other(x)), targets), x
    )
    fit(net, monitor, max_steps=1)
    assert monitor.curvatures["first"][0] == pytest.approx(
        torch.linalg.matrix_norm(dense.reshape(32, 32), 2).item(), rel=0.02
    )


class Sometimes(Net):
    """A map that is called in some batches alone."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.ModuleList(nn.Linear(4, 5) for _ in range(2))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        extra = self.extra[self.calls - 1](x) if self.calls < 3 else 0
        return self.last(self.first(x).tanh() + extra)


def test_what_was_not_called_at_a_step_is_missing_there_and_not_at_another() -> None:
    scales, curvatures = ActivationScaleMonitor(1), CurvatureMonitor(1, 2, "*")
    fit(Sometimes(), scales, curvatures, max_steps=3)
    assert scales.steps == curvatures.steps == [0, 1, 2]
    for name, expected in (("first", [1, 1, 1]), ("extra.0", [1, 0, 0]), ("extra.1", [0, 1, 0])):
        assert [math.isfinite(one) for _, one, _ in scales.scales[name]] == expected
        assert [math.isfinite(one) for one in curvatures.curvatures[name]] == expected
    figure = draw_scales([0, 1, 2], {name: scales.scales[name] for name in ("extra.0", "first")})
    assert [list(line.get_xdata()) for line in figure.axes[0].lines] == [[0, 1, 2]] * 2
    assert [len(line.get_xdata()) for line in draw_curvatures([0, 1, 2], curvatures.curvatures).axes[0].lines]


def test_of_modules_of_a_kind_those_that_were_called_are_drawn() -> None:
    nothing = (math.nan,) * 3
    figure = draw_scales(
        [0, 5, 9],
        {"a.q": [(1.0, 2.0, 3.0), nothing, nothing], "b.q": [(1.0, 4.0, 8.0), (1.0, 6.0, 8.0), nothing]},
    )
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == [0, 5, 9]
    assert list(line.get_ydata())[:2] == [4.0, 6.0]
    assert math.isnan(line.get_ydata()[2])


def test_curvatures_of_many_maps_are_drawn_by_kind() -> None:
    def figure(count: int) -> Any:
        names = [f"blocks.{place // 2}.{'qk'[place % 2]}" for place in range(count)]
        return draw_curvatures([0, 1], {name: [1.0 + place, 2.0] for place, name in enumerate(names)})

    few, many = figure(7), figure(8)
    assert [text.get_text() for text in many.legends[0].texts] == ["q", "k"]
    assert [list(line.get_ydata()) for line in many.axes[0].lines] == [[5.0, 2.0], [6.0, 2.0]]
    assert len(few.legends[0].texts) == len(few.axes[0].lines) == 7


def test_scales_of_rows_are_minimum_median_and_maximum_in_float32() -> None:
    rows = torch.tensor([[3.0, 4.0], [300.0, 400.0], [0.3, 0.4], [30.0, 40.0], [3000.0, 4000.0]])
    expected = [value / 2**0.5 for value in (0.5, 50.0, 5000.0)]
    assert row_scales(rows).tolist() == pytest.approx(expected)
    # The squares are beyond half precision.
    assert row_scales(rows.half()).tolist() == pytest.approx(expected, rel=1e-3)
    assert row_scales(rows.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("make", [ActivationScaleMonitor, CurvatureMonitor])
def test_what_is_logged_is_what_is_kept_at_the_step_for_every_logger(make: Callable[..., Any]) -> None:
    monitor, loggers = make(2), [RecordingLogger(), RecordingLogger()]
    fit(Net(), monitor, logger=loggers)
    for logger in loggers:
        logged = [
            (step, list(metrics.values()))
            for step, metrics in logger_rows(logger)
            if any(name.startswith(("act/", "curv/")) for name in metrics)
        ]
        if make is ActivationScaleMonitor:
            columns = zip(*monitor.scales.values(), strict=True)
            kept = [[one for scale in column for one in scale] for column in columns]
        else:
            kept = [list(column) for column in zip(*monitor.curvatures.values(), strict=True)]
        assert logged == list(zip(monitor.steps, kept, strict=True))


@pytest.mark.parametrize("make", [ActivationScaleMonitor, CurvatureMonitor])
def test_the_backward_pass_and_batches_after_one_that_was_skipped_find_no_hook(make: Any) -> None:
    class Looking(Net):
        found: list[int]

        def count(self) -> int:
            return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in self.modules())

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 2 else None

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.found.append(self.count())
            return super().training_step(batch, batch_idx)

        def on_after_backward(self) -> None:
            self.found.append(self.count())

        def on_train_epoch_end(self) -> None:
            self.found.append(self.count())

    net = Looking()
    net.found = []
    # Batch 2 is left before its end, which ends the epoch.
    trainer = lightning.Trainer(max_epochs=2, callbacks=[make(2)], logger=False, **QUIET)
    trainer.fit(net, loader())
    both_maps = 2
    assert net.found == [both_maps, 0, 0, 0, 0] * 2


def test_no_picture_where_none_is_wanted_or_one_step_was_seen() -> None:
    for monitor, steps in ((ActivationScaleMonitor(1, figure=False), 3), (ActivationScaleMonitor(9), 3)):
        logger = RecordingLeydenLogger()
        fit(Net(), monitor, logger=logger, max_steps=steps)
        assert not logger.figures


class Manual(Net):
    """Two losses in a step, each with a backward pass of its own, by manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        for factor in (1.0, 100.0):
            optimizer.zero_grad()
            self.manual_backward(factor * nn.functional.cross_entropy(self(batch[0]), batch[1]))
        optimizer.step()
        return None


def test_under_manual_optimization_the_first_backward_pass_is_watched() -> None:
    automatic = [ActivationScaleMonitor(1), CurvatureMonitor(1, 5, "*")]
    manual = [ActivationScaleMonitor(1), CurvatureMonitor(1, 5, "*")]
    fit(Net(), *automatic, max_steps=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="CurvatureMonitor")
        fit(Manual(), *manual, max_steps=2)
    assert manual[0].steps == manual[1].steps == [0, 1]
    assert manual[0].scales["first"][0] == automatic[0].scales["first"][0]
    assert manual[1].curvatures["first"][0] == automatic[1].curvatures["first"][0]


def test_a_loss_without_a_graph_and_a_new_fit_after_a_failed_one() -> None:
    class Detached(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss.detach().requires_grad_() if self.detach else loss

        detach = True

    monitor = CurvatureMonitor(1)
    net = Detached()
    fit(net, monitor, max_steps=1)
    assert not monitor.steps
    monitor._failed = True
    net.detach = False
    fit(net, monitor, max_steps=1)
    assert monitor.steps == [0]


def test_of_many_maps_the_first_the_middle_and_the_last_are_watched() -> None:
    class Deep(Net):
        def __init__(self) -> None:
            super().__init__()
            self.middle = nn.ModuleList(nn.Linear(5, 5) for _ in range(5))

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x).tanh()
            for one in self.middle:
                hidden = one(hidden).tanh()
            return self.last(hidden)

    monitor = CurvatureMonitor(1, 2)
    fit(Deep(), monitor, max_steps=1)
    assert list(monitor.curvatures) == ["first", "middle.1", "middle.4"]


def test_further_arguments_of_a_map_are_left_alone() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor, factor: Tensor, *, shift: float = 0.0) -> Tensor:  # type: ignore[override]
            return factor * super().forward(x) + shift

    class Passing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.scaled = Scaled(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.scaled(self.first(x).tanh(), torch.tensor(2.0), shift=1.0)

    monitor = CurvatureMonitor(1, 2, "scaled")
    fit(Passing(), monitor, max_steps=1)
    assert monitor.curvatures["scaled"][0] > 0


class Own(lightning.LightningModule):
    """A model whose learning rate is given and whose loss is a square."""

    def __init__(self, lr: float = 0.1, clipped: float = math.inf) -> None:
        super().__init__()
        self.lr = lr
        self.weight = nn.Parameter(torch.randn(3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.weight - 10).square().sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.lr)


class Rows(lightning.LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return loader()


def test_a_sweeps_losses_are_the_modules_own_and_its_gradients_are_clipped() -> None:
    torch.manual_seed(3)
    weight = torch.randn(3)
    expected = []
    for _ in range(4):  # a gradient of length 1 after clipping, so steps of 0.1
        expected.append((weight - 10).square().sum().item())
        weight += 0.1 * (10 - weight) / (10 - weight).norm()
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    scaled.autocast_context_manager = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    for arguments in ({}, {"plugins": [scaled]}):
        (row,) = lr_tolerance_sweep(Own, Rows(), [0.1], 4, seed=3, trainer=arguments)
        assert row.final_loss == pytest.approx(expected[-1], rel=1e-5)
        assert row.max_spike == 0
        assert row.steps == 4
    (row,) = lr_tolerance_sweep(Own, Rows(), [0.1], 4, seed=3, trainer={"accumulate_grad_batches": 2})
    assert row.final_loss == pytest.approx(expected[3], rel=1e-5)


def test_a_sweep_says_what_did_not_learn_and_logs_its_table() -> None:
    class Rising(Own):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), self.lr, maximize=True)

    logger = RecordingLogger()
    (row,) = lr_tolerance_sweep(Rising, Rows(), [0.5], 4, logger=logger)
    assert row.diverged
    assert math.isfinite(row.final_loss)
    assert row.max_spike > 0
    expected = {"lr": 0.5, "final_loss": row.final_loss, "max_spike": row.max_spike}
    assert logger_rows(logger) == [(0, {f"lr_tolerance/{name}": value for name, value in expected.items()})]


def test_the_last_tenth_of_the_losses_counts_and_a_loss_that_is_not_finite_ends_it() -> None:
    class Given(Own):
        losses: Any = tuple(map(float, range(30)))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return 0 * self.weight.sum() + self.losses[self.global_step]

    (row,) = lr_tolerance_sweep(Given, Rows(), [0.1], 30)
    assert row.final_loss == 28.0
    assert row.diverged

    class Lost(Given):
        losses: Any = (1.0, math.nan, 0.5, 0.25)

    (row,) = lr_tolerance_sweep(Lost, Rows(), [0.1], 4)
    assert row.diverged
    assert math.isnan(row.final_loss)
    assert row.max_spike == math.inf


def test_validation_data_may_be_a_stream() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([torch.zeros(1)] * 3)

    class Streaming(Rows):
        def val_dataloader(self) -> Any:
            return DataLoader(Stream(), batch_size=1)

    class Validated(Own):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val/loss", 0.25)

    (row,) = lr_tolerance_sweep(Validated, Streaming(), [0.1], 2)
    assert row.final_loss == 0.25
