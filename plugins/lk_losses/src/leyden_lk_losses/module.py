"""The LightningModule that trains a draft for a frozen target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from leyden.arguments import check_at_least
from leyden.errors import UsageError
from leyden.tasks import MakeOptimizer, MakeScheduler
from leyden_callbacks import keeps_figures, log_figure
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from leyden_lk_losses.alignment import by_depth, estimated_rounds
from leyden_lk_losses.distributions import TargetBatch
from leyden_lk_losses.drafts import HiddenDraft
from leyden_lk_losses.kernel import row_divergences
from leyden_lk_losses.loss import LKLoss, LKOutput
from leyden_lk_losses.models import read_folder, wrap
from leyden_lk_losses.outcomes import bucketed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MODULES = ("target", "draft", "loss", "optimizer", "lr_scheduler")


class Compared(NamedTuple):
    """A draft's logits beside the target's for the same tokens.

    Attributes:
        draft_logits: ``(batch, depths, time, tokens)``, one depth for a stand-alone draft.
        target_logits: the same, without gradient.
        mask: which count, bool of shape ``(batch, depths, time)``; None: all.
    """

    draft_logits: Tensor
    target_logits: Tensor
    mask: Tensor | None


class DraftTrainingModule(LightningModule):
    """Train a draft for a frozen target, Section 3 of Samarin et al. (2026), reconstructed.

    A batch is a tensor of tokens, int64 of shape ``(batch, time)``, or a tuple that begins with one; a second
    tensor of it that is bool says which tokens belong to the text. So text datamodules and
    `OnPolicyDataModule` fit. A `leyden_lk_losses.distributions.TargetBatch` brings the target's answer along,
    and then the target is not asked.

    The target is frozen, always in evaluation mode, and no submodule of this one: neither its optimizer nor
    its ``state_dict`` nor DDP know it. It moves from device to device with this module. Its parameters lose
    ``requires_grad``.

    Logged are ``train_loss``, ``val_loss`` and ``test_loss``; of validation ``val/alpha_depth1`` and so on,
    ``val/tau``, ``val/kl`` and ``val/top1`` (how often both have the same likeliest token), and the same of
    test; in training ``train/lambda_depth1`` and so on, at the steps that the Trainer logs. At the end of a
    fit the acceptance rates are drawn over depth. With accumulated gradients λ is that of each micro-batch.

    Args:
        target: a causal language model, see `leyden_lk_losses.models.wrap`, or the path of a folder of
            ``transformers``.
        draft: `MedusaHeads`, `MLPSpeculator` or another `leyden_lk_losses.drafts.HiddenDraft`, or a causal
            language model, which may be a path as well.
        loss: the loss; None is LK-λ with η = 3.
        lr: learning rate of AdamW; None where LightningCLI or ``optimizer`` brings the optimizer.
        k: tokens of a round that ``val/tau`` estimates; None is the number of a draft's depths, and 5 of a
            stand-alone draft.
        save_target: whether checkpoints hold the target's weights too.
        optimizer: makes the optimizer from the draft's parameters, where ``lr`` and LightningCLI do not.
        lr_scheduler: makes the scheduler from the optimizer.
        interval: whether this ``lr_scheduler`` steps after each ``"epoch"`` or each ``"step"``.

    Raises:
        ValueError: if an argument is wrong, or draft and target do not fit together; the text names it.
    """

    def __init__(
        self,
        target: nn.Module | str,
        draft: nn.Module | str,
        loss: LKLoss | None = None,
        lr: float | None = None,
        *,
        k: int | None = None,
        save_target: bool = False,
        optimizer: MakeOptimizer | None = None,
        lr_scheduler: MakeScheduler | None = None,
        interval: Literal["epoch", "step"] = "step",
    ) -> None:
        super().__init__()
        if lr is not None and not 0 < lr < math.inf:
            raise ValueError(f"lr: expected a finite number above 0, got {lr!r}")
        if loss is not None and not isinstance(loss, LKLoss):
            raise ValueError(f"loss: expected an LKLoss, got {type(loss).__name__}")
        if interval not in ("epoch", "step"):
            raise ValueError(f"interval: expected 'epoch' or 'step', got {interval!r}")
        check_at_least("k", 1 if k is None else k, 1)
        _check_makers(lr, optimizer, lr_scheduler)
        self.save_hyperparameters(ignore=list(_MODULES))
        if "_instantiator" in self.hparams:  # plain values of LightningCLI that rebuild each
            self.save_hyperparameters()
        self.target = wrap(target)  # not a module, so that nothing of it is registered
        self.target.module.eval().requires_grad_(False)
        self.draft = read_folder(draft).train() if isinstance(draft, str) else draft
        self.loss = LKLoss() if loss is None else loss
        _check_fit(self.draft, self.target, self.loss, k)
        self.depths = self.draft.depths if isinstance(self.draft, HiddenDraft) else 1
        standalone = not isinstance(self.draft, HiddenDraft)
        self.k = k if k is not None else 5 if standalone else self.depths
        self.save_target = save_target
        self.interval = interval
        self._language_model = wrap(self.draft) if standalone else None
        self._rates: list[float] = []
        self._train_total: Tensor | float = 0.0
        self._train_rows = 0
        if lr is not None:
            optimizer = partial(torch.optim.AdamW, lr=lr)
        if optimizer is not None:
            self._make_optimizer, self._make_scheduler = optimizer, lr_scheduler
            # On the object, because LightningCLI warns if a class has one and the configuration another.
            self.configure_optimizers = self._configure_optimizers  # type: ignore[method-assign]

    def forward(self, batch: Any) -> Compared:
        """The draft's logits for a batch beside the target's.

        Raises:
            ValueError: if the batch holds no tokens, or rows too short for the draft's depths.
        """
        proposed, expected, counted, indices = self._asked_both(batch)
        if indices is not None:
            proposed = bucketed(proposed, indices)
        return Compared(proposed, expected, counted)

    def _asked_both(self, batch: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """What draft and target say, which of it counts, and of which tokens the target's outcomes are."""
        tokens, mask = _unpacked(batch)
        if isinstance(batch, TargetBatch):
            self._check_answer(batch.target_logits)
            logits, hidden, indices = batch.target_logits, batch.hidden, batch.indices
        else:
            logits, hidden, indices = self._asked(tokens)
        if self._language_model is not None:
            # As a depth of its own, so that all drafts look alike from here on.
            proposed, expected = self._language_model.logits(tokens).unsqueeze(1), logits.unsqueeze(1)
            indices = None if indices is None else indices.unsqueeze(1)
            counted = None if mask is None else mask.unsqueeze(1)
        else:
            if hidden is None:
                with torch.no_grad():
                    hidden = self.target.hidden(tokens)
            # A target in half precision may have a draft in single precision.
            hidden = hidden.to(next((own.dtype for own in self.draft.parameters()), hidden.dtype))
            proposed = self.draft(hidden[:, : tokens.shape[1] - self.depths], tokens)
            expected = by_depth(logits, self.depths)
            indices = None if indices is None else by_depth(indices, self.depths)
            counted = None if mask is None else by_depth(mask, self.depths) & mask[:, None, : -self.depths]
        return proposed, expected, counted, indices

    def _check_answer(self, logits: Tensor) -> None:
        """A sum of tokens has no temperature: it would have to be taken of each before they are added."""
        if logits.shape[-1] != self.target.vocab and self.loss.temperature != 1:
            raise ValueError(
                f"loss: expected temperature=1 where some tokens of the target were kept as a sum, got "
                f"{self.loss.temperature}; keep 'full' or 'hidden'"
            )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        compared: Compared = self(batch)
        output: LKOutput = self.loss(*compared)
        rows = len(compared.draft_logits)
        # Summed here, because `self.log` at every step would cost as much as a small draft's step itself.
        self._train_total = self._train_total + output.loss.detach() * rows
        self._train_rows += rows
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and (self.global_step + 1) % every == 0:
            values = {"train_loss_step": output.loss.detach()}
            if self.loss.kind == "lk_lambda":
                values |= _numbered("train/lambda", output.lam)
            self.log_dict(values, on_step=True, on_epoch=False, batch_size=rows)
        return output.loss

    def on_train_start(self) -> None:
        """Forget what an interrupted fit has summed."""
        self._forget_training()

    def on_train_epoch_end(self) -> None:
        """Log the mean training loss of the epoch."""
        if self._train_rows:
            self.log("train_loss", self._train_total / self._train_rows, sync_dist=True)
        self._forget_training()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss, and how often the draft would be accepted."""
        self._evaluate("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss, and how often the draft would be accepted."""
        self._evaluate("test", batch)

    def on_validation_epoch_end(self) -> None:
        """Keep the acceptance rates for the picture."""
        values = self.trainer.callback_metrics
        names = [f"val/alpha_depth{depth + 1}" for depth in range(self.depths)]
        if all(name in values for name in names):
            self._rates = [float(values[name]) for name in names]

    def on_fit_end(self) -> None:
        """Draw the acceptance rates over depth, where a logger keeps figures."""
        if self._rates and keeps_figures(self.trainer):
            log_figure(self.trainer, "acceptance", acceptance_figure({str(self.loss.kind): self._rates}))

    def train(self, mode: bool = True) -> DraftTrainingModule:
        """Set the draft's mode; the target stays in evaluation mode."""
        super().train(mode)
        self.target.module.eval()
        return self

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the target's weights, if that is wished."""
        if self.save_target:
            checkpoint["target_state_dict"] = self.target.module.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the target's weights, where there are some."""
        if (state := checkpoint.get("target_state_dict")) is not None:
            self.target.module.load_state_dict(state)

    def configure_callbacks(self) -> list[Any]:
        """Add none; as the first hook of a fit it is the place to say that there is no optimizer."""
        if self.trainer.training and not is_overridden("configure_optimizers", self):
            raise UsageError(
                "DraftTrainingModule has no optimizer: write `optimizer:` in the configuration, or lr=0.001"
            )
        return []

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the target too."""
        self.target.module._apply(fn)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _asked(self, tokens: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """The target's logits, and its hidden states where the draft reads them."""
        with torch.no_grad():
            if self._language_model is not None:
                return self.target.logits(tokens), None, None
            return *self.target.observe(tokens), None

    def _evaluate(self, stage: str, batch: Any) -> None:
        draft, target, mask, indices = self._asked_both(batch)
        # Kept outcomes are in the order of their probabilities; the sum of the others is no token.
        likeliest = target.argmax(dim=-1) if indices is None else indices[..., 0]
        same = (self._likeliest(draft) == likeliest).float()
        compared = Compared(draft if indices is None else bucketed(draft, indices), target, mask)
        output: LKOutput = self.loss(*compared)
        valid = torch.ones_like(same, dtype=torch.bool) if mask is None else mask
        counts = valid.sum(dim=(0, 2)).tolist()
        values = [
            (f"{stage}_loss", output.loss, sum(counts)),
            (f"{stage}/kl", output.kl[0], counts[0]),
            (f"{stage}/top1", same[valid].mean(), sum(counts)),
            *(
                (name, rate, counts[depth])
                for depth, (name, rate) in enumerate(_numbered(f"{stage}/alpha", output.alpha).items())
            ),
        ]
        if (tau := self._tau(compared, output)) is not None:
            values.append((f"{stage}/tau", *tau))
        for name, value, count in values:
            # Of weight 0 rather than left out: all processes must log the same names.
            self.log(name, value if count else 0.0, sync_dist=True, batch_size=count)

    def _tau(self, compared: Compared, output: LKOutput) -> tuple[Tensor, int] | None:
        """The estimate for rounds of ``k`` tokens and of how many positions; None for rows too short."""
        draft, target, mask = compared
        if self._language_model is None and self.k == self.depths:
            first = draft[:, 0, :, 0].numel() if mask is None else int(mask[:, 0].sum())
            return output.tau_estimate, first
        if self._language_model is not None and draft.shape[2] < self.k:
            return None
        rates = row_divergences(
            target,
            draft,
            draft_vocab=self.loss.draft_vocab,
            temperature=self.loss.temperature,
            chunk_size=self.loss.chunk_size,
            valid=mask,
        )
        rounds = estimated_rounds(rates.log_alpha.exp(), self.k, mask)
        return rounds.mean(), len(rounds)

    def _likeliest(self, draft: Tensor) -> Tensor:
        places = draft.argmax(dim=-1)
        return places if self.loss.draft_vocab is None else self.loss.draft_vocab[places]

    def _forget_training(self) -> None:
        self._train_total = 0.0
        self._train_rows = 0

    def _configure_optimizers(self) -> Any:
        optimizer = self._make_optimizer(self.draft.parameters())
        if self._make_scheduler is None:
            return optimizer
        entry: dict[str, Any] = {"scheduler": self._make_scheduler(optimizer), "interval": self.interval}
        if isinstance(entry["scheduler"], ReduceLROnPlateau):
            entry["monitor"] = "val_loss"
        return {"optimizer": optimizer, "lr_scheduler": entry}


