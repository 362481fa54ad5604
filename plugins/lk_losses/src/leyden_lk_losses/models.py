"""How decoder and training see a language model: tokens in, logits and hidden states out, with a cache.

`wrap` takes a module of yours, a causal language model of Hugging Face's ``transformers``, or a path to a
folder of one. A cache that rejected tokens are cut off from is what makes speculative decoding fast
(Section 3, step 2: the target reads only what it has not read).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Logits = Float[Tensor, "batch time vocab"]
Hidden = Float[Tensor, "batch time hidden"]
Tokens = Int[Tensor, "batch time"]


class CausalModel(ABC):
    """A causal language model as the rest of the package uses it.

    Attributes:
        module: the module behind it.
        vocab: how many tokens its logits are of.
        hidden_size: size of its last hidden states.
        max_length: longest text that it reads; None: any.
    """

    module: nn.Module
    max_length: int | None

    @property
    @abstractmethod
    def vocab(self) -> int:
        """How many tokens the logits are of."""

    @property
    @abstractmethod
    def hidden_size(self) -> int:
        """Size of the last hidden states."""

    @abstractmethod
    def logits(self, tokens: Tokens) -> Logits:
        """Logits of the next token at every position."""

    @abstractmethod
    def observe(self, tokens: Tokens) -> tuple[Logits, Hidden]:
        """Logits and the last hidden states, after the final norm, in one pass."""

    def hidden(self, tokens: Tokens) -> Hidden:
        """The last hidden states, after the final norm."""
        return self.observe(tokens)[1]

    @abstractmethod
    def start(self, batch: int = 1) -> Any:
        """An empty cache for so many texts."""

    @abstractmethod
    def step(
        self, tokens: Tokens, cache: Any, last: int | None = None, *, hidden: bool = True
    ) -> tuple[Logits, Hidden | None]:
        """Read on after what the cache holds, which takes what was computed.

        Args:
            tokens: the new tokens, int64 of shape ``(batch, new)``.
            cache: from `start`.
            last: for how many of the last tokens to return something; None: all.
            hidden: whether hidden states are wanted.

        Returns:
            Logits and hidden states of those; None in place of hidden states that are not wanted.
        """

    @abstractmethod
    def crop(self, cache: Any, length: int) -> None:
        """Forget all but the first ``length`` tokens of the cache."""

    @property
    def device(self) -> torch.device:
        """Where its parameters are; the CPU where it has none."""
        return next((parameter.device for parameter in self.module.parameters()), torch.device("cpu"))


def wrap(model: nn.Module | CausalModel | str | Path) -> CausalModel:
    """See a model as a `CausalModel` (reconstructed).

    Args:
        model: one of

            - a module from int64 tokens of shape ``(batch, time)`` to logits of shape
              ``(batch, time, vocab)``, or to an object that has them as ``logits``. It is run anew over the
              whole text at every step; ``max_length``, where it has one, is kept to. Its hidden states are
              what enters the `torch.nn.Linear` whose outputs its logits are, or else the last one with as
              many outputs as there are tokens and another number of inputs; a module of neither kind says
              them in a method ``observe(tokens) -> (logits, hidden)``.
            - a module that also has ``observe``, ``start``, ``step`` and ``crop``, ``vocab``,
              ``hidden_size`` and ``max_length``, as `TinyDraftGPT` has: its own cache is used.
            - a causal language model of ``transformers``, which uses the cache there, or the path of a folder
              that holds one.

    Returns:
        The model, wrapped; a `CausalModel` comes back as it is.

    Raises:
        ValueError: if it is none of these, or of ``transformers`` but no causal language model.

    >>> from leyden_lk_losses.drafts import TinyDraftGPT
    >>> wrap(TinyDraftGPT(16)).vocab
    16
    """
    if isinstance(model, CausalModel):
        return model
    if isinstance(model, str | Path):
        model = read_folder(model)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module or a path, got {type(model).__name__}")
    if all(hasattr(model, name) for name in ("observe", "start", "step", "crop")):
        return OwnCache(model)
    if hasattr(model, "config") and hasattr(model, "get_output_embeddings"):
        return HuggingFace(model)
    return Plain(model)


def read_folder(path: str | Path) -> nn.Module:
    """Read a causal language model of ``transformers`` from a folder.

    Args:
        path: the folder, as ``save_pretrained`` writes it.

    Returns:
        The model, in evaluation mode.

    Raises:
        ValueError: if there is no such folder, or ``transformers`` is not installed.
    """
    if not (Path(path) / "config.json").is_file():
        raise ValueError(f"model: expected a folder with a config.json, there is none in '{path}'")
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ValueError(
            f"model: '{path}' needs transformers; pip install leyden-lk-losses[transformers]"
        ) from error
    model: nn.Module = AutoModelForCausalLM.from_pretrained(str(path), local_files_only=True)
    return model.eval()


class OwnCache(CausalModel):
    """A module that brings its cache, such as `TinyDraftGPT`."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.max_length = module.max_length

    @property
    def vocab(self) -> int:
        """How many tokens the logits are of."""
        outputs = getattr(getattr(self.module, "head", None), "out_features", None)
        return int(outputs if outputs is not None else self.module.vocab)  # type: ignore[arg-type]

    @property
    def hidden_size(self) -> int:
        """Size of the last hidden states."""
        return int(self.module.hidden_size)  # type: ignore[arg-type]

    def logits(self, tokens: Tokens) -> Logits:
        """Logits of the next token at every position."""
        logits: Tensor = self.module(tokens)
        return logits

    def observe(self, tokens: Tokens) -> tuple[Logits, Hidden]:
        """Logits and hidden states in one pass."""
        observed: tuple[Tensor, Tensor] = self.module.observe(tokens)  # type: ignore[operator]
        return observed

    def start(self, batch: int = 1) -> Any:
        """The module's empty cache."""
        return self.module.start(batch)  # type: ignore[operator]

    def step(
        self, tokens: Tokens, cache: Any, last: int | None = None, *, hidden: bool = True
    ) -> tuple[Logits, Hidden | None]:
        """The module's step."""
        found: tuple[Tensor, Tensor] = self.module.step(tokens, cache, last)  # type: ignore[operator]
        return found

    def crop(self, cache: Any, length: int) -> None:
        """The module's crop."""
        self.module.crop(cache, length)  # type: ignore[operator]


