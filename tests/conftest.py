"""No test reaches the network, or finds what the person who runs it has in a cache. What takes longest comes first
(`--dist loadfile` keeps a file on one worker, and so what is made once for its tests)."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

_NOTHING = Path(tempfile.gettempdir()) / "ullage-tests-no-such-folder"
os.environ["ULLAGE_OFFLINE"] = "1"
os.environ["HF_HOME"] = str(_NOTHING / "huggingface")
_HOME = tempfile.mkdtemp(
    prefix="ullage-tests-home-"
)  # runs that a test keeps, also in processes that it starts
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ["ULLAGE_HOME"] = _HOME
os.environ["XDG_CACHE_HOME"] = str(_NOTHING / "cache")
for _name in (
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_TOKEN_PATH",
    "HF_ENDPOINT",
):
    os.environ.pop(_name, None)

# who starts the tests in the background or under nohup has these ignored, and every process started here would too
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

_HERE = Path(__file__).parent
#: what takes longest, the longest first: no worker is left alone with it at the end
_FIRST = ("engine", "e2e", "lab", "laws", "web", "docs")


def _rank(item: pytest.Item) -> int:
    folder = "engine" if item.get_closest_marker("engine") else item.path.relative_to(_HERE).parts[0]
    return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


# CI tries the same examples every time, so that a red run is the change's own; elsewhere hypothesis explores
settings.register_profile("here", deadline=None)  # timings never decide a test
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
