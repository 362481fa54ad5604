"""The pure functions: closed forms, inequalities, and updates that can be switched off bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintParamViolation
from jaxtyping import TypeCheckError, jaxtyped
from leyden_sps_safe import polyak
from torch import Tensor

CHECKED = {
    name: jaxtyped(typechecker=beartype)(getattr(polyak, name))
    for name in (
        "polyak_step_size",
        "momentum_step_size",
        "clipped_step_size",
        "resolve_safeguard",
        "nonfinite",
        "squared_norm",
        "norm_and_product",
        "descend_",
        "approach_",
        "scale_",
    )
}
NAN, INF = math.nan, math.inf


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def draws(seed: int, count: int = 200) -> list[tuple[Tensor, Tensor, float]]:
    """Losses, squared norms and safeguards over many orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    exponents = 4 * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return [(10 ** row[0], 10 ** row[1], float(10 ** row[2])) for row in exponents]


def test_step_never_exceeds_loss_over_safeguard() -> None:
    for loss, norm, safeguard in draws(0):
        step = CHECKED["polyak_step_size"](loss, norm, lower_bound=0.5, safeguard=safeguard)
        assert 0 <= step <= max(loss - 0.5, 0) / safeguard


def test_update_length_is_bounded_by_the_loss_over_the_norm_and_over_the_safeguards_root() -> None:
    for loss, norm, safeguard in draws(1):
        length = CHECKED["polyak_step_size"](loss, norm, safeguard=safeguard) * norm.sqrt()
        assert length <= min(loss / math.sqrt(safeguard), loss / norm.sqrt()) * (1 + 1e-12)


def test_step_is_the_classic_polyak_step_where_the_gradient_is_large_and_a_floor_where_it_is_small() -> None:
    step = CHECKED["polyak_step_size"]
    assert step(number(2), number(4), safeguard=4.0) == 0.5
    assert step(number(2), number(8), safeguard=4.0) == 0.25
    assert step(number(2), number(1e-20), safeguard=4.0) == 0.5
    assert step(number(2), number(0), safeguard=4.0) == 0.5


def test_a_loss_below_its_bound_gives_no_step() -> None:
    assert CHECKED["polyak_step_size"](number(1), number(1), lower_bound=2.0) == 0
    assert CHECKED["momentum_step_size"](number(1), number(1), number(0.5), lower_bound=2.0) == 0
    assert CHECKED["clipped_step_size"](number(1), number(1), threshold=1.0, lower_bound=2.0) == 0


def test_the_step_with_momentum_adds_the_inner_product_to_the_loss() -> None:
    for loss, norm, safeguard in draws(2):
        plain = polyak.polyak_step_size(loss, norm, safeguard=safeguard)
        assert CHECKED["momentum_step_size"](loss, norm, number(0), safeguard=safeguard) == plain
        doubled = CHECKED["momentum_step_size"](loss, norm, loss, safeguard=safeguard)
        torch.testing.assert_close(doubled, 2 * plain, rtol=1e-14, atol=0)
        assert CHECKED["momentum_step_size"](loss, norm, -2 * loss, safeguard=safeguard) == 0


@pytest.mark.parametrize("threshold", [0.1, 1.0, 10.0])
def test_clipped_form_is_the_safeguarded_step_with_the_square_of_its_threshold(threshold: float) -> None:
    for loss, norm, _ in draws(3):
        clipped = CHECKED["clipped_step_size"](loss, norm, threshold=threshold, lower_bound=0.1)
        safeguarded = polyak.polyak_step_size(loss, norm, lower_bound=0.1, safeguard=threshold**2)
        torch.testing.assert_close(clipped, safeguarded, rtol=1e-12, atol=0)


def test_heavy_ball_momentum_of_nine_is_nine_tenths() -> None:
    assert polyak.heavy_ball_momentum(0.0) == 0.0
    assert polyak.heavy_ball_momentum(1.0) == 0.5
    assert polyak.heavy_ball_momentum(9.0) == 0.9
    with pytest.raises(ValueError, match="averaging must be at least 0, got -1"):
        polyak.heavy_ball_momentum(-1.0)


