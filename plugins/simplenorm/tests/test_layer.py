"""The operator: the paper's formula, its invariances, its bounds, and the two terms of its Hessian."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from leyden_simplenorm import (
    SimpleNormLinear,
    input_hessian_terms,
    output_norm_bounds,
    simple_norm,
    spectral_norm,
)
from torch import Tensor, nn

TINY = 1e-12


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
def test_the_layer_is_torchs_norm_of_torchs_map(bias: bool) -> None:
    torch.manual_seed(0)
    layer = SimpleNormLinear(9, 5, bias=bias)
    nn.init.uniform_(layer.norm.weight, -1, 2)
    x = torch.randn(4, 3, 9)
    y = nn.functional.linear(x, layer.linear.weight, layer.linear.bias)
    expected = nn.functional.rms_norm(y, (5,), layer.norm.weight, 1e-5)
    torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        simple_norm(x, layer.linear.weight, layer.norm.weight, layer.linear.bias), expected
    )


def test_an_instance_by_hand() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    weight = torch.tensor([[1.0, 1.0], [2.0, 1.0], [0.0, -1.0]], dtype=torch.float64)  # y = (3, 4, -2)
    gain = torch.tensor([1.0, 0.5, 3.0], dtype=torch.float64)
    root = ((9 + 16 + 4) / 3 + 0.25) ** 0.5
    expected = torch.tensor([3 / root, 2 / root, -6 / root], dtype=torch.float64)
    torch.testing.assert_close(simple_norm(x, weight, gain, eps=0.25), expected, rtol=0, atol=1e-10)


def test_a_bias_is_added_before_the_norm() -> None:
    weight, bias = torch.zeros(2, 2), torch.tensor([3.0, 4.0])
    torch.testing.assert_close(
        simple_norm(torch.ones(2), weight, None, bias), torch.tensor([0.8485, 1.1314]), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("affine", [True, False])
def test_the_other_norm_is_a_layer_norm_without_bias(affine: bool) -> None:
    layer = SimpleNormLinear(6, 4, norm="layer", elementwise_affine=affine)
    assert (
        sorted(name for name, _ in layer.named_parameters()) == ["linear.weight"] + ["norm.weight"] * affine
    )
    x = torch.randn(3, 6)
    y = layer.linear(x)
    centred = y - y.mean(dim=-1, keepdim=True)
    expected = centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(simple_norm(x, layer.linear.weight, norm="layer"), expected)


def test_the_output_keeps_its_bounds_whatever_the_weights_scale() -> None:
    gain = drawn(48, seed=1).abs() + 0.1
    x = drawn(1000, 32, seed=2)
    for scale in (1e-3, 1e-1, 1.0, 10.0, 1e3):
        weight = scale * drawn(48, 32, seed=3)
        length = simple_norm(x, weight, gain, eps=TINY).norm(dim=-1)
        root = 48**0.5
        assert (length >= gain.min() * root * (1 - 1e-5)).all()
        assert (length <= gain.max() * root * (1 + 1e-5)).all()
        low, high = output_norm_bounds(x @ weight.T, gain, eps=TINY)
        assert ((low * (1 - 1e-12) <= length) & (length <= high * (1 + 1e-12))).all()


def test_with_a_large_epsilon_the_bounds_shrink_by_its_factor() -> None:
    y, gain = drawn(100, 8), torch.full((8,), 2.0, dtype=torch.float64)
    low, high = output_norm_bounds(y, gain, eps=0.5)
    torch.testing.assert_close(low, high)
    torch.testing.assert_close(
        low, simple_norm(y, torch.eye(8, dtype=torch.float64), gain, eps=0.5).norm(dim=-1)
    )


def test_a_gain_below_zero_counts_by_its_size() -> None:
    low, high = output_norm_bounds(torch.ones(4), torch.tensor([-3.0, 1.0, 2.0, 2.0]), eps=TINY)
    assert (low.item(), high.item()) == pytest.approx((2.0, 6.0))


def test_a_layer_around_a_map_keeps_its_mode_and_warns_of_parts_of_one() -> None:
    assert not SimpleNormLinear.around(nn.Linear(3, 4).eval(), 4).training
    assert SimpleNormLinear.around(nn.Linear(3, 4), 4).training
    with pytest.warns(UserWarning, match=r"^out_features: a norm over one number"):
        SimpleNormLinear.around(nn.Linear(3, 4), 4, groups=(3, 1))


def losses(z: Tensor, seed: int = 5) -> Tensor:
    """Cross-entropy after a random head: a loss that is neither quadratic nor symmetric."""
    return nn.functional.cross_entropy(z @ drawn(z.shape[-1], 7, seed=seed), torch.tensor(3))


def test_nothing_but_the_weights_gradient_changes_with_the_weights_scale() -> None:
    found = []
    for scale in (1.0, 10.0):
        x, weight = drawn(12).requires_grad_(), (scale * drawn(16, 12, seed=1)).requires_grad_()

        def loss(x: Tensor, weight: Tensor = weight) -> Tensor:
            return losses(simple_norm(x, weight, drawn(16, seed=2), eps=TINY))

        in_x, in_weight = torch.autograd.grad(loss(x), (x, weight))
        hessian = torch.autograd.functional.hessian(loss, x)
        assert (weight * in_weight).sum().abs() <= 1e-9 * weight.norm() * in_weight.norm()
        assert (x * in_x).sum().abs() <= 1e-9 * x.norm() * in_x.norm()
        z = simple_norm(x, weight, drawn(16, seed=2), eps=TINY)
        found.append((z, in_x, scale * in_weight, torch.linalg.matrix_norm(hessian, 2)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_a_multiple_of_the_input_gives_the_same_output() -> None:
    x, weight = drawn(5, 12), drawn(16, 12, seed=1)
    torch.testing.assert_close(simple_norm(7 * x, weight, eps=TINY), simple_norm(x, weight, eps=TINY))


def input_hessian(
    x: Tensor, to_output: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor]
) -> Tensor:
    found: Tensor = torch.autograd.functional.hessian(lambda x: loss(to_output(x)), x)
    return found


def test_of_a_plain_map_curvature_grows_with_the_square_and_of_ours_it_stays() -> None:
    symmetric = drawn(64, 64, seed=1)
    symmetric = symmetric + symmetric.T
    linear_part = drawn(64, seed=2)
    x, weight = drawn(64, seed=3), 0.02 * drawn(64, 64, seed=4)

    def quadratic(z: Tensor) -> Tensor:
        return z @ symmetric @ z / 2 + linear_part @ z

    curvature = {}
    for scale in (1.0, 4.0, 16.0, 64.0):
        maps = {
            "plain": lambda x, c=scale: c * weight @ x,
            "simple": lambda x, c=scale: simple_norm(x, c * weight, eps=TINY),
        }
        for name, to_output in maps.items():
            curvature[name, scale] = torch.linalg.matrix_norm(
                input_hessian(x, to_output, quadratic), 2
            ).item()
    for scale in (4.0, 16.0, 64.0):
        assert curvature["plain", scale] / curvature["plain", 1.0] == pytest.approx(scale**2, rel=1e-9)
        assert curvature["simple", scale] == pytest.approx(curvature["simple", 1.0], rel=1e-6)
    ratios = {scale: curvature["plain", scale] / curvature["simple", scale] for scale in (1.0, 64.0)}
    assert ratios[64.0] / ratios[1.0] == pytest.approx(4096, abs=1e-3)


@pytest.mark.parametrize(("d", "m"), [(5, 5), (9, 4), (3, 8)])
def test_autograds_hessian_is_the_sum_of_the_two_terms(d: int, m: int) -> None:
    x, weight, gain = drawn(m), drawn(d, m, seed=1), drawn(d, seed=2)
    exact = 1e-300  # of a mean square near 1 nothing of it is left: epsilon 0
    z = simple_norm(x, weight, gain, eps=exact)
    gradient = torch.autograd.functional.jacobian(losses, z)
    hessian = torch.autograd.functional.hessian(losses, z)
    first, second = input_hessian_terms(x, weight, gain, gradient, hessian)
    whole = input_hessian(x, lambda x: simple_norm(x, weight, gain, eps=exact), losses)
    torch.testing.assert_close(first + second, whole, rtol=1e-9, atol=1e-9)
    assert first.norm() > 1e-6
    assert second.norm() > 1e-6
    again = input_hessian_terms(x, 9 * weight, gain, gradient, hessian)
    torch.testing.assert_close(again, (first, second))


def test_power_iteration_finds_the_dense_spectral_norm() -> None:
    x, weight = drawn(64), drawn(64, 64, seed=1)
    dense = input_hessian(x, lambda x: simple_norm(x, weight), losses)
    estimate = spectral_norm(lambda v: dense @ v, drawn(64, seed=9), iterations=50)
    assert estimate.item() == pytest.approx(torch.linalg.matrix_norm(dense, 2).item(), rel=0.02)
    assert estimate <= torch.linalg.matrix_norm(dense, 2) * (1 + 1e-12)


def test_power_iteration_needs_an_iteration_and_stands_zero() -> None:
    assert spectral_norm(torch.zeros_like, torch.ones(3)) == 0
    with pytest.raises(ValueError, match=r"^iterations: "):
        spectral_norm(torch.zeros_like, torch.ones(3), iterations=0)


@pytest.mark.parametrize("value", [1e5, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lengths_beyond_half_precision_are_found_in_it(value: float, dtype: torch.dtype) -> None:
    def product(v: Tensor) -> Tensor:
        return value * v.float().roll(1)  # every component stays in range, and so does no length

    size = 64
    found = spectral_norm(lambda v: product(v).to(dtype), torch.ones(size, dtype=dtype), iterations=20)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(value, rel=0.05 if value > 1 else 0.1)


def test_zero_inputs_and_zero_weights_give_exactly_zero_with_finite_gradients() -> None:
    layer = SimpleNormLinear(6, 4)
    for spoil in ("input", "weight"):
        x = torch.zeros(2, 6) if spoil == "input" else torch.randn(2, 6)
        x.requires_grad_()
        if spoil == "weight":
            nn.init.zeros_(layer.linear.weight)
        z = layer(x)
        z.square().sum().backward()
        z = layer(x)
        (z.sum()).backward()
        assert torch.equal(z, torch.zeros(2, 4))
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters())
        assert torch.isfinite(x.grad).all()


def test_one_output_leaves_its_sign_alone_and_warns() -> None:
    with pytest.warns(
        UserWarning, match=r"^out_features: a norm over one number leaves nothing but its sign"
    ):
        layer = SimpleNormLinear(3, 1, eps=1e-20)
    torch.testing.assert_close(layer(torch.randn(50, 3)).abs(), torch.ones(50, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SimpleNormLinear(3, 2)


def test_a_nan_shows_in_its_row_alone() -> None:
    x = torch.randn(3, 6)
    x[1, 2] = torch.nan
    z = SimpleNormLinear(6, 4)(x)
    assert z[1].isnan().all()
    assert torch.isfinite(z[[0, 2]]).all()


def test_initial_weights_have_their_standard_deviation_and_gains_are_one() -> None:
    torch.manual_seed(0)
    for std, expected in ((0.02, 0.02), (None, 400**-0.5)):
        layer = SimpleNormLinear(400, 300, bias=True, init_std=std)
        assert layer.linear.weight.std().item() == pytest.approx(expected, rel=0.02)
        assert torch.equal(layer.norm.weight, torch.ones(300))
        assert torch.equal(layer.linear.bias, torch.zeros(300))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("in_features", 0),
        ("out_features", True),
        ("norm", "batch"),
        ("eps", 0.0),
        ("init_std", -1.0),
        ("init_std", 0.0),
    ],
)
def test_a_wrong_argument_is_named(argument: str, value: object) -> None:
    arguments = {"in_features": 3, "out_features": 2, argument: value}
    with pytest.raises(ValueError, match=rf"^{argument}: expected .*, got {value!r}$"):
        SimpleNormLinear(**arguments)  # type: ignore[arg-type]


def test_compiled_in_one_graph_it_is_the_same() -> None:
    torch.manual_seed(0)
    layer = SimpleNormLinear(6, 4, init_std=1.0)
    x = torch.randn(3, 6, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=1e-5)
    found = [torch.autograd.grad(one(x).pow(3).sum(), [x, *layer.parameters()]) for one in (compiled, layer)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_the_state_is_plain_and_goes_round() -> None:
    layer = SimpleNormLinear(6, 4, bias=True)
    assert sorted(layer.state_dict()) == ["linear.bias", "linear.weight", "norm.weight"]
    other = SimpleNormLinear(6, 4, bias=True)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 6)
    assert torch.equal(layer(x), other(x))
    assert not hasattr(layer, "weight")
