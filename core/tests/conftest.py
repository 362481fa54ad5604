from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from leyden import manager

sys.path.append(str(Path(__file__).parent))  # for the helper modules beside the tests

from plugin_maker import make_plugin

for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        # A job in the background ignores them, and so would the programs that tests start and interrupt.
        signal.signal(_number, _handler)


@pytest.fixture(autouse=True)
def own_plugins() -> Iterator[None]:
    """Every test finds the plugins anew, and leaves nothing of its own behind."""
    manager.manager.cache_clear()
    manager._warned.clear()
    yield
    manager.manager.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Installs a plugin for one test; see `plugin_maker.make_plugin`."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield partial(make_plugin, folder)
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("made_")]:
        del sys.modules[name]
