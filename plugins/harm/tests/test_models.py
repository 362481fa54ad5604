"""Models that people have: in each, all parameters get the gradient of the weighted losses."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from harm_testbed import Gradients, Learner, fit, rows, weighted_gradients
from leyden.tasks import CausalTransformer
from leyden_harm import HarmReduction, total_harm
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset


class VisionTransformer(nn.Module):
    """A small one whose head stands before its blocks, so that the order of the modules misleads."""

    def __init__(self, head_first: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 4, stride=4)
        if head_first:
            self.head = nn.Linear(16, 3)
        block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 1, nn.LayerNorm(16), enable_nested_tensor=False)
        if not head_first:
            self.head = nn.Linear(16, 3)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.blocks(patches).mean(1))
        return logits


class Recurrent(nn.Module):
    """Logits at every position of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.memory = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.memory(self.tokens(tokens))[0])
        return logits


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 16, 3),
    )


def language_model(tied: bool) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 11, "bos_token_id": 0, "eos_token_id": 0}
    if tied:
        config = transformers.GPT2Config(
            n_embd=16, n_layer=1, n_head=2, n_positions=8, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            use_cache=False, **sizes,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
        assert model.lm_head.weight is model.transformer.wte.weight
        return model  # type: ignore[no-any-return]
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=8, tie_word_embeddings=False, use_cache=False, **sizes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def images() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(32, 1, 8, 8, generator=generator), torch.randint(3, (32,), generator=generator)
    )


def tokens() -> TensorDataset:
    text = torch.randint(11, (32, 6), generator=torch.Generator().manual_seed(1))
    return TensorDataset(text[:, :-1].clone(), text[:, 1:].clone())


MODELS: dict[str, tuple[Any, Any]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), rows),
    "CNN": (cnn, images),
    "vision transformer": (VisionTransformer, images),
    "GRU": (Recurrent, tokens),
    "causal transformer": (lambda: CausalTransformer(11, width=16, depth=1, heads=2, max_length=8), tokens),
    "GPT-2, tied head": (lambda: language_model(True), tokens),
    "Llama, own head": (lambda: language_model(False), tokens),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("adaptive", [False, True])
def test_every_parameter_gets_the_gradient_of_the_weighted_losses(name: str, adaptive: bool) -> None:
    build, data = MODELS[name]
    torch.manual_seed(0)

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        if adaptive:
            return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    module = Learner(build(), optimizer)
    reduction = HarmReduction(max_upweight=4.0)
    seen = Gradients(reduction)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="HarmReduction")
        fit(module, reduction, seen, data=data(), steps=6)
    assert any(weights.std() > 1e-4 for weights in seen.weights)
    for state, batch, weights, found in zip(
        seen.states[-2:], seen.batches[-2:], seen.weights[-2:], seen.gradients[-2:], strict=True
    ):
        expected = weighted_gradients(module.train(), state, batch, weights)
        assert found.keys() == expected.keys()
        scale = max(float(one.abs().max()) for one in expected.values())
        for key, gradient in expected.items():
            torch.testing.assert_close(found[key], gradient, rtol=1e-5, atol=2e-6 * scale, msg=key)
    for before, after in seen.margins:
        assert total_harm(after) <= total_harm(before) * (1 + 1e-5)


def test_a_head_that_stands_before_the_blocks_is_pointed_out() -> None:
    torch.manual_seed(0)
    module = Learner(VisionTransformer(head_first=True))
    with pytest.warns(UserWarning, match=r"acts on 'model\.blocks.*write layer='model\.head'"):
        fit(module, HarmReduction(), data=images(), steps=2)
    assert not any(one._forward_hooks for one in module.modules())
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="HarmReduction")
        fit(
            Learner(VisionTransformer(head_first=True)),
            HarmReduction(layer="model.head"),
            data=images(),
            steps=2,
        )


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_of_the_backbone_changes_nothing_and_misleads_nobody(
    reentrant: bool,
) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
            self.head = nn.Linear(8, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            inputs = inputs.clone().requires_grad_()
            hidden = checkpoint(self.body, inputs, use_reentrant=reentrant)
            logits: Tensor = self.head(hidden)
            return logits

    module = Learner(Checkpointed())
    reduction = HarmReduction(max_upweight=4.0)
    seen = Gradients(reduction)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="HarmReduction")
        fit(module, reduction, seen, steps=3)
    expected = weighted_gradients(module, seen.states[-1], seen.batches[-1], seen.weights[-1])
    for key, gradient in expected.items():
        torch.testing.assert_close(seen.gradients[-1][key], gradient, rtol=1e-5, atol=1e-7)


def test_the_output_projection_of_attention_is_not_taken_for_the_last_layer() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 11)
            self.tokens = nn.Embedding(11, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.tokens(inputs)
            logits: Tensor = self.head(self.attention(hidden, hidden, hidden, need_weights=False)[0])
            return logits

    reduction = HarmReduction()
    seen = Gradients(reduction)
    fit(Learner(Attending()), reduction, seen, data=tokens(), steps=2)
    assert len(seen.weights) == 2


def test_a_layer_shared_between_two_places_is_found_once_under_either_name() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    model.add_module("alias", nn.Identity())
    module = Learner(model)
    module.head = model[2]
    for layer in (None, "head", "model.2"):
        reduction = HarmReduction(layer=layer)
        seen = Gradients(reduction)
        fit(module, reduction, seen, steps=2)
        assert len(seen.weights) == 2


def test_a_layer_that_is_never_called_does_nothing_and_is_told() -> None:
    module = Learner(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    module.unused = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match=r"acts on 'unused'.*write layer='model\.2'"):
        fit(module, HarmReduction(), steps=2)
