"""Heads for a real model of 135 million parameters, trained by KL and by LK-λ, as an experiment on two cores.

The target, the text that it wrote, its hidden states and the heads' vocabulary are the same for every cell;
the first one makes them and the rest read them. Both losses get the same steps, batches, initial weights and
learning rates to choose from on validation text; what is judged is measured on other text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from leyden.claims import Cell, Claim, Measured, Scalar, Scale, Statement, Table
from leyden.model import Verdict
from leyden.statistics import Judge, bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from leyden_lk_losses.distributions import StoredDistributions, TargetBatch

_LOSSES: Mapping[str, Mapping[str, Any]] = {
    "KL": {"kind": "kl"},
    "LK-lambda": {"kind": "lk_lambda", "eta": 10.0},
}
_RATES = (0.001, 0.003, 0.01)
"""Learning rates of AdamW; each loss chooses one a seed, by τ on validation text."""


class SmolLM2Heads(Claim):
    """MEDUSA heads on SmolLM2-135M-Instruct: how often proposals are accepted, and tokens a target pass."""

    name = "smollm2"
    title = "Heads for SmolLM2-135M: acceptance and tokens a target pass, LK-λ beside KL"
    source = "MEDUSA on Llama-3.1-8B at temperature 1 (τ 1.72 → 1.85, 2.02 → 2.22, 1.81 → 1.92), here smaller"
    statements = (
        Statement(
            id="first",
            text="At the first depth, heads trained by LK-λ (η = 10) are accepted more often than those that "
            "KL trained with the same budget.",
            kind="better",
            paper="MEDUSA heads gain 7 to 10 % in τ from LK-λ.",
        ),
        Statement(
            id="tokens",
            text="Under the text's own contexts, LK-λ's tokens of a target pass are more than KL's.",
            kind="better",
            paper="MEDUSA heads gain 7 to 10 % in τ from LK-λ.",
        ),
        Statement(
            id="counted",
            text="Counted by the decoder, LK-λ's tokens of a target pass are more than KL's.",
            kind="better",
            paper="MEDUSA heads gain 7 to 10 % in τ from LK-λ.",
        ),
        Statement(
            id="estimate",
            text="What the decoder counts is within 5 % of the estimate under the text's own contexts.",
            kind="bound",
        ),
        Statement(
            id="divergence",
            text="The gain is bought with fidelity: LK-λ's heads have the larger KL divergence.",
            kind="better",
        ),
    )
    minutes: ClassVar[Mapping[str, float]] = {"smoke": 0.3, "laptop": 10.0, "paper": 60.0}
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "laptop": 3, "paper": 5}
    metric = "counted_tau"
    unit = "tokens"
    reference = "KL"

    def cells(self, scale: Scale) -> Sequence[Cell]:
        """Two losses; at smoke scale on a random target of a few thousand parameters."""
        sizes: Mapping[str, Scalar] = scale.pick(
            smoke={
                "rows": 8,
                "other_rows": 4,
                "length": 12,
                "prompt": 4,
                "vocab": 16,
                "steps": 3,
                "texts": 2,
            },
            laptop={
                "rows": 256,
                "other_rows": 48,
                "length": 80,
                "prompt": 16,
                "vocab": 2048,
                "steps": 250,
                "texts": 12,
            },
            paper={
                "rows": 2048,
                "other_rows": 128,
                "length": 128,
                "prompt": 16,
                "vocab": 8192,
                "steps": 2000,
                "texts": 64,
            },
        )
        return [
            Cell(method=loss, seed=seed, scale=scale.name, options=sizes)
            for seed in range(scale.seeds)
            for loss in _LOSSES
        ]

    def run(self, cell: Cell) -> Measured:
        """Train with every learning rate, take the best on validation text, and measure it on other text."""
        import torch

        sizes = cast("Mapping[str, int]", cell.options)
        material = _material(cell.scale == "smoke", sizes)
        fits = [_fit(cell, material, rate) for rate in (_RATES[:1] if cell.scale == "smoke" else _RATES)]
        best = max(fits, key=lambda fit: -math.inf if math.isnan(fit.validation_tau) else fit.validation_tau)
        tested = best.test(material)
        generator = torch.Generator().manual_seed(cell.seed)
        counted = _decoded(best.heads, material, sizes, generator)
        return {
            **{f"alpha{depth + 1}": tested[f"test/alpha_depth{depth + 1}"] for depth in range(_HEADS)},
            "tau": tested["test/tau"],
            "kl": tested["test/kl"],
            "top1": tested["test/top1"],
            **counted,
            "estimate_slack": 0.05 - abs(counted["counted_tau"] / tested["test/tau"] - 1),
            "lr": best.rate,
            "validation_taus": [fit.validation_tau for fit in fits],
            "rates": [fit.rate for fit in fits],
            "covered": material.covered,
            "bfloat16": float(material.target_dtype == torch.bfloat16),
        }

    def judge(self, table: Table) -> Sequence[Verdict]:
        """Judge on test text, with the learning rates that validation text chose."""
        judge = Judge(self, table, by="ratio")
        verdicts = [
            judge.better("first", "LK-lambda", "KL", metric="alpha1"),
            judge.better("tokens", "LK-lambda", "KL", metric="tau"),
            judge.better("counted", "LK-lambda", "KL", metric="counted_tau"),
            bound(self.statement("estimate"), table, "estimate_slack", unit="of the estimate"),
            Judge(self, table, by="ratio", mode="min").better("divergence", "KL", "LK-lambda", metric="kl"),
        ]
        chosen = "; ".join(remark for method in _LOSSES if (remark := _rates_remark(table, method)))
        return [
            dataclasses.replace(verdict, detail="; ".join(filter(None, [verdict.detail, chosen])))
            for verdict in verdicts
        ]

    def figure(self, table: Table) -> Mapping[str, Figure]:
        """Tokens a target pass, and the acceptance rates over depth."""
        from leyden.figures import default_figure

        return {**default_figure(self, table), "acceptance": _acceptance_figure(table)}


_HEADS = 3


class _Written:
    """What the target wrote, without the prompts, which a decoder gets and does not propose.

    A loader takes it as it takes `StoredDistributions`.
    """

    def __init__(self, stored: StoredDistributions, prompt: int) -> None:
        self.stored = stored
        self.prompt = prompt

    def __len__(self) -> int:
        return len(self.stored)

    def batch(self, indices: Sequence[int]) -> TargetBatch:
        """The windows of these indices, from the last token of the prompt on."""
        import torch

        whole = self.stored.batch(indices)
        tensors = {name: part for name, part in whole._asdict().items() if isinstance(part, torch.Tensor)}
        return whole._replace(**{name: part[:, self.prompt - 1 :] for name, part in tensors.items()})


class _Material(NamedTuple):
    """What all cells share."""

    target: nn.Module
    train: _Written
    validation: _Written
    test: _Written
    draft_vocab: Tensor
    prompts: Tensor
    covered: float

    @property
    def target_dtype(self) -> Any:
        """The type of the target's weights."""
        return next(self.target.parameters()).dtype


