"""Patterns to events: the rows of an engine's ``log.toml``, applied to one line at a time.

A row has a ``literal`` (or several): a phrase that its line must contain, which is also what the fast scan of
a large log looks for; and a ``pattern``, a regular expression whose named groups are what the line tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct, field

from ullage.core.run import (
    Event,
    Failure,
    Figure,
    Line,
    Note,
    Phase,
    Ready,
    RunBegins,
    Served,
    Stage,
    Stopped,
    Trace,
)
from ullage.core.units import GIB, MIB, Measured

Kind = Literal["figures", "begin", "stage", "note", "ready", "served", "stopped", "failure"]
MAX_TEXT = 2000
_INSIDE = ("figures", "note", "stopped")
#: a group "x_gib__mib" is printed in MiB and kept in GiB
_SCALES = {"mib": MIB / GIB, "bytes": 1 / GIB, "kib": 1 / (1 << 20), "tib": 1024.0, "percent": 0.01}


class LineRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of line.

    ``kind``: *figures* (each named group is a figure of that name; "x_gib__mib" is printed in MiB), *begin* (a
    new start; group ``version``), *stage*, *note* (groups become fields), *ready*, *served* (groups are fields
    of Served), *stopped* (somebody asked for it), *failure*.
    ``stage`` is the phase that the line belongs to (figures without one belong to whatever is open); ``then``
    the phase that is open after it. ``least`` (failure): the earliest phase in which it can happen, which is
    also its phase where nothing else tells one. Rows of the kinds figures, note and stopped are looked for in
    the exceptions of a traceback too.
    ``weak`` (begin): a line that each process of one start prints; it begins a run only when the same process
    prints it again. ``cascade``: printed because something else failed. ``container``: the head of a traceback
    that decides itself. ``hang``: shows that nothing moves. ``scan = false`` keeps a routine line out of the
    fast scan. ``certain`` failures count even where the server goes on (default); ``soft`` ones only when the
    run ends with them.
    """

    name: str
    literal: str | list[str]
    kind: Kind
    pattern: str = ""
    stage: Phase | None = None
    then: Phase | None = None
    least: Phase | None = None
    ends: bool = False
    weak: bool = False
    cascade: bool = False
    container: bool = False
    hang: bool = False
    soft: bool = False
    scan: bool = True
    since: str = ""
    until: str = ""
    source: str = ""

    @property
    def literals(self) -> list[str]:
        return [self.literal] if isinstance(self.literal, str) else self.literal


class FrameRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A traceback frame ("path/file.py:function") that tells the phase of a failure."""

    pattern: str
    stage: Phase
    source: str = ""


class LogTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A log.toml: rows in order; the first failure row that matches names the failure."""

    line: list[LineRow] = field(default_factory=list)
    frame: list[FrameRow] = field(default_factory=list)


class _Rule:
    def __init__(self, row: LineRow) -> None:
        self.row = row
        self.literals = row.literals
        self.pattern = re.compile(row.pattern) if row.pattern else None

    def match(self, text: str) -> dict[str, str] | None:
        """The named groups that took part; None where the line is of another kind."""
        if not any(literal in text for literal in self.literals):
            return None
        if self.pattern is None:
            return {}
        found = self.pattern.search(text)
        return None if found is None else {k: v for k, v in found.groupdict().items() if v is not None}


def chain(trace: Trace | None) -> Iterator[Trace]:
    """The exceptions of a chain, the one that came first in front."""
    if trace is not None:
        yield from chain(trace.cause)
        yield trace


