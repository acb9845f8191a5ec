"""A server's output: from its pipes to the log file, and unchanged to whoever shows it. Never holds it up for
long: a full disk ends the log, not the server."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.core.secrets import FIRST, HIDDEN, SIGNS, masked

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

#: takes the stream's number (1: stdout, 2: stderr) and what came
Show = Callable[[int, bytes], None]
PIECE_BYTES = 1 << 20
#: a server that prints line by line would wake us for each of them, and pay for it: let some gather
SMALL_BYTES, GATHER_S = 64 << 10, 0.003
#: seconds without any progress after which a reader that is slow is given up, and pieces taken at the end
PATIENCE_S, DRAINED = 30.0, 64
#: bytes of a line without an end that are held back, and those that still are once it is longer
MOST_HELD, LEAST_HELD = 64 << 10, 1 << 10
_SIGNS, _FIRST = tuple(sign.encode() for sign in SIGNS), tuple(sign.encode() for sign in FIRST)
#: F_SETPIPE_SZ of fcntl.h
_SET_PIPE_SIZE = 1031


class Masker:
    """Takes secrets out of a stream of bytes, line by line: values that are known, and what reads as one."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        values = {value.encode("utf-8", "surrogateescape") for value in secrets if len(value) >= 6}
        self._values = sorted(values, key=len, reverse=True)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The lines that are whole by now; of one that does not end, all but the last of it."""
        data = self._held + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > MOST_HELD:
            end = len(data) - LEAST_HELD
        self._held = data[end:]
        return self._clean(data[:end])

    def close(self) -> bytes:
        held, self._held = self._held, b""
        return self._clean(held)

    def _clean(self, data: bytes) -> bytes:
        for value in self._values:
            if value in data:
                data = data.replace(value, HIDDEN.encode())
        if not _suspect(data):
            return data
        return b"".join(_masked(line) if _suspect(line) else line for line in data.splitlines(keepends=True))


def _suspect(data: bytes) -> bool:
    """False where core/secrets would hide nothing; most of a log is so."""
    if len(data) > SMALL_BYTES // 16:  # all signs at once: what so many bytes are worth
        return data.startswith(_FIRST) or bool(_all_signs().find_matches_as_indexes(data))
    return any(sign in data for sign in _SIGNS) or data.startswith(_FIRST)


@cache
def _all_signs() -> BytesAhoCorasick:
    from ahocorasick_rs import BytesAhoCorasick

    return BytesAhoCorasick(_SIGNS)


def _masked(line: bytes) -> bytes:
    """A line without what reads as a secret; one without any is the same bytes."""
    return masked(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


class Pump:
    """Reads the pipes in a thread of its own until they are closed by everyone, or ``stop`` is called.

    ``kept`` counts the bytes of the log file, ``fault`` says why it ends early (a full disk). ``last`` is when
    something came last, ``moved`` when something was shown last (time.monotonic()). ``feed`` gets what the log
    gets.
    """

    def __init__(
        self, log: Path, secrets: Sequence[str] = (), show: Show | None = None,
        feed: Callable[[bytes], None] | None = None,
    ) -> None:  # fmt: skip
        self.kept = 0
        self.fault: str | None = None
        self.last = self.moved = time.monotonic()
        self._show, self._feed = show, feed
        self._maskers = {1: Masker(secrets), 2: Masker(secrets)}
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._pipes: dict[int, int] = {}
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)

    def pipe(self, stream: int) -> int:
        """The end that the server writes to as its ``stream``; the caller closes it once the server has it."""
        read, write = os.pipe()
        self._pipes[read] = stream
        with suppress(OSError, ImportError):
            import fcntl

            fcntl.fcntl(write, _SET_PIPE_SIZE, PIECE_BYTES)
        return write

    @property
    def inodes(self) -> tuple[int, ...]:
        """The pipes' inodes: what the server's processes are known by."""
        return tuple(os.fstat(read).st_ino for read in self._pipes)

    def start(self) -> None:
        self._thread.start()

    @property
    def open(self) -> bool:
        """True while some process still holds a pipe."""
        return self._thread.is_alive()

    def stop(self, wait_s: float = 2.0, patience_s: float = PATIENCE_S) -> None:
        """Wait ``wait_s`` seconds for the last writer to go, take what is there, close pipes and log. Who reads
        what is shown, however slowly, is waited for until nothing has moved for ``patience_s`` seconds."""
        if self._thread.ident is None:
            self._close()
            return
        self._thread.join(wait_s)
        with suppress(OSError):
            os.write(self._woken, b"x")
        began = time.monotonic()
        while self._thread.is_alive() and time.monotonic() - max(self.moved, began) < patience_s:
            self._thread.join(0.1)

    def sync(self) -> None:
        """Have what is kept so far on the disk."""
        with suppress(OSError):
            os.fdatasync(self._log)

    def _run(self) -> None:
        try:
            pause = False
            with selectors.DefaultSelector() as ready:
                for read in self._pipes:
                    ready.register(read, selectors.EVENT_READ)
                ready.register(self._wake, selectors.EVENT_READ)
                while len(ready.get_map()) > 1:
                    if pause:
                        time.sleep(GATHER_S)
                    pause = False
                    found = [key.fd for key, _ in ready.select()]
                    if self._wake in found:
                        self._drain()
                        break
                    for read in found:
                        data = os.read(read, PIECE_BYTES)
                        if data:
                            self._take(self._pipes[read], data)
                            pause = pause or len(data) < SMALL_BYTES
                        else:
                            ready.unregister(read)
        finally:
            for masker in self._maskers.values():
                self._keep(masker.close())
            self.sync()
            self._close()

    def _drain(self) -> None:
        """What the pipes hold now; who still writes to them is not waited for."""
        for read, stream in self._pipes.items():
            os.set_blocking(read, False)
            with suppress(BlockingIOError):
                for _ in range(DRAINED):
                    data = os.read(read, PIECE_BYTES)
                    if not data:
                        break
                    self._take(stream, data)

    def _take(self, stream: int, data: bytes) -> None:
        self.last = time.monotonic()
        self._keep(self._maskers[stream].feed(data))
        if self._show is not None:
            try:
                self._show(stream, data)
            except (OSError, ValueError):
                self._show = None  # the terminal has gone: the log goes on
        self.moved = time.monotonic()

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        if self._feed is not None:
            self._feed(data)
        if self.fault is not None:
            return
        view = memoryview(data)
        try:
            while view:
                wrote = os.write(self._log, view)
                self.kept += wrote
                view = view[wrote:]
        except OSError as error:
            self.fault = f"the log ends after {self.kept:,} bytes: {error.strerror}"

    def _close(self) -> None:
        for handle in (*self._pipes, self._wake, self._woken, self._log):
            with suppress(OSError):
                os.close(handle)
        self._pipes.clear()