class _Fit(NamedTuple):
    """Heads trained with one learning rate, and their estimated τ on validation text."""

    rate: float
    heads: nn.Module
    module: Any
    trainer: Any
    validation_tau: float

    def test(self, material: _Material) -> dict[str, float]:
        """What is measured on test text."""
        from leyden_datamodules.loader import tensor_loader

        loader = tensor_loader(cast("Any", material.test), batch_size=8)
        return dict(self.trainer.test(self.module, loader, verbose=False)[0])


def _material(smoke: bool, sizes: Mapping[str, int]) -> _Material:
    """Read what all cells share, or make it: the first cell does, and the others wait for it."""
    import torch

    from leyden_lk_losses.data import OnPolicyDataModule
    from leyden_lk_losses.distributions import store_distributions

    count, other = sizes["rows"], sizes["other_rows"]
    target = _random_target() if smoke else _smollm2()
    prompts = _random_prompts(sizes) if smoke else _prompts(count + 2 * other, sizes["prompt"])
    text = OnPolicyDataModule(
        target,
        prompts,
        rows=count,
        val_rows=other,
        test_rows=other,
        length=sizes["length"],
        prompt_length=sizes["prompt"],
    )
    vocabulary = next(target.parameters()).shape[0]
    written = text.train[0][:, sizes["prompt"] :]
    draft_vocab = torch.bincount(written.flatten(), minlength=vocabulary).topk(sizes["vocab"]).indices
    known = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, draft_vocab, True)
    train, validation, test = (
        _Written(
            store_distributions(target, tokens, keep="hidden", dtype="float16", batch_size=16).restricted(
                draft_vocab
            ),
            sizes["prompt"],
        )
        for tokens in (text.train[0], text.val[0], text.test[0])
    )
    covered = float(known[text.test[0][:, sizes["prompt"] :]].float().mean())
    return _Material(
        target, train, validation, test, draft_vocab, text.test[0][:, : sizes["prompt"]], covered
    )


def _fit(cell: Cell, material: _Material, rate: float) -> _Fit:
    """Train heads from random weights."""
    from functools import partial

    import torch
    from leyden_datamodules.loader import tensor_loader, training_loader

    from leyden_lk_losses.drafts import MedusaHeads
    from leyden_lk_losses.loss import LKLoss
    from leyden_lk_losses.module import DraftTrainingModule

    sizes = cast("Mapping[str, int]", cell.options)
    width = material.train.batch([0]).hidden
    assert width is not None
    torch.manual_seed(cell.seed)
    heads = MedusaHeads(width.shape[-1], len(material.draft_vocab), _HEADS)
    # The target's outcomes are the heads' tokens, in their order, and one for all others.
    loss = LKLoss(**_LOSSES[cell.method], draft_vocab=torch.arange(len(material.draft_vocab)))
    schedule = partial(
        torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.0, total_iters=sizes["steps"]
    )
    module = DraftTrainingModule(material.target, heads, loss, lr=rate, lr_scheduler=schedule)
    trainer = _trainer(sizes["steps"], "bf16-mixed" if material.target_dtype == torch.bfloat16 else "32-true")
    validation = tensor_loader(cast("Any", material.validation), batch_size=8)
    trainer.fit(
        module, training_loader(cast("Any", material.train), batch_size=8, seed=cell.seed), validation
    )
    validated = trainer.validate(module, validation, verbose=False)
    return _Fit(rate, heads, module, trainer, float(validated[0]["val/tau"]))


