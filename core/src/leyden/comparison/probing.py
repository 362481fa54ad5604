"""What the short fits tell: whether an arm can run, which metric judges, how long everything takes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leyden.claims import CellResult, Mode
from leyden.comparison.arms import BASELINE, Contender
from leyden.configuration import callbacks_of
from leyden.errors import LeydenError, UsageError, unknown
from leyden.formatting import error_line
from leyden.manager import load_object

_SMALLER = (
    "loss error err mse rmse mae mape nll crossentropy ce perplexity ppl bpc wer cer fid kl regret distance"
)
_LARGER = (
    "acc accuracy auc auroc auprc f1 r2 precision recall score map ap iou dice bleu rouge psnr ssim "
    "reward return likelihood correlation"
)
_USAGE = "leyden.errors.UsageError: "
_SAID_IN_WORDS = re.compile(
    r"^(leyden\.errors\.LeydenError|lightning\.fabric\.utilities\.exceptions\.MisconfigurationException): "
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a short fit of an arm showed.

    Attributes:
        validation: the metrics logged in validation, with their values.
        test: those logged in testing; empty where the model or the data have no test.
        automatic: whether Lightning optimizes, not the model's own training step.
        optimizers: how many optimizers train.
        schedulers: how many schedulers there are.
        groups: how many parameter groups the optimizer has, of several optimizers the one with the most.
        fit_seconds: what a whole fit takes; NaN where the data do not tell.
        diverged: whether the loss was not finite in these few batches already.
    """

    validation: Mapping[str, float]
    test: Mapping[str, float]
    automatic: bool
    optimizers: int
    schedulers: int
    groups: int
    fit_seconds: float
    diverged: bool

    @classmethod
    def of(cls, measured: Mapping[str, Any]) -> Facts:
        """Read what the probe's cell measured."""

        def named(stage: str) -> dict[str, float]:
            return {
                name.removeprefix(f"{stage}:"): float(value)
                for name, value in measured.items()
                if name.startswith(f"{stage}:")
            }

        return cls(
            validation=named("val"),
            test=named("test"),
            automatic=bool(measured.get("automatic", 1.0)),
            optimizers=int(measured.get("optimizers", 0)),
            schedulers=int(measured.get("schedulers", 0)),
            groups=int(measured.get("groups", 1)),
            fit_seconds=float(measured.get("fit_seconds", math.nan)),
            diverged=bool(measured.get("diverged", 0.0)),
        )


def facts_of(result: CellResult) -> Facts:
    """The facts of an arm.

    Raises:
        UsageError: if the arm's configuration is wrong.
        LeydenError: if its fit failed for another reason.
    """
    if result.status == "done":
        return Facts.of(result.measured)
    line = error_line(result.error, at_most=1000)
    if line.startswith(_USAGE):
        raise UsageError(line.removeprefix(_USAGE))
    raise LeydenError(f"{result.cell.method} cannot be trained: {_SAID_IN_WORDS.sub('', line)}")


def choose_metric(facts: Facts, wanted: str | None, losses: Sequence[str] = ()) -> str:
    """The validation metric: what the user names, ``val_loss``, or the only one there is.

    Args:
        facts: about the baseline.
        wanted: what the user names.
        losses: the arms that bring a loss of their own, for which ``val_loss`` would be another number.

    Raises:
        UsageError: if there is no such metric, none at all, or several of which none is ``val_loss``; or if
            ``val_loss`` would be taken for arms with different losses.
    """
    logged = sorted(facts.validation)
    if not logged:
        raise UsageError(
            "the model logs nothing in validation, so nothing could be tuned or compared; "
            "it needs validation data and self.log(...) in validation_step"
        )
    if wanted is not None:
        if wanted not in logged:
            raise unknown("metric in --metric", wanted, logged)
        return wanted
    if "val_loss" in logged and losses:
        others = ", ".join(name for name in logged if name != "val_loss") or "log one that is no loss"
        raise UsageError(
            f"{', '.join(losses)} changes the loss, so val_loss is another quantity in every arm; choose a "
            f"metric by --metric: {others}"
        )
    if "val_loss" in logged:
        return "val_loss"
    if len(logged) > 1:
        raise UsageError(f"validation logs several metrics; choose one by --metric: {', '.join(logged)}")
    return logged[0]


