"""Tokens a second of `SpeculativeDecoder` and of assisted generation in transformers, on the same pairs.

Every round generates from the same prompt with each of them, in another order each time, so that what else
the machine does hits all alike. Sampling at temperature 1, four proposals a round for both. Medians over the
rounds; memory is the most that tensors of one generation held at a time, beside the models.

    python benchmarks/decoder.py [--quick] [--smollm2]

``--smollm2`` takes SmolLM2-135M in bfloat16 with its own first six layers as the draft instead, 16 tokens
and three rounds.
"""

from __future__ import annotations

import copy
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from leyden_datamodules import load_smollm2
from leyden_lk_losses import SpeculativeDecoder, to_gpt2
from leyden_lk_losses.drafts import TinyDraftGPT
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

REAL = "--smollm2" in sys.argv
ROUNDS = 3 if REAL else 5 if "--quick" in sys.argv else 25
WARM_UP = 1 if REAL else 2
NEW = 16 if REAL else 64
K = 4
PEER = "transformers, assisted"


def llama(width: int, layers: int, seed: int) -> nn.Module:
    """A random Llama of 4,096 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def gpt2(width: int, layers: int, seed: int) -> nn.Module:
    """A random GPT-2 of 512 tokens, of the size of the tiny target."""
    torch.manual_seed(seed)
    return to_gpt2(TinyDraftGPT(512, width=width, depth=layers, heads=4, max_length=256).eval())


def first_layers(model: nn.Module, count: int) -> nn.Module:
    """A model's first layers with its norm and output layer, which share their weights with it."""
    inner: Any = model.model
    layers, inner.layers = inner.layers, inner.layers[:count]
    shared = {id(parameter): parameter for parameter in model.parameters()}
    draft = copy.deepcopy(model, shared)
    inner.layers = layers
    draft.config.num_hidden_layers = count
    return draft


def pairs() -> dict[str, tuple[nn.Module, nn.Module]]:
    """A target and a draft each."""
    if REAL:
        target = load_smollm2(dtype=torch.bfloat16)
        return {"SmolLM2-135M, draft its first 6 layers": (target, first_layers(target, 6))}
    return {
        "GPT-2 of 0.4 M, draft 0.04 M": (gpt2(96, 3, 0), gpt2(24, 1, 1)),
        "Llama of 16 M, draft 1.2 M": (llama(512, 4, 0), llama(128, 1, 1)),
    }


class Arm:
    """One way to generate, with what it took."""

    def __init__(self, generate: Callable[[Tensor], int], target: nn.Module) -> None:
        self.generate = generate
        self.seconds: list[float] = []
        self.tokens = 0
        self.passes = 0
        target.register_forward_hook(self._count)
        self.running = False

    def _count(self, *_: object) -> None:
        self.passes += self.running

    def run(self, prompt: Tensor) -> None:
        """Generate once."""
        self.running = True
        start = time.perf_counter()
        self.tokens += self.generate(prompt)
        self.seconds.append(time.perf_counter() - start)
        self.running = False

    def peak(self, prompt: Tensor) -> float:
        """The most that its tensors held at a time, in MiB."""
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            self.generate(prompt)
        held = most = 0
        for event in found.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                most = max(most, held)
        return most / 2**20


def arms_of(target: Any, draft: Any) -> dict[str, Arm]:
    """The decoders for a pair."""
    settings = draft.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = K, "constant"
    settings.assistant_confidence_threshold = 0.0
    drawn = {"do_sample": True, "top_k": 0, "top_p": 1.0, "max_new_tokens": NEW, "min_new_tokens": NEW}
    decoder = SpeculativeDecoder(target, draft, k=K)

    def theirs(prompt: Tensor, assistant: Any) -> int:
        mask = torch.ones(1, len(prompt), dtype=torch.long)
        rows = target.generate(prompt[None], attention_mask=mask, assistant_model=assistant, **drawn)
        return rows.shape[1] - len(prompt)

    return {
        PEER: Arm(lambda prompt: theirs(prompt, draft), target),
        "transformers, target alone": Arm(lambda prompt: theirs(prompt, None), target),
        "SpeculativeDecoder": Arm(lambda prompt: len(decoder.generate(prompt, NEW).tokens), target),
    }


def main() -> None:
    """Measure, and print a table."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    print(
        f"## lk_losses: {NEW} tokens by speculative decoding, {K} proposals a round, temperature 1, "
        f"{torch.get_num_threads()} thread(s), medians of {ROUNDS}\n"
    )
    print("| pair | decoder | tokens/s | ratio | tokens a pass | peak, MiB |\n|---|---|---|---|---|---|")
    prompt = torch.arange(1, 17)
    for name, (target, draft) in pairs().items():
        arms = arms_of(target, draft)
        order = list(arms.values())
        torch.manual_seed(0)
        for _ in range(WARM_UP + ROUNDS):
            random.shuffle(order)
            for arm in order:
                arm.run(prompt)
        speeds = {label: NEW / statistics.median(arm.seconds[WARM_UP:]) for label, arm in arms.items()}
        for label, arm in arms.items():
            passed = arm.tokens / arm.passes
            print(
                f"| {name} | {label} | {speeds[label]:.0f} | {speeds[label] / speeds[PEER]:.2f} "
                f"| {passed:.2f} | {arm.peak(prompt):.1f} |"
            )


if __name__ == "__main__":
    main()