def with_loss(model: Any, **settings: Any) -> Any:
    """Give a `DraftTrainingModule` another loss, for ``leyden compare``.

    Args:
        model: the module.
        **settings: the arguments of `LKLoss`.

    Returns:
        The same module.

    Raises:
        ValueError: if it is another kind of module.
    """
    if not isinstance(model, DraftTrainingModule):
        raise ValueError(f"model: expected a DraftTrainingModule, got {type(model).__name__}")
    model.loss = LKLoss(**settings)
    return model


def acceptance_figure(rates: Mapping[str, Sequence[float]]) -> Figure:
    """Acceptance rates over depth, a line for each loss.

    Args:
        rates: for each loss the rate of every depth.

    Returns:
        The picture.
    """
    from leyden.figures import new_figure, styles

    figure, (ax,) = new_figure(
        title="Acceptance rate by depth", alt="For every loss the acceptance rate falls with depth."
    )
    for (name, values), style in zip(rates.items(), styles(rates).values(), strict=True):
        depths = range(1, len(values) + 1)
        ax.plot(depths, values, color=style.color, marker=style.marker, linestyle=style.line, label=name)
    ax.set_xlabel("depth of the proposal")
    ax.set_ylabel("acceptance rate")
    ax.set_xticks(range(1, 1 + max(map(len, rates.values()))))
    ax.legend(frameon=False)
    return figure


