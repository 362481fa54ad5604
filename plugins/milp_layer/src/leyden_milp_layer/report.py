"""A callback that tells what rules do: activity, satisfaction, corrections, and which cost accuracy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from leyden.logger import LeydenLogger
from leyden_callbacks import keeps_figures, log_figure
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import MLFlowLogger
from torch import Tensor
from torchmetrics import Metric

from leyden_milp_layer.certificate import Certificate, certify, in_table, joined
from leyden_milp_layer.evaluation import violations
from leyden_milp_layer.projection import DisjunctiveProjection, ProjectionInfo
from leyden_milp_layer.rules import RuleSet
from leyden_milp_layer.satisfaction import RuleSatisfaction

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RuleLine:
    """What is known of one rule after an evaluation.

    Attributes:
        name: the rule's name.
        applies: the share of the samples to which it applies.
        raw: the share of those that satisfied it before the projection.
        satisfied: the share after it.
        targets: the share of those whose target satisfies it; NaN where targets are no outputs.
        moved: the mean l1 correction of the samples to which it applies.
        cost: how much larger the mean error of all samples is with the rule than without it: mean squared
            error, or share of wrong classes. Above 0 the rule costs accuracy.
        low: the lower end of the cost's 95 % interval over samples.
        high: the upper end.
    """

    name: str
    applies: float
    raw: float
    satisfied: float
    targets: float
    moved: float
    cost: float
    low: float
    high: float


class RuleReport(Callback):
    """Tells what the rules of a `DisjunctiveProjection` in the model do in validation and test.

    It logs ``rules/csat``, ``rules/csat/NAME``, ``rules/contradictory``, ``rules/mean_correction_l1``,
    ``rules/scenarios_mean``, ``rules/lps_per_sample`` and ``rules/ms_per_sample`` (in test with the prefix
    ``test_rules/``), and where the batch's last entry are targets and the layer is exact ``rules/cost/NAME``:
    the error of the outputs minus the error that they would have had without the rule (the same projection,
    that one rule left out). In NAME, what MLflow does not take in a name becomes ``_``. A rule whose cost is
    above 0 with its 95 % interval costs accuracy here: either the rule or the target is wrong there. After a
    test, `lines`, `table` and `certificate` hold the whole; `leyden.logger.LeydenLogger` and ``MLFlowLogger``
    get them with the picture, and at the end of a fit CSAT against the epoch. A model without such a layer is
    left alone.

    Args:
        tol: how far a row may be violated, at least 0.
        costs: whether the cost of each rule is found, which takes a projection more for each rule.
        figure: whether to draw.

    Attributes:
        lines: a `RuleLine` for each rule, of the last evaluation.
        certificate: the `Certificate` of the last test; under DDP of this process's samples.

    Raises:
        ValueError: if ``tol`` is negative or not finite.
    """

    def __init__(self, tol: float = 1e-6, *, costs: bool = True, figure: bool = True) -> None:
        if not 0 <= tol < math.inf:
            raise ValueError(f"tol: expected a finite number of at least 0, got {tol!r}")
        self.tol = tol
        self.costs = costs
        self.figure = figure
        self.lines: list[RuleLine] = []
        self.certificate: Certificate | None = None
        self._history: list[tuple[int, float]] = []
        self._tally: _Tally | None = None
        self._seen: ProjectionInfo | None = None
        self._certificates: list[Certificate] = []
        self._moves: list[Tensor] = []

    @property
    def costly(self) -> list[str]:
        """The rules that cost accuracy, the dearest first."""
        dear = [line for line in self.lines if line.low > 0]
        return [line.name for line in sorted(dear, key=lambda line: -line.cost)]

    def table(self) -> str:
        """The last evaluation as a Markdown table, a line for each rule.

        Returns:
            Lines joined by line ends; the last ones name the rules that cost accuracy, and those that targets
            themselves violate.
        """
        head = "| rule | applies | raw satisfies | satisfied | targets satisfy | moved | cost [95 %] |"
        rows = [head, "|---|---|---|---|---|---|---|"]
        for one in self.lines:
            shares = " | ".join(_share(value) for value in (one.applies, one.raw, one.satisfied, one.targets))
            cost = "" if math.isnan(one.cost) else f"{one.cost:+.2g} [{one.low:+.2g}, {one.high:+.2g}]"
            moved = "" if math.isnan(one.moved) else f"{one.moved:.3g}"
            rows.append(f"| {in_table(one.name)} | {shares} | {moved} | {cost} |")
        said = "; ".join(f"'{name}'" for name in self.costly) or "none"
        if all(math.isnan(one.cost) for one in self.lines):
            said = "not measured"
        violated = [f"'{one.name}' ({1 - one.targets:.0%})" for one in self.lines if one.targets < 1]
        against = f"Rules that targets violate: {'; '.join(violated) or 'none'}."
        known = any(not math.isnan(one.targets) for one in self.lines)
        return "\n".join([*rows, "", f"Rules that cost accuracy: {said}.", *([against] if known else [])])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget earlier runs."""
        self._history = []

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting."""
        self._start(pl_module)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting."""
        self._start(pl_module)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a batch."""
        self._count(pl_module, batch)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a batch, and certify it."""
        info = self._count(pl_module, batch)
        layer = layer_of(pl_module)
        if info is not None and layer is not None:
            self._certificates.append(certify(layer.rules, info.output, info.features, tol=self.tol))
            self._moves.append((info.output - info.y_hat).abs().sum(dim=1).cpu())

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what was counted."""
        numbers = self._finish(pl_module, "rules")
        if numbers and not trainer.sanity_checking:
            self._history.append((trainer.current_epoch, numbers["rules/csat"]))

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what was counted, and keep table, certificate and pictures."""
        numbers = self._finish(pl_module, "test_rules")
        if not numbers or not self._certificates:
            return
        self.certificate = joined(self._certificates)
        moves = torch.cat(self._moves)
        self._certificates, self._moves = [], []
        _keep_texts(trainer, {"rules.md": self.table(), "certificate.md": self.certificate.table()})
        if self.figure and keeps_figures(trainer):
            log_figure(trainer, "certificate", self.certificate.figure())
            log_figure(trainer, "corrections", draw_corrections(moves))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw CSAT against the epoch."""
        history, self._history = self._history, []
        if self.figure and len(history) > 1 and keeps_figures(trainer):
            log_figure(trainer, "csat", draw_history(history))

    def _start(self, module: LightningModule) -> None:
        layer = layer_of(module)
        self._tally = None if layer is None else _Tally(layer.rules, self.tol).to(module.device)
        self._seen = None if layer is None else layer.last_info
        self._certificates, self._moves = [], []

    def _count(self, module: LightningModule, batch: Any) -> ProjectionInfo | None:
        layer = layer_of(module)
        if self._tally is None or layer is None or layer.last_info is self._seen or layer.last_info is None:
            return None  # the projection is off
        self._seen = layer.last_info
        targets = batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
        self._tally.update(layer, layer.last_info, targets if self.costs else None)
        return layer.last_info

    def _finish(self, module: LightningModule, prefix: str) -> dict[str, float]:
        tally, self._tally, self._seen = self._tally, None, None
        if tally is None or not tally.rows:
            return {}
        self.lines, numbers = tally.told()
        names = metric_names(tally.rules.names)
        numbers |= {f"cost/{one.name}": one.cost for one in self.lines}
        named = {
            f"{prefix}/{_renamed(name, names)}": value
            for name, value in numbers.items()
            if math.isfinite(value)
        }
        # every process has the same numbers already
        module.log_dict(named, rank_zero_only=False, sync_dist=False)
        return named


class _Tally(Metric):
    """Sums over an evaluation, and over processes."""

    full_state_update = False
    rows: Tensor
    moved: Tensor
    scenarios: Tensor
    lps: Tensor
    seconds: Tensor
    active: Tensor
    raw: Tensor
    moved_by: Tensor
    agree: Tensor
    judged: Tensor
    cost: Tensor
    squares: Tensor
    costed: Tensor

    def __init__(self, rules: RuleSet, tol: float) -> None:
        super().__init__()
        count = len(rules.rules)
        self.rules, self.tol = rules, tol
        self.satisfaction = RuleSatisfaction(rules, tol)
        for name in ("rows", "moved", "scenarios", "lps", "seconds"):
            self.add_state(name, torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("active", "raw", "moved_by", "agree", "judged", "cost", "squares", "costed"):
            self.add_state(name, torch.zeros(count, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, layer: DisjunctiveProjection, info: ProjectionInfo, targets: Tensor | None) -> None:
        """Add a batch."""
        device = self.rows.device
        self.satisfaction.update(info.output, info.features)
        raw = violations(self.rules, info.y_hat, info.features)
        active = raw.active.double()
        move = (info.output - info.y_hat).abs().sum(dim=1).double().cpu()
        self.rows += len(move)
        self.moved += move.sum().to(device)
        self.scenarios += info.scenarios.sum().to(device)
        self.lps += info.lps.sum().to(device)
        self.seconds += info.seconds
        self.active += active.sum(dim=0).to(device)
        self.raw += ((raw.by_rule <= self.tol) * active).sum(dim=0).to(device)
        self.moved_by += (move[:, None] * active).sum(dim=0).to(device)
        if targets is None or not isinstance(targets, Tensor) or len(targets) != len(move):
            return
        if targets.shape == info.output.shape:
            truth = violations(self.rules, targets, info.features)
            self.agree += ((truth.by_rule <= 1e-4) * active).sum(dim=0).to(device)
            self.judged += active.sum(dim=0).to(device)
        elif targets.ndim != 1 or targets.is_floating_point():
            return
        if layer.relaxation == "dnf":  # without a rule, a relaxation would be another one
            self._attribute(layer, info, targets.detach())

    def _attribute(self, layer: DisjunctiveProjection, info: ProjectionInfo, targets: Tensor) -> None:
        """Add what each rule costs: the error with it minus the error without it."""
        with_all = _errors(info.output, targets)
        projected = torch.tensor([status == "projected" for status in info.status])
        for rule in range(len(self.rules.rules)):
            places = (projected & (info.chosen[:, rule] >= 0)).nonzero()[:, 0]
            difference = torch.zeros(len(with_all), dtype=torch.float64)
            if len(places):
                at = places.to(info.y_hat.device)
                features = None if info.features is None else info.features[at.to(info.features.device)]
                other = layer.without_rule(info.y_hat[at], features, rule)
                difference[places] = with_all[places] - _errors(other, targets[at.to(targets.device)])
            self.cost[rule] += difference.sum().to(self.cost.device)
            self.squares[rule] += difference.square().sum().to(self.cost.device)
        self.costed += len(with_all)

    def compute(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The sums, and the rates of `RuleSatisfaction`, over all processes."""
        return {name: getattr(self, name).clone() for name in self._defaults}, self.satisfaction.compute()

    def told(self) -> tuple[list[RuleLine], dict[str, float]]:
        """The lines, and the numbers that are logged."""
        computed, found = self.compute()
        sums: dict[str, Any] = {name: value.tolist() for name, value in computed.items()}
        rates = {name: float(value) for name, value in found.items()}
        rows = sums["rows"]
        numbers = rates | {
            "mean_correction_l1": sums["moved"] / rows,
            "scenarios_mean": sums["scenarios"] / rows,
            "lps_per_sample": sums["lps"] / rows,
            "ms_per_sample": 1000 * sums["seconds"] / rows,
        }
        lines = []
        for place, name in enumerate(self.rules.names):
            of = {key: value[place] for key, value in sums.items() if isinstance(value, list)}
            cost = _ratio(of["cost"], of["costed"])
            half = math.nan
            if of["costed"]:
                variance = max(of["squares"] / of["costed"] - cost**2, 0.0)
                half = 1.96 * math.sqrt(variance / of["costed"])
            lines.append(
                RuleLine(
                    name,
                    of["active"] / rows,
                    _ratio(of["raw"], of["active"]),
                    rates[f"csat/{name}"],
                    _ratio(of["agree"], of["judged"]),
                    _ratio(of["moved_by"], of["active"]),
                    cost,
                    cost - half,
                    cost + half,
                )
            )
        return lines, numbers


