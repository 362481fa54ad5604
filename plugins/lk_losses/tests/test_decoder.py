"""The decoder has the target's law: by exact enumeration, by counting, by the greedy rule, at every edge."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from typing import Any

import pytest
import torch
from leyden_lk_losses.decoder import Draws, SpeculativeDecoder
from leyden_lk_losses.drafts import MedusaHeads, MLPSpeculator, TinyDraftGPT
from leyden_lk_losses.models import wrap
from torch import Tensor, nn


class Chain(nn.Module):
    """A Markov chain of order 1 or 2 as a language model without a cache; it keeps the texts it was given."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self.texts: list[Tensor] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.texts.append(tokens)
        if self.table.dim() == 2:
            return self.table[tokens]
        before = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], dim=1)
        return self.table[before, tokens]


class Memoryless(Chain):
    """The same for chains of order 1, with the cache that it does not need."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(table)
        self.vocab, self.hidden_size, self.max_length = table.shape[-1], 1, None

    def observe(self, tokens: Tensor) -> tuple[Tensor, None]:
        return self.table[tokens], None

    def start(self, batch: int = 1) -> None:
        return None

    def step(self, tokens: Tensor, cache: None, last: int | None = None) -> tuple[Tensor, None]:
        return self.table[tokens if last is None else tokens[:, -last:]], None

    def crop(self, cache: None, length: int) -> None:
        pass


class Enumeration(Draws):
    """Takes every random decision in every possible way, one way a run, and knows each run's probability."""

    def __init__(self) -> None:
        super().__init__()
        self.path: list[list[int]] = []
        self.begin()

    def begin(self) -> None:
        self.place, self.probability = 0, 1.0

    def more(self) -> bool:
        """Turn to the next way; false when there is none."""
        del self.path[self.place :]
        while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
            self.path.pop()
        if self.path:
            self.path[-1][0] += 1
        self.begin()
        return bool(self.path)

    def choose(self, weights: list[float]) -> int:
        possible = [place for place, weight in enumerate(weights) if weight > 0]
        if self.place == len(self.path):
            self.path.append([0, len(possible)])
        choice = possible[self.path[self.place][0]]
        self.place += 1
        self.probability *= weights[choice] / sum(weights)
        return choice

    def token(self, weights: Tensor) -> Tensor:
        if weights.dim() == 1:
            return torch.tensor(self.choose(weights.tolist()))
        return torch.tensor([self.choose(row) for row in weights.tolist()])

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        # What comes after a rejection is not looked at, so it need not be enumerated.
        passed: list[bool] = []
        for target, draft in zip(p.tolist(), q.tolist(), strict=True):
            rate = min(1.0, target / draft)
            passed.append(all(passed) and self.choose([1 - rate, rate]) == 1)
        return torch.tensor(passed)


