"""One server: started in a process group of its own, heard, asked whether it is ready, ended for good."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ullage.core.errors import InputError
from ullage.lab import endpoint as http
from ullage.lab import processes
from ullage.lab.endpoint import Endpoint
from ullage.lab.proc_table import Started
from ullage.lab.processes import Ended, Traces
from ullage.lab.pump import Pump, Show

#: how waiting for a server ended
Waited = Literal["ready", "exited", "timeout", "stopped"]
#: seconds between two questions, and between two looks at the process tree
ASK_S = 0.2
LOOK_S = 1.0
GRACE_S = 30.0


class Start(Struct, frozen=True):
    """What is started. ``env`` is the whole environment; the run's marker is added to it. ``secrets`` are
    values that must not reach the log file. ``separate`` keeps stdout and stderr apart for who shows them."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    secrets: tuple[str, ...] = ()
    separate: bool = False


class Server:
    """A server and everything that it starts.

    ::

        server = Server(Start(argv, env), run_id, folder.log, endpoint, keep=folder.keep_traces)
        server.start()                       # raises InputError where there is no such program
        if server.wait_ready(600) == "ready" and server.answers() is None: ...
        ended = server.stop()                # nothing of it is left, or ended.left says what

    ``show(stream, data)`` is given its output unchanged, ``feed(data)`` what the log gets; both are called from
    the pump's thread. ``keep(traces)`` is called before the start and whenever another process was seen, so
    that a later ullage finds them if this one is killed. Used from one thread.
    """

    def __init__(
        self, start: Start, run_id: str, log: Path, endpoint: Endpoint | None = None, *,
        show: Show | None = None, feed: Callable[[bytes], None] | None = None,
        keep: Callable[[Traces], None] | None = None, stdin: int | None = subprocess.DEVNULL,
    ) -> None:  # fmt: skip
        self.command = start
        self.run_id = run_id
        self.endpoint = endpoint
        self.traces: Traces | None = None
        self.started_at = 0.0
        self._log, self._show, self._feed, self._keep, self._stdin = log, show, feed, keep, stdin
        self._pump: Pump | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._looked = 0.0
        self.look_every_s = LOOK_S
        self._taken = False  # somebody else listened on the port before the start

    def start(self) -> None:
        """Start it. Raises InputError where the program cannot be started or the log cannot be written."""
        try:
            pump = Pump(self._log, self.command.secrets, self._show, self._feed)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(self._log)) from error
        out = pump.pipe(1)
        err = pump.pipe(2) if self.command.separate else out
        ports = (self.endpoint.port,) if self.endpoint and not self.endpoint.unix_socket else ()
        self._taken = any(not processes.port_free(port) for port in ports)
        self._note(processes.traces(self.run_id, pump.inodes, () if self._taken else ports))
        try:
            self._process = subprocess.Popen(
                self.command.argv, stdin=self._stdin, stdout=out, stderr=err, cwd=self.command.cwd,
                env=processes.environment(self.run_id, dict(self.command.env)), process_group=0,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            pump.stop(0)
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot be started: {reason}", where=self.command.argv[0][:200]) from error
        finally:
            for handle in {out, err}:
                os.close(handle)
        self.started_at = time.time()
        self._pump = pump
        assert self.traces is not None
        self._note(processes.with_leader(self.traces, self._process.pid))
        pump.start()

    @property
    def pid(self) -> int:
        """Its first process, which leads the process group."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def silent_s(self) -> float:
        """Seconds since it printed something."""
        return time.monotonic() - self._pump.last if self._pump else 0.0

    @property
    def log_fault(self) -> str | None:
        """Why the log file ends early, if it does."""
        return self._pump.fault if self._pump else None

    @property
    def shares_port(self) -> bool:
        """True if somebody else listened on its port before it was started."""
        return self._taken

    def poll(self) -> int | None:
        """Its exit code once it has ended (negative: the signal that ended it), else None. Keeps the traces."""
        assert self._process is not None, "not started"
        code = self._process.poll()
        if code is None and time.monotonic() - self._looked >= self.look_every_s:
            self.look()
        return code

    def look(self) -> None:
        """Note which processes are in its tree now."""
        self._looked = time.monotonic()
        if self.traces is not None:
            self._note(processes.observe(self.traces))

    def found(self) -> list[Started]:
        """Its processes that are alive now."""
        return processes.find(self.traces) if self.traces is not None else []

    def stopped(self) -> bool:
        """True if its first process was stopped (Ctrl-Z) since this was asked last."""
        with suppress(OSError):
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None
        return False

    def wait_ready(
        self, timeout_s: float | None = None, stop: Callable[[], bool] | None = None, ask_s: float = ASK_S
    ) -> Waited:
        """Wait until its health route answers, it ends, ``timeout_s`` have passed or ``stop`` says so."""
        until = time.monotonic() + timeout_s if timeout_s is not None else None
        while True:
            if self.poll() is not None:
                return "exited"
            if stop is not None and stop():
                return "stopped"
            if self.healthy():
                return "ready"
            if until is not None and time.monotonic() >= until:
                return "timeout"
            time.sleep(ask_s)

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """True if its health route answers with success. Where somebody else held its port before, only an
        answer of a process of this run counts."""
        if self.endpoint is None or not http.healthy(self.endpoint, timeout_s):
            return False
        return not self._taken or self.listens()

    def listens(self) -> bool:
        """True if a process of this run listens on the endpoint's port."""
        import psutil

        if self.traces is None or self.endpoint is None:
            return False
        mine = {process.pid for process in processes.find(self.traces)}
        with suppress(psutil.Error, OSError):
            return any(
                c.status == psutil.CONN_LISTEN
                and c.laddr
                and c.laddr.port == self.endpoint.port
                and c.pid in mine
                for c in psutil.net_connections("tcp")
            )
        return False

    def answers(self, timeout_s: float = 60.0) -> str | None:
        """None if a real request of one token is answered, else why not."""
        if self.endpoint is None:
            return "it opens no port"
        return http.answers(self.endpoint, timeout_s)

    def pass_on(self, number: int, *, everyone: bool = False) -> None:
        """Pass a signal on: to its first process as ``kill PID`` does, or to its group as a terminal does."""
        with suppress(ProcessLookupError, PermissionError):
            if everyone:
                os.killpg(self.pid, number)
            elif self._process is not None:
                self._process.send_signal(number)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code; None where it has not ended within ``timeout_s`` seconds."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, grace_s: float = GRACE_S, first: int = signal.SIGTERM) -> Ended:
        """End it and everything that it started: ``first``, then SIGTERM, after ``grace_s`` seconds SIGKILL.
        Once it has ended by itself this looks for what it left behind. Safe to call again."""
        if self.traces is None or self._process is None:
            return Ended()
        process = self._process
        ended = processes.end(self.traces, grace_s, first=first, tick=process.poll)
        self.wait(1.0)
        if self._pump is not None:
            self._pump.stop()
        return ended

    def sync(self) -> None:
        """Have the log so far on the disk."""
        if self._pump is not None:
            self._pump.sync()

    def _note(self, traces: Traces) -> None:
        if traces != self.traces:
            self.traces = traces
            if self._keep is not None:
                self._keep(traces)


def secrets_of(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Values of a command and its environment that must never be kept: those of variables and flags that are
    named as secrets are."""
    from ullage.core.secrets import is_secret

    found = [value for name, value in env.items() if value and is_secret(name)]
    for i, word in enumerate(argv):
        name, equals, value = word.partition("=")
        flag = name.lstrip("-").replace("-", "_")
        if name.startswith("--") and is_secret(flag):
            found += [value] if equals else []
            # vLLM takes several keys
            found += takewhile(lambda word: not word.startswith("-"), argv[i + 1 :])
        elif equals and is_secret(name):
            found.append(value)
    return tuple(dict.fromkeys(filter(None, found)))
