"""An arm's configuration on its way to the workers, and the values of a setting in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from leyden.claims import Scalar
from leyden.files import write_atomic


@dataclass(frozen=True, kw_only=True)
class ArmFile:
    """What a worker needs of an arm; it travels as a file, since a cell holds only plain values.

    Attributes:
        document: the configuration.
        keys: dotted keys of the configuration by short name.
        files: where the configuration was read from; errors name them.
    """

    document: Mapping[str, Any]
    keys: Mapping[str, str]
    files: tuple[str, ...]

    def configured(self, setting: Mapping[str, Scalar]) -> dict[str, Any]:
        """The configuration at a setting."""
        return configured(self.document, self.keys, setting)

    def store(self, folder: Path) -> str:
        """Write it to a file named after its content.

        Returns:
            The file's path.
        """
        text = yaml.safe_dump({**asdict(self), "files": list(self.files)}, sort_keys=False)
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
        return str(write_atomic(folder / name, text))

    @classmethod
    def load(cls, path: str) -> ArmFile:
        """Read what `store` wrote."""
        return cls(**yaml.safe_load(Path(path).read_text()))


def configured(
    document: Mapping[str, Any], keys: Mapping[str, str], setting: Mapping[str, Scalar]
) -> dict[str, Any]:
    """A configuration with the values of a setting in it.

    Args:
        document: the configuration.
        keys: the dotted key of each short name; a number in it counts the items of a list.
        setting: values by short name.
    """
    changed: Any = document
    for name, value in setting.items():
        changed = _replaced(changed, keys[name].split("."), value)
    return dict(changed)


def _replaced(node: Any, parts: Sequence[str], value: Scalar) -> Any:
    if not parts:
        return value
    if isinstance(node, list):
        place = int(parts[0])
        return [*node[:place], _replaced(node[place], parts[1:], value), *node[place + 1 :]]
    if isinstance(node, str):
        node = {"class_path": node}
    below = dict(node or {})
    key = next((key for key in below if str(key) == parts[0]), parts[0])  # a number, perhaps
    return {**below, key: _replaced(below.get(key), parts[1:], value)}
