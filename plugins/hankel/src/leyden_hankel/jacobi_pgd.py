"""The preconditioned step as an optimizer, for any loss of Z Z^T, Hankel or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from leyden_hankel.directions import PRECONDITIONERS, Preconditioner, regularized_inverse


class JacobiPGD(Optimizer):
    """Jacobi-preconditioned gradient descent on symmetric factors (reconstructed).

    Every parameter is a factor Z of shape ``(..., rows, rank)``, complex or real, of a loss that depends on
    Z Z^T alone, such as |Z Z^T - M|^2 / 2, for which ``lr`` 1 (``"tangent"``) or 0.5 (``"block_jacobi"``) is
    meant. A loss that is a mean over entries has smaller gradients, and a larger rate to go with them. The
    step is the same for Z and for Z Q, whatever complex orthogonal matrix Q is.

    Clipping and accumulation of gradients change the method; `JacobiGuard` refuses them under a Trainer. A
    gradient that is NaN or infinite shows in the parameter.

    Args:
        params: the factors, or groups of them; those without gradient stay.
        lr: length of the step along the preconditioned direction, at least 0.
        preconditioner: ``"tangent"``, ``"block_jacobi"`` or ``"none"``, the gradient over the largest
            eigenvalue of Z^H Z.
        damping: the Gram matrix is inverted with this times its mean eigenvalue added, at least 0.

    Raises:
        ValueError: if an argument is out of its range, or a parameter has fewer than two dimensions.

    >>> Z = torch.nn.Parameter(torch.tensor([[1.0 + 0.5j], [0.5j], [1.0]]))
    >>> target = torch.tensor([[2.0], [1.0j], [2.0]])
    >>> optimizer = JacobiPGD([Z])
    >>> for _ in range(6):
    ...     optimizer.zero_grad()
    ...     ((Z @ Z.mT - target @ target.mT).abs().square().sum() / 2).backward()
    ...     optimizer.step()
    >>> bool(torch.allclose(Z @ Z.mT, target @ target.mT, atol=1e-4))
    True
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1.0,
        preconditioner: Preconditioner = "tangent",
        damping: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "preconditioner": preconditioner, "damping": damping})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add factors with settings of their own.

        Args:
            param_group: ``"params"``, and the settings that differ from the defaults.
        """
        super().add_param_group(param_group)
        try:
            _check(self.param_groups[-1])
        except ValueError:
            del self.param_groups[-1]
            raise

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step every factor that has a gradient.

        Args:
            closure: evaluates the loss and sets the gradients.

        Returns:
            The closure's loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for factor in group["params"]:
                if factor.grad is not None:
                    _advance(factor, group)
        return loss


def _advance(factor: Tensor, group: dict[str, Any]) -> None:
    # Half of autograd's gradient is the Wirtinger gradient, in which the method is written.
    exact = factor.dtype in (torch.complex64, torch.complex128, torch.float32, torch.float64)
    wide = factor if exact else factor.float()
    gradient = factor.grad.to(wide.dtype) / 2  # type: ignore[union-attr]
    gram = wide.mT @ wide.conj()
    if group["preconditioner"] == "none":
        largest = torch.linalg.matrix_norm(gram, ord=2)[..., None, None]
        towards = gradient / largest.clamp(min=torch.finfo(largest.dtype).tiny)
    else:
        mean = gram.diagonal(dim1=-2, dim2=-1).real.mean(dim=-1)
        inverse = regularized_inverse(gram, group["damping"] * mean)
        towards = gradient @ inverse
        if group["preconditioner"] == "tangent":
            towards = towards - wide @ (inverse.conj() @ (wide.mH @ towards)) / 2
    factor.add_(towards.to(factor.dtype), alpha=-group["lr"])


def _check(group: dict[str, Any]) -> None:
    for name in ("lr", "damping"):
        value = group[name]
        if isinstance(value, Tensor) or not 0 <= value < math.inf:
            raise ValueError(f"{name}: expected a finite number of at least 0, got {value!r}")
    if group["preconditioner"] not in PRECONDITIONERS:
        raise ValueError(
            f"preconditioner: expected one of {', '.join(PRECONDITIONERS)}, got {group['preconditioner']!r}"
        )
    for factor in group["params"]:
        if factor.dim() < 2:
            raise ValueError(
                f"params: expected factors of shape (..., rows, rank), got {tuple(factor.shape)}"
            )
