"""What the ways to keep a target's distributions take on disk, and what they change.

The target is a trained transformer of 512 byte pairs, the text its own. Each row says how many bytes a token
takes, how far acceptance and LK-λ of one and the same draft are from those of the whole distributions (and
the bound for acceptance), and how often heads trained by them are accepted, by the whole distributions.

    python benchmarks/distributions.py [--quick]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from leyden_datamodules import PythonDocs
from leyden_datamodules.loader import training_loader
from leyden_lk_losses import (
    LKLoss,
    MedusaHeads,
    OnPolicyDataModule,
    bucketed,
    store_distributions,
    tiny_target,
)
from leyden_lk_losses.alignment import by_depth
from leyden_lk_losses.distributions import StoredDistributions, TargetBatch

STEPS = 20 if "--quick" in sys.argv else 300
HEADS = 2
WAYS: Sequence[dict[str, Any]] = (
    {"keep": "full"},
    {"keep": "full", "dtype": "float16"},
    {"keep": "hidden"},
    {"keep": "hidden", "dtype": "float16"},
    *({"keep": "top-k", "k": k, "hidden": True, "dtype": "float16"} for k in (128, 32, 8, 2)),
)


def compared(heads: MedusaHeads, batch: TargetBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """The heads' logits and the target's, for the outcomes that were kept."""
    assert batch.hidden is not None
    proposed = heads(batch.hidden[:, : -heads.depths])
    expected = by_depth(batch.target_logits, heads.depths)
    if batch.indices is not None:
        proposed = bucketed(proposed, by_depth(batch.indices, heads.depths))
    return proposed, expected


def trained(heads: MedusaHeads, source: StoredDistributions) -> MedusaHeads:
    """Heads after some epochs."""
    loss = LKLoss(eta=10.0)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=3e-3)
    steps = 0
    loader = training_loader(source, batch_size=16, seed=0)  # type: ignore[arg-type]
    while steps < STEPS:
        for batch in loader:
            optimizer.zero_grad()
            loss(*compared(heads, batch)).loss.backward()  # type: ignore[arg-type]
            optimizer.step()
            steps += 1
    return heads


def fresh() -> MedusaHeads:
    torch.manual_seed(0)
    return MedusaHeads(48, 512, HEADS)


def main() -> None:
    """Measure, and print a table."""
    target = tiny_target(width=48, depth=2, steps=200, batch_size=16, length=48, subset=100_000)
    docs = PythonDocs(tokens="bpe", length=32, subset=100_000)
    text = OnPolicyDataModule(target, docs, rows=256, val_rows=8, test_rows=64, length=48, prompt_length=8)
    texts = (text.train[0], text.test[0])
    with tempfile.TemporaryDirectory() as home:
        kept = [
            [store_distributions(target, tokens, folder=Path(home), **way) for tokens in texts]
            for way in WAYS
        ]
        everything = list(range(len(kept[0][1])))
        whole = kept[0][1].batch(everything)._replace(hidden=kept[2][1].batch(everything).hidden)
        probe = trained(fresh(), kept[2][0])
        loss = LKLoss(eta=10.0)
        with torch.no_grad():
            exact = loss(*compared(probe, whole))
        print(f"## lk_losses: what keeping a target's distributions changes, 512 tokens, {STEPS} steps\n")
        print("| kept | bytes a token | acceptance | at most | LK-λ | acceptance after training |")
        print("|---|---|---|---|---|---|")
        for way, (train, test) in zip(WAYS, kept, strict=True):
            batch = test.batch(everything)
            states = batch.hidden
            with torch.no_grad():
                proposed, expected = compared(probe, batch._replace(hidden=whole.hidden))
                found = loss(proposed, expected)
            limit = torch.zeros(())
            if batch.indices is not None:
                limit = torch.minimum(proposed[:, 0, :, -1], expected[:, 0, :, -1]).exp().mean()
            # Hidden states are kept beside the likeliest tokens only so that heads can be trained here.
            beside = 2 * 48 if train.keep == "top-k" else 0
            after = "as hidden"
            if states is not None:
                heads = trained(fresh(), train)
                with torch.no_grad():
                    after = f"{float(loss(*compared(heads, whole)).alpha[0]):.4f}"
            name = ", ".join(str(value) for key, value in way.items() if key != "hidden")
            print(
                f"| {name} | {test.bytes_per_token - beside:.0f} "
                f"| {float(found.alpha[0] - exact.alpha[0]):+.5f} | {float(limit):.5f} "
                f"| {float(found.loss - exact.loss):+.5f} | {after} |"
            )


if __name__ == "__main__":
    main()
