"""A linear map with its norm, in place of a linear map."""

from __future__ import annotations

import math
import warnings
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from leyden_simplenorm.rms import RMSNorm, check_eps
from leyden_simplenorm.simplenorm import Norm, check_norm


class SimpleNormLinear(nn.Module):
    """A linear map with a norm right after it, SimpleNorm of Section 3 of Chen et al. (2026).

    The parameters are ``linear.weight``, ``linear.bias`` where there is one, and ``norm.weight``. There is no
    attribute ``weight``: code that would apply the map without its norm must not find it. A NaN in a row
    makes that row's output NaN.

    Args:
        in_features: length of the inputs.
        out_features: length of the outputs, over which the norm runs; a norm over one number leaves nothing
            but its sign, and a warning says so.
        bias: whether the map has a bias, which is added before the norm.
        norm: ``"rms"``, or ``"layer"`` for a LayerNorm without bias.
        eps: the norm's epsilon, above 0.
        elementwise_affine: whether the norm has a learned gain, which starts at 1.
        init_std: standard deviation of the initial weights (a normal, cut at -2 and 2); None: the inverse
            root of ``in_features``. With epsilon 0 it does not change the function, only the relative size of
            an optimizer's steps.

    Raises:
        ValueError: if an argument is out of its range; the text names it.

    >>> layer = SimpleNormLinear(8, 4, eps=1e-12)
    >>> round(layer(Tensor([1.0] * 8)).square().mean().item(), 3)  # whatever the weights
    1.0
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        norm: Norm = "rms",
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        init_std: float | None = 0.02,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, out_features=out_features)
        check_init_std(init_std)
        self.linear: nn.Module = nn.Linear(in_features, out_features, bias=bias)
        self.norm = norm_after(out_features, norm, eps, elementwise_affine)
        initialise(self.linear, init_std)

    @classmethod
    def around(
        cls,
        linear: nn.Module,
        out_features: int,
        *,
        norm: Norm = "rms",
        eps: float = 1e-5,
        groups: tuple[int, ...] | None = None,
    ) -> SimpleNormLinear:
        """A norm after a map that exists, whose parameters stay the very same.

        Args:
            linear: the map, with a parameter ``weight``.
            out_features: length of its outputs.
            norm: ``"rms"`` or ``"layer"``.
            eps: the norm's epsilon, above 0.
            groups: lengths of the parts of the output that are normalised each for itself.

        Returns:
            The layer, on the device of the map's weight and in its type.

        Raises:
            ValueError: if an argument is out of its range; the text names it.
        """
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        weight = linear.weight
        assert isinstance(weight, Tensor)
        layer.linear = linear
        layer.norm = norm_after(out_features, norm, eps, True, groups, weight)
        layer.train(linear.training)
        return layer

    def forward(self, x: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch d"]:
        """Outputs of shape ``(..., out_features)`` for inputs of shape ``(..., in_features)``."""
        result: Tensor = self.norm(self.linear(x))
        return result

    def __getattr__(self, name: str) -> Any:
        """As of any module, but that a weight which is looked for here is said to be missing on purpose."""
        if name in ("weight", "bias"):
            raise AttributeError(
                f"SimpleNormLinear has no {name}, since code that applies it would leave the norm out; it is "
                f"linear.{name}. In a model that reads it by itself leave this map as it is (exclude)"
            )
        return super().__getattr__(name)


def norm_after(
    size: int,
    norm: Norm = "rms",
    eps: float = 1e-5,
    elementwise_affine: bool = True,
    groups: tuple[int, ...] | None = None,
    like: Tensor | None = None,
) -> nn.Module:
    """The norm of a map's outputs.

    Args:
        size: their length.
        norm: ``"rms"`` or ``"layer"``.
        eps: its epsilon, above 0.
        elementwise_affine: whether it has a learned gain.
        groups: lengths of the parts that are normalised each for itself, for ``"rms"``.
        like: a tensor whose device and, if it is floating-point, type the gain has.

    Returns:
        The module.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """
    check_norm(norm)
    check_eps(eps)
    if 1 in (groups or (size,)):
        warnings.warn(
            "out_features: a norm over one number leaves nothing but its sign", UserWarning, stacklevel=3
        )
    device = None if like is None else like.device
    dtype = like.dtype if like is not None and like.is_floating_point() else None
    if norm == "layer":
        if groups is not None:
            raise ValueError(f"groups: expected none with norm='layer', got {groups!r}")
        return nn.LayerNorm(size, eps, elementwise_affine, bias=False, device=device, dtype=dtype)
    return RMSNorm(size, eps, elementwise_affine, groups=groups, device=device, dtype=dtype)


def initialise(linear: nn.Module, std: float | None) -> None:
    """Draw a map's weights from a normal that is cut at -2 and 2, and set its bias to zero.

    Args:
        linear: a `torch.nn.Linear`.
        std: standard deviation; None: the inverse root of the inputs' length.
    """
    assert isinstance(linear, nn.Linear)
    nn.init.trunc_normal_(linear.weight, std=linear.in_features**-0.5 if std is None else std, a=-2.0, b=2.0)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def check_sizes(**sizes: int) -> None:
    """Refuse what is no size.

    Args:
        **sizes: the arguments by name.

    Raises:
        ValueError: if one is not a whole number of at least 1; the text names it.
    """
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")


def check_init_std(init_std: float | None) -> None:
    """Refuse what is no standard deviation.

    Args:
        init_std: the initial weights' standard deviation, or None.

    Raises:
        ValueError: if it is not a finite number above 0.
    """
    if init_std is not None and (not isinstance(init_std, int | float) or not 0 < init_std < math.inf):
        raise ValueError(f"init_std: expected a finite number above 0 or None, got {init_std!r}")
