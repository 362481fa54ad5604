from __future__ import annotations

import pytest
import torch
from leyden_lk_losses.chain import Chain, train
from leyden_lk_losses.gaussian import POINTS, fit, mixture
from torch import Tensor


@pytest.fixture(scope="module")
def chain() -> Chain:
    return Chain.drawn(0, tokens=8)


@pytest.fixture(scope="module")
def drafts(chain: Chain) -> dict[str, Tensor]:
    """The drafts that a short training gives."""
    return {
        "kl": train(chain, "kl", steps=150, rate=0.2),
        "tv": train(chain, "tv", steps=150, rate=0.2),
        "lk_alpha": train(chain, "lk_alpha", steps=150, rate=0.2),
        "lk_lambda": train(chain, "lk_lambda", eta=10.0, steps=150, rate=0.2),
    }


def test_the_law_of_pairs_is_stationary(chain: Chain) -> None:
    law = chain.pair_law
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(torch.einsum("ab,abv->bv", law, chain.transitions), law, rtol=0, atol=1e-12)


def test_the_published_chain_has_the_published_optimum() -> None:
    published = Chain.drawn(0)
    assert published.best_acceptance == pytest.approx(0.3650, abs=5e-5)
    assert published.acceptance(published.conditional_mean) == pytest.approx(0.3326, abs=5e-5)


def test_no_draft_accepts_more_than_the_linear_program(chain: Chain, drafts: dict[str, Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    random = [torch.rand(8, 8, generator=generator, dtype=torch.float64) ** 3 for _ in range(20)]
    others = [one / one.sum(dim=-1, keepdim=True) for one in random]
    for draft in (*drafts.values(), chain.conditional_mean, *others):
        assert chain.acceptance(draft) <= chain.best_acceptance + 1e-9


def test_kl_ends_at_the_conditional_mean_and_the_lk_losses_between_it_and_the_optimum(
    chain: Chain, drafts: dict[str, Tensor]
) -> None:
    mean, best = chain.acceptance(chain.conditional_mean), chain.best_acceptance
    torch.testing.assert_close(drafts["kl"], chain.conditional_mean, rtol=0, atol=2e-3)
    closed = {name: (chain.acceptance(draft) - mean) / (best - mean) for name, draft in drafts.items()}
    assert closed["tv"] > 0.95
    assert closed["lk_lambda"] > 0.7
    assert closed["lk_alpha"] > 0.5


def test_reverse_kl_ends_at_the_geometric_mean(chain: Chain) -> None:
    """It is convex in the draft: there is one optimum, which no start and no step size decides."""
    given = chain.pair_law / chain.pair_law.sum(dim=0)
    mean = torch.einsum("ab,abv->bv", given, chain.transitions.log()).softmax(dim=-1)
    draft = train(chain, "reverse_kl", steps=400, rate=0.2)
    torch.testing.assert_close(draft, mean, rtol=0, atol=5e-3)


def test_a_fixed_lambda_leads_from_tv_to_kl(chain: Chain) -> None:
    for lam, objective in ((1.0, "kl"), (0.0, "tv")):
        fixed, pure = train(chain, "fixed", fixed_lambda=lam, steps=5), train(chain, objective, steps=5)  # type: ignore[arg-type]
        torch.testing.assert_close(fixed, pure)


def test_a_target_that_needs_one_token_only_leaves_nothing_between_the_losses() -> None:
    rows = Chain.drawn(1, tokens=4).transitions[0]
    chain = Chain(rows.expand(4, 4, 4).contiguous())
    assert chain.best_acceptance == pytest.approx(1.0)
    assert chain.acceptance(chain.conditional_mean) == pytest.approx(1.0)


def test_the_mixture_is_a_distribution_whose_parts_have_their_weights() -> None:
    p = mixture()
    torch.testing.assert_close(p.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert float(p[:75].sum()) == pytest.approx(0.5, abs=0.01)  # below -2.6, between the first two parts


def test_each_divergence_finds_its_own_gaussian() -> None:
    found = {name: fit(name, step=0.25) for name in ("kl", "reverse_kl", "tv")}  # type: ignore[arg-type]

    def moments(density: Tensor) -> list[float]:
        mean = (density * POINTS).sum()
        return [float(mean), float((density * (POINTS - mean) ** 2).sum().sqrt())]

    assert moments(found["kl"].density) == pytest.approx(moments(mixture()), abs=0.1)  # what KL matches
    assert found["reverse_kl"].mean == pytest.approx(-4, abs=0.25)
    assert found["tv"].acceptance == max(one.acceptance for one in found.values())
