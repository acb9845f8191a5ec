"""A start, followed while it happens: stages, progress bars, predicted and observed memory, what dooms it.

The watch is fed with the log as it grows and asked for a ``View``. It works in small steps and never holds the
log up: what comes faster than it reads is left out of the live view (the record is made from the whole log).
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping

from msgspec import Struct

from ullage import engines
from ullage.core import tables
from ullage.core.report import Plan
from ullage.core.run import PHASES, Event, Failure, Figure, Line, Note, Phase, Run, Served
from ullage.core.secrets import masked
from ullage.diagnose.why import examine
from ullage.engines.base import Engine, Hints, Reader
from ullage.lab.doom import Doom, doom_of
from ullage.lab.records import Event as Kept
from ullage.lab.view import Stage, View
from ullage.logs.follow import Follower

#: bytes that wait for the watch; what comes beyond is left out
MOST_WAITING = 4 << 20
#: seconds that one step works, and after which the figures are looked at again
STEP_S, LOOK_S = 0.02, 0.5
#: characters of a line that are kept as what a rank did last
MOST_TEXT = 300
_COUNT = re.compile(r"\b(\d{1,6})/(\d{1,6})\b")


class Bar(Struct, frozen=True):
    """A progress bar's row: what its line holds."""

    phase: Phase
    literal: list[str]
    source: str


class _Bars(Struct, frozen=True):
    bar: list[Bar]


class Watch:
    """Follows one start. ``feed`` may be called from another thread; everything else from one."""

    def __init__(
        self, plan: Plan | None = None, hints: Hints | None = None, usual: Mapping[str, float] | None = None
    ) -> None:
        self._names = (plan.engine,) if plan else engines.NAMES
        self._readers: dict[str, Reader] = {}  # made with the first line: the server starts meanwhile
        self._plan, self._hints, self._usual = plan, hints or Hints(), dict(usual or {})
        self._waiting: deque[bytes] = deque()
        self._num_waiting = self.num_left_out = 0
        self._lock = threading.Lock()
        self._follower = Follower("server.log")
        self._bars = tables.load("ullage.lab", "bars.toml", _Bars).bar
        self._started = time.monotonic()
        self._looked = 0.0
        self._fresh = False
        self._num_events = 0
        self._events: list[Kept] = []
        self.counts: dict[Phase, tuple[int, int]] = {}
        #: seconds after the start at which each stage began
        self.began: dict[Phase, float] = {}
        #: what each rank printed last, and when (seconds after the start)
        self.last: dict[str, tuple[float, str]] = {}
        self.run: Run | None = None
        self.doom: Doom | None = None
        self.observed: dict[Phase, int] = {}
        self.predicted = _predicted(plan)
        self.ready_s: float | None = None
        self.closed = False

    def begin(self) -> None:
        """The server starts now."""
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def feed(self, data: bytes) -> None:
        """More of the log."""
        if self.closed:
            return
        with self._lock:
            self._waiting.append(data)
            self._num_waiting += len(data)
            while self._num_waiting > MOST_WAITING and len(self._waiting) > 1:
                left_out = len(self._waiting.popleft())
                self._num_waiting -= left_out
                self.num_left_out += left_out

    def step(self, seconds: float = STEP_S) -> bool:
        """Read what has come, for ``seconds`` at most; True if there was something."""
        until = time.monotonic() + seconds
        worked = False
        while time.monotonic() < until and (data := self._next()) is not None:
            worked = True
            for line in self._follower.feed(data):
                self._line(line)
        if self._fresh and time.monotonic() - self._looked >= LOOK_S:
            self.look()
        return worked

    def _next(self) -> bytes | None:
        """At most 64 KiB of what waits."""
        with self._lock:
            if not self._waiting:
                return None
            data = self._waiting.popleft()
            if len(data) > 1 << 16:
                self._waiting.appendleft(data[1 << 16 :])
                data = data[: 1 << 16]
            self._num_waiting -= len(data)
            return data

    def close(self, seconds: float = 2.0) -> None:
        """Read the rest; from now on nothing more is taken."""
        self.closed = True
        self.step(seconds)
        for line in self._follower.close():
            self._line(line)
        self.look()

    def _line(self, line: Line) -> None:
        self._fresh = True
        if not self._readers:
            self._readers = {name: engines.get(name).reader() for name in self._names}
        for reader in self._readers.values():
            reader.feed(line)
        self._count(line.text)
        if len(self.last) < 4096 or line.rank.label in self.last:
            text = line.trace.text if line.trace else line.text
            if text.strip():
                self.last[line.rank.label] = (self.elapsed_s, masked(text[:MOST_TEXT]))

    def _count(self, text: str) -> None:
        for bar in self._bars:
            if any(literal in text for literal in bar.literal):
                found = _COUNT.search(text)
                if found is not None:
                    self.counts[bar.phase] = (int(found[1]), int(found[2]))
                return

    def look(self) -> None:
        """What the lines so far mean: stages, figures, whether it can still succeed."""
        self._looked, self._fresh = time.monotonic(), False
        runs = {name: reader.so_far() for name, reader in self._readers.items()}
        if not runs:
            return
        name = max(runs, key=lambda each: len(runs[each].events))
        run = runs[name]
        if not run.events:
            return
        self.run = run
        self._keep(run)
        if any(isinstance(event, Figure) for event in run.events):
            self._examine(engines.get(name), run)

    def _keep(self, run: Run) -> None:
        """New events to the record, new stages to the clock."""
        now = round(self.elapsed_s, 3)
        events = [event for event in run.events if not isinstance(event, Served)]
        if len(events) < self._num_events:
            self._num_events = 0  # another start began in the same log
        for event in events[self._num_events :]:
            if event.phase is not None and event.phase not in self.began and not isinstance(event, Failure):
                self.began[event.phase] = now
                self._events.append(
                    Kept(at_s=now, kind="stage", phase=event.phase, text=event.text[:MOST_TEXT])
                )
            self._events.extend(_kept(event, now))
        self._num_events = len(events)

    def _examine(self, engine: Engine, run: Run) -> None:
        found = examine(engine, run, self._hints, {})
        self.observed = {}
        for item in found.case.budget.ledgers:
            for phase in {entry.stage for entry in item.entries if entry.certainty == "observed"}:
                held = sum(e.bytes for e in item.entries if e.stage == phase and e.certainty == "observed")
                self.observed[phase] = max(held, self.observed.get(phase, 0))
        if self.doom is None:
            self.doom = doom_of(found)

    def events(self) -> Iterator[Kept]:
        """What is new for the record."""
        found, self._events = self._events, []
        yield from found

    @property
    def open_phase(self) -> Phase | None:
        """The furthest stage that has begun."""
        return max(self.began, key=PHASES.index, default=None)

    def view(self) -> View:
        now = self.elapsed_s
        furthest = self.open_phase
        at = PHASES.index(furthest) if furthest else -1
        ends = sorted(self.began.values())
        stages = []
        for index, phase in enumerate(PHASES[:-1]):
            began = self.began.get(phase)
            if began is None and phase not in self._usual and phase not in self.predicted and index <= at:
                continue
            after = next((t for t in ends if began is not None and t > began), None)
            done = index < at or self.ready_s is not None
            state = "done" if done else "open" if index == at else "to come"
            until = after if done and after is not None else (self.ready_s or now)
            done_of, total = self.counts.get(phase, (None, None))
            stages.append(Stage(
                phase, state, until - began if began is not None else None, self._usual.get(phase),
                done_of, total, self.predicted.get(phase), self.observed.get(phase),
            ))  # fmt: skip
        last = max(self.last.values(), default=(0.0, ""))[1]
        return View(tuple(stages), now, self._left(furthest, now), self.ready_s is not None, last)

    def _left(self, phase: Phase | None, now: float) -> float | None:
        """Seconds until ready, by earlier runs: what the stages from this one on took, less what this has."""
        if self.ready_s is not None or not self._usual:
            return None
        if phase is None:
            return max(0.0, sum(self._usual.values()) - now)
        ahead = [self._usual.get(each, 0.0) for each in PHASES[PHASES.index(phase) + 1 :]]
        here = max(0.0, self._usual.get(phase, 0.0) - (now - self.began[phase]))
        return here + sum(ahead)


