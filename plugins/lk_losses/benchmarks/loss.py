"""Forward and backward pass of the losses alone, beside the best KL that could be written and beside peers.

Every round calls every loss once, in another order each time, so that what else the machine does hits all
alike; reported is the fastest round of each, and its ratio to three baselines. The logits are leaves, so that
nothing but the loss is timed. The baselines of KL are optimised like the losses:

- ``LKLoss kl`` is the same kernel, which also measures acceptance;
- ``KL alone`` is that kernel stripped of acceptance: exponentials are made anew in the backward pass, and no
  memory as wide as the vocabulary is kept;
- ``KL alone, one pass`` makes the gradient in the forward pass and keeps it, which a loss whose weights are
  known beforehand can do; if anything but 1 comes from above, it is scaled (``half of it``).

``python benchmarks/loss.py [--quick] [--cpu] [--threads N] [--rows N] [--vocab N ...] [--compiled]``; without
sizes: 128 rows of 32,000 tokens and of 128,000. With ``--cpu`` it is the processor's time, of all threads,
which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from leyden_lk_losses import LKLoss
from torch import Tensor
from torch.nn.functional import kl_div

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of draft and target, (rows, tokens)."""

BLOCK = 2**17


class OnePassKL(torch.autograd.Function):
    """The mean KL(p‖q) of rows, whose gradient is made at once and kept."""

    @staticmethod
    def forward(ctx: Any, draft: Tensor, target: Tensor) -> Tensor:
        rows, gradient, total = len(draft), torch.empty_like(draft), draft.new_zeros(())
        for start, p, q, ratio in blocks(draft):
            part = slice(start, start + len(p))
            torch.sub(target[part], target[part].amax(-1, keepdim=True), out=ratio)
            torch.sub(draft[part], draft[part].amax(-1, keepdim=True), out=q)
            torch.exp(ratio, out=p)
            ratio.sub_(q)
            q.exp_()
            sum_p, sum_q = p.sum(-1, keepdim=True), q.sum(-1, keepdim=True)
            total += (ratio.mul_(p).sum(-1, keepdim=True) / sum_p - sum_p.log() + sum_q.log()).sum()
            q.mul_(1 / (rows * sum_q))
            torch.addcmul(q, p, -1 / (rows * sum_p), out=gradient[part])
        ctx.save_for_backward(gradient)
        return total / rows

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient if float(above) == 1 else gradient.mul_(above), None


class TwoPassKL(torch.autograd.Function):
    """The KL(p‖q) of each row, whose gradient is made in the backward pass."""

    @staticmethod
    def forward(ctx: Any, draft: Tensor, target: Tensor) -> Tensor:
        values, sums = [], []
        for start, p, q, ratio in blocks(draft):
            part = slice(start, start + len(p))
            top_p, top_q = target[part].amax(-1, keepdim=True), draft[part].amax(-1, keepdim=True)
            torch.sub(target[part], top_p, out=ratio)
            torch.sub(draft[part], top_q, out=q)
            torch.exp(ratio, out=p)
            ratio.sub_(q)
            q.exp_()
            sum_p, sum_q = p.sum(-1, keepdim=True), q.sum(-1, keepdim=True)
            values.append(
                torch.stack([ratio.mul_(p).sum(-1, keepdim=True) / sum_p, sum_p.log(), sum_q.log()])
            )
            sums.append(torch.stack([top_p, top_q]))
        cross, log_p, log_q = torch.cat(values, dim=1)
        top_p, top_q = torch.cat(sums, dim=1)
        ctx.save_for_backward(draft, target, top_p + log_p, top_q + log_q)
        return (cross - log_p + log_q).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        draft, target, sum_p, sum_q = ctx.saved_tensors
        gradient = torch.empty_like(draft)
        for start, p, q, _ in blocks(draft):
            part = slice(start, start + len(p))
            torch.sub(target[part], sum_p[part], out=p).exp_()
            torch.sub(draft[part], sum_q[part], out=q).exp_()
            torch.mul(q.sub_(p), above[part].unsqueeze(-1), out=gradient[part])
        return gradient, None


