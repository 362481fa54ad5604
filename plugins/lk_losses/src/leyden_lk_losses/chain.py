"""A chain whose best draft is known: the target looks two tokens back, the draft only one.

The target is an order-2 Markov chain, p(v | a, b) after the tokens a, b; the draft is a table q(v | b). What
it cannot know is a, so KL and acceptance have different optima: that of KL is the conditional mean of p given
b, and that of acceptance solves the linear program

    max Σ_a w_a Σ_v t_av   subject to   t_av ≤ p_a(v),  t_av ≤ q(v),  q in the simplex,

one for each b, where w is the stationary law of a given b.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from leyden_lk_losses.baselines import baseline
from leyden_lk_losses.kernel import row_divergences

Objective = Literal["kl", "reverse_kl", "tv", "fixed", "lk_lambda", "lk_alpha", "lk_alpha_log_mean"]


@dataclass(frozen=True)
class Chain:
    """An order-2 Markov chain.

    Attributes:
        transitions: p(v | a, b), of shape (tokens a, tokens b, tokens v), float64.
    """

    transitions: Float[Tensor, "a b v"]

    @classmethod
    def drawn(cls, seed: int, *, tokens: int = 16, concentration: float = 0.1) -> Chain:
        """Draw every row from a symmetric Dirichlet distribution.

        Args:
            seed: of the generator.
            tokens: how many tokens there are.
            concentration: the Dirichlet parameter; a small one makes rows of few likely tokens.

        Returns:
            The chain.
        """
        generator = np.random.default_rng(seed)
        rows = generator.dirichlet(np.full(tokens, concentration), size=(tokens, tokens))
        return cls(torch.tensor(rows))  # a copy, at an address of torch's choice: last bits depend on it

    @cached_property
    def pair_law(self) -> Float[Tensor, "a b"]:
        """The stationary law of two tokens that follow each other."""
        tokens = len(self.transitions)
        # The pair (a, b) goes to (b, v).
        goes = torch.zeros(tokens, tokens, tokens, tokens, dtype=torch.float64)
        places = torch.arange(tokens)
        goes[:, places, places] = self.transitions
        return _stationary(goes.view(tokens**2, -1)).view(tokens, tokens)

    def acceptance(self, draft: Float[Tensor, "b v"]) -> float:
        """The mean of α under the stationary law, for a draft's probabilities q(v | b)."""
        alpha = torch.minimum(self.transitions, draft.unsqueeze(0)).sum(dim=-1)
        return float((self.pair_law * alpha).sum())

    @cached_property
    def conditional_mean(self) -> Float[Tensor, "b v"]:
        """The mean of p(v | a, b) over a given b, the draft that KL is least for."""
        joint = torch.einsum("ab,abv->bv", self.pair_law, self.transitions)
        return joint / joint.sum(dim=-1, keepdim=True)

    @cached_property
    def best_acceptance(self) -> float:
        """The largest acceptance that a draft q(v | b) can have, by the linear program (HiGHS)."""
        tokens = len(self.transitions)
        return sum(
            _best_acceptance(self.transitions[:, b].numpy(), self.pair_law[:, b].numpy())
            for b in range(tokens)
        )


def _stationary(goes: Tensor) -> Tensor:
    """The stationary law of a matrix of transitions, by the elimination of Grassmann, Taksar and Heyman.

    It subtracts nothing, and unlike a solver of LAPACK it gives the same bits wherever the matrix lies.
    """
    goes = goes.clone()
    states = len(goes)
    for state in range(states - 1, 0, -1):
        goes[:state, state] /= goes[state, :state].sum()
        goes[:state, :state] += goes[:state, state, None] * goes[state, :state]
    law = torch.ones(states, dtype=goes.dtype)
    for state in range(1, states):
        law[state] = (law[:state] * goes[:state, state]).sum()
    return law / law.sum()


def train(
    chain: Chain,
    objective: Objective,
    *,
    eta: float = 3.0,
    fixed_lambda: float = 0.5,
    steps: int = 2000,
    rate: float = 0.05,
) -> Float[Tensor, "b v"]:
    """Train a table of logits from zero by Adam, on all pairs at once, weighted by their stationary law.

    Args:
        chain: the target.
        objective: the loss, as the kinds of `leyden_lk_losses.LKLoss`; λ comes from the mean of α over all
            pairs. ``"lk_alpha_log_mean"`` is -log of the mean of α.
        eta: η of ``"lk_lambda"``.
        fixed_lambda: λ of ``"fixed"``.
        steps: Adam steps.
        rate: Adam's, which falls linearly to 0.

    Returns:
        The draft's probabilities q(v | b).
    """
    tokens = len(chain.transitions)
    target = chain.transitions.log()
    logits = torch.zeros(tokens, tokens, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = _loss(target, logits.expand(tokens, -1, -1), chain.pair_law, objective, eta, fixed_lambda)
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return logits.detach().softmax(dim=-1)


def _loss(
    target: Tensor, draft: Tensor, weights: Tensor, objective: Objective, eta: float, fixed_lambda: float
) -> Tensor:
    if objective == "reverse_kl":
        return (weights * baseline("reverse_kl", target, draft)).sum()
    kl, log_alpha = row_divergences(target, draft)
    mean_kl, mean_alpha = (weights * kl).sum(), (weights * log_alpha.exp()).sum()
    if objective == "lk_alpha":
        return -(weights * log_alpha).sum()
    if objective == "lk_alpha_log_mean":
        return -mean_alpha.log()
    if objective == "lk_lambda":
        lam = (-eta * mean_alpha.detach()).exp()
    else:
        lam = mean_alpha.new_tensor({"kl": 1.0, "tv": 0.0, "fixed": fixed_lambda}[objective])
    return lam * mean_kl + (1 - lam) * (1 - mean_alpha)


def _best_acceptance(p: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> float:
    """The linear program of one b: p is (tokens a, tokens v), the weights (tokens a,)."""
    from scipy.optimize import linprog
    from scipy.sparse import eye, hstack, kron

    contexts, tokens = p.shape
    gains = np.concatenate([np.repeat(weights, tokens), np.zeros(tokens)])  # of t and of q
    below_q = hstack([eye(contexts * tokens), -kron(np.ones((contexts, 1)), eye(tokens))], format="csr")
    total = np.concatenate([np.zeros(contexts * tokens), np.ones(tokens)])[None]
    bounds = [(0, value) for value in p.ravel()] + [(0, None)] * tokens
    found = linprog(
        -gains,
        A_ub=below_q,
        b_ub=np.zeros(contexts * tokens),
        A_eq=total,
        b_eq=[1.0],
        bounds=bounds,
        method="highs",
    )
    if not found.success:
        raise RuntimeError(f"the linear program was not solved: {found.message}")
    return -float(found.fun)
