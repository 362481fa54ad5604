from __future__ import annotations

import copy
import importlib.util
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import lk_plain as plain
import pytest
import torch
from leyden_lk_losses import LKLoss, LKOutput
from leyden_lk_losses.loss import Kind
from torch import Tensor

BATCH, DEPTHS, TIME, VOCAB = 3, 2, 4, 11
KINDS = get_args(Kind)
DECAY = torch.tensor([1.0, 0.8], dtype=torch.float64)


def pair(depths: int = DEPTHS, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits of a target and of a draft that needs a gradient."""
    generator = torch.Generator().manual_seed(0)
    common, own, other = (
        torch.randn(BATCH, depths, TIME, VOCAB, generator=generator, dtype=dtype) for _ in range(3)
    )
    return 2 * common + own, (2 * common + other).requires_grad_()


def expected(kind: str, target: Tensor, draft: Tensor, lam: Tensor) -> Tensor:
    """A loss for each token, from the definitions; λ is a number."""
    p, q = plain.both(target, draft)
    kl, alpha = plain.kl(target, draft), plain.alpha(target, draft)
    middle = (p + q) / 2
    return {
        "kl": kl,
        "tv": 1 - alpha,
        "lk_alpha": -alpha.log(),
        "lk_lambda": lam * kl + (1 - lam) * (1 - alpha),
        "fixed": 0.5 * kl + 0.5 * (1 - alpha),
        "reverse_kl": (q * (q / p).log()).sum(-1),
        "jsd": ((p * (p / middle).log()).sum(-1) + (q * (q / middle).log()).sum(-1)) / 2,
        "ce": -q.gather(-1, p.argmax(-1, keepdim=True)).squeeze(-1).log(),
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_equals_its_definition_and_so_does_its_gradient(kind: Any) -> None:
    target, draft = pair()
    lam = (-3.0 * plain.alpha(target, draft).mean(dim=(0, 2)).detach()).exp()
    rows = expected(kind, target, draft, lam.view(1, -1, 1))
    wanted = (rows.mean(dim=(0, 2)) * DECAY).sum()
    found = LKLoss(kind)(draft, target)
    torch.testing.assert_close(found.loss, wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        *(torch.autograd.grad(one, draft, retain_graph=True) for one in (found.loss, wanted)),
        rtol=0,
        atol=1e-10,
    )
    torch.testing.assert_close(found.alpha, plain.alpha(target, draft).mean(dim=(0, 2)).detach())
    torch.testing.assert_close(found.kl, plain.kl(target, draft).mean(dim=(0, 2)).detach())
    if kind == "lk_lambda":
        torch.testing.assert_close(found.lam, lam)


def test_the_hybrid_gradient_is_the_mixture_of_the_closed_forms() -> None:
    target, draft = pair(depths=1)
    found = LKLoss()(draft, target)
    (gradient,) = torch.autograd.grad(found.loss, draft)
    lam = found.lam.view(1, 1, 1, 1)
    mixture = lam * plain.kl_gradient(target, draft) + (1 - lam) * plain.tv_gradient(target, draft)
    torch.testing.assert_close(gradient, mixture.detach() / (BATCH * TIME), rtol=0, atol=1e-10)


def test_eta_leads_from_kl_to_tv() -> None:
    target, draft = pair()
    for eta, kind in ((0.0, "kl"), (1e6, "tv")):
        hybrid, pure = LKLoss(eta=eta)(draft, target), LKLoss(kind)(draft, target)  # type: ignore[arg-type]
        torch.testing.assert_close(hybrid.loss, pure.loss, rtol=0, atol=1e-8)
        torch.testing.assert_close(
            *(torch.autograd.grad(one.loss, draft) for one in (hybrid, pure)), rtol=0, atol=1e-8
        )


@pytest.mark.parametrize("reduction", ["depth", "token"])
def test_lambda_has_no_gradient(reduction: Any) -> None:
    target, draft = pair()
    loss = LKLoss(lambda_reduction=reduction)
    (gradient,) = torch.autograd.grad(loss(draft, target).loss, draft)
    alpha = plain.alpha(target, draft.detach())
    mean = alpha.mean(dim=(0, 2), keepdim=True) if reduction == "depth" else alpha
    held = (-3.0 * mean).exp()  # finite differences of the loss in which λ stays what it is here
    direction, step = torch.randn(draft.shape, dtype=draft.dtype), 1e-6
    ends = [
        (expected("lk_lambda", target, draft.detach() + sign * step * direction, held).mean(dim=(0, 2))
         * DECAY).sum()
        for sign in (1, -1)
    ]  # fmt: skip
    slope = (ends[0] - ends[1]) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-6, atol=1e-8)


def test_lambda_of_a_token_is_its_own() -> None:
    target, draft = pair()
    found = LKLoss(lambda_reduction="token", depth_decay=1.0)(draft, target)
    alpha = plain.alpha(target, draft)
    rows = expected("lk_lambda", target, draft, (-3.0 * alpha).exp())
    torch.testing.assert_close(found.loss, rows.mean(dim=(0, 2)).sum())
    torch.testing.assert_close(found.lam, (-3.0 * alpha).exp().mean(dim=(0, 2)).detach())


def test_log_mean_is_the_logarithm_of_the_mean() -> None:
    target, draft = pair()
    mask = torch.rand(BATCH, DEPTHS, TIME, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[:, 1] = False
    found = LKLoss("lk_alpha", reduction="log_mean")(draft, target, mask)
    alpha = plain.alpha(target, draft)[:, 0][mask[:, 0]]
    torch.testing.assert_close(found.loss, -alpha.mean().log())


def test_the_mean_of_logs_is_above_the_log_of_the_mean() -> None:
    target, draft = pair()
    mean_log, log_mean = (
        LKLoss("lk_alpha", reduction=reduction)(draft, target).loss  # type: ignore[arg-type]
        for reduction in ("mean_log", "log_mean")
    )
    assert mean_log > log_mean


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_mask_leaves_out_does_not_matter_whatever_it_holds(kind: Any) -> None:
    target, draft = pair()
    mask = torch.rand(BATCH, DEPTHS, TIME, generator=torch.Generator().manual_seed(3)) < 0.6
    spoilt = draft.detach().masked_fill(~mask.unsqueeze(-1), math.nan).requires_grad_()
    loss = LKLoss(kind)
    found = loss(spoilt, target.masked_fill(~mask.unsqueeze(-1), -math.inf), mask)
    clean = loss(draft, target, mask)
    torch.testing.assert_close(found, clean, equal_nan=True)
    lam = torch.where(clean.lam.isnan(), 0.0, clean.lam).view(1, -1, 1)
    rows = torch.where(mask, expected(kind, target, draft, lam), 0.0)
    means = rows.sum(dim=(0, 2)) / mask.sum(dim=(0, 2))
    torch.testing.assert_close(clean.loss, (means * DECAY).sum())
    (gradient,) = torch.autograd.grad(found.loss, spoilt)
    assert gradient.isfinite().all()
    assert not gradient[~mask].any()
    torch.testing.assert_close(gradient, torch.autograd.grad(clean.loss, draft)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_without_a_token_gives_zero_and_no_gradient(kind: Any) -> None:
    target, draft = pair()
    found = LKLoss(kind)(draft, target, torch.zeros(BATCH, DEPTHS, TIME, dtype=torch.bool))
    assert found.loss == 0
    assert all(bool(one.isnan().all()) for one in (found.alpha, found.kl, found.tau_estimate))
    (gradient,) = torch.autograd.grad(found.loss, draft)
    assert not gradient.any()


def test_a_depth_without_a_token_leaves_the_others_alone() -> None:
    target, draft = pair()
    mask = torch.ones(BATCH, DEPTHS, TIME, dtype=torch.bool)
    mask[:, 1] = False
    found, alone = LKLoss()(draft, target, mask), LKLoss()(draft[:, :1], target[:, :1])
    torch.testing.assert_close(found.loss, alone.loss)
    assert found.alpha[1].isnan()
    assert found.alpha[0] == alone.alpha[0]
    torch.testing.assert_close(found.tau_estimate, alone.tau_estimate)


def test_one_depth_needs_no_dimension_and_a_mask_of_positions_is_for_all_depths() -> None:
    target, draft = pair()
    torch.testing.assert_close(LKLoss()(draft[:, 0], target[:, 0]), LKLoss()(draft[:, :1], target[:, :1]))
    mask = torch.rand(BATCH, TIME, generator=torch.Generator().manual_seed(1)) < 0.5
    torch.testing.assert_close(
        LKLoss()(draft, target, mask), LKLoss()(draft, target, mask.unsqueeze(1).expand(-1, DEPTHS, -1))
    )
    torch.testing.assert_close(
        LKLoss()(draft[:, 0], target[:, 0], mask), LKLoss()(draft[:, :1], target[:, :1], mask)
    )


def test_the_estimate_of_tokens_multiplies_the_rates_of_a_position() -> None:
    target, draft = pair()
    alpha = plain.alpha(target, draft)
    wanted = (1 + alpha[:, 0] + alpha[:, 0] * alpha[:, 1]).mean()
    torch.testing.assert_close(LKLoss()(draft, target).tau_estimate, wanted.detach())


def test_depths_weigh_less_and_less_and_may_be_normalised() -> None:
    target, draft = pair()
    alone = [LKLoss("kl")(draft[:, n], target[:, n]).loss for n in range(DEPTHS)]
    for decay in (0.0, 0.5, 1.0):
        wanted = alone[0] + decay * alone[1]
        torch.testing.assert_close(LKLoss("kl", depth_decay=decay)(draft, target).loss, wanted)
        torch.testing.assert_close(
            LKLoss("kl", depth_decay=decay, normalise_depths=True)(draft, target).loss, wanted / (1 + decay)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_the_optimum_and_gets_no_gradient(kind: Any) -> None:
    target = pair()[0].requires_grad_()
    draft = target.detach().clone().requires_grad_()
    found = LKLoss(kind)(draft, target)
    if kind != "ce":
        torch.testing.assert_close(found.loss, torch.zeros_like(found.loss), rtol=0, atol=1e-12)
    found.loss.backward()
    assert target.grad is None
    assert draft.grad is not None
    if kind != "ce":
        torch.testing.assert_close(draft.grad, torch.zeros_like(draft), rtol=0, atol=1e-10)


def test_pinskers_inequality() -> None:
    target, draft = pair()
    kl = plain.kl(target, draft)
    tv = torch.stack([LKLoss("tv")(draft[b : b + 1, :1, t : t + 1], target[b : b + 1, :1, t : t + 1]).loss
                      for b in range(BATCH) for t in range(TIME)])  # fmt: skip
    assert (tv <= (kl[:, 0].reshape(-1) / 2).sqrt()).all()


def test_minus_log_alpha_keeps_a_gradient_where_peers_clamp() -> None:
    target, draft = torch.zeros(1, 1, 8), torch.zeros(1, 1, 8)
    target[..., :4], draft[..., 4:] = 120.0, 120.0
    draft.requires_grad_()
    loss = LKLoss("lk_alpha")(draft, target).loss
    assert loss.item() == pytest.approx(120 - math.log(2), abs=1e-3)
    (gradient,) = torch.autograd.grad(loss, draft)
    assert gradient.norm() >= 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_minus_infinity_in_either_model_gives_neither_nan_nor_infinity(kind: Any) -> None:
    target, draft = (one.detach().clone() for one in pair())
    target[..., [2, 7]] = -math.inf
    draft[..., [2, 5]] = -math.inf
    draft.requires_grad_()
    found = LKLoss(kind)(draft, target)
    assert found.loss.isfinite()
    (gradient,) = torch.autograd.grad(found.loss, draft)
    assert gradient.isfinite().all()
    assert not gradient[..., [2, 5]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_draft_costs_what_one_padded_with_minus_infinity_costs(kind: Any) -> None:
    target, draft = (one.detach() for one in pair())
    ids = torch.tensor([4, 0, 9, 2])
    padded = torch.full_like(draft, -math.inf)
    padded[..., ids] = draft[..., ids]
    truncated = LKLoss(kind, draft_vocab=ids)(draft[..., ids], target)
    torch.testing.assert_close(truncated, LKLoss(kind)(padded, target), rtol=0, atol=1e-8, equal_nan=True)


def test_a_nan_is_told_with_the_name_of_its_model() -> None:
    for place, name in ((0, "draft_logits"), (1, "target_logits")):
        logits = [one.detach().clone() for one in reversed(pair())]
        logits[place][1, 1, 2, 3] = math.nan
        with pytest.raises(ValueError, match=rf"^{name}: the row \[1, 1, 2\] holds NaN$"):
            LKLoss()(*logits)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kind": "lambda"}, "^kind: expected one of 'lk_lambda', .*got 'lambda'"),
        ({"eta": -1.0}, "^eta: .*at least 0, got -1.0"),
        ({"eta": math.nan}, "^eta: "),
        ({"fixed_lambda": 1.5}, "^fixed_lambda: .*from 0 to 1, got 1.5"),
        ({"depth_decay": -0.1}, "^depth_decay: .*got -0.1"),
        ({"temperature": -1.0}, "^temperature: .*got -1.0"),
        ({"temperature": 0}, "^temperature: 0 .*kind='ce'"),
        ({"lambda_reduction": "row"}, "^lambda_reduction: "),
        ({"reduction": "mean"}, "^reduction: "),
        ({"chunk_size": 0}, "^chunk_size: .*got 0"),
        ({"draft_vocab": torch.tensor([1, 2, 1])}, "^draft_vocab: the id 1 occurs 2 times"),
        ({"draft_vocab": torch.tensor([1, -2])}, "^draft_vocab: .*got -2"),
        ({"draft_vocab": torch.tensor([0.5])}, "^draft_vocab: .*vector of ids"),
        (
            {"draft_vocab": torch.tensor([], dtype=torch.long)},
            r"^draft_vocab: .*vector of ids, got shape \(0,\)",
        ),
    ],
)
def test_a_wrong_argument_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LKLoss(**settings)


def test_wrong_shapes_are_told_with_their_sizes() -> None:
    target, draft = pair()
    with pytest.raises(ValueError, match=r"the draft has 5 tokens and the target 11; .*draft_vocab"):
        LKLoss()(draft[..., :5], target)
    with pytest.raises(ValueError, match=r"expected 5 ids, .*got 2"):
        LKLoss(draft_vocab=[1, 2])(draft[..., :5], target)
    with pytest.raises(ValueError, match="the target has 11 tokens, got the id 11"):
        LKLoss(draft_vocab=[1, 11])(draft[..., :2], target)
    with pytest.raises(ValueError, match=r"^draft_logits: .*got \(3, 11\)"):
        LKLoss()(draft[:, 0, 0], target[:, 0, 0])
    with pytest.raises(ValueError, match=r"^draft_logits: expected the target's shape"):
        LKLoss()(draft[:, :1], target)
    with pytest.raises(ValueError, match=r"^mask: expected bool of shape \(3, 2, 4\) or \(3, 4\), got torch"):
        LKLoss()(draft, target, torch.ones(BATCH, DEPTHS, TIME))
    with pytest.raises(ValueError, match=r"^mask: .*of shape \(3, 2\)"):
        LKLoss()(draft, target, torch.ones(BATCH, DEPTHS, dtype=torch.bool))


@pytest.mark.parametrize("kind", ["lk_lambda", "lk_alpha"])
def test_chunks_of_any_size_give_the_same(kind: Any) -> None:
    target, draft = pair(dtype=torch.float32)
    whole = LKLoss(kind, chunk_size=100)(draft, target)
    for chunk_size in (1, 5, None):
        chunked = LKLoss(kind, chunk_size=chunk_size)(draft, target)
        torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(
            *(torch.autograd.grad(one.loss, draft, retain_graph=True) for one in (chunked, whole)),
            rtol=0,
            atol=1e-6,
        )


def test_a_copy_and_a_list_of_ids_serve_too() -> None:
    target, draft = pair()
    loss = LKLoss("lk_alpha", draft_vocab=[0, 3])
    twin = copy.deepcopy(loss)
    torch.testing.assert_close(twin(draft[..., :2], target), loss(draft[..., :2], target), equal_nan=True)
    assert not loss.state_dict()


def test_the_ids_of_a_loss_are_its_own() -> None:
    target, draft = pair()
    ids = torch.tensor([0, 3])
    loss = LKLoss(draft_vocab=ids)
    before = loss(draft[..., :2], target).loss
    ids += 1
    assert torch.equal(loss(draft[..., :2], target).loss, before)


@pytest.mark.parametrize("masked", [False, True])
def test_tokens_of_half_precision_are_counted_one_by_one(masked: bool) -> None:
    """301 is no number of bfloat16."""
    target, draft = (
        torch.randn(1, 301, 9, generator=torch.Generator().manual_seed(s)).bfloat16() for s in (0, 1)
    )
    mask = torch.ones(1, 301, dtype=torch.bool) if masked else None
    half, single = (
        LKLoss()(one, other, mask) for one, other in ((draft, target), (draft.float(), target.float()))
    )
    torch.testing.assert_close(half, single, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["reverse_kl", "jsd", "ce"])
def test_baselines_take_a_temperature_and_compute_in_single_precision(kind: Any) -> None:
    target, draft = pair()
    divided = LKLoss(kind)(draft / 0.7, target / 0.7).loss
    torch.testing.assert_close(LKLoss(kind, temperature=0.7)(draft, target).loss, divided)
    half = [one.detach().bfloat16() for one in (draft, target)]
    exact = LKLoss(kind)(*(one.double() for one in half)).loss
    found = LKLoss(kind)(*half).loss
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(exact), rel=1e-5)


def peer() -> ModuleType:
    """The eager losses of speculators, from their file: the package imports what only its servers need."""
    found = importlib.util.find_spec("speculators")
    if found is None or not found.submodule_search_locations:
        pytest.skip("speculators is not installed")
    file = Path(found.submodule_search_locations[0]) / "losses" / "eager.py"
    spec = importlib.util.spec_from_file_location("speculators_eager", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        ("kl", "kl_div_loss", {}),
        ("tv", "tv_loss", {}),
        ("lk_alpha", "neg_log_acceptance_loss", {}),
        ("lk_lambda", "lk_hybrid_loss", {"lambda_reduction": "token"}),
        ("reverse_kl", "reverse_kl_div_loss", {}),
        ("jsd", "js_div_loss", {}),
        ("ce", "ce_loss", {}),
    ],
)
def test_where_alpha_is_not_tiny_the_losses_of_speculators_agree(kind: Any, name: str, settings: Any) -> None:
    target, draft = pair(depths=1, dtype=torch.float32)
    function: Callable[[Tensor, Tensor], Tensor] = getattr(peer(), name)
    theirs = function(draft[:, 0], target[:, 0]).mean()
    ours = LKLoss(kind, **settings)(draft, target).loss
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        *(torch.autograd.grad(one, draft) for one in (ours, theirs)), rtol=1e-4, atol=1e-7
    )


def in_a_process(rank: int, port: int, results: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        target, draft = pair()
        rows = slice(0, 1) if rank == 0 else slice(1, 3)  # parts of unequal size
        outputs = [LKLoss(sync_lambda=sync)(draft[rows], target[rows]) for sync in (False, True)]
        results.put((rank, [one.lam.tolist() for one in outputs]))
    finally:
        torch.distributed.destroy_process_group()


def test_processes_share_lambda_where_they_are_asked_to() -> None:
    context = torch.multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = context.SimpleQueue()
    processes = [context.Process(target=in_a_process, args=(rank, port, results)) for rank in (0, 1)]
    for process in processes:
        process.start()
    found = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    target, draft = pair()
    for rank, rows in ((0, slice(0, 1)), (1, slice(1, 3))):
        local, shared = found[rank]
        assert local == pytest.approx(LKLoss()(draft[rows], target[rows]).lam.tolist())
        assert shared == pytest.approx(LKLoss()(draft, target).lam.tolist())


def test_the_output_is_a_plain_tuple_for_compilers_and_loggers() -> None:
    assert LKOutput._fields == ("loss", "alpha", "lam", "kl", "tau_estimate")
    target, draft = pair()
    output = LKLoss()(draft, target)
    assert [one.requires_grad for one in output] == [True, False, False, False, False]
