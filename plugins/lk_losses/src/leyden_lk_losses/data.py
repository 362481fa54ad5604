"""Text sampled from the target, on which drafts learn what they will be asked (Section 5 of the paper)."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from leyden.arguments import check_at_least
from leyden.cache import built_once, tensors_fingerprint
from leyden_datamodules.base import Splits, TensorDataModule
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn

from leyden_lk_losses.acceptance import check_temperature
from leyden_lk_losses.fingerprint import model_identity
from leyden_lk_losses.models import wrap
from leyden_lk_losses.sampling import sample

_FORMAT = 2


class OnPolicyDataModule(TensorDataModule):
    """Rows of tokens that a target continued from prompts, sampled once and kept (reconstructed).

    Batches are ``(tokens,)``, int64 of shape ``(batch, length)``; with ``eos`` they are ``(tokens, mask)``,
    and the mask says which tokens belong to a text. The rows are sampled by the first process that asks for
    them and kept in `leyden.cache.cache_folder` under a fingerprint of the target (weights and architecture),
    the prompts and the settings; later runs read them.

    Args:
        target: the model that is sampled from, or the path of a folder of ``transformers``.
        prompts: a datamodule whose batches begin with tokens, of which the first ``prompt_length`` of a row
            are its prompt; validation and test prompts come from its own such splits. Or a tensor of prompts,
            int64 of shape ``(rows, prompt)``, used in order for training, validation and test.
        rows: rows of tokens for training.
        val_rows: for validation.
        test_rows: for test.
        length: tokens of a row, the prompt's among them.
        prompt_length: tokens of a prompt.
        temperature: divides the target's logits; the paper samples at 1.
        eos: the token that ends a text; None: none does.
        batch_size: rows a batch.
        shuffle: whether every epoch has an order of its own.
        drop_last: whether an incomplete last training batch is left out.
        seed: seed of the sampling and of the order.

    Raises:
        ValueError: if an argument is out of its range, or there are too few prompts; the text names it.
    """

    def __init__(
        self,
        target: nn.Module | str,
        prompts: LightningDataModule | Tensor,
        *,
        rows: int = 850,
        val_rows: int = 150,
        test_rows: int = 150,
        length: int = 64,
        prompt_length: int = 8,
        temperature: float = 1.0,
        eos: int | None = None,
        batch_size: int = 16,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        model, source = wrap(target), prompts
        # What is saved as hyper-parameters is read from these names.
        target, prompts = type(model.module).__name__, type(source).__name__  # type: ignore[assignment]
        super().__init__(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        for name, value, least in (
            ("rows", rows, 1),
            ("val_rows", val_rows, 0),
            ("test_rows", test_rows, 0),
            ("length", length, 2),
            ("prompt_length", prompt_length, 1),
        ):
            check_at_least(name, value, least)
        if prompt_length >= length:
            raise ValueError(f"prompt_length: expected less than length={length}, got {prompt_length}")
        check_temperature(temperature)
        self.target = model
        self.prompts = source
        self.rows = {"train": rows, "val": val_rows, "test": test_rows}
        self.length = length
        self.prompt_length = prompt_length
        self.temperature = temperature
        self.eos = eos

    def load(self) -> Splits:
        """Read the rows, or sample them."""
        prompts = self._prompts()
        settings = {
            "format": _FORMAT,
            "length": self.length,
            "temperature": self.temperature,
            "eos": self.eos,
            "seed": self.seed,
            "torch": torch.__version__,
        }
        identity = {
            **settings,
            "target": model_identity(self.target.module),
            "prompts": tensors_fingerprint(prompts),
        }

        def build(folder: Path) -> None:
            torch.save(self._sampled(prompts), folder / "rows.pt")

        folder = built_once("lk_losses-text", identity, build)
        kept: dict[str, tuple[Tensor, ...]] = torch.load(folder / "rows.pt", weights_only=True)
        return {split: (tokens.long(), *mask) for split, (tokens, *mask) in kept.items()}

    def _sampled(self, prompts: dict[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(self.seed)
        found: dict[str, tuple[Tensor, ...]] = {}
        for split, first in prompts.items():
            tokens, mask = sample(
                self.target,
                first,
                self.length,
                temperature=self.temperature,
                generator=generator,
                eos=self.eos,
            )
            found[split] = (tokens.int(),) if self.eos is None else (tokens.int(), mask)
        return found

    def _prompts(self) -> dict[str, Tensor]:
        wanted = {split: count for split, count in self.rows.items() if count}
        if isinstance(self.prompts, Tensor):
            starts = accumulate(wanted.values(), initial=0)
            available = {
                split: self.prompts[start : start + count]
                for (split, count), start in zip(wanted.items(), starts, strict=False)
            }
        else:
            source: Any = self.prompts
            source.prepare_data()
            source.setup("fit")
            source.setup("test")
            available = {split: getattr(source, split)[0] for split in wanted}
        return {split: self._rows_of(split, available[split], count) for split, count in wanted.items()}

    def _rows_of(self, split: str, tokens: Tensor, count: int) -> Tensor:
        """So many prompts, evenly spread over a split, whose rows are cut anew where there are too few."""
        if tokens.shape[1] < self.prompt_length:
            raise ValueError(
                f"prompt_length: expected at most the {tokens.shape[1]} tokens of the {split} prompts, got "
                f"{self.prompt_length}"
            )
        pieces = tokens.unfold(1, self.prompt_length, self.prompt_length).flatten(0, 1)
        candidates = tokens[:, : self.prompt_length] if len(tokens) >= count else pieces
        if len(candidates) < count:
            raise ValueError(f"prompts: expected {count} for {split}, there are {len(candidates)}")
        places = torch.linspace(0, len(candidates) - 1, count).round().long()
        return candidates[places].contiguous()