class Grammar:
    """All rows that apply to an engine's log: its own in front, those of the runtime under it behind."""

    def __init__(self, *tables: LogTable) -> None:
        rules = [_Rule(row) for table in tables for row in table.line]
        self.rules = rules
        self._phrases = [(literal, i) for i, rule in enumerate(rules) for literal in rule.literals]
        self.frames = [(re.compile(row.pattern), row.stage) for table in tables for row in table.frame]
        self.rows = {rule.row.name: rule.row for rule in rules}

    def literals(self) -> list[bytes]:
        """The phrases of every row that the fast scan must find, and those of tracebacks."""
        found = [literal for rule in self.rules if rule.row.scan for literal in rule.literals]
        return list(
            dict.fromkeys(literal.encode() for literal in ["Traceback (most recent call last)", *found])
        )

    def events(self, line: Line) -> list[tuple[LineRow | None, Event]]:
        """What the line says, each event with the row that recognised it (None: an exception without one)."""
        found: list[tuple[LineRow | None, Event]] = []
        texts = [trace.text for trace in chain(line.trace)]
        rules = self._with_phrase(line.text, *texts)
        for rule in rules:
            if rule.row.kind == "failure":
                continue
            groups = rule.match(line.text)
            if groups is None and texts and rule.row.kind in _INSIDE:
                groups = next((g for g in map(rule.match, texts) if g is not None), None)
            if groups is not None:
                found += [(rule.row, event) for event in _events(rule.row, groups, line)]
        failure = self._failure(line, texts, [rule for rule in rules if rule.row.kind == "failure"])
        return [*found, failure] if failure else found

    def _with_phrase(self, *texts: str) -> list[_Rule]:
        """The rules whose phrase one of the texts holds, in the order of the tables: most lines hold none."""
        hits = {i for text in texts for literal, i in self._phrases if literal in text}
        return [self.rules[i] for i in sorted(hits)]

    def _failure(self, line: Line, texts: list[str], rules: list[_Rule]) -> tuple[LineRow | None, Event] | None:
        for rule in rules:
            inside = next((t for t in texts if rule.match(t) is not None), None)
            head = rule.match(line.text)
            if inside is not None or (head is not None and not (texts and rule.row.container)):
                groups = rule.match(inside) if inside is not None else head
                return rule.row, _failure(rule.row, groups or {}, line, inside or line.text)
        if line.trace is None or not line.trace.exception:
            return None
        root = line.trace.root
        kind = (root.exception or line.trace.exception).rsplit(".", 1)[-1]
        return None, Failure(
            kind=kind, message=(root.text if root.exception else line.trace.text)[:MAX_TEXT], trace=line.trace,
            source=line.source, rank=line.rank, time=line.time, text=_shown(line),
        )  # fmt: skip

    def phase(self, trace: Trace | None) -> Phase | None:
        """The phase that the frames of a failure tell: innermost frame first, the root of the chain first."""
        for part in chain(trace):
            for frame in reversed(part.frames):
                place = f"{frame.file}:{frame.function}"
                for pattern, stage in self.frames:
                    if pattern.search(place):
                        return stage
        return None


def _shown(line: Line) -> str:
    """The line as shown to people: for a traceback its exception."""
    if line.trace is not None and line.trace.exception:
        head = "" if line.text.startswith((line.trace.exception, "Traceback")) else f"{line.text} … "
        return (head + line.trace.root.text)[:MAX_TEXT]
    return line.text[:MAX_TEXT]


def _failure(row: LineRow, groups: dict[str, str], line: Line, message: str) -> Failure:
    signal = groups.get("signal")
    return Failure(
        kind=row.name, message=message[:MAX_TEXT], trace=line.trace, cascade=row.cascade, at=row.stage,
        signal=int(signal) if signal and signal.lstrip("-").isdigit() else None, hang=row.hang,
        source=line.source, rank=line.rank, time=line.time, text=_shown(line),
    )  # fmt: skip


def _events(row: LineRow, groups: dict[str, str], line: Line) -> Iterable[Event]:
    source, rank, time, text = line.source, line.rank, line.time, line.text[:MAX_TEXT]
    match row.kind:
        case "figures":
            yield from _figures(row, groups, line)
        case "begin":
            yield RunBegins(version=groups.get("version"), source=source, rank=rank, time=time, text=text)
        case "stage":
            stage = row.stage or "init"
            yield Stage(
                stage=stage, name=row.name, ends=row.ends, source=source, rank=rank, time=time, text=text
            )
        case "note":
            yield Note(
                name=row.name, fields=groups, stage=row.stage, source=source, rank=rank, time=time, text=text
            )
        case "ready":
            yield Ready(source=source, rank=rank, time=time, text=text)
        case "stopped":
            yield Stopped(source=source, rank=rank, time=time, text=text)
        case "served":
            yield _served(groups, line)
        case "failure":
            return


def _figures(row: LineRow, groups: dict[str, str], line: Line) -> Iterator[Event]:
    text = line.text[:MAX_TEXT]
    if not groups:
        yield Stage(
            stage=row.stage or "init", name=row.name, ends=row.ends,
            source=line.source, rank=line.rank, time=line.time, text=text,
        )  # fmt: skip
    for group, value in groups.items():
        name, _, unit = group.partition("__")
        measured = measure(value, _SCALES.get(unit, 1.0))
        if measured is not None:
            yield Figure(
                name=name, value=measured, stage=row.stage or "init",
                source=line.source, rank=line.rank, time=line.time, text=text,
            )  # fmt: skip


def measure(text: str, scale: float = 1.0) -> Measured | None:
    """The number in ``text`` times ``scale``; None where there is none (a log may print "None" or "nan")."""
    try:
        value = Measured.parse(text)
    except (ValueError, OverflowError):
        return None
    return value if scale == 1.0 else Measured(value.value * scale, value.step * scale)


def _served(groups: dict[str, str], line: Line) -> Served:
    def number(name: str) -> float | None:
        measured = measure(groups[name]) if name in groups else None
        return measured.value if measured else None

    def whole(name: str) -> int | None:
        value = number(name)
        return int(value) if value is not None else None

    usage = number("usage")
    percent = number("usage__percent")
    return Served(
        running=whole("running"), queued=whole("queued"), tokens=whole("tokens"),
        usage=usage if usage is not None else (percent / 100 if percent is not None else None),
        tokens_per_s=number("tokens_per_s"), acceptance_length=number("acceptance_length"),
        source=line.source, rank=line.rank, time=line.time, text=line.text[:MAX_TEXT],
    )  # fmt: skip
