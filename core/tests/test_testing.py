"""The kit finds what is broken in a component, and passes what is not."""

from __future__ import annotations

import dataclasses
import doctest
from pathlib import Path

import pytest
from leyden.model import CAPABILITIES, Component
from leyden.testing import ResumableLoader, check_component, checks, resume

FILES = {
    "optimizer": "optimizers",
    "lr_scheduler": "schedulers",
    "callback": "callbacks",
    "module": "modules",
    "layer": "layers",
    "loss": "layers",
    "metric": "metrics",
    "datamodule": "datamodules",
    "function": "functions",
}
TRIALS = {
    "callback": "callbacks.damped",
    "layer": "layers.one_tensor",
    "loss": "layers.two_tensors",
    "metric": "metrics.seven_rows",
}
PROMISED = {name for name, debtors, _ in checks() if "supports" in debtors}
OF_PROCESSES = {"ddp", "fsdp2", "kill-resume"}


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def example(kind: str, name: str, *, trial: str = "") -> Component:
    trial = trial or TRIALS.get(kind, "")
    return Component(
        kind=kind,
        path=f"kit_examples.{FILES[kind]}.{name}",
        summary="An example.",
        supports=CAPABILITIES,
        trial=trial and f"kit_examples.{trial}",
    )


def owed(kind: str) -> list[str]:
    """The names of the checks of a kind that need no processes."""
    return [name for name, debtors, _ in checks() if kind in debtors.split(" (")[0].split(", ")]


def found(component: Component, *only: str) -> str:
    findings = check_component(component, only=only, from_paper=True, contributed=True)
    return "\n".join(finding.text for finding in findings)


ON_ITS_OWN_TRIAL = [
    ("OnSphere", "optimizers.on_sphere"),
    ("Extragradient", "optimizers.saddle"),
]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("optimizer", "Steady"),
        ("lr_scheduler", "Halving"),
        ("lr_scheduler", "FollowsLoss"),
        ("callback", "Modest"),
        ("module", "Classifier"),
        ("layer", "Mixing"),
        ("loss", "Distance"),
        ("metric", "MeanDistance"),
        ("datamodule", "Rows"),
        ("function", "halved"),
    ],
)
def test_a_component_that_keeps_its_promises_passes(kind: str, name: str) -> None:
    assert found(example(kind, name), *owed(kind)) == ""


