"""A real client of the SDK against a real ``python -m ullage mcp``, over stdio and over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp", reason="the extra ullage[mcp] is not installed")

ROOT = Path(__file__).parents[2]
FOUNDING = ROOT / "examples" / "founding"
LAUNCH = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static"
GPU = "8x RTX PRO 6000"


class Served:
    """How a server is started, with records of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.env = {**os.environ, "ULLAGE_HOME": str(self.home)}

    def stdio(
        self, body: Callable[[Any], Awaitable[None]], *options: str, mode: str = "auto", **env: str
    ) -> None:
        """Run ``body`` with a connected client; no process of the server's is left afterwards."""
        import anyio

        from mcp import Client, StdioServerParameters

        words = ["-m", "ullage", "mcp", "--root", str(FOUNDING), "--root", str(self.logs), *options]
        parameters = StdioServerParameters(
            command=sys.executable, args=words, env={**self.env, **env}, cwd=self.folder
        )
        before = set(psutil.Process().children(recursive=True))  # of other tests: a browser, a page's server
        started: list[psutil.Process] = []

        async def main() -> None:
            async with Client(parameters, mode=mode) as client:  # type: ignore[arg-type]
                await body(client)
                started.extend(set(psutil.Process().children(recursive=True)) - before)

        anyio.run(main)
        assert started, "no server ran"
        gone(started)

    @contextmanager
    def http(self, *options: str) -> Iterator[tuple[str, str | None]]:
        """(the address, the token if there is one) of a server over HTTP."""
        words = ["-m", "ullage", "mcp", "--http", "--port", "0", "--root", str(FOUNDING), *options]
        server = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env,
            cwd=self.folder,
        )  # fmt: skip
        assert server.stdout is not None and server.stderr is not None
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            token = None
            if "0.0.0.0" in found[0] or "--allow-run" in options:
                token = server.stdout.readline().rpartition(" ")[2].strip()
            yield found[0].replace("0.0.0.0", "127.0.0.1"), token
            started = psutil.Process(server.pid).children(recursive=True)
            server.send_signal(signal.SIGINT)
            server.wait(20)
            gone(started)
            assert "Traceback" not in server.stderr.read()
        finally:
            server.kill()
            server.wait(10)
            server.stdout.close()
            server.stderr.close()


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(started: list[psutil.Process], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while left := [process for process in started if alive(process)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def text(result: Any) -> str:
    return str(result.content[0].text)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)
