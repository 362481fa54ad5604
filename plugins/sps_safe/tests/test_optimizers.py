"""The two optimizers against closed forms, identities of the paper and the authors' own package."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from leyden_sps_safe import IMASPSSafe, SPSSafe
from leyden_sps_safe.polyak import clipped_step_size, heavy_ball_momentum
from torch import Tensor, nn

Loss = Callable[[list[Tensor], int], Tensor]


class Problem:
    """A random least-squares or hinge problem in float64, its variables split over three parameters."""

    def __init__(self, seed: int, kind: str) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.rows, self.labels, self.kind = normal(30, 12), normal(30).sign(), kind
        self.start = [normal(4), normal(2, 3), normal(2)]

    def parameters(self) -> list[nn.Parameter]:
        return [nn.Parameter(tensor.clone()) for tensor in self.start]

    def loss(self, parameters: list[nn.Parameter], step: int) -> Tensor:
        rows = torch.arange(3) * 7 + step
        x = torch.cat([parameter.reshape(-1) for parameter in parameters])
        outputs = self.rows[rows % 30] @ x
        labels = self.labels[rows % 30]
        if self.kind == "hinge":
            return (1 - labels * outputs).clamp(min=0).mean()
        return (outputs - labels).square().mean()


PROBLEMS = [(seed, kind) for seed in range(10) for kind in ("least squares", "hinge")]


def in_groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": parameters[:1]}, {"params": parameters[1:]}]


def run(optimizer: Any, problem: Problem, parameters: list[nn.Parameter], steps: int, **how: Any) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss = problem.loss(parameters, step)
        loss.backward()
        optimizer.step(loss=loss, **how)


def flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


def assert_equal(found: list[nn.Parameter], wanted: list[nn.Parameter], tolerance: float) -> None:
    a, b = flat(found), flat(wanted)
    assert torch.isfinite(b).all()
    assert (a - b).norm() <= tolerance * b.norm(), float((a - b).norm() / b.norm())


@pytest.mark.parametrize("M", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("seed", "kind"), PROBLEMS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fifty_steps_equal_the_authors_package(M: float, seed: int, kind: str, decay: float) -> None:
    official = pytest.importorskip("sps_safe")
    problem = Problem(seed, kind)
    ours, theirs = problem.parameters(), problem.parameters()
    run(SPSSafe(in_groups(ours), M=M, weight_decay=decay), problem, ours, 50)
    run(official.SPS_safe(in_groups(theirs), M=M, weight_decay=decay), problem, theirs, 50)
    assert_equal(ours, theirs, 1e-12)


@pytest.mark.parametrize("M", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("seed", "kind"), PROBLEMS)
def test_fifty_steps_with_momentum_equal_the_authors_package(M: float, seed: int, kind: str) -> None:
    official = pytest.importorskip("sps_safe")
    problem = Problem(seed, kind)
    for averaging in (1.0, 9.0):
        ours, theirs = problem.parameters(), problem.parameters()
        run(IMASPSSafe(in_groups(ours), averaging, M=M), problem, ours, 50)
        reference = official.IMA_SPS_safe(in_groups(theirs), lambd=averaging)
        # As a number, M makes their step raise AttributeError where it is 0 while the safeguard acts.
        reference.M = torch.tensor(M, dtype=torch.float64)
        run(reference, problem, theirs, 50)
        assert_equal(ours, theirs, 1e-12)


def test_the_automatic_safeguard_equals_the_authors() -> None:
    official = pytest.importorskip("sps_safe")
    problem = Problem(0, "least squares")
    ours, theirs = problem.parameters(), problem.parameters()
    run(IMASPSSafe(ours, 9.0, M="auto"), problem, ours, 50)
    run(official.IMA_SPS_safe(theirs, lambd=9.0, M=0.0), problem, theirs, 50)
    assert_equal(ours, theirs, 1e-12)


@pytest.mark.parametrize(("seed", "kind"), PROBLEMS[:4])
def test_without_averaging_the_momentum_form_is_the_plain_one(seed: int, kind: str) -> None:
    problem = Problem(seed, kind)
    plain, averaged = problem.parameters(), problem.parameters()
    run(SPSSafe(plain, M=0.5, weight_decay=0.01), problem, plain, 100)
    run(IMASPSSafe(averaged, 0.0, M=0.5, weight_decay=0.01), problem, averaged, 100)
    assert torch.equal(flat(plain), flat(averaged))


def test_averaging_of_almost_nothing_is_close_to_none() -> None:
    problem = Problem(0, "hinge")
    plain, averaged = problem.parameters(), problem.parameters()
    run(SPSSafe(plain, M=0.5), problem, plain, 100)
    run(IMASPSSafe(averaged, 1e-18, M=0.5), problem, averaged, 100)
    assert_equal(averaged, plain, 1e-14)


@pytest.mark.parametrize("averaging", [1.0, 9.0])
@pytest.mark.parametrize(("seed", "kind"), PROBLEMS[:4])
def test_the_momentum_form_is_heavy_ball_with_its_own_step(averaging: float, seed: int, kind: str) -> None:
    problem, momentum = Problem(seed, kind), heavy_ball_momentum(averaging)
    ours, reference = problem.parameters(), problem.parameters()
    optimizer = IMASPSSafe(ours, averaging, M=2.0)
    before = [parameter.detach().clone() for parameter in reference]
    for step in range(100):
        run(optimizer, problem, ours, 1) if step == 0 else _again(optimizer, problem, ours, step)
        eta = optimizer.last_step_size
        assert eta is not None
        for parameter in reference:
            parameter.grad = None
        problem.loss(reference, step).backward()
        with torch.no_grad():
            for parameter, old in zip(reference, before, strict=True):
                assert parameter.grad is not None
                now = parameter.clone()
                parameter += momentum * (parameter - old) - eta / (1 + averaging) * parameter.grad
                old.copy_(now)
    assert_equal(ours, reference, 1e-12)


def _again(optimizer: Any, problem: Problem, parameters: list[nn.Parameter], step: int) -> None:
    optimizer.zero_grad()
    loss = problem.loss(parameters, step)
    loss.backward()
    optimizer.step(loss=loss)


@pytest.mark.parametrize("threshold", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("seed", "kind"), PROBLEMS[:4])
def test_the_plain_form_is_clipped_descent(threshold: float, seed: int, kind: str) -> None:
    problem = Problem(seed, kind)
    ours, clipped = problem.parameters(), problem.parameters()
    run(SPSSafe(ours, M=threshold**2), problem, ours, 50)
    for step in range(50):
        for parameter in clipped:
            parameter.grad = None
        loss = problem.loss(clipped, step)
        loss.backward()
        gradients = [parameter.grad for parameter in clipped if parameter.grad is not None]
        norm = sum((gradient.square().sum() for gradient in gradients), torch.zeros((), dtype=torch.float64))
        size = clipped_step_size(loss.detach(), norm, threshold=threshold)
        with torch.no_grad():
            for parameter, gradient in zip(clipped, gradients, strict=True):
                parameter -= size * gradient
    assert_equal(ours, clipped, 1e-12)


def parabola(M: float, steps: int, dtype: torch.dtype = torch.float64) -> list[float]:
    """Iterates of SPS_safe on f(x) = x² / 2 + 1 from 1, told that 0 is a lower bound."""
    x = nn.Parameter(torch.ones((), dtype=dtype))
    optimizer = SPSSafe([x], M=M)
    iterates = [1.0]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = x**2 / 2 + 1
        loss.backward()
        optimizer.step(loss=loss)
        iterates.append(x.item())
    return iterates


def test_iterates_on_a_parabola_are_those_of_the_closed_form() -> None:
    safe = parabola(2.0, 30)
    assert safe[1:3] == [0.25, 0.12109375]
    assert abs(safe[30]) < 1e-9
    assert parabola(1.0, 2)[1:] == [-0.5, 0.0625]
    assert max(map(abs, parabola(1e-12, 30))) > 5


def test_ell_star_shifts_the_loss() -> None:
    problem = Problem(0, "least squares")
    plain, shifted = problem.parameters(), problem.parameters()
    run(SPSSafe(plain), problem, plain, 10)
    optimizer = SPSSafe(shifted, ell_star=3.0)
    for step in range(10):
        optimizer.zero_grad()
        loss = problem.loss(shifted, step) + 3.0
        loss.backward()
        optimizer.step(loss=loss)
    assert_equal(shifted, plain, 1e-12)


@pytest.mark.parametrize("averaging", [0.0, 1.0, 9.0, "t"])
def test_weight_decay_shrinks_both_sequences_before_the_step(averaging: Any) -> None:
    """z and x after one step from z = x, with wd s in place of the decay, by hand."""
    problem = Problem(3, "least squares")
    parameters = problem.parameters()
    start = flat(parameters)
    optimizer = IMASPSSafe(parameters, averaging, weight_decay=0.3, lr=0.5)
    run(optimizer, problem, parameters, 1)
    assert optimizer.last_step_size is not None
    step = 0.5 * float(optimizer.last_step_size)
    gradient = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
    shrunk = (1 - 0.3 * step) * start
    target = shrunk - step * gradient
    weight = 1.0 if averaging == "t" else float(averaging)
    expected = (weight * shrunk + target) / (1 + weight)
    torch.testing.assert_close(flat(parameters), expected, rtol=1e-12, atol=1e-14)


def test_increasing_averaging_follows_its_formula() -> None:
    problem = Problem(1, "hinge")
    parameters = problem.parameters()
    optimizer = IMASPSSafe(parameters, "t", M=3.0)
    x = z = flat(parameters)
    for t in range(40):
        _again(optimizer, problem, parameters, t)
        gradient = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        loss = optimizer.last_loss
        assert loss is not None
        eta = max(float(loss + gradient @ (z - x)), 0.0) / max(float(gradient @ gradient), 3.0)
        z = z - eta * gradient
        x = ((t + 1) * x + z) / (t + 2)
    torch.testing.assert_close(flat(parameters), x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [SPSSafe, IMASPSSafe])
def test_lr_multiplies_the_step_and_may_differ_between_groups(kind: Any) -> None:
    problem = Problem(0, "least squares")
    whole, split = problem.parameters(), problem.parameters()
    groups = in_groups(split)
    groups[1]["lr"] = 0.0
    moving, still = kind(whole), kind(groups)
    run(moving, problem, whole, 1)
    run(still, problem, split, 1)
    assert torch.equal(whole[0], split[0])
    assert all(torch.equal(a, b) for a, b in zip(split[1:], problem.start[1:], strict=True))
    halved = problem.parameters()
    run(kind(halved, lr=0.5), problem, halved, 1)
    start = torch.cat([tensor.reshape(-1) for tensor in problem.start])
    torch.testing.assert_close(flat(halved) - start, (flat(whole) - start) / 2)


def test_a_scheduler_drives_lr() -> None:
    x = nn.Parameter(torch.ones(2))
    optimizer = SPSSafe([x])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    lengths = []
    for _ in range(3):
        before = x.detach().clone()
        x.grad = torch.tensor([3.0, 4.0])
        optimizer.step(loss=25.0)
        scheduler.step()
        lengths.append(float((x.detach() - before).norm()))
    assert lengths == pytest.approx([5.0, 2.5, 1.25])


def test_one_step_serves_all_groups_together() -> None:
    x, y = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    x.grad, y.grad = torch.tensor([3.0]), torch.tensor([4.0])
    optimizer = SPSSafe([{"params": [x]}, {"params": [y]}])
    optimizer.step(loss=50.0)
    assert (x.item(), y.item()) == (-6.0, -8.0)
    assert optimizer.last_grad_norm_sq == 25
    assert optimizer.last_step_size == 2
    assert not optimizer.last_safeguard_active


def test_last_numbers_say_when_the_safeguard_acts() -> None:
    x = nn.Parameter(torch.zeros(1))
    optimizer = SPSSafe([x], M=4.0)
    assert optimizer.last_step_size is None
    assert optimizer.last_grad_norm_sq is None
    assert optimizer.last_safeguard_active is None
    assert optimizer.last_loss is None
    x.grad = torch.tensor([1.0])
    optimizer.step(loss=2.0)
    assert optimizer.last_safeguard_active
    assert optimizer.last_step_size == 0.5
    assert optimizer.last_loss == 2.0
    with pytest.raises(AttributeError):
        optimizer.last_step_size = 1.0  # type: ignore[misc]


def test_the_order_of_loss_sources_is_explicit_then_pending_then_closure() -> None:
    def step(**sources: Any) -> float:
        x = nn.Parameter(torch.zeros(1))
        optimizer = SPSSafe([x])
        x.grad = torch.tensor([1.0])
        optimizer.pending_loss = sources.pop("pending", None)
        optimizer.pending_mean_loss = torch.tensor(100.0)
        optimizer.step(**sources)
        assert optimizer.pending_loss is None
        assert optimizer.pending_mean_loss is None
        return -x.item()

    def closure() -> Tensor:
        return torch.tensor(3.0)

    assert step(closure=closure) == 3
    assert step(pending=torch.tensor(2.0)) == 2
    assert step(closure=closure, pending=torch.tensor(2.0)) == 2
    assert step(closure=closure, pending=torch.tensor(2.0), loss=1.0) == 1


def test_a_pending_loss_that_the_closure_sets_is_used() -> None:
    x = nn.Parameter(torch.zeros(1))
    optimizer = SPSSafe([x])

    def closure() -> Tensor:
        x.grad = torch.tensor([1.0])
        optimizer.pending_loss = torch.tensor(2.0)
        return torch.tensor(7.0)

    assert optimizer.step(closure) == 2
    assert x.item() == -2


def test_a_closure_may_compute_the_gradient() -> None:
    x = nn.Parameter(torch.ones(1))
    optimizer = SPSSafe([x])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (x**2 / 2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 0.5
    assert x.item() == 0.5


def test_step_returns_the_loss_that_it_used() -> None:
    x = nn.Parameter(torch.zeros(1))
    optimizer = SPSSafe([x])
    x.grad = torch.tensor([1.0])
    loss = torch.tensor(2.0)
    assert optimizer.step(loss=loss) is loss
    assert optimizer.step(lambda: loss) is loss
    assert math.isclose(optimizer.step(loss=2.5), 2.5)


def test_the_graph_of_the_loss_is_not_kept_alive() -> None:
    x = nn.Parameter(torch.ones(1))
    optimizer = SPSSafe([x])
    loss = (x * 2).sum()
    loss.backward()
    optimizer.step(loss=loss)
    assert optimizer.last_loss is not None
    assert optimizer.last_loss.grad_fn is None
