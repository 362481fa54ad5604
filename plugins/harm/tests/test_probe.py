"""The probe measures true losses and changes no bit of a training."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harm_testbed import Learner, cross_entropies, fit, mlp, momentum, rows
from leyden.testing import RecordingLeydenLogger, RecordingLogger
from leyden_harm import HarmProbe, HarmReduction
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn


class Noisy(nn.Module):
    """Dropout, batch statistics, and draws from numpy and Python's own generator."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        shift = 0.1 * float(np.random.randn()) + 0.1 * random.random()
        logits: Tensor = self.layers(inputs + shift)
        return logits


class Trace(Callback):
    """Keeps parameters, buffers, gradients and random states after every batch."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        state = {name: value.clone() for name, value in pl_module.state_dict().items()}
        gradients = {
            name: None if one.grad is None else one.grad.clone() for name, one in pl_module.named_parameters()
        }
        self.seen.append((state, gradients, torch.get_rng_state(), random.getstate(), np.random.get_state()))


def traced(*callbacks: Callback, **arguments: Any) -> list[Any]:
    trace = Trace()
    np.random.seed(0)
    random.seed(0)
    fit(Learner(Noisy()), *callbacks, trace, **arguments)
    return trace.seen


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_training_with_the_probe_equals_one_without_bit_for_bit(
    gram: bool, accumulate: int, weighted: bool
) -> None:
    others: list[Callback] = [HarmReduction(max_upweight=4.0)] if weighted else []
    plain = traced(*others, accumulate_grad_batches=accumulate)
    others = [HarmReduction(max_upweight=4.0)] if weighted else []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="HarmReduction")
        probed = traced(HarmProbe(every=2, gram=gram), *others, accumulate_grad_batches=accumulate)
    assert len(plain) == len(probed) == (8 if accumulate == 1 else 16)
    for first, second in zip(plain, probed, strict=True):
        for one, other in zip(first[:2], second[:2], strict=True):
            for name in one:
                assert (one[name] is None) == (other[name] is None)
                assert one[name] is None or torch.equal(one[name], other[name]), name
        assert torch.equal(first[2], second[2])
        assert first[3] == second[3]
        assert str(first[4]) == str(second[4])


class LossesAround(Callback):
    """The losses of each batch before and after its step, where there is nothing random."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self._before = torch.zeros(0)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._before = pl_module.per_sample_loss(batch).detach()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.pairs.append((self._before, pl_module.per_sample_loss(batch).detach()))


def test_rate_and_mass_are_those_of_the_losses_around_the_step() -> None:
    probe, around, logger = HarmProbe(every=3), LossesAround(), RecordingLogger()
    fit(Learner(mlp()), probe, around, logger=logger, steps=8)
    assert [one.step for one in probe.probed] == [0, 3, 6]
    for one in probe.probed:
        before, after = around.pairs[one.step]
        changes = after - before
        assert one.rate == pytest.approx(float((changes > 0).float().mean()))
        assert one.mass == pytest.approx(float(changes.clamp_min(0).sum() / changes.abs().sum()), rel=1e-4)
        assert one.changes == pytest.approx(changes.tolist(), rel=1e-4, abs=1e-6)
        assert logger.of("harm/rate")[one.step] == pytest.approx(one.rate)
        assert logger.of("harm/mass")[one.step] == pytest.approx(one.mass)
    assert any(0 < one.mass < 1 for one in probe.probed)


def test_the_loss_before_is_the_loss_of_the_step_with_its_dropout() -> None:
    entries: list[float] = []

    class Peek(HarmProbe):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
            entries.append(float(self._window[-1].losses.mean()))

    class Losses(Callback):
        def __init__(self) -> None:
            self.values: list[float] = []

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
            self.values.append(float(loss.detach()))

    losses = Losses()
    fit(Learner(Noisy()), Peek(every=1), losses, steps=4)
    assert entries == losses.values


def test_the_losses_after_have_the_dropout_of_those_before() -> None:
    probe = HarmProbe(every=1)
    fit(Learner(Noisy(), lambda p: torch.optim.SGD(p, lr=0.0)), probe, steps=3)
    assert probe.probed == []  # nothing moved, so that no loss changed


def test_all_batches_of_a_window_count() -> None:
    probe = HarmProbe(every=1)
    fit(Learner(mlp()), probe, batch=4, accumulate_grad_batches=2, steps=3)
    assert [len(one.changes) for one in probe.probed] == [8, 8, 8]


def test_whole_gradients_predict_the_changes_and_correlate_with_the_last_layers() -> None:
    probe = HarmProbe(every=1, gram=True)
    model = mlp()
    fit(Learner(model, lambda p: torch.optim.SGD(p, lr=1e-3)), probe, steps=2)
    assert probe.probed[0].mass_first_order == pytest.approx(probe.probed[0].mass, rel=0.05, abs=1e-3)
    inputs, labels = (column[:8] for column in rows().tensors)
    module = Learner(mlp())
    losses = cross_entropies(module.model(inputs), labels)
    whole = torch.stack(
        [
            torch.cat([g.flatten() for g in torch.autograd.grad(one, module.parameters(), retain_graph=True)])
            for one in losses
        ]
    )
    last = whole[:, -27:]
    off = ~np.eye(8, dtype=bool)
    expected = np.corrcoef((last @ last.T).numpy()[off], (whole @ whole.T).numpy()[off])[0, 1]
    assert probe.probed[0].gram_correlation == pytest.approx(expected, abs=1e-5)


