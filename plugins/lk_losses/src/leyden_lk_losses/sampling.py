"""Text sampled from a model, many rows at a time, as drafts learn it (Section 5 of the paper)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from leyden_lk_losses.acceptance import check_temperature
from leyden_lk_losses.arguments import check_count
from leyden_lk_losses.decoder import Draws
from leyden_lk_losses.models import CausalModel, evaluating


def sample(
    model: CausalModel,
    prompts: Int[Tensor, "rows prompt"],
    length: int,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    eos: int | None = None,
    batch_size: int = 64,
) -> tuple[Int[Tensor, "rows length"], Bool[Tensor, "rows length"]]:
    """Continue prompts by drawing token after token from a model (reconstructed).

    Args:
        model: what is sampled from, see `leyden_lk_losses.models.wrap`.
        prompts: the first tokens of each row, int64, at least one.
        length: tokens of a row in the end, the prompt's among them.
        temperature: divides the logits; 0 takes the likeliest.
        generator: gives the random numbers; None is torch's own.
        eos: the token that ends a text; the rest of its row is filled with it.
        batch_size: how many rows are sampled at a time.

    Returns:
        The rows, on the CPU, and which of their tokens belong to the text, an ``eos`` among them.

    Raises:
        ValueError: if the prompts are empty or no shorter than ``length``, if the model does not read so many
            tokens, or a number is out of its range.
    """
    check_temperature(temperature)
    check_count("length", length)
    check_count("batch_size", batch_size)
    if prompts.dim() != 2 or prompts.dtype != torch.int64 or not 0 < prompts.shape[1] < length:
        raise ValueError(
            f"prompts: expected int64 of shape (rows, prompt) with prompts of 1 to {length - 1} tokens, got "
            f"{prompts.dtype} of shape {tuple(prompts.shape)}"
        )
    if model.max_length is not None and length - 1 > model.max_length:
        raise ValueError(f"length: expected at most {model.max_length + 1}, got {length}")
    draws = Draws(generator)
    places = torch.arange(length)
    with evaluating(model.module), torch.inference_mode():
        parts = torch.split(prompts, batch_size)
        rows = [_continued(model, part, length, temperature, draws) for part in parts]
    # The rows leave inference mode by a copy, so that a training may use them.
    tokens = torch.cat(rows).clone()
    if eos is None:
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
    ended = (tokens == eos) & (places >= prompts.shape[1])
    end = torch.where(ended.any(dim=1), ended.int().argmax(dim=1), length)
    belongs = places <= end.unsqueeze(1)
    return torch.where(belongs, tokens, eos), belongs


def _continued(model: CausalModel, prompts: Tensor, length: int, temperature: float, draws: Draws) -> Tensor:
    cache = model.start(len(prompts))
    unread = prompts.to(model.device)
    pieces = [unread]
    for _ in range(length - prompts.shape[1]):
        logits = model.step(unread, cache, 1, hidden=False)[0][:, -1]
        if temperature == 0:
            tokens = logits.argmax(dim=-1)
        else:
            dtype = torch.promote_types(logits.dtype, torch.float32)
            tokens = draws.token((logits.to(dtype) / temperature).softmax(dim=-1))
        unread = tokens.unsqueeze(1)
        pieces.append(unread)
    return torch.cat(pieces, dim=1).cpu()
