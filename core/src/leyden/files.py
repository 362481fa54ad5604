"""Files that are either whole or absent, whatever stops the process that writes them."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write a file so that a reader sees the old content or the new one, never a part.

    Args:
        path: where; its folder is created.
        content: text (written as UTF-8) or bytes.

    Returns:
        The path.

    Raises:
        OSError: if it cannot be written (read-only folder, full disk); what stood there before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with draft.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    return path
