"""TimeLedger: what every microsecond of a forward pass goes to, and how each entry is known."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ullage.core.ledger import Certainty
from ullage.core.units import Band

#: "target": the decode step or verify pass itself; "draft": the draft's steps; "round": what surrounds them
TimeStage = Literal["target", "draft", "round"]
#: what one decoding step is: one token a request, or one round of drafting and verifying
StepKind = Literal["decode", "verify"]


class TimeEntry(Struct, frozen=True):
    """One use of time, in microseconds, with its limits. ``source`` is a formula with its numbers, a
    measurement or a data row. ``factor`` names the uncertainty that it shares with other entries (all reads of
    weights lie as far from the truth as one of them)."""

    stage: TimeStage
    name: str
    microseconds: float
    low: float
    high: float
    certainty: Certainty
    source: str
    factor: str = ""


class TimeLedger(Struct, frozen=True):
    """One step of ``batch`` requests at ``context`` tokens each, on the slowest rank; ``rows`` tokens go
    through the target. ``low_us`` and ``high_us`` bound the whole step: errors that entries share, and errors
    that a measurement ties together, do not add up as the entries' own limits would."""

    kind: StepKind
    batch: int
    context: int
    rows: int
    entries: tuple[TimeEntry, ...] = ()
    low_us: float = 0.0
    high_us: float = 0.0

    @property
    def total_us(self) -> float:
        return sum(entry.microseconds for entry in self.entries)

    @property
    def band_us(self) -> Band:
        return Band(self.total_us, min(self.low_us, self.total_us), max(self.high_us, self.total_us))

    def of(self, stage: TimeStage) -> float:
        """Microseconds that the entries of ``stage`` take together."""
        return sum(entry.microseconds for entry in self.entries if entry.stage == stage)

    def named(self, factor: str) -> float:
        """Microseconds of all entries with this factor ("collectives")."""
        return sum(entry.microseconds for entry in self.entries if entry.factor == factor)


class Benchmark(Struct, frozen=True):
    """A measured speed: ``step_us`` of a step of ``batch`` requests, or of a round where ``length`` tokens come
    out of each. ``text`` as it was given; ``context`` None: as everywhere else."""

    batch: int
    step_us: float
    text: str
    context: int | None = None
    length: float | None = None


class SpeedPoint(Struct, frozen=True):
    """What ``batch`` requests at ``context`` tokens each get: tokens per second, for each and together.
    ``acceptance_length``: tokens a round, bonus included; 1 without speculation."""

    batch: int
    context: int
    per_user: Band
    total: Band
    acceptance_length: float = 1.0


class Speed(Struct, frozen=True):
    """Decode speed of a launch. ``ledger`` is the step of one request; ``assumed`` says what was taken for
    granted (a context, an acceptance length) because nobody said; ``measured`` are the points it was fitted
    to."""

    points: tuple[SpeedPoint, ...]
    ledger: TimeLedger
    assumed: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
