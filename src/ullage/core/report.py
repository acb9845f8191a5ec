"""What the faces show: Diagnosis, Comparison, Plan."""

from __future__ import annotations

from msgspec import Struct

from ullage.core.deployment import Budget, Inferred, Interval, Reading, Verdict
from ullage.core.finding import Change, Evidence, How, Refuted
from ullage.core.launch import Arg, Value
from ullage.core.machine import Machine
from ullage.core.model import Model
from ullage.core.run import Outcome, Phase
from ullage.core.timing import Speed


class Difference(Struct, frozen=True):
    """One thing that differs between two runs.

    ``effect_bytes``: how much the pool of the failed run would gain by the baseline's value, by the engine's
    formula with this one difference undone. ``decisive``: undoing it alone turns failure into a start.
    ``value`` is the baseline's value as such, rounded to what one would type.
    """

    setting: str
    baseline: str
    this: str
    effect_bytes: int | None = None
    decisive: bool = False
    note: str = ""
    value: Value = None


class Span(Struct, frozen=True):
    """One stage of one rank, in seconds from the log's first timed line; ``failed``: it ended so."""

    rank: str
    stage: Phase
    begin_s: float
    end_s: float
    failed: bool = False


class Comparison(Struct, frozen=True):
    differences: tuple[Difference, ...] = ()
    baseline_file: str = ""
    baseline_observed: dict[str, Reading] = {}
    baseline_inferred: dict[str, Inferred] = {}
    baseline_budget: Budget | None = None
    confounded: tuple[str, ...] = ()


class Diagnosis(Struct, frozen=True):
    """The answer of ``why``."""

    engine: str | None
    version: str | None
    version_source: str | None
    outcome: Outcome
    phase: Phase | None
    cause: str | None
    certainty: How | None
    summary: str
    explanation: str
    files: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    observed: dict[str, Reading] = {}
    inferred: dict[str, Inferred] = {}
    settings: dict[str, Arg] = {}
    budget: Budget = Budget()
    interval: Interval | None = None
    refuted: tuple[Refuted, ...] = ()
    fixes: tuple[Change, ...] = ()
    compare: Comparison | None = None
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    contributing: tuple[str, ...] = ()
    run_index: int = 0
    runs: int = 1
    num_lines: int = 0
    timeline: tuple[Span, ...] = ()


class Caution(Struct, frozen=True):
    """Something of a command that is wrong or worth knowing beside its verdict; ``id`` stays the same from
    release to release of ullage."""

    id: str
    text: str


class Plan(Struct, frozen=True):
    """The answer of ``plan``.

    ``concurrency`` is how many requests of a length (in tokens) the pool holds at once; ``why`` is the verdict
    in a sentence; ``missing`` names what a surer answer would need. ``speed``: decode speed where model and GPU
    are known and the launch does not surely fail. ``proven``: that it fails holds where every estimate lies
    at its better end; without it a failure is only likely.
    """

    engine: str
    version: str | None
    version_source: str | None
    command: str | None
    verdict: Verdict
    why: str
    fails_at: Phase | None = None
    cause: str | None = None
    model_id: str | None = None
    model: Model | None = None
    machine: Machine | None = None
    settings: dict[str, Arg] = {}
    readings: dict[str, Reading] = {}
    budget: Budget = Budget()
    interval: Interval | None = None
    concurrency: dict[int, float] = {}
    fixes: tuple[Change, ...] = ()
    cautions: tuple[Caution, ...] = ()
    missing: tuple[str, ...] = ()
    speed: Speed | None = None
    proven: bool = False
