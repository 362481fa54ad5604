"""The losses, with settings and checks around `leyden_lk_losses.kernel`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from leyden_lk_losses.acceptance import check_draft_vocab, check_temperature, check_vocabularies
from leyden_lk_losses.baselines import BASELINES, baseline
from leyden_lk_losses.expected import expected_tokens_by_depth
from leyden_lk_losses.kernel import row_divergences

Kind = Literal["lk_lambda", "lk_alpha", "kl", "reverse_kl", "jsd", "tv", "ce", "fixed"]


class LKOutput(NamedTuple):
    """What `LKLoss` gives; all but the loss are without gradient.

    Attributes:
        loss: the total over depths, a scalar.
        alpha: mean acceptance rate of each depth, (depths,); NaN where the mask leaves nothing.
        lam: the weight λ of the KL divergence at each depth, (depths,), or its mean over tokens where each
            has its own; NaN for losses without one.
        kl: mean KL(p‖q) of each depth in nats, (depths,); NaN where the mask leaves nothing.
        tau_estimate: mean over positions of 1 + Σ_j Π_{i≤j} α_i, the tokens of a round if the draft's depths
            were accepted at these rates, a scalar. A position counts if its first depth does, and a depth
            that the mask leaves out ends its product.
    """

    loss: Tensor
    alpha: Tensor
    lam: Tensor
    kl: Tensor
    tau_estimate: Tensor


class LKLoss(nn.Module):
    """Losses for drafts of speculative decoding, Section 3 of Samarin et al. (2026), reconstructed.

    With the target's distribution p, the draft's q, the acceptance rate α = Σ min(p, q) and TV = 1 - α, a
    token costs

    - ``"lk_lambda"``: λ KL(p‖q) + (1 - λ) TV with λ = exp(-η α), where λ gets no gradient;
    - ``"lk_alpha"``: -log α;
    - and, for comparison, ``"kl"``: KL(p‖q); ``"tv"``: TV; ``"fixed"``: the first with a fixed λ;
      ``"reverse_kl"``: KL(q‖p); ``"jsd"``: the Jensen-Shannon divergence; ``"ce"``: -log q of the target's
      likeliest token.

    The total is Σ_n γ^(n-1) L_n over the depths n = 1, 2, …, where L_n is the mean over the tokens that the
    mask leaves, and 0 where it leaves none. Losses are computed in float32 at least, whatever the logits'
    type; under ``torch.autocast`` too.

    Args:
        kind: which loss.
        eta: η of ``"lk_lambda"``, at least 0: 0 is KL, a large one is TV. The paper takes 3, and 10 for
            MEDUSA's heads.
        fixed_lambda: λ of ``"fixed"``, from 0 to 1.
        lambda_reduction: whether λ comes from the mean of α over a depth's tokens in the (micro-)batch, or
            from each token's own.
        temperature: divides both logits, above 0.
        depth_decay: γ, from 0 to 1.
        normalise_depths: whether the total is divided by Σ γ^(n-1) over the depths.
        draft_vocab: the ids of the draft's tokens in the order of its logits, where it has fewer than the
            target. Then α takes p as it is and KL takes p renormalised on them.
        chunk_size: how many rows (positions of all depths) are processed at a time; None: as many as suit
            the cache.
        reduction: whether ``"lk_alpha"`` is the mean of -log α over tokens or -log of the mean of α.
        sync_lambda: whether λ of a depth comes from the batches of all processes, not of this one alone.

    Raises:
        ValueError: if an argument is out of its range.

    >>> target, draft = torch.tensor([[[0.5, 0.5]]]).log(), torch.tensor([[[0.9, 0.1]]]).log()
    >>> output = LKLoss("lk_alpha")(draft, target)
    >>> output.loss, output.alpha
    (tensor(0.5108), tensor([0.6000]))
    """

    draft_vocab: Tensor | None

    def __init__(
        self,
        kind: Kind = "lk_lambda",
        eta: float = 3.0,
        *,
        fixed_lambda: float = 0.5,
        lambda_reduction: Literal["depth", "token"] = "depth",
        temperature: float = 1.0,
        depth_decay: float = 0.8,
        normalise_depths: bool = False,
        draft_vocab: Tensor | Sequence[int] | None = None,
        chunk_size: int | None = None,
        reduction: Literal["mean_log", "log_mean"] = "mean_log",
        sync_lambda: bool = False,
    ) -> None:
        super().__init__()
        _check_choice("kind", kind, get_args(Kind))
        _check_choice("lambda_reduction", lambda_reduction, ("depth", "token"))
        _check_choice("reduction", reduction, ("mean_log", "log_mean"))
        if not (math.isfinite(eta) and eta >= 0):
            raise ValueError(f"eta: expected a finite number of at least 0, got {eta!r}")
        for name, value in (("fixed_lambda", fixed_lambda), ("depth_decay", depth_decay)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: expected a number from 0 to 1, got {value!r}")
        if temperature == 0:
            raise ValueError(
                "temperature: 0 is no distribution to learn from; kind='ce' learns the likeliest token"
            )
        check_temperature(temperature)
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size: expected a number of at least 1, or None, got {chunk_size!r}")
        if draft_vocab is not None:
            draft_vocab = torch.as_tensor(draft_vocab).clone()
            check_draft_vocab(draft_vocab)
        self.kind = kind
        self.eta = eta
        self.fixed_lambda = fixed_lambda
        self.lambda_reduction = lambda_reduction
        self.temperature = temperature
        self.depth_decay = depth_decay
        self.normalise_depths = normalise_depths
        self.chunk_size = chunk_size
        self.reduction = reduction
        self.sync_lambda = sync_lambda
        self._largest_id = -1 if draft_vocab is None else int(draft_vocab.max())
        self.register_buffer("draft_vocab", draft_vocab, persistent=False)

    def forward(
        self,
        draft_logits: Float[Tensor, "batch *depths time draft_vocab"],
        target_logits: Float[Tensor, "batch *depths time vocab"],
        mask: Bool[Tensor, "batch ..."] | None = None,
    ) -> LKOutput:
        """The loss of a batch and what was measured on the way.

        Args:
            draft_logits: (batch, depths, time, tokens of the draft), or (batch, time, tokens) for one depth.
                Minus infinity is a token that the draft does not have.
            target_logits: the same with the target's tokens; they get no gradient.
            mask: which tokens count, of the same shape without the vocabulary; (batch, time) is for all
                depths alike. None: all. What the logits hold elsewhere does not matter, be it NaN.

        Returns:
            The loss with α, λ and KL of each depth, and the estimate of tokens a round.

        Raises:
            ValueError: if shapes do not fit, or a row that counts is no distribution (see
                `leyden_lk_losses.kernel.row_divergences`; a NaN is told of there, with the model's name).
        """
        self._check(draft_logits, target_logits, mask)
        if draft_logits.dim() == 3:
            draft_logits, target_logits = draft_logits.unsqueeze(1), target_logits.unsqueeze(1)
        tokens = _Tokens.of(draft_logits, mask)
        kl, log_alpha = row_divergences(
            target_logits,
            draft_logits,
            draft_vocab=self.draft_vocab,
            temperature=self.temperature,
            chunk_size=self.chunk_size,
            valid=tokens.valid,
        )
        alpha = log_alpha.detach().exp()
        lam = self._lambda(tokens, alpha)
        if self.kind in BASELINES:
            rows = baseline(
                self.kind,
                target_logits.detach(),
                draft_logits,
                draft_vocab=self.draft_vocab,
                temperature=self.temperature,
                valid=tokens.valid,
            )
            losses = tokens.mean(rows)
        elif self.kind == "lk_alpha":
            losses = tokens.mean(-log_alpha) if self.reduction == "mean_log" else -tokens.log_mean(log_alpha)
        elif self.kind == "kl":
            losses = tokens.mean(kl)
        elif self.kind == "tv":
            losses = tokens.mean(-log_alpha.expm1())
        else:
            losses = tokens.mean(lam * kl - (1 - lam) * log_alpha.expm1())
        return LKOutput(
            loss=self._total(losses),
            alpha=tokens.mean(alpha, absent=math.nan),
            lam=tokens.mean(lam.expand_as(alpha), absent=math.nan),
            kl=tokens.mean(kl.detach(), absent=math.nan),
            tau_estimate=tokens.of_a_round(alpha),
        )

    def extra_repr(self) -> str:
        """The settings that differ between losses."""
        return (
            f"{self.kind!r}, eta={self.eta}, temperature={self.temperature}, depth_decay={self.depth_decay}"
        )

    def _lambda(self, tokens: _Tokens, alpha: Tensor) -> Tensor:
        """λ as it multiplies (batch, depths, time)."""
        if self.kind != "lk_lambda":
            constant = {"fixed": self.fixed_lambda, "kl": 1.0, "tv": 0.0}.get(self.kind, math.nan)
            return alpha.new_full((1, 1, 1), constant)
        if self.lambda_reduction == "depth":
            alpha = tokens.mean(alpha, over_processes=self.sync_lambda).view(1, -1, 1)
        return (-self.eta * alpha).exp()

    def _total(self, losses: Tensor) -> Tensor:
        """Σ γ^(n-1) L_n, over Σ γ^(n-1) if that is wished."""
        weights = self.depth_decay ** torch.arange(len(losses), dtype=losses.dtype, device=losses.device)
        total = (weights * losses).sum()
        return total / weights.sum() if self.normalise_depths else total

    def _check(self, draft_logits: Tensor, target_logits: Tensor, mask: Tensor | None) -> None:
        if draft_logits.dim() not in (3, 4):
            raise ValueError(
                "draft_logits: expected the shape (batch, depths, time, tokens) or (batch, time, tokens), "
                f"got {tuple(draft_logits.shape)}"
            )
        check_vocabularies(target_logits, draft_logits, self.draft_vocab)
        if self._largest_id >= target_logits.shape[-1]:
            raise ValueError(
                f"draft_vocab: the target has {target_logits.shape[-1]} tokens, got the id {self._largest_id}"
            )
        if mask is None:
            return
        shape = tuple(draft_logits.shape[:-1])
        wanted = (shape,) if len(shape) == 2 else (shape, (shape[0], shape[2]))
        if mask.dtype != torch.bool or tuple(mask.shape) not in wanted:
            raise ValueError(
                f"mask: expected bool of shape {' or '.join(map(str, wanted))}, got {mask.dtype} of shape "
                f"{tuple(mask.shape)}"
            )


class _Tokens(NamedTuple):
    """Which tokens count, as (batch, depths, time), None for all, and how many there are of each depth."""

    valid: Tensor | None
    number: Tensor

    @classmethod
    def of(cls, logits: Tensor, mask: Tensor | None) -> _Tokens:
        """Those of logits (batch, depths, time, tokens), with a mask as `LKLoss.forward` takes it."""
        batch, depths, time = logits.shape[:-1]
        dtype = torch.promote_types(logits.dtype, torch.float32)
        if mask is None:
            return cls(None, torch.full((depths,), batch * time, dtype=dtype, device=logits.device))
        valid = (mask if mask.dim() == 3 else mask.unsqueeze(1)).expand(batch, depths, time)
        return cls(valid, valid.sum(dim=(0, 2)).to(dtype))

    def mean(self, values: Tensor, *, absent: float = 0.0, over_processes: bool = False) -> Tensor:
        """The mean over what counts, for each depth, and a number where nothing does."""
        counted = values if self.valid is None else torch.where(self.valid, values, 0.0)
        total, count = counted.sum(dim=(0, 2)), self.number
        if over_processes and torch.distributed.is_available() and torch.distributed.is_initialized():
            both = torch.stack([total, count.to(total.dtype)])
            torch.distributed.all_reduce(both)
            total, count = both
        return torch.where(count > 0, total / count.clamp(min=1), absent)

    def log_mean(self, logarithms: Tensor) -> Tensor:
        """The logarithm of the mean over what counts, for each depth; 0 where nothing does."""
        if self.valid is not None:
            left_out = torch.where(self.number > 0, -math.inf, 0.0).view(1, -1, 1).to(logarithms.dtype)
            logarithms = torch.where(self.valid, logarithms, left_out)
        mean = logarithms.logsumexp(dim=(0, 2)) - self.number.clamp(min=1).log()
        return torch.where(self.number > 0, mean, 0.0)

    def of_a_round(self, alpha: Tensor) -> Tensor:
        """The mean over positions of 1 + Σ_j Π_{i≤j} α_i; a depth that does not count ends the product."""
        if self.valid is None:
            return expected_tokens_by_depth(alpha.movedim(1, -1)).mean()
        tokens = expected_tokens_by_depth((alpha * self.valid).movedim(1, -1))
        first = self.valid[:, 0]
        return torch.where(first, tokens, 0.0).sum() / first.sum()


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
