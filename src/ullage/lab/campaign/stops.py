"""Signals that end a campaign: the experiment under way is ended cleanly and waits for resume."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ullage.lab.campaign.loop import Outcome, Stopping

ENDING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Got:
    """The first signal that came; None while none has."""

    number: int | None = None


@contextmanager
def caught(stopping: Stopping) -> Iterator[Got]:
    """Within, the first signal asks to stop, a second one at once. Signals that were ignored (nohup) stay
    so."""
    got = Got()

    def take(number: int, frame: FrameType | None) -> None:
        got.number = got.number if got.number is not None else int(number)
        stopping.ask(Outcome("stopped", f"by {signal.Signals(number).name}"))

    before: dict[int, Any] = {}
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, take)
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
