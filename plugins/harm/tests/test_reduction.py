"""The callback under a Trainer: what it does to gradients, under which options, and what it leaves behind."""

from __future__ import annotations

import contextlib
import copy
import pickle
from typing import Any

import pytest
import torch
from harm_testbed import (
    Gradients,
    Learner,
    cross_entropies,
    fit,
    flat,
    mlp,
    momentum,
    rows,
    weighted_gradients,
)
from leyden.testing import RecordingLogger
from leyden_harm import HarmProbe, HarmReduction, total_harm
from leyden_harm.baselines import without_history
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import TensorDataset

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW one by one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False, amsgrad=True),
}


def harmless() -> TensorDataset:
    """One example many times: a step that helps one helps all."""
    return TensorDataset(torch.ones(32, 6), torch.zeros(32, dtype=torch.long))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_gradient_is_that_of_the_weighted_losses(name: str) -> None:
    reduction = HarmReduction(max_upweight=4.0)
    seen = Gradients(reduction)
    module = Learner(mlp(), OPTIMIZERS[name])
    fit(module, reduction, seen)
    assert any(weights.std() > 1e-4 for weights in seen.weights)
    for state, batch, weights, found in zip(
        seen.states, seen.batches, seen.weights, seen.gradients, strict=True
    ):
        expected = weighted_gradients(module, state, batch, weights)
        for key, gradient in expected.items():
            torch.testing.assert_close(found[key], gradient, rtol=1e-6, atol=1e-7)
    for before, after in seen.margins:
        assert total_harm(after) <= total_harm(before) * (1 + 1e-5)


def test_batches_without_harm_train_as_without_the_callback_bit_for_bit() -> None:
    plain, watched = (Learner(mlp(), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)) for _ in range(2))
    fit(plain, data=harmless())
    reduction = HarmReduction(max_upweight=16.0)
    seen = Gradients(reduction)
    fit(watched, reduction, seen, data=harmless())
    assert all((before >= 0).all() for before, _ in seen.margins)
    assert torch.equal(flat(plain), flat(watched))