BROKEN = {
    "optimizer": [
        ("WithoutClosure", "automatic-optimization", "raised"),
        ("KeepsPendingLoss", "loss-sources", "leaves pending_loss set"),
        ("ContentWithoutLoss", "loss-sources", "a step with gradients and no loss raises nothing"),
        ("WithoutLr", "learning-rate", "no 'lr'"),
        ("IgnoresLr", "learning-rate", "'lr' does nothing"),
        ("ResetsLr", "schedulers", "not [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]"),
        ("NormOfEachGroup", "parameter-groups", "in two groups differ"),
        ("MovesFrozen", "idle-parameters", "a parameter that is frozen changed"),
        ("CrashesWithoutGradient", "idle-parameters", "raised"),
        ("IgnoresWeightDecay", "weight-decay", "'weight_decay' does nothing"),
        ("CountsSkippedBatches", "skipped-batch", "changes what later steps do"),
        ("SpreadsNaN", "nonfinite-loss", "loss nan is not skipped"),
        ("HidesNaN", "nonfinite-loss", "leaves no trace"),
        ("PoisonsState", "nonfinite-loss", "poisons the optimizer's state"),
        ("LowPrecisionState", "bf16-parameters", "state of bf16 parameters: 'momentum' is torch.bfloat16"),
        ("StateCastOnLoad", "bf16-parameters", "after load_state_dict: 'momentum' is torch.bfloat16"),
        ("ForgetsState", "state-dict", "differ from 8 steps"),
        ("ForgetsState", "epoch-resume", "differs from the uninterrupted one"),
        ("ForgetsState", "mid-epoch-resume", "differs from the uninterrupted one"),
        ("SavesFraction", "weights-only", "Fraction"),
        ("LosesAttribute", "copies", "after pickle its step raises AttributeError"),
        ("ReadsNumber", "host-synchronisation", "loss.item()"),
        ("BranchesOnTensor", "host-synchronisation", "if squared_norm > 0"),
        ("ListsNumbers", "host-synchronisation", ".tolist()"),
        ("DiffersEachTime", "reproducible", "two trainings from one seed differ"),
        ("TakesLastLoss", "accumulation", "with batches 4 times as large differ"),
        ("BreaksUnderClipping", "clipping", "AssertionError: too small"),
        ("NeedsClosure", "scaler", "step needs a closure"),
        ("AcceptsNaN", "arguments", "decay=nan is accepted"),
        ("NamesNothing", "arguments", "does not name 'decay'"),
        ("RaisesTypeError", "arguments", "raises TypeError, not ValueError"),
    ],
    "lr_scheduler": [
        ("ForgetsCount", "state-dict", "after a round trip through state_dict"),
        ("ForgetsCount", "mid-epoch-resume", "differs"),
        ("SavesFraction", "weights-only", "refuses its state"),
        ("with_lambda", "copies", "raised"),
    ],
    "callback": [
        ("Explodes", "training", "not finite after the first training"),
        ("Once", "training", "raised"),
        ("FailsInTest", "stages", "trainer.test with it raises IndexError"),
        ("HoldsLock", "copies", "pickle raises TypeError"),
        ("CopiesBadly", "copies", "a training with its copy.deepcopy differs"),
        ("SavesModule", "saved-state", "refuses its state"),
        ("ForgetsFactor", "saved-state", "is not what was loaded"),
        ("ForgetsFactor", "mid-epoch-resume", "differs"),
        ("LeavesHooks", "leaves-nothing-behind", "that an exception ended the module has 1 hooks"),
        ("AddsBuffer", "leaves-nothing-behind", "['damping']"),
        ("MicroBatches", "accumulation", "differ"),
        ("Meddles", "self-gating", "a plain training with SGD differs"),
        ("DrawsNumbers", "self-gating", "draws other random numbers"),
        ("LogsEverywhere", "self-gating", "logs noise"),
        ("HasState", "self-gating", "it has a state"),
        ("HasState", "idempotence", "Found more than one stateful callback"),
        ("Twice", "idempotence", "that holds it twice differs"),
    ],
    "module": [
        ("GradientInTest", "stages", "trainer.test raises"),
        ("WithoutOptimizer", "bookkeeping", "trainer.global_step is 0"),
        ("WithoutOptimizer", "bookkeeping", "wrote nothing"),
        ("TwoOptimizers", "bookkeeping", "trainer.global_step is 4"),
        ("SavesFraction", "weights-only", "Fraction"),
        ("HoldsLock", "copies", "copy.deepcopy raises TypeError"),
        ("ForgetsCount", "epoch-resume", "differs"),
        ("Noisy", "reproducible", "two trainings from one seed differ"),
        ("SumOfLosses", "accumulation", "differ"),
        ("RefusesClipping", "clipping", "RuntimeError: not possible"),
        ("TellsCompiled", "compiled", "with and without torch.compile differ"),
        ("OverflowsInHalf", "bf16-autocast", "not finite"),
    ],
    "layer": [
        ("InfiniteOutput", "forward", "not finite on finite inputs"),
        ("WrongGradient", "gradients", "gradcheck"),
        ("MixesRows", "batches", "the same row alone give different outputs"),
        ("HoldsLock", "copies", "copy.deepcopy after a call raises TypeError"),
        ("CopiesBadly", "copies", "its pickle after a call gives another output"),
        ("ForgetsBuffer", "saved-state", "gives another output"),
        ("OnlyFloat32", "types", "torch.float64 give torch.float32"),
        ("SpreadsNaN", "nan-input", "makes other rows' outputs NaN"),
        ("SwallowsNaN", "nan-input", "vanishes"),
        ("VagueAboutShape", "wrong-shape", "without naming the size 4: wrong shape"),
        ("TellsCompiled", "compiled", "with and without torch.compile differ"),
        ("OverflowsInHalf", "bf16-autocast", "not finite"),
    ],
    "loss": [("WeighsFirstRow", "row-order", "in another order the loss differs")],
    "metric": [
        ("MeanOfMeans", "merging", "updated with two halves"),
        ("KeepsLargest", "merging", "gathered from two processes"),
        ("Remembers", "resetting", "remembers earlier data"),
        ("HoldsLock", "copies", "raised"),
    ],
    "datamodule": [
        ("WithoutLoaders", "loaders", "neither train_dataloader nor test_dataloader"),
        ("Empty", "loaders", "train_dataloader() gives no batch"),
        ("OnlyForFit", "loaders", "raised"),
        ("DrawsFreely", "deterministic", "different first batches"),
        ("NewFingerprint", "fingerprint", "different fingerprints"),
        ("HoldsLock", "copies", "pickle after setup raises TypeError"),
    ],
    "function": [
        ("without_docstring", "docstring", "no docstring"),
        ("without_args", "docstring", "no 'Args:' section"),
        ("leaves_one_out", "docstring", "leaves out times"),
        ("without_returns", "docstring", "no 'Returns:' section"),
        ("without_shape", "shapes", "state a shape"),
        ("without_types", "type-hints", "without a type: value"),
        ("without_types", "type-hints", "its result has no type"),
        ("wrong_example", "examples", "tensor(1)"),
        ("of_nobody", "place-in-paper", "names an equation"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "name", "check", "text"),
    [(kind, *case) for kind, cases in BROKEN.items() for case in cases],
)
def test_a_component_broken_in_one_way_fails_the_check_of_it(
    kind: str, name: str, check: str, text: str
) -> None:
    assert text in found(example(kind, name), check)


def test_every_check_of_a_component_has_a_component_that_fails_it() -> None:
    tried = {check for cases in BROKEN.values() for _, check, _ in cases}
    by_trial = {"compiled-model"}
    assert {name for name, _, _ in checks()} - OF_PROCESSES <= tried | by_trial


@pytest.mark.parametrize(
    ("trial", "check", "text"),
    [
        ("optimizers.tells_compiled", "compiled-model", "with and without torch.compile of the model differ"),
        ("optimizers.only_in_float32", "bf16-autocast", "nothing changed"),
    ],
)
def test_what_breaks_with_the_model_is_found_by_a_trial_of_it(trial: str, check: str, text: str) -> None:
    assert text in found(example("optimizer", "Steady", trial=trial), check)


@pytest.mark.parametrize(
    ("kind", "name", "check"),
    [
        ("optimizer", "RefusesClipping", "clipping"),
        ("optimizer", "ReadsOwnCounter", "host-synchronisation"),
        ("callback", "Damping", "mid-epoch-resume"),
        ("callback", "Damping", "saved-state"),
        ("module", "Solver", "accumulation"),
        ("module", "Solver", "bookkeeping"),
        ("module", "Solver", "mid-epoch-resume"),
        ("layer", "SaysSo", "nan-input"),
    ],
)
def test_what_is_as_good_passes_too(kind: str, name: str, check: str) -> None:
    assert found(example(kind, name), check) == ""


@pytest.mark.parametrize(("name", "trial"), ON_ITS_OWN_TRIAL)
def test_an_optimizer_with_constraints_or_manual_optimization_passes_on_its_own_trial(
    name: str, trial: str
) -> None:
    component = dataclasses.replace(example("optimizer", name, trial=trial), supports=())
    checks_of_optimizers = [
        check for check in owed("optimizer") if check not in PROMISED | {"place-in-paper"}
    ]
    assert found(component, *checks_of_optimizers) == ""


def test_a_layer_without_inputs_is_told_what_it_needs() -> None:
    component = Component(kind="layer", path="kit_examples.layers.Mixing", summary="An example.")
    assert "name a function that returns them, Component(trial=...)" in found(component, "forward")


def test_an_unknown_check_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'acumulation' is no check of this .*; there are .*accumulation"):
        found(example("optimizer", "Steady"), "acumulation")


def test_an_exempt_check_is_not_run() -> None:
    component = Component(
        kind="optimizer",
        path="kit_examples.optimizers.IgnoresLr",
        summary="An example.",
        exempt={"learning-rate": "its step has no size that could be scaled"},
    )
    assert found(component, "learning-rate") == ""


def test_a_resumable_loader_goes_on_where_the_saved_one_stood() -> None:
    loader = ResumableLoader(list(range(6)), shuffle=True)
    epochs = [list(loader) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(6))] * 3
    assert epochs[0] != epochs[1]

    again = ResumableLoader(list(range(6)), shuffle=True)
    started = iter(again)
    first = [next(started) for _ in range(4)]
    resumed = ResumableLoader(list(range(6)), shuffle=True)
    resumed.load_state_dict(again.state_dict())
    resumed.set_epoch(0)
    assert first + list(resumed) == epochs[0]
    assert list(resumed) == epochs[1]


def test_a_resumable_loader_starts_the_epoch_that_it_is_told() -> None:
    loader = ResumableLoader(list(range(6)), shuffle=True)
    second = [list(loader) for _ in range(2)][1]
    fresh = ResumableLoader(list(range(6)), shuffle=True)
    fresh.set_epoch(1)
    assert list(fresh) == second


def test_the_examples_in_the_kits_own_docstrings_are_true() -> None:
    assert doctest.testmod(resume).attempted > 0
    assert doctest.testmod(resume).failed == 0
