"""How near a completion is: relative error of the signal, and distances between frequencies on the circle."""

from __future__ import annotations

import torch
from jaxtyping import Float, Num
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def relative_error(
    x: Num[Tensor, "*batch *shape"], truth: Num[Tensor, "*batch *shape"], *, signal_dims: int | None = None
) -> Float[Tensor, "*batch"]:
    """|x - truth| / |truth|, the measure of the field; not in the paper in particular.

    Args:
        x: the signal, or a batch of them.
        truth: the true one.
        signal_dims: how many trailing dimensions a signal has; None: all.

    Returns:
        A number for each signal.

    Raises:
        ValueError: if the shapes differ.

    >>> relative_error(torch.tensor([3.0, 4.4]), torch.tensor([3.0, 4.0]))
    tensor(0.0800)
    """
    if x.shape != truth.shape:
        raise ValueError(f"truth: expected shape {tuple(x.shape)}, got {tuple(truth.shape)}")
    places = tuple(range(-(signal_dims or x.dim()), 0))
    distance, length = (torch.linalg.vector_norm(t, dim=places) for t in (x - truth, truth))
    error: Tensor = distance / length
    return error


def match_frequencies(
    found: Float[Tensor, " count *dimensions"], true: Float[Tensor, " lines *dimensions"]
) -> Float[Tensor, " lines"]:
    """The distance of every true frequency to the found one that an optimal assignment gives it.

    Distances are on the circle of circumference 1; in several dimensions the largest over them. This
    is not in the paper.

    Args:
        found: frequencies in cycles a sample, shape ``(count,)`` or ``(count, dimensions)``.
        true: the true ones, alike.

    Returns:
        A distance, at most 0.5, for each true frequency; infinity for one that no found one is left for.

    >>> match_frequencies(torch.tensor([0.999, 0.3]), torch.tensor([0.3, 0.001]))
    tensor([0.0000, 0.0020])
    """
    first, second = (t.reshape(len(t), -1) for t in (found, true))
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(f"found: expected {second.shape[1]} dimensions, got {first.shape[1]}")
    turns = (second.unsqueeze(1) - first.unsqueeze(0)).remainder(1.0)
    distances = torch.minimum(turns, 1 - turns).amax(dim=-1)
    rows, columns = linear_sum_assignment(distances.detach().cpu().numpy())
    matched = torch.full((len(true),), torch.inf, dtype=distances.dtype, device=distances.device)
    matched[torch.as_tensor(rows)] = distances[torch.as_tensor(rows), torch.as_tensor(columns)]
    return matched
