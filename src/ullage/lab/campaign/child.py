"""A command that is run to its end beside a server (a benchmark, a build): bounded in time and in what is
kept of its output, and ended with everything that it started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Literal

from msgspec import Struct

from ullage.core.errors import InputError
from ullage.lab import proc_table, processes

#: what is kept of the output: the last bytes
KEPT_BYTES = 8 << 20
#: seconds that it may take to end when asked, and between two looks
GRACE_S, LOOK_S = 3.0, 0.1


class Ran(Struct, frozen=True):
    """``how``: it ended; it took too long; ``watch`` said so. ``code`` is negative where a signal ended it."""

    how: Literal["ended", "timeout", "stopped"]
    code: int
    text: str
    took_s: float


def run(
    words: Sequence[str], env: Mapping[str, str], run_id: str, timeout_s: float, watch: Callable[[], bool],
    cwd: str | None = None,
) -> Ran:  # fmt: skip
    """Run ``words``; ``watch`` is asked every moment whether to stop. Raises InputError where it cannot
    start."""
    began = time.monotonic()
    try:
        child = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cwd,
            env=processes.environment(run_id, dict(env)), start_new_session=True, bufsize=0,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be started: {reason}", where=str(words[0])[:200]) from None
    assert child.stdout is not None
    kept = bytearray()
    how: Literal["ended", "timeout", "stopped"] = "ended"
    try:
        with child.stdout as stream:
            how = _follow(child, stream, kept, began + timeout_s, watch)
    finally:
        _end(child)
    text = kept.decode("utf-8", "replace")
    return Ran(
        how,
        child.returncode if child.returncode is not None else -signal.SIGKILL,
        text,
        time.monotonic() - began,
    )


def _follow(
    child: subprocess.Popen[bytes], stream: IO[bytes], kept: bytearray, until: float, watch: Callable[[], bool]
) -> Literal["ended", "timeout", "stopped"]:
    with selectors.DefaultSelector() as ready:
        ready.register(stream, selectors.EVENT_READ)
        is_open = True
        while True:
            if is_open and ready.select(LOOK_S):
                piece = os.read(stream.fileno(), 1 << 16)
                is_open = bool(piece)
                kept += piece
                if len(kept) > 2 * KEPT_BYTES:
                    del kept[:-KEPT_BYTES]
                if is_open and child.poll() is None and time.monotonic() < until and not watch():
                    continue
            elif not is_open:
                time.sleep(LOOK_S)
            if child.poll() is not None:
                _drain(stream, kept, is_open)
                return "ended"
            if watch():
                return "stopped"
            if time.monotonic() >= until:
                return "timeout"


def _drain(stream: IO[bytes], kept: bytearray, is_open: bool) -> None:
    """What is in the pipe still; others may hold it open."""
    os.set_blocking(stream.fileno(), False)
    with suppress(BlockingIOError):
        while is_open and (piece := os.read(stream.fileno(), 1 << 16)):
            kept += piece
            if len(kept) > 2 * KEPT_BYTES:
                break
    del kept[:-KEPT_BYTES]


def _end(child: subprocess.Popen[bytes]) -> None:
    """End it and what it started: asked first, then killed."""
    rows = proc_table.table()
    mine = proc_table.descendants(rows, [child.pid]) | {
        pid for pid, row in rows.items() if row.session == child.pid
    }
    tree = [rows[pid].process for pid in mine if pid in rows and pid != os.getpid()]
    for process in tree:
        processes.send(process, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while any(proc_table.alive(process) for process in tree) and time.monotonic() < until:
        child.poll()
        time.sleep(0.05)
    for process in tree:
        processes.send(process, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(5.0)