def test_batches_with_harm_train_otherwise_and_harm_less() -> None:
    plain, watched = Learner(mlp()), Learner(mlp())
    fit(plain)
    seen = Gradients(HarmReduction(max_upweight=4.0))
    assert seen.reduction is not None
    fit(watched, seen.reduction, seen)
    assert not torch.allclose(flat(plain), flat(watched))
    before, after = (sum(float(total_harm(pair[k])) for pair in seen.margins) for k in (0, 1))
    assert after < 0.8 * before


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_sum_of_losses_is_known_for_what_it_is(normalize: bool, accumulate: int) -> None:
    small = [
        Gradients(HarmReduction(reduction=kind, normalize=normalize))  # type: ignore[arg-type]
        for kind in ("mean", "sum")
    ]
    mean = Learner(mlp(), lambda p: torch.optim.SGD(p, lr=0.08, momentum=0.9))
    total = Learner(mlp(), lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), total=True)
    for module, seen in zip((mean, total), small, strict=True):
        assert seen.reduction is not None
        fit(module, seen.reduction, seen, accumulate_grad_batches=accumulate)
    assert small[0].weights[0].sum() == pytest.approx(1 / accumulate) or not normalize
    for first, second in zip(small[0].weights, small[1].weights, strict=True):
        torch.testing.assert_close(8 * first, second, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(flat(mean), flat(total), rtol=1e-4, atol=1e-5)


def test_each_micro_batch_keeps_the_guarantee_and_sees_what_is_accumulated() -> None:
    reduction = HarmReduction(max_upweight=4.0)
    seen = Gradients(reduction)
    module = Learner(mlp())
    fit(module, reduction, seen, batch=4, accumulate_grad_batches=2, steps=8)
    assert len(seen.margins) == 16
    for before, after in seen.margins:
        assert total_harm(after) <= total_harm(before) * (1 + 1e-5)
    for place in range(0, 16, 2):
        parts = [
            weighted_gradients(module, seen.states[k], seen.batches[k], seen.weights[k])
            for k in (place, place + 1)
        ]
        for key, whole in seen.gradients[place + 1].items():
            torch.testing.assert_close(whole, parts[0][key] + parts[1][key], rtol=1e-5, atol=1e-7)
        # of the mean over both halves, each sample has an eighth; the first half is already in the gradient
        assert seen.weights[place].sum() == pytest.approx(0.5, abs=1e-5) or seen.weights[place].sum() > 0.5
        head = "model.2.weight"
        h = torch.tanh(nn.functional.linear(seen.batches[place + 1][0], *_first(seen.states[place])))
        logits = nn.functional.linear(h, seen.states[place][head], seen.states[place]["model.2.bias"])
        delta = logits.softmax(1) - nn.functional.one_hot(seen.batches[place + 1][1], 3)
        pending = {key: seen.gradients[place][key] for key in (head, "model.2.bias")}
        if (
            place == 0
        ):  # no momentum yet: the update is what is accumulated, the decay and the batch's own mean
            K = (h @ h.T + 1) * (delta @ delta.T)
            moved = h @ (pending[head] + 0.01 * seen.states[0][head]).T
            moved = moved + pending["model.2.bias"] + 0.01 * seen.states[0]["model.2.bias"]
            expected = (delta * moved).sum(1) + K.sum(1) / 8
            torch.testing.assert_close(seen.margins[1][0], expected, rtol=1e-4, atol=1e-6)


def _first(state: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return state["model.0.weight"], state["model.0.bias"]


class Fixed(torch.amp.GradScaler):
    """A scaler whose scale stays."""

    def update(self, new_scale: Any = None) -> None:
        super().update(1024.0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_scaled_loss_gives_the_same_weights(accumulate: int) -> None:
    runs = []
    for scaled in (False, True):
        plugins: list[Any] = []
        if scaled:
            precision = MixedPrecision("16-mixed", "cpu", Fixed("cpu", init_scale=1024.0))
            precision.autocast_context_manager = contextlib.nullcontext  # type: ignore[method-assign,assignment]
            plugins = [precision]
        reduction = HarmReduction(max_upweight=4.0)
        seen = Gradients(reduction)
        fit(Learner(mlp()), reduction, seen, plugins=plugins, accumulate_grad_batches=accumulate)
        runs.append(seen.weights)
    for plain, under_scale in zip(*runs, strict=True):
        torch.testing.assert_close(under_scale, plain, rtol=1e-3, atol=1e-6)


def test_bf16_rows_are_weighted_in_float32() -> None:
    reduction = HarmReduction()
    seen = Gradients(reduction)
    fit(Learner(mlp()), reduction, seen, precision="bf16-mixed")
    assert all(weights.dtype == torch.float32 for weights in seen.weights)
    assert any(weights.std() > 1e-4 for weights in seen.weights)


def test_clipping_comes_after_the_weights() -> None:
    reduction = HarmReduction(max_upweight=4.0)
    seen = Gradients(reduction)
    module = Learner(mlp(), lambda p: torch.optim.SGD(p, lr=0.1))
    fit(module, reduction, seen, steps=1, gradient_clip_val=0.05)
    moved = (flat(module) - nn.utils.parameters_to_vector(list(mlp().parameters()))).norm() / 0.1
    assert moved.item() == pytest.approx(0.05, rel=1e-3)
    expected = weighted_gradients(module, seen.states[0], seen.batches[0], seen.weights[0])
    torch.testing.assert_close(seen.gradients[0]["model.2.weight"], expected["model.2.weight"])


@pytest.mark.parametrize(
    ("every", "start", "steps"), [(3, 0, [0, 3, 6]), (1, 5, [5, 6, 7]), (2, 3, [3, 5, 7])]
)
def test_it_acts_at_the_steps_that_it_was_told(every: int, start: int, steps: list[int]) -> None:
    acted: list[int] = []

    class Watched(HarmReduction):
        def _solve(self, fit: Any, trainer: Trainer, *args: Any) -> Any:
            acted.append(trainer.global_step)
            return super()._solve(fit, trainer, *args)

    fit(Learner(mlp()), Watched(every=every, start_step=start))
    assert acted == steps


def test_weight_decay_can_be_left_out() -> None:
    runs = []
    for include in (True, False):
        reduction = HarmReduction(include_weight_decay=include)
        seen = Gradients(reduction)
        fit(Learner(mlp(), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1.0)), reduction, seen, steps=1)
        runs.append(seen.margins[0][0])
    assert not torch.allclose(*runs)


@pytest.mark.parametrize("factor", [0.0, 0.25])
def test_a_schedule_that_multiplies_all_rates_changes_no_weight(factor: float) -> None:
    runs = []
    for multiplier in (1.0, factor):

        class Scheduled(Learner):
            def configure_optimizers(self, multiplier: float = multiplier) -> Any:
                weight, bias = self.model[2].parameters()  # type: ignore[index]
                others = [*self.model[0].parameters(), bias]  # type: ignore[index]
                groups = [
                    {"params": others, "lr": 0.1 * multiplier},
                    {"params": [weight], "lr": 0.4 * multiplier},
                ]
                return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

        reduction = HarmReduction(max_upweight=4.0)
        seen = Gradients(reduction)
        fit(Scheduled(mlp()), reduction, seen, steps=1)
        runs.append(seen)
    tolerance = {"rtol": 1e-5, "atol": 1e-7}
    if factor:  # with all rates at 0 nothing tells the two apart, and both count alike
        torch.testing.assert_close(runs[0].margins[0], runs[1].margins[0], **tolerance)
        torch.testing.assert_close(runs[0].weights[0], runs[1].weights[0], **tolerance)
    assert torch.isfinite(runs[1].weights[0]).all()


def test_statistics_are_logged_every_few_steps_and_drawn() -> None:
    logger = RecordingLogger()
    fit(Learner(mlp()), HarmReduction(max_upweight=4.0, log_every=3), logger=logger, steps=10)
    for name in ("rate_before", "rate_after", "sum_before", "sum_after", "max_weight", "active_fraction"):
        assert list(logger.of(f"harm/{name}")) == [0, 3, 6, 9], name
    assert all(
        logger.of("harm/sum_after")[step] <= value + 1e-6
        for step, value in logger.of("harm/sum_before").items()
    )
    assert 0 < max(logger.of("harm/active_fraction").values()) <= 1
    assert max(logger.of("harm/max_weight").values()) > 1
    assert all(0 <= gap < 1 for gap in logger.of("harm/solver_gap").values())


def test_the_active_fraction_counts_batches_since_it_was_last_logged() -> None:
    logger = RecordingLogger()
    reduction = HarmReduction(log_every=4)
    seen = Gradients(reduction)
    fit(Learner(mlp()), reduction, seen, logger=logger, steps=9)
    harmed = [bool((before < 0).any()) for before, _ in seen.margins]
    fractions = logger.of("harm/active_fraction")
    assert fractions[4] == sum(harmed[1:5]) / 4
    assert fractions[8] == sum(harmed[5:9]) / 4


def test_only_steps_at_which_it_acts_are_logged_and_kept() -> None:
    logger = RecordingLogger()

    class Watched(HarmReduction):
        def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            assert self._fit is not None
            assert self._fit.record.steps == [1, 4, 7, 10]

    fit(Learner(mlp()), Watched(every=3, start_step=1, log_every=4), logger=logger, steps=12)
    assert list(logger.of("harm/rate_before")) == [1, 7]


class Interrupted(Exception):  # noqa: N818
    pass


class Interrupt(Callback):
    def __init__(self, hook: str) -> None:
        self.hook = hook

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if self.hook == "batch" and trainer.global_step == 2:
            raise Interrupted

    def on_train_start(self, *_: Any) -> None:
        if self.hook == "start":
            raise Interrupted


@pytest.mark.parametrize("interruption", ["none", "batch", "start"])
def test_no_hook_is_left_behind(interruption: str) -> None:
    module = Learner(mlp())
    names = list(module.state_dict())
    reduction = HarmReduction()
    with contextlib.suppress(Interrupted):
        fit(module, reduction, Interrupt(interruption), steps=3)
    assert not any(one._forward_hooks or one._backward_hooks for one in module.modules())
    assert list(module.state_dict()) == names
    batch = rows(8).tensors
    module.train()
    module.training_step(batch, 0).backward()
    expected = weighted_gradients(module, copy.deepcopy(module.state_dict()), batch, torch.full((8,), 1 / 8))
    module.zero_grad()
    module.training_step(batch, 0).backward()
    torch.testing.assert_close(module.model[2].weight.grad, expected["model.2.weight"])


def test_copies_of_the_module_in_training_are_not_weighted() -> None:
    class Copying(Callback):
        def on_train_batch_start(
            self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
        ) -> None:
            if batch_idx == 2:
                shallow = nn.Sequential(*pl_module.model[:2], copy.copy(pl_module.model[2]))
                deep = copy.deepcopy(pl_module.model)
                for twin in (deep, pickle.loads(pickle.dumps(pl_module.model)), shallow):
                    twin.train()
                    losses = nn.functional.cross_entropy(twin(batch[0]), batch[1], reduction="none")
                    (found,) = torch.autograd.grad(losses.mean(), [twin[2].weight], retain_graph=True)
                    rows_of = [
                        torch.autograd.grad(one, [twin[2].weight], retain_graph=True)[0] for one in losses
                    ]
                    torch.testing.assert_close(found, torch.stack(rows_of).mean(0))

    fit(Learner(mlp()), HarmReduction(max_upweight=16.0), Copying(), steps=4)


def test_the_callback_can_be_copied_during_a_training() -> None:
    class Copying(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            for one in (reduction, probe):
                assert copy.deepcopy(one).__dict__.keys() == one.__dict__.keys()
                pickle.dumps(one)

    reduction, probe = HarmReduction(), HarmProbe(every=2)
    fit(Learner(mlp()), reduction, probe, Copying(), steps=3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_upweight": 0.0}, "max_upweight: expected a finite number above 0, got 0.0"),
        ({"max_upweight": -1.0}, "max_upweight"),
        ({"max_upweight": float("nan")}, "max_upweight"),
        ({"max_upweight": float("inf")}, "max_upweight"),
        ({"max_upweight": True}, "max_upweight: expected a finite number above 0, got True"),
        ({"affine": "plain"}, "affine: expected a function of an optimizer and a parameter, got 'plain'"),
        ({"n_iter": 0}, "n_iter: expected a whole number of at least 1, got 0"),
        ({"every": 0}, "every: expected a whole number of at least 1, got 0"),
        ({"start_step": -1}, "start_step"),
        ({"log_every": 0}, "log_every"),
        ({"reduction": "none"}, "reduction: expected 'mean' or 'sum', got 'none'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        HarmReduction(**arguments)


@pytest.mark.parametrize(
    ("model", "layer", "text"),
    [
        (nn.Sequential(nn.Conv1d(1, 3, 6), nn.Flatten()), None, "layer: Learner has no torch.nn.Linear"),
        (mlp(), "model.7", "layer: there is no module 'model.7'; did you mean 'model.2'"),
        (mlp(), "model.1", "layer: expected a torch.nn.Linear, 'model.1' is a Tanh"),
    ],
)
def test_a_layer_that_is_not_there_is_named(model: nn.Module, layer: str | None, text: str) -> None:
    with pytest.raises(MisconfigurationException, match=text):
        fit(Learner(model), HarmReduction(layer=layer), steps=1)


def test_the_default_layer_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        fit(Learner(mlp()), HarmReduction(), steps=1)
    assert "HarmReduction acts on 'model.2'" in caplog.text


def test_a_layer_can_be_chosen_and_its_part_of_the_network_is_weighted() -> None:
    reduction = HarmReduction(layer="model.0", max_upweight=4.0)
    seen = Gradients(reduction)
    fit(Learner(mlp()), reduction, seen)
    assert any(weights.std() > 1e-4 for weights in seen.weights)


@pytest.mark.parametrize("frozen", ["both", "weight", "absent"])
def test_a_frozen_or_absent_layer_counts_as_plain_gradient_descent(frozen: str) -> None:
    model = mlp()
    if frozen != "absent":
        model[2].weight.requires_grad = False
        model[2].bias.requires_grad = frozen != "both"

    class Partial(Learner):
        def configure_optimizers(self) -> Any:
            kept = self.model[0].parameters() if frozen == "absent" else self.parameters()  # type: ignore[index]
            return momentum([one for one in kept if one.requires_grad])

    reduction = HarmReduction(max_upweight=4.0)
    seen = Gradients(reduction)
    with pytest.warns(UserWarning, match="'model.2' is frozen or in no optimizer"):
        fit(Partial(model), reduction, seen)
    if frozen != "weight":
        h = torch.tanh(nn.functional.linear(seen.batches[3][0], *_first(seen.states[3])))
        logits = nn.functional.linear(h, seen.states[3]["model.2.weight"], seen.states[3]["model.2.bias"])
        delta = logits.softmax(1) - nn.functional.one_hot(seen.batches[3][1], 3)
        expected = ((h @ h.T + 1) * (delta @ delta.T)).mean(1)
        torch.testing.assert_close(seen.margins[3][0], expected, rtol=1e-4, atol=1e-6)


def test_one_row_is_valid_and_keeps_its_weight() -> None:
    def build(p: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=0.3, momentum=0.95)

    plain, watched = Learner(mlp(), build), Learner(mlp(), build)
    fit(plain, batch=1)
    fit(watched, HarmReduction(max_upweight=4.0), batch=1)
    torch.testing.assert_close(flat(watched), flat(plain))
    free = Gradients(HarmReduction(max_upweight=4.0, normalize=False))
    assert free.reduction is not None
    fit(Learner(mlp(), build), free.reduction, free, batch=1, steps=24)
    assert any(weights > 1 for weights in free.weights)


def test_rows_without_a_gradient_change_nothing() -> None:
    zero = Learner(mlp(), losses=lambda outputs, labels: 0 * outputs.sum(1))
    fit(zero, HarmReduction())
    assert torch.isfinite(flat(zero)).all()


@pytest.mark.parametrize("where", ["input", "state"])
def test_a_number_that_is_not_finite_leaves_the_gradient_alone_and_is_told_once(where: str) -> None:
    class Spoil(Callback):
        def on_train_batch_start(
            self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
        ) -> None:
            if where == "input":
                batch[0][0, 0] = float("inf")
            elif trainer.global_step:
                weight = pl_module.model[2].weight
                trainer.optimizers[0].state[weight]["momentum_buffer"].fill_(float("nan"))

    plain, watched = Learner(mlp()), Learner(mlp())
    fit(plain, Spoil(), steps=4)
    with pytest.warns(UserWarning, match="not finite") as caught:
        fit(watched, Spoil(), HarmReduction(log_every=1), steps=4)
    assert len([one for one in caught if "not finite" in str(one.message)]) == 1
    if where == "input":
        torch.testing.assert_close(flat(watched), flat(plain), rtol=0, atol=0, equal_nan=True)


def test_masked_rows_get_no_say() -> None:
    def masked(outputs: Any, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels, reduction="none") * (labels != 0)

    reduction = HarmReduction(max_upweight=4.0, normalize=False)
    seen = Gradients(reduction)
    fit(Learner(mlp(), losses=masked), reduction, seen)
    for (_, labels), weights in zip(seen.batches, seen.weights, strict=True):
        assert torch.equal(weights[labels == 0], torch.full_like(weights[labels == 0], 1 / 8))


def test_ignored_labels_change_no_weight_of_the_others() -> None:
    data = rows()
    ignored = TensorDataset(data.tensors[0], data.tensors[1].clone())
    ignored.tensors[1][::4] = -100

    class Ignoring(Learner):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    reduction = HarmReduction(max_upweight=4.0)
    seen = Gradients(reduction)
    fit(Ignoring(mlp()), reduction, seen, data=ignored, steps=4)
    for state, (inputs, labels), weights, found in zip(
        seen.states, seen.batches, seen.weights, seen.gradients, strict=True
    ):
        module = Learner(mlp())
        kept = labels != -100
        expected = weighted_gradients(module, state, (inputs[kept], labels[kept]), weights[kept] * 8 / 6)
        torch.testing.assert_close(found["model.2.weight"], expected["model.2.weight"], rtol=1e-5, atol=1e-7)


def test_validation_within_a_fit_is_not_noticed() -> None:
    reduction = HarmReduction()
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[reduction], val_check_interval=2,
    )  # fmt: skip
    solved: list[int] = []
    original = reduction._solve
    reduction._solve = lambda *args: solved.append(1) or original(*args)  # type: ignore[func-returns-value,assignment,method-assign]
    loader = torch.utils.data.DataLoader(rows(), batch_size=8)
    trainer.fit(Learner(mlp()), loader, loader)
    assert len(solved) == 4


def test_an_unknown_optimizer_is_taken_for_plain_descent_unless_it_is_explained() -> None:
    def build(p: Any) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(p, lr=0.01)

    with pytest.warns(UserWarning, match="does not know the update of RMSprop") as caught:
        fit(Learner(mlp(), build), HarmReduction())
    assert len([one for one in caught if "RMSprop" in str(one.message)]) == 1

    def explained(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Any:
        return torch.ones_like(parameter), 0.5, 2 * torch.ones_like(parameter)

    reduction = HarmReduction(affine=explained)
    seen = Gradients(reduction)
    fit(Learner(mlp(), build), reduction, seen, steps=1)
    state, (inputs, labels) = seen.states[0], seen.batches[0]
    h = torch.tanh(nn.functional.linear(inputs, *_first(state)))
    logits = nn.functional.linear(h, state["model.2.weight"], state["model.2.bias"])
    delta = logits.softmax(1) - nn.functional.one_hot(labels, 3)
    K = 2 * (h @ h.T + 1) * (delta @ delta.T)
    expected = 2 * (delta * (h.sum(1, keepdim=True) + 1)).sum(1) + 0.5 * K.mean(1)
    torch.testing.assert_close(seen.margins[0][0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (3, r"expected \(a, kappa, P\) for a parameter of shape \(3, 8\), got 3"),
        ((torch.ones(7), 1.0, None), r"expected a of the parameter's shape \(3, 8\), got \(7,\)"),
        ((None, 1.0, 2.0), r"expected P of the parameter's shape \(3, 8\), got 2\.0"),
    ],
)
def test_an_explanation_that_does_not_fit_is_refused_in_words(told: Any, text: str) -> None:
    with pytest.raises(MisconfigurationException, match=f"affine: {text}"):
        fit(Learner(mlp()), HarmReduction(affine=lambda optimizer, parameter: told), steps=1)


def test_without_history_the_momentum_does_not_count() -> None:
    reduction = HarmReduction(affine=without_history, max_upweight=1e6, n_iter=100, normalize=False)
    seen = Gradients(reduction)
    fit(Learner(mlp()), reduction, seen)
    assert all(float(total_harm(after)) <= 1e-3 for _, after in seen.margins)


def test_lbfgs_and_two_owners_and_two_callbacks_are_refused() -> None:
    with pytest.raises(MisconfigurationException, match="L-BFGS"):
        fit(Learner(mlp(), lambda p: torch.optim.LBFGS(p)), HarmReduction(), steps=1)

    class Twice(Learner):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [momentum(self.parameters()), torch.optim.SGD(self.model[2].parameters(), lr=0.1)]  # type: ignore[index]

    with pytest.raises(MisconfigurationException, match="more than one optimizer"):
        fit(Twice(mlp()), HarmReduction(), steps=1)
    with pytest.raises(
        MisconfigurationException, match=r"two HarmReduction callbacks act on layer 'model\.2'"
    ):
        fit(Learner(mlp()), HarmReduction(), HarmReduction(layer="model.2"), steps=1)


def test_manual_optimization_works() -> None:
    class Manual(Learner):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.per_sample_loss(batch).mean())
            optimizer.step()

    automatic, manual = Learner(mlp()), Manual(mlp())
    fit(automatic, HarmReduction(max_upweight=4.0))
    fit(manual, HarmReduction(max_upweight=4.0))
    torch.testing.assert_close(flat(manual), flat(automatic), rtol=0, atol=0)


def test_a_layer_called_twice_is_told_once() -> None:
    class Siamese(Learner):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return (self.per_sample_loss(batch) + self.per_sample_loss((batch[0] + 1, batch[1]))).mean()

    with pytest.warns(UserWarning, match=r"'model\.2' is called more than once a batch") as caught:
        fit(Siamese(mlp()), HarmReduction())
    assert len([one for one in caught if "more than once" in str(one.message)]) == 1


def test_a_compiled_layer_is_refused_and_a_compiled_backbone_is_not() -> None:
    whole = mlp()
    whole.compile(backend="eager")
    with pytest.raises(MisconfigurationException, match=r"'model\.2' lies in a compiled module"):
        fit(Learner(whole), HarmReduction(), steps=1)
    with pytest.raises(MisconfigurationException, match="lies in a compiled module"):
        fit(Learner(nn.Sequential(torch.compile(mlp(), backend="eager"))), HarmReduction(), steps=1)
    model = mlp()
    split = nn.Sequential(torch.compile(model[:2], backend="eager"), model[2])  # type: ignore[arg-type]
    reduction = HarmReduction(max_upweight=4.0)
    seen = Gradients(reduction)
    fit(Learner(split), reduction, seen, steps=3)
    assert len(seen.weights) == 3


def test_a_step_waits_for_no_device() -> None:
    from leyden.testing.host_sync import host_syncs
    from leyden_harm import Update, reweight
    from leyden_harm.affine import Part, affine_update, layer_update
    from leyden_harm.problems import last_layer

    drawn = last_layer(8, 0)
    weight, bias = nn.Parameter(torch.ones(10, 64)), nn.Parameter(torch.ones(10))
    for optimizer in (
        torch.optim.SGD([weight, bias], lr=0.1, momentum=0.9),
        torch.optim.AdamW([weight, bias], fused=True),
    ):
        weight.grad, bias.grad = torch.ones_like(weight), torch.ones_like(bias)
        optimizer.step()

        def solve(optimizer: torch.optim.Optimizer = optimizer) -> None:
            group = optimizer.param_groups[0]
            parts = [Part(one, affine_update(optimizer, one, group), group["lr"]) for one in (weight, bias)]
            update = layer_update(*parts)
            reweight(drawn.h.float(), drawn.delta.float(), Update(*update))

        buffers = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
        assert host_syncs(solve, [drawn.h, drawn.delta, weight, bias, *buffers]) == []


def test_a_polyak_step_of_another_plugin_trains_with_weights() -> None:
    sps_safe = pytest.importorskip("leyden_sps_safe")
    reduction = HarmReduction(max_upweight=4.0)
    seen = Gradients(reduction)
    module = Learner(mlp(), lambda p: sps_safe.SPSSafe(p, M=0.1))
    with pytest.warns(UserWarning, match="does not know the update of SPSSafe"):
        fit(module, reduction, seen)
    assert any(weights.std() > 1e-4 for weights in seen.weights)
    expected = weighted_gradients(module, seen.states[-1], seen.batches[-1], seen.weights[-1])
    torch.testing.assert_close(
        seen.gradients[-1]["model.2.weight"], expected["model.2.weight"], rtol=1e-5, atol=1e-7
    )


def test_climbing_the_negative_loss_is_weighted_as_descending_the_loss() -> None:
    weights = []
    for losses, climbs in ((cross_entropies, False), (lambda *pair: -cross_entropies(*pair), True)):
        module = Learner(
            mlp(), lambda p, climbs=climbs: torch.optim.SGD(p, 0.2, 0.9, maximize=climbs), losses
        )
        reduction = HarmReduction(max_upweight=4.0)
        fit(module, reduction)
        assert reduction.last is not None
        weights.append((nn.utils.parameters_to_vector(module.parameters()), reduction.last.factors))
    assert weights[0][1].max() > 1.1
    torch.testing.assert_close(weights[0], weights[1])