def test_a_step_that_moves_nothing_is_left_out() -> None:
    probe = HarmProbe(every=1)
    fit(Learner(mlp(), lambda p: torch.optim.SGD(p, lr=0.0)), probe, steps=2)
    assert probe.probed == []
    assert probe.summary() == "HarmProbe: no step was probed"


def test_a_classifier_without_per_sample_loss_is_taken_for_one_of_cross_entropy() -> None:
    class Plain(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = mlp()

        def forward(self, inputs: Tensor) -> Tensor:
            logits: Tensor = self.model(inputs)
            return logits

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return momentum(self.parameters())

    probe, own = HarmProbe(every=1), HarmProbe(every=1)
    fit(Plain(), probe, steps=3)
    fit(Learner(mlp()), own, steps=3)
    assert [one.changes for one in probe.probed] == [one.changes for one in own.probed]


def test_losses_that_cannot_be_known_are_refused_in_words() -> None:
    class Opaque(Learner):
        per_sample_loss = None  # type: ignore[assignment]

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.model(batch[0]).square().mean()

    with pytest.raises(MisconfigurationException, match=r"give Opaque a method per_sample_loss\(batch\)"):
        fit(Opaque(mlp()), HarmProbe(), steps=1)

    class Wrong(Learner):
        def per_sample_loss(self, batch: Any) -> Tensor:
            return super().per_sample_loss(batch).mean()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.per_sample_loss(batch)

    with pytest.raises(MisconfigurationException, match=r"must return shape \(batch,\), got \(\)"):
        fit(Wrong(mlp()), HarmProbe(), steps=1)


def test_it_says_and_draws_what_it_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    probe = HarmProbe(every=2, picture=str(tmp_path / "pictures" / "harm.png"))
    with caplog.at_level("INFO"):
        fit(Learner(mlp()), probe, steps=6)
    rate = sum(one.rate for one in probe.probed) / 3
    assert f"in 3 steps of SGD, {rate:.0%} of the samples" in caplog.text
    assert (tmp_path / "pictures" / "harm.png").stat().st_size > 10_000


def test_both_callbacks_give_their_pictures_to_loggers_that_keep_them() -> None:
    logger = RecordingLeydenLogger()
    probe, reduction = HarmProbe(every=2), HarmReduction()
    fit(Learner(mlp()), probe, reduction, logger=logger, steps=6)
    assert set(logger.figures) == {"harm", "harm_probe"}
    rates = logger.figures["harm_probe"].axes[0].lines[0].get_ydata()
    assert list(rates) == [one.rate for one in probe.probed]
    faint = logger.figures["harm"].axes[1].lines[0].get_ydata()
    assert len(faint) == 6
    silent = RecordingLeydenLogger()
    fit(Learner(mlp()), HarmProbe(every=2, figure=False), HarmReduction(figure=False), logger=silent, steps=6)
    assert not silent.figures


def test_losses_that_are_not_finite_are_told_and_left_out_of_the_means() -> None:
    class Spoil(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                batch[0][0, 0] = float("nan")

    probe, spoilt = HarmProbe(every=1), HarmProbe(every=1)
    fit(Learner(mlp()), probe, steps=2)
    fit(Learner(mlp()), Spoil(), spoilt, steps=4)
    assert spoilt.summary() == probe.summary() + "; in 2 more, losses were not finite"
    spoilt.probed = spoilt.probed[2:]
    assert "in 0 steps of SGD losses were finite; in 2 more" in spoilt.summary()


def test_what_cannot_be_drawn_or_found_is_refused_before_the_training() -> None:
    class Never(Learner):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            raise AssertionError

    with pytest.raises(ValueError, match=r"picture: expected a file that ends in .*, got 'harm\.xyz'"):
        HarmProbe(picture="harm.xyz")
    with pytest.raises(MisconfigurationException, match=r"layer: there is no module 'nope'.*'model\.2'"):
        fit(Never(mlp()), HarmProbe(gram=True, layer="nope"), steps=1)


def test_gradients_are_also_correlated_where_hooks_would_not_run_and_not_where_the_layer_is_frozen() -> None:
    model = mlp()
    model.compile(backend="eager")
    probe = HarmProbe(every=1, gram=True)
    fit(Learner(model), probe, steps=1)
    assert probe.probed[0].gram_correlation is not None
    model = mlp()
    model[2].requires_grad_(False)
    fit(Learner(model), probe, steps=1)
    assert probe.probed[0].gram_correlation is None


@pytest.mark.parametrize("every", [0, -1, True, 1.5])
def test_a_wrong_interval_is_named(every: Any) -> None:
    with pytest.raises(ValueError, match="every: expected a whole number of at least 1"):
        HarmProbe(every=every)


def test_a_second_training_begins_anew() -> None:
    probe = HarmProbe(every=2)
    for _ in range(2):
        fit(Learner(mlp()), probe, steps=4)
        assert [one.step for one in probe.probed] == [0, 2]