def check_mode(wanted: str | None) -> None:
    """Refuse what ``--mode`` cannot be.

    Raises:
        UsageError: if it is neither "max" nor "min".
    """
    if wanted not in (None, "max", "min"):
        raise UsageError(f"--mode '{wanted}': expected 'max' or 'min'")


def choose_mode(metric: str, wanted: str | None) -> Mode:
    """Whether a larger or a smaller value is better: what the user says, or what the name tells.

    Raises:
        UsageError: if ``wanted`` is neither, or the name does not tell.
    """
    check_mode(wanted)
    if wanted is not None:
        return "max" if wanted == "max" else "min"
    words = set(re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", metric).lower()))
    smaller, larger = words & set(_SMALLER.split()), words & set(_LARGER.split())
    if bool(smaller) == bool(larger):
        raise UsageError(
            f"whether a larger {metric} is better cannot be told from its name; give --mode max or min"
        )
    return "min" if smaller else "max"


def metric_of_test(facts: Facts, metric: str) -> str:
    """The test metric that goes with a validation metric; empty where there is none.

    >>> metric_of_test(Facts.of({"test:test_acc": 0.5, "test:loss": 1.0}), "val_acc")
    'test_acc'
    """
    renamed = re.sub(r"(?<![a-zA-Z])(validation|valid|val)(?![a-zA-Z])", "test", metric)
    return next((name for name in (renamed, metric) if name in facts.test), "")


def does_not_apply(arm: Contender, base: Facts) -> str:
    """Why an arm cannot work with what trains here; empty if it can.

    Args:
        arm: the arm.
        base: what the baseline's short fit showed.
    """
    component = arm.component
    if component is None:
        return ""
    if component.kind == "optimizer" and base.optimizers > 1:
        return (
            f"the model trains with {base.optimizers} optimizers, so the configuration cannot give it one; "
            "write it in configure_optimizers"
        )
    needs_loss = bool(getattr(load_object(component.path), "needs_loss", False))
    if not base.automatic and needs_loss:
        return (
            f"{component.name} needs the loss of each step, and under manual optimization only the model has "
            "it; write it in configure_optimizers and call optimizer.step(loss=...)"
        )
    if not base.automatic and component.kind == "lr_scheduler":
        return "under manual optimization Lightning steps no scheduler; write it in the model"
    return ""


def dropped_scheduler(arm: Contender, base: Facts) -> str:
    """A note where the arm's optimizer takes the place of one that had a scheduler; else empty."""
    kind = arm.component.kind if arm.component else ""
    if kind != "optimizer" or "lr_scheduler" in arm.document or not base.schedulers:
        return ""
    return (
        f"{arm.name} runs without the scheduler that the model's own configure_optimizers makes; "
        "a scheduler under 'lr_scheduler:' in the configuration would be used by all."
    )


def dropped_groups(arm: Contender, base: Facts) -> str:
    """A note where the arm's optimizer gets one parameter group, the baseline has several; else empty."""
    kind = arm.component.kind if arm.component else ""
    if kind != "optimizer" or base.groups < 2:
        return ""
    return (
        f"{arm.name} gets all parameters in one group; the {base.groups} groups that the model's own "
        "configure_optimizers makes, and what is set in them, are the baseline's alone."
    )


def expected_seconds(fits: Mapping[str, int], facts: Mapping[str, Facts], jobs: int) -> float:
    """How long all fits take.

    Args:
        fits: how many of each arm.
        facts: what the short fits showed; an arm whose own does not tell is taken to be like the baseline.
        jobs: how many run at once.

    Returns:
        Seconds; NaN where the data do not tell their length.
    """
    base = facts[BASELINE].fit_seconds
    times = [
        amount * (base if math.isnan(facts[name].fit_seconds) else facts[name].fit_seconds)
        for name, amount in fits.items()
    ]
    return sum(times) / max(1, min(jobs, sum(fits.values())))


def left_out_callbacks(document: Mapping[str, Any]) -> Sequence[str]:
    """The names of a configuration's callbacks that a comparison leaves out, since they write checkpoints."""
    callbacks = callbacks_of(document.get("trainer") or {})
    if not callbacks:
        return []  # at once: the import below takes seconds, while the workers wait

    from lightning.pytorch.callbacks import Checkpoint

    from leyden.lightning import names_callback

    left_out = [item for item in callbacks if names_callback(item, Checkpoint)]
    named = [str(item["class_path"] if isinstance(item, Mapping) else item) for item in left_out]
    return [name.rpartition(".")[2] for name in named]