class _Text:
    """The cache of a model that has none: the text."""

    def __init__(self) -> None:
        self.tokens: Tensor | None = None


class Plain(CausalModel):
    """A module without a cache, run anew over the whole text at every step."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        length = getattr(module, "max_length", None)
        self.max_length = length if isinstance(length, int) else None

    @property
    def vocab(self) -> int:
        """How many tokens the logits are of, found by a pass over one token."""
        return self._end[0]

    @cached_property
    def hidden_size(self) -> int:
        """Size of the last hidden states, found by a pass over one token."""
        with torch.no_grad(), evaluating(self.module):
            return self.observe(self._one_token)[1].shape[-1]

    @property
    def _readout(self) -> nn.Linear:
        readout = self._end[1]
        if readout is None:
            raise ValueError(
                f"model: {type(self.module).__name__} has no hidden states to read: no torch.nn.Linear of it "
                "gives its logits; give it a method observe(tokens) -> (logits, hidden)"
            )
        return readout

    @cached_property
    def _end(self) -> tuple[int, nn.Linear | None]:
        """How many tokens the logits are of, and the layer whose outputs they are."""
        made: list[tuple[nn.Linear, Tensor]] = []
        layers = [part for part in self.module.modules() if isinstance(part, nn.Linear)]
        handles = [
            layer.register_forward_hook(lambda layer, _, output: made.append((layer, output)))
            for layer in layers
        ]
        try:
            with torch.no_grad(), evaluating(self.module):
                logits = self.logits(self._one_token)
        finally:
            for handle in handles:
                handle.remove()
        # By its size alone a layer inside may be taken for it.
        fitting = [(layer, output) for layer, output in reversed(made) if output.shape == logits.shape]
        same = [layer for layer, output in fitting if _same(output.to(logits.dtype), logits)]
        # Logits may have been capped, scaled or masked behind it.
        changed = [layer for layer, _ in fitting if layer.in_features != layer.out_features]
        return logits.shape[-1], next(iter(same + changed), None)

    @property
    def _one_token(self) -> Tensor:
        return torch.zeros(1, 1, dtype=torch.long, device=self.device)

    def logits(self, tokens: Tokens) -> Logits:
        """Logits of the next token at every position."""
        outputs = self.module(tokens)
        logits: Tensor = outputs if isinstance(outputs, Tensor) else outputs.logits
        return logits

    def observe(self, tokens: Tokens) -> tuple[Logits, Hidden]:
        """Logits and hidden states in one pass."""
        if (own := getattr(self.module, "observe", None)) is not None:
            observed: tuple[Tensor, Tensor] = own(tokens)
            return observed
        with inputs_of(self._readout) as seen:
            logits = self.logits(tokens)
        return logits, seen[-1]

    def start(self, batch: int = 1) -> _Text:
        """No text."""
        return _Text()

    def step(
        self, tokens: Tokens, cache: _Text, last: int | None = None, *, hidden: bool = True
    ) -> tuple[Logits, Hidden | None]:
        """A pass over the whole text."""
        cache.tokens = tokens if cache.tokens is None else torch.cat([cache.tokens, tokens], dim=1)
        wanted = tokens.shape[1] if last is None else last
        if not hidden:
            return self.logits(cache.tokens)[:, -wanted:], None
        logits, states = self.observe(cache.tokens)
        return logits[:, -wanted:], states[:, -wanted:]

    def crop(self, cache: _Text, length: int) -> None:
        """Forget the end of the text."""
        if cache.tokens is not None:
            cache.tokens = cache.tokens[:, :length]


class _Held:
    """A cache of ``transformers`` and how many tokens it holds."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.length = 0


