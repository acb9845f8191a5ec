"""Run: what a log says happened, in words that hold for every engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

from msgspec import Struct

from ullage.core.units import Measured

Phase = Literal["args", "init", "weights", "profile", "kv_pool", "graph_capture", "warmup", "serving"]
PHASES: tuple[Phase, ...] = (
    "args", "init", "weights", "profile", "kv_pool", "graph_capture", "warmup", "serving",
)  # fmt: skip
Outcome = Literal["started", "crashed", "hang", "unknown"]


class Rank(Struct, frozen=True, order=True):
    """Who printed a line: parallel ranks as far as the prefix names them, and the process's own name."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    process: str = ""
    pid: int | None = None

    @property
    def label(self) -> str:
        """ "DP0 TP3", "PP1", or the process name ("EngineCore"); "" where nothing is known."""
        parts = [
            f"{name}{n}" for name, n in (("DP", self.dp), ("PP", self.pp), ("TP", self.tp)) if n is not None
        ]
        return " ".join(parts) or self.process


class Source(Struct, frozen=True):
    """A place in a log. ``line`` counts from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Frame(Struct, frozen=True):
    """One frame of a Python traceback. ``line`` is None where the log lost it."""

    file: str
    line: int | None
    function: str


class Trace(Struct, frozen=True):
    """A Python traceback. ``cause`` is the exception that came before it in a chain ("direct cause of",
    "during handling of"): the first of a chain is the root."""

    frames: tuple[Frame, ...] = ()
    exception: str = ""
    message: str = ""
    cause: Trace | None = None

    @property
    def root(self) -> Trace:
        return self.cause.root if self.cause else self

    @property
    def text(self) -> str:
        return f"{self.exception}: {self.message}" if self.message else self.exception


class Line(Struct, frozen=True):
    """One log message: prefix, colour, wrappers and timestamps taken off, its traceback joined to it.

    ``time`` is in seconds and only good for differences. ``where`` is the "file.py:123" that vLLM prints.
    """

    text: str
    source: Source
    time: float | None = None
    rank: Rank = Rank()
    level: str | None = None
    where: str | None = None
    trace: Trace | None = None


class Event(Struct, frozen=True, kw_only=True):
    """Something a line says. ``text`` is the line as shown to people (shortened)."""

    source: Source
    rank: Rank = Rank()
    time: float | None = None
    text: str = ""

    @property
    def phase(self) -> Phase | None:
        """The stage that this event shows to be open or done; None where it tells nothing."""
        return None


class RunBegins(Event, frozen=True, kw_only=True):
    """The first line of a start: a new run begins here."""

    engine: str = ""
    version: str | None = None

    @property
    def phase(self) -> Phase | None:
        return "args"


class Settings(Event, frozen=True, kw_only=True):
    """Arguments as the log prints them. ``resolved``: defaults filled in; else only what the user gave."""

    values: dict[str, object]
    resolved: bool = False

    @property
    def phase(self) -> Phase | None:
        return "args"


class Stage(Event, frozen=True, kw_only=True):
    """A stage begins or ends, with nothing else to tell."""

    stage: Phase
    name: str = ""
    ends: bool = False

    @property
    def phase(self) -> Phase | None:
        return self.stage


class Figure(Event, frozen=True, kw_only=True):
    """A figure by its name of cases/README ("free_after_weights_gib"), as printed. One line may give several.

    ``draft`` marks the draft worker's figures; ``stage`` is the phase in which the engine prints it.
    """

    name: str
    value: Measured
    stage: Phase
    draft: bool = False

    @property
    def phase(self) -> Phase | None:
        return self.stage


class Note(Event, frozen=True, kw_only=True):
    """A line worth knowing that is neither stage nor failure: a fallback taken, a warning, a version.

    ``name`` is the row's id; ``fields`` are its named groups.
    """

    name: str
    fields: dict[str, str] = {}
    stage: Phase | None = None

    @property
    def phase(self) -> Phase | None:
        return self.stage


class Ready(Event, frozen=True, kw_only=True):
    """The server answers requests."""

    @property
    def phase(self) -> Phase | None:
        return "serving"


class Served(Event, frozen=True, kw_only=True):
    """A statistics line under load. Units as the engines print them; None where the line lacks it."""

    running: int | None = None
    queued: int | None = None
    tokens: int | None = None
    usage: float | None = None
    tokens_per_s: float | None = None
    acceptance_length: float | None = None

    @property
    def phase(self) -> Phase | None:
        return "serving"


class Stopped(Event, frozen=True, kw_only=True):
    """Somebody asked the server to stop: what follows is not a crash."""


class Failure(Event, frozen=True, kw_only=True):
    """Something failed. ``kind`` is the row or exception it was recognised by; ``cascade`` marks a line that
    a process prints because another one failed; ``at`` is the phase in which it happened, worked out by the
    engine's log reader from the stage that was open and from the traceback's frames."""

    kind: str
    message: str
    trace: Trace | None = None
    cascade: bool = False
    at: Phase | None = None
    signal: int | None = None
    hang: bool = False

    @property
    def phase(self) -> Phase | None:
        return self.at


E = TypeVar("E", bound=Event)


class Run(Struct, frozen=True):
    """One start of a server, as its log (or several files of it) tells it. Events keep the order of the log.

    ``index`` counts the runs of one log from 0, ``of`` says how many it holds. ``num_lines`` counts all lines
    read. ``last`` are the last lines of the log: what a silent end was doing.
    """

    engine: str | None
    version: str | None = None
    version_source: Literal["log", "command", "inferred"] | None = None
    events: tuple[Event, ...] = ()
    index: int = 0
    of: int = 1
    num_lines: int = 0
    last: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()

    def all(self, kind: type[E]) -> Iterator[E]:
        return (event for event in self.events if isinstance(event, kind))

    def first(self, kind: type[E]) -> E | None:
        return next(self.all(kind), None)

    def figures(self, name: str, *, draft: bool = False) -> list[Figure]:
        """Every printing of a figure, in the order of the log; one a rank at least."""
        return [e for e in self.all(Figure) if e.name == name and e.draft == draft]

    def figure(self, name: str, *, draft: bool = False) -> Figure | None:
        return next(iter(self.figures(name, draft=draft)), None)

    def notes_named(self, name: str) -> list[Note]:
        return [e for e in self.all(Note) if e.name == name]

    @property
    def ready(self) -> Ready | None:
        return self.first(Ready)

    @property
    def stopped(self) -> Stopped | None:
        return self.first(Stopped)

    @property
    def failures(self) -> list[Failure]:
        return list(self.all(Failure))

    @property
    def reached(self) -> Phase | None:
        """The furthest stage that any event shows."""
        seen = [PHASES.index(e.phase) for e in self.events if e.phase and not isinstance(e, Failure)]
        return PHASES[max(seen)] if seen else None

    @property
    def ranks(self) -> list[str]:
        """Labels of the ranks that printed figures, in order of rank."""
        found = {(e.rank.dp or 0, e.rank.pp or 0, e.rank.tp or 0, e.rank.label) for e in self.all(Figure)}
        labels = [label for *_, label in sorted(found)]
        return [label for label in labels if label] or labels
