"""Ends a worker and all it started once the process that started the worker is gone.

Run by each worker as ``python -m leyden.guard WORKER PARENT``. It is a process of its own because a thread of
the worker would wait for as long as a compiled function holds the interpreter.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import psutil

PATIENCE = 0.2
"""Seconds between two looks at the parent."""


def guard(worker: int, parent: int) -> None:
    """Wait until the worker or its parent is gone, then kill the worker's process group.

    Args:
        worker: process that called this one; leader of its process group.
        parent: process that started the worker.
    """
    while os.getppid() == worker and _parent_of(worker) == parent:
        time.sleep(PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)


def _parent_of(process: int) -> int | None:
    try:
        return int(psutil.Process(process).ppid())
    except psutil.NoSuchProcess:
        return None


if __name__ == "__main__":
    guard(int(sys.argv[1]), int(sys.argv[2]))
