"""The losses written down a second time, from their definitions, without any care for memory or range."""

from __future__ import annotations

import torch
from torch import Tensor


def both(target: Tensor, draft: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """p and q."""
    return (target / temperature).softmax(-1), (draft / temperature).softmax(-1)


def kl(target: Tensor, draft: Tensor, temperature: float = 1.0) -> Tensor:
    p, q = both(target, draft, temperature)
    return (p * (p / q).log()).sum(-1)


def alpha(target: Tensor, draft: Tensor, temperature: float = 1.0) -> Tensor:
    p, q = both(target, draft, temperature)
    return 1 - (p - q).abs().sum(-1) / 2


def kl_gradient(target: Tensor, draft: Tensor) -> Tensor:
    p, q = both(target, draft)
    return q - p


def tv_gradient(target: Tensor, draft: Tensor) -> Tensor:
    """½ q ⊙ (s - E_q[s]) with s = sign(q - p)."""
    p, q = both(target, draft)
    s = (q - p).sign()
    return q * (s - (q * s).sum(-1, keepdim=True)) / 2


class LivingMemory(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """The most bytes that tensors made under it held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._held: dict[int, tuple[object, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        from torch.multiprocessing.reductions import StorageWeakRef

        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._held or self._held[storage._cdata][0].expired():  # type: ignore[attr-defined]
                    given = {
                        one.untyped_storage()._cdata
                        for one in torch.utils._pytree.tree_leaves((args, kwargs))
                        if isinstance(one, Tensor)
                    }
                    if storage._cdata not in given:
                        self._held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        living = {key: one for key, one in self._held.items() if not one[0].expired()}  # type: ignore[attr-defined]
        self._held = living
        self.peak = max(self.peak, sum(size for _, size in living.values()))
        return result
