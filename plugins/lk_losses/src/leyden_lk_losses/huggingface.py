"""Drafts for Hugging Face's assisted generation (not in the paper).

``target.generate(assistant_model=draft)`` takes a causal language model of ``transformers`` that has the
target's tokens. Such a draft is trained as any other, see `DraftTrainingModule`; here it gets the settings
with which assisted generation proposes as many tokens as wanted, and `to_gpt2` makes one of a `TinyDraftGPT`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from leyden_lk_losses.arguments import check_count
from leyden_lk_losses.drafts import HiddenDraft, TinyDraftGPT

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel


def save_draft(draft: nn.Module, folder: str | Path, *, k: int = 5) -> Path:
    """Save a draft as ``transformers`` loads it, ready for assisted generation (reconstructed).

    Without these settings ``transformers`` proposes up to 20 tokens a round, changes the number as it goes,
    and stops a round where the draft is less than 40 % sure.

    Args:
        draft: a causal language model of ``transformers``, or a `TinyDraftGPT`.
        folder: where to.
        k: tokens that a round proposes.

    Returns:
        The folder, for ``AutoModelForCausalLM.from_pretrained``.

    Raises:
        ValueError: if the draft is none that assisted generation can run, or ``k`` is not positive; the text
            names it.
    """
    check_count("k", k)
    if isinstance(draft, HiddenDraft):
        raise ValueError(
            f"draft: assisted generation runs causal language models; {type(draft).__name__} reads the "
            "target's hidden states, which SpeculativeDecoder gives it"
        )
    model: Any = to_gpt2(draft) if isinstance(draft, TinyDraftGPT) else draft
    if not hasattr(model, "save_pretrained") or not hasattr(model, "generation_config"):
        raise ValueError(
            f"draft: expected a causal language model of transformers or a TinyDraftGPT, got "
            f"{type(draft).__name__}"
        )
    settings = model.generation_config
    settings.num_assistant_tokens = k
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    model.save_pretrained(folder)
    return Path(folder)


@torch.no_grad()
def to_gpt2(model: TinyDraftGPT) -> GPT2LMHeadModel:
    """A `TinyDraftGPT` as the GPT-2 of ``transformers`` that computes the same (reconstructed).

    Args:
        model: the model; its tensors are copied.

    Returns:
        A model whose logits of tokens of shape ``(batch, time)`` are the same but for rounding, in the same
        precision, mode and place.

    Raises:
        ValueError: if the model proposes fewer tokens than it reads.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    head = model.head
    if head.out_features != model.vocab:
        raise ValueError(
            f"model: expected as many outputs as tokens, {model.vocab}, got {head.out_features}; "
            "transformers has no such draft"
        )
    blocks: list[Any] = list(model.blocks)
    config = GPT2Config(
        vocab_size=model.vocab,
        n_positions=model.max_length,
        n_embd=model.hidden_size,
        n_layer=len(blocks),
        n_head=blocks[0].heads,
        activation_function="gelu",
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        layer_norm_epsilon=model.norm.eps,
        tie_word_embeddings=False,
        # There is no token with a meaning of its own.
        bos_token_id=None,
        eos_token_id=None,
    )
    twin: Any = GPT2LMHeadModel(config)
    twin.to(head.weight.device, head.weight.dtype)
    _copy(twin.transformer.wte, model.tokens)
    _copy(twin.transformer.wpe, model.positions)
    _copy(twin.transformer.ln_f, model.norm)
    _copy(twin.lm_head, head)
    for block, own in zip(twin.transformer.h, blocks, strict=True):
        _copy(block.ln_1, own.attention_norm)
        _copy(block.ln_2, own.norm)
        _copy_transposed(block.attn.c_attn, own.inputs)
        _copy_transposed(block.attn.c_proj, own.outputs)
        _copy_transposed(block.mlp.c_fc, own.up)
        _copy_transposed(block.mlp.c_proj, own.down)
    found: GPT2LMHeadModel = twin.train(model.training)
    return found


def _copy(to: nn.Module, of: nn.Module) -> None:
    to.load_state_dict(of.state_dict())


def _copy_transposed(to: Any, of: nn.Linear) -> None:
    """GPT-2 keeps the weights of its linear maps transposed."""
    to.weight.copy_(of.weight.T)
    to.bias.copy_(of.bias)
