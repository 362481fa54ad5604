"""`complete`: an undersampled signal in, the whole signal and its lines out."""

from __future__ import annotations

from typing import Any

import torch

from leyden_hankel.completion import Completion, HankelCompletion, signal_shape
from leyden_hankel.directions import Preconditioner
from leyden_hankel.rank import estimate_rank
from leyden_hankel.solver import Step


def complete(
    observed: Any,
    mask: Any = None,
    rank: int | None = None,
    *,
    preconditioner: Preconditioner = "tangent",
    step: Step | float = "auto",
    max_iter: int = 300,
    tol: float = 1e-7,
    outlier_fraction: float = 0.0,
    damping: float = 0.0,
    signal_dims: int | None = None,
    consistent: bool = False,
    truth: Any = None,
) -> Completion:
    """Complete a signal of few, possibly damped, complex exponentials from some samples (reconstructed).

    Args:
        observed: the samples, a tensor or an array, complex or real, in one or more dimensions. Values at
            places that were not observed are ignored.
        mask: which samples were observed, of the same shape; None: those that are not NaN.
        rank: the number of exponentials (a real sinusoid counts as two); None: `estimate_rank`.
        preconditioner: ``"tangent"``, ``"block_jacobi"`` or ``"none"``, see `direction`.
        step: ``"auto"``, ``"exact"``, ``"fixed"`` or a number, see `Settings`.
        max_iter: iterations at most.
        tol: relative change of the signal that ends the iteration.
        outlier_fraction: the share of the observed samples that may be grossly wrong, below 0.5; needs
            ``step="fixed"``.
        damping: helps a little where the rank is given too high, see `Settings`.
        signal_dims: how many trailing dimensions a signal has, the others being batches; None: all.
        consistent: whether the observed samples are put back into the result, for data without noise.
        truth: the true signal; the history then tells the relative error.

    Returns:
        The signal, the factor, what happened on the way; ``frequencies``, ``damping`` and ``amplitudes`` of a
        single signal.

    Raises:
        ValueError: if an argument is wrong; the text names it.

    >>> t = torch.arange(63)
    >>> signal = torch.exp(2j * torch.pi * 0.1234 * t) + 0.5 * torch.exp((2j * torch.pi * 0.4 - 0.01) * t)
    >>> seen = torch.rand(63, generator=torch.Generator().manual_seed(0)) < 0.4
    >>> found = complete(signal, seen, 2)
    >>> tuple(round(value, 4) for value in found.frequencies.tolist())
    (0.1234, 0.4)
    """
    y = torch.as_tensor(observed)
    shape = signal_shape(y, signal_dims)
    if rank is None:
        rank = estimate_rank(y, mask, signal_dims=len(shape), outlier_fraction=outlier_fraction)
    solver = HankelCompletion(
        shape,
        rank,
        preconditioner=preconditioner,
        step=step,
        max_iter=max_iter,
        tol=tol,
        outlier_fraction=outlier_fraction,
        damping=damping,
        consistent=consistent,
    )
    completion: Completion = solver(y, mask, truth=truth)
    return completion