def blocks(logits: Tensor) -> Any:
    """Where each block of rows begins, with three blocks of memory that stay in the cache."""
    rows, width = logits.shape
    size = max(BLOCK * torch.get_num_threads() // width, 1)
    scratch = logits.new_empty(3, size, width)
    for start in range(0, rows, size):
        p, q, ratio = scratch[:, : min(size, rows - start)].unbind()
        yield start, p, q, ratio


def of_rows(loss: torch.nn.Module) -> Loss:
    """A loss of this package for (rows, tokens)."""
    return lambda draft, target: loss(draft.unsqueeze(0), target.unsqueeze(0)).loss


def eager_lk(draft: Tensor, target: Tensor) -> Tensor:
    """LK-lambda in plain autograd."""
    log_q, log_p = draft.log_softmax(-1), target.log_softmax(-1)
    kl = kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    alpha = torch.minimum(log_p, log_q).logsumexp(-1).exp()
    lam = (-3.0 * alpha.mean()).exp().detach()
    return (lam * kl + (1 - lam) * (1 - alpha)).mean()


def peers() -> dict[str, Loss]:
    """The eager losses of speculators, read from their file: the package itself imports an HTTP client."""
    found = importlib.util.find_spec("speculators")
    if found is None or not found.submodule_search_locations:
        return {}
    file = Path(found.submodule_search_locations[0]) / "losses" / "eager.py"
    spec = importlib.util.spec_from_file_location("speculators_eager", file)
    if spec is None or spec.loader is None:
        return {}
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = {
        "kl": "kl_div_loss",
        "lk_hybrid": "lk_hybrid_loss",
        "nla": "neg_log_acceptance_loss",
        "tv": "tv_loss",
    }

    def mean(function: Any) -> Loss:
        return lambda draft, target: function(draft.unsqueeze(0), target.unsqueeze(0)).mean()

    return {f"speculators {short}, eager": mean(getattr(module, name)) for short, name in names.items()}


def losses(compiled: bool) -> dict[str, Loss]:
    """Every loss by name."""
    kinds: dict[str, dict[str, Any]] = {
        "LKLoss kl": {"kind": "kl"},
        "LKLoss lk_lambda": {},
        "LKLoss lk_lambda, by token": {"lambda_reduction": "token"},
        "LKLoss lk_alpha": {"kind": "lk_alpha"},
        "LKLoss tv": {"kind": "tv"},
    }
    found: dict[str, Loss] = {
        "KL alone, one pass": OnePassKL.apply,
        "KL alone, one pass, half of it": lambda draft, target: OnePassKL.apply(draft, target) / 2,
        "KL alone": lambda draft, target: TwoPassKL.apply(draft, target).mean(),
        **{name: of_rows(LKLoss(**settings)) for name, settings in kinds.items()},
        "torch kl_div, eager": lambda draft, target: kl_div(
            draft.log_softmax(-1), target.log_softmax(-1), log_target=True, reduction="batchmean"
        ),
        "LK-lambda in plain autograd": eager_lk,
        **peers(),
    }
    if compiled:
        for kind in ("kl", "lk_lambda"):
            loss: Any = torch.compile(LKLoss(kind), fullgraph=True)  # type: ignore[arg-type]
            found[f"LKLoss {kind}, compiled"] = of_rows(loss)
    return found


def measure(rows: int, vocab: int, rounds: int, clock: Callable[[], float], compiled: bool) -> None:
    """Print the table of one size."""
    generator = torch.Generator().manual_seed(0)
    common = 3 * torch.randn(rows, vocab, generator=generator)
    target = common + torch.randn(rows, vocab, generator=generator)
    draft = (common + torch.randn(rows, vocab, generator=generator)).requires_grad_()
    functions = losses(compiled)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    for turn in range(rounds + 1):
        random.shuffle(order)
        for name in order:
            draft.grad = None
            start = clock()
            functions[name](draft, target).backward()
            if turn:
                seconds[name].append(clock() - start)
    best = {name: min(values) for name, values in seconds.items()}
    threads = torch.get_num_threads()
    print(f"\n{rows} rows of {vocab:,} tokens, {threads} thread(s), fastest of {rounds} rounds\n")
    baselines = ("KL alone", "KL alone, one pass", "torch kl_div, eager")
    print(f"| loss | ms | {' | '.join(f'times {name}' for name in baselines)} |")
    print("|---|---|" + "---|" * len(baselines))
    for name, value in best.items():
        ratios = " | ".join(f"{value / best[baseline]:.2f}" for baseline in baselines)
        print(f"| {name} | {value * 1e3:.1f} | {ratios} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--vocab", type=int, nargs="*", default=[32_000, 128_000])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.cpu else time.perf_counter
    print("## lk_losses: the losses alone, forward and backward pass")
    for vocab in given.vocab:
        rounds = 3 if given.quick else 20
        measure(given.rows, vocab, rounds, clock, given.compiled)


main()
