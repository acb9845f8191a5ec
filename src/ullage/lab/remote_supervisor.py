"""Runs on the other machine (python3 alone): starts the server in a process group of its own, obeys what
comes on stdin, and ends everything when the connection is gone. Sent over as text; imports nothing of ullage.

The first line of stdin is base64 of JSON: {"id", "argv", "env", "cwd", "grace", "merge"} to start a run,
{"id", "end": true} to end what a lost connection may have left. Then lines: a signal's name, or "." (still
there).
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

MARKER = "ULLAGE_RUN"
#: seconds without a sign of the other side after which it is taken for gone
SILENT_S = 60.0
LEFT_S = 5.0
PROC = Path("/proc")
ENDING = ("TERM", "INT", "HUP", "QUIT")


class Row(NamedTuple):
    parent: int
    group: int
    state: bytes
    ticks: int


def stat(pid: int) -> Row | None:
    with suppress(OSError, ValueError):
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return Row(int(fields[1]), int(fields[2]), fields[0], int(fields[19]))
    return None


def table() -> dict[int, Row]:
    pids = [int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit()]
    rows = {pid: stat(pid) for pid in pids}
    return {pid: row for pid, row in rows.items() if row is not None and row.state not in (b"Z", b"X")}


def marked(pid: int, run: str) -> bool:
    with suppress(OSError):
        return f"{MARKER}={run}".encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def outputs(pid: int) -> set[str]:
    """The pipes that are a process's stdout and stderr."""
    found = set()
    for number in ("1", "2"):
        with suppress(OSError):
            found.add(str((PROC / str(pid) / "fd" / number).readlink()))
    return {link for link in found if link.startswith(("pipe:", "socket:"))}


def find(run: str, leader: int, mine: set[str]) -> set[tuple[int, int]]:
    """(pid, start) of the run's processes: its group, its marker, our output, and what these started."""
    rows = table()
    above: set[int] = set()
    pid = os.getpid()
    while pid in rows and pid not in above:
        above.add(pid)
        pid = rows[pid].parent
    began = rows[os.getpid()].ticks if leader else 0

    def belongs(pid: int, row: Row) -> bool:
        if leader and row.group == leader:
            return True
        return marked(pid, run) or bool(mine and mine & outputs(pid))

    found = {p for p, row in rows.items() if p not in above and row.ticks >= began and belongs(p, row)}
    grown = bool(found)
    while grown:
        more = {p for p, row in rows.items() if row.parent in found and p not in above} - found
        found |= more
        grown = bool(more)
    return {(p, rows[p].ticks) for p in found}


def send(process: tuple[int, int], number: int) -> None:
    row = stat(process[0])
    if row is not None and row.ticks == process[1]:
        with suppress(OSError):
            os.kill(process[0], number)


def end(
    run: str, leader: int, mine: set[str], grace: float, child: subprocess.Popen[bytes] | None = None
) -> tuple[int, int]:
    """End the run's processes; how many there were, and how many are left."""
    everyone: set[tuple[int, int]] = set()
    found: set[tuple[int, int]] = set()
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
        until = time.monotonic() + seconds
        asked: set[tuple[int, int]] = set()
        while True:
            found = find(run, leader, mine)
            everyone |= found
            for process in found - asked:
                send(process, number)
                send(process, signal.SIGCONT)
            asked |= found
            if child is not None:
                child.poll()
            if not found or time.monotonic() >= until:
                break
            time.sleep(0.05)
    return len(everyone), len(found)


def read_lines(buffer: bytearray) -> list[str] | None:
    """The whole lines of stdin that are there; None at its end."""
    data = os.read(0, 65536)
    if not data:
        return None
    buffer += data
    whole, _, rest = bytes(buffer).rpartition(b"\n")
    buffer[:] = rest
    return [line.decode("ascii", "replace").strip() for line in whole.split(b"\n") if line.strip()]


def pass_on(word: str, pid: int) -> None:
    number = getattr(signal, f"SIG{word}", None) if word.isalnum() else None
    if number is not None:
        with suppress(OSError):
            (os.killpg if word in ("INT", "QUIT", "WINCH") else os.kill)(pid, number)


def obey(child: subprocess.Popen[bytes], grace: float, buffer: bytearray, words: list[str]) -> bool:
    """Until the server ends or is to be ended; True if the other side has gone."""
    heard = time.monotonic()
    until: float | None = None
    while child.poll() is None:
        for word in words:
            pass_on(word, child.pid)
            if word in ENDING and until is None:
                until = time.monotonic() + grace
        words = []
        if select.select([0], [], [], 0.2)[0]:
            got = read_lines(buffer)
            if got is None:
                return True
            heard, words = time.monotonic(), got
        if time.monotonic() - heard > SILENT_S:
            return True
        if until is not None and time.monotonic() > until:
            return False
    return False


def supervise(told: dict[str, Any], buffer: bytearray, words: list[str]) -> int:
    """Start, obey, end; the server's exit code (128 + N where signal N ended it)."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if told["merge"]:
        os.dup2(1, 2)
    environment = {**os.environ, **told["env"], MARKER: told["id"]}
    try:
        child = subprocess.Popen(
            told["argv"], stdin=subprocess.DEVNULL, cwd=told["cwd"], env=environment, preexec_fn=_as_started
        )
    except OSError as error:
        sys.stderr.write(f"ullage: cannot be started there: {error}\n")
        return 127
    lost = obey(child, told["grace"], buffer, words)
    end(told["id"], child.pid, outputs(os.getpid()), told["grace"] if lost else LEFT_S, child)
    code = child.wait()
    return 128 - code if code < 0 else code


def _as_started() -> None:
    os.setpgid(0, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def main() -> int:
    buffer = bytearray()
    words: list[str] = []
    while not words:
        got = read_lines(buffer)
        if got is None:
            return 125
        words = got
    told = json.loads(base64.b64decode(words.pop(0)).decode())
    if told.get("end"):
        count, left = end(told["id"], 0, set(), LEFT_S)
        print(f"ended {count} left {left}", flush=True)
        return 1 if left else 0
    return supervise(told, buffer, words)


if __name__ == "__main__":
    sys.exit(main())
