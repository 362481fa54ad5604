"""Products with Hankel matrices by the FFT, as all methods of the field have them; no matrix is formed.

A signal of odd sizes ``(n_1, ..., n_d)`` stands for the complex symmetric matrix whose entry at rows ``i``
and columns ``j`` (multi-indices, flattened in C order) is the signal at ``i + j``. The matrix has
``prod((n_a + 1) / 2)`` rows. Every product costs one FFT a column, and memory of the order of the factor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Complex, Float
from scipy.fft import next_fast_len
from torch import Tensor

_AT_ONCE = 2**18
"""Complex numbers up to which one call transforms all columns: each call first makes a plan, not for free."""

_CACHED = 2**16
"""Complex numbers that are worked on at a time where there are more: a megabyte or two stays in the cache."""

COMPLEX_TYPES = (torch.complex64, torch.complex128)


class HankelOperator:
    """The Hankel structure of signals of one shape, in any number of dimensions.

    A factor ``Z`` has the shape ``(..., rows, rank)``, a signal ``(..., *shape)``; leading dimensions are
    batches. Factors that this class returns are transposed views of contiguous ``(..., rank, rows)`` memory,
    the layout in which the transforms run fastest; it takes any layout.

    Args:
        shape: the sizes of the signal, each odd (`padded_shape` makes them so).
        dtype: ``torch.complex64`` or ``torch.complex128``.
        device: where ``weights`` lie.

    Attributes:
        shape: the sizes of the signal.
        dtype: the complex type.
        block: the sizes ``(n_a + 1) / 2`` that a row index has.
        rows: the number of rows of the matrix, their product.
        lengths: the sizes of the transforms.

    Raises:
        ValueError: if a size is even or below 1, or the type is not one of the two; the text names it.

    >>> operator = HankelOperator((5,))
    >>> operator.dense(torch.arange(5)).real
    tensor([[0., 1., 2.],
            [1., 2., 3.],
            [2., 3., 4.]], dtype=torch.float64)
    >>> operator.weights
    tensor([1., 2., 3., 2., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.complex128,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        self.shape = tuple(int(size) for size in shape)
        if not self.shape or any(size < 1 or size % 2 == 0 for size in self.shape):
            raise ValueError(f"shape: expected odd sizes of at least 1, got {tuple(shape)}")
        if dtype not in COMPLEX_TYPES:
            raise ValueError(f"dtype: expected torch.complex64 or torch.complex128, got {dtype}")
        self.dtype = dtype
        self.block = tuple((size + 1) // 2 for size in self.shape)
        self.rows = math.prod(self.block)
        self.lengths = tuple(int(next_fast_len(size)) for size in self.shape)
        self.weights: Tensor = _antidiagonal_lengths(self.shape).to(device=device, dtype=dtype.to_real())
        # One for the real and one for the imaginary part: products of complex with real tensors are slow.
        self._both_weights = self.weights.unsqueeze(-1).repeat_interleave(2, dim=-1)
        self._shares = self._both_weights.reciprocal()
        self._places = tuple(range(-len(self.shape), 0))

    def fft(self, factor: Complex[Tensor, "*batch rows rank"]) -> Complex[Tensor, "*batch rank *lengths"]:
        """The transform of a factor's columns, which the products take.

        Args:
            factor: Z.

        Returns:
            The zero-padded transform over the signal's dimensions, rank first.
        """
        columns = factor.mT.reshape(*factor.shape[:-2], factor.shape[-1], *self.block)
        if self._whole(columns, 4 * _AT_ONCE):
            spectrum: Tensor = torch.fft.fftn(columns, s=self.lengths, dim=self._places)
            return spectrum
        spectrum = columns.new_empty(*columns.shape[: -len(self.shape)], *self.lengths)
        padded = columns.new_zeros(0)
        for into, part in self._parts(spectrum, columns):
            if padded.shape != into.shape:
                padded = torch.zeros_like(into)
            padded[self._crop(self.block)] = part
            into.copy_(torch.fft.fftn(padded, dim=self._places))
        return spectrum

    def lift_adjoint(
        self,
        spectrum: Complex[Tensor, "*batch rank *lengths"],
        other: Complex[Tensor, "*batch rank *lengths"] | None = None,
    ) -> Complex[Tensor, "*batch *shape"]:
        """The averages of Z Z^T along its antidiagonals, or of Z D^T + D Z^T.

        Args:
            spectrum: the transform of Z.
            other: the transform of D; None for Z Z^T.

        Returns:
            The signal.
        """
        if other is None:
            return self._averages(self._summed(spectrum, spectrum))
        return self._averages(2 * self._summed(spectrum, other))

    def lift_adjoint_along(
        self,
        spectrum: Complex[Tensor, "*batch rank *lengths"],
        other: Complex[Tensor, "*batch rank *lengths"],
    ) -> tuple[Complex[Tensor, "*batch *shape"], Complex[Tensor, "*batch *shape"]]:
        """The averages of Z D^T + D Z^T, and those of D D^T, by one transform.

        Args:
            spectrum: the transform of Z.
            other: the transform of D.

        Returns:
            The two signals.
        """
        axis = -len(self.shape) - 1
        both = torch.stack([2 * self._summed(spectrum, other), self._summed(other, other)], dim=axis)
        mixed, square = self._averages(both).unbind(axis)
        return mixed, square

    def _summed(self, spectrum: Tensor, other: Tensor) -> Tensor:
        """The products of two transforms, summed over the columns."""
        axis = spectrum.dim() - len(self.shape) - 1
        if spectrum.requires_grad or other.requires_grad or spectrum.is_cuda or spectrum.numel() <= _CACHED:
            return (spectrum * other).sum(dim=axis)
        total = spectrum.select(axis, 0) * other.select(axis, 0)
        for column in range(1, spectrum.shape[axis]):
            total.addcmul_(spectrum.select(axis, column), other.select(axis, column))
        return total

    def _averages(self, transform: Tensor) -> Tensor:
        """Means along antidiagonals from the transform of their sums."""
        sums = torch.fft.ifftn(transform, dim=self._places)[self._crop(self.shape)]
        averages: Tensor = torch.view_as_complex(torch.view_as_real(sums) * self._shares)
        return averages

    def matmul_conj(
        self, signal: Complex[Tensor, "*batch *shape"], spectrum: Complex[Tensor, "*batch rank *lengths"]
    ) -> Complex[Tensor, "*batch rows rank"]:
        """The Hankel matrix of a signal times conj(Z).

        Args:
            signal: the signal.
            spectrum: the transform of Z.

        Returns:
            The product, of the factor's shape.
        """
        # ifft(a conj(b)) is conj(fft(conj(a) b)) / N: so no conjugate of the whole spectrum is written out.
        transform = torch.fft.fftn(signal, s=self.lengths, dim=self._places, norm="forward")
        kernel = transform.conj().resolve_conj().unsqueeze(-len(self.shape) - 1)
        crop = self._crop(self.block)
        if self._whole(spectrum) or kernel.requires_grad:
            mixed: Tensor = torch.fft.fftn(kernel * spectrum, dim=self._places)
            columns = mixed[crop].conj().resolve_conj()
        else:
            columns = spectrum.new_empty(*spectrum.shape[: -len(self.shape)], *self.block)
            for into, part, factor in self._parts(columns, spectrum, kernel):
                mixed = torch.fft.fftn(part * factor, dim=self._places)
                torch.conj_physical(mixed[crop], out=into)
        return columns.flatten(-len(self.shape)).mT

    def dense(self, signal: Complex[Tensor, "*batch *shape"]) -> Complex[Tensor, "*batch rows rows"]:
        """The matrix itself; for small signals and tests.

        Args:
            signal: the signal.

        Returns:
            The Hankel matrix (block Hankel in several dimensions).
        """
        index = torch.cartesian_prod(*(torch.arange(size) for size in self.block)).reshape(self.rows, -1)
        pairs = index.unsqueeze(0) + index.unsqueeze(1)
        places: Any = (..., *pairs.unbind(-1))
        return signal.to(self.dtype)[places]

    def weighted(
        self, first: Complex[Tensor, "*batch *shape"], second: Complex[Tensor, "*batch *shape"]
    ) -> Float[Tensor, " *batch"]:
        """The real inner product of two signals' Hankel matrices, Re sum w conj(a) b.

        Args:
            first: a.
            second: b.

        Returns:
            A number for each signal of the batch.
        """
        products = torch.view_as_real(first) * torch.view_as_real(second)
        weighted: Tensor = products.flatten(-len(self.shape) - 1) @ self._both_weights.flatten()
        return weighted

    def weighted_gram(
        self, signals: Complex[Tensor, "*batch count *shape"]
    ) -> Float[Tensor, "*batch count count"]:
        """The real inner products of the Hankel matrices of several signals, see `weighted`.

        Args:
            signals: the signals, together with any batch in front.

        Returns:
            A symmetric matrix for each batch.
        """
        numbers = torch.view_as_real(signals).flatten(-len(self.shape) - 1)
        product: Tensor = (numbers * self._both_weights.flatten()) @ numbers.mT
        return product

    def _whole(self, columns: Tensor, limit: int = _AT_ONCE) -> bool:
        """Whether columns are transformed at once: they are few or short, or autograd follows them."""
        return columns.requires_grad or columns.is_cuda or columns.numel() <= limit

    def _parts(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Matching views of some columns each, of about as many numbers as the cache holds."""
        sizes = len(self.shape)
        stacks = [tensor.reshape(-1, *tensor.shape[-sizes - 1 :]) for tensor in tensors]
        batch, rank = stacks[0].shape[:2]
        step = max(1, _CACHED // math.prod(self.lengths))
        if step >= rank:
            several = step // rank
            for first in range(0, batch, several):
                yield tuple(stack[first : first + several] for stack in stacks)
            return
        for place in range(batch):
            for first in range(0, rank, step):
                yield tuple(
                    stack[place] if stack.shape[1] == 1 else stack[place, first : first + step]
                    for stack in stacks
                )

    @staticmethod
    @functools.cache
    def _crop(sizes: tuple[int, ...]) -> Any:
        return (..., *(slice(size) for size in sizes))


def padded_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape with every even size made odd by one sample that nobody observed.

    Args:
        shape: the sizes of a signal.

    Returns:
        Odd sizes.

    >>> padded_shape((64, 9))
    (65, 9)
    """
    return tuple(size + 1 - size % 2 for size in shape)


def _antidiagonal_lengths(shape: tuple[int, ...]) -> Tensor:
    """On how many entries of the Hankel matrix each sample stands."""
    weights = torch.ones((), dtype=torch.float64)
    for size in shape:
        places = torch.arange(size, dtype=torch.float64)
        weights = weights.unsqueeze(-1) * torch.minimum(places + 1, size - places)
    return weights
