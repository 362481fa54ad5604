"""What a shipped configuration owes: it runs as it is."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from leyden.testing.fitting import quiet

RUNS_AS_IT_IS = "LeydenCLI parses it, and fits and tests it with fast_dev_run."


def runs_as_it_is(path: Path) -> Iterator[str]:
    """Run a YAML through `leyden.lightning.LeydenCLI` in this process, in an empty working directory.

    Args:
        path: the file.

    Yields:
        Why it does not run.
    """
    from lightning.pytorch.utilities.model_helpers import is_overridden

    from leyden.lightning import LeydenCLI

    short = ["--trainer.fast_dev_run=true", "--trainer.logger=false"]
    silent = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), quiet(), _sys_path_kept():
        try:
            cli = LeydenCLI(args=["fit", "--config", str(path), *short, *silent], save_config_callback=None)
            if is_overridden("test_step", cli.model):
                cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)
        except (Exception, SystemExit) as error:
            yield f"fit with fast_dev_run: {type(error).__name__}: {error}"


@contextlib.contextmanager
def _sys_path_kept() -> Iterator[None]:
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
