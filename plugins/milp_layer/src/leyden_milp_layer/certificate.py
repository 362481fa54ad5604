"""A certificate: which rules a whole dataset of outputs satisfies, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leyden_milp_layer.evaluation import Contradictions, violations
from leyden_milp_layer.rules import RuleSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Certificate:
    """What holds for a dataset, by evaluating every row at every output; no solver is trusted for it.

    Attributes:
        names: of the rules.
        active: which rules apply to each sample, shape ``(samples, rules)``.
        violation: of each rule at each sample, see `Violations`; 0 where it is satisfied or does not apply.
        common: the violation of bounds and global constraints, shape ``(samples,)``.
        contradictory: samples whose rules contradict each other, which are left out of `csat`.
        tol: how far a row may be violated.
    """

    names: tuple[str, ...]
    active: Bool[Tensor, "samples rules"]
    violation: Float[Tensor, "samples rules"]
    common: Float[Tensor, " samples"]
    contradictory: Bool[Tensor, " samples"]
    tol: float

    @property
    def held(self) -> Bool[Tensor, "samples rules"]:
        """Whether each rule is satisfied, or does not apply."""
        return (self.violation <= self.tol) | ~self.active

    @property
    def csat(self) -> float:
        """The share of the samples with all active rules satisfied, without contradictory ones."""
        kept = ~self.contradictory
        return float(self.held.all(dim=1)[kept].double().mean()) if bool(kept.any()) else float("nan")

    @property
    def holds(self) -> bool:
        """Whether every sample satisfies every active rule, the bounds and the global constraints."""
        return bool(self.held.all()) and bool((self.common <= self.tol).all())

    def violators(self) -> list[int]:
        """The samples that violate something, in order."""
        wrong = ~self.held.all(dim=1) | (self.common > self.tol)
        return [int(place) for place in wrong.nonzero()[:, 0]]

    def table(self) -> str:
        """The certificate as a Markdown table, a line for each rule.

        Returns:
            Lines joined by line ends.
        """
        lines = ["| rule | applies to | satisfied by | largest violation |", "|---|---|---|---|"]
        for place, name in enumerate(self.names):
            applies = self.active[:, place]
            lines.append(_line(name, applies, self.held[:, place], self.violation[:, place]))
        everyone = torch.ones_like(self.contradictory)
        lines.append(_line("bounds and global constraints", everyone, self.common <= self.tol, self.common))
        count, contradictory = len(self.common), int(self.contradictory.sum())
        wrong = len(self.violators())
        verdict = f"{wrong} sample{'s violate' if wrong > 1 else ' violates'} one"
        verdict = verdict if wrong else "every rule holds at every sample"
        lines += ["", f"{count} samples, tolerance {self.tol:g}, {contradictory} contradictory: {verdict}."]
        return "\n".join(lines)

    def figure(self) -> Figure:
        """The certificate as a picture: a line for each rule, a column for each sample.

        Returns:
            The figure; samples are ordered by how many rules apply to them.

        Raises:
            ValueError: if there is no sample.
        """
        if not len(self.common):
            raise ValueError("outputs: expected at least one sample to draw, got none")
        from leyden.figures import INK, MUTED, PALETTE, new_figure
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch

        order = torch.argsort(self.active.sum(dim=1), stable=True)
        state = torch.where(self.active, torch.where(self.held, 1, 2), 0)
        common = torch.where(self.common <= self.tol, 1, 2)[:, None]
        drawn = torch.cat([state, common], dim=1)[order].T.numpy()
        figure, (ax,) = new_figure(
            title=f"Rules satisfied by {len(self.common)} samples: csat {self.csat:.3f}",
            height=1.6 + 0.36 * (len(self.names) + 1),
            alt=self.table(),
        )
        colors = ("#eef0f2", PALETTE[5], PALETTE[1])
        ax.imshow(drawn, aspect="auto", interpolation="nearest", cmap=ListedColormap(colors), vmin=0, vmax=2)
        ax.set_yticks(range(len(self.names) + 1), [*self.names, "bounds and global"], color=INK)
        ax.set_xlabel("samples, by how many rules apply to them")
        ax.grid(visible=False)
        ax.set_yticks([place - 0.5 for place in range(1, len(self.names) + 1)], minor=True)
        ax.grid(visible=True, which="minor", axis="y", color="#ffffff", lw=2)
        ax.tick_params(which="both", length=0)
        labels = ("does not apply", "satisfied", "violated")
        handles = [Patch(facecolor=color, label=label) for color, label in zip(colors, labels, strict=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, labelcolor=MUTED)
        return figure


def certify(
    rules: RuleSet,
    outputs: Float[Tensor, "samples outputs"],
    features: Float[Tensor, "samples features"] | None = None,
    *,
    tol: float = 1e-6,
) -> Certificate:
    """Evaluate every rule at every output of a dataset; the rate is CSAT of Section 5 of Pal and Li (2026).

    Args:
        rules: the rules.
        outputs: the outputs of the dataset.
        features: the features, for rules that depend on them.
        tol: how far a row may be violated, relative to its largest term where that is above 1; at least 0.

    Returns:
        The certificate.

    Raises:
        ValueError: if a shape is wrong or ``tol`` is negative.

    >>> from leyden_milp_layer import at_most
    >>> certificate = certify(RuleSet(1, 0, 1, rules=[at_most(0, 0.25)]), torch.tensor([[0.75], [0.1]]))
    >>> certificate.csat, certificate.violators()
    (0.5, [0])
    """
    if not 0 <= tol < float("inf"):
        raise ValueError(f"tol: expected a finite number of at least 0, got {tol!r}")
    found = violations(rules, outputs, features)
    suspects = ((found.by_rule > tol) & found.active).any(dim=1)
    contradictory = Contradictions(rules).among(outputs, features, suspects)
    return Certificate(rules.names, found.active, found.by_rule, found.common, contradictory, tol)


def joined(certificates: Sequence[Certificate]) -> Certificate:
    """One certificate of the batches of a dataset.

    Args:
        certificates: at least one, of the same rules.

    Returns:
        Their rows together.
    """
    first = certificates[0]
    return Certificate(
        first.names,
        torch.cat([one.active for one in certificates]),
        torch.cat([one.violation for one in certificates]),
        torch.cat([one.common for one in certificates]),
        torch.cat([one.contradictory for one in certificates]),
        first.tol,
    )


def in_table(name: str) -> str:
    r"""A rule's name as a cell of a Markdown table.

    Args:
        name: any text.

    >>> in_table("a | b")
    'a \\| b'
    """
    return " ".join(name.split()).replace("|", "\\|")


def _line(name: str, applies: Tensor, held: Tensor, violation: Tensor) -> str:
    count = int(applies.sum())
    satisfied = int((held & applies).sum())
    worst = float(violation[applies].max()) if count else 0.0
    return f"| {in_table(name)} | {count} | {satisfied} | {worst:.2g} |"
