"""The terminal lent to the server: it is the foreground, as without ullage, so that it may read what is typed,
Ctrl-C reaches all of its processes and Ctrl-Z stops them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Terminal:
    """The controlling terminal on stdin, if this process is its foreground. Nothing happens without one, or
    with ``stdin`` -1."""

    def __init__(self, stdin: int = 0) -> None:
        self._handle = stdin
        self.held = False
        with suppress(OSError):
            self.held = os.isatty(stdin) and os.tcgetpgrp(stdin) == os.getpgrp()

    def lend(self, group: int) -> None:
        """Make the process group the foreground."""
        if self.held:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # we go on writing from behind
            self._set(group)

    def take_back(self) -> None:
        if self.held:
            self._set(os.getpgrp())

    def _set(self, group: int) -> None:
        with _blocked(signal.SIGTTOU), suppress(OSError):
            os.tcsetpgrp(self._handle, group)


@contextmanager
def _blocked(number: int) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