def tables(vocab: int, order: int, count: int = 2, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (vocab,) * (order + 1)
    return [1.5 * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]


def gpt(vocab: int, seed: int, **sizes: Any) -> TinyDraftGPT:
    torch.manual_seed(seed)
    model = TinyDraftGPT(vocab, **{"width": 8, "depth": 2, "max_length": 32, **sizes}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.7 * torch.randn_like(parameter))
    return model


def law_of(target: nn.Module, prompt: list[int], length: int) -> dict[tuple[int, ...], float]:
    """The probability of every continuation, from the target's own logits."""
    law = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, probability in law.items():
            with torch.no_grad():
                p = wrap(target).logits(torch.tensor([[*prompt, *text]]))[0, -1].softmax(-1)
            longer |= {(*text, token): probability * float(rate) for token, rate in enumerate(p)}
        law = longer
    return law


def enumerated(decoder: SpeculativeDecoder, prompt: list[int], length: int) -> dict[tuple[int, ...], float]:
    draws, law = decoder.draws, defaultdict(float)
    assert isinstance(draws, Enumeration)
    while True:
        result = decoder.generate(torch.tensor(prompt), length)
        assert result.target_calls == result.rounds
        assert len(result.tokens) == length
        law[tuple(result.tokens.tolist())] += draws.probability
        if not draws.more():
            return law


def assert_same_law(found: dict[tuple[int, ...], float], wanted: dict[tuple[int, ...], float]) -> None:
    assert found.keys() <= wanted.keys()
    for text, probability in wanted.items():
        assert found.get(text, 0.0) == pytest.approx(probability, abs=1e-12)


class RoundOver(Exception):  # noqa: N818 - nothing is wrong
    """Raised by the draft when a second round begins; it holds the text."""


class StopsAfterOneRound(Chain):
    """A draft that ends the run when it is asked after the target was."""

    target: Chain | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        if self.target is not None and self.target.texts:
            raise RoundOver(tokens[0].tolist())
        return super().forward(tokens)


def test_every_token_of_a_round_has_the_targets_law_and_rounds_are_as_long_as_the_formula_says() -> None:
    first, second = tables(3, order=2)
    target, draft = Chain(first), StopsAfterOneRound(second)
    draws = Enumeration()
    decoder = SpeculativeDecoder(target, draft, k=3, draws=draws)
    object.__setattr__(draft, "target", target)
    prompt, rounds = [0, 1], defaultdict(float)
    while True:
        target.texts.clear()
        with pytest.raises(RoundOver) as over:
            decoder.generate(torch.tensor(prompt), 100)
        rounds[tuple(over.value.args[0][2:])] += draws.probability
        if not draws.more():
            break
    assert sum(rounds.values()) == pytest.approx(1, abs=1e-12)
    p, q = first.softmax(-1), second.softmax(-1)
    for place in range(4):
        reached, given = defaultdict(float), defaultdict(float)
        for text, probability in rounds.items():
            if len(text) > place:
                reached[text[:place]] += probability
                given[text[: place + 1]] += probability
        for text, probability in given.items():
            context = [*prompt, *text[:-1]][-2:]
            expected = float(p[*context, text[-1]])
            assert probability / reached[text[:-1]] == pytest.approx(expected, abs=1e-12)
        assert len(given) == 3 ** (place + 1)
    expected_tokens, prefixes = 1.0, {(0, 1): 1.0}
    for _ in range(3):
        prefixes = {
            (*text, token): weight * float(torch.minimum(p, q)[*text[-2:], token])
            for text, weight in prefixes.items()
            for token in range(3)
        }
        expected_tokens += sum(prefixes.values())
    assert sum(len(text) * weight for text, weight in rounds.items()) == pytest.approx(
        expected_tokens, abs=1e-12
    )


def test_texts_of_several_rounds_have_the_targets_law_with_caches_of_both() -> None:
    target, draft = gpt(3, seed=1), gpt(3, seed=2, depth=1)
    decoder = SpeculativeDecoder(target, draft, k=2, draws=Enumeration())
    assert_same_law(enumerated(decoder, [2, 0], 3), law_of(target, [2, 0], 3))


@pytest.mark.parametrize("kind", [MedusaHeads, MLPSpeculator])
def test_texts_proposed_from_hidden_states_have_the_targets_law(kind: Any) -> None:
    target = gpt(3, seed=1)
    torch.manual_seed(3)
    draft = kind(8, 3, 2).double()
    decoder = SpeculativeDecoder(target, draft, k=2, draws=Enumeration())
    assert_same_law(enumerated(decoder, [2, 0], 4), law_of(target, [2, 0], 4))


class Yes(Draws):
    """Accepts everything."""

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return torch.ones_like(p, dtype=torch.bool)


@pytest.mark.parametrize("kind", [MedusaHeads, MLPSpeculator])
def test_proposals_are_made_from_the_hidden_state_before_the_last_token(kind: Any) -> None:
    seen: list[Tensor] = []

    class Watched(kind):  # type: ignore[misc,valid-type]
        def start(self, hidden: Tensor) -> Tensor:
            seen.append(hidden[0])
            return hidden

        def forward(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
            seen.append(hidden[0, 0])
            found: Tensor = super().forward(hidden, tokens)
            return found

    target = gpt(3, seed=1)
    prompt = torch.tensor([2, 0, 1, 1])
    result = SpeculativeDecoder(target, Watched(8, 3, 2).double(), k=2, draws=Yes()).generate(prompt, 19)
    hidden = wrap(target).hidden(torch.cat([prompt, result.tokens]).unsqueeze(0))[0]
    # The first round gives one token, each later one three; the last of a round is not read yet.
    assert len(seen) == 6
    for place, state in enumerate(seen):
        assert torch.allclose(state, hidden[3 + 3 * place], atol=1e-10)


def test_a_recurrent_draft_is_told_the_last_token_and_then_what_it_proposed() -> None:
    told: list[int] = []

    class Watched(MLPSpeculator):
        def advance(self, depth: int, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
            told.append(int(token))
            return super().advance(depth, state, token)

    prompt = torch.tensor([2, 0, 1, 1])
    decoder = SpeculativeDecoder(gpt(3, seed=1), Watched(8, 3, 2).double(), k=2, draws=Yes())
    text = [*prompt.tolist(), *decoder.generate(prompt, 19).tokens.tolist()]
    assert told == [token for start in range(4, 22, 3) for token in text[start : start + 2]]


def test_a_truncated_vocabulary_and_a_temperature_keep_the_law() -> None:
    target, draft = gpt(3, seed=1), gpt(3, seed=2, depth=1, outputs=2)
    decoder = SpeculativeDecoder(
        target, draft, k=2, temperature=0.6, draft_vocab=torch.tensor([2, 0]), draws=Enumeration()
    )
    cooled = copy.deepcopy(target)
    with torch.no_grad():
        cooled.head.weight /= 0.6
    assert_same_law(enumerated(decoder, [2, 0], 3), law_of(cooled, [2, 0], 3))


def test_tokens_that_a_model_never_says_keep_the_law() -> None:
    first, second = tables(3, order=1)
    first[:, 1], second[0, 2] = -torch.inf, -torch.inf
    decoder = SpeculativeDecoder(Memoryless(first), Memoryless(second), k=2, draws=Enumeration())
    assert_same_law(enumerated(decoder, [0], 3), law_of(Memoryless(first), [0], 3))


def round_law(p: Tensor, q: Tensor, k: int) -> float:
    """Expected tokens of a round of a chain of order 1, over the law of what rounds begin after."""
    common = torch.minimum(p, q)
    reached, ends = torch.eye(len(p), dtype=p.dtype), torch.zeros_like(p)
    accepted = torch.zeros(len(p), dtype=p.dtype)
    for _ in range(k):
        ends += reached @ (p - common)
        reached = reached @ common
        accepted += reached.sum(dim=1)
    ends += reached @ p
    start = torch.linalg.matrix_power(ends, 200)[0]
    return 1 + float(start @ accepted)


@pytest.mark.slow
def test_a_long_text_has_the_targets_bigrams_and_rounds_of_the_expected_length() -> None:
    from scipy.stats import chisquare

    first, second = tables(8, order=1, seed=4)
    second = (first + 0.3 * second).float()
    decoder = SpeculativeDecoder(
        Memoryless(first.float()), Memoryless(second), k=4, generator=torch.Generator().manual_seed(0)
    )
    result = decoder.generate(torch.tensor([0]), 200_000)
    p, q = first.softmax(-1), second.double().softmax(-1)
    text = torch.cat([torch.tensor([0]), result.tokens])
    counts = torch.bincount(8 * text[:-1] + text[1:], minlength=64).view(8, 8).double()
    expected = counts.sum(dim=1, keepdim=True) * p
    assert expected.min() > 5
    outcome = chisquare(counts.flatten().numpy(), expected.flatten().numpy(), ddof=7)
    assert outcome.pvalue > 1e-3
    assert result.tau == pytest.approx(round_law(p, q, 4), rel=0.01)
    assert len(result.tokens) == result.rounds + result.accepted
    assert result.accepted == sum(result.accepted_by_depth)
    stationary = torch.linalg.matrix_power(p, 200)[0]
    assert 0.5 < float(stationary @ torch.minimum(p, q).sum(dim=1)) < 0.95  # neither trivial


def greedy(target: nn.Module, prompt: list[int], length: int) -> list[int]:
    text = list(prompt)
    for _ in range(length):
        with torch.no_grad():
            text.append(int(wrap(target).logits(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


def drafts() -> dict[str, nn.Module]:
    torch.manual_seed(5)
    near = gpt(7, seed=1, max_length=64)
    with torch.no_grad():
        near.head.weight += 0.3 * torch.randn_like(near.head.weight)
    return {
        "stand-alone": gpt(7, seed=2, depth=1, max_length=9),
        "near": near,
        "heads": MedusaHeads(8, 7, 4).double(),
        "recurrent": MLPSpeculator(8, 7, 4).double(),
        "chain": Chain(tables(7, order=1)[0]),
    }


@pytest.mark.parametrize("name", drafts())
def test_at_temperature_0_the_text_is_that_of_greedy_decoding(name: str) -> None:
    target = gpt(7, seed=1, max_length=64)
    decoder = SpeculativeDecoder(target, drafts()[name], k=4, temperature=0.0)
    result = decoder.generate(torch.tensor([3, 1, 4]), 60)
    assert result.tokens.tolist() == greedy(target, [3, 1, 4], 60)
    if name == "near":
        assert result.accepted > 10


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
def test_a_draft_equal_to_the_target_is_always_accepted(temperature: float) -> None:
    model = gpt(7, seed=1, max_length=64)
    decoder = SpeculativeDecoder(model, copy.deepcopy(model), k=4, temperature=temperature)
    result = decoder.generate(torch.tensor([3]), 50)
    assert (result.accepted, result.drafted, result.rounds) == (40, 40, 10)
    assert result.tau == 5
    assert result.alpha_by_depth == (1, 1, 1, 1)


class Counted(nn.Module):
    """A model that counts its passes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.max_length = 64
        self.passes = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.passes += 1
        result: Tensor = self.model(tokens)
        return result


def test_the_target_is_called_once_a_round_the_prompt_included() -> None:
    target = Counted(gpt(7, seed=1, max_length=64))
    decoder = SpeculativeDecoder(target, gpt(7, seed=2), k=3)
    target.passes = 0
    result = decoder.generate(torch.tensor([3, 1, 4]), 20)
    assert target.passes == result.target_calls == result.rounds
    assert result.rounds + result.accepted == 20


class Reads(TinyDraftGPT):
    """A model that keeps how many tokens each step read."""

    def step(self, tokens: Tensor, cache: Any, last: int | None = None) -> tuple[Tensor, Tensor]:
        self.__dict__.setdefault("read", []).append(tokens.shape[1])
        return super().step(tokens, cache, last)


def test_no_model_reads_a_token_twice_but_for_rejected_ones() -> None:
    torch.manual_seed(0)
    target, draft = Reads(7, max_length=256), Reads(7, max_length=256)
    result = SpeculativeDecoder(target, draft, k=3).generate(torch.tensor([3] * 10), 100)
    assert target.read[0] == 10 + 3  # type: ignore[index]
    assert max(target.read[1:]) == 3 + 1  # type: ignore[index]
    assert draft.read[0] == 10  # type: ignore[index]
    assert max(draft.read[1:]) == 2  # type: ignore[index]
    assert sum(draft.read) <= 10 + result.drafted + result.rounds  # type: ignore[arg-type]


def test_an_end_inside_an_accepted_block_is_the_last_token() -> None:
    target = gpt(7, seed=1, max_length=64)
    text = greedy(target, [3, 1], 40)
    decoder = SpeculativeDecoder(target, copy.deepcopy(target), k=5, temperature=0.0)
    for end in set(text):
        result = decoder.generate(torch.tensor([3, 1]), 40, eos=end)
        assert result.tokens.tolist() == text[: text.index(end) + 1]
    both = decoder.generate(torch.tensor([3, 1]), 40, eos=(text[5], text[9]))
    assert both.tokens.tolist() == text[: min(text.index(text[5]), text.index(text[9])) + 1]


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7])
def test_no_more_tokens_than_asked_for_are_made_nor_proposed_in_vain(length: int) -> None:
    model = gpt(7, seed=1, max_length=64)
    result = SpeculativeDecoder(model, copy.deepcopy(model), k=5).generate(torch.tensor([3]), length)
    assert len(result.tokens) == length
    assert result.rounds + result.accepted == length
    assert result.accepted == result.drafted


def test_a_text_is_never_longer_than_the_target_reads() -> None:
    target, draft = gpt(7, seed=1, max_length=16), gpt(7, seed=2, max_length=64)
    decoder = SpeculativeDecoder(target, draft, k=5)
    assert len(decoder.generate(torch.tensor([3] * 4), 100).tokens) == 12
    assert len(decoder.generate(torch.tensor([3] * 16), 100).tokens) == 0
    with pytest.raises(ValueError, match="prompt: expected at most max_length=16 tokens, got 17"):
        decoder.generate(torch.tensor([3] * 17), 100)


@pytest.mark.parametrize("longest", [1, 2, 3, 5, 8])
def test_a_draft_with_a_short_context_goes_on_in_a_new_one(longest: int) -> None:
    target, draft = gpt(5, seed=1, max_length=64), gpt(5, seed=2, max_length=longest)
    result = SpeculativeDecoder(target, draft, k=min(3, longest), temperature=0.0).generate(
        torch.tensor([3] * 9), 50
    )
    assert result.tokens.tolist() == greedy(target, [3] * 9, 50)


def test_wrong_arguments_are_named() -> None:
    model, heads = gpt(7, seed=1), MedusaHeads(8, 7, 2).double()
    for arguments, text in (
        ({"k": 0}, "k: expected a whole number of at least 1, got 0"),
        ({"temperature": -1.0}, "temperature: expected"),
        ({"temperature": float("nan")}, "temperature: expected"),
        ({"draft": heads, "k": 3}, "k: expected at most the draft's 2, got 3"),
        ({"draft": gpt(6, seed=1)}, "draft: expected 7 tokens as the target has, got 6"),
        ({"draft": MedusaHeads(9, 7, 4)}, "hidden states of size 8 as the target has, got 9"),
        ({"draft_vocab": torch.tensor([0, 7])}, "draft_vocab: expected ids from 0 to 6, got 7"),
        ({"draft_vocab": torch.tensor([0, 1])}, "draft: expected 2 tokens as draft_vocab has, got 7"),
        ({"draft": gpt(7, seed=1, max_length=3), "k": 4}, "k: expected at most the draft's max_length=3"),
    ):
        with pytest.raises(ValueError, match=text):
            SpeculativeDecoder(**{"target": model, "draft": model, **arguments})  # type: ignore[arg-type]
    decoder = SpeculativeDecoder(model, model)
    for prompt, length, text in (
        (torch.tensor([], dtype=torch.long), 5, "prompt: expected at least one token, got none"),
        (torch.tensor([[1]]), 5, r"prompt: expected int64 tokens of shape \(prompt,\)"),
        (torch.tensor([1.0]), 5, "prompt: expected int64 tokens"),
        (torch.tensor([1]), 0, "max_new_tokens: expected a whole number of at least 1"),
    ):
        with pytest.raises(ValueError, match=text):
            decoder.generate(prompt, length)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spoilt", ["target", "draft"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_logits_that_are_no_distribution_name_their_model(
    temperature: float, spoilt: str, value: float
) -> None:
    good, bad = Memoryless(torch.zeros(4, 4)), Memoryless(torch.full((4, 4), value))
    models = {"target": good, "draft": good, spoilt: bad}
    with pytest.raises(ValueError, match=f"^{spoilt}: its logits are NaN"):
        SpeculativeDecoder(models["target"], models["draft"], temperature=temperature).generate(
            torch.tensor([1]), 9
        )
    with pytest.raises(ValueError, match=f"^{spoilt}: its logits are NaN"):
        SpeculativeDecoder(models["target"], models["draft"], temperature=temperature).generate(
            torch.tensor([1]), 1 if spoilt == "target" else 2
        )


def test_a_token_that_replaces_a_proposal_is_taken_from_no_nan() -> None:
    table = torch.zeros(4, 4)
    table[:, 2] = torch.nan  # argmax gives its place, which is not what the draft proposes
    with pytest.raises(ValueError, match=r"^target: its logits are NaN"):
        SpeculativeDecoder(Memoryless(table), Memoryless(torch.zeros(4, 4)), temperature=0.0).generate(
            torch.tensor([1]), 9
        )


def test_models_are_run_in_evaluation_mode_and_put_back() -> None:
    class Dropped(Memoryless):
        def step(self, tokens: Tensor, cache: None, last: int | None = None) -> tuple[Tensor, None]:
            assert not self.training
            return super().step(tokens, cache, last)

    target = Dropped(torch.zeros(4, 4))
    target.train()
    before = copy.deepcopy(target.state_dict())
    SpeculativeDecoder(target, target).generate(torch.tensor([1]), 9)
    assert target.training
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_a_generator_makes_the_text_and_the_global_one_is_left_alone() -> None:
    model, draft = gpt(7, seed=1), gpt(7, seed=2)
    state = torch.get_rng_state()
    texts = [
        SpeculativeDecoder(model, draft, generator=torch.Generator().manual_seed(seed))
        .generate(torch.tensor([1]), 30)
        .tokens.tolist()
        for seed in (0, 0, 1)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_generator_that_is_set_back_makes_the_same_text_again() -> None:
    """Numbers are drawn in advance, but not for the next text."""
    generator = torch.Generator()
    decoder = SpeculativeDecoder(gpt(5, 0), gpt(5, 1), k=3, generator=generator)
    texts = [decoder.generate(torch.tensor([1]), 20).tokens for _ in range(2) if generator.manual_seed(7)]
    assert torch.equal(*texts)
    assert not torch.equal(texts[0], decoder.generate(torch.tensor([1]), 20).tokens)


def test_nothing_of_weight_0_is_drawn_and_nothing_impossible_accepted() -> None:
    draws = Draws()
    for edge in (1.0, 2.0**-53):  # the largest and the smallest number that decides
        draws._stock, draws._used = torch.full((8,), edge, dtype=torch.float64), 0
        assert draws.token(torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0])) in (1, 3)
        assert draws.token(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).tolist() == [1, 0]
        assert draws.accept(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 0.5])).tolist() == [False, True]


def test_a_token_that_single_precision_would_lose_in_the_sum_is_drawn() -> None:
    draws = Draws()
    draws._stock = torch.ones(1, dtype=torch.float64)  # the largest number takes the last token
    assert draws.token(torch.tensor([1.0, 2.0**-25])) == 1


def test_where_nothing_is_left_of_the_residual_the_target_is_drawn_from() -> None:
    class No(Draws):
        """Accepts nothing, as rounding might where p and q are equal."""

        def accept(self, p: Tensor, q: Tensor) -> Tensor:
            return torch.zeros_like(p, dtype=torch.bool)

    certain = Memoryless(torch.tensor([0.0, 0.0, 50.0, 0.0]).expand(4, 4).clone())
    result = SpeculativeDecoder(certain, certain, draws=No()).generate(torch.tensor([1]), 6)
    assert (result.tokens.tolist(), result.accepted, result.rounds) == ([2] * 6, 0, 6)


def test_a_decoder_of_half_precision_models_works_in_float32() -> None:
    target, draft = gpt(7, seed=1).bfloat16(), gpt(7, seed=2).bfloat16()
    seen: list[torch.dtype] = []

    class Watched(Draws):
        def token(self, weights: Tensor) -> Tensor:
            seen.append(weights.dtype)
            return super().token(weights)

    SpeculativeDecoder(target, draft, draws=Watched()).generate(torch.tensor([1]), 9)
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_temperature_divides_logits_of_half_precision_in_float32(dtype: torch.dtype) -> None:
    """Dividing first would round what is drawn from, and leave the range of float16 at low temperatures."""
    target, draft = (table.to(dtype) for table in tables(6, 1))
    for temperature in (0.7, 1e-5):
        law = (target[1].double() / temperature).softmax(-1)
        decoder = SpeculativeDecoder(Chain(target), Chain(draft), 1, temperature, draws=Enumeration())
        found = enumerated(decoder, [1], 1)
        assert all(abs(found.get((token,), 0.0) - float(p)) < 1e-6 for token, p in enumerate(law))


def test_decoders_can_be_copied_and_pickled() -> None:
    decoder = SpeculativeDecoder(gpt(7, seed=1), gpt(7, seed=2), temperature=0.0)
    expected = decoder.generate(torch.tensor([1]), 20).tokens
    for twin in (copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder))):
        assert torch.equal(twin.generate(torch.tensor([1]), 20).tokens, expected)
