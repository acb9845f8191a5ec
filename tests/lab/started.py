"""``ullage`` started as a user starts it, with the stub as its server; and how to see that nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.lab import stub_server
from ullage.lab import proc_table
from ullage.lab.records import Record, Store

ROOT = Path(__file__).parents[2]
FOUNDING = ROOT / "examples" / "founding"
WORKED, CRASHED = FOUNDING / "baseline.log", FOUNDING / "fewer-channels.log"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(true: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    """What ``true`` returns once it is true; fails after ``seconds``."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if found := true():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what or true}")


class Launched:
    """A store of its own, the stub's executables, and one ullage at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.store = Store(self.home / "runs")
        self.bin = stub_server.install(folder / "bin")
        self.pids_file = folder / "pids"
        self.port = free_port()
        self.env = {
            **os.environ, "ULLAGE_HOME": str(self.home), "STUB_PIDS": str(self.pids_file),
            "PYTHONPATH": "", "TERM": "dumb",
        }  # fmt: skip
        self.err = folder / "err"
        self.started: list[subprocess.Popen[bytes]] = []

    def words(self, *options: str, launch: tuple[str, ...] | None = None) -> list[str]:
        command = launch or (str(self.bin / "vllm"), "serve", "stub/model", "--port", str(self.port))
        return [sys.executable, "-m", "ullage.cli", "run", *options, "--", *command]

    def start(
        self,
        *options: str,
        launch: tuple[str, ...] | None = None,
        stdin: Any = subprocess.DEVNULL,
        **stub: object,
    ) -> subprocess.Popen[bytes]:
        env = self.env | {f"STUB_{name.upper()}": str(value) for name, value in stub.items()}
        with self.err.open("wb") as err:
            process = subprocess.Popen(
                self.words(*options, launch=launch), env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=err,
                cwd=self.folder,
            )  # fmt: skip
        self.started.append(process)
        return process

    def run(
        self, *options: str, launch: tuple[str, ...] | None = None, **stub: object
    ) -> tuple[int, bytes, str]:
        """(exit code, stdout, stderr) of a run that ends by itself."""
        process = self.start(*options, launch=launch, **stub)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out, self.said()

    def said(self) -> str:
        text = self.err.read_text(errors="replace")
        assert "Traceback (most recent call last):\n  File" not in text or "ullage/cli" not in text, text
        assert "fault of ullage" not in text, text
        return text

    def wait_said(self, words: str, seconds: float = 20.0) -> str:
        return str(until(lambda: words in self.said() and self.said(), seconds, f"{words!r} on stderr"))

    def record(self) -> Record:
        found = self.store.records()
        assert found, "no record"
        return found[-1][1]

    def pids(self) -> list[int]:
        return [int(text) for text in self.pids_file.read_text().split()] if self.pids_file.exists() else []

    def left(self) -> list[int]:
        """Processes of the stub that are alive."""
        rows = proc_table.table()
        return [pid for pid in self.pids() if pid in rows]

    def nothing_left(self, seconds: float = 3.0) -> None:
        assert self.pids(), "the stub was never started"
        until(lambda: not self.left(), seconds, f"{self.left()} to end")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))

    def clean(self) -> None:
        """End what a failed test has left."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def launched(folder: Path) -> Iterator[Launched]:
    found = Launched(folder)
    try:
        yield found
    finally:
        found.clean()


def ullage(home: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of another command."""
    done = subprocess.run(
        [sys.executable, "-m", "ullage.cli", *words], env={**os.environ, "ULLAGE_HOME": str(home), **(env or {})},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def decoded(text: str) -> Any:
    return msgspec.json.decode(text)
