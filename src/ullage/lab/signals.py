"""Signals that ullage gets while a server runs: passed on, each as it comes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

#: signals that are passed on; those that were ignored when ullage was started (nohup) stay ignored
PASSED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGWINCH, signal.SIGTSTP,
)  # fmt: skip
#: those that ask a server to end
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: so many of them mean: now
INSIST = 3


class Signals:
    """``with Signals(pass_on): ...``. ``got``: the first signal that asked to end. ``insisted``: it was asked
    three times. Outside the main thread, where signals cannot be caught, nothing is done."""

    def __init__(self, pass_on: Callable[[int], None]) -> None:
        self._pass_on = pass_on
        self._before: dict[int, Any] = {}
        self._asked = 0
        self.got: int | None = None

    @property
    def insisted(self) -> bool:
        return self._asked >= INSIST

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in PASSED:
                before = signal.getsignal(number)
                if before is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number in ENDING:
            self._asked += 1
            self.got = self.got or number
        self._pass_on(number)
