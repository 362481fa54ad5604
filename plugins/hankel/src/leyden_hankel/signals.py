"""Signals whose answer is known: sums of exponentials as the field draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from leyden_hankel.completion import checked_shape
from leyden_hankel.frequencies import exponentials


@dataclass(frozen=True)
class SpectralSignal:
    """A signal of few lines and what was observed of it.

    Attributes:
        y: the observed samples with their noise and outliers, zero elsewhere.
        mask: which were observed.
        truth: the signal without either.
        frequencies: of its lines, shape ``(rank,)``, in several dimensions ``(rank, dimensions)``.
        damping: alike.
        amplitudes: shape ``(rank,)``.
        noise: the norm of the noise over that of the observed signal, 0 without noise.
    """

    y: Complex[Tensor, " *shape"]
    mask: Bool[Tensor, " *shape"]
    truth: Complex[Tensor, " *shape"]
    frequencies: Float[Tensor, " rank *dimensions"]
    damping: Float[Tensor, " rank *dimensions"]
    amplitudes: Complex[Tensor, " rank"]
    noise: float = 0.0


def spectral_signal(
    shape: int | Sequence[int],
    rank: int,
    *,
    samples: int | None = None,
    kappa: float | None = None,
    separation: bool = False,
    damping: bool = False,
    noise_db: float | None = None,
    outliers: float = 0.0,
    generator: torch.Generator | None = None,
) -> SpectralSignal:
    """Draw a signal and its samples as the predecessors of the paper do (Cai, Wang and Wei, 2019).

    Amplitudes have moduli 1 + 10^(u / 2), u uniform from 0 to 1, and uniform phases.

    Args:
        shape: the sizes of the signal.
        rank: the number of lines.
        samples: how many samples are observed, uniformly without replacement; None: all.
        kappa: the moduli are spread evenly from 1 / kappa to 1 instead, so that this is about the condition
            number of the Hankel matrix.
        separation: whether frequencies are at least 1.5 / n apart along every dimension.
        damping: whether lines decay, by 1 / (n / 4 + u n / 4) a sample.
        noise_db: the ratio of the observed signal to the complex Gaussian noise added to it; None: no noise.
        outliers: the share of the observed samples to which a number of a modulus up to 10 sqrt(2) times the
            mean modulus of the signal is added.
        generator: draws everything; None: torch's own.

    Returns:
        The signal, in complex128.

    Raises:
        ValueError: if an argument is out of its range; the text names it.

    >>> signal = spectral_signal(63, 3, samples=20, generator=torch.Generator().manual_seed(0))
    >>> signal.truth.shape, int(signal.mask.sum())
    (torch.Size([63]), 20)
    """
    sizes = checked_shape(shape)
    total = math.prod(sizes)
    check_arguments(sizes, rank, samples, kappa, separation, noise_db, outliers)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, dtype=torch.float64, generator=generator)

    frequencies = torch.stack([_frequencies(rank, n, separation, uniform) for n in sizes], dim=1)
    moduli = 1 + 10 ** (uniform(rank) / 2)
    if kappa is not None:
        moduli = torch.linspace(1 / kappa, 1, rank, dtype=torch.float64)
    amplitudes = torch.polar(moduli, 2 * math.pi * uniform(rank))
    decay = torch.zeros(rank, len(sizes), dtype=torch.float64)
    if damping:
        decay = torch.stack([1 / (n / 4 + n / 4 * uniform(rank)) for n in sizes], dim=1)
    poles = torch.polar(torch.exp(-decay), 2 * math.pi * frequencies)
    truth = (exponentials(sizes, poles) @ amplitudes).reshape(sizes)
    order = torch.randperm(total, generator=generator)[: total if samples is None else samples]
    mask = torch.zeros(total, dtype=torch.bool).index_fill(0, order, value=True)
    y = torch.where(mask, truth.flatten(), torch.zeros((), dtype=truth.dtype))
    level = 0.0
    if noise_db is not None:
        noise = torch.complex(*torch.randn(2, total, dtype=torch.float64, generator=generator)) * mask
        level = 10 ** (-noise_db / 20)
        y = y + noise * (level * torch.linalg.vector_norm(y) / torch.linalg.vector_norm(noise))
    if outliers:
        places = order[torch.randperm(len(order), generator=generator)[: math.ceil(outliers * len(order))]]
        mean = 10 * truth.abs().mean()
        parts = (2 * uniform(2, len(places)) - 1) * mean
        y = y.index_add(0, places, torch.complex(*parts))
    if len(sizes) == 1:
        frequencies, decay = frequencies.squeeze(1), decay.squeeze(1)
    return SpectralSignal(
        y.reshape(sizes), mask.reshape(sizes), truth, frequencies, decay, amplitudes, noise=level
    )


def _frequencies(rank: int, size: int, separation: bool, uniform: object) -> Tensor:
    draw = uniform  # a function of the number of values
    if not separation:
        return draw(rank)  # type: ignore[operator,no-any-return]
    gaps: Tensor = draw(rank + 1)  # type: ignore[operator]
    room = 1 - 1.5 * rank / size
    gaps = gaps / gaps.sum() * room
    found = gaps[:-1].cumsum(dim=0) + 1.5 / size * torch.arange(rank, dtype=torch.float64)
    return found[draw(rank).argsort()] if rank > 1 else found  # type: ignore[operator]


def check_arguments(
    sizes: tuple[int, ...],
    rank: int,
    samples: int | None = None,
    kappa: float | None = None,
    separation: bool = False,
    noise_db: float | None = None,
    outliers: float = 0.0,
) -> None:
    """Refuse what `spectral_signal` cannot draw.

    Raises:
        ValueError: if an argument is out of its range; the text names it.
    """
    total = math.prod(sizes)
    if not 1 <= rank <= total:
        raise ValueError(f"rank: expected 1 to {total}, got {rank!r}")
    if samples is not None and not 1 <= samples <= total:
        raise ValueError(f"samples: expected 1 to {total}, the size of the signal, got {samples!r}")
    if kappa is not None and not 1 <= kappa < math.inf:
        raise ValueError(f"kappa: expected a number of at least 1, got {kappa!r}")
    if separation and 1.5 * rank >= min(sizes):
        raise ValueError(f"separation: expected room for {rank} lines 1.5 / n apart, got sizes {sizes}")
    if noise_db is not None and not math.isfinite(noise_db):
        raise ValueError(f"noise_db: expected a finite number, got {noise_db!r}")
    if not 0 <= outliers < 1:
        raise ValueError(f"outliers: expected a number from 0 to below 1, got {outliers!r}")