def _decoded(
    heads: nn.Module, material: _Material, sizes: Mapping[str, int], generator: Any
) -> dict[str, float]:
    """Count what the decoder needs for the first texts of the test prompts."""
    from leyden_lk_losses.decoder import SpeculativeDecoder

    decoder = SpeculativeDecoder(
        material.target, heads, k=_HEADS, generator=generator, draft_vocab=material.draft_vocab
    )
    results = [
        decoder.generate(prompt, sizes["length"] - sizes["prompt"])
        for prompt in material.prompts[: sizes["texts"]]
    ]
    rounds = sum(result.rounds for result in results)
    counted: dict[str, float] = {
        "counted_tau": 1 + sum(result.accepted for result in results) / rounds,
        "rounds": float(rounds),
    }
    for depth in range(_HEADS):
        examined = sum(result.examined_by_depth[depth] for result in results)
        accepted = sum(result.accepted_by_depth[depth] for result in results)
        counted[f"counted_alpha{depth + 1}"] = accepted / examined if examined else math.nan
    return counted


def _trainer(steps: int, precision: str) -> Any:
    from lightning.pytorch import Trainer

    return Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        precision=cast("Any", precision),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=None,
        val_check_interval=steps + 1,
    )


def _smollm2() -> nn.Module:
    """The model, in bfloat16 where the processor multiplies that itself."""
    import torch
    from leyden_datamodules import load_smollm2

    native = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return load_smollm2(dtype=torch.bfloat16 if native else torch.float32)


def _prompts(count: int, length: int) -> Tensor:
    """The beginnings of so many paragraphs of Python's documentation, in random order."""
    import torch
    from leyden_datamodules import PythonDocs, smollm2_tokenizer

    tokenizer = smollm2_tokenizer()
    paragraphs = [text.strip() for text in PythonDocs().read().split("\n\n")]
    rows = [tokenizer(text).input_ids[:length] for text in paragraphs if len(text) > 4 * length]
    prompts = torch.tensor([row for row in rows if len(row) == length])
    if len(prompts) < count:
        raise ValueError(f"rows: there are {len(prompts)} prompts of {length} tokens, {count} are asked for")
    return prompts[torch.randperm(len(prompts), generator=torch.Generator().manual_seed(0))[:count]]


def _random_target() -> nn.Module:
    """A tiny Llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target: nn.Module = LlamaForCausalLM(config)
    return target


def _random_prompts(sizes: Mapping[str, int]) -> Tensor:
    import torch

    rows = sizes["rows"] + 2 * sizes["other_rows"]
    return torch.randint(32, (rows, sizes["prompt"]), generator=torch.Generator().manual_seed(0))


def _rates_remark(table: Table, method: str) -> str:
    """Which learning rates a method chose, and whether one lies at the edge of the grid."""
    from leyden.claims import Arm

    chosen = sorted(table.by_seed(Arm(method), "lr").values())
    if not chosen:
        return ""
    edge = [rate for rate in (_RATES[0], _RATES[-1]) if rate in chosen]
    told = f"{method} chose lr {', '.join(f'{rate:g}' for rate in chosen)} of {len(_RATES)}"
    return told + (f", of which {', '.join(f'{rate:g}' for rate in edge)} at the edge" if edge else "")


def _acceptance_figure(table: Table) -> Figure:
    """Acceptance rates over depth, on test text and as the decoder counted them."""
    from leyden.claims import Arm
    from leyden.figures import new_figure, styles
    from leyden.statistics import interval

    figure, (left, right) = new_figure(
        2,
        title="Acceptance rate by depth",
        alt="Acceptance rates fall with depth; one line for each loss.",
    )
    for ax, prefix, name in (
        (left, "alpha", "test text"),
        (right, "counted_alpha", "counted by the decoder"),
    ):
        for method, style in styles(table.methods).items():
            values = [table.by_seed(Arm(method), f"{prefix}{depth + 1}") for depth in range(_HEADS)]
            means = [interval(by_seed.values()) for by_seed in values if by_seed]
            depths = [depth + 1 for depth, by_seed in enumerate(values) if by_seed]
            ax.errorbar(
                depths,
                [mean.mean for mean in means],
                yerr=[mean.high - mean.mean if math.isfinite(mean.high) else 0.0 for mean in means],
                color=style.color,
                marker=style.marker,
                linestyle=style.line,
                capsize=3,
                label=method,
            )
        ax.set_title(name)
        ax.set_xlabel("depth of the proposal")
        ax.set_xticks(range(1, _HEADS + 1))
    left.set_ylabel("acceptance rate")
    if table.done:
        left.legend(frameon=False)
    return figure