def _kept(event: Event, now: float) -> Iterator[Kept]:
    label = event.rank.label
    if isinstance(event, Figure):
        yield Kept(
            at_s=now, kind="figure", phase=event.phase, name=event.name, value=event.value.value, rank=label
        )
    elif isinstance(event, Failure):
        yield Kept(at_s=now, kind="failure", phase=event.at, rank=label, text=event.message[:MOST_TEXT])
    elif not isinstance(event, Note):
        kind = type(event).__name__.lower()
        if kind in ("ready", "stopped"):
            yield Kept(at_s=now, kind=kind, phase=event.phase, rank=label, text=event.text[:MOST_TEXT])


def _predicted(plan: Plan | None) -> dict[Phase, int]:
    """Bytes that the plan expects of each stage, of its fullest rank."""
    found: dict[Phase, int] = {}
    for item in plan.budget.ledgers if plan else ():
        for phase in {entry.stage for entry in item.entries}:
            found[phase] = max(found.get(phase, 0), item.of(phase))
    return found


def durations(began: Mapping[str, float], ready_s: float | None) -> dict[str, float]:
    """Seconds that each stage took, from the seconds at which they began."""
    order = sorted(began.items(), key=lambda pair: pair[1])
    ends = [at for _, at in order[1:]] + [ready_s if ready_s is not None else order[-1][1] if order else 0.0]
    return {
        phase: round(end - at, 3) for (phase, at), end in zip(order, ends, strict=False) if phase != "serving"
    }
