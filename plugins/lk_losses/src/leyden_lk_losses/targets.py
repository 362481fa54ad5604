"""A tiny target for trying drafts without a download: trained once on a text that ships, then kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from leyden.arguments import check_at_least
from leyden.cache import built_once
from torch import Tensor, nn

from leyden_lk_losses.drafts import TinyDraftGPT

_FORMAT = 2
"""Counted up when the same settings give other weights."""


def tiny_target(
    text: Literal["python", "king-james"] = "python",
    vocab: int = 512,
    *,
    width: int = 96,
    depth: int = 3,
    heads: int = 4,
    length: int = 64,
    steps: int = 600,
    batch_size: int = 32,
    lr: float = 3e-3,
    subset: int | None = None,
    seed: int = 0,
) -> TinyDraftGPT:
    """The target of experiment C (Section 6 of the specification, reconstructed): a small language model.

    The first call on a machine trains it, half a minute to a few minutes; later ones, and those of other
    processes at the same time, read the weights from `leyden.cache.cache_folder`.

    Args:
        text: ``"python"``, Python's language reference, or ``"king-james"``, the King James Bible.
        vocab: size of the vocabulary of byte pairs, learned from the text.
        width: size of the hidden states.
        depth: number of blocks.
        heads: attention heads of a block.
        length: tokens of a training window, and the most that the model reads.
        steps: optimizer steps of AdamW.
        batch_size: windows of a step.
        lr: learning rate, after a warmup and falling to zero along a cosine.
        subset: use only the first so many characters.
        seed: seed of weights and order.

    Returns:
        The trained model, in evaluation mode.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
        LeydenError: if ``tokenizers`` or the text's package is not installed.
    """
    for name, value in (("steps", steps), ("batch_size", batch_size), ("length", length), ("seed", seed + 1)):
        check_at_least(name, value, 1)
    if not 0 < lr < float("inf"):
        raise ValueError(f"lr: expected a finite number above 0, got {lr!r}")
    sizes = {"width": width, "depth": depth, "heads": heads, "max_length": length}
    data = corpus(text, vocab=vocab, length=length, batch_size=batch_size, subset=subset, seed=seed)

    def build(folder: Path) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = TinyDraftGPT(vocab, **sizes)
            _train(model, data, steps, lr)
        torch.save(model.state_dict(), folder / "weights.pt")

    identity = {
        "format": _FORMAT,
        "text": data.fingerprint(),
        "vocab": vocab,
        "sizes": sizes,
        "training": {"steps": steps, "batch_size": batch_size, "lr": lr, "seed": seed},
        "torch": torch.__version__,
    }
    folder = built_once("lk_losses-target", identity, build)
    with torch.random.fork_rng(devices=[]):
        model = TinyDraftGPT(vocab, **sizes)
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    return model.eval().requires_grad_(False)


def corpus(text: str, *, vocab: int, **settings: Any) -> Any:
    """The text of a target, as a datamodule of windows of byte pairs.

    Args:
        text: ``"python"`` or ``"king-james"``.
        vocab: size of the vocabulary.
        **settings: further arguments of `leyden_datamodules.PythonDocs`.

    Returns:
        The datamodule.

    Raises:
        ValueError: if there is no such text.
    """
    from leyden_datamodules import KingJames, PythonDocs

    texts: dict[str, Any] = {"python": PythonDocs, "king-james": KingJames}
    if text not in texts:
        raise ValueError(f"text: expected 'python' or 'king-james', got {text!r}")
    return texts[text](tokens="bpe", vocabulary_size=vocab, **settings)


def _train(model: nn.Module, data: Any, steps: int, lr: float) -> None:
    """A plain loop, so that the target depends on nothing but its arguments."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    done = 0
    loader = data.train_dataloader()
    while done < steps:
        for tokens, following in loader:
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            done += 1
            if done == steps:
                break


@torch.no_grad()
def nats_per_token(model: nn.Module, windows: tuple[Tensor, Tensor]) -> float:
    """The mean cross-entropy of a model on windows.

    Args:
        model: maps int64 tokens of shape ``(rows, time)`` to logits.
        windows: tokens, and the tokens after them.

    Returns:
        Nats a token.
    """
    tokens, following = windows
    total = 0.0
    for inputs, targets in zip(torch.split(tokens, 64), torch.split(following, 64), strict=True):
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
        total += float(loss)
    return total / following.numel()