class HuggingFace(CausalModel):
    """A causal language model of ``transformers`` with its dynamic cache.

    Hidden states are what enters the output embeddings, so that they are right where logits are scaled or
    capped behind them.
    """

    def __init__(self, module: Any) -> None:
        config = module.config
        if getattr(config, "is_encoder_decoder", False) or module.get_output_embeddings() is None:
            raise ValueError(f"model: {type(module).__name__} is no causal language model")
        self.module = module
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        length = getattr(text, "max_position_embeddings", None)
        self.max_length = length if isinstance(length, int) and length > 0 else None
        accepted = inspect.signature(module.forward).parameters
        # The argument got this name in transformers 5.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._keeps = "logits_to_keep" in accepted

    @property
    def _readout(self) -> Any:
        return self.module.get_output_embeddings()  # type: ignore[operator]

    @property
    def vocab(self) -> int:
        """How many tokens the logits are of."""
        return int(self._readout.weight.shape[0])

    @property
    def hidden_size(self) -> int:
        """Size of what enters the output embeddings."""
        return int(self._readout.weight.shape[1])

    def logits(self, tokens: Tokens) -> Logits:
        """Logits of the next token at every position."""
        logits: Tensor = self.module(tokens, use_cache=False).logits
        return logits

    def observe(self, tokens: Tokens) -> tuple[Logits, Hidden]:
        """Logits and hidden states in one pass."""
        with inputs_of(self._readout) as seen:
            logits = self.logits(tokens)
        return logits, seen[-1]

    def start(self, batch: int = 1) -> _Held:
        """An empty dynamic cache, which can be cut after a rejection also where windows slide."""
        from transformers import DynamicCache

        config: Any = self.module.config
        try:
            cache = DynamicCache(config=config)
        except TypeError:  # before transformers 4.56
            cache = DynamicCache()
        held = _Held(cache)
        if hasattr(cache, "activate_past_recording"):
            held.cache.activate_past_recording()
        return held

    def step(
        self, tokens: Tokens, cache: _Held, last: int | None = None, *, hidden: bool = True
    ) -> tuple[Logits, Hidden | None]:
        """A pass over the new tokens."""
        given: dict[str, Any] = {self._cache_name: cache.cache, "use_cache": True}
        if last is not None and self._keeps:
            given["logits_to_keep"] = last
        wanted = tokens.shape[1] if last is None else last
        cache.length += tokens.shape[1]
        if not hidden:
            return self.module(tokens, **given).logits[:, -wanted:], None
        with inputs_of(self._readout) as seen:
            logits: Tensor = self.module(tokens, **given).logits
        return logits[:, -wanted:], seen[-1][:, -wanted:]

    def crop(self, cache: _Held, length: int) -> None:
        """Cut the cache.

        Raises:
            ValueError: if it cannot be cut, as that of a recurrent layer.
        """
        surplus, cache.length = cache.length - length, length
        if not getattr(cache.cache, "is_croppable", True):
            raise ValueError(
                f"model: the cache of {type(self.module).__name__} cannot forget rejected tokens, so it "
                "cannot be decoded speculatively"
            )
        # Also for none: a sliding window then drops what it kept in case. A negative number is how many to
        # remove in every version; a positive one was a length once.
        cache.cache.crop(-surplus)


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


@contextmanager
def inputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what enters a layer while the context lasts.

    Args:
        layer: the layer.

    Yields:
        A list that gets its first argument at every call.
    """
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put modules into evaluation mode while the context lasts, each submodule back into its own after.

    Args:
        *modules: the modules.
    """
    training = [part for module in modules for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
