from __future__ import annotations

import math

import lk_plain as plain
import pytest
import torch
from leyden_lk_losses import LKLoss, acceptance_rate, kernel, log_acceptance, row_divergences
from torch import Tensor
from torch.nn.functional import cross_entropy

ROWS, VOCAB = 6, 17


def logits(
    rows: int = ROWS, vocab: int = VOCAB, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Those of a target and of a draft that resembles it."""
    generator = torch.Generator().manual_seed(seed)
    common, own, other = (torch.randn(rows, vocab, generator=generator, dtype=dtype) for _ in range(3))
    return [2 * common + own, 2 * common + other]


def gradients(target: Tensor, draft: Tensor, **settings: object) -> tuple[Tensor, Tensor]:
    """Of Σ KL and of Σ log α in the draft's logits."""
    draft = draft.detach().requires_grad_()
    found = row_divergences(target, draft, **settings)  # type: ignore[arg-type]
    (of_kl,) = torch.autograd.grad(found.kl.sum(), draft, retain_graph=True)
    (of_log_alpha,) = torch.autograd.grad(found.log_alpha.sum(), draft)
    return of_kl, of_log_alpha


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_equal_the_definitions(temperature: float) -> None:
    target, draft = logits()
    found = row_divergences(target, draft, temperature=temperature)
    torch.testing.assert_close(found.kl, plain.kl(target, draft, temperature), rtol=0, atol=1e-10)
    alpha = plain.alpha(target, draft, temperature)
    torch.testing.assert_close(found.log_alpha.exp(), alpha, rtol=0, atol=1e-10)
    for function, value in ((acceptance_rate, alpha), (log_acceptance, alpha.log())):
        torch.testing.assert_close(
            function(target, draft, temperature=temperature), value, rtol=0, atol=1e-10
        )


def test_gradients_equal_the_closed_forms() -> None:
    target, draft = logits()
    of_kl, of_log_alpha = gradients(target, draft)
    torch.testing.assert_close(of_kl, plain.kl_gradient(target, draft), rtol=0, atol=1e-10)
    wanted = -plain.tv_gradient(target, draft) / plain.alpha(target, draft).unsqueeze(-1)
    torch.testing.assert_close(of_log_alpha, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("vocabulary", [None, [3, 0, 11, 5]])
def test_gradients_pass_gradcheck(temperature: float, vocabulary: list[int] | None) -> None:
    target, draft = logits()
    ids = None if vocabulary is None else torch.tensor(vocabulary)
    draft = (draft if ids is None else draft[:, ids]).detach().requires_grad_()

    def both(draft: Tensor) -> tuple[Tensor, ...]:
        return row_divergences(target, draft, draft_vocab=ids, temperature=temperature)

    assert torch.autograd.gradcheck(both, draft)


@pytest.mark.parametrize("chunk_size", [1, 4, ROWS])
@pytest.mark.parametrize("masked", [False, True])
def test_chunks_change_nothing(chunk_size: int, masked: bool) -> None:
    target, draft = logits(dtype=torch.float32)
    valid = torch.tensor([1, 0, 1, 1, 0, 1]).bool() if masked else None
    whole = row_divergences(target, draft, valid=valid)
    chunked = row_divergences(target, draft, valid=valid, chunk_size=chunk_size)
    torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-6)
    for one, other in zip(
        gradients(target, draft, valid=valid, chunk_size=chunk_size),
        gradients(target, draft, valid=valid),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        assert valid is None or not one[~valid].any()


def test_the_careful_way_agrees_with_the_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = logits()
    ids = torch.arange(2, VOCAB - 3)
    settings = {"draft_vocab": ids, "temperature": 0.7, "chunk_size": 4}
    quick = row_divergences(target, draft[:, ids], **settings)  # type: ignore[arg-type]
    quick_gradients = gradients(target, draft[:, ids], **settings)
    monkeypatch.setattr(kernel, "_FAINT", math.inf)
    careful = row_divergences(target, draft[:, ids], **settings)  # type: ignore[arg-type]
    torch.testing.assert_close(careful, quick, rtol=0, atol=1e-12)
    for one, other in zip(gradients(target, draft[:, ids], **settings), quick_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_every_leading_shape_and_overlapping_views_give_what_a_matrix_gives() -> None:
    target, draft = logits(2 * 3 * 4)
    shaped = row_divergences(target.view(2, 3, 4, -1), draft.view(2, 3, 4, -1))
    torch.testing.assert_close(shaped.kl, row_divergences(target, draft).kl.view(2, 3, 4))
    sequence = torch.randn(2, 6, VOCAB, dtype=torch.float64)
    depths = sequence.as_strided((2, 3, 4, VOCAB), (6 * VOCAB, VOCAB, VOCAB, 1))  # depth n starts at place n
    leaf = draft.view(2, 3, 4, -1).detach().requires_grad_()
    for chunk_size in (None, 5):
        overlapping = row_divergences(depths, leaf, chunk_size=chunk_size)
        torch.testing.assert_close(overlapping, row_divergences(depths.clone(), leaf))
        one, other = (
            torch.autograd.grad(row_divergences(each, leaf, chunk_size=chunk_size).log_alpha.sum(), leaf)
            for each in (depths, depths.clone())
        )
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("way", ["quick", "careful"])
def test_at_ties_the_sign_is_zero(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "careful":
        monkeypatch.setattr(kernel, "_FAINT", math.inf)
    # p = (½, ¼, ¼) and q = (½, ⅜, ⅛): s = (0, 1, -1)
    target, draft = torch.tensor([[4.0, 2.0, 2.0]]).log(), torch.tensor([[4.0, 3.0, 1.0]]).log()
    q, s = torch.tensor([4 / 8, 3 / 8, 1 / 8]), torch.tensor([0.0, 1.0, -1.0])
    wanted = -(q * (s - (q * s).sum())) / 2 / 0.875
    torch.testing.assert_close(gradients(target, draft)[1][0], wanted, rtol=0, atol=1e-6)
    assert not gradients(target, target)[1].any()  # a copy of the target is at the optimum


@pytest.mark.parametrize("way", ["quick", "careful"])
def test_no_rate_is_above_one_by_rounding(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "careful":
        monkeypatch.setattr(kernel, "_FAINT", math.inf)
    target = logits(500, 300, dtype=torch.float32)[0]
    for draft in (target, target + 0.3):  # a number that all logits share changes nothing but the rounding
        for log_alpha in (row_divergences(target, draft).log_alpha, log_acceptance(target, draft)):
            assert log_alpha.max() <= 0
            assert log_alpha.min() > -1e-5


def test_where_supports_are_disjoint_the_gradient_lives() -> None:
    for gap, dtype in (
        (95.0, torch.float32),  # α is then below the smallest normal number
        (120.0, torch.float32),
        (120.0, torch.bfloat16),
        (2000.0, torch.float64),
    ):
        target, draft = torch.zeros(1, 8, dtype=dtype), torch.zeros(1, 8, dtype=dtype)
        target[:, :4], draft[:, 4:] = gap, gap
        found = row_divergences(target, draft)
        assert float(found.log_alpha) == pytest.approx(-gap + math.log(2), abs=1e-4)
        assert found.kl.isfinite().all()
        of_log_alpha = gradients(target, draft)[1].float()
        assert of_log_alpha.norm() >= 0.1
        torch.testing.assert_close(of_log_alpha.sum(), torch.tensor(0.0), rtol=0, atol=1e-3)


def test_pure_tv_vanishes_at_a_large_vocabulary_where_log_alpha_does_not() -> None:
    target, draft = torch.full((1, 128_000), -200.0), torch.zeros(1, 128_000)
    target[0, torch.randperm(128_000, generator=torch.Generator().manual_seed(0))[:20]] = 0.0
    of_kl, of_log_alpha = gradients(target, draft)
    alpha = row_divergences(target, draft).log_alpha.exp()
    assert (alpha * of_log_alpha).norm() < 4e-5
    assert of_log_alpha.norm() == pytest.approx(1 / math.sqrt(20), rel=0.01)
    assert of_kl.norm() == pytest.approx(1 / math.sqrt(20), rel=0.01)


def test_for_a_point_mass_minus_log_alpha_is_cross_entropy() -> None:
    _, draft = logits()
    target = torch.zeros(ROWS, VOCAB, dtype=torch.float64)
    target[:, 5] = 60.0
    wanted = cross_entropy(draft, torch.full((ROWS,), 5), reduction="none")
    torch.testing.assert_close(-row_divergences(target, draft).log_alpha, wanted, rtol=0, atol=1e-6)


def test_a_truncated_draft_is_a_whole_one_padded_with_zeros() -> None:
    target, draft = logits()
    ids = torch.tensor([12, 3, 4, 9, 0])
    padded = torch.full_like(draft, -torch.inf)
    padded[:, ids] = draft[:, ids]
    found = row_divergences(target, draft[:, ids], draft_vocab=ids)
    alpha = torch.minimum(*plain.both(target, padded)).sum(-1)
    torch.testing.assert_close(found.log_alpha.exp(), alpha, rtol=0, atol=1e-8)
    assert (found.log_alpha.exp() <= target.softmax(-1)[:, ids].sum(-1) + 1e-12).all()
    torch.testing.assert_close(found, row_divergences(target, padded), rtol=0, atol=1e-8)
    torch.testing.assert_close(found.kl, plain.kl(target[:, ids], draft[:, ids]), rtol=0, atol=1e-8)
    for function in (acceptance_rate, log_acceptance):
        torch.testing.assert_close(
            function(target, draft[:, ids], draft_vocab=ids), function(target, padded), rtol=0, atol=1e-8
        )
    for few, all_of_them in zip(
        gradients(target, draft[:, ids], draft_vocab=ids), gradients(target, padded), strict=True
    ):
        torch.testing.assert_close(few, all_of_them[:, ids], rtol=0, atol=1e-8)
        assert not all_of_them[:, [token for token in range(VOCAB) if token not in ids]].any()


@pytest.mark.parametrize("which", ["target", "draft", "both"])
def test_minus_infinity_contributes_nothing(which: str) -> None:
    target, draft = logits()
    if which != "draft":
        target[:, [2, 7]] = -torch.inf
    if which != "target":
        draft[:, [2, 5]] = -torch.inf
    found = row_divergences(target, draft)
    alpha = torch.minimum(*plain.both(target, draft)).sum(-1)
    torch.testing.assert_close(found.log_alpha.exp(), alpha, rtol=0, atol=1e-10)
    kept = (target > -torch.inf) & (draft > -torch.inf)
    p = target.masked_fill(draft == -torch.inf, -torch.inf).softmax(-1)
    kl = torch.where(kept, p * (p.log() - draft.log_softmax(-1)), 0.0).sum(-1)
    torch.testing.assert_close(found.kl, kl, rtol=0, atol=1e-10)
    for gradient in gradients(target, draft):
        assert gradient.isfinite().all()
        assert not gradient[draft == -torch.inf].any()


@pytest.mark.parametrize("name", ["target_logits", "draft_logits"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_no_distribution_is_named(name: str, value: float) -> None:
    pair = dict(zip(("target_logits", "draft_logits"), logits(12), strict=True))
    pair[name][7, 3] = value
    what = "NaN" if math.isnan(value) else "an infinite logit"
    with pytest.raises(ValueError, match=rf"^{name}: the row \[7\] holds {what}$"):
        row_divergences(**pair, chunk_size=5)
    pair[name][7] = -torch.inf
    with pytest.raises(ValueError, match=rf"^{name}: the row \[7\] holds minus infinity at every token$"):
        row_divergences(**pair)
    valid = torch.ones(12, dtype=torch.bool)
    valid[7] = False
    assert row_divergences(**pair, valid=valid).kl.isfinite().all()


def test_a_target_without_any_of_the_drafts_tokens_is_named() -> None:
    target, draft = logits()
    target[2, :4] = -torch.inf
    with pytest.raises(
        ValueError, match=r"the row \[2\] gives no probability to any token that the draft has"
    ):
        row_divergences(target, draft[:, :4], draft_vocab=torch.arange(4))


def test_no_gradient_reaches_the_target() -> None:
    target, draft = (one.requires_grad_() for one in logits())
    sum(row_divergences(target, draft)).sum().backward()
    assert target.grad is None
    assert draft.grad is not None


def test_second_derivatives_are_refused_in_words() -> None:
    target, draft = logits()
    draft.requires_grad_()
    (gradient,) = torch.autograd.grad(row_divergences(target, draft).kl.sum(), draft, retain_graph=True)
    assert not gradient.requires_grad
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(row_divergences(target, draft).kl.sum(), draft, create_graph=True)


@pytest.mark.parametrize("kind", ["lk_lambda", "lk_alpha", "kl"])
def test_bf16_logits_of_a_large_vocabulary_give_the_loss_of_float64(kind: str) -> None:
    target, draft = (one.bfloat16() for one in logits(8, 50_000, dtype=torch.float32))
    loss = LKLoss(kind, chunk_size=3)  # type: ignore[arg-type]
    exact = LKLoss(kind)(draft.double().unsqueeze(0), target.double().unsqueeze(0)).loss  # type: ignore[arg-type]
    found = loss(draft.unsqueeze(0), target.unsqueeze(0)).loss
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(exact), abs=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(draft.unsqueeze(0), target.unsqueeze(0)).loss == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", ["plain", "masked", "truncated", "infinite"])
def test_beside_the_gradient_it_holds_three_blocks_at_most(dtype: torch.dtype, settings: str) -> None:
    rows, vocab, chunk = 60, 5_000, 10
    target, draft = (one.to(dtype) for one in logits(rows, vocab, dtype=torch.float32))
    valid, ids = None, None
    if settings == "masked":
        valid = torch.arange(rows) % 3 > 0
    if settings == "truncated":
        ids = torch.arange(vocab // 4)
        draft = draft[:, ids].clone()
    if settings == "infinite":
        draft[:, 7] = -torch.inf
    draft.requires_grad_()
    memory = plain.LivingMemory()
    with memory:
        found = row_divergences(target, draft, draft_vocab=ids, chunk_size=chunk, valid=valid)
        (found.kl - found.log_alpha).sum().backward()
    gradient = draft.numel() * draft.element_size()
    assert memory.peak - gradient <= 3 * chunk * vocab * 4 + 60 * rows * 8
    assert memory.peak - gradient >= chunk * vocab * 4  # it does see what is allocated


def test_views_whose_rows_overlap_are_not_copied() -> None:
    vocab, chunk = 500, 8
    target = torch.randn(2, 40, vocab)[:, 1:].unfold(1, 37, 1).movedim(-1, 2)
    memory = plain.LivingMemory()
    draft = torch.randn(2, 3, 37, vocab)
    with memory:
        row_divergences(target, draft, chunk_size=chunk)
    assert memory.peak <= 5 * chunk * vocab * 4 + 60 * 2 * 3 * 37 * 8 < 4 * target.numel()


def test_compiled_without_a_graph_break_it_gives_the_same() -> None:
    target, draft = logits(dtype=torch.float32)
    target[0, 3] = -torch.inf
    draft[1, 4] = -torch.inf
    valid = torch.tensor([1, 0, 1, 1, 0, 1]).bool()
    target[4] = torch.nan

    def both(draft: Tensor) -> Tensor:
        found = row_divergences(target, draft, valid=valid, temperature=0.7)
        return (found.kl - found.log_alpha).sum()

    results = []
    for function in (both, torch.compile(both, fullgraph=True, backend="aot_eager")):
        leaf = draft.clone().requires_grad_()
        value = function(leaf)
        value.backward()
        results.append((value.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-5)
