"""What a run's end means, in a word for the record and in sentences for people."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from msgspec import Struct

from ullage.core.run import Outcome as Diagnosed
from ullage.lab.processes import Ended
from ullage.lab.records import Outcome
from ullage.lab.signals import ENDING


class Ending(Struct, frozen=True):
    """How it ended. ``code``: the server's (128 + N where signal N ended it). ``decided``: ullage ended it, for
    this reason. ``asked``: a signal asked ullage to end it; ``typed``: the terminal was the server's, so that a
    Ctrl-C reached it alone. ``diagnosed``: what its log says. ``lost``: the machine whose connection was lost,
    ``there``: what was then ended there. ``oom_kills``: by the kernel, in this control group, meanwhile."""

    code: int | None
    decided: Outcome | None = None
    asked: bool = False
    typed: bool = False
    ready: bool = False
    hung: bool = False
    diagnosed: Diagnosed | None = None
    lost: str | None = None
    there: str | None = None
    oom_kills: int = 0


def outcome_of(end: Ending) -> Outcome:
    if end.decided is not None:
        return end.decided
    if end.lost is not None:
        return "lost"
    if end.asked:
        return "hang" if end.hung and not end.ready else "stopped"
    if end.typed and _as_asked(end):
        return "stopped"
    # vLLM 0.32.0 exits with 0 when its engine has died
    failed = end.diagnosed in ("crashed", "hang")
    return "ended" if end.code == 0 and not failed else "crashed"


def _as_asked(end: Ending) -> bool:
    """It served and ended as one that is asked to, or by a signal that asks."""
    served = end.ready and end.diagnosed in (None, "started")
    return served or end.code in [128 + number for number in ENDING]


def notes_of(end: Ending, outcome: Outcome, ended: Ended, log_fault: str | None) -> Iterator[str]:
    """What the log does not tell, a sentence each."""
    if outcome == "crashed" and end.code is not None and end.code > 128 and (name := _signal(end.code - 128)):
        yield f"its first process was ended by signal {end.code - 128} ({name})"
    if end.oom_kills > 0:
        yield f"the kernel's OOM killer ended {end.oom_kills} process(es) in this control group meanwhile"
    if ended.killed:
        yield f"{len(ended.killed)} processes did not end when asked and were killed"
    if ended.left:
        pids = ", ".join(str(process.pid) for process in ended.left)
        yield f"{len(ended.left)} processes could not be ended: {pids}"
    yield from (f"port {port} is still held" for port in ended.ports_held)
    if log_fault:
        yield log_fault
    if end.lost is not None:
        there = end.there or "it cannot be reached: what runs there ends by itself within a minute"
        yield f"the connection to {end.lost} was lost; {there}"


def _signal(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None
