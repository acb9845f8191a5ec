"""In which phase a vLLM failure happened: frames, and what the lines after it tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from msgspec.structs import replace

from ullage.core.run import PHASES, Event, Failure, Frame, Line, Note, Phase, Stage, Trace
from ullage.core.tables import load
from ullage.core.units import parse_size
from ullage.logs.grammar import Grammar, LineRow, LogTable, chain

QUIET = frozenset({"DEBUG", "INFO", "WARNING", "D", "I", "W"})
_QUOTED = re.compile(r"Worker failed with error '[^']")
OOM = re.compile(r"out of memory", re.IGNORECASE)
MAX_FRAMES = 200
_OVERSIZED = re.compile(
    r"Tried to allocate (?P<tried>[\d.]+ \w+).*?total capacity of (?P<total>[\d.]+ \w+)", re.DOTALL
)
#: what NCCL prints by itself in front of the exception that pynccl or torch raises
_NCCL_WARNS = frozenset({"driver-oom", "shared-memory-segment", "shm-full"})
_KILLS = frozenset({"kernel-oom", "killed", "memory-limit"})
#: the first thing that each kind can stop, where the log shows nothing else
_FALLBACK: dict[str, Phase] = {"no-kernel-image": "init", "kernel-missing": "init", "driver-oom": "warmup"}


class VllmGrammar(Grammar):
    """Frames decide by the order of their rows, over the whole chain: vLLM's stages call each other (the
    profile run warms the sampler up, the capture runs dummy batches), so the innermost frame misleads."""

    def phase(self, trace: Trace | None) -> Phase | None:
        frames = places(trace)
        for pattern, stage in self.frames:
            if any(pattern.search(frame) for frame in frames):
                return stage
        return None

    def events(self, line: Line) -> list[tuple[LineRow | None, Event]]:
        """As the base; a failure that a line of level WARNING or below tells was survived: a note."""
        line, behind = self._parted(line)
        found = super().events(line)
        for text in behind:
            found += super().events(replace(line, text=text, trace=None))
        if line.level not in QUIET:
            return found
        return [(row, _survived(row, event)) for row, event in found]

    def _parted(self, line: Line) -> tuple[Line, list[str]]:
        """Without what other processes' lines the reader has taken for a message's further lines: where heads
        were cut off, what followed a failure looks like its text."""
        trace = line.trace
        if trace is None or "\n" not in trace.message:
            return line, []
        first, *more = trace.message.split("\n")
        at = next((i for i, text in enumerate(more[:MAX_FRAMES]) if self._follows(text)), None)
        if at is None:
            return line, []
        message = "\n".join([first, *more[:at]])
        return replace(line, trace=replace(trace, message=message)), more[at : at + MAX_FRAMES]

    def _follows(self, text: str) -> bool:
        return any(rule.row.cascade and rule.match(text) is not None for rule in self._with_phrase(text))


def _survived(row: LineRow | None, event: Event) -> Event:
    if not isinstance(event, Failure) or (row is not None and (row.cascade or row.hang)):
        return event
    return Note(
        name="survived", fields={"kind": event.kind, "message": event.message},
        source=event.source, rank=event.rank, time=event.time, text=event.text,
    )  # fmt: skip


def places(trace: Trace | None) -> list[str]:
    """The frames of a whole chain as "file:function"."""
    return [f"{frame.file}:{frame.function}" for part in chain(trace) for frame in part.frames]


@cache
def grammar() -> VllmGrammar:
    """vLLM's rows in front, those of the runtime under it behind."""
    own = load("ullage.engines.vllm", "log.toml", LogTable)
    return VllmGrammar(own, load("ullage.engines.runtime", "log.toml", LogTable))


def later(one: Phase | None, other: Phase) -> Phase:
    """The later of two phases."""
    return max((one or other, other), key=PHASES.index)


def trace_of(frames: Iterable[str]) -> Trace | None:
    """Loose frames ("file:function") as a traceback, so that the same rows read them."""
    found = tuple(Frame(*_split(place)) for place in frames)
    return Trace(frames=found) if found else None


def _split(place: str) -> tuple[str, None, str]:
    file, _, function = place.rpartition(":")
    return file, None, function


def without(trace: Trace | None, function: str) -> Trace | None:
    """The traceback without the frames of ``function``."""
    if trace is None:
        return None
    frames = tuple(frame for frame in trace.frames if frame.function != function)
    return replace(trace, frames=frames, cause=without(trace.cause, function))


def placed(events: Iterable[Event], last: Phase | None) -> Iterator[Event]:
    """The events, with failures whose phase was not known when they were read placed by what came after them.
    ``last`` is the furthest stage of the whole run."""
    known = list(events)
    for index, event in enumerate(known):
        if not isinstance(event, Failure) or event.cascade:
            yield event
        elif told := _told_by_trace(event, known[index + 1 : index + 12]):
            yield replace(event, at=told)
        elif event.at in (None, "kv_pool"):
            yield replace(event, at=_guessed(event, known[index + 1 :], last))
        else:
            yield event


def quoted(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events; where every failure only followed another one, the error that the executor quotes of a worker
    ("Worker failed with error '...'") stands for the worker's own lines, which the log lacks."""
    known = list(events)
    if all(event.cascade for event in known if isinstance(event, Failure)):
        for index, event in enumerate(known):
            if isinstance(event, Failure) and _QUOTED.search(event.message):
                known[index] = replace(event, cascade=False)
                break
    return tuple(known)


def _told_by_trace(failure: Failure, following: list[Event]) -> Phase | None:
    """Where a message stands in front of its own traceback: the phase that the traceback's frames tell."""
    if failure.at == "serving" or (failure.trace is not None and failure.trace.frames):
        return None
    for event in following:
        if not isinstance(event, Failure):
            continue
        if event.kind == failure.kind and event.rank == failure.rank and event.trace is not None:
            return grammar().phase(event.trace)
        if event.kind == "nccl-error" and failure.kind in _NCCL_WARNS and event.trace is not None:
            return grammar().phase(event.trace)
    return None


def _guessed(failure: Failure, following: list[Event], last: Phase | None) -> Phase | None:
    if OOM.search(failure.message) and "private pools" in failure.message and failure.at == "kv_pool":
        return "warmup"  # memory in graph pools: the capture has been
    if failure.at is not None:
        return failure.at
    if any(isinstance(event, Stage) and event.stage == "serving" for event in following[:4]):
        return "serving"  # an answer to a request right behind it
    told = next((e.at for e in following if isinstance(e, Failure) and e.at), None)
    if told is None and failure.kind in _KILLS:
        told = last  # a collector puts the container's end in front of its log
    if told is not None:
        return told
    sizes = _OVERSIZED.search(failure.message)
    if sizes and _bytes(sizes["tried"]) > _bytes(sizes["total"]):
        return "profile"  # larger than the GPU itself: a dummy batch of the largest input
    row = grammar().rows.get(failure.kind)
    return row.least if row is not None and row.least in ("init", "weights") else _FALLBACK.get(failure.kind)


def _bytes(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        return 0
