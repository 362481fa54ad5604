"""A training step of a block stack with each block norm in one process, and of the norm alone.

Every round takes one step of every model, in another order each time, so that what else the machine does hits
all alike; medians over the rounds, by the clock and of processor time. The first table is of whole models
(forward, backward, no optimizer); "torch's RMSNorm" is the same model with `torch.nn.RMSNorm` in place of
ours, as most code has it. The second is of one map with its norm. ``--compiled`` adds models under
``torch.compile(fullgraph=True)`` and how far their logits are from those in eager mode. ``--quick`` takes
fewer rounds.
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from leyden_simplenorm import RMSNorm, SimpleGPT, SimpleNormLinear, rms_norm
from torch import Tensor, nn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dims", type=int, nargs="+", default=[256, 512])
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--quick", action="store_true")
parser.add_argument("--compiled", action="store_true")
asked = parser.parse_args()
ROUNDS = 5 if asked.quick else asked.rounds
LAYERS, LENGTH, BATCH, VOCABULARY = 4, 128, 8, 256


def with_torchs_norms(model: nn.Module) -> nn.Module:
    """The model with `torch.nn.RMSNorm` in place of ours."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, RMSNorm):
                setattr(parent, name, nn.RMSNorm(child.size, child.eps))
    return model


def models(dim: int) -> dict[str, nn.Module]:
    """The models by name, the reference first."""
    sizes: dict[str, Any] = {"dim": dim, "n_layers": LAYERS, "n_heads": dim // 64, "max_seq_len": LENGTH}
    made: dict[str, nn.Module] = {
        "pre-norm": SimpleGPT(VOCABULARY, block_norm="pre", **sizes),
        "pre-norm + QK-norm": SimpleGPT(VOCABULARY, block_norm="pre_qk", **sizes),
        "SimpleNorm": SimpleGPT(VOCABULARY, block_norm="simple", **sizes),
        "pre-norm, torch's RMSNorm": with_torchs_norms(SimpleGPT(VOCABULARY, block_norm="pre", **sizes)),
        "SimpleNorm, torch's RMSNorm": with_torchs_norms(SimpleGPT(VOCABULARY, **sizes)),
    }
    if asked.compiled:
        for name in ("pre-norm", "SimpleNorm"):
            made[f"{name}, compiled"] = torch.compile(made[name], fullgraph=True)  # type: ignore[assignment]
    try:
        peer = importlib.import_module("x_transformers")
    except ImportError:
        return made
    body = peer.Decoder(
        dim=dim, depth=LAYERS, heads=dim // 64, attn_flash=True, rotary_pos_emb=True, use_rmsnorm=True,
        attn_qk_norm=True, sandwich_norm=True, ff_glu=True, ff_swish=True, ff_no_bias=True, ff_mult=8 / 3,
    )  # fmt: skip
    made["x-transformers, sandwich + QK-norm"] = peer.TransformerWrapper(
        num_tokens=VOCABULARY, max_seq_len=LENGTH, attn_layers=body, use_abs_pos_emb=False
    )
    return made


def medians(arms: dict[str, Callable[[], None]]) -> dict[str, tuple[float, float]]:
    """Milliseconds of each by the clock, and of processor time, over interleaved rounds."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for place in range(2 + ROUNDS):
        order = list(arms)
        random.shuffle(order)
        for name in order:
            start = time.perf_counter(), time.process_time()
            arms[name]()
            end = time.perf_counter(), time.process_time()
            if place > 1:
                times[name].append((1e3 * (end[0] - start[0]), 1e3 * (end[1] - start[1])))
    columns = {name: zip(*values, strict=True) for name, values in times.items()}
    return {name: (statistics.median(wall), statistics.median(own)) for name, (wall, own) in columns.items()}


def print_table(heading: str, found: dict[str, tuple[float, float]], base_of: Callable[[str], str]) -> None:
    """Print the medians, and their ratios to each one's base."""
    print(f"\n| {heading} | ms | ratio | processor time, ms | ratio |\n|---|---|---|---|---|")
    for name, (wall, own) in found.items():
        base = found[base_of(name)]
        print(f"| {name} | {wall:.1f} | {wall / base[0]:.2f} | {own:.1f} | {own / base[1]:.2f} |")


def step_of(model: nn.Module, tokens: Tensor) -> Callable[[], None]:
    """One forward and backward pass."""

    def step() -> None:
        model.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()

    return step


def gradients_of(
    layer: Callable[[Tensor], Tensor], x: Tensor, parameters: list[Tensor], slope: Tensor
) -> Any:
    """One forward and backward pass of a layer."""
    return lambda: torch.autograd.grad(layer(x), [x, *parameters], slope)


threads = torch.get_num_threads()
for dim in asked.dims:
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    made = models(dim)
    found = medians({name: step_of(model, tokens) for name, model in made.items()})
    print(
        f"\n## simplenorm: dim {dim}, {LAYERS} layers, {BATCH} x {LENGTH} tokens, {threads} thread(s), "
        f"medians of {ROUNDS}"
    )
    print_table(
        "model", found, lambda name: "pre-norm, compiled" if name.endswith("compiled") else "pre-norm"
    )
    if asked.compiled:
        with torch.no_grad():
            apart = [
                float((made[f"{name}, compiled"](tokens[:, :-1]) - made[name](tokens[:, :-1])).abs().max())
                for name in ("pre-norm", "SimpleNorm")
            ]
        print(f"\ncompiled and eager logits differ by at most {max(apart):.1g}")

    rows = torch.randn(BATCH * LENGTH, dim, requires_grad=True)
    slope = torch.randn(BATCH * LENGTH, dim)
    own, plain = SimpleNormLinear(dim, dim), nn.Linear(dim, dim, bias=False)
    gain = torch.ones(dim, requires_grad=True)

    def torchs(x: Tensor, plain: nn.Linear = plain, gain: Tensor = gain, dim: int = dim) -> Tensor:
        """The same by torch's function."""
        return nn.functional.rms_norm(plain(x), (dim,), gain, 1e-5)

    alone = medians(
        {
            "torch.nn.Linear": gradients_of(plain, rows, [plain.weight], slope),
            "SimpleNormLinear": gradients_of(own, rows, list(own.parameters()), slope),
            "torch.nn.Linear, torch's rms_norm": gradients_of(torchs, rows, [plain.weight, gain], slope),
            "rms_norm alone": gradients_of(lambda x, gain=gain: rms_norm(x, gain), rows, [gain], slope),
            "torch's rms_norm alone": gradients_of(
                lambda x, gain=gain, dim=dim: nn.functional.rms_norm(x, (dim,), gain, 1e-5),
                rows,
                [gain],
                slope,
            ),
        }
    )
    print_table("one map, forward and backward", alone, lambda name: "torch.nn.Linear")
