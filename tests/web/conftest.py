"""A server of the page on a free port, and a browser: Debian's Chromium, or whatever playwright has.

They end with this folder's tests: while playwright is open, nothing else can run an event loop in its thread.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.campaign.world import World

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A small campaign of the stub server that has run: an approach that is slower, one refused, one crashed."""
    pytest.importorskip("optuna")
    made = World(tmp_path_factory.mktemp("world"), more="repeats: 3", latency=0.005)
    code, _, said = made.run("run", made.file.name, timeout=120)
    assert code == 0, said
    return made


@pytest.fixture(scope="package")
def site(world: World) -> Iterator[str]:
    """The address of a running ``ullage ui`` that may read the repository's founding logs and the campaign."""
    pytest.importorskip("starlette")
    roots = ["--root", str(ROOT / "examples" / "founding"), "--root", str(world.folder)]
    words = [sys.executable, "-m", "ullage", "ui", "--port", "0", *roots]
    environment = {**os.environ, "ULLAGE_HOME": str(world.home)}
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        yield found[0].rstrip("/")
    finally:
        server.terminate()
        server.wait(20)
        server.stdout.close() if server.stdout else None


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test for any error of a script or request to another host."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    made = context.new_page()
    faults: list[str] = []
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on(
        "request",
        lambda request: (
            faults.append(request.url) if not re.match(r"(http://127\.0\.0\.1|data:)", request.url) else None
        ),
    )
    yield made
    context.close()
    assert faults == []


def wait_until(true: Any, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)
