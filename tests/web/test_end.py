"""However the server of the page ends, its workers end with it, and its port is free."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from .conftest import wait_until

pytest.importorskip("uvicorn")


@contextmanager
def ended(server: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        server.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_worker_and_no_port_is_left(number: signal.Signals, tmp_path: Path) -> None:
    import urllib.request

    words = [sys.executable, "-m", "ullage", "ui", "--port", "0", "--root", str(tmp_path)]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as server,
        ended(server),
    ):
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())
        assert found is not None
        question = b'{"command": "vllm serve Qwen/Qwen3-8B", "gpu": "1x H100"}'
        with urllib.request.urlopen(f"{found[0]}/api/plan", question, timeout=30) as reply:
            assert b'"starts"' in reply.read()
        workers = psutil.Process(server.pid).children(recursive=True)
        assert workers
        server.send_signal(number)
        server.wait(20)
    wait_until(
        lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    )
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", int(found[1])))


def test_the_folder_of_a_killed_server_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ullage.web.files import Files

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone, other = tmp_path / "ullage-ui-999999999-abc", tmp_path / "ullage-ui-1-abc"
    for folder in (gone, other):
        folder.mkdir()
    files = Files([])
    assert not gone.exists()
    assert other.exists()
    files.close()
    assert [path.name for path in tmp_path.iterdir()] == [other.name]
