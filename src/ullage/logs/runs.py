"""Lines to runs: keeps the events of each start, in bounded memory, and splits a restart loop."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import chain
from operator import itemgetter

from msgspec.structs import replace

from ullage.core.run import (
    PHASES,
    Event,
    Failure,
    Figure,
    Line,
    Note,
    Phase,
    Ready,
    Run,
    RunBegins,
    Served,
    Stopped,
)
from ullage.logs.grammar import Grammar, LineRow

# what is kept of one run; the rest is counted
MAX_FAILURES, MAX_CASCADES, MAX_NOTES, MAX_OTHERS = 200, 100, 64, 20_000
KEPT_SERVED, KEPT_LAST, MAX_RUNS = 16, 24, 50


class RunBuilder:
    """Feeds on lines, yields runs. An engine derives from it to refine events (``refine``) and to say which
    phase is open (``open_phase``). Never raises on any line."""

    def __init__(self, grammar: Grammar, engine: str) -> None:
        self.grammar = grammar
        self.engine = engine
        self.runs: deque[Run] = deque(maxlen=MAX_RUNS)
        self.finished = 0
        self._reset()

    def _reset(self) -> None:
        self.events: list[tuple[int, Event]] = []
        self.served_first: list[tuple[int, Event]] = []
        self.served: deque[tuple[int, Event]] = deque(maxlen=KEPT_SERVED)
        self.sequence = 0
        self.last: deque[Line] = deque(maxlen=KEPT_LAST)
        self.dropped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.open: dict[str, Phase] = {}
        self.begun: set[tuple[str, str, str]] = set()
        self.moved = False
        self.num_lines = 0
        self.begin_run()

    # what an engine overrides

    def begin_run(self) -> None:
        """Called when a run begins: reset what ``refine`` remembers."""

    def refine(self, event: Event, line: Line) -> Iterable[Event]:
        """The event made more exact, dropped (empty) or split. ``line`` is where it is from."""
        return (event,)

    def refine_failure(self, failure: Failure, line: Line) -> Failure | Note:
        """A failure made more exact, its phase (``at``) already set; a Note where it is none after all."""
        return failure

    # what is fed

    def feed(self, line: Line) -> None:
        found = self.grammar.events(line)
        if any(isinstance(event, RunBegins) and self._begins(row, line) for row, event in found):
            self._close()
        self.num_lines += 1
        self.last.append(line)
        for row, event in found:
            if isinstance(event, RunBegins) and row is not None:
                self.begun.add((line.source.file, line.rank.label, row.name))
            self._take(row, event, line)

    def _begins(self, row: LineRow | None, line: Line) -> bool:
        """True if this line opens another run than the one being read."""
        if row is None or not self.moved:
            return False
        if row.weak:
            return (line.source.file, line.rank.label, row.name) in self.begun
        return any(file == line.source.file for file, *_ in self.begun) or not self.begun

    def _take(self, row: LineRow | None, event: Event, line: Line) -> None:
        if isinstance(event, Failure):
            at = self.grammar.phase(event.trace) or event.at or self._opened(row, line)
            self._keep(self.refine_failure(replace(event, at=at), line))
            self.moved = True
            return
        anywhere = row is not None and row.kind == "figures" and row.stage is None
        if anywhere and isinstance(event, Figure):
            event = replace(event, stage=self.open_phase(line) or event.stage)
        for refined in self.refine(event, line):
            self._keep(refined)
        if row is not None and row.kind not in ("begin", "note"):
            self.moved = True
        phase = None if anywhere else (row.then if row is not None else None) or event.phase
        if phase is not None and not isinstance(event, Served):
            self._advance(line.rank.label, phase)

    def _opened(self, row: LineRow | None, line: Line) -> Phase | None:
        """The open phase, but none in which this kind of failure cannot happen (``least``)."""
        opened, least = self.open_phase(line), row.least if row is not None else None
        if opened is None or least is None:
            return opened or least
        return max(opened, least, key=PHASES.index)

    def _advance(self, label: str, phase: Phase) -> None:
        if label not in self.open and len(self.open) > 4096:
            return
        before = self.open.get(label)
        if before is None or PHASES.index(phase) >= PHASES.index(before) or phase in ("weights", "kv_pool"):
            self.open[label] = phase

    def open_phase(self, line: Line) -> Phase | None:
        """The stage that is open on the line's rank, else the furthest that any rank has opened."""
        own = self.open.get(line.rank.label)
        if own is not None and line.rank.label:
            return own
        return max(self.open.values(), key=PHASES.index, default=None)

    def _keep(self, event: Event) -> None:
        self.sequence += 1
        if isinstance(event, Served):
            kept = self.served_first if len(self.served_first) < 3 else self.served
            kept.append((self.sequence, event))
            return
        name, limit = _limit(event)
        self.counts[name] += 1
        if self.counts[name] > limit:
            self.dropped[name] += 1
        else:
            self.events.append((self.sequence, event))

    # what comes out

    def _close(self) -> None:
        self.finished += 1
        self.runs.append(self._run())
        self._reset()

    def so_far(self) -> Run:
        """The run that is being read, as far as it has come; feeding goes on."""
        return self._run()

    def _run(self) -> Run:
        kept = sorted(chain(self.events, self.served_first, self.served), key=itemgetter(0))
        events = tuple(event for _, event in kept)
        begins = [e for e in events if isinstance(e, RunBegins) and e.version]
        notes = [f"{count:,} more lines of the kind {name!r} were counted, not kept" for name, count in
                 sorted(self.dropped.items())]  # fmt: skip
        return Run(
            engine=self.engine, version=begins[0].version if begins else None,
            version_source="log" if begins else None, events=events, num_lines=self.num_lines,
            last=tuple(self.last), notes=tuple(notes),
        )  # fmt: skip

    def finish(self) -> list[Run]:
        """The runs that the log holds, oldest first (the last 50 of a longer loop). A tail without any event
        is no run of its own."""
        if self.events or self.served_first or not self.runs:
            self.finished += 1
            self.runs.append(self._run())
        first = self.finished - len(self.runs)
        return [replace(run, index=first + i, of=self.finished) for i, run in enumerate(self.runs)]


def _limit(event: Event) -> tuple[str, int]:
    """What an event counts as, and how many of it are kept."""
    if isinstance(event, Failure):
        kind = f"{'cascade' if event.cascade else 'failure'} {event.kind}"
        return kind, MAX_CASCADES if event.cascade else MAX_FAILURES
    if isinstance(event, Note):
        return event.name, MAX_NOTES
    if isinstance(event, Ready | Stopped):
        return type(event).__name__, MAX_NOTES
    name = type(event).__name__
    return f"{name} {event.name}" if isinstance(event, Figure) else name, MAX_OTHERS