def test_automatic_safeguard_is_the_first_squared_norm_or_one() -> None:
    resolve = CHECKED["resolve_safeguard"]
    assert resolve(number(0), number(3)) == 3
    assert resolve(number(3), number(5)) == 3
    assert resolve(number(0), number(0)) == 1


@pytest.mark.parametrize("name", ["polyak_step_size", "momentum_step_size", "clipped_step_size"])
@pytest.mark.parametrize("value", [0.0, -1.0, NAN])
def test_a_safeguard_that_is_not_positive_is_refused_by_name(name: str, value: float) -> None:
    argument = "threshold" if name == "clipped_step_size" else "safeguard"
    numbers = [number(1)] * (3 if name == "momentum_step_size" else 2)
    with pytest.raises(ValueError, match=f"{argument} must be positive, got {value}"):
        CHECKED[name](*numbers, **{argument: value})


@pytest.mark.parametrize("values", [(NAN,), (INF,), (-INF,), (1.0, NAN), (INF, -INF), (NAN, 1.0, 2.0)])
def test_flag_is_one_where_any_number_is_not_finite(values: tuple[float, ...]) -> None:
    assert CHECKED["nonfinite"](*map(number, values)) == 1
    assert CHECKED["nonfinite"](*(number(1.0) for _ in values)) == 0


def test_shapes_are_checked() -> None:
    vector = torch.ones(2)
    with pytest.raises((TypeCheckError, BeartypeCallHintParamViolation)):
        CHECKED["polyak_step_size"](vector, number(1))
    with pytest.raises((TypeCheckError, BeartypeCallHintParamViolation)):
        CHECKED["squared_norm"]([torch.ones(2, dtype=torch.int64)])


def every_kind(seed: int = 0) -> list[Tensor]:
    """Tensors of all the layouts and types that parameters have."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return [
        normal(5, 7),
        normal(3),
        normal(),
        normal(0),
        normal(4, 6).t(),
        normal(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        normal(6, 8)[:, ::2],
        normal(33).to(torch.bfloat16),
        normal(40).to(torch.float16),
        normal(9).double(),
    ]


@pytest.fixture(params=["kernels of this device", "the way of other devices"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the kernels that the CPU has, and as where there are none."""
    if request.param == "the way of other devices":
        monkeypatch.setattr(polyak, "_FUSED", set())
        monkeypatch.setattr(polyak, "_DOTS", set())


@pytest.mark.usefixtures("_ways")
def test_squared_norm_is_the_sum_of_all_squares() -> None:
    tensors = every_kind()
    reference = sum(float(tensor.double().square().sum()) for tensor in tensors)
    found = CHECKED["squared_norm"](tensors)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(reference, rel=1e-5)
    single = CHECKED["squared_norm"](tensors[:9])
    assert single.dtype == torch.float32


def test_squared_norm_of_many_numbers_is_accurate_in_single_precision() -> None:
    tensor = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    reference = float(tensor.double().square().sum())
    assert float(polyak.squared_norm([tensor])) == pytest.approx(reference, rel=1e-6)


@pytest.mark.usefixtures("_ways")
def test_the_product_is_that_of_the_gradient_with_the_difference() -> None:
    gradients, starts = every_kind(0), every_kind(1)
    ends = [tensor.float() + 1 if tensor.dtype.itemsize == 2 else tensor + 1 for tensor in starts]
    pairs = zip(gradients, ends, starts, strict=True)
    reference = sum(float((g.double() * (e.double() - s.double())).sum()) for g, e, s in pairs)
    norm, product = CHECKED["norm_and_product"](gradients, ends, starts)
    assert float(product) == pytest.approx(reference, rel=1e-4)
    assert float(norm) == pytest.approx(float(polyak.squared_norm(gradients)), rel=1e-6)


