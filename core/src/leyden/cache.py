"""Results that are expensive, computed once on a machine: folders named after what they depend on.

A claim's cells run in several processes at the same time, and each of them needs the same trained target or
the same sampled text. `built_once` lets one of them build it while the others wait, and a later run finds it.
Nothing here is ever needed: whoever deletes the folder waits once more.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

if TYPE_CHECKING:
    from torch import Tensor, nn


def cache_folder() -> Path:
    """Where results are kept between runs.

    Returns:
        The folder that the environment variable ``LEYDEN_CACHE`` names; else ``leyden`` in the user's folder
        for caches (``XDG_CACHE_HOME``, by default ``~/.cache``). It need not exist.
    """
    named = os.environ.get("LEYDEN_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "leyden"


def built_once(
    name: str, identity: Mapping[str, Any], build: Callable[[Path], None], *, folder: Path | None = None
) -> Path:
    """A folder that is built when it is first asked for, by one process while others wait.

    Args:
        name: what it holds, a few letters that may stand in a file's name, such as ``"lk_losses-target"``.
        identity: everything that the content depends on, as JSON can write it: settings, seeds, fingerprints,
            versions. Another identity is another folder.
        build: fills the empty folder that it is given. What it leaves when it raises, or when its process
            dies, is thrown away.
        folder: where to look and build; `cache_folder` by default.

    Returns:
        The folder. It is whole: it got its name after ``build`` returned. ``identity.json`` in it says what
        it depends on.

    Raises:
        OSError: if the folder cannot be written.

    >>> with tempfile.TemporaryDirectory() as home:
    ...     build = lambda place: (place / "answer").write_text("42")
    ...     built_once("sum", {"of": [40, 2]}, build, folder=Path(home)).joinpath("answer").read_text()
    '42'
    """
    text = json.dumps(identity, sort_keys=True, indent=1)
    parent = cache_folder() if folder is None else folder
    place = parent / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if place.is_dir():
        return place
    parent.mkdir(parents=True, exist_ok=True)
    with FileLock(parent / f".{place.name}.lock"):
        if place.is_dir():
            return place
        for left in parent.glob(f".{place.name}.draft-*"):
            shutil.rmtree(left, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.draft-", dir=parent))
        try:
            build(draft)
            (draft / "identity.json").write_text(text, encoding="utf-8")
            draft.chmod(0o755)
            draft.rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return place


def tensors_fingerprint(tensors: Mapping[str, Tensor] | nn.Module) -> str:
    """The sha256 of named tensors: of each its name, dtype, shape and bytes.

    Args:
        tensors: the tensors by name, or a module, of which the parameters and persistent buffers count.

    Returns:
        64 hexadecimal digits, the same in every process and whatever the order of the names.
    """
    import torch

    named = tensors if isinstance(tensors, Mapping) else tensors.state_dict()
    digest = hashlib.sha256()
    for name, tensor in sorted(named.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(memoryview(flat.view(torch.uint8).numpy()))
    return digest.hexdigest()