def _unpacked(batch: Any) -> tuple[Tensor, Tensor | None]:
    """The tokens of a batch, and which of them count."""
    if isinstance(batch, TargetBatch):
        return batch.tokens, batch.mask
    parts = [batch] if isinstance(batch, Tensor) else list(batch)
    tokens = parts[0] if parts else None
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.dim() != 2:
        given = "nothing"
        if tokens is not None:
            given = (
                f"{tokens.dtype} of shape {tuple(tokens.shape)}"
                if isinstance(tokens, Tensor)
                else repr(tokens)
            )
        raise ValueError(f"batch: expected tokens first, int64 of shape (batch, time), got {given}")
    mask = parts[1] if len(parts) > 1 else None
    return tokens, mask if mask is not None and mask.dtype == torch.bool else None


def _numbered(name: str, values: Tensor) -> dict[str, Tensor]:
    return {f"{name}_depth{place + 1}": value for place, value in enumerate(values)}


def _check_makers(lr: float | None, optimizer: object, lr_scheduler: object) -> None:
    if lr is not None and optimizer is not None:
        raise ValueError("lr: expected None where an optimizer is given, which has its own")
    if lr_scheduler is not None and lr is None and optimizer is None:
        raise ValueError("lr_scheduler: expected an optimizer or lr with it")


def _check_fit(draft: Any, target: Any, loss: LKLoss, k: int | None) -> None:
    if not isinstance(draft, nn.Module):
        raise ValueError(f"draft: expected a torch.nn.Module or a path, got {type(draft).__name__}")
    if draft is target.module:
        raise ValueError("draft: expected another model than the target")
    if not isinstance(draft, HiddenDraft):
        return
    if draft.hidden != target.hidden_size:
        raise ValueError(
            f"draft: expected hidden states of size {target.hidden_size} as the target has, "
            f"got {draft.hidden}"
        )
    if k is not None and k > draft.depths:
        raise ValueError(f"k: expected at most the draft's {draft.depths} depths, got {k}")
    if loss.draft_vocab is None and draft.vocab != target.vocab:
        raise ValueError(
            f"draft: expected {target.vocab} tokens as the target has, got {draft.vocab}; a draft of fewer "
            "tokens needs draft_vocab in its loss"
        )