@pytest.mark.usefixtures("_ways")
def test_a_tensor_larger_than_a_piece_is_summed_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (2 * polyak._PIECE + 17,)
    gradient, end, start = (torch.randn(shape, generator=generator) for _ in range(3))
    norm, product = polyak.norm_and_product([gradient], [end], [start])
    assert float(norm) == pytest.approx(float(gradient.double().square().sum()), rel=1e-5)
    exact = float(gradient.double() @ (end.double() - start.double()))
    assert float(product) == pytest.approx(exact, rel=1e-4, abs=0.05)


def test_the_product_does_not_cancel() -> None:
    generator = torch.Generator().manual_seed(0)
    start, gradient = (torch.randn(10_000, generator=generator) for _ in range(2))
    end = start + 1e-3 * torch.randn(10_000, generator=generator)
    exact = float(gradient.double() @ (end.double() - start.double()))
    assert float(polyak.norm_and_product([gradient], [end], [start])[1]) == pytest.approx(exact, rel=1e-4)
    assert abs(float(gradient @ end - gradient @ start) - exact) > 1e-4 * abs(exact)


def test_sums_over_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no tensor"):
        polyak.squared_norm([])


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("gradient_seed", [1, "another layout"])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_descent_moves_along_the_gradient_in_every_layout_and_type(
    gradient_seed: int | str, decay: float
) -> None:
    parameters = every_kind(0)
    if gradient_seed == "another layout":
        gradients = [tensor.float().contiguous() * 2 for tensor in every_kind(1)]
    else:
        gradients = every_kind(1)
    expected = [
        ((1 - 0.25 * decay) * p.double() - 0.25 * g.double()).to(p.dtype)
        for p, g in zip(parameters, gradients, strict=True)
    ]
    strides = [p.stride() for p in parameters]
    CHECKED["descend_"](parameters, gradients, torch.tensor(0.25), weight_decay=decay, skip=torch.tensor(0.0))
    for p, wanted, stride in zip(parameters, expected, strides, strict=True):
        torch.testing.assert_close(p, wanted)
        assert p.stride() == stride


@pytest.mark.usefixtures("_ways")
def test_approach_moves_the_fraction_of_the_way() -> None:
    for weight in (0.25, torch.tensor(0.25)):
        parameters, targets = every_kind(0), every_kind(1)
        expected = [
            (0.75 * p.double() + 0.25 * t.double()).to(p.dtype)
            for p, t in zip(parameters, targets, strict=True)
        ]
        CHECKED["approach_"](parameters, targets, weight, skip=torch.tensor(0.0))
        for p, wanted in zip(parameters, expected, strict=True):
            torch.testing.assert_close(p, wanted)


def bits(tensor: Tensor) -> list[int]:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist()


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("poison", [NAN, INF])
def test_a_skipped_update_leaves_every_bit_even_where_the_gradient_is_not_finite(poison: float) -> None:
    parameters = every_kind(0)
    for parameter in parameters:
        (parameter[..., :1] if parameter.dim() else parameter).mul_(-0.0)
    before = [bits(parameter) for parameter in parameters]
    gradients = [torch.full_like(parameter, poison) for parameter in parameters]
    on = torch.tensor(1.0)
    polyak.descend_(parameters, gradients, torch.tensor(NAN), weight_decay=0.1, skip=on)
    polyak.approach_(parameters, gradients, 0.5, skip=on)
    polyak.approach_(parameters, gradients, torch.tensor(NAN), skip=on)
    polyak.scale_(parameters, torch.tensor(1.0))
    assert [bits(parameter) for parameter in parameters] == before


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_autograd_notices_that_a_parameter_was_changed(layout: str) -> None:
    parameter = torch.ones(2, 3, requires_grad=True)
    used = parameter * parameter
    gradient = torch.ones(2, 3) if layout == "contiguous" else torch.ones(3, 2).t()
    with torch.no_grad():
        polyak.descend_([parameter], [gradient], torch.tensor(0.5))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.sum().backward()