def layer_of(module: torch.nn.Module) -> DisjunctiveProjection | None:
    """The first projection in a model.

    Args:
        module: the model.

    Returns:
        The layer, or None where there is none.
    """
    return next((one for one in module.modules() if isinstance(one, DisjunctiveProjection)), None)


def draw_history(history: list[tuple[int, float]]) -> Figure:
    """CSAT of validation against the epoch.

    Args:
        history: epochs and rates, at least one.

    Returns:
        The figure.
    """
    from leyden.figures import PALETTE, new_figure

    figure, (ax,) = new_figure(title="Share of validation samples that satisfy every active rule")
    epochs, rates = zip(*history, strict=True)
    ax.plot(epochs, rates, color=PALETTE[0], marker="o", lw=1.8)
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlabel("epoch")
    ax.set_ylabel("csat")
    return figure


def draw_corrections(moves: Tensor) -> Figure:
    """How far the projection moved each sample.

    Args:
        moves: l1 distances, shape ``(samples,)``.

    Returns:
        The figure.
    """
    from leyden.figures import PALETTE, new_figure

    moved = moves[moves > 0]
    share = len(moved) / max(len(moves), 1)
    figure, (ax,) = new_figure(title=f"Corrections: {share:.0%} of {len(moves)} samples were moved")
    ax.hist(moved.double().numpy(), bins=30, color=PALETTE[0])
    ax.set_xlabel("l1 distance that a sample was moved")
    ax.set_ylabel("samples")
    return figure


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each row, or 1 where its class is wrong; float64 on the CPU."""
    if targets.shape == outputs.shape:
        return (outputs.double() - targets.double()).square().mean(dim=1).cpu()
    return (outputs.argmax(dim=1) != targets).double().cpu()


def metric_names(names: Sequence[str]) -> dict[str, str]:
    """For each name of a rule the one that it is logged under; MLflow takes no other characters.

    Args:
        names: of the rules.

    >>> metric_names(["load > 0.8", "load < 0.8"])
    {'load > 0.8': 'load _ 0.8', 'load < 0.8': 'load _ 0.8 2'}
    """
    logged: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^\w.\- ]", "_", name)
        unique, place = plain, 2
        while unique in logged.values():
            unique, place = f"{plain} {place}", place + 1
        logged[name] = unique
    return logged


def _renamed(key: str, names: Mapping[str, str]) -> str:
    """A key of a rule's number as it is logged."""
    kind, _, name = key.partition("/")
    return f"{kind}/{names[name]}" if name in names else key


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _keep_texts(trainer: Trainer, texts: dict[str, str]) -> None:
    """Keep texts with the run, wherever a logger of the Trainer can."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        for name, text in texts.items():
            if isinstance(logger, LeydenLogger):
                logger.log_text(text, name)
            elif isinstance(logger, MLFlowLogger):
                logger.experiment.log_text(logger.run_id, text, name)
