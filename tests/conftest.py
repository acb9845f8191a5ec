"""No test reaches the network, or finds what the person who runs it has in a cache."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

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

# CI tries the same examples every time, so that a red run is the change's own; elsewhere hypothesis explores
settings.register_profile("here", deadline=None)  # timings never decide a test
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
