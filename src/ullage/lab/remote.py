"""A server on another machine, over the system's own ssh with its config (``--on HOST``).

One connection carries the output, the orders (on its stdin) and the server's port. The other side
(remote_supervisor.py, run by its python3) ends everything by itself when the connection is gone; so a run that
is killed here, or a network that breaks, leaves nothing behind there.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.lab import processes
from ullage.lab.endpoint import Endpoint
from ullage.lab.processes import Ended, Traces
from ullage.lab.pump import Show
from ullage.lab.server import GRACE_S, Server, Start

#: seconds between two signs of life, and to connect
BEAT_S, CONNECT_S = 5.0, 10
#: what ssh exits with when it has no connection
NO_CONNECTION = 255
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:\[\]-]{0,300}")
_OPTIONS = (
    "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR",
)  # fmt: skip


def checked_host(host: str) -> str:
    """``host``. Raises InputError for what ssh would take for something else."""
    if not _HOST.fullmatch(host):
        raise InputError(
            "is no host for ssh", where=f"--on {host[:60]}", hint="user@host, or a name of ssh's config"
        )
    return host


def command(host: str, forward: tuple[int, int] | None = None) -> list[str]:
    """The ssh command that runs the supervisor there; ``forward`` is (port here, port there)."""
    source = Path(__file__).with_name("remote_supervisor.py").read_bytes()
    packed = base64.b64encode(zlib.compress(source, 9)).decode()
    script = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
    tunnel = ["-L", f"127.0.0.1:{forward[0]}:127.0.0.1:{forward[1]}"] if forward else []
    return ["ssh", *_OPTIONS, *tunnel, "--", checked_host(host), f'exec python3 -c "{script}"']


def prefix(host: str) -> list[str]:
    """The words in front of a command that is to run there."""
    return ["ssh", *_OPTIONS, "--", checked_host(host)]


def told(**what: object) -> bytes:
    """The first line for the supervisor."""
    return base64.b64encode(json.dumps(what).encode()) + b"\n"


def free_port() -> int:
    """A port on loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RemoteServer(Server):
    """As Server, on another machine. ``command.env`` is what is added to that machine's own environment;
    ``command.cwd`` is a folder there."""

    def __init__(
        self, host: str, start: Start, run_id: str, log: Path, endpoint: Endpoint | None = None, *,
        show: Show | None = None, feed: Callable[[bytes], None] | None = None,
        keep: Callable[[Traces], None] | None = None, grace_s: float = GRACE_S,
    ) -> None:  # fmt: skip
        forward = (free_port(), endpoint.port) if endpoint and not endpoint.unix_socket else None
        here = replace(endpoint, host="127.0.0.1", port=forward[0]) if endpoint and forward else None
        ssh = Start(
            tuple(command(host, forward)), dict(os.environ), None, start.secrets, start.separate,
        )  # fmt: skip
        super().__init__(ssh, run_id, log, here, show=show, feed=feed, keep=keep, stdin=subprocess.PIPE)
        self.host = host
        self._first = told(
            id=run_id, argv=list(start.argv), env=dict(start.env), cwd=start.cwd, grace=grace_s,
            merge=not start.separate,
        )  # fmt: skip
        self._beaten = 0.0

    def start(self) -> None:
        super().start()
        self._order(self._first)

    def poll(self) -> int | None:
        if time.monotonic() - self._beaten >= BEAT_S:
            self._order(b".\n")
        return super().poll()

    def pass_on(self, number: int, *, everyone: bool = False) -> None:
        self._order(f"{signal.Signals(number).name.removeprefix('SIG')}\n".encode())

    def stop(self, grace_s: float = GRACE_S, first: int = signal.SIGTERM) -> Ended:
        """Have the other side end everything, then end the connection. ``left`` counts only what is here."""
        if self.poll() is None:
            self.pass_on(first)
            self.wait(grace_s + processes.KILL_S)
        return super().stop(2.0)

    def _order(self, line: bytes) -> None:
        self._beaten = time.monotonic()
        assert self._process is not None and self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()


def end(host: str, run_id: str) -> str | None:
    """End what a lost connection may have left at ``host``: what was ended, in words; None where it cannot be
    reached."""
    try:
        done = subprocess.run(
            command(host), input=told(id=run_id, end=True), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=CONNECT_S + 30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(rb"ended (\d+) left (\d+)", done.stdout)
    if found is None:
        return None
    count, left = int(found[1]), int(found[2])
    more = f", {left} could not be ended" if left else ""
    return f"{count} processes ended at {host}{more}"


def lost(code: int | None) -> bool:
    """True if ssh ended for want of a connection and not with the server's own code."""
    return code == NO_CONNECTION
