"""A frozen target's distributions, computed once over windows of tokens and kept on disk (reconstructed).

A draft sees every window many times while it trains, and the target, which is far larger, would answer the
same each time. So its answer is kept: in full, as the k likeliest tokens and the mass of the rest (see
`leyden_lk_losses.outcomes` for what that changes), or as the hidden states from which its output layer gives
all of it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from leyden.arguments import check_at_least
from leyden.cache import built_once, tensors_fingerprint
from torch import Tensor, nn
from torch.utils.data import Dataset

from leyden_lk_losses.acceptance import check_draft_vocab, check_temperature
from leyden_lk_losses.fingerprint import model_identity
from leyden_lk_losses.models import CausalModel, evaluating, wrap
from leyden_lk_losses.outcomes import with_rest

Keep = Literal["top-k", "full", "hidden"]
Precision = Literal["float32", "float16"]

_FORMAT = 1
_AGREEMENT = 1e-3
"""How far the output layer's logits may be from the target's own, relative to the largest."""


class TargetBatch(NamedTuple):
    """Windows of tokens with what the target said about them, in place of asking it again.

    Attributes:
        tokens: int64 of shape ``(batch, length)``.
        target_logits: float32 of shape ``(batch, length, outcomes)``; at each place of the token after it.
            Outcomes are the vocabulary, or chosen tokens and one more for all others.
        hidden: the target's last hidden states, float32 of shape ``(batch, length, width)``, where kept.
        indices: for ``keep="top-k"`` the tokens of the first k outcomes, int64 of shape ``(batch, length,
            k)``; `bucketed` brings the draft's logits into the same order. Else None.
        mask: which tokens belong to a text, bool of shape ``(batch, length)``; None: all.
    """

    tokens: Tensor
    target_logits: Tensor
    hidden: Tensor | None = None
    indices: Tensor | None = None
    mask: Tensor | None = None


class StoredDistributions(Dataset[TargetBatch]):
    """What `store_distributions` has kept, read from disk a batch at a time.

    ``leyden_datamodules.loader.training_loader`` and ``tensor_loader`` take it as it is.

    Args:
        folder: where it lies.
        head: the target's output layer, from hidden states to logits; needed for ``keep="hidden"``.
        tokens_of_draft: the ids of a draft's tokens, int64, for a draft of fewer tokens than the target; then
            outcomes are these tokens and one more for all others. See `restricted`.
        mask: which tokens belong to a text, bool of shape ``(rows, length)``; None: all.

    Raises:
        ValueError: if the folder holds something else or is damaged, or ``head`` is missing.
    """

    def __init__(
        self,
        folder: Path,
        head: nn.Module | None = None,
        tokens_of_draft: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        self.folder = folder
        self.head = head
        self.tokens_of_draft = tokens_of_draft
        self.mask = mask
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self.keep: Keep = about["keep"]
        self.vocab: int = about["vocab"]
        self.temperature: float = about["temperature"]
        self._arrays = {name: _open(folder, name) for name in about["arrays"]}
        if self.keep == "hidden" and head is None:
            raise ValueError("head: the kept hidden states need the target's output layer to become logits")

    @cached_property
    def tokens(self) -> Int[Tensor, "rows length"]:
        """Every window."""
        return torch.from_numpy(self._arrays["tokens"].astype(np.int64))

    @property
    def bytes_per_token(self) -> float:
        """What is kept of the target for one token, in bytes on disk."""
        kept = sum(array.nbytes for name, array in self._arrays.items() if name != "tokens")
        return kept / self._arrays["tokens"].size

    def __len__(self) -> int:
        return len(self._arrays["tokens"])

    def __getitem__(self, index: int) -> TargetBatch:
        """One window, without a batch's dimension."""
        found = self.batch([index])
        return TargetBatch(found.tokens[0], found.target_logits[0], *map(_first, found[2:]))

    def batch(self, indices: Sequence[int]) -> TargetBatch:
        """The windows of these indices."""
        rows = {name: _read(array, indices) for name, array in self._arrays.items()}
        hidden = rows.get("hidden")
        tokens = rows["tokens"].long()
        ids = None
        if self.keep == "top-k":
            outcomes = torch.cat([rows["log_probabilities"].float(), rows["log_rest"].unsqueeze(-1)], dim=-1)
            ids = rows["ids"].long()
        elif self.keep == "full":
            outcomes = self._chosen(rows["log_probabilities"].float())
        else:
            assert hidden is not None
            outcomes = self._from_hidden(hidden, rows["log_normaliser"])
        mask = None if self.mask is None else self.mask[torch.as_tensor(indices)]
        return TargetBatch(tokens, outcomes, hidden, ids, mask)

    def restricted(self, draft_vocab: Int[Tensor, " draft_vocab"]) -> StoredDistributions:
        """The same for a draft that knows only some tokens.

        The last of the ``len(draft_vocab) + 1`` outcomes then holds the mass of all other tokens, and with
        ``draft_vocab=torch.arange(len(draft_vocab))`` `LKLoss` computes exactly what it computes of the whole
        vocabulary at temperature 1, without a tensor of that size. ``val/top1`` is a lower bound then: all
        other tokens together may outweigh each of the draft's where none of them does alone.

        Args:
            draft_vocab: the ids of the draft's tokens, int64, in the order of its logits.

        Raises:
            ValueError: if an id is out of range or there twice, or only the likeliest tokens were kept.
        """
        if self.keep == "top-k":
            raise ValueError("draft_vocab: the likeliest tokens were kept; keep 'full' or 'hidden' for it")
        check_draft_vocab(draft_vocab, self.vocab)
        return StoredDistributions(self.folder, self.head, draft_vocab, self.mask)

    def _chosen(self, log_probabilities: Tensor) -> Tensor:
        if self.tokens_of_draft is None:
            return log_probabilities
        return with_rest(log_probabilities[..., self.tokens_of_draft])

    @torch.no_grad()
    def _from_hidden(self, hidden: Tensor, log_normaliser: Tensor) -> Tensor:
        assert self.head is not None
        if self.tokens_of_draft is None:
            return _logits(self.head, hidden) / self.temperature - log_normaliser.unsqueeze(-1)
        weight, bias = self._rows_of_head
        logits = nn.functional.linear(hidden.to(weight.dtype), weight, bias).float() / self.temperature
        return with_rest(logits - log_normaliser.unsqueeze(-1))

    @cached_property
    def _rows_of_head(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the output layer for the draft's tokens."""
        if not isinstance(self.head, nn.Linear):
            raise ValueError(f"head: expected an nn.Linear for a draft of fewer tokens, got {self.head!r}")
        weight, bias = self.head.weight.detach(), self.head.bias
        chosen = self.tokens_of_draft
        return weight[chosen], None if bias is None else bias.detach()[chosen]


def store_distributions(
    target: nn.Module | str | Path,
    tokens: Int[Tensor, "rows length"],
    *,
    keep: Keep = "top-k",
    k: int = 64,
    hidden: bool = False,
    temperature: float = 1.0,
    dtype: Precision = "float32",
    batch_size: int = 8,
    mask: Bool[Tensor, "rows length"] | None = None,
    folder: Path | None = None,
) -> StoredDistributions:
    """Ask a frozen target once about every place of every window, and keep what it says (reconstructed).

    It lies in a folder named after everything that it depends on (weights and configuration of the target,
    tokens, settings); the next call with the same finds it there. Of several processes one computes it.

    Args:
        target: a causal language model (see `leyden_lk_losses.models.wrap`), or the folder of one that
            ``transformers`` has saved. Its weights do not change.
        tokens: windows of token ids, int64 of shape ``(rows, length)``.
        keep: ``"top-k"``, the k likeliest tokens and the mass of the rest; ``"full"``, every token; or
            ``"hidden"``, the last hidden states, from which the target's output layer gives every token
            again. ``"hidden"`` takes the fewest bytes for a full answer and costs one matrix product a batch.
        k: how many tokens ``"top-k"`` keeps; a larger number than there are is all of them.
        hidden: whether hidden states are kept beside the others, for drafts that start from them.
        temperature: divides the target's logits before anything is left out; then it is 1 in `LKLoss`, and
            the draft's logits are not divided.
        dtype: how numbers are kept. Half precision moves a probability by at most 0.05 % for each unit of its
            logarithm. The mass of the rest is float32 always.
        batch_size: windows that the target sees at a time.
        mask: which tokens belong to a text, bool of the shape of ``tokens``, as `OnPolicyDataModule` gives it
            with ``eos``; what comes after the end is then not learned. None: all.
        folder: where to keep it; by default the user's folder for caches.

    Returns:
        The distributions, read from disk as they are needed.

    Raises:
        ValueError: if an argument is out of its range, if the target says NaN, or if its logits are not its
            output layer's for ``keep="hidden"``.

    >>> from leyden_lk_losses.drafts import TinyDraftGPT
    >>> import tempfile
    >>> target = TinyDraftGPT(16, width=8, depth=1, heads=2, max_length=8)
    >>> stored = store_distributions(target, torch.zeros(3, 8).long(), k=4, folder=Path(tempfile.mkdtemp()))
    >>> stored.batch([0, 2]).target_logits.shape
    torch.Size([2, 8, 5])
    """
    model = wrap(target)
    _check(tokens, mask, keep, k, dtype, batch_size, model.vocab)
    check_temperature(temperature, positive=True)
    k = min(k, model.vocab)
    head = _output_layer(model.module) if keep == "hidden" else None
    identity = {
        "format": _FORMAT,
        "target": model_identity(model.module),
        "tokens": tensors_fingerprint({"tokens": tokens}),
        "keep": keep,
        "k": k if keep == "top-k" else None,
        "hidden": hidden or keep == "hidden",
        "temperature": temperature,
        "dtype": dtype,
    }
    writer = _Writer(model, head, tokens, keep, k, hidden or keep == "hidden", temperature, dtype, batch_size)
    place = built_once("lk_losses-distributions", identity, writer.write, folder=folder)
    return StoredDistributions(place, head, mask=None if mask is None else mask.cpu())


class _Writer(NamedTuple):
    """Fills a folder with the distributions of a target."""

    model: CausalModel
    head: nn.Module | None
    tokens: Tensor
    keep: Keep
    k: int
    hidden: bool
    temperature: float
    dtype: Precision
    batch_size: int

    def write(self, folder: Path) -> None:
        arrays: dict[str, np.memmap[Any, Any]] = {}
        for start in range(0, len(self.tokens), self.batch_size):
            rows = self.tokens[start : start + self.batch_size]
            with evaluating(self.model.module):
                said = self._said(rows)
            for name, values in said.items():
                if name not in arrays:
                    shape = (len(self.tokens), *values.shape[1:])
                    arrays[name] = _create(folder, name, shape, values.numpy().dtype)
                arrays[name][start : start + len(rows)] = values.numpy()
        for array in arrays.values():
            array.flush()
        about = {
            "keep": self.keep,
            "vocab": self.model.vocab,
            "temperature": self.temperature,
            "arrays": sorted(arrays),
        }
        (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")

    @torch.no_grad()
    def _said(self, rows: Tensor) -> Mapping[str, Tensor]:
        """The arrays' rows for some windows."""
        ids = torch.int32 if self.model.vocab < 2**31 else torch.int64
        precision = getattr(torch, self.dtype)
        logits, states = self.model.observe(rows.to(self.model.device))
        said = {"tokens": rows.cpu().to(ids)}
        if self.hidden:
            said["hidden"] = states.to(precision).cpu()
            if not torch.isfinite(said["hidden"]).all():
                _check_no_nan(states)
                raise ValueError(f"dtype: a hidden state is beyond the range of {self.dtype}")
        if self.keep == "hidden":
            return {**said, "log_normaliser": self._normaliser(said["hidden"], logits, states)}
        log_probabilities = (logits.float().cpu() / self.temperature).log_softmax(dim=-1)
        _check_no_nan(log_probabilities)
        if self.keep == "full":
            return {**said, "log_probabilities": log_probabilities.to(precision)}
        top = log_probabilities.topk(self.k, dim=-1)
        others = log_probabilities.scatter_(-1, top.indices, -torch.inf)
        return {
            **said,
            "ids": top.indices.to(ids),
            "log_probabilities": top.values.to(precision),
            "log_rest": others.logsumexp(dim=-1),
        }

    def _normaliser(self, kept: Tensor, logits: Tensor, states: Tensor) -> Tensor:
        """Log-sum-exp of the logits that the kept states give, with which their probabilities sum to 1."""
        assert self.head is not None
        _check_no_nan(logits)
        _check_head(_logits(self.head, states[:1]), logits[:1])
        # A window at a time: in single precision all of them would be much larger than what the target said.
        rows = (_logits(self.head, row.to(states.device)) / self.temperature for row in kept.float())
        return torch.stack([row.logsumexp(dim=-1).cpu() for row in rows])


def _check(
    tokens: Tensor, mask: Tensor | None, keep: str, k: int, dtype: str, batch_size: int, vocab: int
) -> None:
    if tokens.dim() != 2 or tokens.is_floating_point() or not tokens.numel():
        raise ValueError(
            f"tokens: expected ids of shape (rows, length), got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most >= vocab:
        raise ValueError(f"tokens: expected ids from 0 to {vocab - 1}, got {least if least < 0 else most}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != tokens.shape):
        raise ValueError(
            f"mask: expected bool of shape {tuple(tokens.shape)} as the tokens have, got {mask.dtype} of "
            f"shape {tuple(mask.shape)}"
        )
    if keep not in get_args(Keep):
        raise ValueError(f"keep: expected 'top-k', 'full' or 'hidden', got {keep!r}")
    check_at_least("k", k, 1)
    if dtype not in get_args(Precision):
        raise ValueError(f"dtype: expected 'float32' or 'float16', got {dtype!r}")
    check_at_least("batch_size", batch_size, 1)


def _output_layer(module: nn.Module) -> nn.Module:
    """The layer that makes logits of hidden states."""
    embeddings = getattr(module, "get_output_embeddings", None)
    found = getattr(module, "head", None) if embeddings is None else embeddings()
    if not isinstance(found, nn.Module):
        raise ValueError(
            "keep: 'hidden' needs a target with its output layer in `head` or get_output_embeddings(); keep "
            "'full' or 'top-k' of this one"
        )
    return found


def _logits(head: nn.Module, hidden: Tensor) -> Tensor:
    dtype = next(head.parameters()).dtype
    return cast("Tensor", head(hidden.to(dtype))).float()


def _check_no_nan(said: Tensor) -> None:
    if torch.isnan(said).any():
        raise ValueError("target: its logits hold NaN")


def _check_head(again: Tensor, logits: Tensor) -> None:
    """Some targets change the output layer's logits, for instance by capping them."""
    # In half precision a product may be rounded otherwise for other numbers of rows.
    tolerance = max(_AGREEMENT, 4 * torch.finfo(logits.dtype).eps)
    logits = logits.float()
    finite = torch.isfinite(logits)
    off = (again - logits)[finite].abs().max() if finite.any() else torch.zeros(())
    if not bool(finite.all()) or off > tolerance * max(1.0, float(logits[finite].abs().max())):
        raise ValueError(
            "keep: 'hidden' needs a target whose logits are its output layer's, this one's are others; keep "
            "'full' or 'top-k'"
        )


def _create(folder: Path, name: str, shape: tuple[int, ...], dtype: Any) -> np.memmap[Any, Any]:
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)


def _open(folder: Path, name: str) -> np.ndarray[Any, Any]:
    path = folder / f"{name}.npy"
    try:
        return cast("np.ndarray[Any, Any]", np.load(path, mmap_mode="r"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}; delete the folder '{folder}' to compute it anew") from error


def _first(part: Tensor | None) -> Tensor | None:
    return None if part is None else part[0]


def _read(array: np.ndarray[Any, Any], indices: Sequence[int]) -> Tensor:
    """Rows of an array as a tensor of its own, half precision widened."""
    rows = torch.from_numpy(np.array(array[np.asarray(indices, dtype=np.int64)]))
    return rows.float() if rows.is_floating_point() else rows
