"""A process that trained together with others leaves their group before it ends."""

from __future__ import annotations

import atexit

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import distributed


class LeaveProcessGroup(Callback):
    """Leaves the process group at the end of a process whose training went well.

    A thread of gloo that still holds a tensor while the interpreter shuts down now and then aborts the
    process (SIGABRT, "terminate called without an active exception"), and with it a training that is done.
    Lightning leaves the group in time for NCCL alone. After an error nothing is done: others may wait for
    this process in a reduction, and leaving would wait for them.
    """

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ask for it, once a process."""
        if distributed.is_available() and distributed.is_initialized():
            atexit.unregister(_leave)
            atexit.register(_leave)


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
