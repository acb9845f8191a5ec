"""When each rank was in which stage, by the times that its lines carry."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.report import Span
from ullage.core.run import PHASES, Event, Failure, Phase, Run

#: a time further from the one before it belongs to another clock or another day's log
LONGEST_S = 7 * 86400.0


def timeline(run: Run) -> tuple[Span, ...]:
    """Stages of each rank, in seconds from the first timed line; empty where the log carries no times.

    A stage lasts from its first line to the first line of the next one; the last ends with the rank's last line
    (or at the failure). What the process without a rank prints goes with the ranks only where there are none.
    """
    timed = [event for event in run.events if event.time is not None]
    if not timed:
        return ()
    start = timed[0].time or 0.0
    return tuple(span for rank, events in _by_rank(timed).items() for span in _spans(rank, events, start))


def _by_rank(events: list[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.rank.label, []).append(event)
    if len(found) > 1:
        found.pop("", None)
    return found


def _spans(rank: str, events: list[Event], start: float) -> Iterator[Span]:
    begins: list[tuple[Phase, float]] = []
    last = 0.0
    for event in events:
        at = (event.time or 0.0) - start
        if not 0 <= at <= LONGEST_S:
            continue
        last = max(last, at)
        followed = isinstance(event, Failure) and event.cascade
        if event.phase is not None and not followed and _later(event.phase, begins):
            begins.append((event.phase, max(at, begins[-1][1] if begins else 0.0)))
    failed = any(isinstance(event, Failure) for event in events)
    ends = [at for _, at in begins[1:]] + [last]
    for (phase, begin), end in zip(begins, ends, strict=False):
        yield Span(rank, phase, begin, max(begin, end), failed=failed and phase == begins[-1][0])


def _later(phase: Phase, begins: list[tuple[Phase, float]]) -> bool:
    """True if ``phase`` comes after the last one begun: lines of an earlier stage change nothing."""
    return not begins or PHASES.index(phase) > PHASES.index(begins[-1][0])
