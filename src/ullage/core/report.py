"""What the faces show: Diagnosis and Comparison."""

from __future__ import annotations

from msgspec import Struct

from ullage.core.deployment import Budget, Inferred, Interval, Reading
from ullage.core.finding import Change, Evidence, How, Refuted
from ullage.core.launch import Arg, Value
from ullage.core.run import Outcome, Phase


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


class Comparison(Struct, frozen=True):
    differences: tuple[Difference, ...] = ()
    baseline_file: str = ""
    baseline_observed: dict[str, Reading] = {}
    baseline_inferred: dict[str, Inferred] = {}
    baseline_budget: Budget | None = None
    confounded: tuple[str, ...] = ()


class StageTime(Struct, frozen=True):
    """How long a stage took on the clock of the log, in seconds, and where it began."""

    stage: Phase
    begin: str
    seconds: float | None


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
