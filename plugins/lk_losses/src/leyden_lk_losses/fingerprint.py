"""What a target's answers depend on, for folders that are named after it."""

from __future__ import annotations

import json

from leyden.cache import tensors_fingerprint
from torch import nn

_PLAIN = (bool, int, float, str, tuple, type(None))
"""Types of the attributes that a module's settings are."""


def model_identity(module: nn.Module) -> dict[str, str]:
    """What decides what a model says, for `leyden.cache.built_once`.

    Equal weights may belong to different models: the number of attention heads, an epsilon or a base of
    rotary positions is in no tensor. So of every submodule its class and its plain attributes count too, and
    of the whole its other buffers and, if it is of ``transformers``, its configuration. What a ``forward``
    reads from elsewhere (a global, a list) does not.

    Args:
        module: the model.

    Returns:
        The fingerprint of its weights and a description, the same in every process and whatever the mode.
    """
    parts = {
        name: {
            "class": f"{type(part).__module__}.{type(part).__qualname__}",
            **{key: repr(value) for key, value in vars(part).items() if _is_setting(key, value)},
        }
        for name, part in module.named_modules()
    }
    told = getattr(getattr(module, "config", None), "to_json_string", None)
    return {
        "weights": tensors_fingerprint(module),
        "buffers": tensors_fingerprint(dict(module.named_buffers())),
        "parts": json.dumps(parts, sort_keys=True),
        "configuration": told() if told else "",
    }


def _is_setting(key: str, value: object) -> bool:
    return key != "training" and not key.startswith("_") and isinstance(value, _PLAIN)
