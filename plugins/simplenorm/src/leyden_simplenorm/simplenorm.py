"""The mathematics of the method, on tensors; it imports no Lightning and is usable alone.

What stands here is a placeholder, the confidence penalty of Pereyra et al. (2017).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def penalized_cross_entropy(
    logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], *, penalty: float = 0.1
) -> Float[Tensor, ""]:
    """Cross-entropy with the confidence penalty, Section 3.1 of Pereyra et al. (2017).

    Args:
        logits: unnormalized log-probabilities of the classes.
        labels: the right classes, int64.
        penalty: factor of the entropy of the prediction; 0 is plain cross-entropy.

    Returns:
        The mean over the batch of -log p(label) - penalty H(p), in nats.

    >>> penalized_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), penalty=1.0)
    tensor(0.)
    """
    log_probabilities = logits.log_softmax(dim=-1)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=-1).mean()
    return torch.nn.functional.nll_loss(log_probabilities, labels) - penalty * entropy
