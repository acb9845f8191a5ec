"""Finding: a cause, its proof, and changes already checked by the engine's formula."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from msgspec import Struct

from ullage.core.deployment import Budget, Deployment, Interval, Verdict
from ullage.core.run import Failure, Outcome, Phase, Run

How = Literal["certain", "likely", "possible"]
HOW: tuple[How, ...] = ("certain", "likely", "possible")
Role = Literal["root", "cascade", "context"]


class Hazard(Struct, frozen=True):
    """What is known to go wrong, or to be lost, with a launch on a machine, before it is tried.

    ``id`` stays the same from release to release of ullage. ``stops``: the engine will refuse or die at
    ``phase``, for the reason ``cause`` of CAUSES.toml; only what is ``certain`` stops. ``message`` is what the
    engine prints then, literally; ``source`` is where this was read.
    """

    id: str
    text: str
    source: str
    certain: bool = True
    stops: bool = False
    phase: Phase | None = None
    cause: str | None = None
    message: str = ""


class Evidence(Struct, frozen=True):
    """A log line that proves or places something; ``count`` lines like it (other ranks) are folded into it."""

    file: str
    line: int
    text: str
    rank: str = ""
    role: Role = "context"
    count: int = 1


class Refuted(Struct, frozen=True):
    """A hypothesis that people hold, and the figure that rules it out."""

    hypothesis: str
    because: str


class Prediction(Struct, frozen=True):
    """What the engine's rule says of a changed launch."""

    verdict: Verdict
    kv_tokens: int | None = None
    kv_bytes: int | None = None
    note: str = ""


class Change(Struct, frozen=True):
    """Something to change, ready to paste: flag or variable -> value. An empty ``change`` is advice in words.

    ``predicted`` is None where no formula covers it.
    """

    change: dict[str, str | int | float | bool]
    why: str
    predicted: Prediction | None = None
    certainty: How = "likely"


class Case(Struct, frozen=True, dict=True):
    """All that a cause is tested against."""

    run: Run
    deployment: Deployment
    budget: Budget
    outcome: Outcome
    phase: Phase | None
    root: Failure | None = None
    interval: Interval | None = None
    failures: tuple[Failure, ...] = ()

    @cached_property
    def text(self) -> str:
        """The root failure in words: its message and its whole traceback chain."""
        if self.root is None:
            return ""
        parts, trace = [self.root.text, self.root.message], self.root.trace
        while trace is not None:
            parts += [trace.text]
            trace = trace.cause
        return "\n".join(dict.fromkeys(part for part in parts if part))

    @cached_property
    def frames(self) -> str:
        """The root failure's frames, "file:function" a line, outermost first, the whole chain."""
        lines, trace = [], self.root.trace if self.root else None
        while trace is not None:
            lines += [f"{frame.file}:{frame.function}" for frame in trace.frames]
            trace = trace.cause
        return "\n".join(lines)

    @cached_property
    def log(self) -> str:
        """Every text that an event or the log's tail holds: for phrases that stand beside the failure."""
        parts = [event.text for event in self.run.events] + [line.text for line in self.run.last]
        return "\n".join(dict.fromkeys(part for part in parts if part))


class CauseText(Struct, frozen=True):
    """What a cause's page says. Plain sentences; no figures of one case."""

    see: str
    misleads: str
    true: str
    helps: str


class Finding(Struct, frozen=True):
    """A cause found. ``weight`` decides between findings of the same certainty: a rule that needed more
    particular proof weighs more (a phrase alone 10, phrase and place 20, arithmetic 30, arithmetic and
    phrase 40)."""

    cause: str
    certainty: How
    summary: str
    explanation: str
    weight: int = 10
    phase: Phase | None = None
    outcome: Outcome | None = None
    evidence: tuple[Evidence, ...] = ()
    refuted: tuple[Refuted, ...] = ()
    fixes: tuple[Change, ...] = ()
    contributing: tuple[str, ...] = ()
