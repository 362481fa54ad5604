"""The norm with its own gradient: against torch's, against finite differences, and where torch's serves."""

from __future__ import annotations

import pytest
import torch
from leyden_simplenorm import RMSNorm, rms_norm
from torch import Tensor, nn


def rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("with_gain", [True, False])
def test_value_and_gradients_are_torchs(dtype: torch.dtype, with_gain: bool) -> None:
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    found = []
    for own in (True, False):
        y = rows(3, 5, 7, dtype=dtype).requires_grad_()
        gain = (rows(7, dtype=dtype, seed=1) + 1).requires_grad_() if with_gain else None
        z = rms_norm(y, gain, eps=1e-3) if own else nn.functional.rms_norm(y, (7,), gain, 1e-3)
        assert z.dtype == dtype
        inputs = [y] if gain is None else [y, gain]
        found.append([z, *torch.autograd.grad(z, inputs, rows(3, 5, 7, dtype=dtype, seed=2))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_on_the_cpu_the_gradient_is_ours_and_the_graph_one_node() -> None:
    z = rms_norm(rows(2, 4).requires_grad_(), torch.ones(4))
    assert type(z.grad_fn).__name__ == "_RMSNormBackward"


def test_first_and_second_derivatives_agree_with_finite_differences() -> None:
    y, gain = rows(3, 4, dtype=torch.float64), rows(4, dtype=torch.float64, seed=1)
    inputs = (y.requires_grad_(), gain.requires_grad_())
    assert torch.autograd.gradcheck(rms_norm, inputs)
    assert torch.autograd.gradgradcheck(rms_norm, inputs)
    assert torch.autograd.gradgradcheck(lambda y: rms_norm(y), (inputs[0],))


@pytest.mark.parametrize("with_gain", [True, False])
def test_first_derivatives_are_the_same_where_second_ones_are_wanted(with_gain: bool) -> None:
    y = rows(3, 5, 4, dtype=torch.float64).requires_grad_()
    gain = rows(4, dtype=torch.float64, seed=1).requires_grad_() if with_gain else None
    inputs = [y] if gain is None else [y, gain]
    slope = rows(3, 5, 4, dtype=torch.float64, seed=2)
    once, again = (
        torch.autograd.grad(rms_norm(y, gain), inputs, slope, create_graph=wanted) for wanted in (False, True)
    )
    torch.testing.assert_close(once, again)


def test_only_the_gradients_that_are_wanted_are_computed() -> None:
    y, gain = rows(3, 4), rows(4, seed=1)
    frozen = rms_norm(y.clone().requires_grad_(), gain)
    frozen.sum().backward()
    moving = gain.clone().requires_grad_()
    rms_norm(y, moving).sum().backward()
    torch.testing.assert_close(moving.grad, rms_norm(y).sum(dim=0))


def test_under_functional_transforms_it_is_the_same_function() -> None:
    y, gain = rows(4, dtype=torch.float64), rows(4, dtype=torch.float64, seed=1)
    jacobian = torch.func.jacrev(rms_norm)(y, gain)
    torch.testing.assert_close(torch.func.jacfwd(rms_norm)(y, gain), jacobian)
    torch.testing.assert_close(torch.autograd.functional.jacobian(lambda y: rms_norm(y, gain), y), jacobian)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(y, torch.ones_like(y))
        tangent = torch.autograd.forward_ad.unpack_dual(rms_norm(dual, gain)).tangent
    torch.testing.assert_close(tangent, jacobian.sum(dim=1))


@pytest.mark.parametrize("with_gain", [True, False])
def test_a_batch_of_gradients_is_each_of_them(with_gain: bool) -> None:
    y = rows(3, 4, dtype=torch.float64).requires_grad_()
    gain = rows(4, dtype=torch.float64, seed=1).requires_grad_() if with_gain else None
    inputs = [y] if gain is None else [y, gain]
    slopes = rows(6, 3, 4, dtype=torch.float64, seed=2)
    z = rms_norm(y, gain)
    batched = torch.autograd.grad(z, inputs, slopes, is_grads_batched=True, retain_graph=True)
    for place, slope in enumerate(slopes):
        one = torch.autograd.grad(z, inputs, slope, retain_graph=True)
        torch.testing.assert_close([found[place] for found in batched], list(one))


@pytest.mark.parametrize("scale", [1e-18, 1e-6, 1e13, 1e15, 1e18])
def test_gradients_are_right_at_every_scale_that_float32_can_square(scale: float) -> None:
    slope, gain = rows(5, 7, seed=2), rows(7, seed=1)
    found = []
    for dtype in (torch.float32, torch.float64):
        y = (rows(5, 7) * scale).to(dtype).requires_grad_()
        eps = max((scale / 10) ** 2, 1e-36)  # of which something is left beside the mean square
        z = rms_norm(y, gain.to(dtype), eps=eps) if dtype == torch.float32 else None
        z = nn.functional.rms_norm(y, (7,), gain.to(dtype), eps) if z is None else z
        found.append((torch.autograd.grad(z, y, slope.to(dtype))[0].double() * scale).detach())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_backward_inside_autocast_is_in_full_precision() -> None:
    y, gain, slope = rows(6, 9).requires_grad_(), rows(9, seed=1).requires_grad_(), rows(6, 9, seed=2)
    expected = torch.autograd.grad(rms_norm(y, gain), (y, gain), slope)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(rms_norm(y, gain), (y, gain), slope)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("eps", [1e-12, 1e-30, 1e-37])
def test_a_tiny_epsilon_leaves_the_gradients_of_zeros_finite(eps: float) -> None:
    y = torch.zeros(2, 4, requires_grad=True)
    rms_norm(y, torch.ones(4), eps=eps).sum().backward()
    torch.testing.assert_close(y.grad, torch.full((2, 4), eps**-0.5))


def test_an_epsilon_that_is_nothing_in_float32_is_refused_there() -> None:
    with pytest.raises(ValueError, match=r"^eps: expected at least the smallest normal number of torch.flo"):
        rms_norm(torch.zeros(2, 4), eps=1e-46)
    assert torch.equal(rms_norm(torch.zeros(2, 4).double(), eps=1e-46), torch.zeros(2, 4).double())


@pytest.mark.parametrize("y", [torch.arange(4), torch.tensor(3.0), torch.ones(2, 0), torch.ones(2) * 1j])
def test_what_has_no_rows_of_numbers_is_refused(y: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^y: expected floating-point rows of at least one number, got "):
        rms_norm(y)


def test_a_gain_of_another_type_leaves_the_inputs_type() -> None:
    y = rows(2, 4, dtype=torch.bfloat16)
    assert rms_norm(y, torch.ones(4)).dtype == torch.bfloat16
    assert torch.func.vmap(lambda row: rms_norm(row, torch.ones(4)))(y).dtype == torch.bfloat16
    gain = torch.full((4,), 1.003)  # which is 1 in bfloat16
    many = rows(400, 4, dtype=torch.bfloat16)
    by_torch = torch.func.vmap(lambda row: rms_norm(row, gain))(many)
    assert torch.equal(by_torch, rms_norm(many.float(), gain).bfloat16())
    assert not torch.equal(by_torch, rms_norm(many))


def test_statistics_of_low_precision_are_taken_in_float32() -> None:
    y = torch.full((1, 4096), 3.0, dtype=torch.float16) * 100  # squares would be infinite in float16
    torch.testing.assert_close(rms_norm(y), torch.ones_like(y))


def test_a_row_of_zeros_stays_zero_with_finite_gradients() -> None:
    y = torch.zeros(2, 4, requires_grad=True)
    gain = torch.ones(4, requires_grad=True)
    z = rms_norm(y, gain, eps=1e-5)
    z.sum().backward()
    assert torch.equal(z, torch.zeros(2, 4))
    assert y.grad is not None
    assert torch.isfinite(y.grad).all()
    assert y.grad.abs().max() > 100  # 1 / sqrt(eps): zero is a point like any other


@pytest.mark.parametrize("eps", [0.0, -1e-5, float("nan"), float("inf")])
def test_an_epsilon_that_is_not_positive_is_named(eps: float) -> None:
    with pytest.raises(ValueError, match=r"^eps: expected a finite number above 0"):
        rms_norm(torch.ones(2), eps=eps)
    with pytest.raises(ValueError, match=r"^eps: "):
        RMSNorm(2, eps)


def test_a_gain_of_a_wrong_length_is_named() -> None:
    with pytest.raises(ValueError, match=r"^gain: expected shape \(4,\), got \(3,\)"):
        rms_norm(torch.ones(2, 4), torch.ones(3))


def test_groups_are_normalised_each_for_itself() -> None:
    norm = RMSNorm(6, groups=(2, 4))
    nn.init.normal_(norm.weight)
    y = rows(3, 6)
    apart = [rms_norm(y[:, :2], norm.weight[:2]), rms_norm(y[:, 2:], norm.weight[2:])]
    torch.testing.assert_close(norm(y), torch.cat(apart, dim=1))
    with pytest.raises(ValueError, match=r"^groups: expected lengths of at least 1 that sum to 6"):
        RMSNorm(6, groups=(2, 3))


def test_no_rows_give_no_rows() -> None:
    y = torch.empty(0, 3, 4, requires_grad=True)
    rms_norm(y, torch.ones(4)).sum().backward()
    assert y.grad is not None
    assert y.grad.shape == (0, 3, 4)
