"""``ullage run`` at a terminal: the live view, Ctrl-C, Ctrl-Z, what is typed."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time

from tests.lab.started import WORKED, Launched, until
from ullage.lab import proc_table

KIMI = ("serve", "--model-path", "moonshotai/Kimi-K2.5", "--tp", "8", "--mem-fraction-static", "0.88")


class Typed:
    """ullage at a pseudo terminal of its own; ``out`` is all that came."""

    def __init__(
        self, lab: Launched, *options: str, launch: tuple[str, ...] | None = None, **stub: object
    ) -> None:
        env = lab.env | {f"STUB_{name.upper()}": str(value) for name, value in stub.items()}
        words = lab.words(*options, launch=launch)
        self.out = b""
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            os.chdir(lab.folder)
            os.execve(sys.executable, words, {**env, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"})
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def read(self) -> bytes:
        while select.select([self.handle], [], [], 0.02)[0]:
            try:
                data = os.read(self.handle, 1 << 16)
            except OSError:
                break
            if not data:
                break
            self.out += data
        return self.out

    def wait(self, text: bytes, seconds: float = 20.0) -> None:
        until(lambda: text in self.read(), seconds, f"{text!r} in {self.out[-400:]!r}")

    def type(self, keys: bytes) -> None:
        os.write(self.handle, keys)

    def end(self) -> int:
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.handle)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(f"did not end: {self.out[-400:]!r}")


def test_the_live_view_and_ctrl_c(lab: Launched) -> None:
    launch = (str(lab.bin / "sglang"), *KIMI, "--port", str(lab.port))
    at = Typed(lab, "--gpu", "8x RTX PRO 6000", launch=launch, log=WORKED, lines_per_s=60)
    at.wait(b"ready at")
    view = at.out.decode()
    assert "starting for" in view and re.search(r"weights.*72\.07 GiB", view)
    assert re.search(r"✓  weights.*64/64", view)
    at.type(b"\x03")
    assert at.end() == 0
    assert lab.record().outcome == "stopped"
    shown = re.sub(rb"\x1b\[[0-9;]*[A-Za-z]", b"", at.out.replace(b"\r\n", b"\n"))
    for line in WORKED.read_bytes().splitlines()[:100]:
        assert line in shown
    lab.nothing_left()


def test_what_is_typed_reaches_the_server(lab: Launched) -> None:
    at = Typed(lab, stdin=1)
    at.wait(b"ready at")
    at.type(b"hello\n")
    at.wait(b"stdin: hello")
    at.type(b"\x03")
    assert at.end() == 0
    lab.nothing_left()


def test_ctrl_z_stops_ullage_and_server_and_both_go_on(lab: Launched) -> None:
    at = Typed(lab, children=1)
    at.wait(b"ready at")

    def states() -> set[str]:
        return {row.state for pid in (at.pid, *lab.pids()) if (row := proc_table.entry(pid))}

    at.type(b"\x1a")
    until(lambda: states() == {"T"}, 5, "all to be stopped")
    os.kill(at.pid, signal.SIGCONT)
    until(lambda: "T" not in states(), 5, "all to go on")
    at.type(b"\x03")
    assert at.end() == 0
    lab.nothing_left()


def test_a_terminal_that_goes_away_ends_everything(lab: Launched) -> None:
    at = Typed(lab, children=1, orphans=1)
    at.wait(b"ready at")
    os.close(at.handle)
    until(lambda: os.waitpid(at.pid, os.WNOHANG)[0], 20, "ullage to end")
    lab.nothing_left()
